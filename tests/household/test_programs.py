"""Programs on hosts behind the router, which know nothing of plait: browsers, git, ssh, databases, resolvers."""

import base64
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import time

import pytest
import wireguard
from hosts import wait_for
from households import FAR, FAR6, NAME, ROUTER, SERVER, UPLINKS
from streams import random_file

# Of the nameserver.
AUTHORITATIVE = "11.0.4.3"
ZONE = f"""
$ORIGIN far.example.
$TTL 60
@ SOA ns admin 1 3600 600 86400 60
@ NS ns
ns A {FAR}
www A {FAR}
www AAAA {FAR6}
mail MX 10 www
long TXT {" ".join(chr(34) + "x" * 250 + chr(34) for _ in range(12))}
"""


def need(*programs: str):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def ready(household):
    household.set_up_exit()
    done = household.up()
    assert done.returncode == 0, done.stderr


def run(host, *command, **options) -> subprocess.CompletedProcess:
    done = host.run(*command, text=True, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def certificate(directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A certificate of the web server, and its key."""
    files = directory / "certificate.pem", directory / "key.pem"
    command = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    )
    names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:{FAR}")
    subprocess.run([*command, *names, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def secure_web(household, documents) -> pathlib.Path:
    """nginx with TLS and HTTP/2; returns its certificate."""
    need("openssl")
    file, key = certificate(household.directory)
    household.start_web(
        documents,
        f"listen 443 ssl http2; listen [::]:443 ssl http2; ssl_certificate {file}; ssl_certificate_key {key};",
    )
    return file


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_curl_by_https(household, documents, text, version):
    """20 documents over one connection, whose peer has the name's certificate."""
    trusted = secure_web(household, documents)
    ready(household)
    urls = [f"https://{NAME}/text.txt?{number}" for number in range(20)]
    options = (
        "--cacert",
        trusted,
        f"--http{version}",
        "-sS",
        "-m",
        "40",
        "-w",
        "%{stderr}%{http_version} %{num_connects}\n",
    )
    done = household.one.run("curl", *options, *urls)
    assert done.stdout == 20 * text.read_bytes(), done.stderr
    lines = done.stderr.decode().splitlines()
    assert lines == [f"{version} 1"] + 19 * [f"{version} 0"]


def write_page(documents):
    """A page with a script, an image and a style sheet, which tells by what it was loaded."""
    page = '<link rel=stylesheet href=page.css><script src=page.js></script><p id=result>not loaded</p><img src=dot.gif onload="loaded()">'
    (documents / "page.html").write_text(page)
    (documents / "page.css").write_text("p { color: red }")
    # Synchronous: what the page is when all is loaded, is printed.
    script = (
        "function loaded() { const request = new XMLHttpRequest(); request.open('GET', '/data.txt', false); request.send();"
        " const color = getComputedStyle(document.getElementById('result')).color;"
        " const protocol = performance.getEntriesByType('navigation')[0].nextHopProtocol;"
        " document.getElementById('result').textContent = [request.responseText.length, color, protocol].join(' ') }"
    )
    (documents / "page.js").write_text(script)
    (documents / "dot.gif").write_bytes(base64.b64decode("R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="))
    (documents / "data.txt").write_text("x" * 300_000)


def load_page(household, host, *options: str) -> str:
    """The page, by Chromium."""
    # Chromium ends what it loads when an address becomes usable.
    wait_for("addresses", lambda: "tentative" not in host.ip("address"))
    time.sleep(1)
    profile = household.directory / "profile"
    common = (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--timeout=40000", "--dump-dom",
    )  # fmt: skip
    done = host.run("chromium", *common, *options, f"https://{NAME}/page.html", text=True, timeout=90)
    return done.stdout + done.stderr[-3000:]


def test_chromium_loads_a_page(household, documents):
    """By HTTP/2."""
    need("chromium")
    secure_web(household, documents)
    write_page(documents)
    ready(household)
    assert "300000 rgb(255, 0, 0) h2" in load_page(household, household.one, "--ignore-certificate-errors")


@pytest.mark.parametrize("name", ["one", "router"])
def test_chromium_loads_a_page_by_quic(household, documents, name):
    """HTTP/3, on a host of the LAN and on the router itself."""
    need("chromium", "openssl")
    file, key = certificate(household.directory)
    write_page(documents)
    server = pathlib.Path(__file__).parent.parent / "helpers" / "http3_server.py"
    log = household.directory / "http3.log"
    household.far.start(sys.executable, server, documents, file, key, FAR, FAR6, log=log.name)
    wait_for("web server", lambda: "listening" in log.read_text())
    ready(household)
    digest = "openssl x509 -pubkey -noout -in $0 | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64"
    pin = subprocess.run(
        ["sh", "-c", digest, file], capture_output=True, text=True, check=True
    ).stdout.strip()
    options = (f"--origin-to-force-quic-on={NAME}:443", f"--ignore-certificate-errors-spki-list={pin}")
    captures = {link: household.capture(link, filter="udp") for link in UPLINKS}
    with captures["eth"], captures["wlan"]:
        page = load_page(household, household.hosts[name], *options)
    assert "300000 rgb(255, 0, 0) h3" in page, page + household.router_log()
    for capture in captures.values():
        assert capture.fields("udp.port", where="udp.port == 443 || udp.port == 53") == []
    datagrams = household.report()["datagrams"]
    assert sum(path["received_bytes"] for path in datagrams["paths"].values()) > 300_000, datagrams


@pytest.mark.parametrize("name", ["one", "router"])
def test_wireguard(household, documents, name):
    """A tunnel of another VPN, from a host of the LAN and from the router itself."""
    need("wireguard-go", "wg")
    file = random_file(documents, 3_000_000)
    household.start_web(documents)
    ready(household)
    client = household.hosts[name]
    wireguard.connect(household.directory, client, household.far, FAR, "10.99.0", mtu=1380)
    captures = {link: household.capture(link, filter="udp") for link in UPLINKS}
    with captures["eth"], captures["wlan"]:
        done = client.run("curl", "-sS", "-m", "40", "http://10.99.0.2/random.bin")
    assert done.stdout == file.read_bytes(), done.stderr.decode() + household.router_log()
    assert [capture.fields("udp.port", where="udp.port == 51820") for capture in captures.values()] == [
        [],
        [],
    ]


@pytest.mark.parametrize("protocol", ["git", "http"])
def test_git_clones(household, documents, protocol):
    need("git")
    source = documents / "source"
    environment = {**os.environ, "HOME": str(household.directory), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (
        ("init", "-q", source),
        ("-C", source, "add", "."),
        ("-C", source, "commit", "-qm", "All"),
    ):
        if command[-2:] == ("add", "."):
            random_file(source, 5_000_000)
        identity = ("-c", "user.name=Test", "-c", "user.email=test@far.example")
        subprocess.run(["git", *identity, *command], check=True, env=environment)
    bare = documents / "project.git"
    subprocess.run(["git", "clone", "-q", "--bare", source, bare], check=True, env=environment)
    subprocess.run(["git", "-C", bare, "update-server-info"], check=True, env=environment)
    if protocol == "git":
        options = ("--export-all", f"--base-path={documents}", f"--listen={FAR}")
        household.far.start("git", "daemon", "--reuseaddr", *options)
        wait_for("git daemon", lambda: household.far.listens(9418))
    else:
        household.start_web(documents)
    ready(household)
    clone = household.directory / "clone"
    run(
        household.one,
        "env",
        f"HOME={household.directory}",
        "git",
        "clone",
        "-q",
        f"{protocol}://{NAME}/project.git",
        clone,
    )
    assert (clone / "random.bin").read_bytes() == (source / "random.bin").read_bytes()


def test_ssh_and_scp(household):
    """A command with input and output, a file each way, and the server's view of the client: the exit."""
    need("sshd", "ssh", "scp", "ssh-keygen")
    directory = household.directory / "ssh"
    directory.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    (directory / "authorized_keys").write_text((directory / "user.pub").read_text())
    lines = (
        f"HostKey {directory}/host", f"AuthorizedKeysFile {directory}/authorized_keys", "StrictModes no", "UsePAM no",
        "PermitRootLogin yes", f"PidFile {directory}/pid", "Subsystem sftp internal-sftp",
    )  # fmt: skip
    (directory / "sshd_config").write_text("\n".join(lines) + "\n")
    # Which the system makes where sshd is a service.
    pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    household.far.start(shutil.which("sshd"), "-D", "-e", "-f", directory / "sshd_config", log="sshd.log")
    wait_for("sshd", lambda: household.far.listens(22))
    ready(household)
    options = ("-F", "/dev/null", "-i", directory / "user", "-o", "StrictHostKeyChecking=accept-new")
    options += ("-o", f"UserKnownHostsFile={directory}/known_hosts", "-o", "BatchMode=yes")
    done = run(household.one, "ssh", *options, f"root@{NAME}", "echo $SSH_CLIENT; wc -c", input="x" * 100_000)
    client, count = done.stdout.splitlines()
    assert (client.split()[0], count) in ((SERVER, "100000"), ("2a00:77:3::2", "100000"))
    file = random_file(household.directory, 5_000_000)
    there, back = household.directory / "there", household.directory / "back"
    run(household.one, "scp", "-q", *options, file, f"root@{NAME}:{there}")
    run(household.one, "scp", "-q", *options, f"root@{NAME}:{there}", back)
    assert back.read_bytes() == there.read_bytes() == file.read_bytes()


def test_postgresql(household):
    """Queries, a large result, a notification to a waiting session, and a cancelled query."""
    need("psql", "initdb", "postgres")
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("no user: postgres")
    # Its user must reach it.
    data = pathlib.Path("/var/tmp") / household.far.name
    data.mkdir()
    shutil.chown(data, "postgres")
    as_user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
    try:
        run(household.far, *as_user, "initdb", "-D", data, "-A", "trust", "--no-sync", "-U", "postgres")
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n")
        settings = ("-c", "listen_addresses=*", "-c", f"unix_socket_directories={data}", "-c", "fsync=off")
        household.far.start(*as_user, "postgres", "-D", data, *settings, log="postgres.log")
        wait_for("postgres", lambda: household.far.listens(5432))
        ready(household)
        psql = ("psql", "-X", "-At", "-h", NAME, "-U", "postgres")
        script = (
            "create table t as select generate_series(1, 100000) as n, repeat('x', 50) as text;"
            "select count(*), sum(n) from t; select client_addr from pg_stat_activity where pid = pg_backend_pid()"
        )
        lines = run(household.one, *psql, "-c", script).stdout.splitlines()
        assert lines[-2] == "100000|5000050000" and lines[-1] in (SERVER, "2a00:77:3::2"), lines
        done = run(household.two, *psql, "-c", "select * from t order by n")
        assert len(done.stdout.splitlines()) == 100_000 and len(done.stdout) > 5_000_000
        done = household.two.run(*psql, "-c", "set statement_timeout = 300; select pg_sleep(30)", text=True)
        assert "canceling statement" in done.stderr
    finally:
        household.far.stop_programs()
        shutil.rmtree(data)


@pytest.mark.parametrize("resolver", [ROUTER, "9.9.9.9"])
def test_dig_asks_an_authoritative_server(household, resolver):
    """Whichever resolver it asks; over UDP and TCP, and for what does not fit into a datagram."""
    need("dig", "nsd")
    household.far.ip(f"addr add {AUTHORITATIVE}/24 dev outside")
    (household.server.etc / "resolv.conf").write_text(f"nameserver {AUTHORITATIVE}\n")
    directory = household.directory / "nsd"
    directory.mkdir()
    (directory / "far.example").write_text(ZONE)
    (directory / "nsd.conf").write_text(
        f'server:\n username: ""\n chroot: ""\n zonesdir: "{directory}"\n pidfile: "{directory}/pid"\n'
        f' zonelistfile: "{directory}/zones"\n xfrdfile: "{directory}/xfrd"\n ip-address: {AUTHORITATIVE}\n'
        f' xfrdir: "{directory}"\n'
        'remote-control:\n control-enable: no\nzone:\n name: "far.example"\n zonefile: "far.example"\n'
    )
    household.far.start(shutil.which("nsd"), "-d", "-c", directory / "nsd.conf", log="nsd.log")
    wait_for("nsd", lambda: f"{AUTHORITATIVE}:53" in household.far.tool("ss", "-Htln"))
    ready(household)

    def ask(*words) -> list[str]:
        return run(
            household.one, "dig", "+short", "+tries=1", "+time=10", f"@{resolver}", *words
        ).stdout.splitlines()

    for way in ((), ("+tcp",)):
        assert ask(NAME, *way) == [FAR]
        assert ask("-t", "AAAA", NAME, *way) == [FAR6]
        assert ask("-t", "MX", "mail.far.example", *way) == ["10 www.far.example."]
        assert len(ask("-t", "TXT", "long.far.example", *way)[0]) > 3000
        done = run(household.one, "dig", "+tries=1", f"@{resolver}", "none.far.example", *way)
        assert "NXDOMAIN" in done.stdout
