"""`plait daemon --replace`: a restart that refuses no connection, and cuts none before its time."""

import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import threading
import time

from daemons import CLIENTS, PROXY, TRUSTED, Daemon, down, host_file, make, proxied, services
from datagrams import Association, Datagrams, echo_datagrams
from exits import FAR, NAME, PORT
from gateways import cgroups_of
from hosts import PLAIT, wait_for
from streams import connect_by_socks, echo_server, random_file

# What `make test` opens in a second; bench/restart.py opens more.
RATE = 50


class Connecting:
    """Opens connections at a constant rate through a client's proxy, until the end of the context."""

    def __init__(self, pair, rate: int = RATE):
        self.pair, self.rate = pair, rate
        self.answered = 0
        self.failures: list[str] = []
        self.stopped = threading.Event()
        self.threads: list[threading.Thread] = []

    def exchange(self, number: int):
        message = b"%07d" % number
        try:
            with connect_by_socks(self.pair) as stream:
                stream.settimeout(60)
                stream.sendall(message)
                received = b""
                while len(received) < len(message):
                    part = stream.recv(len(message))
                    assert part, "closed"
                    received += part
                assert received == message
                self.answered += 1
        except Exception as error:
            self.failures.append(repr(error))

    def run(self):
        number, begin = 0, time.monotonic()
        while not self.stopped.wait(max(0, begin + number / self.rate - time.monotonic())):
            number += 1
            self.threads.append(threading.Thread(target=self.exchange, args=(number,)))
            self.threads[-1].start()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        wait_for("connections", lambda: self.answered > self.rate // 2)
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in (self.thread, *self.threads):
            thread.join(90)


def has_ended(program: subprocess.Popen) -> bool:
    return program.poll() is not None


def test_no_connection_is_refused_while_both_ends_restart(pair):
    """New connections at a constant rate, and one that outlives each daemon that it began in."""
    echo_server(pair.server, 9000)
    server = Daemon(pair.server, services(PORT), make(pair.directory / "s")).start()
    client = Daemon(pair.client, PROXY + TRUSTED, make(pair.directory / "c")).start()
    with Connecting(pair) as connecting, connect_by_socks(pair) as held:
        held.sendall(b"before")
        assert held.recv(6) == b"before"
        replaced = []
        for daemon in (server, client, server, client):
            replaced.append(daemon.replace())
            # More than those that the one before still carries.
            count = connecting.answered
            wait_for("connections", lambda: connecting.answered > count + 2 * RATE)  # noqa: B023
        # The first of both ends carry it.
        assert not any(has_ended(program) for program in replaced[:2])
        held.sendall(b"after")
        assert held.recv(5) == b"after"
        for program in replaced[2:]:
            assert program.wait(60) == 0
    assert not connecting.failures, connecting.failures[:5]
    for program in replaced:
        assert program.wait(60) == 0
    # The running ones are protected, and count what is theirs.
    reports = {report["pid"]: report for report in pair.status()}
    for daemon in (server, client):
        report = reports[daemon.program.pid]
        assert report["mode"] == "sealed" and report["counts"]["protected"] and not report["counts"]["plain"]
    server.stop()
    client.stop()
    for program in (*replaced, server.program, client.program):
        assert not cgroups_of(program.pid)
        assert not list(pathlib.Path("/run/plait").glob(f"*-{program.pid}.sock"))


def test_connections_are_reset_when_their_time_is_over(pair):
    echo_server(pair.server, 9000)
    pair.serve(to="127.0.0.1:9000")
    client = proxied(pair).start()
    with connect_by_socks(pair) as held:
        held.sendall(b"hello")
        assert held.recv(5) == b"hello"
        before = client.replace(None, "--drain", "1")
        held.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert held.recv(1) == b""
        assert before.wait(60) == 0
    with connect_by_socks(pair) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"


def test_failed_start_leaves_the_running_daemon(pair):
    echo_server(pair.server, 9000)
    echo_server(pair.server, 8555)
    server = Daemon(pair.server, services(PORT)).start()
    pair.proxy("--trusted", "eth")
    # The last one finds a port in use after it has taken over the sockets.
    for text, words in (("[[inbound]\n", "error"), (services(PORT, 8555), "in use")):
        server.file.write_text(text)
        done = pair.server.run(PLAIT, "daemon", "--config", server.file, "--replace", text=True)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        with connect_by_socks(pair) as stream:
            stream.sendall(b"hello")
            assert stream.recv(5) == b"hello"
    wait_for("a message", lambda: "goes on" in server.log())
    # It still can be replaced.
    server.replace(services(PORT)).wait(60)
    with connect_by_socks(pair) as stream:
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"


def test_replacing_takes_a_running_daemon(pair):
    file = pair.directory / "daemon.toml"
    file.write_text(PROXY + TRUSTED)
    done = pair.client.run(PLAIT, "daemon", "--config", file, "--replace", text=True)
    assert done.returncode == 1 and "start one without --replace" in done.stderr, done.stderr


def test_service_manager_is_told_the_next_process(pair):
    """The next daemon has the notification socket and the watchdog of the one before, though started by a shell."""
    daemon = proxied(pair).start(WATCHDOG_USEC=400_000)
    ready = daemon.manager.count("READY=1")
    log = str(daemon.directory / "next.log")
    program = pair.client.start(PLAIT, "-vv", "daemon", "--replace", "--config", daemon.file, log=log)
    wait_for("READY=1", lambda: has_ended(program) or daemon.manager.count("READY=1") > ready + 1)
    assert f"MAINPID={program.pid}" in daemon.manager.received, pathlib.Path(log).read_text()
    assert daemon.program.wait(60) == 0
    fed = daemon.manager.count("WATCHDOG=1")
    wait_for("watchdog messages", lambda: daemon.manager.count("WATCHDOG=1") > fed + 2)
    assert "STOPPING=1" not in daemon.manager.received


def test_whole_host_restarts_under_load(web, documents):
    """A download goes on, 400 connections of programs work, and the kill switch stays in force."""
    file = random_file(documents, 50_000_000)
    echo_server(web.far, 7000, FAR)
    text = host_file(web, "killswitch = true")
    daemon = Daemon(web.client, text).start()
    command = ("sh", "-c", f"curl -sS --limit-rate 10M http://{FAR}/{file.name} | sha256sum")
    download = web.client.start(*command, stdout=subprocess.PIPE, text=True)
    clients = web.client.start(
        sys.executable, "-c", CLIENTS, FAR, 7000, 400, stdout=subprocess.PIPE, text=True
    )
    replaced = []
    while clients.poll() is None:
        replaced.append(daemon.replace())
        time.sleep(0.5)
    assert clients.stdout.read() == "0 []\n", daemon.log()[-3000:]
    assert replaced
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert download.communicate(timeout=120)[0].split()[0] == digest
    for program in replaced:
        assert program.wait(60) == 0
    # Names are looked up by the one that runs, and nothing passes it.
    done = web.client.run("curl", "-sS", "-m", "40", "-o", os.devnull, f"http://{NAME}/{file.name}")
    assert done.returncode == 0, done.stderr.decode() + daemon.log()[-3000:]
    daemon.kill()
    assert web.client.run("curl", "-sS", "-m", "3", f"http://{web.pair.ETH}:{PORT}/").returncode != 0
    done = down(web.client)
    assert done.returncode == 0 and "kill switch" in done.stdout, done.stderr


def test_replaced_daemon_accepts_pending_connections(web):
    """A destination that answers late, long after anything else was opened; and the daemon lives on for another connection."""
    echo_server(web.far, 7000, FAR)
    daemon = Daemon(web.client, host_file(web)).start()
    with (
        web.client.socket() as held,
        web.client.socket() as late,
        concurrent.futures.ThreadPoolExecutor() as thread,
    ):
        held.connect((FAR, 7000))
        late.settimeout(40)
        with web.far.packet_rules(input="tcp dport 7000 tcp flags syn drop"):
            connected = thread.submit(late.connect, (FAR, 7000))
            time.sleep(1)
            before = daemon.replace()
            time.sleep(7)
            assert not connected.done(), connected.exception()
        connected.result(40)
        late.sendall(b"hello")
        assert late.recv(5) == b"hello"
    assert before.wait(60) == 0


def router_file(exit) -> str:
    return f'exit = "{exit.url}"\n[paths]\neth = "trusted"\n[router]\ninterfaces = ["lan0"]\n'


def test_router_restarts_under_load(web, lan, documents):
    """Of a host behind it, a download goes on, 400 connections work, and datagrams are carried by the one that runs."""
    file = random_file(documents, 50_000_000)
    echo_server(web.far, 7000, FAR)
    echo_datagrams(web.far, FAR, 7)
    before = lan.traces()
    daemon = Daemon(lan.router, router_file(web)).start()
    command = ("sh", "-c", f"curl -sS --limit-rate 10M http://{FAR}/{file.name} | sha256sum")
    download = lan.host.start(*command, stdout=subprocess.PIPE, text=True)
    clients = lan.host.start(sys.executable, "-c", CLIENTS, FAR, 7000, 400, stdout=subprocess.PIPE, text=True)
    replaced = []
    with Datagrams(lan.host) as host:
        while clients.poll() is None:
            replaced.append(daemon.replace())
            assert host.exchange((FAR, 7), b"hello")[1] == b"hello", daemon.log()[-3000:]
            time.sleep(0.5)
    assert clients.stdout.read() == "0 []\n", daemon.log()[-3000:]
    assert replaced
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert download.communicate(timeout=120)[0].split()[0] == digest, daemon.log()[-3000:]
    for program in replaced:
        assert program.wait(60) == 0
    daemon.stop()
    assert lan.traces() == before


def test_replaced_router_leaves_the_interfaces_while_addresses_change(web, lan):
    """The one that runs is alone at the interface, though each follows the changes."""
    stopped = threading.Event()

    def change():
        with lan.router.inside():
            while not stopped.is_set():
                for verb in ("add", "del"):
                    subprocess.run(("ip", "addr", verb, "192.0.2.77/32", "dev", "lo"), check=True)

    # Without the programs of a scheduler.
    daemon = Daemon(lan.router, 'congestion_control = "cubic"\n' + router_file(web)).start()
    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(30):
            replaced = daemon.replace()
            assert len(lan.router.programs_at("lan0")) == 2
            replaced.kill()
    finally:
        stopped.set()
        changing.join()
    daemon.stop()


def test_down_stops_the_daemon_that_replaced_another(web):
    echo_server(web.far, 7000, FAR)
    daemon = Daemon(web.client, host_file(web)).start()
    with web.client.socket() as held:
        held.connect((FAR, 7000))
        held.sendall(b"hello")
        assert held.recv(5) == b"hello"
        before = daemon.replace()
        done = down(web.client)
        assert done.returncode == 0 and done.stdout == "plait is down\n", done.stderr
        assert daemon.program.wait(60) == 0
        # The one before only carries what it has.
        held.sendall(b"again")
        assert held.recv(5) == b"again"
        assert held.getpeername() == (FAR, 7000)
    assert before.wait(60) == 0


def test_lock_of_the_host_is_removed_with_the_daemon(web):
    daemon = Daemon(web.client, host_file(web)).start()
    locks = [path for path in pathlib.Path("/run/plait").glob("host.*.lock")]
    own = [path for path in locks if path.read_text() == str(daemon.program.pid)]
    assert len(own) == 1
    daemon.stop()
    assert not own[0].exists()


def exit_by_daemon(exit) -> tuple[str, Daemon]:
    """Starts the exit as a daemon, the client's proxy, and what both reach: echoes of datagrams on port 7, of streams on port 7000.
    Returns the section of the daemon's file, and the daemon."""
    echo_datagrams(exit.far, FAR, 7)
    echo_server(exit.far, 7000, FAR)
    # Creates its key, and the URL for the client.
    exit.serve().terminate()
    wait_for("end of the exit", lambda: not exit.server.listens(PORT))
    section = f'[exit]\nlisten = "[::]:{PORT}"\nclients = ["{exit.client_key}"]\n'
    server = Daemon(exit.server, section, make(exit.pair.directory / "s")).start()
    exit.proxy()
    return section, server


def test_exit_restarts_and_reloads_with_datagrams(exit):
    """Connections through the exit are not refused; datagrams go on by a new session with the next daemon, and the next gateway."""
    section, server = exit_by_daemon(exit)
    failures: list[str] = []

    def connect(number: int):
        try:
            with connect_by_socks(exit.pair, address=FAR, port=7000) as stream:
                stream.sendall(b"hello")
                assert stream.recv(5) == b"hello"
        except Exception as error:
            failures.append(f"{number}: {error!r}")

    with connect_by_socks(exit.pair, address=FAR, port=7000) as held:
        held.sendall(b"hello")
        assert held.recv(5) == b"hello"
        with Association(exit.client) as association:
            assert association.exchange((FAR, 7), b"before")[1] == b"before"
        threads = []
        for number in range(150):
            threads.append(threading.Thread(target=connect, args=(number,)))
            threads[-1].start()
            if number == 50:
                server.reload(f"{section}max_connections = 1000\n")
            if number == 100:
                server.replace()
            time.sleep(0.02)
        for thread in threads:
            thread.join(60)
        assert not failures, failures[:5]
        # While the connection of before is carried by the daemon of before.
        with Association(exit.client) as association:
            assert association.exchange((FAR, 7), b"after", attempts=60)[1] == b"after"
        held.sendall(b"again")
        assert held.recv(5) == b"again"


def test_reload_of_an_exit_keeps_datagrams(exit):
    """With a connection of before the reload, which the gateway of before still carries."""
    section, server = exit_by_daemon(exit)
    with connect_by_socks(exit.pair, address=FAR, port=7000) as held, Association(exit.client) as association:
        held.sendall(b"hello")
        assert held.recv(5) == b"hello"
        assert association.exchange((FAR, 7), b"before")[1] == b"before"
        for number in range(3):
            server.reload(f"{section}max_connections = {1000 + number}\n")
            assert association.exchange((FAR, 7), b"%d" % number, attempts=60)[1] == b"%d" % number
        held.sendall(b"again")
        assert held.recv(5) == b"again"
    assert "cannot receive datagrams" not in server.log()
