"""`scripts/compare-results`: which results of two runs agree."""

import json
import pathlib
import subprocess

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "compare-results"


def write_results(directory: pathlib.Path, seed: int, **means: tuple[float, float | None]):
    """Write the results of an experiment: by metric, the mean and its 95 % interval."""
    found = {
        name: {"n": 3 if interval else 1, "mean": mean, "confidence": interval, "unit": "ms", "paper": None}
        for name, (mean, interval) in means.items()
    }
    document = {"seed": seed, "valid": True, "variants": [{"name": "rate=1", "metrics": found}]}
    (directory / "one").mkdir(parents=True)
    (directory / "one" / "results.json").write_text(json.dumps(document))


def compare(first: pathlib.Path, second: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([SCRIPT, first, second], capture_output=True, text=True, timeout=60, check=False)


def test_means_agree_within_both_intervals(tmp_path):
    write_results(tmp_path / "a", 1, near=(10, 3), far=(10, 3), single=(10, None), same=(1, None))
    write_results(tmp_path / "b", 1, near=(14.9, 4), far=(15.1, 4), single=(11, None), same=(1, None))
    done = compare(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert "| one | 2 | 1 | 1 |" in done.stdout
    assert "one [rate=1] far: 10 and 15.1 ms" in done.stdout and "near" not in done.stdout


def test_runs_with_other_inputs_are_an_error(tmp_path):
    write_results(tmp_path / "a", 1, delay=(10, 3))
    write_results(tmp_path / "b", 2, delay=(10, 3))
    done = compare(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1 and "one: seed 1 and 2" in done.stderr
    (tmp_path / "b" / "one" / "results.json").unlink()
    done = compare(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1 and "one: not in " in done.stderr
