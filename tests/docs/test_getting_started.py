"""Every command on the README and on the getting-started pages works as printed.

The pages' code blocks run in order, in network namespaces that stand for the hosts. The words behind the language say where:

    sh                   on this machine
    sh client, sh server on that host
    ... service          keeps running; with --listen, until it listens
    toml client NAME     the content of a file there; toml NAME: on this machine
    sh build             not run here: installs packages and compiles. `make test` itself is such a command. Their targets exist
    sh package           not run here: installs or needs the packages, which packaging/test does
    ini NAME             the options of a service, which are those of a command that the page runs

A comment `<!-- prints: TEXT -->` behind a block says what its output contains, within ten seconds.
"""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess

import package
import pytest
from hosts import PLAIT, REPOSITORY, Host, reason_to_skip, tool, wait_for

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "")

PAGES = [
    "README.md",
    *(f"docs/getting-started/{name}.md" for name in ("installation", "two-uplinks", "server", "research")),
]
# `plait lab exec` without --lab expects that no other lab is up.
ALONE = "docs/getting-started/research.md"
BLOCK = re.compile(r"^```(\w+) ?(.*?)\n(.*?)^```\n(?:<!-- prints: (.*?) -->)?", re.MULTILINE | re.DOTALL)

# Two uplinks, each with a default route. The server has an address on each link, and one behind both.
SERVER = "198.51.100.7"
LINKS = {"eth0": ("192.0.2", 100), "wlan0": ("203.0.113", 600)}
SERVER_INTERFACES = {"eth0": "eth0", "wlan0": "eth1"}


@dataclasses.dataclass
class Block:
    language: str
    words: list[str]
    text: str
    prints: str | None

    @property
    def where(self) -> str:
        return next((word for word in self.words if word in ("client", "server")), "machine")


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall((REPOSITORY / page).read_text())
    return [Block(language, words.split(), text, prints or None) for language, words, text, prints in found]


class Hosts:
    """A client with two uplinks, a server, and this machine, each with a home directory and plait's build."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.client = Host(f"plait-test-{os.getpid()}-docs-client", directory)
        self.server = Host(f"plait-test-{os.getpid()}-docs-server", directory)
        self.services: list[subprocess.Popen] = []
        self.environment = {}

    def build(self):
        for host in (self.client, self.server):
            tool("ip", "netns", "add", host.name)
            host.ip("link set lo up")
            names = pathlib.Path("/etc/netns") / host.name
            names.mkdir(parents=True)
            (names / "hosts").write_text(f"127.0.0.1 localhost\n{SERVER} server.example\n")
            host.ip("mptcp limits set subflows 8 add_addr_accepted 8")
        for link, (network, metric) in LINKS.items():
            peer = SERVER_INTERFACES[link]
            tool("ip", "link", "add", link, "netns", self.client.name, "type", "veth",
                 "peer", "name", peer, "netns", self.server.name)  # fmt: skip
            for host, interface, address in ((self.client, link, 2), (self.server, peer, 7)):
                host.ip(f"addr add {network}.{address}/24 dev {interface}")
                host.ip(f"link set {interface} up")
            self.client.ip(f"route add default via {network}.7 dev {link} metric {metric}")
        self.server.ip(f"addr add {SERVER}/32 dev lo")
        for name in ("client", "server", "machine"):
            build = self.home(name) / "target" / "release"
            build.mkdir(parents=True)
            (build / "plait").symlink_to(PLAIT)
            (self.directory / f"{name}-bin").mkdir()

    def home(self, name: str) -> pathlib.Path:
        return self.directory / name

    def start_web_server(self):
        documents = self.directory / "documents"
        documents.mkdir()
        (documents / "index.html").write_text("<p>It works.</p>\n")
        (documents / "large").write_bytes(os.urandom(20_000_000))
        configuration = self.directory / "nginx.conf"
        configuration.write_text(
            f"daemon off; worker_processes 1; pid {self.directory}/nginx.pid; error_log stderr; events {{}} "
            f"http {{ access_log off; server {{ listen 80; root {documents}; }} }}"
        )
        self.server.start("nginx", "-c", configuration, "-g", "user root;", log="nginx.log")
        wait_for("nginx", lambda: self.server.listens(80))

    def command(self, name: str, text: str) -> list[str]:
        """A shell on that host, whose /usr/local/bin is its own; on this machine, plait is on PATH."""
        home = self.home(name)
        if name == "machine":
            return ["sh", "-c", f'set -eu; cd {home}; PATH="$PATH:$PWD/target/release"\n{text}']
        host = {"client": self.client, "server": self.server}[name]
        return host.command("sh", "-c", f"set -eu; mount --bind {home}-bin /usr/local/bin; cd {home}\n{text}")

    def run(self, block: Block):
        if "service" in block.words:
            return self.start(block)
        done = None

        def printed() -> bool:
            nonlocal done
            done = subprocess.run(
                self.command(block.where, block.text), capture_output=True, text=True, timeout=120,
                env=os.environ | self.environment,
            )  # fmt: skip
            assert done.returncode == 0, f"{block.text}{done.stdout}{done.stderr}"
            return block.prints is None or block.prints in done.stdout

        wait_for(f"'{block.prints}' from {block.text}", printed)
        if key := re.search(r"^plait-key:\S+$", done.stdout, re.MULTILINE):
            self.environment["SERVER_KEY"] = key[0]

    def start(self, block: Block):
        log = self.directory / f"service-{len(self.services)}.log"
        with log.open("wb") as sink:
            program = subprocess.Popen(
                self.command(block.where, f"exec {block.text}"), stdin=subprocess.DEVNULL, stdout=sink,
                stderr=sink, env=os.environ | self.environment,
            )  # fmt: skip
        self.services.append(program)
        if listen := re.search(r"--listen \S*:(\d+)", block.text):
            host = {"client": self.client, "server": self.server}[block.where]
            port = int(listen[1])
            wait_for("listening service", lambda: program.poll() is not None or host.listens(port))
            assert program.poll() is None, f"{block.text}{log.read_text()}"

    def remove(self):
        # The client of a gateway ends before it, so that no connection keeps the gateway.
        for program in reversed(self.services):
            program.terminate()
            try:
                program.wait(5)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        for host in (self.client, self.server):
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
            names = pathlib.Path("/etc/netns") / host.name
            (names / "hosts").unlink(missing_ok=True)
            names.rmdir()


@pytest.fixture
def hosts(tmp_path):
    hosts = Hosts(tmp_path)
    try:
        hosts.build()
        hosts.start_web_server()
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture
def no_labs_remain():
    """Removes labs that a page has started, also if one of its commands failed."""

    def labs() -> set[str]:
        return {lab["id"] for lab in json.loads(tool(PLAIT, "lab", "ps", "--json"))}

    before = labs()
    yield
    for lab in labs() - before:
        tool(PLAIT, "lab", "down", "--lab", lab)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.alone) if page == ALONE else page for page in PAGES]
)
def test_commands_work_as_printed(request, hosts, page):
    if page == ALONE:
        request.getfixturevalue("no_labs_remain")
    content = blocks(page)
    # The README shows the client before the server that it needs.
    content.sort(key=lambda block: page == "README.md" and block.where != "server")
    if any(block.language == "python" for block in content):
        package.install(hosts.home("machine"))
    # A page installs plait on one host and leaves the same on the other to the reader.
    for name in ("client", "server"):
        if not any("install " in block.text and block.where == name for block in content):
            (hosts.directory / f"{name}-bin" / "plait").symlink_to(PLAIT)
    for block in content:
        if block.language == "sh" and not {"build", "package"} & set(block.words):
            hosts.run(block)
        elif block.language in ("toml", "python"):
            (hosts.home(block.where) / block.words[-1]).write_text(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for block in blocks(page):
        if "build" in block.words:
            for line in block.text.splitlines():
                make, target = shlex.split(line, comments=True)
                assert make == "make" and target in targets, line


def test_service_starts_what_the_page_runs():
    content = blocks("docs/getting-started/server.md")
    options = (
        next(block for block in content if block.language == "ini").text.strip().removeprefix("OPTIONS=")
    )
    unit = (REPOSITORY / "packaging" / "systemd" / "plait@.service").read_text()
    command = re.search(r"^ExecStart=/usr/bin/(.*)$", unit, re.MULTILINE)[1]
    command = command.replace("%i --config /etc/plait/%i.toml $OPTIONS", f"serve {options}")
    assert any("service" in block.words and block.text.strip() == command for block in content)
