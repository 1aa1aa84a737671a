"""Text that others wrote does not control the terminal it is printed on: names of files, of interfaces and of hosts that a
proxy is asked for, and what files contain. Every command runs both with its output in pipes and on a terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from captures import connections, segment
from hosts import PLAIT, tool, wait_for
from labs import lab_command, needs_labs, two_hosts
from streams import connect_by_socks, deliver
from terminal import Terminal
from transfers import connect

from policies import both_hooks

# A title, concealed text, clearing the screen by an 8-bit CSI, an override of the direction, DEL.
HOSTILE = "a\x1b]0;owned\x07\x1b[8m\x9b2J\u202etxt\x7f"
ESCAPED = r"a\u001b]0;owned\u0007\u001b[8m\u009b2J\u202etxt\u007f"
# What a terminal would execute, apart from line feeds and tabs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What plait itself sends to a terminal: carriage returns, colours and bold type, and the movements of progress bars.
OWN = re.compile(r"\r|\x1b\[(?:0|1|4|3[0-7])?m|\x1b\[\d*[ABGK]")


def assert_harmless(output: bytes):
    assert not CONTROL.search(output.decode()), output


def printed(*arguments) -> str:
    """What plait prints in pipes, after checking that, and what it prints on a terminal."""
    command = [PLAIT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    assert_harmless(OWN.sub("", on_terminal(*command).decode()).encode())
    return (done.stdout + done.stderr).decode()


def on_terminal(*command) -> bytes:
    """What a command prints on a terminal."""
    main, other = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment["TERM"] = "xterm"
    program = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
    os.close(other)
    shown = b""
    # EIO: the program has ended.
    with contextlib.suppress(OSError):
        while part := os.read(main, 65536):
            shown += part
    os.close(main)
    program.wait(60)
    return shown


@pytest.fixture
def capture(tmp_path):
    file = tmp_path / f"{HOSTILE}.pcap"
    file.write_bytes(connections(3))
    return file


@pytest.fixture
def damaged(tmp_path):
    file = tmp_path / f"{HOSTILE}-damaged.pcap"
    file.write_bytes(connections(3)[:-5])
    return file


def test_assert_harmless_rejects_each_control_character():
    for character in ("\x1b", "\x07", "\r", "\x7f", "\x9b", "\u202e"):
        with pytest.raises(AssertionError):
            assert_harmless(f"a{character}b".encode())
    assert on_terminal("printf", r"\033]0;x\a") == b"\x1b]0;x\x07"
    assert CONTROL.search(OWN.sub("", HOSTILE)) and not OWN.search("\x1b[8m")


@pytest.mark.parametrize("options", [(), ("--all",), ("--json",), ("--each", "-o", "out"), ("-o", "out")])
def test_names_of_captures(capture, damaged, tmp_path, options):
    options = [tmp_path / f"{HOSTILE}-out" if option == "out" else option for option in options]
    assert ESCAPED in printed("analyze", *options, capture, damaged)
    assert ESCAPED in printed("analyze", *options, tmp_path / HOSTILE)


def test_names_in_reports_and_audits(capture, damaged, tmp_path):
    out = tmp_path / HOSTILE
    assert ESCAPED in printed("report", "-o", out, capture, damaged)
    assert ESCAPED in printed("audit", "--report", tmp_path / "audit.html", capture, damaged)
    assert ESCAPED in printed("report", "-o", tmp_path / HOSTILE / "none" / "x.html", capture)
    document = json.loads(printed("audit", "--json", capture))
    assert document["paths"][0]["path"] == str(capture)


def test_colours_reach_terminals(capture):
    shown = on_terminal(PLAIT, "audit", capture)
    assert b"\x1b[1m" in shown and ESCAPED.encode() in shown
    assert b"\x1b[" in on_terminal(PLAIT, "analyze", "--unknown")


def test_names_and_comments_in_a_capture(tmp_path):
    """pcapng: the name of an interface (2), and comments (1) of the section, the interface and packets."""

    def block(kind: int, body: bytes, *options: tuple[int, bytes]) -> bytes:
        for code, value in (*options, (0, b"")):
            body += struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
        length = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + length + body + length

    text = HOSTILE.encode()
    packets = [segment(1), segment(1, b"hello", flags=0x18, sequence=1)]
    blocks = [
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), (1, text), (2, text), (4, text)),
        block(1, struct.pack("<HHI", 101, 0, 0), (1, text), (2, text), (3, text)),
    ]
    for packet in packets:
        header = struct.pack("<IIIII", 0, 0, 1000, len(packet), len(packet))
        blocks.append(block(6, header + packet + bytes(-len(packet) % 4), (1, text)))
    file = tmp_path / "capture.pcapng"
    file.write_bytes(b"".join(blocks))
    assert "2 packets read" in printed("analyze", file)
    printed("analyze", "--json", file)
    printed("audit", file)
    file.write_bytes(b"".join(blocks)[:-5])
    assert "packets before that are used" in printed("analyze", file)


def test_html_pages_contain_names_as_text(tmp_path):
    markup = "<img src=x onerror=alert(1)>"
    file = tmp_path / f"{markup}.pcap"
    file.write_bytes(connections(3))
    out = tmp_path / "out"
    tool(PLAIT, "analyze", "-o", str(out), str(file))
    tool(PLAIT, "report", "-o", str(out / "again.html"), str(file))
    tool(PLAIT, "audit", "--report", str(out / "audit.html"), str(file))
    pages = [*out.glob("*.html"), *out.glob("**/*.svg")]
    assert len(pages) > 3
    for page in pages:
        assert "<img" not in page.read_text(), page


POLICIES = {
    "not TOML": f'name = "{HOSTILE}"\n',
    "an unknown key": f'name = "a"\n"{json.dumps(HOSTILE)[1:-1]}" = 1\n',
    "a hostile name": f"name = {json.dumps(HOSTILE)}\n"
    + """
        [[chains]]
        name = "chain"
        hook = "ingress"
        select = "any"
        actors = ["record"]
    """,
    "a hostile selector": f"""
        name = "a"
        [[chains]]
        name = "chain"
        hook = "ingress"
        select = {json.dumps(HOSTILE)}
        actors = ["record"]
    """,
}


@pytest.mark.parametrize("text", POLICIES.values(), ids=POLICIES)
def test_policies(tmp_path, text):
    file = tmp_path / f"{HOSTILE}.toml"
    file.write_text(text)
    assert ESCAPED in printed("policy", "check", file)
    document = json.loads(printed("policy", "check", "--json", file))
    assert document["files"][0]["file"] == str(file)


def test_configurations_keys_and_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    file = tmp_path / HOSTILE
    file.write_text(f"mode = {json.dumps(HOSTILE)}\n")
    for arguments in (
        ("serve", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--config", file),
        ("paths", "--config", file),
        ("lab", "run", file),
        ("lab", "results", file, "-o", tmp_path / "results"),
        ("codec", "stream", "--secrets", file, "--cipher", "aes-256-ctr", "--from", "initiator"),
        ("identity", "--file", file),
        ("identity", "--file", tmp_path / f"{HOSTILE}.key"),
        ("peers", "forget", HOSTILE),
        ("analyze", f"--{HOSTILE}"),
        ("proxy", "--listen", HOSTILE),
        (HOSTILE,),
    ):
        assert ESCAPED in printed(*arguments), arguments


@needs_labs
def test_lab(tmp_path):
    file = tmp_path / f"{HOSTILE}.toml"
    file.write_text(f"[hosts.{json.dumps(HOSTILE)}]\n")
    assert ESCAPED in printed("lab", "up", file)
    file.write_text(two_hosts())
    up = lab_command("up", file)
    try:
        assert up.returncode == 0, up.stderr
        assert ESCAPED in up.stdout and not CONTROL.search(up.stdout + up.stderr)
        assert ESCAPED in printed("lab", "ps")
        assert any(lab["file"] == str(file) for lab in json.loads(printed("lab", "ps", "--json")))
    finally:
        lab = re.match(r"lab (\S+):", up.stdout)
        lab_command("down", "--lab", lab[1] if lab else "")


# At most 15 bytes, without white space, ':' or '/'.
INTERFACE, SHOWN = "e\x1b[8m\x9b\u202e\x7f", r"e\u001b[8m\u009b\u202e\u007f"


@pytest.fixture
def renamed(pair):
    """A pair whose client's interface `eth` has a hostile name."""
    pair.client.ip("link set eth down")
    pair.client.ip(f"link set eth name {INTERFACE}")
    pair.client.ip(f"link set {INTERFACE} up")
    wait_for("the link", lambda: "LOWER_UP" in pair.client.ip(f"link show dev {INTERFACE}"))
    return pair


def run(host, *arguments) -> str:
    """As `printed`, on a host, in pipes only."""
    done = host.run(PLAIT, *arguments)
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    return (done.stdout + done.stderr).decode()


def test_names_of_interfaces(renamed, tmp_path):
    client = renamed.client
    assert SHOWN in run(client, "paths")
    paths = json.loads(run(client, "paths", "--json"))["paths"]
    assert INTERFACE in [path["interface"] for path in paths]
    assert SHOWN in run(client, "capture", "-o", tmp_path / "recorded", "--duration", "0.1s")
    assert SHOWN in run(client, "capture", "-o", tmp_path / "again", "-i", "none")
    policy = tmp_path / "policy.toml"
    policy.write_text(both_hooks())
    assert SHOWN in run(client, "policy", "load", policy)
    assert SHOWN in run(client, "policy", "list")
    assert SHOWN in run(client, "policy", "stats")


def test_interfaces_of_connections(renamed):
    client, server, listener = connect(renamed)
    with client, server, listener:
        deliver(client, server)
        assert SHOWN in run(renamed.client, "top", "--once", "--interval", "50ms")
        terminal = Terminal(renamed.client, PLAIT, "top", "--interval", "0.2s")
        # Its column has nine characters.
        terminal.shows("1 connection", r"  e\u001…")
        terminal.type(b"q")
        assert terminal.program.wait(60) == 0
        shown = terminal.read().decode()
        terminal.close()
    assert "\x1b[8m" not in shown and not re.search("[\x7f-\x9f\u202a-\u202e]", shown)


@pytest.mark.parametrize("host", ["\x1b]0;owned\x07.invalid", "\x1b[8m\x7f", "a\nERROR forged"])
def test_hosts_that_the_proxy_is_asked_for(pair, host):
    pair.proxy("--trusted", "eth")
    with pytest.raises(AssertionError, match="SOCKS reply"):
        connect_by_socks(pair, host)
    with pair.client.socket() as client:
        client.connect(("127.0.0.1", 1080))
        client.sendall(f"CONNECT {host}:1 HTTP/1.1\r\n\r\n".encode())
        client.settimeout(20)
        assert client.recv(100).startswith(b"HTTP/1.1 ")
    pair.client.stop_programs()
    log = pair.logged("proxy")
    assert_harmless(log.encode())
    assert "DEBUG" in log and not any(line.startswith("ERROR") for line in log.splitlines())
