"""plait.policy: policies and controllers from Python, on real MPTCP connections; and the controllers that come with plait."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time

import pytest
from conftest import reason_to_skip
from hosts import PLAIT, REPOSITORY, Host, Pair, tool, wait_for
from package import PYTHON, install
from streams import accept, listen, receive_exactly

MPTCP = 262
POLICIES = REPOSITORY / "policies"


@pytest.fixture
def work(tmp_path) -> pathlib.Path:
    """A folder with the package."""
    install(tmp_path)
    return tmp_path


@pytest.fixture
def make_pair(work, make_pair):
    """Pairs of hosts on which no policy stays."""
    pairs = []

    def make(rate: str | None = None):
        pairs.append(make_pair(rate))
        return pairs[-1]

    yield make
    clean(work, pairs)


class Distant(Pair):
    """A client and a server with links of 50 Mb/s and 20 ms there and back."""

    LINKS = {"eth": ("50mbit", "10ms"), "wlan": ("50mbit", "10ms")}

    def join(self, link: str):
        rate, delay = self.LINKS[link]
        words = ("lab", "link", "--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        program = subprocess.Popen(
            [PLAIT, *words, "--rate", rate, "--delay", delay], stderr=subprocess.PIPE, text=True
        )
        self.links = [*getattr(self, "links", []), program]
        said = iter(program.stderr.readline, "")
        assert any("ready" in line for line in said), "the link has ended"

    def remove(self):
        for program in getattr(self, "links", []):
            program.terminate()
            program.communicate()
        super().remove()


class Uneven(Distant):
    """One path is near and fast, the other far and slow."""

    LINKS = {"eth": ("20mbit", "10ms"), "wlan": ("2mbit", "100ms")}


@contextlib.contextmanager
def built(pair: Pair, work: pathlib.Path):
    if reason := reason_to_skip():
        pytest.skip(reason)
    try:
        pair.build()
        yield pair
        clean(work, [pair])
    finally:
        pair.remove()


@pytest.fixture
def distant(work):
    with built(Distant(f"{os.getpid()}-distant", work), work) as pair:
        yield pair


@pytest.fixture
def uneven(work):
    with built(Uneven(f"{os.getpid()}-uneven", work), work) as pair:
        yield pair


def clean(work: pathlib.Path, pairs: list[Pair]):
    for pair in pairs:
        for host in (pair.client, pair.server):
            host.stop_programs()
            # One that has expired is removed by the mere attempt.
            run(
                work,
                "import contextlib\nfor one in loaded():\n    with contextlib.suppress(Error): unload(one.name)",
                host,
            )


def run(work: pathlib.Path, program: str, host: Host | None = None, check: bool = True):
    """Runs a program of a few lines, in which `policy` is imported, on a host or where this runs."""
    file = work / "program.py"
    file.write_text(f"import json\nfrom plait import policy\nfrom plait.policy import *\n{program}")
    if host:
        done = host.run(PYTHON, file, cwd=work, text=True)
    else:
        done = subprocess.run([PYTHON, file], cwd=work, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done


def start(work: pathlib.Path, host: Host, *command) -> subprocess.Popen:
    """Starts a controller; it has loaded its policy when this returns."""
    log = f"controller-{time.monotonic_ns()}.log"
    environment = os.environ | {"PYTHONPATH": str(work)}
    program = host.start(PYTHON, *command, log=log, cwd=work, env=environment)
    before = names(work, host)

    def ready():
        assert program.poll() is None, (work / log).read_text()
        return names(work, host) != before or before

    wait_for("controller", ready)
    return program


def names(work: pathlib.Path, host: Host) -> list[str]:
    """The policies that are loaded on a host and act."""
    program = (
        "print(json.dumps([one.name for one in loaded() if one.remaining is None or one.remaining > 0]))"
    )
    return json.loads(run(work, program, host).stdout)


def counter(host: Host, name: str) -> int:
    """One of the kernel's own counters of MPTCP."""
    lines = host.run("cat", "/proc/net/netstat", text=True).stdout.splitlines()
    titles, values = (line.split() for line in lines if line.startswith("MPTcpExt:"))
    return int(dict(zip(titles, values, strict=True))[name])


def alone(pair):
    """Connections have one subflow: the server announces no address."""
    pair.server.run("ip", "mptcp", "endpoint", "flush")


class Download:
    """A connection over which the server sends a pattern as fast as it can; what arrives is compared."""

    PATTERN = bytes(range(251)) * 4096

    def __init__(self, pair, address: str, port: int = 9100):
        listener = listen(pair.server, port, "0.0.0.0", MPTCP)
        self.client = pair.client.socket(protocol=MPTCP)
        self.client.settimeout(20)
        self.client.connect((address, port))
        self.sender = accept(listener)
        self.sender.settimeout(60)
        self.listener = listener
        self.received, self.damaged, self.ended = 0, False, False
        threading.Thread(target=self._send, daemon=True).start()
        threading.Thread(target=self._receive, daemon=True).start()

    def _send(self):
        try:
            while True:
                self.sender.sendall(self.PATTERN)
        except OSError:
            pass

    def _receive(self):
        try:
            while data := self.client.recv(65536):
                at = self.received % 251
                self.damaged |= data != self.PATTERN[at : at + len(data)]
                self.received += len(data)
        except OSError:
            pass
        self.ended = True

    def mbps(self, seconds: float = 1.5) -> float:
        """Payload that arrives from now on, for a while."""
        before, since = self.received, time.monotonic()
        time.sleep(seconds)
        return (self.received - before) * 8e-6 / (time.monotonic() - since)

    def close(self):
        assert not self.damaged and not self.ended
        for one in (self.client, self.sender, self.listener):
            one.close()


def fetch(pair, size: int, address: str, port: int = 9200) -> bytes:
    """What the server sends over a connection of its own."""
    listener = listen(pair.server, port, "0.0.0.0", MPTCP)
    data = bytes(range(256)) * (size // 256)
    client = pair.client.socket(protocol=MPTCP)
    client.settimeout(20)
    client.connect((address, port))
    with accept(listener) as sender, client, listener:
        threading.Thread(target=sender.sendall, args=(data,)).start()
        assert receive_exactly(client, len(data)) == data
        return data


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ('packet("data") & ~dst("10.0.0.0/8")', "packet(data) and not dst(10.0.0.0/8)"),
        ('(src("10.0.0.1", 80) | ANY) & path("wlan0")', "(src(10.0.0.1, 80) or any) and path(wlan0)"),
        ('~(ANY & size("1kB", "2MB"))', "not (any and size(1kB-2MB))"),
        ('Selector("any or any") & ANY', "(any or any) and any"),
        ("any_of([ANY, ANY, ANY])", "any or any or any"),
        ("any_of([])", "not any"),
        ("all_of([])", "any"),
        ('subflow(dst="fd00::/8", sport=(1, 9))', "subflow(dst = fd00::/8, sport = 1-9)"),
        ('connection("0a1b2c3d")', "connection(0x0a1b2c3d)"),
        ('ip_pair("10.0.0.1", "10.0.0.2")', "ip_pair(10.0.0.1, 10.0.0.2)"),
        ("data_sequence(7, 9) | subflow_sequence(1, 2)", "sequence(data = 7-9) or sequence(subflow = 1-2)"),
        ('mark(16, 255) & cgroup("/a")', "mark(0x10/0xff) and cgroup(/a)"),
    ],
)
def test_selectors_are_composed_to_the_text_that_policies_have(work, selector, text):
    program = f"selector = {selector}\nprint(selector)\ncheck(Policy('p', [Chain('c', 'egress', selector)]))"
    assert run(work, program).stdout == f"{text}\n"


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        ("Chain('c', 'egress', 'packet(daat)')", "daat"),
        ("Chain('c', 'sideways')", "ingress"),
        ("Chain('c', 'egress', actors=['jump'])", "jump"),
        ("Chain('c', 'egress', actors=[{'pace': '4 parsecs'}])", "4 parsecs"),
    ],
)
def test_a_mistake_says_what_was_expected(work, chain, says):
    done = run(work, f"check(Policy('p', [{chain}]))", check=False)
    assert done.returncode == 1 and "plait.policy.Mistake: " in done.stderr
    assert "expected" in done.stderr and says in done.stderr


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.toml")), ids=lambda file: file.name)
def test_the_policies_that_come_with_plait_are_policies(work, file):
    run(work, f"check({str(file)!r})")


def test_a_policy_is_loaded_counted_replaced_and_unloaded(work, pair):
    load = "load(Policy('p', [Chain('all', 'egress', packet('mptcp'), ['record'], ['eth'])]), replace={})"
    run(work, load.format(False), pair.client)
    assert "loaded already" in run(work, load.format(False), pair.client, check=False).stderr
    fetch(pair, 1 << 20, pair.ETH)
    count = json.loads(
        run(work, "print(json.dumps(vars(statistics()['p']['all']), default=vars))", pair.client).stdout
    )
    assert count["packets"] > 10 and count["errors"] == 0
    assert count["actors"][0][0] == "record" and count["actors"][0][1]["packets"] == count["packets"]
    run(work, load.format(True), pair.client)
    assert names(work, pair.client) == ["p"]
    run(work, "unload('p')", pair.client)
    assert names(work, pair.client) == []
    refused = run(work, "unload('p')", pair.client, check=False)
    assert "plait.policy.Error: " in refused.stderr and "'p'" in refused.stderr


def test_records_are_what_was_carried(work, pair):
    alone(pair)
    chains = "[Chain(hook, hook, packet('mptcp'), ['record'], ['eth']) for hook in ('egress', 'ingress')]"
    run(work, f"load(Policy('p', {chains}))", pair.client)
    data = fetch(pair, 1 << 18, pair.ETH)
    (flow,) = json.loads(run(work, "print(json.dumps(flows(), default=vars))", pair.client).stdout)
    assert flow["local"].startswith("10.77.1.1:") and flow["remote"] == "10.77.1.2:9200"
    assert flow["received"]["bytes"] - flow["received"]["retransmitted_bytes"] == len(data)
    assert flow["sent"]["bytes"] == 0 and flow["received"]["ended"] and not flow["joined"]


def test_events_tell_the_keys_only_to_who_asks_for_them(work, pair):
    chain = "Chain('c', 'egress', packet('mp_capable'), [{'get_connection': {'keys': True}}], ['eth'])"
    run(work, f"load(Policy('p', [{chain}]))", pair.client)
    program = """
told = events(timeout=20)
print("ready", flush=True)
for event in told:
    assert "keys" not in str(event) and "keys" not in event.details
    if event.keys() and event.keys()[1]:
        print(json.dumps([event.token, *(key.hex() for key in event.keys())]))
        break
"""
    (work / "listen.py").write_text(f"import json\nfrom plait.policy import *\n{program}")
    listener = pair.client.start(
        PYTHON, "listen.py", cwd=work, stdout=subprocess.PIPE, stderr=None, text=True
    )
    assert listener.stdout.readline() == "ready\n"
    fetch(pair, 256, pair.ETH)
    token, initiator, responder = json.loads(listener.communicate(timeout=20)[0])
    # RFC 8684, section 3.2: the first 32 bits of the SHA-256 of the key.
    assert hashlib.sha256(bytes.fromhex(initiator)).hexdigest()[:8] == token
    assert responder != initiator


def test_a_view_says_what_the_kernel_says(work, pair):
    load = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: counter(pair.client, "MPJoinSynAckRx"))
    program = """
class Look:
    interval = 0.5
    def tick(self, view):
        if view.elapsed:
            print(json.dumps(view, default=vars))
        return []
run(Look(), "look", ticks=2)
"""
    view = json.loads(run(work, program, pair.client).stdout)
    (connection,) = view["connections"]
    local, remote = load.client.getsockname(), load.client.getpeername()
    assert (
        connection["local"] == f"{local[0]}:{local[1]}" and connection["remote"] == f"{remote[0]}:{remote[1]}"
    )
    assert {subflow["interface"] for subflow in connection["subflows"]} == {"eth", "wlan"}
    assert [subflow["joined"] for subflow in connection["subflows"]] == [False, True]
    assert set(view["paths"]) == {"eth", "wlan"}
    received = sum(subflow["receive_rate"] for subflow in connection["subflows"])
    assert received > 1e6 and sum(path["receive_rate"] for path in view["paths"].values()) == pytest.approx(
        received
    )
    assert names(work, pair.client) == []
    load.close()


(DOCUMENTED,) = [
    example
    for example in re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/python.md").read_text(), re.DOTALL)
    if "policy.run(" in example
]


def test_the_documented_controller_runs_and_is_replaced_under_load_and_killed(work, distant):
    pair = distant
    assert len(DOCUMENTED.splitlines()) <= 40
    (work / "controller.py").write_text(DOCUMENTED)
    alone(pair)
    load = Download(pair, pair.ETH)
    assert load.mbps() > 35
    first = start(work, pair.client, "controller.py", "eth", "8e6")
    time.sleep(1)
    assert load.mbps(3) == pytest.approx(8, rel=0.1)
    second = start(work, pair.client, "controller.py", "eth", "24e6")
    assert first.wait(5) == 1
    time.sleep(1)
    assert load.mbps(3) == pytest.approx(24, rel=0.1)
    second.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    wait_for("end of the limit", lambda: load.mbps(0.2) > 30, timeout=4)
    assert time.monotonic() - killed < 3, "its expiry is 2 s"
    assert names(work, pair.client) == []
    # What is left of it goes with the next change.
    run(work, "load(Policy('other', []))\nunload('other')\nassert not loaded()", pair.client)
    load.close()


HELD = """
import time
class Held:
    interval = 0.1
    expiry = 1.5
    def tick(self, view):
        for subflow in view.subflows:
            yield Limit(subflow, "8mbit")
        if view.connections and {when}:
            {then}
run(Held(), "held")
"""


def test_a_controller_that_fails_takes_back_what_it_set(work, distant):
    pair = distant
    alone(pair)
    load = Download(pair, pair.ETH)
    then = "raise LookupError('something is not there')"
    done = run(work, HELD.format(when="0 < view.connections[0].subflows[0].receive_rate < 1.2e6", then=then),
               pair.client, check=False)  # fmt: skip
    assert done.returncode == 1 and "something is not there" in done.stderr
    assert names(work, pair.client) == []
    time.sleep(0.5)
    assert load.mbps() > 35
    load.close()


def test_what_a_controller_that_hangs_has_set_expires(work, distant):
    pair = distant
    alone(pair)
    load = Download(pair, pair.ETH)
    (work / "hang.py").write_text(
        "from plait.policy import *\n" + HELD.format(when="time.monotonic() > begun + 2", then="time.sleep(60)")
        .replace("class Held", "begun = time.monotonic()\nclass Held")
    )  # fmt: skip
    program = start(work, pair.client, "hang.py")
    wait_for("a limit", lambda: load.mbps(0.3) < 12)
    wait_for("its end", lambda: load.mbps(0.2) > 30, timeout=8)
    assert program.poll() is None
    load.close()


def test_sigterm_removes_the_policy(work, pair):
    program = start(work, pair.client, POLICIES / "small-flows.py")
    assert names(work, pair.client) == ["small-flows"]
    program.terminate()
    assert program.wait(5) == 128 + signal.SIGTERM
    assert names(work, pair.client) == []


def test_small_flows_get_no_second_path_and_large_ones_do(work, distant):
    pair = distant
    controller = start(work, pair.client, POLICIES / "small-flows.py", "500000")
    for size in (20_000, 100_000, 220_000):
        fetch(pair, size, pair.ETH)
    assert counter(pair.server, "MPJoinSynRx") == 0
    load = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: counter(pair.server, "MPJoinSynRx"), timeout=5)
    time.sleep(2)
    # Of twice 50.
    assert load.mbps(3) > 80
    assert controller.poll() is None
    load.close()


def test_an_interface_where_mptcp_is_never_on_carries_no_option_of_it(work, pair):
    text = (POLICIES / "never-on.toml").read_text().replace("wwan0", "wlan")
    (work / "never-on.toml").write_text(text)
    run(work, "load('never-on.toml')", pair.client)
    client = pair.client.name
    capture = pair.capture("wlan")
    with capture:
        load = Download(pair, pair.ETH)
        time.sleep(1)
        # An address is added and removed: the path manager tries again.
        for command in (
            ("addr", "add", "10.77.2.9/24", "dev", "wlan"),
            ("addr", "del", "10.77.2.1/24", "dev", "wlan"),
            ("addr", "add", "10.77.2.1/24", "dev", "wlan"),
        ):
            subprocess.run(["ip", "-n", client, *command], check=True)
            subprocess.run(["ip", "-n", client, "mptcp", "endpoint", "flush"], check=True)
            subprocess.run(
                ["ip", "-n", client, "mptcp", "endpoint", "add", "10.77.2.9", "dev", "wlan", "subflow"],
                check=True,
            )
            time.sleep(0.5)
        # A connection that begins there works, by plain TCP.
        fetch(pair, 1 << 20, pair.WLAN)
        # And one that began elsewhere does not move there with its route.
        subprocess.run(["ip", "-n", client, "route", "add", "10.77.1.2/32", "dev", "wlan"], check=True)
        time.sleep(1)
        subprocess.run(["ip", "-n", client, "route", "del", "10.77.1.2/32", "dev", "wlan"], check=True)
        wait_for("the rest of the transfer", lambda: load.mbps(0.3) > 10, timeout=15)
        load.close()
    assert capture.fields("frame.number", where="tcp.option_kind == 30") == []
    # The connection by plain TCP.
    assert sum(int(length) for (length,) in capture.fields("tcp.len")) >= 1 << 20


def test_tiers_keep_to_caps_and_quotas(work, distant):
    pair = distant
    size = 12_000_000
    start(
        work,
        pair.client,
        POLICIES / "tiers.py",
        "eth=primary,cap=10mbit",
        f"wlan=primary,cap=5mbit,quota={size}",
    )
    load = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: counter(pair.client, "MPJoinSynAckRx"))
    # What was on its way before there were limits.
    time.sleep(3)

    def carried(interface: str) -> int:
        """What the subflow over it has received, as the kernel's socket says."""
        local = {"eth": "10.77.1.1", "wlan": "10.77.2.1"}[interface]
        said = pair.client.run("ss", "-HtinO", "src", local, text=True).stdout
        return sum(int(bytes) for bytes in re.findall(r"bytes_received:(\d+)", said))

    before, since = {name: carried(name) for name in ("eth", "wlan")}, time.monotonic()
    time.sleep(5)
    took = time.monotonic() - since
    rates = {name: (carried(name) - before[name]) * 8e-6 / took for name in before}
    assert 4.5 < rates["wlan"] < 5.25
    # The connection waits for what the slower path brings, now and then.
    assert 7.5 < rates["eth"] < 10.5
    wait_for("the end of the quota", lambda: carried("wlan") >= 0.95 * size, timeout=20)
    time.sleep(2)
    assert carried("wlan") == pytest.approx(size, rel=0.05)
    # A cap holds to 5 %; what a busy machine falls short of it is another matter.
    assert 8.5 < load.mbps(3) < 10.5
    load.close()


@pytest.fixture
def guest(pair, work):
    """A host behind the client, which prefers `eth` for whatever the guest sends to the server's two addresses."""
    guest = Host(f"plait-test-{os.getpid()}-guest", work)
    tool("ip", "netns", "add", guest.name)
    try:
        tap = ("link", "add", "tap", "netns", pair.client.name, "type", "veth")
        tool("ip", *tap, "peer", "name", "eth", "netns", guest.name)
        for host, command in (
            (guest, "address add 10.9.0.2/24 dev eth"),
            (guest, "link set eth up"),
            (guest, "route add default via 10.9.0.1"),
            (guest, "mptcp limits set subflows 8 add_addr_accepted 8"),
            (pair.client, "address add 10.9.0.1/24 dev tap"),
            (pair.client, "link set tap up"),
            (pair.client, "route add 10.99.0.0/24 via 10.77.1.2 metric 10"),
            (pair.client, "route add 10.99.0.0/24 via 10.77.2.2 metric 20"),
            (pair.server, "address add 10.99.0.1/32 dev lo"),
            (pair.server, "address add 10.99.0.2/32 dev lo"),
            (pair.server, "route add 10.9.0.0/24 via 10.77.1.1"),
            (pair.server, "mptcp endpoint flush"),
            (pair.server, "mptcp endpoint add 10.99.0.2 dev lo signal"),
        ):
            tool("ip", "-n", host.name, *command.split())
        pair.client.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield guest
    finally:
        subprocess.run(["ip", "netns", "del", guest.name], check=True)


def sent(host: Host, interface: str) -> int:
    """Bytes that have left by an interface."""
    links = json.loads(tool("ip", "-n", host.name, "-j", "-s", "link", "show", interface))
    return links[0]["stats64"]["tx"]["bytes"]


def test_subflows_of_a_guest_are_spread_over_the_interfaces_of_its_host(work, pair, guest):
    listener = listen(pair.server, 9300, "0.0.0.0", MPTCP)
    data = bytes(range(256)) * 400_000
    with guest.socket(protocol=MPTCP) as client:
        client.connect(("10.99.0.1", 9300))
        sink = accept(listener)
        sender = threading.Thread(target=client.sendall, args=(data,), daemon=True)
        wait_for("second subflow", lambda: counter(guest, "MPJoinSynAckRx"))
        start(work, pair.client, POLICIES / "tenant.py", "10.9.0.0/24", "eth", "wlan")
        client.sendall(b"begin")
        receive_exactly(sink, 5)
        time.sleep(0.5)
        before = sent(pair.client, "wlan")
        sender.start()
        assert receive_exactly(sink, len(data)) == data
    share = (sent(pair.client, "wlan") - before) / len(data)
    assert 0.2 < share < 0.9, share


def test_earliest_completion_first_spares_bursts_the_farther_path(work, uneven):
    def took_ms() -> float:
        """The median time in which 100 kB arrive that were asked for."""
        listener = listen(uneven.server, 9400, "0.0.0.0", MPTCP)
        data, times = bytes(100_000), []
        joined = counter(uneven.client, "MPJoinSynAckRx")
        with uneven.client.socket(protocol=MPTCP) as client, listener:
            client.connect((uneven.ETH, 9400))
            sender = accept(listener)
            wait_for("second subflow", lambda: counter(uneven.client, "MPJoinSynAckRx") > joined)
            for _ in range(25):
                time.sleep(0.1)
                begun = time.monotonic()
                client.sendall(b"?")
                sender.recv(1)
                threading.Thread(target=sender.sendall, args=(data,)).start()
                receive_exactly(client, len(data))
                times.append(time.monotonic() - begun)
        return statistics.median(times[5:]) * 1e3

    alone = took_ms()
    start(work, uneven.server, POLICIES / "ecf.py")
    assert took_ms() < 0.6 * alone


BACKUPS = """
import time
class Turn:
    interval = 0.2
    begun = time.monotonic()
    def tick(self, view):
        for subflow in view.subflows:
            if subflow.joined:
                past = time.monotonic() - self.begun
                print(past, subflow.backup_local, subflow.backup_remote, subflow.receive_rate, flush=True)
                # The last one is set when the controller ends.
                if past < 3 or 6 < past:
                    yield Backup(subflow)
run(Turn(), "turn", ticks=40)
"""


def test_backups_are_set_and_cleared_on_subflows_that_are_idle_by_then(work, distant):
    load = Download(distant, distant.ETH)
    wait_for("second subflow", lambda: counter(distant.client, "MPJoinSynAckRx"))
    ticks = [line.split() for line in run(work, BACKUPS, distant.client).stdout.splitlines()]

    def rate(first: float, last: float) -> float:
        rates = [float(rate) for past, _, _, rate in ticks if first < float(past) < last]
        return statistics.mean(rates) * 8e-6

    assert rate(2, 3) < 1 and rate(5, 6) > 10 and rate(7.5, 9) < 1
    assert "True" in {remote for past, _, remote, _ in ticks if 2 < float(past) < 3}
    time.sleep(1)
    # It ended, and took it back.
    assert load.mbps(2) > 60
    load.close()
