#!/usr/bin/python3
"""Connections through real gateways while paths are cut and gateways end: what ends in order must be whole.

Of so many connections, of random sizes, each end judges every byte that it gets (exchanges.py), while things go wrong
around them (faults.py). What happens is drawn from the seed; when it happens depends on the machine. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import time

import exchanges
import helpers_path  # noqa: F401, I001  (before what it finds)
from exchanges import CALM, Account, Clients, Services, Side, Verdict, connected
from faults import Faults, Gateways
from hosts import PLAIT, Pair, tool, wait_for
from streams import listen

PORT, SERVICE = 8443, 9000
# Of each link, so that much is under way when something happens.
RATE = "200mbit"
# The most memory that a gateway may take.
MEMORY = 200 << 20
# Descriptors that a gateway may hold more of than at the beginning: its stock of unconnected sockets differs.
STOCK = 64
# Connections while nothing goes wrong, before and after.
WARM, WELL = 5, 20


@dataclasses.dataclass
class Settings:
    mode: str = "sealed"
    through: str = "proxy"
    connections: int = 10_000
    seed: int = 1
    # Connections at once.
    concurrency: int = 48
    # Connections from one thing that goes wrong to the next, on the average.
    every: int = 25
    # Seconds for which an end waits for its connection to be over.
    patience: float = 30
    # Seconds within which a gateway notices that a peer is gone of which it has not heard: the kernel's keepalive and
    # `net.mptcp.close_timeout`, and some more. 0: this is not looked at.
    unheard: float = 150


@dataclasses.dataclass
class Report:
    """What became of them."""

    settings: dict
    seconds: float
    # Of all directions of all connections.
    verdicts: dict[str, int]
    errors: dict[str, int]
    stalled: list[str]
    # Attempts to connect that failed, and were repeated.
    refused: dict[str, int]
    faults: dict[str, int]
    gateways: dict[str, dict]
    problems: list[str]


class Soak:
    def __init__(self, pair: Pair, settings: Settings):
        self.pair, self.settings = pair, settings
        protection = ("--mode", settings.mode, "--require", "--drain", "1")
        self.outbound = (*protection, "--trusted", "eth")
        starters = {"serve": lambda: pair.serve(*protection, to=f"127.0.0.1:{SERVICE}")}
        if settings.through == "proxy":
            starters["proxy"] = lambda: pair.proxy(*self.outbound)
        self.gateways = Gateways(starters)
        self.faults = Faults(pair, self.gateways, random.Random(f"{settings.seed} faults"))
        if settings.unheard == 0:
            del self.faults.of_gateways[self.faults.kill_in_silence]
        self.clients = Clients(settings.seed, settings.patience, self._by_socks)
        listener = listen(pair.server, SERVICE)
        listener.listen(4096)
        self.services = Services(settings.seed, settings.patience, listener)
        self.calm = itertools.count(CALM)
        self.problems: list[str] = []

    async def run(self) -> Report:
        began = time.monotonic()
        await asyncio.to_thread(self.pair.add_route_by_wlan)
        for name in self.gateways.starters:
            await asyncio.to_thread(self.gateways.start, name)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self.services.accept()), group.create_task(self.gateways.watch())]
            await self._calm(WARM)
            descriptors = self.gateways.descriptors()
            await self._storm()
            await self._calm(WELL)
            self._judge_use(descriptors)
            for task in background:
                task.cancel()
        self._judge_connections()
        await asyncio.to_thread(self._stop)
        return self._report(time.monotonic() - began)

    async def _storm(self):
        """The connections, and what goes wrong meanwhile. Gateways that end do so in the first three quarters."""
        settings = self.settings
        crossing = asyncio.create_task(self._cross(range(settings.connections), settings.concurrency))
        due = self.services.accepted
        try:
            while not crossing.done():
                if self.services.accepted >= due:
                    due = self.services.accepted + self.faults.draw.randint(1, 2 * settings.every)
                    await self.faults.happen(self.services.accepted < settings.connections * 3 // 4)
                await asyncio.sleep(0.01)
        finally:
            crossing.cancel()
            await asyncio.wait([crossing])
        await crossing
        await self.services.idle()

    async def _cross(self, numbers, concurrency: int):
        if self.settings.through == "proxy":
            await self.clients.all(numbers, concurrency)
            return
        while remaining := [number for number in numbers if number not in self.clients.accounts]:
            told = await self._run_program(remaining, concurrency)
            for number, (verdict, why, ended) in told.items():
                self.clients.accounts[int(number)] = Account(Verdict(verdict), why, ended)

    async def _run_program(self, numbers: list[int], concurrency: int) -> dict:
        """The clients under `plait run`, until they are done, or their gateway was killed."""
        asked, told = (self.pair.directory / name for name in ("asked.json", "told.json"))
        told.unlink(missing_ok=True)
        settings = {"seed": self.settings.seed, "patience": self.settings.patience, "numbers": numbers}
        settings |= {"concurrency": concurrency, "address": self.pair.ETH, "port": PORT}
        asked.write_text(json.dumps(settings))
        command = (sys.executable, exchanges.__file__, asked, told)
        program = self.pair.client.start(PLAIT, "-v", "run", *self.outbound, "--", *command, log="run.log")
        self.gateways.enter("run", program)
        await asyncio.to_thread(program.wait)
        # A program goes on without its gateway, if it had begun.
        began = time.monotonic()
        while not told.exists():
            if asked.exists() and time.monotonic() > began + 2:
                return {}
            assert time.monotonic() < began + 3 * self.settings.patience, "the clients do not end"
            await asyncio.sleep(0.05)
        return json.loads(told.read_text())

    async def _by_socks(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        connection = await connected("127.0.0.1", 1080, self.pair.client)

        async def ask(question: bytes, length: int) -> bytes:
            await loop.sock_sendall(connection, question)
            answer = b""
            while len(answer) < length:
                piece = await loop.sock_recv(connection, length - len(answer))
                if not piece:
                    raise ConnectionAbortedError(f"no SOCKS reply, but {answer.hex() or 'an end'}")
                answer += piece
            return answer

        try:
            await ask(b"\x05\x01\x00", 2)
            target = socket.inet_aton(self.pair.ETH) + PORT.to_bytes(2, "big")
            reply = await ask(b"\x05\x01\x00\x01" + target, 10)
            if reply[1]:
                raise ConnectionRefusedError(f"SOCKS reply {reply[1]:#04x}")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _calm(self, connections: int):
        """While nothing goes wrong every connection is whole, and the gateways count each, and no other."""
        for _ in range(3):
            counted = await self._counted([next(self.calm) for _ in range(connections)])
            if all(counts == (connections, 0) for counts in counted.values()):
                return
            # An attempt to connect that was given up may come to its end only now.
        self.problems.append(
            f"of {connections} connections, protected and plain ones by their counts: {counted}"
        )

    async def _counted(self, numbers: list[int]) -> dict[str, tuple[int, int]]:
        await self._settle()
        before = await asyncio.to_thread(wait_for, "answer of the gateways", self._counts)
        await self._cross(numbers, 4)
        await self.services.idle()
        for side, accounts in ((Side.CLIENT, self.clients.accounts), (Side.SERVER, self.services.accounts)):
            bad = [accounts.get(number) for number in numbers]
            bad = [str(account) for account in bad if not account or account.verdict is not Verdict.WHOLE]
            if bad:
                self.problems.append(f"nothing went wrong, but at the {side.name}: {bad}")
        await self._settle()
        after = await asyncio.to_thread(self._counts)
        counted = {name: (before[name], after[name]) for name in self.gateways.starters}
        return {
            name: tuple(later[key] - earlier[key] for key in ("protected", "plain"))
            for name, (earlier, later) in counted.items()
        }

    async def _settle(self):
        """Until no gateway carries a connection any more."""
        if self.settings.unheard == 0:
            return
        deadline = time.monotonic() + self.settings.unheard
        while left := await asyncio.to_thread(self._carried):
            if time.monotonic() > deadline:
                self.problems.append(f"still carried: {left}")
                return
            await asyncio.sleep(0.05)

    def _carried(self) -> list:
        return [connection for gateway in self.pair.status() for connection in gateway["connections"]]

    def _counts(self) -> dict[str, dict] | None:
        """Of every gateway, once all answer."""
        counts = {gateway["command"]: gateway["counts"] for gateway in self.pair.status()}
        return counts if counts.keys() >= self.gateways.starters.keys() else None

    def _judge_use(self, before: dict[str, int]):
        now = self.gateways.descriptors()
        for name in self.gateways.starters:
            if now[name] > before[name] + STOCK:
                self.problems.append(f"plait {name}: {before[name]} descriptors, in the end {now[name]}")
        for name, most in self.gateways.most.items():
            if most.memory > MEMORY:
                self.problems.append(f"plait {name} took {most.memory >> 20} MiB")

    def _judge_connections(self):
        accounts = (self.clients.accounts, self.services.accounts)
        for side in Side:
            for number, account in accounts[side].items():
                other = accounts[1 - side].get(number)
                if account.verdict is Verdict.WHOLE and not (other and other.ended):
                    account.verdict, account.why = Verdict.WRONG, "ended in order, which its sender had not"
                if account.verdict is Verdict.WRONG:
                    plan = exchanges.Plan.of(self.settings.seed, number)
                    self.problems.append(f"connection {number} at the {side.name}: {account.why} ({plan})")
        strangers = self.services.accounts.keys() - self.clients.accounts.keys()
        self.problems += [f"connection {number}, which no client opened" for number in strangers]
        nameless = self.services.nameless
        self.problems += [account.why for account in nameless if account.verdict is Verdict.WRONG]

    def _stop(self):
        """Gateways that are asked to end do, and leave nothing."""
        setting = self.pair.client.run("sysctl", "net.mptcp.pm_type", text=True).stdout.strip()
        if setting != "net.mptcp.pm_type = 0":
            self.problems.append(f"left behind: {setting}")
        for name in self.gateways.starters:
            program = self.gateways.programs[name]
            program.send_signal(signal.SIGTERM)
            if status := program.wait(30):
                self.problems.append(f"plait {name} ended with {status}")
        removed = json.loads(tool(PLAIT, "doctor", "--clean", "--json"))["removed"]
        for pid in self.gateways.pids:
            ours = (f"plait-{pid}-", f"gateway-{pid}.sock")
            left = [found["name"] for found in removed if any(part in found["name"] for part in ours)]
            self.problems += [f"left behind: {name}" for name in left]

    def _report(self, seconds: float) -> Report:
        told = [*self.clients.accounts.values(), *self.services.accounts.values(), *self.services.nameless]
        of = {verdict: [one for one in told if one.verdict is verdict] for verdict in Verdict}
        use = {
            name: {"peak_mib": most.memory >> 20, "peak_descriptors": most.descriptors}
            for name, most in self.gateways.most.items()
        }
        return Report(
            settings=dataclasses.asdict(self.settings),
            seconds=round(seconds, 1),
            verdicts={str(verdict): len(accounts) for verdict, accounts in of.items()},
            errors=dict(collections.Counter(account.why for account in of[Verdict.ERROR])),
            stalled=[account.why for account in of[Verdict.STALLED]],
            refused=dict(self.clients.refused),
            faults=dict(self.faults.happened),
            gateways=use,
            problems=self.problems,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("sealed", "stream", "xor64"), default="sealed")
    parser.add_argument("--through", choices=("proxy", "run"), default="proxy")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=30, help="seconds that an end waits")
    settings = Settings(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(f"soak-{os.getpid()}", pathlib.Path(directory), RATE)
        try:
            pair.build()
            report = asyncio.run(Soak(pair, settings).run())
        finally:
            pair.remove()
    print(json.dumps(dataclasses.asdict(report), indent=2))
    return bool(report.problems)


if __name__ == "__main__":
    sys.exit(main())
