"""The attack matrix: a client and a server with a router on each path, the attacker's deeds, and what comes of them.

A cell says for each path, the main one first, whether the attacker is absent, listening or active. What comes of it is judged
by what he holds, by what the applications got, and by what plait said.
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
from attacker import SERVER, Between, Listener
from hosts import PLAIT, REPOSITORY, Capture, Host, tool, wait_for
from streams import connect_by_socks, listen
from test_paths import group_of

LINKS = ("eth", "wlan", "lte")
# Slow enough that a transfer uses every path.
RATE = "20mbit"
LENGTH = 1_000_000

# The gateways of both ends. `sealed` demands all paths; the last does not.
GATEWAYS = {
    "off": ("--mode", "off"),
    "xor64": ("--mode", "xor64", "--require"),
    "stream": ("--mode", "stream", "--require"),
    "sealed": ("--mode", "sealed", "--require=all-paths"),
    "sealed at any level": ("--mode", "sealed", "--require"),
}
MODES = ("off", "xor64", "stream", "sealed")

# Worse ones last.
WORDS = ("secret", "detected", "broken")

# How plait says that it noticed, and how the tables do.
REASONS = {
    "REPLY does not open": "REPLY does not open",
    "the confirmation on path": "wrong confirmation",
    "all configured paths are required to witness": "too few witnesses",
    "is not what the other end sealed": "record does not open",
    "bytes follow, expected 16 to 16400": "record does not open",
    "the peer did not negotiate": "not negotiated",
}


def port(gateway: str) -> int:
    return 8440 + list(GATEWAYS).index(gateway)


def document(directory: pathlib.Path) -> pathlib.Path:
    """English that the model of `plait audit` has not learnt, its sentences in changing order."""
    prose = (REPOSITORY / "tests" / "data" / "prose.txt").read_text()
    sentences = prose.replace("\n\n", " ").split(". ")
    chance, text = random.Random(1), ""
    while len(text) < LENGTH:
        chance.shuffle(sentences)
        text += ". ".join(sentences) + ".\n\n"
    file = directory / "document.txt"
    file.write_text(text)
    return file


# What happens


class Service:
    """Answers a question with a document: its beginning at once, the rest when it may."""

    @dataclasses.dataclass
    class Visit:
        heard: bytes = b""
        may_go_on: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __init__(self, host: Host, text: bytes):
        self.text, self.listener, self.visit = text, listen(host), self.Visit()
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self) -> Visit:
        """What will be known of the next visitor."""
        self.visit = self.Visit()
        return self.visit

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._answer, args=(connection, self.visit), daemon=True).start()

    def _answer(self, connection, visit: Visit):
        with connection, contextlib.suppress(OSError):
            visit.heard = connection.recv(65536)
            connection.sendall(self.text[:64])
            visit.may_go_on.wait(30)
            connection.sendall(self.text[64:])
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                visit.heard += more


@dataclasses.dataclass
class Outcome:
    """What came of one connection."""

    asked: bytes
    answer: bytes
    # The client's last word: "end", "reset", or "refused" by its gateway.
    ended: str
    # What the client got, and what the service heard.
    got: bytes
    heard: bytes
    # Of mode `sealed`, where it got so far.
    level: str | None
    # How a gateway of the two ends says that it noticed something, as the tables have it.
    noticed: str | None
    # What the attacker read who stood between, and how it ended for him.
    read: bytes = b""
    his_end: str = ""

    @property
    def word(self) -> str:
        right = self.answer.startswith(self.got) and self.asked.startswith(self.heard)
        # Of what the two ends said he must have some, as they said it.
        has_it = self.asked in self.read or self.answer[:64] in self.read
        if has_it or not right:
            return "broken"
        if self.ended == "end" and self.got == self.answer and self.heard == self.asked:
            return "secret"
        assert self.ended != "end", f"a stream that ended short without an error: {self}"
        assert self.noticed, f"nobody said why: {self}"
        return "detected"

    def __repr__(self) -> str:
        return (
            f"{self.ended} after {len(self.got)} bytes, the service heard {self.heard!r}, level {self.level}, "
            f"noticed: {self.noticed}, the attacker read {len(self.read)} bytes and ended with {self.his_end!r}"
        )


class Network:
    """A client and a server, and on each path between them a router. The server has one address for all paths."""

    def __init__(self, run_id: str, directory: pathlib.Path, paths: int):
        self.directory, self.paths = directory, paths
        self.client = Host(f"plait-test-{run_id}-client", directory)
        self.server = Host(f"plait-test-{run_id}-server", directory)
        self.routers = [Host(f"plait-test-{run_id}-{link}", directory / link) for link in LINKS[:paths]]
        self.by_link = [f"10.79.{11 + number}.1" for number in range(paths)]
        self.between: Between | None = None
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
            tool(
                "ip", "netns", "exec", host.name, "sysctl", "-qw", *(f"net.ipv4.{each}" for each in settings)
            )
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
        """Gateways of every kind on both ends, the service behind them, and the attacker's program."""
        self.service = Service(self.server, text)
        self.proxies = {}
        listening = []
        for number, (gateway, options) in enumerate(GATEWAYS.items()):
            here, there = port(gateway), 1080 + number
            serve = ("serve", "--listen", f"[::]:{here}", "--to", "127.0.0.1:9000")
            proxy = ("proxy", "--listen", f"127.0.0.1:{there}", "--trusted", LINKS[0])
            self.server.start(PLAIT, "-vv", *serve, *options, log=f"serve {gateway}.log")
            self.proxies[gateway] = self.client.start(
                PLAIT, "-vv", *proxy, *options, log=f"proxy {gateway}.log"
            )
            listening += [(self.server, here), (self.client, there)]
        own = self.routers[0].start(PLAIT, "proxy", "--listen", "127.0.0.1:1090", "--mode", "sealed",
                                    "--trusted", "server", log="proxy.log")  # fmt: skip
        listening.append((self.routers[0], 1090))
        for host, at in listening:
            wait_for(f"listener on {host.name}:{at}", lambda host=host, at=at: host.listens(at), 20)
        self.between = Between(group_of(own), self.routers, self.by_link, self.directory / "between.log")

    def remove(self):
        if self.between:
            self.between.stop()
        for host in self.hosts:
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)

    def established(self, at: int) -> int:
        """TCP connections of the client with a port of the server: subflows."""
        ss = ("ss", "-Htn", "state", "established", f"dport = :{at}")
        return len(tool("ip", "netns", "exec", self.client.name, *ss).splitlines())

    def status(self, gateway: str) -> dict[str, dict]:
        """What `plait status` says of the client's gateway (`proxy`) and the server's (`serve`)."""
        at = port(gateway)
        listening = {f"127.0.0.1:{1080 + at - port('off')}", f"[::]:{at}"}
        ours = {program.pid for host in (self.client, self.server) for program in host.programs}

        def answer() -> dict | None:
            found = json.loads(tool(PLAIT, "status", "--json"))["gateways"]
            both = {each["command"]: each for each in found
                    if each["pid"] in ours and listening & set(each["listen"])}  # fmt: skip
            return both if len(both) == 2 else None

        return wait_for(f"status of {gateway}", answer)

    def counted(self, gateway: str):
        """Waits until one of the two ends has counted a refusal more than before."""

        def more() -> bool:
            refusals = sum(end["counts"]["refused"] for end in self.status(gateway).values())
            before, self.refusals[gateway] = self.refusals[gateway], refusals
            return refusals > before

        wait_for("count of a refusal", more)

    def ask(self, gateway: str, *, by_every_path: bool) -> Outcome:
        """One connection of a client, with a question of its own. If asked for, most of the answer waits for subflows."""
        at = port(gateway)
        wait_for("end of the connection before", lambda: not self.established(at))
        logs = [self.directory / f"{command} {gateway}.log" for command in ("proxy", "serve")]
        said_before, visit = [log.stat().st_size for log in logs], self.service.expect()
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
                if by_every_path:
                    wait_for("subflow by every path", lambda: self.established(at) == self.paths, 20)
                visit.may_go_on.set()
                while part := client.recv(65536):
                    got.append(part)
                ended = "end"
        visit.may_go_on.set()

        def said() -> list[list[str]]:
            return [log.read_bytes()[before:].decode(errors="replace").splitlines()
                    for log, before in zip(logs, said_before, strict=True)]  # fmt: skip

        def noticed() -> str | None:
            proxy, serve = said()
            # A line of the connection before may come late; it is not one of these.
            ours = [
                line for line in proxy if (" Address(" if ended == "refused" else "network's side") in line
            ]
            # Of what the server refused first, the client knows that it was reset.
            lines = ours and [*ours, *(line for line in serve if "refused: " in line)]
            return next((REASONS[phrase] for line in lines for phrase in REASONS if phrase in line), None)

        reason = None
        if ended != "end":
            try:
                reason = wait_for("reason", noticed)
            except AssertionError as error:
                raise AssertionError(f"{ended}, after {len(got)} pieces; {gateway} said {said()}") from error
        if ended == "refused":
            self.counted(gateway)
        return Outcome(question, self.service.text, ended, b"".join(got), visit.heard, level, reason)


# The cells

Cell = tuple[str, ...]
Deeds = tuple[str, ...]


def cells(paths: int) -> list[Cell]:
    """Those that differ by more than the order of the paths that are not the main one."""
    places = ("absent", "listening", "active")
    others = list(itertools.combinations_with_replacement(places, paths - 1))
    return [(main, *rest) for main in places for rest in others]


def attacked(paths: int) -> list[Cell]:
    """Those where he is active somewhere."""
    return [cell for cell in cells(paths) if "active" in cell]


def expected(mode: str, cell: Cell) -> str:
    """What docs/reference/threat-model.md promises."""
    main, *others = cell
    if mode == "sealed":
        if all(place == "active" for place in cell):
            return "broken"
        return "detected" if "active" in cell else "secret"
    heard = main != "absent" if mode == "stream" else any(place != "absent" for place in cell)
    return "broken" if heard or "active" in others else "secret"


def strategies(mode: str, cell: Cell) -> dict[str, Deeds]:
    """What he tries who is active somewhere, beside listening: his deed on each path."""
    main, *others = cell
    tried = {}
    if "active" in cell:
        tried["alters"] = tuple("alters" if place == "active" else "" for place in cell)
    if main == "active" and mode != "off":
        tried["strips"] = ("strips", *("" for _ in others))
    if mode != "sealed" or "active" not in cell:
        return tried
    # A listener's knowledge is of use to who stands on the main path only.
    between = {"active": "stands", "listening": "hears" if main == "active" else "", "absent": ""}
    tried["stands between"] = (
        between[main] if main == "active" else "",
        *(between[place] for place in others),
    )
    if "active" in others:
        tried["blocks"] = ("", *("blocks" if place == "active" else "" for place in others))
    return tried


def at_a_lower_level(cell: Cell) -> Deeds:
    """What he tries where a lower level is accepted: he keeps away all witnesses that he can."""
    main, *others = cell
    between = {"active": "blocks", "listening": "hears" if main == "active" else "", "absent": ""}
    return ("stands" if main == "active" else "", *(between[place] for place in others))


class Matrix:
    """All cells with so many paths, tried on a network. What is the same attack in several cells is tried once."""

    def __init__(self, network: Network, file: pathlib.Path):
        self.network, self.paths = network, network.paths
        self.made: dict[tuple[str, Deeds], Outcome] = {}
        self.listener = Listener(file, self._captures())

    def outcome(self, gateway: str, deeds: Deeds) -> Outcome:
        """Of one attack on one connection."""
        if (gateway, deeds) not in self.made:
            self.made[gateway, deeds] = self._attempt(gateway, deeds)
        return self.made[gateway, deeds]

    def _attempt(self, gateway: str, deeds: Deeds) -> Outcome:
        network, stands = self.network, "stands" in deeds
        with contextlib.ExitStack() as stack:
            for deed, router in zip(deeds, network.routers, strict=True):
                stack.enter_context(attacker.doing(deed, router))
            if stands:
                network.between.stand(port(gateway), deeds)
            try:
                outcome = network.ask(gateway, by_every_path=not stands and "blocks" not in deeds)
            except AssertionError as error:
                if stands:
                    error.add_note(f"The attacker ended with {network.between.result()[1]!r}.")
                raise
            if stands:
                outcome.read, outcome.his_end = network.between.result()
        return outcome

    def _captures(self) -> dict[str, list[pathlib.Path]]:
        """Of a transfer in each mode that nobody disturbs: what passes each router."""
        with contextlib.ExitStack() as stack:
            taps = [
                Capture(router, "client", router.directory / "all.pcap") for router in self.network.routers
            ]
            for tap in taps:
                stack.enter_context(tap)
            for mode in MODES:
                self.outcome(mode, ("",) * self.paths)
        captures = {mode: [tap.file.with_name(f"{mode}.pcap") for tap in taps] for mode in MODES}
        for mode, files in captures.items():
            for tap, file in zip(taps, files, strict=True):
                tool("tcpdump", "-r", str(tap.file), "-w", str(file), "tcp", "port", str(port(mode)))
        return captures

    def observed(self, mode: str, cell: Cell) -> str:
        """The worst of what came of all that he tried."""
        words = [self.outcome(mode, ("",) * self.paths).word]
        if self.listener.reads(mode, (path for path, place in enumerate(cell) if place != "absent")):
            words.append("broken")
        words += [self.outcome(mode, deeds).word for deeds in strategies(mode, cell).values()]
        return max(words, key=WORDS.index)

    def at_a_lower_level(self, cell: Cell) -> Outcome:
        """Where a lower level than all paths is accepted."""
        return self.outcome("sealed at any level", at_a_lower_level(cell))

    # As the documentation has it.

    def tables(self) -> dict[str, str]:
        """Tables by what they show."""
        active = attacked(self.paths)
        tried = ("stands between", "blocks", "alters", "strips")
        return {
            "matrix": self._table(
                cells(self.paths), MODES, lambda cell: [self.observed(mode, cell) for mode in MODES]
            ),
            "noticed": self._table(active, tried, lambda cell: self._noticed(cell, tried)),
            "levels": self._table(active, ("observed", "level"), self._level),
        }

    def _noticed(self, cell: Cell, tried: tuple[str, ...]) -> list[str]:
        deeds = strategies("sealed", cell)
        outcomes = [self.outcome("sealed", deeds[each]) if each in deeds else None for each in tried]
        return ["" if outcome is None else outcome.noticed or f"*{outcome.word}*" for outcome in outcomes]

    def _level(self, cell: Cell) -> list[str]:
        outcome = self.at_a_lower_level(cell)
        return [outcome.word, outcome.level or ""]

    def _table(self, rows: list[Cell], columns: tuple[str, ...], entries) -> str:
        head = ["main path", *(f"path {number}" for number in range(2, self.paths + 1)), *columns]
        lines = [head, ["---"] * len(head), *([*cell, *entries(cell)] for cell in rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)
