"""plait.policy: composing, loading and observing policies from Python."""

import hashlib
import json
import subprocess

import pytest
from controllers import alone, joined, names, run, work  # noqa: F401
from hosts import wait_for
from package import PYTHON
from transfers import Download, fetch


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ('packet("data") & ~dst("10.0.0.0/8")', "packet(data) and not dst(10.0.0.0/8)"),
        ('(src("10.0.0.1", 80) | ANY) & path("wlan0")', "(src(10.0.0.1, 80) or any) and path(wlan0)"),
        ('~(ANY & size("1kB", "2MB"))', "not (any and size(1kB-2MB))"),
        ('Selector("any or any") & ANY', "(any or any) and any"),
        ("any_of([ANY, ANY, ANY])", "any or any or any"),
        ("any_of([])", "not any"),
        ("all_of([])", "any"),
        ('subflow(dst="fd00::/8", sport=(1, 9))', "subflow(dst = fd00::/8, sport = 1-9)"),
        ('connection("0a1b2c3d")', "connection(0x0a1b2c3d)"),
        ('ip_pair("10.0.0.1", "10.0.0.2")', "ip_pair(10.0.0.1, 10.0.0.2)"),
        ("data_sequence(7, 9) | subflow_sequence(1, 2)", "sequence(data = 7-9) or sequence(subflow = 1-2)"),
        (
            'connection_size("1kB") | connection_size("0", "2MB")',
            "connection_size(1kB-) or connection_size(0-2MB)",
        ),
        ('mark(16, 255) & cgroup("/a")', "mark(0x10/0xff) and cgroup(/a)"),
    ],
)
def test_selectors_compose_to_policy_syntax(work, selector, text):
    program = f"selector = {selector}\nprint(selector)\ncheck(Policy('p', [Chain('c', 'egress', selector)]))"
    assert run(work, program).stdout == f"{text}\n"


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("Chain('c', 'egress', 'packet(daat)')", "daat"),
        ("Chain('c', 'sideways')", "ingress"),
        ("Chain('c', 'egress', actors=['jump'])", "jump"),
        ("Chain('c', 'egress', actors=[{'pace': '4 parsecs'}])", "4 parsecs"),
    ],
)
def test_diagnostics_name_what_was_expected(work, chain, message):
    done = run(work, f"check(Policy('p', [{chain}]))", check=False)
    assert done.returncode == 1 and "plait.policy.InvalidPolicy: " in done.stderr
    assert "expected" in done.stderr and message in done.stderr


def test_load_statistics_replace_unload(work, pair):
    load = "load(Policy('p', [Chain('all', 'egress', packet('mptcp'), ['record'], ['eth'])]), replace={})"
    run(work, load.format(False), pair.client)
    assert "already loaded" in run(work, load.format(False), pair.client, check=False).stderr
    fetch(pair, 1 << 20, pair.ETH)
    count = json.loads(
        run(work, "print(json.dumps(vars(statistics()['p']['all']), default=vars))", pair.client).stdout
    )
    assert count["packets"] > 10 and count["errors"] == 0
    assert count["actors"][0][0] == "record" and count["actors"][0][1]["packets"] == count["packets"]
    run(work, load.format(True), pair.client)
    assert names(work, pair.client) == ["p"]
    run(work, "unload('p')", pair.client)
    assert names(work, pair.client) == []
    refused = run(work, "unload('p')", pair.client, check=False)
    assert "plait.policy.Error: " in refused.stderr and "'p'" in refused.stderr


def test_a_block_loads_and_unloads_a_policy(work, pair):
    (work / "file.toml").write_text('name = "from-file"\nchains = []\n')
    program = """
names = lambda: sorted(one.name for one in policies())
try:
    with loaded(Policy("p", [])), loaded("file.toml"):
        print(names())
        try:
            with loaded(Policy("p", [])):
                raise SystemExit("expected an error")
        except Error as error:
            print("already loaded" in str(error), names())
        raise KeyError
except KeyError:
    print(names())
"""
    assert run(work, program, pair.client).stdout.splitlines() == [
        "['from-file', 'p']",
        "True ['from-file', 'p']",
        "[]",
    ]


def test_records_match_the_transferred_bytes(work, pair):
    alone(pair)
    chains = "[Chain(hook, hook, packet('mptcp'), ['record'], ['eth']) for hook in ('egress', 'ingress')]"
    run(work, f"load(Policy('p', {chains}))", pair.client)
    with pair.capture("eth", pair.client) as capture:
        data = fetch(pair, 1 << 18, pair.ETH)
    (flow,) = json.loads(run(work, "print(json.dumps(flows(), default=vars))", pair.client).stdout)
    assert flow["local"].startswith("10.77.1.1:") and flow["remote"] == "10.77.1.2:9200"
    # The server's kernel may reinject data on the same subflow, so more may arrive than was written.
    segments = capture.fields("tcp.seq", "tcp.len", where="tcp.srcport == 9200 && tcp.len > 0")
    new = max(int(sequence) + int(length) for sequence, length in segments) - 1
    received = flow["received"]
    assert received["bytes"] == sum(int(length) for _, length in segments)
    assert received["bytes"] - received["retransmitted_bytes"] == new >= len(data)
    assert flow["sent"]["bytes"] == 0 and received["ended"] and not flow["joined"]


def test_events_include_keys_only_on_request(work, pair):
    chain = "Chain('c', 'egress', packet('mp_capable'), [{'get_connection': {'keys': True}}], ['eth'])"
    run(work, f"load(Policy('p', [{chain}]))", pair.client)
    program = """
some = events(timeout=20)
print("ready", flush=True)
for event in some:
    assert "keys" not in str(event) and "keys" not in event.details
    if event.keys() and event.keys()[1]:
        print(json.dumps([event.token, *(key.hex() for key in event.keys())]))
        break
"""
    (work / "listen.py").write_text(f"import json\nfrom plait.policy import *\n{program}")
    listener = pair.client.start(
        PYTHON, "listen.py", cwd=work, stdout=subprocess.PIPE, stderr=None, text=True
    )
    assert listener.stdout.readline() == "ready\n"
    fetch(pair, 256, pair.ETH)
    token, initiator, responder = json.loads(listener.communicate(timeout=20)[0])
    # RFC 8684, section 3.2: the first 32 bits of the SHA-256 of the key.
    assert hashlib.sha256(bytes.fromhex(initiator)).hexdigest()[:8] == token
    assert responder != initiator


def test_a_view_matches_the_kernel(work, pair):
    load = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: joined(pair.client))
    program = """
class Look:
    interval = 0.5
    def tick(self, view):
        if view.elapsed:
            print(json.dumps(view, default=vars))
        return []
run(Look(), "look", ticks=2)
"""
    view = json.loads(run(work, program, pair.client).stdout)
    (connection,) = view["connections"]
    local, remote = load.client.getsockname(), load.client.getpeername()
    assert (
        connection["local"] == f"{local[0]}:{local[1]}" and connection["remote"] == f"{remote[0]}:{remote[1]}"
    )
    assert {subflow["interface"] for subflow in connection["subflows"]} == {"eth", "wlan"}
    assert [subflow["joined"] for subflow in connection["subflows"]] == [False, True]
    assert set(view["paths"]) == {"eth", "wlan"}
    received = sum(subflow["receive_rate"] for subflow in connection["subflows"])
    assert received > 1e6 and sum(path["receive_rate"] for path in view["paths"].values()) == pytest.approx(
        received
    )
    assert names(work, pair.client) == []
    load.close()
