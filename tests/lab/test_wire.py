"""What captures of the paths show of a protected connection."""

import hmac

import pytest
from streams import OFF, REQUIRE, XOR64, connect_by_socks, echo_server, fetch, random_file, receive_exactly


@pytest.mark.parametrize("url", ["http://10.77.1.2:8443/text.txt", "http://[fd77:1::2]:8443/text.txt"])
def test_protected_text_is_unreadable_on_both_paths(pair, text, url):
    pair.serve("--require", to=pair.nginx(text.parent))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, text, url=url) == text.read_bytes()
    captured = eth.payload() + wlan.payload()
    assert len(captured) >= text.stat().st_size
    words = text.read_bytes()
    for start in range(0, len(words) - 64, 4096):
        assert words[start : start + 64] not in captured


def test_unprotected_text_is_readable(pair, text):
    """Control: without protection, the captures contain the text."""
    pair.serve("--mode", "off", to=pair.nginx(text.parent))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, text, options=OFF) == text.read_bytes()
    assert text.read_bytes()[4096:4160] in eth.payload() + wlan.payload()


def test_xor64_is_seeded_by_the_hmac_of_the_keys(pair):
    """An independent decoder, given the keys from the captured handshake, reads the stream."""
    message = b"not every, not any: " + bytes(range(256)) * 4
    received = []
    echo_server(pair.server, accepted=received)
    pair.serve(*XOR64, "--require", to="127.0.0.1:9000")
    with pair.capture("eth") as eth:
        pair.proxy(*XOR64, *REQUIRE)
        client = connect_by_socks(pair, pair.ETH, 8443)
        client.sendall(message)
        assert receive_exactly(client, len(message)) == message
        client.close()
    assert received

    def key(where: str) -> bytes:
        """The first key that one end sent: tshark prints keys as hexadecimal or decimal numbers."""
        keys = eth.fields("tcp.options.mptcp.sendkey", where=f"tcp.options.mptcp.sendkey && {where}")
        return int(keys[0][0].split(",")[0], 0).to_bytes(8, "big")

    outward, inward = "tcp.dstport == 8443", "tcp.srcport == 8443"
    for where, back in ((outward, inward), (inward, outward)):
        sender, receiver = key(where), key(back)
        lines = eth.fields("tcp.payload", where=f"tcp.len > 0 && {where}")
        wire = b"".join(bytes.fromhex(line[0].replace(":", "")) for line in lines)
        seed = hmac.digest(sender, receiver, "sha256")
        assert descramble(wire, seed) == message


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

    def first(capture, where: str) -> float:
        return min(float(time) for (time,) in capture.fields("frame.time_epoch", where=where))

    # The client's first flight is its request; the first DATA_ACK beyond its IDSN + 1 acknowledges it.
    ack = first(eth, "tcp.srcport == 8443 && tcp.ack > 1 && tcp.options.mptcp.rawdataack")
    payload = first(wlan, "tcp.len > 0")
    assert ack < first(wlan, "tcp.flags.syn == 1") < payload
    assert first(eth, "tcp.srcport == 8443 && tcp.len > 0") < payload
