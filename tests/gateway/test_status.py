"""What people read of running gateways: `plait status`, the log with `-v`, and `plait paths`."""

import json
import re
import subprocess

import pytest
from hosts import PLAIT, wait_for
from streams import assert_echo, connect_by_socks, echo_server, plain_server, reset, start_gateways

SEALED = ("--mode", "sealed")
SENDER = """
import socket, sys
client = socket.create_connection((sys.argv[1], 8443))
client.sendall(b"x" * 1_500_000)
while client.recv(65536):
    pass
"""


def shown(pair) -> str:
    """The lines of this pair's gateways."""
    blocks = re.split(r"^(?=plait )", pair.client.tool(PLAIT, "status"), flags=re.MULTILINE)
    ours = {gateway["pid"] for gateway in pair.status()}
    return "".join(block for block in blocks if any(f"(process {pid})" in block for pid in ours))


def block(pair, command: str) -> str:
    blocks = re.split(r"^(?=plait )", shown(pair), flags=re.MULTILINE)
    return next((block for block in blocks if block.startswith(f"plait {command} ")), "")


def test_status_names_programs_paths_and_units_in_columns(two_ways):
    echo_server(two_ways.server)
    two_ways.serve(*SEALED, to="127.0.0.1:9000")
    program = two_ways.client.start(
        PLAIT, "run", *SEALED, "--trusted", "eth", "--", "python3", "-c", SENDER, two_ways.ETH, log="run.log"
    )
    wait_for("the transfer", lambda: block(two_ways, "run").count("1.50 MB") >= 2)
    wait_for("both paths", lambda: "sealed 2/2 via eth, wlan\n" in block(two_ways, "run"))
    lines = block(two_ways, "run").splitlines()
    heading = next(line for line in lines if "AGE/RTT" in line)
    connection = next(line for line in lines if "#1" in line)
    assert re.fullmatch(r"  #1 python3? +10\.77\.1\.2:8443 +[\d.]+ s +1\.50 MB +1\.50 MB", connection), (
        connection
    )
    eth, wlan = (next(line for line in lines if line.startswith(f"     {name}")) for name in ("eth", "wlan"))
    assert re.fullmatch(r"     eth +[\d.]+ ms +[\d.]+ k?M?B +[\d.]+ k?M?B", eth), eth
    assert "10.77.2.2:8443" in wlan
    assert {len(line) for line in (heading, connection, eth, wlan)} == {len(heading)}
    assert all(len(line) <= 100 for line in lines)
    assert ", to 127.0.0.1:9000\n" in block(two_ways, "serve")
    program.terminate()
    program.wait(60)


def test_json_has_bytes_and_the_service(pair):
    echo_server(pair.server)
    pair.serve(*SEALED, to="127.0.0.1:9000")
    pair.proxy(*SEALED, "--trusted", "eth")
    with connect_by_socks(pair) as client:
        assert_echo(client)
        found = {gateway["command"]: gateway["connections"][0] for gateway in pair.status()}
    assert (found["serve"]["service"], found["proxy"]["service"]) == ("127.0.0.1:9000", None)
    assert (found["serve"]["sent"], found["proxy"]["received"]) == (5, 5)


def ended(pair, command: str) -> list[str]:
    """What the log of a gateway says of connections that have ended."""
    return [line for line in pair.logged(command).splitlines() if " sent, " in line]


def test_verbose_gateways_log_each_connection_with_the_reason_of_its_end(two_ways):
    start_gateways(two_ways, *SEALED)
    with connect_by_socks(two_ways) as client:
        assert_echo(client)
        wait_for("both paths", lambda: "2/2 via eth, wlan\n" in block(two_ways, "proxy"))
        assert_echo(client, b"x" * 2000)
    [line] = wait_for("the line", lambda: ended(two_ways, "proxy"))
    fields = r"10\.77\.1\.2:8443: sealed 2/2 via eth, wlan, [\d.]+ s, 2\.00 kB sent, 2\.00 kB received; "
    assert re.search("INFO " + fields + "closed by both ends$", line.strip()), line
    [line] = wait_for("the line", lambda: ended(two_ways, "serve"))
    assert re.search(r"10\.77\.1\.1:\d+ to 127\.0\.0\.1:9000: sealed 2/2 via eth, wlan, ", line), line
    client = connect_by_socks(two_ways)
    assert_echo(client)
    reset(client)
    [_, line] = wait_for("another line", lambda: len(found := ended(two_ways, "proxy")) == 2 and found)
    assert "; application side: Connection reset by peer" in line


def test_messages_of_libbpf_take_three_v(pair):
    for option, expected in (("-vv", False), ("-vvv", True)):
        done = pair.client.run(PLAIT, option, "run", *SEALED, "--trusted", "eth", "--", "true", text=True)
        assert done.returncode == 0
        assert ("libbpf: " in done.stderr) == expected, done.stderr


@pytest.mark.parametrize("wrong", ["--trustet", "--untrustet", "--requires", "--hybridd"])
def test_mistyped_options_of_run_are_recognised(wrong):
    right = {
        "--trustet": "--trusted",
        "--untrustet": "--untrusted",
        "--requires": "--require",
        "--hybridd": "--hybrid",
    }
    for before in ((), ("--mode", "off")):
        done = subprocess.run([PLAIT, "run", *before, wrong, "x", "true"], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"unexpected argument '{wrong}' found" in done.stderr
        assert f"a similar argument exists: '{right[wrong]}'" in done.stderr


@pytest.mark.parametrize(
    ("command", "how"),
    # `plait serve` has no option for roles.
    [(command, how) for command in ("run", "proxy", "paths") for how in ("option", "file")]
    + [("serve", "file")],
)
def test_missing_interface_is_announced_by_every_command(pair, command, how):
    file = pair.directory / "plait.toml"
    file.write_text('[paths]\neth9 = "trusted"\n' if how == "file" else "")
    options = ("--trusted", "eth9") if how == "option" else ("--config", file)
    warning = (
        "there is no interface eth9: until there is, no connection leaves through it (interfaces: eth, wlan)"
    )
    if command == "run":
        log = pair.run("true", options=options, text=True).stderr
    elif command == "paths":
        done = pair.client.run(PLAIT, "paths", *options, text=True)
        assert done.returncode == 0 and "eth  " in done.stdout
        log = done.stderr
    else:
        gateway = pair.proxy(*options) if command == "proxy" else pair.serve(*options, to="127.0.0.1:9000")
        wait_for("the warning", lambda: warning in pair.logged(command))
        log = pair.logged(command)
        assert gateway.poll() is None
    assert log.count(warning) == 1, log


def test_interface_that_appears_later_is_used(pair):
    plain_server(pair, 9000, b"hello")
    pair.client.ip("link set eth name later")
    pair.client.ip("link set later up")
    pair.serve(*SEALED, to=f"{pair.ETH}:9000")
    pair.proxy(*SEALED, "--trusted", "eth")
    wait_for("the warning", lambda: "there is no interface eth:" in pair.logged("proxy"))
    with pytest.raises(AssertionError, match="SOCKS reply"):
        connect_by_socks(pair)
    pair.client.ip("link set later down")
    pair.client.ip("link set later name eth")
    pair.client.ip("link set eth up")
    with connect_by_socks(pair):
        pass


def test_paths_explains_a_missing_route_and_how_to_add_it(pair):
    def paths(*peer):
        return pair.client.tool(PLAIT, "paths", *peer)

    def commands():
        return re.findall(r"^ +(ip .*)$", paths("--to", "198.51.100.7"), flags=re.MULTILINE)

    index = {link["ifname"]: link["ifindex"] for link in json.loads(pair.client.ip("-j link"))}
    assert paths().count("not used: no default route by") == 2
    assert commands() == [
        f"ip route add default via ROUTER dev {name} metric {1000 + index[name]}" for name in ("eth", "wlan")
    ]
    pair.client.ip("route add default via 10.77.1.2 dev eth")
    pair.client.ip("route add 203.0.113.0/24 via 10.77.2.2 dev wlan")
    text = paths("--to", "198.51.100.7")
    assert text.count("no route to 198.51.100.7 by ") == text.count("no route to 198.51.100.7 by wlan") == 1
    [command] = commands()
    assert command == f"ip route add default via 10.77.2.2 dev wlan metric {1000 + index['wlan']}"
    pair.client.tool(*command.split())
    assert "not used" not in paths("--to", "198.51.100.7")
    # The existing route stays preferred.
    assert "dev eth " in pair.client.ip("route get 198.51.100.7")
    pair.client.ip("addr del 10.77.2.1/24 dev wlan")
    assert "not used: wlan has no IPv4 address" in paths("--to", "198.51.100.7")
    pair.client.ip("link set wlan down")
    assert commands() == ["ip link set wlan up"]
    listed = json.loads(paths("--to", "198.51.100.7", "--json"))["paths"]
    assert [path["sources"] for path in listed] == [["10.77.1.1"], []]
