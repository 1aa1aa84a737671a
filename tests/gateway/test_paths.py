"""Which paths connections use, and when."""

import socket
import subprocess
import time

import pytest
from gateways import cgroup_of, report_of
from hosts import Pair, tool, wait_for
from streams import (
    MPTCP_INFO,
    REQUIRE,
    SOL_MPTCP,
    XOR64,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    echo_server,
    listen,
    reset,
    start_gateways,
)


def extra_subflows(client: socket.socket) -> int:
    return client.getsockopt(SOL_MPTCP, MPTCP_INFO, 256)[0]


def test_other_programs_use_the_kernels_path_manager(pair):
    """While a gateway runs, the kernel creates the subflows of other MPTCP programs as configured."""
    tool("ip", "-n", pair.client.name, "mptcp", "endpoint", "add", "10.77.2.1", "dev", "wlan", "subflow")
    pair.proxy("--trusted", "eth")
    listener = listen(pair.server, 7000, pair.ETH, socket.IPPROTO_MPTCP)
    client = pair.client.socket(protocol=socket.IPPROTO_MPTCP)
    client.connect((pair.ETH, 7000))
    accepted = accept(listener)
    deliver(client, accepted)
    deliver(accepted, client)
    wait_for("the kernel's subflow", lambda: extra_subflows(client) >= 1)


def subflows(pair: Pair, command="proxy") -> list[dict]:
    return report_of(pair, command)["connections"][0]["subflows"]


@pytest.fixture
def talking(pair):
    """A pair with one protected connection and its client socket."""
    start_gateways(pair, *XOR64, "--require")
    client = connect_by_socks(pair)
    yield pair, client
    client.close()


def test_idle_connection_has_one_subflow_on_the_trusted_path(talking):
    pair, client = talking
    # Long enough for a path manager that does not wait for the first flight.
    with pytest.raises(TimeoutError):
        client.settimeout(1.5)
        client.recv(1)
    assert [subflow["remote"] for subflow in subflows(pair)] == [f"{pair.ETH}:8443"]
    client.settimeout(10)
    assert_echo(client)
    wait_for("second subflow", lambda: len(subflows(pair)) == 2)
    assert {subflow["remote"] for subflow in subflows(pair)} == {f"{pair.ETH}:8443", f"{pair.WLAN}:8443"}


def test_slow_answer_starts_on_the_trusted_path(pair):
    """A client that waits for an answer needs no second path, however long it takes."""
    listener = listen(pair.server)
    pair.serve(*XOR64, "--require", to="127.0.0.1:9000")
    pair.proxy(*XOR64, *REQUIRE)
    client, service = connect_by_socks(pair), accept(listener)
    deliver(client, service, b"question")
    time.sleep(1.5)
    assert len(subflows(pair)) == 1
    deliver(service, client, b"answer")
    wait_for("second subflow", lambda: len(subflows(pair)) == 2)


def test_unanswered_upload_uses_both_paths(pair, listener):
    client, service = connect_by_socks(pair), accept(listener)
    deliver(client, service, bytes(1 << 20))
    wait_for("second subflow", lambda: len(subflows(pair)) == 2)


def test_interface_without_a_role_is_unused(pair, tmp_path):
    configuration = tmp_path / "plait.toml"
    configuration.write_text('[paths]\neth = "trusted"\nother0 = "untrusted"\n')
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy("--require", "--config", configuration)
    client = connect_by_socks(pair)
    assert_echo(client)
    with pytest.raises(TimeoutError):
        client.settimeout(1.5)
        client.recv(1)
    assert len(subflows(pair)) == 1


def test_warns_when_listening_on_one_of_several_addresses(pair):
    """The kernel rejects joins to addresses without a listener."""
    pair.serve(to="127.0.0.1:9000", listen=f"{pair.ETH}:8443")
    assert "listen on [::]:8443" in pair.logged("serve")


def test_trusted_path_that_is_down_is_an_error(pair):
    start_gateways(pair)
    tool("ip", "-n", pair.client.name, "link", "set", "eth", "down")
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[1-6]"):
        connect_by_socks(pair, pair.WLAN)


def test_peer_that_joins_before_its_first_flight_is_reset(pair):
    """A client that negotiates but lets its kernel create subflows violates the order "trusted path first"."""
    _, proxy = start_gateways(pair, *XOR64, "--require")
    script = f"""
import socket, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, {socket.IPPROTO_MPTCP})
client.connect(("{pair.ETH}", 8443))
deadline = time.monotonic() + 5
while client.getsockopt({SOL_MPTCP}, {MPTCP_INFO}, 256)[0] == 0 and time.monotonic() < deadline:
    time.sleep(0.01)
client.send(b"hello")
client.settimeout(5)
try:
    print(client.recv(5))
except ConnectionResetError:
    print("reset")
"""
    # Unlike `ip netns exec`, nsenter keeps the cgroup hierarchy mounted.
    network = f"--net=/run/netns/{pair.client.name}"
    command = ["nsenter", network, "python3", "-c", script, cgroup_of(proxy)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.stdout == b"reset\n", done.stderr.decode()
    assert "before its first flight" in pair.logged("serve")


@pytest.mark.parametrize("link", ["eth", "wlan"])
def test_status_lists_no_closed_subflow(talking, link):
    """One that is reset here. Of the initial subflow, by eth, Linux keeps the socket, with no port or address."""
    pair, client = talking
    assert_echo(client)
    wait_for("second subflow", lambda: len(subflows(pair, "serve")) == 2)

    def echo_until_closed():
        assert_echo(client, bytes(100_000))
        remotes = [each["remote"] for each in subflows(pair, "serve")]
        assert not [remote for remote in remotes if remote.endswith(":0")]
        return len(remotes) == 1

    with pair.server.packet_rules(output=f"oifname {link} tcp sport 8443 reject with tcp reset"):
        wait_for("closed subflow", echo_until_closed)
        echo_until_closed()


def test_reset_ends_every_subflow(talking):
    """A reset by a program reaches the server on every path."""
    pair, client = talking
    assert_echo(client)
    wait_for("second subflow", lambda: len(subflows(pair)) == 2)
    reset(client)
    wait_for("ended connection", lambda: all(not gateway["connections"] for gateway in pair.status()))
