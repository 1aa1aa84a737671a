"""Files and stdout of `plait analyze`, read by independent programs."""

import csv
import datetime
import json
import os
import pathlib
import subprocess
import threading

import pytest
from captures import analyze, connections, pcap, segment
from hosts import PLAIT, tool, wait_for
from package import VENV_PYTHON, skip_without
from schema import mistakes
from streams import MPTCP, accept, listen, receive_exactly

FILES = {"analysis.json", "connections.csv", "subflows.csv", "series.parquet", "report.html", "plots"}
WAYS = ("client_to_server", "server_to_client")

READERS = {
    "duckdb": """
import duckdb
rows = duckdb.sql(f"select connection, subflow, direction, sum(bytes)::bigint, sum(new_bytes)::bigint, min(time)::varchar, "
                  f"typeof(any_value(time)) from '{file}' group by all").fetchall()
""",
    "polars": """
import polars
table = polars.read_parquet(file)
assert str(table.schema["time"]) == "Datetime(time_unit='ns', time_zone='UTC')", table.schema["time"]
sums = table.group_by("connection", "subflow", "direction").agg(polars.sum("bytes"), polars.sum("new_bytes"))
rows = sums.rows()
""",
    "pyarrow": """
import pyarrow.parquet
table = pyarrow.parquet.read_table(file)
assert str(table.schema.field("time").type) == "timestamp[ns, tz=UTC]", table.schema.field("time")
sums = table.group_by(["connection", "subflow", "direction"]).aggregate([("bytes", "sum"), ("new_bytes", "sum")])
columns = ("connection", "subflow", "direction", "bytes_sum", "new_bytes_sum")
rows = [[row[name] for name in columns] for row in sums.to_pylist()]
""",
}


def sums(reader: str, file: pathlib.Path) -> dict:
    """All bytes and new bytes by connection, subflow and direction, as an independent reader adds them up."""
    skip_without(reader)
    program = f"import json\nfile = {str(file)!r}\n{READERS[reader]}\nprint(json.dumps([list(row)[:5] for row in rows]))"
    rows = json.loads(tool(VENV_PYTHON, "-c", program))
    return {(connection, subflow, way): tuple(counts) for connection, subflow, way, *counts in rows}


def names(directory: pathlib.Path) -> set:
    return {entry.name for entry in directory.iterdir()} if directory.exists() else set()


@pytest.fixture
def transfer(make_pair):
    """Captures of an MPTCP connection with two subflows, and how many bytes each application sent."""
    pair = make_pair(rate="50mbit")
    sent, answered = 5_000_000, 700_001
    # On all addresses: the second subflow arrives at another one.
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)

    def serve():
        with accept(listener) as connection:
            receive_exactly(connection, sent)
            connection.sendall(bytes(answered))

    server = threading.Thread(target=serve)
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        server.start()
        client = pair.client.socket(protocol=MPTCP)
        client.settimeout(20)
        client.connect((pair.ETH, 9000))
        client.sendall(bytes(sent))
        receive_exactly(client, answered)
        assert client.recv(1) == b""
        client.close()
        server.join(20)
    return [eth.file, wlan.file], {"client_to_server": sent, "server_to_client": answered}


def test_subflows_add_up_to_application_bytes(transfer):
    captures, counted = transfer
    (connection,) = json.loads(analyze("--json", *captures).stdout)["connections"]
    for way in WAYS:
        sent = [subflow["directions"][way] for subflow in connection["subflows"]]
        assert sum(part["new_bytes"] for part in sent) == connection["new_bytes"][way] == counted[way]
        assert sum(part["bytes"] for part in sent) == connection["bytes"][way]


@pytest.mark.parametrize("reader", READERS)
def test_series_add_up_to_application_bytes(transfer, tmp_path, reader):
    captures, counted = transfer
    directory = tmp_path / "out"
    done = analyze("-o", directory, "--interval", "20ms", *captures)
    assert done.returncode == 0, done.stderr
    assert names(directory) == FILES
    (connection,) = json.loads((directory / "analysis.json").read_text())["connections"]
    assert connection["new_bytes"] == counted
    assert len([subflow for subflow in connection["subflows"] if subflow["accepted"]]) == 2
    expected = {
        (connection["id"], number, way): (sent["bytes"], sent["new_bytes"])
        for number, subflow in enumerate(connection["subflows"], start=1)
        for way, sent in subflow["directions"].items()
    }
    assert sums(reader, directory / "series.parquet") == expected


def test_csv_tables_match_document(transfer, tmp_path):
    captures, _ = transfer
    assert analyze("-o", tmp_path, *captures).returncode == 0
    (connection,) = json.loads((tmp_path / "analysis.json").read_text())["connections"]
    with (tmp_path / "connections.csv").open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert row["token_client"] == connection["token_client"]
    assert datetime.datetime.fromisoformat(row["start"]).timestamp() == pytest.approx(
        connection["start"], abs=2e-6
    )
    assert int(row["bytes_server_to_client"]) == connection["bytes"]["server_to_client"]
    with (tmp_path / "subflows.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [f"{row['src_address']}:{row['src_port']}" for row in rows] == [
        subflow["src"] for subflow in connection["subflows"]
    ]
    for row, subflow in zip(rows, connection["subflows"], strict=True):
        for way, sent in subflow["directions"].items():
            assert int(row[f"packets_{way}"]) == sent["packets"]
            assert int(row[f"reinjected_bytes_{way}"]) == sent["reinjected"]["bytes"]
            mean = row[f"rtt_mean_s_{way}"]
            assert (float(mean) if mean else None) == (sent["rtt_ms"] and sent["rtt_ms"]["mean"] / 1e3)


def test_printed_table_has_mean_and_stddev_per_path(transfer, tmp_path):
    captures, _ = transfer
    shown = analyze("-o", tmp_path, "--interval", "100ms", *captures).stdout
    (connection,) = json.loads((tmp_path / "analysis.json").read_text())["connections"]
    rows = [line.split() for line in shown.splitlines() if line.split()[1:2] == ["sent"]]
    assert [row[0] for row in rows] == ["1", "2", "total"]
    assert int(rows[2][2]) == connection["bytes"]["client_to_server"]
    for row, subflow in zip(rows, connection["subflows"], strict=False):
        sent = subflow["directions"]["client_to_server"]
        _, _, count, _, _, mean, stddev, rtt, rtt_stddev, *_ = row
        assert int(count) == sent["bytes"]
        # Over whole intervals, so a little less than over the time of the subflow.
        assert float(mean) == pytest.approx(sent["bytes"] * 8 / 1e6 / subflow["duration_s"], rel=0.3)
        assert float(stddev) > 0
        if sent["rtt_ms"] is None:
            assert (rtt, rtt_stddev) == ("-", "-")
            continue
        assert float(rtt) == pytest.approx(sent["rtt_ms"]["mean"], abs=0.0006)
        assert float(rtt_stddev) == pytest.approx(sent["rtt_ms"]["stddev"], abs=0.0006)


def documents(tmp_path) -> dict:
    """Real output by the name of its capture."""
    small = tmp_path / "small.pcap"
    small.write_bytes(connections(3)[:-1])
    captures = [small]
    if directory := os.environ.get("PLAIT_CAPTURES"):
        captures += sorted(pathlib.Path(directory).glob("*.pcap*"))
    return {file.name: json.loads(analyze("--json", file).stdout) for file in captures}


def test_documents_match_schema(tmp_path):
    for name, document in documents(tmp_path).items():
        errors = mistakes(document, "analysis")
        assert not errors, (name, errors[:5])


def test_killed_analysis_leaves_no_complete_file(tmp_path):
    directory = tmp_path / "out"
    capture = connections(2000)
    command = [PLAIT, "analyze", "-o", directory, "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
        program.stdin.write(capture[: len(capture) // 2])
        program.stdin.flush()
        wait_for("a partial file", lambda: any(name.endswith(".partial") for name in names(directory)))
        program.kill()
    assert not names(directory) & (FILES - {"plots"})
    assert analyze("-o", directory, "-", stdin=None, input=None).returncode == 1
    file = tmp_path / "whole.pcap"
    file.write_bytes(capture)
    assert analyze("-o", directory, file).returncode == 0
    assert names(directory) == FILES
    assert len(json.loads((directory / "analysis.json").read_text())["connections"]) == 2000


def test_full_disk_is_reported_and_leaves_nothing(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    tool("mount", "-t", "tmpfs", "-o", "size=64k", f"plait-test-{os.getpid()}", str(disk))
    try:
        file = tmp_path / "many.pcap"
        file.write_bytes(connections(2000))
        done = analyze("-o", disk / "out", file)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr and str(disk / "out") in done.stderr
        assert "panicked" not in done.stderr
        assert names(disk / "out") <= {"plots"}
    finally:
        tool("umount", str(disk))


@pytest.mark.parametrize("options", [("--json",), ("--all",), ()])
def test_unwritable_stdout_is_an_error(tmp_path, options):
    file = tmp_path / "some.pcap"
    file.write_bytes(connections(5))
    with open("/dev/full", "w") as full:
        done = analyze(*options, file, stdout=full)
    assert done.returncode == 1
    assert "stdout" in done.stderr and "No space left on device" in done.stderr
    assert "panicked" not in done.stderr


@pytest.mark.parametrize("command", ["paths", "status", "doctor"])
@pytest.mark.parametrize("options", [("--json",), ()])
def test_other_commands_report_unwritable_stdout(command, options):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PLAIT, command, *options], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "stdout" in done.stderr and "No space left on device" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([PLAIT, command, *options], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    # The doctor fails where something is missing.
    assert done.returncode == 0 or command == "doctor"
    assert "panicked" not in done.stderr and "pipe" not in done.stderr


@pytest.mark.parametrize("options", [("--json",), ("--all",), ()])
@pytest.mark.parametrize("to_directory", [False, True])
def test_closed_pipe_is_not_an_error(tmp_path, options, to_directory):
    file, directory = tmp_path / "some.pcap", tmp_path / "out"
    file.write_bytes(connections(500))
    command = [PLAIT, "analyze", *options, *(("-o", directory) if to_directory else ()), file]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr and "pipe" not in done.stderr
    assert names(directory) == (FILES if to_directory else set())


def test_prints_largest_connections(tmp_path):
    file = tmp_path / "many.pcap"
    file.write_bytes(connections(25))
    shown = analyze(file).stdout
    numbers = [line.split(":")[0] for line in shown.splitlines() if line.startswith("Connection ")]
    assert numbers == [f"Connection {number}" for number in range(6, 26)]
    assert "5 smaller connections with 15 bytes in total; --all prints them too" in shown
    everything = analyze("--all", file).stdout
    assert everything.count("Connection ") == 25 and "--all" not in everything


def test_each_analyzes_captures_separately(tmp_path):
    """Names that repeat, or have quotes and line ends in them, and one that is not a capture."""
    odd = 'a "b",\nc.pcap'
    captures = [tmp_path / name for name in ("one/x.pcap", "two/x.pcap", odd, "bad.pcap")]
    for count, capture in enumerate(captures, start=1):
        capture.parent.mkdir(exist_ok=True)
        capture.write_bytes(connections(count))
    captures[3].write_bytes(b"no capture at all, only text")
    directory = tmp_path / "out"
    done = analyze("--each", "--json", "-o", directory, *captures)
    assert done.returncode == 1
    assert "bad.pcap" in done.stderr and "1 of 4 captures failed" in done.stderr
    assert names(directory) == {"x.pcap", "x.pcap-2", odd, "index.csv"}
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["capture"] for line in lines] == [str(capture) for capture in captures]
    assert [len(line["analysis"]["connections"]) for line in lines[:3]] == [1, 2, 3]
    assert "not a capture" in lines[3]["error"]
    for line in lines[:3]:
        written = pathlib.Path(line["directory"])
        assert names(written) == FILES
        assert json.loads((written / "analysis.json").read_text()) == line["analysis"]
    with (directory / "index.csv").open(newline="") as index:
        rows = list(csv.DictReader(index))
    expected = [(str(captures[count - 1]), str(id)) for count in (1, 2, 3) for id in range(1, count + 1)]
    assert [(row["capture"], row["connection"]) for row in rows] == expected


def test_each_prints_one_line_per_capture(tmp_path):
    file = tmp_path / "x.pcap"
    file.write_bytes(connections(2))
    done = analyze("--each", "-o", tmp_path / "out", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{file}: 4 packets, 2 connections (0 MPTCP), 3 bytes\n"


def test_report_of_a_directory(tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.pcap").write_bytes(pcap(segment(number), segment(number, b"x", 0x18, 1)))
    (tmp_path / "notes.txt").write_text("not a capture")
    page = tmp_path / "page.html"
    done = subprocess.run([PLAIT, "report", tmp_path, "-o", page], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "192.0.2.1:1" in page.read_text() and "192.0.2.1:2" in page.read_text()
    assert done.stdout == ""
    to_stdout = subprocess.run([PLAIT, "report", tmp_path, "-o", "-"], capture_output=True, timeout=60)
    assert to_stdout.stdout == page.read_bytes() and not (tmp_path / "-").exists()


def test_report_rejects_empty_directory(tmp_path):
    done = subprocess.run(
        [PLAIT, "report", tmp_path, "-o", tmp_path / "page.html"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "expected captures" in done.stderr
    assert names(tmp_path) == set()
