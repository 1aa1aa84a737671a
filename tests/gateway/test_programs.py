"""Unmodified programs through plait, as without it: the same content, the same exit status, and half a second at most.

`make test` runs a tenth of the matrix, `make test-long` the rest.
"""

import dataclasses
import itertools
import json
import shutil
import subprocess

import pytest
from disturbance import measuring
from hosts import NAME, wait_for

GATEWAY, DIRECT = 8443, 8081
MAX_EXTRA_S = 0.5

# Runs a program, and prints its exit status, the SHA-256 of its output, and the seconds that it took.
TIMED = """
import hashlib, json, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], capture_output=True, timeout=50)
took = time.monotonic() - began
print(json.dumps([done.returncode, hashlib.sha256(done.stdout).hexdigest(), took, done.stderr.decode()]))
"""

PYTHON = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1] + '/text.txt', timeout=3).read())"
NODE = "fetch(process.argv[1] + '/text.txt').then(a => a.arrayBuffer()).then(b => process.stdout.write(Buffer.from(b)))"
GO = """
package main

import ("io"; "net/http"; "os")

func main() {
	answer, err := http.Get(os.Args[1] + "/text.txt")
	if err != nil { println(err.Error()); os.Exit(1) }
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil { os.Exit(2) }
}
"""
JAVA = """
class Get {
    public static void main(String[] arguments) throws Exception {
        java.net.URI.create(arguments[0] + "/text.txt").toURL().openStream().transferTo(System.out);
    }
}
"""


@dataclasses.dataclass
class Program:
    """How to fetch `/text.txt`, or the repository, from a URL, directly and by an HTTP proxy on port 1080."""

    command: tuple[str, ...]
    # In addition with a proxy; `None` for programs that cannot use one.
    proxied: tuple[str, ...] | None = ()
    path: str = "/text.txt"
    needs: tuple[str, ...] = ()


PROGRAMS = {
    "curl": Program(("curl", "-sS")),
    "wget": Program(("wget", "-qO-", "-T3", "-t1")),
    "git": Program(("git", "ls-remote"), path="/repository.git"),
    "python": Program(("python3", "-c", PYTHON), path=""),
    "node": Program(("node", "-e", NODE), proxied=None, path=""),
    "go": Program(("{directory}/get",), path="", needs=("go",)),
    "java": Program(
        ("java", "-cp", "{directory}", "Get"),
        proxied=("-Dhttp.proxyHost=127.0.0.1", "-Dhttp.proxyPort=1080"),
        path="",
        needs=("javac",),
    ),
}
ADDRESSES = ["IPv4", "IPv6", "both", "AAAA without a route", "AAAA silent"]
MATRIX = list(itertools.product(PROGRAMS, ("run", "proxy"), ("off", "stream", "sealed"), ADDRESSES))
# Every mode and kind of addresses occurs, and every program but Go's, which takes a minute to compile.
SHORT = [
    ("curl", "run", "sealed", "AAAA silent"),
    ("curl", "run", "stream", "both"),
    ("curl", "proxy", "sealed", "AAAA without a route"),
    ("wget", "run", "off", "IPv4"),
    ("wget", "run", "sealed", "AAAA without a route"),
    ("wget", "proxy", "stream", "AAAA silent"),
    ("git", "run", "sealed", "IPv6"),
    ("git", "proxy", "off", "both"),
    ("python", "run", "stream", "AAAA silent"),
    ("python", "proxy", "sealed", "IPv4"),
    ("node", "run", "sealed", "AAAA silent"),
    ("node", "run", "stream", "AAAA without a route"),
    ("git", "run", "stream", "AAAA silent"),
    ("java", "run", "stream", "IPv4"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A directory for the programs that are compiled."""
    directory = tmp_path_factory.mktemp("programs")
    directory.chmod(0o755)
    (directory / "get.go").write_text(GO)
    (directory / "Get.java").write_text(JAVA)
    return directory


# By compiler: what it writes, and its arguments.
COMPILE = {"go": ("get", "build", "-o", "get", "get.go"), "javac": ("Get.class", "Get.java")}


def compile_once(directory, compiler: str):
    written, *arguments = COMPILE[compiler]
    if not (directory / written).exists():
        subprocess.run((compiler, *arguments), cwd=directory, check=True, capture_output=True)


@pytest.fixture
def site(pair, documents, text):
    """A web server with a text and a repository, reached by the gateway, and directly by another port."""
    repository = documents / "repository.git"
    author = ("-c", "user.name=plait", "-c", "user.email=plait@example")
    for command in (
        ("git", "init", "-q", documents / "work"),
        ("git", "-C", documents / "work", *author, "commit", "-q", "--allow-empty", "-m", "first"),
        ("git", "clone", "-q", "--bare", documents / "work", repository),
        ("git", "-C", repository, "update-server-info"),
    ):
        subprocess.run(command, check=True)
    service = pair.nginx(documents)
    pair.server.start(
        "socat", f"TCP6-LISTEN:{DIRECT},fork,reuseaddr,ipv6only=0,backlog=100", f"TCP4:{service}"
    )
    wait_for("direct port", lambda: pair.server.listens(DIRECT))
    return service


def arrange(pair, names, addresses: str):
    """Gives the client the addresses, and the name of the server those that the case is about."""
    if addresses in ("IPv4", "AAAA without a route"):
        for link in ("eth", "wlan"):
            pair.client.ip(f"-6 address flush dev {link}")
    if addresses == "IPv6":
        for link in ("eth", "wlan"):
            pair.client.ip(f"-4 address flush dev {link}")
    if addresses == "AAAA silent":
        pair.server.add_packet_rules(
            prerouting=f"ip6 daddr {pair.ETH6} tcp dport {{ {GATEWAY}, {DIRECT} }} drop"
        )
    names(*{"IPv4": [pair.ETH], "IPv6": [pair.ETH6]}.get(addresses, [pair.ETH6, pair.ETH]))
    # Later packets do not wait for the neighbours' addresses.
    for address in (pair.ETH, pair.ETH6):
        pair.client.run("ping", "-c1", "-W1", address)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("program", "way", "mode", "addresses"),
    [pytest.param(*cell, marks=() if cell in SHORT else pytest.mark.long) for cell in MATRIX],
)
def test_program_behaves_as_without_plait(pair, names, site, compiled, program, way, mode, addresses):
    fetcher = PROGRAMS[program]
    names("127.0.0.1")
    command = [part.format(directory=compiled) for part in fetcher.command]
    for needed in fetcher.needs or command[:1]:
        if not shutil.which(needed):
            pytest.skip(f"not installed: {needed}")
    for compiler in fetcher.needs:
        compile_once(compiled, compiler)
    if way == "proxy" and fetcher.proxied is None:
        pytest.skip(f"{program} uses no proxy")
    arrange(pair, names, addresses)
    pair.serve("--mode", mode, to=site)

    def measure(run, port, *options):
        url = f"http://{NAME}:{port}{fetcher.path}"
        done = run("python3", "-c", TIMED, command[0], *options, *command[1:], url)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    roles = ("--mode", mode, "--trusted", "eth")
    with measuring(0.1):
        status, content, took, errors = measure(pair.client.run, DIRECT)
        if way == "run":
            through = measure(lambda *command: pair.run(*command, options=roles), GATEWAY)
        else:
            pair.proxy(*roles)
            proxy = ("env", "http_proxy=http://127.0.0.1:1080")
            through = measure(lambda *command: pair.client.run(*proxy, *command), GATEWAY, *fetcher.proxied)
        assert through[:2] == [status, content], (errors, through[3])
        assert status == 0, errors
        assert through[2] < took + MAX_EXTRA_S, (through[2], took)
