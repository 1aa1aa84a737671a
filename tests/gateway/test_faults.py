"""Gateways that are killed or stopped, and paths that die."""

import concurrent.futures
import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest
from disturbance import measuring
from gateways import report_of
from hosts import PLAIT, tool, wait_for
from streams import (
    MPTCP_INFO,
    REQUIRE,
    SOL_MPTCP,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    fetch,
    listen,
    random_file,
    receive_exactly,
    send_until_error,
    start_gateways,
)

MEMORY = pathlib.Path("/proc/sys/net/ipv4/tcp_mem")


@pytest.mark.parametrize("killed", ["serve", "proxy"])
def test_killed_gateway_resets_the_stream(make_pair, killed):
    pair = make_pair(rate="50mbit")
    listener = listen(pair.server)
    gateways = {"serve": pair.serve("--require", to="127.0.0.1:9000"), "proxy": pair.proxy(*REQUIRE)}
    client, service = connect_by_socks(pair), accept(listener)
    deliver(client, service, b"go")
    threading.Thread(target=send_until_error, args=(service,), daemon=True).start()
    receive_exactly(client, 2_000_000)
    gateways[killed].kill()
    with pytest.raises(ConnectionResetError):
        while client.recv(65536):
            pass
        raise AssertionError("the stream ended as if it were complete")


@pytest.mark.parametrize("options", [(), ("--mode", "xor64")], ids=["sealed", "xor64"])
@measuring(0.1)
def test_killed_server_is_noticed_although_its_resets_are_lost(pair, options):
    """By an idle client: a probe is answered by a reset, and so is the attempt to create a subflow instead."""
    serve, _ = start_gateways(pair, *options, "--require")
    client = connect_by_socks(pair)
    assert_echo(client)
    wait_for("second subflow", lambda: len(report_of(pair, "proxy")["connections"][0]["subflows"]) == 2)
    with pair.server.packet_rules(output="tcp flags & rst == rst drop"):
        serve.kill()
        serve.wait()
        time.sleep(0.1)
    began = time.monotonic()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert time.monotonic() - began < 2


def unanswered(host, port):
    """Within this context, connection attempts to a port of a host hang."""
    return host.packet_rules(input=f"tcp dport {port} drop")


@pytest.mark.parametrize(("killed", "port"), [("serve", 9000), ("proxy", 8443)])
def test_gateway_killed_while_connecting_resets_the_stream(pair, killed, port):
    """The kernel may connect the gateway's socket before the gateway notices: it must be reset nevertheless."""
    listener = listen(pair.server)
    listener.settimeout(20)
    off = ("--mode", "off")
    gateways = {"serve": pair.serve(*off, to="127.0.0.1:9000"), "proxy": pair.proxy(*off)}
    connecting = {"serve": pair.server, "proxy": pair.client}[killed]
    client = pair.client.socket()
    client.connect(("127.0.0.1", 1080))
    with unanswered(pair.server, port):
        target = socket.inet_aton(pair.ETH) + (8443).to_bytes(2, "big")
        client.sendall(b"\x05\x01\x00" + b"\x05\x01\x00\x01" + target)
        ask = ("ss", "-Htn", "state", "syn-sent", f"dport = :{port}")
        wait_for("attempt to connect", lambda: connecting.run(*ask).stdout.strip())
        gateways[killed].send_signal(signal.SIGSTOP)
    service = accept(listener)
    gateways[killed].kill()
    with pytest.raises(ConnectionResetError):
        service.recv(1)


def blackhole_count(host):
    """How many connections of MPTCP sockets the kernel opened with TCP; `None` before kernel 6.12."""
    counters = json.loads(host.run("nstat", "-asjz", "MPTcpExtMPCapable*").stdout)["kernel"]
    return counters.get("MPTcpExtMPCapableSYNTXDisabled")


def speaks_mptcp(pair) -> bool:
    """Whether a new connection of another program uses MPTCP."""
    with pair.client.socket(protocol=socket.IPPROTO_MPTCP) as client:
        client.settimeout(20)
        client.connect((pair.ETH, 7000))
        with contextlib.suppress(OSError):
            return bool(client.getsockopt(SOL_MPTCP, MPTCP_INFO, 256))
    return False


@pytest.fixture
def blackhole(pair):
    """A pair whose client's kernel has stopped using MPTCP, after three seconds without an answer."""
    if blackhole_count(pair.client) is None:
        pytest.skip("this kernel does not look for blackholes (MPTcpExtMPCapableSYNTXDisabled)")
    start_gateways(pair, "--require")
    listener = listen(pair.server, 7000, pair.ETH, socket.IPPROTO_MPTCP)
    assert speaks_mptcp(pair)
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with unanswered(pair.server, 7000):
                attempt = pool.submit(speaks_mptcp, pair)
                time.sleep(2.6)
            attempt.result()
        if not speaks_mptcp(pair):
            break
    assert blackhole_count(pair.client) == 1
    yield pair
    listener.close()


def test_gateway_reverts_blackhole_detection(blackhole):
    found = json.loads(blackhole.client.run(PLAIT, "doctor", "--json").stdout)
    [mptcp] = [feature for feature in found["features"] if feature["name"] == "MPTCP"]
    assert (
        not mptcp["present"] and "blackhole" in mptcp["detail"] and "blackhole_timeout" in mptcp["how_to_get"]
    )
    assert_echo(connect_by_socks(blackhole))
    assert "(MPTcpExtBlackhole); re-enabled it" in blackhole.logged("proxy")
    assert speaks_mptcp(blackhole)


def test_unprotected_gateway_keeps_blackhole_detection(blackhole):
    blackhole.proxy("--mode", "off", listen="127.0.0.1:1081")
    with pytest.raises((AssertionError, ConnectionResetError)):
        assert_echo(connect_by_socks(blackhole, proxy=("127.0.0.1", 1081)))
    assert not speaks_mptcp(blackhole)


@contextlib.contextmanager
def no_memory_for_tcp(host):
    """Within this context, the kernel gives sockets only their minimum of memory, in all namespaces."""
    before = MEMORY.read_text()
    with contextlib.ExitStack() as held:
        # Fill the uncounted reserve of each processor, up to a megabyte.
        listener = held.enter_context(listen(host, 7001))
        for _ in range(4):
            sender = held.enter_context(host.socket())
            sender.connect(("127.0.0.1", 7001))
            held.enter_context(listener.accept()[0])
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while sender.send(bytes(1 << 20)):
                    pass
        held.callback(MEMORY.write_text, before)
        MEMORY.write_text("1 1 1")
        yield


@pytest.mark.alone
@pytest.mark.parametrize("mode", ["stream", "sealed"])
def test_sends_when_kernel_memory_is_available_again(pair, mode):
    """An MPTCP socket that has sent nothing gets no event when memory is available again."""
    start_gateways(pair, "--mode", mode, "--require")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with no_memory_for_tcp(pair.client):
            attempt = pool.submit(connect_by_socks, pair)
            time.sleep(0.5)
            log = pair.logged("proxy")
            waits = not attempt.done()
        began = time.monotonic()
        with attempt.result() as client:
            assert_echo(client)
    assert waits, f"the connection did not wait for memory: {log}"
    assert time.monotonic() - began < 5


def test_transfer_survives_a_silent_untrusted_path(make_pair, documents):
    pair = make_pair(rate="50mbit")
    document = random_file(documents, 12_000_000)
    pair.serve("--require", to=pair.nginx(documents))
    fetched = {}
    worker = threading.Thread(target=lambda: fetched.update(data=fetch(pair, document)))
    worker.start()
    # Not by `plait status`: gateways that other tests have stopped delay it by more than the transfer takes.
    by_wlan = ("ss", "-HtniO", "state", "established", "dst", "10.77.2.1")
    wait_for("data on wlan", lambda: "bytes_sent:" in pair.server.tool(*by_wlan))
    for host in (pair.client, pair.server):
        subprocess.run(["tc", "-n", host.name, "qdisc", "replace", "dev", "wlan", "root", "handle", "1:",
                        "tbf", "rate", "8bit", "burst", "1", "limit", "1"], check=True)  # fmt: skip
    assert worker.is_alive(), "the transfer ended before the path was silent"
    worker.join(100)
    assert fetched["data"] == document.read_bytes()


def test_lost_subflow_is_replaced(pair):
    start_gateways(pair, "--require")
    client = connect_by_socks(pair)
    assert_echo(client)

    def subflows():
        return {subflow["local"] for subflow in report_of(pair, "proxy")["connections"][0]["subflows"]}

    before = wait_for("second subflow", lambda: len(found := subflows()) == 2 and found)
    pair.client.tool("ss", "-K", "dst", pair.WLAN)
    # It may be replaced at once; the new one has another port.
    wait_for("new subflow", lambda: len(found := subflows()) == 2 and found != before)


# While it is stopped, `plait status` of other tests is late by seconds.
@pytest.mark.alone
def test_status_lists_a_stopped_gateway_as_unresponsive(pair):
    gateway = pair.serve(to="127.0.0.1:9000")
    gateway.send_signal(signal.SIGSTOP)
    try:
        assert gateway.pid in json.loads(tool(PLAIT, "status", "--json"))["unresponsive"]
        assert f"process {gateway.pid}): does not respond" in tool(PLAIT, "status")
    finally:
        gateway.send_signal(signal.SIGCONT)
    assert gateway.pid in [answered["pid"] for answered in pair.status()]


def test_port_in_use_is_one_error_message(pair):
    pair.serve(to="127.0.0.1:9000")
    done = pair.server.run(PLAIT, "serve", "--listen", "[::]:8443", "--to", "127.0.0.1:9000")
    assert done.returncode == 1
    assert b"cannot listen on [::]:8443" in done.stderr and b"stop it or choose another" in done.stderr


def test_sigterm_drains_and_then_resets(pair):
    serve, _ = start_gateways(pair, "--require", "--drain", "1")
    client = connect_by_socks(pair)
    assert_echo(client)
    serve.terminate()
    # Connections still work while it drains.
    assert_echo(client, b"again")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert serve.wait(60) == 0
