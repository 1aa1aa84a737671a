"""Dictionaries as TOML 1.0, for the command to read."""

from __future__ import annotations

import json
import numbers
import os
import re
from collections.abc import Mapping, Sequence

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, object]) -> str:
    """The document, with a line for each key and a heading for each table, so that a mistake in it has a line to show.

    Values are texts, paths (written as texts), numbers, truth values, mappings and sequences; others are a `TypeError`.
    """
    return "\n".join(_lines(document, ())) + "\n"


def value(value: object, place: str = "the value") -> str:
    """One value, in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case os.PathLike():
            return _text(os.fsdecode(value))
        # numbers of other libraries, such as NumPy's, are these, too.
        case numbers.Integral():
            return int.__repr__(int(value))
        case numbers.Real():
            return float.__repr__(float(value))
        case Mapping():
            pairs = (f"{_key(key, place)} = {_part(part, place, key)}" for key, part in value.items())
            return "{ " + ", ".join(pairs) + " }"
        case Sequence() if not isinstance(value, (bytes, bytearray, memoryview)):
            parts = (_part(part, place, index) for index, part in enumerate(value))
            return "[" + ", ".join(parts) + "]"
    raise TypeError(
        f"expected a text, a number, a truth value, a mapping or a sequence as {place}, found {value!r}"
    )


def _part(part: object, place: str, key: object) -> str:
    return value(part, f"{key!r} of {place}")


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> list[str]:
    """A table's own keys first: what stands below the heading of another table belongs to that."""
    place = ".".join(path) or "the document"
    own, below = [], []
    for key, part in table.items():
        heading = ".".join(_key(name, place) for name in (*path, key))
        if isinstance(part, Mapping):
            below += ["", f"[{heading}]", *_lines(part, (*path, key))]
        elif isinstance(part, (list, tuple)) and part and all(isinstance(item, Mapping) for item in part):
            for item in part:
                below += ["", f"[[{heading}]]", *_lines(item, (*path, key))]
        else:
            own.append(f"{_key(key, place)} = {_part(part, place, key)}")
    return own + below


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"expected a text as a key of {place}, found {key!r}")
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """JSON's texts are TOML's, too, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
