"""`plait._toml`: dictionaries written as TOML."""

import fractions
import math
import pathlib
import tomllib

import pytest
from labs import installed, lab  # noqa: F401


def test_round_trip(lab, tmp_path):
    hypothesis = pytest.importorskip("hypothesis")
    from hypothesis import strategies as some
    from hypothesis.configuration import set_hypothesis_home_dir

    from plait import _toml

    texts = some.text(some.characters(blacklist_categories=("Cs",)), max_size=8)
    scalars = texts | some.booleans() | some.integers(-(2**63), 2**63 - 1) | some.floats(allow_nan=False)
    values = some.recursive(
        scalars, lambda inner: some.lists(inner, max_size=4) | some.dictionaries(texts, inner, max_size=4)
    )

    set_hypothesis_home_dir(tmp_path)

    @hypothesis.settings(max_examples=200, deadline=None, database=None)
    @hypothesis.given(some.dictionaries(texts, values, max_size=5))
    def check(document):
        assert tomllib.loads(_toml.dumps(document)) == document

    check()


def test_converts_paths_and_numbers_and_rejects_other_values(lab):
    from plait import _toml

    document = {
        "trace": pathlib.Path("a b/c"),
        "loss": fractions.Fraction(1, 4),
        "flags": ("signal",),
        "odd": math.nan,
    }
    read = tomllib.loads(_toml.dumps(document))
    assert math.isnan(read.pop("odd"))
    assert read == {"trace": "a b/c", "loss": 0.25, "flags": ["signal"]}
    for wrong, place in [
        ({"links": [{"name": None}]}, "'name' of links"),
        ({"links": [{"a": {1: "client"}}]}, "key of links.a"),
        ({"name": b"lte"}, "'name' of the document"),
    ]:
        with pytest.raises(TypeError, match=place):
            _toml.dumps(wrong)
