"""Two hosts for a benchmark, each of whose links leads to both addresses of the server; and links with rate and delay."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from hosts import PLAIT, Pair  # noqa: E402


@contextlib.contextmanager
def built(make=Pair):
    """A pair that `make` makes of its run's name and a directory; all of it ends with this."""
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as directory:
        pair = make(f"bench-{os.getpid()}", pathlib.Path(directory))
        try:
            pair.build()
            pair.open_second_way()
            yield pair
        finally:
            pair.remove()


class Emulated(Pair):
    """Each link is plait's emulator, with the options of `plait lab link` that are given for it."""

    def __init__(self, run_id, directory, options):
        super().__init__(run_id, directory)
        self.options = options
        self.links = {}
        # By link, once the pair is removed: how late 99 of 100 frames were at most, and how many were missed.
        self.emulator = {}

    def join(self, link):
        ends = ("--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        command = (PLAIT, "lab", "link", *ends, "--backend", "emu", "--json", *self.options[link])
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.links[link] = subprocess.Popen(command, text=True, **pipes)
        said = []
        for line in self.links[link].stderr:
            said.append(line)
            if "ready" in line:
                return
        raise RuntimeError("".join(said))

    def remove(self):
        for host in (self.client, self.server):
            host.stop_programs()
        for link, program in self.links.items():
            program.terminate()
            out, said = program.communicate(timeout=30)
            if program.returncode:
                print(said, file=sys.stderr)
            else:
                report = json.loads(out)
                missed = sum(report[way]["missed"] for way in ("a_to_b", "b_to_a"))
                self.emulator[link] = {"late_p99_ms": report["lateness"]["p99_ms"], "missed": missed}
        super().remove()


def text(emulator):
    """How exact emulated links were, for people."""
    said = "  emulator of {}: 99 of 100 frames at most {late_p99_ms:.3f} ms late, {missed} missed"
    return "\n".join(said.format(link, **found) for link, found in emulator.items())
