"""Commands reject wrong usage with exit status 2, before they do anything."""

import os
import subprocess

import pytest
from hosts import PLAIT

WRONG = {
    "analyze": [
        "",
        "--interval 0 x",
        "--interval fast x",
        "--json --interval 1s x",
        "--json --all x",
        "--each x",
    ],
    "capture": ["", "-o x --snaplen 0", "-o x --duration 0", "-o x --interval 1ms", "-o x y"],
    "doctor": ["x:0", "--interface eth", "--clean x"],
    "metrics": ["--listen 9464", "--interval 0", "--max-paths 0", "x"],
    "policy": ["", "load", "unload", "unload --all x", "show", "dry-run x"],
    "probe": ["", "x --count 0", "x --idle 10s", "x --peer --duration 2m", "x --listen [::]:1", "--listen 1"],
    "top": ["--json", "--interval 0", "--interval 1ms", "x"],
}


@pytest.mark.parametrize("command", [f"{name} {rest}" for name, wrong in WRONG.items() for rest in wrong])
def test_rejects_wrong_usage(tmp_path, command):
    done = subprocess.run([PLAIT, *command.split()], capture_output=True, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout and not os.listdir(tmp_path)
