"""plait.toml, and options of the command line that take precedence."""

import pytest
from hellos import arriving_packets, is_hybrid, next_hello
from hosts import PLAIT, tool, wait_for
from streams import assert_echo, connect_by_socks, echo_server

FILE = """
mode = "stream"
require = true

[paths]
eth = "trusted"
wlan = "untrusted"
"""


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "plait.toml"
    file.write_text(FILE)
    return file


def test_file_sets_mode_requirement_and_roles(pair, config):
    echo_server(pair.server)
    pair.serve("--config", config, to="127.0.0.1:9000")
    pair.proxy("--config", config)
    client = connect_by_socks(pair)
    assert_echo(client)
    for gateway in pair.status():
        assert (gateway["mode"], gateway["require"]) == ("stream", True)
        assert [connection["mode"] for connection in gateway["connections"]] == ["stream"]
    assert "no trusted path is configured" not in pair.logged("proxy")
    client.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("stream", True)),
        (("--mode", "sealed"), ("sealed", True)),
        (("--require=false",), ("stream", False)),
        (("--mode", "xor64", "--require=false"), ("xor64", False)),
    ],
    ids=lambda options: " ".join(map(str, options)) or "file",
)
def test_command_line_takes_precedence(pair, config, options, expected):
    pair.serve("--config", config, *options, to="127.0.0.1:9000")
    [gateway] = pair.status()
    assert (gateway["mode"], gateway["require"]) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), ("sealed", True)), (("--mode", "xor64"), ("xor64", True)), (("--mode", "off"), ("off", False))],
    ids=["default", "another mode", "off"],
)
def test_serve_requires_its_mode_by_default_and_proxy_does_not(pair, options, expected):
    pair.serve(*options, to="127.0.0.1:9000")
    pair.proxy(*options, "--trusted", "eth")
    # They listen before they answer.
    gateways = wait_for("status", lambda: len(found := pair.status()) == 2 and found)
    required = {gateway["command"]: (gateway["mode"], gateway["require"]) for gateway in gateways}
    assert required == {"serve": expected, "proxy": (expected[0], False)}


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        ("", (), True),
        ("", ("--hybrid", "false"), False),
        ("hybrid = false", (), False),
        ("hybrid = false", ("--hybrid", "true"), True),
    ],
    ids=["default", "option", "file", "option over file"],
)
def test_hybrid_key_exchange_is_chosen_by_option_and_file(pair, tmp_path, line, options, expected):
    file = tmp_path / "plait.toml"
    file.write_text(f'mode = "sealed"\n{line}\n')
    echo_server(pair.server)
    pair.serve(to="127.0.0.1:9000")
    pair.proxy("--config", file, *options, "--trusted", "eth")
    with arriving_packets(pair.server, "eth") as packets, connect_by_socks(pair) as client:
        assert_echo(client)
        assert is_hybrid(next_hello(packets)) == expected


@pytest.mark.parametrize(
    ("require", "paths", "shown"),
    [
        ("--require", None, "sealed required, "),
        ("--require=paths:2", "paths:2", "sealed required (paths:2), "),
        ("--require=all-paths", "all-paths", "sealed required (all-paths), "),
        ("--require=false", None, "sealed preferred, "),
    ],
)
def test_status_shows_the_required_paths(pair, require, paths, shown):
    gateway = pair.proxy(require, "--trusted", "eth", "--untrusted", "wlan")
    [report] = wait_for("status", pair.status)
    assert report["required_paths"] == paths
    assert f"plait proxy (process {gateway.pid}): {shown}listening on" in tool(PLAIT, "status")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ('require = "always"', (), ('"always"', '"all-paths"')),
        ('require = "all-paths"', ("--mode", "stream"), ("got 'stream', which has no witnesses",)),
        ('require = "paths:2"', ("--mode", "xor64"), ("got 'xor64', which has no witnesses",)),
        ('require = "paths:1"', (), ('"paths:1"', '"paths:N" with N from 2 to 16')),
        ('require = "all-paths"', (), ("expected 2 to 16 interfaces with --require=all-paths", "got 0")),
        ('require = "all-paths"\n[paths]\neth = "trusted"', (), ("got 1", "--require=paths:2")),
        ('mode = "off"\nrequire = true', (), ("expected a mode that can be required",)),
        ("[path]", (), ("unknown field `path`",)),
    ],
)
def test_invalid_settings_are_reported_at_start(pair, tmp_path, text, options, words):
    file = tmp_path / "plait.toml"
    file.write_text(text)
    done = pair.client.run(PLAIT, "proxy", "--config", file, *options, text=True, timeout=20)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
