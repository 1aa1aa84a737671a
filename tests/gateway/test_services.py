"""Several services behind one port of `plait serve`, what they learn of their clients, and what clients learn of them."""

import json
import pathlib
import shutil
import socket
import subprocess
import threading

import pytest
from gateways import report_of
from hosts import PLAIT, tool, wait_for
from streams import echo_server

SEALED = ("--mode", "sealed", "--require")
SITES = ("a.example", "b.example")


@pytest.fixture
def sites(pair):
    """Resolves these names to the server's address on eth, on the client."""
    directory = pathlib.Path("/etc/netns") / pair.client.name
    directory.mkdir(parents=True)
    hosts = directory / "hosts"
    hosts.write_text("".join(f"{pair.ETH} {name}\n" for name in (*SITES, "c.example")))
    yield
    hosts.unlink()
    directory.rmdir()


@pytest.fixture
def documents(tmp_path) -> pathlib.Path:
    directory = tmp_path / "documents"
    directory.mkdir()
    (directory / "index.html").write_text("nginx")
    return directory


def serve(pair, text: str, *options):
    """Starts `plait serve` with these services, each a TOML table without its header."""
    file = pair.directory / "plait.toml"
    file.write_text(text)
    log = pair.directory / "serve.log"
    command = ("-v", "serve", "--listen", "[::]:8443", "--config", file, *options)
    gateway = pair.server.start(PLAIT, *command, log=log.name)
    wait_for("serve", lambda: gateway.poll() is not None or pair.server.listens(8443))
    assert gateway.poll() is None, log.read_text()
    return gateway


def services(*tables: str) -> str:
    return "".join(f"[[services]]\n{table}\n" for table in tables)


def fetch(pair, name: str):
    """Requests a page of a site by the client's proxy."""
    url = f"http://{name}:8443/"
    return pair.client.run("curl", "-sS", "-m", "50", "-p", "-x", "http://127.0.0.1:1080", url, text=True)


def curl(pair, url: str, *options, outbound=("--trusted", "eth")):
    return pair.run("curl", "-sS", "-m", "50", url, *options, options=(*SEALED, *outbound), text=True)


def start_logging_nginx(host, documents, *listen: str, name="nginx"):
    """An nginx that logs what the PROXY protocol says of its clients; returns its log."""
    directory = host.directory / name
    directory.mkdir()
    directory.chmod(0o755)
    log = directory / "access.log"
    directives = " ".join(f"listen {each};" for each in listen)
    (directory / "nginx.conf").write_text(
        f"""
        daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log info;
        events {{ worker_connections 64; }}
        http {{
            log_format clients '$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port';
            access_log {log} clients;
            client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
            fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
            server {{ {directives} root {documents}; }}
        }}
        """
    )
    program = host.start("nginx", "-c", directory / "nginx.conf", "-g", "user root;", log=f"{name}.log")
    wait_for("nginx", lambda: program.poll() is not None or (directory / "pid").exists())
    assert program.poll() is None, (host.directory / f"{name}.log").read_text()
    return log


def lines(log: pathlib.Path, count: int) -> list[list[str]]:
    wait_for("the log", lambda: log.exists() and log.read_text().count("\n") >= count)
    return [line.split() for line in log.read_text().splitlines()]


def test_clients_choose_by_name_or_port_and_others_are_told(pair, sites):
    for port, answer in ((9001, b"first"), (9002, b"second"), (9003, b"third")):
        answer_http(pair.server, port, answer)
    text = services(
        'name = "a.example"\nto = "127.0.0.1:9001"',
        'name = "B.example"\nto = "127.0.0.1:9002"',
        'port = 443\nto = "127.0.0.1:9003"',
    )
    serve(pair, text)
    pair.proxy(*SEALED, "--trusted", "eth")
    assert fetch(pair, "a.example").stdout == "first"
    assert fetch(pair, "b.example").stdout == "second"
    assert fetch(pair, "c.example").returncode != 0
    told = "it does not serve the port or name that was asked for"
    wait_for("the reason", lambda: told in pair.logged("proxy"))
    wait_for("the reason", lambda: "asks for another service, on port 8443" in pair.logged("serve"))
    assert report_of(pair, "serve")["handshake_failures"]["other_service"] == 1
    # By another port, which the server forwards.
    with pair.server.packet_rules(
        prerouting="tcp dport 443 tcp dport set 8443", output="tcp sport 8443 tcp sport set 443"
    ):
        assert curl(pair, f"http://{pair.ETH}:443/").stdout == "third"


def answer_http(host, port: int, body: bytes):
    """A server that answers every request with this body."""
    with host.inside():
        listener = socket.create_server(("127.0.0.1", port))

    def answer():
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                length = str(len(body)).encode()
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + body)

    threading.Thread(target=answer, daemon=True).start()


@pytest.mark.parametrize("address", ["10.77.1.2", "fd77:1::2"])
def test_nginx_logs_the_client_by_the_proxy_protocol(pair, documents, address):
    log = start_logging_nginx(pair.server, documents, "127.0.0.1:8080 proxy_protocol")
    wait_for("nginx", lambda: pair.server.listens(8080))
    pair.serve(*SEALED, "--proxy-protocol", "v2", to="127.0.0.1:8080")
    host = f"[{address}]" if ":" in address else address
    done = curl(pair, f"http://{host}:8443/")
    assert done.stdout == "nginx", done.stderr
    [[client, port, server, server_port]] = lines(log, 1)
    assert (client, server, server_port) == (address.removesuffix("2") + "1", address, "8443")
    assert 1024 <= int(port) <= 65535


def test_unix_sockets_get_the_proxy_protocol_and_transfers_in_full(pair, documents, tmp_path):
    run = pathlib.Path(f"/run/plait-test-{pair.server.name}")
    run.mkdir(mode=0o755)
    try:
        content = bytes(range(256)) * 20000
        (documents / "large").write_bytes(content)
        log = start_logging_nginx(pair.server, documents, f"unix:{run}/web.sock proxy_protocol")
        serve(pair, services(f'to = "unix:{run}/web.sock"\nproxy = "v2"'))
        file = tmp_path / "received"
        done = curl(pair, f"http://{pair.ETH}:8443/large", "-o", file)
        assert done.returncode == 0, done.stderr
        assert file.read_bytes() == content
        [[client, *_]] = lines(log, 1)
        assert client == "10.77.1.1"
    finally:
        pair.server.stop_programs()
        shutil.rmtree(run)


def test_unix_socket_that_may_not_be_used_is_an_error_that_says_so(pair, tmp_path):
    run = pathlib.Path(f"/run/plait-test-{pair.server.name}")
    run.mkdir(mode=0o755)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{run}/private.sock")
            (run / "private.sock").chmod(0o600)
            listener.listen()
            pair.serve(*SEALED, to=f"unix:{run}/private.sock")
            done = curl(pair, f"http://{pair.ETH}:8443/")
        assert done.returncode != 0 and "the service behind it cannot be reached" in done.stderr
        told = "Permission denied (os error 13): let the user as whom plait runs"
        wait_for("the reason", lambda: told in pair.logged("serve"))
    finally:
        shutil.rmtree(run)


@pytest.mark.skipif(not shutil.which("haproxy"), reason="not installed: haproxy")
def test_haproxy_reads_the_client_and_the_name_that_it_asked_for(pair, sites):
    file = pair.directory / "haproxy.cfg"
    file.write_text(
        """
        defaults
            mode http
            timeout client 50s
            timeout server 50s
            timeout connect 50s
        frontend web
            bind 127.0.0.1:8080 accept-proxy
            http-request return status 200 content-type text/plain lf-string "%[src] %[dst_port] %[fc_pp_authority]"
"""
    )
    pair.server.start("haproxy", "-db", "-f", file, log="haproxy.log")
    wait_for("haproxy", lambda: pair.server.listens(8080))
    to = 'to = "127.0.0.1:8080"\nproxy = "v2"'
    serve(pair, services(f'name = "a.example"\n{to}', to))
    pair.proxy(*SEALED, "--trusted", "eth")
    assert fetch(pair, "a.example").stdout == "10.77.1.1 8443 a.example"
    assert fetch(pair, "c.example").stdout.split() == ["10.77.1.1", "8443"]


def test_a_service_is_for_its_clients_alone(pair, sites, tmp_path):
    keys = {name: key_of(tmp_path, name) for name in ("server", "known", "other")}
    answer_http(pair.server, 9001, b"private")
    answer_http(pair.server, 9002, b"public")
    text = services(
        f'name = "a.example"\nto = "127.0.0.1:9001"\nclients = ["{keys["known"]}"]',
        'name = "b.example"\nto = "127.0.0.1:9002"',
    )
    serve(pair, f'[identity]\nfile = "{tmp_path}/server"\n{text}')
    pins = tmp_path / "pins.toml"
    pins.write_text("[peers]\n" + "".join(f'"{name}:8443" = "{keys["server"]}"\n' for name in SITES))

    def proxy(name: str):
        return pair.proxy(*SEALED, "--trusted", "eth", "--config", pins, "--identity", tmp_path / name)

    gateway = proxy("known")
    assert fetch(pair, "a.example").stdout == "private"
    assert fetch(pair, "b.example").stdout == "public"
    stop(gateway)
    gateway = proxy("other")
    assert fetch(pair, "a.example").returncode != 0
    reason = f"`clients` of the service, in [[services]], got {keys['other']}"
    wait_for("the reason", lambda: reason in pair.logged("serve"))
    wait_for("the reason", lambda: "it does not accept this end's key" in pair.logged("proxy"))
    assert fetch(pair, "b.example").stdout == "public"
    stop(gateway)
    # An anonymous client.
    pair.proxy(*SEALED, "--trusted", "eth")
    assert fetch(pair, "a.example").returncode != 0
    wait_for("the reason", lambda: "the initiator is anonymous" in pair.logged("serve"))
    assert fetch(pair, "b.example").stdout == "public"
    assert report_of(pair, "serve")["counts"]["rejected_identity"] == 2


def key_of(directory: pathlib.Path, name: str) -> str:
    return tool(PLAIT, "identity", "--file", str(directory / name)).strip()


def stop(gateway):
    gateway.terminate()
    gateway.wait(30)


def test_a_service_that_is_down_is_warned_of_once_and_clients_are_told(pair, documents):
    serve(pair, services('to = "127.0.0.1:8080"\nproxy = "v2"\nhealth = "1s"'))
    down = "the service 127.0.0.1:8080 is down: Connection refused"
    wait_for("the warning", lambda: down in pair.logged("serve"))
    for _ in range(3):
        done = curl(pair, f"http://{pair.ETH}:8443/")
        assert done.returncode != 0
        assert "its gateway ended the connection: the service behind it cannot be reached" in done.stderr
    log = start_logging_nginx(pair.server, documents, "127.0.0.1:8080 proxy_protocol")
    wait_for("the recovery", lambda: "the service 127.0.0.1:8080 is up again" in pair.logged("serve"))
    assert curl(pair, f"http://{pair.ETH}:8443/").stdout == "nginx"
    warnings = [line for line in pair.logged("serve").splitlines() if "WARN" in line and "service" in line]
    assert len(warnings) == 2, warnings
    # Health checks are connections of the gateway's own to the service, and not malformed.
    assert len(lines(log, 1)) == 1
    assert "broken header" not in (pair.server.directory / "nginx/error.log").read_text()


MISTAKES = {
    "an address without a port": ('to = "localhost"', 'expected HOST:PORT, or unix:PATH with the absolute path of a socket, got "localhost"', 2),
    "a relative path": ('to = "unix:web.sock"', "expected HOST:PORT, or unix:PATH", 2),
    "another version": ('to = "h:1"\nproxy = "v1"', "expected v2, the version of the PROXY protocol", 3),
    "a port out of range": ('to = "h:1"\nport = 65536', "65536", 3),
    "a bad interval": ('to = "h:1"\nhealth = "10"', "expected a duration from 1s to 1h", 3),
    "no key": ('to = "h:1"\nclients = ["me"]', "plait-key", 3),
    "an unknown key": ('to = "h:1"\nhost = "x"', "unknown field `host`", 3),
    "one twice": ('to = "h:1"\n[[services]]\nto = "h:2"', "expected a name or a port of its own", 3),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_shown_with_their_line(tmp_path, mistake):
    text, expected, line = MISTAKES[mistake]
    file = tmp_path / "plait.toml"
    file.write_text(services(text))
    error = failure("--listen", "127.0.0.1:8443", "--config", file)
    assert expected in error and f"--> {file}:{line}:" in error and "^" in error, error


def failure(*options) -> str:
    """The error of a `plait serve` that does not start."""

    done = subprocess.run([PLAIT, "serve", *map(str, options)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_options_and_file_may_not_contradict_each_other(tmp_path):
    both = tmp_path / "services.toml"
    both.write_text(services('to = "h:1"'))
    exits = tmp_path / "exit.toml"
    exits.write_text('[exit]\nlisten = "[::]:8444"\nclients = "any"\n')
    everything = tmp_path / "everything.toml"
    everything.write_text(services('to = "h:1"') + exits.read_text())
    listen, to = ("--listen", "127.0.0.1:8443"), ("--to", "h:1")
    for options, expected in [
        ((*listen, *to, "--config", both), "expected --to, or [[services]]"),
        ((*listen, "--config", exits), "expected --to, or [[services]] in the file of --config, with --listen, got neither"),
        ((*listen, "--service", "443", "--config", both), "expected --service, or [[services]]"),
        ((*listen, *to, "--service", "443", "--config", exits), "expected --service, or an exit in the file"),
        (("--service", "443", "--config", exits), "expected --service, or an exit in the file"),
        (("--config", both), "expected --listen ADDRESS:PORT for [[services]]"),
        (("--config", everything), "or --exit for the exit in it"),
    ]:  # fmt: skip
        assert expected in failure(*options), options


def test_only_mode_sealed_tells_services_apart(pair):
    file = pair.directory / "plait.toml"
    file.write_text(services('name = "a"\nto = "h:1"', 'name = "b"\nto = "h:2"'))
    for options in (("--mode", "stream"), ("--mode", "off"), ("--require=false",)):
        command = ("serve", "--listen", "127.0.0.1:8443", "--config", file, *options)
        done = pair.server.run(PLAIT, *command, text=True)
        assert done.returncode == 1, done.stderr
        assert "expected mode 'sealed', required, for more than one of [[services]]" in done.stderr
    # A single one is for everybody.
    echo_server(pair.server)
    serve(pair, services('to = "127.0.0.1:9000"'), "--mode", "stream")


def test_services_for_listed_clients_take_a_key_pair(pair):
    key = pair.client.tool(PLAIT, "identity").strip()
    file = pair.directory / "plait.toml"
    file.write_text(services(f'to = "h:1"\nclients = {json.dumps([key])}'))
    done = pair.server.run(PLAIT, "serve", "--listen", "127.0.0.1:8443", "--config", file, text=True)
    assert done.returncode == 1 and "expected a key pair" in done.stderr, done.stderr
