"""Another ordinary user of a gateway's host looks into the gateway, and asks for its status."""

import pytest
from hosts import wait_for

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@pytest.fixture(params=["proxy", "serve"])
def gateway(pair, request):
    """A gateway's host and process id."""
    if request.param == "proxy":
        return pair.client, pair.proxy("--trusted", "eth").pid
    return pair.server, pair.serve(to="127.0.0.1:9000").pid


@pytest.mark.parametrize("name", ["environ", "maps", "mem", "auxv", "stack", "fd", "map_files"])
def test_memory_and_descriptors_are_out_of_reach(gateway, name):
    host, pid = gateway
    command = ("ls" if name in ("fd", "map_files") else "cat", f"/proc/{pid}/{name}")
    done = host.run(*NOBODY, *command, text=True)
    assert done.returncode != 0 and not done.stdout, done
    assert "Permission denied" in done.stderr
    # Of the beginning of mem, nothing is mapped.
    assert name == "mem" or host.run(*command).returncode == 0, "root may"


def test_status_is_out_of_reach(gateway):
    host, pid = gateway
    command = (
        "curl",
        "-sS",
        "--http0.9",
        "--unix-socket",
        f"/run/plait/gateway-{pid}.sock",
        "http://status/",
    )
    wait_for("the status", lambda: b'"command"' in host.run(*command).stdout)
    done = host.run(*NOBODY, *command, text=True)
    # curl's exit status if it cannot connect.
    assert (done.returncode, done.stdout) == (7, ""), done
