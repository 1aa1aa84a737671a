"""Captured handshakes, options and scrambled bytes against the papers' drawings, by the programs of experiments/."""

import json
import random
import shutil

import pytest
from hosts import PLAIT, REPOSITORY, tool
from streams import fetch
from transfers import transfer

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")

EXPERIMENTS = REPOSITORY / "experiments"


@pytest.mark.parametrize(("mode", "share"), [("xor64", 1), ("off", 0)])
def test_scrambled_bytes_are_those_of_the_definition(make_pair, documents, mode, share):
    pair = make_pair("20mbit")
    document = documents / "document"
    document.write_bytes(random.Random(1).randbytes(500_000))
    pair.serve("--mode", mode, to=pair.nginx(documents))
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        received = fetch(pair, document, options=("--mode", mode, "--trusted", "eth"))
    (pair.directory / "received").write_bytes(received)
    streams = pair.directory / "streams.pcap"
    tool(PLAIT, "trace", "reassemble", str(eth.file), str(wlan.file), "-o", str(streams))
    files = [
        "--streams",
        str(streams),
        "--sent",
        str(document),
        "--received",
        str(pair.directory / "received"),
    ]
    result = json.loads(tool("python3", str(EXPERIMENTS / "definition.py"), *files))
    # A random byte is right by chance once in 256 times.
    assert result["as_defined"] == result["as_programmed"] == pytest.approx(share, abs=0.01)
    assert result["readable"] == pytest.approx(1 - share, abs=0.01) and result["restored"] == 1


def test_messages_and_options_are_those_of_the_drawings(pair):
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        transfer(pair, pair.ETH, size=1_000_000)
    files = ["--trusted", str(eth.file), "--untrusted", str(wlan.file)]
    result = json.loads(tool("python3", str(EXPERIMENTS / "handshake.py"), *files))
    assert result["messages"] == 7 and result["both_keys"] == result["token_and_nonce"] == 1
    assert result["as_drawn"] == 1 and result["mappings"] > 0
