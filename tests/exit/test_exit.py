"""`plait serve --exit`, and `plait run` and `plait proxy` with `--exit`, with real programs."""

import errno
import json
import os
import pathlib
import re
import signal
import sys
import time

import pytest
from datagrams import EXCHANGE, echo_datagrams
from exits import (
    EXIT_PRIVATE,
    EXIT_PUBLIC,
    FAR,
    FAR6,
    MIXED_NAME,
    NAME,
    PRIVATE,
    PRIVATE_NAME,
    exit_behind,
)
from gateways import report_of
from hosts import PLAIT, tool, wait_for
from streams import accept, echo_server, listen, random_file, receive_exactly

# What connect() returns, as numbers. It blocks: after poll(), SO_ERROR may not yet be what an ICMP message causes.
CONNECT = """
import socket, struct, sys
client = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 30, 0))
print(client.connect_ex((sys.argv[1], int(sys.argv[2]))))
"""

# Holds connections open; prints the result of each connect().
HOLD = """
import socket, sys
held = []
for _ in range(int(sys.argv[3])):
    held.append(socket.socket())
    print(held[-1].connect_ex((sys.argv[1], int(sys.argv[2]))))
"""

HOSTS = [FAR, f"[{FAR6}]", NAME]


@pytest.fixture
def web(exit, text):
    exit.start_nginx(text.parent)
    return exit


@pytest.mark.parametrize("host", HOSTS, ids=["v4", "v6", "name"])
def test_programs_reach_what_the_exit_reaches(web, text, host):
    web.serve()
    done = web.run("curl", "-sS", "-m", "50", f"http://{host}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    assert web.client.run("curl", "-sS", "-m", "5", f"http://{FAR}/text.txt").returncode != 0, "a way round"


@pytest.mark.parametrize("host", HOSTS, ids=["v4", "v6", "name"])
@pytest.mark.parametrize(
    "options",
    [
        ("--proxy", "socks5h://127.0.0.1:1080"),
        ("--proxy", "http://127.0.0.1:1080"),
        ("--proxytunnel", "--proxy", "http://127.0.0.1:1080"),
    ],
    ids=["socks5", "http", "connect"],
)
def test_proxy_clients_reach_what_the_exit_reaches(web, text, host, options):
    web.serve()
    web.proxy()
    done = web.client.run("curl", "-sS", *options, f"http://{host}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode()


def test_both_paths_carry_a_download_from_the_exit(web, documents):
    for link in ("eth", "wlan"):
        rate = ("rate", "50mbit", "burst", "64k", "latency", "50ms")
        tool("tc", "-n", web.server.name, "qdisc", "add", "dev", link, "root", "tbf", *rate)
    file = random_file(documents, 10_000_000)
    web.serve()
    counters = {link: received(web.client, link) for link in ("eth", "wlan")}
    done = web.run("curl", "-sS", f"http://{FAR}/{file.name}")
    assert done.stdout == file.read_bytes(), done.stderr.decode()
    for link, before in counters.items():
        assert received(web.client, link) - before > 1_000_000, link


def received(host, link) -> int:
    [interface] = json.loads(host.ip(f"-s -j link show {link}"))
    return interface["stats64"]["rx"]["bytes"]


@pytest.mark.parametrize("entry", ["run", "proxy"])
def test_names_and_destinations_reach_the_exit_alone(web, text, entry):
    """Neither uplink of the client carries a query, the name, or the address, readable."""
    web.serve()
    if entry == "proxy":
        web.proxy()
    url = f"http://{NAME}/text.txt"
    captures = [web.pair.capture(link, host=web.client, filter="ip or ip6") for link in ("eth", "wlan")]
    with captures[0], captures[1]:
        if entry == "run":
            done = web.run("curl", "-sS", "-m", "50", url)
        else:
            done = web.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", url)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    for capture in captures:
        assert capture.fields("udp.port", where="udp or tcp.port == 53 or dns") == []
        seen = capture.file.read_bytes()
        assert len(seen) > 1000, "nothing was captured"
        for secret in (b"far.example", b"\x03far\x07example", b"GET /"):
            assert secret not in seen, (capture.link, secret)
        assert bytes([11, 0, 0, 2]) not in capture.payload()
        assert capture.fields("ip.dst", where=f"ip.addr == {FAR}") == []
    asked = {(protocol, client) for protocol, client, name in web.nameserver.asked if name == NAME}
    # The exit's own resolver asks by UDP; queries of programs are forwarded by TCP.
    assert asked == {("tcp" if entry == "run" else "udp", EXIT_PUBLIC)}


def test_length_of_a_name_does_not_show(web, text):
    """The record with the destination has the same length for every name."""
    web.serve("--service", "8443")
    web.nameserver.names["a.example"] = [FAR]
    long = ".".join(["a" * 60] * 4)
    web.nameserver.names[long] = [FAR]
    web.proxy("--hybrid", "false")
    lengths = {}
    for name in ("a.example", long):
        with web.pair.capture("eth", host=web.client, filter="tcp") as capture:
            done = web.client.run(
                "curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{name}/text.txt"
            )
            assert done.stdout == text.read_bytes(), done.stderr.decode()
        sent = capture.fields("tcp.len", where="tcp.len > 0 and tcp.dstport == 8443")
        # HELLO, IDENTITY, DESTINATION, and the request, whose length differs by that of the name.
        lengths[name] = [int(length) for [length] in sent]
    (short_request, long_request) = (lengths[name][3] for name in ("a.example", long))
    assert lengths["a.example"][:3] == lengths[long][:3], lengths
    assert lengths["a.example"][2] == 2 + 256 + 1 + 16
    assert long_request - short_request == len(long) - len("a.example")


@pytest.mark.parametrize(
    ("address", "port", "expected"),
    [
        (FAR, 81, errno.ECONNREFUSED),
        (FAR6, 81, errno.ECONNREFUSED),
        ("11.0.0.77", 80, errno.EHOSTUNREACH),
        ("12.0.0.1", 80, errno.ENETUNREACH),
        ("2a00:78::1", 80, errno.ENETUNREACH),
    ],
)
def test_connect_fails_as_at_the_exit(exit, address, port, expected):
    exit.serve()
    command = (sys.executable, "-c", CONNECT, address, port)
    direct = exit.server.run(*command, text=True)
    through = exit.run(*command, text=True)
    assert (direct.stdout, through.stdout) == (f"{expected}\n", f"{expected}\n"), through.stderr


def test_silent_destination_times_out_in_the_program(exit):
    """The program's own time limit applies: connect() does not succeed before."""
    exit.serve()
    exit.far.add_packet_rules(input="tcp dport 80 drop")
    began = time.monotonic()
    done = exit.run(sys.executable, "-c", CONNECT.replace("30,", "3,"), FAR, "80", text=True)
    assert done.stdout == f"{errno.EINPROGRESS}\n", done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("url", "code", "status"),
    [
        (f"http://{FAR}:81/", 5, "502"),
        (f"http://{PRIVATE}/", 2, "403"),
        (f"http://{PRIVATE_NAME}/", 2, "403"),
        ("http://nowhere.far.example/", 4, "502"),
        ("http://12.0.0.1/", 3, "502"),
    ],
)
def test_proxies_answer_by_their_own_codes(web, url, code, status):
    web.serve()
    web.proxy()
    done = web.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", url, text=True)
    assert done.returncode == 97 and f"({code})" in done.stderr, done.stderr
    done = web.client.run(
        "curl",
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--proxy",
        "http://127.0.0.1:1080",
        url,
        text=True,
    )
    assert done.stdout == status


@pytest.mark.parametrize(
    "address", [PRIVATE, EXIT_PRIVATE, EXIT_PUBLIC, "10.77.1.2", "169.254.1.1", "100.64.0.1"]
)
def test_special_addresses_and_the_exits_own_are_refused(web, address):
    listen(web.server, 80, "0.0.0.0")
    web.serve()
    done = web.run(sys.executable, "-c", CONNECT, address, "80", text=True)
    assert done.stdout == f"{errno.EHOSTUNREACH}\n", done.stderr


def test_listed_network_is_reached(web, text):
    web.serve(section='allow = ["10.99.0.0/24"]')
    for host in (PRIVATE, PRIVATE_NAME):
        done = web.run("curl", "-sS", f"http://{host}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode()
    done = web.run(sys.executable, "-c", CONNECT, "127.0.0.2", "80", text=True)
    assert done.stdout == f"{errno.ECONNREFUSED}\n", "loopback is the client's own"


def test_a_client_may_have_rules_of_its_own(web, text):
    other = web.client.tool(PLAIT, "identity", "--file", web.pair.directory / "other.key").strip()
    section = f'allow = ["10.99.0.0/24"]\n[exit.client."{web.client_key}"]\nallow = []\n'
    web.serve(clients=json.dumps([web.client_key, other]), section=section)
    url = f"http://{PRIVATE}/text.txt"
    assert web.run("curl", "-sS", url).returncode == 7
    done = web.run("curl", "-sS", url, options=("--identity", web.pair.directory / "other.key"))
    assert done.stdout == text.read_bytes(), done.stderr.decode()


def test_name_with_a_private_address_leads_to_its_public_one_only(web, text):
    web.serve()
    web.proxy()
    done = web.client.run(
        "curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{MIXED_NAME}/text.txt"
    )
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    # Rebinding: the name leads elsewhere now.
    web.nameserver.names[MIXED_NAME] = [PRIVATE]
    done = web.client.run("curl", "-sS", "--proxy", "socks5h://127.0.0.1:1080", f"http://{MIXED_NAME}/")
    assert done.returncode == 97, done.stderr.decode()


def test_client_with_another_key_is_refused(web):
    web.serve()
    stranger = web.pair.directory / "stranger.key"
    web.client.tool(PLAIT, "identity", "--file", stranger)
    done = web.run("curl", "-sS", f"http://{FAR}/text.txt", options=("--identity", stranger), text=True)
    assert done.returncode == 7 and not done.stdout
    assert "does not accept this end's key" in done.stderr
    assert "expected a client whose key is in `clients`" in web.pair.logged("serve")
    assert report_of(web.pair, "serve")["counts"]["rejected_identity"] == 1


def test_exit_with_another_key_gets_no_destination(web):
    web.serve()
    other = web.client.tool(PLAIT, "identity", "--file", web.pair.directory / "other.key").strip()
    web.url = web.url.split("#")[0] + "#" + other.removeprefix("plait-key:")
    done = web.run("curl", "-sS", f"http://{FAR}/text.txt", text=True)
    assert done.returncode == 7 and "failed authentication: expected the pinned" in done.stderr
    assert f"{FAR}:80" not in web.pair.logged("serve")


def test_service_is_no_exit_and_exit_no_service(web, text):
    """Neither takes the bytes that are meant for the other, though both have the same key."""
    web.serve()
    done = web.pair.run("curl", "-sS", "http://10.77.1.2:8443/", text=True)
    assert done.returncode != 0 and "does not serve the port or name" in done.stderr
    web.server.stop_programs()
    accepted = []
    echo_server(web.server, accepted=accepted)
    web.pair.serve(to="127.0.0.1:9000")
    done = web.run("curl", "-sS", f"http://{FAR}/text.txt", text=True)
    assert done.returncode == 7 and "does not serve the port or name" in done.stderr
    assert accepted == []


def test_connections_of_a_client_are_limited(exit):
    listener = listen(exit.far, 80, FAR)
    exit.serve(section="max_connections = 2")
    command = (sys.executable, "-c", HOLD, FAR, "80")
    done = exit.run(*command, "3", text=True)
    assert done.stdout.split() == ["0", "0", str(errno.ECONNREFUSED)], done.stderr
    assert "the limit of connections or bytes" in done.stderr
    assert exit.run(*command, "2", text=True).stdout.split() == ["0", "0"], "they ended"
    listener.close()


def test_rate_of_a_client_is_limited(web, documents):
    web.serve(section='max_rate = "8mbit"')
    file = random_file(documents, 2_000_000)
    began = time.monotonic()
    done = web.run("curl", "-sS", f"http://{FAR}/{file.name}")
    assert done.stdout == file.read_bytes(), done.stderr.decode()
    # Two seconds at the rate, of which a tenth may be a burst.
    assert time.monotonic() - began > 1.7


def test_bytes_of_a_client_are_limited(web, documents):
    web.serve(section='max_bytes_per_day = "1MB"')
    file = random_file(documents, 5_000_000)
    done = web.run("curl", "-sS", f"http://{FAR}/{file.name}", text=False)
    assert done.returncode in (18, 56) and len(done.stdout) < 5_000_000, done.stderr.decode()
    done = web.run(sys.executable, "-c", CONNECT, FAR, "80", text=True)
    assert done.stdout == f"{errno.ECONNREFUSED}\n", done.stderr


# A query by a datagram, from a socket that is connected or not: who answers, and with what address.
QUERY = """
import socket, sys
kind, server, name = sys.argv[1:]
question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + bytes([0, 0, 1, 0, 1])
query = bytes([18, 52, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + question
family = socket.AF_INET6 if ":" in server else socket.AF_INET
client = socket.socket(family, socket.SOCK_DGRAM)
client.settimeout(20)
if kind == "connected":
    client.connect((server, 53))
    client.send(query)
    assert client.getpeername()[0] == server
else:
    client.sendto(query, (server, 53))
answer, sender = client.recvfrom(4096)
assert answer[:2] == query[:2] and answer[12 : 12 + len(question)] == question
print(*sender[:2], socket.inet_ntoa(answer[-4:]) if answer[7] else "none", answer[3] & 15)
"""


@pytest.mark.parametrize("kind", ["connected", "unconnected"])
@pytest.mark.parametrize(
    "server", ["10.77.1.53", "127.0.0.53", "9.9.9.9", "2620:fe::fe", "::1", "::ffff:9.9.9.9"]
)
def test_queries_to_any_resolver_are_answered_by_the_exits(exit, kind, server):
    exit.serve()
    with exit.pair.capture("eth", host=exit.client, filter="udp or icmp or icmp6 or tcp port 53") as capture:
        done = exit.run(sys.executable, "-c", QUERY, kind, server, PRIVATE_NAME, text=True)
    assert done.stdout == f"{server} 53 {PRIVATE} 0\n", done.stderr
    assert capture.fields("frame.number", where="udp or dns") == []
    assert exit.nameserver.asked == [("tcp", EXIT_PUBLIC, PRIVATE_NAME)]


def test_unknown_names_and_unanswered_queries_fail_as_such(exit):
    exit.serve()
    done = exit.run(sys.executable, "-c", QUERY, "connected", "10.77.1.53", "nowhere.far.example", text=True)
    assert done.stdout == "10.77.1.53 53 none 3\n", done.stderr
    exit.server.stop_programs()
    done = exit.run(sys.executable, "-c", QUERY, "connected", "10.77.1.53", NAME, text=True)
    assert done.stdout == "10.77.1.53 53 none 2\n" and "cannot resolve names by the exit" in done.stderr


def test_resolver_by_tcp_is_the_exits(web, text):
    web.serve()
    command = ("env", "RES_OPTIONS=use-vc", "curl", "-sS", f"http://{NAME}/text.txt")
    done = web.run(*command)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    assert {protocol for protocol, _, _ in web.nameserver.asked} == {"tcp"}


@pytest.mark.parametrize(("address", "own"), [(FAR, "10.77.1.1"), (FAR6, "fd77:1::1")], ids=["v4", "v6"])
@pytest.mark.parametrize("kind", ["unconnected", "connected"])
def test_datagrams_of_a_program_go_through_the_exit(exit, address, own, kind):
    senders = echo_datagrams(exit.far, address, 7)
    exit.serve()
    own = own if kind == "connected" else {FAR: "0.0.0.0", FAR6: "::"}[address]
    with exit.pair.capture("eth", host=exit.client, filter="udp") as capture:
        for length in (5, 0, 1472, 60000):
            done = exit.run(sys.executable, "-c", EXCHANGE, kind, address, 7, length, text=True)
            assert done.stdout == f"{own} {address} 7 {length}\n", done.stderr
    assert senders and capture.fields("udp.port", where="udp.port == 7") == []
    assert exit.client.ip("rule").count("lookup") == 3, "nothing is left"


def test_first_bytes_follow_at_once_and_half_close_passes(exit):
    listener = listen(exit.far, 80, FAR)
    exit.serve()
    script = (
        "import socket, sys\n"
        f"client = socket.create_connection(({FAR!r}, 80))\n"
        "client.sendall(b'question'); client.shutdown(socket.SHUT_WR)\n"
        "print(client.recv(100))\n"
    )
    program = exit.client.start(
        PLAIT,
        "run",
        "--trusted",
        "eth",
        "--exit",
        exit.url,
        "--",
        sys.executable,
        "-c",
        script,
        log="script.log",
    )
    connection = accept(listener)
    assert receive_exactly(connection, 8) == b"question" and connection.recv(1) == b""
    connection.sendall(b"answer")
    connection.close()
    assert program.wait(20) == 0
    assert "b'answer'" in (exit.pair.directory / "script.log").read_text()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("", "expected `clients` in [exit]"),
        ('[exit]\nclients = "any"\n', None),
        ('mode = "stream"\n[exit]\nclients = "any"\n', "expected mode 'sealed', required, for an exit"),
        ('require = false\n[exit]\nclients = "any"\n', "expected mode 'sealed', required, for an exit"),
    ],
)
def test_exit_open_to_everybody_says_so(exit, text, section, words):
    config = exit.pair.directory / "plait.toml"
    config.write_text(section)
    exit.server.tool(PLAIT, "identity")
    if words:
        done = exit.server.run(PLAIT, "serve", "--exit", "[::]:8443", "--config", config, text=True)
        assert done.returncode == 1 and words in done.stderr
        return
    exit.start_nginx(text.parent)
    exit.serve(clients='"any"')
    # A client without a key of its own.
    (exit.client.state / "identity.key").unlink()
    done = exit.run("curl", "-sS", f"http://{FAR}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode()


def test_exit_takes_mode_sealed_at_the_client(exit):
    exit.serve()
    for options in (("--mode", "stream"), ("--require=false",), ("--mode", "off")):
        done = exit.run("true", options=options, text=True)
        assert done.returncode == 1 and "error: expected mode 'sealed'" in done.stderr, done.stderr


def test_unreachable_exit_is_an_unreachable_network(exit):
    exit.serve()
    exit.server.stop_programs()
    done = exit.run(sys.executable, "-c", CONNECT, FAR, "80", text=True)
    assert done.stdout == f"{errno.ENETUNREACH}\n"
    assert "cannot reach the exit 10.77.1.2:8443: " in done.stderr


@pytest.fixture
def initialized(web):
    """The exit, started by `plait exit init`; `url` has an invitation. Its file, and how to run `plait exit` with it."""
    config = web.pair.directory / "etc" / "plait.toml"
    process, logs = None, set(pathlib.Path("/run/plait").glob("exit.*.log"))

    def run(command, *options):
        return web.server.run(PLAIT, "exit", command, *options, "--config", config, text=True)

    try:
        done = run("init", "--name", "10.77.1.2", "--listen", "8443")
        assert done.returncode == 0, done.stderr
        process = int(re.search(r"the exit runs, process (\d+)", done.stderr)[1])
        web.url = done.stdout.strip()
        yield config, run
    finally:
        if process:
            os.kill(process, signal.SIGTERM)
            wait_for("end of the exit", lambda: not pathlib.Path(f"/proc/{process}").exists())
        for log in set(pathlib.Path("/run/plait").glob("exit.*.log")) - logs:
            log.unlink()


def test_init_starts_an_exit_and_its_url_admits_a_client(web, text, initialized):
    config, run = initialized
    key = web.server.tool(PLAIT, "identity").strip().removeprefix("plait-key:")
    plain, invitation = web.url.rsplit(".", 1)
    assert plain == f"plait://10.77.1.2:8443#{key}" and len(invitation) == 43
    before = config.read_text()
    again = run("init", "--name", "10.77.1.2")
    assert again.returncode == 0 and again.stdout.startswith(f"{plain}."), again.stderr
    assert again.stdout.strip() != web.url and config.read_text() == before

    client = web.pair.directory / "client.toml"
    client.write_text(f'exit = "{plain}"\n[paths]\neth = "trusted"\n')
    fetch = ("curl", "-sS", "-m", "20", f"http://{FAR}/text.txt")
    refused = web.pair.run(*fetch, options=("--config", client), text=True)
    assert refused.returncode != 0 and "does not accept this end's key" in refused.stderr, refused.stderr
    for _ in range(2):
        joined = web.client.run(PLAIT, "exit", "join", web.url, text=True)
        assert joined.stdout == f"{plain}\n", joined.stderr
    done = web.pair.run(*fetch, options=("--config", client))
    assert done.stdout == text.read_bytes(), done.stderr.decode()

    listed = {each["key"]: each for each in json.loads(run("clients", "--json").stdout)["clients"]}
    own = web.client_key
    assert listed.pop(own)["invitation"].startswith("plait-key:")
    assert [each["invitation"] for each in listed.values()] == [None], "that of the second init"
    assert run("remove", own).returncode == 0 and run("remove", own).returncode == 1
    rejoined = web.client.run(PLAIT, "exit", "join", web.url, text=True)
    assert rejoined.returncode == 1 and "does not accept this end's key" in rejoined.stderr, rejoined.stderr
    refused = web.pair.run(*fetch, options=("--config", client), text=True)
    assert refused.returncode != 0 and "does not accept this end's key" in refused.stderr, refused.stderr


def test_an_invitation_is_good_for_one_client_and_nothing_else(web, initialized):
    _, run = initialized
    plain, invitation = web.url.rsplit(".", 1)
    identity = web.pair.directory / "invitation.key"
    identity.touch(mode=0o600)
    identity.write_text(f"plait-private-key:{invitation}\n")
    options = ("--trusted", "eth", "--identity", identity, "--exit", plain)
    done = web.pair.run(sys.executable, "-c", CONNECT, FAR, "80", options=options, text=True)
    assert done.stdout == f"{errno.EHOSTUNREACH}\n" and "not permitted" in done.stderr, done.stderr
    assert web.client.run(PLAIT, "exit", "join", web.url).returncode == 0
    other = ("env", f"STATE_DIRECTORY={web.pair.directory / 'other'}", PLAIT, "exit", "join")
    done = web.client.run(*other, web.url, text=True)
    assert done.returncode == 1 and "used by another client" in done.stderr, done.stderr
    done = web.client.run(*other, run("invite", "--name", "10.77.1.2").stdout.strip(), text=True)
    assert done.stdout == f"{plain}\n", done.stderr


def test_an_url_in_a_file_may_have_the_invitation(web, text, initialized):
    """Which is not shown."""
    _, invitation = web.url.rsplit(".", 1)
    client = web.pair.directory / "client.toml"
    client.write_text(f'exit = "{web.url}"\n[paths]\neth = "trusted"\n')
    fetch = ("-vv", "run", "--config", client, "--", "curl", "-sS", "-m", "20", f"http://{FAR}/text.txt")
    refused = web.client.run(PLAIT, *fetch)
    assert refused.returncode != 0
    joined = web.client.run(PLAIT, "exit", "join", web.url)
    done = web.client.run(PLAIT, *fetch)
    assert done.stdout == text.read_bytes(), done.stderr.decode()
    stored = (web.server.state / "exit_clients").read_bytes()
    for shown in (refused.stderr, joined.stdout, joined.stderr, done.stderr, stored):
        assert shown and invitation.encode() not in shown


def test_exit_for_everybody_has_no_invitation(web):
    config = web.pair.directory / "plait.toml"
    config.write_text('[exit]\nlisten = "[::]:8443"\nclients = "any"\n')
    done = web.server.run(
        PLAIT, "exit", "init", "--no-start", "--name", "10.77.1.2", "--config", config, text=True
    )
    key = web.server.tool(PLAIT, "identity").strip().removeprefix("plait-key:")
    assert done.stdout == f"plait://10.77.1.2:8443#{key}\n", done.stderr
    assert not web.server.listens(8443)
