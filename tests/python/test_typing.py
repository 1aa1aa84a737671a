"""The package and programs that use it are typed, and the stubs of the native module match it."""

import os
import subprocess

import pytest
from hosts import REPOSITORY
from package import VENV_PYTHON, installed, skip_without

PYTHON_TESTS = REPOSITORY / "tests" / "python"


def mypy(module: str, *arguments, **environment):
    skip_without("mypy")
    command = [VENV_PYTHON, "-m", module, *arguments]
    options = {"cwd": REPOSITORY, "env": os.environ | environment, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("files", [[], [PYTHON_TESTS / "typed_program.py"]], ids=["package", "program"])
def test_types_are_strict(files, tmp_path):
    """Of the package, by pyproject.toml, and of a program that uses it."""
    mypy("mypy", "--cache-dir", tmp_path, *files)


def test_stubs_match_the_native_module(installed):
    allowed = ["--allowlist", PYTHON_TESTS / "stubtest-allowlist.txt"]
    configuration = ["--mypy-config-file", REPOSITORY / "pyproject.toml"]
    mypy("mypy.stubtest", "plait._plait", *configuration, *allowed, PYTHONPATH=str(installed))
