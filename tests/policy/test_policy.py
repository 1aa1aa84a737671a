"""Every selector on packets built by scapy, compared with the values of scapy's fields."""

import ipaddress
import random

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
    mp_fail,
    mp_fastclose,
    mp_join_ack,
    mp_join_syn,
    mp_join_syn_ack,
    mp_prio,
    mp_tcprst,
    packet,
    remove_addr,
    scapy,
    syn,
    syn_ack,
)

from policies import chain, policy

# The matches of one packet that are listed.
MAX_MATCHES = 16


def options(each) -> list[bytes]:
    return [value for kind, value in each[scapy.TCP].options if kind == 30]


def has(subtype, test=lambda value: True):
    return lambda each: any(value[0] >> 4 == subtype and test(value) for value in options(each))


def flag(letter):
    return lambda each: letter in str(each[scapy.TCP].flags)


def payload(each) -> int:
    return len(each[scapy.TCP].payload)


def network(each):
    return each[scapy.IPv6] if scapy.IPv6 in each else each[scapy.IP]


KINDS = {
    "syn": flag("S"),
    "fin": flag("F"),
    "rst": flag("R"),
    "ack": flag("A"),
    "data": lambda each: payload(each) > 0,
    "pure_ack": lambda each: payload(each) == 0 and set(str(each[scapy.TCP].flags)) & set("SFRA") == {"A"},
    "mp_capable": has(0),
    "mp_join": has(1),
    "dss": has(2),
    "mapping": has(2, lambda value: value[1] & 0x04),
    "data_ack": has(2, lambda value: value[1] & 0x01),
    "data_fin": has(2, lambda value: value[1] & 0x10),
    "add_addr": has(3, lambda value: not value[0] & 1),
    "add_addr_echo": has(3, lambda value: value[0] & 1),
    "remove_addr": has(4),
    "mp_prio": has(5),
    "mp_fail": has(6),
    "mp_fastclose": has(7),
    "mp_tcprst": has(8),
    "mptcp": lambda each: True,
    "ipv6": lambda each: scapy.IPv6 in each,
}


def address(field, prefix):
    inside = ipaddress.ip_network(prefix)
    return lambda each: ipaddress.ip_address(getattr(network(each), field)) in inside


def port(field, first, last=None):
    return lambda each: first <= getattr(each[scapy.TCP], field) <= (last or first)


def within(first, last, number):
    """Ranges wrap around."""
    return first <= number <= last if first <= last else number >= first or number <= last


def subflow_sequence(first, last):
    return lambda each: within(first, last, each[scapy.TCP].seq)


def data_sequence(first, last):
    def chosen(each):
        for value in options(each):
            if value[0] >> 4 == 2 and value[1] & 0x04:
                start = 2 + {0: 0, 1: 4, 3: 8}[value[1] & 0x03]
                end = start + (8 if value[1] & 0x08 else 4)
                return within(first, last, int.from_bytes(value[start:end], "big"))
        return False

    return chosen


def every(*tests):
    return lambda each: all(test(each) for test in tests)


SELECTORS = {
    "any": lambda each: True,
    "not any": lambda each: False,
    f"src({CLIENT})": address("src", CLIENT),
    "src(192.0.2.0/24, 40001)": every(address("src", "192.0.2.0/24"), port("sport", 40001)),
    "src(192.0.2.0/30)": address("src", "192.0.2.0/30"),
    "dst(198.51.100.8/29, 400-500)": every(address("dst", "198.51.100.8/29"), port("dport", 400, 500)),
    "dst(0.0.0.0/0)": address("dst", "0.0.0.0/0"),
    "dst(::/0)": address("dst", "::/0"),
    "src(2001:db8:7::/48)": address("src", "2001:db8:7::/48"),
    f"dst({CLIENT6})": address("dst", CLIENT6),
    "dst(2001:db8::/37)": address("dst", "2001:db8::/37"),
    f"ip_pair({CLIENT}, {SERVER})": every(address("src", CLIENT), address("dst", SERVER)),
    f"ip_pair({SERVER6}, 2001:db8:7::/64)": every(address("src", SERVER6), address("dst", "2001:db8:7::/64")),
    "subflow(sport = 443)": port("sport", 443),
    "subflow(dport = 1-442)": port("dport", 1, 442),
    f"subflow(src = {CLIENT}, dst = {SERVER}, sport = 40001, dport = 443)": every(
        address("src", CLIENT), address("dst", SERVER), port("sport", 40001), port("dport", 443)
    ),
    "subflow(src = 2001:db8::/32, sport = 0-65535)": address("src", "2001:db8::/32"),
    "sequence(subflow = 1000-1000)": subflow_sequence(1000, 1000),
    "sequence(subflow = 4294967295-999)": subflow_sequence(4294967295, 999),
    "sequence(subflow = 0x80000000-0xfffffffe)": subflow_sequence(0x80000000, 0xFFFFFFFE),
    "sequence(data = 5000-6000)": data_sequence(5000, 6000),
    "sequence(data = 0xfffffffffffffff0-10)": data_sequence(0xFFFFFFFFFFFFFFF0, 10),
    **{f"packet({name})": test for name, test in KINDS.items()},
    "packet(fin, mp_prio, add_addr)": lambda each: any(KINDS[name](each) for name in ("fin", "mp_prio", "add_addr")),
}  # fmt: skip


def corpus(ipv6: bool) -> list:
    """All kinds of MPTCP packets, in both directions, with numbers at and next to the boundaries above."""
    other = CLIENT6 if ipv6 else "192.0.2.3"
    stamped = (NOP, NOP, TIMESTAMPS)
    some = [
        syn(mp_capable()),
        syn_ack(mp_capable(7)),
        packet(mp_capable(7, 8)),
        packet(mp_capable(7, 8, length=100), payload=b"x" * 100, flags="PA"),
        syn(mp_join_syn(0x1A2B3C4D)),
        syn_ack(mp_join_syn_ack()),
        packet(mp_join_ack()),
        packet(*stamped, dss(ack=1)),
        packet(*stamped, dss(ack=1, ack_bytes=4)),
        packet(*stamped, dss(sequence=5000, length=9, fin=True), flags="FA"),
        packet(add_addr("192.0.2.3")),
        packet(add_addr("192.0.2.3", port=8443)),
        packet(*stamped, add_addr("2001:db8::3", echo=True)),
        packet(remove_addr(1, 2, 3)),
        packet(*stamped, dss(ack=1, ack_bytes=4), mp_prio(True)),
        packet(mp_prio(False), payload=b"y"),
        packet(*stamped, mp_fail(9)),
        packet(mp_fastclose(7), flags="R"),
        packet(mp_tcprst(3), flags="RA"),
        packet(dss(ack=1), sport=40002, dport=442),
        packet(dss(ack=1), sport=40002, dport=501),
        packet(*stamped, dss(ack=1), vlan=[scapy.Dot1Q(vlan=5)]),
        packet(*stamped, dss(ack=1), vlan=[scapy.Dot1AD(vlan=6), scapy.Dot1Q(vlan=5)]),
    ]
    large = (0xFFFFFFFF, 1 << 32, (1 << 64) - 16, (1 << 64) - 17)
    for sequence in (0, 9, 10, 11, 4999, 5000, 6000, 6001, *large):
        some.append(packet(*stamped, dss(ack=1, sequence=sequence, length=5), payload=b"z" * 5))
    for sequence in (4999, 5000, 0xFFFFFFFF):
        more = dss(ack=1, ack_bytes=4, sequence=sequence, sequence_bytes=4, length=5)
        some.append(packet(*stamped, more, payload=b"z" * 5))
    for sequence in (0, 999, 1000, 1001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF):
        some.append(packet(*stamped, dss(ack=1), seq=sequence))
    if not ipv6:
        ip = scapy.IP(src=other, dst="198.51.100.16", options=[scapy.IPOption_NOP()] * 4)
        some.append(packet(*stamped, dss(ack=1), network=ip))
    both = some + [turned(each) for each in some]
    return [scapy.Ether(bytes(in_ipv6(each) if ipv6 else each)) for each in both]


def turned(each):
    """The packet in the reverse direction."""
    copy = each.copy()
    ip, tcp = network(copy), copy[scapy.TCP]
    ip.src, ip.dst = ip.dst, ip.src
    tcp.sport, tcp.dport = tcp.dport, tcp.sport
    return copy


def in_ipv6(each):
    copy = each.copy()
    names = {CLIENT: CLIENT6, SERVER: SERVER6}
    below, tcp = copy[scapy.IP].underlayer, copy[scapy.TCP].copy()
    ip = scapy.IPv6(src=names[copy[scapy.IP].src], dst=names[copy[scapy.IP].dst])
    below.remove_payload()
    below.fields.pop("type", None)
    return copy / ip / tcp


def agree(directory, selectors: dict, hook: str, sent):
    """Each selector matches exactly the packets of its predicate, and modifies none."""
    names = list(selectors)
    for start in range(0, len(names), MAX_MATCHES):
        some = names[start : start + MAX_MATCHES]
        chains = [chain(f"c{number}", hook, text) for number, text in enumerate(some)]
        result = dry_run(directory, policy(*chains), sent, "--hook", hook)
        for number, each in enumerate(sent):
            expected = {text for text in some if selectors[text](each)}
            found = {some[int(name[1:])] for name in result.matched(number)}
            assert found == expected, each.show(dump=True)
        assert result.unchanged(sent)


@pytest.mark.parametrize("hook", ["ingress", "egress"])
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_every_selector_matches_as_documented(tmp_path, hook, ipv6):
    sent = corpus(ipv6)
    for text, test in SELECTORS.items():
        chosen = sum(map(test, sent))
        family = "2001" in text or "::" in text or "192." in text or "198." in text or "0.0.0.0" in text
        exempt = family or text in ("any", "not any", "packet(mptcp)", "packet(ipv6)")
        assert exempt or 0 < chosen < len(sent), f"the packets do not try {text}"
    agree(tmp_path, SELECTORS, hook, sent)


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_nested_expressions_match_a_reference_evaluator(tmp_path, hook):
    rng = random.Random(5)

    def expression(depth):
        """A random expression: text and predicate."""
        if depth == 0 or rng.random() < 0.15:
            return rng.choice(list(SELECTORS.items()))
        if rng.random() < 0.3:
            text, test = expression(depth - 1)
            return f"not ({text})", lambda each: not test(each)
        parts = [expression(depth - 1) for _ in range(rng.randint(2, 4))]
        tests = [test for _, test in parts]
        texts = [f"({text})" for text, _ in parts]
        if rng.random() < 0.5:
            return " and ".join(texts), lambda each: all(test(each) for test in tests)
        return " or ".join(texts), lambda each: any(test(each) for test in tests)

    expressions = dict(expression(depth) for depth in (1, 2, 3, 4) for _ in range(12))
    agree(tmp_path, expressions, hook, corpus(False) + corpus(True))


@pytest.mark.parametrize(("hook", "local"), [("ingress", SERVER), ("egress", CLIENT)])
def test_size_counts_earlier_payload_of_the_subflow(tmp_path, hook, local):
    selectors = {"size(0-1000B)": (0, 1000), "size(1000B-2kB)": (1000, 2000), "size(2kB-)": (2000, 1 << 64)}
    sent = [syn(mp_capable()), syn_ack(mp_capable(7)), packet(mp_capable(7, 8))]
    sizes = [0, 0, 0]
    before = 0
    for length in (999, 1, 500, 499, 1, 1000):
        sequence = dss(ack=1, sequence=before + 1, length=length)
        sent.append(packet(sequence, seq=1000 + before, payload=b"x" * length))
        sizes.append(before)
        before += length
        # The reverse direction is counted separately.
        sent.append(packet(dss(ack=before + 1), back=True))
        sizes.append(None)
    sizes[1] = None
    chains = [chain(f"c{number}", hook, text) for number, text in enumerate(selectors)]
    result = dry_run(tmp_path, policy(*chains), sent, "--local", local)
    for number, size in enumerate(sizes):
        expected = {
            f"c{place}"
            for place, (low, high) in enumerate(selectors.values())
            if size is not None and low <= size < high
        }
        assert set(result.matched(number)) == expected, (number, size)


def test_connection_size_sums_subflows_and_directions(tmp_path):
    """Data sent by two subflows counts once; for an unknown connection, only the subflow counts."""
    token = 0x1A2B3C4D
    sizes = [(0, 1000), (1000, 2000), (2000, 1 << 64)]
    sent, before = [], []

    def passes(each, size):
        sent.append(each)
        before.append(size)

    def data(start, sequence, length, sport=40001, ack=1):
        mapping = dss(ack=ack, sequence=sequence, subflow_sequence=1 + start, length=length)
        return packet(mapping, seq=1000 + start, payload=b"x" * length, sport=sport)

    def back(start, sequence, length, dport=40001, ack=1):
        mapping = dss(ack=ack, sequence=sequence, subflow_sequence=1 + start, length=length)
        return packet(mapping, back=True, seq=2000 + start, payload=b"y" * length, dport=dport)

    for port in (40001, 40002):
        passes(syn(mp_join_syn(token), seq=999, sport=port), 0)
        passes(syn_ack(mp_join_syn_ack(), dport=port), 0)
        passes(packet(mp_join_ack(), sport=port), 0)
    passes(data(0, 1, 600), 0)
    passes(back(0, 1, 700, dport=40002, ack=601), 600)
    passes(data(0, 601, 700, sport=40002), 1300)
    passes(packet(dss(ack=1301), back=True), 2000)
    # Reinjected by the other subflow, and retransmitted by the same.
    passes(data(700, 1, 600, sport=40002), 2000)
    passes(data(0, 1, 600), 2000)
    passes(data(600, 1301, 100), 2000)
    passes(syn(mp_capable(), seq=999, sport=40003), 0)
    passes(syn_ack(mp_capable(7), dport=40003), 0)
    passes(packet(mp_capable(7, 8, length=999), payload=b"x" * 999, sport=40003), 0)
    passes(back(0, 1, 1, dport=40003), 999)
    passes(packet(dss(ack=2), sport=40003), 1000)
    selectors = ["connection_size(0-1000B)", "connection_size(1000B-2kB)", "connection_size(2kB-)"]
    chains = [
        chain(f"{hook}-{place}", hook, text)
        for hook in ("ingress", "egress")
        for place, text in enumerate(selectors)
    ]
    result = dry_run(tmp_path, policy(*chains), sent, "--local", SERVER)
    for number, size in enumerate(before):
        [expected] = [str(place) for place, (low, high) in enumerate(sizes) if low <= size < high]
        assert [name[-1] for name in result.matched(number)] == [expected], (number, size)
    assert result.unchanged(sent)


def test_connection_matches_the_token_of_joins(tmp_path):
    """The SYN of MP_JOIN carries the token of its receiver (RFC 8684, section 3.2)."""
    token, other = 0x1A2B3C4D, 0x1A2B3C4E
    sent = [
        syn(mp_join_syn(token)),
        syn_ack(mp_join_syn_ack()),
        packet(mp_join_ack()),
        packet(dss(ack=1, sequence=1, length=3), payload=b"abc"),
        packet(dss(ack=4), back=True),
        syn(mp_join_syn(other), sport=40002),
        packet(dss(ack=1), sport=40002),
        packet(dss(ack=1), sport=40003),
    ]
    chains = [chain(f"{hook}-chain", hook, f"connection({token:#x})") for hook in ("ingress", "egress")]
    result = dry_run(tmp_path, policy(*chains), sent, "--local", SERVER)
    found = [result.matched(number) for number in range(len(sent))]
    inward, outward, none = ["ingress-chain"], ["egress-chain"], []
    assert found == [inward, outward, inward, inward, outward, none, none, none]


def test_path_matches_the_interface(tmp_path):
    sent = [packet(dss(ack=1))]
    chains = [
        chain("eth", select="path(eth0)"),
        chain("wlan", select="path(wlan0)"),
        chain("only-eth", interfaces=["eth0"]),
        chain("only-wlan", interfaces=["wlan0"]),
    ]
    for name, expected in (("eth0", ["eth", "only-eth"]), ("wlan0", ["wlan", "only-wlan"])):
        result = dry_run(tmp_path, policy(*chains), sent, "--interface", name)
        assert result.matched(0) == expected


def test_chains_run_by_priority_then_file_order(tmp_path):
    """A dropped packet skips the remaining chains."""
    sent = [packet(dss(ack=1))]
    late, early, drop = (
        chain("late", priority=30),
        chain("early", priority=-5),
        chain("drop", actors='["drop"]', priority=7),
    )
    same = chain("same", priority=7)
    for chains, reached in (
        ([late, drop, early], {"early", "drop"}),
        ([same, drop, late], {"same", "drop"}),
        ([drop, same, late], {"drop"}),
    ):
        result = dry_run(tmp_path, policy(*chains), sent)
        assert result.verdicts == ["drop"] and result.output == []
        counted = {each["name"] for each in result.totals["chains"] if each["packets"]}
        assert counted == reached


def test_plain_tcp_matches_no_chain(tmp_path):
    sent = [
        packet(flags="S"),
        packet(("MSS", 1460), ("WScale", 7), flags="S"),
        packet(NOP, NOP, TIMESTAMPS, payload=b"x" * 100),
        packet((30, b""), payload=b"x"),
        packet((254, b"\x1e\x0c\x00\x81")),
        # MPTCP bytes after the end of options do not count.
        packet(("EOL", None), (30, b"\x00\x81" + bytes(4)), aligned=False),
        # Inside another option: a SACK block that looks like MP_CAPABLE.
        packet(NOP, NOP, ("SAck", (0x1E0C0181, 0x1E0C0181))),
        packet(payload=b"\x1e\x0c\x01\x81" * 20),
        packet((19, b"\x1e\x0c\x01\x81" * 4)),
    ]
    for hook in ("ingress", "egress"):
        result = dry_run(tmp_path, policy(chain(hook=hook, actors='["drop"]')), sent, "--hook", hook)
        assert result.unchanged(sent)
        assert not any(result.totals["skipped"].values())
