"""A second implementation of the modes `stream` and `sealed`, from docs/internals/protocol.md alone and without I/O.

Random values are parameters, so that test vectors can be computed.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

STREAM_CHACHA20, STREAM_AES256, SEALED_CHACHAPOLY, SEALED_AESGCM = 0x04, 0x08, 0x10, 0x20
# By the names that `plait codec --cipher` takes.
STREAM_CIPHERS = {"chacha20": STREAM_CHACHA20, "aes-256-ctr": STREAM_AES256}
SEALED_CIPHERS = {"chacha20-poly1305": SEALED_CHACHAPOLY, "aes-256-gcm": SEALED_AESGCM}

INITIATOR, RESPONDER = 0, 1
HELLO, REPLY, WITNESS, SHARE, CONFIRM, IDENTITY = 1, 2, 3, 4, 5, 6
ANONYMOUS, IDENTIFIED = 1, 2
WITNESS_VERSION = 1

EPOCH = 1 << 36
REKEY_AFTER = 1 << 20
TAG = 16
MAX_PLAINTEXT = 16384


class ProtocolError(Exception):
    """The peer violated the protocol."""


def expect(condition: bool, violation: str):
    if not condition:
        raise ProtocolError(violation)


# HKDF with SHA-256 (RFC 5869)


def extract(salt: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, secret, "sha256")


def expand(key: bytes, info: bytes, length: int) -> bytes:
    out, block = b"", b""
    while len(out) < length:
        block = hmac.digest(key, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:length]


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


# Noise


PATTERNS = {
    "NNpsk2": ("e", "e ee psk"),
    "XXpsk2": ("e", "e ee s es psk", "s se"),
    # Not used by plait; other implementations publish vectors of it.
    "XXpsk3": ("e", "e ee s es", "s se psk"),
}


class CipherState:
    """A key and a nonce (Noise, section 5.1, with the nonces of section 12)."""

    def __init__(self, mode: int, key: bytes, counter: int = 0):
        self.mode, self.counter = mode, counter
        self._begin(key)

    def encrypt(self, data: bytes, plaintext: bytes) -> bytes:
        sealed = self.aead.encrypt(self._nonce(self.counter), plaintext, data)
        self.counter += 1
        return sealed

    def decrypt(self, data: bytes, sealed: bytes) -> bytes:
        try:
            plaintext = self.aead.decrypt(self._nonce(self.counter), sealed, data)
        except InvalidTag:
            raise ProtocolError("authentication failed") from None
        self.counter += 1
        return plaintext

    def rekey(self):
        self._begin(self.aead.encrypt(self._nonce(2**64 - 1), bytes(32), b"")[:32])

    def _begin(self, key: bytes):
        self.key = key
        self.aead = AESGCM(key) if self.mode == SEALED_AESGCM else ChaCha20Poly1305(key)

    def _nonce(self, counter: int) -> bytes:
        return bytes(4) + counter.to_bytes(8, "big" if self.mode == SEALED_AESGCM else "little")


class Noise:
    """One end of Noise_*_25519_*_SHA256 with a pre-shared key: call `write` and `read` in turn."""

    def __init__(self, mode: int, prologue: bytes, ephemeral: bytes | None = None, *, role: int,
                 pattern: str = "NNpsk2", static: bytes | None = None):  # fmt: skip
        self.mode, self.role = mode, role
        self.messages = iter(PATTERNS[pattern])
        self.keys = {"e": X25519PrivateKey.from_private_bytes(ephemeral or os.urandom(32))}
        if static is not None:
            self.keys["s"] = X25519PrivateKey.from_private_bytes(static)
        self.remote: dict[str, bytes] = {}
        cipher = b"AESGCM" if mode == SEALED_AESGCM else b"ChaChaPoly"
        name = f"Noise_{pattern}_25519_".encode() + cipher + b"_SHA256"
        self.hash = name.ljust(32, b"\0") if len(name) <= 32 else hashlib.sha256(name).digest()
        self.chaining_key = self.hash
        self.cipher: CipherState | None = None
        self._mix_hash(prologue)

    def write(self, psk: bytes = b"", payload: bytes = b"") -> bytes:
        out = b""
        for token in next(self.messages).split():
            if token == "e":
                public = public_key(self.keys["e"])
                self._mix_ephemeral(public)
                out += public
            elif token == "s":
                out += self._encrypt_and_hash(public_key(self.keys["s"]))
            else:
                self._mix(token, psk)
        return out + self._encrypt_and_hash(payload)

    def read(self, message: bytes, psk: bytes = b"") -> bytes:
        for token in next(self.messages).split():
            if token == "e":
                self.remote["e"], message = message[:32], message[32:]
                expect(len(self.remote["e"]) == 32, "a Noise message is too short for its public key")
                self._mix_ephemeral(self.remote["e"])
            elif token == "s":
                self.remote["s"], message = self._decrypt_and_hash(message[:48]), message[48:]
            else:
                self._mix(token, psk)
        return self._decrypt_and_hash(message)

    def split(self) -> tuple[CipherState, CipherState]:
        """The ciphers of the initiator's direction and of the responder's."""
        initiator, responder = self._hkdf(b"", 2)
        return CipherState(self.mode, initiator), CipherState(self.mode, responder)

    def _mix(self, token: str, psk: bytes):
        if token == "psk":
            self.chaining_key, blind, key = self._hkdf(psk, 3)
            self._mix_hash(blind)
            self.cipher = CipherState(self.mode, key)
            return
        # The first letter is the initiator's key.
        own, other = token if self.role == INITIATOR else reversed(token)
        try:
            self._mix_key(self.keys[own].exchange(X25519PublicKey.from_public_bytes(self.remote[other])))
        except ValueError:
            raise ProtocolError("a public key of low order") from None

    def _mix_ephemeral(self, public: bytes):
        self._mix_hash(public)
        # Section 9.2: with a pre-shared key, ephemeral public keys are mixed into the chaining key, too.
        self._mix_key(public)

    def _mix_key(self, secret: bytes):
        self.chaining_key, key = self._hkdf(secret, 2)
        self.cipher = CipherState(self.mode, key)

    def _mix_hash(self, data: bytes):
        self.hash = hashlib.sha256(self.hash + data).digest()

    def _encrypt_and_hash(self, payload: bytes) -> bytes:
        sealed = self.cipher.encrypt(self.hash, payload)
        self._mix_hash(sealed)
        return sealed

    def _decrypt_and_hash(self, sealed: bytes) -> bytes:
        payload = self.cipher.decrypt(self.hash, sealed)
        self._mix_hash(sealed)
        return payload

    def _hkdf(self, secret: bytes, outputs: int) -> list[bytes]:
        out = expand(extract(self.chaining_key, secret), b"", 32 * outputs)
        return [out[at : at + 32] for at in range(0, len(out), 32)]


def public_key(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def public_of(private: bytes) -> bytes:
    """The public key of a static private key."""
    return public_key(X25519PrivateKey.from_private_bytes(private))


def key_text(public: bytes) -> str:
    """A static public key in text form."""
    return "plait-key:" + base64.urlsafe_b64encode(public).decode().rstrip("=")


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


@dataclasses.dataclass(frozen=True)
class Hello:
    session: bytes
    configured: int
    paths: tuple[int, ...]
    version: int = ANONYMOUS
    noise: bytes = bytes(48)

    def encode(self) -> bytes:
        counts = bytes([self.configured, len(self.paths), *self.paths])
        return message(HELLO, bytes([self.version]) + self.session + counts + self.noise)

    def head(self) -> bytes:
        """The part that the prologue covers: everything before Noise's message."""
        return self.encode()[:-48]

    @classmethod
    def decode(cls, encoded: bytes) -> Hello:
        body = body_of(HELLO, encoded)
        expect(len(body) >= 35, "HELLO is too short")
        expect(body[0] in (ANONYMOUS, IDENTIFIED), f"unknown version {body[0]} of HELLO")
        configured, count = body[33], body[34]
        expect(len(body) == 83 + count, "the length of HELLO does not match its number of paths")
        paths = tuple(body[35 : 35 + count])
        expect(all(1 <= path <= 15 for path in paths), "a path id is out of range")
        expect(all(a < b for a, b in zip(paths, paths[1:])), "path ids must ascend")
        expect(count < configured <= 16, f"invalid number of configured paths: {configured}")
        return cls(body[1:33], configured, paths, body[0], body[35 + count :])


def encode_witness(session: bytes, path: int, share: bytes) -> bytes:
    return message(WITNESS, bytes([WITNESS_VERSION]) + session + bytes([path]) + share)


def decode_witness(encoded: bytes) -> tuple[bytes, int, bytes]:
    """Session id, path id and share."""
    body = body_of(WITNESS, encoded, 66)
    expect(body[0] == WITNESS_VERSION, f"unknown version {body[0]} of WITNESS")
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
        return b"plait sealed 1" + modes + self.initiator_key + self.responder_key + hello.head()


@dataclasses.dataclass(frozen=True)
class Shares:
    """Secrets derived from the session id and from the shares of all paths."""

    psk: bytes
    confirmation_key: bytes

    @classmethod
    def of(cls, session: bytes, shares: dict[int, tuple[bytes, bytes]]) -> Shares:
        """From the initiator's and the responder's share of each path."""
        secret = extract(session, b"".join(bytes([path]) + b"".join(shares[path]) for path in sorted(shares)))
        psk = expand(secret, b"plait sealed 1 psk", 32)
        return cls(psk, expand(secret, b"plait sealed 1 confirmation", 32))

    def confirmation(self, role: int, path: int, handshake_hash: bytes) -> bytes:
        return hmac.digest(self.confirmation_key, bytes([role, path]) + handshake_hash, "sha256")


def pattern_of(version: int) -> str:
    return "XXpsk2" if version == IDENTIFIED else "NNpsk2"


class Initiator:
    """The initiator's handshake: send `hello` and `witnesses`, then call `finish`; send `identity` if there is a static key."""

    identity: bytes | None = None

    def __init__(self, negotiated: Negotiated, configured: int, shares: dict[int, bytes], *,
                 session: bytes | None = None, ephemeral: bytes | None = None,
                 static: bytes | None = None):  # fmt: skip
        session = session or os.urandom(32)
        version = ANONYMOUS if static is None else IDENTIFIED
        hello = Hello(session, configured, tuple(sorted(shares)), version)
        self.session, self.own_shares, self.version = session, shares, version
        self.noise = Noise(negotiated.chosen, negotiated.prologue(hello), ephemeral, role=INITIATOR,
                           pattern=pattern_of(version), static=static)  # fmt: skip
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
        self.shares = Shares.of(self.session, pairs)
        length = 96 if self.version == IDENTIFIED else 48
        self.noise.read(body_of(REPLY, reply, length), self.shares.psk)
        for path, confirmation in confirmations.items():
            expected = self.shares.confirmation(RESPONDER, path, self.noise.hash)
            expect(hmac.compare_digest(confirmation, expected), "a wrong confirmation")
        if self.version == IDENTIFIED:
            expect(key in (None, self.noise.remote["s"]), "the responder has another static key")
            self.identity = message(IDENTITY, self.noise.write())
        sending, receiving = self.noise.split()
        self.sealer, self.opener = Sealer(sending), Opener(receiving)
        confirm = self.shares.confirmation
        return {path: message(CONFIRM, bytes([path]) + confirm(INITIATOR, path, self.noise.hash))
                for path in self.own_shares}  # fmt: skip


class Responder:
    """The responder's handshake, from HELLO and all WITNESSes: send `reply` and `answers`, then call `finish`."""

    def __init__(self, negotiated: Negotiated, hello: bytes, witnesses: dict[int, bytes],
                 shares: dict[int, bytes], *, ephemeral: bytes | None = None,
                 static: bytes | None = None):  # fmt: skip
        received = Hello.decode(hello)
        expect(set(received.paths) == set(witnesses) == set(shares), "the witnesses are not those of HELLO")
        expect(received.version == ANONYMOUS or static is not None, "an identity is required, there is none")
        pairs = {}
        for path, witness in witnesses.items():
            session, claimed, share = decode_witness(witness)
            expect(session == received.session, "a WITNESS is of another session")
            expect(claimed == path, "a WITNESS is of another path")
            pairs[path] = (share, shares[path])
        self.level, self.version = f"{len(received.paths) + 1}/{received.configured}", received.version
        self.shares = Shares.of(received.session, pairs)
        self.noise = Noise(negotiated.chosen, negotiated.prologue(received), ephemeral, role=RESPONDER,
                           pattern=pattern_of(received.version), static=static)  # fmt: skip
        expect(self.noise.read(received.noise) == b"", "Noise's first message has a payload")
        self.reply = message(REPLY, self.noise.write(self.shares.psk))
        confirm = self.shares.confirmation
        self.answers = {
            path: message(SHARE, bytes([path]) + share + confirm(RESPONDER, path, self.noise.hash))
            for path, share in shares.items()
        }

    def finish(self, confirms: dict[int, bytes], identity: bytes | None = None, key: bytes | None = None):
        """Verifies IDENTITY, every CONFIRM and, if `key` is given, the initiator's static key."""
        expect((identity is not None) == (self.version == IDENTIFIED), "IDENTITY is missing or unexpected")
        if identity is not None:
            self.noise.read(body_of(IDENTITY, identity, 64))
            expect(key in (None, self.noise.remote["s"]), "the initiator has another static key")
        for path in self.answers:
            body = body_of(CONFIRM, confirms[path], 33)
            expect(body[0] == path, "a CONFIRM is of another path")
            expected = self.shares.confirmation(INITIATOR, path, self.noise.hash)
            expect(hmac.compare_digest(body[1:], expected), "a wrong confirmation")
        receiving, sending = self.noise.split()
        self.sealer, self.opener = Sealer(sending), Opener(receiving)


# sealed: records


class Sealer:
    """Encrypts one direction of a stream into records."""

    def __init__(self, state: CipherState):
        self.state = state

    def seal(self, plaintext: bytes) -> bytes:
        """The bytes in as few records as possible; no bytes, no record."""
        pieces = range(0, len(plaintext), MAX_PLAINTEXT)
        return b"".join(self._record(plaintext[at : at + MAX_PLAINTEXT]) for at in pieces)

    def end(self) -> bytes:
        """The record that ends the direction."""
        return self._record(b"")

    def _record(self, plaintext: bytes) -> bytes:
        length = (len(plaintext) + TAG).to_bytes(2, "big")
        record = length + self.state.encrypt(length, plaintext)
        if self.state.counter % REKEY_AFTER == 0:
            self.state.rekey()
        return record


class Opener:
    """Decrypts the records of one direction, however they are split."""

    def __init__(self, state: CipherState):
        self.state, self.pending, self.ended = state, b"", False

    def feed(self, data: bytes) -> bytes:
        data = self.pending + data
        at, out = 0, []
        while at + 2 <= len(data) and not self.ended:
            length = int.from_bytes(data[at : at + 2], "big")
            expect(TAG <= length <= MAX_PLAINTEXT + TAG, f"invalid length of a record: {length}")
            end = at + 2 + length
            if end > len(data):
                break
            plaintext = self.state.decrypt(data[at : at + 2], data[at + 2 : end])
            if self.state.counter % REKEY_AFTER == 0:
                self.state.rekey()
            self.ended = not plaintext
            out.append(plaintext)
            at = end
        self.pending = data[at:]
        expect(not (self.ended and self.pending), "bytes follow the end")
        return b"".join(out)

    def close(self):
        """To be called when the TCP stream ends."""
        expect(self.ended, "the stream is truncated")
