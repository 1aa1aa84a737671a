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
from kyber_py.ml_kem import ML_KEM_768

STREAM_CHACHA20, STREAM_AES256, SEALED_CHACHAPOLY, SEALED_AESGCM = 0x04, 0x08, 0x10, 0x20
# By the names that `plait codec --cipher` takes.
STREAM_CIPHERS = {"chacha20": STREAM_CHACHA20, "aes-256-ctr": STREAM_AES256}
SEALED_CIPHERS = {"chacha20-poly1305": SEALED_CHACHAPOLY, "aes-256-gcm": SEALED_AESGCM}

INITIATOR, RESPONDER = 0, 1
HELLO, REPLY, WITNESS, SHARE, CONFIRM, IDENTITY = 1, 2, 3, 4, 5, 6
VERSION = 3
# The flags of HELLO.
IDENTIFIED, HYBRID = 1, 2

EPOCH = 1 << 36
# The types of records.
DATA, END, UPDATE_REQUEST, UPDATE_RESPONSE, NEW_KEY = 1, 2, 3, 4, 5
REKEY_AFTER = 1 << 20
TAG = 16
# Bytes of the content and padding of a record.
MAX_CONTENT = 16384
# Bytes of an encapsulation key and of a ciphertext of ML-KEM-768.
EK_LENGTH, CIPHERTEXT_LENGTH = 1184, 1088


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
        self.mode, self.counter, self.of_key = mode, counter, counter
        self._begin(key)

    def encrypt(self, data: bytes, plaintext: bytes) -> bytes:
        sealed = self.aead.encrypt(self._nonce(self.counter), plaintext, data)
        self._count()
        return sealed

    def decrypt(self, data: bytes, sealed: bytes) -> bytes:
        try:
            plaintext = self.aead.decrypt(self._nonce(self.counter), sealed, data)
        except InvalidTag:
            raise ProtocolError("authentication failed") from None
        self._count()
        return plaintext

    def replace(self, key: bytes):
        """Another key from the next record on; the counter goes on."""
        self.of_key = 0
        self._begin(key)

    def _count(self):
        self.counter += 1
        self.of_key += 1

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


def encode_witness(session: bytes, path: int, share: bytes) -> bytes:
    return message(WITNESS, bytes([VERSION]) + session + bytes([path]) + share)


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


def share_material(shares: dict[int, tuple[bytes, bytes]]) -> bytes:
    return b"".join(bytes([path]) + b"".join(shares[path]) for path in sorted(shares))


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


def encapsulate(key: bytes, random: bytes) -> tuple[bytes, bytes]:
    """The shared key of ML-KEM-768 and its ciphertext. (The public function of the library takes no random bytes.)"""
    try:
        return ML_KEM_768._encaps_internal(key, random)
    except ValueError:
        raise ProtocolError("an encapsulation key out of range") from None


def kem_material(shared: bytes, key: bytes, ciphertext: bytes) -> bytes:
    return shared + hashlib.sha256(key + ciphertext).digest()


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


# sealed: records


class Sealer:
    """Encrypts one direction of a stream into records, whose content is padded to a multiple of `pad` bytes."""

    def __init__(self, state: CipherState, pad: int = 1):
        self.state, self.pad, self.ended = state, pad, False

    def seal(self, data: bytes) -> bytes:
        """The bytes in as few records as possible; no bytes, no record."""
        most = MAX_CONTENT - MAX_CONTENT % self.pad
        return b"".join(self.record(DATA, data[at : at + most]) for at in range(0, len(data), most))

    def end(self) -> bytes:
        """The record that ends the direction."""
        self.ended = True
        return self.record(END)

    def record(self, kind: int, content: bytes = b"") -> bytes:
        units = -(-len(content) // self.pad)
        if self.pad > 1:
            units = max(units, 1)
        return self.raw_record(content + bytes([kind]) + bytes(units * self.pad - len(content)))

    def raw_record(self, plaintext: bytes) -> bytes:
        length = (len(plaintext) + TAG).to_bytes(2, "big")
        record = length + self.state.encrypt(length, plaintext)
        if self.state.of_key % REKEY_AFTER == 0:
            self.state.rekey()
        return record


class Opener:
    """Decrypts the records of one direction, however they are split. `on_control` is called with the type and the content of
    each that is neither data nor the end, before the next is decrypted."""

    def __init__(self, state: CipherState, on_control=None):
        self.state, self.pending, self.ended, self.on_control = state, b"", False, on_control
        self.lengths: list[int] = []

    def feed(self, data: bytes) -> bytes:
        data = self.pending + data
        at, out = 0, []
        while at + 2 <= len(data) and not self.ended:
            length = int.from_bytes(data[at : at + 2], "big")
            expect(TAG < length <= MAX_CONTENT + 1 + TAG, f"invalid length of a record: {length}")
            end = at + 2 + length
            if end > len(data):
                break
            plaintext = self.state.decrypt(data[at : at + 2], data[at + 2 : end])
            if self.state.of_key % REKEY_AFTER == 0:
                self.state.rekey()
            self.lengths.append(length)
            out.append(self._take(plaintext.rstrip(b"\0")))
            at = end
        self.pending = data[at:]
        expect(not (self.ended and self.pending), "bytes follow the end")
        return b"".join(out)

    def _take(self, plaintext: bytes) -> bytes:
        """The data of a record, without its padding."""
        expect(bool(plaintext), "a record without a type")
        content, kind = plaintext[:-1], plaintext[-1]
        if kind == DATA:
            expect(bool(content), "a record without data")
            return content
        if kind == END:
            expect(not content, "the record that ends the direction has content")
            self.ended = True
            return b""
        expect(kind <= NEW_KEY and self.on_control is not None, f"unexpected record of type {kind}")
        self.on_control(kind, content)
        return b""

    def close(self):
        """To be called when the TCP stream ends."""
        expect(self.ended, "the stream is truncated")


# sealed: key updates


def late_confirm(updates: Updates, path: int, share: bytes, answer: bytes) -> bytes:
    """The initiator's CONFIRM of a late witness, from the share in its WITNESS and from SHARE. The next update mixes it in."""
    body = body_of(SHARE, answer, 65)
    expect(body[0] == path, "a SHARE is of another path")
    pair = share, body[1:33]
    keys = Shares.of(updates.late_salt, {path: pair})
    expected = keys.confirmation(RESPONDER, path, updates.hash)
    expect(hmac.compare_digest(body[33:], expected), "a wrong confirmation")
    updates.late[path] = pair
    return message(CONFIRM, bytes([path]) + keys.confirmation(INITIATOR, path, updates.hash))


class Updates:
    """The key updates of one end, after its handshake, and its records."""

    def __init__(self, role: int, noise: Noise, hybrid: bool):
        ciphers = noise.split()
        self.role, self.hybrid = role, hybrid
        self.root = extract(noise.hash, ciphers[0].key + ciphers[1].key)
        self.late_salt, self.hash = expand(self.root, b"plait sealed 3 late witness", 32), noise.hash
        # The shares of late witnesses, by path, that the next update mixes in.
        self.late: dict[int, tuple[bytes, bytes]] = {}
        self.sealer = Sealer(ciphers[role])
        self.opener = Opener(ciphers[1 - role], self._receive)
        self.requested: bytes | None = None
        self.next_receiving_key: bytes | None = None
        self.completed = 0
        # Records to send.
        self.output = b""

    def request(self, private: bytes | None = None, seed: bytes | None = None) -> bytes:
        """The record that asks for an update. `seed`: of the pair of encapsulation and decapsulation keys."""
        expect(self.role == INITIATOR and self.requested is None, "an update cannot begin")
        self.private = X25519PrivateKey.from_private_bytes(private or os.urandom(32))
        key = b""
        if self.hybrid:
            key, self.decapsulation_key = ML_KEM_768.key_derive(seed or os.urandom(64))
        self.mixed, self.late = self.late, {}
        self.requested = public_key(self.private) + key + bytes(sorted(self.mixed))
        return self.sealer.record(UPDATE_REQUEST, self.requested)

    def _receive(self, kind: int, content: bytes):
        if kind == UPDATE_REQUEST:
            self.output += self.respond(content)
        elif kind == UPDATE_RESPONSE:
            self.output += self.finish(content)
        else:
            expect(kind == NEW_KEY and not content, "NEW_KEY has content")
            expect(self.next_receiving_key is not None, "an unexpected NEW_KEY")
            self.opener.state.replace(self.next_receiving_key)
            self.next_receiving_key = None

    def respond(self, request: bytes, private: bytes | None = None,
                encapsulated: bytes | None = None) -> bytes:  # fmt: skip
        """The responder's record; none if it has sent its end. `encapsulated`: the random bytes of the ciphertext."""
        expect(self.role == RESPONDER and self.next_receiving_key is None, "an unexpected UPDATE_REQUEST")
        keys_length = 32 + EK_LENGTH * self.hybrid
        paths = request[keys_length:]
        expect(
            len(request) >= keys_length and list(paths) == sorted(set(paths)), "a malformed UPDATE_REQUEST"
        )
        expect(set(paths) <= set(self.late), "an UPDATE_REQUEST names a path without a late witness")
        if self.sealer.ended:
            return b""
        own = X25519PrivateKey.from_private_bytes(private or os.urandom(32))
        response, material = public_key(own), agree(own, request[:32])
        if key := request[32:keys_length]:
            shared, ciphertext = encapsulate(key, encapsulated or os.urandom(32))
            response, material = response + ciphertext, material + kem_material(shared, key, ciphertext)
        record = self.sealer.record(UPDATE_RESPONSE, response)
        material += share_material({path: self.late.pop(path) for path in paths})
        to_responder, to_initiator = self._next_keys(material, request, response)
        self.sealer.state.replace(to_initiator)
        self.next_receiving_key = to_responder
        return record

    def finish(self, response: bytes) -> bytes:
        """The initiator's last record; none if it has sent its end."""
        expect(self.role == INITIATOR and self.requested is not None, "an unexpected UPDATE_RESPONSE")
        expect(len(response) == 32 + CIPHERTEXT_LENGTH * self.hybrid, "the length of UPDATE_RESPONSE")
        material = agree(self.private, response[:32])
        if ciphertext := response[32:]:
            shared = ML_KEM_768.decaps(self.decapsulation_key, ciphertext)
            material += kem_material(shared, self.requested[32 : 32 + EK_LENGTH], ciphertext)
        material += share_material(self.mixed)
        to_responder, to_initiator = self._next_keys(material, self.requested, response)
        self.requested = None
        self.opener.state.replace(to_initiator)
        if self.sealer.ended:
            return b""
        record = self.sealer.record(NEW_KEY)
        self.sealer.state.replace(to_responder)
        return record

    def _next_keys(self, material: bytes, request: bytes, response: bytes) -> list[bytes]:
        """The keys of the initiator's direction and of the responder's."""
        transcript = hashlib.sha256(request + response).digest()
        self.root = extract(self.root, material + transcript)
        self.completed += 1
        return [expand(self.root, b"plait sealed 3 key" + bytes([direction]), 32) for direction in (0, 1)]


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key of low order") from None
