"""The modes `stream` and `sealed` as docs/internals/protocol.md has them: known answers, and what must be refused.

`python3 tests/gateway/test_protocol.py` writes the test vectors in tests/data/protocol anew.
"""

import dataclasses
import json
import os

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import peer
from hosts import REPOSITORY
from peer import Hello, Initiator, Keystream, Negotiated, Opener, ProtocolError, Responder, Sealer

DATA = REPOSITORY / "tests" / "data" / "protocol"
STREAM_MODES = {"chacha20": peer.STREAM_CHACHA20, "aes256": peer.STREAM_AES256}
SEALED_MODES = {"chachapoly": peer.SEALED_CHACHAPOLY, "aesgcm": peer.SEALED_AESGCM}
VERSIONS = {"anonymous": peer.ANONYMOUS, "identified": peer.IDENTIFIED}


def counted(first: int, length: int) -> bytes:
    """Bytes that tell themselves apart in a dump."""
    return bytes((first + index) & 255 for index in range(length))


# Of the initiator, and of the responder.
STATICS = counted(0x60, 32), counted(0xE0, 32)


# Test vectors


def stream_vectors() -> dict:
    initiator_key, responder_key, random = counted(1, 8), counted(0x11, 8), counted(0x20, 32)
    secret = peer.stream_secret(initiator_key, responder_key, random)
    places = [(direction, offset) for direction in (0, 1) for offset in (0, 100, peer.EPOCH - 16)]
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
            for mode in STREAM_MODES.values()
            for direction, offset in places
        ],
    }


def sealed_vectors() -> dict:
    return {
        "handshakes": [
            handshake_vector(mode, version, paths)
            for version in VERSIONS.values()
            for mode in SEALED_MODES.values()
            for paths in ((), (1,), (2, 15))
        ],
        "records": [records_vector(mode) for mode in SEALED_MODES.values()],
    }


def handshake_vector(mode: int, version: int, paths: tuple[int, ...]) -> dict:
    negotiated = Negotiated(0x30 if mode == 0x20 else 0x10, mode, counted(1, 8), counted(0x11, 8))
    ephemerals = counted(0x40, 32), counted(0x80, 32)
    own = {path: counted(path, 32) for path in paths}
    theirs = {path: counted(0xC0 + path, 32) for path in paths}
    statics = STATICS if version == peer.IDENTIFIED else (None, None)
    initiator = Initiator(negotiated, len(paths) + 1, own, session=counted(0xA0, 32),
                          ephemeral=ephemerals[0], static=statics[0])  # fmt: skip
    responder = Responder(negotiated, initiator.hello, initiator.witnesses, theirs,
                          ephemeral=ephemerals[1], static=statics[1])  # fmt: skip
    hash_2 = responder.noise.hash
    confirms = initiator.finish(responder.reply, responder.answers)
    responder.finish(confirms, initiator.identity)
    identities = {}
    if version == peer.IDENTIFIED:
        identities = {
            "initiator_static": statics[0].hex(),
            "responder_static": statics[1].hex(),
            "initiator_public": peer.public_of(statics[0]).hex(),
            "responder_public": peer.public_of(statics[1]).hex(),
            "initiator_key_text": peer.key_text(peer.public_of(statics[0])),
            "responder_key_text": peer.key_text(peer.public_of(statics[1])),
            "identity": initiator.identity.hex(),
            "last_handshake_hash": initiator.noise.hash.hex(),
        }
    return {
        "version": version,
        "offered": f"{negotiated.offered:02x}",
        "chosen": f"{negotiated.chosen:02x}",
        "initiator_key": negotiated.initiator_key.hex(),
        "responder_key": negotiated.responder_key.hex(),
        "session": initiator.session.hex(),
        "configured": len(paths) + 1,
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
        "handshake_hash": hash_2.hex(),
        "share_messages": {path: message.hex() for path, message in responder.answers.items()},
        "confirms": {path: message.hex() for path, message in confirms.items()},
        "initiator_to_responder": initiator.sealer.state.key.hex(),
        "responder_to_initiator": initiator.opener.state.key.hex(),
        **identities,
        "records": {
            "initiator": [initiator.sealer.seal(b"not every, not any").hex(), initiator.sealer.end().hex()],
            "responder": [responder.sealer.seal(b"every, and none").hex(), responder.sealer.end().hex()],
        },
    }


def records_vector(mode: int) -> dict:
    """Around the first change of the key."""
    sealer = Sealer(peer.CipherState(mode, counted(0, 32), peer.REKEY_AFTER - 1))
    before, after = sealer.seal(b"the last under this key"), sealer.seal(b"the first under the next")
    return {
        "mode": f"{mode:02x}",
        "key": counted(0, 32).hex(),
        "counter": peer.REKEY_AFTER - 1,
        "plaintexts": [b"the last under this key".hex(), b"the first under the next".hex()],
        "records": [before.hex(), after.hex()],
        "next_key": sealer.state.key.hex(),
    }


VECTORS = {"stream": stream_vectors, "sealed": sealed_vectors}


def written(vectors: dict) -> str:
    return json.dumps(vectors, indent=1) + "\n"


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_what_this_implementation_computes(name):
    assert (DATA / f"{name}.json").read_text() == written(VECTORS[name]())


# Known answers of others


def test_hkdf_of_rfc_5869():
    key = peer.extract(bytes(range(13)), b"\x0b" * 22)
    assert key.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    out = peer.expand(key, bytes(range(0xF0, 0xFA)), 42)
    assert out.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


@pytest.mark.parametrize(
    ("mode", "place", "keystream"),
    [
        # RFC 8439, appendix A.1, vectors 1 and 2; NIST AESAVS, the zero key and block.
        (peer.STREAM_CHACHA20, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (peer.STREAM_CHACHA20, 64, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
        (peer.STREAM_AES256, 0, "dc95c078a2408989ad48a21492842087"),
    ],
)
def test_ciphers_of_the_zero_key(mode, place, keystream):
    expected = bytes.fromhex(keystream)
    assert peer.cipher_at(mode, bytes(32), place).update(bytes(len(expected))) == expected


def noise_vectors() -> list:
    return json.loads((DATA / "noise.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", noise_vectors(), ids=lambda vector: vector["protocol_name"])
def test_noise_of_cacophony(vector):
    """The Noise project's test vectors, with their payloads."""
    value = {
        name: bytes.fromhex(text) for name, text in vector.items() if name.endswith(("prologue", "ephemeral"))
    }
    psk = bytes.fromhex(vector["init_psks"][0])
    mode = peer.SEALED_AESGCM if "AESGCM" in vector["protocol_name"] else peer.SEALED_CHACHAPOLY
    messages = [
        (bytes.fromhex(each["payload"]), bytes.fromhex(each["ciphertext"])) for each in vector["messages"]
    ]
    pattern = vector["protocol_name"].split("_")[1]
    statics = [
        bytes.fromhex(vector[key]) if key in vector else None for key in ("init_static", "resp_static")
    ]
    ends = [
        peer.Noise(mode, value["init_prologue"], value["init_ephemeral"], role=peer.INITIATOR,
                   pattern=pattern, static=statics[0]),
        peer.Noise(mode, value["resp_prologue"], value["resp_ephemeral"], role=peer.RESPONDER,
                   pattern=pattern, static=statics[1]),
    ]  # fmt: skip
    last = len(peer.PATTERNS[pattern])
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


# stream


@pytest.mark.parametrize("mode", STREAM_MODES.values(), ids=STREAM_MODES)
def test_a_keystream_does_not_depend_on_pieces_and_changes_keys_in_time(mode):
    start = peer.EPOCH - 1000
    data = counted(7, 3000)
    whole = Keystream(mode, bytes(32), 0, start).apply(data)
    pieces = Keystream(mode, bytes(32), 0, start)
    assert b"".join(pieces.apply(data[at : at + 7]) for at in range(0, len(data), 7)) == whole
    assert Keystream(mode, bytes(32), 0, start).apply(whole) == data
    assert Keystream(mode, bytes(32), 0, peer.EPOCH).apply(data[1000:]) == whole[1000:]
    assert Keystream(mode, bytes(32), 0, 0).apply(data[1000:]) != whole[1000:]


# sealed: the handshake

NEGOTIATED = Negotiated(0x30, peer.SEALED_AESGCM, counted(1, 8), counted(0x11, 8))


def handshake(paths=(1, 2), tamper=lambda kind, path, message: message, theirs=NEGOTIATED, ours=NEGOTIATED,
              statics=(None, None)):  # fmt: skip
    """Both ends after a handshake in which `tamper` had every message on its way."""
    shares = {path: os.urandom(32) for path in paths}
    initiator = Initiator(ours, len(paths) + 1, shares, static=statics[0])
    hello = tamper(peer.HELLO, 0, initiator.hello)
    witnesses = {path: tamper(peer.WITNESS, path, initiator.witnesses[path]) for path in paths}
    shares = {path: os.urandom(32) for path in paths}
    responder = Responder(theirs, hello, witnesses, shares, static=statics[1])
    reply = tamper(peer.REPLY, 0, responder.reply)
    answers = {path: tamper(peer.SHARE, path, responder.answers[path]) for path in paths}
    confirms = initiator.finish(reply, answers)
    identity = initiator.identity and tamper(peer.IDENTITY, 0, initiator.identity)
    responder.finish({path: tamper(peer.CONFIRM, path, confirms[path]) for path in paths}, identity)
    return initiator, responder


@pytest.mark.parametrize("mode", SEALED_MODES.values(), ids=SEALED_MODES)
@pytest.mark.parametrize("paths", [(), (1,), (1, 2), tuple(range(1, 16))], ids=len)
@pytest.mark.parametrize("statics", [(None, None), STATICS], ids=VERSIONS)
def test_both_ends_understand_each_other(mode, paths, statics):
    negotiated = Negotiated(0x30, mode, counted(1, 8), counted(0x11, 8))
    initiator, responder = handshake(paths, ours=negotiated, theirs=negotiated, statics=statics)
    if statics == STATICS:
        assert initiator.noise.remote["s"] == peer.public_of(STATICS[1])
        assert responder.noise.remote["s"] == peer.public_of(STATICS[0])
    assert responder.level == f"{len(paths) + 1}/{len(paths) + 1}"
    for one, other in ((initiator, responder), (responder, initiator)):
        plaintext = os.urandom(100_000)
        assert other.opener.feed(one.sealer.seal(plaintext)) == plaintext
        assert other.opener.feed(one.sealer.end()) == b""
        other.opener.close()


def lengths() -> list[tuple[int, int, int]]:
    """Every byte of every message: its type, its path, its place."""
    sizes = {}

    def measure(kind, path, message):
        sizes[kind, path] = len(message)
        return message

    handshake((1, 2), measure, statics=STATICS)
    return [(*key, place) for key, size in sizes.items() for place in range(size)]


def test_no_byte_of_any_message_can_be_changed():
    for changed_kind, changed_path, place in lengths():

        def tamper(kind, path, message, changed=(changed_kind, changed_path), place=place):
            if (kind, path) != changed:
                return message
            return message[:place] + bytes([message[place] ^ 0x10]) + message[place + 1 :]

        with pytest.raises(ProtocolError):
            handshake((1, 2), tamper, statics=STATICS)


@pytest.mark.parametrize(
    "kind", [peer.HELLO, peer.REPLY, peer.WITNESS, peer.SHARE, peer.CONFIRM, peer.IDENTITY]
)
def test_messages_of_another_session_are_refused(kind):
    """Each is whole and was right in its own session."""
    others = {}
    handshake((1,), lambda kind, path, message: others.setdefault(kind, message), statics=STATICS)
    with pytest.raises(ProtocolError):
        handshake(
            (1,), lambda each, path, message: others[each] if each == kind else message, statics=STATICS
        )


@pytest.mark.parametrize("statics", [(None, STATICS[1]), STATICS], ids=VERSIONS)
def test_the_version_of_a_hello_cannot_be_changed(statics):
    def tamper(kind, path, message):
        return message[:3] + bytes([message[3] ^ 3]) + message[4:] if kind == peer.HELLO else message

    with pytest.raises(ProtocolError, match="wrong tag"):
        handshake((1,), tamper, statics=statics)


def test_an_end_is_who_it_was_expected_to_be():
    key = {role: peer.public_of(static) for role, static in enumerate(STATICS)}
    initiator = Initiator(NEGOTIATED, 1, {}, static=STATICS[0])
    responder = Responder(NEGOTIATED, initiator.hello, {}, {}, static=STATICS[1])
    responder.finish(
        initiator.finish(responder.reply, {}, key[peer.RESPONDER]), initiator.identity, key[peer.INITIATOR]
    )
    with pytest.raises(ProtocolError, match="asked for an identity"):
        Responder(NEGOTIATED, initiator.hello, {}, {})


@pytest.mark.parametrize("paths", [(), (1,)], ids=len)
def test_who_is_active_on_every_path_does_not_have_the_key_that_is_known(paths):
    """As the test below, with identities: the initiator knows the responder's."""
    initiator = Initiator(NEGOTIATED, 2, {path: os.urandom(32) for path in paths}, static=STATICS[0])
    shares = {path: os.urandom(32) for path in paths}
    false = Responder(NEGOTIATED, initiator.hello, initiator.witnesses, shares, static=counted(3, 32))
    with pytest.raises(ProtocolError, match="another responder"):
        initiator.finish(false.reply, false.answers, peer.public_of(STATICS[1]))
    assert initiator.identity is None


@pytest.mark.parametrize("kind", [peer.REPLY, peer.SHARE, peer.CONFIRM])
def test_what_an_end_said_itself_is_refused(kind):
    said = {}

    def reflect(each, path, message):
        said[each] = message
        if each != kind:
            return message
        mirrored = {
            peer.REPLY: lambda: said[peer.HELLO][-48:],
            peer.SHARE: lambda: bytes([path]) + 2 * said[peer.WITNESS][-32:],
            peer.CONFIRM: lambda: bytes([path]) + said[peer.SHARE][-32:],
        }
        return peer.message(kind, mirrored[kind]())

    with pytest.raises(ProtocolError):
        handshake((1,), reflect)


@pytest.mark.parametrize(
    "changed",
    [{"offered": 0x10}, {"chosen": 0x10}, {"initiator_key": bytes(8)}, {"responder_key": bytes(8)}],
    ids=lambda changed: next(iter(changed)),
)
def test_ends_that_were_told_different_things_do_not_agree(changed):
    """What a downgrade in the TCP handshake, or a middlebox that ends connections, comes to."""
    with pytest.raises(ProtocolError):
        handshake(theirs=dataclasses.replace(NEGOTIATED, **changed))


def in_the_middle_of(victim: Initiator):
    """Somebody on the main path: the initiator that he is, and how he becomes the victim's responder."""
    share = peer.decode_witness(victim.witnesses[1])[2]
    forward = Initiator(NEGOTIATED, 2, {1: share}, session=victim.session)
    return forward, lambda theirs: Responder(NEGOTIATED, victim.hello, victim.witnesses, {1: theirs})


def test_who_is_active_on_the_main_path_and_listens_on_the_other_is_found_out():
    """He knows every share, and so the keys of both handshakes, but cannot change the confirmation."""
    initiator = Initiator(NEGOTIATED, 2, {1: os.urandom(32)})
    forward, responder_of_the_victim = in_the_middle_of(initiator)
    responder = Responder(NEGOTIATED, forward.hello, initiator.witnesses, {1: os.urandom(32)})
    heard = peer.body_of(peer.SHARE, responder.answers[1], 65)[1:33]
    with pytest.raises(ProtocolError, match="a wrong confirmation"):
        initiator.finish(responder_of_the_victim(heard).reply, responder.answers)


def test_who_is_active_on_every_path_has_everything():
    """What no protocol without identities can prevent: with this the test above says something."""
    initiator = Initiator(NEGOTIATED, 2, {1: os.urandom(32)})
    forward, responder_of_the_victim = in_the_middle_of(initiator)
    responder = Responder(NEGOTIATED, forward.hello, forward.witnesses, {1: os.urandom(32)})
    false = responder_of_the_victim(os.urandom(32))
    false.finish(initiator.finish(false.reply, false.answers))
    responder.finish(forward.finish(responder.reply, responder.answers))
    assert false.opener.feed(initiator.sealer.seal(b"secret")) == b"secret"


@pytest.mark.parametrize(
    ("configured", "paths", "reason"),
    [
        (3, (0, 1), "out of range"),
        (3, (1, 16), "out of range"),
        (3, (2, 1), "ascend"),
        (3, (1, 1), "ascend"),
        (2, (1, 2), "configured"),
        (0, (), "configured"),
        (17, (1,), "configured"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(configured, paths, reason):
    with pytest.raises(ProtocolError, match=reason):
        Hello.decode(Hello(bytes(32), configured, paths).encode())


# sealed: records


def records(mode: int = peer.SEALED_AESGCM) -> tuple[Sealer, Opener]:
    return Sealer(peer.CipherState(mode, bytes(32))), Opener(peer.CipherState(mode, bytes(32)))


@pytest.mark.parametrize("mode", SEALED_MODES.values(), ids=SEALED_MODES)
def test_records_come_in_any_pieces_and_lengths(mode):
    for size in (0, 1, 16384, 16385, 100_000):
        sealer, opener = records(mode)
        plaintext = os.urandom(size)
        wire = sealer.seal(plaintext) + sealer.end()
        assert b"".join(opener.feed(wire[at : at + 1009]) for at in range(0, len(wire), 1009)) == plaintext
        opener.close()
        assert len(wire) == size + 18 * (-(-size // 16384) + 1)


def test_no_byte_of_a_record_can_be_changed():
    sealer, _ = records()
    wire = sealer.seal(b"a record") + sealer.end()
    for place in range(len(wire)):
        _, opener = records()
        with pytest.raises(ProtocolError):
            opener.feed(wire[:place] + bytes([wire[place] ^ 1]) + wire[place + 1 :])
            opener.close()


def test_records_that_were_swapped_doubled_left_out_or_cut_off_are_refused():
    sealer, _ = records()
    one, two, end = sealer.seal(b"one"), sealer.seal(b"two"), sealer.end()
    for wire in (two + one + end, one + one + end, two + end, end, one + two, one + two + end[:-1], b"",
                 one + two + end + end, one + two + end + b"\0"):  # fmt: skip
        _, opener = records()
        with pytest.raises(ProtocolError):
            opener.feed(wire)
            opener.close()


@pytest.mark.parametrize("length", [0, 15, 16401, 65535])
def test_a_record_of_a_length_that_cannot_be_is_refused_before_it_is_there(length):
    with pytest.raises(ProtocolError, match="length"):
        records()[1].feed(length.to_bytes(2, "big"))


if __name__ == "__main__":
    for name, vectors in VECTORS.items():
        (DATA / f"{name}.json").write_text(written(vectors()))
