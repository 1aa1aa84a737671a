"""Why connections are not carried, or end: an exact sentence at both ends, once, with what to do about it."""

import re
import socket
import subprocess

import pytest
from hosts import PLAIT, wait_for
from package import PYTHON
from streams import NAMED, assert_echo, connect_by_socks, echo_server, random_file

SEALED = ("--mode", "sealed")
# Said where nothing authenticates the reason.
CLAIMED = "nothing authenticates this: somebody on the path"
ENDED = "its gateway ended the connection: "
SERVICE = "the service behind it cannot be reached: start it, or correct `plait serve --to` there"


def warnings(log: str) -> list[str]:
    return [line for line in log.splitlines() if " WARN " in line]


def one_warning(log: str, *parts: str) -> str:
    """The only warning with the first of these parts, which has the others too."""
    found = [line for line in warnings(log) if parts[0] in line]
    assert len(found) == 1, f"expected {parts[0]!r} once:\n{log}"
    assert all(part in found[0] for part in parts), found[0]
    return found[0]


# Modes that differ

POLICIES = [("off", False)] + [
    (mode, required) for mode in ("xor64", "stream", "sealed") for required in (False, True)
]
UNPROTECTED = "the peer does not speak plait, or its mode is off"
REFUSED_PLAIN = (
    "protection is required, but the peer did not negotiate: run plait there, in another mode than off"
)
RESET = "reset an unprotected connection before it sent anything: its service may be down, or if plait runs there, it may require a mode"


def differs(peer: str, own: str) -> str:
    return f"the peer's mode is '{peer}' and that of this gateway '{own}': use the same --mode on both ends"


def sentences_of_client(client: tuple[str, bool], server: tuple[str, bool]) -> list[str]:
    (mode, required), (of_server, server_requires) = client, server
    if mode == of_server:
        return []
    if mode == "off":
        return [RESET] if server_requires else []
    if of_server == "off":
        return [REFUSED_PLAIN] if required else [f"PLAIN: {UNPROTECTED}"]
    if server_requires:
        return [f"the peer requires protection, but {differs(of_server, mode)}"]
    return [f"{'protection is required, but' if required else 'PLAIN:'} {differs(of_server, mode)}"]


def sentences_of_server(client: tuple[str, bool], server: tuple[str, bool]) -> list[str]:
    (of_client, client_requires), (mode, required) = client, server
    if mode == of_client:
        return []
    if mode == "off":
        return [RESET] if client_requires else []
    if of_client == "off":
        return [REFUSED_PLAIN] if required else [f"PLAIN: {UNPROTECTED}"]
    if required:
        return [f"protection is required, but {differs(of_client, mode)}"]
    if client_requires:
        return [f"{ENDED}it requires another mode: use the same --mode on both ends"]
    return [f"PLAIN: {differs(of_client, mode)}"]


def options(policy: tuple[str, bool]) -> tuple[str, ...]:
    mode, required = policy
    return ("--mode", mode, *(("--require",) if required else ()))


def name(policy: tuple[str, bool]) -> str:
    return f"{policy[0]}{'-required' if policy[1] else ''}"


@pytest.mark.parametrize("server", POLICIES, ids=name)
def test_different_modes_are_told_at_both_ends(pair, documents, server):
    """With every mode of the client, preferred and required."""
    document = random_file(documents, 1000)
    requirement = () if server[1] or server[0] == "off" else ("--require=false",)
    pair.serve(*options(server), *requirement, to=pair.nginx(documents))
    for number, client in enumerate(POLICIES):
        # A gateway tells a state once for each peer.
        own = f"10.77.1.{100 + number}"
        pair.client.ip(f"addr add {own}/24 dev eth")
        pair.client.ip(f"route replace 10.77.1.0/24 dev eth src {own}")
        before = len(pair.logged("serve"))
        url = f"http://{pair.ETH}:8443/{document.name}"
        done = pair.run("curl", "-sS", "--fail", url, options=(*options(client), "--trusted", "eth"))
        log, case = done.stderr.decode(), f"{name(client)} to {name(server)}"
        carried = client[0] == server[0] or not (client[1] or server[1])
        assert (done.stdout == document.read_bytes()) == carried == (done.returncode == 0), f"{case}: {log}"
        for sentence in sentences_of_client(client, server):
            one_warning(log, sentence)
        told = sentences_of_server(client, server)

        def is_told(before=before, told=told) -> bool:
            return all(sentence in pair.logged("serve")[before:] for sentence in told)

        wait_for(f"reasons of {case}", is_told)
        for sentence in told:
            one_warning(pair.logged("serve")[before:], sentence)
        if client[0] == server[0]:
            for each in (log, pair.logged("serve")[before:]):
                assert not re.search("PLAIN|refused|its gateway ended|reset an unprotected", each), (
                    f"{case}: {each}"
                )


# A service that is down


@pytest.mark.parametrize("mode", ["off", "xor64", "stream", "sealed"])
def test_client_is_told_that_the_service_is_down(pair, mode):
    pair.serve("--mode", mode, to="127.0.0.1:9")
    required = () if mode == "off" else ("--require",)
    for _ in range(2):
        done = pair.run(
            "curl", "-sS", f"http://{pair.ETH}:8443/", options=("--mode", mode, *required, "--trusted", "eth")
        )
        # curl is reset: before it has noticed that it is connected, before it can send, or later.
        assert done.returncode in (7, 52, 55, 56), done.stderr.decode()
        log = done.stderr.decode()
        if mode == "off":
            one_warning(log, f"{pair.ETH}:8443 {RESET}", "the mode of this gateway is 'off'")
        else:
            told = one_warning(log, f"{ENDED}{SERVICE}", f"{pair.ETH}:8443: ")
            assert (CLAIMED in told) == (mode != "sealed"), told
    assert pair.logged("serve").count("the service 127.0.0.1:9: Connection refused") == 2


def test_reset_has_the_reason_in_the_documented_option(pair):
    """As tshark reads it, in mode `xor64`."""
    pair.serve("--mode", "xor64", to="127.0.0.1:9")
    with pair.capture("eth") as eth:
        pair.run("curl", "-sS", f"http://{pair.ETH}:8443/", options=("--mode", "xor64", "--trusted", "eth"))
    # A segment that crosses the reset finds no socket: the kernel answers it by a reset without ACK flag and options.
    resets = eth.fields(
        "tcp.options", where="tcp.flags.reset == 1 and tcp.flags.ack == 1 and tcp.srcport == 8443"
    )
    assert resets and all("fe08504c41490101" in options.replace(":", "") for [options] in resets), resets
    others = eth.fields("tcp.options", where="tcp.flags.reset == 0 and tcp.flags.syn == 0")
    assert others and not any("fe08504c4149" in options.replace(":", "") for [options] in others)


# Handshakes of mode sealed that one end refuses


def identity(directory, host: str) -> tuple[str, str]:
    """A new key pair: its file and its public key."""
    file = directory / host / "identity.key"
    done = subprocess.run([PLAIT, "identity", "--file", file], capture_output=True, text=True, check=True)
    return str(file), done.stdout.strip()


def config(directory, name: str, text: str) -> tuple[str, str]:
    file = directory / name
    file.write_text(text)
    return "--config", str(file)


NOT_ACCEPTED = (
    "it does not accept this end's key, or got none: add what `plait identity` prints here to `clients` of [identity] or "
    "to [peers] there; for an exit, `plait exit join URL` with what `plait exit invite` prints there"
)


@pytest.mark.parametrize("has_key", [False, True], ids=["anonymous", "with another key"])
def test_client_that_is_not_allowed_is_told(two_ways, tmp_path, has_key):
    echo_server(two_ways.server)
    file, key = identity(tmp_path, "server")
    own, _ = identity(tmp_path, "client")
    _, allowed = identity(tmp_path, "allowed")
    clients = config(tmp_path, "serve.toml", f'[identity]\nfile = "{file}"\nclients = ["{allowed}"]\n')
    two_ways.serve(*SEALED, *clients, to="127.0.0.1:9000")
    pins = config(tmp_path, "pins.toml", f'[peers]\n"{two_ways.ETH}:8443" = "{key}"\n')
    known = (*pins, "--identity", own) if has_key else ()
    ask = ("socat", "-t", "5", "-", f"TCP:{two_ways.ETH}:8443")
    done = two_ways.run(*ask, options=(*SEALED, "--trusted", "eth", *known), input=b"x")
    assert done.stdout == b""
    told = one_warning(done.stderr.decode(), NOT_ACCEPTED)
    # With a key of its own it has completed the handshake, and the reason is in a record.
    assert (CLAIMED in told) != has_key, told
    reason = (
        "expected a client whose key is in `clients` of [identity], got"
        if has_key
        else "only known clients may connect"
    )
    wait_for("reason", lambda: reason in two_ways.logged("serve"))
    one_warning(two_ways.logged("serve"), reason)


def test_server_whose_key_is_not_accepted_is_told(two_ways, tmp_path):
    echo_server(two_ways.server)
    file, _ = identity(tmp_path, "server")
    _, other = identity(tmp_path, "other")
    two_ways.serve(*SEALED, "--identity", file, to="127.0.0.1:9000")
    pins = config(tmp_path, "pins.toml", f'[peers]\n"{two_ways.ETH}:8443" = "{other}"\n')
    done = two_ways.run(
        "curl", "-sS", f"http://{two_ways.ETH}:8443/", options=(*SEALED, "--trusted", "eth", *pins)
    )
    assert done.returncode != 0
    one_warning(done.stderr.decode(), "failed authentication: expected the pinned")
    wait_for("reason", lambda: NOT_ACCEPTED in two_ways.logged("serve"))
    one_warning(two_ways.logged("serve"), NOT_ACCEPTED, CLAIMED)


CASES = {
    "too few paths for the server": (
        ("--require=paths:2",), (), "expected at least 2 paths", "it requires more paths than took part",
    ),
    "another service": (
        ("--service", "443"), (), "the initiator asks for another service, on port 8443", "it does not serve the port or name that was asked for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_client_is_told_why_its_handshake_is_refused(pair, case):
    of_server, of_client, reason, told = CASES[case]
    echo_server(pair.server)
    pair.serve(*SEALED, *of_server, to="127.0.0.1:9000")
    done = pair.run(
        "curl", "-sS", f"http://{pair.ETH}:8443/", options=(*SEALED, "--trusted", "eth", *of_client)
    )
    assert done.returncode != 0
    one_warning(done.stderr.decode(), f"refused: its gateway ended the connection: {told}", CLAIMED)
    wait_for("reason", lambda: reason in pair.logged("serve"))
    one_warning(pair.logged("serve"), reason)


def test_server_is_told_why_a_client_refuses(pair):
    """Without a route by wlan, one path is left."""
    echo_server(pair.server)
    pair.serve(*SEALED, to="127.0.0.1:9000")
    required = ("--require=paths:2", *NAMED)
    done = pair.run("curl", "-sS", f"http://{pair.ETH}:8443/", options=(*SEALED, *required))
    assert done.returncode != 0
    one_warning(done.stderr.decode(), "expected at least 2 paths")
    wait_for("reason", lambda: "it requires more paths than took part" in pair.logged("serve"))
    one_warning(pair.logged("serve"), "it requires more paths than took part", CLAIMED)


# Connections that end later


@pytest.mark.parametrize("mode", ["xor64", "sealed"])
def test_client_is_told_of_a_limit_of_the_server(pair, mode):
    echo_server(pair.server)
    pair.serve("--mode", mode, "--max-connections-per-peer", "1", to="127.0.0.1:9000")
    pair.proxy("--mode", mode, "--require", "--trusted", "eth")
    with connect_by_socks(pair) as first:
        assert_echo(first)
        with pytest.raises((AssertionError, ConnectionResetError)):
            # In mode `xor64` the proxy has nothing to wait for before it grants the request.
            assert_echo(connect_by_socks(pair))
        wait_for("reason", lambda: "raise --max-connections-per-peer" in pair.logged("proxy"))
        one_warning(pair.logged("proxy"), "it has too many connections or half-open handshakes", CLAIMED)
        one_warning(pair.logged("serve"), "refused: ", "--max-connections-per-peer")


@pytest.mark.parametrize("mode", ["xor64", "stream", "sealed"])
@pytest.mark.parametrize("stopped", ["serve", "proxy"])
def test_end_is_told_that_the_other_is_being_stopped(two_ways, mode, stopped):
    echo_server(two_ways.server)
    gateways = {
        "serve": two_ways.serve("--mode", mode, "--drain", "0", to="127.0.0.1:9000"),
        "proxy": two_ways.proxy("--mode", mode, "--require", "--trusted", "eth", "--drain", "0"),
    }
    other = {"serve": "proxy", "proxy": "serve"}[stopped]
    with connect_by_socks(two_ways) as client:
        assert_echo(client)
        gateways[stopped].terminate()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        wait_for("reason", lambda: "it is being stopped" in two_ways.logged(other))
        one_warning(two_ways.logged(other), f"{ENDED}it is being stopped", CLAIMED)


@pytest.mark.parametrize("mode", ["xor64", "stream", "sealed"])
def test_client_is_told_of_stripped_options(pair, mode):
    """Those with which it confirms the server's choice."""
    echo_server(pair.server)
    pair.serve("--mode", mode, to="127.0.0.1:9000")
    pair.proxy("--mode", mode, "--require", "--trusted", "eth")
    with pair.client.packet_rules(output="tcp flags & syn == 0 reset tcp option 254"):
        with pytest.raises((AssertionError, ConnectionResetError)):
            assert_echo(connect_by_socks(pair))
    told = "TCP options did not reach it: a middlebox between the ends strips them"
    wait_for("reason", lambda: told in pair.logged("proxy"))
    one_warning(pair.logged("proxy"), told, CLAIMED)
    one_warning(pair.logged("serve"), "the mode was chosen but not confirmed")


def test_application_that_resets_is_no_fault(pair):
    """Nothing is logged at either end."""
    echo_server(pair.server)
    pair.serve("--mode", "stream", to="127.0.0.1:9000")
    pair.proxy("--mode", "stream", "--require", "--trusted", "eth")
    client = connect_by_socks(pair)
    assert_echo(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    client.close()
    wait_for("its end", lambda: not any(gateway["connections"] for gateway in pair.status()))
    for command in ("proxy", "serve"):
        assert not warnings(pair.logged(command)), pair.logged(command)


# Missing privileges, and mistakes at the start

NOT_ROOT = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
LACKS_ALL = "this process lacks CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run plait as root, as by sudo"
COMMANDS = {
    "run": ("run", "--trusted", "eth", "--", "true"),
    "proxy": ("proxy", "--trusted", "eth"),
    "serve": ("serve", "--listen", "[::]:8443", "--to", "127.0.0.1:9"),
}


def with_option(command: str, *added: str) -> tuple[str, ...]:
    first, *rest = COMMANDS[command]
    return first, *added, *rest


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "unprivileged", [NOT_ROOT, ("setpriv", "--bounding-set", "-all")], ids=["user", "root"]
)
def test_missing_privileges_are_told_at_once(pair, tmp_path, command, unprivileged):
    """Missing capabilities are named; where they are required, it is an error."""
    done = pair.client.run(*unprivileged, PLAIT, *with_option(command, "--require"), text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: this host cannot protect with mode 'sealed': {LACKS_ALL}\n"


def test_single_missing_capability_is_named(pair):
    lacks = ("setpriv", "--bounding-set", "-net_admin,-sys_admin", "--inh-caps", "-net_admin,-sys_admin")
    done = pair.client.run(*lacks, PLAIT, *with_option("run", "--require"), text=True)
    assert done.returncode == 1 and "this process lacks CAP_NET_ADMIN: run plait as root" in done.stderr


def test_preferred_mode_without_privileges_is_told_before_the_program_runs(pair):
    program = ("sh", "-c", "echo the program >&2")
    command = ("run", "--trusted", "eth", "--", *program)
    done = pair.client.run(*NOT_ROOT, PLAIT, *command, text=True)
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("the program\n")
    assert after == ""
    one_warning(before, "connections will be unprotected", LACKS_ALL)
    one_warning(before, "only those of programs that honour ALL_PROXY", LACKS_ALL)


def test_program_of_another_user_takes_privileges(pair):
    lacks = ("setpriv", "--bounding-set", "-setuid,-setgid", "--inh-caps", "-setuid,-setgid")
    done = pair.client.run(*lacks, PLAIT, *with_option("run", "--user", "nobody"), text=True)
    assert done.returncode == 1
    assert "cannot run the program as nobody: this process lacks CAP_SETGID and CAP_SETUID" in done.stderr


@pytest.mark.parametrize("mode", ["off", "xor64", "sealed"])
def test_interface_that_does_not_exist_is_told_at_the_start(pair, mode):
    done = pair.run("true", options=("--mode", mode, "--trusted", "eth9", "--untrusted", "wlan"), text=True)
    assert done.returncode == 0
    one_warning(done.stderr, "there is no interface eth9: until there is, no connection leaves through it")
    assert "(interfaces: eth, wlan)" in done.stderr and "interface wlan" not in done.stderr


def test_service_that_cannot_be_found_is_told_at_the_start_and_to_clients(pair):
    pair.serve("--mode", "stream", to="nosuch.invalid:80")
    told = "cannot find the service nosuch.invalid:80"
    wait_for("warning", lambda: told in pair.logged("serve"))
    one_warning(pair.logged("serve"), told)
    done = pair.run(
        "curl", "-sS", f"http://{pair.ETH}:8443/", options=("--mode", "stream", "--trusted", "eth")
    )
    assert done.returncode != 0
    one_warning(done.stderr.decode(), f"{ENDED}{SERVICE}", CLAIMED)
