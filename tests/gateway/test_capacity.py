"""Many connections: memory and descriptors."""

import os
import time

import pytest
from hosts import PLAIT, wait_for
from streams import REQUIRE, XOR64, connect_by_socks, random_file, resident_bytes

# One Python process opens all connections before it asks for anything, and asks on all before it reads from any.
CONCURRENT_FETCHES = r"""
exec python3 -c '
import pathlib, resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address, name, directory = sys.argv[1:]
chooser = selectors.DefaultSelector()
clients = [socket.create_connection((address, 8443), timeout=60) for _ in range(1000)]
for number, client in enumerate(clients):
    client.sendall(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
    client.setblocking(False)
    chooser.register(client, selectors.EVENT_READ, (number, []))
left = 1000
while left:
    for key, _ in chooser.select(60):
        data = key.fileobj.recv(1 << 16)
        number, parts = key.data
        parts.append(data)
        if not data:
            chooser.unregister(key.fileobj)
            body = b"".join(parts).split(b"\r\n\r\n", 1)[1]
            pathlib.Path(directory, str(number)).write_bytes(body)
            left -= 1
' "$@"
"""


def test_thousand_concurrent_connections(pair, documents):
    document = random_file(documents, 100_000)
    serve = pair.serve(*XOR64, "--require", to=pair.nginx(documents))
    hold = pair.directory / "bodies"
    hold.mkdir()
    program = pair.client.start(
        PLAIT,
        "run",
        *XOR64,
        *REQUIRE,
        "--",
        "sh",
        "-c",
        CONCURRENT_FETCHES,
        "sh",
        pair.ETH,
        document.name,
        hold,
        log="run.log",
    )
    peak = {"serve": 0, "run": 0}
    while program.poll() is None:
        for name, process in (("serve", serve), ("run", program)):
            peak[name] = max(peak[name], resident_bytes(process.pid))
        time.sleep(0.02)
    assert program.returncode == 0, (pair.directory / "run.log").read_text()
    expected = document.read_bytes()
    bodies = list(hold.iterdir())
    assert len(bodies) == 1000
    assert all(body.read_bytes() == expected for body in bodies)
    assert max(peak.values()) < 200 << 20, peak
    print(f"peak resident memory: {peak}")


# Opens connections, asks for a large document on each, and reads none of it until a file appears.
RELUCTANT_READERS = r"""
exec python3 -c '
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address, name, end = sys.argv[1:]
clients = [socket.create_connection((address, 8443), timeout=60) for _ in range(1000)]
for client in clients:
    client.sendall(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
while not os.path.exists(end):
    time.sleep(0.05)
' "$@"
"""


# Takes all memory that the kernel gives to TCP, of other tests too.
@pytest.mark.alone
def test_clients_that_do_not_read_use_bounded_memory(pair, documents):
    document = random_file(documents, 20_000_000)
    serve = pair.serve(*XOR64, "--require", to=pair.nginx(documents))
    end = pair.directory / "end"
    program = pair.client.start(
        PLAIT,
        "run",
        *XOR64,
        *REQUIRE,
        "--",
        "sh",
        "-c",
        RELUCTANT_READERS,
        "sh",
        pair.ETH,
        document.name,
        end,
        log="run.log",
    )

    def received():
        """Bytes so far, of all connections of the program's gateway."""
        gateways = [gateway for gateway in pair.status() if gateway["command"] == "run"]
        return sum(connection["received"] for gateway in gateways for connection in gateway["connections"])

    wait_for("every connection's first bytes", lambda: received() > 1000 * 10_000, timeout=60)
    # Until the transfers have stalled: four equal samples in a row.
    samples = []
    while len(samples) < 4 or len(set(samples[-4:])) > 1:
        samples.append(received())
        time.sleep(0.5)
    held = {"serve": resident_bytes(serve.pid), "run": resident_bytes(program.pid)}
    end.touch()
    assert program.wait(60) == 0
    assert max(held.values()) < 200 << 20, held
    print(f"resident memory while no client reads: {held}")


def test_descriptors_do_not_leak(pair, documents):
    document = random_file(documents, 10_000)
    serve = pair.serve("--require", to=pair.nginx(documents))
    proxy = pair.proxy(*REQUIRE)

    def descriptors():
        return [len(os.listdir(f"/proc/{process.pid}/fd")) for process in (serve, proxy)]

    def fetch_often(times):
        for _ in range(times):
            client = connect_by_socks(pair, pair.ETH, 8443)
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
