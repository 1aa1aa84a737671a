#!/usr/bin/env python3
"""Read standard input in messages of 1280 bytes, as a processor does that takes a given time for each, and print the throughput as JSON.

paced.py --message-ms MS
"""

from __future__ import annotations

import argparse
import json
import sys
import time

MESSAGE = 1280
"""Bytes, as in Table II of Kato et al."""
CATCH_UP = 0.005
"""Seconds that may be caught up on, as a sleep takes longer than it is asked to."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--message-ms", type=float, required=True, metavar="MS", help="milliseconds a message"
    )
    seconds = parser.parse_args().message_ms / 1000
    total = len(sys.stdin.buffer.read(MESSAGE))
    free = began = time.monotonic()
    while message := sys.stdin.buffer.read(MESSAGE):
        total += len(message)
        # A processor that waited for input does not work faster afterwards.
        free = max(free, time.monotonic() - CATCH_UP) + seconds
        if (wait := free - time.monotonic()) > 0:
            time.sleep(wait)
    print(json.dumps({"bytes": total, "mbps": total * 8e-6 / (time.monotonic() - began)}))


if __name__ == "__main__":
    main()
