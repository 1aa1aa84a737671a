"""Fixtures of the tests of whole set-ups."""

import pathlib
import shutil

import pytest
from hosts import reason_to_skip, unique_id
from households import FAR, FAR6, NAME, Household
from machines import install
from nameserver import Nameserver


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> pathlib.Path:
    """What `make install` installs."""
    root = tmp_path_factory.mktemp("installed")
    install(root)
    return root


@pytest.fixture
def household(tmp_path, installed):
    """Nothing of plait runs yet; the server's resolver is the far host."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    if not shutil.which("nft"):
        pytest.skip("not installed: nft")
    built = Household(unique_id(), tmp_path, installed)
    try:
        built.build()
        built.nameserver = Nameserver(built.far, FAR, {NAME: [FAR, FAR6]})
        yield built
    finally:
        built.remove()
