"""The wheel and the source distribution that `make wheel` has written to out/."""

import os
import pathlib
import subprocess
import tarfile
import zipfile

import pytest
from captures import connections
from hosts import REPOSITORY, tool
from package import PYTHON, VENV_PYTHON, skip_without

pytestmark = pytest.mark.long


def built(pattern: str) -> pathlib.Path:
    files = sorted((REPOSITORY / "out").glob(pattern))
    if not files:
        pytest.skip(f"no out/{pattern}: make wheel")
    (file,) = files
    return file


@pytest.fixture(scope="module")
def wheel() -> pathlib.Path:
    return built("plait-*.whl")


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory) -> pathlib.Path:
    """A fresh environment, without other packages, in which the wheel is installed."""
    directory = tmp_path_factory.mktemp("fresh") / "venv"
    tool(PYTHON, "-m", "venv", str(directory))
    # Nothing is fetched: the wheel depends on nothing.
    tool(str(directory / "bin" / "pip"), "install", "--quiet", "--no-index", str(wheel))
    return directory


def run(*command, cwd: pathlib.Path) -> str:
    hidden = ("PLAIT", "PYTHONPATH", "PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    options = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, cwd=cwd, env=environment | {"PATH": "/usr/bin:/bin"}, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_installed_package_analyzes_a_capture(venv, tmp_path):
    (tmp_path / "some.pcap").write_bytes(connections(3))
    program = "import plait; print(len(plait.analyze('some.pcap').connections), plait.__file__)"
    count, file = run(venv / "bin" / "python", "-c", program, cwd=tmp_path).split()
    assert count == "3" and pathlib.Path(file).is_relative_to(venv)


def test_installed_command_runs(venv, tmp_path):
    (tmp_path / "some.pcap").write_bytes(connections(3))
    assert run(venv / "bin" / "plait", "--version", cwd=tmp_path).startswith("plait ")
    assert '"packets":6' in run(venv / "bin" / "plait", "analyze", "--json", "some.pcap", cwd=tmp_path)


def test_package_finds_the_installed_command(venv, tmp_path):
    """Also where PATH does not lead to it, as in the kernel of a notebook."""
    program = "import plait.cc, plait._command; print(plait._command.command()[0])"
    found = run(venv / "bin" / "python", "-c", program, cwd=tmp_path).strip()
    assert found == str(venv / "bin" / "plait")


def test_tag_is_what_auditwheel_finds(wheel):
    """Of the native module and the libraries that were copied into the wheel."""
    skip_without("auditwheel")
    assert "-cp311-abi3-manylinux_" in wheel.name
    shown = tool(VENV_PYTHON, "-m", "auditwheel", "show", str(wheel))
    (tag,) = (part for part in wheel.name.removesuffix(".whl").split("-")[-1].split(".") if "_2_" in part)
    assert f'"{tag}"' in " ".join(shown.split()), shown


def test_wheel_has_types_and_the_command(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"plait/py.typed", "plait/_plait.pyi", "plait/_plait.abi3.so"} <= set(names)
    assert [name for name in names if name.endswith(".data/scripts/plait")]


def test_source_distribution_has_what_building_needs():
    with tarfile.open(built("plait-*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "Cargo.toml", "Cargo.lock", "bpf/include/kernel.h", "python/plait/_plait.pyi"}
    needed |= {f"crates/{name}/Cargo.toml" for name in ("python", "trace", "gateway", "policy", "bpf-build")}
    assert needed <= names
    assert not [name for name in names if name.startswith("plait._plait.data")]
