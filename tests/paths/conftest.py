"""The hosts that tests of paths use."""

import pytest
from hosts import reason_to_skip, unique_id
from routed import Routed


@pytest.fixture
def net(tmp_path):
    """Two healthy paths."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    routed = Routed(unique_id(), tmp_path)
    try:
        routed.build()
        yield routed
    finally:
        routed.remove()
