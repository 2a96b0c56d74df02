"""The figures of a recipe: which files are written, and which are deleted."""

from pathlib import Path

import pytest
from synthetic_workdir import copy_workdir, write_extraction, write_workdir

from analysis import recipe_figures
from analysis.experiments import RECIPE_FIGURES
from analysis.io import RecipeResults


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("run") / "demo"
    recipe = write_workdir(
        folder, attacks=("lira_online", "loss"), bootstraps=0, leave_one_out=True
    )
    return write_extraction(recipe)


def drawn(folder: Path) -> dict[str, bytes]:
    """Returns the files of figures."""
    return {p.name.removeprefix("demo-"): p.read_bytes() for p in (folder / "figures").iterdir()}


@pytest.mark.usefixtures("full_figures")
def test_figures_are_written_as_png_and_pdf(finished: RecipeResults, tmp_path: Path) -> None:
    copy = copy_workdir(finished, tmp_path / "w")
    recipe_figures.write(copy)
    files = drawn(tmp_path / "w")
    names = {*RECIPE_FIGURES} - {"zero_run"}  # whose study is not set
    assert {*files} == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}
    for name in names:
        assert files[f"{name}.png"].startswith(b"\x89PNG")
        assert files[f"{name}.pdf"].startswith(b"%PDF")
        assert b"CreationDate" not in files[f"{name}.pdf"]


@pytest.mark.slow
@pytest.mark.usefixtures("full_figures")
def test_figures_that_are_written_twice_have_equal_bytes(
    finished: RecipeResults, tmp_path: Path
) -> None:
    copy = copy_workdir(finished, tmp_path / "w")
    recipe_figures.write(copy)
    files = drawn(tmp_path / "w")
    recipe_figures.write(copy)
    assert drawn(tmp_path / "w") == files


@pytest.mark.usefixtures("undrawn")
def test_figures_without_results_are_deleted(tmp_path: Path) -> None:
    settings = {"replicas": 0, "targets": 2, "attacks": ("lira_online", "loss"), "bootstraps": 0}
    recipe = write_workdir(tmp_path, samples=100, **settings)
    (tmp_path / "figures").mkdir()
    for name in ("vulnerability.png", "vulnerability.pdf", "pooling.png"):
        (tmp_path / "figures" / f"demo-{name}").write_text("from an earlier report")
    recipe_figures.write(recipe)
    assert {*drawn(tmp_path)} == {
        f"{name}.{suffix}"
        for name in ("advantage", "audit", "training")
        for suffix in ("png", "pdf")
    }
