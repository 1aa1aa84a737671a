#!/usr/bin/env python3
"""Writes stream.txt, the test vectors of stream, from the definition of the mode; AES and ChaCha20 are cryptography's.

Each line is: cipher, the initiator's key with the responder's and the random (48 bytes), direction (0 forth, 1 back),
position of the first byte in its direction (decimal), plaintext, wire form; bytes in hexadecimal.
"""

import hashlib
import hmac
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

EPOCH = 2**36


def keystream(cipher: str, material: bytes, direction: int, position: int, length: int) -> bytes:
    """The bytes of one epoch at a position, by HKDF and one cipher call."""
    epoch, within = divmod(position, EPOCH)
    here = min(length, EPOCH - within)
    secret = hmac.digest(b"plait stream 1", material, hashlib.sha256)
    key = hmac.digest(secret, bytes([direction]) + epoch.to_bytes(8, "big") + b"\x01", hashlib.sha256)
    if cipher == "aes-256-ctr":
        block, offset = divmod(within, 16)
        machine = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big")))
    else:
        block, offset = divmod(within, 64)
        machine = Cipher(algorithms.ChaCha20(key, block.to_bytes(4, "little") + bytes(12)), mode=None)
    stream = machine.encryptor().update(bytes(offset + here))[offset:]
    rest = length - here
    return stream + (keystream(cipher, material, direction, position + here, rest) if rest else b"")


def noise(label: str, length: int) -> bytes:
    return hashlib.shake_256(label.encode()).digest(length)


def cases():
    http = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"
    for cipher in ("aes-256-ctr", "chacha20"):
        yield cipher, bytes(48), 0, 0, bytes(96)
        yield cipher, bytes(48), 1, 0, bytes(96)
        yield cipher, bytes(range(48)), 0, 0, http
        for position in (0, 1, 15, 16, 63, 64, 2**20 + 5):
            yield cipher, noise("secret", 48), position % 2, position, noise(f"at {position}", 100)
        yield cipher, noise("secret", 48), 0, EPOCH - 50, noise("boundary", 120)
        yield cipher, noise("secret", 48), 1, 7 * EPOCH - 1, noise("boundary", 40)


with (Path(__file__).parent / "stream.txt").open("w") as out:
    for cipher, material, direction, position, plain in cases():
        stream = keystream(cipher, material, direction, position, len(plain))
        wire = bytes(a ^ b for a, b in zip(plain, stream))
        print(cipher, material.hex(), direction, position, plain.hex(), wire.hex(), file=out)
