"""`plait router`: hosts behind it that know nothing of it reach the world through its gateway."""

import errno
import hashlib
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

import pytest
from exits import EXIT_PUBLIC, FAR, FAR6, NAME, PRIVATE, exit_behind, resolver_of
from gateways import report_of
from hosts import PLAIT, REPOSITORY, Pair, wait_for
from routers import MARK, NETWORKS, forward, lan_behind
from streams import accept, assert_echo, echo_server, listen, receive_exactly, reset

ROUTER, HOST = (f"{NETWORKS['lan0'][0]}.{last}" for last in (1, 2))
ROUTER6, HOST6 = (f"{NETWORKS['lan0'][1]}::{last}" for last in (1, 2))
# Without a route at the exit.
NOWHERE, NOWHERE6 = "12.0.0.9", "2a00:99::9"

# Opens connections from all these addresses, and fetches a document on all at once.
FETCH = """
import hashlib, resource, selectors, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
destination, name, count, sources = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
selector, begun = selectors.DefaultSelector(), time.monotonic()
clients = {}
for number in range(count):
    client = socket.socket(socket.AF_INET6 if ":" in destination else socket.AF_INET)
    client.setblocking(False)
    if sources:
        client.bind((sources[number % len(sources)], 0))
    client.connect_ex((destination, 80))
    clients[client] = hashlib.sha256()
    selector.register(client, selectors.EVENT_WRITE)
open_ones = 0
while open_ones < count:
    for key, _ in selector.select(100):
        client = key.fileobj
        assert not client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        selector.unregister(client)
        open_ones += 1
        if time.monotonic() - begun > 5:
            print(f"slow: {time.monotonic() - begun:.1f} s, {client.getsockname()}", file=sys.stderr)
print("open", flush=True)
sys.stdin.readline()
for client in clients:
    client.sendall(f"GET /{name} HTTP/1.0\\r\\n\\r\\n".encode())
    selector.register(client, selectors.EVENT_READ, bytearray())
left = count
while left:
    for key, _ in selector.select(100):
        part = key.fileobj.recv(1 << 16)
        head = key.data
        if head is None:
            clients[key.fileobj].update(part)
        else:
            head += part
            if b"\\r\\n\\r\\n" in head:
                clients[key.fileobj].update(head.split(b"\\r\\n\\r\\n", 1)[1])
                selector.modify(key.fileobj, selectors.EVENT_READ, None)
        if not part:
            selector.unregister(key.fileobj)
            left -= 1
print(" ".join({digest.hexdigest() for digest in clients.values()}))
"""

# Answers requests with a file, however late they come: nginx waits a minute.
ANSWER = """
import resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
answer = b"HTTP/1.0 200 OK\\r\\n\\r\\n" + open(sys.argv[2], "rb").read()
selector, listener = selectors.DefaultSelector(), socket.create_server((sys.argv[1], 80), backlog=4096)
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        else:
            selector.unregister(key.fileobj)
            if key.fileobj.recv(1 << 16):
                key.fileobj.sendall(answer)
            key.fileobj.close()
"""


@pytest.fixture
def web(exit, text):
    exit.start_nginx(text.parent)
    exit.serve()
    return exit


def connect(host, address, port, source=None, timeout=30):
    """A connection from a host, or the error number of connect()."""
    client = host.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    client.settimeout(timeout)
    if source:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(source)
    error = client.connect_ex((address, port))
    return error or client


def fetch(lan, destination, name, count, *sources) -> subprocess.Popen:
    """Starts to fetch a document by connections at once; returns when all are open."""
    command = (sys.executable, "-c", FETCH, destination, name, str(count), *sources)
    program = lan.host.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if program.stdout.readline() != b"open\n":
        raise AssertionError(program.stderr.read().decode() + lan.log())
    return program


def digest_of(fetching: subprocess.Popen) -> str:
    """The digest of what all connections have received."""
    output, errors = fetching.communicate(b"go\n", timeout=300)
    assert fetching.returncode == 0, errors.decode()
    print(errors.decode())
    return output.decode().strip()


@pytest.mark.parametrize("address", [FAR, f"[{FAR6}]"], ids=["v4", "v6"])
def test_hosts_reach_what_the_exit_reaches(lan, web, text, address):
    lan.start_with(web)
    done = lan.host.run("curl", "-sS", "-m", "50", f"http://{address}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode() + lan.log()


@pytest.mark.parametrize("address", [FAR, FAR6], ids=["v4", "v6"])
def test_fifty_connections_at_once(lan, web, text, address):
    lan.start_with(web)
    fetching = fetch(lan, address, text.name, 50)
    connections = report_of(lan.pair, "router")["connections"]
    assert len(connections) == 50
    host = HOST6 if ":" in address else HOST
    assert {each["application"].rsplit(":", 1)[0].strip("[]") for each in connections} == {host}
    assert {each["mode"] for each in connections} == {"sealed"}
    assert digest_of(fetching) == hashlib.sha256(text.read_bytes()).hexdigest()


@pytest.mark.parametrize("address", [FAR, FAR6], ids=["v4", "v6"])
def test_large_transfers_in_both_directions_at_once(lan, exit, address):
    exit.serve()
    lan.start_with(exit)
    listener = listen(exit.far, 9000, address)
    client = connect(lan.host, address, 9000)
    server = accept(listener)
    sent = {client: bytes(range(251)) * 80_000, server: bytes(range(241)) * 90_000}
    received = {}

    def send(end):
        end.settimeout(60)
        end.sendall(sent[end])
        end.shutdown(socket.SHUT_WR)

    def receive(end):
        end.settimeout(60)
        parts = []
        while part := end.recv(1 << 16):
            parts.append(part)
        received[end] = b"".join(parts)

    threads = [threading.Thread(target=work, args=(end,)) for work in (send, receive) for end in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert received[client] == sent[server]
    assert received[server] == sent[client]


@pytest.mark.parametrize(
    "address, port, expected",
    [
        (FAR, 81, {errno.ECONNREFUSED}),
        (FAR6, 81, {errno.ECONNREFUSED}),
        (NOWHERE, 80, {errno.EHOSTUNREACH, errno.ENETUNREACH}),
        (NOWHERE6, 80, {errno.EHOSTUNREACH, errno.ENETUNREACH}),
        # What the exit does not permit.
        (PRIVATE, 80, {errno.EHOSTUNREACH}),
    ],
)
def test_connect_fails_as_at_the_exit(lan, exit, address, port, expected):
    exit.serve()
    lan.start_with(exit)
    assert connect(lan.host, address, port) in expected, lan.log()


def test_silent_destinations_are_silent(lan, exit):
    exit.serve()
    exit.far.add_packet_rules(input="tcp dport 82 drop")
    lan.start_with(exit)
    client = lan.host.socket()
    client.settimeout(3)
    with pytest.raises(TimeoutError):
        client.connect((FAR, 82))
    # Another attempt is not held up by the first one.
    assert connect(lan.host, FAR, 81) == errno.ECONNREFUSED


def test_half_close_and_reset_reach_the_other_end(lan, exit):
    exit.serve()
    lan.start_with(exit)
    listener = listen(exit.far, 9000, FAR)
    client = connect(lan.host, FAR, 9000)
    server = accept(listener)
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert receive_exactly(server, 8) == b"question" and server.recv(1) == b""
    server.sendall(b"answer")
    server.close()
    assert receive_exactly(client, 6) == b"answer" and client.recv(1) == b""

    client = connect(lan.host, FAR, 9000)
    server = accept(listener)
    reset(client)
    with pytest.raises(ConnectionResetError):
        server.recv(1)
    client = connect(lan.host, FAR, 9000)
    reset(accept(listener))
    with pytest.raises(ConnectionResetError):
        client.recv(1)


@pytest.mark.parametrize("address, source", [(FAR, (HOST, 40000)), (FAR6, (HOST6, 40000))], ids=["v4", "v6"])
def test_ports_are_reused_at_once_though_the_server_has_closed_first(lan, exit, address, source):
    """The router's socket is in TIME_WAIT then."""
    exit.serve()
    lan.start_with(exit)
    listener = listen(exit.far, 9000, address)
    for number in range(5):
        client = connect(lan.host, address, 9000, source)
        assert not isinstance(client, int), (number, errno.errorcode[client], lan.log())
        server = accept(listener)
        server.close()
        assert client.recv(1) == b""
        client.close()


@pytest.mark.parametrize("resolver", [ROUTER, "8.8.8.8", ROUTER6, "2001:4860:4860::8888"])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_names_are_resolved_by_the_exit(lan, exit, resolver, protocol):
    """Whichever resolver a host asks; its answer seems to come from there."""
    exit.serve()
    lan.start_with(exit)
    options = ("env", "RES_OPTIONS=use-vc") if protocol == "tcp" else ()
    with resolver_of(lan.host, resolver):
        done = lan.host.run(*options, "getent", "ahosts", NAME, text=True)
    assert FAR in done.stdout and FAR6 in done.stdout, lan.log()
    asked = {(protocol, client) for protocol, client, name in exit.nameserver.asked if name == NAME}
    assert asked == {("tcp", EXIT_PUBLIC)}


def test_a_resolver_of_the_router_may_have_the_port_of_dns(lan, exit):
    """It sees no query of the hosts, and is not in the way."""
    exit.serve()
    with lan.router.inside():
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("0.0.0.0", 53))
    own.settimeout(0.2)
    lan.start_with(exit)
    with resolver_of(lan.host, ROUTER):
        assert FAR in lan.host.run("getent", "ahosts", NAME, text=True).stdout
    with pytest.raises(TimeoutError):
        own.recv(1)


def test_nothing_readable_leaves_by_the_uplinks(lan, web, text):
    """Neither names, nor destinations, nor contents; nor what is not carried, though the kernel forwards."""
    forward(lan.router, True)
    lan.router.ip(f"route add {FAR} via {Pair.ETH}")
    lan.start_with(web)
    captures = [lan.pair.capture(link, host=lan.router, filter="ip or ip6") for link in ("eth", "wlan")]
    with captures[0], captures[1], resolver_of(lan.host, "8.8.8.8"):
        done = lan.host.run("curl", "-sS", "-4", "-m", "50", f"http://{NAME}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode()
        with lan.host.inside():
            datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.sendto(b"not carried", (FAR, 9999))
        lan.host.run("ping", "-c", "1", "-W", "1", FAR)
    for capture in captures:
        seen = capture.file.read_bytes()
        for secret in (b"far.example", b"\x03far\x07example", b"GET /", b"not carried"):
            assert secret not in seen, (capture.link, secret)
        assert capture.fields("ip.dst", where=f"ip.addr == {FAR} or ip.addr == {HOST}") == []
    captured = sum(len(capture.file.read_bytes()) for capture in captures)
    assert captured > len(text.read_bytes()), "nothing was captured"
    wait_for("warning", lambda: "drops what it does not carry" in lan.log())


def test_the_listener_is_out_of_reach(lan, exit):
    """Of hosts, and of the programs of the router itself, which would connect to it in a loop."""
    exit.serve()
    router = lan.start_with(exit)
    lines = lan.router.tool("ss", "-Htlnp").splitlines()
    listening = [line.split()[3] for line in lines if f"pid={router.pid}," in line]
    ports = {address.rsplit(":", 1)[1] for address in listening}
    assert len(listening) == 2, listening
    for address in (ROUTER, ROUTER6):
        for port in ports:
            assert connect(lan.host, address, int(port)) == errno.ECONNREFUSED
    lan.host.ip(f"route add 127.1.2.3 via {ROUTER} dev uplink")
    for address in listening:
        name, port = address.rsplit(":", 1)
        client = connect(lan.router, name.strip("[]"), int(port))
        assert isinstance(client, int) or ended(client)
    assert report_of(lan.pair, "router")["connections"] == []


def ended(client) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_services_of_the_router_are_reached_as_before(lan, exit):
    echo_server(lan.router, 80, "0.0.0.0")
    exit.serve()
    lan.start_with(exit)
    client = connect(lan.host, ROUTER, 80)
    assert_echo(client)
    # And do not answer in the name of others.
    assert connect(lan.host, FAR, 80) == errno.ECONNREFUSED


def test_two_interfaces(exit, text):
    """Both are carried; between them, the kernel forwards."""
    exit.start_nginx(text.parent)
    exit.serve()
    with lan_behind(exit.pair, "lan0", "lan1") as lan:
        forward(lan.router, True)
        lan.start_with(exit, interfaces=("lan0", "lan1"))
        for host in lan.hosts.values():
            done = host.run("curl", "-sS", "-m", "50", f"http://{FAR}/text.txt")
            assert done.stdout == text.read_bytes(), done.stderr.decode() + lan.log()
        listener = listen(lan.hosts["lan1"], 9000, f"{NETWORKS['lan1'][0]}.2")
        client = connect(lan.host, f"{NETWORKS['lan1'][0]}.2", 9000)
        connection, (address, _) = listener.accept()
        assert address == HOST, "the router carried it"
        client.close()
        connection.close()


def test_a_bridge(lan, exit):
    """As behind most household routers: cable and Wi-Fi are its ports."""
    exit.serve()
    echo_server(exit.far, 9000, FAR)
    lan.router.ip("link add br0 type bridge forward_delay 0")
    lan.router.ip("addr flush dev lan0")
    lan.router.ip("link set lan0 master br0")
    lan.router.ip(f"addr add {ROUTER}/24 dev br0")
    lan.router.ip("link set br0 up")
    lan.start_with(exit, interfaces=("br0",))
    assert_echo(connect(lan.host, FAR, 9000))
    assert connect(lan.host, FAR, 81) == errno.ECONNREFUSED


@pytest.mark.skipif(not shutil.which("socat"), reason="not installed: socat")
def test_a_tunnel_without_link_layer(lan, exit):
    exit.serve()
    echo_server(exit.far, 9000, FAR)
    pipe = lan.pair.directory / "tunnel"
    # Each packet is a message (SOCK_SEQPACKET).
    for host, address, end in (
        (lan.router, "10.60.0.1", f"UNIX-LISTEN:{pipe},type=5"),
        (lan.host, "10.60.0.2", f"UNIX-CONNECT:{pipe},type=5"),
    ):
        host.start("socat", f"TUN:{address}/24,tun-name=tun0,iff-no-pi,iff-up", end)
        wait_for("tunnel", lambda: "tun0" in host.ip("-br link") and pipe.exists())  # noqa: B023
    lan.host.ip("route replace default dev tun0 src 10.60.0.2")
    lan.start_with(exit, interfaces=("tun0",))
    assert_echo(connect(lan.host, FAR, 9000))
    assert connect(lan.host, FAR, 81) == errno.ECONNREFUSED
    with resolver_of(lan.host, "8.8.8.8"):
        assert FAR in lan.host.run("getent", "ahosts", NAME, text=True).stdout


def test_excluded_networks_are_forwarded(lan, exit):
    forward(lan.router, True)
    lan.pair.server.ip(f"route add {NETWORKS['lan0'][0]}.0/24 via 10.77.1.1")
    exit.serve()
    lan.start_with(exit, "--exclude", f"{Pair.ETH}/32")
    listener = listen(lan.pair.server, 9000, Pair.ETH)
    client = connect(lan.host, Pair.ETH, 9000)
    _, (address, _) = listener.accept()
    assert address == HOST
    client.close()


def test_without_an_exit_connections_go_to_their_destinations(pair, text):
    """To a gateway there, sealed; UDP is forwarded as before."""
    to = pair.nginx(text.parent)
    pair.serve(to=to)
    with lan_behind(pair, "lan0") as lan:
        forward(pair.client, True)
        pair.server.ip(f"route add {NETWORKS['lan0'][0]}.0/24 via 10.77.1.1")
        lan.start("--trusted", "eth", "--require")
        done = lan.host.run("curl", "-sS", "-m", "50", f"http://{Pair.ETH}:8443/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode() + lan.log()
        assert report_of(pair, "router")["counts"]["protected"] == 1
        # It is no path.
        assert "10.50.0" not in json.dumps(report_of(pair, "serve"))
        with pair.server.inside():
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((Pair.ETH, 53))
        server.settimeout(10)
        with lan.host.inside():
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.sendto(b"query", (Pair.ETH, 53))
        data, (address, _) = server.recvfrom(100)
        assert (data, address) == (b"query", HOST)
        # A server without a gateway.
        listen(pair.server, 9001, Pair.ETH)
        assert connect(lan.host, Pair.ETH, 9001) == errno.ECONNREFUSED


def test_an_end_leaves_nothing_and_drains(lan, exit):
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    before = lan.traces()
    router = lan.start_with(exit, "--drain", "30")
    assert lan.traces() != before
    client = connect(lan.host, FAR, 9000)
    assert_echo(client)
    router.terminate()
    # Established connections go on, new ones are refused.
    wait_for("refusal", lambda: connect(lan.host, FAR, 9000) == errno.ECONNREFUSED)
    assert_echo(client)
    client.close()
    assert router.wait(20) == 0
    assert lan.traces() == before


@pytest.mark.parametrize("cleaner", ["doctor", "next start"])
def test_what_a_killed_router_leaves_is_removed(lan, exit, cleaner):
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    before = lan.traces()
    router = lan.start_with(exit)
    client = connect(lan.host, FAR, 9000)
    assert_echo(client)
    router.kill()
    router.wait()
    left = lan.traces()
    assert left["programs"] == before["programs"], "programs end with the process"
    assert left["rules"] != before["rules"]
    if cleaner == "doctor":
        done = lan.router.run(PLAIT, "doctor", "--clean", text=True)
        assert "routing" in done.stdout, done.stdout + done.stderr
    else:
        router = lan.start_with(exit)
        client = connect(lan.host, FAR, 9000)
        assert_echo(client)
        client.close()
        router.terminate()
        assert router.wait(20) == 0
    assert lan.traces() == before


def test_a_firewall_may_accept_carried_packets_alone(lan, exit):
    """By their mark, as the guide says."""
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    lan.start_with(exit)
    lan.router.add_packet_rules(input=f'iifname "lan0" meta mark != {MARK} drop')
    assert_echo(connect(lan.host, FAR, 9000))
    assert connect(lan.host, FAR, 81) == errno.ECONNREFUSED


def test_the_firewall_of_the_guide_lets_nothing_leave_unprotected(lan, exit):
    """Neither after a kill, nor while the router is not started; and it is not in the way."""
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    guide = (REPOSITORY / "docs" / "guide" / "router.md").read_text()
    rules = guide[guide.index("table inet plait_router") :]
    rules = rules[: rules.index("```")].replace("eth0", "eth").replace("wlan0", "wlan")
    forward(lan.router, True)
    lan.router.ip(f"route add {FAR} via {Pair.ETH}")
    lan.router.tool("nft", rules)
    with lan.pair.capture("eth", host=lan.router, filter=f"host {FAR}") as capture:
        connect(lan.host, FAR, 9000, timeout=1)
        router = lan.start_with(exit)
        assert "net.ipv4.ip_forward" in lan.log()
        client = connect(lan.host, FAR, 9000)
        assert_echo(client)
        router.kill()
        router.wait()
        # Its sockets have sent resets; the host's next connection is not taken.
        connect(lan.host, FAR, 9000, timeout=1)
    assert capture.fields("ip.dst", where="ip") == []
    lan.router.tool("nft", "delete table inet plait_router")
    with lan.pair.capture("eth", host=lan.router, filter=f"host {FAR}") as capture:
        connect(lan.host, FAR, 9000, timeout=1)
    assert capture.fields("ip.dst", where="ip"), "without the rules, they would"


def test_an_interface_that_comes_back_is_taken_again(lan, exit):
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    lan.start_with(exit)
    assert_echo(connect(lan.host, FAR, 9000))
    lan.unplug("lan0")
    lan.plug("lan0")
    client = wait_for("connection", lambda: connected(lan.host, FAR, 9000))
    assert_echo(client)


def connected(host, address, port):
    client = connect(host, address, port, timeout=1)
    return None if isinstance(client, int) else client


def test_mistakes_are_errors(lan, exit):
    for options, words in (
        ((), ("--interface", "[router]")),
        (("--interface", "lan9"), ("no interface lan9",)),
        (("--interface", "lan0", "--trusted", "lan0"), ("lan0", "got both")),
        (("--interface", "lan0", "--exclude", "10.0.0.0/33"), ("10.0.0.0/33",)),
    ):
        done = lan.router.run(PLAIT, "router", *options, text=True)
        assert done.returncode and all(word in done.stderr for word in words), done.stderr


@pytest.mark.skipif(not shutil.which("capsh"), reason="not installed: capsh")
def test_missing_capabilities_are_named(lan, exit):
    done = lan.router.run(
        "capsh", "--drop=cap_net_raw", "--", "-c", f"{PLAIT} router --mode off --interface lan0", text=True
    )
    assert done.returncode and "lacks CAP_NET_RAW" in done.stderr, done.stderr


def test_settings_are_read_from_the_file(lan, exit):
    echo_server(exit.far, 9000, FAR)
    exit.serve()
    config = lan.pair.directory / "router.toml"
    config.write_text(
        f'exit = "{exit.url}"\n[router]\ninterfaces = ["lan0"]\nexclude = ["{FAR}"]\n[paths]\neth = "trusted"\n'
    )
    lan.start("--config", config, interfaces=())
    assert connect(lan.host, FAR, 9000, timeout=2), "it is excluded, and the kernel does not forward"
    config.write_text(config.read_text().replace(FAR, "192.0.2.0/24"))
    lan.router.stop_programs()
    lan.start("--config", config, interfaces=())
    assert_echo(connect(lan.host, FAR, 9000))


@pytest.mark.parametrize(
    "hosts, count", [(50, 300), pytest.param(1000, 5000, marks=pytest.mark.long)], ids=["300", "5000"]
)
def test_many_hosts_with_many_connections(lan, exit, documents, hosts, count):
    """Prints the router's memory."""
    file = documents / "page.txt"
    file.write_bytes(b"0123456789" * 200)
    sources = [f"10.50.{number // 250 + 1}.{number % 250 + 1}" for number in range(hosts)]
    lan.router.ip("route add 10.50.0.0/16 dev lan0 scope link")
    batch = "".join(f"addr add {source}/32 dev lo\n" for source in sources)
    lan.host.run("ip", "-batch", "-", input=batch.encode())
    lan.host.tool("sysctl", "-qw", "net.ipv4.conf.all.arp_announce=0", "net.ipv4.conf.uplink.arp_ignore=0")
    exit.far.start(sys.executable, "-c", ANSWER, FAR, file, log="answer.log")
    wait_for("server", lambda: exit.far.listens(80))
    exit.serve("--max-connections", "6000")
    router = lan.start_with(exit)
    idle = memory_of(router)
    fetching = fetch(lan, FAR, file.name, count, *sources)
    wait_for("connections", lambda: len(carried(lan, FAR)) == count)
    used = memory_of(router)
    print(
        f"{count} connections of {hosts} hosts: {idle} KiB idle, {used} KiB, {(used - idle) / count:.1f} each"
    )
    assert digest_of(fetching) == hashlib.sha256(file.read_bytes()).hexdigest()


def carried(lan, address) -> list[str]:
    """The router's sockets that have the address of a destination."""
    return lan.router.tool("ss", "-Htn", "state", "established", "src", address).splitlines()


def memory_of(program) -> int:
    """Resident memory, in KiB."""
    lines = pathlib.Path(f"/proc/{program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
