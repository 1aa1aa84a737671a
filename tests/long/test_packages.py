"""The packages in out/ (`make packages`): installed, used by their services for ten minutes, and purged in fresh root trees.

systemd is PID 1 of each tree, in namespaces of its own, and applies the units' restrictions. What every step prints is in
out/test/packages-SUITE.log.
"""

import subprocess

import pytest
from hosts import REPOSITORY

SECONDS = 600


@pytest.mark.long
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_packages(suite):
    command = [REPOSITORY / "packaging" / "test", "--seconds", str(SECONDS), suite]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    if done.stdout.startswith("SKIP"):
        pytest.skip(done.stdout.splitlines()[0])
    assert done.returncode == 0
