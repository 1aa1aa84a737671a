"""Modes `stream` and `sealed`: what an eavesdropper on a path sees, and what a modification causes."""

import contextlib
import random
import shutil
import signal
import socket

import pytest
from hosts import PLAIT, tool, wait_for
from peer import stream_keystream
from streams import accept, connect_by_socks, echo_server, fetch, listen, random_file, receive_exactly

STREAM = ("--mode", "stream", "--require")
MODES = {"stream": STREAM, "sealed": ("--mode", "sealed", "--require")}
RANDOM_LEN = 32
CIPHERS = {0x04: "chacha20", 0x08: "aes256"}


@pytest.fixture
def tapped(pair):
    """Records both links of the client; their files when it has ended."""

    @contextlib.contextmanager
    def record():
        files = {link: pair.directory / f"{link}.pcap" for link in ("eth", "wlan")}
        programs = []
        for link, file in files.items():
            log = pair.directory / f"{link}.log"
            options = ("--immediate-mode", "-U", "-s", "0", "-B", "65536", "-i", link, "-w", file)
            programs.append(pair.client.start("tcpdump", *options, log=log.name))
            wait_for("tcpdump", lambda log=log: b"listening on" in log.read_bytes())
        yield files
        for program in programs:
            program.send_signal(signal.SIGINT)
            program.wait(10)

    return record


def fields(file, *names, where="tcp") -> list[list[str]]:
    options = [word for name in names for word in ("-e", name)]
    lines = tool("tshark", "-n", "-r", str(file), "-Y", where, "-T", "fields", *options).splitlines()
    return [line.split("\t") for line in lines]


def followed(file) -> tuple[bytes, bytes]:
    """The bytes of the first TCP connection in a capture, each way."""
    said = tool("tshark", "-n", "-r", str(file), "-q", "-z", "follow,tcp,raw,0").splitlines()
    data = said[said.index(next(line for line in said if line.startswith("Node 1"))) + 1 : -1]
    ways = (
        (line for line in data if not line.startswith("\t")),
        (line.strip() for line in data if line.startswith("\t")),
    )
    return tuple(bytes.fromhex("".join(way)) for way in ways)


@pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")
@pytest.mark.parametrize("address", ["ETH", "ETH6"])
def test_stream_on_the_wire_is_that_of_the_specification(pair, tapped, address):
    """The whole of a connection with one path, taken from a capture and decrypted by `peer.py`."""
    listener = listen(pair.server)
    pair.serve(*STREAM, to="127.0.0.1:9000")
    # Of the two links only one has a role: the other is not used.
    pair.proxy(*STREAM, "--trusted", "eth", "--untrusted", "lo")
    # So little that MPTCP has no time to send any of it twice, which a stream of TCP's would show as more.
    question, answer = (random.Random(seed).randbytes(10_000) for seed in (1, 2))
    with tapped() as files:
        client = pair.client.socket()
        client.connect(("127.0.0.1", 1080))
        client.settimeout(20)
        family = socket.AF_INET6 if ":" in getattr(pair, address) else socket.AF_INET
        kind = b"\x04" if family == socket.AF_INET6 else b"\x01"
        client.sendall(b"\x05\x01\x00")
        assert receive_exactly(client, 2) == b"\x05\x00"
        target = socket.inet_pton(family, getattr(pair, address))
        client.sendall(b"\x05\x01\x00" + kind + target + (8443).to_bytes(2, "big"))
        assert receive_exactly(client, 6 + len(target))[1] == 0
        service = accept(listener)
        client.sendall(question)
        assert receive_exactly(service, len(question)) == question
        service.sendall(answer)
        assert receive_exactly(client, len(answer)) == answer
        client.close()
        assert service.recv(1) == b""
        service.close()
        wait_for("end", lambda: not pair.status()[0]["connections"])
    keys = fields(files["eth"], "tcp.options.mptcp.sendkey", "tcp.options.mptcp.recvkey",
                  where="tcp.options.mptcp.recvkey")  # fmt: skip
    initiator, responder = (int(key).to_bytes(8, "big") for key in keys[0])
    [[options]] = fields(files["eth"], "tcp.options", where="tcp.flags.syn == 1 and tcp.flags.ack == 1")
    chosen = bytes.fromhex(options.replace(":", "")).split(bytes.fromhex("fe08504c414901"))[1][0]
    forth, back = followed(files["eth"])
    assert len(forth) == RANDOM_LEN + len(question) and len(back) == len(answer), "no byte is added but R"
    for direction, crossed, text in ((0, forth[RANDOM_LEN:], question), (1, back, answer)):
        keystream = stream_keystream(
            initiator, responder, forth[:RANDOM_LEN], direction, CIPHERS[chosen], len(text)
        )
        assert bytes(a ^ b for a, b in zip(crossed, keystream, strict=True)) == text


@pytest.fixture
def two_ways(make_pair):
    """A pair whose server is reached at one address by both paths."""

    def make(**options):
        pair = make_pair(**options)
        pair.add_route_by_wlan()
        return pair

    return make


def carried(pair, mode, *options):
    """A connection that gateways in this mode carry: the client's end, the service's, and the gateways."""
    listener = listen(pair.server)
    gateways = {
        "serve": pair.serve(*MODES[mode], to="127.0.0.1:9000"),
        "proxy": pair.proxy(*MODES[mode], "--trusted", "eth", *options),
    }
    client = connect_by_socks(pair, pair.ETH, 8443)
    return client, accept(listener), gateways


def connections(pair, command="proxy") -> list[dict]:
    return next(gateway for gateway in pair.status() if gateway["command"] == command)["connections"]


@pytest.mark.parametrize("mode", MODES, ids=MODES.keys())
def test_untrusted_path_carries_no_plaintext(two_ways, tmp_path, mode):
    pair = two_ways(rate="50mbit")
    directory = tmp_path / "documents"
    directory.mkdir()
    document = random_file(directory, 8_000_000)
    text = document.read_bytes()
    samples = [text[at : at + 32] for at in range(0, len(text) - 32, 4000)]
    file, log = pair.directory / "wlan.pcap", pair.directory / "tcpdump.log"
    options = ("-U", "-s", "0", "-B", "65536", "-i", "wlan", "-w", file)
    program = pair.client.start("tcpdump", *options, log=log.name)
    wait_for("tcpdump", lambda: b"listening on" in log.read_bytes())
    pair.serve(*MODES[mode], to=pair.nginx(directory))
    assert fetch(pair, document, options=(*MODES[mode], "--trusted", "eth")) == text
    program.send_signal(signal.SIGINT)
    program.wait(10)
    crossed = file.read_bytes()
    assert len(crossed) > 1_000_000, "the untrusted path was not used"
    assert not any(sample in crossed for sample in samples)


@pytest.mark.parametrize("mode", MODES, ids=MODES.keys())
def test_service_may_speak_first_and_either_end_may_close_first(two_ways, mode):
    client, service, _ = carried(two_ways(), mode)
    service.sendall(b"220 ready")
    assert receive_exactly(client, 9) == b"220 ready"
    client.sendall(b"HELO")
    client.shutdown(socket.SHUT_WR)
    assert receive_exactly(service, 4) == b"HELO"
    assert service.recv(1) == b""
    service.sendall(b"bye")
    assert receive_exactly(client, 3) == b"bye"
    service.close()
    assert client.recv(1) == b""


@pytest.mark.parametrize("mode", MODES, ids=MODES.keys())
def test_further_subflows_do_not_wait_for_an_answer(two_ways, mode):
    """What protects both ways has crossed the trusted path at once."""
    pair = two_ways()
    client, service, _ = carried(pair, mode)
    wait_for("second subflow", lambda: len(connections(pair)[0]["subflows"]) == 2)
    service.close()
    client.close()


@pytest.mark.parametrize("mode", MODES, ids=MODES.keys())
@pytest.mark.parametrize("killed", ["serve", "proxy"])
def test_killed_gateway_is_a_reset(two_ways, mode, killed):
    client, service, gateways = carried(two_ways(), mode)
    client.sendall(b"hello")
    assert receive_exactly(service, 5) == b"hello"
    gateways[killed].kill()
    for end in (service, client):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_ends_with_different_modes_are_plain_or_refused(pair):
    echo_server(pair.server)
    pair.serve("--mode", "xor64", to="127.0.0.1:9000")
    pair.proxy("--mode", "stream", "--trusted", "eth")
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"hello")
    assert receive_exactly(client, 5) == b"hello"
    for log in ("proxy.log", "serve.log"):
        assert "PLAIN: the peer offers no common mode" in (pair.directory / log).read_text()
    pair.proxy("--mode", "stream", "--trusted", "eth", "--require", listen="127.0.0.1:1081")
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair, pair.ETH, 8443, proxy=("127.0.0.1", 1081))


def test_level_is_the_number_of_witnessed_paths(two_ways):
    pair = two_ways()
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require=all-paths", to="127.0.0.1:9000")
    pair.proxy("--mode", "sealed", "--require=all-paths", "--trusted", "eth")
    client = connect_by_socks(pair, pair.ETH, 8443)
    client.sendall(b"hello")
    assert receive_exactly(client, 5) == b"hello"
    for command in ("proxy", "serve"):
        assert [found["level"] for found in connections(pair, command)] == ["2/2"]
    assert "sealed:2/2" in pair.client.run(PLAIT, "status", text=True).stdout
    [server] = [gateway for gateway in pair.status() if gateway["command"] == "serve"]
    assert server["handshakes"] == {"waiting": 0, "complete": 1, "dropped": 0, "refused": 0}
    client.close()


@pytest.mark.parametrize("require", ["--require", "--require=all-paths"])
def test_path_without_a_route_is_missing_from_the_level(pair, require):
    """By wlan the server's address on eth cannot be reached here; the one it announces does not count."""
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    pair.proxy("--mode", "sealed", require, "--trusted", "eth")
    if require == "--require=all-paths":
        with pytest.raises(AssertionError, match="SOCKS reply 0x01"):
            connect_by_socks(pair, pair.ETH, 8443)
        assert "expected a witness on every configured path, got 1/2" in (
            (pair.directory / "proxy.log").read_text()
        )
        return
    clients = [connect_by_socks(pair, pair.ETH, 8443) for _ in range(2)]
    for client in clients:
        client.sendall(b"hello")
        assert receive_exactly(client, 5) == b"hello"
    assert [connection["level"] for connection in connections(pair)] == ["1/2", "1/2"]
    log = (pair.directory / "proxy.log").read_text()
    assert log.count("sealed by 1/2 paths") == 1
    assert (
        log.count(f"no witness connection to {pair.ETH} through wlan") == 1 and "no route to the peer" in log
    )
    # The path comes back.
    pair.add_route_by_wlan()
    clients.append(connect_by_socks(pair, pair.ETH, 8443))
    clients[2].sendall(b"hello")
    assert receive_exactly(clients[2], 5) == b"hello"
    assert connections(pair)[2]["level"] == "2/2"
    assert (
        f"witness connections to {pair.ETH} through wlan work again"
        in (pair.directory / "proxy.log").read_text()
    )
    for client in clients:
        client.close()


def test_level_is_limited_to_the_paths_of_a_session(two_ways):
    pair = two_ways()
    for number in range(10):
        ends = f"more{number}", f"less{number}"
        tool("ip", "-n", pair.client.name, "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end in ends:
            tool("ip", "-n", pair.client.name, "link", "set", end, "up")
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    pair.proxy("--mode", "sealed", "--require", "--trusted", "eth")
    for _ in range(2):
        client = connect_by_socks(pair, pair.ETH, 8443)
        client.sendall(b"hello")
        assert receive_exactly(client, 5) == b"hello"
        assert connections(pair)[-1]["level"] == "2/16"
        client.close()
    log = (pair.directory / "proxy.log").read_text()
    assert log.count("22 paths are configured, but a session has at most 16") == 1


def test_modified_packet_is_a_reset_and_never_delivered(two_ways):
    """An attacker on the trusted path changes a byte of one packet with data, and fixes its checksum."""
    pair = two_ways()
    client, service, _ = carried(pair, "sealed", "--untrusted", "lo")
    client.sendall(b"hello")
    assert receive_exactly(service, 5) == b"hello"
    rules = """
        table ip change {
            chain comes {
                type filter hook prerouting priority -300;
                iifname "eth" tcp dport 8443 meta length > 600 @ih,800,8 set 0x42
            }
        }
    """
    done = pair.server.run("nft", "-f", "-", input=rules.encode())
    assert done.returncode == 0, done.stderr
    client.sendall(random.Random(3).randbytes(600))
    with pytest.raises(ConnectionResetError):
        service.recv(1)
    with pytest.raises(ConnectionResetError):
        client.recv(1)
