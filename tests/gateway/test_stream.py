"""A connection through two gateways has the semantics of a TCP connection."""

import hashlib
import random
import socket

import pytest
from streams import REQUIRE, accept, connect_by_socks, deliver, listen, receive_exactly, reset


@pytest.mark.parametrize("mode", ["stream", "sealed"])
def test_half_close_works_in_both_directions(pair, mode):
    listener = listen(pair.server)
    pair.serve("--mode", mode, "--require", to="127.0.0.1:9000")
    pair.proxy("--mode", mode, *REQUIRE)
    # The client ends first, and still gets an answer.
    client, service = connect_by_socks(pair), accept(listener)
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert receive_exactly(service, 8) == b"question"
    assert service.recv(1) == b""
    deliver(service, client, b"answer")
    service.close()
    assert client.recv(1) == b""
    # The service sends and ends first, and still gets the rest.
    client, service = connect_by_socks(pair), accept(listener)
    service.sendall(b"greeting")
    service.shutdown(socket.SHUT_WR)
    assert receive_exactly(client, 8) == b"greeting"
    assert client.recv(1) == b""
    client.sendall(b"thanks")
    client.close()
    assert receive_exactly(service, 6) == b"thanks"
    assert service.recv(1) == b""


@pytest.mark.parametrize("who", ["client", "service"])
def test_reset_is_passed_on(pair, listener, who):
    client, service = connect_by_socks(pair), accept(listener)
    deliver(client, service)
    one, other = (client, service) if who == "client" else (service, client)
    reset(one)
    with pytest.raises(ConnectionResetError):
        other.recv(1)


@pytest.mark.parametrize("size", [128 << 20, pytest.param(1 << 30, marks=pytest.mark.long)])
def test_large_document_arrives_unchanged(pair, documents, size):
    document = documents / "large.bin"
    digest = hashlib.sha256()
    block = random.Random(1).randbytes(1 << 20)
    with document.open("wb") as out:
        for number in range(size >> 20):
            # Every block differs, so that a lost or repeated one is noticed.
            part = number.to_bytes(8, "big") + block[8:]
            digest.update(part)
            out.write(part)
    pair.serve("--require", to=pair.nginx(documents))
    target = pair.directory / "fetched"
    url = f"http://{pair.ETH}:8443/large.bin"
    done = pair.run("curl", "-sS", "--fail", "-o", target, url, options=REQUIRE, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    with target.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").digest() == digest.digest()
