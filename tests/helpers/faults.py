"""What goes wrong around connections: paths are cut, subflows and addresses go, gateways hang and end."""

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
# Seconds for which something stays as it should not be.
HOLD = (0.05, 0.8)


@dataclasses.dataclass
class Use:
    """The most that gateways of a kind were seen to hold."""

    memory: int = 0
    descriptors: int = 0


class Gateways:
    """The gateways of a pair by their commands. One that ends is replaced, unless somebody else does that."""

    def __init__(self, starters: dict):
        self.starters = starters
        self.programs: dict[str, subprocess.Popen] = {}
        self.pids: list[int] = []
        self.most: dict[str, Use] = collections.defaultdict(Use)

    def start(self, name: str):
        if name in self.starters:
            self.enter(name, self.starters[name]())

    def enter(self, name: str, program: subprocess.Popen):
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
                most = self.most[name]
                most.descriptors = max(most.descriptors, descriptors)
                most.memory = max(most.memory, resident_bytes(self.programs[name].pid))
            await asyncio.sleep(0.1)


class Faults:
    """One after the other, each over when it returns; which ones, and for how long, is drawn."""

    def __init__(self, pair: Pair, gateways: Gateways, draw: random.Random):
        self.pair, self.gateways, self.draw = pair, gateways, draw
        self.of_paths = {self.cut: 4, self.silence: 2, self.drop: 3, self.withdraw: 1, self.stop: 1}
        self.of_gateways = {self.kill: 3, self.terminate: 1, self.kill_in_silence: 1}
        self.happened: collections.Counter[str] = collections.Counter()

    async def happen(self, gateways_end: bool):
        kinds = self.of_paths | self.of_gateways if gateways_end else self.of_paths
        [kind] = self.draw.choices(list(kinds), list(kinds.values()))
        self.happened[kind.__name__] += 1
        await kind()

    async def cut(self):
        """Interfaces go down, on one side."""
        host = self.draw.choice((self.pair.client, self.pair.server)).name
        links = self._links()
        for link in links:
            await self._tool("ip", "-n", host, "link", "set", link, "down")
        await self._hold()
        for link in links:
            await self._tool("ip", "-n", host, "link", "set", link, "up")
        await asyncio.to_thread(self.pair.add_route_by_wlan)

    async def silence(self):
        """Nothing crosses any more, and nobody says so."""
        async with self._silent(self._links()):
            await self._hold()

    async def drop(self):
        """Subflows are reset."""
        host, *which = self.draw.choice(
            (
                (self.pair.client, "src", "10.77.1.1"),
                (self.pair.client, "src", "10.77.2.1"),
                (self.pair.server, "sport = :8443"),
            )
        )
        await self._inside(host, "ss", "-tK", "state", "established", *which)

    async def withdraw(self):
        """The server's addresses are not announced for a while."""
        server = self.pair.server.name
        await self._tool("ip", "-n", server, "mptcp", "endpoint", "flush")
        await self._hold()
        for address in (self.pair.WLAN, self.pair.WLAN6):
            await self._tool("ip", "-n", server, "mptcp", "endpoint", "add", address, "dev", "wlan", "signal")

    async def stop(self):
        """A gateway gets no processor."""
        program = self.gateways.programs[self._gateway()]
        program.send_signal(signal.SIGSTOP)
        await self._hold()
        program.send_signal(signal.SIGCONT)

    async def kill(self):
        await self.gateways.replace(self._gateway(), signal.SIGKILL, self._seconds())

    async def terminate(self):
        name = self._gateway()
        # A program that plait runs would end with it.
        name = name if name in self.gateways.starters else "serve"
        await self.gateways.replace(name, signal.SIGTERM, self._seconds())

    async def kill_in_silence(self):
        """The peer does not hear of it."""
        async with self._silent(LINKS):
            await self._hold()
            await self.gateways.replace(self._gateway(), signal.SIGKILL, 0)

    def _links(self) -> tuple[str, ...]:
        return self.draw.choice((("eth",), ("wlan",), LINKS))

    def _gateway(self) -> str:
        return self.draw.choice(sorted(self.gateways.programs))

    def _seconds(self) -> float:
        return self.draw.uniform(*HOLD)

    async def _hold(self):
        await asyncio.sleep(self._seconds())

    @contextlib.asynccontextmanager
    async def _silent(self, links):
        quoted = ", ".join(f'"{link}"' for link in links)
        rules = f"""
            table inet silence {{
                chain comes {{
                    type filter hook prerouting priority -300;
                    iifname {{ {quoted} }} drop;
                }}
                chain leaves {{
                    type filter hook output priority -300;
                    oifname {{ {quoted} }} drop;
                }}
            }}
        """
        await self._inside(self.pair.server, "nft", "-f", "-", input=rules.encode())
        yield
        await self._inside(self.pair.server, "nft", "delete", "table", "inet", "silence")

    async def _tool(self, *command):
        await asyncio.to_thread(tool, *command)

    async def _inside(self, host, *command, **options):
        done = await asyncio.to_thread(host.run, *command, **options)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
