#!/usr/bin/env python3
"""Writes records.txt, the test vectors of the records of mode sealed, from their definition; the AEADs are cryptography's.

Each line is: cipher, key, how many records this key has sealed before (decimal), the bytes to a multiple of which records are
padded (decimal; 1: none), the data of the records with commas between ("-" for none), what goes on the wire, the record that
ends the direction included.
"""

import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

AEADS = {"chacha20-poly1305": (ChaCha20Poly1305, "little"), "aes-256-gcm": (AESGCM, "big")}
REKEY = 2**20


def seal(cipher: str, key: bytes, number: int, plain: bytes, additional: bytes) -> bytes:
    aead, order = AEADS[cipher]
    return aead(key).encrypt(bytes(4) + number.to_bytes(8, order), plain, additional)


def plaintext(data: bytes, unit: int) -> bytes:
    """Content, type and padding."""
    padded = data + (b"\1" if data else b"\2")
    least = max(len(data), int(unit > 1))
    return padded.ljust(-(-least // unit) * unit + 1, b"\0")


def wire(cipher: str, key: bytes, used: int, unit: int, plains: list[bytes]) -> bytes:
    sent = b""
    for number, plain in enumerate([*plains, b""], start=used):
        if number and number % REKEY == 0:
            key = seal(cipher, key, 2**64 - 1, bytes(32), b"")[:32]
        text = plaintext(plain, unit)
        length = (len(text) + 16).to_bytes(2, "big")
        sent += length + seal(cipher, key, number, text, length)
    return sent


def noise(label: str, length: int) -> bytes:
    return hashlib.shake_256(label.encode()).digest(length)


def cases():
    for cipher in AEADS:
        yield cipher, bytes(32), 0, 1, []
        yield cipher, bytes(32), 0, 1, [b"\0"]
        yield cipher, bytes(range(32)), 0, 1, [b"GET / HTTP/1.1\r\n", b"Host: example.org\r\n\r\n"]
        yield cipher, noise("key", 32), 0, 1, [noise(f"text {n}", n) for n in (1, 15, 16, 17, 64, 300)]
        yield cipher, noise("key", 32), REKEY - 2, 1, [noise(f"text {n}", 10) for n in range(4)]
        yield cipher, noise("key", 32), REKEY - 1, 1, []
        yield cipher, noise("key", 32), 0, 100, [noise(f"text {n}", n) for n in (1, 99, 100, 101, 300)]
        yield cipher, noise("key", 32), REKEY - 1, 33, [bytes(40)]


with (Path(__file__).parent / "records.txt").open("w") as out:
    for cipher, key, used, unit, plains in cases():
        texts = ",".join(plain.hex() for plain in plains) or "-"
        print(cipher, key.hex(), used, unit, texts, wire(cipher, key, used, unit, plains).hex(), file=out)
