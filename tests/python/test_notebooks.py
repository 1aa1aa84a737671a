"""The notebooks of docs/notebooks run as they are, from the first cell to the last. With PLAIT_UPDATE=1, their output is saved."""

import os
import pathlib
import shutil
import subprocess

import pytest
from hosts import PLAIT, REPOSITORY
from labs import needs_labs
from package import VENV_PYTHON, installed, skip_without

NOTEBOOKS = REPOSITORY / "docs" / "notebooks"

# Executes a notebook with this interpreter as the kernel; a cell that raises fails it.
EXECUTE = """
import sys
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

class ThisInterpreter(KernelManager):
    @property
    def kernel_spec(self):
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python")

notebook = nbformat.read(sys.argv[1], as_version=4)
options = {"timeout": 300, "record_timing": False, "kernel_manager_class": ThisInterpreter}
client = NotebookClient(notebook, **options)
client.execute()
nbformat.write(notebook, sys.argv[1])
"""


def execute(name: str, installed: pathlib.Path, tmp_path: pathlib.Path):
    for module in ("nbclient", "ipykernel", "polars", "matplotlib"):
        skip_without(module)
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    environment = os.environ | {"PYTHONPATH": str(installed), "PLAIT": PLAIT, "IPYTHONDIR": str(tmp_path)}
    command = [VENV_PYTHON, "-c", EXECUTE, name]
    options = {"cwd": tmp_path / "notebooks", "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=600, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    if os.environ.get("PLAIT_UPDATE"):
        shutil.copy(tmp_path / "notebooks" / name, NOTEBOOKS / name)


def test_the_capture_is_explored(installed, tmp_path):
    execute("capture.ipynb", installed, tmp_path)


@needs_labs
@pytest.mark.long
def test_the_experiment_is_run_and_plotted(installed, tmp_path):
    execute("experiment.ipynb", installed, tmp_path)
