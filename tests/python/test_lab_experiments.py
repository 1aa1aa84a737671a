"""`plait.lab.run`: results of experiments, compared with the command, and progress reports."""

import json
import math
import os
import tomllib

import pytest
from hosts import wait_for
from labs import EXPERIMENT, children, installed, lab, left_of, needs_labs, program  # noqa: F401


@needs_labs
def test_results_equal_the_document_of_the_command(lab, tmp_path):
    progress = []
    results = lab.run(text=EXPERIMENT, output=tmp_path / "out", progress=progress.append)
    assert results.valid and results.invalid_because == []
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results == lab.Results.read(tmp_path / "out")
    assert (results.experiment, results.repetitions, results.backend) == ("pings", 2, "emu")
    assert results.parameters == {"delay": ["2ms", "10ms"]}
    rows = results.table()
    columns = ("delay", "metric", "n", "unit", "paper", "verdict", "within_bounds")
    found = [tuple(row[name] for name in columns) for row in rows]
    assert found == [(delay, "took_s", 2, "s", 0.3, "reproduced", True) for delay in ("2ms", "10ms")]
    for row, variant in zip(rows, document["variants"], strict=True):
        in_document = variant["metrics"]["took_s"]
        assert all(row[name] == in_document[name] for name in ("mean", "stddev", "confidence", "min", "max"))
    values = results.values()
    runs = [(row["delay"], row["repetition"]) for row in values]
    assert runs == [("2ms", 1), ("2ms", 2), ("10ms", 1), ("10ms", 2)]
    assert math.isclose(sum(row["value"] for row in values[:2]) / 2, rows[0]["mean"])
    assert [step.done for step in progress] == sorted(step.done for step in progress)
    first = progress[0]
    assert (first.done, first.total, first.discarded) == (0, 4, None) and "2ms" in first.activity


@needs_labs
def test_arguments_override_the_experiment(lab, tmp_path):
    results = lab.run(
        tomllib.loads(EXPERIMENT),
        repetitions=1,
        parameters={"delay": iter(["3ms"])},
        backend="emu",
        seed=3,
        output=tmp_path,
    )
    assert results.seed == 3
    assert results.repetitions == 1 and results.parameters == {"delay": ["3ms"]}
    assert set(results.metrics) == {"took_s[delay=3ms]"}
    with pytest.raises(lab.Error, match="speed"):
        lab.run(text=EXPERIMENT, parameters={"speed": [1, 2]}, output=tmp_path)
    for values, error in (([], "at least one"), (["1,2"], "comma")):
        with pytest.raises(ValueError, match=error):
            lab.run(text=EXPERIMENT, parameters={"delay": values})


@needs_labs
def test_invalid_results_name_the_reason(lab, tmp_path):
    failing = EXPERIMENT.replace('"ping", "-c"', '"false", "-c"')
    results = lab.run(text=failing, repetitions=1, parameters={"delay": "1ms"}, output=tmp_path)
    assert not results.valid and "false" in results.invalid_because[0]
    assert results.table()[0]["mean"] is None and results.values() == []


@needs_labs
def test_exception_in_progress_stops_the_experiment(lab, tmp_path):
    running = set()

    def refuse(step):
        running.update(children(os.getpid()))
        if step.done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lab.run(text=EXPERIMENT, output=tmp_path, progress=refuse)
    assert running and not any(left_of(child) for child in running)
    assert not (tmp_path / "results.json").exists()


@needs_labs
def test_killing_the_interpreter_stops_the_experiment(program):
    running = program(f"""
from plait import lab
experiment = {EXPERIMENT!r}.replace('"3"', '"1000"')
lab.run(text=experiment, output="out", progress=lambda step: print(step.activity, flush=True))
""")
    assert running.stdout.readline().startswith("repetition 1"), running.stderr.read()
    (experiment,) = children(running.pid)
    wait_for("namespaces of the experiment", lambda: len(left_of(experiment)) > 1)
    running.kill()
    wait_for("end of the experiment", lambda: not left_of(experiment))
