"""Faults: cut paths, lost subflows and addresses, gateways that hang or end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import signal
import subprocess

from hosts import Pair, tool
from streams import resident_bytes

LINKS = ("eth", "wlan")
# Duration of a fault in seconds: minimum and maximum.
DURATION_S = (0.05, 0.8)


@dataclasses.dataclass
class Usage:
    """The peak usage of the gateways of one command."""

    memory: int = 0
    descriptors: int = 0


class Gateways:
    """The gateways of a pair by command."""

    def __init__(self, starters: dict):
        self.starters = starters
        self.programs: dict[str, subprocess.Popen] = {}
        self.pids: list[int] = []
        self.peak: dict[str, Usage] = collections.defaultdict(Usage)

    def start(self, name: str):
        if name in self.starters:
            self.add(name, self.starters[name]())

    def add(self, name: str, program: subprocess.Popen):
        self.programs[name] = program
        self.pids.append(program.pid)

    async def replace(self, name: str, by: signal.Signals, pause: float):
        program = self.programs[name]
        program.send_signal(by)
        status = await asyncio.to_thread(program.wait, 30)
        assert by is signal.SIGKILL or status == 0, f"plait {name} ended with {status}"
        await asyncio.sleep(pause)
        await asyncio.to_thread(self.start, name)

    def descriptors(self) -> dict[str, int]:
        held = {}
        for name, program in self.programs.items():
            with contextlib.suppress(OSError):
                held[name] = len(os.listdir(f"/proc/{program.pid}/fd"))
        return held

    async def watch(self):
        while True:
            for name, descriptors in self.descriptors().items():
                peak = self.peak[name]
                peak.descriptors = max(peak.descriptors, descriptors)
                peak.memory = max(peak.memory, resident_bytes(self.programs[name].pid))
            await asyncio.sleep(0.1)


class Faults:
    """Faults one after the other, drawn at random; each is over when its method returns."""

    def __init__(self, pair: Pair, gateways: Gateways, draw: random.Random):
        self.pair, self.gateways, self.draw = pair, gateways, draw
        self.of_paths = {self.cut: 4, self.silence: 2, self.drop: 3, self.withdraw: 1, self.stop: 1}
        self.of_gateways = {self.kill: 3, self.terminate: 1, self.kill_in_silence: 1}
        self.counts: collections.Counter[str] = collections.Counter()

    async def inject(self, gateways_end: bool):
        kinds = self.of_paths | self.of_gateways if gateways_end else self.of_paths
        [kind] = self.draw.choices(list(kinds), list(kinds.values()))
        self.counts[kind.__name__] += 1
        await kind()

    async def cut(self):
        """Interfaces of one host go down."""
        host = self.draw.choice((self.pair.client, self.pair.server)).name
        links = self._links()
        for link in links:
            await self._tool("ip", "-n", host, "link", "set", link, "down")
        await self._wait()
        for link in links:
            await self._tool("ip", "-n", host, "link", "set", link, "up")
        await asyncio.to_thread(self.pair.add_route_by_wlan)

    async def silence(self):
        """Links drop all packets."""
        async with self._silent(self._links()):
            await self._wait()

    async def drop(self):
        """Subflows are reset."""
        client, server = self.pair.client, self.pair.server
        choices = ((client, "src", "10.77.1.1"), (client, "src", "10.77.2.1"), (server, "sport = :8443"))
        host, *which = self.draw.choice(choices)
        await asyncio.to_thread(host.tool, "ss", "-tK", "state", "established", *which)

    async def withdraw(self):
        """The server withdraws its addresses for a while."""
        server = self.pair.server.name
        await self._tool("ip", "-n", server, "mptcp", "endpoint", "flush")
        await self._wait()
        for address in (self.pair.WLAN, self.pair.WLAN6):
            await self._tool("ip", "-n", server, "mptcp", "endpoint", "add", address, "dev", "wlan", "signal")

    async def stop(self):
        """A gateway is stopped."""
        program = self.gateways.programs[self._gateway()]
        program.send_signal(signal.SIGSTOP)
        await self._wait()
        program.send_signal(signal.SIGCONT)

    async def kill(self):
        await self.gateways.replace(self._gateway(), signal.SIGKILL, self._seconds())

    async def terminate(self):
        name = self._gateway()
        # Terminating `plait run` would end its program.
        name = name if name in self.gateways.starters else "serve"
        await self.gateways.replace(name, signal.SIGTERM, self._seconds())

    async def kill_in_silence(self):
        """A gateway is killed while its peer is unreachable."""
        async with self._silent(LINKS):
            await self._wait()
            await self.gateways.replace(self._gateway(), signal.SIGKILL, 0)

    def _links(self) -> tuple[str, ...]:
        return self.draw.choice((("eth",), ("wlan",), LINKS))

    def _gateway(self) -> str:
        return self.draw.choice(sorted(self.gateways.programs))

    def _seconds(self) -> float:
        return self.draw.uniform(*DURATION_S)

    async def _wait(self):
        await asyncio.sleep(self._seconds())

    @contextlib.asynccontextmanager
    async def _silent(self, links):
        names, server = f"{{ {', '.join(links)} }}", self.pair.server
        rules = {"prerouting": f"iifname {names} drop", "output": f"oifname {names} drop"}
        await asyncio.to_thread(server.add_packet_rules, **rules)
        yield
        await asyncio.to_thread(server.remove_packet_rules)

    async def _tool(self, *command):
        await asyncio.to_thread(tool, *command)
