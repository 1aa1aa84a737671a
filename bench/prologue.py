"""What benchmarks share: arguments, requirements, and a progress line on the terminal."""

import argparse
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from hosts import PLAIT  # noqa: E402


def parser(description, *, rounds=None, json=True):
    """A parser with the arguments that benchmarks share; `rounds` is the default of --rounds, if there is one."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        arguments.add_argument("--rounds", type=int, default=rounds)
    if json:
        arguments.add_argument("--json", action="store_true", help="print JSON")
    return arguments


def parse(parser, *, root=True, plait=True):
    """Parses the arguments, checks requirements, and cleans up on SIGTERM as on Ctrl-C."""
    arguments = parser.parse_args()
    if root:
        require_root()
    if plait and not pathlib.Path(PLAIT).exists():
        sys.exit(f"{PLAIT} is not built: run `make build`, or set PLAIT")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    return arguments


def require_root():
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run with sudo")


def progress():
    """A function that replaces the last line of a terminal; does nothing elsewhere."""
    show = sys.stderr.isatty()
    return lambda text: show and print(f"{text:76}\r", end="", file=sys.stderr, flush=True)
