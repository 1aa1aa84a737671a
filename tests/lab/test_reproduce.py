"""`scripts/reproduce`: what it runs, with which seed, and what it resumes. A stand-in for plait notes how it is called."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = """#!{python}
import json, pathlib, sys
command, *rest = sys.argv[2:]
with open({calls!r}, "a") as calls:
    print(json.dumps([command, *rest]), file=calls)
if command == "run":
    directory = pathlib.Path(rest[rest.index("-o") + 1])
    directory.mkdir(parents=True, exist_ok=True)
    valid = directory.name != "kato-aes"
    results = {{"valid": valid, "seed": int(rest[rest.index("--seed") + 1])}}
    (directory / "results.json").write_text(json.dumps(results))
    sys.exit(not valid)
"""


@pytest.fixture
def reproduce(tmp_path):
    """Run the script on two experiments; return its outcome and how plait was called."""
    calls, plait = tmp_path / "calls", tmp_path / "plait"
    plait.write_text(STAND_IN.format(python=sys.executable, calls=str(calls)))
    plait.chmod(0o755)

    def run(*options: str, only: str = "kato-aes kato-codec"):
        calls.write_text("")
        environment = {"PLAIT": str(plait), "QUICK": "1", "ONLY": only, "OUT": str(tmp_path / "out")}
        done = subprocess.run(
            [REPOSITORY / "scripts" / "reproduce", *options],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done, [json.loads(line) for line in calls.read_text().splitlines()]

    return run


def test_runs_each_experiment_with_the_seed_and_writes_the_pages(reproduce, tmp_path):
    done, calls = reproduce("--seed", "5")
    assert done.returncode == 1 and "not valid: kato-aes" in done.stderr
    assert [pathlib.Path(call[1]).name for call in calls[:-1]] == ["kato-aes.toml", "kato-codec.toml"]
    assert all(call[call.index("--seed") + 1] == "5" and "--quick" in call for call in calls[:-1])
    pages = calls[-1]
    assert pages[0] == "results" and pages[pages.index("-o") + 1] == str(tmp_path / "out" / "book")
    assert "== 1 of 2: kato-aes" in done.stdout and "== 2 of 2: kato-codec, about" in done.stdout


def test_resumes_what_is_not_valid_or_has_another_seed(reproduce):
    reproduce("--seed", "5")
    _, calls = reproduce("--seed", "5", "--resume")
    assert [pathlib.Path(call[1]).name for call in calls[:-1]] == ["kato-aes.toml"]
    _, calls = reproduce("--seed", "6", "--resume")
    assert [pathlib.Path(call[1]).name for call in calls[:-1]] == ["kato-aes.toml", "kato-codec.toml"]


def test_rejects_names_of_no_experiment(reproduce):
    done, calls = reproduce(only="none-such")
    assert done.returncode == 1 and "'none-such'" in done.stderr and not calls
