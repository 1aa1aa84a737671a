"""`connect()` under `plait run` succeeds or fails as without plait, and not before the destination has answered."""

import json
import socket
import time

import pytest
from hosts import NAME
from streams import REQUIRE, echo_server

# include/net/tcp_states.h
ESTABLISHED = b"\x01"

# Connects, without blocking or not, and prints the error number, the time that it took, and an echo.
CONNECT = """
import errno, json, select, socket, sys, time
address, blocking = sys.argv[1], sys.argv[2] == "blocking"
client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
client.setblocking(blocking)
if blocking:
    client.settimeout(float(sys.argv[3]))
began = time.monotonic()
try:
    error = client.connect_ex((address, 8443))
except TimeoutError:
    error = errno.EAGAIN
if error == errno.EINPROGRESS:
    ready = select.select([], [client], [], float(sys.argv[3]))[1]
    error = 0 if ready else errno.EAGAIN
# An ICMP message wakes who waits for the socket an instant before it sets SO_ERROR.
while not error and not (error := client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
    try:
        client.getpeername()
        break
    except OSError:
        time.sleep(0.001)
took, echo = time.monotonic() - began, None
if not error:
    client.setblocking(True)
    client.settimeout(10)
    client.sendall(b"hello")
    echo = client.recv(5).decode()
print(json.dumps([errno.errorcode.get(error, 0), took, echo]))
"""


def connect(run, address: str, how: str, timeout: float = 5):
    done = run("python3", "-c", CONNECT, address, how, timeout)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


MODES = [("--mode", "off"), ("--mode", "sealed", "--require")]


@pytest.fixture(params=MODES, ids=["off", "sealed"])
def run(pair, request):
    """Runs a command by plait, with a gateway of the same mode on the server."""
    mode = request.param[:2]
    echo_server(pair.server)
    pair.serve(*mode, to="127.0.0.1:9000")
    options = ("--trusted", "eth", *request.param)
    return lambda *command: pair.run(*command, options=options)


@pytest.mark.parametrize(
    ("six", "how"), [(False, "blocking"), (True, "nonblocking")], ids=["v4-blocking", "v6-nonblocking"]
)
def test_connect_succeeds_when_the_destination_has_answered(pair, run, how, six):
    pair.client.tool("ping", "-c", "1", pair.ETH6 if six else pair.ETH)
    result, took, echo = connect(run, pair.ETH6 if six else pair.ETH, how)
    assert (result, echo) == (0, "hello")
    assert took < 1


@pytest.mark.parametrize(
    ("six", "how"), [(False, "blocking"), (True, "nonblocking")], ids=["v4-blocking", "v6-nonblocking"]
)
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("reject with tcp reset", "ECONNREFUSED"),
        ("reject with icmpx host-unreachable", "EHOSTUNREACH"),
        ("reject with icmpx no-route", "ENETUNREACH"),
        ("drop", "EAGAIN"),
    ],
    ids=["refused", "host", "network", "silent"],
)
def test_connect_fails_as_without_plait(pair, run, rule, expected, six, how):
    address = pair.ETH6 if six else pair.ETH
    # The first packet may wait for the neighbour's address.
    pair.client.tool("ping", "-c", "1", address)
    pair.server.add_packet_rules(input=f"tcp dport 8443 {rule}")
    direct = connect(pair.client.run, address, how, 1.5)
    result = connect(run, address, how, 3)
    assert result[0] == direct[0] == expected
    # An MPTCP socket of Linux notices ICMP errors only when it sends its second SYN, a second after the first.
    assert expected == "EAGAIN" or result[1] < (1 if expected == "ECONNREFUSED" else 2.5)


def test_address_without_a_route_is_an_error_at_once(pair, run):
    pair.client.tool("ip", "route", "del", "10.77.1.0/24", "dev", "eth")
    pair.client.tool("ip", "route", "del", "10.77.2.0/24", "dev", "wlan")
    for how in ("blocking", "nonblocking"):
        assert connect(run, pair.ETH, how)[0] == connect(pair.client.run, pair.ETH, how)[0] == "ENETUNREACH"


@pytest.mark.parametrize("six", ["silent", "without a route"])
@pytest.mark.parametrize("program", ["curl", "wget", "python"])
def test_programs_fall_back_to_their_next_address(pair, names, text, program, six):
    names(pair.ETH6, pair.ETH)
    pair.serve("--require", to=pair.nginx(text.parent))
    if six == "silent":
        pair.server.add_packet_rules(prerouting=f"ip6 daddr {pair.ETH6} tcp dport 8443 drop")
    else:
        for link in ("eth", "wlan"):
            pair.client.ip(f"-6 address flush dev {link}")
    url = f"http://{NAME}:8443/text.txt"
    command = {
        "curl": ("curl", "-sS", url),
        "wget": ("wget", "-qO-", "-T2", "-t1", url),
        "python": (
            "python3",
            "-c",
            "import socket, sys; c = socket.create_connection(sys.argv[1:3], timeout=2);"
            "c.sendall(b'GET /text.txt HTTP/1.0\\r\\n\\r\\n'); f = c.makefile('rb'); "
            "b''.join(iter(f.readline, b'\\r\\n')); sys.stdout.buffer.write(f.read())",
            NAME,
            "8443",
        ),
    }[program]
    began = time.monotonic()
    done = pair.run(*command, options=REQUIRE)
    took = time.monotonic() - began
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    # Two seconds of wget's and Python's timeout, and the start of plait; TCP gives up after two minutes.
    assert took < 10


def test_connection_that_a_program_gives_up_is_closed(pair):
    """While the gateway connects: its connection is reset, and the next one with the same port is another."""
    accepted = []
    echo_server(pair.server, accepted=accepted)
    pair.serve("--mode", "off", to="127.0.0.1:9000")
    program = """
import socket, sys, time
for _ in range(20):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("10.77.1.1", 7777))
    client.setblocking(False)
    client.connect_ex((sys.argv[1], 8443))
    client.close()
client = socket.create_connection((sys.argv[1], 8443), timeout=10)
client.sendall(b"last")
print(client.recv(4))
time.sleep(7)
"""
    done = pair.run("python3", "-c", program, pair.ETH, options=("--mode", "off", "--trusted", "eth"))
    assert done.stdout == b"b'last'\n", done.stderr.decode()
    # Of the others that reached the service, none is left.
    for connection in accepted:
        assert (
            connection.fileno() < 0
            or connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != ESTABLISHED
        )
