"""Runs the command `plait`."""

from __future__ import annotations

import os
import shutil
import subprocess


class Error(Exception):
    """A failure of the command `plait`, with its message."""


def command(*words: str) -> list[str]:
    """Return the command with its arguments: the program in the environment variable PLAIT, or `plait` on
    PATH."""
    name = os.environ.get("PLAIT", "plait")
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            "expected the command plait on PATH, or its path in the environment variable PLAIT; "
            f"got {name!r}, which is not a program"
        )
    return [found, *words]


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
