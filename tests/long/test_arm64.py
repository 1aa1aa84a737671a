"""plait on an emulated ARM64 processor: the crates' tests and the command by QEMU's user emulation, compared with the command of
this machine, and a gateway in a guest with Debian's kernel.

`scripts/arm64/fetch` fetches what this needs, into out/arm64.
"""

import os
import pathlib
import platform
import random
import re
import subprocess

import pytest
from captures import connections
from hosts import PLAIT, REPOSITORY

pytestmark = pytest.mark.long

SCRIPTS = REPOSITORY / "scripts" / "arm64"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "aarch64-unknown-linux-gnu"
# Whose tests need no kernel. As another user than root, the few that load programs or create namespaces are skipped.
CRATES = ("wire", "proto", "config", "trace", "audit", "congestion")
AS_NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/ qemu-aarch64"
# It measures the memory of its process, which the emulator shares.
NOT_EMULATED = "floods_leave_no_more_than_64_megabytes_behind"
CORPUS = REPOSITORY / "fuzz" / "corpus"
CAPTURES = [REPOSITORY / "docs/notebooks/download.pcap.zst", *sorted((CORPUS / "capture").glob("seed-*"))]
POLICIES = [REPOSITORY / "policies/never-on.toml", *sorted((CORPUS / "policy").glob("seed-*"))]
# Lines of `cargo test`.
TOTALS = re.compile(r"test result: ok\. (\d+) passed; 0 failed")
KEY = bytes(range(48))


def cross(*command, **environment: str) -> str:
    """The output of a command that compiles for ARM64."""
    command = [SCRIPTS / "cross", *command]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": REPOSITORY}
    done = subprocess.run(command, env=os.environ | environment, **options)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def fetched():
    if platform.machine() != "x86_64":
        pytest.skip("this machine cannot compile for ARM64 by scripts/arm64/cross")
    done = subprocess.run([SCRIPTS / "fetch"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        pytest.skip(f"scripts/arm64/fetch: {done.stdout.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def emulated(fetched) -> pathlib.Path:
    """The command for ARM64."""
    cross("cargo", "build", "--locked", "--release", "-p", "plait-cli")
    return TARGET / "release" / "plait"


@pytest.fixture
def same(emulated, tmp_path):
    """Runs the command with these arguments on both processors, and returns what both print."""

    def run(*arguments, data: bytes = b"") -> bytes:
        emulator = ("qemu-aarch64", "-L", REPOSITORY / "out/arm64/root")
        programs = ([PLAIT], [*emulator, emulated])
        # Not a pipe: how much a read gives, which may be a record, would depend on time.
        (tmp_path / "stdin").write_bytes(data)
        done = []
        for program in programs:
            with (tmp_path / "stdin").open("rb") as stdin:
                options = {"stdin": stdin, "capture_output": True, "timeout": 600, "cwd": tmp_path}
                done.append(subprocess.run([*program, *arguments], **options))
        here, there = done
        assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
        assert there.stdout == here.stdout and here.stdout, here.stderr.decode()
        return here.stdout

    return run


# The other tests of policies load programs, for which QEMU's user emulation has no system call.
@pytest.mark.parametrize(
    ("tests", "least"),
    [
        ([word for crate in CRATES for word in ("-p", f"plait-{crate}")], 400),
        (["-p", "plait-policy", "--lib"], 20),
    ],
    ids=["all", "policy"],
)
def test_crates_pass_their_tests(tests, least):
    # Fewer random cases of properties: the emulator is slow.
    environment = {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER": AS_NOBODY, "PROPTEST_CASES": "16"}
    command = ("cargo", "test", "--locked", "--release", "--no-fail-fast", *tests, "--", "--show-output")
    printed = cross(*command, "--skip", NOT_EMULATED, **environment)
    shown = ("test result", "SKIP", "     Running")
    print("\n".join(line for line in printed.splitlines() if line.startswith(shown)))
    assert sum(map(int, TOTALS.findall(printed))) > least


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.name)
@pytest.mark.parametrize(
    "command", [("analyze", "--json"), ("report", "--output", "-")], ids=lambda command: command[0]
)
def test_analysis_is_the_same(same, command, capture):
    same(*command, capture)


def test_analysis_of_many_connections_is_the_same(same, tmp_path):
    capture = tmp_path / "many.pcap"
    capture.write_bytes(connections(300))
    same("analyze", "--json", capture)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_judgement_of_policies_is_the_same(same, policy):
    same("policy", "check", "--json", policy)


@pytest.mark.parametrize("implementation", ["straightforward", "running", "simd"])
def test_xor64_is_the_same(same, implementation):
    plain = random.Random(64).randbytes(1_000_003)
    options = ("--seed", KEY[:32].hex(), "--impl", implementation)
    wire = same("codec", "xor64", "--encode", *options, data=plain)
    assert same("codec", "xor64", "--decode", *options, data=wire) == plain


@pytest.mark.parametrize("cipher", ["aes-256-ctr", "chacha20"])
def test_stream_is_the_same(same, tmp_path, cipher):
    secrets = tmp_path / "secrets"
    secrets.write_text(KEY.hex())
    plain = random.Random(1).randbytes(1_000_003)
    options = ("--secrets", secrets, "--cipher", cipher, "--from", "initiator")
    wire = same("codec", "stream", *options, data=plain)
    assert same("codec", "stream", *options, data=wire) == plain


@pytest.mark.parametrize("cipher", ["aes-256-gcm", "chacha20-poly1305"])
def test_sealed_is_the_same(same, tmp_path, cipher):
    key = tmp_path / "key"
    key.write_text(KEY[:32].hex())
    plain = random.Random(2).randbytes(1_000_003)
    options = ("--key", key, "--cipher", cipher)
    wire = same("codec", "sealed", "--encode", *options, data=plain)
    assert same("codec", "sealed", "--decode", *options, data=wire) == plain


def test_gateway_carries_a_transfer_over_two_paths(emulated, tmp_path):
    stripped = tmp_path / "plait"
    subprocess.run(["aarch64-linux-gnu-strip", "-o", stripped, emulated], check=True)
    script = pathlib.Path(__file__).with_name("arm64-gateway")
    done = subprocess.run(
        [SCRIPTS / "boot", stripped, script, "--", script.name],
        capture_output=True,
        text=True,
        env=os.environ | {"GUEST_SECONDS": "600"},
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "sealed 2/2" in done.stdout
    sent = re.findall(r"^path\d: (\d+) bytes from the server$", done.stdout, re.MULTILINE)
    assert len(sent) == 2 and min(map(int, sent)) > 1_000_000
    assert "the same bytes" in done.stdout
