"""The attack matrix: a client and a server with a router on each path, the attacks tried on them, and their outcomes.

A cell states for each path, the main one first, whether the attacker is absent, listening or active. Its outcome depends on
what the attacker could read, on what the applications received, and on what plait reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import socket
import subprocess
import threading

import attacker
from attacker import SERVER, Listener, ManInTheMiddle
from gateways import cgroup_of
from hosts import PLAIT, REPOSITORY, Capture, Host, tool, wait_for
from streams import connect_by_socks, listen

LINKS = ("eth", "wlan", "lte")
# Slow enough that a transfer uses every path, by the kernel's scheduler.
RATE = "20mbit"
LENGTH = 1_000_000

# The gateways of both ends. Those of `sealed` differ in how many paths they require; only the first names all interfaces.
GATEWAYS = {
    "off": ("--mode", "off"),
    "xor64": ("--mode", "xor64", "--require"),
    "stream": ("--mode", "stream", "--require"),
    "sealed": ("--mode", "sealed", "--require=all-paths"),
    "sealed at any level": ("--mode", "sealed", "--require"),
    "sealed by two paths": ("--mode", "sealed", "--require=paths:2"),
}
MODES = ("off", "xor64", "stream", "sealed")

# Outcomes, the worst last.
OUTCOMES = ("secret", "detected", "broken")

# What plait logs when it detects an attack, and what the tables call it.
REASONS = {
    "REPLY failed authentication": "REPLY not authentic",
    "the confirmation on path": "wrong confirmation",
    "expected a witness on every configured path": "too few witnesses",
    "expected at least 2 paths": "too few witnesses",
    "failed authentication: it was modified on the way, or the keys differ": "record not authentic",
    "expected a length from 16 to 16400": "record not authentic",
    "the peer did not negotiate": "not negotiated",
}


def port(gateway: str) -> int:
    return 8440 + list(GATEWAYS).index(gateway)


def document(directory: pathlib.Path) -> pathlib.Path:
    """English that is not in the training text of `plait audit`, its sentences shuffled."""
    prose = (REPOSITORY / "tests" / "data" / "prose.txt").read_text()
    sentences = prose.replace("\n\n", " ").split(". ")
    chance, text = random.Random(1), ""
    while len(text) < LENGTH:
        chance.shuffle(sentences)
        text += ". ".join(sentences) + ".\n\n"
    file = directory / "document.txt"
    file.write_text(text)
    return file


# Connections


class Service:
    """Answers a question with a document: 64 bytes at once, the rest after `may_continue`."""

    @dataclasses.dataclass
    class Request:
        received: bytes = b""
        may_continue: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __init__(self, host: Host, text: bytes):
        self.text, self.listener, self.request = text, listen(host), self.Request()
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self) -> Request:
        """The request that the next connection will make."""
        self.request = self.Request()
        return self.request

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._answer, args=(connection, self.request), daemon=True).start()

    def _answer(self, connection, request: Request):
        with connection, contextlib.suppress(OSError):
            request.received = connection.recv(65536)
            connection.sendall(self.text[:64])
            request.may_continue.wait(60)
            connection.sendall(self.text[64:])
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                request.received += more


@dataclasses.dataclass
class Outcome:
    """The outcome of one connection."""

    question: bytes
    answer: bytes
    # How it ended for the client: "end", "reset", or "refused" by its gateway.
    ended: str
    # What the client received, and what the service received.
    client_received: bytes
    service_received: bytes
    # In mode `sealed`, once the handshake is complete.
    level: str | None
    # How one of the two gateways detected the attack, as in the tables.
    detected_by: str | None
    # What a man in the middle read, and how the connection ended for him.
    attacker_read: bytes = b""
    attacker_end: str = ""

    @property
    def verdict(self) -> str:
        received, sent = (self.client_received, self.service_received), (self.answer, self.question)
        intact = all(whole.startswith(part) for part, whole in zip(received, sent))
        leaked = self.question in self.attacker_read or self.answer[:64] in self.attacker_read
        if leaked or not intact:
            return "broken"
        if self.ended == "end" and received == sent:
            return "secret"
        assert self.ended != "end", f"a truncated stream ended without an error: {self}"
        assert self.detected_by, f"no gateway logged a reason: {self}"
        return "detected"

    def __repr__(self) -> str:
        return (
            f"{self.ended} after {len(self.client_received)} bytes, the service received {self.service_received!r}, "
            f"level {self.level}, detected by: {self.detected_by}, "
            f"the attacker read {len(self.attacker_read)} bytes and ended with {self.attacker_end!r}"
        )


class Network:
    """A client and a server, and on each path between them a router. The server has one address for all paths."""

    def __init__(self, run_id: str, directory: pathlib.Path, paths: int):
        self.directory, self.paths = directory, paths
        self.client = Host(f"plait-test-{run_id}-client", directory)
        self.server = Host(f"plait-test-{run_id}-server", directory)
        self.routers = [Host(f"plait-test-{run_id}-{link}", directory / link) for link in LINKS[:paths]]
        self.by_link = [f"10.79.{11 + number}.1" for number in range(paths)]
        self.attacker: ManInTheMiddle | None = None
        self.refusals = dict.fromkeys(GATEWAYS, 0)

    @property
    def hosts(self) -> list[Host]:
        return [self.client, self.server, *self.routers]

    def build(self):
        for host in self.hosts:
            host.directory.mkdir(exist_ok=True)
            tool("ip", "netns", "add", host.name)
            tool("ip", "-n", host.name, "link", "set", "lo", "up")
            settings = ("conf.all.rp_filter=0", "conf.default.rp_filter=0", "ip_forward=1")
            host.tool("sysctl", "-qw", *(f"net.ipv4.{setting}" for setting in settings))
            tool("ip", "-n", host.name, "mptcp", "limits", "set", "subflows", "8")
        tool("ip", "-n", self.server.name, "addr", "add", f"{SERVER}/32", "dev", "lo")
        for number, (link, router) in enumerate(zip(LINKS, self.routers), start=1):
            self._join(self.client, link, router, "client", f"10.79.{number}")
            self._join(self.server, link, router, "server", f"10.79.{10 + number}")
            for host, route in (
                (self.client, (SERVER, "via", f"10.79.{number}.2", "dev", link, "metric", str(number))),
                (self.server, (f"10.79.{number}.0/24", "via", f"10.79.{10 + number}.2")),
                (router, (SERVER, "via", f"10.79.{10 + number}.1")),
            ):
                tool("ip", "-n", host.name, "route", "add", *route)
            tool("tc", "-n", self.server.name, "qdisc", "add", "dev", link, "root",
                 "tbf", "rate", RATE, "burst", "64k", "latency", "50ms")  # fmt: skip

    def _join(self, host: Host, link: str, router: Host, name: str, network: str):
        tool("ip", "link", "add", link, "netns", host.name, "type", "veth",
             "peer", "name", name, "netns", router.name)  # fmt: skip
        for end, interface, last in ((host, link, 1), (router, name, 2)):
            tool("ip", "-n", end.name, "addr", "add", f"{network}.{last}/24", "dev", interface)
            tool("ip", "-n", end.name, "link", "set", interface, "up")

    def start(self, text: bytes):
        """Starts gateways of every kind on both ends, the service behind them, and the attacker's program."""
        self.service = Service(self.server, text)
        self.proxies = {}
        listening = []
        for number, (gateway, options) in enumerate(GATEWAYS.items()):
            here, there = port(gateway), 1080 + number
            options = (*options, "--scheduler", "off")
            serve = ("serve", "--listen", f"[::]:{here}", "--to", "127.0.0.1:9000")
            proxy = ("proxy", "--listen", f"127.0.0.1:{there}", "--trusted", LINKS[0])
            self.server.start(PLAIT, "-vv", *serve, *options, log=f"serve {gateway}.log")
            log = f"proxy {gateway}.log"
            named = LINKS[1 : self.paths] if gateway == "sealed" else ()
            untrusted = (word for link in named for word in ("--untrusted", link))
            self.proxies[gateway] = self.client.start(PLAIT, "-vv", *proxy, *options, *untrusted, log=log)
            listening += [(self.server, here), (self.client, there)]
        own = self.routers[0].start(PLAIT, "proxy", "--listen", "127.0.0.1:1090", "--mode", "sealed",
                                    "--trusted", "server", log="proxy.log")  # fmt: skip
        listening.append((self.routers[0], 1090))
        for host, at in listening:
            wait_for(f"listener on {host.name}:{at}", lambda host=host, at=at: host.listens(at), 20)
        log = self.directory / "attacker.log"
        self.attacker = ManInTheMiddle(cgroup_of(own), self.routers, self.by_link, log)

    def remove(self):
        if self.attacker:
            self.attacker.stop()
        for host in self.hosts:
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)

    def established(self, at: int) -> int:
        """The number of TCP connections (subflows) between the client and a port of the server."""
        ss = ("ss", "-Htn", "state", "established", f"dport = :{at}")
        return len(self.client.tool(*ss).splitlines())

    def status(self, gateway: str) -> dict[str, dict]:
        """The status of the client's gateway (`proxy`) and the server's (`serve`)."""
        at = port(gateway)
        listening = {f"127.0.0.1:{1080 + at - port('off')}", f"[::]:{at}"}
        ours = {program.pid for host in (self.client, self.server) for program in host.programs}

        def answer() -> dict | None:
            found = json.loads(tool(PLAIT, "status", "--json"))["gateways"]
            both = {each["command"]: each for each in found
                    if each["pid"] in ours and listening & set(each["listen"])}  # fmt: skip
            return both if len(both) == 2 else None

        return wait_for(f"status of {gateway}", answer)

    def wait_for_refusal(self, gateway: str):
        """Waits until one of the two ends has counted another refusal."""

        def more() -> bool:
            refusals = sum(end["counts"]["refused"] for end in self.status(gateway).values())
            before, self.refusals[gateway] = self.refusals[gateway], refusals
            return refusals > before

        wait_for("count of a refusal", more)

    def ask(self, gateway: str, *, on_every_path: bool) -> Outcome:
        """Makes one connection with a question of its own. With `on_every_path`, most of the answer waits for all subflows."""
        at = port(gateway)
        wait_for("end of the connection before", lambda: not self.established(at))
        logs = [self.directory / f"{command} {gateway}.log" for command in ("proxy", "serve")]
        offsets, request = [log.stat().st_size for log in logs], self.service.expect()
        question = b"what is said under " + os.urandom(16).hex().encode() + b"?\n"
        got, ended, level = [], "end", None
        try:
            client = connect_by_socks(self, SERVER, at, proxy=("127.0.0.1", 1080 + at - port("off")))
        except AssertionError:
            ended = "refused"
        else:
            with client, contextlib.suppress(ConnectionError):
                ended = "reset"
                client.sendall(question)
                got.append(client.recv(65536))
                if gateway.startswith("sealed"):
                    level = self.status(gateway)["proxy"]["connections"][-1]["level"]
                if on_every_path:
                    wait_for("subflow by every path", lambda: self.established(at) == self.paths, 20)
                request.may_continue.set()
                while part := client.recv(65536):
                    got.append(part)
                ended = "end"
        request.may_continue.set()

        def log_lines() -> list[list[str]]:
            return [log.read_bytes()[before:].decode(errors="replace").splitlines()
                    for log, before in zip(logs, offsets, strict=True)]  # fmt: skip

        def detected_by() -> str | None:
            proxy, serve = log_lines()
            # A late line of the previous connection is not one of these.
            ours = [line for line in proxy if (" Address(" if ended == "refused" else "network side") in line]
            # If the server refused first, the client only logs a reset.
            lines = ours and [*ours, *(line for line in serve if "refused: " in line)]
            return next((REASONS[phrase] for line in lines for phrase in REASONS if phrase in line), None)

        reason = None
        if ended != "end":
            try:
                reason = wait_for("reason", detected_by)
            except AssertionError as error:
                raise AssertionError(
                    f"{ended}, after {len(got)} pieces; {gateway} logged {log_lines()}"
                ) from error
        if ended == "refused":
            self.wait_for_refusal(gateway)
        return Outcome(question, self.service.text, ended, b"".join(got), request.received, level, reason)


# The cells

Cell = tuple[str, ...]
Actions = tuple[str, ...]


def cells(paths: int) -> list[Cell]:
    """All cells, up to the order of the paths other than the main one."""
    places = ("absent", "listening", "active")
    others = list(itertools.combinations_with_replacement(places, paths - 1))
    return [(main, *rest) for main in places for rest in others]


def active_cells(paths: int) -> list[Cell]:
    """The cells in which the attacker is active on some path."""
    return [cell for cell in cells(paths) if "active" in cell]


def expected(mode: str, cell: Cell) -> str:
    """The outcome that docs/reference/threat-model.md promises."""
    main, *others = cell
    if mode == "sealed":
        if all(place == "active" for place in cell):
            return "broken"
        return "detected" if "active" in cell else "secret"
    readable = main != "absent" if mode == "stream" else any(place != "absent" for place in cell)
    return "broken" if readable or "active" in others else "secret"


def strategies(mode: str, cell: Cell) -> dict[str, Actions]:
    """The attacks tried in a cell besides listening, by name: the action on each path."""
    main, *others = cell
    tried = {}
    if "active" in cell:
        tried["modify"] = tuple("modify" if place == "active" else "" for place in cell)
    if main == "active" and mode != "off":
        tried["strip"] = ("strip", *("" for _ in others))
    if mode != "sealed" or "active" not in cell:
        return tried
    # What a listener learns only helps an attacker who intercepts the main path.
    actions = {"active": "intercept", "listening": "wiretap" if main == "active" else "", "absent": ""}
    intercept = actions[main] if main == "active" else ""
    tried["man in the middle"] = (intercept, *(actions[place] for place in others))
    if "active" in others:
        tried["block"] = ("", *("block" if place == "active" else "" for place in others))
    return tried


def at_a_lower_level(cell: Cell) -> Actions:
    """The attack tried where a lower level is accepted: block all witnesses that can be blocked."""
    main, *others = cell
    actions = {"active": "block", "listening": "wiretap" if main == "active" else "", "absent": ""}
    return ("intercept" if main == "active" else "", *(actions[place] for place in others))


class Matrix:
    """All cells for one number of paths. An attack that occurs in several cells is tried once."""

    def __init__(self, network: Network, file: pathlib.Path):
        self.network, self.paths = network, network.paths
        self.outcomes: dict[tuple[str, Actions], Outcome] = {}
        self.listener = Listener(file, self._captures())

    def outcome(self, gateway: str, actions: Actions) -> Outcome:
        """The outcome of one attack on one connection."""
        if (gateway, actions) not in self.outcomes:
            self.outcomes[gateway, actions] = self._attempt(gateway, actions)
        return self.outcomes[gateway, actions]

    def _attempt(self, gateway: str, actions: Actions) -> Outcome:
        network, intercepts = self.network, "intercept" in actions
        with contextlib.ExitStack() as stack:
            for action, router in zip(actions, network.routers, strict=True):
                stack.enter_context(attacker.attack(action, router))
            if intercepts:
                network.attacker.prepare(port(gateway), actions)
            try:
                outcome = network.ask(gateway, on_every_path=not intercepts and "block" not in actions)
            except AssertionError as error:
                if intercepts:
                    error.add_note(f"The attacker ended with {network.attacker.result()[1]!r}.")
                raise
            if intercepts:
                outcome.attacker_read, outcome.attacker_end = network.attacker.result()
        return outcome

    def _captures(self) -> dict[str, list[pathlib.Path]]:
        """Captures at each router of an undisturbed transfer in each mode."""
        with contextlib.ExitStack() as stack:
            routers = self.network.routers
            taps = [
                stack.enter_context(Capture(host, "client", host.directory / "all.pcap")) for host in routers
            ]
            for mode in MODES:
                self.outcome(mode, ("",) * self.paths)
        captures = {mode: [tap.file.with_name(f"{mode}.pcap") for tap in taps] for mode in MODES}
        for mode, files in captures.items():
            for tap, file in zip(taps, files, strict=True):
                tool("tcpdump", "-r", str(tap.file), "-w", str(file), "tcp", "port", str(port(mode)))
        return captures

    def observed(self, mode: str, cell: Cell) -> str:
        """The worst outcome of all attacks of the cell."""
        verdicts = [self.outcome(mode, ("",) * self.paths).verdict]
        if self.listener.reads(mode, (path for path, place in enumerate(cell) if place != "absent")):
            verdicts.append("broken")
        verdicts += [self.outcome(mode, actions).verdict for actions in strategies(mode, cell).values()]
        return max(verdicts, key=OUTCOMES.index)

    def at_a_lower_level(self, cell: Cell) -> Outcome:
        """The outcome if a level below all paths is accepted."""
        return self.outcome("sealed at any level", at_a_lower_level(cell))

    # The tables of the documentation.

    def tables(self) -> dict[str, str]:
        """The tables by name."""
        active = active_cells(self.paths)
        tried = ("man in the middle", "block", "modify", "strip")
        return {
            "matrix": self._table(
                cells(self.paths), MODES, lambda cell: [self.observed(mode, cell) for mode in MODES]
            ),
            "detected": self._table(active, tried, lambda cell: self._detected(cell, tried)),
            "levels": self._table(active, ("observed", "level"), self._level),
        }

    def _detected(self, cell: Cell, tried: tuple[str, ...]) -> list[str]:
        actions = strategies("sealed", cell)
        outcomes = [self.outcome("sealed", actions[each]) if each in actions else None for each in tried]
        return [
            "" if outcome is None else outcome.detected_by or f"*{outcome.verdict}*" for outcome in outcomes
        ]

    def _level(self, cell: Cell) -> list[str]:
        outcome = self.at_a_lower_level(cell)
        return [outcome.verdict, outcome.level or ""]

    def _table(self, rows: list[Cell], columns: tuple[str, ...], entries) -> str:
        head = ["main path", *(f"path {number}" for number in range(2, self.paths + 1)), *columns]
        lines = [head, ["---"] * len(head), *([*cell, *entries(cell)] for cell in rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)
