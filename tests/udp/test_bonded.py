"""Datagrams spread over all paths (`--datagram-scheduler bonded`), and their counters."""

import socket
import threading
import time

import pytest
from datagrams import Association, call_during_cuts, echo_datagrams
from disturbance import measuring
from exits import FAR, exit_behind
from hosts import PLAIT, wait_for

ECHO = 7


def receive_in(host, port: int, numbers: list[int]):
    """Collects the numbers of datagrams, as they arrive."""
    with host.inside():
        receiver = socket.socket(type=socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.bind((FAR, port))

    def receive():
        while True:
            numbers.append(int.from_bytes(receiver.recv(2000)[:4], "big"))

    threading.Thread(target=receive, daemon=True).start()


def flood(association, port: int, rate: float, seconds: float) -> int:
    """Sends datagrams of 1000 bytes at this rate, in bit/s. Returns how many."""
    begun, number = time.monotonic(), 0
    while (now := time.monotonic() - begun) < seconds:
        while number * 8000 < now * rate:
            association.send((FAR, port), number.to_bytes(4, "big") + bytes(996))
            number += 1
        time.sleep(0.001)
    return number


def datagrams_of(exit, command: str) -> dict:
    [gateway] = [each for each in exit.pair.status() if each["command"] == command]
    return gateway["datagrams"]


@pytest.mark.parametrize(("scheduler", "arrive"), [("lowest-rtt", (0.2, 0.9)), ("bonded", (0.93, 1.0))])
def test_rates_add_up_in_order(make_pair, scheduler, arrive):
    """8 Mbit/s over two links of 6 Mbit/s."""
    pair = make_pair("6mbit")
    pair.add_route_by_wlan()
    with exit_behind(pair) as exit:
        numbers = []
        receive_in(exit.far, 9000, numbers)
        echo_datagrams(exit.far, FAR, ECHO)
        exit.serve()
        exit.proxy("--datagram-scheduler", scheduler)
        with Association(exit.client) as association, measuring(0.05):
            association.exchange((FAR, ECHO), b"ready")
            time.sleep(2)
            sent = flood(association, 9000, 8e6, 5)
            time.sleep(1)
            reordered = sum(later < earlier for earlier, later in zip(numbers, numbers[1:], strict=False))
            counts = datagrams_of(exit, "proxy")["paths"]
            print(sent, len(numbers), reordered, counts)
            assert len(set(numbers)) == len(numbers), "each once"
            least, most = arrive
            assert least <= len(numbers) / sent <= most
            if scheduler == "bonded":
                assert reordered <= len(numbers) / 100
                shares = [counts[link]["sent"] for link in ("eth", "wlan")]
                assert min(shares) > sum(shares) / 4, "both links carry"


def test_bonded_call_survives_a_cut(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy("--datagram-scheduler", "bonded")
    with Association(exit.client) as association:
        association.exchange((FAR, ECHO), b"ready")
        time.sleep(2)
        with measuring(0.02):
            echoes = call_during_cuts(exit.pair, association, (FAR, ECHO), 8, before=2, cut_for=1.5)
            # Of every second one, until the silence is noticed, in each direction.
            assert echoes.lost <= 30 and echoes.gap < 0.3, echoes


def test_counters_in_status_and_metrics(exit):
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    exit.proxy()
    with Association(exit.client) as association:
        for _ in range(50):
            association.exchange((FAR, ECHO), bytes(100))
        proxy, server = datagrams_of(exit, "proxy"), datagrams_of(exit, "serve")
        assert proxy["associations"] == server["associations"] == 1
        assert server["paths"].keys() == {"clients"}
        assert {"eth", "wlan"} == proxy["paths"].keys()
        total = {key: sum(path[key] for path in proxy["paths"].values()) for key in proxy["paths"]["eth"]}
        clients = server["paths"]["clients"]
        # An exchange may have been repeated.
        assert total["sent"] >= total["received"] >= 50
        assert total["sent_bytes"] == 100 * total["sent"] and clients["sent_bytes"] == 100 * clients["sent"]
        assert clients["received"] == total["sent"] and total["lost"] == clients["lost"] == 0
        text = exit.client.tool(PLAIT, "status")
        assert "datagrams: 1 association; eth: " in text, text
        exit.client.start(PLAIT, "metrics", "--listen", "127.0.0.1:9464", log="metrics.log")
        wait_for("exporter", lambda: exit.client.listens(9464))

        def metrics() -> bytes:
            with exit.client.inside():
                connection = socket.create_connection(("127.0.0.1", 9464))
            with connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                return b"".join(iter(lambda: connection.recv(65536), b""))

        # A gateway that is busy answers the next time.
        wait_for("associations", lambda: b'plait_gateway_associations{command="proxy"} 1' in metrics())
        found = metrics()
        assert b"plait_gateway_datagrams_total{" in found and b'direction="lost"' in found
        # Packets of one direction are lost on both links.
        rules = {"input": 'iifname { "eth", "wlan" } udp sport 8443 drop'}
        with exit.client.packet_rules(**rules):
            for _ in range(5):
                association.send((FAR, ECHO), b"lost")
                time.sleep(0.02)
        association.exchange((FAR, ECHO), b"again", attempts=60)

    def counted():
        paths = datagrams_of(exit, "proxy")["paths"].values()
        return sum(path["lost"] for path in paths) >= 5

    wait_for("losses", counted)
    wait_for("the end of the association", lambda: datagrams_of(exit, "serve")["associations"] == 0)
