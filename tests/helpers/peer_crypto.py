"""The cryptography of the reference implementation (peer.py): HKDF, Noise, and key exchanges."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from kyber_py.ml_kem import ML_KEM_768

SEALED_CHACHAPOLY, SEALED_AESGCM = 0x10, 0x20
INITIATOR, RESPONDER = 0, 1
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


# Key exchanges


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key of low order") from None


def encapsulate(key: bytes, random: bytes) -> tuple[bytes, bytes]:
    """The shared key of ML-KEM-768 and its ciphertext. (The public function of the library takes no random bytes.)"""
    try:
        return ML_KEM_768._encaps_internal(key, random)
    except ValueError:
        raise ProtocolError("an encapsulation key out of range") from None


def kem_material(shared: bytes, key: bytes, ciphertext: bytes) -> bytes:
    return shared + hashlib.sha256(key + ciphertext).digest()


def share_material(shares: dict[int, tuple[bytes, bytes]]) -> bytes:
    return b"".join(bytes([path]) + b"".join(shares[path]) for path in sorted(shares))
