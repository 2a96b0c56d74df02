"""The wheel holds everything that an installation needs: packages, configs, templates and published numbers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, without the checkout that it was built from."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, *command: str) -> str:
    """What a command prints in an empty folder, with the unpacked wheel in front of the checkout."""
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
    kinds = {".py", ".typed", ".csv", ".css", ".j2"}
    for package in ("lm_mia", "launch", "analysis", "configs"):
        home = installed / ("lm_mia/configs" if package == "configs" else package)
        wanted = {p.relative_to(ROOT / package) for p in (ROOT / package).rglob("*")}
        wanted = {p for p in wanted if p.suffix in kinds}
        assert wanted
        assert {p.relative_to(home) for p in home.rglob("*")} >= wanted


def test_commands_run_by_a_bare_config_name(installed: Path, tmp_path: Path):
    where = "import lm_mia, analysis; print(lm_mia.__file__, analysis.__file__)"
    assert run(installed, tmp_path, "-c", where).count(str(installed)) == 2
    out = run(installed, tmp_path, "-m", "lm_mia.cli", "plan", "--config=quickstart")
    assert "48" in out
    out = run(installed, tmp_path, "-m", "launch", "plan", "--config=strongmia:fig05,cpu")
    assert "flip-302M" in out
    out = run(installed, tmp_path, "-m", "analysis", "--help")
    assert "workdir" in out
