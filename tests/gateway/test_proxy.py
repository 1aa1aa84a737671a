"""`plait proxy` with real clients and malformed requests."""

import base64
import socket

import pytest
from streams import REQUIRE, echo_server, receive_exactly


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


def test_names_are_resolved_by_the_proxy(pair):
    """The client sends a name; localhost is one that needs no network."""
    echo_server(pair.client)
    pair.proxy("--trusted", "eth")
    client = pair.client.socket()
    client.settimeout(10)
    client.connect(("127.0.0.1", 1080))
    client.sendall(b"\x05\x01\x00" + b"\x05\x01\x00\x03\x09localhost" + (9000).to_bytes(2, "big"))
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
    assert "cret" not in (tmp_path / "proxy.log").read_text()


def exchange(pair, request):
    """What the proxy answers to a request, until it closes."""
    client = pair.client.socket()
    client.settimeout(15)
    client.connect(("127.0.0.1", 1080))
    client.sendall(request)
    answer = b""
    try:
        while part := client.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    client.close()
    return answer


@pytest.mark.parametrize(
    "request_, expected",
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405"),
        (b"CONNECT nowhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"HTTP/1.1 400"),
        (b"CONNECT a:1 HTTP/1.1\r\nX: " + b"y" * 40_000, b"HTTP/1.1 431"),
        (b"\x04\x01\x00\x50\x0a\x4d\x01\x02user\x00", b"\x00\x5b"),
        (b"\x05\x01\x07", b"\x05\xff"),
        (b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", b"\x05\x00\x05\x07"),
        (b"\x05\x01\x00\x05\x01\x00\x09\x00\x00", b"\x05\x00\x05\x08"),
        (b"CONNECT 10.77.1.2:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 502"),
        (b"\x05\x01\x00\x05\x01\x00\x01" + socket.inet_aton("10.77.1.2") + b"\x00\x01", b"\x05\x00\x05\x05"),
    ],
    ids=[
        "get",
        "no-port",
        "tls",
        "long-head",
        "socks4",
        "no-method",
        "bind",
        "bad-address-type",
        "refused",
        "refused-socks",
    ],
)
def test_bad_requests_get_the_error_of_their_protocol(pair, request_, expected):
    pair.proxy("--trusted", "eth")
    assert exchange(pair, request_).startswith(expected)


def test_bytes_sent_with_the_request_are_not_lost(pair):
    """A client may send the first bytes of its stream before it has read the answer."""
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    client = pair.client.socket()
    client.settimeout(10)
    client.connect(("127.0.0.1", 1080))
    authorization = base64.b64encode(b"any:body")
    client.sendall(
        b"CONNECT 10.77.1.2:8443 HTTP/1.1\r\nProxy-Authorization: Basic "
        + authorization
        + b"\r\n\r\nearly bytes"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += receive_exactly(client, 1)
    assert head.startswith(b"HTTP/1.1 200")
    assert receive_exactly(client, 11) == b"early bytes"
