"""Leftovers: none, and after a kill -9 none beyond the next start."""

import pathlib

import pytest
from gateways import cgroups_of
from hosts import PLAIT, tool
from streams import REQUIRE, assert_echo, connect_by_socks, start_gateways

SETTING = "net.mptcp.pm_type"


def socket_of(pid: int) -> pathlib.Path:
    return pathlib.Path(f"/run/plait/gateway-{pid}.sock")


def talk(pair):
    with connect_by_socks(pair) as client:
        assert_echo(client)


@pytest.mark.alone
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_ended_gateway_leaves_nothing_after_the_next_start(pair, end):
    gateways = start_gateways(pair, "--require")
    talk(pair)
    for gateway in gateways:
        assert cgroups_of(gateway.pid) and socket_of(gateway.pid).exists()
        getattr(gateway, end)()
        gateway.wait(15)
    if end == "kill":
        # The next gateways remove the leftovers, and work.
        pair.serve("--require", to="127.0.0.1:9000")
        pair.proxy(*REQUIRE)
        talk(pair)
    for gateway in gateways:
        assert not cgroups_of(gateway.pid) and not socket_of(gateway.pid).exists()
    assert pair.client.tool("sysctl", "-n", SETTING).strip() == "0"


@pytest.mark.alone
def test_doctor_removes_leftovers_of_a_killed_gateway(pair):
    gateway = pair.serve("--require", to="127.0.0.1:9000")
    gateway.kill()
    gateway.wait()
    assert cgroups_of(gateway.pid)
    removed = tool(PLAIT, "doctor", "--clean")
    assert f"plait-{gateway.pid}-gateway" in removed and f"gateway-{gateway.pid}.sock" in removed
    assert not cgroups_of(gateway.pid) and not socket_of(gateway.pid).exists()


def test_ended_program_leaves_nothing(pair):
    run = pair.client.start(PLAIT, "run", "--trusted", "eth", "--", "true")
    assert run.wait(15) == 0
    assert not cgroups_of(run.pid) and not socket_of(run.pid).exists()
