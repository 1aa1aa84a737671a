"""Connections whose content both ends derive from a seed, so that each end can verify every byte it receives.

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

MAX_LENGTH = 1_000_000
BLOCK = random.Random("exchanges").randbytes(4 * MAX_LENGTH)
RECV_SIZE = 1 << 16

# Every connection starts with its number. From UNDISTURBED on, connections are short and both ends behave normally.
NUMBER = struct.Struct("!Q")
UNDISTURBED = 1 << 32

# Delay before a client retries: connections must not be used up while a gateway is restarted.
RETRY_DELAY_S = 0.3


class Side(enum.IntEnum):
    CLIENT = 0
    SERVER = 1


class Behavior(enum.Enum):
    """How one end, the deviating one, behaves. The other sends everything, shuts down its direction, and reads to the end."""

    NORMAL = "like the other"
    ANSWERS_LAST = "sends after it has read everything"
    PAUSES = "pauses reading for a while"
    RESETS = "resets after sending a part"
    LEAVES = "sends everything, and closes without reading"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The content and behavior of a connection."""

    number: int
    # For each side: offset and length of its content in BLOCK.
    starts: tuple[int, int]
    lengths: tuple[int, int]
    behavior: Behavior
    deviating: Side
    # How many bytes the deviating end sends before it resets.
    part: int

    @classmethod
    def of(cls, seed: int, number: int) -> Plan:
        draw = random.Random(f"{seed} {number}")
        longest = MAX_LENGTH if number < UNDISTURBED else 10_000
        lengths = tuple(int(longest ** draw.random()) - 1 for _ in Side)
        starts = tuple(draw.randrange(len(BLOCK) - MAX_LENGTH) for _ in Side)
        behavior = (
            draw.choices(tuple(Behavior), (50, 15, 10, 15, 10))[0]
            if number < UNDISTURBED
            else Behavior.NORMAL
        )
        # A server must read the number before it knows its plan.
        deviating = Side.SERVER if behavior is Behavior.ANSWERS_LAST else draw.choice(tuple(Side))
        return cls(number, starts, lengths, behavior, deviating, draw.randint(0, lengths[deviating]))

    def content(self, side: Side) -> bytes:
        """Everything that a side sends."""
        start = self.starts[side]
        content = BLOCK[start : start + self.lengths[side]]
        return NUMBER.pack(self.number) + content if side is Side.CLIENT else content

    def ends(self, side: Side) -> bool:
        """Whether a side shuts down its direction in order."""
        return self.behavior is not Behavior.RESETS or self.deviating is not side


class Verdict(enum.StrEnum):
    """The verdict on the direction that an end receives."""

    WHOLE = enum.auto()
    """Every byte is correct, and the stream ended in order."""
    ERROR = enum.auto()
    """The received bytes are correct, and were followed by an error."""
    LEFT = enum.auto()
    """The receiver closed as planned; the received bytes are correct."""
    STALLED = enum.auto()
    """The receiver timed out; the received bytes are correct."""
    UNCONNECTED = enum.auto()
    """The client could not connect."""
    WRONG = enum.auto()
    """A byte is wrong, or the stream ended in order too early."""


@dataclasses.dataclass
class Result:
    """What an end reports about a connection."""

    verdict: Verdict
    why: str = ""
    # Whether this end has shut down its own direction in order.
    ended: bool = False


class End:
    """One end of a connection, of which `received` bytes were already received."""

    def __init__(self, connection: socket.socket, plan: Plan, side: Side, received: int = 0):
        self.connection, self.plan, self.side = connection, plan, side
        self.received = received
        self.ended = False
        self.failure: OSError | None = None

    async def exchange(self, timeout: float) -> Result:
        """Follows the plan, and verifies what is received."""
        try:
            verdict, why = await asyncio.wait_for(self._act(), timeout)
        except TimeoutError:
            number, side = self.plan.number, self.side.name
            verdict, why = Verdict.STALLED, f"connection {number} at the {side} after {self.received} bytes"
        if verdict is Verdict.WHOLE or (verdict is Verdict.LEFT and self._is(Behavior.LEAVES)):
            self.connection.close()
        else:
            reset(self.connection)
        return Result(verdict, why, self.ended)

    def _is(self, behavior: Behavior) -> bool:
        return self.plan.behavior is behavior and self.plan.deviating is self.side

    async def _act(self) -> tuple[Verdict, str]:
        mine = self.plan.content(self.side)
        if self._is(Behavior.LEAVES):
            self.ended = await self._send(mine)
            return Verdict.LEFT, "closed"
        if self._is(Behavior.ANSWERS_LAST):
            verdict = await self._receive()
            if verdict[0] is Verdict.WHOLE:
                await self._send_and_end(mine)
            return verdict
        if self._is(Behavior.RESETS):
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
        """Receives while this end sends."""
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
        # The kernel reports a reset once, to the first call. These two errors also follow an orderly end (a reset after
        # one is EPIPE), which therefore remains one.
        if error.errno not in (errno.EPIPE, errno.ENOTCONN):
            self.failure = error

    async def _receive(self) -> tuple[Verdict, str]:
        other = Side(1 - self.side)
        expected = self.plan.content(other)
        pause_at = len(expected) // 2 if self._is(Behavior.PAUSES) else None
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self.connection, RECV_SIZE)
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


def timeout_of(number: int, usual: float) -> float:
    """The timeout of a connection; generous if nothing disturbs it."""
    return usual if number < UNDISTURBED else 60


async def receive(connection: socket.socket, size: int) -> bytes:
    """Receives so many bytes, or fewer if the stream ends before."""
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not piece:
            break
        data += piece
    return data


class Clients:
    """The ends of the clients."""

    def __init__(self, seed: int, timeout: float, connect):
        self.seed, self.timeout = seed, timeout
        self.connect = connect
        # Set once no further connection is possible.
        self.gateway_gone = False
        self.results: dict[int, Result] = {}
        self.refused: collections.Counter[str] = collections.Counter()

    async def all(self, numbers, concurrency: int):
        """Makes a connection for each number, several at once."""
        numbers = iter(numbers)

        async def some():
            while not self.gateway_gone and (number := next(numbers, None)) is not None:
                result = await self._one(number)
                if result.verdict is not Verdict.UNCONNECTED or not self.gateway_gone:
                    self.results[number] = result
                if result.verdict is Verdict.ERROR:
                    await asyncio.sleep(RETRY_DELAY_S)

        await asyncio.gather(*(some() for _ in range(concurrency)))

    async def _one(self, number: int) -> Result:
        deadline = asyncio.get_running_loop().time() + timeout_of(number, self.timeout)
        while not self.gateway_gone and asyncio.get_running_loop().time() < deadline:
            try:
                connection = await asyncio.wait_for(self.connect(), self.timeout)
            except OSError as error:
                self.refused[str(error) or type(error).__name__] += 1
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            end = End(connection, Plan.of(self.seed, number), Side.CLIENT)
            return await end.exchange(timeout_of(number, self.timeout))
        return Result(Verdict.UNCONNECTED)


class Services:
    """The ends of the servers."""

    def __init__(self, seed: int, timeout: float, listener: socket.socket):
        self.seed, self.timeout = seed, timeout
        self.listener = listener
        self.listener.setblocking(False)
        self.results: dict[int, Result] = {}
        # Of connections that ended before their number was received.
        self.unidentified: list[Result] = []
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
        """Waits until every connection has ended."""
        while self.open:
            await asyncio.wait(set(self.open))

    async def _one(self, connection: socket.socket):
        try:
            head = await asyncio.wait_for(receive(connection, NUMBER.size), self.timeout)
        except OSError as error:
            reset(connection)
            verdict = Verdict.STALLED if isinstance(error, TimeoutError) else Verdict.ERROR
            self.unidentified.append(Result(verdict, "before its number"))
            return
        if len(head) < NUMBER.size:
            reset(connection)
            self.unidentified.append(
                Result(Verdict.WRONG, f"ended in order {len(head)} bytes into its number")
            )
            return
        [number] = NUMBER.unpack(head)
        end = End(connection, Plan.of(self.seed, number), Side.SERVER, len(head))
        result = await end.exchange(timeout_of(number, self.timeout))
        if number in self.results:
            result = Result(Verdict.WRONG, "its number came twice")
        self.results[number] = result


async def connected(address: str, port: int, host=None) -> socket.socket:
    """A connection from this process's network namespace or from a host."""
    connection = host.socket() if host else socket.socket()
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def main():
    """IN OUT: reads the task and writes the results; connections go through the gateway that runs this program."""
    file, output = sys.argv[1:]
    with open(file) as text:
        task = json.load(text)
    os.rename(file, f"{file}.taken")

    async def connect():
        try:
            return await connected(task["address"], task["port"])
        except ConnectionRefusedError:
            # The gateway accepts connections to every destination: it is gone.
            clients.gateway_gone = True
            raise

    clients = Clients(task["seed"], task["timeout"], connect)
    asyncio.run(clients.all(task["numbers"], task["concurrency"]))
    with open(f"{output}.part", "w") as out:
        json.dump({number: dataclasses.astuple(result) for number, result in clients.results.items()}, out)
    os.rename(f"{output}.part", output)


if __name__ == "__main__":
    main()
