#!/usr/bin/python3
"""Loads and removes the module repeatedly under traffic. Runs in the guest.

Removal must be refused while a connection is protected, and the connection must continue; once none is protected,
removal must succeed, whatever other sockets are created, used and closed at that moment. What the loading program's
mount namespace shows in place of the kernel's type information must not matter.
"""

import argparse
import errno
import os
import random
import socket
import sys
import threading
import time
import traceback
from ctypes import get_errno
from pathlib import Path

from behavior import AF_UNSPEC, exchange, listener, pair
from calls import libc
from network import COUNTERS, HERE, HOSTS, PORT, alarms, load, rule, run, socket_in

DELETE_MODULE = 176
TYPES = Path("/sys/kernel/btf/vmlinux")
MODES = ["xor64-hmac", "xor64-key", "stream"]


def removed():
    """Tries to remove the module; returns whether it was removed."""
    if libc.syscall(DELETE_MODULE, b"plait", os.O_NONBLOCK) == 0:
        return True
    assert get_errno() == errno.EAGAIN, os.strerror(get_errno())
    return False


def try_for(seconds):
    """Tries to remove the module for that time; returns whether it was removed and how often it was refused."""
    refused, until = 0, time.monotonic() + seconds
    while not removed():
        refused += 1
        if time.monotonic() > until:
            return False, refused
        time.sleep(random.random() / 1000)
    return True, refused


def end(*socks):
    """Disconnects, so that the kernel drops the connection at once instead of after a minute."""
    for sock in socks:
        libc.connect(sock.fileno(), AF_UNSPEC, len(AF_UNSPEC))
        sock.close()


class Traffic:
    """Connections that the rules may or may not cover, so that only byte counts can be compared."""

    def __init__(self, threads):
        self.stop, self.connections, self.faults = threading.Event(), 0, []
        works = [*[self.connect] * threads, self.look]
        self.threads = [threading.Thread(target=self.repeat, args=(work, i)) for i, work in enumerate(works)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def repeat(self, work, number):
        try:
            while not self.stop.is_set():
                work(PORT + 1 + number)
        except Exception:
            self.faults.append(traceback.format_exc())

    def connect(self, port):
        data = bytes(random.randrange(1, 20000))
        with listener(port=port) as server, pair(server) as (client, accepted):
            client.sendall(data)
            assert len(accepted.recv(len(data), socket.MSG_WAITALL)) == len(data)
            end(client, accepted)
        with socket_in("A"):
            self.connections += 1

    @staticmethod
    def look(_):
        try:
            COUNTERS.read_text()
        except OSError as error:
            # Not loaded, or being removed.
            assert error.errno in (errno.ENOENT, errno.EIO), error
            time.sleep(0.01)


def load_beside_forged_types():
    """
    Loads the module from a mount namespace with another file in place of the kernel's type information. Offsets from that
    file would decide which kernel memory the module reads and writes; here a member has another name, so using it fails.
    """
    assert removed(), "no socket uses it"
    forged = Path("/run/forged-types")
    forged.write_bytes(TYPES.read_bytes().replace(b"\0remote_key\0", b"\0remote_kez\0"))
    assert forged.read_bytes() != TYPES.read_bytes()
    insmod = f"mount --bind {forged} {TYPES} && insmod {HERE.parent / 'plait.ko'}"
    run("unshare", "--mount", "sh", "-c", insmod)


def turn(mode):
    """Loads and removes the module once; returns how often removal was refused."""
    if not Path("/sys/module/plait").exists():
        run("insmod", HERE.parent / "plait.ko")
    for host in HOSTS:
        rule(host, f"mode={mode}")
    refused = 0
    with listener() as server, pair(server) as (client, accepted):
        for _ in range(10):
            exchange(client, accepted, random.randbytes(5000))
            assert not removed(), "a protected connection was there"
            refused += 1
        end(client, accepted)
    # First with the rules, under which new sockets keep using the module; then without them.
    gone, more = try_for(0.5)
    refused += more
    if not gone:
        for host in HOSTS:
            rule(host, "clear")
        gone, more = try_for(90)
        refused += more
    assert gone, "the module is still in use"
    return refused


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=3)
    arguments = parser.parse_args()
    load(loss=None)
    load_beside_forged_types()
    turns = refused = 0
    until = time.monotonic() + arguments.seconds
    with Traffic(arguments.threads) as traffic:
        while time.monotonic() < until and not traffic.faults:
            refused += turn(MODES[turns % len(MODES)])
            turns += 1
            print(f"removed {turns} times, refused {refused} times so far", flush=True)
    found = alarms()
    print(*traffic.faults, *found, sep="\n")
    print(f"removed {turns} times, refused {refused} times, beside {traffic.connections} connections")
    sys.exit(bool(traffic.faults or found))


if __name__ == "__main__":
    main()
