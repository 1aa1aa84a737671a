"""Datagrams through an exit: SOCKS5's UDP ASSOCIATE of `plait proxy --exit`, on several paths."""

import contextlib
import socket
import threading
import time

import pytest
from datagrams import AssociateError, Association, call_during_cuts, calling, echo_datagrams
from disturbance import measuring
from exits import EXIT_PRIVATE, EXIT_PUBLIC, FAR, FAR6, NAME, PORT, PRIVATE, PRIVATE_NAME, exit_behind
from hosts import Pair, wait_for

ECHO = 7


def query(name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return bytes([18, 52, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + labels + bytes([0, 0, 1, 0, 1])


@pytest.mark.parametrize("host", [FAR, FAR6, NAME], ids=["v4", "v6", "name"])
def test_datagrams_reach_what_the_exit_reaches(exit, host):
    senders = [echo_datagrams(exit.far, address, ECHO) for address in (FAR, FAR6)]
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        sender, data = association.exchange((host, ECHO), b"hello")
        # A name's first address, as the exit's resolver sorts them.
        assert data == b"hello" and sender in (
            [(FAR, ECHO), (FAR6, ECHO)] if host == NAME else [(host, ECHO)]
        )
        # Both directions, one after the other, and an empty one.
        for payload in (b"", b"x", bytes(1200), bytes(8000), bytes(60000)):
            assert association.exchange((host, ECHO), payload) == (sender, payload), len(payload)
    assert len({port for each in senders for _, port in each}) == 1, (
        "one socket at the exit for one of the client"
    )


def test_exit_is_reached_by_ipv6(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.url = exit.url.replace(Pair.ETH, f"[{Pair.ETH6}]")
    exit.proxy()
    with Association(exit.client) as association:
        for payload in (b"hello", bytes(8000)):
            assert association.exchange((FAR, ECHO), payload)[1] == payload


def test_programs_query_the_exits_resolver_and_others(exit):
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        # The client's nameserver, which does not exist, and the one behind the exit by its address.
        for server in ("10.77.1.53", FAR):
            sender, answer = association.exchange((server, 53), query(NAME))
            assert sender == (server, 53) and answer[-4:] == bytes([11, 0, 0, 2])
    assert {protocol for protocol, _, _ in exit.nameserver.asked} == {"udp"}


def test_one_association_has_many_destinations_and_strangers_get_nothing_through(exit):
    senders = echo_datagrams(exit.far, FAR, ECHO)
    echo_datagrams(exit.far, FAR, ECHO + 1)
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        for port in (ECHO, ECHO + 1):
            assert association.exchange((FAR, port), b"hello")[0] == (FAR, port)
        [(_, port)] = set(senders)
        with exit.far.inside():
            stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        exit.far.ip("addr add 11.0.0.9/24 dev core")
        stranger.bind(("11.0.0.9", 0))
        stranger.sendto(b"unasked", (EXIT_PUBLIC, port))
        assert not association.receives(b"unasked")


@pytest.mark.parametrize("address", [PRIVATE, EXIT_PUBLIC, EXIT_PRIVATE, "127.0.0.1", "::1", PRIVATE_NAME])
def test_special_addresses_and_the_exits_own_are_refused(exit, address):
    echo_datagrams(exit.far, PRIVATE, ECHO)
    echo_datagrams(exit.far, FAR, ECHO)
    for own in ("127.0.0.1", EXIT_PUBLIC, EXIT_PRIVATE):
        echo_datagrams(exit.server, own, ECHO)
    exit.serve()
    exit.proxy("--allow-local")
    with Association(exit.client) as association:
        association.exchange((FAR, ECHO), b"ready")
        association.send((address, ECHO), b"forbidden")
        assert not association.receives(b"forbidden")
    log = (exit.pair.directory / "proxy.log").read_text()
    assert "the exit sends no datagrams to" in log and "not permitted" in log


def test_listed_network_is_reached(exit):
    echo_datagrams(exit.far, PRIVATE, ECHO)
    exit.serve(section='allow = ["10.99.0.0/24"]')
    exit.proxy()
    with Association(exit.client) as association:
        assert association.exchange((PRIVATE, ECHO), b"hello") == ((PRIVATE, ECHO), b"hello")


def test_associations_of_a_client_are_limited(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    # One is the session.
    exit.serve(section="max_connections = 3")
    exit.proxy()
    with (
        Association(exit.client) as first,
        Association(exit.client) as second,
        Association(exit.client) as third,
    ):
        first.exchange((FAR, ECHO), b"hello")
        second.exchange((FAR, ECHO), b"hello")
        third.send((FAR, ECHO), b"refused")
        assert not third.receives(b"refused")
        first.close()
        assert third.exchange((FAR, ECHO), b"hello")[1] == b"hello", "a closed one makes room"


def test_nothing_is_readable_on_the_uplinks(exit):
    for address in (FAR, FAR6):
        echo_datagrams(exit.far, address, ECHO)
    exit.serve()
    exit.proxy()
    secret = b"a secret of sixteen bytes and more"
    captures = [exit.pair.capture(link, host=exit.client, filter="ip or ip6") for link in ("eth", "wlan")]
    with captures[0], captures[1], Association(exit.client) as association:
        association.exchange((FAR, ECHO), secret)
        association.exchange((NAME, ECHO), secret)
        association.exchange((FAR, 53), query(NAME))
    seen = b""
    for capture in captures:
        content = capture.file.read_bytes()
        seen += content
        for readable in (secret[:8], b"far.example", b"\x03far\x07example", bytes([11, 0, 0, 2])):
            assert readable not in content, (capture.link, readable)
        ports = {port for ports in capture.fields("udp.dstport", where="udp") for port in ports}
        assert str(PORT) in ports, "packets take both uplinks"
    assert len(seen) > 1000


def test_call_survives_a_cut_of_the_path_in_use(exit):
    """50 datagrams per second for 20 s, while the path in use is cut: at most 15 are lost, within less than 300 ms."""
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        association.exchange((FAR, ECHO), b"ready")
        # Until both paths are measured.
        time.sleep(3)
        with measuring(0.02):
            echoes = call_during_cuts(exit.pair, association, (FAR, ECHO), 20, before=4, cut_for=4)
            assert echoes.sent == 1000
            assert echoes.lost <= 15 and echoes.gap < 0.3, echoes


def test_redundant_call_loses_nothing_in_a_cut(exit):
    senders = echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy("--datagram-scheduler", "redundant")
    with Association(exit.client) as association:
        association.exchange((FAR, ECHO), b"ready")
        # Until both paths have answered.
        time.sleep(2)
        before = len(senders)
        with measuring(0.02):
            # A path that was cut answers again before the next cut.
            echoes = call_during_cuts(exit.pair, association, (FAR, ECHO), 8, before=2, cut_for=1)
            assert (echoes.sent, echoes.lost) == (400, 0), echoes
        assert len(senders) - before == 400, "the destination gets no copies"


def test_call_survives_an_interface_that_goes_and_comes(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        association.exchange((FAR, ECHO), b"ready")
        time.sleep(2)
        with measuring(0.02):
            with calling(association, (FAR, ECHO), 8) as done:
                time.sleep(2)
                exit.client.ip("link set wlan down")
                time.sleep(2)
                exit.client.ip("link set wlan up")
                exit.client.ip("addr replace fd77:2::1/64 dev wlan nodad")
                exit.pair.add_route_by_wlan()
            print(done)
            assert done[0].lost <= 15, done


def test_associations_go_on_when_the_exit_is_back(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    program = exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        assert association.exchange((FAR, ECHO), b"before")[1] == b"before"
        program.kill()
        program.wait()
        exit.serve()
        assert association.exchange((FAR, ECHO), b"after", attempts=60)[1] == b"after"


def test_firewall_that_drops_udp_is_reported_and_harmless(exit, text):
    exit.start_nginx(text.parent)
    exit.server.add_packet_rules(input=f"udp dport {PORT} drop")
    exit.serve()
    exit.proxy()
    with pytest.raises(AssociateError):
        Association(exit.client)
    done = exit.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{NAME}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    log = exit.pair.directory / "proxy.log"
    wait_for("a warning", lambda: "which a firewall may drop" in log.read_text())
    exit.server.remove_packet_rules()

    def associate():
        try:
            return Association(exit.client)
        except AssociateError:
            return None

    echo_datagrams(exit.far, FAR, ECHO)
    with wait_for("an association", associate) as association:
        assert association.exchange((FAR, ECHO), b"hello")[1] == b"hello"


def test_packets_of_others_have_no_effect(exit):
    """Replayed, changed and made-up packets are not answered, and do not move the client."""
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy()
    with exit.pair.capture("eth", host=exit.client, filter=f"udp dst port {PORT}") as capture:
        with Association(exit.client) as association:
            association.exchange((FAR, ECHO), b"hello")
            time.sleep(1)
    packets = [bytes.fromhex(line[0].replace(":", "")) for line in capture.fields("udp.payload", where="udp")]
    assert packets
    with exit.client.inside():
        attacker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attacker.settimeout(1)
    for packet in packets:
        for forged in (
            packet,
            packet[:-1],
            packet[:9] + bytes(8) + packet[17:],
            bytes(len(packet)),
            b"",
            b"\0",
        ):
            attacker.sendto(forged, (exit.pair.ETH, PORT))
    with pytest.raises(TimeoutError):
        attacker.recv(65536)


def test_without_an_exit_there_are_no_associations(pair):
    pair.proxy("--trusted", "eth", "--mode", "off")
    with pytest.raises(AssociateError) as refused:
        Association(pair.client)
    assert refused.value.code == 7


def test_fragments_and_other_clients_are_dropped(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association, Association(exit.client) as other:
        association.exchange((FAR, ECHO), b"hello")
        association.send((FAR, ECHO), b"fragment", fragment=1)
        other.socket.sendto(bytes(3) + b"\1" + bytes([11, 0, 0, 2, 0, ECHO]) + b"stolen", association.relay)
        assert not association.receives(b"stolen")
        association.close()
        assert other.exchange((FAR, ECHO), b"hello")[1] == b"hello"
