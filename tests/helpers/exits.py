"""A client, an exit, and destinations behind it that the client has no route to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess

from hosts import PLAIT, Host, Pair, start_nginx, tool, unique_id, wait_for
from nameserver import Nameserver

# Public addresses, as an exit sees them, and private ones.
FAR, FAR6, PRIVATE = "11.0.0.2", "2a00:77::2", "10.99.0.2"
EXIT_PUBLIC, EXIT_PRIVATE = "11.0.0.1", "10.99.0.1"
NAME, PRIVATE_NAME, MIXED_NAME = "www.far.example", "intranet.far.example", "mixed.far.example"
PORT = 8443


@dataclasses.dataclass
class Exit:
    """The hosts, and the exit's configuration."""

    pair: Pair
    far: Host
    nameserver: Nameserver
    client_key: str
    url: str = ""

    @property
    def client(self) -> Host:
        return self.pair.client

    @property
    def server(self) -> Host:
        return self.pair.server

    def serve(self, *options, clients: str | None = None, section: str = "") -> subprocess.Popen:
        """Starts the exit. By default only the client may use it."""
        config = self.pair.directory / "plait.toml"
        config.write_text(f"[exit]\nclients = {clients or json.dumps([self.client_key])}\n{section}\n")
        done = self.server.run(PLAIT, "identity", text=True)
        self.url = f"plait://{Pair.ETH}:{PORT}#{done.stdout.strip().removeprefix('plait-key:')}"
        arguments = ("-vv", "serve", "--config", config, *options, "--exit", f"[::]:{PORT}")
        log = self.pair.directory / "serve.log"
        program = self.server.start(PLAIT, *arguments, log=log.name)
        wait_for("listening exit", lambda: program.poll() is not None or self.server.listens(PORT))
        assert program.poll() is None, log.read_text()
        return program

    def run(self, *command, options=(), **more) -> subprocess.CompletedProcess:
        """Runs a command on the client, with its connections through the exit."""
        return self.pair.run(*command, options=("--trusted", "eth", "--exit", self.url, *options), **more)

    def proxy(self, *options) -> subprocess.Popen:
        return self.pair.proxy("--trusted", "eth", "--exit", self.url, *options)

    def start_nginx(self, documents: pathlib.Path):
        """A web server on all addresses of the far host."""
        start_nginx(self.far, documents, 80, "listen 80; listen [::]:80;")


@contextlib.contextmanager
def resolver_of(host: Host, address: str):
    """`/etc/resolv.conf` of a host."""
    directory = pathlib.Path("/etc/netns") / host.name
    directory.mkdir(parents=True)
    (directory / "resolv.conf").write_text(f"nameserver {address}\n")
    try:
        yield
    finally:
        (directory / "resolv.conf").unlink()
        directory.rmdir()


@contextlib.contextmanager
def exit_behind(pair: Pair):
    """An exit between the client's two links and a network that only the exit reaches; not started."""
    far = Host(f"plait-test-{unique_id()}-far", pair.directory)
    tool("ip", "netns", "add", far.name)
    # A nameserver that does not exist: names are resolved at the exit, or not at all.
    with resolver_of(pair.client, "10.77.1.53"), resolver_of(pair.server, FAR):
        try:
            far.ip("link set lo up")
            tool("ip", "link", "add", "core", "netns", pair.server.name, "type", "veth",
                 "peer", "name", "core", "netns", far.name)  # fmt: skip
            for host, last in ((pair.server, 1), (far, 2)):
                host.ip("link set core up")
                host.ip(f"addr add 11.0.0.{last}/24 dev core")
                host.ip(f"addr add 10.99.0.{last}/24 dev core")
                host.ip(f"addr add 2a00:77::{last}/64 dev core nodad")
            names = {NAME: [FAR, FAR6], PRIVATE_NAME: [PRIVATE], MIXED_NAME: [PRIVATE, FAR]}
            nameserver = Nameserver(far, FAR, names)
            key = pair.client.tool(PLAIT, "identity").strip()
            yield Exit(pair, far, nameserver, key)
        finally:
            far.stop_programs()
            tool("ip", "netns", "del", far.name)
