"""The attack matrix: an attacker absent from, listening on or active on each of two and three paths, in every mode.

`ATTACK_MATRIX=write` in the environment writes the tables of docs/reference/attack-matrix.md instead of comparing with them.
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
    attacked,
    cells,
    document,
    expected,
    port,
    strategies,
)
from hosts import REPOSITORY, reason_to_skip
from test_paths import group_of

QUESTION = b"what does a confirmation confirm?"
CARELESS = "import hmac; hmac.compare_digest = lambda one, other: True\n"
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
def test_what_comes_of_every_cell_is_what_is_promised(matrix, mode):
    promised = {cell: expected(mode, cell) for cell in cells(matrix.paths)}
    assert {cell: matrix.observed(mode, cell) for cell in promised} == promised


def test_what_is_altered_in_other_modes_than_sealed_is_noticed_by_nobody(matrix):
    for mode in ("off", "xor64", "stream"):
        for cell in attacked(matrix.paths):
            outcome = matrix.outcome(mode, strategies(mode, cell)["alters"])
            assert (outcome.ended, len(outcome.got)) == ("end", len(outcome.answer)), (mode, cell, outcome)
            assert outcome.got != outcome.answer, (mode, cell)


def test_a_lower_level_than_all_paths_shows_who_was_kept_away(matrix):
    for cell in attacked(matrix.paths):
        outcome = matrix.at_a_lower_level(cell)
        if cell[0] == "active":
            promised = expected("sealed", cell)
        else:
            promised = "secret"
        assert outcome.word == promised, cell
        left = matrix.paths - cell[1:].count("active")
        assert outcome.level == (None if promised == "detected" else f"{left}/{matrix.paths}"), cell


def test_the_documentation_has_these_tables(matrix):
    text = DOCUMENTATION.read_text()
    written = text
    for name, table in matrix.tables().items():
        begin = f"<!-- {name}, {matrix.paths} paths -->\n"
        before, _, rest = written.partition(begin)
        _, end, after = rest.partition("<!-- end -->\n")
        assert end, f"no place for table {name!r} with {matrix.paths} paths"
        written = f"{before}{begin}\n{table}\n{end}{after}"
    if os.environ.get("ATTACK_MATRIX") == "write":
        DOCUMENTATION.write_text(written)
    else:
        assert text == written, "ATTACK_MATRIX=write writes what was observed"


@pytest.mark.parametrize("careful", [True, False], ids=["careful", "careless"])
def test_who_stands_between_reads_an_initiator_that_does_not_look_at_confirmations(matrix, careful):
    """The attack is one: where he listens on all witnesses, they are all that keeps it off."""
    network = matrix.network
    script = ("" if careful else CARELESS) + "import peer_sockets; peer_sockets.main()"
    arguments = ("connect", "sealed", ",".join(LINKS[: matrix.paths]), attacker.SERVER, port("sealed"))
    client = ["nsenter", f"--net=/run/netns/{network.client.name}", sys.executable, "-c", script]
    client += [*map(str, arguments), group_of(network.proxies["sealed"])]
    with attacker.doing("stands", network.routers[0]):
        network.between.stand(port("sealed"), ("stands", *("hears" for _ in range(matrix.paths - 1))))
        done = subprocess.run(
            client, input=QUESTION, capture_output=True, cwd=REPOSITORY / "tests" / "helpers", timeout=60
        )
        read, _ = network.between.result()
    assert (QUESTION in read) == (not careful), done.stderr.decode()
    if careful:
        assert "a wrong confirmation" in done.stderr.decode()
