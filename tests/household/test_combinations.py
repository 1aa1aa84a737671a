"""Several parts at once: two clients of an exit, and a daemon that is router, client and exit."""

from daemons import ServiceManager
from hosts import wait_for
from households import FAR, NAME, NEIGHBORS, PORT, RESOLVERS, SERVER
from streams import random_file


def up(machine, url):
    done = machine.run("plait", "up", url, text=True)
    assert done.returncode == 0, done.stderr


def test_two_clients_of_an_exit(household, documents):
    """At the same time; the exit knows them by their keys, and refuses who is not invited."""
    laptop = household.add_laptop()
    file = random_file(documents, 8_000_000)
    household.start_web(documents)
    url = household.set_up_exit()
    assert household.up().returncode == 0
    without_invitation = url.rsplit(".", 1)[0]
    for refused, reason in ((url, "used by another client"), (without_invitation, "expected a client")):
        done = laptop.run("plait", "up", refused, text=True)
        assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
        assert reason in done.stderr + household.exit_log(), done.stderr
        assert laptop.processes() == []
    up(laptop, household.invite())
    targets = [household.directory / name for name in ("of-one", "of-laptop")]
    running = [
        host.start("curl", "-sS", "-m", "50", "-o", target, f"http://{NAME}/random.bin")
        for host, target in zip((household.one, laptop), targets, strict=True)
    ]
    for program, target in zip(running, targets, strict=True):
        assert program.wait(60) == 0
        assert target.read_bytes() == file.read_bytes()
    # One client ends; the other goes on.
    assert laptop.run("plait", "down").returncode == 0
    done = household.two.run("curl", "-sS", "-m", "20", "-o", "/dev/null", f"http://{NAME}/random.bin")
    assert done.returncode == 0, done.stderr
    done = laptop.run("curl", "-sS", "-m", "20", "-o", "/dev/null", f"http://{FAR}/random.bin")
    assert done.returncode == 0, "as before"


def test_router_client_and_exit_in_one_daemon(household, documents, text):
    """With the kill switch: a laptop reaches the LAN by the household's own exit, whose hosts go by that of the server."""
    laptop = household.add_laptop()
    household.start_web(documents)
    url = household.set_up_exit()
    router = household.router
    (router.etc / "plait").mkdir()
    (router.etc / "plait" / "plait.toml").write_text(
        f"""
        [exit]
        url = "{household.router.tool("plait", "exit", "join", url).strip()}"
        listen = "[::]:{PORT}"
        clients = ["{laptop.tool("plait", "identity").strip()}"]
        allow = ["10.50.0.0/24"]
        [[paths]]
        match = "*"
        role = "trusted"
        [host]
        killswitch = true
        [router]
        interfaces = ["lan0"]
        """
    )
    # A port that the first provider's router passes on.
    household.forward_port("isp1", PORT)
    key = router.tool("plait", "identity").strip().removeprefix("plait-key:")
    manager = ServiceManager(household.directory)
    daemon = ("env", f"NOTIFY_SOCKET={manager.path}", "plait", "-v", "daemon")
    program = router.start(*daemon, "--config", "/etc/plait/plait.toml", log="router.log")
    log = household.directory / "router.log"
    wait_for("daemon", lambda: manager.count("READY=1") or program.poll() is not None)
    outside = f"(ip or ip6) and not (host {SERVER} and port {PORT}) and not (host 11.0.5.2 and port {PORT})"
    with household.capture("eth", filter=outside) as eth, household.capture("wlan", filter=outside) as wlan:
        for host in (household.one, household.two):
            done = host.run("curl", "-sS", "-m", "20", f"http://{NAME}/text.txt")
            assert done.stdout == text.read_bytes(), done.stderr.decode() + log.read_text()
        household.two.start("python3", "-m", "http.server", "8000", "--bind", "10.50.0.12", "-d", documents)
        wait_for("server", lambda: household.two.listens(8000))
        up(laptop, f"plait://11.0.1.2:{PORT}#{key}")
        done = laptop.run("curl", "-sS", "-m", "20", "http://10.50.0.12:8000/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode() + log.read_text()
    # The household's exit asks its own resolver for the laptop.
    resolver = f"(ip.addr == {RESOLVERS['router']} && tcp.port == 53)"
    for capture in (eth, wlan):
        assert capture.fields("ip.dst", "_ws.col.Info", where=f"!({NEIGHBORS}) && !{resolver}") == []
    router.run("plait", "down")
