"""The attack matrix: an attacker absent from, listening on or active on each of two and three paths, in every mode.

`ATTACK_MATRIX=write` in the environment writes the tables of docs/reference/attack-matrix.md instead of comparing them.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import attacker
from attack_matrix import (
    LINKS,
    MODES,
    Matrix,
    Network,
    active_cells,
    cells,
    document,
    expected,
    port,
    strategies,
)
from gateways import cgroup_of
from hosts import REPOSITORY, reason_to_skip

QUESTION = b"what does a confirmation confirm?"
SKIP_CONFIRMATIONS = "import hmac; hmac.compare_digest = lambda one, other: True\n"
DOCUMENTATION = REPOSITORY / "docs" / "reference" / "attack-matrix.md"


@pytest.fixture(scope="module", params=[2, 3], ids=["two paths", "three paths"])
def matrix(request, tmp_path_factory):
    if reason := reason_to_skip():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("attack")
    file = document(directory)
    network = Network(f"{os.getpid()}-attack-{request.param}", directory, request.param)
    try:
        network.build()
        network.start(file.read_bytes())
        yield Matrix(network, file)
    finally:
        network.remove()


@pytest.mark.parametrize("mode", MODES)
def test_every_cell_has_the_promised_outcome(matrix, mode):
    promised = {cell: expected(mode, cell) for cell in cells(matrix.paths)}
    assert {cell: matrix.observed(mode, cell) for cell in promised} == promised


def test_only_sealed_detects_modifications(matrix):
    for mode in ("off", "xor64", "stream"):
        for cell in active_cells(matrix.paths):
            outcome = matrix.outcome(mode, strategies(mode, cell)["modify"])
            assert outcome.ended == "end", (mode, cell, outcome)
            assert len(outcome.client_received) == len(outcome.answer), (mode, cell, outcome)
            assert outcome.client_received != outcome.answer, (mode, cell)


def test_the_level_drops_by_one_for_every_blocked_witness(matrix):
    for cell in active_cells(matrix.paths):
        outcome = matrix.at_a_lower_level(cell)
        promised = expected("sealed", cell) if cell[0] == "active" else "secret"
        assert outcome.verdict == promised, cell
        left = matrix.paths - cell[1:].count("active")
        assert outcome.level == (None if promised == "detected" else f"{left}/{matrix.paths}"), cell


def test_documentation_contains_the_observed_tables(matrix):
    text = DOCUMENTATION.read_text()
    written = text
    for name, table in matrix.tables().items():
        begin = f"<!-- {name}, {matrix.paths} paths -->\n"
        before, _, rest = written.partition(begin)
        _, end, after = rest.partition("<!-- end -->\n")
        assert end, f"no table {name!r} with {matrix.paths} paths"
        written = f"{before}{begin}\n{table}\n{end}{after}"
    if os.environ.get("ATTACK_MATRIX") == "write":
        DOCUMENTATION.write_text(written)
    else:
        assert text == written, "ATTACK_MATRIX=write writes what was observed"


@pytest.mark.parametrize("verifies", [True, False], ids=["verified", "skipped"])
def test_without_confirmations_a_man_in_the_middle_who_wiretaps_all_witnesses_succeeds(matrix, verifies):
    """Proves that the attack is real: the confirmations are all that detects it."""
    network = matrix.network
    script = ("" if verifies else SKIP_CONFIRMATIONS) + "import peer_sockets; peer_sockets.main()"
    arguments = ("connect", "sealed", ",".join(LINKS[: matrix.paths]), attacker.SERVER, port("sealed"))
    client = ["nsenter", f"--net=/run/netns/{network.client.name}", sys.executable, "-c", script]
    client += [*map(str, arguments), cgroup_of(network.proxies["sealed"])]
    with attacker.attack("intercept", network.routers[0]):
        network.attacker.prepare(port("sealed"), ("intercept", *("wiretap" for _ in range(matrix.paths - 1))))
        done = subprocess.run(
            client, input=QUESTION, capture_output=True, cwd=REPOSITORY / "tests" / "helpers", timeout=60
        )
        read, _ = network.attacker.result()
    assert (QUESTION in read) == (not verifies), done.stderr.decode()
    if verifies:
        assert "a wrong confirmation" in done.stderr.decode()
