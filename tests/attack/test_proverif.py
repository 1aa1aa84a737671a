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


def test_proverif_confirms_the_threat_model_over_two_paths():
    prove = [REPOSITORY / "formal" / "prove", "--paths", "2"]
    command = [*prove, "--attacker", "anonymous", "--attacker", "anonymous, everywhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
