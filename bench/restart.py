#!/usr/bin/env python3
"""Connections that fail while daemons restart under load, by `plait daemon --replace`, in namespaces.

A program opens connections at a constant rate, exchanges a message on each and closes it. All connections of its host go through
an exit (`[host]`). Then the daemon of the client and that of the exit are replaced in turn, --restarts times each. Printed are the
connections, how many were refused, reset or timed out, and the time until the answer: median, 99th percentile and longest. What the machine
cannot open in time is opened later: the rate that was reached is printed, too.

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
from daemons import Daemon, host_file, removed_afterwards
from exits import FAR, PORT, exit_behind
from hosts import wait_for

ECHO = 7000
TIMEOUT = 30


async def answer(reader, writer):
    writer.write(await reader.read(16))
    await writer.drain()
    writer.close()


async def serve():
    server = await asyncio.start_server(answer, FAR, ECHO, backlog=4096)
    await server.serve_forever()


async def exchange(outcomes, times):
    begin = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(FAR, ECHO)
            writer.write(b"hello")
            answered = await reader.read(16)
            writer.close()
        outcomes["answered" if answered == b"hello" else "closed"] += 1
        times.append(time.monotonic() - begin)
    except (OSError, TimeoutError) as error:
        outcomes[type(error).__name__] += 1


async def load(rate: int):
    """Opens connections until stdin ends."""
    outcomes, times, pending = collections.Counter(), [], set()
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    begin, number = time.monotonic(), 0
    while not ended.done():
        await asyncio.sleep(max(0, begin + number / rate - time.monotonic()))
        number += 1
        task = asyncio.create_task(exchange(outcomes, times))
        pending.add(task)
        task.add_done_callback(pending.discard)
    elapsed = time.monotonic() - begin
    await asyncio.gather(*pending)
    times.sort()
    print(
        json.dumps({"opened": number, "per_second": number / elapsed, "outcomes": outcomes, "times": times})
    )


def measure(exit, rate: int, restarts: int, progress) -> dict:
    this = pathlib.Path(__file__).resolve()
    exit.far.start(sys.executable, this, "--role", "serve")
    wait_for("the service", lambda: exit.far.listens(ECHO))
    exit.serve().terminate()
    wait_for("end of the exit", lambda: not exit.server.listens(PORT))
    daemons = []
    limits = f'[exit]\nlisten = "[::]:{PORT}"\nclients = ["{exit.client_key}"]\n'
    for host, text in ((exit.server, limits), (exit.client, host_file(exit))):
        directory = exit.pair.directory / f"daemon-{len(daemons)}"
        directory.mkdir()
        daemons.append(Daemon(host, text, directory).start())
    command = (sys.executable, this, "--role", "load", "--rate", rate)
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
    parser.add_argument("--rate", type=int, default=1000, help="connections per second")
    parser.add_argument("--restarts", type=int, default=3, help="of each of both daemons")
    parser.add_argument(
        "--role", choices=("serve", "load"), help="what this program does as a part of the benchmark"
    )
    arguments = prologue.parse(parser)
    if arguments.role:
        return asyncio.run(serve() if arguments.role == "serve" else load(arguments.rate))
    with pairs.built() as pair, exit_behind(pair) as exit, removed_afterwards(exit.client):
        found = measure(exit, arguments.rate, arguments.restarts, prologue.progress())
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
