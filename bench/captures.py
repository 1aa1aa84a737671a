#!/usr/bin/env python3
"""Makes the captures that `bench/analyze.py` reads, by a real transfer over three MPTCP subflows between namespaces.

Two tcpdumps capture the same transfer: `headers.pcap` keeps 128 bytes of each packet, `full.pcap` all of it. Segmentation offload
is off, so that every packet has wire size: small packets are the hardest case per byte, too. Three links of different rates end
in one bridge of the server, where the capture is taken, so that it is one Ethernet capture that every analyzer can read; short
queues lose packets, so that it contains retransmissions and reordering.

A capture that lost a packet, or has fewer packets or subflows than requested, is discarded and made again. Needs root, and about
1.3 GB for 900,000 packets. Existing captures are kept.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import prologue
from hosts import Host, tool, wait_for
from streams import listen

PACKETS = 900_000
SUBFLOWS = 3
KINDS = {"headers": 128, "full": 0}
RATES = ("400mbit", "250mbit", "150mbit")
PORT = 9000
MPTCP = 262
ATTEMPTS = 3


class Invalid(Exception):
    """A capture that lacks packets or subflows."""


def make(directory: pathlib.Path, packets: int = PACKETS, say=lambda text: None) -> dict:
    """Makes the captures unless the directory has them; returns the content of `captures.json`."""
    record = directory / "captures.json"
    if record.exists():
        found = json.loads(record.read_text())
        if found["packets"] >= packets and all((directory / f"{kind}.pcap").exists() for kind in KINDS):
            return found
    directory.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = attempt_to_make(directory, packets, say)
        except Invalid as reason:
            say(f"attempt {attempt} discarded: {reason}")
        else:
            record.write_text(json.dumps(found, indent=2) + "\n")
            return found
    raise Invalid(f"no valid capture in {ATTEMPTS} attempts")


def attempt_to_make(directory, packets, say) -> dict:
    run_id = f"plait-captures-{os.getpid()}"
    client, server = (Host(f"{run_id}-{end}", directory) for end in ("client", "server"))
    files = {kind: directory / f"{kind}.pcap" for kind in KINDS}
    try:
        connect(client, server)
        # Somewhat more than one acknowledgment per three data packets of 1400 bytes, with a margin.
        size = packets * 1150
        say(f"transferring {size / 1e6:.0f} MB over {', '.join(RATES)}")
        subflows = captured_transfer(client, server, size, files)
        if subflows < SUBFLOWS:
            raise Invalid(f"expected {SUBFLOWS} subflows, the kernel made {subflows}")
        counts = {kind: packets_in(file) for kind, file in files.items()}
        if counts["headers"] != counts["full"] or counts["full"] < packets:
            raise Invalid(f"expected {packets} packets in both, found {counts}")
    except BaseException:
        for file in files.values():
            file.unlink(missing_ok=True)
        raise
    finally:
        for host in (client, server):
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
            for log in directory.glob("tcpdump-*.log"):
                log.unlink()
    return {
        "packets": counts["full"],
        "subflows": subflows,
        "bytes": size,
        "kernel": os.uname().release,
        "links": list(RATES),
        "snap_lengths": KINDS,
    }


def connect(client, server):
    for host in (client, server):
        tool("ip", "netns", "add", host.name)
        tool("ip", "-n", host.name, "link", "set", "lo", "up")
        # The links share the server's bridge: each interface answers ARP for its own address only.
        for key in ("rp_filter=0", "arp_ignore=1", "arp_announce=2"):
            host.tool("sysctl", "-qw", f"net.ipv4.conf.all.{key}")
        tool("ip", "-n", host.name, "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
    tool("ip", "-n", server.name, "link", "add", "bridge", "type", "bridge")
    tool("ip", "-n", server.name, "link", "set", "bridge", "up")
    for number, rate in enumerate(RATES, start=1):
        link = f"link{number}"
        tool("ip", "link", "add", link, "netns", client.name, "type", "veth",
             "peer", "name", link, "netns", server.name)  # fmt: skip
        tool("ip", "-n", server.name, "link", "set", link, "master", "bridge")
        tool("ip", "-n", client.name, "addr", "add", f"10.78.{number}.1/24", "dev", link)
        tool("ip", "-n", server.name, "addr", "add", f"10.78.{number}.2/24", "dev", "bridge")
        for host in (client, server):
            host.tool("ethtool", "-K", link, "tso", "off", "gso", "off", "gro", "off")
            tool("ip", "-n", host.name, "link", "set", link, "up")
        tool("tc", "-n", client.name, "qdisc", "add", "dev", link, "root",
             "tbf", "rate", rate, "burst", "64k", "limit", "256k")  # fmt: skip
        if number > 1:
            address = f"10.78.{number}.2"
            tool("ip", "-n", server.name, "mptcp", "endpoint", "add", address, "dev", "bridge", "signal")


def captured_transfer(client, server, size, files) -> int:
    """Sends while all tcpdumps capture; returns the connection's number of subflows."""
    dumps = {kind: start_tcpdump(server, kind, files[kind]) for kind in KINDS}
    # Joins to the other addresses need a listener on all addresses.
    listener = listen(server, PORT, "0.0.0.0", MPTCP)
    received = []
    receiver = threading.Thread(target=receive_all, args=(listener, received), daemon=True)
    receiver.start()
    sender = client.socket(protocol=MPTCP)
    sender.settimeout(60)
    try:
        sender.connect(("10.78.1.2", PORT))
        block = os.urandom(1 << 20)
        sender.sendall(block)
        wait_for("joined subflows", lambda: established(client) >= SUBFLOWS)
        for start in range(len(block), size, len(block)):
            sender.sendall(block[: size - start])
        subflows = established(client)
        sender.close()
        receiver.join(60)
    finally:
        sender.close()
        listener.close()
    if received != [size]:
        raise Invalid(f"expected {size} bytes at the receiver, got {received}")
    time.sleep(1)
    for kind, dump in dumps.items():
        dump.send_signal(signal.SIGINT)
        dump.wait(60)
        log = (server.directory / f"tcpdump-{kind}.log").read_text()
        if not re.search(r"^0 packets dropped by kernel", log, re.MULTILINE):
            raise Invalid(f"tcpdump lost packets: {log.strip().splitlines()[-1]}")
    return subflows


def start_tcpdump(host, kind, file):
    log = f"tcpdump-{kind}.log"
    options = ("-i", "bridge", "-s", KINDS[kind], "-B", 1 << 19, "-w", file)
    program = host.start("tcpdump", *options, "tcp", log=log)
    wait_for("tcpdump", lambda: b"listening on" in (host.directory / log).read_bytes())
    return program


def receive_all(listener, received):
    connection, _ = listener.accept()
    buffer = bytearray(1 << 20)
    total = 0
    with connection:
        while count := connection.recv_into(buffer):
            total += count
    received.append(total)


def established(host) -> int:
    return len(host.tool("ss", "-Htn", f"dport = :{PORT}").splitlines())


def packets_in(file) -> int:
    text = tool("capinfos", "-cMT", "-m", "-r", str(file))
    return int(text.strip().rsplit(",", 1)[1].strip('"'))


def main():
    parser = prologue.parser(__doc__, json=False)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--packets", type=int, default=PACKETS, help="minimum number (default: %(default)s)")
    arguments = prologue.parse(parser, plait=False)
    try:
        found = make(arguments.directory, arguments.packets, say=lambda text: print(text, file=sys.stderr))
    except Invalid as reason:
        sys.exit(str(reason))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
