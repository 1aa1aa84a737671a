"""`plait metrics`: the exported metrics, compared with programs, ss and nstat."""

import collections
import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest
from disturbance import measuring
from hosts import PLAIT, REPOSITORY, wait_for
from streams import MPTCP, accept, connect_by_socks, listen, receive_exactly
from transfers import connect, counters

PORT = 9464
OPEN_METRICS = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n"
# Labels of a path, in the order of their names.
INTERFACE, LOCAL, ROLE = range(3)


class Metrics:
    """A running `plait metrics`."""

    def __init__(self, host, *options):
        self.host = host
        # Scraped until there is a new sample.
        options = options or ("--interval", "200ms")
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
        """Values of a sample taken after this call, by metric name and then by labels in the order of their names."""
        previous = self._scrape()["plait_samples_total"][()]

        def newer():
            found = self._scrape()
            return found["plait_samples_total"][()] > previous and found

        return wait_for("a new sample", newer, 30)

    def _scrape(self) -> dict:
        status, headers, body = self.ask(OPEN_METRICS)
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


def path_bytes(found: dict, what: str) -> int:
    """The sum over all paths."""
    return sum(found[f"plait_path_{what}_bytes_total"].values())


def send(pair, size: int) -> tuple:
    """Sends bytes over a new connection; returns both of its sockets, and the listener."""
    client, server, listener = connect(pair)
    sending = threading.Thread(target=client.sendall, args=(bytes(size),))
    sending.start()
    receive_exactly(server, size)
    sending.join()
    return client, server, listener


def is_shown(host, pattern: bytes) -> bool:
    """Whether `ss` shows a subflow with this."""
    return bool(re.search(pattern, host.run("ss", "-tinOH").stdout))


# The most payload that one reinjected segment can have.
MAX_SEGMENT = 65536


def test_counts_every_byte_of_connections_between_samples(pair):
    """Each connection is closed before a sample is taken."""
    metrics = [Metrics(host, "--interval", "300s") for host in (pair.client, pair.server)]
    assert path_bytes(metrics[0].scrape(), "sent") == path_bytes(metrics[1].scrape(), "received") == 0
    sizes = [40_000 + number for number in range(20)]
    for size in sizes:
        # In turn, the client or the server closes first.
        client, server, listener = send(pair, size)
        for end in (client, server)[:: 1 if size % 2 else -1]:
            end.close()
        listener.close()
    for host in (pair.client, pair.server):
        wait_for("the end of all subflows", lambda host=host: not is_shown(host, rb"tcp-ulp-mptcp"))
    sent, received = (side.scrape() for side in metrics)
    # Reinjected bytes of a connection that closed between samples are unknown; the kernel counts their segments.
    reinjected = sent["plait_mptcp_kernel_events_total"]["MPTCPRetrans",] * MAX_SEGMENT
    new = path_bytes(sent, "sent") - path_bytes(sent, "retransmitted")
    assert sum(sizes) <= new <= sum(sizes) + reinjected
    # A FIN counts as a byte, on each of at most two subflows.
    assert sum(sizes) <= path_bytes(received, "received") <= sum(sizes) + 2 * len(sizes) + reinjected
    paths = {labels[LOCAL] for labels in sent["plait_path_sent_bytes_total"]}
    # Every user of the host can read the metrics: they do not tell who the peers are.
    assert paths <= {f"10.77.{link}.1" for link in (1, 2)}
    assert not any(peer in str(sent) for peer in ("10.77.1.2", "10.77.2.2"))
    assert sent["plait_mptcp_connections"]["false",] == 0
    later = metrics[0].scrape()
    for name in sent:
        if name.endswith("_total"):
            for labels, value in sent[name].items():
                assert later[name][labels] >= value, (name, labels)


def has_data_acks(host) -> bool:
    """Whether everything sent on all MPTCP connections of a host was acknowledged."""
    sockets = host.run("ss", "-MinOH", text=True).stdout
    sent = re.findall(r"write_seq:(\w+) snd_una:(\w+)", sockets)
    assert sent, sockets
    return all(written == acknowledged for written, acknowledged in sent)


def test_open_connection_equals_ss(pair):
    metrics = Metrics(pair.client), Metrics(pair.server)
    client, server, listener = send(pair, 5_000_000)
    wait_for("second subflow", lambda: pair.client.run("ss", "-tinOH").stdout.count(b"tcp-ulp-mptcp") == 2)
    for host in (pair.client, pair.server):
        wait_for("an idle connection", lambda host=host: not is_shown(host, rb"unacked:|notsent:"))
    # Until then MPTCP may send bytes again that TCP acknowledged.
    wait_for("the last DATA_ACK", lambda: has_data_acks(pair.client))
    for side, host, name, ours in (
        (metrics[0], pair.client, "bytes_sent", "sent"),
        (metrics[1], pair.server, "bytes_received", "received"),
    ):
        found = side.scrape()
        expected = collections.Counter()
        for line in host.run("ss", "-tinOH", text=True).stdout.splitlines():
            if "tcp-ulp-mptcp" in line and line.startswith("ESTAB"):
                local = re.sub(r"%\w+", "", line).split()[3]
                expected[local.rsplit(":", 1)[0]] += int((re.search(rf" {name}:(\d+)", line) or [0, 0])[1])
        counted = {labels[LOCAL]: value for labels, value in found[f"plait_path_{ours}_bytes_total"].items()}
        assert {path: counted[path] for path in expected} == expected
        assert found["plait_mptcp_connections"]["false",] == 1
        assert found["plait_mptcp_subflows"]["false",] == 2
        assert found["plait_mptcp_connections_established"][()] == 1
        assert sum(found["plait_path_subflows"].values()) == 2
        assert all(0 < rtt < 1 for rtt in found["plait_path_rtt_seconds"].values())
    client.close()
    server.close()


def test_kernel_counters_and_fallbacks_equal_nstat(pair):
    metrics = Metrics(pair.client)
    listener = listen(pair.server, 9000, pair.ETH)
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 9000))
    server = accept(listener)
    found = metrics.scrape()
    prefix = "MPTcpExt"
    kernel = {name: value for name, value in counters(pair.client).items() if name.startswith(prefix)}
    assert found["plait_mptcp_connections_established"][()] == kernel.pop(f"{prefix}MPCurrEstab")
    assert {name[0]: value for name, value in found["plait_mptcp_kernel_events_total"].items()} == {
        name.removeprefix(prefix): value for name, value in kernel.items()
    }
    assert found["plait_mptcp_fallbacks_total"]["MPCapableFallbackSYNACK",] == 1
    assert sum(found["plait_mptcp_fallbacks_total"].values()) == 1
    assert found["plait_mptcp_connections"]["true",] == 1
    client.close()
    server.close()


def test_gateways_report_negotiated_connections(pair, listener):
    before = (metrics := Metrics(pair.client)).scrape()["plait_gateway_connections_total"]
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)
    receive_exactly(server, 1)
    found = metrics.scrape()
    assert found["plait_gateways"]["serve", "sealed", "true"] >= 1
    assert found["plait_gateway_active_connections"]["proxy", "sealed", "mptcp"] >= 1
    for command in ("serve", "proxy"):
        key = command, "protected"
        assert found["plait_gateway_connections_total"][key] >= before.get(key, 0) + 1
    client.close()
    server.close()


def test_limits_the_number_of_paths(pair):
    metrics = Metrics(pair.client, "--max-paths", "1")
    client, server, listener = send(pair, 100_000)
    wait_for("another path", lambda: len(metrics.scrape()["plait_path_sent_bytes_total"]) == 2)
    assert ("other",) * 3 in metrics.scrape()["plait_path_sent_bytes_total"]
    client.close()
    server.close()


def test_labels_have_interface_and_role_and_the_peer_if_asked(pair):
    metrics = Metrics(pair.client, "--by-remote", "--trusted", "eth")
    client, server, listener = send(pair, 100_000)
    paths = {("eth", "10.77.1.1", "10.77.1.2", "trusted"), ("wlan", "10.77.2.1", "10.77.2.2", "untrusted")}
    wait_for("both paths", lambda: paths == set(metrics.scrape()["plait_path_subflows"]))
    client.close()
    server.close()


def test_promtool_accepts_metrics_and_alert_rules(pair, listener):
    if not shutil.which("promtool"):
        pytest.skip("not installed: promtool (of prometheus)")
    metrics = Metrics(pair.client)
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)
    wait_for("a path", lambda: metrics.scrape()["plait_path_sent_bytes_total"])
    status, headers, body = metrics.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert "text/plain; version=0.0.4" in headers
    checked = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr
    rules = REPOSITORY / "docs" / "reference" / "alert-rules.yaml"
    tests = REPOSITORY / "tests" / "data" / "alert-rules-test.yaml"
    for command in (["check", "rules", rules], ["test", "rules", tests]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    names = set(re.findall(r"plait_\w+", rules.read_text()))
    assert names <= set(re.findall(r"# TYPE (\w+)", body)), names
    client.close()
    server.close()


REQUESTS = {
    b"GET /nothing HTTP/1.1\r\n\r\n": "404",
    b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 1_000_000: "431",
    b"GET / HTTP/1.0\r\n\r\n": "200",
    b"HEAD /metrics HTTP/1.1\r\n\r\n": "200",
}


def test_survives_hostile_clients(pair):
    metrics = Metrics(pair.client)
    for request, status in REQUESTS.items():
        with contextlib.suppress(ConnectionError):
            assert metrics.ask(request)[0].split()[1] == status, request[:60]
    # Clients that send nothing or an incomplete request.
    slow = [metrics.connect() for _ in range(200)]
    for client in slow[::2]:
        client.sendall(b"GET /met")
    with measuring(0.2):
        begin = time.monotonic()
        metrics.scrape()
        assert time.monotonic() - begin < 2
    slow += [metrics.connect() for _ in range(200)]
    metrics.scrape()
    # Slow clients time out.
    slow[0].settimeout(15)
    assert slow[0].recv(100).startswith(b"HTTP/1.1 408")
    for client in slow:
        client.close()
    metrics.scrape()
    metrics.program.terminate()
    assert metrics.program.wait(60) == 0


def test_address_in_use_is_an_error(pair):
    Metrics(pair.client)
    done = pair.client.run(PLAIT, "metrics", text=True)
    assert done.returncode == 1 and "127.0.0.1:9464" in done.stderr and "--listen" in done.stderr


def test_dashboard_has_a_panel_for_every_metric(pair, listener):
    metrics = Metrics(pair.client)
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)
    wait_for("a path", lambda: metrics.scrape()["plait_path_sent_bytes_total"])
    _, _, body = metrics.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    known = set(re.findall(r"# TYPE (\w+)", body))
    # These appear with the first datagram.
    known |= {"plait_gateway_datagrams_total", "plait_gateway_datagram_bytes_total"}
    dashboard = json.loads((REPOSITORY / "docs" / "reference" / "grafana-dashboard.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"plait_\w+", target["expr"]))
            assert names and names <= known, target["expr"]
            shown |= names
    assert known - shown == set()
    client.close()
    server.close()


@pytest.mark.skipif(not shutil.which("prometheus"), reason="not installed: prometheus")
def test_prometheus_answers_every_panel(pair, listener):
    """As Grafana asks, which no package of Debian has: the queries of the dashboard, to a server that scrapes."""
    metrics = Metrics(pair.client)
    config = pair.directory / "prometheus.yml"
    job = {"job_name": "plait", "static_configs": [{"targets": [f"127.0.0.1:{PORT}"]}]}
    # JSON is YAML.
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    options = (f"--config.file={config}", f"--storage.tsdb.path={pair.directory / 'tsdb'}")
    pair.client.start("prometheus", *options, "--web.listen-address=127.0.0.1:9090", log="prometheus.log")
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"x")
    server = accept(listener)

    def ready() -> bool:
        return pair.client.run("curl", "-sSf", "http://127.0.0.1:9090/-/ready").returncode == 0

    def ask(query: str) -> list[dict]:
        asked = ("--data-urlencode", f"query={query}", "http://127.0.0.1:9090/api/v1/query")
        found = json.loads(pair.client.tool("curl", "-sS", *asked))
        assert "error" not in found, (query, found)
        return found["data"]["result"]

    wait_for("Prometheus", ready, 60)
    wait_for("two scrapes", lambda: ask("min(count_over_time(plait_path_sent_bytes_total[1m])) >= 2"), 60)
    present = set(re.findall(r"^(plait_\w+)", metrics.ask(b"GET /metrics HTTP/1.1\r\n\r\n")[2], re.MULTILINE))
    dashboard = json.loads((REPOSITORY / "docs" / "reference" / "grafana-dashboard.json").read_text())
    variables = {"$job": "plait", "$instance": ".*", "$__rate_interval": "1m"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in variables.items():
                query = query.replace(name, value)
            result = ask(query)
            # "> 0" shows nothing while nothing happens.
            is_expected = set(re.findall(r"plait_\w+", query)) <= present and not query.endswith("> 0")
            assert result or not is_expected, query
    client.close()
    server.close()
