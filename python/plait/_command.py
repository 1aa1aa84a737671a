"""Runs the command `plait`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig


class Error(Exception):
    """A failure of the command `plait`, with its message."""


def command(*words: str) -> list[str]:
    """Return the command with its arguments: the program in the environment variable PLAIT, the one that was installed
    with this package, or `plait` on PATH."""
    name = os.environ.get("PLAIT")
    found = shutil.which(name) if name else _installed() or shutil.which("plait")
    if found is None:
        raise FileNotFoundError(
            "expected the command plait next to the Python interpreter or on PATH, or its path in the environment variable "
            f"PLAIT; got {name!r}, which is not a program"
            if name
            else "expected the command plait next to the Python interpreter or on PATH, got none: install plait's wheel or "
            "package, or set the environment variable PLAIT to its path"
        )
    return [found, *words]


def _installed() -> str | None:
    """Return the command of the wheel. A notebook's kernel often has no PATH that leads there."""
    return shutil.which("plait", path=sysconfig.get_path("scripts"))


def run(*words: str) -> str:
    """Run the command and return its stdout; raises `Error` if it fails."""
    done = subprocess.run(
        command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise error(done.stderr)
    return done.stdout


def error(stderr: str) -> Error:
    return Error(stderr.strip().removeprefix("error: ") or "the command plait failed without a message")
