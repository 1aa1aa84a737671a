"""`plait lab link` as its users meet it: real ping and iperf3 between two namespaces.

Tolerances are wide: what is shown here is that each property is there and who is told about it, on a machine that may be
busy. How exact it is, `bench/links.py` measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
import uml
from disturbance import Disturbance, inconclusive
from hosts import PLAIT, Host, tool, wait_for

A, B = "10.99.1.1", "10.99.1.2"
_built = 0


# A sender that waits this long for a processor sends in bursts that fill a queue of the tests.
STALL = 0.01


@contextlib.contextmanager
def measuring():
    """A missed bound proves nothing if programs were stalled on the way."""
    with Disturbance() as disturbance:
        try:
            yield
        except AssertionError as missed:
            if disturbance.worst > STALL:
                inconclusive(f"{missed}; threads waited up to {disturbance.worst:.3f} s for a processor")
            raise


def needs_emulator():
    if not pathlib.Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no TUN")


@pytest.fixture
def ends(tmp_path):
    """Two namespaces with nothing between them."""
    global _built
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    _built += 1
    pair = [Host(f"plait-test-{os.getpid()}-link{_built}{end}", tmp_path) for end in "ab"]
    try:
        for host in pair:
            tool("ip", "netns", "add", host.name)
        yield pair
    finally:
        for host in pair:
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


class Running:
    """`plait lab link` between the two, with addresses on it."""

    def __init__(self, ends, *options):
        a, b = ends
        self.ends = ends
        self.begin = time.monotonic()
        # The command says on stderr that it is ready; `ends` removes what a failed test leaves.
        self.program = subprocess.Popen(
            (PLAIT, "lab", "link", "--a", f"{a.name}:lte0", "--b", f"{b.name}:lte0", "--json", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready = self.program.stderr.readline()
        assert "ready" in ready, ready + self.program.stderr.read()
        self.since_ready = time.monotonic()
        for host, address, other, there in ((a, A, b, B), (b, B, a, A)):
            tool("ip", "-n", host.name, "addr", "add", f"{address}/24", "dev", "lte0")
            # Known neighbours: no question for an address is lost or delayed with what is measured.
            lladdr = json.loads(tool("ip", "-n", other.name, "-j", "link", "show", "dev", "lte0"))[0][
                "address"
            ]
            tool("ip", "-n", host.name, "neigh", "replace", there, "lladdr", lladdr, "dev", "lte0")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_):
        if self.program.poll() is None:
            self.program.kill()
        self.program.communicate()

    def end(self, by=signal.SIGTERM, status=0) -> dict:
        """Asks it to end; what it reports."""
        if by:
            self.program.send_signal(by)
        out, err = self.program.communicate(timeout=20)
        assert self.program.returncode == status, err
        self.said = err
        return json.loads(out)

    def ping(self, *options, count=20, interval=0.02) -> str:
        a, _ = self.ends
        return a.run("ping", "-q", "-c", count, "-i", interval, "-W", "1", *options, B).stdout.decode()

    def iperf(self, *options) -> dict:
        a, b = self.ends
        server = b.start("iperf3", "-s", "-1")
        wait_for("iperf3", lambda: b.listens(5201))
        done = a.run("iperf3", "-J", "-c", B, *options)
        server.wait(10)
        assert done.returncode == 0, done.stdout.decode()
        return json.loads(done.stdout)["end"]


def rtt(ping: str) -> float:
    """The median is not printed; the least shows the delay, whatever else the machine does."""
    return float(re.search(r"= ([\d.]+)/", ping)[1])


def received(ping: str) -> int:
    return int(re.search(r"(\d+) received", ping)[1])


def has_carrier(host: Host) -> bool:
    return "LOWER_UP" in tool("ip", "-n", host.name, "link", "show", "dev", "lte0")


def interfaces(host: Host) -> list[str]:
    return [link["ifname"] for link in json.loads(tool("ip", "-n", host.name, "-j", "link"))]


def test_a_delay_of_each_direction_makes_the_round_trip(ends):
    needs_emulator()
    with Running(ends, "--delay", "10ms", "--b-to-a", "delay=30ms") as link:
        least = rtt(link.ping())
        report = link.end()
    # A frame counts from when the emulator takes it to have come, which is exact to what waking a processor takes.
    assert 39.8 <= least < 45
    assert report["backend"] == "emu"
    assert report["lateness"]["frames"] > 40
    assert report["lateness"]["p99_ms"] >= report["lateness"]["p50_ms"] >= 0


@measuring()
def test_a_rate_holds_for_each_direction(ends):
    needs_emulator()
    with Running(ends, "--rate", "20mbit", "--b-to-a", "rate=5mbit") as link:
        up = link.iperf("-u", "-b", "40M", "-t", "2")["sum_received"]["bits_per_second"]
        down = link.iperf("-R", "-u", "-b", "40M", "-t", "2")["sum_received"]["bits_per_second"]
        report = link.end()
    # iperf3 counts payload: 1448 bytes of a frame of 1490.
    assert 18e6 < up < 20e6
    assert 4.5e6 < down < 5e6
    assert report["a_to_b"]["queue_full"] > 100 and report["b_to_a"]["queue_full"] > 100
    # 100 ms of the rate; and what nobody asked to be lost is not.
    assert 200_000 < report["a_to_b"]["queue_max_bytes"] <= 250_000
    assert report["a_to_b"]["lost"] == 0


@measuring()
def test_red_drops_before_the_queue_is_full(ends):
    needs_emulator()
    with Running(ends, "--rate", "20mbit", "--queue", "200kB", "--red") as link:
        sums = link.iperf("-u", "-b", "22M", "-t", "3")["sum"]
        counts = link.end()["a_to_b"]
    # A tenth more than fits fills such a queue in a second; at two thirds of it RED drops all.
    assert counts["early"] > 100 and counts["queue_full"] == 0, counts
    assert counts["queue_max_bytes"] < 150_000
    assert abs(counts["early"] - sums["lost_packets"]) <= 2


def test_losses_and_copies_are_counted_as_ping_sees_them(ends):
    needs_emulator()
    with Running(ends, "--a-to-b", "loss=30%,duplicate=20%") as link:
        ping = link.ping(count=500, interval=0.002)
        report = link.end()
    copies = int(re.search(r"\+(\d+) duplicates", ping)[1])
    # Five standard deviations of 500 trials.
    assert abs(received(ping) - 350) < 51
    assert abs(copies - 70) < 45
    # What the kernels say by themselves over IPv6 crosses as well.
    assert 0 <= report["a_to_b"]["lost"] - (500 - received(ping)) < 30
    assert 0 <= report["a_to_b"]["duplicated"] - copies < 30
    assert report["b_to_a"]["lost"] == report["b_to_a"]["duplicated"] == 0


def test_a_blackhole_comes_and_goes_when_it_was_asked_to_and_nobody_is_told(ends):
    needs_emulator()
    with Running(ends, "--at", "1.5s:blackhole", "--at", "3s:restore") as link:
        assert received(link.ping(count=3)) == 3
        time.sleep(max(0.0, link.since_ready + 1.7 - time.monotonic()))
        assert received(link.ping(count=3)) == 0
        assert has_carrier(ends[0]) and has_carrier(ends[1])
        wait_for("the end of the blackhole", lambda: received(link.ping(count=1)) == 1)
        assert time.monotonic() - link.since_ready > 2.9
        report = link.end()
    assert report["a_to_b"]["no_path"] >= 4
    assert "1.5s:blackhole" in link.said and "3s:restore" in link.said


def test_both_ends_see_whether_there_is_a_carrier(ends):
    needs_emulator()
    with Running(ends, "--at", "1s:carrier-down", "--at", "2s:carrier-up") as link:
        assert has_carrier(ends[0]) and has_carrier(ends[1])
        wait_for("no carrier", lambda: not has_carrier(ends[0]) and not has_carrier(ends[1]))
        wait_for("a carrier", lambda: has_carrier(ends[0]) and has_carrier(ends[1]))
        assert received(link.ping(count=3)) == 3
        link.end()


def test_an_adjustment_holds_for_the_direction_and_the_property_that_it_names(ends):
    needs_emulator()
    with Running(ends, "--delay", "5ms", "--at", "1s:a-to-b:delay=45ms") as link:
        assert rtt(link.ping(count=5)) < 20
        time.sleep(max(0.0, link.since_ready + 1.2 - time.monotonic()))
        assert 49.8 <= rtt(link.ping(count=5)) < 60
        link.end()


def test_a_trace_paces_delivery(ends, tmp_path):
    needs_emulator()
    # A packet of up to 1504 bytes every 4 ms: 3 Mb/s.
    (tmp_path / "slow.trace").write_text("4\n")
    with Running(ends, "--trace", tmp_path / "slow.trace") as link:
        rate = link.iperf("-u", "-b", "10M", "-t", "2")["sum_received"]["bits_per_second"]
        link.end()
    assert 2.6e6 < rate < 3.1e6


def test_it_ends_after_its_time_and_leaves_nothing(ends):
    with Running(ends, "--backend", "none", "--for", "1s") as link:
        assert received(link.ping(count=2)) == 2
        report = link.end(by=None)
    assert 1 <= report["duration_s"] < 3
    assert report["lateness"] is None and report["a_to_b"]["lost"] is None
    assert report["a_to_b"]["frames_in"] == report["a_to_b"]["frames_out"] >= 3
    assert interfaces(ends[0]) == interfaces(ends[1]) == ["lo"]


@pytest.mark.parametrize("backend", ["emu", "none"])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_end_of_the_command_leaves_anything(ends, backend, by):
    if backend == "emu":
        needs_emulator()
    before = set(os.listdir("/run/netns"))
    with Running(ends, "--backend", backend) as link:
        pid = link.program.pid
        link.program.send_signal(by)
        link.program.wait(10)
    for host in ends:
        wait_for("an end without interfaces", lambda host=host: interfaces(host) == ["lo"])
    named_by_it = {name for name in set(os.listdir("/run/netns")) - before if str(pid) in name}
    assert not named_by_it
    for host in ends:
        wait_for("no process", lambda host=host: not tool("ip", "netns", "pids", host.name).split())


def test_lateness_above_the_limit_fails_and_says_so(ends):
    needs_emulator()
    with Running(ends, "--delay", "1ms", "--lateness-limit", "0us") as link:
        link.ping()
        report = link.end(status=1)
    sentence = report["invalid_because"]
    assert sentence.startswith("expected 99 of 100 frames to be at most 0 ms late, got ")
    assert sentence in link.said
    with Running(ends, "--delay", "1ms", "--lateness-limit", "10s") as link:
        link.ping()
        assert link.end()["invalid_because"] is None


def refusal(*arguments) -> tuple[int, str]:
    done = subprocess.run((PLAIT, "lab", "link", *arguments), capture_output=True, text=True, timeout=30)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_is_wrong_is_named_with_what_was_expected(ends):
    a, b = (f"{host.name}:lte0" for host in ends)
    ends_given = ("--a", a, "--b", b)
    tool("ip", "-n", ends[1].name, "link", "add", "taken0", "type", "veth", "peer", "name", "taken1")
    cases = [
        (("--a", a), 2, "--b <NETNS:IFACE>"),
        (("--a", "lte0", "--b", b), 2, 'expected NETNS:IFACE, such as client:lte0, got "lte0"'),
        (("--a", "nowhere:lte0", "--b", b), 1, 'that `ip netns` lists, or a path, got "nowhere"'),
        (("--a", a, "--b", a), 1, f"expected two different ends, got {a} twice"),
        (
            ("--a", a, "--b", f"{ends[1].name}:taken0"),
            1,
            "expected a free interface name at the end of the link, got taken0",
        ),
        (("--a", f"{ends[0].name}:sixteen-bytes-xx", "--b", b), 1, "a name for an interface: 1 to 15 bytes"),
        ((*ends_given, "--rate", "fast"), 2, 'such as 4mbit, got "fast"'),
        ((*ends_given, "--delay", "10"), 2, 'such as 21.5ms or 16s, got "10"'),
        ((*ends_given, "--loss", "120%"), 2, 'got "120%"'),
        ((*ends_given, "--rate", "1mbit", "--trace", "x"), 2, "cannot be used with"),
        ((*ends_given, "--trace", "/nonexistent"), 1, "cannot read the trace /nonexistent"),
        ((*ends_given, "--at", "blackhole"), 2, "expected TIME:WHAT, such as 16s:blackhole"),
        ((*ends_given, "--at", "1s:nap"), 2, 'got "nap"'),
        ((*ends_given, "--at", "9s:restore", "--for", "8s"), 1, "expected changes before the end after 8s"),
        ((*ends_given, "--backend", "mininet"), 2, 'expected emu, netem or none, got "mininet"'),
        ((*ends_given, "--backend", "none", "--loss", "1%"), 1, "the backend none does not support loss"),
        (
            (*ends_given, "--backend", "none", "--at", "1s:blackhole"),
            1,
            "the backend none does not support blackhole",
        ),
        (
            (*ends_given, "--backend", "netem", "--half-duplex", "1ms"),
            1,
            "netem does not support a shared medium",
        ),
    ]
    for arguments, status, words in cases:
        found, said = refusal(*arguments)
        assert found == status and words in said, (arguments, said)
    assert interfaces(ends[0]) == ["lo"]


def test_netem_where_there_is_none_is_an_error_that_says_what_was_tried(ends):
    tool("ip", "-n", ends[0].name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
    tried = subprocess.run(["tc", "-n", ends[0].name, "qdisc", "add", "dev", "try0", "root", "netem"])
    if tried.returncode == 0:
        pytest.skip("this kernel has netem")
    a, b = (f"{host.name}:lte0" for host in ends)
    status, said = refusal("--a", a, "--b", b, "--backend", "netem", "--delay", "10ms")
    assert status == 1
    assert "the backend netem cannot be used here: cannot run `tc qdisc add" in said
    assert "Specified qdisc" in said and "--backend emu" in said
    assert interfaces(ends[0]) == ["lo", "try1", "try0"] and interfaces(ends[1]) == ["lo"]


def test_others_than_root_are_told_so(ends):
    a, b = (f"{host.name}:lte0" for host in ends)
    done = subprocess.run(
        (PLAIT, "lab", "link", "--a", a, "--b", b), capture_output=True, text=True, user=65534, cwd="/"
    )
    assert done.returncode == 1 and "run it with sudo" in done.stderr


NETEM = """
ip netns add a; ip netns add b
measure() {{
    # What the one before said is not to be taken for what this one says.
    rm -f /run/said; touch /run/said
    {plait} lab link --a a:lte0 --b b:lte0 --backend netem --json "$@" >/run/report 2>/run/said &
    link=$!
    until grep -q ready /run/said; do kill -0 $link; sleep 0.05; done
    join a 1 b 2; join b 2 a 1
}}
join() {{
    ip -n $1 addr add 10.99.1.$2/24 dev lte0
    lladdr=$(ip netns exec $3 cat /sys/class/net/lte0/address)
    ip -n $1 neigh replace 10.99.1.$4 lladdr $lladdr dev lte0
}}
finish() {{ kill $link; wait $link; cat /run/report; }}
"""


@pytest.fixture(scope="module")
def netem(tmp_path_factory):
    """Runs a script in a kernel with netem; what it prints."""
    if os.geteuid() != 0 or (reason := uml.missing()):
        pytest.skip(reason if os.geteuid() == 0 else "namespaces need root")
    directory = tmp_path_factory.mktemp("uml")
    return lambda script: uml.run(NETEM.format(plait=PLAIT) + script, directory)


@measuring()
def test_netem_delays_limits_loses_and_counts(netem):
    output = netem("""
        measure --delay 10ms --b-to-a delay=30ms
        ip netns exec a ping -q -c 20 -i 0.05 10.99.1.2; finish >/dev/null
        echo loss; measure --a-to-b loss=30%
        ip netns exec a ping -q -c 500 -i 0.002 -W 1 10.99.1.2 || true; finish
        echo rate; measure --rate 5mbit
        ip netns exec b iperf3 -s -1 >/dev/null & sleep 0.5
        ip netns exec a iperf3 -J -u -b 10M -t 3 -c 10.99.1.2; finish
    """)
    delay, rest = output.split("\nloss\n")
    loss, rate = rest.split("\nrate\n")
    assert 40 <= rtt(delay) < 50
    assert abs(received(loss) - 350) < 51
    report = json.loads(loss[loss.index("\n{") :])
    assert report["backend"] == "netem"
    assert 0 <= report["a_to_b"]["lost"] - (500 - received(loss)) < 30
    decoder = json.JSONDecoder()
    iperf, end = decoder.raw_decode(rate, rate.index("{"))
    report, _ = decoder.raw_decode(rate, rate.index("{", end))
    sums = iperf["end"]["sum"]
    # What waited when the last was sent arrives as well: 100 ms more than the 3 s.
    assert 4.3e6 < sums["bits_per_second"] * (1 - sums["lost_percent"] / 100) < 5.3e6
    assert report["a_to_b"]["queue_full"] > 100 and report["a_to_b"]["lost"] == 0


@pytest.mark.alone
def test_netem_changes_while_frames_cross(netem):
    output = netem("""
        measure --delay 5ms --at 3s:a-to-b:delay=45ms --at 6s:blackhole --at 9s:restore --at 12s:carrier-down --at 16s:carrier-up
        look() { until grep -q "link: $1" /run/said; do kill -0 $link; sleep 0.05; done; echo "at $1"; }
        ip netns exec a ping -q -c 5 -i 0.1 10.99.1.2
        look 3s:; ip netns exec a ping -q -c 5 -i 0.1 10.99.1.2
        look 6s:; ip netns exec a ping -q -c 5 -i 0.1 -W 1 10.99.1.2 || true; ip -n a link show dev lte0
        look 9s:; ip netns exec a ping -q -c 5 -i 0.1 10.99.1.2
        # The kernel reports a changed carrier up to a second later (linkwatch).
        shown() { ip -n a link show dev lte0; ip -n b link show dev lte0; }
        missing() { until [ "$(shown | grep -c NO-CARRIER)" = $1 ]; do kill -0 $link; sleep 0.05; done; shown; }
        look 12s:; missing 2
        look 16s:; missing 0; ip netns exec a ping -q -c 5 -i 0.1 10.99.1.2
        finish >/dev/null; ip -n a -br link; ip -n b -br link
        measure --delay 1ms; kill -9 $link; wait $link || true
        until [ -z "$(ip -n a link show type veth)$(ip -n b link show type veth)" ]; do sleep 0.05; done
    """)
    before, adjusted, black, restored, down, up = re.split(r"\nat \d+s:\n", output)
    assert rtt(before) < 30
    assert 50 <= rtt(adjusted) < 75
    assert received(black) == 0 and "LOWER_UP" in black
    assert received(restored) == 5 and rtt(restored) >= 50
    assert down.count("NO-CARRIER") == 2
    assert "NO-CARRIER" not in up and received(up) == 5
    assert up.count("lte0") == 2, "the interfaces are removed with the command"


def test_a_frame_has_room_for_the_mtu_and_not_more(ends):
    needs_emulator()
    with Running(ends, "--mtu", "1400", "--delay", "1ms") as link:
        assert received(link.ping("-M", "do", "-s", "1372", count=2)) == 2
        assert "mtu 1400" in tool("ip", "-n", ends[1].name, "link", "show", "dev", "lte0")
        link.end()


def test_ipv6_crosses(ends):
    needs_emulator()
    with Running(ends, "--delay", "1ms") as link:
        for host, last in zip(ends, "12"):
            tool("ip", "-n", host.name, "addr", "add", f"fd99::{last}/64", "dev", "lte0", "nodad")
        with ends[1].inside():
            server = socket.create_server(("fd99::2", 9000), family=socket.AF_INET6)
        with ends[0].inside():
            client = socket.create_connection(("fd99::2", 9000), timeout=10)
        accepted, _ = server.accept()
        client.sendall(b"x" * 100_000)
        client.shutdown(socket.SHUT_WR)
        taken = b"".join(iter(lambda: accepted.recv(65536), b""))
        assert taken == b"x" * 100_000
        for sock in (server, client, accepted):
            sock.close()
        link.end()


def test_how_exact_links_are_can_be_measured():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    needs_emulator()
    bench = pathlib.Path(__file__).resolve().parents[2] / "bench" / "links.py"
    with measuring():
        done = subprocess.run(
            (bench, "--quick", "--backend", "emu", "--json"), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (emu,) = json.loads(done.stdout)["backends"]
        figures = {row["name"].split(" of ")[0]: row["median"] for row in emu["rows"]}
        assert emu["backend"] == "emu" and len(figures) == 5
        assert abs(figures["RTT"]) < 5 and abs(figures["rate"]) < 10 and abs(figures["loss"]) < 1
