"""`plait.lab`: topologies, programs, events and statistics, with the real command in real namespaces."""

import ast
import json
import os
import re
import subprocess

import pytest
from hosts import PLAIT, wait_for
from labs import EXPERIMENT, PAIR, PAIR_TOML, installed, lab, left_of, needs_labs, ping, program, sleeping  # noqa: F401
from package import examples


def milliseconds(done: subprocess.CompletedProcess) -> float:
    """The minimum round-trip time of a ping."""
    return float(re.search(r"= ([\d.]+)/", done.stdout)[1])


@needs_labs
def test_file_dictionary_and_text_build_the_same_lab(lab, tmp_path):
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
def test_address_returns_the_addresses_of_interfaces(lab):
    with lab.up(PAIR) as pair:
        shown = json.loads(pair.run("server", "ip", "-j", "address", "show", "lte1").stdout)
        of_kernel = {
            entry["family"]: entry["local"] for entry in shown[0]["addr_info"] if entry["scope"] == "global"
        }
        assert pair.address("server", "lte1") == pair.address("server", "lte1", family=4) == of_kernel["inet"]
        assert pair.address("server", "lte1", family=6) == of_kernel["inet6"]
        with pytest.raises(LookupError, match="hosts client, server, got 'gateway'"):
            pair.address("gateway", "lte1")
        with pytest.raises(LookupError, match="links lte1, lte2, got 'wlan'"):
            pair.address("server", "wlan")


@needs_labs
def test_run_behaves_like_subprocess_run(lab, tmp_path):
    with lab.up(PAIR) as pair:
        done = pair.run("client", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
        namespace = pair.run("client", "ip", "netns", "identify").stdout.strip()
        assert namespace == pair.hosts["client"].namespace
        client = pair.host("client")
        assert client.run("ip", "netns", "identify").stdout.strip() == namespace
        assert client.address("lte1") == pair.address("client", "lte1")
        assert client.start("true").wait(20) == 0
        with pytest.raises(LookupError, match="hosts client, server, got 'gateway'"):
            pair.host("gateway")
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
        with pytest.raises(LookupError, match="hosts client, server, got 'gateway'"):
            pair.run("gateway", "true")


@needs_labs
def test_injects_events_into_links(lab):
    with lab.up(PAIR) as pair:
        assert 9.8 <= milliseconds(ping(pair)) < 30
        pair.inject("lte1", "blackhole")
        assert ping(pair).returncode == 1
        pair.inject("lte1", "restore")
        assert ping(pair).returncode == 0
        pair.inject("lte1", "adjust", direction="b", delay="50ms")
        assert 54.8 <= milliseconds(ping(pair)) < 90
        pair.inject("lte1", "adjust", loss={"enter_bad": 1.0, "leave_bad": 0, "in_bad": "100%"})
        assert ping(pair).returncode == 1
        pair.inject("lte1", "adjust", loss=0)
        assert ping(pair).returncode == 0
        pair.inject("lte1", "interface_down", end="b")
        state = json.loads(pair.run("server", "ip", "-j", "link", "show", "lte1").stdout)
        assert "UP" not in state[0]["flags"]
        for action, more, message in [
            ("explode", {}, "blackhole"),
            ("adjust", {"rate": "fast"}, "rate"),
            ("adjust", {"speed": "1mbit"}, "speed"),
            ("adjust", {}, "set"),
        ]:
            with pytest.raises(lab.Error, match=message):
                pair.inject("lte1", action, **more)
        with pytest.raises(LookupError, match="links lte1, lte2, got 'wlan'"):
            pair.inject("wlan", "blackhole")


@needs_labs
def test_reports_the_events_of_the_schedule(lab):
    events = [{"at": "100ms", "action": "blackhole"}, {"at": "200ms", "action": "restore"}]
    topology = PAIR | {"links": [PAIR["links"][0] | {"events": events}]}
    with lab.up(topology) as pair:
        events = wait_for("events", lambda: (events := pair.events()) and len(events) == 2 and events)
    assert [(event.link, event.action) for event in events] == [("lte1", "blackhole"), ("lte1", "restore")]
    for event in events:
        assert event.error is None and event.at_s <= event.began_s <= event.done_s < event.at_s + 0.5


@needs_labs
def test_statistics_count_dropped_frames_by_cause(lab):
    with lab.up(PAIR) as pair:
        before = pair.statistics()["lte1"].a_to_b
        assert before.dropped == {}
        assert ping(pair).returncode == 0
        pair.inject("lte1", "adjust", direction="b", loss="100%")
        ping(pair)
        pair.inject("lte1", "blackhole")
        ping(pair)
        statistics = pair.statistics()["lte1"]
        dropped = statistics.a_to_b.dropped
        # Besides three pings each, there may be ARP and IPv6 frames.
        assert dropped["lost"] >= 3 and dropped["no_path"] >= 3 and dropped.keys() == {"lost", "no_path"}
        assert statistics.a_to_b.frames_out >= 3 and statistics.b_to_a.frames_out >= 3
        assert statistics.lateness.frames >= 6 and statistics.lateness.p50_ms <= statistics.lateness.max_ms
        assert pair.statistics()["lte2"].lateness is None


@needs_labs
def test_two_labs_are_independent(lab):
    with lab.up(PAIR) as one, lab.up(PAIR) as other:
        assert one.id != other.id
        one.inject("lte1", "blackhole")
        assert ping(one).returncode == 1 and ping(other).returncode == 0
        assert one.statistics()["lte1"].a_to_b.dropped and not other.statistics()["lte1"].a_to_b.dropped
        one.down()
        assert ping(other).returncode == 0
    assert not left_of(one.id) + left_of(other.id)


@needs_labs
def test_messages_of_the_command_are_warnings(lab, monkeypatch, tmp_path):
    talkative = tmp_path / "plait"
    talkative.write_text(f'#!/bin/sh\necho "the moon is full" >&2\nexec "{PLAIT}" "$@"\n')
    talkative.chmod(0o755)
    monkeypatch.setenv("PLAIT", str(talkative))
    with pytest.warns(UserWarning, match="^the moon is full$"), lab.up(PAIR) as pair:
        assert ping(pair).returncode == 0


@needs_labs
def test_errors_show_their_line(lab, tmp_path):
    wrong = PAIR_TOML.replace("20mbit", "fast")
    file = tmp_path / "wrong.toml"
    file.write_text(wrong)
    for arguments in ({"topology": file}, {"text": wrong}):
        with pytest.raises(lab.Error) as caught:
            lab.up(**arguments)
        error = str(caught.value)
        assert ":9:" in error and 'each_way = { rate = "fast", delay = "5ms" }' in error, error
    with pytest.raises(lab.Error, match='b = "nobody"'):
        lab.up({"hosts": {"client": {}}, "links": [{"name": "x", "a": "client", "b": "nobody"}]})
    with pytest.raises(lab.Error, match="missing.toml"):
        lab.up(tmp_path / "missing.toml")
    with pytest.raises(lab.Error, match="warp"):
        lab.up(PAIR, backend="warp")
    with pytest.raises(lab.Error, match="expected"):
        lab.run(text=EXPERIMENT.replace("duration_s", "duration_parsecs"))


def test_missing_command_is_an_error(lab, monkeypatch):
    monkeypatch.setenv("PLAIT", "/nowhere/plait")
    for call in (lab.up, lab.run):
        with pytest.raises(FileNotFoundError, match="PLAIT.*'/nowhere/plait'"):
            call(text="")


def test_requires_exactly_one_source(lab):
    for arguments in ((), (PAIR, PAIR_TOML)):
        with pytest.raises(TypeError, match="exactly one"):
            lab.up(*arguments[:1], text=arguments[1] if arguments else None)


@needs_labs
def test_requires_root(lab):
    os.seteuid(65534)
    try:
        if not os.access(PLAIT, os.X_OK, effective_ids=True):
            pytest.skip(f"{PLAIT} is not for every user")
        with pytest.raises(lab.Error, match="root"):
            lab.up(PAIR)
    finally:
        os.seteuid(0)


@needs_labs
@pytest.mark.parametrize("example", examples("plait.lab"), ids=lambda text: text.split("\n")[0])
def test_examples_of_the_guide_work(program, example):
    running = program(example)
    printed, complained = running.communicate(timeout=120)
    assert running.returncode == 0, complained
    rows = [ast.literal_eval(line) for line in printed.splitlines()]
    by_loss = {}
    for row in rows:
        (mbps,) = (row[column] for column in ("mbps", "mean", "value") if column in row)
        by_loss.setdefault(row["loss"], []).append(mbps)
    first, *_, last = by_loss.values()
    # TCP reaches most of 20 Mb/s without loss, and less with it.
    assert len(by_loss) >= 2 and len(rows) >= 3
    assert all(15 < mbps < 20 for mbps in first) and max(last) < 0.5 * min(first), by_loss
