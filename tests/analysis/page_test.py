"""Figures and tables of the paper, drawn from a synthetic sweep, and report pages of one or several recipes."""

import csv
import dataclasses
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from report_html import of_strength
from slow_case import slow_case
from synthetic_figures import NeedsAlone, make
from synthetic_workdir import Page, write_workdir

from analysis import (
    attacks,
    comparison,
    figure_section,
    page,
    paper_pages,
    papers,
)
from analysis.experiments import MODULES, find
from analysis.experiments.causal import regression
from analysis.experiments.mace import dp_bound
from analysis.experiments.open import text_groups
from analysis.experiments.privacyguard import one_run
from analysis.experiments.reliability import finite_population
from analysis.io import RecipeResults, SweepResults
from analysis.opening import read_recipes
from analysis.report import numbers, strength
from lm_mia.attacks import exports
from lm_mia.config.paper import figure_number
from lm_mia.errors import Unavailable, UserError
from lm_mia.run.workdir import write_config

NOT_DRAWN = {
    "strongmia_fig07_extraction": "extraction",  # there are no models
    "reliability_figA2_sample_fpr": "leave_one_out",  # not set for its recipe
    "canaries_fig01_random_tokens": "no recipe canaries",
    "open_fig04_variance": "no recipe crossed-140M",
    "open_fig06_extraction": "no recipe tokens-140M",
    "open_fig07_tokens": "no recipe tokens-140M",
    "privacyguard_fig08_queries": "no recipe memorized",
    "privacyguard_tab04_extraction": "no recipe memorized",
    "causal_fig03c_text": "attack.zero_run",  # not set for its recipe
    "causal_fig04_weights": "attack.zero_run",
    "causal_fig05_interference": "attack.zero_run",
    "causal_fig06_effects": "attack.zero_run",
    "causal_fig07_estimators": "attack.zero_run",
}
"""Figures that the sweep lacks tables for -> a word of the reason."""
REMEDY = re.compile(r"lm-mia (run|attack|extract)\b")
"""What the reason of a figure that is not drawn says: the command that makes what is missing."""
WRITTEN_AS_PDF = {"strongmia_fig01_references", "strongmia_fig06_vulnerability", "scaling"}
"""Figures that are also written as PDF, one of them with rasterized points; a PDF takes half of the drawing time."""
OF_140M = tuple(
    f"strongmia_{number}_" for number in ("fig22", "fig26", "fig28", "tab01", "tab03", "tab05")
)
"""What the beginnings of the names of figures have in common that are drawn as those of 302M, from another recipe."""
NEED_MORE_REFERENCES = {
    "strongmia_fig01_references",
    "strongmia_fig10_auc_by_references",
}  # than the sweep has
SIMULATIONS = (
    "mace_fig06_dp_bound",
    "reliability_fig02_finite_population",
    "reliability_figA3_sampling_ratio",
    "privacyguard_fig07_one_run",
    "causal_tab02_regression",
    "causal_fig03a_ridge",
    "causal_fig03b_dp_sgd",
)
EFFECTS = (
    "On the same data the largest model has a higher AUC than the smallest.",
    "LiRA on the loss beats LiRA on the logit.",
    "More epochs raise the AUC.",
)


@pytest.fixture(autouse=True)
def small_simulations(monkeypatch: pytest.MonkeyPatch):
    """Simulations of figures take seconds at their full size, and the sweep has few samples."""
    monkeypatch.setattr(text_groups, "FEWEST_FALSE_POSITIVES", 0.5)  # as in the sweep
    sizes = {"models": 64, "population": 40, "dimensions": 20}
    monkeypatch.setattr(finite_population, "SIZES", sizes)
    monkeypatch.setattr(dp_bound, "SIZES", {"simulations": 2, "samples": 2**10})
    monkeypatch.setattr(one_run, "SIZES", {"samples": 100, "guesses": 4, "simulations": 2})
    regressions = {"samples": 128, "ridge_seeds": 2, "dp_sgd_seeds": 2}
    regressions |= {"ridge_dimensions": 5, "ridge_trials": 20}
    regressions |= {"dp_sgd_dimensions": 4, "dp_sgd_trials": 4}
    monkeypatch.setattr(regression, "SIZES", regressions)


def test_all_figures_and_tables_of_strongmia_exist():
    numbers = [figure_number(name) for name in MODULES if name.startswith("strongmia_")]
    expected_names = [
        *(f"fig{n:02}" for n in range(1, 33)),
        *(f"tab{n:02}" for n in range(1, 8)),
    ]
    assert numbers == expected_names


OF_PAPER = re.compile(r"paper|[Cc]laim|(?:Figure|Table)s? \d|\b\d+M\b")
"""References to a paper, and sizes of its models; those of the synthetic sweep are below a million."""


def rendered(sections: list[figure_section.FigureSection]) -> str:
    """Returns the page of figures that belong to no paper, without its style."""
    html = paper_pages.render("own", sections, figure_section.claims_table(sections))
    return re.sub(r"(?s)<style>.*?</style>", "", html)


def own_text(shown: figure_section.FigureSection) -> str:
    """Returns all text of a figure that is not compared with its paper: the section, the figure and its numbers."""
    alone = dataclasses.replace(shown.without_comparison(), image="")
    assert alone.result is not None
    texts = [rendered([alone]), alone.result.data.to_csv()]
    if alone.result.figure is not None:
        texts += [text.get_text() for text in alone.result.figure.findobj(Text)]
    return "\n".join(texts).replace(alone.name, "")


@pytest.fixture(scope="module")
def needs_alone(recipes: SweepResults, tmp_path_factory: pytest.TempPathFactory) -> NeedsAlone:
    return NeedsAlone(recipes, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    "name", [slow_case(name) if name.startswith(OF_140M) else name for name in MODULES]
)
def test_figures_are_drawn(
    name: str, needs_alone: NeedsAlone, tmp_path: Path, request: pytest.FixtureRequest
):
    """Each is drawn from those tables alone that it says it needs."""
    if name in WRITTEN_AS_PDF:
        request.getfixturevalue("full_figures")
    shown = figure_section.make_section(name, needs_alone.recipes_of(name), tmp_path)
    assert shown.title
    assert shown.about
    if name in NOT_DRAWN:
        assert NOT_DRAWN[name] in shown.missing
        return
    assert shown.missing == ""
    assert shown.result is not None
    data = pd.read_csv(tmp_path / "tables" / f"{name}.csv")
    assert len(data) > 0
    assert {c.statement for c in shown.claims} <= set(find(name).statements)
    if name.startswith("strongmia") and "tab07" not in name:  # figures that own texts can have
        assert not OF_PAPER.findall(own_text(shown))
    keys = papers.item(name).numbers if papers.name_of(name) else {}
    assert not keys or set(shown.result.ours) & set(keys) or name in NEED_MORE_REFERENCES
    if shown.result.figure is None:
        assert (tmp_path / "tables" / f"{name}.tex").read_text().startswith(r"\begin{tabular}")
        assert (tmp_path / "tables" / f"{name}.md").read_text().startswith("| ")
        return
    assert shown.image.startswith("data:image/png;base64,")
    if name in WRITTEN_AS_PDF:
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_DRAWN])
def test_tables_of_other_figures_change_nothing(
    name: str, recipes: SweepResults, needs_alone: NeedsAlone
):
    """The shared tables serve all figures; those that this figure needs alone give the same results."""
    shared, alone = (find(name).draw(r) for r in (recipes, needs_alone.recipes_of(name)))
    pd.testing.assert_frame_equal(alone.data, shared.data)
    # Claims are compared as text, since a number of theirs may be NaN, which does not equal itself.
    assert repr(alone.claims) == repr(shared.claims)
    assert alone.notes == shared.notes


def test_recipes_of_own_texts_are_named_by_their_own_sizes(recipes: SweepResults, tmp_path: Path):
    names = "flip-2x64", "flip-140M"
    config = dataclasses.replace(recipes["flip-140M"].config, compare_with_papers=False)
    folder = tmp_path / "recipes" / "flip-2x64"
    shutil.copytree(recipes["flip-140M"].recipe_dir, folder)
    own = dataclasses.replace(recipes["flip-140M"], recipe_dir=folder, names=names, config=config)
    assert (own.shown_names, recipes["flip-140M"].shown_names) == (names[:1], ("flip-140M",))
    sweep = SweepResults([own])
    for name in ("strongmia_tab01_error_rates_140m", "strongmia_tab07_settings", "scaling"):
        shown = figure_section.make_section(name, sweep, tmp_path)
        assert shown.missing == ""
        assert not OF_PAPER.findall(own_text(shown))
    assert comparison.table([comparison.summarize(own)])["names"].tolist() == ["flip-2x64"]


@pytest.mark.parametrize("name", MODULES)
def test_figures_report_missing_models(name: str, tmp_path: Path):
    shown = figure_section.make_section(name, SweepResults([]), tmp_path)
    if name not in ("strongmia_tab07_settings", *SIMULATIONS):  # reads only the configs, or nothing
        assert REMEDY.search(shown.missing), shown.missing
        assert [c.verdict for c in shown.claims] == ["not tested"] * len(shown.claims)


NOISE_RECIPES = ("main", "data-1536", "fixed-10M", "fixed-140M", "fixed-1018M", "epochs-140M")
"""Prefixes of the recipes that these figures need."""
EFFECT_FIGURES = (
    "strongmia_fig04_data_and_size",
    "strongmia_fig08_statistic",
    "strongmia_fig17_overtraining",
)
"""The figures with claims on these effects."""


def verdicts(recipes: SweepResults) -> dict[str, str]:
    drawn = [find(name).draw(recipes) for name in EFFECT_FIGURES]
    return {claim.statement: claim.verdict for d in drawn for claim in d.claims}


def test_claims_on_real_effects_are_seen(recipes: SweepResults):
    verdict_by_statement = verdicts(recipes)
    assert [verdict_by_statement[statement] for statement in EFFECTS] == ["supported"] * len(
        EFFECTS
    )


@pytest.mark.montecarlo
def test_claims_on_noise_are_not_seen(tmp_path: Path):
    make(tmp_path, gain=0, prefixes=NOISE_RECIPES, figures=EFFECT_FIGURES)
    recipes = read_recipes(tmp_path / "sweep")
    verdict_by_statement = verdicts(recipes)
    assert "supported" not in {verdict_by_statement[statement] for statement in EFFECTS}
    auc = attacks.read_attack(recipes["main"]).auc_T
    assert abs(auc.mean() - 0.5) < 0.05


def write(
    workdir: Path, recipes: list[str] | None = None, figures: tuple[str, ...] = ()
) -> tuple[Page, list[str]]:
    """Writes the pages, and returns the report with the logged lines."""
    logged: list[str] = []
    path = page.write_page(workdir, recipes, figures, lambda *_: None, logged.append)
    assert path == workdir / "report.html"
    return Page(path.read_text(encoding="utf-8")), logged


@pytest.fixture
def linked(folder: Path, tmp_path: Path) -> Path:
    """A workdir of links to the same recipes, in which a page can be written."""
    workdir = tmp_path / "sweep"
    workdir.mkdir()
    for name in ("config.json", "metrics", "populations"):
        (workdir / name).symlink_to(folder / name)
    for recipe in (folder / "recipes").iterdir():
        copy = workdir / "recipes" / recipe.name
        copy.mkdir(parents=True)
        for part in recipe.iterdir():
            (copy / part.name).symlink_to(part)
    return workdir


def figure_page(workdir: Path, name: str) -> Page:
    return Page((workdir / "figures" / f"{name}.html").read_text(encoding="utf-8"))


def test_the_page_of_a_paper_has_its_figures_and_claims(linked: Path):
    figures = (
        "strongmia_fig01_references",
        "strongmia_fig05_instability",
        "strongmia_tab01_error_rates_140m",
        "strongmia_fig07_extraction",
    )
    names = ["main", "flip-140M", "flip-302M", "fixed-10M"]
    (linked / "figures").mkdir()
    (linked / "figures" / "mace.html").write_text("from an earlier report")
    _, logged = write(linked, names, (*figures, "open_fig03_recency"))
    [line] = logged
    assert line.startswith("not drawn: strongmia_fig07_extraction: main: ")
    assert {p.name for p in (linked / "figures").glob("*.html")} == {"strongmia.html", "open.html"}
    shown = figure_page(linked, "strongmia")
    ids = [attributes["id"] for _, attributes in shown.tags if "id" in attributes]
    assert {*ids} == {*figures, "claims", "contents"}
    assert len({*ids}) == len(ids)
    assert find("strongmia_fig01_references").statements[0] in shown.words
    assert "Not drawn: " in shown.words
    claims = pd.read_csv(linked / "tables" / "claims.csv")
    assert {*claims["figure"]} == {
        "strongmia_fig01_references",
        "strongmia_fig05_instability",
        "strongmia_fig07_extraction",
        "open_fig03_recency",
    }
    assert claims[["figure", "statement", "verdict", "finding"]].notna().all(axis=None)
    one = claims[claims["statement"] == "Its growth has diminishing returns."].iloc[0]
    assert (
        f"{one['value']:.3f}, 95% interval {one['low']:.3f} to {one['high']:.3f}" in one["finding"]
    )
    for name in ("strongmia", "open"):
        # The p-values of a page are those of the table, which are adjusted for the claims of all pages.
        words = figure_page(linked, name).words
        for row in claims[claims["figure"].str.startswith(name)].dropna().to_dict("records"):
            assert row["p_holm"] < 0.001 or f"{row['p_holm']:.3f}" in words
    links = [a["href"] for tag, a in shown.tags if tag == "a" and a.get("href")]
    assert "../report.html" in links
    assert all(
        (linked / "figures" / h).is_file()
        for h in links
        if h and not h.startswith("#") and "fig07" not in h
    )
    assert {h.removeprefix("#") for h in links if h and h.startswith("#")} <= {*ids}
    images = [a["src"] for tag, a in shown.tags if tag == "img"]
    assert len({*images}) == len(images) == 2
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1), max(np.diff(levels))) == (1, 1, 1)
    landmarks = [tag for tag, _ in shown.tags if tag in ("header", "nav", "main")]
    assert landmarks == ["header", "nav", "main"]
    report = Page((linked / "report.html").read_text(encoding="utf-8"))
    of_figures = [a["href"] for tag, a in report.tags if tag == "a"]
    assert {"figures/strongmia.html", "figures/open.html"} <= {*of_figures}
    write(linked, names)
    assert list((linked / "figures").glob("*.html")) == []


@pytest.mark.usefixtures("undrawn")
def test_simulations_show_their_progress(linked: Path):
    figure_file = linked / "mine.py"
    figure_file.write_text(
        "from analysis.experiments.causal import regression\n"
        "EXPERIMENT = regression.EXPERIMENTS['causal_tab02_regression']"
    )
    updates: list[tuple[str, float, float]] = []
    page.write_page(
        linked, ["fixed-10M"], [str(figure_file)], lambda *u: updates.append(u), lambda _: None
    )
    assert [u for u in updates if u[0] == "regression"] == [("regression", n, 4) for n in range(5)]
    assert (linked / "tables" / "regression.csv").is_file()  # a second page takes no time


@pytest.mark.usefixtures("undrawn")
def test_pages_without_claims_have_no_claims_table(linked: Path):
    write(linked, ["fixed-10M", "flip-140M"], ("strongmia_tab01_error_rates_140m",))
    shown = figure_page(linked, "strongmia")
    assert "claims" not in {attributes.get("id") for _, attributes in shown.tags}


@pytest.mark.usefixtures("undrawn")
def test_page_compares_recipes(linked: Path):
    shutil.rmtree(linked / "recipes" / "small")
    (linked / "recipes" / "small").mkdir()
    shutil.copy(
        read_recipes(linked)["distinct"].recipe_dir / "config.json", linked / "recipes/small"
    )
    stored = json.loads((linked / "recipes/small/config.json").read_text())
    stored |= {"names": ["small"], "population": "none"}
    write_config(linked / "recipes/small/config.json", stored)
    names = ["fixed-10M", "fixed-302M", "flip-140M", "small"]
    shown, logged = write(linked, names)
    assert logged == []
    with (linked / "tables" / "comparison.csv").open() as file:
        lines = {line["recipe"]: line for line in csv.DictReader(file)}
    assert {*lines} == {*names}
    recipes = read_recipes(linked)
    result = attacks.read_attack(recipes["fixed-10M"])
    assert float(lines["fixed-10M"]["auc"]) == pytest.approx(result.auc_T.mean(), abs=1e-12)
    assert float(lines["fixed-10M"]["tpr_std"]) == pytest.approx(
        result.tpr_T(0.05).std(), abs=1e-12
    )
    assert lines["fixed-10M"]["coin_flip_members"] == ""
    assert [lines[n]["over"] for n in names] == ["targets", "targets", "replicas", ""]
    assert [lines[n]["attack"] for n in names] == [*3 * ["lira_online"], ""]
    tables = recipes["flip-140M"].recipe_dir / "tables"
    attack_rows = pd.read_csv(tables / "attacks.csv")
    lira = attack_rows[attack_rows["attack"] == "lira_online"].iloc[-1]
    assert float(lines["flip-140M"]["auc"]) == lira["auc_mean"]
    shares = pd.read_csv(tables / "flip_shares.csv")
    coin = shares[(shares["bin"] == "coin flip") & np.isclose(shares["fpr"], 0.05)].iloc[0]
    assert float(lines["flip-140M"]["coin_flip_members"]) == coin["member_fraction"]
    assert float(lines["flip-140M"]["coin_flip_cutoff"]) == coin["cutoff"]
    for end in ("low", "high"):
        expected = coin[f"nonmember_fraction_127_{end}"]
        assert float(lines["flip-140M"][f"coin_flip_nonmembers_127_{end}"]) == expected
    assert "population" in lines["small"]["missing_reason"]
    assert "small is not compared" in shown.words


@pytest.mark.usefixtures("undrawn")
def test_recipes_without_tables_or_targets_show_the_reason(linked: Path, tmp_path: Path):
    shown, _ = write(linked, ["fixed-10M"])  # has only targets
    assert "comparison of" not in shown.words
    assert "own random half" in shown.words
    assert (
        found_of(read_recipes(linked)["fixed-10M"]) in page.summary_lines(linked, ["fixed-10M"])[0]
    )
    stored = linked / "recipes" / "fixed-10M" / "config.json"
    settings = json.loads(stored.read_text())
    settings["config"]["attack"] |= {"targets": 0}
    stored.unlink()
    stored.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"^[^\n]*attack.replicas=0: [^\n]*$"):
        write(linked, ["fixed-10M"])


@pytest.mark.usefixtures("undrawn")
def test_failing_recipe_is_reported_and_the_others_shown(linked: Path):
    scores = linked / "recipes" / "flip-302M" / "scores.zarr"
    original = scores.resolve()
    scores.unlink()
    shutil.copytree(original, scores)
    (scores / "zarr.json").write_text("{")
    shown, logged = write(linked, ["flip-302M", "flip-140M"])
    assert len(logged) == 1
    assert re.match(r"not shown: flip-302M: .*scores\.zarr.* damaged", logged[0])
    assert shown.words.count("scores.zarr: damaged") == 1
    links = {a.get("href") for tag, a in shown.tags if tag == "a"}
    assert "recipes/flip-140M/report.html" in links
    assert "recipes/flip-302M/report.html" not in links


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_two_replicas_and_one_attack_suffice(tmp_path: Path):
    settings = {"references": 8, "replicas": 2, "attacks": ("lira_online",), "bootstraps": 0}
    for name in ("a", "layers=4,epochs=2"):
        write_workdir(tmp_path / "w", name, samples=80, **settings)
    shown, logged = write(tmp_path / "w")
    assert logged == []
    assert (tmp_path / "w" / "figures" / "layers=4,epochs=2-training.pdf").is_file()
    links = [a["href"] or "" for tag, a in shown.tags if tag == "a"]
    assert "recipes/layers=4,epochs=2/report.html" in links
    own = (tmp_path / "w" / "recipes" / "layers=4,epochs=2" / "report.html").read_text()
    assert "../../figures/layers%3D4%2Cepochs%3D2-training.pdf" in own
    first, second, report = page.summary_lines(tmp_path / "w", None)
    assert re.match(r"a: 40 members and 40 non-members\b.*too few", first)
    assert re.match(r"layers=4,epochs=2: 40 members and 40 non-members\b.*too few", second)
    assert report == f"report: {tmp_path / 'w' / 'report.html'}"


@pytest.mark.slow
def test_below_12_replicas_coin_flips_are_no_main_number(tmp_path: Path):
    recipe = write_workdir(
        tmp_path / "w", samples=80, replicas=8, bootstraps=0, attacks=("lira_online", "loss")
    )
    summary = comparison.summarize(read_recipes(tmp_path / "w").recipes[0])
    assert np.isnan(summary.coin_flip_members)
    row = recipe.view.table("flip_shares.csv").query("bin == 'coin flip'")
    row = row[np.isclose(row["fpr"], 0.05)].iloc[0]
    assert summary.members_at_127 == (
        row["member_fraction_127_low"],
        row["member_fraction_127_high"],
    )


def found_of(recipe: RecipeResults) -> str:
    """Returns how many members the headline attack finds, with the interval, as the page says it."""
    return of_strength(recipe, recipe.view.c.headline, "tpr")


def test_summary_lines_match_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = write_workdir(
        tmp_path / "w", samples=240, bootstraps=2, attacks=("lira_online", "stacked", "loss")
    )
    [line] = page.summary_lines(tmp_path / "w", None)
    missed, interval = of_strength(recipe, "stacked", "missed").split(" ", 1)
    assert line.startswith("demo: ")
    assert f" {found_of(recipe)} at {numbers.false_alarms(0.05)} " in line
    assert f"{missed} % {interval} would be missed" in line
    report, newer = tmp_path / "w" / "report.html", recipe.recipe_dir / "tables" / "flips.json"
    report.write_text("")
    os.utime(report, (newer.stat().st_atime, newer.stat().st_mtime - 9))
    line = page.summary_lines(tmp_path / "w", ["demo"])[1]
    assert line.startswith(f"report: {report} (older ")
    facts = {**recipe.view.facts("flips"), "warnings": ["first", "second"]}
    warned = {"flips.json": lambda _: facts}
    monkeypatch.setattr(exports, "TABLES", {**exports.TABLES, **warned})
    assert page.summary_lines(tmp_path / "w", ["demo"])[1:3] == [
        "demo: warning: First.",
        "demo: warning: Second.",
    ]
    shutil.rmtree(recipe.recipe_dir / "scores.zarr")
    line = page.summary_lines(tmp_path / "w", ["demo"])[0]
    assert line.startswith("demo: no numbers: ")
    assert "0 of 16 replicas" in line


@pytest.mark.usefixtures("undrawn")
def test_a_page_without_any_numbers_is_a_failure(linked: Path, monkeypatch: pytest.MonkeyPatch):
    def read(recipe: RecipeResults) -> strength.Strength:
        if recipe.name in missing:
            raise Unavailable(f"{recipe.name}: no attack; run `lm-mia attack`")
        return original(recipe)

    original = strength.read
    monkeypatch.setattr(strength, "read", read)
    missing, names = ["fixed-10M"], ["fixed-10M", "flip-140M"]
    write(linked, names)
    missing = names
    (linked / "report.html").unlink()
    with pytest.raises(UserError, match=r"report\.html: .*`lm-mia attack`"):
        write(linked, names)
    assert (linked / "report.html").is_file()


@pytest.mark.usefixtures("undrawn")
def test_warnings_about_targets_are_shown_beside_the_numbers(
    linked: Path, monkeypatch: pytest.MonkeyPatch
):
    warned = {
        name: lambda view, facts=exports.TABLES[name]: {
            **facts(view),
            "warnings": [f"of {view.name}"],
        }
        for name in ("flips.json", "membership_scores.json")
    }
    monkeypatch.setattr(exports, "TABLES", {**exports.TABLES, **warned})
    shown, _ = write(linked, ["fixed-10M", "flip-140M"])
    for name in ("flip-140M", "fixed-10M"):
        assert f"Careful, {name}: Of {name}." in shown.words
    shown, _ = write(linked, ["fixed-10M"])
    assert "Careful: Of fixed-10M." in shown.words


def test_summary_lines_of_targets_match_the_tables(linked: Path):
    recipe = read_recipes(linked)["fixed-10M"]
    line = page.summary_lines(linked, ["fixed-10M"])[0]
    assert line.startswith("fixed-10M: ")
    assert f" {found_of(recipe)} at {numbers.false_alarms(0.05)} " in line
    assert "missed" not in line  # there are no replicas


def test_summary_lines_without_targets_have_pooled_rates(
    linked: Path, monkeypatch: pytest.MonkeyPatch
):
    path = linked / "recipes" / "fixed-10M" / "config.json"
    stored = json.loads(path.read_text())
    stored["config"]["attack"] |= {"replicas": 0, "targets": 0, "leave_one_out": True}
    path.unlink()  # a link
    path.write_text(json.dumps(stored))
    facts = {"reason": "", "models": 16, "settings": {"focus_fpr": 0.05}}
    row = {"strategy": "standardized", "oracle": False, "models": 16, "fpr": 0.05, "tpr": 0.25}
    pooled = {"pooling.json": lambda _: facts, "pooling.csv": lambda _: pd.DataFrame([row])}
    with_declared = exports.with_declared
    monkeypatch.setattr(exports, "with_declared", lambda *a: {**with_declared(*a), **pooled})
    line = page.summary_lines(linked, ["fixed-10M"])[0]
    assert re.match(r"fixed-10M: TPR 0\.250 at 5% FPR\b.*\bstandardized\b.*\b16 references", line)


@pytest.mark.process
def test_checking_figures_imports_no_large_libraries():
    heavy = {"jax", "matplotlib", "pandas", "scipy", "zarr"}
    code = (
        "import sys\nfrom analysis import page\npage.check_figures(['scaling'])\n"
        f"sys.exit(', '.join({heavy} & {{*sys.modules}}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_summary_lines_import_no_plotting_libraries(tmp_path: Path):
    settings = {"references": 8, "replicas": 2, "attacks": ("lira_online",), "bootstraps": 0}
    write_workdir(tmp_path / "w", samples=100, **settings)
    code = (
        "import sys\nfrom pathlib import Path\nfrom analysis import page\n"
        f"print(*page.summary_lines(Path({str(tmp_path / 'w')!r}), None))\n"
        "sys.exit(', '.join({'jax', 'matplotlib'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r"demo: 50 members and 50 non-members\b.*too few", done.stdout)


USER_FIGURE = """
import pandas as pd

from analysis.experiment import Drawing, Experiment


def draw(recipes):
    return Drawing(pd.DataFrame({"samples": [recipes["main"].samples]}))


EXPERIMENT = Experiment(
    title="User figure: number of samples", about="The paper has more.", statements=("There are some.",), draw=draw
)
"""


def test_user_defined_figure_is_drawn(recipes: SweepResults, tmp_path: Path):
    figure_file = tmp_path / "mine.py"
    figure_file.write_text(USER_FIGURE)
    page.check_figures([str(figure_file), "scaling"])
    shown = figure_section.make_section(str(figure_file), recipes, tmp_path)
    assert (shown.missing, shown.short_title) == ("", "User figure")
    assert shown.about in USER_FIGURE
    assert shown.about
    data = pd.read_csv(tmp_path / "tables" / "mine.csv")
    assert data["samples"].tolist() == [recipes["main"].samples]
    without_recipes = figure_section.make_section(str(figure_file), SweepResults([]), tmp_path)
    [claim] = without_recipes.claims
    assert (claim.statement, claim.verdict) == ("There are some.", "not tested")
    assert re.match(r"no recipe main\b.*; run lm-mia run ", without_recipes.missing)
    figure_file.write_text(USER_FIGURE.replace('recipes["main"].samples', "1 / 0"))
    line = 1 + figure_file.read_text().partition("1 / 0")[0].count("\n")
    missing = figure_section.make_section(str(figure_file), recipes, tmp_path).missing
    assert missing.startswith("ZeroDivisionError: ")
    assert missing.endswith(f"({figure_file}, line {line})")


def test_claims_without_a_paper_are_not_those_of_a_paper(tmp_path: Path):
    figure_file = tmp_path / "mine.py"
    texts = {}
    for paper in ("The paper has more.", ""):
        figure_file.write_text(USER_FIGURE.replace("The paper has more.", paper))
        shown = figure_section.make_section(str(figure_file), SweepResults([]), tmp_path)
        texts[bool(paper)] = Page(rendered([shown])).words
    assert "claim of the paper" in texts[True]
    assert "1 claim not" in texts[False]
    assert "paper" not in texts[False]


def test_unknown_figures_are_reported_on_one_line_each(tmp_path: Path):
    (tmp_path / "undefined.py").write_text(USER_FIGURE.replace("EXPERIMENT =", "OTHER ="))
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "scaling.py").write_text(USER_FIGURE)
    reads = 'reads=(Need(("main",), ("lirra",)),), title='
    text = "from lm_mia.attacks.spec import Need" + USER_FIGURE.replace("title=", reads)
    (tmp_path / "unknown.py").write_text(text)
    for name, message in (
        ("fig99", "did you mean strongmia_fig"),
        ("fig05_instability", "did you mean strongmia_fig05_instability?"),
        ("fig30", "did you mean strongmia_fig30_coin_free?"),
        (
            "fig05",
            "strongmia_fig05_instability or mace_fig05_metrics or ",
        ),
        ("qqq", "choose from strongmia_fig01_references, "),
        (f"{tmp_path}/yours.py", "no such file; "),
        (f"{tmp_path}/undefined.py", "not define EXPERIMENT"),
        (f"{tmp_path}/broken.py", "ZeroDivisionError"),
        (f"{tmp_path}/scaling.py", "; rename the file"),
        (f"{tmp_path}/unknown.py", "reads: attack 'lirra': "),
    ):
        with pytest.raises(UserError) as caught:
            page.check_figures(["scaling", name])
        [line] = str(caught.value).splitlines()
        assert line.startswith(f"figures={name!r}: ")
        assert message in line
    with pytest.raises(UserError) as caught:
        page.check_figures(["fig99", "fig98"])
    assert len(str(caught.value).splitlines()) == 2
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "mine.py", tmp_path / "other" / "mine.py"):
        path.write_text(USER_FIGURE)
    with pytest.raises(UserError, match=r"other/mine\.py.* same file name"):
        page.check_figures([f"{tmp_path}/mine.py", f"{tmp_path}/other/mine.py"])


def test_a_listed_figure_is_named_with_the_flag_that_removes_it(tmp_path: Path):
    (tmp_path / "other").mkdir()
    same_stem = [str(tmp_path / "mine.py"), str(tmp_path / "other" / "mine.py")]
    broken = tmp_path / "it's broken.py"
    for path in (*same_stem, broken):
        Path(path).write_text(USER_FIGURE)
    broken.write_text("1 / 0")
    with pytest.raises(UserError) as caught:
        page.check_figures([*same_stem, str(broken)], are_listed=True)
    assert [
        shlex.split(line.partition(" workdir with ")[2]) for line in str(caught.value).splitlines()
    ] == [
        [f"--config.figures=-{same_stem[1]}"],
        ["--config.figures=-it's broken.py"],
    ]
    missing = [f"{tmp_path}/gone.py", "fig99"]
    left, lines = page.leave_out_missing([same_stem[0], *missing, "scaling"])
    assert left == [same_stem[0], "scaling"]
    assert [line.rpartition(" ")[2] for line in lines] == [
        "--config.figures=-gone.py",
        "--config.figures=-fig99",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{here}"], "{here}: "),
        (["{here}/none"], "{here}/none: "),
        (
            ["{sweep}", "--recipe=man"],
            "--recipe=man: {sweep} ",
        ),
        (["{sweep}", "--figure=fig99"], "figures='fig99': "),
    ],
)
def test_invalid_input_is_reported_on_one_line(
    argv: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folders = {"here": tmp_path, "sweep": folder}
    assert page.main([a.format(**folders) for a in argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message.format(**folders) in line


def test_missing_scores_exit_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    settings: dict[str, Any] = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    recipe = write_workdir(tmp_path, samples=100, references=8, replicas=4, **settings)
    shutil.rmtree(recipe.recipe_dir / "scores.zarr")
    assert page.main([str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"[^\n]*0 of 4 replicas [^\n]*`lm-mia run` first\n", err)


def test_package_runs_as_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["analysis", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("analysis", run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("; run lm-mia run first\n")


@pytest.mark.usefixtures("undrawn")
def test_workdir_figures_are_drawn_by_default(linked: Path, capsys: pytest.CaptureFixture[str]):
    listed = json.loads((linked / "config.json").read_text()) | {
        "figures": ["/missing/mine.py", "strongmia_tab07_settings"]
    }
    (linked / "config.json").unlink()
    write_config(linked / "config.json", listed)
    seen = []
    assert page.main([str(linked), "--recipe=fixed-10M"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{linked / 'report.html'}\n"
    [line] = err.splitlines()
    assert line.startswith("figures='/missing/mine.py': left out")
    assert line.endswith("--config.figures=-mine.py")
    assert "Table 7" in Page((linked / "figures" / "strongmia.html").read_text()).words
    assert (linked / "tables" / "strongmia_tab07_settings.md").is_file()
    page.write_page(
        linked, ["fixed-10M"], ("strongmia_tab07_settings",), lambda *done: seen.append(done), print
    )
    assert (seen[0], seen[-1]) == (("report", 0, 3), ("report", 3, 3))
