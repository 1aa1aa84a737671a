#!/usr/bin/python3
"""Checks of the kernel memory that the module uses: its bound, its charge, what remains in it. Runs in the guest.

memory.py [NAME...]    run the checks whose names contain a NAME, by default all
"""

import fcntl
import hashlib
import os
import random
import socket
import struct
import sys
import termios
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from behavior import exchange, listener, pair
from network import run_checks, set_mode

MODES = ["xor64-hmac", "stream"]
# Of plait.h: PLAIT_PEEK, and the memory of a buffer for PLAIT_PIECE bytes.
MAX_PEEK = 65536 - 256
BUFFER = 16384
SO_RCVBUFFORCE = 33
CGROUPS = Path("/sys/fs/cgroup")
KCORE = Path("/proc/kcore")
# A secret is a mark of 16 bytes and its hash, repeated. Each size needs a buffer of another size; the largest is PLAIT_PIECE.
MARKED = 48
SIZES = [96, 288, 768, 1824, 3840, 7872, 16128]
NO_ADDRESS = 2**64 - 1
PT_LOAD = 1
MIB = 1 << 20


def until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def queued(sock):
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


def check_peeking_takes_bounded_memory():
    """A program chooses the receive buffer's size, and how many of its threads peek at once."""
    for mode in MODES:
        set_mode(mode)
        with listener() as server:
            server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 * MIB)
            with pair(server) as (client, accepted):
                exchange(client, accepted)
                text = random.randbytes(MIB)
                sender = threading.Thread(target=client.sendall, args=(text,))
                sender.start()
                until(lambda: queued(accepted) >= 2 * MAX_PEEK, "more is queued than one call may peek at")
                for flags in (socket.MSG_PEEK, socket.MSG_PEEK | socket.MSG_WAITALL):
                    peeked = accepted.recv(MIB, flags)
                    assert text.startswith(peeked), "the beginning of the text"
                    assert 0 < len(peeked) <= MAX_PEEK, f"one call took memory for {len(peeked)} bytes"
                assert accepted.recv(MIB, socket.MSG_WAITALL) == text
                sender.join()


@contextmanager
def charged_group():
    """Moves this process to a control group whose memory is counted."""
    group = CGROUPS / "plait-memory"
    (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    (group / "cgroup.procs").write_text("0")
    try:
        yield group
    finally:
        (CGROUPS / "cgroup.procs").write_text("0")
        group.rmdir()


def kernel_memory(group):
    return int(dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["kernel"])


def check_buffers_are_charged_to_the_control_group():
    if "memory" not in (CGROUPS / "cgroup.controllers").read_text().split():
        print("SKIP    this kernel does not count the memory of control groups")
        return
    senders, text = 16, bytes(MIB)
    set_mode("stream")
    with charged_group() as group, listener() as server, ExitStack() as connections:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        begin = threading.Barrier(senders + 1)

        def send(sock):
            begin.wait()
            # Until it is reset.
            with suppress(OSError):
                sock.sendall(text)

        threads = []
        for _ in range(senders):
            client, accepted = connections.enter_context(pair(server))
            exchange(client, accepted)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
            threads.append(threading.Thread(target=send, args=(client,)))
            threads[-1].start()
            connections.callback(threads[-1].join)
            connections.callback(reset, accepted)
        before = kernel_memory(group)
        begin.wait()
        # Each waits for space, with its two buffers.
        least = senders * 2 * BUFFER
        until(lambda: kernel_memory(group) - before >= least, f"{least} bytes are charged")


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def secret(mark, size):
    """Repeats a mark before its own hash. Only this buffer has both: a copy of the mark alone is not the secret."""
    text = bytearray(size)
    for place in range(0, size, MARKED):
        text[place : place + len(mark)] = mark
        text[place + len(mark) : place + MARKED] = hashlib.sha256(mark).digest()
    return text


def wipe(buffer):
    buffer[:] = bytes(len(buffer))


def ram():
    """The address and length, in /proc/kcore, of each piece of the machine's memory."""
    with KCORE.open("rb") as file:
        header = file.read(64)
        start, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
        file.seek(start)
        table = file.read(size * count)
    for place in range(0, len(table), size):
        kind, _, offset, _, physical, length = struct.unpack_from("<IIQQQQ", table, place)
        if kind == PT_LOAD and physical != NO_ADDRESS:
            yield offset, length


def copies(mark):
    """How many copies of a secret are anywhere in the machine's memory."""
    found = 0
    with KCORE.open("rb", buffering=0) as file:
        for start, length in ram():
            for place in range(start, start + length, MIB):
                try:
                    chunk = os.pread(file.fileno(), min(MIB + MARKED - 1, start + length - place), place)
                except OSError:
                    continue
                found += count(chunk, mark)
    return found


def count(chunk, mark):
    found, place, expected = 0, chunk.find(mark), hashlib.sha256(mark).digest()
    while place >= 0:
        found += chunk[place + len(mark) : place + MARKED] == expected
        place = chunk.find(mark, place + 1)
    return found


def check_no_plaintext_remains_in_memory():
    """The kernel does not wipe memory that it frees: its next owner can read it."""
    if not KCORE.exists():
        print("SKIP    this kernel does not show its memory (/proc/kcore)")
        return
    present, mark = os.urandom(16), os.urandom(16)
    text = secret(present, MIB - MIB % MARKED)
    assert copies(present) > 0, "the search finds what is there"
    wipe(text)
    for mode in MODES:
        set_mode(mode)
        with listener() as server, pair(server) as (client, accepted):
            exchange(client, accepted)
            for size in SIZES * 4:
                text, received = secret(mark, size), bytearray(size)
                client.sendall(text)
                wipe(text)
                until(lambda: queued(accepted) >= size, "all has arrived")  # noqa: B023
                assert accepted.recv_into(received, flags=socket.MSG_PEEK) > 0
                assert accepted.recv_into(received, flags=socket.MSG_WAITALL) == size
                assert count(received, mark) == size // MARKED
                wipe(received)
            # The transforms of both directions remember the bytes before the next one.
            exchange(client, accepted, bytes(100))
            found = copies(mark)
            assert not found, f"{found} copies of a secret"


if __name__ == "__main__":
    run_checks(globals())
