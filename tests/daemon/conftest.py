"""Fixtures of the tests of the daemon."""

import pytest
from daemons import removed_afterwards
from exits import exit_behind


@pytest.fixture
def exit(two_ways):
    with exit_behind(two_ways) as built, removed_afterwards(built.client):
        yield built


@pytest.fixture
def web(exit, text):
    """An exit that runs, and a web server behind it."""
    exit.start_nginx(text.parent)
    exit.serve()
    return exit
