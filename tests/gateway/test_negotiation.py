"""Peers with and without plait."""

import socket

import pytest
from streams import REQUIRE, accept, connect_by_socks, deliver, plain_server, receive_exactly


def test_peer_without_plait_is_carried_plain_with_one_warning(pair, text):
    plain_server(pair, 8443, text.read_bytes())
    done = pair.run("curl", "-sS", "--http0.9", f"http://{pair.ETH}:8443/", f"http://{pair.ETH}:8443/")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == text.read_bytes() * 2
    assert done.stderr.count(b"PLAIN") == 1, done.stderr.decode()


@pytest.mark.parametrize("protocol", [262, socket.IPPROTO_TCP], ids=["mptcp", "tcp"])
def test_require_refuses_a_peer_without_plait(pair, protocol):
    plain_server(pair, 8443, b"secret", protocol)
    done = pair.run("curl", "-sS", "--http0.9", f"http://{pair.ETH}:8443/", options=REQUIRE)
    assert done.returncode != 0
    assert done.stdout == b""
    assert b"protection is required" in done.stderr, done.stderr.decode()
    # SOCKS5 reply 2: connection not allowed by ruleset.
    pair.proxy(*REQUIRE)
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair)


@pytest.mark.parametrize("protocol", [262, socket.IPPROTO_TCP], ids=["mptcp", "tcp"])
def test_client_without_plait_is_reset_or_served_plain_without_requirement(pair, text, protocol):
    to = pair.nginx(text.parent)
    for options, expected in (((), ConnectionResetError), (("--require=false",), b"HTTP/1.1 200")):
        serve = pair.serve(*options, to=to)
        client = pair.client.socket(protocol=protocol)
        client.settimeout(10)
        try:
            client.connect((pair.ETH, 8443))
            client.sendall(b"GET /text.txt HTTP/1.0\r\n\r\n")
            answer = receive_exactly(client, 12)
        except OSError as error:
            answer = error
        assert answer == expected or type(answer) is expected
        client.close()
        serve.terminate()
        assert serve.wait(15) == 0


def test_idle_peer_does_not_block_others(pair, listener):
    """TCP connections may be idle: this one stays open until the service closes it, and others are served."""
    silent, silent_service = connect_by_socks(pair), accept(listener)
    talker, service = connect_by_socks(pair), accept(listener)
    deliver(talker, service)
    silent_service.close()
    assert silent.recv(1) == b""
