"""A lab that is up, as `plait lab ps --json` shows it: what there is, and what went on."""

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
    """Its network namespace, as `ip netns` lists it."""


@dataclass(frozen=True)
class End:
    """An end of a link."""

    host: str
    interface: str
    addresses: list[str]
    """With their prefixes, as in "10.77.1.1/24"."""

    def address(self, family: Literal[4, 6] | None = None) -> str | None:
        """The first address of a family; without one, the first IPv4 address, else the first of IPv6."""
        addresses = [ipaddress.ip_interface(address) for address in self.addresses]
        for version in (family,) if family else (4, 6):
            for address in addresses:
                if address.version == version:
                    return str(address.ip)
        return None


@dataclass(frozen=True)
class Counters:
    """What became of the frames of one direction. `None`: this backend cannot tell."""

    frames_in: int
    bytes_in: int
    """Of whole Ethernet frames."""
    frames_out: int
    """Duplicates included."""
    bytes_out: int
    lost: int | None
    """Lost as the topology asks."""
    duplicated: int | None
    early: int | None
    """Dropped by a queue with RED before it was full."""
    queue_full: int | None
    """Found the queue full."""
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
        """How many frames did not arrive, by cause, for the causes there were."""
        causes = ("lost", "early", "queue_full", "no_path", "refused", "overruns")
        return {cause: getattr(self, cause) for cause in causes if getattr(self, cause)}


@dataclass(frozen=True)
class Lateness:
    """How much later than they should have frames were delivered."""

    frames: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    real_time: bool
    """Whether the emulator ran at real-time priority."""


@dataclass(frozen=True)
class Statistics:
    """What a link did since the lab is up."""

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
    """When this was asked for; `None` if they cannot be had."""

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.a, self.b


@dataclass(frozen=True)
class Service:
    """A program that runs on a host as long as the lab."""

    name: str
    host: str
    command: str
    pid: int
    port: int | None
    running: bool
    """Whether it was running when this was asked for."""
    directory: str
    """Holds what it writes, in `stdout` and `stderr`."""


@dataclass(frozen=True)
class Event:
    """Something of the topology's schedule that has happened, in seconds since the lab is up."""

    link: str
    action: str
    at_s: float
    """When it should have happened."""
    began_s: float
    done_s: float
    error: str | None
    """Why it did not happen."""


@dataclass(frozen=True)
class Description:
    """A lab and what is in it."""

    id: str
    """The run id, which is the process id of its supervisor."""
    file: str
    """The topology's file; `-` if it came from this program."""
    up_s: float
    """Seconds since it was up, when the clock of its events began."""
    hosts: list[Host]
    links: list[Link]
    services: list[Service]
    events: list[Event]
