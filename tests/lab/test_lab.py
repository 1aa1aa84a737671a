"""Labs by the real command: what a topology says is there, and afterwards nothing is."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from hosts import PLAIT, REPOSITORY, reason_to_skip, tool, wait_for

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "")

PAIR = """
[hosts.client]
[hosts.server]
[[links]]
name = "wire"
a = "client"
b = "server"
"""

ROUTER = """
[hosts.client]
mptcp = { subflows = 8, add_addr_accepted = 8 }
[hosts.router]
forward = true
[hosts.server]
mptcp = { subflows = 8, add_addr_accepted = 8 }
[[links]]
name = "lte1"
a = { host = "client", endpoint = ["subflow", "fullmesh"] }
b = "router"
each_way = { rate = "20mbit", delay = "5ms" }
[[links]]
name = "lte2"
a = { host = "client", endpoint = ["subflow", "fullmesh"] }
b = "router"
each_way = { rate = "20mbit", delay = "5ms" }
[[links]]
name = "net1"
a = "router"
b = "server"
[[links]]
name = "net2"
a = "router"
b = { host = "server", endpoint = ["signal"] }
[[services]]
name = "iperf"
host = "server"
kind = "iperf3"
mptcp = true
"""


def plait(*arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PLAIT, "lab", *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def left_behind(identity: str) -> list[str]:
    """Whatever carries the id of a lab: namespaces, files, mounts, processes inside or named by its directory."""
    mine = f"plait-{identity}-"
    left = [name for name in os.listdir("/run/netns") if name.startswith(mine)]
    left += [name for name in os.listdir("/run/plait") if re.search(rf"\b{identity}\b", name)]
    mounts = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    left += [line for line in mounts if mine in line or f"lab-{identity}" in line]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if f"lab-{identity}/".encode() in words or (process.name == identity and words):
            left.append(f"process {process.name}")
    return left


def orphans() -> set[str]:
    """Namespaces and files of plait whose process has ended."""
    names = {*os.listdir("/run/netns"), *os.listdir("/run/plait")}
    pids = {name: re.match(r"(?:plait|lab|lab_up)-(\d+)", name) for name in names}
    return {name for name, pid in pids.items() if pid and not os.path.exists(f"/proc/{pid[1]}/exe")}


def network_of_the_machine() -> list:
    """Interfaces with their addresses, routes and rules outside of all labs."""
    shown = (["addr"], ["route"], ["-6", "route"], ["rule"], ["-6", "rule"], ["link"])

    def stable(entry: dict) -> dict:
        return {key: value for key, value in entry.items() if "life_time" not in key}

    found = [json.loads(tool("ip", "-j", *what)) for what in shown]
    return [[stable(entry) for entry in entries] for entries in found]


@pytest.fixture
def up(tmp_path):
    """Starts labs, by the text of their topologies, that end with the test."""
    started = []

    def start(text: str, *options) -> dict:
        file = tmp_path / f"lab{len(started)}.toml"
        file.write_text(text)
        done = plait("up", file, "--json", *options)
        assert done.returncode == 0, done.stderr
        lab = json.loads(done.stdout)
        started.append(lab["id"])
        return lab

    yield start
    for identity in started:
        plait("down", "--lab", identity)
    tool(PLAIT, "doctor", "--clean")


def execute(lab: dict, host: str, *command, **options) -> subprocess.CompletedProcess:
    return plait("exec", "--lab", lab["id"], host, "--", *command, **options)


def output(lab: dict, host: str, *command) -> str:
    done = execute(lab, host, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def service_pids(lab: dict) -> list[int]:
    return [service["pid"] for service in lab["services"]]


def test_a_lab_goes_up_runs_programs_and_goes_down_without_a_trace_on_the_machine(up):
    before = network_of_the_machine()
    lab = up(ROUTER)
    assert [host["name"] for host in lab["hosts"]] == ["client", "router", "server"]
    assert [link["backend"] for link in lab["links"]] == ["emu", "emu", "none", "none"]
    assert lab["links"][0]["a"]["addresses"] == ["10.77.1.1/24", "fd77:0:0:1::1/64"]

    # IPv4 and IPv6, from either address, over the router.
    for number in (1, 2):
        for ping in (
            ["-I", f"10.77.{number}.1", "10.77.4.2"],
            ["-I", f"fd77:0:0:{number}::1", "fd77:0:0:4::2"],
        ):
            assert "0% packet loss" in output(lab, "client", "ping", "-c2", "-i0.1", "-W1", *ping)

    done = execute(
        lab, "client", "sh", "-c", "read line; echo got $line; echo said >&2; exit 7", input="word\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "got word\n", "said\n")
    assert execute(lab, "client", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM

    listed = next(found for found in json.loads(plait("ps", "--json").stdout) if found["id"] == lab["id"])
    assert listed["links"][0]["statistics"]["a_to_b"]["frames_in"] > 2
    assert listed["services"][0]["running"] is True
    assert f"lab {lab['id']}" in plait("ps").stdout

    pids = service_pids(lab)
    assert plait("down", "--lab", lab["id"]).returncode == 0
    assert left_behind(lab["id"]) == []
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    assert network_of_the_machine() == before


def test_two_by_two_links_are_a_full_mesh_of_four_subflows(up):
    lab = up(ROUTER)
    command = [PLAIT, "lab", "exec", "--lab", lab["id"], "client", "--"]
    command += ["mptcpize", "run", "iperf3", "-c", "10.77.3.2", "-t", "4", "-J"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as upload:

        def pairs() -> set:
            lines = output(lab, "client", "ss", "-Htn", "state", "established").splitlines()
            ends = [line.split()[2:4] for line in lines]
            return {(own.split("%")[0].rsplit(":", 1)[0], peer.rsplit(":", 1)[0]) for own, peer in ends}

        mesh = {(f"10.77.{own}.1", f"10.77.{peer}.2") for own in (1, 2) for peer in (3, 4)}
        wait_for("full mesh", lambda: pairs() == mesh)
        report = json.loads(upload.communicate()[0])
    # iperf3 has two connections, each with three subflows beyond the first, and no join failed.
    counters = json.loads(output(lab, "client", "nstat", "-asj"))["kernel"]
    assert counters["MPTcpExtMPJoinSynAckRx"] == 6
    # More than one link carries.
    assert report["end"]["sum_received"]["bits_per_second"] > 25e6


def test_ipv6_alone(up):
    lab = up(PAIR + 'family = "ipv6"\n')
    assert lab["links"][0]["a"]["addresses"] == ["fd77:0:0:1::1/64"]
    assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "fd77:0:0:1::2")
    assert "inet " not in output(lab, "client", "ip", "addr", "show", "dev", "wire")


def test_two_labs_live_side_by_side_and_have_to_be_told_apart(up):
    one, two = up(PAIR), up(PAIR)
    assert one["id"] != two["id"]
    for lab in (one, two):
        assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "10.77.1.2")
    done = plait("exec", "client", "--", "true")
    assert done.returncode == 1 and one["id"] in done.stderr and two["id"] in done.stderr
    assert plait("down", "--lab", one["id"]).returncode == 0
    assert left_behind(one["id"]) == []
    assert "0% packet loss" in output(two, "client", "ping", "-c1", "-W1", "10.77.1.2")


def test_five_at_once_and_fifty_in_a_row_leave_nothing(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text(ROUTER)
    before = network_of_the_machine()
    commands = [PLAIT, "lab", "up", file, "--json"]
    starting = [subprocess.Popen(commands, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    labs = [json.loads(start.communicate(timeout=60)[0]) for start in starting]
    assert len({lab["id"] for lab in labs}) == 5
    ending = [subprocess.Popen([PLAIT, "lab", "down", "--lab", lab["id"]]) for lab in labs]
    assert [end.wait(30) for end in ending] == [0] * 5
    for lab in labs:
        assert left_behind(lab["id"]) == []

    for _ in range(50):
        done = plait("up", file, "--json")
        assert done.returncode == 0, done.stderr
        identity = json.loads(done.stdout)["id"]
        assert plait("down", "--lab", identity).returncode == 0
        assert left_behind(identity) == []
    assert network_of_the_machine() == before


@pytest.mark.alone
def test_a_killed_supervisor_is_cleaned_up_by_doctor(up):
    before = network_of_the_machine()
    lab = up(ROUTER)
    outlives = [PLAIT, "lab", "exec", "--lab", lab["id"], "client", "--", "sleep", "1000"]
    sleep = subprocess.Popen(outlives)
    wait_for("sleep", lambda: pathlib.Path(f"/proc/{sleep.pid}/comm").read_text() == "sleep\n")
    os.kill(int(lab["id"]), signal.SIGKILL)
    supervisor = pathlib.Path(f"/proc/{lab['id']}/exe")
    wait_for("end of the supervisor", lambda: not supervisor.is_symlink() or not os.path.exists(supervisor))
    assert left_behind(lab["id"])
    assert lab["id"] not in plait("ps").stdout
    removed = tool(PLAIT, "doctor", "--clean")
    assert f"plait-{lab['id']}-client" in removed and f"/run/plait/lab-{lab['id']}" in removed
    assert sleep.wait(5) == -signal.SIGKILL
    assert left_behind(lab["id"]) == []
    assert not any(pathlib.Path(f"/proc/{pid}/ns/net").exists() for pid in service_pids(lab))
    assert network_of_the_machine() == before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_lab_in_the_foreground_ends_with_a_signal(tmp_path, end):
    file = tmp_path / "lab.toml"
    file.write_text(ROUTER)
    command = [PLAIT, "lab", "up", file, "--foreground"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        first = lab.stdout.readline()
        assert first.startswith(f"lab {lab.pid}: ")
        lab.send_signal(end)
        assert lab.wait(15) == 0
    assert left_behind(str(lab.pid)) == []


@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
def test_an_interrupted_start_leaves_nothing(tmp_path, after):
    file = tmp_path / "lab.toml"
    file.write_text(
        ROUTER + '[[services]]\nname = "never"\nhost = "server"\ncommand = ["sleep", "9"]\nport = 9\n'
    )
    known = orphans()
    start = subprocess.Popen([PLAIT, "lab", "up", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(after)
    start.send_signal(signal.SIGINT)
    assert start.wait(15) != 0
    assert orphans() <= known


def test_a_failing_service_leaves_nothing_and_says_why(tmp_path):
    known = orphans()
    file = tmp_path / "lab.toml"
    command = '["sh", "-c", "echo the disk is full >&2; exit 3"]'
    file.write_text(PAIR + f'[[services]]\nname = "web"\nhost = "server"\nport = 80\ncommand = {command}\n')
    done = plait("up", file)
    assert done.returncode == 1
    assert "the service web did not start" in done.stderr and f"{file}:8:1\n" in done.stderr
    assert "the disk is full" in done.stderr and "3" in done.stderr
    assert orphans() <= known


def test_services_serve(up):
    services = """
    [[services]]
    name = "web"
    host = "server"
    kind = "nginx"
    port = 8080
    document = "1MB"
    [[services]]
    name = "gateway"
    host = "server"
    kind = "serve"
    listen = "0.0.0.0:8443"
    to = "127.0.0.1:8080"
    [[services]]
    name = "ends"
    host = "client"
    command = ["echo", "${server.wire}"]
    """
    lab = up(PAIR + services)
    size = output(lab, "client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}",
                  "http://10.77.1.2:8443/document")  # fmt: skip
    assert size == "1000000"
    wait_for("end of echo", lambda: "ends on client: NOT RUNNING" in plait("ps").stdout)
    assert pathlib.Path(lab["services"][2]["directory"], "stdout").read_text() == "10.77.1.2\n"


def state(lab: dict) -> str:
    """All that an event takes away and gives back, as `ip` shows it."""
    shown = ("address show dev lte1 scope global", "route show dev lte1", "-6 route show dev lte1 proto boot",
             "route show table 100", "-6 route show table 100", "rule", "-6 rule", "mptcp endpoint")  # fmt: skip
    return output(lab, "client", "sh", "-c", "; ".join(f"ip {what}" for what in shown))


@pytest.mark.parametrize("end", ["interface_down interface_up", "address_removed address_added"])
def test_what_an_event_takes_away_is_given_back(up, end):
    lab = up(ROUTER)
    down, again = end.split()
    before = state(lab)
    assert plait("inject", "--lab", lab["id"], "lte1", down).returncode == 0
    assert "10.77.3.0/24 via 10.77.1.2" not in state(lab)
    # The other link stands in.
    assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "10.77.3.2")
    assert plait("inject", "--lab", lab["id"], "lte1", again).returncode == 0
    assert state(lab) == before
    ping = ("ping", "-c1", "-W1", "-I", "10.77.1.1", "10.77.3.2")
    assert "0% packet loss" in output(lab, "client", *ping)


def test_events_happen_at_their_times(up):
    events = """
    each_way = { delay = "1ms" }
    [[links.events]]
    at = "0.5s"
    action = "blackhole"
    [[links.events]]
    at = "1s"
    action = "restore"
    [[links.events]]
    at = "1.2s"
    action = "carrier_down"
    [[links.events]]
    at = "1.4s"
    action = "carrier_up"
    [[links.events]]
    at = "1.5s"
    action = "adjust"
    set = { delay = "50ms" }
    """
    lab = up(PAIR + events)
    # Echoes of the time when nothing came back: about a third of those of one and a half seconds.
    begin = time.monotonic()
    seen = output(lab, "client", "ping", "-D", "-c", "60", "-i", "0.02", "-W", "1", "10.77.1.2")
    assert time.monotonic() - begin < 5
    lost = 60 - len(re.findall(r"bytes from", seen))
    assert 12 <= lost <= 45, seen
    wait_for("events", lambda: len(describe(lab)["events"]) == 5)
    for event in describe(lab)["events"]:
        assert event["error"] is None
        # The promise is a few milliseconds; the test's machine may be busy.
        assert 0 <= event["began_s"] - event["at_s"] < 0.05, event
    assert "min/avg/max" in (last := output(lab, "client", "ping", "-c2", "-i0.2", "10.77.1.2"))
    assert float(last.rsplit("= ", 1)[1].split("/")[0]) >= 100


def describe(lab: dict) -> dict:
    return next(found for found in json.loads(plait("ps", "--json").stdout) if found["id"] == lab["id"])


def test_an_event_that_cannot_be_says_so(up):
    lab = up(PAIR)
    cases = {
        ("wire", "restore"): "expected blackhole before restore",
        ("wir", "blackhole"): 'expected one of the links wire, got "wir"',
        ("wire", "explode"): "expected one of `blackhole`",
        ("wire", "adjust", "--set", "rate=fast"): 'got "fast"',
        ("wire", "adjust", "--set", "rate=1mbit"): "the backend none does not support",
    }
    for arguments, message in cases.items():
        done = plait("inject", "--lab", lab["id"], *arguments)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_what_only_the_kernel_knows_is_a_mistake_with_its_line(tmp_path):
    host = "[hosts.client]\n"
    cases = {
        PAIR.replace(host, host + 'sysctls = { "net.ipv4.no_such" = 1 }\n'): (3, "net.ipv4.no_such"),
        PAIR.replace(host, host + 'sysctls = { "net.ipv4.tcp_sack" = "x" }\n'): (3, 'got "x"'),
        PAIR.replace(host, host + 'congestion_control = "nosuch"\n'): (2, "nosuch"),
        PAIR + 'backend = "none"\n': (8, "unknown field `backend`"),
        'backend = "none"\n' + PAIR + 'each_way = { rate = "1mbit" }\n': (
            5,
            "the backend none does not support rate",
        ),
    }
    for text, (line, message) in cases.items():
        file = tmp_path / "lab.toml"
        file.write_text(text)
        known = orphans()
        done = plait("up", file)
        assert done.returncode == 1
        assert f"{file}:{line}:" in done.stderr and message in done.stderr, done.stderr
        assert orphans() <= known


def test_netem_is_there_or_its_line_is_named(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text('backend = "netem"\n' + PAIR + 'each_way = { delay = "5ms" }\n')
    done = plait("up", file, "--json")
    if done.returncode == 0:
        lab = json.loads(done.stdout)
        assert lab["links"][0]["backend"] == "netem"
        assert plait("down", "--lab", lab["id"]).returncode == 0
        return
    assert "expected a backend that works here, got" in done.stderr, done.stderr
    assert f"{file}:1:11\n" in done.stderr, done.stderr
    assert "netem" in done.stderr
    done = plait("up", file, "--backend", "emu", "--json")
    assert done.returncode == 0, done.stderr
    assert plait("down", "--lab", json.loads(done.stdout)["id"]).returncode == 0


def test_the_examples_of_the_documentation_come_up(up):
    blocks = re.findall(
        r"```toml\n(.*?)```", (REPOSITORY / "docs" / "guide" / "lab.md").read_text(), re.DOTALL
    )
    topologies = [block for block in blocks if "[hosts." in block and "[experiment]" not in block]
    assert topologies
    for block in topologies:
        lab = up(block)
        assert all(service["running"] for service in describe(lab)["services"])
        assert plait("down", "--lab", lab["id"]).returncode == 0


def test_commands_without_a_lab_say_so():
    if json.loads(plait("ps", "--json").stdout):
        pytest.skip("another lab is up")
    for command in (["exec", "client", "--", "true"], ["down"], ["inject", "x", "restore"]):
        done = plait(*command)
        assert done.returncode == 1 and "no lab is up" in done.stderr
    assert plait("ps").stdout == "no lab is up\n"
