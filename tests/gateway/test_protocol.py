"""The reference implementation of `stream` and `sealed` (peer.py): test vectors, known answers, and what it rejects.

`PYTHONPATH=tests/helpers python3 tests/gateway/test_protocol.py` writes the test vectors in tests/data/protocol, which
crates/proto must match. The attacks that the protocol resists are tested in crates/proto/src/sealed/attacks.rs.
"""

import json
import os

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")
pytest.importorskip("kyber_py", reason="not installed: kyber-py, see tests/requirements.txt")

import peer
import peer_crypto
import peer_records
from hosts import REPOSITORY
from peer import (
    SEALED_CIPHERS,
    STREAM_CIPHERS,
    Hello,
    Initiator,
    Keystream,
    LateWitness,
    Negotiated,
    Responder,
    service_tag,
)
from peer_crypto import ProtocolError
from peer_records import Opener, Sealer

DATA = REPOSITORY / "tests" / "data" / "protocol"


def counted(first: int, length: int) -> bytes:
    """Consecutive bytes, which are recognizable in a dump."""
    return bytes((first + index) & 255 for index in range(length))


# The service that the initiator asks for.
NAME, PORT = "server.example", 443
# The static keys of the initiator and of the responder.
STATICS = counted(0x60, 32), counted(0xE0, 32)


# Test vectors


def stream_vectors() -> dict:
    initiator_key, responder_key, random = counted(1, 8), counted(0x11, 8), counted(0x20, 32)
    secret = peer.stream_secret(initiator_key, responder_key, random)
    return {
        "initiator_key": initiator_key.hex(),
        "responder_key": responder_key.hex(),
        "random": random.hex(),
        "prk": secret.hex(),
        "keys": [
            {"direction": direction, "epoch": epoch, "key": peer.stream_key(secret, direction, epoch).hex()}
            for direction in (0, 1)
            for epoch in (0, 1, 2**20)
        ],
        "keystreams": [
            {
                "mode": f"{mode:02x}",
                "direction": direction,
                "offset": offset,
                "keystream": Keystream(mode, secret, direction, offset).apply(bytes(32)).hex(),
            }
            for mode in STREAM_CIPHERS.values()
            for direction in (0, 1)
            for offset in (0, 100, peer.EPOCH - 16)
        ],
    }


def sealed_vectors() -> dict:
    return {
        "handshakes": [
            handshake_vector(mode, flags, paths)
            for flags in (0, peer.IDENTIFIED, peer.HYBRID, peer.IDENTIFIED | peer.HYBRID)
            for mode in SEALED_CIPHERS.values()
            for paths in ((), (1,), (2, 15))
        ],
        "records": [records_vector(mode) for mode in SEALED_CIPHERS.values()],
        "updates": [
            updates_vector(mode, hybrid) for hybrid in (False, True) for mode in SEALED_CIPHERS.values()
        ],
        "side_connections": [side_vector(mode) for mode in SEALED_CIPHERS.values()],
    }


def handshake_vector(mode: int, flags: int, paths: tuple[int, ...]) -> dict:
    negotiated = Negotiated(0x30 if mode == 0x20 else 0x10, mode, counted(1, 8), counted(0x11, 8))
    ephemerals = counted(0x40, 32), counted(0x80, 32)
    own = {path: counted(path, 32) for path in paths}
    theirs = {path: counted(0xC0 + path, 32) for path in paths}
    statics = STATICS if flags & peer.IDENTIFIED else (None, None)
    session, seed, encapsulated = counted(0xA0, 32), counted(0x90, 64), counted(0xD0, 32)
    initiator = Initiator(negotiated, len(paths) + 1, own, service=(PORT, service_tag(session, NAME)),
                          session=session, ephemeral=ephemerals[0], static=statics[0], seed=seed,
                          hybrid=bool(flags & peer.HYBRID))  # fmt: skip
    responder = Responder(negotiated, initiator.hello, initiator.witnesses, theirs, service=(PORT, NAME),
                          ephemeral=ephemerals[1], static=statics[1], encapsulated=encapsulated)  # fmt: skip
    handshake_hash = responder.noise.hash
    confirms = initiator.finish(responder.reply, responder.answers)
    responder.finish(confirms, initiator.identity)
    optional = {}
    if flags & peer.HYBRID:
        optional["kem"] = [seed[:32].hex(), seed[32:].hex(), encapsulated.hex()]
    if flags & peer.IDENTIFIED:
        optional |= {
            "initiator_static": statics[0].hex(),
            "responder_static": statics[1].hex(),
            "initiator_public": peer_crypto.public_of(statics[0]).hex(),
            "responder_public": peer_crypto.public_of(statics[1]).hex(),
            "initiator_key_text": peer_crypto.key_text(peer_crypto.public_of(statics[0])),
            "responder_key_text": peer_crypto.key_text(peer_crypto.public_of(statics[1])),
            "identity": initiator.identity.hex(),
            "last_handshake_hash": initiator.noise.hash.hex(),
        }
    return {
        "offered": f"{negotiated.offered:02x}",
        "chosen": f"{negotiated.chosen:02x}",
        "initiator_key": negotiated.initiator_key.hex(),
        "responder_key": negotiated.responder_key.hex(),
        "session": initiator.session.hex(),
        "configured": len(paths) + 1,
        "name": NAME,
        "port": PORT,
        "initiator_ephemeral": ephemerals[0].hex(),
        "responder_ephemeral": ephemerals[1].hex(),
        "initiator_shares": {path: share.hex() for path, share in own.items()},
        "responder_shares": {path: share.hex() for path, share in theirs.items()},
        "prologue": negotiated.prologue(Hello.decode(initiator.hello)).hex(),
        "hello": initiator.hello.hex(),
        "witnesses": {path: message.hex() for path, message in initiator.witnesses.items()},
        "psk": initiator.shares.psk.hex(),
        "confirmation_key": initiator.shares.confirmation_key.hex(),
        "reply": responder.reply.hex(),
        "handshake_hash": handshake_hash.hex(),
        "share_messages": {path: message.hex() for path, message in responder.answers.items()},
        "confirms": {path: message.hex() for path, message in confirms.items()},
        "initiator_to_responder": initiator.sealer.state.key.hex(),
        "responder_to_initiator": initiator.opener.state.key.hex(),
        **optional,
        "records": {
            "initiator": [initiator.sealer.seal(b"not every, not any").hex(), initiator.sealer.end().hex()],
            "responder": [responder.sealer.seal(b"every, and none").hex(), responder.sealer.end().hex()],
        },
    }


def records_vector(mode: int) -> dict:
    """The last record before the first change of the key, and the first after it."""
    sealer = Sealer(peer_crypto.CipherState(mode, counted(0, 32), peer_records.REKEY_AFTER - 1))
    before, after = sealer.seal(b"the last under this key"), sealer.seal(b"the first under the next")
    return {
        "mode": f"{mode:02x}",
        "key": counted(0, 32).hex(),
        "counter": peer_records.REKEY_AFTER - 1,
        "plaintexts": [b"the last under this key".hex(), b"the first under the next".hex()],
        "records": [before.hex(), after.hex()],
        "next_key": sealer.state.key.hex(),
    }


def ends_after_handshake(mode: int, hybrid: bool) -> tuple[Initiator, Responder]:
    """Of a handshake without witnesses, from fixed values."""
    negotiated = Negotiated(0x30 if mode == 0x20 else 0x10, mode, counted(1, 8), counted(0x11, 8))
    session = counted(0xA0, 32)
    initiator = Initiator(negotiated, 1, {}, service=(PORT, service_tag(session, NAME)), session=session,
                          ephemeral=counted(0x40, 32), seed=counted(0x90, 64), hybrid=hybrid)  # fmt: skip
    responder = Responder(negotiated, initiator.hello, {}, {}, service=(PORT, NAME),
                          ephemeral=counted(0x80, 32), encapsulated=counted(0xD0, 32))  # fmt: skip
    responder.finish(initiator.finish(responder.reply, {}))
    return initiator, responder


def updates_vector(mode: int, hybrid: bool) -> dict:
    """Two key updates of a session, and a padded record of each direction under each key."""
    initiator, responder = ends_after_handshake(mode, hybrid)
    vector = {
        "mode": f"{mode:02x}",
        "hybrid": hybrid,
        "handshake_hash": initiator.noise.hash.hex(),
        "initiator_to_responder": initiator.sealer.state.key.hex(),
        "responder_to_initiator": responder.sealer.state.key.hex(),
        "root": initiator.updates.root.hex(),
        "pad": 50,
        "steps": [],
    }
    for end in (initiator, responder):
        end.sealer.pad = vector["pad"]
    for number in range(2):
        privates = counted(0x20 + number, 32), counted(0x50 + number, 32)
        seed, encapsulated = counted(0x70 + number, 64), counted(0xB0 + number, 32)
        request = initiator.updates.request(privates[0], seed)
        content = initiator.updates.requested
        # Opened by hand, so that the random values of the response are these.
        responder.opener.on_control = lambda kind, content: None
        responder.opener.feed(request)
        responder.opener.on_control = responder.updates._receive
        response = responder.updates.respond(content, privates[1], encapsulated)
        assert initiator.opener.feed(response) == b""
        new_key, initiator.updates.output = initiator.updates.output, b""
        responder.opener.feed(new_key)
        assert initiator.updates.root == responder.updates.root
        data = [initiator.sealer.seal(b"not every, not any"), responder.sealer.seal(b"every, and none")]
        assert responder.opener.feed(data[0]) == b"not every, not any"
        assert initiator.opener.feed(data[1]) == b"every, and none"
        vector["steps"].append({
            "initiator_private": privates[0].hex(),
            "responder_private": privates[1].hex(),
            "kem": [seed[:32].hex(), seed[32:].hex(), encapsulated.hex()],
            "root": initiator.updates.root.hex(),
            "initiator_to_responder": initiator.sealer.state.key.hex(),
            "responder_to_initiator": responder.sealer.state.key.hex(),
            "request": request.hex(),
            "response": response.hex(),
            "new_key": new_key.hex(),
            "data": [record.hex() for record in data],
        })  # fmt: skip
    return vector


def side_vector(mode: int) -> dict:
    """The messages of a side connection, and a copy of the second record that the initiator sends on the main one."""
    initiator, responder = ends_after_handshake(mode, hybrid=False)
    path, own, theirs = 1, counted(0x21, 32), counted(0xC1, 32)
    side = peer.encode_witness(initiator.session, path, own, peer.SIDE)
    keys = peer.Shares.of(responder.updates.side_salt, {path: (own, theirs)})
    confirmation = keys.confirmation(peer.RESPONDER, path, responder.updates.hash)
    share = peer.message(peer.SHARE, bytes([path]) + theirs + confirmation)
    confirm = peer.side_confirm(initiator.updates, path, own, share)
    initiator.sealer.seal(b"not every, not any")
    record = initiator.sealer.seal(b"first copy wins")
    return {
        "mode": f"{mode:02x}",
        "session": initiator.session.hex(),
        "handshake_hash": initiator.noise.hash.hex(),
        "initiator_to_responder": responder.opener.state.key.hex(),
        "responder_to_initiator": responder.sealer.state.key.hex(),
        "salt": responder.updates.side_salt.hex(),
        "path": path,
        "initiator_share": own.hex(),
        "responder_share": theirs.hex(),
        "side": side.hex(),
        "share": share.hex(),
        "confirm": confirm.hex(),
        "copy": ((0).to_bytes(4, "big") + (1).to_bytes(8, "big") + record).hex(),
    }


VECTORS = {"stream": stream_vectors, "sealed": sealed_vectors}


def encode(vectors: dict) -> str:
    return json.dumps(vectors, indent=1) + "\n"


@pytest.mark.parametrize("name", VECTORS)
def test_reference_matches_the_stored_vectors(name):
    assert (DATA / f"{name}.json").read_text() == encode(VECTORS[name]())


# Known answers from other sources


def test_hkdf_matches_rfc_5869():
    key = peer.extract(bytes(range(13)), b"\x0b" * 22)
    assert key.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    out = peer.expand(key, bytes(range(0xF0, 0xFA)), 42)
    assert out.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


@pytest.mark.parametrize(
    ("mode", "offset", "keystream"),
    [
        # RFC 8439, appendix A.1, vectors 1 and 2; NIST AESAVS, the zero key and block.
        (peer.STREAM_CHACHA20, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (peer.STREAM_CHACHA20, 64, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
        (peer.STREAM_AES256, 0, "dc95c078a2408989ad48a21492842087"),
    ],
)
def test_ciphers_match_published_keystreams_of_the_zero_key(mode, offset, keystream):
    expected = bytes.fromhex(keystream)
    assert peer.cipher_at(mode, bytes(32), offset).update(bytes(len(expected))) == expected


def noise_vectors() -> list:
    return json.loads((DATA / "noise.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", noise_vectors(), ids=lambda vector: vector["protocol_name"])
def test_noise_matches_cacophony_vectors(vector):
    """The Noise project's test vectors, with their payloads."""

    def value(name: str) -> bytes | None:
        return bytes.fromhex(vector[name]) if name in vector else None

    psk = bytes.fromhex(vector["init_psks"][0])
    mode = peer.SEALED_AESGCM if "AESGCM" in vector["protocol_name"] else peer.SEALED_CHACHAPOLY
    messages = [
        (bytes.fromhex(part["payload"]), bytes.fromhex(part["ciphertext"])) for part in vector["messages"]
    ]
    pattern = vector["protocol_name"].split("_")[1]
    ends = [
        peer.Noise(mode, value(f"{end}_prologue"), value(f"{end}_ephemeral"), role=role, pattern=pattern,
                   static=value(f"{end}_static"))
        for role, end in ((peer.INITIATOR, "init"), (peer.RESPONDER, "resp"))
    ]  # fmt: skip
    last = len(peer_crypto.PATTERNS[pattern])
    for payload, ciphertext in messages[:last]:
        assert ends[0].write(psk, payload) == ciphertext
        assert ends[1].read(ciphertext, psk) == payload
        ends.reverse()
    initiator, responder = sorted(ends, key=lambda end: end.role)
    if "handshake_hash" in vector:
        assert initiator.hash == responder.hash == bytes.fromhex(vector["handshake_hash"])
    ways = initiator.split()
    for index, (payload, ciphertext) in enumerate(messages[last:], start=last):
        assert ways[index % 2].encrypt(b"", payload) == ciphertext


@pytest.mark.parametrize("mode", STREAM_CIPHERS.values(), ids=STREAM_CIPHERS)
def test_keystream_is_independent_of_segmentation_and_changes_keys_between_epochs(mode):
    start = peer.EPOCH - 1000
    data = counted(7, 3000)
    whole = Keystream(mode, bytes(32), 0, start).apply(data)
    pieces = Keystream(mode, bytes(32), 0, start)
    assert b"".join(pieces.apply(data[at : at + 7]) for at in range(0, len(data), 7)) == whole
    assert Keystream(mode, bytes(32), 0, start).apply(whole) == data
    assert Keystream(mode, bytes(32), 0, peer.EPOCH).apply(data[1000:]) == whole[1000:]
    assert Keystream(mode, bytes(32), 0, 0).apply(data[1000:]) != whole[1000:]


# What it rejects

NEGOTIATED = Negotiated(0x30, peer.SEALED_AESGCM, counted(1, 8), counted(0x11, 8))


def handshake(paths, tamper, statics=(None, None), hybrid=False):
    """A handshake during which `tamper` replaces every message: by message type, path and content."""
    shares = {path: os.urandom(32) for path in paths}
    service = PORT, bytes(32)
    initiator = Initiator(NEGOTIATED, len(paths) + 1, shares, service=service, static=statics[0],
                          hybrid=hybrid)  # fmt: skip
    hello = tamper(peer.HELLO, 0, initiator.hello)
    witnesses = {path: tamper(peer.WITNESS, path, initiator.witnesses[path]) for path in paths}
    shares = {path: os.urandom(32) for path in paths}
    responder = Responder(NEGOTIATED, hello, witnesses, shares, static=statics[1])
    reply = tamper(peer.REPLY, 0, responder.reply)
    answers = {path: tamper(peer.SHARE, path, responder.answers[path]) for path in paths}
    confirms = initiator.finish(reply, answers)
    identity = initiator.identity and tamper(peer.IDENTITY, 0, initiator.identity)
    responder.finish({path: tamper(peer.CONFIRM, path, confirms[path]) for path in paths}, identity)


@pytest.mark.parametrize(("hybrid", "step"), [(False, 1), (True, 61)], ids=["X25519", "hybrid"])
def test_changed_bytes_of_a_handshake_are_detected(hybrid, step):
    lengths = {}

    def record(kind, path, message):
        lengths[kind, path] = len(message)
        return message

    handshake((1,), record, STATICS, hybrid)
    assert {kind for kind, _ in lengths} == set(range(peer.HELLO, peer.IDENTITY + 1))
    offsets = ((key, offset) for key, length in lengths.items() for offset in range(0, length, step))
    for changed, offset in offsets:

        def tamper(kind, path, message, changed=changed, offset=offset):
            if (kind, path) != changed:
                return message
            return message[:offset] + bytes([message[offset] ^ 0x10]) + message[offset + 1 :]

        with pytest.raises(ProtocolError):
            handshake((1,), tamper, STATICS, hybrid)


def test_rejects_requests_for_another_service():
    session = os.urandom(32)
    initiator = Initiator(NEGOTIATED, 1, {}, service=(PORT, service_tag(session, NAME)), session=session)
    for other in ((PORT, "other.example"), (8080, NAME)):
        with pytest.raises(ProtocolError):
            Responder(NEGOTIATED, initiator.hello, {}, {}, service=other)
    Responder(NEGOTIATED, initiator.hello, {}, {}, service=(PORT, NAME))


@pytest.mark.parametrize("kind", [peer.REPLY, peer.SHARE, peer.CONFIRM])
def test_rejects_messages_reflected_to_their_sender(kind):
    sent = {}

    def reflect(current, path, message):
        sent[current] = message
        if current != kind:
            return message
        mirrored = {
            peer.REPLY: lambda: sent[peer.HELLO][-48:],
            peer.SHARE: lambda: bytes([path]) + 2 * sent[peer.WITNESS][-32:],
            peer.CONFIRM: lambda: bytes([path]) + sent[peer.SHARE][-32:],
        }
        return peer.message(kind, mirrored[kind]())

    with pytest.raises(ProtocolError):
        handshake((1,), reflect)


def test_every_changed_byte_of_a_record_is_detected():
    def cipher():
        return peer_crypto.CipherState(peer.SEALED_AESGCM, bytes(32))

    sealer = Sealer(cipher())
    wire = sealer.seal(b"a record") + sealer.end()
    for offset in range(len(wire)):
        opener = Opener(cipher())
        with pytest.raises(ProtocolError):
            opener.feed(wire[:offset] + bytes([wire[offset] ^ 1]) + wire[offset + 1 :])
            opener.close()


def key_update(hybrid: bool, tamper) -> tuple[Initiator, Responder]:
    """The ends after a key update during which `tamper` replaces every record: by its number and content."""
    initiator, responder = ends_after_handshake(peer.SEALED_AESGCM, hybrid)
    record = initiator.updates.request()
    for number, receiver in enumerate((responder, initiator, responder)):
        receiver.opener.feed(tamper(number, record))
        record, receiver.updates.output = receiver.updates.output, b""
    return initiator, responder


@pytest.mark.parametrize("hybrid", [False, True], ids=["X25519", "hybrid"])
def test_changed_bytes_of_a_key_update_are_detected(hybrid):
    lengths = {}

    def note(number, record):
        lengths[number] = len(record)
        return record

    initiator, responder = key_update(hybrid, note)
    assert responder.opener.feed(initiator.sealer.seal(b"text")) == b"text"
    assert initiator.opener.feed(responder.sealer.seal(b"text")) == b"text"
    for changed, length in lengths.items():
        for offset in range(0, length, 61 if length > 100 else 1):

            def tamper(number, record, changed=changed, offset=offset):
                if number != changed:
                    return record
                # A record that becomes longer would wait for its rest.
                rest = record[offset + 1 :] + bytes(peer_records.MAX_CONTENT)
                return record[:offset] + bytes([record[offset] ^ 1]) + rest

            with pytest.raises(ProtocolError):
                key_update(hybrid, tamper)


def late_witness(tamper) -> tuple[Initiator, Responder]:
    """The ends after a late witness, each of whose messages `tamper` replaces."""
    initiator, responder = ends_after_handshake(peer.SEALED_AESGCM, True)
    share = os.urandom(32)
    witness = tamper(peer.WITNESS, peer.encode_witness(initiator.session, 1, share))
    late = LateWitness(responder, witness)
    answer = tamper(peer.SHARE, late.answer)
    late.finish(tamper(peer.CONFIRM, peer.late_confirm(initiator.updates, 1, share, answer)))
    return initiator, responder


def test_late_witness_is_mixed_into_the_next_keys_of_both_ends():
    initiator, responder = late_witness(lambda kind, message: message)
    assert initiator.updates.late == responder.updates.late != {}
    responder.opener.feed(initiator.updates.request())
    initiator.opener.feed(responder.updates.output)
    responder.opener.feed(initiator.updates.output)
    assert responder.opener.feed(initiator.sealer.seal(b"text")) == b"text"
    assert initiator.updates.late == responder.updates.late == {}
    with pytest.raises(ProtocolError, match="of a path that has one"):
        LateWitness(responder, peer.encode_witness(initiator.session, 1, bytes(32)))


@pytest.mark.parametrize("changed", [peer.WITNESS, peer.SHARE, peer.CONFIRM])
def test_changed_bytes_of_a_late_witness_are_detected(changed):
    length = {peer.WITNESS: 69, peer.SHARE: 68, peer.CONFIRM: 36}[changed]
    for offset in range(length):

        def tamper(kind, message, offset=offset):
            if kind != changed:
                return message
            assert len(message) == length
            return message[:offset] + bytes([message[offset] ^ 0x10]) + message[offset + 1 :]

        with pytest.raises(ProtocolError):
            late_witness(tamper)


def test_an_end_that_crosses_a_request_cancels_the_update():
    initiator, responder = ends_after_handshake(peer.SEALED_AESGCM, True)
    end, request = responder.sealer.end(), initiator.updates.request()
    assert responder.opener.feed(request) == b"" and responder.updates.output == b""
    assert initiator.opener.feed(end) == b"" and initiator.opener.ended
    assert responder.opener.feed(initiator.sealer.seal(b"text")) == b"text"


if __name__ == "__main__":
    for name, vectors in VECTORS.items():
        (DATA / f"{name}.json").write_text(encode(vectors()))
