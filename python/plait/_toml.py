"""Writes dictionaries as TOML 1.0."""

from __future__ import annotations

import json
import numbers
import os
import re
from collections.abc import Mapping, Sequence

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, object]) -> str:
    """Format a document with a line for each key and a header for each table, so that errors can show a line.

    Values are strings, paths (written as strings), numbers, booleans, mappings and sequences; others raise
    `TypeError`.
    """
    return "\n".join(_lines(document, ())) + "\n"


def value(value: object, place: str = "the value") -> str:
    """Format one value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case os.PathLike():
            return _text(os.fsdecode(value))
        # Also numbers of other libraries, such as NumPy.
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
    raise TypeError(f"expected a string, number, boolean, mapping or sequence as {place}, got {value!r}")


def _part(part: object, place: str, key: object) -> str:
    return value(part, f"{key!r} of {place}")


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> list[str]:
    """Format a table: plain keys first, since keys after the header of another table would belong to that
    table."""
    place = ".".join(path) or "the document"
    plain, tables = [], []
    for key, part in table.items():
        heading = ".".join(_key(name, place) for name in (*path, key))
        if isinstance(part, Mapping):
            tables += ["", f"[{heading}]", *_lines(part, (*path, key))]
        elif isinstance(part, (list, tuple)) and part and all(isinstance(item, Mapping) for item in part):
            for item in part:
                tables += ["", f"[[{heading}]]", *_lines(item, (*path, key))]
        else:
            plain.append(f"{_key(key, place)} = {_part(part, place, key)}")
    return plain + tables


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"expected a string as a key of {place}, got {key!r}")
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """A JSON string is a TOML string, except that TOML requires DEL to be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
