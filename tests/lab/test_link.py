"""`plait lab link` with ping and iperf3 between two namespaces.

Tolerances are wide, as the machine may be busy. `bench/links.py` measures the precision.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
import uml
from disturbance import measuring
from hosts import PLAIT, Host, tool, unique_id, wait_for

A, B = "10.99.1.1", "10.99.1.2"


# A sender that waits this long for a processor sends in bursts that fill a queue of the tests.
STALL = 0.01


@pytest.fixture
def ends(tmp_path):
    """Two unconnected namespaces."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    run_id = unique_id()
    pair = [Host(f"plait-test-{run_id}-{end}", tmp_path) for end in "ab"]
    try:
        for host in pair:
            tool("ip", "netns", "add", host.name)
        yield pair
    finally:
        for host in pair:
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


class Running:
    """`plait lab link` between two namespaces, with addresses."""

    def __init__(self, ends, *options):
        if not {"none", "netem"} & {*options} and not pathlib.Path("/dev/net/tun").exists():
            pytest.skip("this kernel has no TUN")
        a, b = ends
        self.ends = ends
        self.program = subprocess.Popen(
            (PLAIT, "lab", "link", "--a", f"{a.name}:lte0", "--b", f"{b.name}:lte0", "--json", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready = self.program.stderr.readline()
        assert "ready" in ready, ready + self.program.stderr.read()
        for host, address, other, there in ((a, A, b, B), (b, B, a, A)):
            host.ip(f"addr add {address}/24 dev lte0")
            # Known neighbours, so that no ARP request is lost or delayed.
            [interface] = json.loads(other.ip("-j link show dev lte0"))
            lladdr = interface["address"]
            host.ip(f"neigh replace {there} lladdr {lladdr} dev lte0")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_):
        if self.program.poll() is None:
            self.program.kill()
        self.program.communicate()

    def wait_for_event(self, event: str):
        """Waits until the command has applied a scheduled event."""
        lines = iter(self.program.stderr.readline, "")
        assert any(event in line for line in lines), f"the link ended before {event}"

    def end(self, by=signal.SIGTERM, status=0) -> dict:
        """Terminates the command and returns its report."""
        if by:
            self.program.send_signal(by)
        out, err = self.program.communicate(timeout=20)
        assert self.program.returncode == status, err
        self.errors = err
        return json.loads(out)

    def ping(self, *options, count=20, interval=0.02) -> str:
        a, _ = self.ends
        return a.run("ping", "-q", "-c", count, "-i", interval, "-W", "1", *options, B).stdout.decode()

    def iperf(self, *options) -> dict:
        a, b = self.ends
        server = b.start("iperf3", "-s", "-1")
        wait_for("iperf3", lambda: b.listens(5201))
        done = a.run("iperf3", "-J", "-c", B, *options)
        server.wait(60)
        assert done.returncode == 0, done.stdout.decode()
        return json.loads(done.stdout)["end"]


def rtt(ping: str) -> float:
    """The minimum in ms, which a busy machine affects least."""
    return float(re.search(r"= ([\d.]+)/", ping)[1])


def received(ping: str) -> int:
    return int(re.search(r"(\d+) received", ping)[1])


def requests_received(host: Host) -> int:
    """The kernel's number of ping's requests."""
    return json.loads(host.run("nstat", "-asjz", "IcmpInEchos").stdout)["kernel"]["IcmpInEchos"]


def has_carrier(host: Host) -> bool:
    return "LOWER_UP" in host.ip("link show dev lte0")


def interfaces(host: Host) -> list[str]:
    return [link["ifname"] for link in json.loads(host.ip("-j link"))]


@measuring(STALL)
def test_delays_of_both_directions_add_up_to_the_round_trip_time(ends):
    with Running(ends, "--delay", "10ms", "--b-to-a", "delay=30ms") as link:
        least = rtt(link.ping())
        report = link.end()
    # The emulator notices a frame with the delay of waking a processor.
    assert 39.8 <= least < 45
    assert report["backend"] == "emu"
    assert report["lateness"]["frames"] > 40
    assert report["lateness"]["p99_ms"] >= report["lateness"]["p50_ms"] >= 0


@measuring(STALL)
def test_a_rate_holds_for_each_direction(ends):
    with Running(ends, "--rate", "20mbit", "--b-to-a", "rate=5mbit") as link:
        up = link.iperf("-u", "-b", "40M", "-t", "2")["sum_received"]["bits_per_second"]
        down = link.iperf("-R", "-u", "-b", "40M", "-t", "2")["sum_received"]["bits_per_second"]
        report = link.end()
    # iperf3 counts payload: 1448 bytes of a frame of 1490.
    assert 18e6 < up < 20e6
    assert 4.5e6 < down < 5e6
    assert report["a_to_b"]["queue_full"] > 100 and report["b_to_a"]["queue_full"] > 100
    # 100 ms of the rate.
    assert 200_000 < report["a_to_b"]["queue_max_bytes"] <= 250_000
    assert report["a_to_b"]["lost"] == 0


@measuring(STALL)
def test_red_drops_before_the_queue_is_full(ends):
    with Running(ends, "--rate", "5mbit", "--queue", "200kB", "--red") as link:
        sums = link.iperf("-u", "-b", "6M", "-l", "400", "-t", "4")["sum"]
        counts = link.end()["a_to_b"]
    # The excess would fill the queue in 1.2 s; RED keeps it near a third, so that the rest holds a burst of 130 ms, as
    # of a sender that waited for a processor.
    assert counts["early"] > 100 and counts["queue_full"] == 0, counts
    assert counts["queue_max_bytes"] < 150_000
    # iperf3 does not see losses after the last packet that arrives.
    assert counts["early"] == pytest.approx(sums["lost_packets"], rel=0.01)


def test_lost_and_duplicated_packets_match_ping_and_the_kernel(ends):
    with Running(ends, "--a-to-b", "loss=30%,duplicate=20%") as link:
        ping = link.ping(count=500, interval=0.002)
        # When a later request is answered, all before it have arrived or are lost. ping itself does not wait for them.
        later = next(number for number in range(1, 100) if received(link.ping("-W", "5", count=1)))
        report = link.end()
    copies = int(re.search(r"\+(\d+) duplicates", ping)[1])
    # Five standard deviations of 500 trials.
    assert abs(received(ping) - 350) < 51
    assert abs(copies - 70) < 45
    # The kernels send some IPv6 packets of their own.
    sent, arrived = 500 + later, requests_received(ends[1])
    added = report["a_to_b"]["duplicated"] - report["a_to_b"]["lost"]
    assert abs(arrived - sent - added) < 30
    assert 0 <= report["a_to_b"]["duplicated"] - copies < 30
    assert report["b_to_a"]["lost"] == report["b_to_a"]["duplicated"] == 0


@measuring(STALL)
def test_events_change_a_running_link_at_their_times(ends):
    begin = time.monotonic()
    events = ["500ms:a-to-b:delay=45ms", "1s:blackhole", "1.5s:restore"]
    with Running(ends, "--delay", "5ms", *itertools.chain(*(("--at", event) for event in events))) as link:
        for event in events:
            link.wait_for_event(event)
        assert time.monotonic() - begin >= 1.5
        assert 49.7 <= rtt(link.ping(count=5)) < 60
        link.end()


def test_a_blackhole_drops_packets_and_keeps_the_carrier(ends):
    with Running(ends, "--at", "10ms:blackhole") as link:
        link.wait_for_event("10ms:blackhole")
        assert received(link.ping(count=3)) == 0
        assert has_carrier(ends[0]) and has_carrier(ends[1])
        assert link.end()["a_to_b"]["no_path"] >= 3


def test_a_trace_paces_delivery(ends, tmp_path):
    # A packet of up to 1504 bytes every 4 ms: 3 Mb/s.
    (tmp_path / "slow.trace").write_text("4\n")
    with Running(ends, "--trace", tmp_path / "slow.trace") as link:
        rate = link.iperf("-u", "-b", "10M", "-t", "2")["sum_received"]["bits_per_second"]
        link.end()
    assert 2.6e6 < rate < 3.1e6


def test_ends_after_its_duration_and_leaves_nothing(ends):
    # Time enough for the addresses and the ping on a busy machine.
    with Running(ends, "--backend", "none", "--for", "5s") as link:
        assert received(link.ping(count=2)) == 2
        report = link.end(by=None)
    assert 5 <= report["duration_s"] < 10
    a_to_b = report["a_to_b"]
    assert report["lateness"] is None and a_to_b["lost"] is None
    # The interfaces' counters are read one after the other, and IPv6 may send a solicitation meanwhile.
    assert 3 <= a_to_b["frames_in"] <= a_to_b["frames_out"] <= a_to_b["frames_in"] + 1
    assert interfaces(ends[0]) == interfaces(ends[1]) == ["lo"]


@pytest.mark.parametrize("backend", ["emu", "none"])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_leaves_nothing_however_it_ends(ends, backend, by):
    before = set(os.listdir("/run/netns"))
    with Running(ends, "--backend", backend) as link:
        pid = link.program.pid
        link.program.send_signal(by)
        link.program.wait(60)
    for host in ends:
        wait_for("removal of the interfaces", lambda host=host: interfaces(host) == ["lo"])
    assert not {name for name in set(os.listdir("/run/netns")) - before if str(pid) in name}
    for host in ends:
        wait_for(
            "the end of all processes", lambda host=host: not tool("ip", "netns", "pids", host.name).split()
        )


def test_lateness_above_the_limit_is_an_error(ends):
    with Running(ends, "--delay", "1ms", "--lateness-limit", "0us") as link:
        link.ping()
        report = link.end(status=1)
    reason = report["invalid_because"]
    assert reason.startswith("expected 99 of 100 frames to be at most 0 ms late, got ")
    assert reason in link.errors
    with Running(ends, "--delay", "1ms", "--lateness-limit", "10s") as link:
        link.ping()
        assert link.end()["invalid_because"] is None


def refusal(*arguments) -> tuple[int, str]:
    done = subprocess.run((PLAIT, "lab", "link", *arguments), capture_output=True, text=True, timeout=30)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_errors_name_the_cause(ends):
    a, b = (f"{host.name}:lte0" for host in ends)
    ends_given = ("--a", a, "--b", b)
    ends[1].ip("link add taken0 type veth peer name taken1")
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
        found, error = refusal(*arguments)
        assert found == status and words in error, (arguments, error)
    assert interfaces(ends[0]) == ["lo"]


def test_missing_netem_is_an_error_with_the_failed_command(ends):
    ends[0].ip("link add try0 type veth peer name try1")
    tried = subprocess.run(["tc", "-n", ends[0].name, "qdisc", "add", "dev", "try0", "root", "netem"])
    if tried.returncode == 0:
        pytest.skip("this kernel has netem")
    a, b = (f"{host.name}:lte0" for host in ends)
    status, error = refusal("--a", a, "--b", b, "--backend", "netem", "--delay", "10ms")
    assert status == 1
    assert "the backend netem cannot be used here: cannot run `tc qdisc add" in error
    assert "Specified qdisc" in error and "--backend emu" in error
    assert interfaces(ends[0]) == ["lo", "try1", "try0"] and interfaces(ends[1]) == ["lo"]


def test_requires_root(ends):
    a, b = (f"{host.name}:lte0" for host in ends)
    done = subprocess.run(
        (PLAIT, "lab", "link", "--a", a, "--b", b), capture_output=True, text=True, user=65534, cwd="/"
    )
    assert done.returncode == 1 and "run it with sudo" in done.stderr


NETEM = """
ip netns add a; ip netns add b
measure() {{
    # Remove the output of the previous link.
    rm -f /run/log; touch /run/log
    {plait} lab link --a a:lte0 --b b:lte0 --backend netem --json "$@" >/run/report 2>/run/log &
    link=$!
    until grep -q ready /run/log; do kill -0 $link; sleep 0.05; done
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


@measuring(STALL)
def test_netem_delays_limits_loses_and_counts(netem):
    output = netem("""
        measure --delay 10ms --b-to-a delay=30ms
        ip netns exec a ping -q -c 20 -i 0.05 10.99.1.2; finish >/dev/null
        echo loss; measure --a-to-b loss=30%
        ip netns exec a ping -q -c 500 -i 0.002 -W 1 10.99.1.2 || true; finish
        echo rate; measure --rate 5mbit
        ip netns exec b iperf3 -s -1 >/dev/null & sleep 0.5
        ip netns exec a iperf3 -J -u -b 10M -t 2 -c 10.99.1.2; finish
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
    # Queued data arrives as well: 100 ms more than the 2 s.
    assert 4.3e6 < sums["bits_per_second"] * (1 - sums["lost_percent"] / 100) < 5.3e6
    assert report["a_to_b"]["queue_full"] > 100 and report["a_to_b"]["lost"] == 0


@pytest.mark.alone
def test_netem_applies_events_while_traffic_flows(netem):
    output = netem("""
        look() { until grep -q "link: $1" /run/log; do kill -0 $link; sleep 0.05; done; }
        # The kernel reports a changed carrier up to a second later (linkwatch).
        shown() { ip -n a link show dev lte0; ip -n b link show dev lte0; }
        missing() { until [ "$(shown | grep -c NO-CARRIER)" = $1 ]; do kill -0 $link; sleep 0.05; done; shown; }
        pings() { ip netns exec a ping -q -c 5 -i 0.1 -W $1 10.99.1.2 || true; }
        measure --delay 5ms --at 100ms:a-to-b:delay=45ms --at 200ms:blackhole --at 300ms:restore
        look 300ms:; pings 5; finish >/dev/null
        echo down; measure --at 100ms:carrier-down; look 100ms:; missing 2; finish >/dev/null
        echo up; measure --at 100ms:carrier-down --at 2s:carrier-up; look 2s:; missing 0
        # The kernel activates the queues a little later.
        until ip netns exec a ping -q -c 1 -W 1 10.99.1.2 >/dev/null; do kill -0 $link; done; pings 5
        finish >/dev/null; ip -n a -br link; ip -n b -br link
        echo blackhole; measure --at 100ms:blackhole; look 100ms:; pings 1; shown
        kill -9 $link; wait $link || true
        until [ -z "$(ip -n a link show type veth)$(ip -n b link show type veth)" ]; do sleep 0.05; done
    """)
    restored, down, up, black = re.split(r"\n(?:down|up|blackhole)\n", output)
    assert received(restored) == 5 and rtt(restored) >= 50
    assert received(black) == 0 and black.count("LOWER_UP") == 2
    assert down.count("NO-CARRIER") == 2
    assert "NO-CARRIER" not in up and received(up) == 5
    assert up.count("lte0") == 2, "the interfaces are removed with the command"


def test_frames_have_the_given_mtu(ends):
    with Running(ends, "--mtu", "1400", "--delay", "1ms") as link:
        assert received(link.ping("-M", "do", "-s", "1372", count=2)) == 2
        assert "mtu 1400" in ends[1].ip("link show dev lte0")
        link.end()


@pytest.mark.long
def test_the_benchmark_of_links_measures_their_precision():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    bench = pathlib.Path(__file__).resolve().parents[2] / "bench" / "links.py"
    with measuring(STALL):
        done = subprocess.run(
            (bench, "--quick", "--backend", "emu", "--json"), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (emu,) = json.loads(done.stdout)["backends"]
        figures = {row["name"].split(" of ")[0]: row["median"] for row in emu["rows"]}
        assert emu["backend"] == "emu" and len(figures) == 5
        assert abs(figures["RTT"]) < 5 and abs(figures["rate"]) < 10 and abs(figures["loss"]) < 1


def test_a_seed_repeats_losses(ends):
    """Nothing but pings crosses the link, so that each has the same fate again."""
    for host in ends:
        host.tool("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def answered(seed: str) -> list[bytes]:
        options = ("--backend", "emu", "--delay", "1ms", "--loss", "30%", "--seed", seed)
        with Running(ends, *options) as link:
            pings = ends[0].run("ping", "-c", 100, "-i", 0.01, "-W", 1, B).stdout
            link.end()
        return re.findall(rb"icmp_seq=(\d+) ttl", pings)

    first = answered("5")
    assert 10 < len(first) < 90
    assert answered("5") == first
    assert answered("6") != first
