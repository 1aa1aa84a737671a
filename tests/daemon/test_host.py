"""`plait daemon` with `[host]`: every program of a host reaches what the exit reaches, and nothing else shows."""

import errno
import pathlib
import subprocess
import sys

import pytest
from daemons import Daemon, host_file
from exits import EXIT_PUBLIC, FAR, FAR6, NAME, PRIVATE
from gateways import cgroup_mount
from hosts import PLAIT, Pair, tool, wait_for
from streams import listen

HOSTS = [FAR, f"[{FAR6}]", NAME]

CONNECT = """
import socket, sys
client = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
client.settimeout(30)
print(client.connect_ex((sys.argv[1], int(sys.argv[2]))))
"""

# What a resolver does: a query from a datagram socket, and the address in its answer.
RESOLVE = """
import socket, sys
labels = b"".join(bytes([len(label)]) + label.encode() for label in sys.argv[1].split("."))
query = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0\\0\\1\\0\\1"
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(30)
client.sendto(query, ("10.77.1.53", 53))
answer, sender = client.recvfrom(4096)
print(sender[0], socket.inet_ntoa(answer[-4:]))
"""


def curl(host, url: str, **options):
    return host.run("curl", "-sS", "-m", "40", url, **options)


def captures(pair, **options):
    return [pair.capture(link, host=pair.client, filter="ip or ip6", **options) for link in ("eth", "wlan")]


@pytest.mark.parametrize("host", HOSTS, ids=["v4", "v6", "name"])
def test_programs_reach_what_the_exit_reaches(web, text, host):
    daemon = Daemon(web.client, host_file(web)).start()
    done = curl(web.client, f"http://{host}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
    daemon.stop()
    assert curl(web.client, f"http://{host}/text.txt").returncode != 0, "a way round"


def test_nothing_readable_is_on_the_uplinks(web, text):
    daemon = Daemon(web.client, host_file(web)).start()
    on_links = captures(web.pair)
    with on_links[0], on_links[1]:
        done = curl(web.client, f"http://{NAME}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
        done = web.client.run(sys.executable, "-c", RESOLVE, NAME, text=True)
        assert done.stdout == f"10.77.1.53 {FAR}\n", done.stderr
    for capture in on_links:
        assert capture.fields("udp.port", where="udp or tcp.port == 53 or dns") == []
        seen = capture.file.read_bytes()
        assert len(seen) > 1000, "nothing was captured"
        for secret in (b"far.example", b"\x03far\x07example", b"GET /"):
            assert secret not in seen, (capture.link, secret)
        assert capture.fields("ip.dst", where=f"ip.addr == {FAR}") == []
    asked = {(protocol, client) for protocol, client, name in web.nameserver.asked if name == NAME}
    assert asked == {("tcp", EXIT_PUBLIC)}


@pytest.mark.parametrize(
    ("address", "port", "expected"), [(FAR, 81, errno.ECONNREFUSED), ("11.0.0.77", 80, errno.EHOSTUNREACH)]
)
def test_connect_fails_as_at_the_exit(web, address, port, expected):
    Daemon(web.client, host_file(web)).start()
    done = web.client.run(sys.executable, "-c", CONNECT, address, port, text=True)
    assert done.stdout == f"{expected}\n", done.stderr


def test_local_networks_and_excluded_ones_are_reached_directly(web):
    """By default the networks of the interfaces; not with `lan = false`; and those in `exclude`."""
    listener = listen(web.server, 7000, "0.0.0.0")
    reach = (sys.executable, "-c", CONNECT, Pair.ETH, 7000)
    daemon = Daemon(web.client, host_file(web)).start()

    def source() -> str:
        done = web.client.run(*reach, text=True)
        assert done.stdout == "0\n", done.stderr + daemon.log()
        return listener.accept()[1][0]

    assert source() == "10.77.1.1"
    daemon.reload(host_file(web, "lan = false"))
    # The exit may not reach its own addresses for clients.
    done = web.client.run(*reach, text=True)
    assert done.stdout != "0\n"
    daemon.reload(host_file(web, "lan = false\nexclude = ['10.77.1.0/24']"))
    assert source() == "10.77.1.1"
    # Through the exit, which refuses private addresses.
    assert curl(web.client, f"http://{PRIVATE}/text.txt").returncode != 0


@pytest.mark.parametrize(
    ("section", "matching", "other"),
    [
        ("users = [65534]", ("setpriv", "--reuid", "65534", "curl"), ("curl",)),
        ("programs = ['curl']", ("curl",), ("wget", "-O-", "-q", "-T", "3", "-t", "1")),
    ],
    ids=["users", "programs"],
)
def test_part_of_a_host(web, text, section, matching, other):
    Daemon(web.client, host_file(web, section)).start()
    url = f"http://{FAR}/text.txt"
    done = web.client.run(*matching, "-sS", "-m", "40", url)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    options = ("-sS", "-m", "5") if other == ("curl",) else ()
    done = web.client.run(*other, *options, url)
    assert done.returncode != 0


def test_other_hosts_on_this_machine_are_not_affected(web):
    """Network namespaces share the control groups."""
    Daemon(web.client, host_file(web)).start()
    assert curl(web.server, f"http://{FAR}/text.txt").returncode == 0


def test_status_shows_the_daemon_as_one_gateway(web, text):
    listen(web.client, 7001, "127.0.0.1")
    more = '[proxy]\nlisten = "127.0.0.1:1080"\n[[inbound]]\nlisten = "[::]:9443"\nto = "127.0.0.1:7001"\n'
    daemon = Daemon(web.client, host_file(web, more=more)).start()
    assert curl(web.client, f"http://{FAR}/text.txt").stdout == text.read_bytes()
    done = web.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{NAME}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
    [gateway] = [each for each in web.pair.status() if each["command"] == "daemon"]
    assert gateway["counts"]["protected"] >= 2
    ports = {int(address.rsplit(":", 1)[1]) for address in gateway["listen"]}
    assert {1080, 9443} <= ports
    assert web.client.run(PLAIT, "doctor", "--clean").returncode == 0


def test_lock_of_a_killed_daemon_is_removed(web):
    daemon = Daemon(web.client, host_file(web)).start()
    [pid] = [each["pid"] for each in web.pair.status() if each["command"] == "daemon"]
    found = tool("grep", "-lx", "-d", "skip", "-s", str(pid), "-r", "--include=host.*.lock", "/run/plait")
    [lock] = map(pathlib.Path, found.splitlines())
    assert web.client.run(PLAIT, "doctor", "--clean").returncode == 0
    assert lock.exists()
    daemon.program.kill()
    daemon.program.wait(10)
    assert web.client.run(PLAIT, "doctor", "--clean").returncode == 0
    assert not lock.exists()


def test_slices(web, text):
    """Only programs in the named control groups."""
    slice_name = f"plait-test-{web.client.name}.slice"
    directory = pathlib.Path(cgroup_mount()) / slice_name
    directory.mkdir()
    try:
        daemon = Daemon(web.client, host_file(web, f"slices = ['{slice_name}']")).start()
        url = f"http://{FAR}/text.txt"
        script = f"echo $$ >{directory}/cgroup.procs && exec curl -sS -m 40 {url}"
        # Unlike `ip netns exec`, nsenter keeps the cgroup hierarchy mounted.
        enter = ("nsenter", f"--net=/run/netns/{web.client.name}")
        done = subprocess.run([*enter, "sh", "-c", script], capture_output=True, timeout=60)
        assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
        assert curl(web.client, url).returncode != 0
        daemon.stop()
    finally:
        wait_for("empty slice", lambda: not (directory / "cgroup.procs").read_text())
        directory.rmdir()


def test_networks_of_new_interfaces_are_local(web):
    """Addresses come and go while the daemon runs."""
    daemon = Daemon(web.client, host_file(web)).start()
    web.pair.join("usb")
    for last, host in ((1, web.client), (2, web.server)):
        host.ip(f"addr add 10.66.0.{last}/24 dev usb")
        host.ip("link set usb up")
    listener = listen(web.server, 7000, "10.66.0.2")

    def connects() -> bool:
        done = web.client.run(sys.executable, "-c", CONNECT, "10.66.0.2", 7000, text=True)
        return done.stdout == "0\n"

    wait_for("connection", connects)
    web.client.ip("addr del 10.66.0.1/24 dev usb")
    web.client.ip(f"route add default via {Pair.ETH} dev eth")
    # By the exit, which permits no private address; not by the default route.
    wait_for("refusal", lambda: not connects())
    listener.close()
    daemon.stop()


def test_log_has_priorities_for_the_journal(web):
    file = web.client.directory / "wrong.toml"
    file.write_text(host_file(web, more="[[inbound]]\nlisten = '10.77.1.1:9443'\nto = 'nowhere.invalid:1'\n"))
    log = web.client.directory / "journal.log"
    log.touch()
    found = log.stat()
    program = web.client.start(
        "env",
        f"JOURNAL_STREAM={found.st_dev}:{found.st_ino}",
        PLAIT,
        "-v",
        "daemon",
        "--config",
        file,
        log=log.name,
    )
    wait_for("warning", lambda: "<4>further subflows can arrive at 10.77.1.1 only" in log.read_text())
    assert "<6>listening on 10.77.1.1:9443" in wait_for(
        "start", lambda: "serving" in log.read_text() and log.read_text()
    )
    program.terminate()
    assert program.wait(30) == 0
