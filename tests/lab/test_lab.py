"""`plait lab`: builds what a topology describes, and leaves nothing behind."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from hosts import PLAIT, REPOSITORY, tool, wait_for
from labs import lab_command, left_of, needs_labs, two_hosts, up  # noqa: F401

pytestmark = needs_labs

PAIR = two_hosts()
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

BRIDGE = """
[hosts.client]
[hosts.access_point]
bridge = true
[hosts.server]
[[links]]
name = "eth"
a = "client"
b = "access_point"
each_way = { rate = "20mbit", delay = "1ms" }
[[links]]
name = "wlan"
a = "client"
b = "access_point"
each_way = { rate = "20mbit", delay = "1ms" }
[[links]]
name = "lan"
a = "access_point"
b = "server"
"""


def orphans() -> set[str]:
    """Namespaces and files of plait whose process has ended."""
    names = {path.name for run in ("/run/netns", "/run/plait") for path in pathlib.Path(run).glob("*")}
    pids = {name: re.match(r"(?:plait|lab|lab_up)-(\d+)", name) for name in names}
    return {name for name, pid in pids.items() if pid and not os.path.exists(f"/proc/{pid[1]}/exe")}


def network_of_the_machine() -> list:
    """Interfaces with their addresses, routes and rules outside of all labs."""
    shown = (["addr"], ["route"], ["-6", "route"], ["rule"], ["-6", "rule"], ["link"])

    def stable(entry: dict) -> dict:
        return {key: value for key, value in entry.items() if "life_time" not in key}

    found = [json.loads(tool("ip", "-j", *what)) for what in shown]
    return [[stable(entry) for entry in entries] for entries in found]


def execute(lab: dict, host: str, *command, **options) -> subprocess.CompletedProcess:
    return lab_command("exec", "--lab", lab["id"], host, "--", *command, **options)


def output(lab: dict, host: str, *command) -> str:
    done = execute(lab, host, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def service_pids(lab: dict) -> list[int]:
    return [service["pid"] for service in lab["services"]]


def test_up_exec_and_down_leave_the_host_unchanged(up):
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

    listed = describe(lab)
    assert listed["links"][0]["statistics"]["a_to_b"]["frames_in"] > 2
    assert listed["services"][0]["running"] is True
    assert f"lab {lab['id']}" in lab_command("ps").stdout

    pids = service_pids(lab)
    assert lab_command("down", "--lab", lab["id"]).returncode == 0
    assert left_of(lab["id"]) == []
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    assert network_of_the_machine() == before


def test_fullmesh_endpoints_create_four_subflows(up):
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


def test_a_bridge_makes_hosts_neighbors_and_keeps_addresses_on_their_links(up):
    lab = up(BRIDGE)
    assert lab["links"][0]["b"]["addresses"] == []
    addresses = output(lab, "access_point", "ip", "addr", "show")
    assert "10.77." not in addresses and "fd77:" not in addresses
    for number in (1, 2):
        for address, to in (
            (f"10.77.{number}.1", "10.77.3.2"),
            (f"fd77:0:0:{number}::1", "fd77:0:0:3::2"),
        ):
            before = [link["statistics"]["a_to_b"]["frames_in"] for link in describe(lab)["links"]]
            ping = output(lab, "client", "ping", "-c5", "-i0.1", "-W1", "-I", address, to)
            assert " 0% packet loss" in ping
            after = [link["statistics"]["a_to_b"]["frames_in"] for link in describe(lab)["links"]]
            own, other = ((after[link] - before[link]) for link in (number - 1, 2 - number))
            assert own >= 5 > other, f"from {address}, over its own link"
    # No router decrements the hop limit.
    assert "ttl=64" in ping
    neighbors = json.loads(output(lab, "client", "ip", "-j", "neigh", "show", "to", "10.77.3.2"))
    assert {neighbor["dev"] for neighbor in neighbors} == {"eth", "wlan"}


def test_a_link_may_be_ipv6_only(up):
    lab = up(PAIR + 'family = "ipv6"\n')
    assert lab["links"][0]["a"]["addresses"] == ["fd77:0:0:1::1/64"]
    assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "fd77:0:0:1::2")
    assert "inet " not in output(lab, "client", "ip", "addr", "show", "dev", "wire")


def test_with_two_labs_a_command_needs_the_id(up):
    one, two = up(PAIR), up(PAIR)
    assert one["id"] != two["id"]
    for lab in (one, two):
        assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "10.77.1.2")
    done = lab_command("exec", "client", "--", "true")
    assert done.returncode == 1 and one["id"] in done.stderr and two["id"] in done.stderr
    assert lab_command("down", "--lab", one["id"]).returncode == 0
    assert left_of(one["id"]) == []
    assert "0% packet loss" in output(two, "client", "ping", "-c1", "-W1", "10.77.1.2")


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.long)])
def test_labs_in_parallel_and_in_sequence_leave_nothing(tmp_path, times):
    file = tmp_path / "lab.toml"
    file.write_text(ROUTER)
    before = network_of_the_machine()
    command = [PLAIT, "lab", "up", file, "--json"]
    starting = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    ids = [json.loads(start.communicate(timeout=60)[0])["id"] for start in starting]
    assert len(set(ids)) == 5
    ending = [subprocess.Popen([PLAIT, "lab", "down", "--lab", lab_id]) for lab_id in ids]
    assert [end.wait(60) for end in ending] == [0] * 5
    for _ in range(times):
        ids.append(json.loads(tool(PLAIT, "lab", "up", str(file), "--json"))["id"])
        tool(PLAIT, "lab", "down", "--lab", ids[-1])
    for lab_id in ids:
        assert left_of(lab_id) == []
    assert network_of_the_machine() == before


@pytest.mark.alone
def test_doctor_removes_a_lab_whose_supervisor_was_killed(up):
    before = network_of_the_machine()
    lab = up(ROUTER)
    outlives = [PLAIT, "lab", "exec", "--lab", lab["id"], "client", "--", "sleep", "1000"]
    sleep = subprocess.Popen(outlives)
    wait_for("sleep", lambda: pathlib.Path(f"/proc/{sleep.pid}/comm").read_text() == "sleep\n")
    os.kill(int(lab["id"]), signal.SIGKILL)
    supervisor = pathlib.Path(f"/proc/{lab['id']}/exe")
    wait_for("end of the supervisor", lambda: not supervisor.is_symlink() or not os.path.exists(supervisor))
    assert left_of(lab["id"])
    assert lab["id"] not in lab_command("ps").stdout
    removed = tool(PLAIT, "doctor", "--clean")
    assert f"plait-{lab['id']}-client" in removed and f"/run/plait/lab-{lab['id']}" in removed
    assert sleep.wait(5) == -signal.SIGKILL
    assert left_of(lab["id"]) == []
    assert not any(pathlib.Path(f"/proc/{pid}/ns/net").exists() for pid in service_pids(lab))
    assert network_of_the_machine() == before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_foreground_lab_ends_on_signals(tmp_path, end):
    file = tmp_path / "lab.toml"
    file.write_text(ROUTER)
    command = [PLAIT, "lab", "up", file, "--foreground"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        first = lab.stdout.readline()
        assert first.startswith(f"lab {lab.pid}: ")
        lab.send_signal(end)
        assert lab.wait(15) == 0
    assert left_of(str(lab.pid)) == []


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


def test_a_failing_service_is_reported_and_leaves_nothing(tmp_path):
    known = orphans()
    file = tmp_path / "lab.toml"
    command = '["sh", "-c", "echo the disk is full >&2; exit 3"]'
    file.write_text(PAIR + f'[[services]]\nname = "web"\nhost = "server"\nport = 80\ncommand = {command}\n')
    done = lab_command("up", file)
    assert done.returncode == 1
    assert "the service web did not start" in done.stderr and f"{file}:8:1\n" in done.stderr
    assert "the disk is full" in done.stderr and "3" in done.stderr
    assert orphans() <= known


def test_services_answer_requests(up):
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
    mode = "off"
    [[services]]
    name = "ends"
    host = "client"
    command = ["echo", "${server.wire}"]
    """
    lab = up(PAIR + services)
    size = output(lab, "client", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}",
                  "http://10.77.1.2:8443/document")  # fmt: skip
    assert size == "1000000"
    wait_for("end of echo", lambda: "ends on client: NOT RUNNING" in lab_command("ps").stdout)
    assert pathlib.Path(lab["services"][2]["directory"], "stdout").read_text() == "10.77.1.2\n"


def state(lab: dict) -> str:
    """What interface and address events change, according to `ip`."""
    shown = ("address show dev lte1 scope global", "route show dev lte1", "-6 route show dev lte1 proto boot",
             "route show table 100", "-6 route show table 100", "rule", "-6 rule", "mptcp endpoint")  # fmt: skip
    return output(lab, "client", "sh", "-c", "; ".join(f"ip {what}" for what in shown))


@pytest.mark.parametrize("end", ["interface_down interface_up", "address_removed address_added"])
def test_interface_and_address_events_are_reverted(up, end):
    lab = up(ROUTER)
    down, again = end.split()
    before = state(lab)
    assert lab_command("inject", "--lab", lab["id"], "lte1", down).returncode == 0
    assert "10.77.3.0/24 via 10.77.1.2" not in state(lab)
    # By the other link.
    assert "0% packet loss" in output(lab, "client", "ping", "-c1", "-W1", "10.77.3.2")
    assert lab_command("inject", "--lab", lab["id"], "lte1", again).returncode == 0
    assert state(lab) == before
    ping = ("ping", "-c1", "-W1", "-I", "10.77.1.1", "10.77.3.2")
    assert "0% packet loss" in output(lab, "client", *ping)


def test_events_apply_at_their_times(up):
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
    # The blackhole lasts for about a third of the pings.
    begin = time.monotonic()
    seen = output(lab, "client", "ping", "-D", "-c", "60", "-i", "0.02", "-W", "1", "10.77.1.2")
    assert time.monotonic() - begin < 5
    lost = 60 - len(re.findall(r"bytes from", seen))
    assert 12 <= lost <= 45, seen
    wait_for("events", lambda: len(describe(lab)["events"]) == 5)
    for event in describe(lab)["events"]:
        assert event["error"] is None
        # Documented are a few milliseconds; this machine may be busy.
        assert 0 <= event["began_s"] - event["at_s"] < 0.05, event
    assert "min/avg/max" in (last := output(lab, "client", "ping", "-c2", "-i0.2", "10.77.1.2"))
    # The emulator estimates when a frame arrived that woke it up, by 0.15 ms at most.
    assert float(last.rsplit("= ", 1)[1].split("/")[0]) >= 100 - 2 * 0.15


def describe(lab: dict) -> dict:
    return next(found for found in json.loads(lab_command("ps", "--json").stdout) if found["id"] == lab["id"])


def test_inject_rejects_impossible_events(up):
    lab = up(PAIR)
    cases = {
        ("wire", "restore"): "expected blackhole before restore",
        ("wir", "blackhole"): 'expected one of the links wire, got "wir"',
        ("wire", "explode"): "expected one of `blackhole`",
        ("wire", "adjust", "--set", "rate=fast"): 'got "fast"',
        ("wire", "adjust", "--set", "rate=1mbit"): "the backend none does not support",
    }
    for arguments, message in cases.items():
        done = lab_command("inject", "--lab", lab["id"], *arguments)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_settings_that_the_kernel_rejects_are_reported_with_their_line(tmp_path):
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
        done = lab_command("up", file)
        assert done.returncode == 1
        assert f"{file}:{line}:" in done.stderr and message in done.stderr, done.stderr
        assert orphans() <= known


def test_netem_is_used_or_reported_as_unavailable(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text('backend = "netem"\n' + PAIR + 'each_way = { delay = "5ms" }\n')
    done = lab_command("up", file, "--json")
    if done.returncode == 0:
        lab = json.loads(done.stdout)
        assert lab["links"][0]["backend"] == "netem"
        assert lab_command("down", "--lab", lab["id"]).returncode == 0
        return
    assert "expected a backend that works here, got" in done.stderr, done.stderr
    assert f"{file}:1:11\n" in done.stderr, done.stderr
    assert "netem" in done.stderr
    done = lab_command("up", file, "--backend", "emu", "--json")
    assert done.returncode == 0, done.stderr
    assert lab_command("down", "--lab", json.loads(done.stdout)["id"]).returncode == 0


def test_documented_topologies_come_up(up):
    blocks = re.findall(
        r"```toml\n(.*?)```", (REPOSITORY / "docs" / "guide" / "lab.md").read_text(), re.DOTALL
    )
    topologies = [block for block in blocks if "[hosts." in block and "[experiment]" not in block]
    assert topologies
    for block in topologies:
        lab = up(block)
        assert all(service["running"] for service in describe(lab)["services"])
        assert lab_command("down", "--lab", lab["id"]).returncode == 0


def test_commands_without_a_lab_fail():
    if json.loads(lab_command("ps", "--json").stdout):
        pytest.skip("another lab is up")
    for command in (["exec", "client", "--", "true"], ["down"], ["inject", "x", "restore"]):
        done = lab_command(*command)
        assert done.returncode == 1 and "no lab is up" in done.stderr
    assert lab_command("ps").stdout == "no lab is up\n"
