"""The records and key updates of mode `sealed`, of the reference implementation (peer.py)."""

from __future__ import annotations

import hashlib
import os

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from kyber_py.ml_kem import ML_KEM_768
from peer_crypto import (
    CIPHERTEXT_LENGTH,
    EK_LENGTH,
    INITIATOR,
    RESPONDER,
    CipherState,
    Noise,
    agree,
    encapsulate,
    expand,
    expect,
    extract,
    kem_material,
    public_key,
    share_material,
)

# The types of records.
DATA, END, UPDATE_REQUEST, UPDATE_RESPONSE, NEW_KEY = 1, 2, 3, 4, 5
# The first ones to an exit, and from it; content and padding of the former have at least so many bytes.
DESTINATION, OUTCOME = 7, 8
DESTINATION_LENGTH = 256
REKEY_AFTER = 1 << 20
TAG = 16
# Bytes of the content and padding of a record.
MAX_CONTENT = 16384


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
        length = max(len(content), DESTINATION_LENGTH) if kind == DESTINATION else len(content)
        units = -(-length // self.pad)
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
        # The type that the first record must have, if not that of a service's, and its content.
        self.first: int | None = None
        self.first_content = b""

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
        if self.first is not None:
            expect(kind == self.first, f"expected a first record of type {self.first}, got {kind}")
            self.first, self.first_content = None, content
            return b""
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


class Updates:
    """The key updates of one end, after its handshake, and its records."""

    def __init__(self, role: int, noise: Noise, hybrid: bool):
        ciphers = noise.split()
        self.role, self.hybrid = role, hybrid
        self.root = extract(noise.hash, ciphers[0].key + ciphers[1].key)
        self.late_salt, self.hash = expand(self.root, b"plait sealed 3 late witness", 32), noise.hash
        self.side_salt = expand(self.root, b"plait sealed 3 side connection", 32)
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
