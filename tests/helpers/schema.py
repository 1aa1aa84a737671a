"""JSON that plait prints, against the schemas that docs/schema promises."""

from __future__ import annotations

import json

import pytest
from hosts import REPOSITORY


def mistakes(document, name: str) -> list[str]:
    """Where a document is not as docs/reference/schema/NAME.schema.json says. Skips without a validator."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((REPOSITORY / "docs" / "reference" / "schema" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(_closed(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def _closed(part):
    """The schema without fields that it does not tell of: users may get more, this version has no more."""
    if isinstance(part, dict):
        more = {"additionalProperties": False} if "properties" in part else {}
        return {name: _closed(value) for name, value in part.items()} | more
    return part
