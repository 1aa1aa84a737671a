"""Two hosts for a benchmark, each link of which reaches both addresses of the server; optionally with emulated links."""

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import prologue  # noqa: F401
from hosts import PLAIT, Pair, tool

NUMBERS = itertools.count()


@contextlib.contextmanager
def built(make=Pair):
    """Builds a pair with `make(name, directory)`, and removes it at the end of the context."""
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as directory:
        pair = make(f"bench-{os.getpid()}-{next(NUMBERS)}", pathlib.Path(directory))
        try:
            pair.build()
            pair.add_route_by_wlan()
            yield pair
        finally:
            pair.remove()


@contextlib.contextmanager
def scheduler_enabled(name, *hosts):
    """Within this context, new connections of these hosts use the scheduler, or may select it."""
    for host in hosts:
        tool(PLAIT, "sched", "use", name, "--netns", host.name)
    try:
        yield
    finally:
        for host in hosts:
            tool(PLAIT, "sched", "disable", "--netns", host.name)


def certificate(pair, *options):
    """Creates a key and a self-signed certificate of the server; returns their files."""
    key, certificate = pair.directory / "key.pem", pair.directory / "certificate.pem"
    files = ("-keyout", str(key), "-out", str(certificate))
    tool("openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=server", *options, *files)
    return key, certificate


class Emulated(Pair):
    """Links emulated by `plait lab link`, each with its options."""

    def __init__(self, run_id, directory, options):
        super().__init__(run_id, directory)
        self.options = options
        self.links = {}
        # By link, once the pair is removed: 99th percentile of lateness, and frames missed.
        self.emulator = {}

    def join(self, link):
        ends = ("--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        command = (PLAIT, "lab", "link", *ends, "--backend", "emu", "--json", *self.options[link])
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.links[link] = subprocess.Popen(command, text=True, **pipes)
        lines = []
        for line in self.links[link].stderr:
            lines.append(line)
            if "ready" in line:
                return
        raise RuntimeError("".join(lines))

    def remove(self):
        for host in (self.client, self.server):
            host.stop_programs()
        for link, program in self.links.items():
            program.terminate()
            out, err = program.communicate(timeout=30)
            if program.returncode:
                print(err, file=sys.stderr)
            else:
                report = json.loads(out)
                missed = sum(report[way]["overruns"] for way in ("a_to_b", "b_to_a"))
                self.emulator[link] = {"late_p99_ms": report["lateness"]["p99_ms"], "missed": missed}
        super().remove()


def text(emulator):
    """The accuracy of emulated links as text."""
    line = "  emulator of {}: 99 of 100 frames at most {late_p99_ms:.3f} ms late, {missed} missed"
    return "\n".join(line.format(link, **found) for link, found in emulator.items())
