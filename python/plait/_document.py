"""Converts JSON documents to dataclasses."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


def read(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type: a dataclass, a list, a dictionary, or itself.

    Fields that the dataclass does not have are ignored: later versions of plait may add some.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        return read(kinds[0], value) if len(kinds) == 1 else value
    if origin in (list, tuple):
        return origin(read(arguments[0], part) for part in value)
    if origin is dict:
        return {name: read(arguments[1], part) for name, part in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: read(hint, value[name]) for name, hint in hints.items() if name in value})
    # JSON does not distinguish integers from floats.
    return float(value) if kind is float else value
