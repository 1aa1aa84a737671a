"""The BPF maps and programs in the kernel.

Listed by id without opening them: some kernels never free a program array that is opened by id, as `bpftool map` does,
at the moment its last pin is removed.
"""

import ctypes
import errno
import os
import pathlib
import platform
import socket

FD_BY_ID = 13
PROG_QUERY = 16
TCX_INGRESS, TCX_EGRESS = 46, 47

_CALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_NEXT_ID = {"prog": 11, "map": 12}
_LIBC = ctypes.CDLL(None, use_errno=True)


def syscall(command: int, attributes: ctypes.Array) -> int:
    """Calls bpf(2) with the start of a union bpf_attr."""
    result = _LIBC.syscall(_CALL, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def ids(kind: str) -> set[int]:
    """The ids of all maps (`map`) or programs (`prog`)."""
    found, last = set(), 0
    while True:
        # start_id, next_id, open_flags
        attributes = (ctypes.c_uint32 * 3)(last, 0, 0)
        try:
            syscall(_NEXT_ID[kind], attributes)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        last = attributes[1]
        found.add(last)


def fdinfo(descriptor: int) -> dict[str, int]:
    """The numbers that the kernel reports about an open program."""
    lines = pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    values = (line.partition(":")[::2] for line in lines)
    return {name: int(value) for name, value in values if value.strip().isdigit()}


def programs_at(interface: str) -> list[int]:
    """The ids of programs attached to an interface of this thread's network namespace by tcx, those at ingress first. Not by bpftool,
    of which old versions do not know tcx."""
    found = []
    for place in (TCX_INGRESS, TCX_EGRESS):
        programs = (ctypes.c_uint32 * 64)()
        address = ctypes.addressof(programs)
        # target_ifindex, attach_type, query_flags, attach_flags, prog_ids, count, and up to the revision
        words = (
            socket.if_nametoindex(interface),
            place,
            0,
            0,
            address & 0xFFFFFFFF,
            address >> 32,
            len(programs),
        )
        attributes = (ctypes.c_uint32 * 16)(*words)
        try:
            syscall(PROG_QUERY, attributes)
        except OSError as error:
            # No tcx before Linux 6.6.
            if error.errno == errno.EINVAL:
                return []
            if error.errno != errno.ENOENT:
                raise
            continue
        found += programs[: attributes[6]]
    return found
