"""`plait sched`: which subflows carry a download's data, and nothing remains after it is unloaded."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from disturbance import measuring
from hosts import PLAIT, REPOSITORY, Pair, reason_to_skip, tool, unique_id, wait_for
from kernel_algorithms import (
    PINS,
    RECORDS,
    SCHEDULER_FEATURE,
    SETTING,
    available,
    enter,
    group,
    kill_commands,
    no_algorithms_loaded,
    setting,
    unload_all,
)
from outages import silence
from package import PYTHON, install
from streams import MPTCP, accept, listen, receive_exactly

# With their names in the kernel.
SCHEDULERS = {
    "ecf": "plait_ecf",
    "all": "plait_all",
    "lowest-rtt": "plait_lowest",
    "weighted": "plait_weighted",
    "tiers": "plait_tiers",
    "cheapest-first": "plait_cheapest",
    "off": "plait_off",
}
TCP_CONGESTION = 13
TCP_RTO_MAX_MS = 44
# A thread that waits this long for a processor changes which subflow is the fastest.
STALL = 0.02
# Bytes that the program of a download sends at once.
PART = 50_000


def plait(*words, check=True) -> dict | subprocess.CompletedProcess:
    """Runs plait; its JSON output, or the completed process if `check` is False."""
    command = [PLAIT, *map(str, words), *["--json"] * check]
    done = subprocess.run(command, capture_output=True, text=True)
    if not check:
        return done
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sched(*words, check=True) -> dict | subprocess.CompletedProcess:
    return plait("sched", *words, check=check)


class EmulatedPair(Pair):
    """A pair whose links have rates and delays: eth 20 Mb/s and 20 ms, and wlan as the test says."""

    ETH_LINK = ("--rate", "20mbit", "--delay", "10ms", "--queue", "60kB")

    def __init__(self, run_id: str, directory: pathlib.Path, *wlan_link: str):
        super().__init__(run_id, directory)
        self.links: list[subprocess.Popen] = []
        self.wlan_link = wlan_link

    def join(self, link: str):
        options = self.ETH_LINK if link == "eth" else self.wlan_link
        ends = ("--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        program = subprocess.Popen(
            (PLAIT, "lab", "link", *ends, *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.links.append(program)
        ready = program.stderr.readline()
        assert "ready" in ready, ready + program.stderr.read()

    def remove(self):
        while self.links:
            program = self.links.pop()
            program.terminate()
            program.communicate()
        super().remove()

    def received(self, link: str) -> int:
        """Bytes of packets that the client received on a link."""
        return int(self.client.tool("cat", f"/sys/class/net/{link}/statistics/rx_bytes"))

    def download(
        self, size: int, protocol=MPTCP, congestion_control=None, port=9300, bps=None, during=None
    ) -> tuple[float, float]:
        """Sends random bytes to the client, at no more than `bps`, and verifies them; calls `during` at half of them.
        Returns the seconds that it took, and the part of wlan."""
        sent = random.randbytes(size)
        listener = listen(self.server, port, "0.0.0.0", protocol)
        if congestion_control:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
        before = {link: self.received(link) for link in ("eth", "wlan")}

        def serve():
            with accept(listener) as connection:
                connection.settimeout(120)
                for start in range(0, size, PART):
                    connection.sendall(sent[start : start + PART])
                    if bps:
                        time.sleep(PART * 8 / bps)
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        with listener, self.client.socket(protocol=protocol) as client:
            client.settimeout(120)
            start = time.monotonic()
            client.connect((self.ETH, port))
            got = hashlib.sha256()
            left = size
            while left:
                part = client.recv(min(left, 1 << 18))
                assert part, f"the stream ended {left} bytes early"
                got.update(part)
                left -= len(part)
                if during and left < size / 2:
                    during()
                    during = None
            took = time.monotonic() - start
            assert got.digest() == hashlib.sha256(sent).digest()
        server.join()
        eth, wlan = (self.received(link) - before[link] for link in ("eth", "wlan"))
        return took, wlan / (eth + wlan)


@pytest.fixture
def unloaded():
    """No scheduler is loaded."""
    with no_algorithms_loaded(SCHEDULER_FEATURE):
        yield


@pytest.fixture
def net(pair, unloaded):
    yield pair
    pair.client.stop_programs()


@pytest.fixture
def make_emulated(unloaded, tmp_path):
    """Builds an emulated pair that ends with the test."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    if not pathlib.Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no TUN")
    pairs = []

    def make(*wlan_link: str) -> EmulatedPair:
        pair = EmulatedPair(unique_id(), tmp_path, *wlan_link)
        pairs.append(pair)
        pair.build()
        return pair

    yield make
    unload_all()
    for pair in pairs:
        pair.remove()


SLOW = ("--rate", "0.5mbit", "--delay", "25ms", "--queue", "60kB")
EQUAL = ("--rate", "20mbit", "--delay", "10ms", "--queue", "60kB")


def test_schedulers_are_loaded_listed_and_unloaded(unloaded):
    assert {each["name"] for each in sched("list")["schedulers"]} == {*SCHEDULERS, "file"}
    for name, kernel_name in SCHEDULERS.items():
        assert sched("load", name) == {
            "schema_version": 1,
            "loaded": name,
            "kernel_name": kernel_name,
            "new": True,
        }
    assert available() == {name.removeprefix("plait_") for name in SCHEDULERS.values()}
    assert sched("load", "ecf")["new"] is False
    loaded = {each["name"] for each in sched("list")["schedulers"] if each["loaded"]}
    assert loaded == set(SCHEDULERS)
    assert sched("unload", "ecf") == {"schema_version": 1, "unloaded": [{"name": "ecf", "sockets": 0}]}
    assert len(sched("unload", "--all")["unloaded"]) == len(SCHEDULERS) - 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("load", "blest"), 2, "expected ecf, lowest-rtt"),
        (("load", "ecf:wlan=1"), 2, "ecf has none"),
        (("load", "weighted:wlan=0"), 2, "a weight from 1 to 1000"),
        (("unload", "ecf"), 1, "not loaded"),
        (("use", "ecf", "--netns", "no-such"), 1, "no-such"),
        (("use", "ecf", "--cgroup", "/no/such"), 1, "/no/such"),
        (("disable", "--cgroup", "/"), 1, "uses no scheduler"),
    ],
)
def test_errors_name_the_cause(unloaded, arguments, status, message):
    done = sched(*arguments, check=False)
    assert done.returncode == status and message in done.stderr, done.stderr


def test_namespace_returns_to_its_setting_after_schedulers_and_algorithms(net):
    """A namespace uses one of both kinds; disabling the other kind leaves it alone."""
    net.client.run("sysctl", "-qw", f"{SETTING}=reno")
    name = net.client.name
    sched("use", "ecf", "--netns", name)
    assert setting(net.client) == "plait_ecf"
    plait("cc", "use", "lia", "--netns", name)
    assert setting(net.client) == "plait_lia"
    done = sched("disable", "--netns", name, check=False)
    assert done.returncode == 1 and "uses no scheduler" in done.stderr
    sched("unload", "ecf")
    assert setting(net.client) == "plait_lia"
    sched("use", "off", "--netns", name)
    used = next(each for each in sched("list")["schedulers"] if each["name"] == "off")["used_by"]
    assert [by["name"] for by in used] == [name]
    assert sched("disable", "--netns", name)["disabled"] == "off"
    assert setting(net.client) == "reno"


def test_unload_removes_saved_settings_of_removed_namespaces(net):
    name = f"{net.client.name}-x"
    tool("ip", "netns", "add", name)
    try:
        sched("use", "ecf", "--netns", name)
        assert len(list(RECORDS.iterdir())) == 1
    finally:
        tool("ip", "netns", "del", name)
    sched("unload", "ecf")
    assert not RECORDS.exists()


def algorithms(host) -> set[str]:
    """The algorithms of the subflows of a host."""
    command = host.command(PLAIT, "cc", "show", "--json")
    connections = json.loads(tool(*command))["connections"]
    return {subflow["congestion_control"] for each in connections for subflow in each["subflows"]}


def has_open_connection(pair) -> bool:
    open_connections = ("ss", "-HMt", "state", "connected", "exclude", "time-wait")
    return any(host.tool(*open_connections) for host in (pair.client, pair.server))


def connect(pair, port: int) -> list[socket.socket]:
    """An MPTCP connection with two subflows: the sockets, with the listener."""
    listener = listen(pair.server, port, "0.0.0.0", MPTCP)
    client = pair.client.socket(protocol=MPTCP)
    client.settimeout(20)
    client.connect((pair.ETH, port))
    server = accept(listener)
    client.sendall(bytes(100_000))
    receive_exactly(server, 100_000)
    wait_for(
        "second subflow", lambda: pair.client.tool("ss", "-HMtn", "state", "established").count("\n") > 1
    )
    return [client, server, listener]


def test_control_group_uses_one_scheduler_or_algorithm(net):
    with group("sched") as directory:
        enter(directory)
        for port, (command, name, kernel_name) in enumerate(
            (("sched", "ecf", "plait_ecf"), ("cc", "lia", "plait_lia"), ("sched", "off", "plait_off")), 9301
        ):
            plait(command, "use", name, "--cgroup", directory)
            assert len(list(PINS.glob("*@*"))) == 1
            sockets = connect(net, port)
            wait_for(kernel_name, lambda expected=kernel_name: algorithms(net.client) == {expected})
            for each in sockets:
                each.close()
            wait_for("closed connection", lambda: not algorithms(net.client))
        sched("disable", "--cgroup", directory)
        assert not list(PINS.glob("*@*"))


def test_scheduler_of_a_control_group_measures_idle_paths(make_emulated):
    """Those of the namespace in which the scheduler is enabled: the first download uses both."""
    pair = make_emulated(*EQUAL)
    # Unlike `ip netns exec`, nsenter keeps the cgroup hierarchy mounted.
    command = ["nsenter", f"--net=/run/netns/{pair.server.name}", PLAIT, "sched"]
    with group("idle") as directory, measuring(STALL):
        enter(directory)
        tool(*command, "use", "ecf", "--cgroup", str(directory))
        assert len(list(PINS.glob("ecf:egress-*"))) > 1
        _, wlan = pair.download(5_000_000)
        assert wlan > 0.3, f"wlan carried {wlan:.1%}"
        tool(*command, "disable", "--cgroup", str(directory))
        assert not list(PINS.glob("ecf:egress-*"))


@pytest.mark.alone  # Another test's `doctor --clean` would remove them first.
def test_doctor_cleans_up_after_removed_groups(unloaded):
    with group("gone") as directory:
        sched("use", "ecf", "--cgroup", directory)
    (pin,) = PINS.glob("ecf@*")
    removed = {entry["name"] for entry in json.loads(tool(PLAIT, "doctor", "--clean", "--json"))["removed"]}
    assert any(name.endswith(pin.name) for name in removed), removed
    assert not pin.exists() and available() == {"ecf"}


def test_killed_command_leaves_no_partial_state(net):
    kill_commands("sched", "ecf", net.client, 15)
    before = setting(net.server)
    sched("load", "ecf")
    sched("unload", "ecf")
    assert not available() and setting(net.client) == before


def test_ecf_keeps_a_slow_path_from_delaying_a_download(make_emulated):
    """Plain MPTCP takes five times as long as TCP over the better path here."""
    pair = make_emulated(*SLOW)
    sched("load", "ecf")
    with measuring(STALL):
        alone, _ = pair.download(5_000_000, socket.IPPROTO_TCP, "cubic", 9300)
        took, wlan = pair.download(5_000_000, MPTCP, "plait_ecf", 9301)
        assert wlan < 0.01, f"wlan carried {wlan:.1%}"
        assert took < 1.05 * alone, f"{took:.2f} s, {alone:.2f} s by TCP"


def test_ecf_uses_both_of_two_equal_paths(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "ecf", "--netns", pair.server.name)
    with measuring(STALL):
        took, wlan = pair.download(25_000_000)
        assert 0.4 < wlan < 0.6, f"wlan carried {wlan:.1%}"
        # 20 Mb/s of packets of 1500 bytes carry 18.9 Mb/s of data.
        assert took < 25_000_000 * 8 / (2 * 18.9e6 * 0.9), f"{took:.2f} s"


@pytest.mark.alone  # Another test's namespaces would take the number.
def test_rates_do_not_outlive_their_network_namespace(make_emulated):
    """The kernel gives the number of a removed namespace to a new one, whose paths may have the same addresses."""

    def remove_and_wait(pair):
        wait_for("end of the connection", lambda: not has_open_connection(pair))
        pair.remove()
        # The kernel does so in the background.
        time.sleep(1)

    for _ in range(10):
        first = make_emulated(*SLOW)
        sched("use", "ecf", "--netns", first.server.name)
        first.download(2_000_000)
        inode = first.server.netns_inode()
        remove_and_wait(first)
        pair = make_emulated("--rate", "20mbit", "--delay", "100ms", "--queue", "1MB")
        if pair.server.netns_inode() == inode:
            break
        remove_and_wait(pair)
    else:
        pytest.skip("this kernel did not reuse the number of a network namespace")
    sched("use", "ecf", "--netns", pair.server.name)
    _, wlan = pair.download(10_000_000)
    assert wlan > 0.2, f"wlan carried {wlan:.1%}"


def test_send_buffer_grows_beside_a_slow_path(make_emulated):
    """It holds what the fast path sends while the slow one carries a burst. By the kernel alone it has less than 0.5 MB."""
    pair = make_emulated("--rate", "2mbit", "--delay", "25ms", "--queue", "30kB")
    sched("use", "ecf", "--netns", pair.server.name)
    sizes = []

    def read_send_buffers():
        memory = pair.server.tool("ss", "-tmHO", "state", "established", "src", pair.ETH)
        sizes.extend(int(size) for size in re.findall(r"\btb(\d+)", memory))

    # A burst and a full queue take 0.4 s there, in which the other path carries 1 MB. The peer's window has 0.5 MB or more before wlan is used.
    _, wlan = pair.download(24_000_000, during=read_send_buffers)
    assert wlan > 0.04, f"wlan carried {wlan:.1%}"
    assert max(sizes) > 800_000


def test_data_flows_within_a_second_of_the_return_of_both_paths(make_emulated):
    """The kernel alone retransmits 1.8, 3.8 and 7.8 s after the start of an outage."""
    with socket.socket() as probe:
        try:
            probe.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("this kernel has no TCP_RTO_MAX_MS")
    pair = make_emulated(*EQUAL)
    sched("use", "ecf", "--netns", pair.server.name)
    outage = 5

    def cut():
        with silence(pair, "eth", "wlan"):
            time.sleep(outage)

    with measuring(STALL):
        usual, _ = pair.download(3_000_000, port=9300)
        took, _ = pair.download(3_000_000, port=9301, during=cut)
        assert took < usual + outage + 1.5, f"{took:.2f} s; without the outage {usual:.2f} s"


def test_lowest_rtt_uses_the_other_path_when_its_own_is_cut(make_emulated):
    pair = make_emulated("--rate", "20mbit", "--delay", "40ms", "--queue", "60kB")
    sched("use", "lowest-rtt", "--netns", pair.server.name)
    _, wlan = pair.download(3_000_000, port=9300)
    assert wlan < 0.01, f"wlan carried {wlan:.1%}"

    eth = pair.links[0]
    try:
        # At once: until rules of packets are in force, a slow machine has received all.
        took, wlan = pair.download(6_000_000, port=9301, during=lambda: eth.send_signal(signal.SIGSTOP))
    finally:
        eth.send_signal(signal.SIGCONT)
    # Half of it, less what the client's buffer held.
    assert wlan > 0.2, f"wlan carried {wlan:.1%}"
    assert took < 60


def check_shares(pair: EmulatedPair, size: int, tolerance: float):
    """Downloads in the proportion 3:1, of paths that are equally fast."""
    with measuring(STALL):
        _, wlan = pair.download(size)
        assert abs(wlan / 0.25 - 1) < tolerance, f"wlan carried {wlan:.1%}"


def test_weighted_keeps_shares(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "weighted:eth=3,wlan=1", "--netns", pair.server.name)
    check_shares(pair, 20_000_000, 0.1)
    # By the address of the other end; the options of a scheduler that is loaded are replaced.
    sched("use", "weighted:10.77.1.1=1,10.77.2.1=3", "--netns", pair.server.name)
    with measuring(STALL):
        _, wlan = pair.download(20_000_000, port=9301)
        assert abs(wlan / 0.75 - 1) < 0.1, f"wlan carried {wlan:.1%}"


@pytest.mark.long
def test_weighted_keeps_shares_within_5_percent_for_a_minute(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "weighted:eth=3,wlan=1", "--netns", pair.server.name)
    check_shares(pair, 190_000_000, 0.05)


def test_weighted_limits_a_path_to_its_rate(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "weighted:eth=1,wlan=1@2mbit", "--netns", pair.server.name)
    with measuring(STALL):
        took, wlan = pair.download(10_000_000)
        assert wlan * 10_000_000 * 8 / took < 2.3e6, f"wlan carried {wlan:.1%} in {took:.2f} s"


def test_tiers_use_the_next_only_if_the_one_before_is_full(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "tiers:eth=1,wlan=2", "--netns", pair.server.name)
    with measuring(STALL):
        _, wlan = pair.download(6_000_000, port=9300, bps=8e6)
        assert wlan < 0.02, f"wlan carried {wlan:.1%} of what eth can"
        _, wlan = pair.download(20_000_000, port=9301)
        assert wlan > 0.35, f"wlan carried {wlan:.1%} of what eth cannot"


def test_cheapest_first_adds_what_cheap_paths_lack(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "cheapest-first:eth=1,wlan=2", "--netns", pair.server.name)
    with measuring(STALL):
        _, wlan = pair.download(5_000_000, port=9300)
        assert wlan < 0.02, f"wlan carried {wlan:.1%} without a target"
        sched("use", "cheapest-first:eth=1,wlan=2,rate=24mbit", "--netns", pair.server.name)
        _, wlan = pair.download(25_000_000, port=9301)
        # eth carries at most 18.9 Mb/s of data.
        assert 0.1 < wlan < 0.3, f"wlan carried {wlan:.1%} of 24 Mb/s"


def test_top_shows_what_is_closed_and_why(make_emulated):
    pair = make_emulated(*SLOW)
    sched("use", "ecf", "--netns", pair.server.name)
    shown = []

    def read_scheduling_states():
        output = pair.server.tool(PLAIT, "top", "--once", "--interval", "100ms", "--json")
        [connection] = json.loads(output)["connections"]
        shown.extend((each["interface"], each["scheduling"]) for each in connection["subflows"])

    with measuring(STALL):
        pair.download(5_000_000, during=read_scheduling_states)
        found = dict(shown)
        assert found["eth"]["state"] == "open" and found["eth"]["scheduler"] == "ecf"
        assert found["wlan"]["state"] == "closed"
        assert found["wlan"]["reason"] in ("late", "window")
        # Measured without the connection's data.
        assert 0.3e6 < found["wlan"]["rate_bps"] < 0.6e6


def test_scheduler_of_ones_own_decides(make_emulated):
    example = REPOSITORY / "crates" / "scheduler" / "examples" / "low-latency.bpf.c"
    if not shutil.which(os.environ.get("PLAIT_CLANG", "clang-19")):
        pytest.skip("there is no clang-19")
    pair = make_emulated("--rate", "20mbit", "--delay", "40ms", "--queue", "60kB")
    assert sched("load", example) == {
        "schema_version": 1,
        "loaded": "file",
        "kernel_name": "plait_file",
        "new": True,
    }
    done = sched("load", example, check=False)
    assert done.returncode == 1 and "unload it first" in done.stderr
    _, wlan = pair.download(900_000, MPTCP, "plait_file", 9300)
    assert wlan < 0.02, f"wlan carried {wlan:.1%}"
    _, wlan = pair.download(20_000_000, MPTCP, "plait_file", 9301)
    assert wlan > 0.2, f"wlan carried {wlan:.1%}"


def test_errors_of_a_scheduler_of_ones_own_name_the_line(unloaded, tmp_path):
    if not shutil.which(os.environ.get("PLAIT_CLANG", "clang-19")):
        pytest.skip("there is no clang-19")
    file = tmp_path / "wrong.bpf.c"
    file.write_text(
        '#include "plait_scheduler.h"\n\nPLAIT_SCHEDULER(question)\n{\n\treturn question->speed;\n}\n'
    )
    done = sched("load", file, check=False)
    assert done.returncode == 1 and "wrong.bpf.c:5" in done.stderr and "speed" in done.stderr, done.stderr


def test_off_steers_nothing(make_emulated):
    pair = make_emulated(*EQUAL)
    sched("use", "off", "--netns", pair.server.name)
    with measuring(STALL):
        _, wlan = pair.download(5_000_000)
        assert 0.25 < wlan < 0.75, f"wlan carried {wlan:.1%}"


# Gives wlan three quarters once the connection has sent 15 MB, and tells.
CONTROLLER = """
from plait import sched

with sched.enabled("weighted", {"eth": 3, "wlan": 1}):
    (weighted,) = (each for each in sched.schedulers() if each.name == "weighted")
    assert weighted.loaded and len(weighted.used_by) == 1, weighted
    print("enabled", flush=True)
    while True:
        for connection in sched.connections(interval=0.2):
            subflows = {subflow.interface: subflow for subflow in connection.subflows}
            if sum(subflow.bytes_acked for subflow in subflows.values()) > 15e6:
                break
        else:
            continue
        break
    assert set(subflows) == {"eth", "wlan"}, subflows
    assert all(subflow.scheduling.scheduler == "weighted" for subflow in subflows.values()), subflows
    assert all(subflow.rtt_us > 20_000 and subflow.sent_bps > 0 for subflow in subflows.values()), subflows
    sched.load("weighted", {"eth": 1, "wlan": "3@100mbit"})
    print("changed", flush=True)
    input()
assert not any(each.loaded for each in sched.schedulers() if each.name == "weighted")
try:
    sched.load("weighted", {"eth": 0})
except sched.Error as error:
    assert "weight" in str(error), error
else:
    raise SystemExit("expected an error")
"""


def test_program_changes_the_shares_of_an_open_connection(make_emulated, tmp_path):
    pair = make_emulated(*EQUAL)
    install(tmp_path)
    (tmp_path / "program.py").write_text(CONTROLLER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = pair.server.command(PYTHON, tmp_path / "program.py")
    program = subprocess.Popen(command, env=os.environ | {"PLAIT": PLAIT}, **pipes)
    try:
        assert program.stdout.readline() == "enabled\n", program.communicate()
        wait_for("setting", lambda: setting(pair.server) == "plait_weighted")
        links = ("eth", "wlan")
        changed = {}

        def half_is_there():
            assert program.stdout.readline() == "changed\n", program.communicate()
            changed.update((link, pair.received(link)) for link in links)

        before = {link: pair.received(link) for link in links}
        pair.download(40_000_000, during=half_is_there)
        first = {link: changed[link] - before[link] for link in links}
        then = {link: pair.received(link) - changed[link] for link in links}
        # A lead of the earlier shares is made up for within a second or so, and the first part has a second of the new ones.
        assert first["wlan"] < 0.5 * sum(first.values()), (first, then)
        assert then["wlan"] > 0.6 * sum(then.values()), (first, then)
        _, errors = program.communicate("\n", timeout=30)
        assert program.returncode == 0, errors
    finally:
        if program.poll() is None:
            program.kill()
            program.communicate()
