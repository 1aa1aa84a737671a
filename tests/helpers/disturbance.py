"""How long this machine kept a ready thread from running, for tests that measure times.

A test that measures and misses its bound while the machine was disturbed proves nothing about plait: it calls
`inconclusive`, which `scripts/test` counts; more than 1 % of them fail the run.
"""

from __future__ import annotations

import threading
import time

import pytest

INTERVAL = 0.002


def inconclusive(reason: str):
    """Ends the test as neither passed nor failed. For what the machine did, never for what plait did."""
    pytest.skip(f"INCONCLUSIVE: {reason}")


class Disturbance:
    """Measures while its block runs: `worst` is the longest wait for a processor beyond the time asked for, in seconds."""

    def __init__(self):
        self.worst = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Disturbance:
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _measure(self):
        while not self._stop.is_set():
            before = time.monotonic()
            time.sleep(INTERVAL)
            self.worst = max(self.worst, time.monotonic() - before - INTERVAL)
