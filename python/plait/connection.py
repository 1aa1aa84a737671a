"""Protected connections, opened and accepted within this process: ordinary sockets."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypedDict, Unpack

from plait import _plait

Mode = Literal["sealed", "stream", "xor64", "off"]
Require = str | bool
Peers = Literal["any", "first-use"] | Mapping[str, str]
Address = tuple[str, int]


class Settings(TypedDict, total=False):
    """Settings of the gateway of this process; all calls must use the same."""

    mode: Mode
    """By default `"sealed"`."""
    require: Require
    """By default `True`: a peer that does not negotiate the mode is rejected. In mode `"sealed"`, so is, with
    `"paths:2"`, a connection in which fewer than two paths take part, and with `"all-paths"` one in which not every
    interface of `trusted` and `untrusted` does, of which there must be two. With `False`, a connection may be unprotected:
    check `Connection.mode`."""
    trusted: Sequence[str]
    """Interfaces, on one of which a connection starts."""
    untrusted: Sequence[str]
    """Interfaces used after the key exchange; by default all others."""
    identity: str | os.PathLike[str] | None
    """The key file of this program in mode `"sealed"`, as created by `plait identity`; by default the file of `plait
    identity` if it exists, otherwise a new key for each gateway."""
    peers: Peers
    """In mode `"sealed"`, maps `"HOST:PORT"` to the public key a peer must have; or `"first-use"`: the first key of a
    peer is stored, and any other key is rejected later. By default `"any"`."""
    clients: Sequence[str] | None
    """The public keys of the clients that `serve` accepts; by default any."""
    hybrid: bool
    """In mode `"sealed"`, whether `connect` exchanges keys with ML-KEM-768 as well as with X25519, against quantum computers
    of the future. By default `True`."""
    service: Sequence[str]
    """In mode `"sealed"`, what clients of `serve` may ask for, `"PORT"` or `"NAME:PORT"`, where it differs from the port of its
    address, as behind a port forwarding. With a name, clients must use that name."""
    pad: int | None
    """In mode `"sealed"`, pads the records that this program sends to a multiple of so many bytes, up to 16384; by default not at
    all."""
    rekey_after: float | None
    """In mode `"sealed"`, seconds after which `connect`'s connections get new keys by a new key exchange, from 1 to 3600; by
    default 3600."""
    redundant: int | Literal["all"] | None
    """In mode `"sealed"`, sends what is written at once on each path, and the first copy counts: writes of at most so many bytes,
    or `"all"`. By default none. Both ends need it."""


class Connection(socket.socket):
    """A socket to a peer, whose data is protected on the network according to `mode`.

    It is one end of a loopback connection; a gateway within this process relays the other end. All methods of
    a socket work. A broken connection raises `ConnectionResetError` and is never reported as end of file.
    """

    mode: str
    """`"sealed"`, `"stream"`, `"xor64"`, or `"off"` if it is not protected."""
    level: str | None
    """In mode `"sealed"`: how many of the configured paths have a witness, such as `"2/2"`."""
    identity: str | None
    """In mode `"sealed"`: how the peer was authenticated, `"pinned"` or `"first-use"`; None if it was not."""
    peer: Address
    """The address of the peer. (`getpeername` returns that of the loopback connection.)"""
    _exporter: _plait.KeyExporter | None

    @classmethod
    def _from_native(cls, native: _plait.NativeConnection) -> Connection:
        descriptor, host, port, mode, level, identity, exporter = native
        connection = cls(fileno=descriptor)
        connection.peer, connection.mode = (host, port), mode
        connection.level, connection.identity, connection._exporter = level, identity, exporter
        return connection

    def export_key(self, label: str, context: bytes = b"", length: int = 32) -> bytes:
        """Return a key that only the two ends of this connection know (as RFC 5705 defines for TLS): the same at both for the
        same `label`, which says what the key is for, and `context`. In mode `"sealed"`; otherwise raises `ValueError`."""
        if self._exporter is None:
            raise ValueError(f'expected a connection of mode "sealed", got "{self.mode}"')
        return self._exporter.export(label, context, length)


class Listener:
    """Accepts connections. Iterating over it yields connections until the gateway stops."""

    def __init__(self, listener: _plait.Listener):
        self._listener = listener

    @property
    def address(self) -> Address:
        """The address it listens on."""
        return self._listener.address

    def accept(self, timeout: float | None = None) -> Connection:
        """Return the next connection. Raises `TimeoutError` if there is none within `timeout` seconds."""
        native = self._listener.accept(timeout)
        if native is None:
            if timeout is None:
                raise OSError("the listener's gateway has stopped")
            raise TimeoutError(f"no connection within {timeout} s")
        return Connection._from_native(native)

    def __iter__(self) -> Iterator[Connection]:
        while (native := self._listener.accept(None)) is not None:
            yield Connection._from_native(native)


class _Log:
    """Forwards log records of the gateway to the logger `plait`, in a thread."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("plait")
        self._records = _plait.Logs(self._logger.getEffectiveLevel())
        self._thread = threading.Thread(target=self._forward, name="plait log", daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        while (record := self._records.next()) is not None:
            level, text = record
            self._logger.log(level, "%s", text)

    def close(self) -> None:
        self._records.close()
        self._thread.join()


_lock = threading.Lock()
_running: tuple[tuple[object, ...], _plait.Gateway, _Log] | None = None


def _gateway(
    mode: Mode = "sealed",
    require: Require = True,
    trusted: Sequence[str] = (),
    untrusted: Sequence[str] = (),
    identity: str | os.PathLike[str] | None = None,
    peers: Peers = "any",
    clients: Sequence[str] | None = None,
    hybrid: bool = True,
    service: Sequence[str] = (),
    pad: int | None = None,
    rekey_after: float | None = None,
    redundant: int | Literal["all"] | None = None,
) -> _plait.Gateway:
    """Return the gateway of this process; the first call starts it."""
    global _running
    file = None if identity is None else os.fspath(identity)
    trust, pins = ("pinned", tuple(sorted(peers.items()))) if isinstance(peers, Mapping) else (peers, ())
    known = None if clients is None else tuple(clients)
    services = tuple(service)
    copied = None if redundant is None else str(redundant)
    settings = (
        mode,
        require,
        tuple(trusted),
        tuple(untrusted),
        file,
        trust,
        pins,
        known,
        hybrid,
        services,
        pad,
        rekey_after,
        copied,
    )
    with _lock:
        if _running is None:
            roles = [*((name, True) for name in trusted), *((name, False) for name in untrusted)]
            requirement = ("mode" if require else None) if isinstance(require, bool) else require
            log = _Log()
            try:
                gateway = _plait.Gateway(
                    mode,
                    requirement,
                    roles,
                    10.0,
                    file,
                    trust,
                    pins,
                    known,
                    hybrid,
                    service,
                    pad,
                    rekey_after,
                    copied,
                )
            except BaseException:
                log.close()
                raise
            _running = settings, gateway, log
            atexit.register(stop)
        elif _running[0] != settings:
            raise ValueError(
                f"a process has one gateway: expected the settings it was started with, {_running[0]}, got {settings}: "
                "call plait.stop() first"
            )
        return _running[1]


def stop() -> None:
    """Stop the gateway of this process. Connections that have not closed after ten seconds are reset."""
    global _running
    with _lock:
        if _running is not None:
            _, gateway, log = _running
            gateway.stop()
            log.close()
            _running = None
            atexit.unregister(stop)


def connect(address: Address, **settings: Unpack[Settings]) -> Connection:
    """Connect to a peer that runs `plait serve` or `plait.serve`.

    The connection starts on one of the trusted interfaces, and uses the untrusted ones after the key exchange. Needs
    root, like `plait run`.

    Raises `plait.ProtectionError` (a `ConnectionError`) if the connection is not protected as required,
    `OSError` if it fails otherwise, and `ValueError` for invalid settings.
    """
    return Connection._from_native(_gateway(**settings).connect(*address))


def serve(address: Address, **settings: Unpack[Settings]) -> Listener:
    """Listen on an address of this host; with `"::"`, further subflows are accepted on all addresses. See
    `connect`."""
    return Listener(_gateway(**settings).listen(*address))


async def open_connection(
    address: Address, **settings: Unpack[Settings]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, for asyncio: returns the streams of `asyncio.open_connection`. See `connect`."""
    connection = await asyncio.to_thread(connect, address, **settings)
    return await asyncio.open_connection(sock=connection)


async def accept(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Connection]:
    """Accept the next connection of a listener, for asyncio."""
    connection = await asyncio.to_thread(listener.accept)
    reader, writer = await asyncio.open_connection(sock=connection)
    return reader, writer, connection
