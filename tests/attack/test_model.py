"""The symbolic model of `sealed`, and that its prover finds what is known of other protocols."""

import subprocess
import sys

import pytest
from hosts import REPOSITORY

MODEL = REPOSITORY / "formal"
sys.path.insert(0, str(MODEL))

import sealed  # noqa: E402
from horn import saturate  # noqa: E402


def needham_schroeder(*, named: bool) -> list:
    """With public keys; if `named`, with Lowe's correction: the responder's name in its message."""
    alice, bob, x, y, n, m = ("alice",), ("bob",), 0, 1, 2, 3

    def has(term):
        return ("att", term)

    def public(secret):
        return ("public", secret)

    def sealed_for(secret, *parts):
        return ("for", ("#", *parts), public(secret))

    answer = [("nonce of bob", n, x), *([public(bob)] if named else [])]
    expected = [y, *([public(x)] if named else [])]
    return [
        ((has(x),), has(public(x))),
        ((has(m), has(x)), has(("for", m, x))),
        ((has(("for", m, public(x))), has(x)), has(m)),
        ((), has(("mallory",))),
        ((), has(public(alice))),
        ((), has(public(bob))),
        ((has(public(x)),), has(sealed_for(x, ("nonce of alice", x), public(alice)))),
        ((has(sealed_for(bob, n, public(x))),), has(sealed_for(x, n, *answer))),
        ((has(sealed_for(alice, ("nonce of alice", x), *expected)),), has(sealed_for(x, y))),
        ((has(("nonce of bob", n, alice)),), ("leaked", ("nonce of bob",))),
    ]


@pytest.mark.parametrize(
    ("named", "leaks"), [(False, True), (True, False)], ids=["as published", "corrected"]
)
def test_the_prover_finds_lowes_attack_and_none_on_his_correction(named, leaks):
    found = saturate(needham_schroeder(named=named))
    assert any(conclusion[0] == "leaked" for _, conclusion in found) == leaks


def test_sealed_with_one_path_is_broken_by_who_is_active_alone():
    command = [sys.executable, MODEL / "sealed.py", "--paths", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "| active | broken |" in done.stdout and "| listening | secret |" in done.stdout


@pytest.mark.parametrize(
    ("places", "lacks", "word"),
    [
        (("listening", "listening"), None, "secret"),
        (("active", "listening"), None, "detected"),
        (("listening", "active"), None, "detected"),
        (("active", "listening"), "hash", "broken"),
        (("active", "listening"), "confirmations", "broken"),
    ],
)
def test_sealed_with_a_witness_holds_and_would_not_without_what_it_confirms(places, lacks, word):
    assert sealed.judge(places, lacks)[0] == word
