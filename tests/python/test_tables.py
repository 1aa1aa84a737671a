"""The tables of `plait.analyze`: what other libraries read from them, compared with the command's files and with tshark."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import itertools
import os
import pathlib
import shutil

import pytest
from captures import analyze, connections, pcap, segment
from hosts import tool
from package import installed, plait
from streams import MPTCP, accept, listen, receive_exactly

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
arrow_csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

TABLES = ("connections", "subflows", "series", "failovers", "events")
MANY = 17_000
TYPES = {
    "bool": pyarrow.bool_(),
    "int64": pyarrow.int64(),
    "float64": pyarrow.float64(),
    "text": pyarrow.string(),
    "timestamp[ns, UTC]": pyarrow.timestamp("ns", "UTC"),
}


@pytest.fixture
def plain(plait, tmp_path):
    """The analysis of many plain TCP connections, with a byte each: more than one record batch."""
    file = tmp_path / "plain.pcap"
    ports = range(1, MANY + 1)
    segments = ((segment(port), segment(port, b"x", flags=0x18, sequence=1)) for port in ports)
    file.write_bytes(pcap(*itertools.chain.from_iterable(segments)))
    return plait.analyze(file)


@pytest.fixture
def transfer(pair, tmp_path) -> list[pathlib.Path]:
    """Captures of an MPTCP connection with a subflow on each of two paths."""
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        client = pair.client.socket(protocol=MPTCP)
        client.settimeout(20)
        client.connect((pair.ETH, 9000))
        with accept(listener) as connection:
            client.sendall(bytes(300_000))
            receive_exactly(connection, 300_000)
            connection.sendall(bytes(2000))
        receive_exactly(client, 2000)
        client.close()
    return [eth.file, wlan.file]


@pytest.fixture(
    params=[
        "transfer",
        "pymptcpanalyzer-iperf-mptcp-0-0.pcap",
        "tcpdump-mptcp-v1.pcap",
        "DPI-mp_capable.pcapng",
    ]
)
def capture(request, tmp_path) -> pathlib.Path:
    """An MPTCP capture: of this machine, or a real one of the directory PLAIT_CAPTURES."""
    if request.param == "transfer":
        parts = request.getfixturevalue("transfer")
        if not shutil.which("mergecap"):
            pytest.skip("not installed: mergecap")
        tool("mergecap", "-F", "pcapng", "-w", str(tmp_path / "both.pcapng"), *map(str, parts))
        return tmp_path / "both.pcapng"
    if not (directory := os.environ.get("PLAIT_CAPTURES")):
        pytest.skip("PLAIT_CAPTURES is not set")
    return pathlib.Path(directory) / request.param


def test_columns_have_documented_names_units_and_types(plain):
    for name in TABLES:
        table = getattr(plain, name)
        arrow = table.to_pyarrow()
        assert table.name == name and len(table) == arrow.num_rows
        assert table.column_names == arrow.column_names == [column.name for column in table.columns]
        assert len(set(table.column_names)) == len(table.columns)
        for column, field in zip(table.columns, arrow.schema, strict=True):
            assert (field.type, field.nullable) == (TYPES[column.type], column.nullable), column
            assert field.metadata == {b"description": column.description.encode()} and column.description
            base = column.name.removesuffix("_client_to_server").removesuffix("_server_to_client")
            if base.endswith(("_s", "_bps")):
                assert column.type == "float64", column
            if base.endswith("bytes"):
                assert column.type == "int64", column
            assert not base.endswith(("_ms", "_us", "_mbps")), column
        assert pyarrow.schema(table) == arrow.schema


def test_other_libraries_take_tables(plain):
    """Each by its own entry for the Arrow PyCapsule interface."""
    duckdb = pytest.importorskip("duckdb")
    series = plain.series
    expected = sum(row["bytes"] for row in series.rows())
    assert expected == MANY
    assert pyarrow.compute.sum(pyarrow.table(series)["bytes"]).as_py() == expected
    assert polars.DataFrame(series)["bytes"].sum() == expected
    assert polars.DataFrame(series).schema["time"] == polars.Datetime("ns", "UTC")
    assert duckdb.sql("select sum(bytes), count(*) from series").fetchone() == (expected, len(series))
    assert series.to_polars()["bytes"].sum() == expected
    frame = series.to_pandas()
    assert frame["bytes"].sum() == expected and str(frame["time"].dtype) == "datetime64[ns, UTC]"
    assert str(series.to_pandas(dtype_backend="pyarrow")["rtt_mean_s"].dtype) == "double[pyarrow]"
    if hasattr(pandas.DataFrame, "from_arrow"):
        assert pandas.DataFrame.from_arrow(series)["bytes"].sum() == expected


def test_libraries_share_the_memory(plain):
    """And it outlives the analysis."""
    addresses = [
        [chunk.buffers()[1].address for chunk in pyarrow.table(plain.series)["bytes"].chunks]
        for _ in range(2)
    ]
    assert addresses[0] == addresses[1] and len(addresses[0]) > 1
    table = pyarrow.table(plain.series)
    del plain
    table.validate(full=True)


def test_a_capsule_that_nobody_takes_is_released(plait, tmp_path):
    file = tmp_path / "some.pcap"
    file.write_bytes(connections(1))
    table = plait.analyze(file).series
    for _ in range(1000):
        table.__arrow_c_stream__()
        table.__arrow_c_schema__()
    assert pyarrow.table(table).num_rows == len(table)


def test_empty_tables_have_their_columns(plain):
    assert len(plain.failovers) == len(plain.events) == 0
    assert plain.failovers.to_polars().columns == plain.failovers.column_names
    assert list(plain.events.to_pandas().columns) == plain.events.column_names
    assert "0 rows" in plain.events._repr_html_()


def test_tables_equal_the_files_of_the_command(plait, capture, tmp_path):
    done = analyze("-o", tmp_path / "out", capture)
    assert done.returncode == 0, done.stderr
    found = plait.analyze(capture)
    series = parquet.read_table(tmp_path / "out" / "series.parquet")
    assert found.series.to_pyarrow().to_pylist() == series.to_pylist()
    for name in ("connections", "subflows"):
        with (tmp_path / "out" / f"{name}.csv").open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        ours = getattr(found, name).to_pyarrow()
        assert list(rows[0]) == ours.column_names
        as_csv = arrow_csv.read_csv(
            io.BytesIO((tmp_path / "out" / f"{name}.csv").read_bytes()),
            convert_options=arrow_csv.ConvertOptions(
                column_types=ours.schema, strings_can_be_null=True, null_values=[""]
            ),
        )
        assert as_csv.to_pylist() == ours.to_pylist(), name


def test_tables_contain_the_document(plait, capture):
    found = plait.analyze(capture)
    connections = found.to_dict()["connections"]
    subflows = list(found.subflows.rows())
    assert [row["connection"] for row in found.connections.rows()] == [each["id"] for each in connections]
    expected = [(each["id"], subflow) for each in connections for subflow in each["subflows"]]
    assert len(subflows) == len(expected)
    for row, (connection, subflow) in zip(subflows, expected, strict=True):
        assert row["connection"] == connection
        assert row["start"].timestamp() == pytest.approx(subflow["start"], abs=2e-6)
        for way, sent in subflow["directions"].items():
            assert row[f"bytes_{way}"] == sent["bytes"]
            assert row[f"reinjected_segments_{way}"] == sent["reinjected"]["segments"]
            mean = sent["rtt_ms"] and sent["rtt_ms"]["mean"] / 1e3
            assert row[f"rtt_mean_s_{way}"] == (mean and pytest.approx(mean))
    events = [(each["id"], event["event"], event["time"]) for each in connections for event in each["events"]]
    for row, (connection, event, time) in zip(found.events.rows(), events, strict=True):
        assert (row["connection"], row["event"]) == (connection, event)
        assert row["time"].timestamp() == pytest.approx(time, abs=2e-6)
    failovers = [failover for each in connections for failover in each["failovers"]]
    assert [row["path"] for row in found.failovers.rows()] == [failover["path"] for failover in failovers]


def tshark(capture: pathlib.Path):
    """The TCP packets of a capture, by tshark to CSV to pandas."""
    fields = "frame.time_epoch ip.src ipv6.src tcp.srcport ip.dst ipv6.dst tcp.dstport tcp.len".split()
    command = [
        "tshark",
        "-2",
        "-n",
        "-r",
        str(capture),
        "-o",
        "tcp.desegment_tcp_streams:FALSE",
        "-T",
        "fields",
    ]
    command += ["-E", "header=y", "-E", "separator=,", *(word for field in fields for word in ("-e", field))]
    packets = pandas.read_csv(io.StringIO(tool(*command)), dtype={"frame.time_epoch": str})
    packets = packets.dropna(subset=["tcp.srcport"])
    for end in ("src", "dst"):
        packets[end] = packets[f"ip.{end}"].fillna(packets[f"ipv6.{end}"])
    packets["time"] = [int(decimal.Decimal(text) * 10**9) for text in packets["frame.time_epoch"]]
    return packets


@pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")
def test_subflows_match_tshark(plait, capture):
    """Times to the nanosecond, packets and bytes of each direction of each subflow."""
    packets = tshark(capture)
    subflows = plait.analyze(capture).subflows.to_pandas()
    ours, theirs = {}, {}
    for row in subflows.itertuples():
        ends = (row.src_address, row.src_port), (row.dst_address, row.dst_port)
        ours[ends] = row.packets_client_to_server, row.bytes_client_to_server
        ours[ends[::-1]] = row.packets_server_to_client, row.bytes_server_to_client
    for ends, sent in packets.groupby(["src", "tcp.srcport", "dst", "tcp.dstport"]):
        source, source_port, destination, port = ends
        key = (source, int(source_port)), (destination, int(port))
        theirs[key] = len(sent), int(sent["tcp.len"].sum())
    assert {ends: sent for ends, sent in ours.items() if sent != (0, 0)} == theirs
    for row in subflows.itertuples():
        of_subflow = packets[
            (packets["tcp.srcport"].isin([row.src_port, row.dst_port]))
            & (packets["tcp.dstport"].isin([row.src_port, row.dst_port]))
            & (packets["src"].isin([row.src_address, row.dst_address]))
            & (packets["dst"].isin([row.src_address, row.dst_address]))
        ]
        assert row.start.value == of_subflow["time"].min()
        last = row.start.value + round(row.duration_s * 1e9)
        assert last == pytest.approx(of_subflow["time"].max(), abs=1000)


def test_rows_have_times_in_utc(plain):
    (row,) = plain.connections.rows(1)
    assert row["start"] == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert row["src_address"] == "192.0.2.1" and row["dst_port"] == 443
    assert row["version"] is None and row["partial"] is False


def test_html_is_escaped_and_bounded(plain, plait):
    page = plain._repr_html_()
    assert f"{MANY:,} connections" in page and "192.0.2.1" in page
    assert page.count("<tr>") == 11 and f"{MANY - 10:,} more rows" in page
    assert repr(plain) == f"<plait.Analysis: {MANY:,} connections, {MANY:,} subflows, {2 * MANY:,} packets>"
    assert repr(plain.subflows).startswith(f"<plait.Table subflows: {MANY:,} rows, ")


def test_plots_a_connection(plait, capture, tmp_path):
    pytest.importorskip("matplotlib")
    # Short intervals: the first one may begin before the connection.
    found = plait.analyze(capture, interval=0.0005)
    figure = found.plot()
    figure.savefig(tmp_path / "plot.png")
    throughput, rtt = figure.axes
    most = max(
        found.to_dict()["connections"], key=lambda it: (it["version"] is not None, sum(it["bytes"].values()))
    )
    assert f"Connection {most['id']}," in figure.get_suptitle()
    way = max(most["bytes"], key=most["bytes"].get)
    carrying = [each for each in most["subflows"] if each["bytes"][way]]
    assert len(throughput.lines) == len(carrying)
    # The area below the lines is what was carried.
    area = 0.0
    for line in throughput.lines:
        x, y = line.get_data()
        area += sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(x) - 1))
    assert area * 1e6 / 8 == pytest.approx(most["bytes"][way], rel=0.1)
    assert found.plot(most["id"], direction=way).get_suptitle() == figure.get_suptitle()
