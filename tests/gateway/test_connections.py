"""Protected connections that Python programs open and accept themselves, on real hosts of a test."""

import hashlib
import random
import re
import textwrap

import pytest
from controllers import work  # noqa: F401
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
    settings = dict(mode={mode!r}, trusted=["eth"])
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


def script(directory, name: str, text: str, **values):
    file = directory / name
    file.write_text(textwrap.dedent(text).format(**values))
    return file


def run_client(pair, directory, text: str, **values) -> str:
    """Runs a Python program on the client; returns its stdout."""
    done = pair.client.run(PYTHON, script(directory, "client.py", text, **values), text=True, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_server(pair, directory, mode):
    file = script(directory, "server.py", SERVER, mode=mode)
    program = pair.server.start(PYTHON, file, log="server.log", cwd=directory)
    log = pair.directory / "server.log"
    wait_for("listener", lambda: b"listening" in log.read_bytes() or program.poll() is not None)
    assert program.poll() is None, log.read_text()
    return program


@pytest.mark.parametrize("mode", LEVEL)
def test_python_programs_connect_without_a_command(work, two_ways, mode):  # noqa: F811
    start_server(two_ways, work, mode)
    printed = run_client(two_ways, work, CLIENT, mode=mode)
    digest = hashlib.sha256(random.Random(5).randbytes(3_000_000)).hexdigest()
    assert printed.splitlines() == [f"connected 10.77.1.2 {mode} {LEVEL[mode]}", "hello", digest]
    accepted = (two_ways.directory / "server.log").read_text().splitlines()[1:]
    assert accepted == [f"accepted 10.77.1.1 {mode} {LEVEL[mode]}"] * 2


def test_python_server_accepts_a_proxy(work, two_ways):  # noqa: F811
    start_server(two_ways, work, "sealed")
    two_ways.proxy("--mode", "sealed", "--require", "--trusted", "eth")
    with connect_by_socks(two_ways) as client:
        assert_echo(client)


def test_peer_with_another_mode_is_refused(work, pair):  # noqa: F811
    echo_server(pair.server)
    pair.serve("--mode", "xor64", to="127.0.0.1:9000")
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
        connection.close()
    """
    refused, other, mode = run_client(pair, work, text).splitlines()
    assert "offers no common mode" in refused
    assert "a process has one gateway" in other
    assert mode == "off"


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
    assert program.wait(20) == 0
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
