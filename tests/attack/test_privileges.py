"""What programs and proxy clients get of the privileges and of the reach of plait's host."""

import os
import pwd

import pytest
from hosts import PLAIT
from streams import REQUIRE, echo_server, receive_exactly

NOBODY = pwd.getpwnam("nobody")


@pytest.mark.parametrize("way", ["sudo", "--user"])
def test_program_runs_as_the_caller(pair, text, way):
    """Root's privileges are for the redirection, not for the program."""
    pair.serve("--require", to=pair.nginx(text.parent))
    command = f"id -u; id -G; echo $HOME $USER; curl -sS http://{pair.ETH}:8443/text.txt | sha256sum; exit 7"
    options = REQUIRE if way == "sudo" else (*REQUIRE, "--user", "nobody")
    environment = os.environ | ({"SUDO_UID": str(NOBODY.pw_uid)} if way == "sudo" else {})
    done = pair.run("sh", "-c", command, options=options, env=environment, text=True)
    assert done.returncode == 7, done.stderr
    uid, groups, home, digest = done.stdout.splitlines()
    assert (int(uid), groups.split()) == (NOBODY.pw_uid, [str(NOBODY.pw_gid)])
    assert home == f"{NOBODY.pw_dir} nobody"
    expected = pair.client.run("sha256sum", text, text=True).stdout
    assert digest.split()[0] == expected.split()[0]


def test_unknown_users_are_refused(pair):
    done = pair.run("true", options=("--user", "nobody-with-this-name"), text=True)
    assert done.returncode == 1
    assert "no user with the name or number 'nobody-with-this-name'" in done.stderr


@pytest.mark.parametrize("listen", ["10.77.1.1:1080", "0.0.0.0:1080", "[::]:1080", "[::ffff:10.77.1.1]:1080"])
def test_proxy_for_other_hosts_needs_credentials(pair, listen):
    done = pair.client.run(PLAIT, "proxy", "--listen", listen, "--trusted", "eth", text=True, timeout=20)
    assert done.returncode == 1
    assert f"expected --credentials with --listen {listen}" in done.stderr


LOCAL = {
    "ipv4": b"\x01\x7f\x00\x00\x01",
    "unspecified": b"\x01\x00\x00\x00\x00",
    "ipv6": b"\x04" + bytes(15) + b"\x01",
    "ipv6-unspecified": b"\x04" + bytes(16),
    "mapped": b"\x04" + bytes(10) + b"\xff\xff\x7f\x00\x00\x01",
    "name": b"\x03\x09localhost",
}


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_services_of_the_proxy_host_are_out_of_reach(pair, allowed):
    echo_server(pair.client)
    pair.proxy("--trusted", "eth", *(["--allow-local"] if allowed else []))

    def ask(request: bytes, length: int) -> bytes:
        with pair.client.socket() as client:
            client.settimeout(15)
            client.connect(("127.0.0.1", 1080))
            client.sendall(request)
            return receive_exactly(client, length)

    for name, address in LOCAL.items():
        if not allowed or name in ("ipv4", "name"):
            answer = ask(b"\x05\x01\x00" + b"\x05\x01\x00" + address + (9000).to_bytes(2, "big"), 4)
            # RFC 1928: connection not allowed by ruleset.
            assert answer == (b"\x05\x00\x05\x00" if allowed else b"\x05\x00\x05\x02"), name
    answer = ask(b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\n\r\n", 12)
    assert answer == (b"HTTP/1.1 200" if allowed else b"HTTP/1.1 403")
