"""Small programs for both ends of a connection, and clients that connect through plait."""

import ipaddress
import random
import socket
import struct
import threading

OFF = ("--mode", "off", "--trusted", "eth")
REQUIRE = ("--require", "--trusted", "eth")
# Both interfaces of a client by name, as --require=all-paths needs them.
NAMED = ("--trusted", "eth", "--untrusted", "wlan")
# The mode without messages of its own before those of the application.
XOR64 = ("--mode", "xor64")
# include/uapi/linux/in.h, include/uapi/linux/mptcp.h
MPTCP, SOL_MPTCP, MPTCP_INFO = 262, 284, 1

# Opens connections from one process, and requests a document on all before reading from any.
CONCURRENT_FETCHES = """
import pathlib, resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address, name, directory, count = sys.argv[1:]
selector = selectors.DefaultSelector()
clients = [socket.create_connection((address, 8443), timeout=60) for _ in range(int(count))]
for number, client in enumerate(clients):
    client.sendall(f"GET /{name} HTTP/1.0\\r\\n\\r\\n".encode())
    client.setblocking(False)
    selector.register(client, selectors.EVENT_READ, (number, []))
left = len(clients)
while left:
    for key, _ in selector.select(60):
        data = key.fileobj.recv(1 << 16)
        number, parts = key.data
        parts.append(data)
        if not data:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            body = b"".join(parts).split(b"\\r\\n\\r\\n", 1)[1]
            pathlib.Path(directory, str(number)).write_bytes(body)
            left -= 1
"""

# Fetches a document by several connections at once, each of which ends when it has it.
PARALLEL_FETCHES = """
import concurrent.futures, pathlib, socket, sys
address, name, directory, count = sys.argv[1:]
def fetch(number):
    with socket.create_connection((address, 8443), timeout=100) as client:
        client.sendall(f"GET /{name} HTTP/1.0\\r\\n\\r\\n".encode())
        parts = []
        while data := client.recv(1 << 16):
            parts.append(data)
    pathlib.Path(directory, str(number)).write_bytes(b"".join(parts).split(b"\\r\\n\\r\\n", 1)[1])
with concurrent.futures.ThreadPoolExecutor(int(count)) as threads:
    list(threads.map(fetch, range(int(count))))
"""


def receive_exactly(client, size):
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, f"the stream ended after {len(data)} of {size} bytes"
        data += part
    return data


def deliver(sender, receiver, data=b"hello"):
    """Sends data on one connection, and checks that it arrives on the other."""
    sender.sendall(data)
    assert receive_exactly(receiver, len(data)) == data


def assert_echo(client, data=b"hello"):
    deliver(client, client, data)


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def random_file(directory, size, name="random.bin"):
    file = directory / name
    file.write_bytes(random.Random(size).randbytes(size))
    return file


def listen(host, port=9000, address="127.0.0.1", protocol=socket.IPPROTO_TCP):
    """A listening socket on a host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = host.socket(family, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    return listener


def accept(listener):
    """The next connection, with a timeout of 10 s."""
    connection, _ = listener.accept()
    connection.settimeout(10)
    return connection


def echo_server(host, port=9000, address="127.0.0.1", accepted: list | None = None):
    """Serves echoes. Accepted connections are added to the list `accepted`, and stay open; without one, they are closed."""
    listener = listen(host, port, address)

    def answer():
        while True:
            connection, _ = listener.accept()
            if accepted is not None:
                accepted.append(connection)
            threading.Thread(target=echo, args=(connection, accepted is None), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()


def echo(connection, close: bool):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    if close:
        connection.close()


def plain_server(pair, port, answer, protocol=262):
    """Sends the same answer to every client that sends something."""
    listener = listen(pair.server, port, pair.ETH, protocol)

    def serve():
        while True:
            connection, _ = listener.accept()
            try:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                connection.close()

    threading.Thread(target=serve, daemon=True).start()


def send_until_error(connection):
    try:
        while True:
            connection.sendall(bytes(65536))
    except OSError:
        pass


def start_gateways(pair, *options, outbound=("--trusted", "eth")):
    """Starts an echo service behind two gateways with the same options; returns both gateways."""
    echo_server(pair.server)
    return pair.serve(*options, to="127.0.0.1:9000"), pair.proxy(*options, *outbound)


def connect_by_socks(pair, address=None, port=8443, proxy=("127.0.0.1", 1080)):
    """Connects through `plait proxy`, by default to the server's gateway."""
    client = pair.client.socket()
    client.settimeout(20)
    client.connect(proxy)
    socks_handshake(client, address or pair.ETH, port)
    return client


# Without authentication (RFC 1928, section 3).
SOCKS_GREETING, SOCKS_GREETED = b"\x05\x01\x00", b"\x05\x00"


def socks_request(host: str, port: int) -> bytes:
    """The request to connect to an address, or to a name (RFC 1928, section 4)."""
    try:
        address = ipaddress.ip_address(host)
        target = (b"\x01" if address.version == 4 else b"\x04") + address.packed
    except ValueError:
        target = b"\x03" + bytes([len(host)]) + host.encode()
    return b"\x05\x01\x00" + target + port.to_bytes(2, "big")


def socks_handshake(proxy: socket.socket, host: str, port: int):
    """Asks a SOCKS5 proxy, on a connection to it, to connect to an address, or to a name."""
    proxy.sendall(SOCKS_GREETING)
    assert receive_exactly(proxy, 2) == SOCKS_GREETED
    proxy.sendall(socks_request(host, port))
    version, reply, _, family = receive_exactly(proxy, 4)
    assert version == 5
    receive_exactly(proxy, (16 if family == 4 else 4) + 2)
    assert reply == 0, f"SOCKS reply {reply:#04x}"


def fetch(pair, document, *, options=REQUIRE, url=None, timeout=120):
    """Downloads by curl under `plait run`; returns the bytes."""
    url = url or f"http://{pair.ETH}:8443/{document.name}"
    target = pair.directory / "fetched"
    done = pair.run("curl", "-sS", "--fail", "-o", target, url, options=options, timeout=timeout)
    assert done.returncode == 0, done.stderr.decode()
    return target.read_bytes()


def resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as status:
            line = next((line for line in status if line.startswith("VmRSS")), "VmRSS: 0 kB")
    except OSError:
        return 0
    return int(line.split()[1]) * 1024
