"""Fixtures of the end-to-end tests. Without root or a tool, tests that need them are skipped and say so."""

import os
import pathlib
import shutil
import signal

import pytest
from hosts import PLAIT, Pair, reason_to_skip
from streams import REQUIRE, listen

# A shell makes what it starts in the background deaf to Ctrl-C, and all that is started from there: many a test's program.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def binary():
    assert pathlib.Path(PLAIT).exists(), f"{PLAIT} is not built: run `make build`, or set PLAIT"


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: it measures times, or looks at what others would change")


def pytest_terminal_summary(terminalreporter):
    """Each skipped test by its name, for `scripts/test`."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"SKIP {report.nodeid}: {reason.removeprefix('Skipped: ')}")


_built = 0


@pytest.fixture
def make_pair(tmp_path):
    """Builds pairs of hosts that end with the test, however it ends."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    pairs = []

    def make(rate: str | None = None) -> Pair:
        global _built
        _built += 1
        pair = Pair(f"{os.getpid()}-{_built}", tmp_path, rate)
        pairs.append(pair)
        pair.build()
        return pair

    yield make
    for pair in pairs:
        pair.remove()


@pytest.fixture
def pair(make_pair) -> Pair:
    """A client and a server with two unlimited links."""
    return make_pair()


@pytest.fixture
def two_ways(pair) -> Pair:
    """A pair whose server is reached at one address by both links."""
    pair.add_route_by_wlan()
    return pair


@pytest.fixture
def listener(pair):
    """A service that listens on the server, behind two gateways that require protection; SOCKS leads to it."""
    accepting = listen(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    return accepting


@pytest.fixture
def documents(tmp_path) -> pathlib.Path:
    """A directory that a web server may serve."""
    directory = tmp_path / "documents"
    directory.mkdir()
    return directory


@pytest.fixture
def text(documents) -> pathlib.Path:
    """Real text, about half a megabyte of it."""
    licences = sorted(pathlib.Path("/usr/share/common-licenses").iterdir())
    file = documents / "text.txt"
    with file.open("wb") as out:
        for licence in licences:
            if licence.is_file() and not licence.is_symlink():
                with licence.open("rb") as source:
                    shutil.copyfileobj(source, out)
    return file
