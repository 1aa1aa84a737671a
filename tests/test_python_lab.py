"""The Python package's labs: what they promise in a notebook, by the real command in real namespaces."""

from __future__ import annotations

import ast
import dataclasses
import fractions
import importlib
import json
import math
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import tomllib
import types
import typing

import pytest
from conftest import reason_to_skip
from hosts import PLAIT, REPOSITORY, tool, wait_for
from package import PYTHON, install

PAIR = {
    "hosts": {"client": {}, "server": {}},
    "links": [
        {
            "name": "lte1",
            "role": "trusted",
            "a": "client",
            "b": "server",
            "each_way": {"rate": "20mbit", "delay": "5ms"},
        },
        {"name": "lte2", "a": {"host": "client", "interface": "wwan0"}, "b": "server"},
    ],
}
PAIR_TOML = """
[hosts.client]
[hosts.server]
[[links]]
name = "lte1"
role = "trusted"
a = "client"
b = "server"
each_way = { rate = "20mbit", delay = "5ms" }
[[links]]
name = "lte2"
a = { host = "client", interface = "wwan0" }
b = "server"
"""
EXPERIMENT = """
[experiment]
name = "pings"
title = "Round trips"
source = "none"
text = "What a ping takes."
repetitions = 2
lateness_limit = "50ms"
[parameters]
delay = ["2ms", "10ms"]
[hosts.client]
[hosts.server]
[[links]]
name = "wire"
a = "client"
b = "server"
each_way = { delay = "${delay}" }
[[steps]]
name = "ping"
host = "client"
command = ["ping", "-c", "3", "-i", "0.1", "${server.wire}"]
[metrics.took_s]
measure = "seconds"
step = "ping"
unit = "s"
paper = 0.3
expect = { at_least = 0.1 }
"""

EXAMPLES = [
    example
    for example in re.findall(
        r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.DOTALL
    )
    if "plait.lab" in example
]

needs_labs = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> pathlib.Path:
    """Where the package is installed."""
    folder = tmp_path_factory.mktemp("package")
    install(folder)
    return folder


@pytest.fixture
def lab(folder, monkeypatch):
    """The module plait.lab, in this process."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PLAIT", PLAIT)
    return importlib.import_module("plait.lab")


@pytest.fixture
def program(folder, tmp_path):
    """Starts an interpreter with a program; it is killed with the test."""
    started = []

    def start(text: str) -> subprocess.Popen:
        file = tmp_path / "program.py"
        file.write_text(text)
        environment = os.environ | {"PYTHONPATH": str(folder), "PLAIT": PLAIT}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running = subprocess.Popen([PYTHON, file], cwd=tmp_path, env=environment, text=True, **pipes)
        started.append(running)
        return running

    yield start
    for running in started:
        running.kill()
        running.wait()


def left_of(lab_id: str) -> list[str]:
    """Namespaces, processes and files of a lab."""
    namespaces = [name for name in tool("ip", "netns").split() if name.startswith(f"plait-{lab_id}-")]
    files = [str(file) for file in pathlib.Path("/run/plait").glob(f"lab-{lab_id}*")]
    return namespaces + files + [f"process {lab_id}"] * is_running(lab_id)


def is_running(pid: str) -> bool:
    """Whether there is such a process, which has not ended."""
    try:
        return bool(os.readlink(f"/proc/{pid}/exe"))
    except FileNotFoundError:
        return False


def children(pid: int) -> list[str]:
    """What the first thread of a process started."""
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def sleeping(namespace: str) -> int:
    """How many programs sleep there."""
    pids = tool("ip", "netns", "pids", namespace).split()
    return sum(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep") for pid in pids)


def milliseconds(done: subprocess.CompletedProcess) -> float:
    """The least round trip that ping found."""
    return float(re.search(r"= ([\d.]+)/", done.stdout)[1])


def ping(lab, *options: str, link: str = "lte1") -> subprocess.CompletedProcess:
    return lab.run("client", "ping", "-c", "3", "-i", "0.1", "-W", "1", *options, lab.address("server", link))


# Labs.


@needs_labs
def test_a_file_a_dictionary_and_a_text_make_the_same_lab(lab, tmp_path):
    file = tmp_path / "topology.toml"
    file.write_text(PAIR_TOML)
    found = []
    for arguments in ({"topology": file}, {"topology": PAIR}, {"text": PAIR_TOML}):
        with lab.up(**arguments) as pair:
            names = {name: host.namespace.replace(pair.id, "ID") for name, host in pair.hosts.items()}
            links = {name: (link.role, link.backend, link.a, link.b) for name, link in pair.links.items()}
            found.append((names, links))
            assert ping(pair).returncode == 0
        assert not left_of(pair.id)
    assert found[0] == found[1] == found[2]
    names, links = found[0]
    assert names == {"client": "plait-ID-client", "server": "plait-ID-server"}
    assert links["lte1"][:2] == ("trusted", "emu") and links["lte2"][:2] == ("untrusted", "none")
    assert links["lte2"][2].host == "client" and links["lte2"][2].interface == "wwan0"


@needs_labs
def test_addresses_are_those_of_the_interfaces(lab):
    with lab.up(PAIR) as pair:
        shown = json.loads(pair.run("server", "ip", "-j", "address", "show", "lte1").stdout)
        of_kernel = {
            entry["family"]: entry["local"] for entry in shown[0]["addr_info"] if entry["scope"] == "global"
        }
        assert pair.address("server", "lte1") == pair.address("server", "lte1", family=4) == of_kernel["inet"]
        assert pair.address("server", "lte1", family=6) == of_kernel["inet6"]
        with pytest.raises(LookupError, match="hosts client, server; found 'gateway'"):
            pair.address("gateway", "lte1")
        with pytest.raises(LookupError, match="links lte1, lte2; found 'wlan'"):
            pair.address("server", "wlan")


@needs_labs
def test_programs_run_as_those_of_subprocess_do(lab, tmp_path):
    with lab.up(PAIR) as pair:
        done = pair.run("client", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
        namespace = pair.run("client", "ip", "netns", "identify").stdout.strip()
        assert namespace == pair.hosts["client"].namespace
        assert pair.run("client", "cat", input=b"raw", text=False).stdout == b"raw"
        environment = os.environ | {"COLOUR": "red"}
        assert pair.run("client", "sh", "-c", "echo $COLOUR; pwd", env=environment, cwd=tmp_path).stdout == (
            f"red\n{tmp_path}\n"
        )
        with pytest.raises(subprocess.CalledProcessError):
            pair.run("client", "false", check=True)
        with pytest.raises(subprocess.TimeoutExpired):
            pair.run("client", "sleep", "60", timeout=0.5)
        assert sleeping(namespace) == 0
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            pair.run("client", "no-such-program")
        with pytest.raises(LookupError, match="hosts client, server; found 'gateway'"):
            pair.run("gateway", "true")


@needs_labs
def test_programs_that_were_started_end_with_the_lab(lab):
    with lab.up(PAIR) as pair:
        loop = "echo up; while :; do sleep 0.1; done"
        trapping = [f"trap 'echo ended; exit 0' TERM; {loop}", f"trap '' TERM; {loop}"]
        listening, stubborn = (
            pair.start("server", "sh", "-c", program, stdout=subprocess.PIPE, text=True)
            for program in trapping
        )
        assert listening.stdout.readline() == stubborn.stdout.readline() == "up\n"
    assert listening.returncode == 0 and listening.stdout.read() == "ended\n"
    assert stubborn.returncode == -signal.SIGKILL
    assert not left_of(pair.id)


@needs_labs
def test_events_happen_to_links(lab):
    with lab.up(PAIR) as pair:
        assert 10 <= milliseconds(ping(pair)) < 30
        pair.event("lte1", "blackhole")
        assert ping(pair).returncode == 1
        pair.event("lte1", "restore")
        assert ping(pair).returncode == 0
        pair.event("lte1", "adjust", direction="b", delay="50ms")
        assert 55 <= milliseconds(ping(pair)) < 90
        pair.event("lte1", "adjust", loss={"enter_bad": 1.0, "leave_bad": 0, "in_bad": "100%"})
        assert ping(pair).returncode == 1
        pair.event("lte1", "adjust", loss=0)
        assert ping(pair).returncode == 0
        pair.event("lte1", "interface_down", end="b")
        state = json.loads(pair.run("server", "ip", "-j", "link", "show", "lte1").stdout)
        assert "UP" not in state[0]["flags"]
        for action, more, says in [
            ("explode", {}, "blackhole"),
            ("adjust", {"rate": "fast"}, "rate"),
            ("adjust", {"speed": "1mbit"}, "speed"),
            ("adjust", {}, "set"),
        ]:
            with pytest.raises(lab.Error, match=says):
                pair.event("lte1", action, **more)
        with pytest.raises(LookupError, match="links lte1, lte2; found 'wlan'"):
            pair.event("wlan", "blackhole")


@needs_labs
def test_the_schedule_of_a_topology_is_told(lab):
    events = [{"at": "100ms", "action": "blackhole"}, {"at": "200ms", "action": "restore"}]
    topology = PAIR | {"links": [PAIR["links"][0] | {"events": events}]}
    with lab.up(topology) as pair:
        told = wait_for("events", lambda: (events := pair.events()) and len(events) == 2 and events)
    assert [(event.link, event.action, event.error) for event in told] == [
        ("lte1", "blackhole", None),
        ("lte1", "restore", None),
    ]
    assert all(event.at_s <= event.began_s <= event.done_s < event.at_s + 0.5 for event in told)


@needs_labs
def test_statistics_count_what_was_lost_by_cause(lab):
    with lab.up(PAIR) as pair:
        before = pair.statistics()["lte1"].a_to_b
        assert before.dropped == {}
        assert ping(pair).returncode == 0
        pair.event("lte1", "adjust", direction="b", loss="100%")
        ping(pair)
        pair.event("lte1", "blackhole")
        ping(pair)
        statistics = pair.statistics()["lte1"]
        dropped = statistics.a_to_b.dropped
        # Beside the three pings of each, there may be some of ARP and of IPv6.
        assert dropped["lost"] >= 3 and dropped["no_path"] >= 3 and dropped.keys() == {"lost", "no_path"}
        assert statistics.a_to_b.frames_out >= 3 and statistics.b_to_a.frames_out >= 3
        assert statistics.lateness.frames >= 6 and statistics.lateness.p50_ms <= statistics.lateness.max_ms
        assert pair.statistics()["lte2"].lateness is None


@needs_labs
def test_two_labs_live_side_by_side(lab):
    with lab.up(PAIR) as one, lab.up(PAIR) as other:
        assert one.id != other.id
        one.event("lte1", "blackhole")
        assert ping(one).returncode == 1 and ping(other).returncode == 0
        assert one.statistics()["lte1"].a_to_b.dropped and not other.statistics()["lte1"].a_to_b.dropped
        one.down()
        assert ping(other).returncode == 0
    assert not left_of(one.id) + left_of(other.id)


@needs_labs
def test_a_lab_that_is_down_says_so(lab):
    pair = lab.up(PAIR)
    pair.down()
    pair.down()
    for use in (lambda: ping(pair), pair.statistics, lambda: pair.event("lte1", "blackhole")):
        with pytest.raises(lab.Error, match=f"{pair.id} has ended"):
            use()


@needs_labs
def test_a_lab_that_another_ended_says_so(lab):
    with lab.up(PAIR) as pair:
        tool(PLAIT, "lab", "down", "--lab", pair.id)
        with pytest.raises(lab.Error, match=f"{pair.id} has ended"):
            wait_for("error", lambda: ping(pair) and None)


@needs_labs
def test_a_lab_whose_process_was_killed_says_so(lab):
    with pytest.raises(lab.Error, match="has ended"), lab.up(PAIR) as pair:
        os.kill(int(pair.id), signal.SIGKILL)
        wait_for("end of the process", lambda: not is_running(pair.id))
        ping(pair)
    tool(PLAIT, "doctor", "--clean")
    assert not left_of(pair.id)


@needs_labs
def test_what_the_command_says_beside_its_work_is_a_warning(lab, monkeypatch, tmp_path):
    talkative = tmp_path / "plait"
    talkative.write_text(f'#!/bin/sh\necho "the moon is full" >&2\nexec "{PLAIT}" "$@"\n')
    talkative.chmod(0o755)
    monkeypatch.setenv("PLAIT", str(talkative))
    with pytest.warns(UserWarning, match="^the moon is full$"), lab.up(PAIR) as pair:
        assert ping(pair).returncode == 0


@needs_labs
def test_an_exception_in_the_block_leaves_nothing(lab):
    with pytest.raises(ZeroDivisionError), lab.up(PAIR) as pair:
        running = pair.start("client", "sleep", "1000")
        1 / 0  # noqa: B018
    assert running.returncode == -signal.SIGTERM
    assert not left_of(pair.id)


PROGRAM = """
import sys
from plait import lab
pair = lab.up(text=sys.stdin.readline().replace(";", "\\n"))
pair.start("client", "sleep", "1000")
print(pair.id, flush=True)
"""


def begin(program, rest: str) -> tuple[subprocess.Popen, str]:
    """An interpreter whose lab is up, and the lab's id."""
    running = program(PROGRAM + rest)
    running.stdin.write(PAIR_TOML.replace("\n", ";") + "\n")
    running.stdin.flush()
    lab_id = running.stdout.readline().strip()
    assert lab_id, running.stderr.read()
    assert left_of(lab_id)
    return running, lab_id


@needs_labs
@pytest.mark.parametrize("rest", ["", "1 / 0", "sys.exit(3)", "del pair; sys.stdin.read()"])
def test_a_lab_ends_with_the_interpreter_or_when_it_is_forgotten(program, rest):
    running, lab_id = begin(program, rest)
    if rest.startswith("del"):
        wait_for("end of the lab", lambda: not left_of(lab_id))
        running.stdin.close()
    running.wait(20)
    assert not left_of(lab_id)


@needs_labs
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_a_killed_interpreter_takes_its_lab_along(program, how):
    running, lab_id = begin(program, "sys.stdin.read()")
    running.send_signal(signal.Signals[how])
    running.wait(10)
    wait_for("end of the lab", lambda: not left_of(lab_id))


@needs_labs
def test_what_is_left_when_both_are_killed_is_removed_by_doctor(program):
    running, lab_id = begin(program, "sys.stdin.read()")
    os.kill(int(lab_id), signal.SIGKILL)
    running.kill()
    running.wait(10)
    wait_for("end of the keeper", lambda: not is_running(lab_id))
    assert left_of(lab_id)
    tool(PLAIT, "doctor", "--clean")
    assert not left_of(lab_id)


@needs_labs
def test_ctrl_c_interrupts_a_program_and_leaves_the_lab(program):
    rest = """
try:
    pair.run("client", "sleep", "1000", stdout=None)
except KeyboardInterrupt:
    print(pair.run("server", "echo", "still there").stdout, flush=True)
"""
    running, lab_id = begin(program, rest)
    wait_for("second one to sleep", lambda: sleeping(f"plait-{lab_id}-client") == 2)
    running.send_signal(signal.SIGINT)
    assert running.stdout.readline() == "still there\n"
    running.wait(20)
    assert not left_of(lab_id)


@needs_labs
def test_neither_a_thread_nor_a_fork_ends_a_lab_by_its_own_end(lab):
    made = []
    thread = threading.Thread(target=lambda: made.append(lab.up(PAIR)))
    thread.start()
    thread.join()
    with made[0] as pair:
        fork = multiprocessing.get_context("fork").Process(target=pair.down)
        fork.start()
        fork.join()
        time.sleep(0.5)
        assert ping(pair).returncode == 0
    assert not left_of(pair.id)


# What goes wrong.


@needs_labs
def test_mistakes_show_their_line(lab, tmp_path):
    wrong = PAIR_TOML.replace("20mbit", "fast")
    file = tmp_path / "wrong.toml"
    file.write_text(wrong)
    for arguments in ({"topology": file}, {"text": wrong}):
        with pytest.raises(lab.Error) as caught:
            lab.up(**arguments)
        told = str(caught.value)
        assert ":9:" in told and 'each_way = { rate = "fast", delay = "5ms" }' in told, told
    with pytest.raises(lab.Error, match='b = "nobody"'):
        lab.up({"hosts": {"client": {}}, "links": [{"name": "x", "a": "client", "b": "nobody"}]})
    with pytest.raises(lab.Error, match="missing.toml"):
        lab.up(tmp_path / "missing.toml")
    with pytest.raises(lab.Error, match="warp"):
        lab.up(PAIR, backend="warp")
    with pytest.raises(lab.Error, match="expected"):
        lab.run(text=EXPERIMENT.replace("seconds", "parsecs"))


def test_a_missing_command_is_told(lab, monkeypatch):
    monkeypatch.setenv("PLAIT", "/nowhere/plait")
    for call in (lab.up, lab.run):
        with pytest.raises(FileNotFoundError, match="PLAIT.*'/nowhere/plait'"):
            call(text="")


def test_one_source_is_asked_for(lab):
    for arguments in ((), (PAIR, PAIR_TOML)):
        with pytest.raises(TypeError, match="only one"):
            lab.up(*arguments[:1], text=arguments[1] if arguments else None)


@needs_labs
def test_a_user_who_is_not_root_is_told(lab):
    os.seteuid(65534)
    try:
        if not os.access(PLAIT, os.X_OK, effective_ids=True):
            pytest.skip(f"{PLAIT} is not for every user")
        with pytest.raises(lab.Error, match="root"):
            lab.up(PAIR)
    finally:
        os.seteuid(0)


# Experiments.


@needs_labs
def test_results_are_those_of_the_command(lab, tmp_path):
    told = []
    results = lab.run(text=EXPERIMENT, output=tmp_path / "out", progress=told.append)
    assert results.valid and results.invalid_because == []
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results == lab.Results.read(tmp_path / "out")
    assert (results.experiment, results.repetitions, results.backend) == ("pings", 2, "emu")
    assert results.parameters == {"delay": ["2ms", "10ms"]}
    rows = results.table()
    assert [
        (row["delay"], row["metric"], row["n"], row["unit"], row["paper"], row["as_expected"]) for row in rows
    ] == [(delay, "took_s", 2, "s", 0.3, True) for delay in ("2ms", "10ms")]
    for row, variant in zip(rows, document["variants"], strict=True):
        in_document = variant["metrics"]["took_s"]
        assert all(row[name] == in_document[name] for name in ("mean", "stddev", "confidence", "min", "max"))
    values = results.values()
    assert [(row["delay"], row["repetition"]) for row in values] == [
        ("2ms", 1),
        ("2ms", 2),
        ("10ms", 1),
        ("10ms", 2),
    ]
    assert math.isclose(sum(row["value"] for row in values[:2]) / 2, rows[0]["mean"])
    assert [step.done for step in told] == sorted(step.done for step in told)
    assert told[0].done == 0 and told[0].of == 4 and told[0].thrown_away is None and "2ms" in told[0].what


@needs_labs
def test_an_experiment_can_be_varied(lab, tmp_path):
    results = lab.run(
        tomllib.loads(EXPERIMENT),
        repetitions=1,
        parameters={"delay": iter(["3ms"])},
        backend="emu",
        output=tmp_path,
    )
    assert results.repetitions == 1 and results.parameters == {"delay": ["3ms"]}
    assert set(results.metrics) == {"took_s[delay=3ms]"}
    with pytest.raises(lab.Error, match="speed"):
        lab.run(text=EXPERIMENT, parameters={"speed": [1, 2]}, output=tmp_path)
    for values, error in (([], "at least one"), (["1,2"], "comma")):
        with pytest.raises(ValueError, match=error):
            lab.run(text=EXPERIMENT, parameters={"delay": values})


@needs_labs
def test_results_that_are_not_valid_say_why(lab, tmp_path):
    failing = EXPERIMENT.replace('"ping", "-c"', '"false", "-c"')
    results = lab.run(text=failing, repetitions=1, parameters={"delay": "1ms"}, output=tmp_path)
    assert not results.valid and "false" in results.invalid_because[0]
    assert results.table()[0]["mean"] is None and results.values() == []


@needs_labs
def test_an_error_of_progress_ends_the_experiment(lab, tmp_path):
    running = set()

    def refuse(step):
        running.update(children(os.getpid()))
        if step.done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lab.run(text=EXPERIMENT, output=tmp_path, progress=refuse)
    assert running and not any(left_of(child) for child in running)
    assert not (tmp_path / "results.json").exists()


@needs_labs
def test_a_killed_interpreter_takes_its_experiment_along(program):
    running = program(f"""
from plait import lab
experiment = {EXPERIMENT!r}.replace('"3"', '"1000"')
lab.run(text=experiment, output="out", progress=lambda step: print(step.what, flush=True))
""")
    assert running.stdout.readline().startswith("repetition 1"), running.stderr.read()
    (experiment,) = children(running.pid)
    wait_for("namespaces of the experiment", lambda: len(left_of(experiment)) > 1)
    running.kill()
    wait_for("end of the experiment", lambda: not left_of(experiment))


def test_types_are_those_of_the_schema(lab):
    """The package's types name the same fields as the schema, all the way down."""
    schema = json.loads((REPOSITORY / "docs" / "schema" / "results.schema.json").read_text())

    def of_type(kind):
        arguments = [argument for argument in typing.get_args(kind) if argument is not type(None)]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return of_type(arguments[0]) if len(arguments) == 1 else None
        if typing.get_origin(kind) in (list, dict):
            return of_type(arguments[-1])
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            return {
                name: of_type(hint)
                for name, hint in hints.items()
                if name != "folder" or kind is not lab.Results
            }
        return None

    def of_schema(part):
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
        for several in ("anyOf", "oneOf"):
            if several in part:
                return of_schema(next(one for one in part[several] if one.get("type") != "null"))
        if "properties" in part:
            return {name: of_schema(field) for name, field in part["properties"].items()}
        inner = part.get("items") or part.get("additionalProperties")
        return of_schema(inner) if isinstance(inner, dict) else None

    assert of_type(lab.Results) == of_schema(schema)


# Dictionaries as TOML.


def test_what_is_written_reads_as_it_was(lab, tmp_path):
    hypothesis = pytest.importorskip("hypothesis")
    from hypothesis import strategies as some
    from hypothesis.configuration import set_hypothesis_home_dir
    from plait import _toml

    texts = some.text(some.characters(blacklist_categories=("Cs",)), max_size=8)
    scalars = texts | some.booleans() | some.integers(-(2**63), 2**63 - 1) | some.floats(allow_nan=False)
    values = some.recursive(
        scalars, lambda inner: some.lists(inner, max_size=4) | some.dictionaries(texts, inner, max_size=4)
    )

    set_hypothesis_home_dir(tmp_path)

    @hypothesis.settings(max_examples=200, deadline=None, database=None)
    @hypothesis.given(some.dictionaries(texts, values, max_size=5))
    def check(document):
        assert tomllib.loads(_toml.dumps(document)) == document

    check()


def test_other_values_are_written_as_what_they_mean_or_refused(lab):
    from plait import _toml

    document = {
        "trace": pathlib.Path("a b/c"),
        "loss": fractions.Fraction(1, 4),
        "flags": ("signal",),
        "odd": math.nan,
    }
    read = tomllib.loads(_toml.dumps(document))
    assert math.isnan(read.pop("odd"))
    assert read == {"trace": "a b/c", "loss": 0.25, "flags": ["signal"]}
    for wrong, place in [
        ({"links": [{"name": None}]}, "'name' of links"),
        ({"links": [{"a": {1: "client"}}]}, "key of links.a"),
        ({"name": b"lte"}, "'name' of the document"),
    ]:
        with pytest.raises(TypeError, match=place):
            _toml.dumps(wrong)


# The documentation.


@needs_labs
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0])
def test_the_examples_of_the_documentation_work(program, example):
    running = program(example)
    printed, complained = running.communicate(timeout=120)
    assert running.returncode == 0, complained
    rows = [ast.literal_eval(line) for line in printed.splitlines()]
    by_loss = {}
    for row in rows:
        (mbps,) = (row[column] for column in ("mbps", "mean", "value") if column in row)
        by_loss.setdefault(row["loss"], []).append(mbps)
    first, *_, last = by_loss.values()
    # What a 20 Mb/s link leaves to TCP without loss, and less with it.
    assert len(by_loss) >= 2 and len(rows) >= 3
    assert all(15 < mbps < 20 for mbps in first) and max(last) < 0.5 * min(first), by_loss
