"""The Python package as it is when it is installed: its files beside its compiled module."""

import os
import pathlib
import shutil
import sys

import pytest
from hosts import PLAIT, REPOSITORY

# What `cargo build -p plait-python` makes, by default where the command was built too.
MODULE = pathlib.Path(os.environ.get("PLAIT_MODULE", pathlib.Path(PLAIT).parent / "libplait_python.so"))
PYTHON = os.environ.get("PLAIT_PYTHON", sys.executable)


def install(directory: pathlib.Path):
    """Puts the package into a directory; skips the test if the module is not built."""
    if not MODULE.exists():
        pytest.skip(f"{MODULE} is not built (cargo build -p plait-python)")
    package = directory / "plait"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "python" / "plait", package, ignore=ignored)
    shutil.copy(MODULE, package / "_plait.abi3.so")
