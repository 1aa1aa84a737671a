"""Importing this lets programs that are run by hand find the tests' helpers, as pytest does by pyproject.toml."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "helpers"))
