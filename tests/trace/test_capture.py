"""`plait capture`: packets, samples, links and counters of one measurement, and that nothing is left out unsaid."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from hosts import PLAIT, tool, wait_for
from streams import random_file
from test_top import Terminal

SIZE = 6_000_000


def lines(directory, name: str) -> list[dict]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def tcpdumps(directory) -> list[int]:
    """Processes that write into the directory."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"tcpdump") and any(str(directory).encode() in part for part in arguments):
            found.append(int(process.name))
    return found


def start(host, directory, *options):
    """A capture that records when this returns."""
    program = host.start(PLAIT, "capture", "-o", directory, *options, log="capture.log")
    log = host.directory / "capture.log"
    wait_for("capture", lambda: program.poll() is not None or b"recording" in log.read_bytes())
    assert program.poll() is None, log.read_text()
    return program


@pytest.fixture
def transfer(make_pair, documents):
    """A pair of hosts, and a command that downloads over both of their links."""
    pair = make_pair(rate="100mbit")
    file = random_file(documents, SIZE)
    pair.nginx(documents)
    pair.serve("--mode", "off", to="127.0.0.1:8080")
    url = f"http://{pair.ETH}:8443/{file.name}"
    fetch = ("curl", "-sS", "--max-time", "60", "-o", "/dev/null", url)
    return pair, (PLAIT, "run", "--mode", "off", "--trusted", "eth", "--", *fetch)


def test_a_command_is_recorded_whole(transfer, tmp_path):
    pair, command = transfer
    directory = tmp_path / "recorded"
    before = json.loads(pair.client.run("nstat", "-asz", "--json").stdout)["kernel"]
    done = pair.client.run(PLAIT, "capture", "--json", "-o", directory, "--", *command, text=True)
    after = json.loads(pair.client.run("nstat", "-asz", "--json").stdout)["kernel"]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == (document := json.loads((directory / "capture.json").read_text()))
    assert (document["ended_by"], document["exit_status"], document["error"]) == ("command", 0, None)
    assert document["command"] == [str(part) for part in command]
    assert "INCOMPLETE" not in done.stderr and document["lost"] == 0

    # Packets: all of them, in nanoseconds, as tshark and plait analyze read them.
    assert [recorded["interface"] for recorded in document["interfaces"]] == ["eth", "wlan"]
    for recorded in document["interfaces"]:
        file = directory / recorded["file"]
        assert file.read_bytes()[:4] in (b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d")
        count = len(tool("tshark", "-n", "-r", str(file), "-T", "fields", "-e", "frame.number").splitlines())
        assert recorded["packets"] == recorded["seen"] == count > 100
        assert recorded["dropped"] == 0
    captures = sorted(str(file) for file in directory.glob("*.pcap"))
    analysis = json.loads(tool(PLAIT, "analyze", "--json", *captures))
    (connection,) = [found for found in analysis["connections"] if found["version"] == 1]

    # Samples: the last of each subflow says what the packets say.
    samples = lines(directory, "samples.jsonl")
    assert len(samples) == document["samples"]
    assert {sample["token"] for sample in samples} == {connection["token_client"]}
    assert all(document["begin"] - 1 < sample["time"] < document["end"] + 1 for sample in samples)
    last = {}
    for sample in samples:
        for subflow in sample["subflows"]:
            assert subflow["id"] not in last or last[subflow["id"]]["closed"] is None, "it ends once"
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

    # Counters: snapshots in nstat's names.
    snapshots = lines(directory, "counters.jsonl")
    assert len(snapshots) == document["counters"] >= 5
    first, final = snapshots[0]["kernel"], snapshots[-1]["kernel"]
    for name in ("MPTcpExtMPCapableSYNTX", "MPTcpExtMPJoinSynTx", "TcpActiveOpens", "TcpExtTCPPureAcks"):
        assert before[name] <= first.get(name, 0) <= final.get(name, 0) <= after[name], name
    grown = {name: final.get(name, 0) - first.get(name, 0) for name in final}
    assert (grown["MPTcpExtMPCapableSYNTX"], grown["MPTcpExtMPJoinSynTx"]) == (1, 1)
    for links in lines(directory, "links.jsonl"):
        assert {link["name"] for link in links["links"] if link["running"]} == {"lo", "eth", "wlan"}
    assert not tcpdumps(directory)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_status_is_the_commands(pair, tmp_path, script, status):
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", "sh", "-c", script)
    assert done.returncode == status
    assert json.loads((tmp_path / "new" / "capture.json").read_text())["exit_status"] == status


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP", "duration"])
def test_it_ends_when_asked_and_has_written_everything(transfer, tmp_path, how):
    pair, command = transfer
    directory = tmp_path / "recorded"
    options = ("--duration", "3s") if how == "duration" else ()
    program = start(pair.client, directory, "--snap", "100", *options)
    assert pair.client.run(*command).returncode == 0
    if how != "duration":
        program.send_signal(getattr(signal, how))
    assert program.wait(15) == 0, (tmp_path / "capture.log").read_text()
    document = json.loads((directory / "capture.json").read_text())
    assert document["ended_by"] == ("duration" if how == "duration" else "signal")
    assert (document["snap"], document["exit_status"]) == (100, None)
    captures = sorted(str(file) for file in directory.glob("*.pcap"))
    analysis = json.loads(tool(PLAIT, "analyze", "--json", *captures))
    (connection,) = [found for found in analysis["connections"] if found["version"] == 1]
    assert connection["new_bytes"]["server_to_client"] > SIZE and analysis["damaged"] == []
    assert not tcpdumps(directory)


def test_a_signal_ends_the_command_too(pair, tmp_path):
    program = start(pair.client, tmp_path / "new", "--", "sleep", "1000")
    program.terminate()
    assert program.wait(10) == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "new" / "capture.json").read_text())["ended_by"] == "signal"


def test_a_kill_leaves_no_tcpdump(pair, tmp_path):
    program = start(pair.client, tmp_path / "new")
    assert len(tcpdumps(tmp_path / "new")) == 2
    program.kill()
    program.wait()
    wait_for("end of tcpdump", lambda: not tcpdumps(tmp_path / "new"))


def test_ctrl_c_is_the_commands(pair, tmp_path):
    """The terminal sends it to both; the recording goes on until the command has ended in its own way."""
    script = "trap 'sleep 0.5; exit 3' INT; while :; do sleep 0.1; done"
    terminal = Terminal(pair.client, PLAIT, "capture", "-o", tmp_path / "new", "--", "sh", "-c", script)
    terminal.shows("recording")
    time.sleep(0.3)
    terminal.type(b"\x03")
    assert terminal.program.wait(10) == 3
    document = json.loads((tmp_path / "new" / "capture.json").read_text())
    assert (document["ended_by"], document["exit_status"], document["error"]) == ("signal", 3, None)
    terminal.close()


def fake_tcpdump(directory, script: str) -> str:
    """A PATH on which tcpdump is a script that listens and then does something."""
    directory.mkdir()
    program = directory / "tcpdump"
    program.write_text(f"#!/bin/sh\necho 'tcpdump: listening on eth, link-type EN10MB' >&2\n{script}\n")
    program.chmod(0o755)
    return f"PATH={directory}:{os.environ['PATH']}"


def test_dropped_packets_are_said_loudly(pair, tmp_path):
    counts = "5 packets captured\n9 packets received by filter\n3 packets dropped by kernel\n1 packet dropped by interface"
    path = fake_tcpdump(
        tmp_path / "bin", f"trap 'echo \"{counts}\" >&2; exit' INT; while :; do sleep 0.05; done"
    )
    done = pair.client.run(
        "env", path, PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", "true", text=True
    )
    assert done.returncode == 0
    assert "INCOMPLETE: 4 packets of 9 on eth" in done.stderr and "--snap" in done.stderr
    (recorded,) = json.loads((tmp_path / "new" / "capture.json").read_text())["interfaces"]
    assert (recorded["packets"], recorded["seen"], recorded["dropped"]) == (5, 9, 4)


@pytest.mark.parametrize("command", [("sleep", "1000"), ("true",)])
def test_a_tcpdump_that_ends_is_an_error(pair, tmp_path, command):
    path = fake_tcpdump(tmp_path / "bin", "sleep 0.3; echo 'tcpdump: the interface went down' >&2; exit 1")
    done = pair.client.run(
        "env", path, PLAIT, "capture", "-o", tmp_path / "new", "-i", "eth", "--", *command, text=True
    )
    assert done.returncode == 1 and "eth" in done.stderr and "the interface went down" in done.stderr
    document = json.loads((tmp_path / "new" / "capture.json").read_text())
    assert "the interface went down" in document["error"] and document["ended_by"] is None


def test_links_that_change_are_recorded(pair, tmp_path):
    program = start(pair.client, tmp_path / "new", "-i", "eth")
    time.sleep(0.3)
    before = time.time()
    tool("ip", "-n", pair.client.name, "link", "set", "wlan", "down")
    after = time.time()
    time.sleep(0.3)
    program.terminate()
    program.wait(10)
    first, *changes = lines(tmp_path / "new", "links.jsonl")
    state = [{link["name"]: link["up"] for link in change["links"]}["wlan"] for change in (first, *changes)]
    assert state[0] is True and state[-1] is False
    change = changes[state[1:].index(False)]
    assert before <= change["time"] <= after + 0.2


def test_a_full_disk_ends_it_with_the_reason(transfer, tmp_path):
    pair, command = transfer
    directory = tmp_path / "small"
    directory.mkdir()
    # Inside the program's own mounts, so that nothing has to be unmounted.
    script = f'mount -t tmpfs -o size=1m none {directory} && exec "$0" capture -o {directory} -- "$@"'
    begin = time.monotonic()
    done = pair.client.run("unshare", "-m", "sh", "-c", script, PLAIT, "sh", "-c",
                           '"$@"; exec sleep 1000', "sh", *command, text=True)  # fmt: skip
    assert time.monotonic() - begin < 30
    assert done.returncode == 1 and "o space left" in done.stderr, done.stderr
    assert not tcpdumps(directory)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-i", "nothing"), "there are lo, eth, wlan"),
        (("--filter", "no such word"), "syntax error"),
        (("--", "/no/such/program"), "cannot run /no/such/program"),
    ],
)
def test_what_cannot_begin_leaves_nothing(pair, tmp_path, options, says):
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", *options, text=True)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    again = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "--", "true", text=True)
    assert again.returncode == 0, again.stderr


def test_an_interface_that_is_down_is_refused(pair, tmp_path):
    tool("ip", "-n", pair.client.name, "link", "set", "wlan", "down")
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "new", "-i", "wlan", text=True)
    assert done.returncode == 1 and "ip link set wlan up" in done.stderr


def test_a_directory_with_something_in_it_is_refused(pair, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path, "--", "true", text=True)
    assert done.returncode == 1 and "to be empty" in done.stderr
    done = pair.client.run(PLAIT, "capture", "-o", tmp_path / "notes.txt", "--", "true", text=True)
    assert done.returncode == 1 and "notes.txt" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_tcpdump_the_remedy_is_named(pair, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = pair.client.run("env", f"PATH={empty}", PLAIT, "capture", "-o", tmp_path / "new", text=True)
    assert done.returncode == 1 and "apt-get install tcpdump" in done.stderr


def test_without_permission_the_remedy_is_named(pair):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="plait-capture-"))
    try:
        directory.chmod(0o777)
        binary = shutil.copy(PLAIT, directory / "plait")
        user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", binary)
        done = pair.client.run(*user, "capture", "-o", directory / "new", text=True)
        assert done.returncode == 1 and "as root" in done.stderr and "setcap" in done.stderr, done.stderr
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("-o", "x", "--snap", "0"),
        ("-o", "x", "--duration", "0"),
        ("-o", "x", "--interval", "1ms"),
        ("-o", "x", "y"),
    ],
)
def test_wrong_usage(arguments, tmp_path):
    done = subprocess.run([PLAIT, "capture", *arguments], capture_output=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b"" and not os.listdir(tmp_path)
