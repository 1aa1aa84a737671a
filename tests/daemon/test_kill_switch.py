"""`killswitch = true`: nothing leaves the host outside of plait, whether the daemon runs, starts, ends or is killed."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest
from attempts import attempts
from daemons import Daemon, down, host_file
from exits import FAR, FAR6, PORT
from hosts import PLAIT, Pair

# All that the kernel sends by itself to have neighbors and addresses.
NEIGHBORS = "icmpv6.type >= 133 && icmpv6.type <= 143"


@pytest.fixture
def routed(web):
    """The client has a default route by each uplink, so that something could leave."""
    web.client.ip(f"route add default via {Pair.ETH} dev eth")
    web.client.ip(f"route add default via {Pair.ETH6} dev eth")
    web.client.ip(f"route add default via {Pair.WLAN} dev wlan metric 500")
    return web


@contextlib.contextmanager
def nothing_outside(exit):
    """Nothing but what goes to the exit and comes from it is on the uplinks within this context."""
    addresses = " or ".join((Pair.ETH, Pair.WLAN, Pair.ETH6, Pair.WLAN6))
    outside = f"(ip or ip6) and not (port {PORT} and host ({addresses}))"
    links = [exit.pair.capture(link, host=exit.client, filter=outside) for link in ("eth", "wlan")]
    with links[0], links[1]:
        yield
    for capture in links:
        fields = ("ip.dst", "ipv6.dst", "_ws.col.Info")
        assert capture.fields(*fields, where=f"!({NEIGHBORS})") == [], capture.link


def attempting(exit):
    """Two programs of the host."""
    return attempts(2 * [(exit.client, 80, 443)], FAR, FAR6, ["10.77.1.53"], pause=0.005)


def leaves(exit) -> bool:
    """Whether a connection of the host leaves by itself: its SYN is on an uplink."""
    capture = exit.pair.capture("eth", host=exit.client, filter=f"host {FAR}")
    with capture:
        exit.client.run("curl", "-sS", "-m", "1", f"http://{FAR}/")
    return capture.fields("ip.dst", where="tcp") != []


@pytest.mark.long
def test_nothing_leaves_while_the_daemon_starts_reloads_ends_and_is_killed(routed, text):
    assert leaves(routed), "the test would see nothing"
    section = "lan = false\nkillswitch = true"
    daemon = Daemon(routed.client, host_file(routed, section)).start()
    url = f"http://{FAR}/text.txt"
    with nothing_outside(routed):
        with attempting(routed) as counts:
            for end in (daemon.kill, daemon.stop, daemon.kill):
                for number in range(3):
                    daemon.reload(host_file(routed, f"{section}\nexclude = ['192.0.2.{number}/32']"))
                end()
                assert routed.client.run("curl", "-sS", "-m", "2", url).returncode != 0
                daemon.start()
            done = routed.client.run("curl", "-sS", "-m", "50", url)
            assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
        daemon.stop()
    print(f"{sum(counts)} attempts")
    assert sum(counts) > 3000, counts


def test_nothing_leaves_when_starts_and_reloads_are_killed(routed, text):
    """At any moment: the daemon is killed sooner or later after it was started, or told to reload."""
    section = "lan = false\nkillswitch = true"
    daemon = Daemon(routed.client, host_file(routed, section)).start()
    daemon.kill()
    with nothing_outside(routed), attempting(routed):
        for number in range(10):
            daemon.launch()
            time.sleep(number * 0.02)
            daemon.kill()
        for number in range(3):
            daemon.start()
            daemon.program.send_signal(signal.SIGHUP)
            time.sleep(number * 0.01)
            daemon.kill()
    daemon.start()
    done = routed.client.run("curl", "-sS", "-m", "50", f"http://{FAR}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode() + daemon.log()
    daemon.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_remains_until_plait_down(routed, end):
    daemon = Daemon(routed.client, host_file(routed, "killswitch = true")).start()
    getattr(daemon, end)()
    assert not leaves(routed)
    # Named, and left in force.
    done = routed.client.run(PLAIT, "doctor", "--clean", text=True)
    assert "kill switch" in done.stdout + done.stderr and "plait down" in done.stdout + done.stderr
    assert not leaves(routed)
    done = down(routed.client)
    assert (done.returncode, done.stdout) == (0, "plait was not up; its kill switch is removed\n"), (
        done.stderr
    )
    assert leaves(routed)
    done = down(routed.client)
    assert (done.returncode, done.stdout) == (0, "plait is not up\n")


def test_clean_stop_removes_it_if_the_file_says_so(routed):
    daemon = Daemon(routed.client, host_file(routed, "killswitch = true\nrelease_on_stop = true")).start()
    daemon.kill()
    assert not leaves(routed)
    daemon.start().stop()
    assert leaves(routed)


def test_local_networks_are_reached_but_not_their_resolvers(routed):
    daemon = Daemon(routed.client, host_file(routed, "killswitch = true")).start()
    daemon.kill()
    with routed.pair.capture("eth", host=routed.client, filter="ip") as capture:
        assert routed.client.run("ping", "-c", "1", "-W", "5", Pair.ETH).returncode == 0
        with attempting(routed):
            assert routed.client.run("ping", "-c", "3", "-i", "0.3", Pair.ETH).returncode == 0
    assert capture.fields("ip.dst", where="udp.dstport == 53 or tcp.dstport == 53") == []


def test_part_of_a_host_has_no_kill_switch(exit):
    exit.serve()
    file = exit.client.directory / "part.toml"
    file.write_text(host_file(exit, "killswitch = true\nusers = [1000]"))
    done = exit.client.run(PLAIT, "daemon", "--config", file, text=True)
    assert done.returncode == 1
    assert "users = [1000]" in done.stderr and "^^^^^^" in done.stderr and "the whole host" in done.stderr
