"""Which paths connections use."""


from hosts import tool, wait_for
from streams import receive_exactly


def test_other_programs_keep_the_kernels_path_manager(pair):
    """While a gateway runs, an ordinary MPTCP program's subflows are made by the kernel as configured."""
    tool("ip", "-n", pair.client.name, "mptcp", "endpoint", "add", "10.77.2.1", "dev", "wlan", "subflow")
    pair.proxy("--trusted", "eth")
    mptcp = 262
    listener = pair.server.socket(protocol=mptcp)
    listener.bind((pair.ETH, 7000))
    listener.listen()
    client = pair.client.socket(protocol=mptcp)
    client.connect((pair.ETH, 7000))
    accepted, _ = listener.accept()
    client.sendall(b"hello")
    assert receive_exactly(accepted, 5) == b"hello"
    accepted.sendall(b"hello")
    assert receive_exactly(client, 5) == b"hello"
    wait_for("kernel-made subflow", lambda: client.getsockopt(284, 1, 256)[0] >= 1)
