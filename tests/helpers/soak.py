#!/usr/bin/python3
"""Connections through real gateways while paths are cut and gateways end: streams that end in order must be complete.

Both ends of connections of random sizes verify every byte (exchanges.py) while faults occur (faults.py). The seed
determines the faults; their time depends on the machine. Needs root.
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
from exchanges import UNDISTURBED, Clients, Result, Services, Side, Verdict, connected, receive
from faults import Faults, Gateways
from hosts import PLAIT, Pair, tool, wait_for
from streams import listen

PORT, SERVICE = 8443, 9000
# Of each link, slow enough that data is in flight when a fault occurs.
RATE = "200mbit"
# Of a gateway.
MAX_MEMORY = 200 << 20
# Descriptors that a gateway may have gained: its pool of unconnected sockets varies.
MAX_NEW_DESCRIPTORS = 64
# Undisturbed connections before and after the faults.
BEFORE, AFTER = 5, 20


@dataclasses.dataclass
class Settings:
    mode: str = "sealed"
    through: str = "proxy"
    connections: int = 10_000
    seed: int = 1
    # Connections at once.
    concurrency: int = 48
    # Mean number of connections between two faults.
    every: int = 25
    # Timeout of a connection in seconds.
    timeout: float = 30
    # Seconds within which a gateway detects a dead peer: the kernel's keepalive, `net.mptcp.close_timeout`, and a
    # margin. 0: not tested.
    dead_peer_timeout: float = 150
    # `--rekey-after` of the initiating gateway, in mode sealed.
    rekey_after: str | None = None
    # `--congestion-control` of both gateways.
    congestion_control: str | None = None


@dataclasses.dataclass
class Report:
    """The results."""

    settings: dict
    seconds: float
    # Of all directions of all connections.
    verdicts: dict[str, int]
    errors: dict[str, int]
    stalled: list[str]
    # Failed attempts to connect, which were repeated.
    refused: dict[str, int]
    faults: dict[str, int]
    gateways: dict[str, dict]
    problems: list[str]


class Soak:
    def __init__(self, pair: Pair, settings: Settings):
        self.pair, self.settings = pair, settings
        protection = ("--mode", settings.mode, "--require", "--drain", "1")
        if settings.congestion_control:
            protection += ("--congestion-control", settings.congestion_control)
        rekey = ("--rekey-after", settings.rekey_after) if settings.rekey_after else ()
        self.outbound = (*protection, *rekey, "--trusted", "eth")
        starters = {"serve": lambda: pair.serve(*protection, to=f"127.0.0.1:{SERVICE}")}
        if settings.through == "proxy":
            starters["proxy"] = lambda: pair.proxy(*self.outbound)
        self.gateways = Gateways(starters)
        self.faults = Faults(pair, self.gateways, random.Random(f"{settings.seed} faults"))
        if settings.dead_peer_timeout == 0:
            del self.faults.of_gateways[self.faults.kill_in_silence]
        self.clients = Clients(settings.seed, settings.timeout, self._by_socks)
        listener = listen(pair.server, SERVICE)
        listener.listen(4096)
        self.services = Services(settings.seed, settings.timeout, listener)
        self.undisturbed = itertools.count(UNDISTURBED)
        self.problems: list[str] = []

    async def run(self) -> Report:
        began = time.monotonic()
        await asyncio.to_thread(self.pair.add_route_by_wlan)
        for name in self.gateways.starters:
            await asyncio.to_thread(self.gateways.start, name)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self.services.accept()), group.create_task(self.gateways.watch())]
            await self._check_undisturbed(BEFORE)
            descriptors = self.gateways.descriptors()
            await self._run_with_faults()
            await self._check_undisturbed(AFTER)
            self._check_usage(descriptors)
            for task in background:
                task.cancel()
        self._check_connections()
        await asyncio.to_thread(self._stop)
        return self._report(time.monotonic() - began)

    async def _run_with_faults(self):
        """Makes the connections and injects faults; gateways end only during the first three quarters."""
        settings = self.settings
        connecting = asyncio.create_task(self._connect_all(range(settings.connections), settings.concurrency))
        due = self.services.accepted
        try:
            while not connecting.done():
                if self.services.accepted >= due:
                    due = self.services.accepted + self.faults.draw.randint(1, 2 * settings.every)
                    await self.faults.inject(self.services.accepted < settings.connections * 3 // 4)
                await asyncio.sleep(0.01)
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])
        await connecting
        await self.services.idle()

    async def _connect_all(self, numbers, concurrency: int):
        if self.settings.through == "proxy":
            await self.clients.all(numbers, concurrency)
            return
        while remaining := [number for number in numbers if number not in self.clients.results]:
            found = await self._run_program(remaining, concurrency)
            for number, (verdict, why, ended) in found.items():
                self.clients.results[int(number)] = Result(Verdict(verdict), why, ended)

    async def _run_program(self, numbers: list[int], concurrency: int) -> dict:
        """Runs the clients under `plait run` until they are done or their gateway is killed."""
        task, output = (self.pair.directory / name for name in ("task.json", "results.json"))
        output.unlink(missing_ok=True)
        settings = {"seed": self.settings.seed, "timeout": self.settings.timeout, "numbers": numbers}
        settings |= {"concurrency": concurrency, "address": self.pair.ETH, "port": PORT}
        task.write_text(json.dumps(settings))
        command = (sys.executable, exchanges.__file__, task, output)
        program = self.pair.client.start(PLAIT, "-v", "run", *self.outbound, "--", *command, log="run.log")
        self.gateways.add("run", program)
        await asyncio.to_thread(program.wait)
        # A program that has started continues without its gateway.
        began = time.monotonic()
        while not output.exists():
            if task.exists() and time.monotonic() > began + 2:
                return {}
            assert time.monotonic() < began + 3 * self.settings.timeout, "the clients do not end"
            await asyncio.sleep(0.05)
        return json.loads(output.read_text())

    async def _by_socks(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        connection = await connected("127.0.0.1", 1080, self.pair.client)

        async def ask(question: bytes, length: int) -> bytes:
            await loop.sock_sendall(connection, question)
            answer = await receive(connection, length)
            if len(answer) < length:
                raise ConnectionAbortedError(
                    f"expected a SOCKS reply of {length} bytes, got {answer.hex()!r}"
                )
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

    async def _check_undisturbed(self, connections: int):
        """Without faults every connection is complete, and the gateways count each one once."""
        for _ in range(3):
            counted = await self._counted([next(self.undisturbed) for _ in range(connections)])
            if all(counts == (connections, 0) for counts in counted.values()):
                return
            # An abandoned attempt to connect may have ended only now.
        self.problems.append(
            f"of {connections} connections, protected and plain ones by their counts: {counted}"
        )

    async def _counted(self, numbers: list[int]) -> dict[str, tuple[int, int]]:
        await self._settle()
        before = await asyncio.to_thread(wait_for, "answer of the gateways", self._counts)
        await self._connect_all(numbers, 4)
        await self.services.idle()
        for side, results in ((Side.CLIENT, self.clients.results), (Side.SERVER, self.services.results)):
            bad = [results.get(number) for number in numbers]
            bad = [str(result) for result in bad if not result or result.verdict is not Verdict.WHOLE]
            if bad:
                self.problems.append(f"without faults, at the {side.name}: {bad}")
        await self._settle()
        after = await asyncio.to_thread(self._counts)
        counted = {name: (before[name], after[name]) for name in self.gateways.starters}
        return {
            name: tuple(later[key] - earlier[key] for key in ("protected", "plain"))
            for name, (earlier, later) in counted.items()
        }

    async def _settle(self):
        """Waits until the gateways have no connections."""
        if self.settings.dead_peer_timeout == 0:
            return
        deadline = time.monotonic() + self.settings.dead_peer_timeout
        while left := await asyncio.to_thread(self._carried):
            if time.monotonic() > deadline:
                self.problems.append(f"still carried: {left}")
                return
            await asyncio.sleep(0.05)

    def _carried(self) -> list:
        return [connection for gateway in self.pair.status() for connection in gateway["connections"]]

    def _counts(self) -> dict[str, dict] | None:
        """The counts of every gateway, once all answer."""
        counts = {gateway["command"]: gateway["counts"] for gateway in self.pair.status()}
        return counts if counts.keys() >= self.gateways.starters.keys() else None

    def _check_usage(self, before: dict[str, int]):
        now = self.gateways.descriptors()
        for name in self.gateways.starters:
            if now[name] > before[name] + MAX_NEW_DESCRIPTORS:
                self.problems.append(f"plait {name}: {before[name]} descriptors, in the end {now[name]}")
        for name, peak in self.gateways.peak.items():
            if peak.memory > MAX_MEMORY:
                self.problems.append(f"plait {name} took {peak.memory >> 20} MiB")

    def _check_connections(self):
        results = (self.clients.results, self.services.results)
        for side in Side:
            for number, result in results[side].items():
                other = results[1 - side].get(number)
                if result.verdict is Verdict.WHOLE and not (other and other.ended):
                    result.verdict, result.why = Verdict.WRONG, "ended in order although its sender did not"
                if result.verdict is Verdict.WRONG:
                    plan = exchanges.Plan.of(self.settings.seed, number)
                    self.problems.append(f"connection {number} at the {side.name}: {result.why} ({plan})")
        unknown = self.services.results.keys() - self.clients.results.keys()
        self.problems += [f"connection {number}, which no client opened" for number in unknown]
        unidentified = self.services.unidentified
        self.problems += [result.why for result in unidentified if result.verdict is Verdict.WRONG]

    def _stop(self):
        """Terminates the gateways, which must leave nothing behind."""
        setting = self.pair.client.run("sysctl", "net.mptcp.pm_type", text=True).stdout.strip()
        if setting != "net.mptcp.pm_type = 0":
            self.problems.append(f"left behind: {setting}")
        for name in self.gateways.starters:
            program = self.gateways.programs[name]
            program.send_signal(signal.SIGTERM)
            if status := program.wait(60):
                self.problems.append(f"plait {name} ended with {status}")
        removed = json.loads(tool(PLAIT, "doctor", "--clean", "--json"))["removed"]
        for pid in self.gateways.pids:
            ours = (f"plait-{pid}-", f"gateway-{pid}.sock")
            left = [found["name"] for found in removed if any(part in found["name"] for part in ours)]
            self.problems += [f"left behind: {name}" for name in left]

    def _report(self, seconds: float) -> Report:
        every = [*self.clients.results.values(), *self.services.results.values(), *self.services.unidentified]
        of = {verdict: [one for one in every if one.verdict is verdict] for verdict in Verdict}
        use = {
            name: {"peak_mib": peak.memory >> 20, "peak_descriptors": peak.descriptors}
            for name, peak in self.gateways.peak.items()
        }
        return Report(
            settings=dataclasses.asdict(self.settings),
            seconds=round(seconds, 1),
            verdicts={str(verdict): len(results) for verdict, results in of.items()},
            errors=dict(collections.Counter(result.why for result in of[Verdict.ERROR])),
            stalled=[result.why for result in of[Verdict.STALLED]],
            refused=dict(self.clients.refused),
            faults=dict(self.faults.counts),
            gateways=use,
            problems=self.problems,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("sealed", "stream", "xor64"), default="sealed")
    parser.add_argument("--through", choices=("proxy", "run"), default="proxy")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=30, help="of a transfer, in seconds")
    parser.add_argument("--rekey-after", help="time after which keys are updated, in mode sealed")
    parser.add_argument("--congestion-control", help="of the gateways' connections")
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
