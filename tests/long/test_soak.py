"""The soak in small; CONTRIBUTING.md says how it is run at length."""

import asyncio

import pytest
from soak import RATE, Settings, Soak


@pytest.mark.parametrize("mode", ["sealed", "stream"])
def test_streams_that_end_in_order_are_complete_despite_faults(make_pair, mode):
    settings = Settings(mode, connections=60, concurrency=16, every=4, timeout=8, dead_peer_timeout=0)
    report = asyncio.run(Soak(make_pair(RATE), settings).run())
    assert not report.problems
    assert report.verdicts["whole"] > 50 and report.verdicts["error"] > 5, report
    assert report.faults["kill"] and sum(report.faults.values()) > 2, report
