"""Every figure and table of the paper, drawn of a synthetic sweep, and the page of them."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_figures import ROOT, folder, make
from synthetic_workdir import Page

__all__ = ["folder"]  # a fixture
sys.path.append(str(ROOT / "analysis"))
figures, drawn = importlib.import_module("figures"), importlib.import_module("drawn")
measured = importlib.import_module("measured")
NOT_HERE = {"fig07_extraction"}  # nothing was extracted: there are no models
OF_MORE_REFERENCES = {"fig01_references", "fig10_auc_by_references"}  # than there are here
EFFECTS = (
    "On the same data the largest model has a higher AUC than the smallest.",
    "The loss tells members better than the logit.",
    "More epochs raise the AUC.",
)


def recipes_of(folder: Path) -> Any:
    return measured.Recipes(sorted(p.parent for p in folder.glob("*/config.json")))


@pytest.fixture(scope="module")
def recipes(folder: Path) -> Any:
    return recipes_of(folder)


def test_every_figure_has_its_config_and_none_is_missing():
    configs = {p.stem for p in (ROOT / "configs").glob("[ft]?[gb][0-9]*.py")}
    assert configs == {*figures.names()} - {"scaling"}
    numbers = [name.partition("_")[0] for name in figures.names()]
    wanted = [
        *(f"fig{n:02}" for n in range(1, 33)),
        *(f"tab{n:02}" for n in range(1, 8)),
        "scaling",
    ]
    assert numbers == wanted


@pytest.mark.parametrize("name", figures.names())
def test_a_figure_is_drawn(name: str, recipes: Any, tmp_path: Path):
    shown = figures.show(name, recipes, tmp_path)
    assert shown.title
    assert shown.paper
    if name in NOT_HERE:
        assert "extraction" in shown.absent
        return
    assert shown.absent == ""
    data = pd.read_csv(tmp_path / "tables" / f"{name}.csv")
    assert len(data) > 0
    if shown.drawn.figure is None:
        assert (tmp_path / "tables" / f"{name}.tex").read_text().startswith(r"\begin{tabular}")
        assert (tmp_path / "tables" / f"{name}.md").read_text().startswith("| ")
    else:
        assert shown.image.startswith("data:image/png;base64,")
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    module = importlib.import_module(name)
    assert {c.statement for c in shown.claims} <= set(module.STATEMENTS)
    keys = importlib.import_module("published").numbers(name.partition("_")[0])
    assert not keys or set(shown.drawn.ours) & set(keys) or name in OF_MORE_REFERENCES


@pytest.mark.parametrize("name", figures.names())
def test_a_figure_says_which_rows_it_lacks(name: str, tmp_path: Path):
    shown = figures.show(name, measured.Recipes([]), tmp_path)
    if name != "tab07_settings":  # of the configs alone
        assert shown.absent
        assert [c.verdict for c in shown.claims] == ["not tested"] * len(shown.claims)


@pytest.fixture(scope="module")
def verdicts(recipes: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    some = ("fig01_references", "fig04_data_and_size", "fig08_statistic", "fig17_overtraining")
    shown = [figures.show(n, recipes, tmp_path_factory.mktemp("some")) for n in some]
    return {claim.statement: claim.verdict for s in shown for claim in s.claims}


def test_effects_that_are_there_are_seen(verdicts: dict[str, str]):
    assert [verdicts[statement] for statement in EFFECTS] == ["seen"] * len(EFFECTS)


def test_noise_shows_no_effect(tmp_path: Path):
    make(tmp_path, gain=0)
    recipes = recipes_of(tmp_path / "sweep")
    told = {}
    for name in (
        "fig01_references",
        "fig04_data_and_size",
        "fig08_statistic",
        "fig17_overtraining",
    ):
        shown = figures.show(name, recipes, tmp_path)
        told |= {claim.statement: claim.verdict for claim in shown.claims}
    assert [told[statement] for statement in EFFECTS] == ["not seen"] * len(EFFECTS)
    auc = measured.attacked(recipes["main"]).auc_T
    assert abs(auc.mean() - 0.5) < 0.05


def test_the_page_has_every_figure_and_its_claims(folder: Path, recipes: Any, tmp_path: Path):
    some = ["fig01_references", "fig05_instability", "tab01_error_rates_140m", "fig07_extraction"]
    path = figures.page(tmp_path, recipes, some)
    page = Page(path.read_text())
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {*some, "claims", "recipes"} <= ids
    assert "The AUC of LiRA grows with the number of references." in page.words
    assert "Not drawn: " in page.words
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv")
    assert set(claims["figure"]) == {"fig01_references", "fig05_instability", "fig07_extraction"}
    assert claims[["figure", "statement", "verdict", "said"]].notna().all(axis=None)
    one = claims[claims["statement"] == "Its growth has diminishing returns."].iloc[0]
    assert f"{one['value']:.3f}, 95% interval {one['low']:.3f} to {one['high']:.3f}" in one["said"]
    links = [a["href"] for tag, a in page.tags if tag == "a" and a.get("href")]
    assert all(
        (tmp_path / h).is_file() for h in links if h and not h.startswith("#") and "fig07" not in h
    )


def test_a_page_without_claims_has_no_table_of_them(
    recipes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = Page(figures.page(tmp_path, recipes, ["tab01_error_rates_140m"]).read_text())
    assert "claims" not in {attributes.get("id") for _, attributes in page.tags}
    figures.page(tmp_path, recipes, ["fig07_extraction"])
    assert "not drawn: fig07_extraction: " in capsys.readouterr().out


def test_gamma_lowers_nothing_from_0():
    fig13 = importlib.import_module("fig13_rmia_gamma")
    none, some, more = np.zeros(3), np.array([0.1, 0.12, 0.11]), np.array([0.3, 0.29, 0.32])
    verdicts = [fig13._lowered(*pair, 20, "TPR").verdict for pair in ((none, some), (more, some))]
    assert verdicts == ["not tested", "seen"]


def test_few_references_test_no_growth():
    fig01 = importlib.import_module("fig01_references")
    auc = {count: np.array([0.6, 0.61]) + count / 100 for count in (2, 4)}
    assert [claim.verdict for claim in fig01._claims(auc)] == ["not tested"] * 2


def test_a_figure_of_ones_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (ROOT / "analysis" / "fig08_statistic.py").read_text().replace("Figure 8:", "Mine:")
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(figures, "HERE", tmp_path)
    assert figures.main([str(folder), "--figure=mine"], one=True) == 0
    assert figures.main([str(folder), "--figure=yours"], one=True) == 2
    shown = figures.show("mine", recipes_of(folder), tmp_path)
    assert (shown.absent, shown.short) == ("", "Mine")


def test_scripts_by_themselves(folder: Path, tmp_path: Path):
    def run(name: str, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "analysis" / f"{name}.py"), *argv]
        return subprocess.run(command, capture_output=True, text=True)

    done = run("fig01_references", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("seen: ", "not seen: "))
    for name, argv, said in (
        ("fig01_references", [str(tmp_path)], "no recipe in it; run lm-mia run first"),
        ("figures", [str(tmp_path / "none")], "no such folder; run lm-mia run first"),
        (
            "figures",
            [str(next(folder.glob("main_*")))],
            "has the rows of one config, not of a sweep",
        ),
        ("figures", [str(folder), "--figure=fig99"], "--figure=fig99: no such script"),
        ("fig07_extraction", [str(folder)], "no tables of extraction"),
    ):
        done = run(name, *argv)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
