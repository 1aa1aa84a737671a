"""The filters of `plait codec`, compared with the definition of xor64 and with peer.py, the reference implementation."""

import functools
import os
import random
import subprocess

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import peer
import peer_records
from hosts import PLAIT
from peer import SEALED_CIPHERS, STREAM_CIPHERS, Keystream
from peer_crypto import CipherState
from peer_records import Opener, Sealer

IMPLEMENTATIONS = ["straightforward", "running", "simd"]
SIZE = 10_000_000


def codec(*arguments, data: bytes) -> subprocess.CompletedProcess:
    command = [PLAIT, "codec", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, timeout=120)


def filtered(*arguments, data: bytes) -> bytes:
    """The output of a filter that must succeed."""
    done = codec(*arguments, data=data)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout


@functools.cache
def scramble(plain: bytes, seed: bytes) -> bytes:
    """B_i = b_i xor the 64 plaintext bytes before it; the stream is preceded by zeros and the seed."""
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


def assert_xor64_matches(plain: bytes, seed: bytes, implementation: str):
    options = ("--seed", seed.hex(), "--impl", implementation)
    wire = scramble(plain, seed)
    assert filtered("xor64", "--encode", *options, data=plain) == wire
    assert filtered("xor64", "--decode", *options, data=wire) == plain


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_xor64_matches_its_definition(implementation):
    source = random.Random(64)
    assert_xor64_matches(source.randbytes(SIZE), source.randbytes(32), implementation)
    for length in range(1, 65):
        assert_xor64_matches(source.randbytes(1000 + length), source.randbytes(length), implementation)


@pytest.mark.parametrize("seed", ["", "00" * 65, "0", "xy"])
def test_rejects_invalid_seeds(seed):
    done = codec("xor64", "--encode", "--seed", seed, data=b"data")
    assert done.returncode == 2
    assert done.stdout == b"" and b"seed" in done.stderr


@pytest.fixture
def secret_file(tmp_path):
    def write(secret: bytes):
        file = tmp_path / "secret"
        file.write_text(secret.hex(" ", 8) + "\n")
        return file

    return write


@pytest.mark.parametrize("cipher", STREAM_CIPHERS)
@pytest.mark.parametrize("direction, end", enumerate(["initiator", "responder"]))
def test_stream_matches_the_reference(secret_file, cipher, direction, end):
    plain, keys = os.urandom(SIZE), (os.urandom(8), os.urandom(8), os.urandom(32))
    wire = Keystream(STREAM_CIPHERS[cipher], peer.stream_secret(*keys), direction).apply(plain)
    options = ["--secrets", secret_file(b"".join(keys)), "--cipher", cipher, "--from", end]
    assert filtered("stream", *options, data=plain) == wire
    assert filtered("stream", *options, data=wire) == plain


def pieces_of(plain: bytes):
    start = 0
    while start < len(plain):
        end = start + random.choice([1, 100, 1448, peer_records.MAX_CONTENT - 1, peer_records.MAX_CONTENT])
        yield plain[start:end]
        start = end


@pytest.mark.parametrize("cipher", SEALED_CIPHERS)
def test_sealed_matches_the_reference(secret_file, cipher):
    plain, key = os.urandom(SIZE), os.urandom(32)
    options = ["--key", secret_file(key), "--cipher", cipher]
    opener = Opener(CipherState(SEALED_CIPHERS[cipher], key))
    assert opener.feed(filtered("sealed", "--encode", *options, data=plain)) == plain
    opener.close()
    sealer = Sealer(CipherState(SEALED_CIPHERS[cipher], key))
    wire = b"".join(map(sealer.seal, pieces_of(plain))) + sealer.end()
    assert filtered("sealed", "--decode", *options, data=wire) == plain


@pytest.mark.long
def test_sealed_changes_keys_when_the_reference_does(secret_file):
    """A little more than a million records of one byte each; test vectors cover the change itself."""
    key = bytes(32)
    sealer = Sealer(CipherState(peer.SEALED_AESGCM, key))
    plain = bytes(range(256)) * ((peer_records.REKEY_AFTER >> 8) + 1)
    wire = b"".join(sealer.seal(plain[at : at + 1]) for at in range(len(plain))) + sealer.end()
    options = ("--decode", "--key", secret_file(key), "--cipher", "aes-256-gcm")
    assert filtered("sealed", *options, data=wire) == plain


@pytest.mark.parametrize("cipher", SEALED_CIPHERS)
def test_sealed_detects_modified_records_and_passes_on_only_what_precedes_them(secret_file, cipher):
    key = bytes(range(32))
    options = ["--decode", "--key", secret_file(key), "--cipher", cipher]
    sealer = Sealer(CipherState(SEALED_CIPHERS[cipher], key))
    one, two, end = sealer.seal(b"one"), sealer.seal(b"two"), sealer.end()
    changed = two[:3] + bytes([two[3] ^ 1]) + two[4:]
    changed_tag = two[:-1] + bytes([two[-1] ^ 1])
    for wire, plain, reason in (
        (one + changed + end, b"one", b"failed authentication"),
        (one + changed_tag + end, b"one", b"failed authentication"),
        (two + one + end, b"", b"failed authentication"),
        (one + one + two + end, b"one", b"failed authentication"),
        (one + end, b"one", b"failed authentication"),
        (one + b"\0\x10" + two + end, b"one", b"expected a length from 17 to 16401, got 16"),
        (one + b"\x40\x12", b"one", b"expected a length from 17 to 16401, got 16402"),
        (one + two + end + b"\0", b"onetwo", b"expected nothing"),
        (one + two, b"onetwo", b"truncated after 2 records"),
        (one + two + end[:-1], b"onetwo", b"truncated after 2 records"),
        (b"", b"", b"truncated after 0 records"),
    ):
        done = codec("sealed", *options, data=wire)
        assert done.returncode == 1, reason
        assert done.stdout == plain
        assert reason in done.stderr


def test_rejects_missing_and_short_keys(tmp_path, secret_file):
    for file, reason in (
        (tmp_path / "none", b"cannot read"),
        (secret_file(bytes(31)), b"expected 32 bytes"),
    ):
        done = codec("sealed", "--encode", "--key", file, "--cipher", "aes-256-gcm", data=b"data")
        assert done.returncode == 1
        assert done.stdout == b"" and reason in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "--secrets", "/dev/null", "--cipher", "rc4", "--from", "initiator"],
        ["stream", "--secrets", "/dev/null", "--cipher", "chacha20", "--from", "server"],
        ["stream", "--cipher", "chacha20", "--from", "initiator"],
        ["sealed", "--encode", "--key", "/dev/null", "--cipher", "aes-256-ctr"],
        ["sealed", "--key", "/dev/null", "--cipher", "aes-256-gcm"],
    ],
)
def test_invalid_arguments_are_usage_errors(arguments):
    done = codec(*arguments, data=b"data")
    assert done.returncode == 2
    assert done.stdout == b""
