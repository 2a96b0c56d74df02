"""lm_mia finds its packages `analysis` and `launch` in folders that have others of these names."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from slow_case import slow_case

from lm_mia import top_level
from lm_mia.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
OTHER = 'raise ImportError("the package of the user")\n'
STATUS = ("status", "--workdir=imported")
CALLS = {
    "script": ("scripts/lm-mia", *STATUS),
    "module": ("-m", "lm_mia", *STATUS),
    "api": ("-c", "import lm_mia; print(lm_mia.open('imported').recipes['imported'].tables)"),
}
WORKDIR = """
import numpy as np, lm_mia
rng = np.random.default_rng(0)
member_MxN = rng.random((6, 50)) < 0.5
lm_mia.open_arrays("imported", 3 + rng.normal(0, 0.2, (6, 50)) - 0.3 * member_MxN, member_MxN)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder that comes before lm_mia on the path."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a workdir and the console script of lm-mia."""
    folder = tmp_path_factory.mktemp("project")
    assert python(folder, "-c", WORKDIR).returncode == 0
    script = folder / "scripts" / "lm-mia"
    script.parent.mkdir()
    script.write_text("import sys\nfrom lm_mia.cli import main\nsys.exit(main())\n")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "file"),
    [
        *((call, "{}/__init__.py") for call in CALLS),
        slow_case("module", "{}.py"),
        ("module", "{}/cli.py"),  # a folder without __init__.py
    ],
)
def test_entry_points_import_ours_in_a_folder_with_others(project: Path, call: str, file: str):
    others = [project / file.format(name) for name in top_level.NAMES]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text(OTHER)
    done = python(project, *CALLS[call])
    assert done.returncode == 0, done.stderr
    assert "imported" in done.stdout or call == "api"
    for other in others:
        other.unlink()


@pytest.mark.parametrize("name", top_level.NAMES)
@pytest.mark.parametrize("is_folder", [True, False])
def test_another_package_that_is_loaded_is_named(
    name: str, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = ModuleType(name)
    other.__file__ = None if is_folder else str(tmp_path / "__init__.py")
    other.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, name, other)
    with pytest.raises(UserError, match=f"^{name}={tmp_path}.*; rename your {name}, or "):
        top_level.import_packages()


def test_ours_are_not_loaded_again():
    top_level.import_packages()
    before = [sys.modules[name] for name in top_level.NAMES]
    top_level.import_packages()
    assert [sys.modules[name] for name in top_level.NAMES] == before
