"""`plait top`: connections and subflows, compared with `ss`, printed once and on a terminal."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import tempfile
import threading

import pytest
from disturbance import measuring
from hosts import PLAIT, Host, wait_for
from streams import receive_exactly, send_until_error
from terminal import Terminal
from transfers import connect


@pytest.fixture
def connection(pair):
    """The client's and the server's socket of an idle connection over two links that has carried data."""
    client, server, listener = connect(pair)
    client.sendall(b"first")
    receive_exactly(server, 5)
    wait_for("second subflow", lambda: len(ss_subflows(pair.client)) == 2)
    sending = threading.Thread(target=client.sendall, args=(bytes(3_000_000),))
    sending.start()
    receive_exactly(server, 3_000_000)
    sending.join()
    server.sendall(bytes(70_000))
    receive_exactly(client, 70_000)
    with client, server, listener:
        yield client, server


def ss_subflows(host: Host) -> dict:
    """The line of ss about each established subflow, by its addresses."""
    found = {}
    for line in host.run("ss", "-tinOH", text=True).stdout.splitlines():
        if "tcp-ulp-mptcp" in line and (fields := line.split())[0] == "ESTAB":
            found[without_interface(fields[3]), fields[4]] = line
    return found


def without_interface(address: str) -> str:
    return re.sub(r"%\w+", "", address)


def field(line: str, name: str) -> int:
    """A field in a line of ss; 0 if ss omits it."""
    found = re.search(rf"(?<!\w){name}:(\d+)", line)
    return int(found[1]) if found else 0


def once(host: Host, interval="0.2s", command=(PLAIT,)) -> dict:
    done = host.run(*command, "top", "--once", "--json", "--interval", interval, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def sample_between_equal_ss(host: Host) -> tuple[dict, dict[tuple[str, str], str]]:
    """The connection according to plait top, and the lines of ss, which were the same before and after."""

    def sample():
        before, document, after = ss_subflows(host), once(host), ss_subflows(host)
        ages = re.compile(r"\b(lastsnd|lastrcv|lastack|busy|sndbuf_limited|rwnd_limited):\S+")
        first, second = ([ages.sub("", line) for line in lines.values()] for lines in (before, after))
        return len(after) == 2 and first == second and (document, after)

    document, lines = wait_for("an idle connection", sample, 30)
    (connection,) = document["connections"]
    return connection, lines


def test_counters_equal_those_of_ss(pair, connection):
    for host in (pair.client, pair.server):
        found, lines = sample_between_equal_ss(host)
        (line,) = host.run("ss", "-MinOH", "state", "established", text=True).stdout.splitlines()
        assert f"token:{int(found['token'], 16):x}" in line
        assert without_interface(found["connection"]["local"]) in line
        assert {(subflow["local"], subflow["remote"]) for subflow in found["subflows"]} == lines.keys()
        for subflow in found["subflows"]:
            line = lines[subflow["local"], subflow["remote"]]
            names = {
                "cwnd": "cwnd", "mss": "mss", "bytes_sent": "bytes_sent", "bytes_acked": "bytes_acked",
                "bytes_received": "bytes_received", "bytes_retransmitted": "bytes_retrans",
                "segments_sent": "segs_out", "segments_received": "segs_in", "peer_window": "snd_wnd",
                "unacked": "unacked", "lost": "lost", "bytes_not_sent": "notsent",
            }  # fmt: skip
            for ours, theirs in names.items():
                assert subflow[ours] == field(line, theirs), (ours, line)
            rtt, variance = re.search(r"(?<!\w)rtt:([\d.]+)/([\d.]+)", line).groups()
            assert (subflow["rtt_us"], subflow["rtt_variance_us"]) == tuple(
                round(float(value) * 1000) for value in (rtt, variance)
            )
            assert subflow["rto_us"] == field(line, "rto") * 1000
            flags = re.search(r"flags:(\w+)", line)[1]
            assert subflow["joined"] == bool(set("Jj") & set(flags))
            assert (subflow["backup_local"], subflow["backup_remote"]) == ("b" in flags, "B" in flags)
            assert subflow["congestion_control"] in line.split()
            assert subflow["interface"] in ("eth", "wlan")
    assert found["connection"]["bytes_received"] == 3_000_005
    assert found["connection"]["bytes_sent"] == 70_000


def test_works_without_root(pair, connection):
    """Without tokens, subflows are assigned by the inode that they share with their connection."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="plait-top-"))
    try:
        directory.chmod(0o755)
        binary = pathlib.Path(shutil.copy(PLAIT, directory / "plait"))
        user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(binary))
        (unprivileged,) = once(pair.client, command=user)["connections"]
        (privileged,) = once(pair.client)["connections"]
    finally:
        shutil.rmtree(directory)
    assert unprivileged["token"] == privileged["token"]
    assert [s["id"] for s in unprivileged["subflows"]] == [s["id"] for s in privileged["subflows"]]


def test_rates_and_shares(make_pair):
    pair = make_pair(rate="20mbit")
    client, server, listener = connect(pair)
    threading.Thread(target=send_until_error, args=(client,), daemon=True).start()
    threading.Thread(target=drain, args=(server,), daemon=True).start()

    def received() -> list[int]:
        return [field(line, "bytes_received") for line in ss_subflows(pair.server).values()]

    wait_for("data on both subflows", lambda: len(received()) == 2 and min(received()) > 500_000)
    with measuring(0.1):
        found = once(pair.server, "2s")
        (connection,) = found["connections"]
        assert 1.9 < found["interval_s"] < 3
        assert 25e6 < connection["received_bps"] < 41e6
    # 20 Mbit/s on each link, including headers.
    for subflow in connection["subflows"]:
        assert subflow["received_bps"] < 20.5e6
        assert subflow["share"] * connection["received_bps"] == pytest.approx(
            subflow["received_bps"], rel=0.01
        )
    assert sum(subflow["share"] for subflow in connection["subflows"]) == pytest.approx(1)
    for each in (client, server, listener):
        each.close()


def drain(connection):
    with contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass


def test_reports_that_there_are_no_connections(pair):
    done = pair.client.run(PLAIT, "top", "--once", "--interval", "50ms", text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no MPTCP connection")


def test_requires_a_terminal(pair):
    done = pair.client.run(PLAIT, "top", text=True)
    assert done.returncode == 1 and "--once" in done.stderr and done.stdout == ""


@pytest.fixture
def terminal(pair, connection):
    terminal = Terminal(pair.client, PLAIT, "top", "--interval", "0.2s")
    terminal.shows("plait top", "1 connection, 2 subflows", "eth", "wlan")
    assert not terminal.is_restored()
    yield terminal
    terminal.close()


def test_screen_reacts_to_keys_and_resizing(terminal):
    terminal.type(b"?")
    terminal.shows("keys", "quit", "round-trip")
    terminal.type(b" ")
    terminal.type(b" ")
    terminal.shows("paused")
    wait_for("the table", lambda: "round-trip" not in terminal.screen())
    terminal.resize(80, 8)
    terminal.shows("plait top", "sent", "eth", "retrans history")
    wait_for("fewer columns", lambda: "cwnd" not in terminal.screen())
    terminal.resize(200, 50)
    terminal.shows("cwnd", "history")
    terminal.resize_and_redraw(1, 1)
    terminal.resize(120, 20)
    terminal.shows("eth", "wlan")
    terminal.type(b"/wlan\r")
    terminal.shows("filter: wlan")
    wait_for("one path", lambda: " eth " not in terminal.screen())
    terminal.type(b"\x1b")
    terminal.shows(" eth ")
    terminal.type(b"q")
    assert terminal.program.wait(60) == 0
    assert Terminal.LEAVE in terminal.read() and terminal.is_restored()


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM", "SIGINT"])
def test_restores_the_terminal(terminal, how):
    match how:
        case "q":
            terminal.type(b"q")
        case "Ctrl-C":
            terminal.type(b"\x03")
        case name:
            terminal.program.send_signal(getattr(signal, name))
    assert terminal.program.wait(60) == 0
    assert Terminal.LEAVE in terminal.read() and terminal.is_restored()


@pytest.mark.parametrize(("value", "coloured"), [("", True), ("1", False)])
def test_honours_no_color(pair, connection, value, coloured):
    colour = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:3[0-7]|4[0-7]|38[;\d]*|48[;\d]*)m")
    terminal = Terminal(pair.client, "env", f"NO_COLOR={value}", PLAIT, "top", "--interval", "0.1s")
    terminal.shows("▁▁▁▁")
    assert bool(colour.search(terminal.read())) == coloured
    terminal.type(b"q")
    assert terminal.program.wait(60) == 0
    terminal.close()
