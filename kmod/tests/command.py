#!/usr/bin/python3
"""Checks of `plait kmod` with the module and unmodified programs. Runs in the guest.

PLAIT is the command, by default target/release/plait.

Path 1 is the trusted path of host A. The checks cover the guarantees of docs/guide/kernel-module.md: the first flight
crosses only the trusted path, no plaintext crosses any path, and nothing is left behind.
"""

import errno
import json
import os
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from calls import MARK
from network import (
    ADDRESS,
    HERE,
    PORT,
    RULES,
    Capture,
    counters,
    grown,
    inside,
    rule,
    run,
    run_checks,
    start,
    wait_until_listening,
)

PLAIT = os.environ.get("PLAIT", str(HERE.parents[1] / "target/release/plait"))
ROOT = Path("/sys/fs/cgroup")
SERVICE = 6000
WAIT = 60
SERVE = [PLAIT, *f"serve --listen 0.0.0.0:{PORT} --to 127.0.0.1:{SERVICE} --mode xor64 --require".split()]


def plait(host, *arguments, check=True):
    command = inside(host, PLAIT, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=check)


def status(host):
    return json.loads(plait(host, "kmod", "status", "--json").stdout)


def group(host):
    directory = ROOT / f"plait-test-{host}"
    directory.mkdir(exist_ok=True)
    return directory


def begin(host, *options):
    """Starts `plait kmod enable` for the host's group; returns the process and the line it prints once active."""
    enabler = start(host, PLAIT, "kmod", "enable", "--cgroup", str(group(host)), "--json", *options)
    line = enabler.stdout.readline()
    assert line, enabler.communicate()[1]
    return enabler, json.loads(line)


@contextmanager
def enabled(host, *options):
    """Runs `plait kmod enable` during the block; it must not exit before the end."""
    enabler, report = begin(host, *options)
    enabler.report = report
    try:
        yield enabler
        assert enabler.poll() is None, enabler.communicate()[1]
    finally:
        if enabler.poll() is None:
            enabler.terminate()
        enabler.messages = enabler.communicate(timeout=WAIT)[1]
    assert nothing_left(host), "it left something behind"


@contextmanager
def running(host, *command, group=None):
    process = start(host, *command, group=group)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def until(condition, what):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT} s: {what}"
        time.sleep(0.1)


def attached(host):
    shown = run("bpftool", "-j", "cgroup", "show", str(group(host)), capture_output=True).stdout
    return json.loads(shown.strip() or "[]")


def rules(host):
    return run(*inside(host, "cat", RULES), capture_output=True).stdout.splitlines()


def nothing_left(host):
    """No rule, BPF program or record of this host's enabler exists."""
    shown = status(host)
    known = [enabled["cgroup"] for enabled in shown["enablers"] + shown["killed"]]
    return not rules(host) and not attached(host) and f"/{group(host).name}" not in known


def packets(file):
    """Time, source and payload length of the TCP segments of a capture."""
    data = file.read_bytes()
    found, place = [], 24
    while place + 16 <= len(data):
        seconds, micros, length, _ = struct.unpack_from("<IIII", data, place)
        frame = data[place + 16 : place + 16 + length]
        place += 16 + length
        if frame[12:14] == b"\x08\0":
            start, source = 14 + (frame[14] & 15) * 4, frame[26:30]
            end = 14 + struct.unpack_from(">H", frame, 16)[0]
        else:
            start, source = 54, frame[22:38]
            end = start + struct.unpack_from(">H", frame, 18)[0]
        payload = end - start - (frame[start + 12] >> 4) * 4
        found.append((seconds + micros / 1e6, source, payload))
    return found


def first_flight_came_first(capture):
    """Nothing crosses the untrusted path before data of both ends has crossed the trusted one."""
    trusted, untrusted = (packets(file) for file in capture.files)
    data = {source: time for time, source, payload in reversed(trusted) if payload}
    carried = sum(payload for _, _, payload in untrusted)
    print(f"    {len(trusted)} packets on the trusted path, {carried} B on the other")
    assert len(data) == 2 and carried > 0, "both paths carry data in the end"
    first = untrusted[0][0]
    assert all(time < first for time in data.values()), (data, first)


def no_marks(capture):
    assert not any(marks for _, marks in capture.found()), capture.found()


def document():
    """A directory with a large document in which every line is MARK."""
    directory = Path("/run/document")
    directory.mkdir(exist_ok=True)
    (directory / "document").write_bytes(b"".join(b"%s%08x\n" % (MARK, line) for line in range(200_000)))
    return directory


def web_service(address, port, *before):
    return [*before, sys.executable, "-m", "http.server", "-d", str(document()), "-b", address, str(port)]


def fetch(host=ADDRESS, mptcp=True, grouped=True):
    """The result of an unmodified curl: its exit status, and whether it received the document."""
    curl = [
        "curl",
        "-sS",
        "-m",
        "60",
        "-H",
        f"X-Secret: {MARK.decode() * 20}",
        f"http://{host}:{PORT}/document",
    ]
    launcher = ["mptcpize", "run"] if mptcp else []
    command = start("A", *launcher, *curl, group=group("A") if grouped else None)
    out, errors = command.communicate()
    return command.returncode, out.encode() == (document() / "document").read_bytes(), errors


def check_curl_connects_to_a_gateway():
    with (
        running("B", *web_service("127.0.0.1", SERVICE)) as service,
        running("B", *SERVE) as gateway,
        enabled("A", "--trusted", "a1", "--untrusted", "a2", "--require") as enabler,
    ):
        wait_until_listening(service, port=SERVICE)
        wait_until_listening(gateway)
        before = counters()
        with Capture() as capture:
            assert fetch() == (0, True, "")
        no_marks(capture)
        first_flight_came_first(capture)
        assert grown(before)["connections_protected"] == 1
    assert "refused" not in enabler.messages, enabler.messages


def check_curl_connects_to_another_module():
    with (
        enabled("B", "--mode", "stream", "--require"),
        enabled("A", "--trusted", "a1", "--mode", "stream", "--require", "--port", f"80,{PORT}"),
        running("B", *web_service("0.0.0.0", PORT, "mptcpize", "run"), group=group("B")) as service,
    ):
        wait_until_listening(service)
        before = counters()
        with Capture() as capture:
            assert fetch() == (0, True, "")
        no_marks(capture)
        first_flight_came_first(capture)
        assert grown(before)["connections_protected"] == 2


def check_ipv6_is_protected():
    with (
        enabled("B", "--require"),
        enabled("A", "--trusted", "a1", "--require"),
        running("B", *web_service("::", PORT, "mptcpize", "run"), group=group("B")) as service,
    ):
        wait_until_listening(service)
        for host in ("[fd00:1::2]", ADDRESS):
            with Capture() as capture:
                assert fetch(host) == (0, True, "")
            no_marks(capture)
            first_flight_came_first(capture)


def check_trusted_interface_overrides_routing():
    route = ["ip", "-n", "A", "route", "add", f"{ADDRESS}/32", "dev", "a2"]
    run(*route)
    try:
        with (
            enabled("B"),
            running("B", *web_service("0.0.0.0", PORT, "mptcpize", "run"), group=group("B")) as service,
        ):
            wait_until_listening(service)
            with Capture() as capture:
                assert fetch()[1]
            assert packets(capture.files[1]) and not packets(capture.files[0]), "as routed"
            with enabled("A", "--trusted", "a1", "--require"), Capture() as capture:
                assert fetch() == (0, True, "")
            no_marks(capture)
            first_flight_came_first(capture)
    finally:
        route[4] = "del"
        run(*route)


def check_peer_without_plait_is_plain_or_refused():
    with running("B", *web_service("0.0.0.0", PORT, "mptcpize", "run")) as service:
        wait_until_listening(service)
        with enabled("A", "--trusted", "a1") as enabler:
            assert fetch() == (0, True, "")
        assert "carried PLAIN" in enabler.messages, enabler.messages
        with enabled("A", "--trusted", "a1", "--require") as enabler:
            with Capture() as capture:
                assert fetch()[0] != 0
            no_marks(capture)
        assert "run plait there" in enabler.messages, enabler.messages


def check_tcp_is_reported_and_refused_with_require():
    with running("B", *web_service("0.0.0.0", PORT)) as service:
        wait_until_listening(service)
        with enabled("A", "--trusted", "a1", "--require") as enabler:
            with Capture() as capture:
                assert fetch(mptcp=False)[0] == 7
            assert not packets(capture.files[0])
            assert fetch(mptcp=False, grouped=False)[1]
            time.sleep(3)
        assert "mptcpize run" in enabler.messages, enabler.messages


def check_other_ports_do_not_negotiate():
    with (
        enabled("B", "--require", "--port", "7000"),
        enabled("A", "--trusted", "a1", "--port", "7000"),
        running("B", *web_service("0.0.0.0", PORT, "mptcpize", "run"), group=group("B")) as service,
    ):
        wait_until_listening(service)
        before = counters()
        assert fetch() == (0, True, "")
        assert grown(before)["connections_plain"] == 2 and "connections_protected" not in grown(before)


TALK = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
{setup}
print("ready", flush=True)
for line in sys.stdin:
    try:
        {act}
    except OSError as error:
        print(error.errno, flush=True)
"""
CONNECT = f"sock.connect(('{ADDRESS}', {PORT})); end = sock"
LISTEN = f"""
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); sock.bind(('0.0.0.0', {PORT})); sock.listen()
print("listens", flush=True); end = sock.accept()[0]"""
ECHO = """
        if line.startswith("send "): end.sendall(line[5:].encode()); print("sent", flush=True)
        else: print(end.recv(65536).decode().strip() or "end", flush=True)
"""


class Talker:
    """A program in a host's group that sends and receives single lines."""

    def __init__(self, host, setup):
        program = TALK.format(setup=setup, act=ECHO.strip())
        options = {"stdin": subprocess.PIPE, "stderr": None, "bufsize": 1}
        self.program = start(host, sys.executable, "-c", program, group=group(host), **options)
        self.read()

    def read(self):
        return self.program.stdout.readline().strip()

    def ask(self, line):
        self.program.stdin.write(line + "\n")
        return self.read()

    def end(self):
        self.program.kill()
        self.program.communicate()


@contextmanager
def talk(before=""):
    """A client, which runs `before` before it connects, and its server."""
    server = Talker("B", LISTEN)
    client = Talker("A", f"{before}\n{CONNECT}")
    assert server.read() == "ready"
    try:
        yield client, server
    finally:
        client.end()
        server.end()


def say(sender, receiver, text):
    assert sender.ask(f"send {text}") == "sent"
    assert receiver.ask("receive") == text


def check_rule_selects_by_mark():
    for mark, protected in ((0x1F, 2), (0x20, 0)):
        with enabled("B"), enabled("A", "--trusted", "a1", "--mark", "0x10/0xf0"), Capture() as capture:
            before = counters()
            with talk(f"sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, {mark})") as (client, server):
                say(client, server, MARK.decode() * 10)
            assert grown(before).get("connections_protected", 0) == protected, hex(mark)
        if protected:
            no_marks(capture)


def check_connections_stay_protected_when_the_enabler_ends():
    with Capture() as capture, ExitStack() as conversation:
        with enabled("B", "--require"), enabled("A", "--trusted", "a1"):
            client, server = conversation.enter_context(talk())
            for sender, receiver in ((client, server), (server, client)):
                say(sender, receiver, MARK.decode() * 10)
        for sender, receiver in ((client, server), (server, client)):
            say(sender, receiver, MARK.decode() * 20)
    no_marks(capture)


def check_negotiated_connection_never_becomes_plain():
    with Capture() as capture, enabled("B", "--require"), ExitStack() as conversation:
        with enabled("A", "--trusted", "a1"):
            client, _ = conversation.enter_context(talk())
        assert client.ask(f"send {MARK.decode() * 20}") == str(errno.ECONNRESET)
    no_marks(capture)


def check_killed_enabler_is_cleaned_up():
    with enabled("B", "--require"):
        enabler, report = begin("A", "--trusted", "a1")
        with talk() as (client, server):
            say(client, server, MARK.decode())
            enabler.kill()
            enabler.communicate()
            assert len(rules("A")) == 1, rules("A")
            assert [killed["pid"] for killed in status("A")["killed"]] == [report["pid"]]
            say(client, server, MARK.decode())
            with Capture() as capture:
                late = Talker("A", CONNECT)
                assert late.ask(f"send {MARK.decode()}") == str(errno.ECONNRESET)
                late.end()
                time.sleep(0.2)
            no_marks(capture)
            until(lambda: not attached("A"), "its programs are gone")
            cleaned = json.loads(plait("A", "doctor", "--clean", "--json").stdout)
            removed = [
                leftover["name"].split()[0] for leftover in cleaned["removed"] if leftover["kind"] == "rule"
            ]
            assert removed == [report["rule"].split()[0]], cleaned
            assert nothing_left("A")
            say(server, client, MARK.decode())
        # The next enabler does the same.
        for _ in range(2):
            enabler, report = begin("A")
            assert len(rules("A")) == 1 and report["rule"].split()[0] in rules("A")[0], rules("A")
            enabler.kill()
            enabler.communicate()
        assert plait("A", "kmod", "disable").returncode == 0
    assert nothing_left("A")


def check_namespace_has_at_most_one_enabler():
    with enabled("A", "--trusted", "a1") as enabler:
        again = plait("A", "kmod", "enable", "--cgroup", "/", check=False)
        assert again.returncode == 1 and "plait kmod disable" in again.stderr, again
        shown = status("A")
        assert shown["module"]["loaded"] and shown["module"]["version"] == "0.1.0"
        assert [enabled["pid"] for enabled in shown["enablers"]] == [enabler.report["pid"]]
        assert shown["module"]["rules"] and "bytes_sent" in shown["module"]["counters"]
    assert plait("A", "kmod", "disable", check=False).returncode == 1


def check_blackhole_detection_is_reverted():
    """Linux 6.12 and later take three lost SYNs for an MPTCP blackhole and use plain TCP for an hour."""
    if not Path("/proc/sys/net/mptcp/blackhole_timeout").exists():
        print("SKIP    this kernel does not look for blackholes")
        return
    listening = f"import socket, time; s = socket.create_server(('{ADDRESS}', {PORT})); time.sleep(1000)"
    connecting = (
        "A",
        sys.executable,
        "-c",
        f"import socket; socket.socket(2, 1, 262).connect(('{ADDRESS}', {PORT}))",
    )
    with enabled("B"), enabled("A", "--trusted", "a1"):
        with running("B", sys.executable, "-c", listening, group=group("B")) as service:
            wait_until_listening(service)
            while not counted("A", "MPTcpExtMPCapableSYNTXDisabled"):
                netem("b1", "loss", "100%")
                clients = [start(*connecting, group=group("A")) for _ in range(3)]
                until(lambda: syns("A") == 3, "three connecting clients")
                time.sleep(2.6)
                netem("b1", "delay", "5ms")
                for client in clients:
                    client.communicate(timeout=WAIT)
                start(*connecting, group=group("A")).communicate(timeout=WAIT)
        # The enabler polls every two seconds.
        time.sleep(4)
        with Capture() as capture, talk() as (client, server):
            say(client, server, MARK.decode() * 20)
        no_marks(capture)


def netem(device, *words):
    run(*inside("B", "tc", "qdisc", "change", "dev", device, "root", "netem", *words))


def syns(host):
    ss = ["ss", "-Htn", "state", "syn-sent", f"dport = :{PORT}"]
    return len(run(*inside(host, *ss), capture_output=True).stdout.splitlines())


def counted(host, counter):
    shown = run(*inside(host, "nstat", "-asz", counter), capture_output=True).stdout
    return int(shown.split()[-2])


def check_errors_state_what_to_do():
    for options, words in (
        (["--cgroup", "/nowhere"], "mkdir"),
        (["--cgroup", str(group("A")), "--trusted", "a9"], "plait paths"),
        (["--cgroup", str(group("A")), "--mode", "sealed"], "xor64, stream"),
        (["--cgroup", str(group("A")), "--port", "x"], "5000-5010"),
    ):
        failed = plait("A", "kmod", "enable", *options, check=False)
        assert failed.returncode and words in failed.stderr, failed
    assert nothing_left("A")


def check_early_subflow_is_refused():
    """The peer negotiates and joins before its first byte: here the kernel does, as its rule lacks `hold`."""
    with enabled("B", "--require"), enabled("A") as enabler:
        rule("A", "clear")
        rule("A", enabler.report["rule"].replace(" hold", ""))
        with talk() as (client, server):
            before = counters()
            # The server sends first, which makes the client's kernel join.
            say(server, client, "welcome")
            until(lambda: joined("A"), "the kernel's path manager joins")
            assert client.ask("send late") == "sent"
            assert server.ask("receive") == str(errno.ECONNRESET)
            assert grown(before)["connections_refused"] == 1


def joined(host):
    shown = run(*inside(host, "ss", "-Htn", f"dport = :{PORT}"), capture_output=True).stdout
    return shown.count("ESTAB") > 1


def check_gateway_and_module_exclude_each_other():
    with enabled("A"):
        failed = start("A", *SERVE, group=group("A"))
        assert "kmod enable" in failed.communicate(timeout=WAIT)[1] and failed.returncode == 1
    with running("A", *SERVE, group=group("A")) as service:
        wait_until_listening(service, "A")
        failed = plait("A", "kmod", "enable", "--cgroup", "/", check=False)
        assert failed.returncode == 1 and f"process {service.pid}" in failed.stderr, failed


if __name__ == "__main__":
    run_checks(globals())
