"""Connections that plait protects, opened and accepted by this program itself: sockets like any other."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from plait import _plait

Mode = Literal["sealed", "stream", "xor64", "off"]
Require = Literal["all-paths"] | bool
Peers = Literal["any", "first-use"] | Mapping[str, str]
Address = tuple[str, int]


class Connection(socket.socket):
    """A socket to a peer. What is written to it, and read, is protected on the network as `mode` says.

    It is one end of a connection on loopback, whose other end a gateway within this process carries: so it has every
    method of a socket. A connection that cannot go on raises `ConnectionResetError`; it never looks as if it had ended.
    """

    mode: str
    """`"sealed"`, `"stream"`, `"xor64"`; or `"off"`, if it is not protected."""
    level: str | None
    """Of `"sealed"`: the paths that witness it of those configured, such as `"2/2"`."""
    identity: str | None
    """Of `"sealed"`: by which key the peer is known, `"pinned"` or `"first-use"`; None if it could be anybody."""
    peer: Address
    """The other end of the network. (`getpeername` tells that on loopback.)"""

    @classmethod
    def _carried(cls, carried: tuple[int, str, int, str, str | None, str | None]) -> Connection:
        descriptor, host, port, mode, level, identity = carried
        connection = cls(fileno=descriptor)
        connection.peer, connection.mode = (host, port), mode
        connection.level, connection.identity = level, identity
        return connection


class Listener:
    """Accepts connections. Iterating over it gives them as they come, until it is closed."""

    def __init__(self, listener: _plait.Listener):
        self._listener = listener

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def accept(self, timeout: float | None = None) -> Connection:
        """The next connection. Raises `TimeoutError` if none comes within `timeout` seconds."""
        carried = self._listener.accept(timeout)
        if carried is None:
            if timeout is None:
                raise OSError("the listener's gateway has stopped")
            raise TimeoutError(f"no connection within {timeout} s")
        return Connection._carried(carried)

    def __iter__(self) -> Iterator[Connection]:
        while (carried := self._listener.accept(None)) is not None:
            yield Connection._carried(carried)


class _Log:
    """Hands what the gateway says to the logger `plait`, in a thread of its own."""

    def __init__(self):
        self._logger = logging.getLogger("plait")
        self._records = _plait.Logs(self._logger.getEffectiveLevel())
        self._thread = threading.Thread(target=self._hand_over, name="plait log", daemon=True)
        self._thread.start()

    def _hand_over(self) -> None:
        while (record := self._records.next()) is not None:
            level, text = record
            self._logger.log(level, "%s", text)

    def close(self) -> None:
        self._records.close()
        self._thread.join()


_lock = threading.Lock()
_running: tuple[tuple, _plait.Gateway, _Log] | None = None


def _gateway(
    mode: Mode,
    require: Require,
    trusted: Sequence[str],
    untrusted: Sequence[str],
    identity: str | os.PathLike[str] | None,
    peers: Peers,
    clients: Sequence[str] | None,
) -> _plait.Gateway:
    """The gateway of this process, which begins with the first connection or listener."""
    global _running
    file = None if identity is None else os.fspath(identity)
    trust, pins = ("pinned", tuple(sorted(peers.items()))) if isinstance(peers, Mapping) else (peers, ())
    known = None if clients is None else tuple(clients)
    settings = (mode, require, tuple(trusted), tuple(untrusted), file, trust, pins, known)
    with _lock:
        if _running is None:
            roles = [*((name, True) for name in trusted), *((name, False) for name in untrusted)]
            demanded = ("mode" if require else None) if isinstance(require, bool) else require
            log = _Log()
            try:
                gateway = _plait.Gateway(mode, demanded, roles, 10.0, file, trust, pins, known)
            except BaseException:
                log.close()
                raise
            _running = settings, gateway, log
            atexit.register(stop)
        elif _running[0] != settings:
            raise ValueError(
                f"a process has one gateway; expected {_running[0]} as when it began, found {settings}: "
                "call plait.stop() first"
            )
        return _running[1]


def stop() -> None:
    """Ends the gateway of this process: connections get ten seconds to end, and are then reset."""
    global _running
    with _lock:
        if _running is not None:
            _, gateway, log = _running
            gateway.stop()
            log.close()
            _running = None
            atexit.unregister(stop)


def connect(
    address: Address,
    *,
    mode: Mode = "sealed",
    require: Require = True,
    trusted: Sequence[str] = (),
    untrusted: Sequence[str] = (),
    identity: str | os.PathLike[str] | None = None,
    peers: Peers = "any",
    clients: Sequence[str] | None = None,
) -> Connection:
    """Connects to a peer that runs `plait serve` or `plait.serve`.

    The connection begins by one of the `trusted` interfaces; others are used from when the keys are exchanged, all of them
    unless some are named as `untrusted`. With `require`, a peer that does not agree on the mode is refused; with
    `"all-paths"`, and mode `"sealed"`, also a connection that one of the paths does not witness. Without, it may be plain:
    see `Connection.mode`.

    Of mode `"sealed"`, `peers` are the keys that peers must have, by `"HOST:PORT"`; or `"first-use"`: a peer's first key is
    kept, and every other refused. `identity` is the file of the program's own key, as `plait identity` makes it, by default
    that of `plait identity` if it is there; without one its key is a new one each time. `clients` are the keys of those that
    `serve` accepts.

    Needs root, as `plait run` does. All calls of a process must have the same settings.

    Raises `plait.Refused` (a `ConnectionError`), other `OSError`s, and `ValueError` for settings that cannot be.
    """
    return Connection._carried(
        _gateway(mode, require, trusted, untrusted, identity, peers, clients).connect(*address)
    )


def serve(
    address: Address,
    *,
    mode: Mode = "sealed",
    require: Require = True,
    trusted: Sequence[str] = (),
    untrusted: Sequence[str] = (),
    identity: str | os.PathLike[str] | None = None,
    peers: Peers = "any",
    clients: Sequence[str] | None = None,
) -> Listener:
    """Listens at an address of this host; with `"::"` further subflows arrive at every one. See `connect`."""
    return Listener(_gateway(mode, require, trusted, untrusted, identity, peers, clients).listen(*address))


async def open_connection(
    address: Address,
    *,
    mode: Mode = "sealed",
    require: Require = True,
    trusted: Sequence[str] = (),
    untrusted: Sequence[str] = (),
    identity: str | os.PathLike[str] | None = None,
    peers: Peers = "any",
    clients: Sequence[str] | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `connect`, for asyncio: the streams that `asyncio.open_connection` gives."""
    connection = await asyncio.to_thread(
        connect,
        address,
        mode=mode,
        require=require,
        trusted=trusted,
        untrusted=untrusted,
        identity=identity,
        peers=peers,
        clients=clients,
    )
    return await asyncio.open_connection(sock=connection)


async def accept(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Connection]:
    """The next connection of a listener, for asyncio."""
    connection = await asyncio.to_thread(listener.accept)
    reader, writer = await asyncio.open_connection(sock=connection)
    return reader, writer, connection
