"""Hosts with a file system of their own as far as plait writes to it, on which plait is installed by `make install`."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess

from hosts import PLAIT, REPOSITORY, Host, tool, wait_for

# Mounts what a machine does not share with others. Control groups are shared, as network namespaces are of one kernel.
MOUNTS = """
set -e
mount -t tmpfs tmpfs "$1/shelf"
mkdir "$1/shelf/cgroup"
mount --rbind /sys/fs/cgroup "$1/shelf/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/shelf/cgroup" /sys/fs/cgroup
mount -t overlay overlay -o "lowerdir=$2/usr/local:/usr/local" /usr/local
mount --bind "$1/etc" /etc
mount --bind "$1/lib" /var/lib
mount -t tmpfs tmpfs /run
touch "$1/shelf/ready"
echo ready
exec sleep infinity
"""


def install(root: pathlib.Path):
    """Installs the command under test into a directory."""
    make = ("make", "-C", REPOSITORY, "install", f"DESTDIR={root}", f"BINARY={PLAIT}", "STRIP=")
    tool(*map(str, make))


class Machine(Host):
    """A host with its own /etc, /var/lib and /run. A reboot empties /run, and ends all programs."""

    def __init__(self, name: str, directory: pathlib.Path, root: pathlib.Path):
        super().__init__(name, directory)
        self.root = root
        self.disk = directory / "disks" / name
        self.init: subprocess.Popen | None = None

    @property
    def etc(self) -> pathlib.Path:
        return self.disk / "etc"

    def boot(self):
        if not self.disk.exists():
            for part in ("shelf", "lib"):
                (self.disk / part).mkdir(parents=True)
            shutil.copytree("/etc", self.etc, symlinks=True, ignore=shutil.ignore_patterns("netns", "plait"))
        command = (
            "nsenter",
            f"--net=/run/netns/{self.name}",
            "unshare",
            "--mount",
            "--propagation",
            "private",
        )
        arguments = ("sh", "-c", MOUNTS, "sh", self.disk, self.root)
        self.init = subprocess.Popen(
            list(map(str, command + arguments)), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self.init.stdout.readline() == "ready\n"

    def command(self, *command) -> list[str]:
        mount = f"--mount=/proc/{self.init.pid}/ns/mnt"
        return ["nsenter", mount, f"--net=/run/netns/{self.name}", "--wd=/", *map(str, command)]

    def processes(self) -> list[int]:
        """All processes on this machine but its first one."""
        own = os.readlink(f"/proc/{self.init.pid}/ns/mnt")
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.init.pid:
                try:
                    if os.readlink(entry / "ns" / "mnt") == own:
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def power_off(self):
        """Ends all programs at once, as a power cut does."""
        if self.init is None or self.init.poll() is not None:
            return
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for program in self.programs:
            program.wait()
        self.programs.clear()
        wait_for("end of all programs", lambda: not self.processes())
        self.init.kill()
        self.init.wait()
        self.init.stdout.close()


# Counters, and what the kernel draws by lot or other tests on this machine change.
VOLATILE = (
    "blackhole",
    "tcp_mem",
    "udp_mem",
    "random",
    "e_congestion_control",
    "allowed_cong",
    "nf_conntrack_count",
)


def state_of_machine(machine: Machine) -> dict[str, object]:
    """What programs may leave behind on a machine. Of control groups and BPF programs, which all machines share, those that are
    plait's or of this network namespace."""
    wait_for("addresses", lambda: "tentative" not in machine.ip("addr"))
    namespace = machine.netns_inode()
    links = json.loads(tool("bpftool", "-j", "link", "show").strip() or "[]")
    root = next(
        line.split()[1]
        for line in pathlib.Path("/proc/mounts").read_text().splitlines()
        if line.split()[2] == "cgroup2"
    )
    attached = json.loads(tool("bpftool", "-j", "cgroup", "show", root).strip() or "[]")
    run = pathlib.Path(f"/proc/{machine.init.pid}/root/run")
    return {
        **{
            words: json.loads(machine.ip(f"-j {words}") or "[]")
            for words in (
                "addr", "link", "-4 route show table all", "-6 route show table all", "-4 rule", "-6 rule",
            )
        },
        "mptcp": machine.ip("mptcp endpoint") + machine.ip("mptcp limits"),
        "packet rules": machine.tool("nft", "list", "ruleset"),
        "programs at interfaces": json.loads(machine.tool("bpftool", "-j", "net", "show")),
        "programs by tcx": {
            link["ifname"]: machine.programs_at(link["ifname"]) for link in json.loads(machine.ip("-j link"))
        },
        "programs at the root": [
            each for each in attached if "redirect" in each["name"] or "kill_switch" in each["name"]
        ],
        # bpf.h: BPF_LINK_TYPE_NETFILTER, whose network namespace bpftool does not tell.
        "links": [
            each for each in links if each.get("netns_ino") == namespace or each["type"] in (10, "netfilter")
        ],
        "settings": [
            line
            for line in machine.tool("sysctl", "-a", "--pattern", "^net").splitlines()
            if not any(name in line for name in VOLATILE)
        ],
        "files": sorted(str(path) for path in run.rglob("*")),
        "mounts": [line.split()[1:3] for line in pathlib.Path(f"/proc/{machine.init.pid}/mounts").read_text().splitlines()],
        "processes": machine.processes(),
    }  # fmt: skip
