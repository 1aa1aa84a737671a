"""The types of the package have the fields of the documents' schemas, at every level."""

import dataclasses
import json
import types
import typing

import pytest
from hosts import REPOSITORY
from labs import installed, lab  # noqa: F401


def of_type(kind):
    """The fields of a type, and theirs; `None` if it has none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        arguments = [argument for argument in arguments if argument is not type(None)]
        return of_type(arguments[0]) if len(arguments) == 1 else None
    if origin in (list, dict):
        return of_type(arguments[-1])
    if typing.is_typeddict(origin):
        # The only generic one: the same for both directions.
        return {name: of_type(arguments[0]) for name in origin.__annotations__}
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return {name: of_type(hint) for name, hint in typing.get_type_hints(kind).items()}
    return None


def of_schema(part, schema):
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
    for several in ("anyOf", "oneOf"):
        if several in part:
            return of_schema(next(one for one in part[several] if one.get("type") != "null"), schema)
    if "properties" in part:
        return {name: of_schema(field, schema) for name, field in part["properties"].items()}
    inner = part.get("items") or part.get("additionalProperties")
    return of_schema(inner, schema) if isinstance(inner, dict) else None


@pytest.mark.parametrize("name", ["analysis", "results"])
def test_types_match_the_schema(lab, name):
    from plait.document import Analysis

    schema = json.loads((REPOSITORY / "docs" / "reference" / "schema" / f"{name}.schema.json").read_text())
    fields = of_type(Analysis if name == "analysis" else lab.Results)
    # Where results were read from, which is no part of the document.
    fields.pop("directory", None)
    assert fields == of_schema(schema, schema)
