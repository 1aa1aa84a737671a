#!/usr/bin/python3
"""The module at one end and the gateway at the other, negotiating like two gateways. Runs in the guest.

PLAIT is the gateway, by default target/release/plait. The negotiator is its BPF program (NEGOTIATOR, an object file; by
default the one compiled with the gateway), attached to a control group with bpftool.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from network import COUNTERS, HERE, PORT, Capture, alarms, counters, grown, inside, load, rule, run, unload

PLAIT = Path(os.environ.get("PLAIT", HERE.parents[1] / "target/release/plait"))
GROUP = Path("/sys/fs/cgroup/plait-module")
PINNED = Path("/sys/fs/bpf/plait-module")
# The negotiator's settings: xor64 with either seed, and nothing selected.
SETTINGS = ["3"] + ["0"] * 87
SERVICE = 6000
ADDRESS = "10.0.1.2"


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


def calls(role, side, address, port):
    # A program that is not itself protected is affected by the faulty MSG_PEEK of Linux 6.1.
    return [sys.executable, str(HERE / "calls.py"), role, side, address, str(port), "--without", "peek_all"]


def start(host, command, ready=None, grouped=False):
    command = inside(host, *command)
    if grouped:
        # Before it enters the host's namespace, in which the control groups are not visible.
        command = ["sh", "-c", f'echo $$ >{GROUP}/cgroup.procs && exec "$@"', "sh", *command]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ready:
        line = program.stdout.readline()
        assert ready in line, line + program.communicate()[0]
    return program


def listens(host, port):
    return f":{port} " in run(*inside(host, "ss", "-Htnl"), capture_output=True).stdout


def module_to_gateway(verdicts, sender):
    """A program on a host with the module talks to a service behind `plait serve`."""
    rule("A", f"verdicts={verdicts} cgroup=/{GROUP.name} require")
    receiver = "listen" if sender == "connect" else "connect"
    roles = {sender: "send", receiver: "receive"}
    service = start("B", calls(roles["listen"], "listen", "127.0.0.1", SERVICE), "listening")
    options = [
        "--listen",
        f"{ADDRESS}:{PORT}",
        "--to",
        f"127.0.0.1:{SERVICE}",
        "--mode",
        "xor64",
        "--require",
    ]
    gateway = start("B", [PLAIT, "serve", *options])
    while not listens("B", PORT):
        assert gateway.poll() is None, gateway.communicate()[0]
        time.sleep(0.2)
    client = start("A", calls(roles["connect"], "connect", ADDRESS, PORT), grouped=True)
    yield client.communicate()[0], client.returncode
    yield service.communicate()[0], service.returncode
    gateway.terminate()
    print(gateway.communicate()[0].strip())
    rule("A", "clear")


def gateway_to_module(verdicts, sender):
    """A program under `plait run` talks to a service on a host with the module."""
    rule("B", f"verdicts={verdicts} cgroup=/{GROUP.name} require")
    receiver = "listen" if sender == "connect" else "connect"
    roles = {sender: "send", receiver: "receive"}
    service = start("B", calls(roles["listen"], "listen", ADDRESS, PORT), "listening", grouped=True)
    options = ["--mode", "xor64", "--require", "--trusted", "a1"]
    client = start("A", [PLAIT, "run", *options, "--", *calls(roles["connect"], "connect", ADDRESS, PORT)])
    yield client.communicate()[0], client.returncode
    yield service.communicate()[0], service.returncode
    rule("B", "clear")


def main():
    load("0.1%")
    # The module's side has no path manager yet: one path.
    run("ip", "-n", "A", "mptcp", "endpoint", "flush")
    verdicts = negotiate()
    good = []
    for direction in (module_to_gateway, gateway_to_module):
        for sender in ("connect", "listen"):
            before = counters()
            with Capture() as capture:
                ends = list(direction(verdicts, sender))
            protected = grown(before).get("connections_protected", 0)
            marks = [marks for _, marks in capture.found()]
            good.append(not any(status for _, status in ends) and protected == 1 and not any(marks))
            print(f"{direction.__name__} {sender} sends: {protected} protected, marks {marks}, ok {good[-1]}")
            for text, _ in ends:
                print("   ", text.strip().replace("\n", "\n    "), flush=True)
    print(COUNTERS.read_text())
    unload()
    found = alarms()
    print(*found, sep="\n")
    sys.exit(not all(good) or bool(found))


if __name__ == "__main__":
    main()
