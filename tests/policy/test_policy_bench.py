"""`plait-bench policy` measures the selected cases. The figures are not tested."""

import json
import subprocess

import pytest
from hosts import PLAIT, reason_to_skip


def bench(*options):
    command = [f"{PLAIT}-bench", "policy", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_measures_the_selected_cases():
    if reason := reason_to_skip():
        pytest.skip(reason)
    selected = ["no-match", "selector-size", "actor-set_backup", "chain-2-flows-10"]
    done = bench("--json", "--rounds", "1", "--cases", ",".join(selected))
    assert done.returncode == 0, done.stderr
    results = {result["case"]: result for result in json.loads(done.stdout)["results"]}
    assert list(results) == selected
    # An actor without effect is an error, so that it cannot appear cheap.
    assert all(result["ns"] > 0 for result in results.values())
    references = {
        name: [key for key in result if key.startswith("above_")] for name, result in results.items()
    }
    assert references["no-match"] == ["above_empty_ns"]
    assert all(references[name] == ["above_no_match_ns"] for name in selected[1:])


def test_rejects_an_unknown_case():
    done = bench("--cases", "cost,selector-colour")
    assert done.returncode == 1
    assert "got 'selector-colour'" in done.stderr and "selector-size" in done.stderr
