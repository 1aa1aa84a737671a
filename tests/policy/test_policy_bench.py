"""`plait bench policy`: which cases it measures. What they come to is no matter of tests."""

import json
import subprocess

import pytest
from hosts import PLAIT, reason_to_skip


def bench(*options):
    command = [PLAIT, "bench", "policy", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_cases_that_are_asked_for_are_measured():
    if reason := reason_to_skip():
        pytest.skip(reason)
    asked = ["no-match", "selector-size", "actor-set_backup", "chain-2-flows-10"]
    done = bench("--json", "--rounds", "1", "--cases", ",".join(asked))
    assert done.returncode == 0, done.stderr
    results = {result["case"]: result for result in json.loads(done.stdout)["results"]}
    assert list(results) == asked
    assert all(result["ns"] > 0 for result in results.values())
    # An actor that did nothing would be an error, and not cheap.
    compared = {name: [key for key in result if key.startswith("above_")] for name, result in results.items()}
    assert compared["no-match"] == ["above_empty_ns"]
    assert all(compared[name] == ["above_no_match_ns"] for name in asked[1:])


def test_a_case_that_is_not_there_is_told():
    done = bench("--cases", "cost,selector-colour")
    assert done.returncode == 1
    assert "found 'selector-colour'" in done.stderr and "selector-size" in done.stderr
