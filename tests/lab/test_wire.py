"""What a listener on the paths sees of a protected connection."""

import hmac

import pytest
from streams import REQUIRE, XOR64, connect_by_socks, echo_server, fetch, random_file, receive_exactly


@pytest.mark.parametrize("url", ["http://10.77.1.2:8443/text.txt", "http://[fd77:1::2]:8443/text.txt"])
def test_a_protected_fetch_arrives_whole_and_reads_as_noise(pair, text, url):
    pair.serve("--require", to=pair.nginx(text.parent))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, text, url=url) == text.read_bytes()
    captured = eth.payload() + wlan.payload()
    assert len(captured) >= text.stat().st_size
    words = text.read_bytes()
    for start in range(0, len(words) - 64, 4096):
        assert words[start : start + 64] not in captured


def test_off_is_readable_on_the_wire(pair, text):
    """The counter-check: the listener of the test above would have found the text."""
    pair.serve("--mode", "off", to=pair.nginx(text.parent))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, text, options=("--mode", "off", "--trusted", "eth")) == text.read_bytes()
    assert text.read_bytes()[4096:4160] in eth.payload() + wlan.payload()


def test_the_wire_is_xor64_seeded_by_the_hmac_of_the_keys(pair):
    """An independent decoder, given the keys from the captured handshake, reads the stream."""
    message = b"not every, not any: " + bytes(range(256)) * 4
    received = echo_server(pair.server)
    pair.serve(*XOR64, "--require", to="127.0.0.1:9000")
    with pair.capture("eth") as eth:
        pair.proxy(*XOR64, *REQUIRE)
        client = connect_by_socks(pair, pair.ETH, 8443)
        client.sendall(message)
        assert receive_exactly(client, len(message)) == message
        client.close()
    assert received
    keys = eth.fields("tcp.options.mptcp.sendkey", "tcp.srcport", where="tcp.options.mptcp.sendkey")
    server_key = next(
        bytes.fromhex(key[2:].zfill(16)) for key, port in map(first_key, keys) if port == "8443"
    )
    client_key = next(
        bytes.fromhex(key[2:].zfill(16)) for key, port in map(first_key, keys) if port != "8443"
    )
    for sender, receiver, where in (
        (client_key, server_key, "tcp.dstport == 8443"),
        (server_key, client_key, "tcp.srcport == 8443"),
    ):
        lines = eth.fields("tcp.payload", where=f"tcp.len > 0 && {where}")
        wire = b"".join(bytes.fromhex(line[0].replace(":", "")) for line in lines)
        seed = hmac.digest(sender, receiver, "sha256")
        assert descramble(wire, seed) == message


def first_key(fields):
    key, port = fields
    key = key.split(",")[0]
    return (key if key.startswith("0x") else hex(int(key))), port


def descramble(wire: bytes, seed: bytes) -> bytes:
    """Straight from the definition: B_i = b_i xor the 64 plaintext bytes before it."""
    window = [0] * (64 - len(seed)) + list(seed)
    plain = bytearray()
    for byte in wire:
        for earlier in window:
            byte ^= earlier
        plain.append(byte)
        window = window[1:] + [byte]
    return bytes(plain)


def test_no_payload_on_the_untrusted_path_before_the_first_flight_is_acknowledged(make_pair, documents):
    pair = make_pair(rate="50mbit")
    document = random_file(documents, 6_000_000)
    pair.serve("--require", to=pair.nginx(documents))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, document) == document.read_bytes()
    on_wlan = wlan.fields("frame.time_epoch", where="tcp.len > 0")
    assert on_wlan, "the untrusted path was never used"
    first_on_wlan = min(float(line[0]) for line in on_wlan)
    # The client's first flight is its request; the first DATA_ACK beyond its IDSN + 1 acknowledges it.
    acks = eth.fields(
        "frame.time_epoch", where="tcp.srcport == 8443 && tcp.ack > 1 && tcp.options.mptcp.rawdataack"
    )
    first_ack = min(float(line[0]) for line in acks)
    answers = eth.fields("frame.time_epoch", where="tcp.srcport == 8443 && tcp.len > 0")
    first_answer = min(float(line[0]) for line in answers)
    joins = wlan.fields("frame.time_epoch", where="tcp.flags.syn == 1")
    first_join = min(float(line[0]) for line in joins)
    assert first_ack < first_join < first_on_wlan
    assert first_answer < first_on_wlan
