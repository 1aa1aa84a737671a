"""Gateways that are killed or stopped, and paths that die."""

import contextlib
import json
import signal
import socket
import subprocess
import threading

import pytest
from hosts import PLAIT, tool, wait_for
from streams import (
    REQUIRE,
    accept,
    connect_by_socks,
    echo_server,
    fetch,
    listen,
    random_file,
    receive_exactly,
    send_until_error,
)


@pytest.mark.parametrize("killed", ["serve", "proxy"])
def test_a_killed_gateway_is_a_reset_never_a_short_success(make_pair, killed):
    pair = make_pair(rate="50mbit")
    listener = listen(pair.server)
    gateways = {"serve": pair.serve("--require", to="127.0.0.1:9000"), "proxy": pair.proxy(*REQUIRE)}
    client = connect_by_socks(pair, pair.ETH, 8443)
    service = accept(listener)
    client.sendall(b"go")
    assert receive_exactly(service, 2) == b"go"
    threading.Thread(target=send_until_error, args=(service,), daemon=True).start()
    receive_exactly(client, 2_000_000)
    gateways[killed].kill()
    with pytest.raises(ConnectionResetError):
        while client.recv(65536):
            pass
        raise AssertionError("the stream ended as if it were complete")


@contextlib.contextmanager
def unanswered(host, port):
    """Who connects to a port of a host waits until this ends."""
    rules = f"""
        table ip silent {{
            chain comes {{
                type filter hook input priority 0;
                tcp dport {port} drop;
            }}
        }}
    """
    done = host.run("nft", "-f", "-", input=rules.encode())
    assert done.returncode == 0, done.stderr
    yield
    done = host.run("nft", "delete", "table", "ip", "silent")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("killed", "port"), [("serve", 9000), ("proxy", 8443)])
def test_a_gateway_killed_while_it_connects_does_not_end_a_stream(pair, killed, port):
    """The kernel has connected it, and it does not know yet: an end of that is a reset already."""
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


def test_a_transfer_survives_the_untrusted_path_going_silent(make_pair, documents):
    pair = make_pair(rate="50mbit")
    document = random_file(documents, 12_000_000)
    pair.serve("--require", to=pair.nginx(documents))
    fetched = {}
    worker = threading.Thread(target=lambda: fetched.update(data=fetch(pair, document)))
    worker.start()
    wait_for("two subflows", lambda: any(
        len(connection["subflows"]) > 1 for gateway in pair.status() for connection in gateway["connections"]
    ))  # fmt: skip
    for host in (pair.client, pair.server):
        subprocess.run(["tc", "-n", host.name, "qdisc", "replace", "dev", "wlan", "root", "handle", "1:",
                        "tbf", "rate", "8bit", "burst", "1", "limit", "1"], check=True)  # fmt: skip
    worker.join(100)
    assert fetched["data"] == document.read_bytes()


def test_a_lost_subflow_is_made_again(make_pair, documents):
    pair = make_pair(rate="50mbit")
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"hello")
    assert receive_exactly(client, 5) == b"hello"

    def subflows():
        gateway = next(gateway for gateway in pair.status() if gateway["command"] == "proxy")
        return {subflow["local"] for subflow in gateway["connections"][0]["subflows"]}

    before = wait_for("second subflow", lambda: len(found := subflows()) == 2 and found)
    tool("ip", "netns", "exec", pair.client.name, "ss", "-K", "dst", pair.WLAN)
    # It may be made at once, and is another by its port.
    wait_for("new subflow", lambda: len(found := subflows()) == 2 and found != before)


def test_a_stopped_gateway_is_told_by_status(pair):
    gateway = pair.serve(to="127.0.0.1:9000")
    gateway.send_signal(signal.SIGSTOP)
    try:
        assert gateway.pid in json.loads(tool(PLAIT, "status", "--json"))["silent"]
        assert f"process {gateway.pid}): does not answer" in tool(PLAIT, "status")
    finally:
        gateway.send_signal(signal.SIGCONT)
    assert gateway.pid in [answered["pid"] for answered in pair.status()]


def test_a_port_in_use_is_one_sentence(pair):
    pair.serve(to="127.0.0.1:9000")
    done = pair.server.run(PLAIT, "serve", "--listen", "[::]:8443", "--to", "127.0.0.1:9000")
    assert done.returncode == 1
    assert b"cannot listen on [::]:8443" in done.stderr and b"stop it or choose another" in done.stderr


def test_sigterm_drains_and_then_resets(pair):
    echo_server(pair.server)
    serve = pair.serve("--require", "--drain", "1", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"hello")
    assert receive_exactly(client, 5) == b"hello"
    serve.terminate()
    # Still carried while it drains.
    client.sendall(b"again")
    assert receive_exactly(client, 5) == b"again"
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert serve.wait(10) == 0
