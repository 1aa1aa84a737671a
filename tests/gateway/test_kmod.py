"""`plait kmod` without the kernel module. kmod/tests/command.py tests it with the module, in a guest."""

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


def test_enable_reports_the_missing_module_and_how_to_get_it_in_one_line():
    done = kmod("enable", "--cgroup", "/", "--trusted", "lo")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.count("\n") == 1
    for words in ("not loaded", "make kmod", "insmod", "docs/guide/kernel-module.md"):
        assert words in done.stderr


def test_status_reports_the_missing_module_without_an_error():
    done = kmod("status")
    assert done.returncode == 0 and "not loaded" in done.stdout and "make kmod" in done.stdout
    done = kmod("status", "--json")
    document = json.loads(done.stdout)
    assert document["module"] == {"loaded": False, "version": None, "rules": None, "counters": None}
    assert document["enablers"] == [] and document["killed"] == []


def test_disable_without_an_enabler_is_an_error():
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
def test_invalid_options_are_usage_errors_that_state_what_was_expected(option, value, expected):
    done = kmod("enable", "--cgroup", "/", option, value)
    assert done.returncode == 2 and expected in done.stderr and value in done.stderr
