"""Two commands, and a host of the LAN downloads by both uplinks, of which neither shows what."""

import hashlib

import pytest
from disturbance import measuring
from hosts import wait_for
from households import FAR, FAR6, LAN, NAME, PORT, SERVER, UPLINKS
from streams import random_file

SIZE = 40_000_000
# Of what TCP reaches by one uplink and by the other, without plait.
SHARE = 0.95
# The longest wait for a processor that costs no throughput worth mentioning.
LONGEST_WAIT = 0.2


def download(host, target, *options, url=f"http://{NAME}/random.bin"):
    """Returns the rate in Mb/s."""
    done = host.run(
        "curl", "-sS", "-m", "55", *options, "-o", target, "-w", "%{speed_download}", url, text=True
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout) * 8e-6


@pytest.mark.alone
def test_two_commands_give_the_rate_of_both_uplinks(household, documents):
    """Prints the rates."""
    file = random_file(documents, SIZE)
    household.start_web(documents)
    target = household.directory / "downloaded"
    plain = f"http://{FAR}/random.bin"
    alone = {
        uplink: download(household.router, "/dev/null", "--interface", uplink, url=plain)
        for uplink in UPLINKS
    }
    url = household.set_up_exit()
    assert url.startswith(f"plait://{SERVER}:{PORT}#"), url
    done = household.up()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with measuring(LONGEST_WAIT):
        rate = download(household.one, target)
        share = rate / sum(alone.values())
        by_each = " and ".join(f"{each:.1f} by {uplink}" for uplink, each in alone.items())
        print(f"{rate:.1f} Mb/s through plait; without it, {by_each}: {share:.1%} of both")
        assert share >= SHARE
    assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(file.read_bytes()).digest()


def test_uplinks_show_neither_names_nor_destinations_nor_contents(household, documents, text):
    """Of two hosts, with both versions of IP, while a download runs whose protection is `sealed 2/2`."""
    file = random_file(documents, 8_000_000)
    household.start_web(documents)
    household.set_up_exit()
    captures = {link: household.capture(link) for link in UPLINKS}
    with captures["eth"], captures["wlan"]:
        assert household.up().returncode == 0
        target = household.directory / "downloaded"
        running = household.one.start("curl", "-sS", "-m", "55", "-o", target, f"http://{NAME}/random.bin")
        wait_for("data", lambda: target.exists() and target.stat().st_size > 0)
        levels = {each["level"] for each in household.report()["connections"]}
        for version in ("-4", "-6"):
            done = household.two.run("curl", "-sS", version, "-m", "20", f"http://{NAME}/text.txt")
            assert done.stdout == text.read_bytes(), done.stderr.decode()
        assert running.wait(60) == 0
    assert levels == {"2/2"}, levels
    assert target.read_bytes() == file.read_bytes()
    samples = [file.read_bytes()[at : at + 24] for at in range(0, 8_000_000, 500_000)]
    secrets = (
        b"far.example",
        b"\x03far\x07example",
        b"GET /",
        b"text.txt",
        b"curl/",
        text.read_bytes()[:24],
        *samples,
    )
    lan = [address for addresses in LAN.values() for address in addresses]
    for link, capture in captures.items():
        seen = capture.file.read_bytes()
        assert len(seen) > 1_000_000, f"{link} was hardly used"
        assert [secret for secret in secrets if secret in seen] == []
        assert capture.fields("frame.number", where="dns || tcp.port == 53 || udp.port == 53") == []
        addresses = " || ".join(
            f"{'ipv6' if ':' in address else 'ip'}.addr == {address}" for address in (FAR, FAR6, *lan)
        )
        assert capture.fields("frame.number", where=addresses) == []
        peers = {peer for [peer] in capture.fields("ip.dst", where=f"ip && ip.dst == {SERVER}")}
        others = capture.fields("ip.dst", where=f"ip && !(ip.addr == {SERVER})")
        assert (peers, others) == ({SERVER}, [])


def test_the_exit_may_be_named(household, documents, text):
    """Its name is the only one that is resolved at home, as the command says."""
    household.nameserver.names["exit.far.example"] = [SERVER]
    household.resolve_at_home()
    household.start_web(documents)
    assert household.set_up_exit("--name", "exit.far.example").startswith(f"plait://exit.far.example:{PORT}#")
    with household.capture("eth", filter="udp port 53 or tcp port 53") as capture:
        done = household.up()
        assert done.returncode == 0, done.stderr
        done = household.two.run("curl", "-sS", "-m", "20", f"http://{NAME}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode()
    assert {name for [name] in capture.fields("dns.qry.name", where="dns")} == {"exit.far.example"}
