"""Actors on packets built by scapy: the resulting bytes, with the checksums scapy computes.

The options that actors add, change and remove are tested in crates/policy/tests.
"""

import pytest
from packets import (
    CLIENT,
    CLIENT6,
    NOP,
    SERVER,
    SERVER6,
    TIMESTAMPS,
    add_addr,
    dry_run,
    dss,
    mp_capable,
    mp_join_ack,
    mp_join_syn,
    mp_join_syn_ack,
    mp_prio,
    option,
    packet,
    remove_addr,
    scapy,
    settled,
    syn,
    syn_ack,
)

from policies import both_hooks, chain, policy

FAMILIES = pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
# The host is the server: what the client sends comes in.
LOCAL = ("--local", SERVER, "--local", SERVER6)
STAMPS = (NOP, NOP, TIMESTAMPS)


def shake(ipv6=False) -> list:
    return [
        syn(mp_capable(), ipv6=ipv6),
        syn_ack(mp_capable(7), ipv6=ipv6),
        packet(mp_capable(7, 8), ipv6=ipv6),
    ]


def counts(result, actor=0) -> tuple[int, int, int]:
    """Packets, hits and errors of an actor of the first chain."""
    found = result.totals["chains"][0]["actors"][actor]
    return found["packets"], found["hits"], found["errors"]


def expect(result, sent, after: dict):
    """Asserts that all packets passed unmodified except these: the expected packet, or `None` if dropped."""
    left = [after.get(number, each) for number, each in enumerate(sent)]
    assert result.output == [bytes(each) for each in left if each is not None]
    for number in range(len(sent)):
        is_changed = number in after and after[number] is not None
        assert result.packets[number]["changed"] == is_changed, number


@FAMILIES
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_drop(tmp_path, ipv6, hook):
    sent = [packet(dss(ack=1), ipv6=ipv6), packet(remove_addr(1), ipv6=ipv6), packet(payload=b"x", ipv6=ipv6)]
    result = dry_run(
        tmp_path, policy(chain(hook=hook, select="packet(dss)", actors='["drop"]')), sent, "--hook", hook
    )
    expect(result, sent, {0: None})
    assert result.verdicts == ["drop", "pass", "pass"] and counts(result) == (1, 1, 0)


def network(hops, ipv6):
    if ipv6:
        return scapy.IPv6(src=CLIENT6, dst=SERVER6, hlim=hops)
    return scapy.IP(src=CLIENT, dst=SERVER, ttl=hops)


@FAMILIES
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_redirect(tmp_path, hook, ipv6):
    """Ingress packets are forwarded with a decremented TTL, unless it expires."""
    sent = [
        packet(dss(ack=1), network=network(64, ipv6)),
        packet(remove_addr(1), ipv6=ipv6),
        packet(dss(ack=1), network=network(1, ipv6)),
    ]
    actors = '[{ redirect = "eth1" }]'
    result = dry_run(
        tmp_path, policy(chain(hook=hook, select="packet(dss)", actors=actors)), sent, "--hook", hook
    )
    further = {0: packet(dss(ack=1), network=network(63, ipv6))} if hook == "ingress" else {}
    expect(result, sent, further)
    last = ("pass", None) if hook == "ingress" else ("redirect", "eth1")
    assert [(each["verdict"], each["redirected_to"]) for each in result.packets] == [
        ("redirect", "eth1"),
        ("pass", None),
        last,
    ]
    assert counts(result)[2] == 0


def test_redirect_removes_the_vlan_tag(tmp_path):
    tagged = packet(dss(ack=1), vlan=[scapy.Dot1Q(vlan=5)])
    redirect = policy(chain(hook="egress", actors='[{ redirect = "eth1" }]'))
    result = dry_run(tmp_path, redirect, [tagged], "--hook", "egress")
    assert result.verdicts == ["redirect"] and result.output == [bytes(packet(dss(ack=1)))]


def test_mark_changes_no_byte_of_the_packet(tmp_path):
    sent = [packet(dss(ack=1)), packet(remove_addr(1))]
    chosen = chain("chosen", "egress", "mark(0x10/0xf0)", '[{ mark = "0x3/0xf" }]')
    result = dry_run(tmp_path, policy(chosen), sent, "--mark", "0x1f")
    expect(result, sent, {})
    assert counts(result) == (2, 2, 0)
    result = dry_run(tmp_path, policy(chosen), sent, "--mark", "0x2f")
    assert counts(result) == (0, 0, 0)


@FAMILIES
def test_rate_limit_uses_the_window_scale_of_the_sender(tmp_path, ipv6):
    """The client's window scale is 7: 250 means 32000 bytes."""
    sent = [
        *shake(ipv6),
        packet(*STAMPS, dss(ack=9), window=251, ipv6=ipv6),
        packet(*STAMPS, dss(ack=9), window=250, ipv6=ipv6),
        packet(*STAMPS, dss(ack=9), window=65535, ipv6=ipv6),
        packet(*STAMPS, dss(ack=9), window=0, ipv6=ipv6),
        packet(*STAMPS, dss(ack=9, sequence=1, length=3), payload=b"abc", window=65535, ipv6=ipv6),
        packet(*STAMPS, dss(ack=9), flags="FA", window=65535, ipv6=ipv6),
        packet(flags="R", window=65535, ipv6=ipv6),
        # The other direction matches no chain.
        packet(*STAMPS, dss(ack=9), back=True, window=65535, ipv6=ipv6),
        # Packets of the subflow without MPTCP options are limited as well.
        packet(*STAMPS, window=65535, ipv6=ipv6),
    ]
    result = dry_run(tmp_path, policy(chain(actors='[{ rate_limit = { window = "32kB" } }]')), sent, *LOCAL)
    clamped = {
        2: packet(mp_capable(7, 8), window=250, ipv6=ipv6),
        3: packet(*STAMPS, dss(ack=9), window=250, ipv6=ipv6),
        5: packet(*STAMPS, dss(ack=9), window=250, ipv6=ipv6),
        7: packet(*STAMPS, dss(ack=9, sequence=1, length=3), payload=b"abc", window=250, ipv6=ipv6),
        8: packet(*STAMPS, dss(ack=9), flags="FA", window=250, ipv6=ipv6),
        11: packet(*STAMPS, window=250, ipv6=ipv6),
    }
    expect(result, sent, clamped)


@pytest.mark.parametrize("which", ["answer", "next connection"])
def test_plain_tcp_that_reuses_the_addresses_of_a_subflow_is_not_modified(tmp_path, which):
    plain = [syn(seq=77777), syn_ack(ack=77778)] if which == "next connection" else [syn_ack()]
    begin = [syn(mp_capable())] if which == "answer" else shake()
    sent = [*begin, *plain, packet(*STAMPS, window=65535), packet(*STAMPS, window=65535, payload=b"x")]
    limit = chain(actors='[{ rate_limit = { window = "1kB" } }]', select="not packet(mp_capable)")
    result = dry_run(tmp_path, policy(limit), sent, *LOCAL)
    expect(result, sent, {})
    assert result.totals["chains"][0]["packets"] == 0


def test_a_valid_checksum_of_zero_or_ones_is_accepted(tmp_path):
    """Even if the complete checksum equals that of the pseudo header, one in 65,536."""

    def numbered(number, window=65535):
        return packet(*STAMPS, dss(ack=9), window=window, seq=number)

    whole, bare = (each[scapy.TCP].chksum for each in (settled(numbered(0)), partial(numbered(0))))
    number = (whole - bare) % 0xFFFF
    each = numbered(number)
    assert settled(each)[scapy.TCP].chksum == partial(each)[scapy.TCP].chksum
    limit = chain(select="packet(dss)", actors='[{ rate_limit = { window = "32kB" } }]')
    sent = [*shake(), each]
    result = dry_run(tmp_path, policy(limit), sent, *LOCAL)
    expect(result, sent, {3: numbered(number, 250)})


def test_data_in_a_syn_starts_after_its_sequence_number(tmp_path):
    sent = [
        syn(mp_capable(), payload=b"early", seq=999),
        syn_ack(mp_capable(7), ack=1005),
        packet(mp_capable(7, 8), seq=1005),
        packet(*STAMPS, dss(ack=9, sequence=6, length=4), seq=1005, payload=b"late"),
    ]
    result = dry_run(tmp_path, both_hooks(), sent, *LOCAL)
    (flow,) = result.totals["subflows"]
    assert (flow["received"]["bytes"], flow["received"]["retransmitted_bytes"]) == (9, 0)


def test_without_the_complete_handshake_windows_are_not_modified(tmp_path):
    late = packet(*STAMPS, dss(ack=9), window=65535)
    limit = policy(chain(actors='[{ rate_limit = { window = "1kB" } }]'))
    for begin in ([], [syn(mp_capable())], [syn_ack(mp_capable(7))]):
        sent = [*begin, late]
        expect(dry_run(tmp_path, limit, sent, *LOCAL), sent, {})


def test_a_rate_limit_allows_at_least_two_segments(tmp_path):
    sent = [*shake(), packet(*STAMPS, dss(ack=9), window=65535)]
    limit = chain(select="packet(dss)", actors='[{ rate_limit = { rate = "1kbit" } }]')
    result = dry_run(tmp_path, policy(limit), sent, *LOCAL)
    expect(result, sent, {3: packet(*STAMPS, dss(ack=9), window=2 * 1460 >> 7)})


def test_partial_checksums_stay_partial(tmp_path):
    """As in packets from virtual interfaces of the same host (CHECKSUM_PARTIAL)."""
    for ipv6 in (False, True):
        begin = [partial(each) for each in shake(ipv6)]
        limited = partial(packet(*STAMPS, dss(ack=9), window=65535, ipv6=ipv6))
        data = partial(
            packet(*STAMPS, dss(ack=9, sequence=1, length=3), payload=b"abc", window=65535, ipv6=ipv6)
        )
        limit = chain(select="packet(dss)", actors='["set_backup", { rate_limit = { window = "32kB" } }]')
        sent = [*begin, limited, data]
        result = dry_run(tmp_path, policy(limit), sent, *LOCAL)
        grown = packet(mp_prio(True), NOP, *STAMPS, dss(ack=9), window=250, ipv6=ipv6)
        whole = packet(*STAMPS, dss(ack=9, sequence=1, length=3), payload=b"abc", window=250, ipv6=ipv6)
        expect(result, sent, {3: partial(grown), 4: partial(whole)})


def partial(each):
    """The packet with the partial checksum: the sum of the pseudo header, not complemented."""
    whole = scapy.Ether(bytes(each))
    tcp = whole[scapy.TCP]
    length = len(bytes(tcp))
    if scapy.IPv6 in whole:
        ip = whole[scapy.IPv6]
        head = (
            scapy.inet_pton(10, ip.src)
            + scapy.inet_pton(10, ip.dst)
            + length.to_bytes(4, "big")
            + b"\0\0\0\x06"
        )
    else:
        ip = whole[scapy.IP]
        head = scapy.inet_pton(2, ip.src) + scapy.inet_pton(2, ip.dst) + b"\0\x06" + length.to_bytes(2, "big")
    tcp.chksum = ~scapy.checksum(head) & 0xFFFF
    return whole


def test_add_subflow_fails_without_the_keys_of_the_connection(tmp_path):
    """A new announcement needs an HMAC, and thus the keys of a local connection."""
    sent = [*shake(), *[packet(*STAMPS, dss(ack=9, ack_bytes=4))] * 2]
    actors = '[{ add_subflow = { address = "192.0.2.50", id = 7 } }]'
    result = dry_run(tmp_path, policy(chain(actors=actors)), sent, *LOCAL)
    expect(result, sent, {})
    assert counts(result)[1] == 0


def test_joins_that_cannot_be_reset_are_dropped(tmp_path):
    """A packet with payload cannot become a reset."""
    deny = chain(hook="egress", actors='[{ deny_join = "reset" }]')
    sent = [packet(mp_join_ack(), payload=b"data", back=True)]
    result = dry_run(tmp_path, policy(deny), sent, *LOCAL)
    assert result.verdicts == ["drop"] and counts(result) == (1, 1, 0)


@FAMILIES
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_fall_back_removes_mp_capable(tmp_path, ipv6, hook):
    end = {"back": hook == "egress"}
    begin = {"flags": "S" if hook == "ingress" else "SA", "ipv6": ipv6, **end}
    common = (("MSS", 1460), ("WScale", 7))
    sent = [
        packet(*common, mp_capable(), **begin),
        packet(*common, mp_capable(7), **begin),
        packet(*common, **begin),
        packet(mp_join_syn(5), **begin),
        packet(dss(ack=9), ipv6=ipv6, **end),
    ]
    result = dry_run(tmp_path, policy(chain(hook=hook, actors='["fall_back"]')), sent, *LOCAL)
    # The packet builder pads with leading NOPs.
    plain = [packet(NOP, *common, *[NOP] * length, **begin) for length in (4, 12)]
    expect(result, sent, {0: plain[0], 1: plain[1]})


@FAMILIES
def test_record_counts_each_direction(tmp_path, ipv6):
    def data(start, length, sequence, **fields):
        mapping = dss(ack=9, sequence=sequence, subflow_sequence=1 + start, length=length)
        return packet(*STAMPS, mapping, seq=1000 + start, payload=b"d" * length, ipv6=ipv6, **fields)

    joined = {"sport": 40002}
    sent = [
        syn(mp_join_syn(5), ipv6=ipv6, seq=999),
        syn_ack(mp_join_syn_ack(), ipv6=ipv6),
        packet(mp_join_ack(), ipv6=ipv6),
        data(0, 100, 500),
        data(100, 100, 600),
        # Retransmitted completely, then half retransmitted and half new.
        data(0, 100, 500),
        data(150, 100, 650),
        packet(*STAMPS, dss(ack=700), back=True, ipv6=ipv6, window=3),
        # Another subflow of the connection reinjects 600 to 700, then carries late data once.
        syn(mp_join_syn(5), ipv6=ipv6, seq=999, **joined),
        syn_ack(mp_join_syn_ack(), ipv6=ipv6, dport=40002),
        packet(mp_join_ack(), ipv6=ipv6, **joined),
        data(0, 100, 600, **joined),
        data(250, 100, 900),
        data(100, 100, 750, **joined),
    ]
    both = both_hooks()
    result = dry_run(tmp_path, both, sent, *LOCAL)
    expect(result, sent, {})
    client = f"[{CLIENT6}]" if ipv6 else CLIENT
    first, second = (
        next(each for each in result.totals["subflows"] if each["remote"] == f"{client}:{port}")
        for port in (40001, 40002)
    )
    received = first["received"]
    assert first["joined"] and first["token"] == "00000005"
    assert (received["packets"], received["bytes"]) == (7, 500)
    assert (received["retransmitted_packets"], received["retransmitted_bytes"]) == (2, 150)
    assert received["reinjected_bytes"] == 0
    assert (first["sent"]["packets"], first["sent"]["bytes"], first["sent"]["window"]) == (2, 0, 3 << 9)
    assert (second["received"]["bytes"], second["received"]["reinjected_bytes"]) == (200, 100)


@pytest.mark.parametrize("sequence_bytes", [4, 8])
def test_reinjections_are_counted_across_sequence_wraparound(tmp_path, sequence_bytes):
    first = 2**32 - 100

    def data(start, sequence, port):
        number = sequence % 2 ** (8 * sequence_bytes)
        mapping = dss(
            ack=9,
            ack_bytes=4,
            sequence=number,
            sequence_bytes=sequence_bytes,
            subflow_sequence=1 + start,
            length=100,
        )
        return packet(*STAMPS, mapping, seq=2000 + start, payload=b"d" * 100, back=True, dport=port)

    shakes = [
        each
        for port in (40001, 40002)
        for each in (
            syn(mp_join_syn(5), seq=999, sport=port),
            syn_ack(mp_join_syn_ack(), dport=port),
            packet(mp_join_ack(), sport=port),
        )
    ]
    sent = [
        *shakes,
        data(0, first, 40001),
        data(0, first + 100, 40002),
        data(100, first + 200, 40001),
        # Data that the other subflow carried, then new data.
        data(100, first, 40002),
        data(200, first + 300, 40002),
    ]
    result = dry_run(tmp_path, both_hooks(), sent, *LOCAL)
    found = {each["remote"].rpartition(":")[2]: each["sent"] for each in result.totals["subflows"]}
    assert [found[port]["reinjected_bytes"] for port in ("40001", "40002")] == [0, 100]


def test_a_chain_counts_hits_and_errors_of_its_actors(tmp_path):
    full = packet(*STAMPS, dss(ack=9, sequence=1, length=0), NOP, NOP, window=65535)
    sent = [*shake(), packet(*STAMPS, dss(ack=9, ack_bytes=4), window=1), full, full]
    actors = '["set_backup", { rate_limit = { window = "64kB" } }]'
    result = dry_run(tmp_path, policy(chain(select="packet(dss)", actors=actors)), sent, *LOCAL)
    found = result.totals["chains"][0]
    assert [counts(result, place) for place in range(2)] == [(3, 1, 0), (3, 2, 0)]
    assert (found["packets"], found["hits"], found["errors"]) == (3, 3, 0)
    result = dry_run(tmp_path, policy(chain(select="packet(dss)", actors=actors)), [*shake(), full], *LOCAL)
    found = result.totals["chains"][0]
    assert [counts(result, place) for place in range(2)] == [(1, 0, 1), (1, 1, 0)]
    assert (found["packets"], found["hits"], found["errors"]) == (1, 1, 1)


def test_generated_packets_advertise_the_last_window_sent(tmp_path):
    """A generated echo advertises at most the window that rate_limit allows."""
    offered = packet(*STAMPS, dss(ack=9), back=True, window=777)
    alone = packet(*STAMPS, add_addr("192.0.2.99", 4), seq=5000, ack=6000)
    limit = chain("limit", "egress", actors='[{ rate_limit = { window = "32kB" } }]')
    block = chain("block", actors="[{ block_subflow = { echo = true } }]")
    result = dry_run(tmp_path, policy(limit, block), [*shake(), offered, alone], *LOCAL)
    assert result.verdicts[-1] == "answer"
    assert scapy.Ether(result.output[-1])[scapy.TCP].window == 32000 >> 9


def test_actors_are_applied_in_order(tmp_path):
    """Each actor sees the modifications of the previous one."""
    sent = [*shake(), packet(*STAMPS, dss(ack=9), window=65535)]
    actors = '[{ rate_limit = { window = "64kB" } }, "set_backup", { rate_limit = { window = "32kB" } }]'
    result = dry_run(tmp_path, policy(chain(select="packet(dss)", actors=actors)), sent, *LOCAL)
    expect(result, sent, {3: packet(mp_prio(True), NOP, *STAMPS, dss(ack=9), window=250)})
    assert [counts(result, place) for place in range(3)] == [(1, 1, 0)] * 3


def test_unknown_options_are_preserved(tmp_path):
    """Unassigned subtypes."""
    sent = [*shake(), packet(*STAMPS, option(12, 3, b"new"), dss(ack=9, ack_bytes=4), window=65535)]
    limit = chain(select="packet(dss)", actors='[{ rate_limit = { window = "32kB" } }]')
    after = packet(*STAMPS, option(12, 3, b"new"), dss(ack=9, ack_bytes=4), window=250)
    expect(dry_run(tmp_path, policy(limit), sent, *LOCAL), sent, {3: after})
