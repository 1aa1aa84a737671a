"""How long this machine kept ready threads from running, for tests that measure times.

A test that misses a bound on a time while the machine was disturbed proves nothing about plait: it is inconclusive.
`scripts/test` counts these; more than 1 % of them fail the run.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time

import pytest

INTERVAL = 0.002
# Tests with bounds on times run one at a time: then less than a third of the time passes with a thread that is ready
# and has no processor.
MAX_PRESSURE = 0.6
MAX_STEAL = 0.1


@contextlib.contextmanager
def measuring(longest_wait: float):
    """Makes an assertion of the block that fails inconclusive if the machine was disturbed meanwhile: if a thread that
    mostly sleeps waited longer than this for a processor, in seconds, if for most of the time some thread waited, or if
    the hypervisor took the processors away."""
    disturbance = Disturbance()
    try:
        with disturbance:
            yield
    except AssertionError as missed:
        if reason := disturbance.reason(longest_wait):
            pytest.skip(f"INCONCLUSIVE: {missed}; {reason}")
        raise


class Disturbance:
    """What the kernel says of its processors while its block runs."""

    def __init__(self):
        self._longest_wait = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self):
        self._since, self._waited, self._ticks = time.monotonic(), pressure(), ticks()
        self._thread.start()

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._pressure = (pressure() - self._waited) / (time.monotonic() - self._since)
        self._steal = steal_since(self._ticks)

    def _measure(self):
        while not self._stop.is_set():
            before = time.monotonic()
            time.sleep(INTERVAL)
            self._longest_wait = max(self._longest_wait, time.monotonic() - before - INTERVAL)

    def reason(self, longest_wait: float) -> str | None:
        """In what way the machine was disturbed."""
        if self._longest_wait > longest_wait:
            return f"a ready thread waited {self._longest_wait:.3f} s for a processor"
        if self._pressure > MAX_PRESSURE:
            return f"a ready thread waited for a processor in {self._pressure:.0%} of the time"
        if self._steal > MAX_STEAL:
            return f"the hypervisor took {self._steal:.0%} of the processors' time"
        return None


def pressure() -> float:
    """The seconds in which some thread waited for a processor, since the start of the machine (kernel's accounting/psi).
    0 on kernels without this."""
    with contextlib.suppress(OSError):
        some = pathlib.Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(some.rsplit("total=", 1)[1]) * 1e-6
    return 0.0


def ticks() -> tuple[int, int]:
    """The ticks that the hypervisor took from this machine, and all, since its start (proc_stat(5))."""
    counts = [int(count) for count in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return counts[7], sum(counts[:8])


def steal_since(before: tuple[int, int]) -> float:
    """The share of the processors' time that the hypervisor took since ticks() returned this."""
    stolen, total = (now - then for now, then in zip(ticks(), before, strict=True))
    return stolen / max(total, 1)
