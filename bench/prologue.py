"""What benchmarks share: arguments, requirements, and a progress line on the terminal."""

import argparse
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from hosts import PLAIT  # noqa: E402


def parser(description, rounds):
    """A parser with the arguments that benchmarks share; `rounds` is the default of --rounds."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=rounds)
    arguments.add_argument("--json", action="store_true", help="print JSON")
    return arguments


def require_root():
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run with sudo")


def require_plait():
    if not pathlib.Path(PLAIT).exists():
        sys.exit(f"{PLAIT} is not built: run `make build`, or set PLAIT")


def end_on_sigterm():
    """Cleans up on SIGTERM as on Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def progress():
    """A function that replaces the last line of a terminal; does nothing elsewhere."""
    show = sys.stderr.isatty()
    return lambda text: show and print(f"{text:76}\r", end="", file=sys.stderr, flush=True)
