#!/usr/bin/python3
"""The two ends of a connection, using every socket call that Python can reach to send and receive.

    calls.py send|receive listen|connect ADDRESS PORT [--only CALL]

Every line of the text sent contains its own offset, so that a receiver can verify any piece of it; MARK makes plaintext
recognizable on the wire. The receiver prints `received BYTES mismatches N`.
"""

import argparse
import ctypes
import errno
import faulthandler
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import time

MARK = b"PLAINTEXT-MARK-"
LINE = len(MARK) + 9
IPPROTO_MPTCP = 262
PROT_NONE = 0
LISTENING = []

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.send.argtypes = libc.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def text(offset, length):
    first = offset // LINE
    lines = b"".join(b"%s%08x\n" % (MARK, number) for number in range(first, (offset + length) // LINE + 1))
    return lines[offset - first * LINE :][:length]


def pages(length, protection=mmap.PROT_READ | mmap.PROT_WRITE):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, length, protection, flags, -1, 0)
    assert address not in (None, ctypes.c_void_p(-1).value), "no memory"
    return address


class Sender:
    """Each method sends the next bytes of the text with a different call."""

    def __init__(self, sock, smaller=1):
        self.sock, self.offset, self.faults, self.smaller = sock, 0, [], smaller

    def run(self, only, without):
        for name, call in calls_of(self):
            if only in (None, name) and name != without:
                call()

    def next(self, length):
        if length > 20000:
            length //= self.smaller
        return bytearray(text(self.offset, length))

    def sent(self, data, count, name):
        """The program's memory must be unchanged."""
        if bytes(data) != text(self.offset, len(data)):
            self.faults.append(f"{name}: the program's buffer was changed")
        self.offset += count

    def all(self, name, data, call):
        done, view = 0, memoryview(data)
        while done < len(data):
            done += call(view[done:])
        self.sent(data, done, name)

    def call_send(self):
        for length in (1, 7, 63, 64, 65, 1000, 5000, 16127, 16128, 16129, 100000):
            self.all("send", self.next(length), self.sock.send)

    def call_sendmsg(self):
        data = self.next(30000)
        self.all("sendmsg", data, lambda view: self.sock.sendmsg([view[:1], view[1:18], view[18:]]))

    def call_more(self):
        for length in (10, 20000):
            self.all("more", self.next(length), lambda view: self.sock.send(view, socket.MSG_MORE))

    def call_write(self):
        self.all("write", self.next(20000), lambda view: os.write(self.sock.fileno(), view))

    def call_writev(self):
        data = self.next(200000)
        self.all("writev", data, lambda view: os.writev(self.sock.fileno(), [view[:999], view[999:]]))

    def call_readonly_memory(self):
        length = 8192
        address = pages(length)
        ctypes.memmove(address, text(self.offset, length), length)
        assert libc.mprotect(address, length, mmap.PROT_READ) == 0
        done = 0
        while done < length:
            done += check(libc.send(self.sock.fileno(), address + done, length - done, 0))
        self.sent(ctypes.string_at(address, length), done, "readonly memory")

    def call_sendfile(self):
        length = 150000
        with tempfile.TemporaryFile() as file:
            file.write(text(self.offset, length))
            file.flush()
            done = 0
            while done < length:
                done += os.sendfile(self.sock.fileno(), file.fileno(), done, length - done)
            self.sent(os.pread(file.fileno(), length, 0), done, "sendfile")

    def call_splice(self):
        length = 60000
        read, write = os.pipe()
        done = os.write(write, self.next(length))
        left = done
        while left:
            left -= os.splice(read, self.sock.fileno(), left)
        self.sent(text(self.offset, done), done, "splice")
        os.close(read)
        os.close(write)

    def call_nonblocking(self):
        data = self.next(600000)
        self.sock.setblocking(False)
        poller = select.epoll()
        poller.register(self.sock, select.EPOLLOUT | select.EPOLLET)

        def call(view):
            while True:
                try:
                    return self.sock.send(view)
                except BlockingIOError:
                    if not poller.poll(20):
                        raise TimeoutError("no edge after EAGAIN") from None

        self.all("nonblocking", data, call)
        poller.close()
        self.sock.setblocking(True)

    def call_after_fork(self):
        data = self.next(65536)
        child = os.fork()
        if not child:
            signal.pause()
        self.all("after fork", data, self.sock.send)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def call_bad_pointer(self):
        assert libc.send(self.sock.fileno(), 16, 100, 0) == -1 and ctypes.get_errno() == errno.EFAULT
        page = mmap.PAGESIZE
        address = pages(2 * page)
        ctypes.memmove(address, text(self.offset, page), page)
        assert libc.mprotect(address + page, page, PROT_NONE) == 0
        count = libc.send(self.sock.fileno(), address, 2 * page, 0)
        # Either the readable part was sent, or nothing.
        if count >= 0 or ctypes.get_errno() != errno.EFAULT:
            self.offset += check(count)
        self.all("after a bad pointer", self.next(4096), self.sock.send)

    def call_timeout(self):
        """After a timeout, exactly the returned number of bytes must have been sent."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(0.2))
        data, done = self.next(300000), 0
        while done < len(data):
            try:
                done += self.sock.send(memoryview(data)[done:])
            except BlockingIOError:
                continue
        self.sent(data, done, "timeout")
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(0))

    def call_signals(self):
        with interrupted():
            self.all("signals", self.next(500000), self.sock.send)


class Receiver:
    """Each method receives some bytes with a different call and returns them."""

    def __init__(self, sock):
        self.sock, self.offset, self.faults = sock, 0, []
        self.pipe = os.pipe()

    def run(self, only, without):
        calls = [(name, call) for name, call in calls_of(self) if only in (None, name) and name != without]
        lengths = (1, 7, 64, 65, 1000, 4096, 16128, 16129, 100000)
        turn = 0
        while True:
            name, call = calls[turn % len(calls)]
            length = lengths[turn * 5 // 3 % len(lengths)]
            turn += 1
            data = call(length)
            if data is None:
                continue
            if not data:
                return
            self.compare(name, data)
            self.offset += len(data)

    def compare(self, name, data):
        expected = text(self.offset, len(data))
        if bytes(data) != expected:
            at = next(i for i in range(len(data)) if data[i] != expected[i])
            where = f"at {self.offset + at}, byte {at} of {len(data)}"
            self.faults.append(
                f"{name}: {where}: found {bytes(data[at : at + 8])}, not {expected[at : at + 8]}"
            )
            if len(self.faults) > 5:
                raise SystemExit("\n".join(self.faults))

    def call_recv(self, length):
        return self.sock.recv(length)

    def call_read(self, length):
        return os.read(self.sock.fileno(), length)

    def call_readv(self, length):
        buffers = [bytearray(length // 3 + 1), bytearray(length // 5 + 1), bytearray(length)]
        count = os.readv(self.sock.fileno(), buffers)
        return b"".join(buffers)[:count]

    def call_recvmsg(self, length):
        buffers = [bytearray(1), bytearray(length)]
        count = self.sock.recvmsg_into(buffers)[0]
        return b"".join(buffers)[:count]

    def call_peek(self, length):
        self.compare("peek", self.sock.recv(length, socket.MSG_PEEK))

    def call_peek_all(self, length):
        length = min(length, 16000)
        peeked = self.sock.recv(length, socket.MSG_PEEK | socket.MSG_WAITALL)
        self.compare("peek all", peeked)
        assert self.sock.recv(len(peeked) or 1) == peeked
        self.offset += len(peeked)

    def call_discard(self, length):
        count = check(libc.recv(self.sock.fileno(), None, min(length, 50), socket.MSG_TRUNC))
        return text(self.offset, count)

    def call_wait_all(self, length):
        return self.sock.recv(length, socket.MSG_WAITALL)

    def call_splice(self, length):
        read, write = self.pipe
        count = os.splice(self.sock.fileno(), write, min(length, 50000))
        return read_all(read, count)

    def call_nonblocking(self, length):
        self.sock.setblocking(False)
        try:
            return self.sock.recv(length)
        except BlockingIOError:
            return None
        finally:
            self.sock.setblocking(True)

    def call_edge(self, length):
        """With edge-triggered polling no remaining data may be missed: read until there is none."""
        poller = select.epoll()
        poller.register(self.sock, select.EPOLLIN | select.EPOLLET)
        poller.poll(20)
        self.sock.setblocking(False)
        data = b""
        try:
            while piece := self.sock.recv(max(length, 3000)):
                data += piece
        except BlockingIOError:
            pass
        self.sock.setblocking(True)
        poller.close()
        return data or None

    def call_low_water(self, length):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(length, 5000))
        data = self.sock.recv(length)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return data

    def call_bad_pointer(self, length):
        page = mmap.PAGESIZE
        address = pages(2 * page)
        assert libc.mprotect(address + page, page, PROT_NONE) == 0
        if self.sock.recv(1, socket.MSG_PEEK):
            assert libc.recv(self.sock.fileno(), 16, length, 0) == -1
            assert ctypes.get_errno() == errno.EFAULT
        start = address + page - min(length, page)
        count = libc.recv(self.sock.fileno(), start, 2 * page, 0)
        # A short read or none: in both cases the remaining data must still be readable.
        if count < 0 and ctypes.get_errno() == errno.EFAULT:
            return None
        return ctypes.string_at(start, check(count))

    def call_timeout(self, length):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(0.05))
        try:
            return self.sock.recv(length, socket.MSG_WAITALL)
        except BlockingIOError:
            return None
        finally:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(0))

    def call_signals(self, length):
        with interrupted():
            return self.sock.recv(length, socket.MSG_WAITALL)


class interrupted:
    """Sends a signal every few milliseconds; Python restarts the interrupted call."""

    def __enter__(self):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)


def calls_of(end):
    found = vars(type(end)).items()
    return [(name[5:], getattr(end, name)) for name, _ in found if name.startswith("call_")]


def check(count):
    if count < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return count


def read_all(descriptor, length):
    data = b""
    while len(data) < length:
        data += os.read(descriptor, length - len(data))
    return data


def timeval(seconds):
    whole = int(seconds)
    return whole.to_bytes(8, sys.byteorder) + int((seconds - whole) * 1e6).to_bytes(8, sys.byteorder)


def connection(arguments):
    family = socket.AF_INET6 if ":" in arguments.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)
    address = (arguments.address, arguments.port)
    if arguments.side == "listen":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Listen on all addresses: a subflow to an address without a listener is reset.
        sock.bind(("", arguments.port))
        sock.listen()
        print("listening", flush=True)
        accepted = sock.accept()[0]
        # Additional subflows also go to the listening socket.
        LISTENING.append(sock)
        return accepted
    deadline = time.monotonic() + 20
    while True:
        try:
            sock.connect(address)
            return sock
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("side", choices=["listen", "connect"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--only")
    parser.add_argument("--without", default="")
    parser.add_argument("--smaller", type=int, default=1, help="divides the long texts")
    parser.add_argument("--seconds", type=int, default=200, help="after which a call that hangs is shown")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.seconds, exit=True)
    sock = connection(arguments)
    end = Sender(sock, arguments.smaller) if arguments.role == "send" else Receiver(sock)
    # The first flight is acknowledged before additional subflows are created.
    if arguments.role == "send":
        end.all("first", end.next(100), sock.send)
        assert sock.recv(5) == b"begin"
        time.sleep(0.5)
    else:
        end.compare("first", read_all(sock.fileno(), 100))
        end.offset = 100
        sock.sendall(b"begin")
    end.run(arguments.only, arguments.without)
    if arguments.role == "send":
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b"end", "the other direction is still open"
        print(f"sent {end.offset}")
    else:
        sock.sendall(b"end")
        print(f"received {end.offset} mismatches {len(end.faults)}")
    print("\n".join(end.faults), end="")
    sys.exit(bool(end.faults))


if __name__ == "__main__":
    main()
