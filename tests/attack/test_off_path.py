"""An attacker who sees no packet sends forged ones into a connection: resets, data and joins, of either end."""

import random
import struct

import pytest
from forged import ACK, PUSH, RST, SYN, packet, raw_socket
from hosts import wait_for
from streams import XOR64, assert_echo, connect_by_socks, start_gateways
from transfers import counters

FORGED = 3000


def subflow(pair) -> list[tuple[str, int]]:
    """The client's and the server's end of the first subflow."""
    line = pair.client.tool("ss", "-Htn", "state", "established", "dst", pair.ETH, "dport = :8443")
    ends = (end.rsplit(":", 1) for end in line.split()[2:4])
    return [(address.split("%")[0], int(port)) for address, port in ends]


def test_reset_with_the_right_number_ends_a_subflow(two_ways):
    """Proves that forged packets are accepted otherwise."""
    start_gateways(two_ways, "--mode", "sealed", "--require")
    with connect_by_socks(two_ways) as client, raw_socket(two_ways.client) as raw:
        with two_ways.capture("eth") as eth:
            assert_echo(client)
        here, there = subflow(two_ways)
        fields = eth.fields("tcp.seq_raw", "tcp.len", where=f"tcp.srcport == {here[1]}")
        sequence = max(int(number) + int(length) for number, length in fields)
        raw.sendto(packet(here, there, RST, sequence, 0), (there[0], 0))
        left = ("ss", "-Htn", "state", "established", "dport", "=", f":{here[1]}")
        wait_for("the end of the subflow", lambda: not two_ways.server.tool(*left))


@pytest.mark.parametrize("mode", [XOR64, ("--mode", "sealed")], ids=["xor64", "sealed"])
def test_forged_packets_neither_end_a_connection_nor_reach_it(two_ways, mode):
    """He knows addresses and ports, and guesses the rest."""
    start_gateways(two_ways, *mode, "--require")
    dice = random.Random(1)
    with connect_by_socks(two_ways) as client:
        assert_echo(client)
        here, there = subflow(two_ways)
        before = counters(two_ways.server)
        with raw_socket(two_ways.client) as raw, raw_socket(two_ways.server) as back:
            for _ in range(FORGED):
                sequence, ack, token, nonce = (dice.getrandbits(32) for _ in range(4))
                join = struct.pack(">BBBBII", 30, 12, 0x10, 9, token, nonce)
                for sender, ends in ((raw, (here, there)), (back, (there, here))):
                    to = (ends[1][0], 0)
                    sender.sendto(packet(*ends, RST, sequence, 0), to)
                    sender.sendto(packet(*ends, ACK | PUSH, sequence, ack, payload=b"forged"), to)
                joining = (here[0], dice.randrange(1024, 32768))
                raw.sendto(packet(joining, there, SYN, sequence, 0, join), (there[0], 0))
        found = counters(two_ways.server)["MPTcpExtMPJoinNoTokenFound"]
        assert found - before["MPTcpExtMPJoinNoTokenFound"] > FORGED / 2
        assert_echo(client, dice.randbytes(100_000))
