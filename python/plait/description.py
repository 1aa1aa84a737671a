"""The description of a running lab, as printed by `plait lab ps --json`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

Role = Literal["trusted", "untrusted"]
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True)
class Host:
    """A host."""

    name: str
    namespace: str
    """Its network namespace, as listed by `ip netns`."""


@dataclass(frozen=True)
class End:
    """An end of a link."""

    host: str
    interface: str
    addresses: list[str]
    """With prefix lengths, such as "10.77.1.1/24"."""

    def address(self, family: Literal[4, 6] | None = None) -> str | None:
        """Return the first address of a family; by default the first IPv4 address, else the first IPv6
        address."""
        addresses = [ipaddress.ip_interface(address) for address in self.addresses]
        for version in (family,) if family else (4, 6):
            for address in addresses:
                if address.version == version:
                    return str(address.ip)
        return None


@dataclass(frozen=True)
class Counters:
    """Frame counters of one direction. `None`: not available with this backend."""

    frames_in: int
    bytes_in: int
    """Of whole Ethernet frames."""
    frames_out: int
    """Including duplicates."""
    bytes_out: int
    lost: int | None
    """Lost as configured by the topology."""
    duplicated: int | None
    early: int | None
    """Dropped by a queue with RED before it was full."""
    queue_full: int | None
    """Dropped because the queue was full."""
    no_path: int | None
    """Met a blackhole, or no carrier."""
    refused: int | None
    """By the receiving interface, for instance because it was down."""
    overruns: int | None
    """By the emulator, because the machine was too busy: these are not among `frames_in`."""
    queue_max_bytes: int | None
    """The most bytes that waited at once."""

    @property
    def dropped(self) -> dict[str, int]:
        """The number of frames that did not arrive, by cause; causes without frames are omitted."""
        causes = ("lost", "early", "queue_full", "no_path", "refused", "overruns")
        return {cause: getattr(self, cause) for cause in causes if getattr(self, cause)}


@dataclass(frozen=True)
class Lateness:
    """How late frames were delivered, compared with the model."""

    frames: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    real_time: bool
    """Whether the emulator ran with real-time priority."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of a link since the lab was built."""

    a_to_b: Counters
    b_to_a: Counters
    lateness: Lateness | None
    """`None` where the kernel delivers the frames."""


@dataclass(frozen=True)
class Link:
    """A link between two hosts."""

    name: str
    role: Role
    backend: Literal["emu", "netem", "none"]
    a: End
    b: End
    statistics: Statistics | None
    """At the time of the query; `None` if not available."""

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.a, self.b


@dataclass(frozen=True)
class Service:
    """A program that runs on a host for the lifetime of the lab."""

    name: str
    host: str
    command: str
    pid: int
    port: int | None
    running: bool
    """Whether it was running at the time of the query."""
    directory: str
    """Contains its output, in the files `stdout` and `stderr`."""


@dataclass(frozen=True)
class Event:
    """An event of the topology's schedule that has happened; times are seconds since the lab was built."""

    link: str
    action: str
    at_s: float
    """The scheduled time."""
    began_s: float
    done_s: float
    error: str | None
    """Why it failed, if it did."""


@dataclass(frozen=True)
class Description:
    """A lab."""

    id: str
    """The run id, which is the process id of its supervisor."""
    file: str
    """The topology file; `-` for stdin."""
    up_s: float
    """Seconds since it was built, when the clock of its events started."""
    hosts: list[Host]
    links: list[Link]
    services: list[Service]
    events: list[Event]
