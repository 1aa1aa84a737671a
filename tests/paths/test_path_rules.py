"""Rules of paths ([[paths]] of plait.toml): which interfaces carry connections, how fast, how much and when."""

import contextlib
import datetime
import functools
import json
import os
import signal
import socket
import statistics
import threading
import time

import pytest
from disturbance import measuring
from gateways import report_of
from hosts import PLAIT, skip_without_feature, wait_for
from kernel_algorithms import SCHEDULER_FEATURE
from streams import assert_echo, connect_by_socks, echo_server, fetch, listen, random_file

# Exactness of quotas, as documented.
EXACT = 65536
TRUSTED_ETH = '[[paths]]\nmatch = "eth"\nrole = "trusted"\n'


def write_config(pair, rules: str):
    file = pair.directory / "plait.toml"
    file.write_text(f'mode = "xor64"\nrequire = true\n{rules}')
    return file


def start(pair, rules: str, to: str = "127.0.0.1:9000", *options):
    """Starts both gateways, that of the client with these rules; returns it."""
    if not any(program.args[-1] == "[::]:8443" for program in pair.server.programs):
        pair.serve("--mode", "xor64", "--require", to=to)
    return pair.proxy("--config", write_config(pair, rules), *options)


def stream_server(host, port: int = 9000):
    """Sends bytes without end to each client that sends `d`, and reads all that others send."""
    listener = listen(host, port)

    def carry(connection):
        with contextlib.suppress(OSError), connection:
            if connection.recv(1) == b"d":
                while True:
                    connection.sendall(bytes(65536))
            while connection.recv(1 << 20):
                pass

    def serve():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=carry, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


class Stream:
    """A connection by the proxy on which one end sends without end."""

    def __init__(self, pair, direction: str):
        self.client = connect_by_socks(pair)
        self.client.settimeout(None)
        self.client.sendall(b"d" if direction == "download" else b"u")
        work = self._receive if direction == "download" else self._send
        threading.Thread(target=work, daemon=True).start()

    def _receive(self):
        with contextlib.suppress(OSError):
            while self.client.recv(1 << 20):
                pass

    def _send(self):
        with contextlib.suppress(OSError):
            while True:
                self.client.sendall(bytes(65536))

    def close(self):
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)
        self.client.close()


def carried(host, interface: str) -> dict:
    """Bytes and packets by an interface, in both directions, as its driver counts them: with headers of Ethernet."""
    (link,) = json.loads(host.ip(f"-j -s link show dev {interface}"))
    stats = link["stats64"]
    return {
        "sent": stats["tx"]["bytes"] - 14 * stats["tx"]["packets"],
        "received": stats["rx"]["bytes"] - 14 * stats["rx"]["packets"],
    }


def disable_offloads(pair, *links):
    """The interfaces count each packet."""
    for host in (pair.client, pair.server):
        for link in links:
            host.tool("ethtool", "-K", link, "gso", "off", "tso", "off", "gro", "off")


def rates(host, interface: str, seconds: float) -> dict:
    """Mean rates by an interface in bits per second."""
    before, since = carried(host, interface), time.monotonic()
    time.sleep(seconds)
    after, elapsed = carried(host, interface), time.monotonic() - since
    return {direction: (after[direction] - before[direction]) * 8 / elapsed for direction in after}


def regression_rate(host, interface: str, direction: str, seconds: float) -> float:
    """The mean rate by an interface in bits per second: the slope of its bytes over time, which a burst at one end of the time hardly
    changes."""
    times, counts = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counts.append(carried(host, interface)[direction])
        times.append(time.monotonic())
        time.sleep(0.1)
    return statistics.linear_regression(times, counts).slope * 8


def subflows(pair) -> list[str]:
    """The local addresses of the only connection's subflows."""
    connections = report_of(pair, "proxy")["connections"]
    return [
        each["local"].rpartition(":")[0].strip("[]")
        for connection in connections
        for each in connection["subflows"]
    ]


def rule_status(pair, match: str) -> dict:
    done = pair.client.run(PLAIT, "paths", "--json", "--config", pair.directory / "plait.toml", text=True)
    assert done.returncode == 0, done.stderr
    return next(rule for rule in json.loads(done.stdout)["rules"] if rule["match"] == match)


def used(pair, match: str) -> int:
    return rule_status(pair, match)["quota"]["used"]


def rename(host, link: str, name: str, address: str):
    """Gives an interface another name, as if it were unplugged and plugged in again."""
    host.ip(f"link set {link} down")
    host.ip(f"link set {link} name {name}")
    host.ip(f"link set {name} up")
    if address not in host.ip(f"addr show dev {name}"):
        host.ip(f"addr add {address} dev {name}")


def test_interfaces_that_match_later_are_used_without_restart(pair):
    pair.client.ip("link set wlan down")
    pair.client.ip("link set wlan name modem")
    echo_server(pair.server)
    start(pair, TRUSTED_ETH + '[[paths]]\nmatch = "wwan*"\n[[paths]]\nmatch = "*"\nrole = "unused"\n')
    with connect_by_socks(pair) as client:
        assert_echo(client)
        pair.client.ip("link set modem up")
        for name in ("wwan0", "wwan7"):
            link = json.loads(pair.client.ip("-j link show"))
            current = next(each["ifname"] for each in link if each["ifname"] not in ("lo", "eth"))
            rename(pair.client, current, name, "10.77.2.1/24")
            wait_for(f"a subflow by {name}", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])
            assert_echo(client)
        # Another address, another subflow.
        pair.client.ip("addr add 10.77.2.9/24 dev wwan7")
        pair.client.ip("addr del 10.77.2.1/24 dev wwan7")
        # The kernel removes it with the first one, of which it was a secondary.
        if "10.77.2.9" not in pair.client.ip("addr show dev wwan7"):
            pair.client.ip("addr add 10.77.2.9/24 dev wwan7")
        wait_for(
            "a subflow from the new address", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.9"]
        )
        assert_echo(client)


def test_unused_path_carries_nothing(pair):
    pair.client.tool("sysctl", "-qw", "net.ipv6.conf.wlan.disable_ipv6=1")
    pair.server.tool("sysctl", "-qw", "net.ipv6.conf.wlan.disable_ipv6=1")
    stream_server(pair.server)
    start(pair, TRUSTED_ETH + '[[paths]]\nmatch = "10.77.2.0/24"\nrole = "unused"\n')
    before = carried(pair.client, "wlan")
    stream = Stream(pair, "download")
    eth = rates(pair.client, "eth", 2)
    assert eth["received"] > 1e6
    assert carried(pair.client, "wlan") == before
    stream.close()


def test_first_rule_that_matches_applies(pair):
    pair.server.ip(f"mptcp endpoint add {pair.ETH} dev eth signal")
    echo_server(pair.server)
    rules = '[[paths]]\nmatch = "wlan"\nrole = "trusted"\n[[paths]]\nmatch = "10.77.2.1"\nrole = "unused"\n'
    start(pair, rules + '[[paths]]\nmatch = "*"\n')
    with connect_by_socks(pair, pair.WLAN) as client:
        assert subflows(pair) == ["10.77.2.1"], "the trusted path comes first"
        assert_echo(client)
        wait_for("second subflow", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])


def test_connections_avoid_an_unused_path_that_routing_chooses(pair):
    pair.add_route_by_wlan()
    echo_server(pair.server)
    start(pair, '[[paths]]\nmatch = "eth"\nrole = "unused"\n[[paths]]\nmatch = "wlan"\n')
    with connect_by_socks(pair) as client:
        assert_echo(client)
        assert subflows(pair) == ["10.77.2.1"]


@pytest.mark.parametrize(
    ("connections", "seconds"),
    [(1, 30), pytest.param(1, 60, marks=pytest.mark.long), pytest.param(4, 60, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_cap_is_held(make_pair, direction, connections, seconds):
    pair = make_pair("20mbit")
    disable_offloads(pair, "eth", "wlan")
    stream_server(pair.server)
    start(pair, TRUSTED_ETH + '[[paths]]\nmatch = "wlan"\ncap = "4mbit"\n')
    streams = [Stream(pair, direction) for _ in range(connections)]
    wait_for("subflows by wlan", lambda: subflows(pair).count("10.77.2.1") == connections)
    # Until the rates have settled.
    time.sleep(2)
    rate = regression_rate(pair.client, "wlan", "received" if direction == "download" else "sent", seconds)
    print(f"{direction}, {connections}: {rate}")
    assert rate == pytest.approx(4e6, rel=0.04)
    for stream in streams:
        stream.close()


@pytest.mark.long
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_cap_of_the_only_path_is_held(make_pair, direction):
    """Peers have no other path to send by, and notice by losses."""
    pair = make_pair("20mbit")
    disable_offloads(pair, "eth")
    stream_server(pair.server)
    rules = (
        '[[paths]]\nmatch = "eth"\nrole = "trusted"\ncap = "4mbit"\n[[paths]]\nmatch = "*"\nrole = "unused"\n'
    )
    start(pair, rules)
    stream = Stream(pair, direction)
    time.sleep(5)
    found = rates(pair.client, "eth", 20)
    towards = "received" if direction == "download" else "sent"
    print(f"{direction}: {found}")
    assert 2e6 < found[towards] < 4.4e6, found
    stream.close()


@pytest.mark.parametrize("direction", ["download", "upload"])
def test_quota_is_exact(make_pair, direction):
    """And the connection goes on by the other path."""
    pair = make_pair("20mbit")
    disable_offloads(pair, "eth", "wlan")
    # What the queue of an interface drops was counted, and does not leave.
    long_queue = ("tbf", "rate", "20mbit", "burst", "64k", "latency", "1s")
    pair.client.tool("tc", "qdisc", "replace", "dev", "wlan", "root", *long_queue)
    stream_server(pair.server)
    before = sum(carried(pair.client, "wlan").values())
    rules = '[[paths]]\nmatch = "wl*"\nquota = { bytes = "10MB", per = "month", reset_day = 31 }\n'
    start(pair, TRUSTED_ETH + rules)
    stream = Stream(pair, direction)
    wait_for("the warning", lambda: "their quota of 10MB is used up" in pair.logged("proxy"))
    wait_for("the end of the path", lambda: subflows(pair) == ["10.77.1.1"])
    towards = "received" if direction == "download" else "sent"
    eth = rates(pair.client, "eth", 2)
    assert eth[towards] > 5e6, eth
    total = sum(carried(pair.client, "wlan").values()) - before
    print(f"{direction}: {total - 10_000_000:+} bytes on the path")
    assert abs(total - 10_000_000) <= EXACT
    assert abs(used(pair, "wl*") - total) <= EXACT
    stream.close()


def test_quota_is_kept_over_kill_and_restart(make_pair):
    pair = make_pair("20mbit")
    disable_offloads(pair, "eth", "wlan")
    stream_server(pair.server)
    rules = TRUSTED_ETH + '[[paths]]\nmatch = "wl*"\nquota = { bytes = "12MB", per = "day" }\n'
    before = sum(carried(pair.client, "wlan").values())

    def total() -> int:
        return sum(carried(pair.client, "wlan").values()) - before

    def has_carried(least: int) -> bool:
        return total() > least

    for last in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        gateway = start(pair, rules, "127.0.0.1:9000", "--drain", "0")
        # What arrives after the end is nobody's, and not counted.
        stream = Stream(pair, "upload")
        with measuring(0.02):
            wait_for("traffic", functools.partial(has_carried, total() + 2_000_000))
            gateway.send_signal(last)
            gateway.wait(30)
            stream.close()
            wait_for("silence", lambda: rates(pair.client, "wlan", 0.3)["sent"] < 1000)
            print(f"{last.name}: {used(pair, 'wl*') - total():+} bytes counted too much")
            assert abs(used(pair, "wl*") - total()) <= EXACT
    start(pair, rules)
    stream = Stream(pair, "download")
    wait_for("the warning", lambda: "their quota of 12MB is used up" in pair.logged("proxy"))
    wait_for("the end of the path", lambda: subflows(pair) == ["10.77.1.1"])
    assert abs(used(pair, "wl*") - 12_000_000) <= EXACT
    stream.close()
    # It is not used by the next one at all.
    pair.client.programs[-1].terminate()
    pair.client.programs[-1].wait(30)
    start(pair, rules)
    left = carried(pair.client, "wlan")["received"]
    stream = Stream(pair, "download")
    assert rates(pair.client, "eth", 1)["received"] > 1e6
    assert carried(pair.client, "wlan")["received"] - left < 2000
    stream.close()


def test_monitor_counts_what_a_killed_gateway_could_not_write(make_pair):
    """A gateway that is stopped writes nothing, while the kernel receives and counts until its buffers are full."""
    pair = make_pair("20mbit")
    disable_offloads(pair, "eth", "wlan")
    stream_server(pair.server)
    before = sum(carried(pair.client, "wlan").values())

    def total() -> int:
        return sum(carried(pair.client, "wlan").values()) - before

    gateway = start(
        pair, TRUSTED_ETH + '[[paths]]\nmatch = "wl*"\nquota = { bytes = "100MB", per = "day" }\n'
    )
    stream = Stream(pair, "download")
    wait_for("traffic", lambda: total() > 2_000_000)
    gateway.send_signal(signal.SIGSTOP)
    wait_for("silence", lambda: rates(pair.client, "wlan", 0.3)["received"] < 1000)
    unwritten = total() - used(pair, "wl*")
    assert unwritten > 2 * EXACT, "the gateway has written what it carried"
    gateway.kill()
    gateway.wait(30)
    wait_for("the count", lambda: abs(used(pair, "wl*") - total()) <= EXACT)
    stream.close()


def test_trusted_path_whose_quota_is_used_up_is_an_error(pair):
    pair.client.state.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    uses = {"eth": {"since": today, "bytes": 1_000_000}}
    (pair.client.state / "path-quotas.json").write_text(json.dumps(uses))
    echo_server(pair.server)
    start(pair, '[[paths]]\nmatch = "eth"\nrole = "trusted"\nquota = { bytes = "1MB", per = "day" }\n')
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[1-6]"):
        connect_by_socks(pair)
    assert "eth is not used: its quota of 1MB is used up until" in pair.logged("proxy")


def test_sandboxed_gateway_counts_and_stores(pair):
    """It has given up root, and files, by then."""
    echo_server(pair.server)
    rules = '[[paths]]\nmatch = "eth"\nrole = "trusted"\nquota = { bytes = "1GB", per = "month" }\n'
    gateway = start(pair, rules + '[[paths]]\nmatch = "wlan"\nrole = "unused"\n')
    # It listens before it is confined.
    wait_for("another user", lambda: "\nUid:\t0\t" not in open(f"/proc/{gateway.pid}/status").read())
    with connect_by_socks(pair) as client:
        assert_echo(client, os.urandom(1_000_000))
        wait_for("the use of the quota", lambda: used(pair, "eth") > 2_000_000)
    assert "cannot store" not in pair.logged("proxy")
    mode = (pair.client.state / "path-quotas.json").stat()
    assert (mode.st_uid, mode.st_mode & 0o777) == (0, 0o600)


def test_run_counts_sealed_connections_with_their_witnesses(pair, tmp_path):
    pair.add_route_by_wlan()
    document = random_file(tmp_path, 3_000_000)
    pair.serve("--mode", "sealed", "--require", to=pair.nginx(tmp_path))
    quota = 'quota = { bytes = "1GB", per = "day" }'
    rules = f'[[paths]]\nmatch = "eth"\nrole = "trusted"\n{quota}\n[[paths]]\nmatch = "w*"\n{quota}\n'
    file = pair.directory / "plait.toml"
    file.write_text(f'mode = "sealed"\nrequire = "paths:2"\n{rules}')
    assert fetch(pair, document, options=("--config", file)) == document.read_bytes()
    eth, wlan = used(pair, "eth"), used(pair, "w*")
    assert eth + wlan > 3_000_000 and wlan > 1000, (eth, wlan)


def schedule(from_now: int, until: int) -> str:
    """A schedule by minutes from now."""
    now = datetime.datetime.now()
    ends = [now + datetime.timedelta(minutes=minutes) for minutes in (from_now, until)]
    return "-".join(end.strftime("%H:%M") for end in ends)


@pytest.mark.parametrize(
    ("ends", "is_used"), [((-60, 60), True), ((60, 120), False)], ids=["within", "outside"]
)
def test_path_is_used_only_by_its_schedule(pair, ends, is_used):
    echo_server(pair.server)
    start(pair, TRUSTED_ETH + f'[[paths]]\nmatch = "wlan"\nschedule = "{schedule(*ends)}"\n')
    before = carried(pair.client, "wlan")
    with connect_by_socks(pair) as client:
        assert_echo(client, bytes(100_000))
        if is_used:
            wait_for("second subflow", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])
        else:
            time.sleep(2)
            assert subflows(pair) == ["10.77.1.1"]
            # Of IPv6, which the gateway does not use here.
            assert carried(pair.client, "wlan")["sent"] - before["sent"] < 500
    assert rule_status(pair, "wlan")["within_schedule"] == is_used


@pytest.mark.long
def test_path_ends_with_its_schedule(pair):
    now = datetime.datetime.now()
    if now.second > 40:
        time.sleep(60 - now.second)
    echo_server(pair.server)
    start(pair, TRUSTED_ETH + f'[[paths]]\nmatch = "wlan"\nschedule = "{schedule(-60, 1)}"\n')
    with connect_by_socks(pair) as client:
        assert_echo(client)
        wait_for("second subflow", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])
        wait_for("the end", lambda: subflows(pair) == ["10.77.1.1"], timeout=90)
        assert_echo(client)


def test_rules_give_the_scheduler_tiers(make_pair):
    skip_without_feature(SCHEDULER_FEATURE)
    pair = make_pair("20mbit")
    stream_server(pair.server)
    rules = '[[paths]]\nmatch = "eth"\nrole = "trusted"\ntier = 1\n[[paths]]\nmatch = "wl*"\ntier = 2\n'
    start(pair, rules)
    done = pair.client.run(PLAIT, "paths", "--config", pair.directory / "plait.toml", text=True)
    assert "rule wl*  untrusted, tier 2" in done.stdout
    connection = connect_by_socks(pair)
    connection.sendall(b"u" + bytes(400_000))
    wait_for("second subflow", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])
    before = carried(pair.client, "wlan")["sent"]
    # Less than the first tier can carry.
    for _ in range(40):
        connection.sendall(bytes(20_000))
        time.sleep(0.05)
    assert carried(pair.client, "wlan")["sent"] - before < 100_000
    connection.close()


@pytest.mark.alone
def test_rules_give_the_scheduler_weights(make_pair):
    skip_without_feature(SCHEDULER_FEATURE)
    pair = make_pair("20mbit")
    stream_server(pair.server)
    rules = '[[paths]]\nmatch = "eth"\nrole = "trusted"\nweight = 3\n[[paths]]\nmatch = "wl*"\nweight = 1\n'
    start(pair, rules)
    stream = Stream(pair, "upload")
    wait_for("second subflow", lambda: sorted(subflows(pair)) == ["10.77.1.1", "10.77.2.1"])
    with measuring(0.02):
        time.sleep(3)
        before = [carried(pair.client, link)["sent"] for link in ("eth", "wlan")]
        time.sleep(8)
        eth, wlan = (
            carried(pair.client, link)["sent"] - old
            for link, old in zip(("eth", "wlan"), before, strict=True)
        )
        print(f"weights: {eth / wlan:.2f}")
        assert eth / wlan == pytest.approx(3, rel=0.15)
    stream.close()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ('[[paths]]\nmatch = "wwan*"\ncap = "fast"\n', ["expected a rate", ":5:7", "^^^^^^"]),
        ('[[paths]]\nmatch = "a/b"\n', ["expected an interface such as eth0 or wwan*", ":4:9", "^^^^^"]),
        ('[[paths]]\nmatch = "a"\nmetered = true\n', ["unknown field `metered`", ":5:1", "^^^^^^^"]),
        ('[paths]\neth = "trusted"\n[[paths]]\nmatch = "a"\n', [":5:3", "^"]),
        (
            '[[paths]]\nmatch = "a"\nquota = { bytes = "1GB", per = "month", reset_day = 0 }\n',
            ["expected a day of the month from 1 to 31, got 0", ":5:53", "^"],
        ),
    ],
)
def test_malformed_files_are_shown_with_line_and_caret(pair, rules, expected):
    file = write_config(pair, rules)
    for command in (("proxy", "--config", file), ("paths", "--config", file)):
        done = pair.client.run(PLAIT, *command, text=True)
        assert done.returncode == 1
        assert all(part in done.stderr for part in expected), done.stderr


def test_options_of_a_scheduler_need_it(pair):
    skip_without_feature(SCHEDULER_FEATURE)
    file = write_config(pair, 'scheduler = "ecf"\n[[paths]]\nmatch = "eth"\nweight = 2\n')
    done = pair.client.run(PLAIT, "proxy", "--config", file, text=True)
    assert done.returncode == 1 and "expected scheduler 'weighted'" in done.stderr, done.stderr


def test_plait_paths_shows_what_is_left(pair):
    pair.client.state.mkdir(parents=True, exist_ok=True)
    since = datetime.date.today().replace(day=1)
    uses = {"wl*": {"since": since.isoformat(), "bytes": 2_500_000_000}}
    (pair.client.state / "path-quotas.json").write_text(json.dumps(uses))
    rules = (
        '[[paths]]\nmatch = "wl*"\ncap = "4mbit"\nquota = { bytes = "10GB", per = "month", reset_day = 1 }\n'
    )
    file = write_config(pair, TRUSTED_ETH + rules)
    done = pair.client.run(PLAIT, "paths", "--config", file, text=True)
    assert "2.50 GB of 10GB per month used, 7.50 GB left, reset on" in done.stdout, done.stdout
    quota = rule_status(pair, "wl*")["quota"]
    after = (since + datetime.timedelta(days=31)).replace(day=1)
    assert (quota["since"], quota["reset"], quota["left"]) == (
        since.isoformat(),
        after.isoformat(),
        7_500_000_000,
    )
    elapsed = datetime.datetime.now() - datetime.datetime.combine(since, datetime.time())
    if elapsed > datetime.timedelta(hours=1):
        forecast = 2.5e9 * (after - since).total_seconds() / elapsed.total_seconds()
        assert quota["forecast"] == pytest.approx(forecast, rel=0.01)
    metrics = pair.client.start(PLAIT, "metrics", "--config", file, "--listen", "127.0.0.1:9464")
    wait_for("metrics", lambda: metrics.poll() is not None or pair.client.listens(9464))
    shown = pair.client.tool("curl", "-sS", "http://127.0.0.1:9464/metrics")
    assert 'plait_path_quota_left_bytes{rule="wl*"} 7500000000' in shown
    pair.client.start(PLAIT, "web", "--config", file, "--listen", "127.0.0.1:9465", log="web.log")
    wait_for("the page", lambda: "#" in pair.logged("web"))
    events = pair.client.run("curl", "-sN", "-m", "2", "http://127.0.0.1:9465/updates", text=True).stdout
    update = next(event for event in events.split("\n\n") if event.startswith("event: update"))
    paths = {path["name"]: path for path in json.loads(update.partition("data: ")[2])["paths"]}
    assert paths["eth"]["quota"] is None and paths["wlan"]["quota"]["left"] == 7_500_000_000
