"""`plait metrics`: what Prometheus scrapes, beside what programs, ss and nstat count."""

import collections
import contextlib
import json
import re
import socket
import subprocess
import threading
import time

import pytest
from hosts import PLAIT, REPOSITORY, wait_for
from streams import accept, connect_by_socks, listen, receive_exactly

MPTCP = 262
PORT = 9464


class Metrics:
    """A running `plait metrics`, and what it says."""

    def __init__(self, host, *options):
        self.host = host
        self.program = host.start(PLAIT, "metrics", *options, log=f"metrics-{host.name}.log")
        wait_for("metrics", lambda: self.program.poll() is not None or host.listens(PORT))
        assert self.program.poll() is None, (host.directory / f"metrics-{host.name}.log").read_text()

    def connect(self) -> socket.socket:
        client = self.host.socket()
        client.settimeout(20)
        client.connect(("127.0.0.1", PORT))
        return client

    def ask(self, request: bytes) -> tuple[str, str, str]:
        """Status, headers, body."""
        with self.connect() as client:
            client.sendall(request)
            answer = b""
            while part := client.recv(65536):
                answer += part
        head, _, body = answer.decode().partition("\r\n\r\n")
        status, _, headers = head.partition("\r\n")
        return status, headers, body

    def scrape(self) -> dict:
        """Values by name, then by labels in the order of their names."""
        # Whoever asks at once after another gets the same sample.
        time.sleep(0.1)
        status, headers, body = self.ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert status == "HTTP/1.1 200 OK" and "application/openmetrics-text; version=1.0.0" in headers
        *lines, end = body.splitlines()
        assert end == "# EOF"
        found = collections.defaultdict(dict)
        for line in lines:
            if line.startswith("#"):
                assert re.fullmatch(r"# (HELP|TYPE|UNIT) \w+ .+", line), line
                continue
            name, labels, value = re.fullmatch(r"(plait_\w+)(?:\{(.*)\})? (\S+)", line).groups()
            labels = tuple(value for _, value in sorted(re.findall(r'(\w+)="([^"]*)"', labels or "")))
            assert labels not in found[name], line
            found[name][labels] = float(value)
        return found


def carried(found: dict, what: str) -> int:
    return sum(found[f"plait_path_{what}_bytes_total"].values())


def send(pair, listener, size: int):
    """Sends bytes over a connection of its own; both ends of it."""
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 9000))
    server = accept(listener)
    sending = threading.Thread(target=client.sendall, args=(bytes(size),))
    sending.start()
    receive_exactly(server, size)
    sending.join()
    return client, server


def test_every_byte_is_counted_once(pair):
    """Whatever carried it, and although each connection is gone before a sample was taken."""
    metrics = [Metrics(host, "--interval", "300s") for host in (pair.client, pair.server)]
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    assert carried(metrics[0].scrape(), "sent") == carried(metrics[1].scrape(), "received") == 0
    sizes = [40_000 + number for number in range(20)]
    for size in sizes:
        # Sometimes the client closes first, sometimes the server.
        for end in send(pair, listener, size)[:: 1 if size % 2 else -1]:
            end.close()
    time.sleep(0.5)
    sent, received = (side.scrape() for side in metrics)
    new = carried(sent, "sent") - carried(sent, "retransmitted")
    assert new - sent["plait_mptcp_reinjected_bytes_total"][()] == sum(sizes)
    # A FIN counts as a byte, of each of at most two subflows.
    assert sum(sizes) <= carried(received, "received") <= sum(sizes) + 2 * len(sizes)
    paths = {labels[0] for labels in sent["plait_path_sent_bytes_total"]}
    assert paths <= {f"10.77.{link}.1-10.77.{to}.2" for link in (1, 2) for to in (1, 2)}
    assert sent["plait_mptcp_connections"]["false",] == 0
    later = metrics[0].scrape()
    for name in sent:
        if name.endswith("_total"):
            for labels, value in sent[name].items():
                assert later[name][labels] >= value, (name, labels)


def test_an_open_connection_is_as_ss_says(pair):
    metrics = Metrics(pair.client), Metrics(pair.server)
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    client, server = send(pair, listener, 5_000_000)
    wait_for("second subflow", lambda: pair.client.run("ss", "-tinOH").stdout.count(b"tcp-ulp-mptcp") == 2)
    time.sleep(0.2)
    for side, host, name, ours in (
        (metrics[0], pair.client, "bytes_sent", "sent"),
        (metrics[1], pair.server, "bytes_received", "received"),
    ):
        found = side.scrape()
        expected = collections.Counter()
        for line in host.run("ss", "-tinOH", text=True).stdout.splitlines():
            if "tcp-ulp-mptcp" in line and line.startswith("ESTAB"):
                _, _, _, local, remote, *_ = re.sub(r"%\w+", "", line).split()
                path = f"{local.rsplit(':', 1)[0]}-{remote.rsplit(':', 1)[0]}"
                expected[path] += int((re.search(rf" {name}:(\d+)", line) or [0, 0])[1])
        assert {path: found[f"plait_path_{ours}_bytes_total"][path,] for path in expected} == expected
        assert found["plait_mptcp_connections"]["false",] == 1
        assert found["plait_mptcp_subflows"]["false",] == 2
        assert found["plait_mptcp_established"][()] == 1
        assert sum(found["plait_path_subflows"].values()) == 2
        assert all(0 < rtt < 1 for rtt in found["plait_path_rtt_seconds"].values())
    client.close()
    server.close()


def test_kernel_counters_and_fallbacks_are_those_of_nstat(pair):
    metrics = Metrics(pair.client)
    listener = listen(pair.server, 9000, pair.ETH)
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 9000))
    server = accept(listener)
    found = metrics.scrape()
    kernel = json.loads(pair.client.run("nstat", "-asz", "--json", "MPTcpExt*").stdout)["kernel"]
    prefix = "MPTcpExt"
    assert found["plait_mptcp_established"][()] == kernel.pop(f"{prefix}MPCurrEstab")
    assert {name[0]: value for name, value in found["plait_mptcp_ext_total"].items()} == {
        name.removeprefix(prefix): value for name, value in kernel.items()
    }
    assert found["plait_mptcp_fallbacks_total"]["MPCapableFallbackSYNACK",] == 1
    assert sum(found["plait_mptcp_fallbacks_total"].values()) == 1
    assert found["plait_mptcp_connections"]["true",] == 1
    client.close()
    server.close()


def test_gateways_tell_what_was_negotiated(pair, listener):
    before = (metrics := Metrics(pair.client)).scrape()["plait_gateway_connections_total"]
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)
    receive_exactly(server, 1)
    found = metrics.scrape()
    assert found["plait_gateways"]["serve", "sealed", "true"] >= 1
    assert found["plait_gateway_connections_now"]["proxy", "sealed", "mptcp"] >= 1
    for command in ("serve", "proxy"):
        key = command, "protected"
        assert found["plait_gateway_connections_total"][key] >= before.get(key, 0) + 1
    client.close()
    server.close()


def test_paths_are_bounded(pair):
    metrics = Metrics(pair.client, "--max-paths", "1")
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    client, server = send(pair, listener, 100_000)
    wait_for("another path", lambda: len(metrics.scrape()["plait_path_sent_bytes_total"]) == 2)
    assert ("other",) in metrics.scrape()["plait_path_sent_bytes_total"]
    client.close()
    server.close()


REQUESTS = {
    b"GET /nothing HTTP/1.1\r\n\r\n": "404",
    b"POST /metrics HTTP/1.1\r\n\r\n": "405",
    b"\x16\x03\x01\x00\x05hello": "400",
    b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 1_000_000: "431",
    b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 1000 + b"\r\n": "431",
    b"GET / HTTP/1.0\r\n\r\n": "200",
    b"HEAD /metrics HTTP/1.1\r\n\r\n": "200",
}


def test_hostile_clients_do_not_stop_it(pair):
    metrics = Metrics(pair.client)
    for request, status in REQUESTS.items():
        with contextlib.suppress(ConnectionError):
            assert metrics.ask(request)[0].split()[1] == status, request[:60]
    # As many as wait at once, in silence or byte by byte.
    slow = [metrics.connect() for _ in range(200)]
    for client in slow[::2]:
        client.sendall(b"GET /met")
    begin = time.monotonic()
    metrics.scrape()
    assert time.monotonic() - begin < 2
    slow += [metrics.connect() for _ in range(200)]
    metrics.scrape()
    # They were told, and left.
    slow[0].settimeout(15)
    assert slow[0].recv(100).startswith(b"HTTP/1.1 408")
    for client in slow:
        client.close()
    metrics.scrape()
    metrics.program.terminate()
    assert metrics.program.wait(5) == 0


def test_an_address_in_use_is_an_error(pair):
    Metrics(pair.client)
    done = pair.client.run(PLAIT, "metrics", text=True)
    assert done.returncode == 1 and "127.0.0.1:9464" in done.stderr and "--listen" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("--listen", "9464"), ("--interval", "0"), ("--max-paths", "0"), ("x",)]
)
def test_wrong_usage(arguments):
    done = subprocess.run([PLAIT, "metrics", *arguments], capture_output=True)
    assert done.returncode == 2 and done.stdout == b""


def test_the_dashboard_shows_what_there_is(pair, listener):
    metrics = Metrics(pair.client)
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)
    wait_for("a path", lambda: metrics.scrape()["plait_path_sent_bytes_total"])
    _, _, body = metrics.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    kinds = dict(re.findall(r"# TYPE (\w+) (\w+)", body))
    known = {f"{name}_total" if kind == "counter" else name for name, kind in kinds.items()}
    dashboard = json.loads((REPOSITORY / "docs" / "reference" / "grafana-dashboard.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"plait_\w+", target["expr"]))
            assert names and names <= known, target["expr"]
            shown |= names
    assert known - shown == set(), "every metric has its panel"
    client.close()
    server.close()
