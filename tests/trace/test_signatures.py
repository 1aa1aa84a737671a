"""Signatures that MPTCP splits across paths: what tshark finds on each path, and in the reassembled streams."""

import json
import pathlib
import shutil
import subprocess

import pytest
from hosts import PLAIT, REPOSITORY, tool
from streams import fetch

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")

COUNT = 20_000
SCRIPT = REPOSITORY / "experiments" / "signatures.py"


def matched(*captures: pathlib.Path, streams: pathlib.Path) -> dict:
    paths = [option for capture in captures for option in ("--path", str(capture))]
    return json.loads(tool("python3", str(SCRIPT), "count", str(COUNT), *paths, "--streams", str(streams)))


def transferred(pair, documents: pathlib.Path, mode: str) -> tuple[list[pathlib.Path], pathlib.Path]:
    """The captures of both links while the signatures were fetched, and of the reassembled stream."""
    document = documents / "signatures"
    document.write_text(tool("python3", str(SCRIPT), "write", str(COUNT)))
    pair.serve("--mode", mode, to=pair.nginx(documents))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        options = ("--mode", mode, "--trusted", "eth")
        assert fetch(pair, document, options=options) == document.read_bytes()
    streams = pair.directory / "streams.pcap"
    tool(PLAIT, "trace", "reassemble", str(eth.file), str(wlan.file), "-o", str(streams))
    return [eth.file, wlan.file], streams


def test_split_signatures_are_found_in_the_reassembled_stream_only(make_pair, documents):
    captures, streams = transferred(make_pair("20mbit"), documents, "off")
    result = matched(*captures, streams=streams)
    found = result["found"]
    assert found["streams"] == 1
    assert result["split"] > 0 and found["packets"] <= found["subflows"] < 1
    assert found["subflows"] == pytest.approx(1 - result["split"] / COUNT)
    assert min(found["of_path"]) > 0.05, "both paths carried a part"


def test_reassembly_does_not_descramble(make_pair, documents):
    captures, streams = transferred(make_pair("20mbit"), documents, "xor64")
    assert matched(*captures, streams=streams)["found"] == {
        "packets": 0,
        "subflows": 0,
        "streams": 0,
        "of_path": [0, 0],
    }


def test_a_path_alone_reassembles_only_what_it_carried(make_pair, documents):
    (eth, wlan), _ = transferred(make_pair("20mbit"), documents, "off")
    alone = wlan.with_name("alone.pcap")
    done = subprocess.run(
        [PLAIT, "trace", "reassemble", str(wlan), "-o", str(alone)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "bytes were not captured and are missing" in done.stdout
    found = matched(eth, wlan, streams=alone)["found"]
    # Copies of what the other path has carried, which arrive after it was acknowledged, are not waited for.
    assert found["of_path"][1] - 0.05 <= found["streams"] <= found["of_path"][1] + 0.01
