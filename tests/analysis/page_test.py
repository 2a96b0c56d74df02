"""Every figure and table of the paper, drawn of a synthetic sweep, and the page of them."""

import dataclasses
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest
from synthetic_figures import make
from synthetic_workdir import Page

from analysis import attacks, page, plotting, published
from analysis.figures import MODULES
from analysis.io import Recipes
from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.run import report
from lm_mia.run.progress import Display

NOT_HERE = {"fig07_extraction"}  # nothing was extracted: there are no models
AS_PDF = {"fig01_references", "fig06_vulnerability", "scaling"}
"""Half of the time that a figure takes goes into its PDF: so of a few, with points that are pixels among them."""
OF_MORE_REFERENCES = {"fig01_references", "fig10_auc_by_references"}  # than there are here
EFFECTS = (
    "On the same data the largest model has a higher AUC than the smallest.",
    "The loss tells members better than the logit.",
    "More epochs raise the AUC.",
)


def test_no_figure_or_table_of_the_paper_is_missing():
    numbers = [name.partition("_")[0] for name in MODULES]
    wanted = [
        *(f"fig{n:02}" for n in range(1, 33)),
        *(f"tab{n:02}" for n in range(1, 8)),
        "scaling",
    ]
    assert numbers == wanted


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_is_drawn(
    name: str, recipes: Recipes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if name not in AS_PDF:
        monkeypatch.delitem(plotting.FORMATS, "pdf")
    shown = page.show(name, recipes, tmp_path)
    assert shown.title
    assert shown.paper
    if name in NOT_HERE:
        assert "extraction" in shown.absent
        return
    assert shown.absent == ""
    assert shown.drawn is not None
    data = pd.read_csv(tmp_path / "tables" / f"{name}.csv")
    assert len(data) > 0
    assert {c.statement for c in shown.claims} <= set(page.find(name).statements)
    keys = published.numbers(name.partition("_")[0])
    assert not keys or set(shown.drawn.ours) & set(keys) or name in OF_MORE_REFERENCES
    if shown.drawn.figure is None:
        assert (tmp_path / "tables" / f"{name}.tex").read_text().startswith(r"\begin{tabular}")
        assert (tmp_path / "tables" / f"{name}.md").read_text().startswith("| ")
        return
    assert shown.image.startswith("data:image/png;base64,")
    if name in AS_PDF:
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_says_which_rows_it_lacks(name: str, tmp_path: Path):
    shown = page.show(name, Recipes([]), tmp_path)
    if name != "tab07_settings":  # of the configs alone
        assert shown.absent
        assert [c.verdict for c in shown.claims] == ["not tested"] * len(shown.claims)


NOISY = ("main", "data-1536", "fixed-10M", "fixed-140M", "fixed-1018M", "epochs-140M")
"""Recipes that these figures need."""
SHOWING = ("fig01_references", "fig04_data_and_size", "fig08_statistic", "fig17_overtraining")
"""Figures whose claims are of these effects."""


def verdicts(recipes: Recipes) -> dict[str, str]:
    drawn = [page.find(name).draw(recipes) for name in SHOWING]
    return {claim.statement: claim.verdict for d in drawn for claim in d.claims}


def test_effects_that_are_there_are_seen(recipes: Recipes):
    told = verdicts(recipes)
    assert [told[statement] for statement in EFFECTS] == ["seen"] * len(EFFECTS)


@pytest.mark.montecarlo
def test_noise_shows_no_effect(tmp_path: Path):
    make(tmp_path, gain=0, only=NOISY)
    recipes = Recipes(sorted(p.parent for p in (tmp_path / "sweep").glob("*/config.json")))
    told = verdicts(recipes)
    assert [told[statement] for statement in EFFECTS] == ["not seen"] * len(EFFECTS)
    auc = attacks.attacked(recipes["main"]).auc_T
    assert abs(auc.mean() - 0.5) < 0.05


def test_the_page_has_every_figure_and_its_claims(folder: Path, recipes: Recipes, tmp_path: Path):
    some = ["fig01_references", "fig05_instability", "tab01_error_rates_140m", "fig07_extraction"]
    shown = Page(page.write_page(tmp_path, recipes, some).read_text())
    ids = {attributes.get("id") for _, attributes in shown.tags}
    assert {*some, "claims", "recipes"} <= ids
    assert "The AUC of LiRA grows with the number of references." in shown.words
    assert "Not drawn: " in shown.words
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv")
    assert set(claims["figure"]) == {"fig01_references", "fig05_instability", "fig07_extraction"}
    assert claims[["figure", "statement", "verdict", "said"]].notna().all(axis=None)
    one = claims[claims["statement"] == "Its growth has diminishing returns."].iloc[0]
    assert f"{one['value']:.3f}, 95% interval {one['low']:.3f} to {one['high']:.3f}" in one["said"]
    links = [a["href"] for tag, a in shown.tags if tag == "a" and a.get("href")]
    assert all(
        (tmp_path / h).is_file() for h in links if h and not h.startswith("#") and "fig07" not in h
    )


def test_a_page_without_claims_has_no_table_of_them(
    recipes: Recipes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shown = Page(page.write_page(tmp_path, recipes, ["tab01_error_rates_140m"]).read_text())
    assert "claims" not in {attributes.get("id") for _, attributes in shown.tags}
    page.write_page(tmp_path, recipes, ["fig07_extraction"])
    assert "not drawn: fig07_extraction: " in capsys.readouterr().out


MINE = """
import pandas as pd

from analysis.paper_figure import Drawn

TITLE = "Mine: how many samples"
PAPER = "The paper has more."
STATEMENTS = ("There are some.",)


def draw(recipes):
    return Drawn(pd.DataFrame({"samples": [recipes["main"].samples]}))
"""


def test_a_figure_of_ones_own(
    recipes: Recipes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "no_figure.py").write_text(MINE.replace("PAPER", "TEXT"))
    monkeypatch.setattr(page, "HERE", tmp_path)
    shown = page.show("mine", recipes, tmp_path)
    assert (shown.absent, shown.short, shown.paper) == ("", "Mine", "The paper has more.")
    data = pd.read_csv(tmp_path / "tables" / "mine.csv")
    assert data["samples"].tolist() == [recipes["main"].samples]
    [claim] = page.show("mine", Recipes([]), tmp_path).claims
    assert (claim.statement, claim.verdict) == ("There are some.", "not tested")
    for name in ("yours", "no_figure"):
        argv = [str(tmp_path), f"--recipe={recipes['main'].folder}", f"--figure={name}"]
        assert page.main(argv) == 2
        assert f"--figure={name}: no such figure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{here}"], "no recipe in it; run lm-mia run first"),
        (["{here}/none"], "no such folder; run lm-mia run first"),
        (["{recipe}"], "has the rows of one config, not of a sweep"),
        (["{sweep}", "--figure=fig99"], "--figure=fig99: no such figure; choose one of fig01_"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str],
    said: str,
    folder: Path,
    recipes: Recipes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    at = {"here": tmp_path, "sweep": folder, "recipe": recipes["main"].folder}
    assert page.main([a.format(**at) for a in argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_package_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["analysis", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("analysis", run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("no recipe in it; run lm-mia run first\n")


def test_a_config_names_figures_of_the_paper_or_ones_own(tmp_path: Path):
    c = Config(report="analysis/page.py", figures=("scaling", "tab07_settings"))
    assert page.__file__ == str(report.script(c))
    with pytest.raises(UserError, match=r"^figures='mine': no mine.py with TITLE, .* beside anal"):
        report.script(dataclasses.replace(c, figures=("scaling", "mine")))
    own = tmp_path / "page.py"  # beside which there is no figure of the paper
    own.write_text("")
    (tmp_path / "mine.py").write_text(MINE)
    c = dataclasses.replace(c, report=str(own), figures=("mine",))
    assert report.script(c) == own
    with pytest.raises(UserError, match=r"^figures='scaling': no scaling.py with TITLE, "):
        report.script(dataclasses.replace(c, figures=("mine", "scaling")))


@pytest.mark.process
def test_a_report_takes_no_module_of_the_current_folder(
    recipes: Recipes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("analysis", "json", "numpy"):
        Path(f"{name}.py").write_text("raise ValueError")
    seen = []
    display = SimpleNamespace(update=lambda *done: seen.append(done), say=lambda _: None)
    c = Config(report="analysis/page.py", figures=("tab07_settings",))
    argv = ["sweep", f"--recipe={recipes['main'].folder}", "--figure=tab07_settings"]
    report.run(report.script(c), argv, cast(Display, display))
    assert seen == [("report", 0, 1), ("report", 0, 1), ("report", 1, 1), ("report", 1, 1)]
    assert "Table 7" in Page(Path("sweep/report.html").read_text()).words
    assert Path("sweep/tables/tab07_settings.md").is_file()
