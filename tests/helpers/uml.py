"""A kernel that has netem, where this one has none: user-mode-linux with this machine's files, read-only."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

MODULES = ("veth", "bridge", "sch_netem", "sch_tbf")
ENDS = "script ends with"

# Its own /run, for namespaces. Everything else is this machine's, and cannot be written.
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run && mkdir /run/netns && dmesg -n 1
for module in {modules}; do insmod "$module"; done
sh -eu {script}
echo "{ends} $?"
poweroff -f 2>/dev/null
"""


def missing() -> str | None:
    """Why it cannot be used here."""
    for program in ("linux.uml", "insmod"):
        if not shutil.which(program):
            return f"{program} is not installed (Debian packages user-mode-linux and kmod)"
    if not list(pathlib.Path("/usr/lib/uml/modules").glob("*/modules.dep")):
        return "user-mode-linux has no modules"
    return None


def run(script: str, directory: pathlib.Path, timeout: float = 120) -> str:
    """Runs a shell script inside to its end; what it prints. A command that fails ends it, and is a failure."""
    file, init = directory / "script.sh", directory / "init.sh"
    file.write_text(script)
    init.write_text(INIT.format(modules=" ".join(modules()), script=file, ends=ENDS))
    init.chmod(0o755)
    kernel = (
        "linux.uml",
        "mem=256M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={init}",
    )
    consoles = ("con=null", "con0=fd:0,fd:1", "quiet")
    done = subprocess.run(
        (*kernel, *consoles), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, cwd=directory
    )
    output = done.stdout.decode(errors="replace").replace("\r", "")
    assert f"{ENDS} 0" in output, output
    return output[: output.index(ENDS)]


def modules() -> list[str]:
    """The files of the modules, each after those that it needs."""
    table = next(pathlib.Path("/usr/lib/uml/modules").glob("*/modules.dep"))
    needs = dict(line.split(":", 1) for line in table.read_text().splitlines())
    ordered = []
    for module in MODULES:
        name = next(name for name in needs if name.endswith(f"/{module}.ko"))
        for file in (*reversed(needs[name].split()), name):
            if file not in ordered:
                ordered.append(file)
    return [str(table.parent / file) for file in ordered]
