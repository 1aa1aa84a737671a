"""Malformed packets, and packets that only resemble MPTCP, pass unmodified and are counted."""

import collections
import random
import struct

import pytest
from packets import (
    NOP,
    SERVER,
    TIMESTAMPS,
    add_addr,
    dry_run,
    dss,
    mp_capable,
    mp_fail,
    mp_join_ack,
    mp_join_syn,
    mp_prio,
    packet,
    remove_addr,
    scapy,
    settled,
    syn,
    syn_ack,
)

from policies import chain, policy

HOOKS = pytest.mark.parametrize("hook", ["ingress", "egress"])
# How many random packets: enough for every kind, and in `make test-long` for rare combinations.
NUMBERS = pytest.mark.parametrize("number", [600, pytest.param(4000, marks=pytest.mark.long)])


def skipped(directory, hook, sent) -> dict:
    """Runs packets that a policy which drops all MPTCP must pass; returns the skip counters."""
    result = dry_run(directory, policy(chain(hook=hook, actors='["drop"]')), sent, "--hook", hook)
    assert result.unchanged(sent)
    assert all(not each["matched"] for each in result.packets)
    return {reason: count for reason, count in result.totals["skipped"].items() if count}


def with_options(raw: bytes, **fields):
    """A packet with these option bytes, padded with zeros."""
    raw += bytes(-len(raw) % 4)
    frame = packet(aligned=False, **fields)
    ip, tcp = frame[scapy.IP], frame[scapy.TCP]
    header = bytearray(bytes(tcp)[:20])
    header[12] = (5 + len(raw) // 4) << 4
    ip.remove_payload()
    ip.proto = 6
    return frame / scapy.Raw(bytes(header) + raw)


def test_control_well_formed_packets_are_dropped(tmp_path):
    """Otherwise the tests below would pass with a policy that never matches."""
    sent = [with_options(bytes([30, 12, 0x00, 0x81]) + bytes(8)), packet(dss(ack=1))]
    result = dry_run(tmp_path, policy(chain(actors='["drop"]')), sent)
    assert result.verdicts == ["drop", "drop"]


@HOOKS
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_packets_truncated_anywhere_in_their_headers(tmp_path, hook, ipv6):
    whole = bytes(packet(NOP, NOP, TIMESTAMPS, dss(ack=1, sequence=1, length=4), ipv6=ipv6, payload=b"data"))
    tcp_at = 14 + (40 if ipv6 else 20)
    headers = len(whole) - 4
    sent = [whole[:length] for length in range(1, headers)]
    reasons = skipped(tmp_path, hook, sent)
    # Without the beginning of a TCP header, a packet is not known to be TCP.
    assert reasons == {"malformed": headers - tcp_at}


@HOOKS
def test_options_too_short_or_beyond_the_header(tmp_path, hook):
    bad = [
        bytes([1] * 36 + [30, 0, 0, 1]),
        bytes([30, 0, 0, 1]),
        bytes([30, 1, 0, 1]),
        bytes([8, 1, 30, 4, 0, 1, 0, 0]),
        bytes([30, 12, 0x20, 0x01]),
        bytes([1, 1, 1, 30]),
        bytes([30, 8, 0x20, 0x01, 0, 0, 0]) + bytes([30, 2, 30]),
        bytes([2, 4, 5, 0xB4, 30, 41, 0x20, 1]) + bytes(32),
        bytes([30, 255]) + bytes(38),
        # A DSS shorter than its flags require.
        bytes([30, 4, 0x20, 0x01]),
        bytes([30, 8, 0x20, 0x03]) + bytes(4),
        bytes([30, 12, 0x20, 0x04]) + bytes(8),
        bytes([30, 20, 0x20, 0x0D]) + bytes(16),
    ]
    assert skipped(tmp_path, hook, list(map(with_options, bad))) == {"bad_options": len(bad)}


@HOOKS
def test_inconsistent_headers(tmp_path, hook):
    sent = [
        packet(dss(ack=1), network=scapy.IP(src="192.0.2.7", dst=SERVER, ihl=4)),
        packet(dss(ack=1), network=scapy.IP(src="192.0.2.7", dst=SERVER, version=5)),
        packet(dss(ack=1), network=scapy.IP(src="192.0.2.7", dst=SERVER, len=51)),
        packet(dss(ack=1), network=scapy.IPv6(src="2001:db8::1", dst="2001:db8::2", plen=31)),
        packet(dss(ack=1), network=scapy.IPv6(src="2001:db8::1", dst="2001:db8::2", plen=0)),
        packet(dss(ack=1), network=scapy.IPv6(src="2001:db8::1", dst="2001:db8::2", version=5)),
        packet(dss(ack=1), dataofs=4),
        packet(dss(ack=1), dataofs=0),
    ]
    assert skipped(tmp_path, hook, sent) == {"malformed": len(sent)}


@HOOKS
def test_fragments(tmp_path, hook):
    first = scapy.IP(src="192.0.2.7", dst=SERVER, flags="MF")
    later = scapy.IP(src="192.0.2.7", dst=SERVER, frag=100)
    sent = [packet(dss(ack=1), network=ip, payload=b"x" * 64) for ip in (first, later)]
    assert skipped(tmp_path, hook, sent) == {"fragments": 2}
    # The DF flag alone does not make a fragment.
    whole = scapy.IP(src="192.0.2.7", dst=SERVER, flags="DF")
    drop = policy(chain(hook=hook, actors='["drop"]'))
    result = dry_run(tmp_path, drop, [packet(dss(ack=1), network=whole)], "--hook", hook)
    assert result.verdicts == ["drop"]


@HOOKS
def test_ipv6_extension_headers(tmp_path, hook):
    extensions = [
        scapy.IPv6ExtHdrHopByHop(),
        scapy.IPv6ExtHdrDestOpt(),
        scapy.IPv6ExtHdrRouting(addresses=["2001:db8::3"]),
        scapy.IPv6ExtHdrFragment(m=1),
        scapy.IPv6ExtHdrFragment(offset=100),
        scapy.IPv6ExtHdrHopByHop() / scapy.IPv6ExtHdrDestOpt() / scapy.IPv6ExtHdrFragment(),
    ]
    base = scapy.IPv6(src="2001:db8:7::7", dst="2001:db8:9::9")
    sent = [packet(dss(ack=1), network=base / extension) for extension in extensions]
    assert skipped(tmp_path, hook, sent) == {"extension_headers": len(sent)}


@HOOKS
def test_packets_other_than_tcp(tmp_path, hook):
    base = scapy.Ether() / scapy.IP(src="192.0.2.7", dst=SERVER)
    mptcp = bytes(packet(dss(ack=1))[scapy.TCP])
    sent = [
        base / scapy.UDP(sport=1, dport=2) / scapy.Raw(mptcp),
        base / scapy.ICMP() / scapy.Raw(mptcp),
        scapy.Ether() / scapy.ARP(),
        scapy.Ether(type=0x88B5) / scapy.Raw(mptcp),
        scapy.Ether() / scapy.IPv6() / scapy.ICMPv6EchoRequest(),
        # At most two VLAN tags are parsed.
        packet(dss(ack=1), vlan=[scapy.Dot1AD(vlan=1), scapy.Dot1Q(vlan=2), scapy.Dot1Q(vlan=3)]),
    ]
    assert skipped(tmp_path, hook, sent) == {}


@HOOKS
def test_forty_bytes_of_options_are_parsed_completely(tmp_path, hook):
    full = [
        packet(NOP, NOP, TIMESTAMPS, dss(ack=1, sequence=1, subflow_sequence=1, length=0), NOP, NOP),
        packet(*[NOP] * 37, mp_prio(True)),
        packet(mp_join_ack(), NOP, NOP, TIMESTAMPS, mp_prio(False), NOP),
        packet(dss(ack=1, sequence=1), mp_fail(1)),
    ]
    assert all(each[scapy.TCP].dataofs == 15 for each in map(settled, full))
    result = dry_run(tmp_path, policy(chain(hook=hook)), full, "--hook", hook)
    assert all(each["matched"] for each in result.packets) and result.unchanged(full)


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_actors_do_not_modify_packets_with_a_wrong_checksum(tmp_path, ipv6):
    """Correcting it would make the receiver accept corrupted data."""
    ack = settled(packet(dss(ack=1), window=60000, ipv6=ipv6))
    wrong = []
    for difference in (1, 0x100, 0x8000):
        each = ack.copy()
        each[scapy.TCP].chksum ^= difference
        wrong.append(each)
    shake = [
        syn(mp_capable(), ipv6=ipv6),
        syn_ack(mp_capable(7), ipv6=ipv6),
        packet(mp_capable(7, 8), ipv6=ipv6),
    ]
    limit = chain(actors='[{ rate_limit = { window = "1kB" } }]', select="not packet(mp_capable)")
    local = "2001:db8:9::9" if ipv6 else SERVER
    result = dry_run(tmp_path, policy(limit), [*shake, *wrong, ack], "--local", local)
    assert result.output[:-1] == [bytes(each) for each in [*shake, *wrong]]
    assert result.output[-1] != bytes(ack), "control: with a valid checksum, the actor takes effect"
    assert result.totals["skipped"]["wrong_checksum"] == len(wrong)
    (actor,) = result.totals["chains"][0]["actors"]
    assert (actor["hits"], actor["errors"]) == (1, len(wrong))


def reference(frame: bytes) -> set[str] | None:
    """The kinds of MPTCP options in a frame by RFC 8684 and RFC 9293; `None`: none, or malformed."""
    kind, at = frame[12:14], 14
    for _ in range(2):
        if kind in (b"\x81\x00", b"\x88\xa8"):
            kind, at = frame[at + 2 : at + 4], at + 4
    ip = frame[at:]
    if kind == b"\x08\x00" and len(ip) >= 20 and ip[9] == 6 and ip[0] >> 4 == 4 and ip[0] & 15 >= 5:
        if struct.unpack(">H", ip[6:8])[0] & 0x3FFF:
            return None
        header, total = (ip[0] & 15) * 4, struct.unpack(">H", ip[2:4])[0]
    elif kind == b"\x86\xdd" and len(ip) >= 40 and ip[6] == 6 and ip[0] >> 4 == 6:
        header, total = 40, 40 + struct.unpack(">H", ip[4:6])[0]
    else:
        return None
    tcp = ip[header:]
    if len(tcp) < 20:
        return None
    length = (tcp[12] >> 4) * 4
    if length < 20 or len(tcp) < length or total < header + length:
        return None
    return kinds_of_options(tcp[20:length])


def kinds_of_options(raw: bytes) -> set[str] | None:
    names = "mp_capable mp_join dss add_addr remove_addr mp_prio mp_fail mp_fastclose mp_tcprst".split()
    found, last, at = False, {}, 0
    while at < len(raw) and raw[at] != 0:
        if raw[at] == 1:
            at += 1
            continue
        if at + 1 >= len(raw) or raw[at + 1] < 2 or at + raw[at + 1] > len(raw):
            return None
        option = raw[at : at + raw[at + 1]]
        if option[0] == 30 and len(option) > 2:
            found, last[option[2] >> 4] = True, option
        at += len(option)
    kinds = {names[subtype] for subtype in last if subtype < len(names)}
    if 2 in last and not dss_is_whole(last[2]):
        return None
    if 3 in last and last[3][2] & 1:
        kinds = kinds - {"add_addr"} | {"add_addr_echo"}
    return kinds | {"mptcp"} if found else None


def dss_is_whole(option: bytes) -> bool:
    flags = option[3] if len(option) > 3 else 0
    ack = (8 if flags & 2 else 4) if flags & 1 else 0
    mapping = (8 if flags & 8 else 4) + 6 if flags & 4 else 0
    return len(option) >= 4 + ack + mapping


def well_formed() -> list[bytes]:
    """MPTCP packets of every kind."""
    packets = [
        syn(mp_capable()),
        packet(mp_capable(7, 8)),
        syn(mp_join_syn(1)),
        packet(mp_join_ack()),
        packet(NOP, NOP, TIMESTAMPS, dss(ack=1, sequence=9, length=4), payload=b"data"),
        packet(NOP, NOP, TIMESTAMPS, dss(ack=1, ack_bytes=4), mp_prio(True)),
        packet(add_addr("192.0.2.3"), NOP, NOP, TIMESTAMPS),
        packet(remove_addr(1, 2), ipv6=True),
        packet(add_addr("2001:db8::3", echo=True), ipv6=True),
        packet(dss(ack=1), vlan=[scapy.Dot1Q(vlan=5)]),
    ]
    return [bytes(each) for each in packets]


def scrambled(rng: random.Random, some: list[bytes]) -> bytes:
    """One of these packets, often mutated."""
    raw = bytearray(rng.choice(some))
    how = rng.random()
    if how < 0.4:
        for _ in range(rng.randint(1, 4)):
            byte = rng.choice([0, 1, 2, 3, 8, 30, 0x1E, 0x20, 0x50, 0xFF, rng.randrange(256)])
            raw[rng.randrange(12, len(raw))] = byte
    elif how < 0.5:
        del raw[rng.randrange(1, len(raw)) :]
    elif how < 0.9:
        # Random option bytes, biased towards meaningful values.
        words = rng.randint(0, 10)
        options = bytes(
            rng.choice([0, 1, 2, 3, 4, 8, 12, 30, 30, 0x20, 0x30, 0x05, rng.randrange(256)])
            for _ in range(words * 4)
        )
        raw = bytearray(bytes(with_options(options)))
    return bytes(raw)


@HOOKS
@NUMBERS
def test_random_packets_are_parsed_as_the_rfcs_specify(tmp_path, hook, number):
    rng = random.Random(8684)
    some = well_formed()
    sent = [scrambled(rng, some) for _ in range(number)]
    expected = [reference(frame) for frame in sent]
    assert sum(each is None for each in expected) > number / 8 < sum(each is not None for each in expected)
    names = sorted(set().union(*filter(None, expected)))
    chains = [chain(name, hook, f"packet({name})", actors="[]") for name in names]
    result = dry_run(tmp_path, policy(*chains), sent, "--hook", hook)
    assert result.output == sent
    for index, (frame, kinds) in enumerate(zip(sent, expected)):
        assert set(result.matched(index)) == (kinds or set()), frame.hex()
    counts = collections.Counter(name for kinds in expected if kinds for name in kinds)
    assert {each["name"]: each["packets"] for each in result.totals["chains"]} == dict(counts)


@HOOKS
def test_random_packets_keep_valid_checksums_through_an_actor(tmp_path, hook):
    """An actor that rewrites the header keeps checksums valid and all other bytes unchanged."""
    rng = random.Random(7323)
    ends = {} if hook == "ingress" else {"back": True}
    shake = [syn(mp_capable(), scale=0), syn_ack(mp_capable(7), scale=0)]
    acks = []
    for _ in range(150):
        short, long = (dss(ack=rng.getrandbits(63)),), (NOP, NOP, TIMESTAMPS, dss(ack=1, ack_bytes=4))
        options = rng.choice([short, long])
        acks.append(settled(packet(*options, window=rng.getrandbits(16), seq=rng.getrandbits(32), **ends)))
    limit = chain(hook=hook, actors='[{ rate_limit = { window = "20kB" } }]')
    result = dry_run(tmp_path, policy(limit), [*shake, *acks], "--local", SERVER)
    for before, after in zip(acks, result.output[2:]):
        expected = before.copy()
        if expected[scapy.TCP].window > 20000:
            expected[scapy.TCP].window = 20000
            expected = settled(expected)
        assert after == bytes(expected), before.show(dump=True)
