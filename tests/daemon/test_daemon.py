"""`plait daemon`: several parts in one process, reloads under load, and the service manager."""

import hashlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from daemons import CLIENTS, PROXY, TRUSTED, Daemon, host_file, make, proxied, services
from exits import FAR, NAME, PORT
from hosts import PLAIT, wait_for
from streams import connect_by_socks, echo_server, random_file


def test_daemons_at_both_ends_carry_connections(pair):
    """The same parts as `plait serve` and `plait proxy`."""
    echo_server(pair.server, 9000)
    server = Daemon(pair.server, services(PORT, 8444), make(pair.directory / "s"))
    server.start()
    client = proxied(pair).start()
    for port in (PORT, 8444):
        with connect_by_socks(pair, port=port) as stream:
            stream.sendall(b"hello")
            assert stream.recv(5) == b"hello"
    [report] = [each for each in pair.status() if each["pid"] == server.program.pid]
    assert report["counts"]["protected"] == 2 and report["command"] == "daemon"
    client.stop()
    server.stop()
    assert "RELOADING=1" not in server.manager.received and server.manager.count("STOPPING=1") == 1


def test_services_share_an_address(pair):
    """Clients name one of them by its port."""
    echo_server(pair.server, 9000)
    web = pair.nginx(make(pair.directory / "documents"))
    server = Daemon(
        pair.server,
        f'[[inbound]]\nlisten = "[::]:{PORT}"\n'
        f'[[services]]\nport = {PORT}\nto = "127.0.0.1:9000"\n[[services]]\nname = "web.example"\nto = "{web}"\n',
    ).start()
    pair.proxy("--trusted", "eth")
    with connect_by_socks(pair) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"
    assert "serving 127.0.0.1:9000" in server.log() and f"serving web.example ({web})" in server.log()
    server.reload(f'[[inbound]]\nlisten = "[::]:{PORT}"\n[[services]]\nto = "127.0.0.1:9001"\n')
    assert "serving 127.0.0.1:9001" in server.log()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[inbound]]\nlisten = '[::]:1'\n", ("expected a service", ":2:10", "[[services]]")),
        (
            "[router]\ninterfaces = ['eth']\n[paths]\neth = 'trusted'\n",
            ("path or an interface of the router",),
        ),
        ("[host]\nkillswich = true\n", ("killswich", "--> ", ":2:1", "^^^^^^^^^")),
        ("[proxy]\nlisten = '0.0.0.0:1080'\n", ("credentials", ":2:10", "other hosts")),
        ("[[inbound]]\nlisten = '[::]:1'\nto = '80'\n", ("HOST:PORT", ":3:6")),
        (
            "[[inbound]]\nlisten='[::]:1'\nto='a:1'\n[[inbound]]\nlisten='[::]:1'\nto='b:1'\n",
            ("another address", ":5:8"),
        ),
        (f"{PROXY}[metrics]\nlisten = '127.0.0.1:1080'\n", ("127.0.0.1:1080 twice",)),
        ("mode = 'sealed'\n", ("something to do",)),
        ("[exit]\nlisten = '[::]:8443'\n", ("clients",)),
        (
            "mode = 'stream'\n[[inbound]]\nlisten='[::]:1'\nto='a:1'\n[exit]\nlisten='[::]:2'\nclients='any'\n",
            ("sealed",),
        ),
    ],
)
def test_invalid_file_is_refused_with_its_line(pair, text, words):
    pair.client.tool(PLAIT, "identity")
    file = pair.directory / "wrong.toml"
    file.write_text(text)
    done = pair.client.run(PLAIT, "daemon", "--config", file, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and all(word in done.stderr for word in words), done.stderr


def test_invalid_file_is_refused_and_the_running_one_kept(pair):
    echo_server(pair.server, 9000)
    server = Daemon(pair.server, services(PORT)).start()
    pair.proxy("--trusted", "eth")
    # The last one takes a port that is in use.
    echo_server(pair.server, 8555)
    for text in ("[[inbound]\n", "", services(8444, to=70000), services(PORT, 8555, 8444)):
        server.reload(text)
        assert "is not in force" in server.log()
        with connect_by_socks(pair) as stream:
            stream.sendall(b"hello")
            assert stream.recv(5) == b"hello"
        assert not pair.server.listens(8444)
    server.reload(services(8444))
    assert pair.server.listens(8444) and not pair.server.listens(PORT)


def test_keys_that_need_a_restart_are_named(pair):
    server = Daemon(pair.server, services(PORT)).start()
    server.reload("mode = 'stream'\ncongestion_control = 'reno'\n" + services(PORT))
    assert "take effect at the next start of the daemon: mode, congestion_control" in server.log()
    [report] = [each for each in pair.status() if each["pid"] == server.program.pid]
    assert report["mode"] == "sealed"


def test_connections_live_through_reloads_and_none_is_refused(pair):
    """A connection of each service, and 200 new ones, while services come, change and go."""
    echo_server(pair.server, 9000)
    echo_server(pair.server, 9001)
    server = Daemon(pair.server, services(PORT)).start()
    client = Daemon(pair.client, PROXY + TRUSTED, make(pair.directory / "c")).start()
    with connect_by_socks(pair) as held:
        held.sendall(b"before")
        assert held.recv(6) == b"before"
        answers: list[int] = []

        def connect(number: int):
            with connect_by_socks(pair) as stream:
                message = b"%05d" % number
                stream.sendall(message)
                received = b""
                while len(received) < 5:
                    received += stream.recv(5)
                assert received == message
                answers.append(number)

        threads = []
        for number in range(200):
            threads.append(threading.Thread(target=connect, args=(number,)))
            threads[-1].start()
            if number % 20 == 10:
                # Another service behind the same port, another port, other keys of peers.
                server.reload(
                    services(PORT, *((8444,) if number % 40 == 10 else ()), to=9000 + number // 20 % 2)
                )
                client.reload(f'rekey = "{number + 1}s"\n' + PROXY + TRUSTED)
        for thread in threads:
            thread.join(60)
        assert len(answers) == 200, client.log()[-3000:]
        held.sendall(b"after")
        assert held.recv(5) == b"after"
    reports = [each for each in pair.status() if each["pid"] == server.program.pid]
    assert reports[0]["counts"]["protected"] == 201


def test_whole_host_lives_through_reloads(web, documents):
    """A download goes on while the gateway of the host is replaced, and 200 connections of programs work meanwhile."""
    file = random_file(documents, 100_000_000)
    echo_server(web.far, 7000, FAR)
    daemon = Daemon(web.client, host_file(web)).start()
    command = ("sh", "-c", f"curl -sS --limit-rate 20M http://{FAR}/{file.name} | sha256sum")
    download = web.client.start(*command, stdout=subprocess.PIPE, text=True)
    clients = web.client.start(
        sys.executable, "-c", CLIENTS, FAR, 7000, 200, stdout=subprocess.PIPE, text=True
    )
    number = 0
    while clients.poll() is None:
        number += 1
        daemon.reload(
            f'rekey = "{number % 3000 + 1}s"\n' + host_file(web, f"exclude = ['192.0.2.{number % 250}/32']")
        )
        time.sleep(0.2)
    assert clients.stdout.read() == "0 []\n", daemon.log()[-3000:]
    assert number > 3
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert download.communicate(timeout=120)[0].split()[0] == digest


def test_exit_and_services_in_one_daemon(exit, text):
    """An exit for one client, beside a service for anybody."""
    exit.start_nginx(text.parent)
    echo_server(exit.server, 9000)
    exit.serve().terminate()
    wait_for("end of the exit", lambda: not exit.server.listens(PORT))
    more = f'[exit]\nlisten = "[::]:{PORT}"\nclients = ["{exit.client_key}"]\n'
    server = Daemon(exit.server, services(8444, more=more), make(exit.pair.directory / "s")).start()
    done = exit.run("curl", "-sS", "-m", "40", f"http://{NAME}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode() + server.log()
    exit.pair.proxy("--trusted", "eth")
    with connect_by_socks(exit.pair, port=8444) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"
    # Another client only.
    other = exit.far.tool(PLAIT, "identity").strip()
    server.reload(services(8444, more=more.replace(exit.client_key, other)))
    assert exit.run("curl", "-sS", "-m", "10", f"http://{FAR}/text.txt").returncode != 0
    with connect_by_socks(exit.pair, port=8444) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"


def test_metrics_count_the_connections_of_the_daemon(pair):
    echo_server(pair.server, 9000)
    metrics = '[metrics]\nlisten = "127.0.0.1:9464"\n'
    Daemon(pair.server, services(PORT, more=metrics)).start()
    pair.proxy("--trusted", "eth")
    with connect_by_socks(pair) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"

    def scraped():
        with pair.server.inside():
            connection = http.client.HTTPConnection("127.0.0.1", 9464, timeout=30)
            connection.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return 'command="daemon"' in text and 'outcome="protected"} 1' in text

    wait_for("a count", scraped)


def test_daemon_is_confined(pair):
    """As the other gateways: another user, no capabilities but for the network."""
    daemon = proxied(pair).start()
    status = dict(
        line.split(":\t", 1)
        for line in open(f"/proc/{daemon.program.pid}/status").read().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split()[0] != "0"
    net_bind_service, net_admin = 1 << 10, 1 << 12
    assert int(status["CapEff"], 16) & ~(net_bind_service | net_admin) == 0
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


def test_watchdog_is_fed(pair):
    daemon = proxied(pair).start(WATCHDOG_USEC=400_000)
    wait_for("watchdog messages", lambda: daemon.manager.count("WATCHDOG=1") > 3)


def test_reload_is_told_as_systemd_expects(pair):
    daemon = proxied(pair).start()
    daemon.reload()
    received = daemon.manager.received
    at = received.index("RELOADING=1")
    assert received[at + 1].startswith("MONOTONIC_USEC=") and "READY=1" in received[at:]


def test_socket_of_the_service_manager_outlives_the_daemon(pair):
    """Clients of the proxy wait while the daemon restarts, and are not refused."""
    echo_server(pair.server, 9000)
    pair.serve(to="127.0.0.1:9000")
    with pair.client.inside():
        listener = socket.create_server(("127.0.0.1", 1080), backlog=128)
    # A shell that becomes the daemon, whose id is that of the process that sockets are for.
    script = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&' + str(listener.fileno())
    file = pair.directory / "daemon.toml"
    file.write_text(PROXY + TRUSTED)

    def start():
        command = ("bash", "-c", script, "bash", PLAIT, "daemon", "--config", file)
        return pair.client.start(*command, pass_fds=(listener.fileno(),))

    def talk():
        with connect_by_socks(pair) as stream:
            stream.sendall(b"hello")
            assert stream.recv(5) == b"hello"

    first = start()
    talk()
    first.terminate()
    assert first.wait(30) == 0
    waiting = threading.Thread(target=talk)
    waiting.start()
    start()
    waiting.join(60)
    assert not waiting.is_alive()


def test_second_daemon_for_the_same_host_is_refused(exit):
    exit.serve()
    daemon = Daemon(exit.client, host_file(exit)).start()
    done = exit.client.run(PLAIT, "daemon", "--config", daemon.file, text=True)
    assert done.returncode == 1 and f"by process {daemon.program.pid}" in done.stderr, done.stderr
    assert os.path.exists(f"/proc/{daemon.program.pid}")


def test_mode_off_has_no_whole_host(pair):
    file = pair.directory / "off.toml"
    file.write_text("mode = 'off'\n[host]\n")
    done = pair.client.run(PLAIT, "daemon", "--config", file, text=True)
    assert done.returncode == 1 and "mode" in done.stderr, done.stderr
