"""Hosts, links and experiments in network namespaces of this machine, driven by the command `plait lab`.

>>> import plait.lab
>>> with plait.lab.up("topology.toml") as lab:
...     lab.run("client", "ping", "-c", "3", lab.address("server", "lte1"), check=True)
...     print(lab.statistics()["lte1"].a_to_b.dropped)
>>> results = plait.lab.run("experiments/lte-fullmesh.toml", repetitions=3)
>>> results.table()

The command is found on PATH, or is what the environment variable PLAIT names. It needs root, as this program then does.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeVar

from plait import _document, _toml
from plait._command import Error, ask, command, error
from plait.description import (
    Counters,
    Description,
    End,
    Event,
    Host,
    Lateness,
    Link,
    Service,
    Statistics,
)
from plait.results import Parameter, Results

__all__ = [
    "Counters",
    "End",
    "Error",
    "Event",
    "Host",
    "Lab",
    "Lateness",
    "Link",
    "Progress",
    "Results",
    "Service",
    "Statistics",
    "run",
    "up",
]

Backend = Literal["emu", "netem", "none"]
Action = Literal[
    "blackhole",
    "restore",
    "carrier_down",
    "carrier_up",
    "interface_down",
    "interface_up",
    "address_removed",
    "address_added",
    "adjust",
]
Source = str | os.PathLike[str] | Mapping[str, object]
"""A TOML file, or what would be in it as a dictionary."""

T = TypeVar("T")

GRACE_S = 3
"""How long a program may take to end after SIGTERM before it is killed."""
END_LIMIT_S = 60
"""How long a lab may take to end."""


def up(topology: Source | None = None, *, text: str | None = None, backend: Backend | None = None) -> Lab:
    """Builds a lab: the hosts, links and services of a topology, all ready when this returns.

    The topology is a TOML file, a dictionary, or, as `text`, TOML. `backend` is what is to be behind the links, whatever
    the topology says.

    The lab is gone after `down`, at the end of its `with` block, and when this program ends, however it ends.

    Raises `Error` for what the command refuses: a mistake, with its line; a user who is not root; a backend that does not
    work here.
    """
    file, given = _source(topology, text)
    options = [] if backend is None else [f"--backend={backend}"]
    words = command("lab", "up", "--foreground", "--json", *options, "--", file)
    said = tempfile.TemporaryFile()
    # A session of its own: a Ctrl-C is for this program, which then ends the lab, or not.
    supervisor = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
    )
    try:
        _give(supervisor, given)
        announced = _announced(supervisor)
        if announced is None:
            supervisor.wait()
            raise error(_text_of(said))
        _warn(_text_of(said))
        return Lab(_document.read(Description, announced), supervisor, said)
    except BaseException:
        _end(os.getpid(), supervisor, [])
        raise


class Lab:
    """A lab that is up; made by `up`."""

    id: str
    """Its run id: what `plait lab exec --lab ID` takes."""
    hosts: dict[str, Host]
    """By name."""
    links: dict[str, Link]
    """By name, as they were when the lab had come up."""
    services: dict[str, Service]
    """By name, as they were when the lab had come up."""

    def __init__(self, description: Description, supervisor: subprocess.Popen[str], said: IO[bytes]) -> None:
        self.id = description.id
        self.hosts = {host.name: host for host in description.hosts}
        self.links = {link.name: link for link in description.links}
        self.services = {service.name: service for service in description.services}
        self._supervisor, self._said = supervisor, said
        self._programs: list[subprocess.Popen[Any]] = []
        # Also when this value is forgotten, and when the interpreter exits.
        self._end = weakref.finalize(self, _end, os.getpid(), supervisor, self._programs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def __repr__(self) -> str:
        return f"<lab {self.id}: hosts {', '.join(self.hosts)}; links {', '.join(self.links)}>"

    def down(self) -> None:
        """Ends the programs that run in the lab, and then the lab. Once is enough, more does not harm."""
        if self._end.alive:
            before = len(_text_of(self._said))
            self._end()
            told = _text_of(self._said)[before:]
            if status := self._supervisor.returncode:
                raise error(told or f"the lab {self.id} has ended by itself, with status {status}")
            _warn(told)

    def run(
        self, host: str, *words: str | os.PathLike[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a program on a host to its end, as `subprocess.run` does, whose options these are.

        Unless they say otherwise, what the program writes is in the result, as text.
        """
        if not {"stdout", "stderr"} & options.keys():
            options.setdefault("capture_output", True)
        if not {"encoding", "errors", "universal_newlines"} & options.keys():
            options.setdefault("text", True)
        return subprocess.run(self._on(host, words, options), **options)

    def start(self, host: str, *words: str | os.PathLike[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program on a host, as `subprocess.Popen` does, whose options these are. It ends with the lab.

        It is a process group of its own, which Ctrl-C does not reach, and has no stdin, unless the options say otherwise.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("process_group", 0)
        program = subprocess.Popen(self._on(host, words, options), **options)
        self._programs.append(program)
        return program

    def event(
        self,
        link: str,
        action: Action,
        *,
        end: Literal["a", "b"] | None = None,
        direction: Literal["each", "a", "b"] | None = None,
        **properties: str | float | os.PathLike[str] | Mapping[str, object],
    ) -> None:
        """Lets something happen to a link; it has happened when this returns.

        `end` is for `interface_*` and `address_*`; `direction`, the end towards which frames go, and properties are for
        `adjust`: `lab.event("lte1", "adjust", direction="b", rate="1mbit", loss=0.01)`.
        """
        _known("links", self.links, link)
        options = [f"--{name}={given}" for name, given in (("end", end), ("direction", direction)) if given]
        for name, value in properties.items():
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            options.append(f"--set={name}={value if isinstance(value, str) else _toml.value(value, name)}")
        self._check_up()
        ask("lab", "inject", f"--lab={self.id}", *options, "--", link, action)

    def statistics(self) -> dict[str, Statistics]:
        """What each link did so far; one whose statistics cannot be had is left out."""
        links = self._description().links
        return {link.name: link.statistics for link in links if link.statistics is not None}

    def events(self) -> list[Event]:
        """What of the topology's schedule has happened so far."""
        return self._description().events

    def address(self, host: str, link: str, family: Literal[4, 6] | None = None) -> str:
        """The address that a host has on a link: the first IPv4 one, else the first of IPv6, or of the family asked for."""
        _known("hosts", self.hosts, host)
        ends = {end.host: end for end in _known("links", self.links, link).ends}
        address = _known(f"hosts on the link {link}", ends, host).address(family)
        if address is None:
            kind = f"IPv{family} address" if family else "address"
            raise LookupError(f"expected an {kind} of {host} on {link}, found {ends[host].addresses}")
        return address

    def _on(
        self, host: str, words: Sequence[str | os.PathLike[str]], options: Mapping[str, Any]
    ) -> list[str]:
        _known("hosts", self.hosts, host)
        if not words:
            raise TypeError("expected a program and its arguments, found none")
        program, *arguments = [os.fspath(word) for word in words]
        path = (options.get("env") or os.environ).get("PATH")
        if "/" not in program and shutil.which(program, path=path) is None:
            raise FileNotFoundError(f"expected a program on PATH, found no {program!r}")
        self._check_up()
        return command("lab", "exec", f"--lab={self.id}", host, "--", program, *arguments)

    def _description(self) -> Description:
        self._check_up()
        for document in json.loads(ask("lab", "ps", "--json")):
            if document["id"] == self.id:
                description: Description = _document.read(Description, document)
                return description
        raise Error(f"the lab {self.id} has ended")

    def _check_up(self) -> None:
        if self._supervisor.poll() is not None:
            raise Error(f"the lab {self.id} has ended: {_text_of(self._said).strip()}".rstrip(": "))


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    done: int
    """Valid repetitions so far, of all variants."""
    total: int
    """Repetitions to run, of all variants."""
    activity: str
    """The current step."""
    discarded: str | None
    """Why the last repetition was discarded, if it was."""


def run(
    experiment: Source | None = None,
    *,
    text: str | None = None,
    repetitions: int | None = None,
    parameters: Mapping[str, Parameter | Iterable[Parameter]] | None = None,
    quick: bool = False,
    backend: Backend | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Results:
    """Runs an experiment: repeats, captures, measures, and compares, as `plait lab run` does.

    The experiment is a TOML file, a dictionary, or, as `text`, TOML. `repetitions` and `parameters` (values for some of
    them) stand instead of what it says, `quick` asks for the short form that it describes. results.json, plots and
    analyses go to `output`, a directory, by default `out/NAME`. `progress` is called before each repetition.

    That repetitions were not valid is part of the results (`valid`, `invalid_because`). Raises `Error` for what the
    command refuses, or cannot run.
    """
    file, given = _source(experiment, text)
    options = [f"--parameter={name}={_values(name, values)}" for name, values in (parameters or {}).items()]
    if repetitions is not None:
        options.append(f"--repetitions={repetitions}")
    if quick:
        options.append("--quick")
    if backend is not None:
        options.append(f"--backend={backend}")
    if output is not None:
        options.append(f"--output={os.fspath(output)}")
    if progress is not None:
        options.append("--progress")
    words = command("lab", "run", "--json", *options, "--", file)
    running = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout and running.stderr
    with ThreadPoolExecutor(1) as pool, _ended_by_errors(running):
        printed = pool.submit(running.stdout.read)
        _give(running, given)
        said = []
        for line in running.stderr:
            if progress is not None and line.startswith("{"):
                progress(_document.read(Progress, json.loads(line)))
            else:
                said.append(line)
        status = running.wait()
    # Results that are not valid are a failure, too.
    if status and not printed.result():
        raise error("".join(said))
    if not status:
        _warn("".join(said))
    document = json.loads(printed.result())
    directory = pathlib.Path("out", document["experiment"]) if output is None else pathlib.Path(output)
    return Results._of(document, directory)


def _source(source: Source | None, text: str | None) -> tuple[str, str]:
    """The file that the command is to read, and its stdin."""
    if (source is None) == (text is None):
        raise TypeError("expected a file, a dictionary or text, and only one of them")
    if source is None:
        return "-", text or ""
    if isinstance(source, Mapping):
        return "-", _toml.dumps(source)
    return os.fspath(source), ""


def _give(program: subprocess.Popen[str], text: str) -> None:
    assert program.stdin
    # One that does not read says why on stderr.
    with contextlib.suppress(BrokenPipeError), program.stdin:
        program.stdin.write(text)


def _announced(supervisor: subprocess.Popen[str]) -> Any:
    """The description that a supervisor prints once its lab is up; `None` if it ended before. The pipe stays open until the lab ends."""
    assert supervisor.stdout
    text = ""
    for line in iter(supervisor.stdout.readline, ""):
        text += line
        # Only the document's own brackets stand at the beginning of a line.
        if line.startswith("}") or (line.startswith("{") and line.endswith("}\n")):
            return json.loads(text)
    return None


def _end(owner: int, supervisor: subprocess.Popen[str], programs: Sequence[subprocess.Popen[Any]]) -> None:
    """Ends programs, then a lab, unless this process is a fork of the one whose lab it is."""
    if os.getpid() != owner:
        return
    for program in programs:
        if program.poll() is None:
            program.terminate()
    for program in programs:
        try:
            program.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
    supervisor.terminate()
    try:
        supervisor.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        # What it leaves is found by the next lab, and by `plait doctor --clean`.
        supervisor.kill()
        supervisor.wait()
    finally:
        if supervisor.stdout:
            supervisor.stdout.close()


@contextlib.contextmanager
def _ended_by_errors(program: subprocess.Popen[str]) -> Iterator[None]:
    """An error ends the program, which removes what it made."""
    try:
        yield
    except BaseException:
        program.terminate()
        program.wait()
        raise
    finally:
        for stream in (program.stdin, program.stdout, program.stderr):
            if stream:
                stream.close()


def _values(name: str, values: Parameter | Iterable[Parameter]) -> str:
    several = [values] if isinstance(values, str) or not isinstance(values, Iterable) else values
    texts = [value if isinstance(value, str) else _toml.value(value, name) for value in several]
    if not texts:
        raise ValueError(f"expected at least one value of the parameter {name}, found none")
    for text in texts:
        if "," in text:
            raise ValueError(f"expected values of the parameter {name} without a comma, found {text!r}")
    return ",".join(texts)


def _known(kind: str, by_name: Mapping[str, T], name: str) -> T:
    if name not in by_name:
        raise LookupError(f"expected one of the {kind} {', '.join(by_name)}; found {name!r}")
    return by_name[name]


def _text_of(file: IO[bytes]) -> str:
    # Where the command writes next is not to be moved.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def _warn(told: str) -> None:
    """What the command says beside its work."""
    if told.strip():
        warnings.warn(told.strip(), stacklevel=3)
