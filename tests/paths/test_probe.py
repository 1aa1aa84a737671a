"""`plait probe`: what it measures is what the links were made of."""

import json
import socket

import pytest
from hosts import PLAIT, reason_to_skip, tool, unique_id, wait_for
from routed import PORT, SERVER, Routed
from schema import mistakes


def listen(net):
    program = net.server.start(PLAIT, "probe", "--listen", f"[::]:{PORT}", log="probe.log")
    wait_for("plait probe --listen", lambda: program.poll() is not None or net.server.listens(PORT))
    assert program.poll() is None, (net.server.directory / "probe.log").read_text()


def probe(net, *options, status=0) -> dict[str, dict]:
    """The measured paths, by interface."""
    done = net.client.run(PLAIT, "probe", f"{SERVER}:{PORT}", "--json", *options, timeout=120)
    assert done.returncode == status, done.stderr.decode()
    document = json.loads(done.stdout)
    assert mistakes(document, "probe") == []
    return {path["interface"]: path for path in document["paths"]}


def test_any_service_shows_round_trips_loss_and_mtu(net):
    net.serve()
    net.third.ip("link set core mtu 1400")
    paths = probe(net)
    assert set(paths) == {"eth", "wlan"}
    for path in paths.values():
        assert path["answered"] == path["sent"] == 20 and path["mptcp"] and path["peer"] is None
        assert 0 < path["rtt_ms"]["min"] <= path["rtt_ms"]["median"] <= path["rtt_ms"]["max"] < 1000
    assert (paths["eth"]["mtu"], paths["wlan"]["mtu"]) == (1500, 1400)
    assert not paths["wlan"]["mtu_black_hole"], "the router reports the MTU"


def test_loss_is_counted(net):
    """The router drops every fourth SYN."""
    net.serve()
    net.first.add_packet_rules(forward="tcp flags & (syn|ack) == syn numgen inc mod 4 0 drop")
    path = probe(net, "--interface", "eth", "--count", "20")["eth"]
    assert path["sent"] == 20 and path["answered"] == 15


def test_rates_of_each_path_and_direction(net):
    listen(net)
    rates = {("client", "eth"): 20, ("first", "client"): 40, ("client", "wlan"): 5, ("third", "client"): 10}
    for (host, link), rate in rates.items():
        tool("tc", "-n", getattr(net, host).name, "qdisc", "add", "dev", link, "root",
             "tbf", "rate", f"{rate}mbit", "burst", "32k", "latency", "50ms")  # fmt: skip
    paths = probe(net, "--peer", "--duration", "1.5s", "--count", "2")
    for name, upload, download in (("eth", 20, 40), ("wlan", 5, 10)):
        measured = paths[name]["peer"]
        assert measured["error"] is None
        # Headers take 4 to 5 %.
        assert upload * 0.8 < measured["upload_bit_per_s"] / 1e6 < upload
        assert download * 0.8 < measured["download_bit_per_s"] / 1e6 < download


def test_options_translation_and_routers(net):
    listen(net)
    net.third.tool("nft", f"table ip nat {{ chain postrouting {{ {TRANSLATION} }}; }}")
    try:
        net.first.add_packet_rules(forward="tcp flags & (syn|ack) == syn reset tcp option 30")
    except RuntimeError as error:
        pytest.skip(f"nft cannot strip TCP options here: {error}")
    paths = probe(net, "--peer", "--duration", "0.2s", "--count", "2")
    eth, wlan = paths["eth"]["peer"], paths["wlan"]["peer"]
    assert [option["kind"] for option in eth["options"] if not option["arrived"]] == [30]
    assert all(option["arrived"] and option["unchanged"] for option in wlan["options"])
    assert {2, 3, 4, 8, 30} == {option["kind"] for option in wlan["options"]}
    assert (eth["translated"], wlan["translated"]) == (False, True)
    assert (eth["routers"], wlan["routers"]) == (2, 1)


TRANSLATION = "type nat hook postrouting priority 100; oifname core masquerade;"


@pytest.mark.long
def test_idle_time_until_a_router_forgets(net):
    """It forgets established connections after three seconds, and drops what belongs to none."""
    listen(net)
    net.third.tool("nft", f"table ip nat {{ chain postrouting {{ {TRANSLATION} }}; }}")
    net.third.tool("sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_established=3")
    paths = probe(net, "--peer", "--duration", "0.2s", "--count", "2", "--idle", "8s")
    assert paths["eth"]["peer"]["idle"] == {"survived_s": 8, "forgotten_s": None}
    assert paths["wlan"]["peer"]["idle"] == {"survived_s": 2, "forgotten_s": 4}


def test_peer_without_plait_and_silent_host(net):
    net.serve(answer=socket.socket.close)
    options = ("--peer", "--duration", "0.2s", "--count", "2", "--interface", "eth")
    done = net.client.run(PLAIT, "probe", f"{SERVER}:{PORT}", *options, text=True)
    assert done.returncode == 1 and "is `plait probe --listen` running" in done.stderr
    net.server.add_packet_rules(input="tcp flags syn drop")
    assert all(path["answered"] == 0 for path in probe(net, "--count", "2", status=1).values())
