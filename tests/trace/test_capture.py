"""`plait capture`: records packets, samples, links and counters, and reports anything missing."""

import json
import os
import pathlib
import shutil
import signal
import tempfile
import time

import pytest
from captures import document
from disturbance import measuring
from hosts import PLAIT, tool, wait_for
from streams import OFF, random_file
from terminal import Terminal
from transfers import counters

SIZE = 6_000_000


def lines(directory, name: str) -> list[dict]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def tcpdumps(directory) -> list[int]:
    """The ids of tcpdump processes that write to the directory."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"tcpdump") and any(str(directory).encode() in part for part in arguments):
            found.append(int(process.name))
    return found


def analyzed(directory) -> tuple[dict, dict]:
    """The document of the recorded packets, and its only MPTCP connection."""
    found = document(*sorted(directory.glob("*.pcap")))
    (connection,) = [each for each in found["connections"] if each["version"] == 1]
    return found, connection


def recorded(directory) -> dict:
    return json.loads((directory / "capture.json").read_text())


def start(host, directory, *options):
    """Starts plait capture, and returns once it records."""
    program = host.start(PLAIT, "capture", "-o", directory, *options, log="capture.log")
    log = host.directory / "capture.log"
    wait_for("capture", lambda: program.poll() is not None or b"recording" in log.read_bytes())
    assert program.poll() is None, log.read_text()
    return program


@pytest.fixture
def transfer(make_pair, documents):
    """A pair of hosts, and a command that downloads a file over both links."""
    pair = make_pair(rate="100mbit")
    file = random_file(documents, SIZE)
    pair.nginx(documents)
    pair.serve("--mode", "off", to="127.0.0.1:8080")
    url = f"http://{pair.ETH}:8443/{file.name}"
    return pair, (PLAIT, "run", *OFF, "--", "curl", "-sS", "--max-time", "60", "-o", "/dev/null", url)


def test_records_a_command_completely(transfer, tmp_path):
    pair, command = transfer
    directory = tmp_path / "recorded"
    before = counters(pair.client)
    done = pair.client.run(PLAIT, "capture", "--json", "-o", directory, "--", *command, text=True)
    after = counters(pair.client)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == (written := recorded(directory))
    assert (written["ended_by"], written["exit_status"], written["error"]) == ("command", 0, None)
    assert written["command"] == [str(part) for part in command]
    assert "INCOMPLETE" not in done.stderr and written["missed_notifications"] == 0

    # All packets, with nanosecond timestamps, readable by tshark and plait analyze.
    assert [interface["interface"] for interface in written["interfaces"]] == ["eth", "wlan"]
    for interface in written["interfaces"]:
        file = directory / interface["file"]
        assert file.read_bytes()[:4] in (b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d")
        count = len(tool("tshark", "-n", "-r", str(file), "-T", "fields", "-e", "frame.number").splitlines())
        assert interface["captured"] == interface["received_by_filter"] == count > 100
        assert interface["dropped"] == 0
    _, connection = analyzed(directory)

    # The last sample of each subflow agrees with the packets.
    samples = lines(directory, "samples.jsonl")
    assert len(samples) == written["samples"]
    assert {sample["token"] for sample in samples} == {connection["token_client"]}
    assert all(written["begin"] - 1 < sample["time"] < written["end"] + 1 for sample in samples)
    last = {}
    for sample in samples:
        for subflow in sample["subflows"]:
            assert subflow["id"] not in last or last[subflow["id"]]["closed"] is None, "closed only once"
            last[subflow["id"]] = subflow
    assert [subflow["closed"] for subflow in last.values()] == ["final", "final"]
    ends = {(subflow["local"], subflow["remote"]): subflow for subflow in last.values()}
    for found in connection["subflows"]:
        subflow = ends[found["src"], found["dst"]]
        sent, received = found["directions"]["client_to_server"], found["directions"]["server_to_client"]
        assert subflow["bytes_sent"] == sent["bytes"]
        # The FIN counts as a byte.
        assert 0 <= subflow["bytes_received"] - (received["bytes"] - received["retransmitted"]["bytes"]) <= 1
        assert subflow["joined"] == found["joined"]

    # Kernel counters agree with nstat.
    snapshots = lines(directory, "counters.jsonl")
    assert len(snapshots) == written["counters"] >= 5
    first, final = snapshots[0]["kernel"], snapshots[-1]["kernel"]
    for name in ("MPTcpExtMPCapableSYNTX", "MPTcpExtMPJoinSynTx", "TcpActiveOpens", "TcpExtTCPPureAcks"):
        assert before[name] <= first.get(name, 0) <= final.get(name, 0) <= after[name], name
    grown = {name: final.get(name, 0) - first.get(name, 0) for name in final}
    assert (grown["MPTcpExtMPCapableSYNTX"], grown["MPTcpExtMPJoinSynTx"]) == (1, 1)
    for links in lines(directory, "links.jsonl"):
        assert {link["name"] for link in links["links"] if link["running"]} == {"lo", "eth", "wlan"}
    assert not tcpdumps(directory)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_exit_status_is_that_of_the_command(pair, tmp_path, script, status):
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", "sh", "-c", script)
    assert done.returncode == status
    assert recorded(tmp_path / "new")["exit_status"] == status


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP", "duration"])
def test_stops_on_signal_or_duration_with_everything_written(transfer, tmp_path, how):
    pair, command = transfer
    directory = tmp_path / "recorded"
    options = ("--duration", "3s") if how == "duration" else ()
    program = start(pair.client, directory, "--snaplen", "100", *options)
    assert pair.client.run(*command).returncode == 0
    if how != "duration":
        program.send_signal(getattr(signal, how))
    assert program.wait(15) == 0, (tmp_path / "capture.log").read_text()
    written = recorded(directory)
    assert written["ended_by"] == ("duration" if how == "duration" else "signal")
    assert (written["snaplen"], written["exit_status"]) == (100, None)
    analysis, connection = analyzed(directory)
    assert connection["new_bytes"]["server_to_client"] > SIZE and analysis["damaged"] == []
    assert not tcpdumps(directory)


def test_signal_also_terminates_the_command(pair, tmp_path):
    program = start(pair.client, tmp_path / "new", "--", "sleep", "1000")
    program.terminate()
    assert program.wait(60) == 128 + signal.SIGTERM
    assert recorded(tmp_path / "new")["ended_by"] == "signal"


def test_sigkill_leaves_no_tcpdump_behind(pair, tmp_path):
    program = start(pair.client, tmp_path / "new")
    assert len(tcpdumps(tmp_path / "new")) == 2
    program.kill()
    program.wait()
    wait_for("end of tcpdump", lambda: not tcpdumps(tmp_path / "new"))


def test_ctrl_c_lets_the_command_exit_in_its_own_way(pair, tmp_path):
    """The terminal sends Ctrl-C to both; the recording continues until the command has exited."""
    script = "trap 'sleep 0.5; exit 3' INT; echo trap is set; while :; do sleep 0.1; done"
    terminal = Terminal(pair.client, PLAIT, "capture", "-o", tmp_path / "new", "--", "sh", "-c", script)
    terminal.shows("recording", "trap is set")
    terminal.type(b"\x03")
    assert terminal.program.wait(60) == 3
    written = recorded(tmp_path / "new")
    assert (written["ended_by"], written["exit_status"], written["error"]) == ("signal", 3, None)
    terminal.close()


def fake_tcpdump(directory, script: str) -> str:
    """A PATH with a script as tcpdump, which reports that it listens and then runs `script`."""
    directory.mkdir()
    program = directory / "tcpdump"
    program.write_text(f"#!/bin/sh\necho 'tcpdump: listening on eth, link-type EN10MB' >&2\n{script}\n")
    program.chmod(0o755)
    return f"PATH={directory}:{os.environ['PATH']}"


def test_reports_dropped_packets(pair, tmp_path):
    counts = "5 packets captured\n9 packets received by filter\n3 packets dropped by kernel\n1 packet dropped by interface"
    path = fake_tcpdump(
        tmp_path / "bin", f"trap 'echo \"{counts}\" >&2; exit' INT; while :; do sleep 0.05; done"
    )
    done = pair.client.run(
        "env", path, PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", "true", text=True
    )
    assert done.returncode == 0
    assert "INCOMPLETE: 4 of 9 packets on eth" in done.stderr and "--snaplen" in done.stderr
    (interface,) = recorded(tmp_path / "new")["interfaces"]
    assert (interface["captured"], interface["received_by_filter"], interface["dropped"]) == (5, 9, 4)


@pytest.mark.parametrize("command", [("sleep", "1000"), ("true",)])
def test_fails_if_tcpdump_exits(pair, tmp_path, command):
    path = fake_tcpdump(tmp_path / "bin", "sleep 0.3; echo 'tcpdump: the interface went down' >&2; exit 1")
    done = pair.client.run(
        "env", path, PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", *command, text=True
    )
    assert done.returncode == 1 and "eth" in done.stderr and "the interface went down" in done.stderr
    written = recorded(tmp_path / "new")
    assert "the interface went down" in written["error"] and written["ended_by"] is None


def test_records_link_changes(pair, tmp_path):
    program = start(pair.client, tmp_path / "new", "-i", "eth")

    def states():
        """Time and whether wlan is up, for each recorded change."""
        changes = lines(tmp_path / "new", "links.jsonl")
        return [
            (change["time"], {link["name"]: link["up"] for link in change["links"]}["wlan"])
            for change in changes
        ]

    assert [up for _, up in states()] == [True]
    with measuring(0.05):
        before = time.time()
        pair.client.ip("link set wlan down")
        after = time.time()
        wait_for("the change", lambda: not states()[-1][1])
        changed = next(moment for moment, up in states() if not up)
        assert changed <= after + 0.2
    assert before <= changed
    program.terminate()
    program.wait(60)


def test_full_disk_stops_the_recording_with_an_error(transfer, tmp_path):
    pair, command = transfer
    directory = tmp_path / "small"
    directory.mkdir()
    # A mount namespace, so that nothing has to be unmounted.
    script = f'mount -t tmpfs -o size=1m none {directory} && exec "$0" capture -o {directory} -- "$@"'
    begin = time.monotonic()
    done = pair.client.run("unshare", "-m", "sh", "-c", script, PLAIT, "sh", "-c",
                           '"$@"; exec sleep 1000', "sh", *command, text=True)  # fmt: skip
    assert time.monotonic() - begin < 30
    assert done.returncode == 1 and "o space left" in done.stderr, done.stderr
    assert not tcpdumps(directory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-i", "nothing"), "expected one of the interfaces lo, eth, wlan"),
        (("--filter", "no such word"), "syntax error"),
        (("--", "/no/such/program"), "cannot run /no/such/program"),
    ],
)
def test_failed_start_leaves_an_empty_directory(pair, tmp_path, options, message):
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", *options, text=True)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    again = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "--", "true", text=True)
    assert again.returncode == 0, again.stderr


def test_rejects_an_interface_that_is_down(pair, tmp_path):
    pair.client.ip("link set wlan down")
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "-i", "wlan", text=True)
    assert done.returncode == 1 and "ip link set wlan up" in done.stderr


def test_rejects_a_directory_that_is_not_empty(pair, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path, "--", "true", text=True)
    assert done.returncode == 1 and "to be empty" in done.stderr
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "notes.txt", "--", "true", text=True)
    assert done.returncode == 1 and "notes.txt" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_missing_tcpdump_error_names_the_package(pair, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = pair.client.run("env", f"PATH={empty}", PLAIT, "capture", "-o", tmp_path / "new", text=True)
    assert done.returncode == 1 and "apt-get install tcpdump" in done.stderr


def test_missing_permission_error_names_the_remedy(pair):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="plait-capture-"))
    try:
        directory.chmod(0o777)
        binary = shutil.copy(PLAIT, directory / "plait")
        user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", binary)
        done = pair.client.run(*user, "capture", "-o", directory / "new", text=True)
        assert done.returncode == 1 and "as root" in done.stderr and "setcap" in done.stderr, done.stderr
    finally:
        shutil.rmtree(directory)
