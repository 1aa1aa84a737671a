#!/usr/bin/env python3
"""Sends flows side by side for some seconds, each with its own congestion control, and prints what was acknowledged of each, for
MPTCP also per subflow. Run it on the sending host; the receiver must discard what it gets.

bench/flows.py --to 10.0.0.2:9000 --flow mptcp:plait_lia --flow 'tcp:reno*4' --seconds 60 --json
"""

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import prologue

MPTCP = 262
BLOCK = bytes(1 << 18)


class Flow:
    def __init__(self, text, to):
        self.kind, _, self.congestion_control = text.partition(":")
        protocol = {"mptcp": MPTCP, "tcp": socket.IPPROTO_TCP}.get(self.kind)
        if protocol is None or not self.congestion_control:
            sys.exit(f"expected mptcp:NAME or tcp:NAME, found {text}")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.congestion_control.encode())
        self.socket.connect(to)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self):
        with contextlib.suppress(OSError):
            while True:
                self.socket.sendall(BLOCK)


def sockets(port, without=()):
    """The kernel's state of each TCP socket to this port, by local address. Subflows may have other remote addresses."""
    command = ("ss", "-tinHO", "dport", "=", f":{port}")
    found = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if words[0] != "ESTAB" or words[3] in without:
            continue
        number = lambda name, line=line: float((re.search(rf" {name}:([0-9.]+)", line) or [0, 0])[1])  # noqa: E731
        found[words[3]] = {
            "subflow": "tcp-ulp-mptcp" in line,
            "acked": number("bytes_acked"),
            "lost": number("bytes_retrans"),
            "cwnd": number("cwnd"),
            "rtt_ms": number("rtt"),
        }
    return found


def rates(flows, before, after, seconds):
    def rate(end):
        now, was = after[end], before.get(end, {"acked": 0, "lost": 0})
        acked, lost = now["acked"] - was["acked"], now["lost"] - was["lost"]
        return {
            "local": end,
            "mbps": acked * 8 / seconds / 1e6,
            "retransmitted_mbps": lost * 8 / seconds / 1e6,
            # Of what was sent.
            "lost": lost / max(acked, 1),
            "cwnd": now["cwnd"],
            "rtt_ms": now["rtt_ms"],
        }

    for flow in flows:
        subflows = flow.kind == "mptcp"
        own = [end for end, of in after.items() if of["subflow"] == subflows]
        if not subflows:
            own = [end for end in own if end.endswith(f":{flow.port}")]
        by = sorted(map(rate, own), key=lambda of: of["local"])
        total = sum(of["mbps"] for of in by)
        shares = [of["mbps"] / total if total else 0 for of in by]
        yield {"kind": flow.kind, "congestion_control": flow.congestion_control, "mbps": total, "subflows": by, "shares": shares}  # fmt: skip


def flows_beside(file):
    """The output of another run of this program, which should have ended by now."""
    for _ in range(100):
        with contextlib.suppress(OSError, ValueError):
            return json.loads(pathlib.Path(file).read_text())["flows"]
        time.sleep(0.1)
    sys.exit(f"expected in {file} what this prints as JSON")


def fairness(rates):
    """Jain's fairness index: 1 if all are equal, 1/n if one has all."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("--to", required=True, metavar="ADDRESS:PORT")
    flow = {"action": "append", "required": True, "metavar": "KIND:NAME[*COUNT]"}
    parser.add_argument("--flow", help="mptcp, at most one, or tcp", **flow)
    parser.add_argument("--subflows", type=int, help="expected number of subflows of the MPTCP flow")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the measurement")
    parser.add_argument("--settle", type=float, default=10, help="seconds before the measurement")
    beside = "JSON output of another run that started before this one: adds its flows"
    parser.add_argument("--beside", action="append", default=[], metavar="FILE", help=beside)
    arguments = parser.parse_args()
    host, _, port = arguments.to.rpartition(":")
    to = host, int(port)
    flows, earlier = [], set(sockets(to[1]))
    for text in arguments.flow:
        described, _, count = text.partition("*")
        for _ in range(int(count or 1)):
            flows.append(Flow(described, to))
            # So that they do not start in step.
            time.sleep(0.3)
    time.sleep(arguments.settle)
    before, began = sockets(to[1], earlier), time.monotonic()
    time.sleep(arguments.seconds)
    after, seconds = sockets(to[1], earlier), time.monotonic() - began
    found = list(rates(flows, before, after, seconds))
    subflows = sum(of["subflow"] for of in before.values())
    if arguments.subflows is not None and subflows != arguments.subflows:
        sys.exit(f"expected {arguments.subflows} subflows, found {subflows}")
    for file in arguments.beside:
        found += flows_beside(file)
    tcp = [flow["mbps"] for flow in found if flow["kind"] == "tcp"]
    multipath = [flow["mbps"] for flow in found if flow["kind"] == "mptcp"]
    document = {"flows": found, "seconds": seconds, "fairness": fairness([flow["mbps"] for flow in found])}
    if tcp and multipath:
        # Of MPTCP's to the mean of TCP's.
        document["ratio"] = multipath[0] / (sum(tcp) / len(tcp))
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    for flow in found:
        by = ", ".join(f"{of['local']} {of['mbps']:.2f}" for of in flow["subflows"])
        print(f"{flow['kind']:5} {flow['congestion_control']:14} {flow['mbps']:8.2f} Mb/s  ({by})")


if __name__ == "__main__":
    main()
