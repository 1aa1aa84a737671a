"""Events for new connections and subflows, with the tokens of the kernel."""

import json
import re
import signal
import subprocess

from hosts import PLAIT, wait_for
from transfers import exchange

from policies import both_hooks, load

ACTORS = '[{ get_connection = { keys = true } }, "get_subflow"]'


def tokens(host) -> set[str]:
    """The tokens of a host's connections according to ss, which omits leading zeros."""
    found = re.findall(r"\btoken:(\w+)", host.run("ss", "-HMni", text=True).stdout)
    return {token.zfill(8) for token in found}


def test_connections_and_subflows_emit_events(pair):
    load(pair.server, both_hooks("packet(mp_capable, mp_join)", ACTORS))
    printed = pair.directory / "events.json"
    with printed.open("w") as out:
        trace = pair.server.start(PLAIT, "policy", "trace", "--json", stdout=out, stderr=subprocess.PIPE)
        assert b"tracing" in trace.stderr.readline()
        known = set()

        def events(kind):
            lines = printed.read_text().splitlines()
            return [each for line in lines if (each := json.loads(line))["event"] == kind]

        def join():
            known.update(tokens(pair.server))
            wait_for("two subflow events", lambda: len(events("subflow")) >= 2)

        exchange(pair, pair.ETH, join)
        trace.send_signal(signal.SIGINT)
        assert trace.wait(60) == 0
    (connection,) = events("connection")
    assert connection["hook"] == "ingress" and connection["destination"] == f"{pair.ETH}:9000"
    syn, syn_ack = events("subflow")[:2]
    assert (syn["hook"], syn_ack["hook"]) == ("ingress", "egress")
    assert {syn["token"]} == known and len(known) == 1
    # Identifier 0 is the address of the initial subflow, so these differ.
    assert syn_ack["address_id"] == 1
    # Printed events contain no keys.
    assert "keys" not in printed.read_text()
