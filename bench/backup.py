#!/usr/bin/env python3
"""Time until the peer of a subflow learns that it is a backup, if user space decides so.

Run it on a host with an MPTCP endpoint of a second interface's address. It opens a connection, waits for the subflow that joins
by that interface, and makes it a backup, and no backup, repeatedly, while nothing else is sent. A time is measured from
before the request of user space until the packet with MP_PRIO leaves the interface, as time-stamped by the kernel for a packet
socket. Requests are made in three ways:

netlink     a request to the kernel's path manager, as mptcpd and others send it
command     `ip mptcp endpoint change`
controller  the tick of a controller of plait.policy

A chain with `set_backup` needs no user space: `plait-bench policy --cases actor-set_backup-egress` measures it. Needs root.
"""

import contextlib
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import time

import prologue
from hosts import wait_for

MPTCP = 262
PACKET_OUTGOING = 4
ETH_P_ALL = 3
SO_TIMESTAMPNS = 35
MPTCP_KIND, MP_PRIO = 30, 5
LIMIT = 5.0


class Wire:
    """The packets that leave an interface."""

    def __init__(self, interface):
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.tap.bind((interface, ETH_P_ALL))
        self.tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tap.close()

    def priority(self):
        """The time when the next packet with MP_PRIO leaves, in nanoseconds since 1970."""
        deadline = time.monotonic() + LIMIT
        while (left := deadline - time.monotonic()) > 0:
            self.tap.settimeout(left)
            frame, about, _, (_, _, kind, *_) = self.tap.recvmsg(2048, 128)
            if kind == PACKET_OUTGOING and any(option[2] >> 4 == MP_PRIO for option in mptcp_options(frame)):
                seconds, nanoseconds = struct.unpack("ll", about[0][2])
                return seconds * 10**9 + nanoseconds
        sys.exit(f"expected MP_PRIO within {LIMIT} s, found none")

    def forget(self):
        """Discards captured packets."""
        self.tap.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.tap.recv(2048)


def mptcp_options(frame):
    """The MPTCP options of an Ethernet frame."""
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == 0x0800 and frame[23] == socket.IPPROTO_TCP:
        tcp = 14 + (frame[14] & 15) * 4
    elif kind == 0x86DD and frame[20] == socket.IPPROTO_TCP:
        tcp = 54
    else:
        return
    options = frame[tcp + 20 : tcp + (frame[tcp + 12] >> 4) * 4]
    while options and options[0]:
        length = 1 if options[0] == 1 else options[1]
        if options[0] == MPTCP_KIND:
            yield options[:length]
        options = options[length:]


class PathManager:
    """The kernel's path manager, by generic netlink (linux/mptcp_pm.h)."""

    NETLINK_GENERIC, CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 16, 16, 3, 1, 2
    REQUEST, ACK, ERROR = 1, 4, 2
    SET_FLAGS, ADDRESS, ADDRESS_ID, FLAGS, NESTED, BACKUP = 7, 1, 2, 6, 1 << 15, 4

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, self.NETLINK_GENERIC)
        self.socket.bind((0, 0))
        name = attribute(self.FAMILY_NAME, b"mptcp_pm\0")
        reply = self.ask(self.message(self.CONTROL, self.GET_FAMILY, name))
        self.family = next(value for kind, value in attributes(reply[20:]) if kind == self.FAMILY_ID)
        self.family = struct.unpack("H", self.family)[0]
        self.socket.recv(4096)

    def message(self, family, command, payload):
        header = struct.pack("IHHII", 20 + len(payload), family, self.REQUEST | self.ACK, 1, 0)
        return header + struct.pack("BBH", command, 1, 0) + payload

    def set_backup(self, endpoint, backup):
        """The netlink request."""
        flags = struct.pack("I", self.BACKUP if backup else 0)
        address = attribute(self.ADDRESS_ID, struct.pack("B", endpoint)) + attribute(self.FLAGS, flags)
        return self.message(self.family, self.SET_FLAGS, attribute(self.ADDRESS | self.NESTED, address))

    def ask(self, message):
        self.socket.send(message)
        reply = self.socket.recv(4096)
        if struct.unpack_from("H", reply, 4)[0] == self.ERROR:
            (error,) = struct.unpack_from("i", reply, 16)
            if error:
                raise OSError(-error, os.strerror(-error))
        return reply


def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]


def by_netlink(to, interface, count):
    manager, endpoint = PathManager(), endpoint_of(interface)["id"]
    requests = [manager.set_backup(endpoint, backup) for backup in (True, False)]
    return alternate(to, interface, count, lambda turn: manager.ask(requests[turn]))


def by_command(to, interface, count):
    change = ("ip", "mptcp", "endpoint", "change", "id", str(endpoint_of(interface)["id"]))
    commands = [(*change, word) for word in ("backup", "nobackup")]
    return alternate(to, interface, count, lambda turn: subprocess.run(commands[turn], check=True))


def alternate(to, interface, count, say):
    with connect(to), Wire(interface) as wire:
        times = []
        for number in range(count):
            time.sleep(0.002)
            begun = time.time_ns()
            say(number % 2)
            times.append(wire.priority() - begun)
        return times


def by_controller(to, interface, count):
    from plait import policy

    class Turn:
        interval = 0.02

        def __init__(self, wire):
            self.wire, self.times, self.begun = wire, [], None

        def tick(self, view):
            if self.begun:
                self.times.append(self.wire.priority() - self.begun)
            self.wire.forget()
            ours = [subflow for subflow in view.subflows if subflow.interface == interface]
            self.begun = time.time_ns()
            return [policy.Backup(subflow) for subflow in ours] if len(self.times) % 2 == 0 else []

    # A packet for an idle subflow is built from its recorded state.
    seen = [policy.Chain("see", "egress", policy.packet("mptcp"), ["record"], [interface])]
    policy.load(policy.Policy("see", seen))
    try:
        with connect(to), Wire(interface) as wire:
            turn = Turn(wire)
            policy.run(turn, ticks=count + 1)
            return turn.times
    finally:
        policy.unload("see")


WAYS = {"netlink": by_netlink, "command": by_command, "controller": by_controller}


def endpoint_of(interface):
    text = subprocess.run(("ip", "-j", "mptcp", "endpoint"), capture_output=True, check=True).stdout
    for endpoint in json.loads(text):
        if endpoint.get("dev") == interface:
            return endpoint
    sys.exit(f"expected an MPTCP endpoint of {interface}, found none")


def joined():
    """The joined subflows of this host."""
    lines = pathlib.Path("/proc/thread-self/net/netstat").read_text().splitlines()
    titles, values = (line.split() for line in lines if line.startswith("MPTcpExt:"))
    return int(values[titles.index("MPJoinSynAckRx")])


def connect(to):
    host, _, port = to.rpartition(":")
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    before = joined()
    connection = socket.socket(family, socket.SOCK_STREAM, MPTCP)
    connection.connect((address, int(port)))
    connection.sendall(b"begin")
    wait_for("second subflow", lambda: joined() > before, LIMIT)
    time.sleep(0.2)
    return connection


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--to", required=True, metavar="ADDRESS:PORT", help="an MPTCP listener")
    parser.add_argument("--interface", required=True, help="the interface by which the second subflow joins")
    parser.add_argument("--count", type=int, default=500)
    arguments = prologue.parse(parser, plait=False)
    measure = WAYS[arguments.way]
    times = [taken / 1e3 for taken in measure(arguments.to, arguments.interface, arguments.count)]
    tenths = statistics.quantiles(times, n=10)
    found = {"way": arguments.way, "n": len(times), "us": statistics.median(times), "p10_us": tenths[0], "p90_us": tenths[8]}  # fmt: skip
    if arguments.json:
        print(json.dumps(found))
    else:
        text = "{way}: median {us:.1f} us, 10 % below {p10_us:.1f}, 10 % above {p90_us:.1f}, n = {n}"
        print(text.format(**found))


if __name__ == "__main__":
    main()
