"""`plait run`: unmodified programs, redirected through a gateway."""

import pathlib
import subprocess
import time

import pytest
from gateways import report_of
from hosts import NAME, PLAIT, tool, wait_for
from streams import REQUIRE, accept, echo_server, fetch, listen, plain_server, receive_exactly

# A static program that connects and prints the answer and the address of its peer.
STATIC_CLIENT = r"""
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(8443)}, peer;
	socklen_t length = sizeof(peer);
	char buffer[64] = "", name[64];
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)argc;
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) || getpeername(fd, (struct sockaddr *)&peer, &length))
		return 1;
	if (write(fd, "static", 6) != 6 || read(fd, buffer, 6) != 6)
		return 2;
	printf("%s %s:%d\n", buffer, inet_ntop(AF_INET, &peer.sin_addr, name, sizeof(name)), ntohs(peer.sin_port));
	return 0;
}
"""


def protected(pair) -> int:
    """The number of protected connections that the server's gateway has accepted."""
    return report_of(pair, "serve")["counts"]["protected"]


def test_static_binary_is_redirected_and_sees_its_true_peer(pair, tmp_path):
    source, binary = tmp_path / "client.c", tmp_path / "client"
    source.write_text(STATIC_CLIENT)
    subprocess.run(["cc", "-static", "-o", binary, source], check=True)
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    done = pair.run(binary, pair.ETH, options=REQUIRE)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == f"static {pair.ETH}:8443\n"
    assert protected(pair) == 1


def test_children_are_redirected_too(pair, text):
    pair.serve("--require", to=pair.nginx(text.parent))
    command = f"(curl -sS http://{pair.ETH}:8443/text.txt | sha256sum) & wait; exit 7"
    done = pair.run("sh", "-c", command, options=REQUIRE)
    assert done.returncode == 7
    assert done.stdout.split()[0].decode() == tool("sha256sum", str(text)).split()[0]
    assert protected(pair) == 1


@pytest.mark.parametrize("peer", ["10.77.1.2", "fd77:1::2"])
def test_python_sees_its_true_peer(pair, peer):
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    program = f"import socket; s = socket.create_connection(('{peer}', 8443)); print(s.getpeername()[:2])"
    done = pair.run("python3", "-c", program, options=REQUIRE)
    assert done.stdout.decode().strip() == str((peer, 8443)), done.stderr.decode()


def test_mptcp_program_is_redirected_too(pair, text):
    pair.serve("--require", to=pair.nginx(text.parent))
    url = f"http://{pair.ETH}:8443/text.txt"
    done = pair.run("mptcpize", "run", "curl", "-sS", url, options=REQUIRE)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    assert protected(pair) == 1


@pytest.mark.parametrize(
    "command, status",
    [
        (["true"], 0),
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["/nonexistent/program"], 127),
    ],
    ids=["0", "42", "signal", "missing"],
)
def test_exit_status_is_that_of_the_program(pair, command, status):
    assert pair.run(*command).returncode == status


def test_program_keeps_its_resource_limits(pair):
    script = "ulimit -Sn 512 && exec {} sh -c 'ulimit -Sn'"
    done = pair.client.run("sh", "-c", script.format(f"{PLAIT} run --trusted eth --"))
    assert done.stdout == b"512\n", done.stderr.decode()


def test_signals_are_forwarded(pair, tmp_path):
    ready = tmp_path / "ready"
    script = f"trap 'exit 9' TERM; touch {ready}; while :; do sleep 0.05; done"
    program = pair.client.start(PLAIT, "run", "--trusted", "eth", "--", "sh", "-c", script)
    wait_for("started program", ready.exists)
    program.terminate()
    assert program.wait(60) == 9


def test_loopback_is_not_redirected(pair):
    echo_server(pair.client)
    program = (
        "import socket; s = socket.create_connection(('127.0.0.1', 9000)); s.send(b'x'); print(s.recv(1))"
    )
    done = pair.run("python3", "-c", program, options=REQUIRE)
    assert done.stdout == b"b'x'\n", done.stderr.decode()


@pytest.mark.parametrize("peer", ["10.77.1.2", "fd77:1::2"])
@pytest.mark.parametrize("connected", [True, False])
def test_datagrams_are_refused_only_with_require(pair, peer, connected):
    send = "(s.connect(to), s.send(b'x'))" if connected else "s.sendto(b'x', to)"
    program = (
        f"import socket; s = socket.socket(socket.AF_INET6 if ':' in '{peer}' else socket.AF_INET, socket.SOCK_DGRAM)"
        f"; to = ('{peer}', {{}}); {send}"
    )
    # No packet has to wait for a neighbour's address.
    pair.client.tool("ping", "-c", "1", peer)
    assert pair.run("python3", "-c", program.format(443)).returncode == 0
    with pair.capture("eth", filter="udp") as eth:
        refused = pair.run("python3", "-c", program.format(443), options=REQUIRE)
        assert b"PermissionError" in refused.stderr
        assert pair.run("python3", "-c", program.format(53), options=REQUIRE).returncode == 0
    assert {port for [port] in eth.fields("udp.dstport", where="udp")} == {"53"}


def test_binding_to_an_interface_is_that_of_the_connection(two_ways, text):
    """SO_BINDTODEVICE, as by `curl --interface`. The server's address is reached by both links."""
    two_ways.serve("--mode", "stream", to=two_ways.nginx(text.parent))
    url = f"http://{two_ways.ETH}:8443/text.txt"
    for interface, other in (("wlan", "eth"), ("eth", "wlan")):
        with two_ways.capture(interface) as bound, two_ways.capture(other) as unbound:
            command = ("curl", "-sS", "--max-time", "10", "--interface", interface, url)
            done = two_ways.run(*command, options=("--trusted", "eth", "--mode", "stream", "--require"))
        assert done.stdout == text.read_bytes(), done.stderr.decode()
        first, further = (
            [float(when) for [when] in capture.fields("frame.time_epoch", where="tcp.flags == 0x02")]
            for capture in (bound, unbound)
        )
        assert first and (not further or min(first) < min(further)), (interface, first, further)
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    started = time.monotonic()
    refused = two_ways.run(*user, "curl", "-sS", "--interface", "wlan", url, options=REQUIRE)
    assert refused.returncode == 7 and time.monotonic() - started < 5, refused.stderr.decode()


def test_addresses_keep_their_order_with_require(pair, names, text):
    """glibc orders addresses by connecting a datagram socket to each: those that cannot be connected come last."""
    pair.serve("--require", to=pair.nginx(text.parent))
    pair.client.tool("ip", "-6", "address", "flush", "dev", "eth", "scope", "global")
    pair.client.tool("ip", "-6", "address", "flush", "dev", "wlan", "scope", "global")
    names("fd77:1::2", pair.ETH)
    order = f"import socket; print([found[4][0] for found in socket.getaddrinfo('{NAME}', 1, type=socket.SOCK_STREAM)])"
    direct = pair.client.run("python3", "-c", order).stdout
    assert (
        pair.run("python3", "-c", order, options=REQUIRE).stdout == direct == b"['10.77.1.2', 'fd77:1::2']\n"
    )
    fetched = f"for i in 0 1 2 3 4 5 6 7 8 9; do curl -sS http://{NAME}:8443/text.txt || exit; done"
    done = pair.run("sh", "-c", fetched, options=REQUIRE)
    assert done.stdout == 10 * text.read_bytes(), done.stderr.decode()


# Closes every descriptor that it did not open, as daemons do, and writes how each connection ended.
CLOSES_ALL = """
import os, socket, sys, time
os.closerange(3, 1024)
address, result, go = sys.argv[1:]
if os.fork():
    while not os.path.exists(go): time.sleep(0.02)
    os._exit(0)
os.setsid()
open(result, "w").close()
while not os.path.exists(go): time.sleep(0.02)
time.sleep(0.5)
for _ in range(5):
    try:
        client = socket.create_connection((address, 8443), timeout=2)
        client.send(b"x")
        text = client.recv(100).decode() or "ended"
    except OSError as error:
        text = type(error).__name__
    with open(result, "a") as out: out.write(text + chr(10))
open(result + ".done", "w").close()
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_program_that_outlives_its_gateway_sends_nothing_unprotected(pair, tmp_path, end):
    """After the gateway was killed or has ended, the program's connections are refused instead of sent directly."""
    plain_server(pair, 8443, b"plain")
    result, go = tmp_path / "result", tmp_path / "go"
    command = ("python3", "-c", CLOSES_ALL, pair.ETH, result, go)
    gateway = pair.client.start(PLAIT, "run", *REQUIRE, "--", *command)
    wait_for("started program", result.exists)
    if end == "kill":
        gateway.kill()
        gateway.wait()
        go.touch()
    else:
        go.touch()
        assert gateway.wait(60) == 0
    wait_for("the orphan's attempts", pathlib.Path(f"{result}.done").exists, timeout=20)
    outcomes = result.read_text().split()
    assert len(outcomes) == 5, outcomes
    assert set(outcomes) <= {"ConnectionRefusedError", "ConnectionResetError"}, outcomes


def test_sockets_with_the_same_port_have_their_own_destinations(pair):
    """The same port of two addresses belongs to two connections."""
    for port, answer in ((7101, b"ONE"), (7102, b"TWO")):
        plain_server(pair, port, answer)
    program = f"""
import socket
for round in range(20):
    while True:
        first, second = socket.socket(), socket.socket()
        first.bind(("10.77.1.1", 0))
        try:
            second.bind(("10.77.2.1", first.getsockname()[1]))
            break
        except OSError:
            # A subflow of the gateway has this port.
            first.close()
    for client, port in ((first, 7101), (second, 7102)):
        client.setblocking(False)
        client.connect_ex(("{pair.ETH}", port))
    for client, answer in ((first, b"ONE"), (second, b"TWO")):
        client.settimeout(10)
        client.send(b"?")
        assert client.recv(3) == answer, answer
        client.close()
print("right")
"""
    done = pair.run("python3", "-c", program)
    assert done.stdout == b"right\n", done.stderr.decode()


def test_mptcp_program_sees_its_true_peer(pair):
    plain_server(pair, 8443, b"plain")
    program = f"""
import socket
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
client.connect(("{pair.ETH}", 8443))
print(client.getpeername())
"""
    done = pair.run("python3", "-c", program)
    assert done.stdout.decode().strip() == str((pair.ETH, 8443)), done.stderr.decode()


def test_bytes_written_before_exit_still_arrive(make_pair):
    """The slow path takes longer than the drain timeout, which is for idle connections."""
    pair = make_pair(rate="4mbit")
    listener = listen(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    size = 3_000_000
    program = f"import socket; s = socket.create_connection(('{pair.ETH}', 8443)); s.sendall(bytes({size})); s.close()"
    gateway = pair.client.start(PLAIT, "run", *REQUIRE, "--drain", "2", "--", "python3", "-c", program)
    service = accept(listener)
    assert receive_exactly(service, size) == bytes(size)
    assert service.recv(1) == b""
    assert gateway.wait(60) == 0


def test_second_signal_skips_the_drain(pair):
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    connected = pair.directory / "connected"
    # Ends with its connection, so that nothing outlives the test.
    hold = (
        f"import socket; s = socket.create_connection(('{pair.ETH}', 8443)); s.send(b'x'); s.recv(1);"
        f"open('{connected}', 'w'); s.recv(1)"
    )
    command = ("sh", "-c", f'python3 -c "{hold}" & until [ -e {connected} ]; do sleep 0.05; done')
    gateway = pair.client.start(PLAIT, "run", *REQUIRE, "--drain", "50", "--", *command)
    wait_for("connection", connected.exists)
    # The shell ends, and the gateway waits for the connection.
    time.sleep(1)
    assert gateway.poll() is None
    gateway.terminate()
    gateway.wait(5)


def test_unprivileged_run_sets_proxy_variables(pair, text):
    """An ordinary user: a warning, and programs that honour proxy variables still connect, unprotected."""
    pair.serve("--require=false", to=pair.nginx(text.parent))
    url = f"http://{pair.ETH}:8443/text.txt"
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    done = pair.client.run(*user, PLAIT, "run", "--mode", "off", "--", "curl", "-sS", url)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    assert b"ALL_PROXY" in done.stderr
    refused = pair.client.run(*user, PLAIT, "run", "--require", "--", "curl", "-sS", url)
    assert refused.returncode == 1 and refused.stdout == b""
    assert b"this process lacks CAP_BPF" in refused.stderr and b"run plait as root" in refused.stderr


def test_mistyped_option_is_not_taken_for_the_program():
    done = subprocess.run((PLAIT, "run", "--mod", "off", "--", "true"), capture_output=True, text=True)
    assert done.returncode == 2
    assert "unexpected argument '--mod'" in done.stderr and "'--mode'" in done.stderr


@pytest.mark.parametrize("separator", [(), ("--",)], ids=["", "--"])
def test_options_after_the_program_are_its_own(pair, separator):
    done = pair.client.run(
        PLAIT, "run", "--mode", "off", "--trusted", "eth", *separator, "echo", "--mode", "-v", text=True
    )
    assert done.stdout == "--mode -v\n", done.stderr


def test_default_mode_is_sealed(pair, text):
    pair.serve("--require", to=pair.nginx(text.parent))
    [gateway] = pair.status()
    assert gateway["mode"] == "sealed"
    with pair.capture("eth") as eth:
        assert fetch(pair, text, options=("--trusted", "eth")) == text.read_bytes()
    assert text.read_bytes()[4096:4160] not in eth.payload()
