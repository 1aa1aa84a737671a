"""`plait proxy` with real clients and malformed requests."""

import base64
import contextlib
import subprocess
import time

import pytest
from gateways import report_of
from hosts import NAME
from streams import (
    REQUIRE,
    accept,
    echo_server,
    listen,
    random_file,
    receive_exactly,
    reset,
    start_gateways,
)

# Greeting: one method, no authentication.
SOCKS5 = b"\x05\x01\x00"


@pytest.fixture
def proxied(pair, text):
    pair.serve("--require", to=pair.nginx(text.parent))
    pair.proxy(*REQUIRE)
    return pair


URLS = ["http://10.77.1.2:8443/text.txt", "http://[fd77:1::2]:8443/text.txt"]


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "socks5h://any:body@127.0.0.1:1080"])
@pytest.mark.parametrize("url", URLS, ids=["v4", "v6"])
def test_curl_over_socks5(proxied, text, proxy, url):
    done = proxied.client.run("curl", "-sS", "--proxy", proxy, url)
    assert done.stdout == text.read_bytes(), done.stderr.decode()


@pytest.mark.parametrize("url", URLS, ids=["v4", "v6"])
def test_curl_over_http_connect(proxied, text, url):
    done = proxied.client.run("curl", "-sS", "--proxytunnel", "--proxy", "http://127.0.0.1:1080", url)
    assert done.stdout == text.read_bytes(), done.stderr.decode()


@pytest.mark.parametrize("url", URLS, ids=["v4", "v6"])
def test_curl_over_http(proxied, text, url):
    """Requests in absolute form, of which curl sends each through a connection of its own, as it is asked to."""
    command = ("curl", "-sS", "--proxy", "http://any:body@127.0.0.1:1080", "-v")
    done = proxied.client.run(*command, url, url)
    assert done.stdout == 2 * text.read_bytes(), done.stderr.decode()
    assert report_of(proxied, "serve")["counts"]["protected"] == 2
    assert b"Connection: close" in done.stderr


@pytest.mark.parametrize("mode", ["off", "stream", "sealed"])
@pytest.mark.parametrize("six", ["silent", "without a route", "refusing"])
def test_name_with_an_unreachable_address_is_reached_by_another(two_ways, names, text, mode, six):
    """RFC 8305: an address that does not answer costs a fraction of a second."""
    pair = two_ways
    names(pair.ETH6, pair.ETH)
    pair.serve("--mode", mode, "--require=false", to=pair.nginx(text.parent))
    pair.proxy("--mode", mode, "--trusted", "eth")
    if six == "without a route":
        for link in ("eth", "wlan"):
            pair.client.ip(f"-6 address flush dev {link}")
    else:
        verdict = {"silent": "drop", "refusing": "reject with tcp reset"}[six]
        pair.server.add_packet_rules(prerouting=f"ip6 daddr {pair.ETH6} tcp dport 8443 {verdict}")
    command = ("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{NAME}:8443/text.txt")
    began = time.monotonic()
    done = pair.client.run(*command, timeout=30)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    # An attempt that is not answered takes a minute.
    assert time.monotonic() - began < 5


def test_silent_trusted_interface_is_replaced_by_another(two_ways, text):
    pair = two_ways
    pair.serve("--mode", "stream", to=pair.nginx(text.parent))
    pair.proxy("--mode", "stream", "--require", "--trusted", "eth", "--trusted", "wlan")
    pair.server.add_packet_rules(prerouting="iifname eth drop")
    began = time.monotonic()
    done = pair.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", URLS[0], timeout=30)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    # An attempt that is not answered takes a minute.
    assert time.monotonic() - began < 5


def test_http_upload_and_an_answer_that_is_cut(proxied, tmp_path):
    """A request's body crosses too, and a reset of the origin server is one for the client."""
    listener = listen(proxied.server, 9000)
    proxied.serve("--require", to="127.0.0.1:9000", listen="[::]:8444")
    body = random_file(tmp_path, 1_000_000)
    command = (
        "curl",
        "-sS",
        "--proxy",
        "http://127.0.0.1:1080",
        "--data-binary",
        f"@{body}",
        "-H",
        "Expect:",
    )
    client = proxied.client.start(
        *command, "http://10.77.1.2:8444/x", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    origin = accept(listener)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += receive_exactly(origin, 1)
    assert head.startswith(b"POST /x HTTP/1.1\r\nHost: 10.77.1.2:8444\r\nConnection: close\r\n"), head
    assert b"Proxy" not in head
    assert receive_exactly(origin, 1_000_000) == body.read_bytes()
    origin.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    reset(origin)
    _, errors = client.communicate(timeout=20)
    # curl: (56) receiving failed, or (18) the transfer is incomplete.
    assert client.returncode in (18, 56), errors


def connected(pair):
    """A connection to the proxy."""
    client = pair.client.socket()
    client.settimeout(15)
    client.connect(("127.0.0.1", 1080))
    return client


def test_names_are_resolved_by_the_proxy(pair):
    """The client sends a name; localhost is one that needs no network."""
    echo_server(pair.client)
    pair.proxy("--trusted", "eth", "--allow-local")
    client = connected(pair)
    client.sendall(SOCKS5 + b"\x05\x01\x00\x03\x09localhost" + (9000).to_bytes(2, "big"))
    assert receive_exactly(client, 2) == b"\x05\x00"
    assert receive_exactly(client, 4)[1] == 0


def test_configured_credentials_are_required(pair, text, tmp_path):
    file = tmp_path / "credentials"
    file.write_text("ada:se:cret\n")
    pair.serve("--require", to=pair.nginx(text.parent))
    pair.proxy(*REQUIRE, "--credentials", file)
    right, wrong = "ada:se:cret", "ada:secret"
    for scheme in ("socks5h", "http"):
        for user, ok in ((right, True), (wrong, False), (None, False)):
            arguments = ["--proxy-user", user] if user else []
            proxy = f"{scheme}://127.0.0.1:1080"
            done = pair.client.run("curl", "-sS", "--proxytunnel", "--proxy", proxy, *arguments, URLS[0])
            assert (done.returncode == 0 and done.stdout == text.read_bytes()) == ok, (scheme, user)
    assert "cret" not in pair.logged("proxy")


def exchange(pair, request):
    """All that the proxy answers to a request."""
    answer = b""
    with connected(pair) as client, contextlib.suppress(ConnectionResetError):
        client.sendall(request)
        while part := client.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400", id="get"),
        pytest.param(b"CONNECT nowhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 400", id="no-port"),
        pytest.param(b"\x16\x03\x01\x02\x00\r\n\r\n", b"HTTP/1.1 400", id="tls"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nX: " + b"y" * 40_000, b"HTTP/1.1 431", id="long-head"),
        pytest.param(b"\x04\x01\x00\x50\x0a\x4d\x01\x02user\x00", b"\x00\x5b", id="socks4"),
        pytest.param(b"\x05\x01\x07", b"\x05\xff", id="no-method"),
        pytest.param(SOCKS5 + b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", b"\x05\x00\x05\x07", id="bind"),
        pytest.param(SOCKS5 + b"\x05\x01\x00\x09\x00\x00", b"\x05\x00\x05\x08", id="bad-address-type"),
        pytest.param(b"CONNECT 10.77.1.2:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 502", id="refused"),
        pytest.param(
            SOCKS5 + b"\x05\x01\x00\x01\x0a\x4d\x01\x02\x00\x01", b"\x05\x00\x05\x05", id="refused-socks"
        ),
    ],
)
def test_bad_requests_get_the_error_of_their_protocol(pair, request_, expected):
    pair.proxy("--trusted", "eth")
    assert exchange(pair, request_).startswith(expected)


def test_bytes_sent_with_the_request_are_not_lost(pair):
    """A client may send the first bytes of its stream before it has read the answer."""
    start_gateways(pair, "--require")
    client = connected(pair)
    credentials = base64.b64encode(b"any:body")
    head = b"CONNECT 10.77.1.2:8443 HTTP/1.1\r\nProxy-Authorization: Basic " + credentials
    client.sendall(head + b"\r\n\r\nearly bytes")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += receive_exactly(client, 1)
    assert head.startswith(b"HTTP/1.1 200")
    assert receive_exactly(client, 11) == b"early bytes"
