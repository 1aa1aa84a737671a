"""Many connections: memory and descriptors."""

import os
import sys
import time

import pytest
from hosts import PLAIT, wait_for
from streams import (
    CONCURRENT_FETCHES,
    NAMED,
    PARALLEL_FETCHES,
    REQUIRE,
    XOR64,
    assert_echo,
    connect_by_socks,
    echo_server,
    random_file,
    receive_exactly,
    resident_bytes,
)

# Opens connections, requests a large document on each, and reads nothing until a file appears.
CLIENTS_THAT_DO_NOT_READ = """
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address, name, end, count = sys.argv[1:]
clients = [socket.create_connection((address, 8443), timeout=60) for _ in range(int(count))]
for client in clients:
    client.sendall(f"GET /{name} HTTP/1.0\\r\\n\\r\\n".encode())
while not os.path.exists(end):
    time.sleep(0.05)
"""
MAX_MEMORY = 200 << 20


def start_clients(pair, program: str, *arguments):
    """Starts a Python program under `plait run`."""
    command = (PLAIT, "run", *XOR64, *REQUIRE, "--", sys.executable, "-c", program, pair.ETH, *arguments)
    return pair.client.start(*command, log="run.log")


def test_thousand_concurrent_connections(pair, documents):
    document = random_file(documents, 100_000)
    serve = pair.serve(*XOR64, "--require", to=pair.nginx(documents))
    bodies = pair.directory / "bodies"
    bodies.mkdir()
    program = start_clients(pair, CONCURRENT_FETCHES, document.name, bodies, 1000)
    peak = {"serve": 0, "run": 0}
    while program.poll() is None:
        for name, process in (("serve", serve), ("run", program)):
            peak[name] = max(peak[name], resident_bytes(process.pid))
        time.sleep(0.02)
    assert program.returncode == 0, pair.logged("run")
    expected = document.read_bytes()
    received = list(bodies.iterdir())
    assert len(received) == 1000
    assert all(body.read_bytes() == expected for body in received)
    assert max(peak.values()) < MAX_MEMORY, peak
    print(f"peak resident memory: {peak}")


FEW_DESCRIPTORS = {
    "run": ("run", ("--require=all-paths", *NAMED), CONCURRENT_FETCHES),
    "serve, stream": ("serve", ("--mode", "stream", "--trusted", "eth"), CONCURRENT_FETCHES),
    # Its clients wait for an answer before they can send: these must not wait for one another. 32 handshakes at once are
    # more than it has descriptors for: some give their witness up.
    "serve": ("serve", ("--require", *NAMED), PARALLEL_FETCHES),
    # As many handshakes at once as the client has descriptors for.
    "both": ("run serve", ("--require=all-paths", *NAMED), PARALLEL_FETCHES),
}


@pytest.mark.parametrize("case", FEW_DESCRIPTORS)
def test_few_descriptors_delay_connections_and_refuse_none(two_ways, documents, case):
    """Of 64 descriptors, 50 connections at once have enough one after the other."""
    limited, options, program = FEW_DESCRIPTORS[case]
    document = random_file(documents, 100_000)

    def limit(command: str) -> tuple[str, ...]:
        return ("prlimit", "--nofile=64:64") if command in limited.split() else ()

    mode = ("--mode", "stream") if "stream" in options else ()
    serve = (*limit("serve"), PLAIT, "-v", "serve", *mode, "--listen", "[::]:8443")
    two_ways.server.start(*serve, "--to", two_ways.nginx(documents), log="serve.log")
    wait_for("listening", lambda: two_ways.server.listens(8443))
    bodies = two_ways.directory / "bodies"
    bodies.mkdir()
    fetches = (sys.executable, "-c", program, two_ways.ETH, document.name, bodies, 50)
    done = two_ways.client.run(*limit("run"), PLAIT, "run", *options, "--", *fetches, timeout=120)
    logs = {"run": done.stderr.decode(), "serve": two_ways.logged("serve")}
    assert done.returncode == 0, logs
    assert [body.read_bytes() for body in bodies.iterdir()] == 50 * [document.read_bytes()]
    for command, log in logs.items():
        assert log.count("limit of open files") == (command in limited.split()), log
        assert "cannot accept" not in log, log
        assert case == "serve" or "refused" not in log, log


def test_connections_over_the_limit_wait(two_ways):
    """A further connection is established and waits, for longer than a handshake may take, until there is a place."""
    echo_server(two_ways.server)
    two_ways.serve("--max-connections", "3", "--max-connections-per-peer", "100", to="127.0.0.1:9000")
    two_ways.proxy("--require=all-paths", *NAMED)
    first = [connect_by_socks(two_ways) for _ in range(3)]
    for client in first:
        assert_echo(client)
    waiting = [connect_by_socks(two_ways) for _ in range(3)]
    for client in waiting:
        client.sendall(b"later")
    waiting[0].settimeout(12)
    with pytest.raises(TimeoutError):
        waiting[0].recv(1)
    for client in first:
        client.close()
    for client in waiting:
        client.settimeout(20)
        assert receive_exactly(client, 5) == b"later"


# Takes all memory that the kernel gives to TCP, of other tests too.
@pytest.mark.alone
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_clients_that_do_not_read_use_bounded_memory(pair, documents, count):
    document = random_file(documents, 20_000_000)
    serve = pair.serve(*XOR64, "--require", to=pair.nginx(documents))
    end = pair.directory / "end"
    program = start_clients(pair, CLIENTS_THAT_DO_NOT_READ, document.name, end, count)

    def received():
        """The bytes that all connections of the program's gateway have received."""
        gateways = [gateway for gateway in pair.status() if gateway["command"] == "run"]
        return sum(connection["received"] for gateway in gateways for connection in gateway["connections"])

    wait_for("every connection's first bytes", lambda: received() > count * 10_000, timeout=60)
    # Until the transfers have stalled: four equal samples in a row.
    samples = []
    while len(samples) < 4 or len(set(samples[-4:])) > 1:
        samples.append(received())
        time.sleep(0.5)
    held = {"serve": resident_bytes(serve.pid), "run": resident_bytes(program.pid)}
    end.touch()
    assert program.wait(60) == 0
    assert max(held.values()) < MAX_MEMORY, held
    print(f"resident memory while no client reads: {held}")


def test_descriptors_do_not_leak(pair, documents):
    document = random_file(documents, 10_000)
    serve = pair.serve("--require", to=pair.nginx(documents))
    proxy = pair.proxy(*REQUIRE)

    def descriptors():
        return [len(os.listdir(f"/proc/{process.pid}/fd")) for process in (serve, proxy)]

    def fetch_often(times):
        for _ in range(times):
            client = connect_by_socks(pair)
            client.sendall(f"GET /{document.name} HTTP/1.0\r\n\r\n".encode())
            while client.recv(65536):
                pass
            client.close()

    fetch_often(5)
    wait_for("closed connections", lambda: not any(gateway["connections"] for gateway in pair.status()))
    before = descriptors()
    fetch_often(100)
    wait_for("closed connections", lambda: all(
        now <= then + 64 for now, then in zip(descriptors(), before)  # the pool of unconnected sockets may differ
    ))  # fmt: skip
