#!/usr/bin/env python3
"""Connections that fail while daemons restart under load, by `plait daemon --replace`, in namespaces.

A program opens connections at a constant rate, exchanges a message on each and closes it. In mode `sealed`, all connections of its
host go through an exit (`[host]`); in mode `stream`, which has no exits, it asks a proxy for a service of the server. Then the
daemon of the client and that of the server are replaced in turn, --restarts times each. Printed are the connections, how many were
refused, reset or timed out, and the time until the answer: median, 99th percentile and longest. What the machine cannot open in time
is opened later: the rate that was reached is printed, too.

Bound: no connection fails. Needs root and a built plait.
"""

import asyncio
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import time

import pairs
import prologue
from daemons import PROXY, TRUSTED, Daemon, host_file, removed_afterwards, services
from exits import FAR, PORT, exit_behind
from hosts import wait_for
from streams import SOCKS_GREETED, SOCKS_GREETING, socks_request

ECHO = 7000
SOCKS = ("127.0.0.1", 1080)
TIMEOUT = 30


async def answer(reader, writer):
    writer.write(await reader.read(16))
    await writer.drain()
    writer.close()


async def serve(address: str):
    server = await asyncio.start_server(answer, address, ECHO, backlog=4096)
    await server.serve_forever()


async def connect_by_socks(host: str, port: int):
    reader, writer = await asyncio.open_connection(*SOCKS)
    writer.write(SOCKS_GREETING)
    assert await reader.readexactly(2) == SOCKS_GREETED
    writer.write(socks_request(host, port))
    reply = await reader.readexactly(10)
    if reply[1]:
        raise ConnectionError(f"SOCKS reply {reply[1]}")
    return reader, writer


async def exchange(mode, outcomes, times):
    begin = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT):
            if mode == "sealed":
                reader, writer = await asyncio.open_connection(FAR, ECHO)
            else:
                reader, writer = await connect_by_socks(pairs.Pair.ETH, PORT)
            writer.write(b"hello")
            answered = await reader.read(16)
            writer.close()
        outcomes["answered" if answered == b"hello" else "closed"] += 1
        times.append(time.monotonic() - begin)
    except (OSError, TimeoutError) as error:
        outcomes[type(error).__name__] += 1


async def load(mode: str, rate: int):
    """Opens connections until stdin ends."""
    outcomes, times, pending = collections.Counter(), [], set()
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    begin, number = time.monotonic(), 0
    while not ended.done():
        await asyncio.sleep(max(0, begin + number / rate - time.monotonic()))
        number += 1
        task = asyncio.create_task(exchange(mode, outcomes, times))
        pending.add(task)
        task.add_done_callback(pending.discard)
    elapsed = time.monotonic() - begin
    await asyncio.gather(*pending)
    times.sort()
    print(
        json.dumps({"opened": number, "per_second": number / elapsed, "outcomes": outcomes, "times": times})
    )


def sealed_daemons(exit) -> list[Daemon]:
    """An exit, and a client whose connections all go through it."""
    exit.serve().terminate()
    wait_for("end of the exit", lambda: not exit.server.listens(PORT))
    server = f'[exit]\nlisten = "[::]:{PORT}"\nclients = ["{exit.client_key}"]\n'
    return start_daemons(exit, server, host_file(exit))


def stream_daemons(exit) -> list[Daemon]:
    """A service, and a client with a proxy."""
    mode = 'mode = "stream"\n'
    return start_daemons(exit, mode + services(PORT, to=ECHO), mode + PROXY + TRUSTED)


def start_daemons(exit, *texts: str) -> list[Daemon]:
    """Those of the server and of the client, with these files."""
    daemons = []
    for host, text in zip((exit.server, exit.client), texts, strict=True):
        directory = exit.pair.directory / host.name
        directory.mkdir()
        daemons.append(Daemon(host, text, directory).start())
    return daemons


def measure(exit, mode: str, rate: int, restarts: int, progress) -> dict:
    this = pathlib.Path(__file__).resolve()
    server, address = (exit.far, FAR) if mode == "sealed" else (exit.server, "127.0.0.1")
    server.start(sys.executable, this, "--role", "serve", "--address", address)
    wait_for("the service", lambda: server.listens(ECHO))
    daemons = sealed_daemons(exit) if mode == "sealed" else stream_daemons(exit)
    command = (sys.executable, this, "--role", "load", "--mode", mode, "--rate", rate)
    program = exit.client.start(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True
    )
    replaced = []
    for number in range(restarts):
        for daemon in daemons:
            time.sleep(1)
            progress(f"restart {number + 1} of {restarts}")
            replaced.append(daemon.replace())
    time.sleep(1)
    output, _ = program.communicate("")
    for each in replaced:
        each.wait(60)
    return json.loads(output)


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("--mode", choices=("sealed", "stream"), default="sealed")
    parser.add_argument("--rate", type=int, default=1000, help="connections per second")
    parser.add_argument("--restarts", type=int, default=3, help="of each of both daemons")
    parser.add_argument(
        "--role", choices=("serve", "load"), help="what this program does as a part of the benchmark"
    )
    parser.add_argument("--address", help="where this program serves")
    arguments = prologue.parse(parser)
    if arguments.role == "serve":
        return asyncio.run(serve(arguments.address))
    if arguments.role == "load":
        return asyncio.run(load(arguments.mode, arguments.rate))
    with pairs.built() as pair, exit_behind(pair) as exit, removed_afterwards(exit.client):
        found = measure(exit, arguments.mode, arguments.rate, arguments.restarts, prologue.progress())
    times = found.pop("times")
    found["answer_s"] = {
        "median": statistics.median(times),
        "p99": times[len(times) * 99 // 100],
        "max": times[-1],
    }
    failed = sum(count for outcome, count in found["outcomes"].items() if outcome != "answered")
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['opened']} connections, {found['per_second']:.0f}/s: {failed} failed {found['outcomes']}"
        )
        print(
            "  time until the answer: "
            + ", ".join(f"{k} {v * 1000:.1f} ms" for k, v in found["answer_s"].items())
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
