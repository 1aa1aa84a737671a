"""The congestion control of gateways' connections."""

import json

import pytest
from gateways import report_of
from hosts import PLAIT, skip_without_feature, wait_for
from kernel_algorithms import AVAILABLE, SCHEDULER_FEATURE, congestion_controls
from streams import assert_echo, connect_by_socks, echo_server, start_gateways


def set_default(pair, name: str):
    if name not in AVAILABLE.read_text().split():
        pytest.skip(f"this kernel has no congestion control {name}")
    for host in (pair.client, pair.server):
        host.tool("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}")


def algorithms(host) -> list[str]:
    """The congestion control of every established connection between the gateways, by the kernel's list."""
    ports = "( sport = :8443 or dport = :8443 )"
    return congestion_controls(host.tool("ss", "-HtinO", "state", "established", ports))


@pytest.mark.parametrize(
    ("default", "options", "expected"),
    [
        ("bbr", ("--congestion-control", "bbr"), "bbr"),
        ("bbr", ("--congestion-control", "reno"), "reno"),
        ("reno", (), "reno"),
    ],
)
def test_bbr_is_used_only_if_it_is_chosen(pair, default, options, expected):
    set_default(pair, default)
    start_gateways(pair, *options)
    client = connect_by_socks(pair)
    assert_echo(client)
    wait_for("second subflow", lambda: len(report_of(pair, "proxy")["connections"][0]["subflows"]) == 2)
    assert_echo(client)
    for host in (pair.client, pair.server):
        assert set(algorithms(host)) == {expected}
    assert "can deliver wrong bytes" not in pair.logged("serve")


def test_bbr_is_replaced_by_cubic_alone_with_few_descriptors(pair):
    """Too few for a scheduler."""
    set_default(pair, "bbr")
    echo_server(pair.server)
    serve = (
        "prlimit",
        "--nofile=64:64",
        PLAIT,
        "-v",
        "serve",
        "--to",
        "127.0.0.1:9000",
        "--listen",
        "[::]:8443",
    )
    pair.server.start(*serve, log="serve.log")
    wait_for("listening", lambda: pair.server.listens(8443))
    pair.proxy("--trusted", "eth")
    client = connect_by_socks(pair)
    assert_echo(client)
    assert set(algorithms(pair.server)) == {"cubic"}
    assert "can deliver wrong bytes" in pair.logged("serve")


@pytest.mark.parametrize(
    ("options", "initial"), [((), "e"), (("--mode", "stream"), "a"), (("--mode", "xor64"), "a")]
)
def test_ecf_is_the_default_and_all_where_bytes_are_scrambled(pair, options, initial):
    """With cubic, of which users of bbr are told."""
    skip_without_feature(SCHEDULER_FEATURE)
    set_default(pair, "bbr")
    serve, proxy = start_gateways(pair, *options)
    client = connect_by_socks(pair)
    assert_echo(client)
    wait_for("second subflow", lambda: len(report_of(pair, "proxy")["connections"][0]["subflows"]) == 2)
    for host, program in ((pair.server, serve), (pair.client, proxy)):
        assert algorithms(host) == 2 * [f"plait_{initial}{program.pid}"]
    assert "can deliver wrong bytes" in pair.logged("serve")


def test_unknown_algorithm_is_an_error(pair):
    done = pair.client.run(PLAIT, "proxy", "--congestion-control", "nosuch")
    assert done.returncode == 1
    assert b"cannot use congestion control 'nosuch'" in done.stderr
    assert b"tcp_available_congestion_control" in done.stderr


def test_scheduler_lasts_as_long_as_its_gateway(pair):
    """Also one that is killed; connections of another gateway keep theirs."""
    skip_without_feature(SCHEDULER_FEATURE)
    serve, proxy = start_gateways(pair, "--scheduler", "ecf")
    of_server, of_client = f"plait_e{serve.pid}", f"plait_e{proxy.pid}"
    client = connect_by_socks(pair)
    assert_echo(client)
    wait_for("second subflow", lambda: len(report_of(pair, "proxy")["connections"][0]["subflows"]) == 2)
    assert_echo(client, bytes(200_000))
    assert set(algorithms(pair.server)) == {of_server} and set(algorithms(pair.client)) == {of_client}
    proxy.kill()
    proxy.wait()
    wait_for("removal", lambda: of_client not in AVAILABLE.read_text().split())
    assert of_server in AVAILABLE.read_text().split()
    serve.terminate()
    serve.wait()
    wait_for("removal", lambda: of_server not in AVAILABLE.read_text().split())


@pytest.mark.parametrize(
    ("options", "file", "status", "message"),
    [
        (("--scheduler", "blest"), "", 2, b"expected ecf, lowest-rtt"),
        (("--scheduler", "ecf", "--congestion-control", "reno"), "", 2, b"cannot be used with"),
        (
            (),
            'scheduler = "ecf"\ncongestion_control = "reno"\n',
            1,
            b"expected a scheduler or a congestion control",
        ),
    ],
)
def test_scheduler_excludes_other_congestion_control(pair, tmp_path, options, file, status, message):
    config = tmp_path / "plait.toml"
    config.write_text(file)
    done = pair.client.run(PLAIT, "proxy", "--config", config, *options)
    assert done.returncode == status and message in done.stderr


def test_doctor_warns_of_bbr(pair):
    for default, present in (("bbr", False), ("reno", True)):
        set_default(pair, default)
        features = json.loads(pair.client.run(PLAIT, "doctor", "--json").stdout)["features"]
        [found] = [feature for feature in features if feature["name"] == "default congestion control"]
        assert found["present"] == present and default in found["detail"]
