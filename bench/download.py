"""Downloads of a document that nginx serves over two links between namespaces, and their speed."""

import contextlib
import os
import sys

import pairs
from hosts import Pair, wait_for

NGINX = 8080
MIB = 1 << 20


@contextlib.contextmanager
def served(size, make=Pair):
    """Two hosts; the server offers a document of `size` bytes on port 8080, by MPTCP and TCP."""
    with pairs.built(make) as pair:
        documents = pair.directory / "documents"
        documents.mkdir()
        with (documents / "document").open("wb") as out:
            for begin in range(0, size, MIB):
                out.write(os.urandom(min(MIB, size - begin)))
        start_nginx(pair, NGINX, "mptcpize", "run")
        yield pair


def start_nginx(pair, port, *launcher):
    """Starts another nginx that serves the document."""
    directory = pair.directory / f"nginx-{port}"
    directory.mkdir()
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log; events {{}} "
        f"http {{ access_log off; sendfile on; server {{ listen {port}; root {pair.directory}/documents; }} }}"
    )
    pair.server.start(*launcher, "nginx", "-c", configuration, "-g", "user root;", log=f"nginx-{port}.log")
    wait_for("nginx", lambda: pair.server.listens(port))


def curl(pair, port, host=None):
    """The command that downloads the document, from the server or another host."""
    output = ("-w", "%{size_download} %{time_total}")
    return ["curl", "-sS", "--fail", "-o", "/dev/null", *output, f"http://{host or pair.ETH}:{port}/document"]


def direct(pair):
    """Megabits per second of kernel MPTCP without plait."""
    return mbps(pair.client.run("mptcpize", "run", *curl(pair, NGINX), timeout=300))


def mbps(done):
    """Megabits per second, from the output of curl."""
    if done.returncode:
        sys.exit(done.stderr.decode())
    size, seconds = map(float, done.stdout.split())
    return size * 8 / seconds / 1e6
