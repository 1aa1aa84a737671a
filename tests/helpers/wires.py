"""Links between two hosts: veth pairs, VLANs, bridges, and TUN devices, which have no Ethernet header."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading

import pytest
from hosts import Host, tool

# linux/if_tun.h: IP packets without a header before them.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TAG = 5


def join(kind: str, first: Host, second: Host, name: str) -> Tunnel | None:
    """Creates an interface with this name on both hosts: a veth pair (`veth`), a VLAN or bridge on a veth pair
    named `NAME-below` (`vlan`, `bridge`), or TUN devices (`tun`), which last until the tunnel is closed."""
    if kind == "tun":
        return Tunnel(first, second, name)
    below = name if kind == "veth" else f"{name}-below"
    tool("ip", "link", "add", below, "netns", first.name, "type", "veth",
         "peer", "name", below, "netns", second.name)  # fmt: skip
    # A network card receives a flow on one processor. Over veth, a sender that migrates would reorder its packets, which
    # a record on the way counts as retransmitted.
    for host in (first, second):
        host.receive_on(below, min(os.sched_getaffinity(0)))
    for host in (first, second) if kind != "veth" else ():
        host.ip(f"link set {below} up")
        words = ("type", "bridge") if kind == "bridge" else ("link", below, "type", "vlan", "id", TAG)
        made = host.run("ip", "link", "add", "name", name, *words, text=True)
        if "Unknown device type" in made.stderr:
            pytest.skip(f"this kernel has no interfaces of type {kind}")
        assert made.returncode == 0, made.stderr
        if kind == "bridge":
            host.ip(f"link set {below} master {name}")
    return None


class Tunnel:
    """TUN devices on two hosts; a thread carries packets between them."""

    def __init__(self, first: Host, second: Host, name: str):
        self._ends = _open(first, name), _open(second, name)
        self._stop, self._open = os.pipe()
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def _carry(self):
        other = dict(zip(self._ends, reversed(self._ends), strict=True))
        waiting = select.poll()
        for descriptor in (self._stop, *self._ends):
            waiting.register(descriptor, select.POLLIN)
        while self._stop not in (ready := [descriptor for descriptor, _ in waiting.poll()]):
            for end in ready:
                # Packets are lost while an interface is down.
                with contextlib.suppress(OSError):
                    os.write(other[end], os.read(end, 65536))

    def close(self):
        os.close(self._open)
        self._carrier.join(10)
        for descriptor in (self._stop, *self._ends):
            os.close(descriptor)


def _open(host: Host, name: str) -> int:
    with host.inside():
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    # A queue that holds bursts.
    host.ip(f"link set {name} txqueuelen 10000")
    return end
