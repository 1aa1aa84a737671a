"""Programs in a few lines for both ends of a connection, and clients that go through plait."""

import random
import socket
import struct
import threading

REQUIRE = ("--require", "--trusted", "eth")
# The mode whose ends exchange nothing before the application does.
XOR64 = ("--mode", "xor64")
# As Linux numbers them.
SOL_MPTCP, MPTCP_INFO = 284, 1


def receive_exactly(client, size):
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, f"the stream ended after {len(data)} of {size} bytes"
        data += part
    return data


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
    """The next connection; it waits at most 10 s for anything."""
    connection, _ = listener.accept()
    connection.settimeout(10)
    return connection


def echo_server(host, port=9000):
    """Answers with what it gets; returns a list that is true once somebody connected."""
    listener = listen(host, port)
    accepted = []

    def answer():
        while True:
            connection, _ = listener.accept()
            accepted.append(connection)
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()
    return accepted


def echo(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def plain_server(pair, port, answer, protocol=262):
    """Sends the answer to whoever connects and asks."""
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


def connect_by_socks(pair, address, port, proxy=("127.0.0.1", 1080)):
    client = pair.client.socket()
    client.settimeout(20)
    client.connect(proxy)
    ask_socks(client, address, port)
    return client


def ask_socks(proxy: socket.socket, address: str, port: int):
    """Has a SOCKS5 proxy connect to an IPv4 address."""
    proxy.sendall(b"\x05\x01\x00")
    assert receive_exactly(proxy, 2) == b"\x05\x00"
    proxy.sendall(b"\x05\x01\x00\x01" + socket.inet_aton(address) + port.to_bytes(2, "big"))
    reply = receive_exactly(proxy, 10)
    assert reply[1] == 0, f"SOCKS reply {reply[1]:#04x}"


def fetch(pair, document, *, options=REQUIRE, url=None, timeout=120):
    """curl under `plait run`; the fetched bytes."""
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
