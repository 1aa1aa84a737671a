"""JSON documents, and lines of them, begin with the version of their schemas."""

import json
import subprocess

import pytest
from captures import connections
from hosts import PLAIT

VERSION = ("schema_version", 1)


def documents(*command) -> list[dict]:
    """What a command prints, whatever its exit status: a document, or lines."""
    text = subprocess.run([PLAIT, *command], capture_output=True, text=True).stdout
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def assert_versions(found: list[dict]):
    assert [next(iter(document.items())) for document in found] == [VERSION] * len(found) and found


@pytest.mark.parametrize("command", ["version", "doctor", "paths", "peers", "status"])
def test_documents_have_a_version(command):
    assert_versions(documents(command, "--json"))


def test_analyses_have_a_version(tmp_path):
    (tmp_path / "some.pcap").write_bytes(connections(2))
    (tmp_path / "other.pcap").write_bytes(b"no capture")
    assert_versions(documents("analyze", "--json", tmp_path / "some.pcap"))
    lines = documents(
        "analyze", "--json", "--each", "-o", tmp_path / "out", tmp_path / "some.pcap", tmp_path / "other.pcap"
    )
    assert_versions(lines)
    assert_versions([lines[0]["analysis"]])
    assert len(lines) == 2 and "error" in lines[1]
