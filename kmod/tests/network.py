"""Two hosts, A and B: network namespaces connected by two paths, with the module under test on both.

Requires root and a kernel for which plait.ko was built: runs in the guest.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from calls import IPPROTO_MPTCP, MARK, libc

HERE = Path(__file__).resolve().parent
RULES = Path("/proc/plait/rules")
COUNTERS = Path("/proc/plait/counters")
KMEMLEAK = Path("/sys/kernel/debug/kmemleak")
ALARM = re.compile(
    "WARNING|BUG|Oops|Call Trace|KASAN:|UBSAN:|INFO: task|suspicious RCU|suspected memory leaks"
)
# Marks, in the kernel log, the end of the boot messages.
BEGIN = "plait: a test begins"
HOSTS = {"A": 1, "B": 2}
PATHS = [1, 2]
PORT = 5000
# Of host B on path 1.
ADDRESS = "10.0.1.2"
CHECK_TIMEOUT_S = 300


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def inside(host, *command):
    return ["ip", "netns", "exec", host, *command]


def start(host, *command, group=None, **options):
    """Starts a program on a host, in a control group."""
    command = inside(host, *command)
    if group:
        # Entered before the host's namespace, in which control groups are not visible.
        command = ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes | options)


def wait_until_listening(service, host="B", port=PORT):
    deadline = time.monotonic() + 60
    while f":{port} " not in run(*inside(host, "ss", "-Htnl"), capture_output=True).stdout:
        assert service.poll() is None, service.communicate()
        assert time.monotonic() < deadline, f"no service at {port}"
        time.sleep(0.1)


def load(loss="0.5%"):
    """Loads the module and creates the two hosts; with a loss of None, without delay and loss."""
    Path("/dev/kmsg").write_text(BEGIN)
    for module in ("veth", "sch_netem"):
        run("modprobe", module)
    run("insmod", HERE.parent / "plait.ko")
    for host in HOSTS:
        run("ip", "netns", "add", host)
        run("ip", "-n", host, "link", "set", "lo", "up")
        for setting in ("net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"):
            run(*inside(host, "sysctl", "-qw", setting))
        run("ip", "-n", host, "mptcp", "limits", "set", "subflow", "4", "add_addr_accepted", "4")
    for path in PATHS:
        run("ip", "link", "add", f"a{path}", "netns", "A", "type", "veth", "peer", f"b{path}", "netns", "B")
        for host, number in HOSTS.items():
            device = f"{host.lower()}{path}"
            run("ip", "-n", host, "addr", "add", f"10.0.{path}.{number}/24", "dev", device)
            run("ip", "-n", host, "addr", "add", f"fd00:{path}::{number}/64", "dev", device, "nodad")
            run("ip", "-n", host, "link", "set", device, "up")
            if loss is not None:
                netem = ["netem", "delay", "5ms", "loss", loss]
                run(*inside(host, "tc", "qdisc", "add", "dev", device, "root", *netem))
    for network in ("10.0.2.", "fd00:2::"):
        run("ip", "-n", "A", "mptcp", "endpoint", "add", f"{network}1", "dev", "a2", "subflow")
        run("ip", "-n", "B", "mptcp", "endpoint", "add", f"{network}2", "dev", "b2", "signal")


def address(family, host="B", path=1):
    return f"10.0.{path}.{HOSTS[host]}" if family == 4 else f"fd00:{path}::{HOSTS[host]}"


def rule(host, line):
    run(*inside(host, "sh", "-c", f"echo '{line}' >{RULES}"))


def set_mode(mode):
    """Sets one rule on both hosts, or none for `plain`."""
    for host in HOSTS:
        rule(host, "clear")
        if mode != "plain":
            rule(host, f"mode={mode} port={PORT} require")


def counters():
    return {name: int(count) for name, count in (line.split() for line in COUNTERS.read_text().splitlines())}


def grown(before):
    """The counters that have changed since `before`, and by how much."""
    return {name: count - before[name] for name, count in counters().items() if count != before[name]}


def socket_in(host, protocol=IPPROTO_MPTCP, family=socket.AF_INET):
    """Creates a socket in the host's namespace, to which it then belongs."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{host}", os.O_RDONLY)
    try:
        enter(there)
        return socket.socket(family, socket.SOCK_STREAM, protocol)
    finally:
        enter(here)
        os.close(here)
        os.close(there)


def enter(namespace):
    if libc.setns(namespace, 0):
        raise OSError("setns")


class Capture:
    """Captures the traffic of both paths."""

    def __enter__(self):
        self.files = [Path(f"/run/path{path}.pcap") for path in PATHS]
        self.dumps = []
        for path, file in zip(PATHS, self.files, strict=True):
            command = inside("B", "tcpdump", "-Z", "root", "-q", "-s0", "-U", "-B", "16384", "-i", f"b{path}")
            dump = subprocess.Popen([*command, "-w", file, "tcp"], stderr=subprocess.PIPE, text=True)
            while "listening on" not in dump.stderr.readline():
                assert dump.poll() is None, "tcpdump ended"
            self.dumps.append(dump)
        return self

    def __exit__(self, *_):
        time.sleep(0.5)
        for dump in self.dumps:
            dump.terminate()
            dump.communicate()

    def found(self):
        """The number of bytes and of marks on each path."""
        return [(file.stat().st_size, file.read_bytes().count(MARK)) for file in self.files]


def unload(seconds=90):
    """Removes the module once the kernel has released the sockets that hold it."""
    for host in HOSTS:
        rule(host, "clear")
    deadline = time.monotonic() + seconds
    while subprocess.run(["rmmod", "plait"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError("the module is still in use")
        time.sleep(1)


def alarms():
    """Warnings in the kernel log, and leaked memory."""
    log = run("dmesg", capture_output=True).stdout.rpartition(BEGIN)[2]
    return [line for line in log.splitlines() if ALARM.search(line)] + leaks()


def leaks():
    """Scans twice, if the kernel has kmemleak: it omits objects that are seconds old or were found only once."""
    if not KMEMLEAK.exists():
        return []
    for _ in range(2):
        time.sleep(6)
        KMEMLEAK.write_text("scan")
    return KMEMLEAK.read_text().splitlines()


def finish(ok, *summary):
    """Unloads the module and exits; alarms of the kernel are failures, too."""
    print(COUNTERS.read_text())
    unload()
    found = alarms()
    print(*found, *summary, f"{len(found)} alarms of the kernel", sep="\n")
    sys.exit(not ok or bool(found))


def run_checks(module):
    """Runs the functions check_NAME of a module, or those whose names contain an argument, and exits."""
    wanted = sys.argv[1:] or [""]
    checks = [(name[6:], call) for name, call in module.items() if name.startswith("check_")]
    checks = [(name, call) for name, call in checks if any(word in name for word in wanted)]
    load("0.1%")
    signal.signal(signal.SIGALRM, time_out)
    failed = 0
    for name, check in checks:
        signal.alarm(CHECK_TIMEOUT_S)
        try:
            check()
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    signal.alarm(0)
    finish(not failed, f"{len(checks) - failed} of {len(checks)} ok")


def time_out(*_):
    raise TimeoutError(f"not finished within {CHECK_TIMEOUT_S} s")
