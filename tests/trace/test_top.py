"""`plait top`: connections and subflows as `ss` shows them, once and on a terminal."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time

import pytest
from hosts import PLAIT, Host, wait_for
from streams import accept, listen, receive_exactly, send_until_error

MPTCP = 262


@pytest.fixture
def connection(pair):
    """A connection over two links that carried data and is idle: the client's and the server's socket."""
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 9000))
    server = accept(listener)
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
        time.sleep(0.3)
        yield client, server


def ss_subflows(host: Host) -> dict:
    """What ss says of each subflow, by its addresses."""
    found = {}
    for line in host.run("ss", "-tinOH", text=True).stdout.splitlines():
        if "tcp-ulp-mptcp" in line and (fields := line.split())[0] == "ESTAB":
            found[without_interface(fields[3]), fields[4]] = line
    return found


def without_interface(address: str) -> str:
    return re.sub(r"%\w+", "", address)


def figure(line: str, name: str) -> int:
    """0 where ss leaves a figure out."""
    found = re.search(rf"(?<!\w){name}:(\d+)", line)
    return int(found[1]) if found else 0


def once(host: Host, interval="0.2s", command=(PLAIT,)) -> dict:
    done = host.run(*command, "top", "--once", "--json", "--interval", interval, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_every_figure_is_that_of_ss(pair, connection):
    for host in (pair.client, pair.server):
        before = ss_subflows(host)
        (found,) = once(host)["connections"]
        lines = ss_subflows(host)
        assert lines.keys() == before.keys() and len(lines) == 2
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
                assert subflow[ours] == figure(line, theirs), (ours, line)
            rtt, variance = re.search(r"(?<!\w)rtt:([\d.]+)/([\d.]+)", line).groups()
            assert (subflow["rtt_us"], subflow["rtt_variance_us"]) == tuple(
                round(float(value) * 1000) for value in (rtt, variance)
            )
            assert subflow["rto_us"] == figure(line, "rto") * 1000
            flags = re.search(r"flags:(\w+)", line)[1]
            assert subflow["joined"] == bool(set("Jj") & set(flags))
            assert (subflow["backup_local"], subflow["backup_remote"]) == ("b" in flags, "B" in flags)
            assert subflow["congestion_control"] in line.split()
            assert subflow["interface"] in ("eth", "wlan")
    assert found["connection"]["bytes_received"] == 3_000_005
    assert found["connection"]["bytes_sent"] == 70_000


def test_any_user_may_look(pair, connection):
    """Without tokens, subflows are found by the inode that they share with their connection."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="plait-top-"))
    try:
        directory.chmod(0o755)
        binary = pathlib.Path(shutil.copy(PLAIT, directory / "plait"))
        user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(binary))
        (mine,), (roots,) = once(pair.client, command=user)["connections"], once(pair.client)["connections"]
    finally:
        shutil.rmtree(directory)
    assert mine["token"] == roots["token"]
    assert [s["id"] for s in mine["subflows"]] == [s["id"] for s in roots["subflows"]]


def test_rates_and_shares(make_pair):
    pair = make_pair(rate="20mbit")
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 9000))
    server = accept(listener)
    threading.Thread(target=send_until_error, args=(client,), daemon=True).start()
    threading.Thread(target=drain, args=(server,), daemon=True).start()
    wait_for("second subflow", lambda: len(ss_subflows(pair.client)) == 2)
    time.sleep(1)
    found = once(pair.server, "2s")
    (connection,) = found["connections"]
    assert 1.9 < found["interval_s"] < 3
    # 20 Mbit/s on each link, with headers.
    for subflow in connection["subflows"]:
        assert subflow["received_bps"] < 20.5e6
        assert subflow["share"] * connection["received_bps"] == pytest.approx(
            subflow["received_bps"], rel=0.01
        )
    assert sum(subflow["share"] for subflow in connection["subflows"]) == pytest.approx(1)
    assert 25e6 < connection["received_bps"] < 41e6
    client.close()
    server.close()


def drain(connection):
    with contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass


def test_nothing_there_is_said(pair):
    done = pair.client.run(PLAIT, "top", "--once", "--interval", "50ms", text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no MPTCP connection")


def test_no_terminal_is_refused(pair):
    done = pair.client.run(PLAIT, "top", text=True)
    assert done.returncode == 1 and "--once" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("arguments", [("--json",), ("--interval", "0"), ("--interval", "1ms"), ("x",)])
def test_wrong_usage(arguments):
    done = subprocess.run([PLAIT, "top", *arguments], capture_output=True)
    assert done.returncode == 2 and done.stdout == b""


class Terminal:
    """A terminal that a program runs on."""

    ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"

    def __init__(self, host: Host, *command, columns=120, rows=20):
        self.main, self.other = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.other)
        self.shown = b""
        # A session of its own, with this as its terminal.
        self.program = host.start(
            *command, stdin=self.other, stdout=self.other, stderr=self.other,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )  # fmt: skip

    def resize(self, columns, rows):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """All that was drawn so far."""
        while select.select([self.main], [], [], 0.02)[0]:
            self.shown += os.read(self.main, 65536)
        return self.shown

    def screen(self) -> str:
        """What the codes drawn so far leave on a screen: those that move, those that clear, and letters."""
        cells, row, column = {}, 1, 1
        drawn = self.read().decode(errors="replace")
        for code, letter in re.findall(r"\x1b\[([?\d;]*[A-Za-z])|([^\x1b])", drawn):
            if code.endswith("H"):
                row, column = (int(part) for part in code[:-1].split(";"))
            elif code.endswith("J"):
                cells.clear()
            elif letter:
                cells[row, column] = letter
                column += 1
        rows = range(1, max((row for row, _ in cells), default=0) + 1)
        width = max((column for _, column in cells), default=0)
        return "\n".join("".join(cells.get((r, c), " ") for c in range(1, width + 1)) for r in rows)

    def shows(self, *parts: str):
        try:
            wait_for("such screen", lambda: all(part in self.screen() for part in parts), 5)
        except AssertionError:
            raise AssertionError(f"expected {parts}, found\n{self.screen()}") from None

    def type(self, keys: bytes):
        os.write(self.main, keys)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.other) == self.before

    def close(self):
        os.close(self.main)
        os.close(self.other)


@pytest.fixture
def terminal(pair, connection):
    terminal = Terminal(pair.client, PLAIT, "top", "--interval", "0.2s")
    terminal.shows("plait top", "1 connection, 2 subflows", "eth", "wlan")
    assert not terminal.is_as_before()
    yield terminal
    terminal.close()


def test_the_screen_follows_keys_and_sizes(terminal):
    terminal.type(b"?")
    terminal.shows("keys", "quit", "round-trip")
    terminal.type(b" ")
    terminal.type(b" ")
    terminal.shows("paused")
    assert "round-trip" not in terminal.screen()
    terminal.resize(80, 8)
    terminal.shows("plait top", "sent", "eth", "retr. history")
    assert "cwnd" not in terminal.screen()
    terminal.resize(200, 50)
    terminal.shows("cwnd", "history")
    terminal.resize(1, 1)
    time.sleep(0.3)
    terminal.resize(120, 20)
    terminal.shows("eth", "wlan")
    terminal.type(b"/wlan\r")
    terminal.shows("filter: wlan")
    assert " eth " not in terminal.screen()
    terminal.type(b"\x1b")
    terminal.shows(" eth ")
    terminal.type(b"q")
    assert terminal.program.wait(5) == 0
    assert Terminal.LEAVE in terminal.read() and terminal.is_as_before()


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM", "SIGINT"])
def test_the_terminal_is_given_back(terminal, how):
    match how:
        case "q":
            terminal.type(b"q")
        case "Ctrl-C":
            terminal.type(b"\x03")
        case name:
            terminal.program.send_signal(getattr(signal, name))
    assert terminal.program.wait(5) == 0
    assert Terminal.LEAVE in terminal.read() and terminal.is_as_before()


@pytest.mark.parametrize(("value", "coloured"), [("", True), ("1", False)])
def test_no_color(pair, connection, value, coloured):
    colour = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:3[0-7]|4[0-7]|38[;\d]*|48[;\d]*)m")
    terminal = Terminal(pair.client, "env", f"NO_COLOR={value}", PLAIT, "top", "--interval", "0.1s")
    terminal.shows("▁▁▁▁")
    assert bool(colour.search(terminal.read())) == coloured
    terminal.type(b"q")
    assert terminal.program.wait(5) == 0
    terminal.close()
