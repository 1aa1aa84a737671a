"""`early_data`: what a program writes goes to the exit with the destination, so that an exit costs no round trip."""

import itertools
import threading
import time

import pytest
from exits import FAR, PORT, exit_behind
from streams import connect_by_socks, echo_server

ECHO = 7000
# Shorter than the exit's TCP takes to give up.
SILENCE = 0.5


def flights(capture) -> int:
    """How often the two ends take turns to send."""
    sources = (line[0] for line in capture.fields("ip.src", where="tcp.len > 0"))
    return len(list(itertools.groupby(sources)))


def start_proxy(exit, early_data: bool):
    config = exit.pair.directory / "client.toml"
    config.write_text(
        f'[exit]\nurl = "{exit.url}"\nearly_data = {str(early_data).lower()}\n[paths]\neth = "trusted"\n'
    )
    return exit.pair.proxy("--config", config)


def exchange(exit, address: str, port: int, written: threading.Event):
    with connect_by_socks(exit.pair, address=address, port=port) as stream:
        stream.sendall(b"hello")
        written.set()
        assert stream.recv(5) == b"hello"


def count_flights_through_exit(exit, early_data: bool) -> int:
    """The flights of an exchange through an exit whose destination answers late: with early data, after the client has written."""
    written = threading.Event()
    with exit.pair.capture("eth", filter=f"tcp port {PORT}") as capture:
        with exit.far.packet_rules(input=f"tcp dport {ECHO} tcp flags syn drop"):
            exchanging = threading.Thread(target=exchange, args=(exit, FAR, ECHO, written))
            exchanging.start()
            if early_data:
                assert written.wait(20)
            time.sleep(SILENCE)
        exchanging.join(60)
    return flights(capture)


def test_early_data_takes_as_many_round_trips_as_sealed(exit):
    """The two ends of the first connection are at the exit's host itself."""
    echo_server(exit.server, 9000)
    served = exit.pair.serve("--require", to="127.0.0.1:9000", listen=f"[::]:{PORT}")
    proxy = exit.pair.proxy("--require", "--trusted", "eth")
    with exit.pair.capture("eth", filter=f"tcp port {PORT}") as capture:
        exchange(exit, exit.pair.ETH, PORT, threading.Event())
    sealed = flights(capture)
    for program in (served, proxy):
        program.terminate()
        program.wait(30)
    echo_server(exit.far, ECHO, FAR)
    exit.serve()
    found = {}
    for early_data in (True, False):
        proxy = start_proxy(exit, early_data)
        found[early_data] = count_flights_through_exit(exit, early_data)
        proxy.terminate()
        proxy.wait(30)
    # The outcome, and then the first bytes.
    assert found == {True: sealed, False: sealed + 2}, (found, sealed)


def test_connection_to_a_destination_that_refuses_is_reset(exit):
    exit.serve()
    start_proxy(exit, True)
    with connect_by_socks(exit.pair, address=FAR, port=ECHO) as stream:
        stream.settimeout(30)
        with pytest.raises(ConnectionResetError):
            while True:
                stream.sendall(b"hello")
                time.sleep(0.01)
