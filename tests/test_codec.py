"""The filter `plait codec xor64`, against a version written from the definition alone."""

import random
import subprocess

import pytest
from hosts import PLAIT

IMPLEMENTATIONS = ["straightforward", "running", "simd"]
SIZE = 10_000_000


def scramble(plain: bytes, seed: bytes) -> bytes:
    """B_i = b_i xor the 64 plaintext bytes before it; before the first are zeros, then the seed."""
    padded = bytes(64 - len(seed)) + seed + plain
    running = 0
    for byte in padded[:64]:
        running ^= byte
    wire = bytearray(len(plain))
    for index in range(len(plain)):
        byte = padded[index + 64]
        wire[index] = byte ^ running
        running ^= byte ^ padded[index]
    return bytes(wire)


def filter_through(data: bytes, direction: str, seed: bytes, implementation: str) -> bytes:
    command = [PLAIT, "codec", "xor64", f"--{direction}", "--seed", seed.hex(), "--impl", implementation]
    return subprocess.run(command, input=data, capture_output=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ten_megabytes_in_both_directions(implementation):
    source = random.Random(64)
    plain, seed = source.randbytes(SIZE), source.randbytes(32)
    wire = scramble(plain, seed)
    assert filter_through(plain, "encode", seed, implementation) == wire
    assert filter_through(wire, "decode", seed, implementation) == plain


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_seed_length(implementation):
    source = random.Random(65)
    for length in range(1, 65):
        plain, seed = source.randbytes(1000 + length), source.randbytes(length)
        wire = scramble(plain, seed)
        assert filter_through(plain, "encode", seed, implementation) == wire
        assert filter_through(wire, "decode", seed, implementation) == plain


@pytest.mark.parametrize("seed", ["", "00" * 65, "0", "xy"])
def test_other_seeds_are_wrong_usage(seed):
    command = [PLAIT, "codec", "xor64", "--encode", "--seed", seed]
    done = subprocess.run(command, input=b"data", capture_output=True, timeout=10)
    assert done.returncode == 2
    assert done.stdout == b"" and b"seed" in done.stderr
