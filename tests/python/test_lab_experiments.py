"""`plait.lab.run`: results of experiments, compared with the command, and progress reports."""

import dataclasses
import json
import math
import os
import tomllib
import types
import typing

import pytest
from hosts import REPOSITORY, wait_for
from labs import EXPERIMENT, children, directory, lab, left_of, needs_labs, program  # noqa: F401


@needs_labs
def test_results_equal_the_document_of_the_command(lab, tmp_path):
    told = []
    results = lab.run(text=EXPERIMENT, output=tmp_path / "out", progress=told.append)
    assert results.valid and results.invalid_because == []
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results == lab.Results.read(tmp_path / "out")
    assert (results.experiment, results.repetitions, results.backend) == ("pings", 2, "emu")
    assert results.parameters == {"delay": ["2ms", "10ms"]}
    rows = results.table()
    assert [
        (row["delay"], row["metric"], row["n"], row["unit"], row["paper"], row["as_expected"]) for row in rows
    ] == [(delay, "took_s", 2, "s", 0.3, True) for delay in ("2ms", "10ms")]
    for row, variant in zip(rows, document["variants"], strict=True):
        in_document = variant["metrics"]["took_s"]
        assert all(row[name] == in_document[name] for name in ("mean", "stddev", "confidence", "min", "max"))
    values = results.values()
    assert [(row["delay"], row["repetition"]) for row in values] == [
        ("2ms", 1),
        ("2ms", 2),
        ("10ms", 1),
        ("10ms", 2),
    ]
    assert math.isclose(sum(row["value"] for row in values[:2]) / 2, rows[0]["mean"])
    assert [step.done for step in told] == sorted(step.done for step in told)
    assert (
        told[0].done == 0 and told[0].total == 4 and told[0].discarded is None and "2ms" in told[0].activity
    )


@needs_labs
def test_arguments_override_the_experiment(lab, tmp_path):
    results = lab.run(
        tomllib.loads(EXPERIMENT),
        repetitions=1,
        parameters={"delay": iter(["3ms"])},
        backend="emu",
        output=tmp_path,
    )
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


def test_types_match_the_schema(lab):
    """The types and the schema have the same fields at every level."""
    schema = json.loads((REPOSITORY / "docs" / "reference" / "schema" / "results.schema.json").read_text())

    def of_type(kind):
        arguments = [argument for argument in typing.get_args(kind) if argument is not type(None)]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return of_type(arguments[0]) if len(arguments) == 1 else None
        if typing.get_origin(kind) in (list, dict):
            return of_type(arguments[-1])
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            return {
                name: of_type(hint)
                for name, hint in hints.items()
                if name != "directory" or kind is not lab.Results
            }
        return None

    def of_schema(part):
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
        for several in ("anyOf", "oneOf"):
            if several in part:
                return of_schema(next(one for one in part[several] if one.get("type") != "null"))
        if "properties" in part:
            return {name: of_schema(field) for name, field in part["properties"].items()}
        inner = part.get("items") or part.get("additionalProperties")
        return of_schema(inner) if isinstance(inner, dict) else None

    assert of_type(lab.Results) == of_schema(schema)
