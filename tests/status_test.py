import json
import shutil
from pathlib import Path

import pytest
import tiny_run

from lm_mia import cli


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_run.Tiny:
    return tiny_run.finished(tmp_path_factory)


def test_what_is_there_and_what_is_missing(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    [recipe] = w.glob("recipe_*")
    (recipe / "scores.zarr" / "loss" / "c" / "1" / "0").unlink()
    shutil.rmtree(recipe / "checkpoints" / "reference_1_1_1")
    (w / "report.html").unlink()
    before = tiny_run.content(w)
    assert cli.main(tiny.argv("status", w, "--config.attack.replicas=3")) == 0
    out, _ = capsys.readouterr()
    cells = [line.replace("│", " ").split() for line in out.splitlines()]
    assert ["reference", "4", "3", "3", "1"] in cells
    assert ["replica", "3", "2", "2", "1"] in cells
    assert ["tables", "present"] in cells
    assert ["report.html", "missing"] in cells
    sha256 = json.loads((w / "population" / "manifest.json").read_text())["sha256"]
    assert ["population", "32", "samples,", "sha256", sha256] in cells
    assert tiny_run.content(w) == before


def test_another_config_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    assert cli.main(tiny.argv("status", w, "--config.model.width=16")) == 2
    assert "  model.width: 8 -> 16" in capsys.readouterr().err.splitlines()
