"""Fixtures of the end-to-end tests. Tests that need root or a missing tool are skipped."""

import os
import pathlib
import signal

import pytest
from exits import exit_behind
from hosts import NAME, PLAIT, Pair, reason_to_skip, unique_id
from routers import lan_behind
from streams import REQUIRE, listen

# Shells ignore SIGINT in programs that they start in the background, nohup ignores SIGHUP, and the programs of tests would
# inherit this.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# `plait run` would run programs as the user who called sudo for the tests, to whom the tests' files do not belong.
os.environ.pop("SUDO_UID", None)


@pytest.fixture(scope="session", autouse=True)
def binary():
    assert pathlib.Path(PLAIT).exists(), f"{PLAIT} is not built: run `make build`, or set PLAIT"


def pytest_terminal_summary(terminalreporter):
    """Lists skipped tests by name, for `scripts/test`."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"SKIP {report.nodeid}: {reason.removeprefix('Skipped: ')}")


@pytest.fixture
def make_pair(tmp_path):
    """Builds pairs of hosts that end with the test, however it ends."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    pairs = []

    def make(rate: str | None = None) -> Pair:
        pair = Pair(unique_id(), tmp_path, rate)
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
def exit(two_ways):
    """An exit on the server, which is not started; nothing but it reaches the far host."""
    with exit_behind(two_ways) as built:
        yield built


@pytest.fixture
def lan(exit):
    """A router on the client of the exit, which is not started, with a host behind it."""
    with lan_behind(exit.pair, "lan0") as built:
        yield built


@pytest.fixture
def names(pair):
    """Sets the addresses that `NAME` resolves to on the client, in this order."""
    directory = pathlib.Path("/etc/netns") / pair.client.name
    directory.mkdir(parents=True)
    hosts = directory / "hosts"

    def resolve(*addresses: str):
        lines = ("127.0.0.1 localhost", *(f"{address} {NAME}" for address in addresses))
        # In place: the programs of the client have this file mounted.
        hosts.write_text("".join(f"{line}\n" for line in lines))

    yield resolve
    hosts.unlink(missing_ok=True)
    directory.rmdir()


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
    file.write_bytes(b"".join(each.read_bytes() for each in licences if not each.is_symlink()))
    return file
