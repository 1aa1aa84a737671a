"""Loading, replacing and unloading policies while traffic flows, without leftovers."""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest
from hosts import PLAIT, tool, wait_for
from transfers import MPTCP, counters, listen_on_all, transfer

import bpf
from policies import both_hooks, chain, counted, listed, load, plait, policy, stats


def names(host) -> list[str]:
    return [each["name"] for each in listed(host)["policies"]]


def attached(host) -> set[tuple[str, str]]:
    return {(each["interface"], each["hook"]) for each in listed(host)["attachments"] if each["mode"]}


def pins(host) -> pathlib.Path:
    """The directory of pins."""
    return pathlib.Path("/run/plait/bpf") / str(host.netns_inode())


def kernel_objects(host) -> dict[str, set[int]]:
    """The maps pinned for a host, and the programs that use them, according to bpftool."""
    if not shutil.which("bpftool"):
        pytest.skip("not installed: bpftool")
    maps = {pinned(file, "show")["id"] for file in (pins(host) / "maps").iterdir()}
    programs = json.loads(tool("bpftool", "-j", "prog", "show") or "[]")
    return {"map": maps, "prog": {each["id"] for each in programs if maps & set(each.get("map_ids", ()))}}


def pinned(file, what):
    return json.loads(tool("bpftool", "-j", "map", what, "pinned", str(file)))


def wait_until_gone(objects):
    """Waits until the kernel has freed these objects."""

    def all_are_gone():
        return not any(numbers & bpf.ids(kind) for kind, numbers in objects.items())

    wait_for("end of programs and maps", all_are_gone, timeout=20)


def nothing_is_left(host):
    assert not pins(host).exists()
    state = pathlib.Path("/run/plait/policy") / str(host.netns_inode())
    assert not state.exists()
    for link in ("eth", "wlan"):
        shown = host.ip(f"-d link show {link}")
        disciplines = tool("tc", "-n", host.name, "qdisc", "show", "dev", link)
        assert "xdp" not in shown and "clsact" not in disciplines and not host.programs_at(link)
    if shutil.which("bpftool"):
        attached = json.loads(host.tool("bpftool", "-j", "net", "show"))
        assert not any(attached[0][kind] for kind in ("xdp", "tc"))


COUNT = both_hooks()


def test_a_policy_outlives_its_command_until_it_is_unloaded(pair):
    client = pair.client
    load(client, COUNT)
    objects = kernel_objects(client)
    assert objects["map"] and objects["prog"]
    assert names(client) == ["test"]
    both = {(link, hook) for link in ("eth", "wlan") for hook in ("ingress", "egress")}
    assert attached(client) == both
    # Other namespaces are not affected.
    assert names(pair.server) == []
    transfer(pair, pair.ETH, size=1_000_000)
    assert all(each["packets"] > 10 for each in counted(client))
    assert plait(client, "show", "test").count("[[chains]]") == 2
    plait(client, "unload", "test")
    assert names(client) == []
    nothing_is_left(client)
    wait_until_gone(objects)


def test_two_policies_are_independent(pair):
    client = pair.client
    load(client, COUNT)
    second = COUNT.replace('"test"', '"second"').replace('["*"]', '["eth"]')
    load(client, second, name="second")
    assert names(client) == ["test", "second"]
    transfer(pair, pair.ETH, size=1_000_000)
    first, other = stats(client)["policies"]
    assert 0 < other["chains"][0]["packets"] < first["chains"][0]["packets"]
    plait(client, "unload", "test")
    assert names(client) == ["second"]
    # No policy needs wlan any more.
    assert attached(client) == {("eth", "ingress"), ("eth", "egress")}
    transfer(pair, pair.ETH, size=1_000_000)
    (left,) = stats(client)["policies"]
    assert left["chains"][0]["packets"] > other["chains"][0]["packets"]
    plait(client, "unload", "--all")
    nothing_is_left(client)


def test_replacing_needs_a_flag_and_keeps_counters(pair, tmp_path):
    client = pair.client
    load(client, COUNT)
    transfer(pair, pair.ETH, size=1_000_000)
    before = counted(client)
    file = tmp_path / "policy.toml"
    assert "--replace" in plait(client, "load", file, code=1)
    more = COUNT + chain("third", "egress", "packet(fin)")
    load(client, more, "--replace")
    after = counted(client)
    assert [each["name"] for each in after] == ["ingress", "egress", "third"]
    assert all(new["packets"] >= old["packets"] > 0 for new, old in zip(after, before))
    assert after[2]["packets"] == 0


def test_an_invalid_policy_is_rejected_and_changes_nothing(pair, tmp_path):
    client = pair.client
    load(client, COUNT)
    for text, expected in (
        ('name = "x"\nchains = [', "policy.toml:"),
        (policy(chain(select="packet(fin")), "policy.toml:"),
        (policy(chain(hook="sideways")), '"egress"'),
    ):
        (tmp_path / "policy.toml").write_text(text)
        for command in (("check",), ("load", "--replace")):
            assert expected in plait(client, *command, tmp_path / "policy.toml", code=1)
    assert names(client) == ["test"] and len(attached(client)) == 4


def test_check_needs_no_privileges(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(COUNT)
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups") if os.geteuid() == 0 else ()
    # The file is written by the unprivileged user, who may not be able to read tmp_path.
    script = f'cat > "$0" && exec {PLAIT} policy check "$0"'
    command = [*user, "sh", "-c", script, f"/tmp/plait-check-{os.getpid()}.toml"]
    try:
        done = subprocess.run(command, input=COUNT, capture_output=True, text=True)
        if "Permission denied" in done.stderr:
            pytest.skip("the program is in a directory that others cannot enter")
        assert done.returncode == 0, done.stderr
    finally:
        pathlib.Path(command[-1]).unlink(missing_ok=True)


class Traffic:
    """A connection that sends until end() is called, which asserts that everything arrived."""

    def __init__(self, pair):
        self.listener = listen_on_all(pair.server, pair.ETH, 8080)
        self.client = pair.client.socket(self.listener.family, MPTCP)
        self.sent, self.received = hashlib.sha256(), hashlib.sha256()
        self.bytes = 0
        self.ends = threading.Event()
        self.failure = None
        self.receiver = threading.Thread(target=self.guarded, args=(self.receive,))
        self.sender = threading.Thread(target=self.guarded, args=(self.send,))
        self.receiver.start()
        self.client.settimeout(30)
        self.client.connect((pair.ETH, 8080))
        self.sender.start()

    def guarded(self, work):
        try:
            work()
        except OSError as error:
            self.failure = error

    def send(self):
        block = random.Random(1).randbytes(1 << 18)
        while not self.ends.is_set():
            self.client.sendall(block)
            self.sent.update(block)
            self.bytes += len(block)
        self.client.shutdown(1)

    def receive(self):
        connection, _ = self.listener.accept()
        connection.settimeout(30)
        with connection:
            while data := connection.recv(1 << 18):
                self.received.update(data)

    def end(self):
        self.ends.set()
        self.sender.join(60)
        self.receiver.join(60)
        self.client.close()
        self.listener.close()
        assert self.failure is None
        assert self.received.digest() == self.sent.digest()


@contextlib.contextmanager
def traffic(pair):
    one = Traffic(pair)
    try:
        wait_for("second subflow", lambda: counters(pair.server)["MPTcpExtMPJoinAckRx"] > 0)
        wait_for("some bytes", lambda: one.bytes > 1_000_000)
        yield one
    finally:
        one.end()


def generation(number: int) -> str:
    """A policy of 24 random chains that match, modify or ignore the traffic."""
    rng = random.Random(number)
    source = f"src(10.77.{rng.randrange(1, 4)}.0/24) and (packet(ack) or not packet(fin))"
    size = f"size({rng.randrange(1, 1000)}kB-)"
    some = ["any", "packet(data)", "not packet(data)", "path(eth)", "packet(pure_ack)", source, size]
    actors = ['["record"]', '[{ rate_limit = { window = "900MB" } }]', '["get_subflow", "record"]', "[]"]
    return policy(
        *(
            chain(f"c{place}", rng.choice(["ingress", "egress"]), rng.choice(some), rng.choice(actors))
            for place in range(24)
        )
    )


@pytest.mark.alone
@pytest.mark.parametrize("times", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_24_chains_are_replaced_many_times_under_traffic(make_pair, times):
    pair = make_pair(rate="1gbit")
    client = pair.client
    load(client, generation(0))
    once = kernel_objects(client)
    before = counters(client)
    with traffic(pair) as flow:
        seen = {"map": set(once["map"]), "prog": set(once["prog"])}
        begun = time.monotonic()
        for number in range(1, times + 1):
            load(client, generation(number), "--replace")
            if number % (times // 10) == 0:
                for kind, ids in kernel_objects(client).items():
                    seen[kind] |= ids
        seconds = time.monotonic() - begun
        chains = counted(client)
        assert len(chains) == 24 and any(each["packets"] for each in chains)
    after = counters(client)
    assert flow.bytes / seconds > 10e6 / 8, "traffic flowed throughout"
    assert after["TcpInCsumErrors"] == before["TcpInCsumErrors"]
    assert after["MPTcpExtMPFailTx"] == after["MPTcpExtMPFailRx"] == after["MPTcpExtMPRstTx"] == 0
    last = kernel_objects(client)
    assert last["map"] == once["map"] and len(last["prog"]) == len(once["prog"])
    wait_until_gone({"prog": seen["prog"] - last["prog"]})
    plait(client, "unload", "--all")
    nothing_is_left(client)
    wait_until_gone({kind: seen[kind] | last[kind] for kind in seen})


def turn(number: int) -> str:
    """Two chains of which exactly one, in turn, matches every packet; a third counts all."""
    selects = ["any", "not any"] if number % 2 else ["not any", "any"]
    two = [chain(name, "egress", select, "[]") for name, select in zip(("one", "other"), selects)]
    return policy(*two, chain("all", "egress", actors="[]"))


def test_each_packet_passes_the_old_or_the_new_policy(pair):
    client = pair.client
    load(client, turn(0))
    with traffic(pair):
        for number in range(1, 31):
            load(client, turn(number), "--replace")
    wait_for_silence(client)
    one, other, both = (each["packets"] for each in counted(client))
    assert one and other and one + other == both


def test_deleting_an_interface_keeps_the_others_attached(pair):
    client = pair.client
    load(client, COUNT)
    with traffic(pair) as flow:
        client.ip("link del wlan")
        assert attached(client) == {("eth", "ingress"), ("eth", "egress")}
        so_far = flow.bytes
        wait_for("more bytes", lambda: flow.bytes > so_far + 10_000_000, timeout=60)
        load(client, COUNT, "--replace")
        assert names(client) == ["test"]
    plait(client, "unload", "test")
    assert not pins(client).exists()


@pytest.mark.alone
@pytest.mark.alone  # Another test's `doctor --clean` would remove them first.
def test_doctor_removes_leftovers_of_deleted_namespaces(make_pair):
    pair = make_pair()
    load(pair.client, COUNT)
    objects, directory = kernel_objects(pair.client), pins(pair.client)
    for host in (pair.client, pair.server):
        tool("ip", "netns", "del", host.name)
    assert directory.exists()

    def is_removed() -> bool:
        cleaned = json.loads(tool(PLAIT, "doctor", "--clean", "--json"))
        assert not cleaned["failures"]
        return any(each["kind"] == "policy" and directory.name in each["name"] for each in cleaned["removed"])

    # The kernel deletes an unused namespace with a delay.
    wait_for("removal of the namespace's policy", is_removed)
    assert not directory.exists()
    wait_until_gone(objects)


@pytest.fixture
def loaded(pair):
    load(pair.client, policy(chain("data", "ingress", "packet(data)"), chain("out", "egress")))
    return pair


def start_trace(host, *options) -> subprocess.Popen:
    trace = host.start(
        PLAIT, "policy", "trace", *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "Ctrl-C" in trace.stderr.readline()
    return trace


def wait_for_silence(host):
    """Waits until the counters have not changed for half a second."""
    last, since = None, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = [each["packets"] for each in counted(host)]
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


def is_enabled(host, feature) -> bool:
    """Whether tracing or timing is enabled in the programs."""
    if not shutil.which("bpftool"):
        pytest.skip("not installed: bpftool")
    (settings,) = pinned(pins(host) / "maps" / "settings", "dump")
    return settings["formatted"]["value"][feature] != 0


def test_trace_reports_every_match(loaded):
    trace = start_trace(loaded.client, "--json")
    assert is_enabled(loaded.client, "tracing")
    transfer(loaded, loaded.ETH, size=20_000)
    wait_for_silence(loaded.client)
    trace.send_signal(signal.SIGINT)
    out, _ = trace.communicate(timeout=20)
    assert trace.returncode == 0
    events = [json.loads(line) for line in out.splitlines()]
    packets = {each["name"]: each["packets"] for each in counted(loaded.client)}
    assert collections.Counter(found["chain"] for each in events for found in each["matched"]) == packets
    assert {each["interface"] for each in events} == {"eth", "wlan"}
    assert {each["hook"] for each in events} == {"ingress", "egress"}
    for each in events:
        assert each["verdict"] == "pass" and each["changed"] is False
        inward = each["hook"] == "ingress"
        assert each["source"].startswith("10.77.") and each["source"].endswith(":8080") == inward
    assert {"mp_capable", "mp_join"} <= {kind for each in events for kind in each["kinds"]}
    assert not is_enabled(loaded.client, "tracing")


def test_trace_prints_one_line_per_packet(loaded):
    trace = start_trace(loaded.client)
    transfer(loaded, loaded.ETH, size=20_000)
    trace.send_signal(signal.SIGINT)
    out, _ = trace.communicate(timeout=20)
    lines = out.splitlines()
    assert len(lines) > 10 and all("eth" in line or "wlan" in line for line in lines)
    assert any("test/out" in line for line in lines)


def test_the_next_command_disables_tracing_of_a_killed_reader(loaded):
    trace = start_trace(loaded.client, "--json")
    assert is_enabled(loaded.client, "tracing")
    trace.kill()
    trace.wait()
    listed(loaded.client)
    assert not is_enabled(loaded.client, "tracing")
    transfer(loaded, loaded.ETH, size=20_000)
    assert stats(loaded.client)["skipped"]["lost_events"] == 0


def test_trace_without_a_policy_names_a_remedy(pair):
    assert "plait policy load" in plait(pair.client, "trace", code=1)


def test_timing_is_measured_only_on_request(loaded):
    transfer(loaded, loaded.ETH, size=1_000_000)
    quiet = counted(loaded.client)
    assert all(actor["nanoseconds"] == 0 for each in quiet for actor in each["actors"])
    with traffic(loaded):
        timed = json.loads(plait(loaded.client, "stats", "--timing", "--json"))["policies"][0]["chains"]
    actors = [actor for each in timed for actor in each["actors"] if actor["packets"]]
    assert actors and all(0 < each["nanoseconds"] < 100_000 * each["packets"] for each in actors)
    assert not is_enabled(loaded.client, "timing")
