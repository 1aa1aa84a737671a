#!/usr/bin/env python3
"""Write or serve a document of signatures, or count which of them tshark finds in captures.

    signatures.py write COUNT
    signatures.py serve COUNT --port PORT
    signatures.py count COUNT --path CAPTURE... --streams CAPTURE

Of each path, signatures are looked for in single packets, and in the streams into which tshark reassembles its TCP connections;
then in the streams of a capture that `plait trace reassemble` wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import re
import subprocess
from collections.abc import Iterator

SIGNATURE = re.compile(rb"<[0-9a-f]{64}>")


def main() -> None:
    arguments = parsed()
    expected = signatures(arguments.count)
    if arguments.command == "write":
        print(document(expected).decode(), end="")
        return
    if arguments.command == "serve":
        serve(document(expected), arguments.port)
        return
    wanted = set(expected)
    packets = [found(wanted, payloads(capture)) for capture in arguments.path]
    subflows = [found(wanted, followed(capture)) for capture in arguments.path]
    shares = {
        "packets": share(wanted, set().union(*packets)),
        "subflows": share(wanted, set().union(*subflows)),
        "streams": share(wanted, found(wanted, followed(arguments.streams))),
        "of_path": [share(wanted, of_path) for of_path in subflows],
    }
    print(json.dumps({"found": shares, "split": len(wanted - set().union(*subflows))}))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "serve", "count"):
        command = commands.add_parser(name)
        command.add_argument("count", type=int, help="number of signatures")
        if name == "serve":
            command.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    command.add_argument("--path", action="append", required=True, metavar="CAPTURE", help="of one path")
    command.add_argument("--streams", required=True, metavar="CAPTURE", help="reassembled from all paths")
    return parser.parse_args()


def signatures(count: int) -> list[bytes]:
    """Return distinct texts; parts of two of them never make a third."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(count))
    return [f"<{digest}>".encode() for digest in digests]


def document(signatures: list[bytes]) -> bytes:
    return b"\n".join(signatures) + b"\n"


def serve(text: bytes, port: int) -> None:
    """Answer every GET with the text, until killed."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def found(wanted: set[bytes], texts: Iterator[bytes]) -> set[bytes]:
    return {signature for text in texts for signature in SIGNATURE.findall(text)} & wanted


def share(wanted: set[bytes], matched: set[bytes]) -> float:
    return len(matched) / len(wanted)


def payloads(capture: str) -> Iterator[bytes]:
    """Yield the payload of each packet."""
    for line in tshark(capture, "-T", "fields", "-e", "tcp.payload").split():
        yield bytes.fromhex(line)


def followed(capture: str) -> Iterator[bytes]:
    """Yield what each side of each TCP connection sent, as tshark reassembles it."""
    for number in sorted(set(map(int, tshark(capture, "-T", "fields", "-e", "tcp.stream").split()))):
        sent = [bytearray(), bytearray()]
        for line in tshark(capture, "-q", "-z", f"follow,tcp,raw,{number}").splitlines():
            if re.fullmatch(r"\t?(?:[0-9a-f]{2})+", line):
                sent[line.startswith("\t")] += bytes.fromhex(line.strip())
        yield from map(bytes, sent)


def tshark(capture: str, *options: str) -> str:
    command = ["tshark", "-n", "-r", capture, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
