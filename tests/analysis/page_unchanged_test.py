"""What was made of the same inputs is not made again, and what is kept is as if it had been drawn."""

import json
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from synthetic_workdir import write_workdir

from analysis import opening, page, plotting
from lm_mia.attacks import unchanged

FIGURES = ("strongmia_fig05_instability", "strongmia_tab01_error_rates_140m")
NOTHING: list[str] = []


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "w"
    settings: dict[str, Any] = {"attacks": ("lira_online", "stacked", "loss"), "bootstraps": 0}
    for name in ("flip-140M", "flip-302M"):
        recipe = write_workdir(folder, name, samples=200, replicas=12, **settings)
        path = recipe.recipe_dir / "config.json"
        stored = json.loads(path.read_text())
        stored["config"]["compare_with_papers"] = True
        path.write_text(json.dumps(stored))
    return folder


@pytest.fixture
def workdir(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "w"))


@pytest.fixture
def drawn(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files of figures that were drawn."""
    names: list[str] = []
    save = plotting.save

    def count(figure: Figure, figures_dir: Path, name: str) -> Path:
        names.append(name)
        return save(figure, figures_dir, name)

    monkeypatch.setattr(plotting, "save", count)
    return names


def write(workdir: Path, figures: Sequence[str] = FIGURES, redraw: Collection[str] = ()) -> None:
    recipes = opening.read_recipes(workdir).recipes
    inputs = unchanged.read_inputs({r.recipe_dir: (r.config, r.names) for r in recipes}, figures)
    assert inputs is not None
    names = [recipe.name for recipe in recipes]
    page.write_page(workdir, names, figures, lambda *_: None, print, inputs, redraw)


def html(workdir: Path) -> dict[str, str]:
    """Returns the pages without their dates."""
    pages = [workdir / "report.html", *workdir.glob("figures/*.html")]
    return {p.name: re.sub(r"<time.*?</time>", "", p.read_text("utf-8")) for p in pages}


def test_an_unchanged_report_is_not_written(workdir: Path, drawn: list[str]):
    write(workdir)
    assert FIGURES[0] in drawn
    pages = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.html")}
    assert len(pages) == 6  # of the sweep, of figures, and two of each recipe
    drawn.clear()
    write(workdir)
    assert drawn == NOTHING
    assert {path: path.stat().st_mtime_ns for path in pages} == pages


@pytest.mark.slow
def test_a_deleted_page_is_written_from_what_was_drawn(workdir: Path, drawn: list[str]):
    write(workdir)
    before, claims = html(workdir), (workdir / "tables" / "claims.csv").read_text()
    drawn.clear()
    (workdir / "figures" / "strongmia.html").unlink()
    (workdir / "tables" / "claims.csv").unlink()
    write(workdir)
    assert drawn == NOTHING
    assert html(workdir) == before
    assert (workdir / "tables" / "claims.csv").read_text() == claims


def test_only_what_changed_is_drawn(workdir: Path, drawn: list[str]):
    write(workdir)
    drawn.clear()
    (workdir / "figures" / f"{FIGURES[0]}.pdf").write_text("edited")
    write(workdir)
    assert drawn == [FIGURES[0]]
    drawn.clear()
    (workdir / "figures" / "flip-302M-training.png").unlink()
    write(workdir)
    assert {name.rpartition("-")[0] for name in drawn} == {"flip-302M"}
    drawn.clear()
    write(workdir, redraw={FIGURES[0]})
    assert drawn == [FIGURES[0]]


@pytest.mark.slow
def test_another_list_of_figures_keeps_those_that_were_drawn(workdir: Path, drawn: list[str]):
    write(workdir, FIGURES[:1])
    drawn.clear()
    write(workdir, FIGURES)
    assert drawn == NOTHING
    assert "Table" in html(workdir)["strongmia.html"]


@pytest.mark.slow
def test_without_known_inputs_all_is_drawn(workdir: Path, drawn: list[str]):
    write(workdir)
    drawn.clear()
    page.write_page(workdir, None, FIGURES, lambda *_: None, print)
    assert FIGURES[0] in drawn
