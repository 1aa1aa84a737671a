"""The filters of `plait codec`, against versions written from the definitions alone."""

import hashlib
import hmac
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


STREAM_CIPHERS = ["aes-256-ctr", "chacha20"]
SEALED_CIPHERS = {"chacha20-poly1305": "little", "aes-256-gcm": "big"}
MAX_PLAINTEXT = 16384


def keystream(secrets: bytes, direction: int, cipher: str, length: int) -> bytes:
    """The first epoch of a direction; AES and ChaCha20 are cryptography's."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    extracted = hmac.digest(b"plait stream 1", secrets, hashlib.sha256)
    key = hmac.digest(extracted, bytes([direction]) + bytes(8) + b"\x01", hashlib.sha256)
    if cipher == "aes-256-ctr":
        machine = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
    else:
        machine = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return machine.encryptor().update(bytes(length))


def exclusive_or(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


class Records:
    """One direction of sealed, up to its 2^20th record: an AEAD of cryptography's and counted nonces."""

    def __init__(self, cipher: str, key: bytes):
        pytest.importorskip("cryptography")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

        self.machine = AESGCM(key) if cipher == "aes-256-gcm" else ChaCha20Poly1305(key)
        self.order = SEALED_CIPHERS[cipher]
        self.used = 0

    def next_nonce(self) -> bytes:
        self.used += 1
        return bytes(4) + (self.used - 1).to_bytes(8, self.order)

    def seal(self, plain: bytes) -> bytes:
        length = (len(plain) + 16).to_bytes(2, "big")
        return length + self.machine.encrypt(self.next_nonce(), plain, length)

    def open(self, wire: bytes) -> list[bytes]:
        """The plaintexts of all records."""
        plains, start = [], 0
        while start < len(wire):
            length = wire[start : start + 2]
            end = start + 2 + int.from_bytes(length, "big")
            plains.append(self.machine.decrypt(self.next_nonce(), wire[start + 2 : end], length))
            start = end
        return plains


def pieces_of(plain: bytes, source: random.Random):
    start = 0
    while start < len(plain):
        end = start + source.choice([1, 100, 1448, MAX_PLAINTEXT - 1, MAX_PLAINTEXT])
        yield plain[start:end]
        start = end


def codec(*arguments, data: bytes) -> subprocess.CompletedProcess:
    command = [PLAIT, "codec", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, timeout=120)


@pytest.fixture
def secret_file(tmp_path):
    def write(secret: bytes):
        file = tmp_path / "secret"
        file.write_text(secret.hex(" ", 8) + "\n")
        return file

    return write


@pytest.mark.parametrize("cipher", STREAM_CIPHERS)
@pytest.mark.parametrize("direction, end", enumerate(["initiator", "responder"]))
def test_stream_is_its_definition(secret_file, cipher, direction, end):
    source = random.Random(66)
    plain, secrets = source.randbytes(SIZE), source.randbytes(48)
    wire = exclusive_or(plain, keystream(secrets, direction, cipher, SIZE))
    options = ["--secrets", secret_file(secrets), "--cipher", cipher, "--from", end]
    for data, expected in ((plain, wire), (wire, plain)):
        done = codec("stream", *options, data=data)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == expected


@pytest.mark.parametrize("cipher", SEALED_CIPHERS)
def test_sealed_records_are_their_definition(secret_file, cipher):
    source = random.Random(67)
    plain, key = source.randbytes(SIZE), source.randbytes(32)
    options = ["--key", secret_file(key), "--cipher", cipher]

    sealed = codec("sealed", "--encode", *options, data=plain)
    assert (sealed.returncode, sealed.stderr) == (0, b"")
    plains = Records(cipher, key).open(sealed.stdout)
    assert b"".join(plains) == plain
    assert plains[-1] == b"" and all(0 < len(plain) <= MAX_PLAINTEXT for plain in plains[:-1])

    records = Records(cipher, key)
    wire = b"".join(map(records.seal, pieces_of(plain, source))) + records.seal(b"")
    opened = codec("sealed", "--decode", *options, data=wire)
    assert (opened.returncode, opened.stderr) == (0, b"")
    assert opened.stdout == plain


@pytest.mark.parametrize("cipher", SEALED_CIPHERS)
def test_sealed_detects_modified_records(secret_file, cipher):
    key = bytes(range(32))
    options = ["--decode", "--key", secret_file(key), "--cipher", cipher]
    records = Records(cipher, key)
    one, two, end = records.seal(b"one"), records.seal(b"two"), records.seal(b"")
    changed = two[:3] + bytes([two[3] ^ 1]) + two[4:]
    for wire, plain, reason in (
        (one + changed + end, b"one", b"failed authentication"),
        (two + one + end, b"", b"failed authentication"),
        (one + one + two + end, b"one", b"failed authentication"),
        (one + end, b"one", b"failed authentication"),
        (one + b"\0\x0f" + two + end, b"one", b"expected a length from 16 to 16400, got 15"),
        (one + b"\x40\x11", b"one", b"expected a length from 16 to 16400, got 16401"),
        (one + two + end + b"\0", b"onetwo", b"expected nothing"),
        (one + two, b"onetwo", b"truncated after 2 records"),
        (one + two + end[:-1], b"onetwo", b"truncated after 2 records"),
        (b"", b"", b"truncated after 0 records"),
    ):
        done = codec("sealed", *options, data=wire)
        assert done.returncode == 1, reason
        assert done.stdout == plain
        assert reason in done.stderr


def test_a_key_that_is_none_is_an_error(tmp_path, secret_file):
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
def test_wrong_usage(arguments):
    done = codec(*arguments, data=b"data")
    assert done.returncode == 2
    assert done.stdout == b""
