#!/usr/bin/python3
"""The module at one end and the gateway at the other, negotiating like two gateways. Runs in the guest.

PLAIT is the gateway, by default target/release/plait. The negotiator is its BPF program (NEGOTIATOR, an object file; by
default the one compiled with the gateway), attached to a control group with bpftool.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from network import (
    ADDRESS,
    HERE,
    PORT,
    Capture,
    counters,
    finish,
    grown,
    load,
    rule,
    run,
    start,
    wait_until_listening,
)

PLAIT = Path(os.environ.get("PLAIT", HERE.parents[1] / "target/release/plait"))
GROUP = Path("/sys/fs/cgroup/plait-module")
PINNED = Path("/sys/fs/bpf/plait-module")
# The negotiator's settings: xor64 with either seed, and nothing selected.
SETTINGS = ["3"] + ["0"] * 87
SERVICE = 6000


def negotiator():
    compiled = PLAIT.parent.glob("build/plait-gateway-*/out/negotiate.bpf.o")
    return os.environ.get("NEGOTIATOR") or max(compiled, key=lambda file: file.stat().st_mtime)


def negotiate():
    """Attaches the negotiator to the control group; returns the ID of the map with its verdicts."""
    GROUP.mkdir()
    PINNED.mkdir()
    program = PINNED / "program"
    run("bpftool", "prog", "load", negotiator(), program, "type", "sockops", "pinmaps", PINNED)
    key = ["key", "0", "0", "0", "0"]
    run("bpftool", "map", "update", "pinned", PINNED / "settings", *key, "value", *SETTINGS)
    run("bpftool", "cgroup", "attach", GROUP, "sock_ops", "pinned", program)
    verdicts = PINNED / "verdicts"
    shown = run("bpftool", "-j", "map", "show", "pinned", verdicts, capture_output=True).stdout
    return json.loads(shown)["id"]


def start_calls(host, role, side, address, port, *launcher, group=None):
    """Starts calls.py on a host; returns once a listening end listens."""
    # A program that is not itself protected is affected by the faulty MSG_PEEK of Linux 6.1.
    words = [role, side, address, str(port), "--without", "peek_all"]
    program = start(
        host, *launcher, sys.executable, str(HERE / "calls.py"), *words, group=group, stderr=subprocess.STDOUT
    )
    if side == "listen":
        line = program.stdout.readline()
        assert "listening" in line, line + program.communicate()[0]
    return program


def module_to_gateway(verdicts, roles):
    """A program on a host with the module talks to a service behind `plait serve`."""
    rule("A", f"verdicts={verdicts} cgroup=/{GROUP.name} require")
    service = start_calls("B", roles["listen"], "listen", "127.0.0.1", SERVICE)
    serve = f"serve --listen {ADDRESS}:{PORT} --to 127.0.0.1:{SERVICE} --mode xor64 --require".split()
    gateway = start("B", PLAIT, *serve, stderr=subprocess.STDOUT)
    wait_until_listening(gateway)
    client = start_calls("A", roles["connect"], "connect", ADDRESS, PORT, group=GROUP)
    yield client.communicate()[0], client.returncode
    yield service.communicate()[0], service.returncode
    gateway.terminate()
    print(gateway.communicate()[0].strip())
    rule("A", "clear")


def gateway_to_module(verdicts, roles):
    """A program under `plait run` talks to a service on a host with the module."""
    rule("B", f"verdicts={verdicts} cgroup=/{GROUP.name} require")
    service = start_calls("B", roles["listen"], "listen", ADDRESS, PORT, group=GROUP)
    run_options = "run --mode xor64 --require --trusted a1 --".split()
    client = start_calls("A", roles["connect"], "connect", ADDRESS, PORT, PLAIT, *run_options)
    yield client.communicate()[0], client.returncode
    yield service.communicate()[0], service.returncode
    rule("B", "clear")


def main():
    load("0.1%")
    # The module has no path manager: one path.
    run("ip", "-n", "A", "mptcp", "endpoint", "flush")
    verdicts = negotiate()
    good = []
    for direction in (module_to_gateway, gateway_to_module):
        for sender, receiver in (("connect", "listen"), ("listen", "connect")):
            before = counters()
            with Capture() as capture:
                ends = list(direction(verdicts, {sender: "send", receiver: "receive"}))
            protected = grown(before).get("connections_protected", 0)
            marks = [marks for _, marks in capture.found()]
            good.append(not any(status for _, status in ends) and protected == 1 and not any(marks))
            print(f"{direction.__name__} {sender} sends: {protected} protected, marks {marks}, ok {good[-1]}")
            for text, _ in ends:
                print("   ", text.strip().replace("\n", "\n    "), flush=True)
    finish(all(good))


if __name__ == "__main__":
    main()
