"""The results of an experiment: results.json as dataclasses. docs/guide/lab.md documents the fields."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from plait import _document

Parameter = str | int | float | bool
"""The value of a parameter."""


@dataclass(frozen=True)
class Expectation:
    """The experiment's own bounds of a mean, and whether they are met."""

    at_least: float | None
    at_most: float | None
    met: bool


@dataclass(frozen=True)
class Comparison:
    """A published value, and the comparison of the mean with it."""

    entry: str | None
    """Where experiments/paper-values.toml has it, as PAPER/ITEM/VALUE."""
    value: float | None
    """`None` if only bounds are published."""
    sigma: float | None
    """The standard deviation published with it."""
    at_least: float | None
    at_most: float | None
    factor: float | None
    """The factor by which the mean may differ; `None` if sigma or the bounds decide."""
    verdict: str | None
    """`reproduced`, `differs` or `not_comparable`; `None` without a mean."""
    because: str | None
    """Why it differs, or cannot be compared."""
    tested_by: str | None
    """How the cause of a difference was tested; a difference without one has no tested cause."""


@dataclass(frozen=True)
class MetricSummary:
    """Statistics of a metric over the valid repetitions."""

    n: int
    """The number of values."""
    mean: float | None
    """`None` without values, like `min` and `max`."""
    stddev: float | None
    """Sample standard deviation (n - 1); `None` for fewer than two values, like `confidence`."""
    confidence: float | None
    """Half the width of the mean's 95 % confidence interval, by Student's t distribution."""
    min: float | None
    max: float | None
    unit: str
    """Empty for dimensionless numbers."""
    paper: Comparison | None
    """The published value, if any."""
    expect: Expectation | None
    """The experiment's own bounds, if any."""


@dataclass(frozen=True)
class Machine:
    """The machine it ran on."""

    processor: str
    processors: int
    memory_mib: int


@dataclass(frozen=True)
class StepRun:
    """One run of a step."""

    step: str
    duration_s: float
    error: str | None
    """Why it failed, if it did."""


@dataclass(frozen=True)
class LinkRun:
    """A link during a repetition."""

    lateness_p99_ms: float | None
    statistics: dict[str, Any]
    """As printed by `plait lab link --json`."""


@dataclass(frozen=True)
class LinkEvent:
    """An event on a link, in seconds of the experiment's clock."""

    link: str
    action: str
    at_s: float
    """The scheduled time."""
    applied_s: float


@dataclass(frozen=True)
class Repetition:
    """A repetition; it may have been discarded."""

    number: int
    """From 1. A discarded repetition is followed by another with the same number."""
    valid: bool
    invalid_because: list[str]
    started: str
    duration_s: float
    metrics: dict[str, float | None]
    """`None` if the measured event did not happen or the repetition was discarded."""
    steps: list[StepRun]
    links: dict[str, LinkRun]
    events: list[LinkEvent]


@dataclass(frozen=True)
class Analysis:
    """The output of `plait analyze -o` for the captures of a repetition."""

    directory: str
    """Relative to the directory of results.json."""
    connection: int
    """The id of the connection that was measured."""


@dataclass(frozen=True)
class Variant:
    """A combination of parameter values."""

    name: str
    """The parameters as text; empty without parameters."""
    parameters: dict[str, Parameter]
    metrics: dict[str, MetricSummary]
    backends: dict[str, str]
    """The backend of each link."""
    repetitions: list[Repetition]
    analysis: Analysis | None
    """The analysis of the first valid repetition, if captures were taken."""


@dataclass(frozen=True)
class Plot:
    """A chart; its files are in the directory of results.json."""

    title: str
    svg: str
    png: str
    figure: str | None = None
    """The published figure that it corresponds to, as PAPER/ITEM."""


@dataclass(frozen=True)
class Results:
    """The results of an experiment, with everything needed to assess them."""

    experiment: str
    title: str
    source: str
    """The publication it reproduces."""
    description: str
    note: str | None
    valid: bool
    """Whether every variant has the required number of valid repetitions. Check this first."""
    invalid_because: list[str]
    quick: bool
    """Whether this was the short form."""
    kernel: str
    backend: str
    """The backends of the links, separated by commas."""
    machine: Machine
    versions: dict[str, str]
    """Versions of the programs involved."""
    started: str
    duration_s: float
    repetitions: int
    lateness_limit_ms: float
    parameters: dict[str, list[Parameter]]
    """The values of each parameter."""
    metrics: dict[str, MetricSummary]
    """By name if there is one variant, else by `name[parameter=value,parameter=value]`."""
    variants: list[Variant]
    plots: list[Plot]
    seed: int | None = None
    """The seed of everything random."""
    discarded: int = 0
    """The number of discarded repetitions."""
    lateness_p99_ms: float | None = None
    """The maximum on any link in a valid repetition."""
    schema_version: int = 0
    """The version of the document, as docs/reference/json.md defines it; 0: from before documents had one."""
    directory: pathlib.Path = pathlib.Path()
    """The directory of results.json, the plots and the analyses."""

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Results:
        """Read the results of an earlier run from its directory."""
        directory = pathlib.Path(directory)
        return cls._of(json.loads((directory / "results.json").read_text()), directory)

    @classmethod
    def _of(cls, document: dict[str, Any], directory: pathlib.Path) -> Results:
        results: Results = _document.read(cls, document)
        return dataclasses.replace(results, directory=directory)

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each variant and metric: parameters, `metric`, `mean`, `stddev`, `confidence`,
        `n`, `min`, `max`, `unit`, `paper` (the published value), `verdict`, and `within_bounds` (`None` without bounds).

        `pandas.DataFrame(results.table())` and `polars.DataFrame(results.table())` make data frames of it. A
        parameter with the name of another column becomes `parameter_NAME`.
        """
        columns = ("mean", "stddev", "confidence", "n", "min", "max", "unit")
        return [
            _row(
                variant,
                metric=name,
                **{column: getattr(summary, column) for column in columns},
                paper=summary.paper and summary.paper.value,
                verdict=summary.paper and summary.paper.verdict,
                within_bounds=summary.expect and summary.expect.met,
            )
            for variant in self.variants
            for name, summary in variant.metrics.items()
        ]

    def values(self) -> list[dict[str, Any]]:
        """Return a row for each value of a valid repetition: parameters, `metric`, `repetition`, `value`."""
        return [
            _row(variant, metric=name, repetition=repetition.number, value=value)
            for variant in self.variants
            for repetition in variant.repetitions
            if repetition.valid
            for name, value in repetition.metrics.items()
        ]


def _row(variant: Variant, **columns: object) -> dict[str, Any]:
    parameters = {
        f"parameter_{name}" if name in columns else name: value for name, value in variant.parameters.items()
    }
    return parameters | columns
