"""Which privileges gateways keep and programs get, and which services of the gateway's host proxy clients can reach."""

import contextlib
import json
import os
import pathlib
import pwd
import shutil
import stat
import tempfile

import pytest
from gateways import cgroups_of
from hosts import PLAIT, tool, wait_for
from streams import REQUIRE, assert_echo, connect_by_socks, echo_server, receive_exactly

NOBODY = pwd.getpwnam("nobody")
# As whom gateways carry traffic (docs/reference/privileges.md).
WORKER = next((user for user in pwd.getpwall() if user.pw_name == "plait"), NOBODY)
# include/uapi/linux/capability.h
CAP_DAC_OVERRIDE, CAP_KILL, CAP_NET_ADMIN = 1 << 1, 1 << 5, 1 << 12
CAPABILITIES = {
    "serve": 0,
    "proxy": CAP_NET_ADMIN,
    "router": CAP_NET_ADMIN,
    "run": CAP_NET_ADMIN | CAP_KILL,
}
MONITORS = dict.fromkeys(CAPABILITIES, CAP_DAC_OVERRIDE) | {"serve": CAP_DAC_OVERRIDE | CAP_NET_ADMIN}


@pytest.mark.parametrize("way", ["sudo", "--user"])
def test_program_runs_as_the_caller(pair, text, way):
    """Root's privileges are for the redirection, not for the program."""
    pair.serve("--require", to=pair.nginx(text.parent))
    command = f"id -u; id -G; echo $HOME $USER; curl -sS http://{pair.ETH}:8443/text.txt | sha256sum; exit 7"
    options = REQUIRE if way == "sudo" else (*REQUIRE, "--user", "nobody")
    environment = os.environ | ({"SUDO_UID": str(NOBODY.pw_uid)} if way == "sudo" else {})
    done = pair.run("sh", "-c", command, options=options, env=environment, text=True)
    assert done.returncode == 7, done.stderr
    uid, groups, home, digest = done.stdout.splitlines()
    assert (int(uid), groups.split()) == (NOBODY.pw_uid, [str(NOBODY.pw_gid)])
    assert home == f"{NOBODY.pw_dir} nobody"
    expected = pair.client.run("sha256sum", text, text=True).stdout
    assert digest.split()[0] == expected.split()[0]


def test_unknown_users_are_refused(pair):
    done = pair.run("true", options=("--user", "nobody-with-this-name"), text=True)
    assert done.returncode == 1
    assert "no user with the name or number 'nobody-with-this-name'" in done.stderr


@pytest.mark.parametrize("listen", ["10.77.1.1:1080", "0.0.0.0:1080", "[::]:1080", "[::ffff:10.77.1.1]:1080"])
def test_proxy_for_other_hosts_needs_credentials(pair, listen):
    done = pair.client.run(PLAIT, "proxy", "--listen", listen, "--trusted", "eth", text=True, timeout=20)
    assert done.returncode == 1
    assert f"expected --credentials with --listen {listen}" in done.stderr


LOCAL = ["127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "localhost"]


@pytest.mark.parametrize("host", LOCAL)
def test_services_of_the_proxy_host_are_out_of_reach(pair, host):
    echo_server(pair.client)
    pair.proxy("--trusted", "eth")
    # RFC 1928: connection not allowed by ruleset.
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair, host, 9000)
    assert http_status(pair, host) == b"403"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_services_of_the_proxy_host_are_reached_if_allowed(pair, host):
    echo_server(pair.client)
    pair.proxy("--trusted", "eth", "--allow-local")
    with connect_by_socks(pair, host, 9000) as client:
        assert_echo(client)
    assert http_status(pair, host) == b"200"


def http_status(pair, host: str) -> bytes:
    """The status of a CONNECT request to the echo service."""
    authority = f"[{host}]" if ":" in host else host
    with pair.client.socket() as client:
        client.settimeout(15)
        client.connect(("127.0.0.1", 1080))
        client.sendall(f"CONNECT {authority}:9000 HTTP/1.1\r\n\r\n".encode())
        return receive_exactly(client, 12).removeprefix(b"HTTP/1.1 ")


@pytest.fixture(params=["serve", "proxy", "router", "run"])
def gateway(pair, request):
    """The name and the process of a gateway that was set up and has confined itself."""
    if request.param == "serve":
        program = pair.serve("--require", to="127.0.0.1:9000")
    elif request.param == "proxy":
        program = pair.proxy(*REQUIRE)
    elif request.param == "router":
        pair.client.ip("link add lan0 type bridge")
        program = pair.client.start(PLAIT, "router", *REQUIRE, "--interface", "lan0")
    else:
        program = pair.client.start(PLAIT, "run", *REQUIRE, "--", "sleep", "600")
    wait_for("confinement", lambda: all(status["Seccomp"] == "2" for status in statuses(program.pid)))
    return request.param, program


def statuses(pid: int) -> list[dict[str, str]]:
    """/proc/PID/status of each thread of a process."""
    found = []
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        # Idle threads end.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = (line.partition(":") for line in file.read_text().splitlines())
            found.append({name: value.strip() for name, _, value in lines})
    return found


def monitor_of(pid: int) -> int:
    """The process that keeps what only root can do for a gateway."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    named = {child: pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children}
    [monitor] = [int(child) for child, arguments in named.items() if arguments[1:2] == [b"monitor"]]
    return monitor


def assert_confined(pid: int, capabilities: int, uid: int):
    for status in statuses(pid):
        expected = dict.fromkeys(("CapEff", "CapPrm", "CapBnd"), capabilities) | {"CapInh": 0, "CapAmb": 0}
        assert {name: int(status[name], 16) for name in expected} == expected, status
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert set(map(int, status["Uid"].split())) == {uid}
        if uid:
            assert set(map(int, status["Gid"].split())) == {WORKER.pw_gid}
            assert "0" not in status["Groups"].split()


def test_gateway_has_the_documented_privileges_only(gateway):
    """In every thread: one with more would be a way to more for all."""
    command, program = gateway
    assert_confined(program.pid, CAPABILITIES[command], WORKER.pw_uid)
    assert_confined(monitor_of(program.pid), MONITORS[command], 0)


def test_root_asks_and_stops_a_gateway_that_is_not_root(pair, gateway):
    command, program = gateway
    assert [report["command"] for report in pair.status()] == [command]
    assert cgroups_of(program.pid)
    monitor = monitor_of(program.pid)
    program.terminate()
    assert program.wait(15) == (143 if command == "run" else 0)
    assert not cgroups_of(program.pid)
    assert not pathlib.Path(f"/run/plait/gateway-{program.pid}.sock").exists()
    assert not pathlib.Path(f"/proc/{monitor}").exists()


def test_monitor_ends_with_a_killed_gateway(gateway):
    _, program = gateway
    monitor = monitor_of(program.pid)
    program.kill()
    program.wait()
    wait_for("the end of the monitor", lambda: not pathlib.Path(f"/proc/{monitor}/exe").exists())
    tool(PLAIT, "doctor", "--clean")
    assert not pathlib.Path(f"/run/plait/gateway-{program.pid}.sock").exists()


def test_signals_reach_a_program_of_another_user(pair):
    """The gateway runs as another user than the program."""
    for user in ("root", "nobody"):
        run = pair.client.start(PLAIT, "run", *REQUIRE, "--user", user, "--", "sleep", "600")
        wait_for("confinement", lambda run=run: all(status["Seccomp"] == "2" for status in statuses(run.pid)))
        run.terminate()
        assert run.wait(15) == 143


@pytest.fixture
def readable_file():
    """A file that every user may read, but that no gateway needs."""
    directory = pathlib.Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    file = directory / "aliases"
    file.write_text("alias somewhere.invalid\n")
    yield file
    shutil.rmtree(directory)


@pytest.mark.skipif(not shutil.which("strace"), reason="not installed: strace")
@pytest.mark.parametrize("command", ["serve", "proxy"])
def test_files_that_a_gateway_does_not_need_are_out_of_reach(pair, tmp_path, readable_file, command):
    """The resolver in the gateway's process opens a file that the environment names."""
    readable = pair.client.run("setpriv", "--reuid", "65534", "--clear-groups", "cat", readable_file)
    assert readable.returncode == 0, "the permissions of the file are not what keeps it"
    trace = tmp_path / "trace"
    arguments = ("serve", "--listen", "[::]:1080", "--mode", "off", "--to", "alias:9")
    if command == "proxy":
        arguments = ("proxy", "--mode", "off")
    environment = os.environ | {"HOSTALIASES": str(readable_file), "RES_OPTIONS": "timeout:1 attempts:1"}
    program = pair.client.start(PLAIT, *arguments, env=environment)
    wait_for("confinement", lambda: all(status["Seccomp"] == "2" for status in statuses(program.pid)))
    pair.client.start("strace", "-f", "-e", "trace=open,openat", "-o", trace, "-p", program.pid)
    wait_for("strace", lambda: all(status["TracerPid"] != "0" for status in statuses(program.pid)))
    with pair.client.socket() as client:
        client.connect(("127.0.0.1", 1080))
        if command == "proxy":
            client.sendall(b"CONNECT alias:9 HTTP/1.1\r\n\r\n")
        opened = wait_for("a look at the file", lambda: lines_with(trace, str(readable_file)))
    assert all("EACCES" in line for line in opened), opened


def lines_with(file: pathlib.Path, text: str) -> list[str]:
    """The complete lines of a file with this text."""
    return [line for line in file.read_text().split("\n")[:-1] if text in line and "= " in line]


def test_memory_of_peers_remains_that_of_root(pair):
    """The gateway remembers through its monitor, and cannot change the file itself."""
    echo_server(pair.server)
    pair.server.tool(PLAIT, "identity")
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy("--trusted", "eth", "--peers", "first-use")
    with connect_by_socks(pair) as client:
        assert_echo(client)
    directory = pair.client.state
    for name in ("sealed_peers", "known_peers"):
        file = (directory / name).stat()
        assert (file.st_uid, stat.S_IMODE(file.st_mode)) == (0, 0o600), name
    peers = json.loads(pair.client.tool(PLAIT, "peers", "--json"))
    assert "10.77.1.2:8443" in json.dumps(peers)
