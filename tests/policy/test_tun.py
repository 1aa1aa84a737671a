"""Actors on real MPTCP connections over a link without Ethernet headers."""

import pytest
import wires
from controllers import built
from hosts import Pair, unique_id
from transfers import assert_no_checksum_errors, counters, transfer

from policies import chain, hits, load, policy

FAMILIES = pytest.mark.parametrize("family", ["ipv4", "ipv6"])
SIZE = 500_000


class ByTun(Pair):
    """A pair whose link `wlan` consists of TUN devices."""

    def join(self, link):
        if link == "wlan":
            self.tunnel = wires.join("tun", self.client, self.server, link)
        else:
            super().join(link)

    def remove(self):
        super().remove()
        self.tunnel.close()


@pytest.fixture
def by_tun(tmp_path):
    with built(ByTun(unique_id(), tmp_path)) as pair:
        yield pair


def stays_mptcp(pair):
    found = counters(pair.server)
    assert (
        found["MPTcpExtMPCapableACKRX"] == 1 and found["MPTcpExtMPFailRx"] == found["MPTcpExtMPFailTx"] == 0
    )
    assert_no_checksum_errors(pair)


@FAMILIES
@pytest.mark.parametrize(("hook", "hears"), [("egress", "server"), ("ingress", "client")])
def test_set_backup_without_ethernet(by_tun, family, hook, hears):
    """The option lengthens acknowledgments."""
    load(by_tun.client, policy(chain(hook=hook, select="path(wlan)", actors='["set_backup"]')))
    transfer(by_tun, by_tun.ETH if family == "ipv4" else by_tun.ETH6, SIZE)
    assert counters(getattr(by_tun, hears))["MPTcpExtMPPrioRx"] >= 1
    stays_mptcp(by_tun)


def test_deny_join_without_ethernet(by_tun):
    load(by_tun.client, policy(chain(hook="egress", interfaces=["wlan"], actors='[{ deny_join = "reset" }]')))
    transfer(by_tun, by_tun.ETH, SIZE, joins=False)
    assert hits(by_tun.client) >= [1] and counters(by_tun.server)["MPTcpExtMPJoinSynRx"] == 0
    assert by_tun.client.run("ss", "-Htn", "state", "syn-sent", text=True).stdout == ""
    stays_mptcp(by_tun)


@FAMILIES
def test_block_subflow_without_ethernet(by_tun, family):
    begin, announced = (by_tun.WLAN, by_tun.ETH) if family == "ipv4" else (by_tun.WLAN6, by_tun.ETH6)
    by_tun.server.ip("mptcp endpoint flush")
    by_tun.server.ip(f"mptcp endpoint add {announced} dev eth signal")
    load(by_tun.client, policy(chain(interfaces=["wlan"], actors="[{ block_subflow = { echo = true } }]")))
    transfer(by_tun, begin, SIZE, joins=False)
    assert counters(by_tun.client)["MPTcpExtAddAddr"] == counters(by_tun.server)["MPTcpExtMPJoinSynRx"] == 0
    assert counters(by_tun.server)["MPTcpExtEchoAdd"] >= 1
    stays_mptcp(by_tun)
