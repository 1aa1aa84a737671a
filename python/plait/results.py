"""What `plait lab run` measured: the document results.json as dataclasses. docs/guide/lab.md says what each field means."""

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
    """Limits of a mean, and whether it keeps to them."""

    at_least: float | None
    at_most: float | None
    met: bool


@dataclass(frozen=True)
class Measured:
    """A metric over the valid repetitions."""

    n: int
    """How many values there are."""
    mean: float | None
    """`None` without any, as `min` and `max`."""
    stddev: float | None
    """Of a sample (divided by n - 1); `None` of fewer than two, as `confidence`."""
    confidence: float | None
    """Half the width of the mean's 95 % confidence interval, by Student's t distribution."""
    min: float | None
    max: float | None
    unit: str
    """Empty for mere numbers."""
    paper: float | None
    """What the paper printed."""
    expect: Expectation | None
    """The shape that is expected, if any is."""


@dataclass(frozen=True)
class Machine:
    """What it ran on."""

    processor: str
    processors: int
    memory_mib: int


@dataclass(frozen=True)
class StepRun:
    """A program that ran."""

    step: str
    duration_s: float
    error: str | None
    """Why it failed, if it did."""


@dataclass(frozen=True)
class LinkRun:
    """What a link did in a repetition."""

    lateness_p99_ms: float | None
    statistics: dict[str, Any]
    """As `plait lab link --json` shows them."""


@dataclass(frozen=True)
class Occurred:
    """Something that happened to a link, in seconds of the experiment's clock."""

    link: str
    action: str
    at_s: float
    """For when it was scheduled."""
    applied_s: float


@dataclass(frozen=True)
class Repetition:
    """A repetition, which may have been thrown away."""

    number: int
    """From 1. One that was thrown away is followed by another of the same number."""
    valid: bool
    invalid_because: list[str]
    started: str
    duration_s: float
    metrics: dict[str, float | None]
    """`None` where what they measure did not happen, or the repetition does not count."""
    steps: list[StepRun]
    links: dict[str, LinkRun]
    events: list[Occurred]


@dataclass(frozen=True)
class Analysis:
    """What `plait analyze -o` makes of the captures of a repetition."""

    directory: str
    """Beside results.json."""
    connection: int
    """The connection in it that was measured."""


@dataclass(frozen=True)
class Variant:
    """A combination of the parameters' values."""

    name: str
    """The parameters in words; empty without any."""
    parameters: dict[str, Parameter]
    metrics: dict[str, Measured]
    backends: dict[str, str]
    """What was behind each link."""
    repetitions: list[Repetition]
    analysis: Analysis | None
    """That of the first valid repetition, if captures were taken."""


@dataclass(frozen=True)
class Plot:
    """A chart; its files are beside results.json."""

    title: str
    svg: str
    png: str


@dataclass(frozen=True)
class Results:
    """What an experiment measured, and everything needed to judge it."""

    experiment: str
    title: str
    source: str
    """Where it was published."""
    description: str
    note: str | None
    valid: bool
    """Whether every variant has as many valid repetitions as were asked for. Look here first."""
    invalid_because: list[str]
    quick: bool
    """Whether this is the short form."""
    kernel: str
    backend: str
    """What was behind the links: one word, or several with commas between."""
    machine: Machine
    versions: dict[str, str]
    """Of the programs that took part."""
    started: str
    duration_s: float
    repetitions: int
    lateness_limit_ms: float
    parameters: dict[str, list[Parameter]]
    """What was varied, over which values."""
    metrics: dict[str, Measured]
    """By name where there is one variant, else by `name[parameter=value,parameter=value]`."""
    variants: list[Variant]
    plots: list[Plot]
    directory: pathlib.Path = pathlib.Path()
    """Where results.json, the plots and the analyses are."""

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Results:
        """Those that an earlier run left in a directory."""
        directory = pathlib.Path(directory)
        return cls._of(json.loads((directory / "results.json").read_text()), directory)

    @classmethod
    def _of(cls, document: dict[str, Any], directory: pathlib.Path) -> Results:
        results: Results = _document.read(cls, document)
        return dataclasses.replace(results, directory=directory)

    def table(self) -> list[dict[str, Any]]:
        """A row for each variant and metric: parameters, `metric`, `mean`, `stddev`, `confidence`, `n`, `min`, `max`,
        `unit`, `paper`, and `as_expected` (`None` where nothing is expected).

        `pandas.DataFrame(results.table())` and `polars.DataFrame(results.table())` are its data frames. A parameter with
        the name of another column is called `parameter_NAME`.
        """
        return [
            _row(
                variant,
                metric=name,
                mean=measured.mean,
                stddev=measured.stddev,
                confidence=measured.confidence,
                n=measured.n,
                min=measured.min,
                max=measured.max,
                unit=measured.unit,
                paper=measured.paper,
                as_expected=measured.expect and measured.expect.met,
            )
            for variant in self.variants
            for name, measured in variant.metrics.items()
        ]

    def values(self) -> list[dict[str, Any]]:
        """A row for each value of a valid repetition: parameters, `metric`, `repetition`, `value`. For plots of how values
        are spread.
        """
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
