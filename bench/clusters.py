#!/usr/bin/env python3
"""Time from 10 GB of captures to their subflows: by two Dask workers, beside one process, and `plait analyze --each`.

The captures are copies of the full one of `bench/captures.py`, 1.2 GB each, analyzed by the program that the guide to Python shows for
Dask. With two processors, two workers can at best take half the time. Before each run, all captures are read once, so that none
is read from disk. Needs dask (tests/requirements-long.txt), and 11 GB of disk and of memory.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import captures
import prologue
from hosts import PLAIT, REPOSITORY
from tables import VENV_PYTHON, has, install

STEP = """
from pathlib import Path

import plait


def step(capture):
    return len(plait.analyze(capture, output=Path("analyses") / capture.name).subflows)


"""

# Programs that print the number of subflows in all captures.
PROGRAMS = {
    "one process": """
if __name__ == "__main__":
    print(sum(step(capture) for capture in sorted(Path("captures").iterdir())))
""",
    "two Dask workers": """
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    captures = sorted(Path("captures").iterdir())
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        print(sum(client.gather(client.map(step, captures))))
""",
}
EACH = "plait analyze --each"


def run(name: str, work: pathlib.Path) -> dict:
    """Runs a program on all captures. Peak memory is that of its largest process."""
    shutil.rmtree(work / "analyses", ignore_errors=True)
    for capture in (work / "captures").iterdir():
        subprocess.run(["cat", capture], stdout=subprocess.DEVNULL, check=True)
    if name == EACH:
        command = [PLAIT, "analyze", "--each", "-o", "analyses", *sorted((work / "captures").iterdir())]
    else:
        # Workers are started anew, and import the program.
        (work / "program.py").write_text(STEP + PROGRAMS[name])
        command = [VENV_PYTHON, "program.py"]
    environment = os.environ | {"PYTHONPATH": str(work)}
    began = time.monotonic()
    running = subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True)
    printed = running.stdout.read()
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        sys.exit(f"exit {running.returncode}: {name}")
    found = {
        "elapsed_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
    }
    return found if name == EACH else found | {"subflows": int(printed)}


def main():
    parser = prologue.parser(__doc__, rounds=3)
    parser.add_argument(
        "--captures", type=pathlib.Path, help="directory of captures to keep (default: temporary)"
    )
    parser.add_argument("--packets", type=int, default=captures.PACKETS, help="packets of new captures")
    parser.add_argument("--copies", type=int, default=8, help="captures to analyze")
    arguments = prologue.parse(parser, root=False)
    if not has("dask.distributed"):
        sys.exit("dask is not installed: scripts/venv long")
    say = prologue.progress()
    with tempfile.TemporaryDirectory(prefix="plait-bench-", dir=REPOSITORY / "target") as scratch:
        scratch = pathlib.Path(scratch)
        directory = arguments.captures or scratch / "made"
        captures.make(directory, arguments.packets, say)
        (scratch / "captures").mkdir()
        for copy in range(arguments.copies):
            shutil.copy(directory / "full.pcap", scratch / "captures" / f"{copy}.pcap")
        size = sum(file.stat().st_size for file in (scratch / "captures").iterdir())
        (scratch / "plait").symlink_to(install(scratch / "module"))
        runs = {name: [] for name in (*PROGRAMS, EACH)}
        for number in range(arguments.rounds):
            for name, measured in runs.items():
                say(f"round {number + 1}, {name}")
                measured.append(run(name, scratch))
    say("")
    median = {
        name: {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        for name, measured in runs.items()
    }
    if arguments.json:
        print(
            json.dumps(
                {"kernel": os.uname().release, "bytes": size, "results": median, "rounds": runs}, indent=2
            )
        )
        return
    print(f"{arguments.copies} captures, {size / 1e9:.1f} GB")
    print(f"{'':22} {'elapsed s':>10} {'CPU s':>8} {'MB/s':>7} {'peak MB':>8}")
    for name, found in median.items():
        rate = size / 1e6 / found["elapsed_s"]
        print(
            f"{name:22} {found['elapsed_s']:10.2f} {found['cpu_s']:8.2f} {rate:7.0f} {found['peak_mb']:8.0f}"
        )


if __name__ == "__main__":
    main()
