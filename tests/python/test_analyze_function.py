"""`plait.analyze`, compared with the command, and the examples of docs/guide/python.md."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess

import pytest
from captures import connections
from hosts import PLAIT
from package import PYTHON, VENV_PYTHON, examples, install, skip_without


@pytest.fixture
def work(tmp_path) -> pathlib.Path:
    """A directory with the package and captures of one, two and three connections."""
    install(tmp_path)
    captures = tmp_path / "captures"
    captures.mkdir()
    for count, name in enumerate(("first", "second", "third"), start=1):
        (captures / f"{name}.pcap").write_bytes(connections(count))
    return tmp_path


def run(work: pathlib.Path, program: str, check=True, python=PYTHON) -> subprocess.CompletedProcess:
    file = work / "program.py"
    file.write_text(program)
    done = subprocess.run([python, file], cwd=work, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_returns_the_document_of_the_command(work):
    done = run(work, 'import json, plait; print(json.dumps(plait.analyze("captures/third.pcap")))')
    command = subprocess.run(
        [PLAIT, "analyze", "--json", work / "captures" / "third.pcap"], capture_output=True
    )
    assert json.loads(done.stdout) == json.loads(command.stdout)


def test_writes_the_files_of_the_command(work):
    run(
        work,
        'import pathlib, plait; plait.analyze([pathlib.Path("captures/third.pcap")], "ours", interval=1)',
    )
    command = [PLAIT, "analyze", "-o", "theirs", "--interval", "1s", "captures/third.pcap"]
    subprocess.run(command, cwd=work, check=True, capture_output=True)
    for file in (work / "theirs").iterdir():
        if file.is_file():
            assert (work / "ours" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ('plait.analyze("missing.pcap")', "FileNotFoundError", "missing.pcap"),
        ('plait.analyze("program.py")', "plait.CaptureError", "not a capture"),
        ('plait.analyze("captures/first.pcap", interval=0)', "ValueError", "interval"),
        ("plait.analyze([])", "ValueError", "at least one"),
        ('plait.analyze("captures/first.pcap", "/proc/none")', "FileNotFoundError", "/proc/none"),
        ("plait.analyze(5)", "TypeError", "int"),
    ],
)
def test_raises_standard_exceptions(work, call, error, message):
    done = run(work, f"import plait\n{call}", check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"{error}: ") and message in last


def test_releases_the_gil(work):
    """The analysis reads a pipe that another thread of the same program fills."""
    program = """
import os, pathlib, threading, plait
os.mkfifo("pipe")
writer = threading.Thread(target=lambda: pathlib.Path("pipe").write_bytes(pathlib.Path("captures/third.pcap").read_bytes()))
writer.start()
print(len(plait.analyze("pipe")["connections"]))
"""
    assert run(work, program).stdout == "3\n"


def test_ctrl_c_interrupts_an_analysis(work):
    """The capture is endless."""
    os.mkfifo(work / "pipe")
    command = [PYTHON, "-c", 'import plait; plait.analyze("pipe")']
    program = subprocess.Popen(command, cwd=work, stderr=subprocess.PIPE, text=True)
    packets = connections(100)
    with pytest.raises(BrokenPipeError), (work / "pipe").open("wb", buffering=0) as pipe:
        pipe.write(packets)
        program.send_signal(signal.SIGINT)
        for _ in range(100_000):
            pipe.write(packets[24:])
    assert "KeyboardInterrupt" in program.communicate(timeout=60)[1]


PRINTS = {
    "import plait": "1 None 0\n",
    "from concurrent.futures": "first.pcap 0\nsecond.pcap 0\nthird.pcap 0\n",
    "from pathlib": "".join(
        f"{{'capture': '{name}.pcap', 'connections': {count}}}\n"
        for count, name in enumerate(("first", "second", "third"), start=1)
    ),
}


@pytest.mark.parametrize("example", examples("plait.analyze"), ids=lambda text: text.split("\n")[0])
def test_examples_of_the_guide_work(work, example):
    python = PYTHON
    if "dask" in example:
        skip_without("dask.distributed")
        python = VENV_PYTHON
    (expected,) = [prints for begins, prints in PRINTS.items() if example.startswith(begins)]
    assert run(work, example, python=python).stdout == expected
    assert (work / "analyses").is_dir()
