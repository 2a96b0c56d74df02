"""Wheel and sdist hold everything that an installation needs: packages, configs, templates and published numbers."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process


def build(target: str, source: Path, folder: Path) -> Path:
    """Builds a wheel or an sdist of a source folder, and returns its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel of the checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the unpacked wheel, outside the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def run(installed: Path, folder: Path, *command: str) -> str:
    """Returns the output of a command in an empty folder, which imports the unpacked wheel, not the checkout."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-P", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_tracked_file_of_the_packages_is_in_the_wheel(installed: Path):
    kinds = {".py", ".csv", ".css", ".js", ".j2", ".typed"}
    for package in ("lm_mia", "launch", "analysis", "configs"):
        home = installed / ("lm_mia/configs" if package == "configs" else package)
        wanted = {p.relative_to(ROOT / package) for p in (ROOT / package).rglob("*")}
        wanted = {p for p in wanted if p.suffix in kinds}
        assert wanted
        assert {p.relative_to(home) for p in home.rglob("*")} >= wanted


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path):
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    for name in ("README.md", "CITATION.cff", "check.sh", "docs/tutorial.md", "tests/conftest.py"):
        assert (source / name).is_file(), name
    rebuilt = build("wheel", source, tmp_path / "rebuilt")
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(rebuilt) as theirs:
        assert {i.filename: i.CRC for i in ours.infolist()} == {
            i.filename: i.CRC for i in theirs.infolist()
        }


def test_commands_run_by_a_bare_config_name(installed: Path, tmp_path: Path):
    where = "import lm_mia, analysis; print(lm_mia.__file__, analysis.__file__)"
    assert run(installed, tmp_path, "-c", where).count(str(installed)) == 2
    out = run(installed, tmp_path, "-m", "lm_mia.cli", "plan", "--config=quickstart")
    assert "48" in out
    out = run(installed, tmp_path, "-m", "launch", "plan", "--config=strongmia:fig05,cpu")
    assert "flip-302M" in out
    out = run(installed, tmp_path, "-m", "analysis", "--help")
    assert "workdir" in out
