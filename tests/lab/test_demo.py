"""`plait demo`: its results, and that it leaves nothing behind."""

import json
import signal
import subprocess

import pytest
from gateways import cgroups_of
from hosts import PLAIT, packet_fields, tool, wait_for
from labs import left_of, needs_labs

pytestmark = [pytest.mark.alone, needs_labs]

MODES = ("off", "xor64", "stream", "sealed")


def left_behind(pid: int) -> list[str]:
    """Namespaces, files and control groups of a demo."""
    return left_of(str(pid)) + cgroups_of(pid)


# Long enough that a retransmission timeout of 0.2 s hardly counts.
SIZE = 20_000_000


def start(directory, **options) -> subprocess.Popen:
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
    return subprocess.Popen([PLAIT, "demo", "--size", str(SIZE), "--out", directory], **options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A complete demo: its directory, its process id, and its stdout."""
    directory = tmp_path_factory.mktemp("demo")
    program = start(directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = program.communicate(timeout=180)
    assert program.returncode == 0, err
    return directory, program.pid, out


def run_of(demo, mode):
    summary = json.loads((demo[0] / "summary.json").read_text())
    return next(run for run in summary["runs"] if run["mode"] == mode)


def path_of(run, name):
    return next(path for path in run["paths"] if path["name"] == name)


@pytest.mark.parametrize("mode", MODES)
def test_transfers_the_text_over_both_paths(demo, mode):
    run = run_of(demo, mode)
    assert run["sha256_ok"] is True and run["bytes"] > 1_000_000
    # More than the trusted path alone could carry.
    assert run["throughput_mbps"] > 100
    wlan = path_of(run, "wlan")
    assert wlan["role"] == "untrusted"
    assert 0.1 < wlan["exposure"]["fraction"] < 0.9
    assert wlan["exposure"]["runs"] > 1 and wlan["exposure"]["longest_run"] > 1000


def test_text_is_readable_only_without_protection(demo):
    assert path_of(run_of(demo, "off"), "wlan")["readable_fraction"] > 0.2
    for mode in MODES[1:]:
        assert path_of(run_of(demo, mode), "wlan")["readable_fraction"] < 0.005


@pytest.mark.parametrize("mode", MODES)
def test_untrusted_path_is_idle_until_first_flight_is_acknowledged(demo, mode):
    """By the demo's own analysis, and by tshark on its captures."""
    assert run_of(demo, mode)["first_payload_after_data_ack"] is True

    def first_time(link, where):
        file = demo[0] / mode / f"{link}.pcap"
        return min(float(time) for (time,) in packet_fields(file, "frame.time_epoch", where=where))

    acknowledged = first_time("eth", "tcp.srcport == 8443 && tcp.ack > 1 && tcp.options.mptcp.rawdataack")
    # In mode `sealed`, the first TCP stream on wlan is the witness, a connection of its own.
    witness = "tcp.stream in {0}" if mode == "sealed" else "tcp.len < 0"
    assert acknowledged < first_time("wlan", f"tcp.len > 0 && !({witness})")


def test_prints_an_excerpt_of_both_captures(demo):
    out = demo[2]
    assert "obfuscation, not secrecy" in out
    dump = [line for line in out.splitlines() if line[:8].isalnum() and len(line) > 70]
    assert len(dump) >= 6
    assert all(line[10:34] != line[44:68] for line in dump)


def test_leaves_nothing_behind(demo):
    assert left_behind(demo[1]) == []


@pytest.mark.parametrize("after", [0.2, 1.0, 2.5])
def test_leaves_nothing_behind_when_interrupted(tmp_path, after):
    program = start(tmp_path)
    try:
        program.wait(after)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
    assert program.wait(60) != 0
    assert left_behind(program.pid) == []


def test_doctor_cleans_up_after_a_killed_demo(tmp_path):
    program = start(tmp_path)
    wait_for("namespaces", lambda: any("server" in name for name in left_behind(program.pid)))
    program.kill()
    program.wait()
    assert left_behind(program.pid)
    tool(PLAIT, "doctor", "--clean")
    assert left_behind(program.pid) == []
