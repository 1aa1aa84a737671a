"""Hosts without a needed feature: an error or a warning with its cause and remedy, never a silent loss of protection."""

import pytest
from hosts import PLAIT
from streams import REQUIRE, echo_server, fetch, random_file


def disable_mptcp(host):
    host.tool("sysctl", "-qw", "net.mptcp.enabled=0")


WITHOUT_BPF = ("setpriv", "--bounding-set", "-bpf,-sys_admin,-perfmon")


def test_require_without_mptcp_is_an_error(pair):
    disable_mptcp(pair.client)
    done = pair.run("true", options=REQUIRE)
    assert done.returncode == 1
    assert b"no MPTCP" in done.stderr and b"net.mptcp.enabled=1" in done.stderr


def test_prefer_without_mptcp_carries_plain_tcp_with_a_warning(pair, documents):
    document = random_file(documents, 100_000)
    pair.serve("--require=false", to=pair.nginx(documents))
    disable_mptcp(pair.client)
    url = f"http://{pair.ETH}:8443/{document.name}"
    done = pair.run("curl", "-sS", "--fail", url)
    assert done.stdout == document.read_bytes(), done.stderr.decode()
    assert b"connections will be unprotected" in done.stderr and b"no MPTCP" in done.stderr


def test_server_without_mptcp_refuses_to_start_or_serves_plain(pair, documents):
    document = random_file(documents, 100_000)
    disable_mptcp(pair.server)
    command = (PLAIT, "serve", "--listen", "[::]:8443", "--to", "127.0.0.1:9000")
    done = pair.server.run(*command)
    assert done.returncode == 1 and b"no MPTCP" in done.stderr
    pair.serve("--require=false", to=pair.nginx(documents))
    assert fetch(pair, document, options=("--trusted", "eth")) == document.read_bytes()


@pytest.mark.parametrize(
    "command", [("serve", "--listen", "127.0.0.1:8443", "--to", "127.0.0.1:9"), ("proxy",)]
)
def test_require_without_bpf_is_an_error(pair, command):
    done = pair.client.run(*WITHOUT_BPF, PLAIT, *command, "--require")
    assert done.returncode == 1
    assert b"cannot protect" in done.stderr and b"root" in done.stderr, done.stderr.decode()


def test_prefer_without_bpf_carries_plain_with_a_warning(pair):
    echo_server(pair.server)
    pair.serve("--require=false", to="127.0.0.1:9000")
    program = (
        f"import socket; s = socket.create_connection(('{pair.ETH}', 8443)); s.send(b'x'); print(s.recv(1))"
    )
    done = pair.client.run(*WITHOUT_BPF, PLAIT, "run", "--trusted", "eth", "--", "python3", "-c", program)
    assert done.stdout == b"b'x'\n", done.stderr.decode()
    assert b"connections will be unprotected" in done.stderr


def test_unknown_interface_is_named(pair):
    echo_server(pair.server)
    pair.serve(to="127.0.0.1:9000")
    done = pair.run("curl", "-sS", f"http://{pair.ETH}:8443/", options=("--trusted", "nosuch0"))
    assert done.returncode != 0 and b"nosuch0" in done.stderr
