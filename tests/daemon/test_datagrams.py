"""UDP of a whole host through an exit: its programs know nothing of it."""

import contextlib
import socket
import struct
import sys

import pytest
from daemons import Daemon, down, host_file, up
from datagrams import EXCHANGE, Datagrams, call_during_cuts, echo_datagrams
from disturbance import measuring
from exits import FAR, FAR6, PRIVATE
from hosts import Pair, wait_for

ECHO = 7
DHCP_SERVER, DHCP_CLIENT = 67, 68

# asm-generic/socket.h, linux/udp.h, linux/in.h, linux/in6.h: by family, level and option of the interface of a datagram
SO_MARK = 36
UDP_SEGMENT = 103
INFO = [(socket.IPPROTO_IP, 8), (socket.IPPROTO_IPV6, 50)]
IPV6_RECVPKTINFO = 49

MARK_OF_HOSTS = 0x706C6168


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def routing(host) -> str:
    """What is set for datagrams besides programs of BPF."""
    wait_for("addresses", lambda: "tentative" not in host.ip("addr"))
    return host.ip("rule") + host.ip("-6 rule") + host.ip("route show table all")


@contextlib.contextmanager
def host(exit, *arguments, **options):
    """The client's host, all of whose datagrams go through the exit."""
    exit.serve()
    daemon = Daemon(exit.client, host_file(exit, *arguments, **options)).start()
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("address", [FAR, FAR6], ids=["v4", "v6"])
@pytest.mark.parametrize("connected", [False, True], ids=["unconnected", "connected"])
def test_a_host_reaches_what_the_exit_reaches(exit, address, connected):
    senders = echo_datagrams(exit.far, address, ECHO)
    destination = (address, ECHO)
    with (
        host(exit) as daemon,
        Datagrams(exit.client, family(address), destination if connected else None) as client,
    ):
        for payload in (b"hello", b"", bytes(1472), bytes(8000), bytes(60000)):
            sender, data = client.exchange(destination, payload)
            assert (sender, len(data)) == (destination, len(payload)), daemon.log()
    assert len({port for _, port in senders}) == 1, "one socket at the exit for one of the host"


def test_sockets_are_told_apart_and_have_many_destinations(exit):
    """As QUIC has them: one for each connection; or as peer-to-peer programs: one for all."""
    senders = [echo_datagrams(exit.far, FAR, port) for port in range(7000, 7010)]
    with host(exit):
        sockets = [Datagrams(exit.client, connected=(FAR, 7000)) for _ in range(300)]
        for number, each in enumerate(sockets):
            payload = number.to_bytes(2, "big") * 600
            assert each.exchange((FAR, 7000), payload)[1] == payload
        assert len({port for _, port in senders[0]}) == 300
        with Datagrams(exit.client) as client:
            for port in range(7001, 7010):
                assert client.exchange((FAR, port), b"hello")[0] == (FAR, port)
        assert len({port for each in senders[1:] for _, port in each}) == 1


def test_segments_of_one_call_are_datagrams(exit):
    """UDP_SEGMENT, as QUIC uses it."""
    senders = echo_datagrams(exit.far, FAR, ECHO)
    with host(exit), Datagrams(exit.client, connected=(FAR, ECHO)) as client:
        client.exchange((FAR, ECHO), b"ready")
        del senders[:]
        client.socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        client.send((FAR, ECHO), b"".join(bytes([number]) * 1000 for number in range(20)))
        assert {client.receive()[1][:1] for _ in range(20)} == {bytes([number]) for number in range(20)}
        assert len(senders) == 20


def test_nothing_readable_leaves_and_a_stop_gives_back_all(exit):
    secret = b"a secret of sixteen bytes and more"
    echo_datagrams(exit.far, FAR, ECHO)
    before = routing(exit.client)
    captures = [exit.pair.capture(link, host=exit.client, filter="ip or ip6") for link in ("eth", "wlan")]
    with host(exit), captures[0], captures[1], Datagrams(exit.client) as client:
        assert client.exchange((FAR, ECHO), secret)[1] == secret
    for capture in captures:
        assert secret[:8] not in capture.file.read_bytes(), capture.link
        assert capture.fields("udp.port", where=f"ip.addr == {FAR}") == []
    assert routing(exit.client) == before


def test_local_networks_excluded_ones_and_this_host_are_reached_directly(exit):
    """Also by a socket that sends through the exit."""
    senders = echo_datagrams(exit.server, "0.0.0.0", ECHO)
    own = echo_datagrams(exit.client, "0.0.0.0", 9)
    echo_datagrams(exit.far, FAR, ECHO)
    with host(exit) as daemon, Datagrams(exit.client) as client:
        client.exchange((FAR, ECHO), b"far")
        client.exchange((Pair.ETH, ECHO), b"near")
        assert senders[-1][0] == "10.77.1.1", daemon.log()
        for address in ("10.77.1.1", "127.0.0.1"):
            assert client.exchange((address, 9), b"own")[1] == b"own"
        assert own
        count = len(senders)
        daemon.reload(host_file(exit, "lan = false"))
        client.send((Pair.ETH, ECHO), b"the exit may not")
        assert not client.receives(b"the exit may not") and len(senders) == count
        daemon.reload(host_file(exit, f"exclude = ['{Pair.ETH}/32']"))
        client.exchange((Pair.ETH, ECHO), b"near")


def test_private_destinations_get_nothing(exit):
    echo_datagrams(exit.far, PRIVATE, ECHO)
    with host(exit) as daemon, Datagrams(exit.client) as client:
        client.send((PRIVATE, ECHO), b"forbidden")
        wait_for("a refusal", lambda: "the exit sends no datagrams to" in daemon.log())
        assert not client.receives(b"forbidden")


def test_a_socket_from_before_is_refused_once_and_a_connected_one_for_good(exit):
    """The kernel has chosen their routes; none leaves unprotected."""
    senders = echo_datagrams(exit.far, FAR, ECHO)
    exit.client.ip(f"route replace {FAR} via {Pair.ETH}")
    with (
        Datagrams(exit.client) as free,
        Datagrams(exit.client, connected=(FAR, ECHO)) as connected,
        host(exit),
    ):
        with exit.pair.capture("eth", host=exit.client, filter=f"udp port {ECHO}") as capture:
            with pytest.raises(PermissionError):
                free.send((FAR, ECHO), b"first")
            assert free.exchange((FAR, ECHO), b"second")[1] == b"second"
            for _ in range(3):
                with pytest.raises(PermissionError):
                    connected.send((FAR, ECHO), b"never")
        assert capture.fields("udp.port", where="udp") == [] and len(set(senders)) == 1


@pytest.mark.parametrize("address", [FAR, FAR6], ids=["v4", "v6"])
@pytest.mark.parametrize("kind", ["bound", "packet"])
def test_a_socket_or_datagram_may_name_an_interface(exit, address, kind):
    """As of programs that answer by the interface that something arrived by (IP_PKTINFO). The exit is reached by all paths."""
    echo_datagrams(exit.far, address, ECHO)
    neighbor = {FAR: Pair.ETH, FAR6: "fd77:1::2"}[address]
    near = echo_datagrams(exit.server, neighbor, ECHO)
    with host(exit) as daemon, Datagrams(exit.client, family(address)) as client:
        if kind == "bound":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth")
            send = client.send
        else:
            level, option = INFO[address == FAR6]
            client.socket.setsockopt(level, {FAR: option, FAR6: IPV6_RECVPKTINFO}[address], 1)

            def send(destination, payload):
                with exit.client.inside():
                    index = socket.if_nametoindex("eth")
                info = struct.pack("=I8x", index) if address == FAR else struct.pack("=16xI", index)
                client.socket.sendmsg([payload], [(level, option, info)], 0, destination)

        for destination in ((address, ECHO), (neighbor, ECHO)):
            client.socket.settimeout(5)
            send(destination, b"hello")
            data, _, _, sender = client.socket.recvmsg(100, 100)
            assert (data, sender[:2]) == (b"hello", destination), daemon.log()
        assert near, "neighbors are reached directly"


def test_a_socket_with_a_mark_of_its_own_is_refused(exit):
    """It has another routing table."""
    exit.client.ip(f"route replace {FAR} via {Pair.ETH}")
    with host(exit), Datagrams(exit.client) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, SO_MARK, 77)
        with pytest.raises(PermissionError):
            client.send((FAR, ECHO), b"never")


def test_a_dhcp_client_talks_to_its_server(exit):
    """Which need not be on an excluded network."""
    senders = echo_datagrams(exit.server, "0.0.0.0", DHCP_SERVER)
    with host(exit, "lan = false"), Datagrams(exit.client) as client:
        client.socket.bind(("0.0.0.0", DHCP_CLIENT))
        assert client.exchange((Pair.ETH, DHCP_SERVER), b"renew")[1] == b"renew"
        assert senders == [("10.77.1.1", DHCP_CLIENT)]


def test_part_of_a_host(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exchange = (sys.executable, "-c", EXCHANGE, "unconnected", FAR, ECHO, 5)
    with host(exit, "users = [65534]"):
        done = exit.client.run("setpriv", "--reuid", "65534", *exchange, text=True)
        assert done.stdout == f"0.0.0.0 {FAR} {ECHO} 5\n", done.stderr
        done = exit.client.run(*exchange, text=True)
        assert "unreachable" in done.stderr, done.stdout


def test_a_program_of_a_host_that_is_carried_has_its_own_gateway(exit):
    """`plait run` beneath a whole host."""
    senders = echo_datagrams(exit.far, FAR, ECHO)
    with host(exit):
        done = exit.run(sys.executable, "-c", EXCHANGE, "connected", FAR, ECHO, 5, text=True)
        assert done.stdout == f"10.77.1.1 {FAR} {ECHO} 5\n", done.stderr
        with Datagrams(exit.client) as client:
            assert client.exchange((FAR, ECHO), b"hello")[1] == b"hello"
    assert len(set(senders)) == 2


def test_other_hosts_on_this_machine_are_not_affected(exit):
    """Network namespaces share the control groups, and their daemons the mark of sockets."""
    echo_datagrams(exit.far, FAR, ECHO)
    with host(exit), Datagrams(exit.server) as other:
        other.socket.setsockopt(socket.SOL_SOCKET, SO_MARK, MARK_OF_HOSTS)
        assert other.exchange((FAR, ECHO), b"hello")[1] == b"hello"


def test_a_call_goes_on_by_the_next_daemon(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    with host(exit) as daemon, Datagrams(exit.client, connected=(FAR, ECHO)) as client:
        client.exchange((FAR, ECHO), b"first")
        before = daemon.replace()
        assert client.exchange((FAR, ECHO), b"replaced")[1] == b"replaced"
        before.wait(30)
        assert client.exchange((FAR, ECHO), b"alone")[1] == b"alone"
        daemon.reload()
        assert client.exchange((FAR, ECHO), b"reloaded")[1] == b"reloaded"
        daemon.kill()
        # The routing rules lead to no socket, and not by an interface either.
        exit.client.ip(f"route replace {FAR} via {Pair.ETH}")
        with exit.pair.capture("eth", host=exit.client, filter=f"udp port {ECHO}") as capture:
            client.send((FAR, ECHO), b"lost")
            assert not client.receives(b"lost")
        assert capture.fields("udp.port", where="udp") == []
        exit.client.ip(f"route del {FAR} via {Pair.ETH}")
        daemon.start()
        assert client.exchange((FAR, ECHO), b"again")[1] == b"again"


def test_an_address_that_changes_is_followed(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    connected = (sys.executable, "-c", EXCHANGE, "connected", FAR, ECHO, 5)
    with host(exit):
        assert exit.client.run(*connected, text=True).stdout.startswith("10.77.1.1 ")
        exit.client.ip("addr del 10.77.1.1/24 dev eth")
        exit.client.ip("addr add 10.77.1.9/24 dev eth")

        def follows() -> bool:
            done = exit.client.run(*connected, text=True)
            return done.stdout == f"10.77.1.9 {FAR} {ECHO} 5\n"

        wait_for("the new address", follows, 30)


def test_two_commands_carry_datagrams_under_a_kill_switch(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    before = routing(exit.client)
    done = up(exit, "--killswitch")
    assert done.returncode == 0, done.stderr
    with Datagrams(exit.client) as client:
        assert client.exchange((FAR, ECHO), b"hello")[1] == b"hello"
    assert down(exit.client).returncode == 0
    assert routing(exit.client) == before


@pytest.mark.alone
def test_a_call_survives_the_cut_of_each_path(exit):
    """50 datagrams per second, as a telephone call: at most 15 are lost by each cut."""
    echo_datagrams(exit.far, FAR, ECHO)
    with host(exit), Datagrams(exit.client) as client, measuring(0.1):
        client.exchange((FAR, ECHO), b"ready")
        echoes = call_during_cuts(exit.pair, client, (FAR, ECHO), 12, before=2, cut_for=3)
        assert echoes.lost <= 30, echoes
