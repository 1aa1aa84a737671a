"""Connections of which both ends know from a seed what is to cross, so that each can judge every byte that comes.

As a program: the clients of such connections, for `plait run`.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import errno
import json
import os
import random
import socket
import struct
import sys

from streams import reset

LONGEST = 1_000_000
BLOCK = random.Random("exchanges").randbytes(4 * LONGEST)
PIECE = 1 << 16

# Every connection begins with its number. From CALM on they are short, and neither end does anything odd.
NUMBER = struct.Struct("!Q")
CALM = 1 << 32

# Of a client that got nothing, before it asks for another connection: a gateway that is away must not use them all up.
PAUSE = 0.3


class Side(enum.IntEnum):
    CLIENT = 0
    SERVER = 1


class Manner(enum.Enum):
    """How the odd one of two ends behaves. The other sends everything, ends its direction, and reads to the end."""

    LIKEWISE = "like the other"
    ANSWERS = "sends only when it has read everything"
    PAUSES = "stops to read for a while"
    RESETS = "resets when it has sent a part"
    LEAVES = "sends everything, and closes without having read anything"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to happen on a connection."""

    number: int
    # Of each side: where in BLOCK its bytes begin, and how many they are.
    starts: tuple[int, int]
    lengths: tuple[int, int]
    manner: Manner
    odd: Side
    # Of the odd one's bytes, those that it sends before it resets.
    part: int

    @classmethod
    def of(cls, seed: int, number: int) -> Plan:
        draw = random.Random(f"{seed} {number}")
        longest = LONGEST if number < CALM else 10_000
        lengths = tuple(int(longest ** draw.random()) - 1 for _ in Side)
        starts = tuple(draw.randrange(len(BLOCK) - LONGEST) for _ in Side)
        manner = draw.choices(tuple(Manner), (50, 15, 10, 15, 10))[0] if number < CALM else Manner.LIKEWISE
        # A server has to read a number before it knows anything.
        odd = Side.SERVER if manner is Manner.ANSWERS else draw.choice(tuple(Side))
        return cls(number, starts, lengths, manner, odd, draw.randint(0, lengths[odd]))

    def content(self, side: Side) -> bytes:
        """All that a side sends."""
        start = self.starts[side]
        content = BLOCK[start : start + self.lengths[side]]
        return NUMBER.pack(self.number) + content if side is Side.CLIENT else content

    def ends(self, side: Side) -> bool:
        """Whether a side ends its direction in order."""
        return self.manner is not Manner.RESETS or self.odd is not side


class Verdict(enum.StrEnum):
    """On the direction that an end receives."""

    WHOLE = enum.auto()
    """Every byte is right, and it ended in order."""
    ERROR = enum.auto()
    """What came was right, and then there was an error."""
    LEFT = enum.auto()
    """The receiver went, as planned; what came was right."""
    STALLED = enum.auto()
    """The receiver lost its patience; what came was right."""
    UNCONNECTED = enum.auto()
    """The client could not connect."""
    WRONG = enum.auto()
    """A byte is not right, or the end came in order and too early."""


@dataclasses.dataclass
class Account:
    """What an end tells of a connection."""

    verdict: Verdict
    why: str = ""
    # Whether this end has ended its own direction in order.
    ended: bool = False


class End:
    """One end of a connection, with the first bytes that it has received already."""

    def __init__(self, connection: socket.socket, plan: Plan, side: Side, received: int = 0):
        self.connection, self.plan, self.side = connection, plan, side
        self.received = received
        self.ended = False
        self.failure: OSError | None = None

    async def exchange(self, patience: float) -> Account:
        """Does what is planned, and judges what comes."""
        try:
            verdict, why = await asyncio.wait_for(self._act(), patience)
        except TimeoutError:
            number, side = self.plan.number, self.side.name
            verdict, why = Verdict.STALLED, f"connection {number} at the {side} after {self.received} bytes"
        if verdict is Verdict.WHOLE or (verdict is Verdict.LEFT and self._is(Manner.LEAVES)):
            self.connection.close()
        else:
            reset(self.connection)
        return Account(verdict, why, self.ended)

    def _is(self, manner: Manner) -> bool:
        return self.plan.manner is manner and self.plan.odd is self.side

    async def _act(self) -> tuple[Verdict, str]:
        mine = self.plan.content(self.side)
        if self._is(Manner.LEAVES):
            self.ended = await self._send(mine)
            return Verdict.LEFT, "closed"
        if self._is(Manner.ANSWERS):
            verdict = await self._receive()
            if verdict[0] is Verdict.WHOLE:
                await self._send_and_end(mine)
            return verdict
        if self._is(Manner.RESETS):
            return await self._until(asyncio.create_task(self._send(mine[: self.plan.part])))
        sending = asyncio.create_task(self._send_and_end(mine))
        try:
            verdict = await self._receive()
            if verdict[0] is Verdict.WHOLE:
                await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        return verdict

    async def _until(self, sending: asyncio.Task) -> tuple[Verdict, str]:
        """Receives for as long as this end still sends."""
        receiving = asyncio.create_task(self._receive())
        try:
            await sending
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.wait([sending, receiving])
        if not receiving.cancelled() and receiving.result()[0] is Verdict.WRONG:
            return receiving.result()
        return Verdict.LEFT, "reset"

    async def _send_and_end(self, content: bytes):
        if await self._send(content):
            self.ended = True
            try:
                self.connection.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._failed(error)

    async def _send(self, content: bytes) -> bool:
        try:
            await asyncio.get_running_loop().sock_sendall(self.connection, content)
            return True
        except OSError as error:
            self._failed(error)
            return False

    def _failed(self, error: OSError):
        # The kernel tells of a reset once, to whoever comes first. These two it gives after an end in order as well (a
        # reset that comes behind one is EPIPE), which thus remains an end in order.
        if error.errno not in (errno.EPIPE, errno.ENOTCONN):
            self.failure = error

    async def _receive(self) -> tuple[Verdict, str]:
        other = Side(1 - self.side)
        expected = self.plan.content(other)
        pause_at = len(expected) // 2 if self._is(Manner.PAUSES) else None
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self.connection, PIECE)
            except OSError as error:
                return Verdict.ERROR, errno.errorcode[error.errno]
            if not piece:
                break
            before, self.received = self.received, self.received + len(piece)
            if piece != expected[before : self.received]:
                return Verdict.WRONG, f"bytes {before} to {self.received} of {len(expected)}"
            if pause_at is not None and self.received > pause_at:
                pause_at = None
                await asyncio.sleep(0.1)
        if self.failure:
            return Verdict.ERROR, errno.errorcode[self.failure.errno]
        if self.received < len(expected):
            return Verdict.WRONG, f"ended in order after {self.received} of {len(expected)} bytes"
        if not self.plan.ends(other):
            return Verdict.WRONG, f"ended in order after {self.received} bytes; its sender was reset"
        return Verdict.WHOLE, ""


def patience(number: int, usual: float) -> float:
    """Where nothing goes wrong there is no reason to lose it."""
    return usual if number < CALM else 60


class Clients:
    """The clients' ends."""

    def __init__(self, seed: int, patience: float, connect):
        self.seed, self.patience = seed, patience
        self.connect = connect
        # Set when it is certain that no other connection can be had.
        self.forsaken = False
        self.accounts: dict[int, Account] = {}
        self.refused: collections.Counter[str] = collections.Counter()

    async def all(self, numbers, concurrency: int):
        """So many connections at once, until there are no more numbers."""
        numbers = iter(numbers)

        async def some():
            while not self.forsaken and (number := next(numbers, None)) is not None:
                account = await self._one(number)
                if account.verdict is not Verdict.UNCONNECTED or not self.forsaken:
                    self.accounts[number] = account
                if account.verdict is Verdict.ERROR:
                    await asyncio.sleep(PAUSE)

        await asyncio.gather(*(some() for _ in range(concurrency)))

    async def _one(self, number: int) -> Account:
        deadline = asyncio.get_running_loop().time() + patience(number, self.patience)
        while not self.forsaken and asyncio.get_running_loop().time() < deadline:
            try:
                connection = await asyncio.wait_for(self.connect(), self.patience)
            except OSError as error:
                self.refused[str(error) or type(error).__name__] += 1
                await asyncio.sleep(PAUSE)
                continue
            end = End(connection, Plan.of(self.seed, number), Side.CLIENT)
            return await end.exchange(patience(number, self.patience))
        return Account(Verdict.UNCONNECTED)


class Services:
    """The servers' ends."""

    def __init__(self, seed: int, patience: float, listener: socket.socket):
        self.seed, self.patience = seed, patience
        self.listener = listener
        self.listener.setblocking(False)
        self.accounts: dict[int, Account] = {}
        # Of connections that did not get as far as to tell their number.
        self.nameless: list[Account] = []
        self.accepted = 0
        self.open: set[asyncio.Task] = set()

    async def accept(self):
        async with asyncio.TaskGroup() as group:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(self.listener)
                self.accepted += 1
                task = group.create_task(self._one(connection))
                self.open.add(task)
                task.add_done_callback(self.open.discard)

    async def idle(self):
        """Until every connection has come to its end."""
        while self.open:
            await asyncio.wait(set(self.open))

    async def _one(self, connection: socket.socket):
        try:
            head = await asyncio.wait_for(self._head(connection), self.patience)
        except OSError as error:
            reset(connection)
            verdict = Verdict.STALLED if isinstance(error, TimeoutError) else Verdict.ERROR
            self.nameless.append(Account(verdict, "before its number"))
            return
        if len(head) < NUMBER.size:
            reset(connection)
            self.nameless.append(Account(Verdict.WRONG, f"ended in order {len(head)} bytes into its number"))
            return
        [number] = NUMBER.unpack(head)
        end = End(connection, Plan.of(self.seed, number), Side.SERVER, len(head))
        account = await end.exchange(patience(number, self.patience))
        if number in self.accounts:
            account = Account(Verdict.WRONG, "its number came twice")
        self.accounts[number] = account

    async def _head(self, connection: socket.socket) -> bytes:
        head = b""
        while len(head) < NUMBER.size:
            piece = await asyncio.get_running_loop().sock_recv(connection, NUMBER.size - len(head))
            if not piece:
                break
            head += piece
        return head


async def connected(address: str, port: int, host=None) -> socket.socket:
    """A socket of this process's namespace, or a host's."""
    connection = host.socket() if host else socket.socket()
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def main():
    """IN OUT: what to do, and what came of it; the connections are led by the gateway that runs this."""
    file, told = sys.argv[1:]
    with open(file) as text:
        asked = json.load(text)
    os.rename(file, f"{file}.taken")

    async def connect():
        try:
            return await connected(asked["address"], asked["port"])
        except ConnectionRefusedError:
            # It is the gateway that accepts, whatever it leads to; nobody does when it is no more.
            clients.forsaken = True
            raise

    clients = Clients(asked["seed"], asked["patience"], connect)
    asyncio.run(clients.all(asked["numbers"], asked["concurrency"]))
    with open(f"{told}.part", "w") as out:
        json.dump({number: dataclasses.astuple(account) for number, account in clients.accounts.items()}, out)
    os.rename(f"{told}.part", told)


if __name__ == "__main__":
    main()
