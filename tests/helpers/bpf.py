"""The BPF maps and programs in the kernel.

Listed by id without opening them: some kernels never free a program array that is opened by id, as `bpftool map` does,
at the moment its last pin is removed.
"""

import ctypes
import errno
import platform

_CALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_NEXT_ID = {"prog": 11, "map": 12}
_LIBC = ctypes.CDLL(None, use_errno=True)


def ids(kind: str) -> set[int]:
    """The ids of all maps (`map`) or programs (`prog`)."""
    found, last = set(), 0
    while True:
        # union bpf_attr: start_id, next_id, open_flags.
        attributes = (ctypes.c_uint32 * 3)(last, 0, 0)
        if _LIBC.syscall(_CALL, _NEXT_ID[kind], ctypes.byref(attributes), ctypes.sizeof(attributes)):
            if ctypes.get_errno() == errno.ENOENT:
                return found
            raise OSError(ctypes.get_errno(), "bpf(2)")
        last = attributes[1]
        found.add(last)
