"""Labs and experiments: hosts and links in network namespaces of this machine, run by the command `plait lab`.

>>> import plait.lab
>>> with plait.lab.up("topology.toml") as lab:
...     lab.host("client").run("ping", "-c", "3", lab.address("server", "lte1"), check=True)
...     print(lab.statistics()["lte1"].a_to_b.dropped)
>>> results = plait.lab.run("experiments/lte-fullmesh.toml", repetitions=3)
>>> results.table()

The command is the program in the environment variable PLAIT, or `plait` on PATH. It needs root, so this program does
too.
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

from plait import _command, _document, _toml
from plait._command import Error, command, error
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
    "RunningHost",
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
"""A TOML file, or its content as a dictionary."""

T = TypeVar("T")

TERMINATE_TIMEOUT_S = 3
"""How long a program may take to exit after SIGTERM before it is killed."""
DOWN_TIMEOUT_S = 60
"""How long removing a lab may take."""


def up(
    topology: Source | None = None,
    *,
    text: str | None = None,
    backend: Backend | None = None,
    seed: int | None = None,
) -> Lab:
    """Build a lab: the hosts, links and services of a topology, all ready when this returns.

    The topology is a TOML file, a dictionary, or TOML as `text`. `backend` overrides the backend of all
    links; `seed` repeats the random inputs of a lab.

    The lab is removed by `down`, at the end of its `with` block, and when this program exits, however it
    exits.

    Raises `Error` if the command fails: for an error in the topology, with its line; without root; for a
    backend that does not work on this machine.
    """
    file, given = _source(topology, text)
    settings = (("backend", backend), ("seed", seed))
    options = [f"--{name}={value}" for name, value in settings if value is not None]
    words = command("lab", "up", "--foreground", "--json", *options, "--", file)
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the lab
    # A new session, so that Ctrl-C reaches only this program, which decides whether the lab ends.
    supervisor = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )
    try:
        _write_stdin(supervisor, given)
        description = _read_description(supervisor)
        if description is None:
            supervisor.wait()
            raise error(_text_of(stderr))
        _warn(_text_of(stderr))
        return Lab(_document.read(Description, description), supervisor, stderr)
    except BaseException:
        _end(os.getpid(), supervisor, [])
        raise


class Lab:
    """A running lab, built by `up`."""

    id: str
    """The run id, for `plait lab exec --lab ID`."""
    hosts: dict[str, Host]
    """By name."""
    links: dict[str, Link]
    """By name, as of when the lab was built."""
    services: dict[str, Service]
    """By name, as of when the lab was built."""

    def __init__(
        self, description: Description, supervisor: subprocess.Popen[str], stderr: IO[bytes]
    ) -> None:
        self.id = description.id
        self.hosts = {host.name: host for host in description.hosts}
        self.links = {link.name: link for link in description.links}
        self.services = {service.name: service for service in description.services}
        self._supervisor, self._stderr = supervisor, stderr
        self._programs: list[subprocess.Popen[Any]] = []
        # Also when this object is collected, and when the interpreter exits.
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
        """Terminate the programs that were started in the lab, and remove it. Further calls have no effect."""
        if self._end.alive:
            before = len(_text_of(self._stderr))
            self._end()
            message = _text_of(self._stderr)[before:]
            if status := self._supervisor.returncode:
                raise error(message or f"the lab {self.id} exited unexpectedly with status {status}")
            _warn(message)

    def run(
        self, host: str, *words: str | os.PathLike[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program on a host and wait for it, like `subprocess.run`, with the same options.

        By default, the output is captured as text.
        """
        if not {"stdout", "stderr"} & options.keys():
            options.setdefault("capture_output", True)
        if not {"encoding", "errors", "universal_newlines"} & options.keys():
            options.setdefault("text", True)
        options.setdefault("check", False)
        return subprocess.run(self._on(host, words, options), **options)  # noqa: PLW1510

    def start(self, host: str, *words: str | os.PathLike[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, like `subprocess.Popen`, with the same options. It is terminated with
        the lab.

        By default it has its own process group, which Ctrl-C does not reach, and no stdin.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("process_group", 0)
        program = subprocess.Popen(self._on(host, words, options), **options)
        self._programs.append(program)
        return program

    def host(self, name: str) -> RunningHost:
        """Return a host, to run programs on. Raises `LookupError` if there is none of this name."""
        return RunningHost(self, _lookup("hosts", self.hosts, name))

    def inject(
        self,
        link: str,
        action: Action,
        *,
        end: Literal["a", "b"] | None = None,
        direction: Literal["each", "a", "b"] | None = None,
        **properties: str | float | os.PathLike[str] | Mapping[str, object],
    ) -> None:
        """Inject an event into a link; it has taken effect when this returns.

        `end` is for `interface_*` and `address_*`. `direction`, the end that frames travel to, and
        `properties` are for `adjust`: `lab.inject("lte1", "adjust", direction="b", rate="1mbit", loss=0.01)`.
        """
        _lookup("links", self.links, link)
        options = [f"--{name}={given}" for name, given in (("end", end), ("direction", direction)) if given]
        for name, value in properties.items():
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            options.append(f"--set={name}={value if isinstance(value, str) else _toml.value(value, name)}")
        self._check_up()
        _command.run("lab", "inject", f"--lab={self.id}", *options, "--", link, action)

    def statistics(self) -> dict[str, Statistics]:
        """Return the statistics of each link, except links that have none."""
        links = self._description().links
        return {link.name: link.statistics for link in links if link.statistics is not None}

    def events(self) -> list[Event]:
        """Return the events of the topology's schedule that have happened."""
        return self._description().events

    def address(self, host: str, link: str, family: Literal[4, 6] | None = None) -> str:
        """Return the address of a host on a link: the first of the family; by default the first IPv4, else
        IPv6 address."""
        _lookup("hosts", self.hosts, host)
        ends = {end.host: end for end in _lookup("links", self.links, link).ends}
        address = _lookup(f"hosts on the link {link}", ends, host).address(family)
        if address is None:
            kind = f"IPv{family} address" if family else "address"
            raise LookupError(f"expected an {kind} of {host} on {link}, got {ends[host].addresses}")
        return address

    def _on(
        self, host: str, words: Sequence[str | os.PathLike[str]], options: Mapping[str, Any]
    ) -> list[str]:
        _lookup("hosts", self.hosts, host)
        if not words:
            raise TypeError("expected a program and its arguments, got none")
        program, *arguments = [os.fspath(word) for word in words]
        path = (options.get("env") or os.environ).get("PATH")
        if "/" not in program and shutil.which(program, path=path) is None:
            raise FileNotFoundError(f"expected a program on PATH, got {program!r}")
        self._check_up()
        return command("lab", "exec", f"--lab={self.id}", host, "--", program, *arguments)

    def _description(self) -> Description:
        self._check_up()
        for document in json.loads(_command.run("lab", "ps", "--json")):
            if document["id"] == self.id:
                description: Description = _document.read(Description, document)
                return description
        raise Error(f"the lab {self.id} has ended")

    def _check_up(self) -> None:
        if self._supervisor.poll() is not None:
            raise Error(f"the lab {self.id} has ended: {_text_of(self._stderr).strip()}".rstrip(": "))


@dataclass(frozen=True)
class RunningHost:
    """A host of a running lab."""

    lab: Lab
    host: Host

    @property
    def name(self) -> str:
        """Its name in the topology."""
        return self.host.name

    def run(self, *words: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a program on the host and wait for it, like `Lab.run`."""
        return self.lab.run(self.name, *words, **options)

    def start(self, *words: str | os.PathLike[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on the host, like `Lab.start`."""
        return self.lab.start(self.name, *words, **options)

    def address(self, link: str, family: Literal[4, 6] | None = None) -> str:
        """Return its address on a link, like `Lab.address`."""
        return self.lab.address(self.name, link, family)


@dataclass(frozen=True)
class Progress:
    """The progress of an experiment."""

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
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Results:
    """Run an experiment, like `plait lab run`.

    The experiment is a TOML file, a dictionary, or TOML as `text`. `repetitions` and `parameters` override
    those of the experiment; `quick` selects its short form; `seed` repeats the random inputs of a run. results.json, plots and analyses are written to
    the directory `output`, by default `out/NAME`. `progress` is called before each repetition.

    Invalid repetitions are reported in the results (`valid`, `invalid_because`). Raises `Error` if the
    command fails.
    """
    file, given = _source(experiment, text)
    options = [f"--parameter={name}={_values(name, values)}" for name, values in (parameters or {}).items()]
    if repetitions is not None:
        options.append(f"--repetitions={repetitions}")
    if quick:
        options.append("--quick")
    if backend is not None:
        options.append(f"--backend={backend}")
    if seed is not None:
        options.append(f"--seed={seed}")
    if output is not None:
        options.append(f"--output={os.fspath(output)}")
    if progress is not None:
        options.append("--progress")
    words = command("lab", "run", "--json", *options, "--", file)
    running = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout and running.stderr
    with ThreadPoolExecutor(1) as pool, _terminated_on_error(running):
        printed = pool.submit(running.stdout.read)
        _write_stdin(running, given)
        stderr = []
        for line in running.stderr:
            if progress is not None and line.startswith("{"):
                progress(_document.read(Progress, json.loads(line)))
            else:
                stderr.append(line)
        status = running.wait()
    # The command also fails if the results are invalid.
    if status and not printed.result():
        raise error("".join(stderr))
    if not status:
        _warn("".join(stderr))
    document = json.loads(printed.result())
    directory = pathlib.Path("out", document["experiment"]) if output is None else pathlib.Path(output)
    return Results._of(document, directory)


def _source(source: Source | None, text: str | None) -> tuple[str, str]:
    """Return the file for the command to read, and its stdin."""
    if (source is None) == (text is None):
        raise TypeError("expected exactly one of a file, a dictionary and text")
    if source is None:
        return "-", text or ""
    if isinstance(source, Mapping):
        return "-", _toml.dumps(source)
    return os.fspath(source), ""


def _write_stdin(program: subprocess.Popen[str], text: str) -> None:
    assert program.stdin
    # A program that does not read its stdin explains why on stderr.
    with contextlib.suppress(BrokenPipeError), program.stdin:
        program.stdin.write(text)


def _read_description(supervisor: subprocess.Popen[str]) -> Any:
    """Read what a supervisor prints once its lab is up; `None` if it exited. The pipe stays open until the
    lab ends."""
    assert supervisor.stdout
    text = ""
    for line in iter(supervisor.stdout.readline, ""):
        text += line
        # Only the outermost braces are at the start of a line.
        if line.startswith("}") or (line.startswith("{") and line.endswith("}\n")):
            return json.loads(text)
    return None


def _end(owner: int, supervisor: subprocess.Popen[str], programs: Sequence[subprocess.Popen[Any]]) -> None:
    """Terminate programs, then the lab, unless this process is a fork of its owner."""
    if os.getpid() != owner:
        return
    for program in programs:
        if program.poll() is None:
            program.terminate()
    for program in programs:
        try:
            program.wait(TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
    supervisor.terminate()
    try:
        supervisor.wait(DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # The next lab and `plait doctor --clean` remove what is left.
        supervisor.kill()
        supervisor.wait()
    finally:
        if supervisor.stdout:
            supervisor.stdout.close()


@contextlib.contextmanager
def _terminated_on_error(program: subprocess.Popen[str]) -> Iterator[None]:
    """On an error, terminate the program, which then cleans up."""
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
        raise ValueError(f"expected at least one value of the parameter {name}, got none")
    for text in texts:
        if "," in text:
            raise ValueError(f"expected values of the parameter {name} without a comma, got {text!r}")
    return ",".join(texts)


def _lookup(kind: str, by_name: Mapping[str, T], name: str) -> T:
    if name not in by_name:
        raise LookupError(f"expected one of the {kind} {', '.join(by_name)}, got {name!r}")
    return by_name[name]


def _text_of(file: IO[bytes]) -> str:
    # pread leaves the file offset, where the command writes next, unchanged.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def _warn(message: str) -> None:
    """Issue a warning with the command's messages."""
    if message.strip():
        warnings.warn(message.strip(), stacklevel=3)
