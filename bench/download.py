"""A document that nginx serves over two links between namespaces, and how fast it is downloaded."""

import contextlib
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from hosts import Pair, wait_for  # noqa: E402

NGINX = 8080


@contextlib.contextmanager
def served(megabytes, rate=None):
    """Two hosts; the server has a document of this size behind port 8080."""
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        folder = pathlib.Path(folder)
        documents = folder / "documents"
        documents.mkdir()
        block = os.urandom(1 << 20)
        with (documents / "document").open("wb") as out:
            for _ in range(megabytes):
                out.write(block)
        pair = Pair(f"bench-{os.getpid()}", folder, rate)
        try:
            pair.build()
            start_nginx(pair, documents)
            yield pair
        finally:
            pair.remove()


def start_nginx(pair, documents):
    """An MPTCP listener serves plain TCP as well."""
    folder = pair.folder / "nginx"
    folder.mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{}} "
        f"http {{ access_log off; sendfile on; server {{ listen {NGINX}; root {documents}; }} }}"
    )
    pair.server.start("mptcpize", "run", "nginx", "-c", configuration, "-g", "user root;", log="nginx.log")
    wait_for("nginx", lambda: pair.server.listens(NGINX))


def curl(pair, port, host=None):
    """The command that downloads it, from the server or from what stands for it."""
    said = ("-w", "%{size_download} %{time_total}")
    return ["curl", "-sS", "--fail", "-o", "/dev/null", *said, f"http://{host or pair.ETH}:{port}/document"]


def direct(pair):
    """Megabits per second by kernel MPTCP without plait."""
    return mbps(pair.client.run("mptcpize", "run", *curl(pair, NGINX), timeout=300))


def mbps(done):
    """What `curl` said, in megabits per second."""
    if done.returncode:
        sys.exit(done.stderr.decode())
    size, seconds = map(float, done.stdout.split())
    return size * 8 / seconds / 1e6
