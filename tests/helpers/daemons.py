"""`plait daemon`, `plait up` and `plait down` on the client of an exit."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
import threading

from exits import Exit
from hosts import PLAIT, Host, tool, wait_for

# Receives the state of a daemon, as a service manager does.
READY = b"READY=1"

# Opens connections, 50 in a second, and prints how many fail.
CLIENTS = """
import socket, sys, threading, time
address, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
failures = []
def exchange(index):
    try:
        with socket.create_connection((address, port), timeout=40) as client:
            client.settimeout(40)
            client.sendall(b"x%d\\n" % index)
            answer = client.makefile("rb").readline()
            assert answer == b"x%d\\n" % index, answer
    except Exception as error:
        failures.append(repr(error))
threads = []
for index in range(number):
    threads.append(threading.Thread(target=exchange, args=(index,)))
    threads[-1].start()
    time.sleep(0.02)
for thread in threads:
    thread.join()
print(len(failures), failures[:3])
"""

PROXY = '[proxy]\nlisten = "127.0.0.1:1080"\n'
TRUSTED = '[paths]\neth = "trusted"\n'


class ServiceManager:
    """The socket that a daemon notifies (`sd_notify(3)`)."""

    def __init__(self, directory: pathlib.Path):
        self.path = directory / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.received: list[str] = []
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self):
        while message := self.socket.recv(65536):
            self.received += message.decode().split("\n")

    def count(self, state: str) -> int:
        return self.received.count(state)


class Daemon:
    """A daemon on a host, with its file."""

    def __init__(self, host: Host, text: str, directory: pathlib.Path | None = None):
        self.host = host
        self.directory = directory or host.directory
        self.file = self.directory / "daemon.toml"
        self.file.write_text(text)
        self.manager = ServiceManager(self.directory)
        self.program: subprocess.Popen | None = None

    def start(self, **environment) -> Daemon:
        """Starts it; returns once it works."""
        ready = self.manager.count("READY=1")
        self.launch(**environment)
        self.wait_for("READY=1", ready)
        return self

    def launch(self, options=(), **environment):
        """Starts it; does not wait."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        command = ("env", f"NOTIFY_SOCKET={self.manager.path}", *variables, PLAIT, "-vv", "daemon")
        self.program = self.host.start(
            *command, "--config", self.file, *options, log=str(self.directory / "daemon.log")
        )

    def replace(self, text: str | None = None, *options) -> subprocess.Popen:
        """Starts a daemon in its place, and waits until it runs; returns the one before, which ends with its last connection."""
        if text is not None:
            self.file.write_text(text)
        before, ready = self.program, self.manager.count("READY=1")
        self.launch(options=("--replace", *options))
        # Both tell it, the one before with the id of its successor.
        self.wait_for("READY=1", ready + 1)
        return before

    def wait_for(self, state: str, before: int):
        wait_for(state, lambda: self.ended() or self.manager.count(state) > before)
        assert not self.ended(), self.log()

    def ended(self) -> bool:
        return self.program.poll() is not None

    def reload(self, text: str | None = None):
        """Has the file read again; returns once it is."""
        if text is not None:
            self.file.write_text(text)
        ready = self.manager.count("READY=1")
        self.program.send_signal(1)
        self.wait_for("READY=1", ready)

    def stop(self):
        self.program.terminate()
        assert self.program.wait(30) == 0, self.log()

    def kill(self):
        self.program.kill()
        self.program.wait(30)

    def log(self) -> str:
        return (self.directory / "daemon.log").read_text()


def host_file(exit: Exit, section: str = "", more: str = "") -> str:
    """The file of a client whose connections all go through the exit."""
    return f'exit = "{exit.url}"\n[paths]\neth = "trusted"\n[host]\n{section}\n{more}\n'


def up(exit: Exit, *options, trusted=("--trusted", "eth")) -> subprocess.CompletedProcess:
    return exit.client.run(PLAIT, "up", exit.url, *trusted, *options, text=True)


def down(host: Host) -> subprocess.CompletedProcess:
    return host.run(PLAIT, "down", text=True)


@contextlib.contextmanager
def removed_afterwards(host: Host):
    """The whole host is as before, and no kill switch remains, however the test ends."""
    try:
        yield
    finally:
        done = down(host)
        assert done.returncode == 0, done.stderr


def state_of(host: Host) -> dict[str, str]:
    """What a daemon may change on a host."""
    # The kernel checks new addresses for duplicates first.
    wait_for("addresses", lambda: "tentative" not in host.ip("addr"))
    root = next(
        line.split()[1]
        for line in pathlib.Path("/proc/mounts").read_text().splitlines()
        if line.split()[2] == "cgroup2"
    )
    programs = json.loads(tool("bpftool", "-j", "cgroup", "show", root).strip() or "[]")
    sysctl = host.tool("sysctl", "-a", "--pattern", r"^net\.(mptcp|ipv[46]\.(conf|ip|tcp))")
    volatile = ("blackhole", "tcp_mem", "random")
    return {
        "addresses": host.ip("addr"),
        "rules": host.ip("rule"),
        "routes": host.ip("route show table all"),
        "mptcp": host.ip("mptcp endpoint") + host.ip("mptcp limits"),
        "packet rules": host.tool("nft", "list", "ruleset"),
        "programs": str(
            [each for each in programs if "redirect" in each["name"] or "kill_switch" in each["name"]]
        ),
        **{line: "set" for line in sysctl.splitlines() if not any(name in line for name in volatile)},
    }


def services(*ports: int, to: int = 9000, more: str = "") -> str:
    """The file of a daemon with services on these ports, all of which are one."""
    entries = (f'[[inbound]]\nlisten = "[::]:{port}"\nto = "127.0.0.1:{to}"\n' for port in ports)
    return f"{more}\n{''.join(entries)}"


def make(directory: pathlib.Path) -> pathlib.Path:
    """Creates a directory."""
    directory.mkdir()
    return directory


def proxied(pair) -> Daemon:
    """A daemon with a proxy on the client."""
    return Daemon(pair.client, PROXY + TRUSTED)
