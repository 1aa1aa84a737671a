#!/usr/bin/python3
"""Checks of socket semantics: which sockets the module takes, what it refuses, what a program sees. Runs in the guest.

behavior.py [NAME...]    run the checks whose names contain a NAME, by default all
"""

import ctypes
import errno
import fcntl
import os
import socket
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from calls import IPPROTO_MPTCP, libc, timeval
from network import ADDRESS, HOSTS, PORT, counters, grown, rule, run, run_checks, set_mode, socket_in

SERVER = (ADDRESS, PORT)
SO_TIMESTAMP, TCP_INQ = 29, 36
AF_UNSPEC = ctypes.create_string_buffer(16)
CAPABILITY_VERSION_3, CAP_NET_ADMIN = 0x20080522, 12


@contextmanager
def listener(protocol=IPPROTO_MPTCP, port=PORT, address=ADDRESS):
    """A listening socket on B, at `::` for both families."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket_in("B", protocol, family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen()
        yield sock


@contextmanager
def pair(server, client=None):
    """Both ends of a connection."""
    client = client or socket_in("A")
    client.connect(server.getsockname())
    accepted = server.accept()[0]
    with client, accepted:
        yield client, accepted


def exchange(one, other, text=b"not every, not any"):
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(text)
        assert receiver.recv(len(text), socket.MSG_WAITALL) == text


def fails_with(number, call, *arguments):
    try:
        result = call(*arguments)
    except OSError as error:
        assert error.errno == number, f"expected {errno.errorcode[number]}, found {error}"
    else:
        raise AssertionError(f"expected {errno.errorcode[number]}, found {result!r}")


def protected():
    set_mode("xor64-hmac")
    return counters()


def check_rule_protects_both_ends():
    before = protected()
    with listener() as server, pair(server) as ends:
        exchange(*ends)
        assert grown(before)["connections_protected"] == 2


def check_sockets_older_than_the_rule_stay_plain():
    set_mode("plain")
    with listener() as server, socket_in("A") as client:
        before = protected()
        with pair(server, client) as ends:
            exchange(*ends)
        assert not grown(before), grown(before)


def check_other_ports_are_plain():
    before = protected()
    with listener(port=PORT + 1) as server, pair(server) as ends:
        exchange(*ends)
        assert grown(before)["connections_plain"] == 2 and "connections_protected" not in grown(before)


def check_rule_selects_by_mark():
    before = protected()
    for host in HOSTS:
        rule(host, "clear")
        rule(host, "mode=xor64-key mark=0x10/0xf0")
    for mark, count in ((0x1F, 2), (0x20, 0)):
        before = counters()
        with listener() as server, socket_in("A") as client:
            for sock in (server, client):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            with pair(server, client) as ends:
                exchange(*ends)
        assert grown(before).get("connections_protected", 0) == count


def check_rule_selects_by_control_group():
    group = Path("/sys/fs/cgroup/plait-test")
    group.mkdir(exist_ok=True)
    for host in HOSTS:
        rule(host, "clear")
        rule(host, f"mode=xor64-key cgroup=/{group.name}")
    for where, count in ((group, 2), (group.parent, 0)):
        (where / "cgroup.procs").write_text("0")
        before = counters()
        with listener() as server, pair(server) as ends:
            exchange(*ends)
        assert grown(before).get("connections_protected", 0) == count
    rules = run("cat", "/proc/plait/rules", capture_output=True).stdout
    assert not rules, "rules belong to a network namespace"


def check_removing_a_namespace_removes_its_rules():
    group = Path("/sys/fs/cgroup/plait-gone")
    group.mkdir()
    run("ip", "netns", "add", "gone")
    rule("gone", f"mode=stream cgroup=/{group.name}")
    assert dying() == 0
    group.rmdir()
    assert dying() == 1, "a rule holds its group"
    run("ip", "netns", "del", "gone")
    deadline = time.monotonic() + 30
    while dying():
        assert time.monotonic() < deadline, "the rule is still there"
        time.sleep(0.1)


def dying():
    """Number of control groups that were removed but are still in use."""
    lines = Path("/sys/fs/cgroup/cgroup.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["nr_dying_descendants"])


def check_rejects_invalid_rules():
    lines = ["mode=rot13", "port=1", "mode=stream verdicts=1", "mode=stream port=9-1", "mode=stream what", ""]
    for line in lines:
        fails_with(errno.EINVAL, Path("/proc/plait/rules").write_text, line or " ")
    fails_with(errno.ENOENT, Path("/proc/plait/rules").write_text, "mode=stream cgroup=/none")


def check_rules_need_the_capability_of_opener_and_writer():
    """Without the opener's, an unprivileged program could pass the file to a privileged one that prints a rule into it."""
    rules, line = "/proc/plait/rules", b"mode=stream port=1"
    with without_capability(CAP_NET_ADMIN):
        opened = os.open(rules, os.O_WRONLY)
    fails_with(errno.EPERM, os.write, opened, line)
    os.close(opened)
    opened = os.open(rules, os.O_WRONLY)
    with without_capability(CAP_NET_ADMIN):
        fails_with(errno.EPERM, os.write, opened, line)
    os.write(opened, b"clear")
    os.close(opened)


@contextmanager
def without_capability(number):
    """Removes a capability below 32 from this thread's effective set."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable; then the same for capabilities from 32 on.
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << number)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] |= 1 << number
        assert libc.capset(header, sets) == 0


def check_require_refuses_a_tcp_client():
    before = protected()
    with listener() as server:
        client = socket_in("A", socket.IPPROTO_TCP)
        client.connect(SERVER)
        with client, server.accept()[0] as accepted:
            fails_with(errno.ECONNRESET, accepted.recv, 10)
            fails_with(errno.ECONNRESET, client.recv, 10)
    assert grown(before)["connections_refused"] == 1


def check_require_refuses_a_tcp_server():
    before = protected()
    with listener(socket.IPPROTO_TCP) as server:
        client = socket_in("A")
        client.connect(SERVER)
        with client, server.accept()[0] as accepted:
            fails_with(errno.ECONNRESET, client.send, b"secret")
            accepted.settimeout(5)
            try:
                assert accepted.recv(10) == b""
            except ConnectionResetError:
                pass
    assert grown(before)["connections_refused"] == 1


def check_without_require_tcp_is_plain():
    for host in HOSTS:
        rule(host, "clear")
        rule(host, f"mode=xor64-hmac port={PORT}")
    before = counters()
    with listener(socket.IPPROTO_TCP) as server, pair(server) as ends:
        exchange(*ends)
    assert grown(before)["connections_plain"] == 1


def check_socket_can_reconnect():
    before = protected()
    client = socket_in("A")
    with listener() as server:
        for turn in range(3):
            client.connect(SERVER)
            with server.accept()[0] as accepted:
                exchange(client, accepted, b"%d" % turn * 1000)
                assert libc.connect(client.fileno(), AF_UNSPEC, 16) == 0
    client.close()
    assert grown(before)["connections_protected"] == 6


def check_concurrent_writes_are_not_interleaved():
    protected()
    record, writers, turns = 1000, 8, 15
    with listener() as server, pair(server) as (client, accepted):
        # A writer that blocks for buffer space halfway lets others write, as MPTCP itself does.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.send(b"\n" * record)
        threads = [
            threading.Thread(
                target=lambda letter: [client.sendall(letter * (record - 1) + b"\n") for _ in range(turns)],
                args=(bytes([65 + number]),),
            )
            for number in range(writers)
        ]
        for thread in threads:
            thread.start()
        for _ in range(writers * turns + 1):
            data = accepted.recv(record, socket.MSG_WAITALL)
            assert len(set(data[:-1])) == 1 and data[-1:] == b"\n", data[:50]
        for thread in threads:
            thread.join()


def check_concurrent_readers_share_the_stream():
    protected()
    total, got, lock = 200_000, [], threading.Lock()

    def read(sock):
        while data := sock.recv(777):
            with lock:
                got.append(len(data))

    with listener() as server, pair(server) as (client, accepted):
        readers = [threading.Thread(target=read, args=(accepted,)) for _ in range(4)]
        for reader in readers:
            reader.start()
        client.sendall(b"x" * total)
        client.shutdown(socket.SHUT_WR)
        for reader in readers:
            reader.join()
    assert sum(got) == total


def check_timeout_applies_to_the_whole_call():
    protected()
    with listener() as server, pair(server) as (client, accepted):
        exchange(client, accepted)
        stop = threading.Event()

        def trickle():
            while not stop.wait(0.1):
                client.send(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(0.5))
        start = time.monotonic()
        data = accepted.recv(10000, socket.MSG_WAITALL)
        seconds = time.monotonic() - start
        stop.set()
        thread.join()
        assert 0.4 < seconds < 2 and 0 < len(data) < 20, (seconds, len(data))


def check_send_after_shutdown_is_a_broken_pipe():
    protected()
    with listener() as server, pair(server) as (client, accepted):
        exchange(client, accepted)
        client.shutdown(socket.SHUT_WR)
        fails_with(errno.EPIPE, client.send, b"late")
        assert accepted.recv(10) == b""
        accepted.sendall(b"still open")
        assert client.recv(10, socket.MSG_WAITALL) == b"still open"


def check_reset_is_reported():
    protected()
    with listener() as server, pair(server) as (client, accepted):
        exchange(client, accepted)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        accepted.close()
        fails_with(errno.ECONNRESET, client.recv, 10)


def check_refused_connect_is_reported():
    protected()
    with socket_in("A") as client:
        fails_with(errno.ECONNREFUSED, client.connect, (ADDRESS, PORT + 7))
    with socket_in("A") as client:
        fails_with(errno.ENOTCONN, client.recv, 10)


def check_nonblocking_connect_works():
    protected()
    with listener() as server, socket_in("A") as client:
        client.setblocking(False)
        assert client.connect_ex(SERVER) == errno.EINPROGRESS
        fails_with(errno.EAGAIN, client.recv, 10)
        client.setblocking(True)
        with server.accept()[0] as accepted:
            exchange(client, accepted)


def check_descriptors_of_one_socket_share_the_stream():
    """A duplicate, a child and another process with the descriptor share one stream."""
    protected()
    with listener() as server, pair(server) as (client, accepted):
        exchange(client, accepted)
        with client.dup() as copy:
            exchange(copy, accepted, b"the copy" * 10)
        child = os.fork()
        if not child:
            exchange_as(client, b"the child" * 100)
            os._exit(0)
        exchange_as(accepted, b"the child" * 100, first=False)
        assert os.waitpid(child, 0)[1] == 0
        one, other = socket.socketpair()
        with one, other:
            socket.send_fds(one, [b"-"], [client.fileno()])
            descriptor = socket.recv_fds(other, 1, 1)[1][0]
        with socket.socket(fileno=descriptor) as passed:
            exchange(passed, accepted, b"passed on" * 1000)
        exchange(client, accepted)


def exchange_as(end, text, first=True):
    """One end of exchange(), for two processes."""
    for sends in (first, not first):
        if sends:
            end.sendall(text)
        else:
            assert end.recv(len(text), socket.MSG_WAITALL) == text


def check_control_messages_are_unchanged():
    def received(mode):
        """Length, flags and control messages of several calls."""
        set_mode(mode)
        with listener() as server, pair(server) as (client, accepted):
            exchange(client, accepted)
            accepted.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, TCP_INQ, 1)
            client.sendall(b"x" * 40000)
            # On Linux 6.1, peeking does not wait until enough data has arrived.
            while int.from_bytes(fcntl.ioctl(accepted, termios.FIONREAD, bytes(4)), sys.byteorder) < 40000:
                time.sleep(0.01)
            for size, flags in (
                (300, 0), (300, socket.MSG_PEEK), (30000, 0), (100, socket.MSG_TRUNC), (9600, 0)
            ):  # fmt: skip
                data, control, answer, _ = accepted.recvmsg(size, 200, flags)
                # Timestamps differ; their presence and the remaining length must be equal.
                parts = [
                    (level, kind, value if kind == TCP_INQ else len(value)) for level, kind, value in control
                ]
                yield len(data), answer, parts

    plain = list(received("plain"))
    assert list(received("stream")) == list(received("xor64-hmac")) == plain, plain
    assert all(len(control) == 2 for _, _, control in plain), plain


def check_ipv4_over_ipv6_sockets_is_protected():
    for address, family in ((ADDRESS, socket.AF_INET), (f"::ffff:{ADDRESS}", socket.AF_INET6)):
        before = protected()
        with listener(address="::") as server, socket_in("A", family=family) as client:
            client.connect((address, PORT))
            with server.accept()[0] as accepted:
                exchange(client, accepted, b"either family" * 3000)
        assert grown(before)["connections_protected"] == 2


def check_connection_prevents_unloading():
    protected()
    with listener() as server, pair(server) as ends:
        exchange(*ends)
        failed = subprocess.run(["rmmod", "plait"], capture_output=True, text=True, check=False)
        assert failed.returncode and "in use" in failed.stderr, failed
        exchange(*ends)


if __name__ == "__main__":
    run_checks(globals())
