"""ProVerif proves what the threat model promises of `sealed`, and finds the attack that it concedes."""

import os
import shutil
import subprocess

import pytest
from hosts import REPOSITORY

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not shutil.which(os.environ.get("PROVERIF", "proverif")), reason="not installed: proverif"
    ),
]


@pytest.mark.parametrize(
    "attackers",
    [
        ["anonymous", "anonymous, everywhere"],
        ["late witness, in the middle of the main path", "late witness, everywhere"],
        ["updates, keys between known", "updates, keys between known, active"],
    ],
    ids=["handshake", "late witness", "key updates"],
)
def test_proverif_confirms_the_threat_model_over_two_paths(attackers):
    command = [REPOSITORY / "formal" / "prove", "--paths", "2"]
    command += [argument for name in attackers for argument in ("--attacker", name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
