"""Attacks on the kernel module's memory by programs of its own host, in a guest with Debian's kernel (kmod/guest)."""

import os
import subprocess

import pytest
from hosts import REPOSITORY

GUEST = REPOSITORY / "kmod" / "guest"


@pytest.fixture(scope="module")
def module():
    """The module, built for the guest's kernel."""
    if os.geteuid() != 0:
        pytest.skip("a guest needs root")
    fetched = subprocess.run([GUEST / "fetch"], capture_output=True, text=True, timeout=600)
    if fetched.returncode:
        pytest.skip(f"no guest: {fetched.stderr.splitlines()[-1]}")
    release = fetched.stdout.strip()
    subprocess.run(["make", "-s", "kmod", f"KERNEL={release}"], cwd=REPOSITORY, check=True, timeout=600)


def test_peeks_take_bounded_and_charged_memory_and_leave_no_plaintext(module):
    """kmod/tests/memory.py has the attacks: threads that peek at large buffers, and a search of all memory for secrets."""
    done = subprocess.run(
        [GUEST / "boot", "kmod/tests/memory.py"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert "3 of 3 ok" in done.stdout
