"""`plait up` and `plait down`."""

import os
import pathlib
import signal
import socket
import sys
import time

import pytest
from daemons import down, state_of, up
from exits import FAR, NAME, resolver_of
from gateways import cgroups_of
from hosts import PLAIT, Pair, wait_for
from routers import lan_behind
from streams import listen

# asm-generic/socket.h
SO_NETNS_COOKIE = 71


def cookie(host) -> int:
    """The cookie of a host's network namespace, after which its files are named."""
    with host.socket() as probe:
        return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)


def fetch(exit, host=NAME):
    return exit.client.run("curl", "-sS", "-m", "40", f"http://{host}/text.txt")


@pytest.mark.alone
def test_two_commands_are_enough_and_leave_nothing(web, text):
    before = state_of(web.client)
    done = up(web)
    assert done.returncode == 0, done.stderr
    assert "plait is up" in done.stdout and "eth" in done.stdout
    assert fetch(web).stdout == text.read_bytes()
    done = down(web.client)
    assert (done.returncode, done.stdout) == (0, "plait is down\n"), done.stderr
    assert fetch(web, FAR).returncode != 0
    assert state_of(web.client) == before


@pytest.mark.alone
def test_kill_switch_leaves_nothing(web, text):
    before = state_of(web.client)
    done = up(web, "--killswitch", "--exclude", "192.0.2.0/24")
    assert done.returncode == 0, done.stderr
    assert fetch(web).stdout == text.read_bytes()
    assert state_of(web.client)["programs"] != before["programs"]
    done = down(web.client)
    assert (done.returncode, done.stdout) == (0, "plait is down, and the kill switch is removed\n"), (
        done.stderr
    )
    assert state_of(web.client) == before


def test_both_commands_may_be_repeated(web):
    assert up(web).returncode == 0
    done = up(web)
    assert (done.returncode, done.stdout) == (0, "plait is up already\n")
    done = up(web, "--exclude", "192.0.2.0/24")
    assert done.returncode == 1 and "up already with other settings" in done.stderr, done.stderr
    assert down(web.client).stdout == "plait is down\n"
    for _ in range(2):
        done = down(web.client)
        assert (done.returncode, done.stdout) == (0, "plait is not up\n")
    assert up(web).returncode == 0


def test_on_and_off_within_a_second(web, text):
    """Also with a connection that lives on, which is cut."""
    listener = listen(web.far, 7000, FAR)
    assert up(web).returncode == 0
    held = web.client.start(
        sys.executable, "-c", f"import socket; socket.create_connection(('{FAR}', 7000)).recv(1)"
    )
    connection, _ = listener.accept()
    began = time.monotonic()
    assert down(web.client).returncode == 0
    off = time.monotonic() - began
    began = time.monotonic()
    assert up(web).returncode == 0
    on = time.monotonic() - began
    print(f"on {on:.2f} s, off {off:.2f} s")
    assert held.wait(30) is not None
    connection.close()


def test_trusted_path_is_that_of_the_route_to_the_exit(web, text):
    done = up(web, trusted=())
    assert done.returncode == 0 and "starting on eth" in done.stdout, done.stderr
    assert fetch(web).stdout == text.read_bytes()


@pytest.mark.alone
def test_unreachable_exit_is_an_error_and_changes_nothing(exit):
    exit.serve().terminate()
    wait_for("end of the exit", lambda: not exit.server.listens(8443))
    before = state_of(exit.client)
    for options in ((), ("--killswitch",)):
        done = up(exit, *options)
        assert done.returncode == 1, done.stdout
        assert f"cannot reach the exit {Pair.ETH}:8443" in done.stderr, done.stderr
        assert state_of(exit.client) == before
    assert down(exit.client).stdout == "plait is not up\n"


def test_unknown_client_is_an_error(exit):
    exit.serve(clients='["plait-key:' + "A" * 43 + '"]')
    done = up(exit)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: "), done.stderr


def test_user_who_is_not_root_is_told(exit):
    exit.serve()
    done = exit.client.run("setpriv", "--reuid", "65534", PLAIT, "up", exit.url, text=True)
    assert done.returncode == 1 and "root" in done.stderr, done.stderr


@pytest.mark.alone
def test_down_removes_what_a_killed_daemon_has_left(web):
    before = state_of(web.client)
    assert up(web, "--killswitch").returncode == 0
    pid = int(next(pathlib.Path("/run/plait").glob(f"host.{cookie(web.client)}.lock")).read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: not os.path.exists(f"/proc/{pid}"))
    done = down(web.client)
    assert (done.returncode, done.stdout) == (0, "plait was not up; its kill switch is removed\n"), (
        done.stderr
    )
    assert not cgroups_of(pid)
    assert state_of(web.client) == before


@pytest.mark.alone
def test_hosts_behind_an_interface_are_carried_too(web, text):
    with lan_behind(web.pair, "lan0") as lan, resolver_of(lan.host, "192.0.2.53"):
        before = state_of(web.client)
        done = up(web, "--router", "lan0")
        assert done.returncode == 0, done.stderr
        assert "of the hosts behind lan0" in done.stdout
        curl = ("curl", "-sS", "-m", "40", f"http://{NAME}/text.txt")
        assert lan.host.run(*curl).stdout == text.read_bytes()
        assert fetch(web).stdout == text.read_bytes()
        assert down(web.client).returncode == 0
        assert lan.host.run("curl", "-sS", "-m", "3", f"http://{FAR}/text.txt").returncode != 0
        assert state_of(web.client) == before


def test_an_interface_of_the_router_is_no_path(web):
    with lan_behind(web.pair, "lan0"):
        done = up(web, "--router", "eth")
        assert done.returncode == 1 and "expected eth to be a path or an interface" in done.stderr
        done = up(web, "--router", "lan7")
        assert done.returncode == 1 and "there is no interface lan7" in done.stderr
