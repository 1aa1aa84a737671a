"""`plait kmod` where the kernel module is not loaded. What it does with it is tried in a guest: kmod/tests/command.py."""

import json
import pathlib
import subprocess

import pytest
from hosts import PLAIT

pytestmark = pytest.mark.skipif(
    pathlib.Path("/proc/plait").exists(), reason="the kernel module is loaded on this machine"
)


def kmod(*arguments):
    return subprocess.run((PLAIT, "kmod", *arguments), capture_output=True, text=True, check=False)


def test_enable_says_in_one_line_what_is_missing_and_how_to_get_it():
    done = kmod("enable", "--cgroup", "/", "--trusted", "lo")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.count("\n") == 1
    assert all(
        words in done.stderr for words in ("not loaded", "make kmod", "insmod", "docs/guide/kernel-module.md")
    )


def test_status_says_so_too_and_is_no_error():
    done = kmod("status")
    assert done.returncode == 0 and "not loaded" in done.stdout and "make kmod" in done.stdout
    done = kmod("status", "--json")
    document = json.loads(done.stdout)
    assert document["module"] == {"loaded": False, "version": None, "rules": None, "counters": None}
    assert document["enablers"] == [] and document["killed"] == []


def test_disable_without_anything_to_end_says_so():
    done = kmod("disable")
    assert done.returncode == 1 and "plait kmod enable" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--mode", "sealed", "xor64, stream"),
        ("--port", "80,x", "5000-5010"),
        ("--mark", "red", "0x1/0xff"),
    ],
)
def test_a_mistake_is_wrong_usage_and_says_what_was_expected(option, value, expected):
    done = kmod("enable", "--cgroup", "/", option, value)
    assert done.returncode == 2 and expected in done.stderr and value in done.stderr
