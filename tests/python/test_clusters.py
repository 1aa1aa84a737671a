"""What docs/guide/python.md shows of Dask, Ray and Spark gives the same tables as one process. In local mode."""

import os
import pathlib
import shutil
import subprocess

import pytest
from captures import connections
from package import VENV_PYTHON, examples, installed, plait, skip_without, work

pytestmark = pytest.mark.long


def run(work: pathlib.Path, what: str, *modules: str) -> str:
    """Runs the example with this text; the package is where workers find it as well."""
    for module in modules:
        skip_without(module)
    (example,) = examples(what)
    (work / "program.py").write_text(example)
    environment = os.environ | {
        "PYTHONPATH": str(work),
        "PYSPARK_PYTHON": VENV_PYTHON,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [VENV_PYTHON, "program.py"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_table(work: pathlib.Path, plait):
    """Compares subflows.parquet with the tables of one process."""
    pandas = pytest.importorskip("pandas")
    captures = sorted((work / "captures").iterdir())
    expected = [plait.analyze(file).subflows.to_pandas().assign(capture=file.name) for file in captures]
    expected = pandas.concat(expected).sort_values(["capture", "connection"], ignore_index=True)
    found = pandas.read_parquet(work / "subflows.parquet")
    found = found.sort_values(["capture", "connection"], ignore_index=True)
    assert len(found) == 6
    # Spark's times are microseconds, and columns without any value have no type of their own.
    for table in (found, expected):
        table["start"] = pandas.to_datetime(table["start"], utc=True).astype("datetime64[us, UTC]")
    pandas.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_dask(work, plait):
    printed = run(work, "LocalCluster", "dask.distributed")
    assert printed == "".join(
        f"{{'capture': '{name}.pcap', 'connections': {count}}}\n"
        for count, name in enumerate(("first", "second", "third"), start=1)
    )
    for name in ("first", "second", "third"):
        alone = plait.analyze(work / "captures" / f"{name}.pcap", output=work / "alone")
        assert len(alone.connections)
        for file in ("analysis.json", "subflows.csv", "series.parquet"):
            theirs = work / "analyses" / f"{name}.pcap" / file
            # The names of captures are as they were given.
            assert theirs.read_bytes() == (work / "alone" / file).read_bytes(), (name, file)


def test_ray(work, plait):
    run(work, "import ray", "ray", "pandas", "pyarrow")
    check_table(work, plait)


@pytest.mark.skipif(not shutil.which("java"), reason="not installed: java")
def test_spark(work, plait):
    run(work, "SparkSession", "pyspark", "pandas", "pyarrow")
    check_table(work, plait)
