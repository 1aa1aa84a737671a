"""`plait lab run` and `plait lab results`: measures agree with the programs and the kernel."""

import json
import os
import signal
import subprocess

import pytest
from hosts import PLAIT, reason_to_skip, tool, wait_for
from labs import experiment, two_hosts
from schema import mistakes

UPLOAD = experiment(
    "upload",
    """
[hosts.client]
mptcp = { subflows = 4, add_addr_accepted = 4 }
[hosts.server]
mptcp = { subflows = 4, add_addr_accepted = 4 }
[[links]]
name = "lte"
role = "trusted"
a = "client"
b = "server"
each_way = { rate = "8mbit", delay = "5ms" }
[[links]]
name = "wlan"
a = "client"
b = { host = "server", endpoint = ["signal"] }
each_way = { rate = "4mbit", delay = "10ms" }

[[services]]
name = "sink"
host = "server"
kind = "iperf3"
mptcp = true

[[steps]]
name = "upload"
host = "client"
mptcp = true
command = ["iperf3", "--client", "${server.lte}", "--time", "2", "--json"]

[capture]
on = ["client", "server"]

[metrics.goodput_mbps]
measure = "goodput"
at = "server"
paper = { entry = "paper/table/goodput", value = 11, factor = 2 }
expect = { at_least = 1 }
[metrics.iperf_mbps]
measure = "json"
pointer = "/end/sum_received/bits_per_second"
scale = 1e-6
unit = "Mb/s"
[metrics.subflows]
measure = "subflows"
[metrics.joins]
measure = "counter"
host = "server"
counter = "MPTcpExtMPJoinAckRx"
[metrics.connections]
measure = "counter"
host = "server"
counter = "MPTcpExtMPCapableACKRX"
[metrics.rtt_ms]
measure = "rtt_ms"
path = "wlan"
statistic = "min"
[metrics.of_links]
measure = "ratio"
numerator = "goodput_mbps"
denominator_value = 12
[[plots]]
title = "Throughput of the upload"
kind = "throughput"
""",
    'note = "What has to be known."\nrepetitions = 2\nquick = { repetitions = 1 }\nlateness_limit = "1s"',
)

SWEEP = experiment(
    "sweep",
    """
[parameters]
way = ["there", "back"]
size = [1, 2]
[hosts.one]
[[steps]]
name = "count"
host = "one"
command = ["echo", '{"found": ${size}}']
[metrics.found]
measure = "json"
pointer = "/found"
paper = [{ when = { size = 2 }, entry = "paper/figure/found", value = 2.5, sigma = 0.2, differs = { because = "it counts", tested_by = "sweep" } }]
expect = [{ when = { way = "back", size = 2 }, at_least = 3 }]
[metrics.gain]
measure = "ratio"
numerator = "found"
denominator = "found"
denominator_variant = { size = 1 }
[[plots]]
title = "What was found"
metric = "found"
x = "size"
series = "way"
""",
    "repetitions = 2\nquick = { repetitions = 1, parameters = { size = [1] } }",
)

CUT_LINK = """
each_way = { rate = "8mbit", delay = "5ms", queue = "30kB" }
events = [{ at = "1s", action = "blackhole" }, { at = "2s", action = "restore" }]
"""
CUT = experiment(
    "cut",
    two_hosts(CUT_LINK, "only")
    + """
[[services]]
name = "sink"
host = "server"
kind = "iperf3"
[[steps]]
name = "wait"
host = "client"
command = ["sleep", "0.5"]
[[steps]]
name = "upload"
host = "client"
starts_clock = true
command = ["iperf3", "--client", "${server.only}", "--time", "4", "--json"]
[capture]
on = ["server"]
[metrics.gap_s]
measure = "longest_gap_s"
from = "0.5s"
to = "2s"
[metrics.return_s]
measure = "recovery_s"
path = "only"
after = "2s"
[metrics.before_mbps]
measure = "throughput"
from = "0.5s"
to = "1s"
[metrics.during_mbps]
measure = "throughput"
from = "1.1s"
to = "2s"
[metrics.survived]
measure = "survived"
[metrics.waited_s]
measure = "duration_s"
""",
    'repetitions = 1\nlateness_limit = "1s"',
)

READ = experiment(
    "read",
    two_hosts('role = "${role}"\neach_way = { rate = "50mbit", delay = "1ms" }\n', "only")
    + """
[parameters]
role = ["trusted", "untrusted"]
[[services]]
name = "web"
host = "server"
kind = "nginx"
port = 8080
document = "300kB"
mptcp = true
[[steps]]
name = "get"
host = "client"
mptcp = true
command = ["curl", "-sS", "--fail", "-o", "/dev/null", "http://${server.only}:8080/document"]
[capture]
on = ["client"]
[metrics.readable]
measure = "readable"
path = "only"
document = "web/www/document"
[metrics.exposure]
measure = "exposure"
path = "only"
[metrics.first_flight_trusted]
measure = "first_flight_trusted"
[metrics.completion_s]
measure = "completion_s"
""",
    'repetitions = 1\nlateness_limit = "1s"',
)

READY = experiment(
    "ready",
    """
[hosts.one]
[[services]]
name = "slow"
host = "one"
command = ["sh", "-c", "sleep 0.3; touch ${directory}/it-is-there; exec sleep 60"]
ready = ["test", "-e", "${directory}/it-is-there"]
[[steps]]
name = "look"
host = "one"
command = ["sh", "-c", '''test -e ${directory}/it-is-there && printf '{"found": %s}' 1 9 4 2''']
[metrics.found]
measure = "json"
pointer = "/found"
""",
)


@pytest.fixture
def lab(tmp_path):
    """Runs an experiment, from stdin or from a file; nothing may be left of it."""
    if reason := reason_to_skip():
        pytest.skip(reason)

    def run(text: str, directory, *options, from_stdin=True) -> subprocess.CompletedProcess:
        file = tmp_path / "experiment.toml"
        file.write_text(text)
        command = [PLAIT, "lab", "run", "-" if from_stdin else file, "-o", directory, *options]
        pipes = {"stdin": file.open(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with pipes["stdin"], subprocess.Popen(command, text=True, cwd=tmp_path, **pipes) as program:
            stdout, stderr = program.communicate(timeout=120)
        assert f"plait-{program.pid}-" not in tool("ip", "netns", "list")
        return subprocess.CompletedProcess(command, program.returncode, stdout, stderr)

    return run


def results(directory) -> dict:
    return json.loads((directory / "results.json").read_text())


def validate(document: dict):
    errors = mistakes(document, "results")
    assert not errors, errors[:5]


def measured(lab, text: str, directory, *options) -> dict:
    """The results of an experiment that succeeds."""
    done = lab(text, directory, *options)
    assert done.returncode == 0, done.stderr
    found = results(directory)
    validate(found)
    return found


def test_measures_agree_with_iperf3_and_the_kernel(lab, tmp_path):
    done = lab(UPLOAD, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = results(tmp_path)
    assert json.loads(done.stdout) == found
    validate(found)
    assert found["valid"] and not found["quick"] and found["backend"] == "emu"
    assert found["kernel"] == os.uname().release
    (variant,) = found["variants"]
    valid = [run for run in variant["repetitions"] if run["valid"]]
    assert len(valid) == 2
    for run in valid:
        metrics = run["metrics"]
        # iperf3 divides by its own time and does not count its handshake.
        assert metrics["goodput_mbps"] == pytest.approx(metrics["iperf_mbps"], rel=0.1)
        # Each of iperf3's connections, control and data, has the same number of subflows.
        assert metrics["connections"] == 2
        assert metrics["subflows"] == 1 + metrics["joins"] / metrics["connections"]
        assert 19.8 <= metrics["rtt_ms"] <= 30
        assert metrics["of_links"] == pytest.approx(metrics["goodput_mbps"] / 12)
        assert run["links"]["lte"]["lateness_p99_ms"] > 0
    measured = found["metrics"]["goodput_mbps"]
    values = [run["metrics"]["goodput_mbps"] for run in valid]
    assert measured["mean"] == pytest.approx(sum(values) / 2)
    assert measured["stddev"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    # Student's t with one degree of freedom.
    assert measured["confidence"] == pytest.approx(12.7062 * measured["stddev"] / 2**0.5, rel=1e-4)
    paper = measured["paper"]
    assert (paper["value"], paper["verdict"], paper["because"]) == (11, "reproduced", None)
    assert measured["expect"]["met"]
    analysis = variant["analysis"]
    document = json.loads((tmp_path / analysis["directory"] / "analysis.json").read_text())
    assert analysis["connection"] in {connection["id"] for connection in document["connections"]}
    assert (tmp_path / analysis["directory"] / "report.html").exists()
    assert (tmp_path / found["plots"][0]["png"]).read_bytes().startswith(b"\x89PNG")


def test_a_step_waits_until_its_service_is_ready(lab, tmp_path):
    found = measured(lab, READY, tmp_path / "out")
    # Of four documents.
    assert found["metrics"]["found"]["mean"] == 3


def test_a_service_that_ends_before_it_is_ready_is_an_error(lab, tmp_path):
    ends = READY.replace("exec sleep 60", "echo nothing to do >&2").replace("touch", "true")
    done = lab(ends, tmp_path / "out", from_stdin=False)
    assert done.returncode == 1
    assert f"{tmp_path}/experiment.toml:" in done.stderr
    assert "the service slow did not start" in done.stderr and "nothing to do" in done.stderr


@pytest.mark.alone
def test_gap_and_recovery_measure_a_blackhole(lab, tmp_path):
    found = measured(lab, CUT, tmp_path)
    (run,) = [run for run in found["variants"][0]["repetitions"] if run["valid"]]
    assert [event["action"] for event in run["events"]] == ["blackhole", "restore"]
    for event in run["events"]:
        assert event["applied_s"] == pytest.approx(event["at_s"], abs=0.1)
    metrics = run["metrics"]
    assert metrics["before_mbps"] == pytest.approx(8 * 1448 / 1514, rel=0.1)
    assert metrics["during_mbps"] == 0
    # The gap lasts from the cut until new data arrives.
    assert metrics["gap_s"] == pytest.approx(1 + metrics["return_s"], abs=0.15)
    assert metrics["survived"] == 1
    assert 0.5 <= metrics["waited_s"] < 1


def test_measures_eavesdropping_and_the_path_of_the_first_flight(lab, tmp_path):
    found = measured(lab, READ, tmp_path)
    means = {name: measured["mean"] for name, measured in found["metrics"].items()}
    for role, first_flight in (("trusted", 1), ("untrusted", 0)):
        assert means[f"readable[role={role}]"] == 1
        assert means[f"exposure[role={role}]"] == 1
        assert means[f"first_flight_trusted[role={role}]"] == first_flight
        assert 300e3 * 8 / 50e6 < means[f"completion_s[role={role}]"] < 2


def test_what_truncated_captures_reveal_is_not_judged(lab, tmp_path):
    truncated = READ.replace('on = ["client"]', 'on = ["client"]\nsnaplen = 160')
    done = lab(truncated, tmp_path, "-n", "1", "-p", "role=trusted")
    assert done.returncode == 1
    found = results(tmp_path)
    assert found["metrics"]["readable[role=trusted]"]["n"] == 0
    (reason,) = found["variants"][0]["repetitions"][0]["invalid_because"]
    assert reason.startswith("readable could not be measured: cannot judge: 9")
    assert "of what crossed only was not captured" in reason and "snaplen" in reason


def test_late_runs_are_discarded(lab, tmp_path):
    done = lab(READ.replace('"1s"', '"0.001ms"'), tmp_path, "-n", "1", "-p", "role=trusted")
    assert done.returncode == 1
    assert "0 of 1 repetitions are valid" in done.stderr and "late" in done.stderr
    found = results(tmp_path)
    validate(found)
    assert not found["valid"] and found["invalid_because"]
    assert found["metrics"]["exposure[role=trusted]"]["n"] == 0, "discarded repetitions are not averaged"
    assert all(not run["valid"] for run in found["variants"][0]["repetitions"])


def test_an_interrupted_run_leaves_nothing(lab, tmp_path):
    file = tmp_path / "cut.toml"
    file.write_text(CUT)
    with subprocess.Popen(
        [PLAIT, "lab", "run", str(file), "-o", str(tmp_path / "out")], stderr=subprocess.PIPE
    ) as program:
        mine = f"plait-{program.pid}-"
        wait_for("namespaces of the run", lambda: mine in tool("ip", "netns", "list"))
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=20)
    assert program.returncode == 1 and b"interrupted" in errors
    assert mine not in tool("ip", "netns", "list")
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_failed_step_fails_the_run(lab, tmp_path):
    done = lab(SWEEP.replace('["echo", ', '["false", '), tmp_path, "--quick", "-p", "way=there")
    assert done.returncode == 1
    assert "the step count failed" in done.stderr


def test_parameters_make_variants(lab, tmp_path):
    found = measured(lab, SWEEP, tmp_path)
    names = [variant["name"] for variant in found["variants"]]
    assert names == ["way=there, size=1", "way=there, size=2", "way=back, size=1", "way=back, size=2"]
    metrics = found["metrics"]
    assert metrics["found[way=back,size=2]"]["mean"] == 2
    assert metrics["gain[way=back,size=2]"]["mean"] == 2
    assert metrics["found[way=there,size=1]"]["paper"] is None
    paper = metrics["found[way=there,size=2]"]["paper"]
    assert (paper["value"], paper["verdict"], paper["because"]) == (2.5, "differs", "it counts")
    assert metrics["found[way=back,size=2]"]["expect"] == {"at_least": 3, "at_most": None, "met": False}
    assert metrics["found[way=there,size=2]"]["expect"] is None
    # Variants alternate, so that a change on the machine affects all.
    runs = [
        (run["number"], index)
        for index, variant in enumerate(found["variants"])
        for run in variant["repetitions"]
    ]
    assert sorted(runs) == [(number, index) for number in (1, 2) for index in range(4)]

    done = lab(SWEEP, tmp_path, "--quick", "-p", "way=back,forth", "--progress")
    assert done.returncode == 0, done.stderr
    progress = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(at["done"], at["total"]) for at in progress] == [(0, 2), (1, 2), (2, 2)]
    assert progress[1] == {
        "done": 1,
        "total": 2,
        "activity": "repetition 1, way=forth, size=1",
        "discarded": None,
    }
    found = results(tmp_path)
    assert found["quick"] and found["parameters"] == {"way": ["back", "forth"], "size": [1]}


PAPERS = """
[[papers]]
id = "paper"
title = "A paper"
cite = "Somebody: A paper"
[[papers.items]]
id = "table"
name = "Table 1"
what = "Goodput"
section = "2"
experiments = ["upload"]
values = [{ id = "goodput", row = "Goodput", value = 11, unit = "Mb/s" }]
[[papers.items]]
id = "figure"
name = "Figure 1"
what = "What is found"
section = "2"
experiments = ["sweep"]
values = [
    { id = "found", row = "Found", value = 2.5, sigma = 0.2 },
    { id = "lost", row = "Lost", value = 1, not_done = "a way to lose" },
]
[[papers.items]]
id = "drawing"
name = "Figure 2"
what = "A drawing"
section = "1"
not_comparable = "a drawing"
[[papers.items]]
id = "again"
name = "Figure 3"
what = "The table as a picture"
section = "2"
shows = ["paper/table"]
"""


def write_pages(book, *arguments) -> subprocess.CompletedProcess:
    command = [PLAIT, "lab", "results", *arguments, "-o", book]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=20, check=False)


def test_pages_have_a_verdict_for_every_table_and_figure(lab, tmp_path):
    for name, text, options in (("upload", UPLOAD, ["--quick"]), ("sweep", SWEEP, [])):
        measured(lab, text, tmp_path / name, *options)
    # A number that was not measured.
    file = tmp_path / "sweep" / "results.json"
    edited = results(tmp_path / "sweep")
    edited["variants"][3]["metrics"]["found"]["mean"] = 12.34
    file.write_text(json.dumps(edited))
    (tmp_path / "experiments").mkdir()
    papers = tmp_path / "experiments" / "paper-values.toml"
    papers.write_text(PAPERS)
    book = tmp_path / "book"
    done = write_pages(book, tmp_path / "upload", tmp_path / "sweep", "--papers", papers)
    assert done.returncode == 0, done.stderr
    first, page = (book / "README.md").read_text(), (book / "paper.md").read_text()
    # Of four items: the table and its picture are reproduced, one figure differs, and one is a drawing.
    assert "| all | 2 | 1 | 1 | 0 |" in first
    assert "| all | 1 | 2 | 0 | 1 |" in first, "of four values, one for each variant that is compared"
    assert "| [Figure 1](paper.md#figure-1) | What is found | differs |" in first
    table, figure, drawing, again = page.split("\n## ")[1:5]
    assert "**reproduced**" in table and "| Goodput, Mb/s | 11 |" in table
    assert "| 12.34 \N{PLUS-MINUS SIGN} 0 | 2 | differs | it counts; tested: sweep" in figure
    assert "| Lost | 1 |  |  | not yet done | a way to lose |" in figure
    assert "**not comparable**: a drawing." in drawing
    assert "**reproduced**: shows the values of Table 1" in again
    assert "(QUICK)" in page and "What has to be known." in page
    assert "as expected" not in first + page
    for picture in ("upload-1-throughput-of-the-upload.svg", "sweep-1-what-was-found.svg"):
        assert f"](measured/{picture})" in page
        assert (book / "measured" / picture).read_text().startswith("<svg")


def test_pages_are_judged_by_the_experiments_as_they_are_now(lab, tmp_path):
    measured(lab, SWEEP, tmp_path / "sweep")
    (tmp_path / "paper-values.toml").write_text(PAPERS)
    book = tmp_path / "book"
    assert write_pages(book, tmp_path / "sweep", "--papers", tmp_path / "paper-values.toml").returncode == 0
    assert "| differs | it counts" in (book / "paper.md").read_text()
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("sigma = 0.2", "sigma = 0.2, factor = 1.3"))
    assert write_pages(book, "--papers", tmp_path / "paper-values.toml").returncode == 0
    page = (book / "paper.md").read_text()
    assert "| reproduced | within a factor of 1.3 |" in page and "| differs |" not in page


def test_runs_of_one_experiment_are_identified_by_their_directories(lab, tmp_path):
    for name, way in (("there", "back"), ("else", "forth")):
        measured(lab, SWEEP, tmp_path / name, "-p", f"way={way}")
    book = tmp_path / "book"
    done = write_pages(book, tmp_path / "there", tmp_path / "else")
    assert done.returncode == 0, done.stderr
    page = (book / "README.md").read_text()
    assert "Our own experiments" in page
    for name in ("there", "else"):
        picture = f"{name}-1-what-was-found.svg"
        assert f"](measured/{picture})" in page
        assert (book / "measured" / picture).read_text() == (
            tmp_path / name / "plots" / "1-what-was-found.svg"
        ).read_text()
    done = write_pages(book, tmp_path / "else", tmp_path / "else")
    assert done.returncode == 1 and "directories of different names" in done.stderr
    # A later run replaces all earlier ones of its experiment.
    assert write_pages(book, tmp_path / "else").returncode == 0
    assert sorted(path.name for path in (book / "measured").iterdir()) == [
        "else-1-what-was-found.svg",
        "else.json",
    ]


SEEDED = experiment(
    "seeded",
    two_hosts()
    + """
[[services]]
name = "web"
host = "server"
kind = "nginx"
port = 8080
document = "100kB"
[[steps]]
name = "fetch"
host = "client"
command = ["sh", "-c", "curl -sS --fail http://${server.wire}:8080/document | cksum | sed 's/ .*//'; echo $PLAIT_SEED"]
[metrics.seconds]
measure = "duration_s"
""",
)


def test_a_seed_repeats_documents_and_the_seeds_of_programs(lab, tmp_path):
    def found(name: str, *options: str) -> tuple:
        document = measured(lab, SEEDED, tmp_path / name, *options)
        return document["seed"], (tmp_path / name / "run" / "fetch.stdout").read_text()

    first, again = found("first", "--seed", "7"), found("again", "--seed", "7")
    assert first == again and first[0] == 7
    other = found("other")
    assert other[0] != 7 and other[1] != first[1]
    # A random seed is named, and repeats the run.
    assert found("repeated", "--seed", str(other[0])) == other


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("repetitions = 2", "repetition = 2"), "repetition = 2", "unknown field `repetition`"),
        (
            ("repetitions = 2", "repetitions = 0"),
            "repetitions = 0",
            "expected 1 to 1000 repetitions, got 0",
        ),
        (('host = "one"', 'host = "two"'), 'host = "two"', 'expected one of the hosts one, got "two"'),
        (('measure = "json"', 'measure = "guess"'), 'measure = "guess"', "expected one of `throughput`"),
        (('pointer = "/found"', 'path = "lte"'), "[metrics.found]", "expected the key `pointer`"),
        (
            ('numerator = "found"', 'numerator = "lost"'),
            'numerator = "lost"',
            'expected one of the metrics above (found), got "lost"',
        ),
        (
            ("denominator_variant = { size = 1 }", "denominator_variant = { colour = 1 }"),
            "denominator_variant",
            'got "colour"',
        ),
        (
            ("denominator_variant = { size = 1 }", "denominator_variant = { size = 9 }"),
            "[metrics.gain]",
            "size=9",
        ),
        (('x = "size"', 'x = "length"'), 'x = "length"', "expected one of the parameters (way, size)"),
        (("{ size = [1] }", "{ width = [1] }"), "width", "expected one of the parameters (way, size)"),
        (("size = [1, 2]", "size = []"), "size = []", "expected a list of values"),
        (('command = ["echo"', 'command = ["${shape}"'), "${shape}", 'got the parameter "shape"'),
        (('measure = "json"', 'measure = "subflows"'), "[metrics.found]", "expected a [capture]"),
    ],
)
def test_errors_in_the_file_are_reported_with_their_line(tmp_path, change, line, message):
    assert change[0] in SWEEP
    text = SWEEP.replace(*change)
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    command = [PLAIT, "lab", "run", str(file), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    number = next(number for number, found in enumerate(text.splitlines(), 1) if line in found)
    assert f"{file}:{number}:" in done.stderr, done.stderr
    assert message in done.stderr, done.stderr
