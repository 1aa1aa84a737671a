"""Tables of an analysis: Arrow record batches that other libraries take without a copy."""

from __future__ import annotations

import datetime
import html
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from plait import _plait

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_SHOWN_ROWS = 10
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """With its unit: `_s` (seconds), `_bytes`, `_bps` (bits per second)."""
    type: Literal["bool", "int64", "float64", "text", "timestamp[ns, UTC]"]
    nullable: bool
    """Whether values may be missing."""
    description: str
    """What it means, and when it is missing."""


class Table:
    """A table. docs/reference/tables.md describes its columns, and so does `columns`.

    It implements the Arrow PyCapsule interface, so that libraries take it without a copy: `polars.DataFrame(table)`,
    `pyarrow.table(table)`, `pandas.DataFrame.from_arrow(table)` (pandas 3), `duckdb.sql("from table")`. The `to_` methods
    do the same and say what to install.
    """

    def __init__(self, native: _plait.Table) -> None:
        self._native = native
        self.columns: tuple[Column, ...] = tuple(Column(*column) for column in native.columns())
        """The columns, in order."""

    @property
    def name(self) -> str:
        """The table's name: `"connections"`, `"subflows"`, `"series"`, `"failovers"` or `"events"`."""
        return self._native.name

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._native)

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a PyCapsule `arrow_schema`."""
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the record batches as a PyCapsule `arrow_array_stream`. `requested_schema` is ignored, as the interface
        permits."""
        return self._native.__arrow_c_stream__(requested_schema)

    def to_pyarrow(self) -> pyarrow.Table:
        """Return the table as a `pyarrow.Table`, without a copy. Raises `ImportError` without pyarrow."""
        table: pyarrow.Table = _import("pyarrow", "pyarrow").table(self)
        return table

    def to_polars(self) -> polars.DataFrame:
        """Return the table as a `polars.DataFrame`, without a copy where polars has the same memory layout. Raises
        `ImportError` without polars."""
        frame: polars.DataFrame = _import("polars", "polars").DataFrame(self)
        return frame

    def to_pandas(self, *, dtype_backend: Literal["pyarrow"] | None = None) -> pandas.DataFrame:
        """Return the table as a `pandas.DataFrame`.

        By default with NumPy's types, in which integers with missing values become floats; with `dtype_backend="pyarrow"`
        with Arrow's types, without a copy. Raises `ImportError` without pandas and pyarrow.
        """
        arrow_type = _import("pandas", "pandas").ArrowDtype
        _import("pyarrow", "pandas")
        types = None if dtype_backend is None else arrow_type
        frame: pandas.DataFrame = self.to_pyarrow().to_pandas(types_mapper=types)
        return frame

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the first `limit` rows, or all, as dictionaries. Needs no other library.

        Times are `datetime` objects in UTC, to the microsecond below.
        """
        times = [column.type.startswith("timestamp") for column in self.columns]
        names = self.column_names
        for row in self._native.head(len(self) if limit is None else limit):
            cells = (
                _time(cell) if is_time and cell is not None else cell
                for cell, is_time in zip(row, times, strict=True)
            )
            yield dict(zip(names, cells, strict=True))

    def __repr__(self) -> str:
        return f"<plait.Table {self.name}: {_count(len(self), 'row')}, {_count(len(self.columns), 'column')}>"

    def _repr_html_(self) -> str:
        heading = "".join(
            f'<th title="{html.escape(column.description)}">{html.escape(column.name)}</th>'
            for column in self.columns
        )
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in row.values()) + "</tr>"
            for row in self.rows(_SHOWN_ROWS)
        )
        more = len(self) - _SHOWN_ROWS
        rest = f"<p>{_count(more, 'more row')}</p>" if more > 0 else ""
        return (
            f"<p><b>{self.name}</b>: {_count(len(self), 'row')}, {_count(len(self.columns), 'column')}</p>"
            f"<table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table>{rest}"
        )


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"expected the package {module}, which is not installed: pip install 'plait[{extra}]'",
            name=module,
        ) from error


def _time(nanoseconds: int) -> datetime.datetime:
    seconds, fraction = divmod(nanoseconds, _NANOSECONDS)
    whole = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return whole.replace(microsecond=fraction // 1000)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime.datetime():
            return value.isoformat(" ", "microseconds").removesuffix("+00:00")
        case float():
            return f"{value:.6g}"
    return str(value)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
