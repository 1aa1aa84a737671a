"""`plait.analyze`: inputs, progress, interruption and errors, compared with the command; the examples of docs/guide/python.md."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import pathlib
import signal
import subprocess
import threading

import pytest
from captures import connections, document
from hosts import PLAIT
from package import PYTHON, VENV_PYTHON, examples, installed, plait, skip_without, work


@pytest.fixture
def third(tmp_path) -> pathlib.Path:
    """A capture of three connections."""
    file = tmp_path / "third.pcap"
    file.write_bytes(connections(3))
    return file


def run(work: pathlib.Path, program: str, check=True, python=PYTHON) -> subprocess.CompletedProcess:
    file = work / "program.py"
    file.write_text(program)
    done = subprocess.run([python, file], cwd=work, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_returns_the_document_of_the_command(plait, third):
    assert plait.analyze(third).to_dict() == document(third)


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


def test_writes_the_report_of_the_command(plait, third, tmp_path):
    plait.analyze(str(third)).report(tmp_path / "ours.html")
    subprocess.run([PLAIT, "report", "-o", tmp_path / "theirs.html", third], check=True, capture_output=True)
    assert (tmp_path / "ours.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()


def test_reads_file_objects(plait, third):
    expected = plait.analyze(third).to_dict()
    content = third.read_bytes()
    with third.open("rb") as file:
        assert plait.analyze(file).to_dict() == expected
    assert plait.analyze([io.BytesIO(gzip.compress(content))]).to_dict() == expected
    # A file object need not be able to seek, nor return as much as it is asked for.
    pipe = io.BytesIO(content)

    class Slow:
        def read(self, size: int) -> bytes:
            return pipe.read(min(size, 7))

    assert plait.analyze(Slow()).to_dict() == expected


def test_merges_file_objects_and_paths(plait, third, tmp_path):
    other = tmp_path / "other.pcap"
    other.write_bytes(connections(2))
    found = plait.analyze([io.BytesIO(connections(3)), other])
    assert found.totals["packets"] == 10
    assert found.to_dict() == plait.analyze([third, other]).to_dict()


def test_reports_progress(plait, third, tmp_path):
    calls = []
    plait.analyze(third, progress=lambda done, total: calls.append((done, total)))
    size = third.stat().st_size
    assert calls[-1] == (size, size)
    plait.analyze(
        [third, io.BytesIO(connections(1))], progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (size + len(connections(1)),) * 2
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(connections(3)))
    writer.start()
    plait.analyze(tmp_path / "pipe", progress=lambda done, total: calls.append((done, total)))
    writer.join()
    assert calls[-1] == (size, None)


def test_progress_can_end_the_analysis(plait, third):
    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        plait.analyze(third, progress=stop)


def test_exceptions_of_file_objects_are_raised(plait):
    class Broken:
        def read(self, size: int) -> bytes:
            raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        plait.analyze(Broken())
    with pytest.raises(TypeError, match="binary mode"):
        plait.analyze(io.StringIO("text"))

    class Generous:
        def read(self, size: int) -> bytes:
            return bytes(size + 1)

    with pytest.raises(ValueError, match="as many bytes as asked for"):
        plait.analyze(Generous())


def test_analyzes_in_the_event_loop(plait, third):
    calls = []

    async def main():
        return await plait.analyze_async(
            third, progress=lambda done, total: calls.append(threading.get_ident())
        )

    assert asyncio.run(main()).to_dict() == document(third)
    assert set(calls) == {threading.get_ident()}


def test_cancelling_the_task_ends_the_analysis(plait):
    """The capture is endless."""
    packets, first, ended = connections(100), threading.Event(), threading.Event()

    class Endless:
        def __init__(self):
            self.begun = False

        def read(self, size: int) -> bytes:
            piece = packets[24:] if self.begun else packets
            self.begun = True
            first.set()
            return piece[:size]

        def __del__(self):
            ended.set()

    async def main():
        task = asyncio.create_task(plait.analyze_async(Endless()))
        await asyncio.to_thread(first.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended.wait(60)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ('plait.analyze("missing.pcap")', "FileNotFoundError", "missing.pcap"),
        ('plait.analyze("program.py")', "plait.CaptureError", "not a capture"),
        ('plait.analyze("empty.pcap")', "plait.NoTcpError", "expected TCP"),
        ('plait.analyze("captures/first.pcap", interval=0)', "ValueError", "interval"),
        ("plait.analyze([])", "ValueError", "at least one"),
        ('plait.analyze("captures/first.pcap", "/proc/none")', "FileNotFoundError", "/proc/none"),
        ("plait.analyze(5)", "TypeError", "path or a file object"),
        ('plait.analyze("captures/first.pcap").plot(9)', "LookupError", "id of a connection"),
    ],
)
def test_raises_standard_exceptions(work, call, error, message):
    (work / "empty.pcap").write_bytes(connections(0))
    python = PYTHON
    if "plot" in call:
        skip_without("matplotlib")
        python = VENV_PYTHON
    done = run(work, f"import plait\n{call}", check=False, python=python)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"{error}: ") and message in last


def test_missing_libraries_are_named(work):
    """An interpreter without site-packages has none."""
    program = """
import sys
sys.path = [part for part in sys.path if "-packages" not in part]
import plait
found = plait.analyze("captures/first.pcap")
for call in (found.series.to_polars, found.series.to_pandas, found.series.to_pyarrow, found.plot):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    assert run(work, program).stdout.splitlines() == [
        f"expected the package {module}, which is not installed: pip install 'plait[{extra}]'"
        for module, extra in (
            ("polars", "polars"),
            ("pandas", "pandas"),
            ("pyarrow", "pyarrow"),
            ("matplotlib", "plot"),
        )
    ]


def test_releases_the_gil(work):
    """The analysis reads a pipe that another thread of the same program fills."""
    program = """
import os, pathlib, threading, plait
os.mkfifo("pipe")
writer = threading.Thread(target=lambda: pathlib.Path("pipe").write_bytes(pathlib.Path("captures/third.pcap").read_bytes()))
writer.start()
print(len(plait.analyze("pipe").connections))
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


ONE_TWO_THREE = (("first", 1), ("second", 2), ("third", 3))
# What each example of the guide prints, by what occurs in it alone.
PRINTS = {
    'row["version"]': "1 None 0\n",
    "ThreadPoolExecutor": "".join(f"{name}.pcap 0\n" for name, _ in ONE_TWO_THREE),
    "LocalCluster": "".join(
        f"{{'capture': '{name}.pcap', 'connections': {count}}}\n" for name, count in ONE_TWO_THREE
    ),
    "duckdb": "[(1, 'client_to_server', 1)]\n",
}
MODULES = {"LocalCluster": ["dask.distributed"], "duckdb": ["duckdb", "pandas", "polars", "pyarrow"]}


@pytest.mark.parametrize("what", PRINTS)
def test_examples_of_the_guide_work(work, what):
    for module in MODULES.get(what, ()):
        skip_without(module)
    (example,) = examples(what)
    assert run(work, example, python=VENV_PYTHON).stdout == PRINTS[what]
    assert (work / "analyses").is_dir()
