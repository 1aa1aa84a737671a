"""The Python package: installs its files and its compiled module into a directory, and reads its guide."""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from captures import connections
from hosts import PLAIT, REPOSITORY

# The output of `cargo build -p plait-python`, by default next to the command.
MODULE = pathlib.Path(os.environ.get("PLAIT_MODULE", pathlib.Path(PLAIT).parent / "libplait_python.so"))
PYTHON = os.environ.get("PLAIT_PYTHON", sys.executable)
_VENV_PYTHON = REPOSITORY / "target" / "venv" / "bin" / "python"
# The interpreter with third-party modules (Dask, DuckDB, Polars, PyArrow), which `make test` installs.
VENV_PYTHON = os.environ.get("PLAIT_VENV_PYTHON") or str(_VENV_PYTHON if _VENV_PYTHON.exists() else PYTHON)


def examples(text: str) -> list[str]:
    """The examples of docs/guide/python.md that contain this text."""
    guide = (REPOSITORY / "docs" / "guide" / "python.md").read_text()
    found = [example for example in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if text in example]
    assert found, f"no example has {text!r}"
    return found


def skip_without(module: str):
    """Skips the test if the interpreter for third-party modules does not have this one."""
    if subprocess.run([VENV_PYTHON, "-c", f"import {module}"], capture_output=True).returncode:
        pytest.skip(f"{VENV_PYTHON} has no module {module} (PLAIT_VENV_PYTHON selects another interpreter)")


def install(directory: pathlib.Path):
    """Copies the package into a directory; skips the test if the module is not built."""
    if not MODULE.exists():
        pytest.skip(f"{MODULE} is not built (cargo build -p plait-python)")
    package = directory / "plait"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "python" / "plait", package, ignore=ignored)
    shutil.copy(MODULE, package / "_plait.abi3.so")


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> pathlib.Path:
    """Where the package is installed."""
    directory = tmp_path_factory.mktemp("installed")
    install(directory)
    return directory


@pytest.fixture
def plait(installed, monkeypatch):
    """The package, in this process."""
    monkeypatch.syspath_prepend(installed)
    return importlib.import_module("plait")


@pytest.fixture
def work(tmp_path) -> pathlib.Path:
    """A directory with the package and captures of one, two and three connections."""
    install(tmp_path)
    captures = tmp_path / "captures"
    captures.mkdir()
    for count, name in enumerate(("first", "second", "third"), start=1):
        (captures / f"{name}.pcap").write_bytes(connections(count))
    return tmp_path
