"""A second implementation of the modes `stream` and `sealed`, from docs/internals/protocol.md alone and without I/O.

Random values are parameters, so that test vectors can be computed.
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import os

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from kyber_py.ml_kem import ML_KEM_768
from peer_crypto import (
    CIPHERTEXT_LENGTH,
    EK_LENGTH,
    INITIATOR,
    RESPONDER,
    SEALED_AESGCM,
    SEALED_CHACHAPOLY,
    Noise,
    encapsulate,
    expand,
    expect,
    extract,
    kem_material,
    share_material,
)
from peer_records import Updates

STREAM_CHACHA20, STREAM_AES256 = 0x04, 0x08
# By the names that `plait codec --cipher` takes.
STREAM_CIPHERS = {"chacha20": STREAM_CHACHA20, "aes-256-ctr": STREAM_AES256}
SEALED_CIPHERS = {"chacha20-poly1305": SEALED_CHACHAPOLY, "aes-256-gcm": SEALED_AESGCM}

HELLO, REPLY, WITNESS, SHARE, CONFIRM, IDENTITY, SIDE = 1, 2, 3, 4, 5, 6, 7
VERSION = 3
# The flags of HELLO.
IDENTIFIED, HYBRID = 1, 2

EPOCH = 1 << 36


# stream


def stream_secret(initiator_key: bytes, responder_key: bytes, random: bytes) -> bytes:
    return extract(b"plait stream 1", initiator_key + responder_key + random)


def stream_key(secret: bytes, direction: int, epoch: int) -> bytes:
    return expand(secret, bytes([direction]) + epoch.to_bytes(8, "big"), 32)


class Keystream:
    """Encrypts or decrypts one direction of a stream, from `offset` on."""

    def __init__(self, mode: int, secret: bytes, direction: int, offset: int = 0):
        self.mode, self.secret, self.direction, self.offset = mode, secret, direction, offset
        self._begin()

    def apply(self, data: bytes) -> bytes:
        out = b""
        while data:
            left = EPOCH - self.offset % EPOCH
            out += self.cipher.update(data[:left])
            self.offset += min(left, len(data))
            data = data[left:]
            if self.offset % EPOCH == 0:
                self._begin()
        return out

    def _begin(self):
        epoch, offset = divmod(self.offset, EPOCH)
        self.cipher = cipher_at(self.mode, stream_key(self.secret, self.direction, epoch), offset)


def cipher_at(mode: int, key: bytes, offset: int):
    """The cipher of one epoch, advanced to this offset of its keystream."""
    if mode == STREAM_AES256:
        block, within = divmod(offset, 16)
        cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big")))
    else:
        block, within = divmod(offset, 64)
        # 4 bytes of counter, then the nonce of 12 zeros.
        cipher = Cipher(algorithms.ChaCha20(key, block.to_bytes(4, "little") + bytes(12)), None)
    encryptor = cipher.encryptor()
    encryptor.update(bytes(within))
    return encryptor


# sealed: messages


def message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(2, "big") + body


def body_of(kind: int, encoded: bytes, length: int | None = None) -> bytes:
    """The body of a message, which must be of this type and, if given, of this length."""
    expect(len(encoded) >= 3 and encoded[0] == kind, f"expected a message of type {kind}")
    actual = len(encoded) - 3
    expect(int.from_bytes(encoded[1:3], "big") == actual, "the length field does not match the message")
    expect(length in (None, actual), f"expected {length} bytes in a message of type {kind}, got {actual}")
    return encoded[3:]


# The name of the service that an exit is.
EXIT = "plait exit"


def encode_destination(host: str, port: int) -> bytes:
    """The content of DESTINATION."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        kind, encoded = 3, host.encode()
    else:
        kind, encoded = {4: 1, 6: 2}[address.version], address.packed
    return bytes([kind]) + port.to_bytes(2, "big") + encoded


def service_tag(session: bytes, name: str) -> bytes:
    """What HELLO has in place of the service's name."""
    return hmac.digest(session, b"plait service" + name.encode(), "sha256")


@dataclasses.dataclass(frozen=True)
class Hello:
    session: bytes
    configured: int
    paths: tuple[int, ...]
    service: tuple[int, bytes]
    """The port, and the name's tag."""
    identified: bool = False
    encapsulation_key: bytes = b""
    """Of a hybrid handshake."""
    noise: bytes = bytes(48)

    def encode(self) -> bytes:
        flags = IDENTIFIED * self.identified | HYBRID * bool(self.encapsulation_key)
        counts = bytes([self.configured, len(self.paths), *self.paths])
        port, name = self.service
        service = port.to_bytes(2, "big") + name
        fields = (bytes([VERSION, flags]), self.session, counts, service, self.encapsulation_key, self.noise)
        return message(HELLO, b"".join(fields))

    def head(self) -> bytes:
        """The part that the prologue covers: everything before Noise's message."""
        return self.encode()[:-48]

    @classmethod
    def decode(cls, encoded: bytes) -> Hello:
        body = body_of(HELLO, encoded)
        expect(len(body) >= 36, "HELLO is too short")
        version, flags = body[:2]
        expect(version == VERSION, f"unknown version {version} of HELLO")
        expect(flags <= IDENTIFIED | HYBRID, f"unknown flags {flags} of HELLO")
        configured, count = body[34:36]
        key_length = EK_LENGTH if flags & HYBRID else 0
        expect(len(body) == 118 + count + key_length, "the length of HELLO does not match its fields")
        paths, rest = tuple(body[36 : 36 + count]), body[36 + count :]
        expect(all(1 <= path <= 15 for path in paths), "a path id is out of range")
        expect(all(a < b for a, b in zip(paths, paths[1:])), "path ids must ascend")
        expect(count < configured <= 16, f"invalid number of configured paths: {configured}")
        service = int.from_bytes(rest[:2], "big"), rest[2:34]
        identified = bool(flags & IDENTIFIED)
        return cls(body[2:34], configured, paths, service, identified, rest[34:-48], rest[-48:])


def encode_witness(session: bytes, path: int, share: bytes, kind: int = WITNESS) -> bytes:
    """WITNESS, or SIDE, which has the same fields."""
    return message(kind, bytes([VERSION]) + session + bytes([path]) + share)


def decode_witness(encoded: bytes) -> tuple[bytes, int, bytes]:
    """Session id, path id and share."""
    body = body_of(WITNESS, encoded, 66)
    expect(body[0] == VERSION, f"unknown version {body[0]} of WITNESS")
    expect(1 <= body[33] <= 15, "a path id is out of range")
    return body[1:33], body[33], body[34:]


# sealed: the two ends


@dataclasses.dataclass(frozen=True)
class Negotiated:
    """What both ends know from the TCP handshake of the main connection."""

    offered: int
    chosen: int
    initiator_key: bytes
    responder_key: bytes

    def prologue(self, hello: Hello) -> bytes:
        modes = bytes([self.offered, self.chosen])
        return b"plait sealed 3" + modes + self.initiator_key + self.responder_key + hello.head()


@dataclasses.dataclass(frozen=True)
class Shares:
    """Secrets derived from the session id and from the shares of all paths."""

    psk: bytes
    confirmation_key: bytes

    @classmethod
    def of(cls, session: bytes, shares: dict[int, tuple[bytes, bytes]], kem: bytes = b"") -> Shares:
        """From the initiator's and the responder's share of each path, and the result of a second key exchange."""
        secret = extract(session, share_material(shares) + kem)
        psk = expand(secret, b"plait sealed 3 psk", 32)
        return cls(psk, expand(secret, b"plait sealed 3 confirmation", 32))

    def confirmation(self, role: int, path: int, handshake_hash: bytes) -> bytes:
        return hmac.digest(self.confirmation_key, bytes([role, path]) + handshake_hash, "sha256")


def pattern_of(identified: bool) -> str:
    return "XXpsk2" if identified else "NNpsk2"


class Initiator:
    """The initiator's handshake: send `hello` and `witnesses`, then call `finish`; send `identity` if there is a static key."""

    identity: bytes | None = None

    def __init__(self, negotiated: Negotiated, configured: int, shares: dict[int, bytes], *,
                 service: tuple[int, bytes], session: bytes | None = None, ephemeral: bytes | None = None,
                 static: bytes | None = None, seed: bytes | None = None, hybrid: bool = True):  # fmt: skip
        """`seed`: the 64 bytes from which the pair of encapsulation and decapsulation keys is made."""
        session = session or os.urandom(32)
        self.identified, self.encapsulation_key = static is not None, b""
        if hybrid:
            self.encapsulation_key, self.decapsulation_key = ML_KEM_768.key_derive(seed or os.urandom(64))
        paths = tuple(sorted(shares))
        hello = Hello(session, configured, paths, service, self.identified, self.encapsulation_key)
        self.session, self.own_shares = session, shares
        self.noise = Noise(negotiated.chosen, negotiated.prologue(hello), ephemeral, role=INITIATOR,
                           pattern=pattern_of(self.identified), static=static)  # fmt: skip
        self.hello = dataclasses.replace(hello, noise=self.noise.write()).encode()
        self.witnesses = {path: encode_witness(session, path, share) for path, share in shares.items()}

    def finish(self, reply: bytes, answers: dict[int, bytes], key: bytes | None = None) -> dict[int, bytes]:
        """Verifies REPLY, every SHARE and, if `key` is given, the responder's static key; returns the CONFIRMs."""
        peer_shares, confirmations = {}, {}
        for path in self.own_shares:
            body = body_of(SHARE, answers[path], 65)
            expect(body[0] == path, "a SHARE is of another path")
            peer_shares[path], confirmations[path] = body[1:33], body[33:]
        pairs = {path: (share, peer_shares[path]) for path, share in self.own_shares.items()}
        length = CIPHERTEXT_LENGTH * bool(self.encapsulation_key)
        body = body_of(REPLY, reply, length + (96 if self.identified else 48))
        ciphertext, kem = body[:length], b""
        if ciphertext:
            shared = ML_KEM_768.decaps(self.decapsulation_key, ciphertext)
            kem = kem_material(shared, self.encapsulation_key, ciphertext)
        self.shares = Shares.of(self.session, pairs, kem)
        self.noise.read(body[length:], self.shares.psk)
        for path, confirmation in confirmations.items():
            expected = self.shares.confirmation(RESPONDER, path, self.noise.hash)
            expect(hmac.compare_digest(confirmation, expected), "a wrong confirmation")
        if self.identified:
            expect(key in (None, self.noise.remote["s"]), "the responder has another static key")
            self.identity = message(IDENTITY, self.noise.write())
        self.updates = Updates(INITIATOR, self.noise, bool(self.encapsulation_key))
        self.sealer, self.opener = self.updates.sealer, self.updates.opener
        confirm = self.shares.confirmation
        return {path: message(CONFIRM, bytes([path]) + confirm(INITIATOR, path, self.noise.hash))
                for path in self.own_shares}  # fmt: skip


class Responder:
    """The responder's handshake, from HELLO and all WITNESSes: send `reply` and `answers`, then call `finish`."""

    def __init__(self, negotiated: Negotiated, hello: bytes, witnesses: dict[int, bytes],
                 shares: dict[int, bytes], *, service: tuple[int, str] | None = None,
                 ephemeral: bytes | None = None, static: bytes | None = None,
                 encapsulated: bytes | None = None):  # fmt: skip
        """`service`: the port and the name that may be asked for, `encapsulated`: the random bytes of the ciphertext."""
        received = Hello.decode(hello)
        if service:
            port, name = service
            expected = port, service_tag(received.session, name)
            expect(received.service == expected, "the initiator asks for another service")
        expect(set(received.paths) == set(witnesses) == set(shares), "the witnesses are not those of HELLO")
        expect(not received.identified or static is not None, "an identity is required, there is none")
        pairs = {}
        for path, witness in witnesses.items():
            session, claimed, share = decode_witness(witness)
            expect(session == received.session, "a WITNESS is of another session")
            expect(claimed == path, "a WITNESS is of another path")
            pairs[path] = (share, shares[path])
        self.level, self.identified = f"{len(received.paths) + 1}/{received.configured}", received.identified
        self.session, self.paths = received.session, set(received.paths)
        ciphertext, kem = b"", b""
        self.hybrid = bool(received.encapsulation_key)
        if key := received.encapsulation_key:
            shared, ciphertext = encapsulate(key, encapsulated or os.urandom(32))
            kem = kem_material(shared, key, ciphertext)
        self.shares = Shares.of(received.session, pairs, kem)
        self.noise = Noise(negotiated.chosen, negotiated.prologue(received), ephemeral, role=RESPONDER,
                           pattern=pattern_of(self.identified), static=static)  # fmt: skip
        expect(self.noise.read(received.noise) == b"", "Noise's first message has a payload")
        self.reply = message(REPLY, ciphertext + self.noise.write(self.shares.psk))
        confirm = self.shares.confirmation
        self.answers = {
            path: message(SHARE, bytes([path]) + share + confirm(RESPONDER, path, self.noise.hash))
            for path, share in shares.items()
        }

    def finish(self, confirms: dict[int, bytes], identity: bytes | None = None, key: bytes | None = None):
        """Verifies IDENTITY, every CONFIRM and, if `key` is given, the initiator's static key."""
        expect((identity is not None) == self.identified, "IDENTITY is missing or unexpected")
        if identity is not None:
            self.noise.read(body_of(IDENTITY, identity, 64))
            expect(key in (None, self.noise.remote["s"]), "the initiator has another static key")
        for path in self.answers:
            body = body_of(CONFIRM, confirms[path], 33)
            expect(body[0] == path, "a CONFIRM is of another path")
            expected = self.shares.confirmation(INITIATOR, path, self.noise.hash)
            expect(hmac.compare_digest(body[1:], expected), "a wrong confirmation")
        self.start_records()

    def start_records(self):
        """After the handshake, or in place of what remains of it."""
        self.updates = Updates(RESPONDER, self.noise, self.hybrid)
        self.sealer, self.opener = self.updates.sealer, self.updates.opener


# sealed: late witnesses


def late_confirm(updates: Updates, path: int, share: bytes, answer: bytes) -> bytes:
    """The initiator's CONFIRM of a late witness, from the share in its WITNESS and from SHARE. The next update mixes it in."""
    updates.late[path] = share, body_of(SHARE, answer, 65)[1:33]
    return _confirm(updates, updates.late_salt, path, share, answer)


def side_confirm(updates: Updates, path: int, share: bytes, answer: bytes) -> bytes:
    """The initiator's CONFIRM of a side connection, from the share in its SIDE and from SHARE."""
    return _confirm(updates, updates.side_salt, path, share, answer)


def _confirm(updates: Updates, salt: bytes, path: int, share: bytes, answer: bytes) -> bytes:
    body = body_of(SHARE, answer, 65)
    expect(body[0] == path, "a SHARE is of another path")
    keys = Shares.of(salt, {path: (share, body[1:33])})
    expected = keys.confirmation(RESPONDER, path, updates.hash)
    expect(hmac.compare_digest(body[33:], expected), "a wrong confirmation")
    return message(CONFIRM, bytes([path]) + keys.confirmation(INITIATOR, path, updates.hash))


class LateWitness:
    """The responder's part of a late witness, from its WITNESS: send `answer`, then call `finish`."""

    def __init__(self, end: Responder, witness: bytes, share: bytes | None = None):
        """`end`: the responder after its handshake."""
        session, self.path, theirs = decode_witness(witness)
        expect(session == end.session, "a WITNESS is of another session")
        expect(self.path not in end.paths, "a WITNESS is of a path that has one")
        self.end, self.pair = end, (theirs, share or os.urandom(32))
        self.keys = Shares.of(end.updates.late_salt, {self.path: self.pair})
        self.answer = message(SHARE, bytes([self.path]) + self.pair[1] + self._confirmation(RESPONDER))

    def _confirmation(self, role: int) -> bytes:
        return self.keys.confirmation(role, self.path, self.end.updates.hash)

    def finish(self, confirm: bytes):
        """Verifies CONFIRM. The next update mixes the shares in."""
        body = body_of(CONFIRM, confirm, 33)
        expect(body[0] == self.path, "a CONFIRM is of another path")
        expect(hmac.compare_digest(body[1:], self._confirmation(INITIATOR)), "a wrong confirmation")
        self.end.paths.add(self.path)
        self.end.updates.late[self.path] = self.pair
