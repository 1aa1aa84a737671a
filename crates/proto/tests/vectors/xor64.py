#!/usr/bin/env python3
"""Writes xor64.txt, the test vectors of xor64, from the definition of the transform and nothing else.

Each line is: seed, plaintext, wire form; in hexadecimal, "-" for nothing.
"""

import hashlib
from pathlib import Path


def encode(seed: bytes, plain: bytes) -> bytes:
    stream = bytes(64 - len(seed)) + seed + plain
    wire = bytearray()
    for i in range(len(plain)):
        byte = 0
        for b in stream[i : i + 65]:
            byte ^= b
        wire.append(byte)
    return bytes(wire)


def noise(label: str, length: int) -> bytes:
    return hashlib.shake_256(label.encode()).digest(length)


def cases():
    yield b"\x01", b""
    yield b"\x01", b"\x00"
    yield b"\x01", bytes(200)
    yield b"\xff" * 64, b"\xff" * 200
    yield bytes(range(1, 9)), b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" * 4
    for length in (1, 7, 8, 20, 31, 32, 33, 63, 64):
        yield noise(f"seed {length}", length), noise(f"plain {length}", 300 - length)
    for length in (63, 64, 65, 66, 128, 129, 130, 131, 1024, 1280):
        yield noise(f"key {length}", 32), noise(f"text {length}", length)


with (Path(__file__).parent / "xor64.txt").open("w") as out:
    for seed, plain in cases():
        print(seed.hex(), plain.hex() or "-", encode(seed, plain).hex() or "-", file=out)
