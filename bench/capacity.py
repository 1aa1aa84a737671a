#!/usr/bin/env python3
"""How gateways behave at their limits: a killed server, few descriptors, more connections than may be carried.

killed       Seconds until clients notice that `plait serve` was killed (SIGKILL), by 100 connections in use through `plait proxy`,
             with the resets that the server's kernel sends, and without those of the first 100 ms.
descriptors  Of 50 connections at once, those that fail while a gateway may open 64 descriptors.
limit        Of 5,000 connections, all established before the first is used, 904 over the limit, those that fail; memory at the peak, and 30 s after.

Bounds: noticed within 2 s; no connection fails. Needs root and a built plait.
"""

import contextlib
import json
import os
import selectors
import statistics
import sys
import time

import pairs
import prologue
from gateways import report_of
from hosts import PLAIT, wait_for
from streams import (
    CONCURRENT_FETCHES,
    NAMED,
    PARALLEL_FETCHES,
    connect_by_socks,
    echo_server,
    random_file,
    resident_bytes,
)

MODES = ("stream", "sealed")
IN_USE, NOTICED_WITHIN = 100, 2
FEW, AT_ONCE = 64, 50
MANY, AFTER_S = 5000, 30


def killed(pair, mode, lost) -> dict:
    """Exchanges bytes on each connection, kills the server's gateway, and takes the times of resets."""
    echo_server(pair.server)
    serve = pair.serve("--mode", mode, "--require", "--max-connections-per-peer", "1000", to="127.0.0.1:9000")
    pair.proxy("--mode", mode, "--require", *NAMED)
    clients = [connect_by_socks(pair) for _ in range(IN_USE)]
    selector = selectors.DefaultSelector()
    for client in clients:
        client.setblocking(False)
        client.send(b"?")
        selector.register(client, selectors.EVENT_READ)
    exchange(selector, clients, time.monotonic() + 2)
    rules = (
        pair.server.packet_rules(output="tcp flags & rst == rst drop") if lost else contextlib.nullcontext()
    )
    with rules:
        serve.kill()
        began = time.monotonic()
        serve.wait()
        noticed = exchange(selector, clients, began + 0.1)
    noticed |= exchange(selector, clients, began + 90)
    times = [when - began for when in noticed.values()]
    found = {
        "noticed": len(times),
        "of": IN_USE,
        "median_s": statistics.median(times),
        "longest_s": max(times),
    }
    return found | {"met": len(times) == IN_USE and max(times) <= NOTICED_WITHIN}


def exchange(selector, clients, until) -> dict:
    """Sends back what arrives, ten times a second, until a time or until no connection is left; returns when each one failed."""
    failed = {}
    while selector.get_map() and time.monotonic() < until:
        for key, _ in selector.select(0.1):
            with contextlib.suppress(BlockingIOError):
                try:
                    client = key.fileobj
                    if not client.recv(1):
                        raise ConnectionResetError
                    client.send(b"?")
                except ConnectionError:
                    failed[client.fileno()] = time.monotonic()
                    selector.unregister(client)
        time.sleep(0.01)
    return failed


def fetches(pair, fetching, document, count, options, *limit) -> tuple:
    """Fetches a document on as many connections at once through `plait run`; returns the program and where it writes."""
    bodies = pair.directory / "bodies"
    bodies.mkdir()
    program = (sys.executable, "-c", fetching, pair.ETH, document.name, bodies, count)
    command = (*limit, PLAIT, "run", *options, "--max-connections", "4096", "--", *program)
    return pair.client.start(*command, log="run.log"), bodies


def failures(bodies, document, count) -> int:
    expected = document.read_bytes()
    return count - sum(body.read_bytes() == expected for body in bodies.iterdir())


def descriptors(pair, mode, limited) -> dict:
    documents = pair.directory / "documents"
    documents.mkdir()
    document = random_file(documents, 100_000)
    limit = ("prlimit", f"--nofile={FEW}:{FEW}")
    serve = (*limit * (limited == "serve"), PLAIT, "-v", "serve", "--mode", mode, "--listen", "[::]:8443")
    pair.server.start(*serve, "--to", pair.nginx(documents), log="serve.log")
    wait_for("listening", lambda: pair.server.listens(8443))
    options = ("--mode", mode, "--require", *NAMED)
    program, bodies = fetches(pair, PARALLEL_FETCHES, document, AT_ONCE, options, *limit * (limited == "run"))
    program.wait(120)
    failed = failures(bodies, document, AT_ONCE)
    return {"failed": failed, "of": AT_ONCE, "met": not failed}


def limit(pair, mode) -> dict:
    documents = pair.directory / "documents"
    documents.mkdir()
    document = random_file(documents, 10_000)
    more = ("--max-connections-per-peer", "100000")
    serve = pair.serve("--mode", mode, *more, to=pair.nginx(documents))
    options = ("--mode", mode, "--require", "--drain", "60", *NAMED)
    # It lives on, for the memory of its gateway.
    program, bodies = fetches(pair, CONCURRENT_FETCHES, document, MANY, options)
    peak = dict.fromkeys(("serve", "run"), 0)
    while len(list(bodies.iterdir())) < MANY and program.poll() is None:
        for name, process in (("serve", serve), ("run", program)):
            peak[name] = max(peak[name], resident_bytes(process.pid))
        time.sleep(0.1)
    program.wait(120)
    wait_for("no connections", lambda: not report_of(pair, "serve")["connections"])
    time.sleep(AFTER_S)
    after = resident_bytes(serve.pid)
    failed = failures(bodies, document, MANY)
    mib = {f"{name}_peak_mib": round(size / (1 << 20), 1) for name, size in peak.items()}
    return {
        "failed": failed,
        "of": MANY,
        **mib,
        "serve_after_mib": round(after / (1 << 20), 1),
        "met": not failed,
    }


CASES = {
    **{
        f"killed, {mode}, resets {'lost' if lost else 'sent'}": lambda pair, mode=mode, lost=lost: killed(
            pair, mode, lost
        )
        for mode in MODES
        for lost in (False, True)
    },
    **{
        f"descriptors, {mode}, of {limited}": lambda pair, mode=mode, limited=limited: descriptors(
            pair, mode, limited
        )
        for mode in MODES
        for limited in ("run", "serve")
    },
    **{f"limit, {mode}": lambda pair, mode=mode: limit(pair, mode) for mode in MODES},
}


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("--only", help="cases whose names begin so")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = {}
    for name, case in CASES.items():
        if not name.startswith(arguments.only or ""):
            continue
        progress(name)
        with pairs.built() as pair:
            results[name] = case(pair)
        progress("")
        if not arguments.json:
            figures = ", ".join(f"{key} {value}" for key, value in results[name].items() if key != "met")
            print(f"{name:34} {'met' if results[name]['met'] else 'MISSED':6}  {figures}", flush=True)
    if arguments.json:
        print(json.dumps({"kernel": os.uname().release, "cases": results}, indent=2))


if __name__ == "__main__":
    main()
