"""The command `plait`, which does all the work."""

from __future__ import annotations

import os
import shutil
import subprocess


class Error(Exception):
    """What the command `plait` refused or could not do, in its own words."""


def command(*words: str) -> list[str]:
    """The command with its arguments: the one that the environment variable PLAIT names, or that PATH leads to."""
    name = os.environ.get("PLAIT", "plait")
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            "expected the command plait on PATH, or its path in the environment variable PLAIT; "
            f"found no program {name!r}"
        )
    return [found, *words]


def ask(*words: str) -> str:
    """What the command prints."""
    done = subprocess.run(command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise error(done.stderr)
    return done.stdout


def error(stderr: str) -> Error:
    return Error(stderr.strip().removeprefix("error: ") or "the command plait failed without a word")
