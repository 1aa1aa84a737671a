"""Protected connections that Python programs open and accept themselves, on real hosts of a test."""

import hashlib
import random
import re
import socket
import textwrap

import pytest
from controllers import work  # noqa: F401
from gateways import report_of
from hellos import arriving_packets, is_hybrid, next_hello
from hosts import REPOSITORY, wait_for
from package import PYTHON
from streams import accept, assert_echo, connect_by_socks, echo_server, listen, receive_exactly

SERVER = """
    import threading, plait
    listener = plait.serve(("::", 8443), mode={mode!r})
    print("listening", listener.address[1], flush=True)
    def echo(connection):
        print("accepted", connection.peer[0], connection.mode, connection.level, flush=True)
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()
    for connection in listener:
        threading.Thread(target=echo, args=(connection,), daemon=True).start()
"""
CLIENT = """
    import asyncio, hashlib, plait, random
    settings = dict(mode={mode!r}, trusted=["eth"], **{more!r})
    data = random.Random(5).randbytes(3_000_000)
    connection = plait.connect(("10.77.1.2", 8443), **settings)
    print("connected", connection.peer[0], connection.mode, connection.level)
    connection.sendall(b"hello")
    print(connection.recv(5).decode())
    connection.close()
    async def main():
        reader, writer = await plait.open_connection(("10.77.1.2", 8443), **settings)
        writer.write(data)
        writer.write_eof()
        print(hashlib.sha256(await reader.read()).hexdigest())
        writer.close()
    asyncio.run(main())
"""
GUIDE = (REPOSITORY / "docs" / "guide" / "python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
LEVEL = {"sealed": "2/2", "stream": "None"}
# Without a requirement, a witness may come late.
MORE = {"sealed": {"require": "all-paths", "untrusted": ["wlan"]}, "stream": {}}


def script(directory, name: str, text: str, **values):
    file = directory / name
    file.write_text(textwrap.dedent(text).format(**values))
    return file


def run_client(pair, directory, text: str, **values) -> str:
    """Runs a Python program on the client; returns its stdout."""
    done = pair.client.run(PYTHON, script(directory, "client.py", text, **values), text=True, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_server(pair, directory, text: str = SERVER, **values):
    """Starts a Python program on the server, and waits until it prints that it listens."""
    file = script(directory, "server.py", text, **values)
    program = pair.server.start(PYTHON, file, log="server.log", cwd=directory)
    log = pair.directory / "server.log"
    wait_for("listener", lambda: b"listening" in log.read_bytes() or program.poll() is not None)
    assert program.poll() is None, log.read_text()
    return program


@pytest.mark.parametrize("mode", LEVEL)
def test_python_programs_connect_without_a_command(work, two_ways, mode):  # noqa: F811
    start_server(two_ways, work, mode=mode)
    printed = run_client(two_ways, work, CLIENT, mode=mode, more=MORE[mode])
    digest = hashlib.sha256(random.Random(5).randbytes(3_000_000)).hexdigest()
    assert printed.splitlines() == [f"connected 10.77.1.2 {mode} {LEVEL[mode]}", "hello", digest]
    accepted = (two_ways.directory / "server.log").read_text().splitlines()[1:]
    assert accepted == [f"accepted 10.77.1.1 {mode} {LEVEL[mode]}"] * 2


def test_python_server_accepts_a_proxy(work, two_ways):  # noqa: F811
    start_server(two_ways, work, mode="sealed")
    two_ways.proxy("--mode", "sealed", "--require", "--trusted", "eth")
    with connect_by_socks(two_ways) as client:
        assert_echo(client)


def test_both_ends_export_the_same_keys(work, two_ways):  # noqa: F811
    server = """
        import plait
        listener = plait.serve(("::", 8443), mode="sealed")
        print("listening", flush=True)
        for connection in listener:
            connection.sendall(connection.export_key("a label", b"a context"))
            connection.close()
    """
    start_server(two_ways, work, server)
    client = """
        import plait
        def keys():
            connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"])
            servers = connection.makefile("rb").read()
            own = [connection.export_key("a label", context) for context in (b"a context", b"")]
            connection.close()
            return servers, *own
        (servers, own, other), (again, *_) = keys(), keys()
        print(len(own), servers == own, other == own, again == own)
    """
    assert run_client(two_ways, work, client) == "32 True False False\n"


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, True), ({"hybrid": True}, True), ({"hybrid": False}, False)], ids=str
)
def test_client_chooses_whether_keys_are_exchanged_with_ml_kem(work, pair, settings, expected):  # noqa: F811
    start_server(pair, work, mode="sealed")
    client = """
        import plait
        connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"], **{settings!r})
        connection.sendall(b"hello")
        print(connection.mode, connection.recv(5).decode())
        connection.close()
    """
    with arriving_packets(pair.server, "eth") as packets:
        assert run_client(pair, work, client, settings=settings) == "sealed hello\n"
        assert is_hybrid(next_hello(packets)) == expected


@pytest.mark.parametrize(
    ("service", "accepted"),
    [([], False), (["80", "8443"], True), (["10.77.1.2:8443"], True), (["server.example:8443"], False)],
    ids=str,
)
def test_server_behind_a_port_forwarding_names_its_services(work, pair, service, accepted):  # noqa: F811
    server = """
        import plait
        listener = plait.serve(("::", 9443), mode="sealed", service={service!r})
        print("listening", flush=True)
        for connection in listener:
            connection.sendall(b"hello")
            connection.close()
    """
    start_server(pair, work, server, service=service)
    client = """
        import plait
        try:
            print(plait.connect(("10.77.1.2", 8443), trusted=["eth"]).recv(5).decode())
        except plait.ProtectionError:
            print("refused")
    """
    rules = {
        "prerouting": "tcp dport 8443 tcp dport set 9443",
        "output": "tcp sport 9443 tcp sport set 8443",
    }
    with pair.server.packet_rules(**rules):
        assert run_client(pair, work, client) == ("hello\n" if accepted else "refused\n")
    refusal = "asks for another service, on port 8443"
    assert (refusal in (pair.directory / "server.log").read_text()) != accepted


def test_invalid_services_are_reported(work, pair):  # noqa: F811
    text = """
        import plait
        for service in (["server.example"], [":443"], ["0"], "443", [443]):
            try:
                plait.serve(("::", 8443), service=service)
            except (ValueError, TypeError) as error:
                print(type(error).__name__, error)
        plait.serve(("::", 8443), service=["443"])
        try:
            plait.serve(("::", 8443), service=["444"])
        except ValueError as error:
            print(error)
    """
    *invalid, string, number, other = run_client(pair, work, text).splitlines()
    expected = "ValueError service: expected [NAME:]PORT, with an IPv6 address in brackets, got "
    assert invalid == [f'{expected}"{given}"' for given in ("server.example", ":443", "0")]
    assert string.startswith("TypeError") and number.startswith("TypeError")
    assert "a process has one gateway" in other


def test_settings_pad_records_and_renew_keys(work, two_ways):  # noqa: F811
    echo_server(two_ways.server)
    two_ways.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    text = """
        import plait, time
        for wrong in (dict(pad=0), dict(pad=20000), dict(rekey_after=0.5), dict(rekey_after=3601)):
            try:
                plait.connect(("10.77.1.2", 8443), trusted=["eth"], **wrong)
            except ValueError as error:
                print("ValueError", error)
        connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"], pad=300, rekey_after=1)
        time.sleep(1.1)
        for _ in range(2):
            connection.sendall(b"hello")
            print(connection.recv(5).decode(), flush=True)
        time.sleep(600)
    """
    file = script(work, "client.py", text)
    two_ways.client.start(PYTHON, file, log="client.log", cwd=work)
    updates = lambda: [one["key_updates"] for one in report_of(two_ways, "serve")["connections"]]  # noqa: E731
    wait_for("key update", lambda: any(updates()))
    printed = (two_ways.directory / "client.log").read_text().splitlines()
    assert [line.split()[0] for line in printed[:4]] == ["ValueError"] * 4
    assert "to 16384, got 20000" in printed[1] and "from 1 to 3600 seconds" in printed[2]
    wait_for("answers", lambda: (two_ways.directory / "client.log").read_text().count("hello") == 2)


def test_settings_send_small_writes_on_each_path(work, two_ways):  # noqa: F811
    echo_server(two_ways.server)
    two_ways.serve("--mode", "sealed", "--require", "--redundant", "1000", to="127.0.0.1:9000")
    text = """
        import plait, time
        for wrong in (dict(redundant="some"), dict(redundant=-1), dict(redundant=1000, mode="stream")):
            try:
                plait.connect(("10.77.1.2", 8443), trusted=["eth"], **wrong)
            except (ValueError, OSError) as error:
                print(type(error).__name__, error)
        connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"], redundant=1000)
        while True:
            connection.sendall(b"hello")
            connection.recv(5)
            time.sleep(0.01)
    """
    file = script(work, "client.py", text)
    two_ways.client.start(PYTHON, file, log="client.log", cwd=work)
    wait_for("copies", lambda: copies_sent(two_ways) > 100)
    some, negative, stream = (two_ways.directory / "client.log").read_text().splitlines()
    assert some == "ValueError redundant: expected a number of bytes, such as 1000, or \"all\", got 'some'"
    assert negative.endswith("got '-1'") and stream.startswith("OSError") and "sealed" in stream


def copies_sent(pair) -> int:
    """Return how many copies the gateways of clients' programs sent."""
    clients = (gateway for gateway in pair.status() if gateway["command"] == "library")
    return sum(one["redundancy"]["sent"] for client in clients for one in client["connections"])


def test_peer_with_another_mode_is_refused(work, pair):  # noqa: F811
    echo_server(pair.server)
    pair.serve("--mode", "xor64", "--require=false", to="127.0.0.1:9000")
    text = """
        import plait
        try:
            plait.connect(("10.77.1.2", 8443), trusted=["eth"])
        except plait.ProtectionError as error:
            print(error)
        try:
            plait.connect(("10.77.1.2", 8443), trusted=["eth"], require=False)
        except ValueError as error:
            print(error)
        plait.stop()
        connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"], require=False)
        print(connection.mode)
        try:
            connection.export_key("a label")
        except ValueError as error:
            print(error)
        connection.close()
    """
    refused, other, mode, no_key = run_client(pair, work, text).splitlines()
    assert "the peer's mode is 'xor64' and that of this gateway 'sealed'" in refused
    assert "a process has one gateway" in other
    assert (mode, no_key) == ("off", 'expected a connection of mode "sealed", got "off"')


def test_killed_server_is_a_reset(work, two_ways):  # noqa: F811
    listener = listen(two_ways.server)
    serve = two_ways.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    text = """
        import plait
        connection = plait.connect(("10.77.1.2", 8443), trusted=["eth"])
        connection.sendall(b"hello")
        try:
            print(connection.recv(1))
        except ConnectionResetError:
            print("reset")
    """
    file = script(work, "client.py", text)
    program = two_ways.client.start(PYTHON, file, log="client.log", cwd=work)
    service = accept(listener)
    assert receive_exactly(service, 5) == b"hello"
    serve.kill()
    assert program.wait(60) == 0
    assert (two_ways.directory / "client.log").read_text() == "reset\n"
    service.close()


def test_documented_examples_work(work, two_ways):  # noqa: F811
    serve, connect = (
        next(example for example in EXAMPLES if f"plait.{name}(" in example) for name in ("serve", "connect")
    )
    server, client = work / "server.py", work / "client.py"
    server.write_text(serve)
    client.write_text(
        connect.replace("192.0.2.7", two_ways.ETH).replace('"eth0"', '"eth"').replace('"wlan0"', '"wlan"')
    )
    two_ways.server.start(PYTHON, "-u", server, log="serve.log", cwd=work)
    wait_for("listener", lambda: two_ways.server.listens(8443))
    done = two_ways.client.run(PYTHON, client, text=True, cwd=work)
    assert done.stdout == "sealed 2/2\nb'hello'\n", done.stderr
    assert "2/2" in two_ways.logged("serve")


@pytest.mark.parametrize(
    ("configure", "line"),
    [
        ("pass", "connections with 10.77.1.2 are sealed by 1/2 paths"),
        (
            'logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")',
            "WARNING plait connections with 10.77.1.2 are sealed by 1/2 paths",
        ),
        ('logging.getLogger("plait").setLevel(logging.ERROR)', None),
    ],
    ids=["unconfigured", "info", "error"],
)
def test_gateway_messages_go_to_logging(work, pair, configure, line):  # noqa: F811
    """The server's address is unreachable through wlan, of which plait warns."""
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    text = f"""
        import logging, plait
        {configure}
        plait.connect(("10.77.1.2", 8443), trusted=["eth"]).close()
        plait.stop()
    """
    file = script(work, "client.py", text)
    done = pair.client.run(PYTHON, file, text=True, cwd=work)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "are sealed by" in line]
    assert [found[: len(line or "")] for found in lines] == ([line] if line else []), done.stderr
