"""Runs scripts in user-mode-linux, for modules this kernel lacks; the host's files are read-only."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

MODULES = ("veth", "bridge", "sch_netem", "sch_tbf")
ENDS = "script ends with"

# A private /run for namespaces; everything else is the host's root file system, read-only.
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run && mkdir /run/netns && dmesg -n 1
for module in {modules}; do insmod "$module"; done
sh -eu {script}
echo "{ends} $?"
poweroff -f 2>/dev/null
"""


def missing() -> str | None:
    """Why user-mode-linux cannot be used, or None."""
    for program in ("linux.uml", "insmod"):
        if not shutil.which(program):
            return f"{program} is not installed (Debian packages user-mode-linux and kmod)"
    if not list(pathlib.Path("/usr/lib/uml/modules").glob("*/modules.dep")):
        return "user-mode-linux has no modules"
    return None


def run(script: str, directory: pathlib.Path, timeout: float = 120) -> str:
    """Runs a shell script and returns its output; fails if any command of it fails."""
    file, init = directory / "script.sh", directory / "init.sh"
    file.write_text(script)
    init.write_text(INIT.format(modules=" ".join(modules()), script=file, ends=ENDS))
    init.chmod(0o755)
    root = ("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}")
    command = ("linux.uml", "mem=256M", *root, "con=null", "con0=fd:0,fd:1", "quiet")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, cwd=directory
    )
    output = done.stdout.decode(errors="replace").replace("\r", "")
    # Its programs cannot run where the processor has more state than this kernel expects, as with AVX-512.
    if "ptrace set fp regs failed" in output:
        pytest.skip("user-mode-linux cannot set the registers of this processor")
    assert f"{ENDS} 0" in output, output
    return output[: output.index(ENDS)]


def modules() -> list[str]:
    """The module files, in order of dependency."""
    table = next(pathlib.Path("/usr/lib/uml/modules").glob("*/modules.dep"))
    needs = dict(line.split(":", 1) for line in table.read_text().splitlines())
    ordered = []
    for module in MODULES:
        name = next(name for name in needs if name.endswith(f"/{module}.ko"))
        for file in (*reversed(needs[name].split()), name):
            if file not in ordered:
                ordered.append(file)
    return [str(table.parent / file) for file in ordered]
