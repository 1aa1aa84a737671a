"""WireGuard between two hosts, by wireguard-go (https://www.wireguard.com/)."""

import os
import pathlib
import shutil

from hosts import Host, tool, wait_for

PORT = 51820


def program() -> str | None:
    """The name under which it is installed."""
    return shutil.which("wireguard-go") or shutil.which("wireguard")


def connect(
    directory: pathlib.Path, client: Host, server: Host, address: str, network: str, *, mtu: int, more=()
) -> str:
    """A tunnel, in whose network (/24) the client has .1 and the server, which it reaches at an address, .2. Further networks may be
    reached through it. Returns the client's device. The programs end with their hosts."""
    client_device, client_key = start(directory, client, "client")
    server_device, server_key = start(directory, server, "server")
    allowed = ("allowed-ips", ",".join((f"{network}.0/24", *more)))
    client.tool("wg", "set", client_device, "peer", server_key, *allowed, "endpoint", f"{address}:{PORT}")
    server.tool("wg", "set", server_device, "listen-port", PORT, "peer", client_key, *allowed)
    for last, (host, device) in enumerate(((client, client_device), (server, server_device)), start=1):
        host.ip(f"addr add {network}.{last}/24 dev {device}")
        host.ip(f"link set {device} up mtu {mtu}")
    return client_device


def start(directory: pathlib.Path, host: Host, end: str) -> tuple[str, str]:
    """Starts an end; returns its device and its public key."""
    file = directory / f"wireguard-{end}.key"
    file.write_text(tool("wg", "genkey"))
    device = f"wg{os.getpid()}{end[0]}"
    running = host.start(program(), "-f", device, log=f"wireguard-{end}.log")

    def is_ready() -> bool:
        # The device is there before it can be configured.
        return running.poll() is not None or host.run("wg", "show", device).returncode == 0

    wait_for("wireguard", is_ready)
    host.tool("wg", "set", device, "private-key", file)
    return device, tool("sh", "-c", f"wg pubkey <{file}").strip()
