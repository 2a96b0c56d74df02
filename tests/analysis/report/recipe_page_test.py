"""The page of one recipe, from real attacks: its numbers agree everywhere, and it says what is missing."""

import dataclasses
import functools
import json
import math
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import quickstart_like
import report_html
from report_html import banners, description, headings, lead, of_strength, row_of, section_ids
from slow_case import slow_case
from synthetic_workdir import NASTY, copy_workdir, write_extraction, write_workdir

from analysis import io, opening, page, recipe_figures
from analysis.io import RecipeResults
from analysis.report import document, recipe_page, write
from analysis.report import strength as read_strength
from analysis.report.numbers import FRACTION
from lm_mia import cli
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import UserError
from lm_mia.run.workdir import Workdir

NAME = 'a "b" & c'
"""A recipe with characters that HTML escapes."""
QUESTIONS = [
    "1. How strong is each attack?",
    "2. Which texts are most exposed?",
    "3. Would a decision survive retraining?",
    "4. What would change the answer?",
    "Details",
    "How this was made",
]
LEVEL_N = np.random.default_rng(7).normal(4, 0.6, 600)
"""The loss of each sample under a model that was not trained on it."""
SETTINGS: dict[str, Any] = {"bootstraps": 0, "resample_references": 0}


@functools.cache
def html_of(recipe: RecipeResults) -> str:
    """Returns the checked page of a recipe, which is drawn once for each object."""
    html = document.render(recipe_page.page(recipe))
    report_html.check(html)
    return html


def workdir_of(recipe: RecipeResults) -> Path:
    return recipe.recipe_dir.parents[1]


def read(recipe_dir: Path) -> RecipeResults:
    """Returns a recipe of a workdir as the commands read it."""
    sweep = opening.read_recipes(recipe_dir.parents[1])
    [recipe] = page_recipes(opening.with_needs(sweep, page.figure_needs(())))
    return recipe


def page_recipes(sweep: io.SweepResults) -> list[RecipeResults]:
    return [*sweep.recipes, *sweep.without_population]


def line_of(recipe: RecipeResults) -> str:
    """Returns what a command prints of a recipe."""
    [line, *_] = page.summary_lines(workdir_of(recipe), [recipe.name])
    return line.removeprefix(f"{recipe.name}: ")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("replicas") / "w"
    return write_workdir(folder, NAME, samples=600, **SETTINGS)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("targets") / "w"
    return write_workdir(folder, samples=600, replicas=0, targets=4, **SETTINGS)


@pytest.fixture(scope="module")
def one_target(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("target") / "w"
    return write_workdir(folder, samples=600, replicas=0, targets=1, **SETTINGS)


def imported(folder: Path, *flags: str, **changes: Any) -> RecipeResults:
    """Returns losses of six references and one target of 600 samples, imported and attacked."""
    rng = np.random.default_rng(0)
    member_MxN = rng.permuted(np.tile(np.arange(600) < 300, (7, 1)), axis=1)
    loss_MxN = LEVEL_N - 0.6 * member_MxN + rng.normal(0, 0.25, (7, 600))
    arrays = {"loss_MxN": loss_MxN, "member_MxN": member_MxN}
    arrays |= {"role_M": np.array(["reference"] * 6 + ["target"])}
    for name, change in changes.items():
        arrays[name] = change(arrays)
    folder.mkdir()
    np.savez(folder / "mine.npz", **arrays)
    workdir = folder / "w"
    assert cli.main(["import", str(folder / "mine.npz"), f"--workdir={workdir}", *flags]) == 0
    assert cli.main(["attack", f"--workdir={workdir}", "--config.attack.bootstraps=0"]) == 0
    return read(workdir / "recipes" / "mine")


def text_N(_: Any) -> np.ndarray:
    word_NxW = np.random.default_rng(1).geometric(0.05, (600, 12)).astype(str)
    return np.array([f"<i>{' '.join(word_W)}</i> & more" for word_W in word_NxW])


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    hostile = "<u>x</u>\"'"
    sources = {"source_N": lambda _: np.array([hostile] * 600)}
    return imported(tmp_path_factory.mktemp("given") / "a", text_N=text_N, **sources)


@pytest.fixture(scope="module")
def without_texts(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    return imported(tmp_path_factory.mktemp("no_texts") / "a", "--subset=exact")


@pytest.fixture(scope="module")
def of_base(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """A target, the model that it was fine-tuned from, and references that the headline attack does not use."""

    def members(arrays: dict[str, Any]) -> np.ndarray:
        return np.concatenate([arrays["member_MxN"], np.zeros((1, 600), bool)])

    def roles(arrays: dict[str, Any]) -> np.ndarray:
        return np.append(arrays["role_M"], "base")

    def losses(arrays: dict[str, Any]) -> np.ndarray:
        base_N = LEVEL_N + np.random.default_rng(3).normal(0.1, 0.25, 600)
        return np.concatenate([arrays["loss_MxN"], base_N[None]])

    changes = {"loss_MxN": losses, "member_MxN": members, "role_M": roles}
    folder = tmp_path_factory.mktemp("base") / "a"
    return imported(folder, "--subset=exact", "--config.attack.headline=base_calibrated", **changes)


@pytest.fixture(scope="module")
def base_only(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """A target and the model that it was fine-tuned from, and no other model."""

    def losses(arrays: dict[str, Any]) -> np.ndarray:
        base_N = LEVEL_N + np.random.default_rng(3).normal(0.1, 0.25, 600)
        return np.stack([arrays["loss_MxN"][6], base_N])

    changes: dict[str, Any] = {
        "loss_MxN": losses,
        "member_MxN": lambda arrays: np.pad(arrays["member_MxN"][6:], ((0, 1), (0, 0))),
        "role_M": lambda _: np.array(["target", "base"]),
    }
    return imported(tmp_path_factory.mktemp("base_only") / "a", text_N=text_N, **changes)


@pytest.fixture(scope="module")
def replicas_of_base(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """Twelve replicas and the model that they were fine-tuned from, and no other model."""

    def losses(arrays: dict[str, Any]) -> np.ndarray:
        rng = np.random.default_rng(3)
        base_N = LEVEL_N + rng.normal(0.1, 0.25, 600)
        replica_BxN = arrays["loss_MxN"][6] + rng.normal(0, 0.1, (12, 600))
        return np.concatenate([replica_BxN, base_N[None]])

    changes: dict[str, Any] = {
        "loss_MxN": losses,
        "member_MxN": lambda arrays: np.pad(
            np.tile(arrays["member_MxN"][6], (12, 1)), ((0, 1), (0, 0))
        ),
        "role_M": lambda _: np.array(["replica"] * 12 + ["base"]),
    }
    folder = tmp_path_factory.mktemp("replicas_of_base") / "a"
    return imported(folder, text_N=text_N, **changes)


KINDS = (
    "replicas", "targets", "one_target", "given", "without_texts", "of_base", "base_only", "replicas_of_base"
)  # fmt: skip
SLOW_KINDS = ("one_target", "of_base", "replicas_of_base")  # each between two of the others


@pytest.fixture(params=[slow_case(kind) if kind in SLOW_KINDS else kind for kind in KINDS])
def recipe(request: pytest.FixtureRequest) -> RecipeResults:
    return request.getfixturevalue(request.param)


def test_all_questions_are_answered(recipe: RecipeResults):
    html = html_of(recipe)
    assert headings(html) == QUESTIONS
    assert banners(html) == [] or recipe.config.train.subset == "given"
    for section in re.findall(r"(?s)<section.*?</section>", html):
        assert len(re.sub(r"<[^>]+>", " ", section).split()) > 10


def test_numbers_are_the_same_everywhere(recipe: RecipeResults):
    """In the sentence, the facts, the table, the charts, strength.csv, and what a command prints."""
    strength, html = read_strength.read(recipe), html_of(recipe)
    headline = strength.headline
    found = of_strength(recipe, headline, "tpr")
    assert f" {found} at {'5' if strength.fpr == 0.05 else 'one'} false alarm" in lead(html)
    assert line_of(recipe) == lead(html)
    cells = row_of(html, attack_name(headline))
    small = found.replace("(", "").replace(")", "")
    assert f" {small} " in f" {cells} "
    auc = of_strength(recipe, headline, "auc", FRACTION)
    assert f"AUC {auc}." in report_html.text_of(html, '<dl class="facts">', "</dl>")
    assert auc.replace("(", "").replace(")", "") in cells
    of_roc = description(html, "roc")
    for attack in strength.shown:
        assert f"{attack_name(attack)} {of_strength(recipe, attack, 'tpr')}" in of_roc
        number = of_strength(recipe, attack, "tpr").replace("(", "").replace(")", "")
        assert number in row_of(html, attack_name(attack))
    if (
        recipe.config.attack.attacks
        and "lira_online" in strength.attacks
        and headline != "lira_online"
    ):
        lira = of_strength(recipe, "lira_online", "tpr")
        assert f"LiRA finds {lira}; AUC" in report_html.text_of(html, '<dl class="facts">', "</dl>")
    assert f"{found.split()[0]} found" in description(html, "answer")
    assert found in description(html, "change")


@pytest.mark.parametrize(
    ("name", "headline"), [("replicas", "stacked"), ("replicas_of_base", "base_calibrated")]
)
def test_missed_after_retraining_is_the_same_everywhere(
    name: str, headline: str, request: pytest.FixtureRequest
):
    recipe = request.getfixturevalue(name)
    html = html_of(recipe)
    missed = of_strength(recipe, headline, "missed")
    value, interval = missed.split(" ", 1)
    assert f"{value} % {interval} would be missed" in lead(html)
    assert missed.replace("(", "").replace(")", "") in row_of(html, attack_name(headline))


def test_replicas_are_judged_and_others_are_not(recipe: RecipeResults):
    html = html_of(recipe)
    trust = report_html.text_of(html, '<section id="trust"', "</section>")
    if recipe.config.attack.replicas:
        assert f"{len(recipe.replicas)} trainings" in trust
        votes = recipe.view.table("headline_samples.parquet")
        members = votes[votes["member"]]["votes"].dropna()
        assert f"{int((members > 0).sum()):,} of {len(members):,} members" in trust
        assert f"only {int((members == len(recipe.replicas)).sum()):,} " in trust
        return
    assert "Cannot be said" in trust
    assert "missed" not in lead(html)
    assert "steady" not in html.partition("<script")[0]
    command = "12 times" if recipe.is_imported else "--config.attack.replicas=16"
    assert command in trust


def test_the_headline_attack_follows_from_the_design(
    replicas: RecipeResults, given: RecipeResults, of_base: RecipeResults
):
    for shown, headline in ((replicas, "stacked"), (given, "rmia"), (of_base, "base_calibrated")):
        strength = read_strength.read(shown)
        assert strength.headline == headline
        facts = report_html.text_of(html_of(shown), '<dl class="facts">', "</dl>")
        assert facts.startswith(f"Attack {attack_name(headline)}")
        assert shown is of_base or "chosen by rule" in facts


def test_a_requested_headline_is_not_called_chosen_by_rule(
    of_base: RecipeResults, base_only: RecipeResults, tmp_path: Path
):
    chosen = write_workdir(
        tmp_path / "w", samples=400, replicas=0, targets=1, headline="loss", attacks=("stacked", "loss"), **SETTINGS
    )  # fmt: skip
    # An import writes the name into the config, whoever chose it; `lm-mia attack` may replace it.
    c = base_only.config
    c = dataclasses.replace(c, attack=dataclasses.replace(c.attack, headline="loss"))
    replaced = dataclasses.replace(base_only, config=c, chosen_headline="loss")
    for recipe, headline, is_by_rule in (
        (chosen, "loss", False),
        (of_base, "base_calibrated", False),
        (base_only, "base_calibrated", True),
        (replaced, "loss", False),
    ):
        html = html_of(recipe)
        facts = report_html.text_of(html, '<dl class="facts">', "</dl>")
        assert facts.startswith(f"Attack {attack_name(headline)}")
        assert ("by rule" in facts) == is_by_rule
        made = report_html.text_of(html, '<section id="made"', "</section>")
        assert ("by attack.headline" in made) != is_by_rule


def test_given_members_have_a_warning_at_the_top(
    given: RecipeResults, base_only: RecipeResults, without_texts: RecipeResults
):
    for recipe in (given, base_only):
        [banner] = banners(html_of(recipe))
        assert "given" in banner
        assert "AUC" in banner  # of a classifier of texts
    assert banners(html_of(without_texts)) == []


def test_samples_without_texts_say_so(without_texts: RecipeResults):
    html = html_of(without_texts)
    samples = report_html.text_of(html, '<section id="samples"', "</section>")
    assert samples.count(document.NO_TEXT) >= 8


@pytest.mark.parametrize("name", ["of_base", "base_only", "replicas_of_base"])
def test_a_base_is_named_as_the_only_reference(name: str, request: pytest.FixtureRequest):
    html = html_of(request.getfixturevalue(name))
    facts = report_html.text_of(html, '<dl class="facts">', "</dl>")
    assert "its only reference" in facts
    assert "0 reference" not in html
    data = json.loads(
        html.partition('<script type="application/json">')[2].partition("</script>")[0]
    )
    assert data["outTitle"] == "Base model"
    losses = [row[data["fields"].index("outLosses")] for row in data["samples"]]
    assert {len(loss) for loss in losses} == {1}


def test_texts_names_and_sources_are_escaped(replicas: RecipeResults, given: RecipeResults):
    html = html_of(replicas)
    assert "<script>alert" not in html
    assert f"<b>{NAME}" not in html
    assert "a &#34;b&#34; &amp; c" in html
    shown = report_html.check(html)
    assert " ".join(NASTY.split())[:40] in shown.words
    html = html_of(given)
    assert "<u>" not in html
    assert "<i>" not in html
    assert "<u>x</u>\"'" in report_html.check(html).words


@pytest.mark.usefixtures("undrawn")
def test_links_lead_to_files(replicas: RecipeResults, tmp_path: Path):
    copy = copy_workdir(replicas, tmp_path / "w")
    path = page.write_page(workdir_of(copy), None, (), lambda *_: None, print)
    assert path == workdir_of(copy) / "report.html"
    shown = report_html.check(path.read_text("utf-8"), path.parent)
    files = {
        a["href"] for tag, a in shown.tags if tag == "a" and not (a["href"] or "").startswith("#")
    }
    assert f"figures/{quote(NAME)}-training.pdf" in {unescape(f or "") for f in files}
    assert any((f or "").endswith("/samples.html") for f in files)
    tables = {*re.findall(r"tables/(\w+\.\w+)", shown.text)} - {"comparison.csv"}
    assert tables
    assert {t for t in tables if not (copy.recipe_dir / "tables" / t).is_file()} == set()


def test_details_state_their_results(tmp_path: Path):
    settings: dict[str, Any] = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    settings |= {"variance": "pooled", "resample_references": 2}
    recipe = write_workdir(tmp_path, samples=200, leave_one_out=True, pieces=4, **settings)
    recipe_figures.write(recipe)
    html = html_of(recipe)
    rows = recipe.view.table("resampled_references.csv").query("bin == 'coin flip'")
    row = rows[np.isclose(rows["fpr"], 0.05)].iloc[0]
    assert row["low"] > 0
    assert f"{100 * row['member_fraction']:.0f} % of the members " in html
    rows = recipe.view.table("pooling.csv").query("strategy == 'standardized' and not oracle")
    row = rows[np.isclose(rows["fpr"], 0.05) & (rows["models"] == 16)].iloc[0]
    assert f"finds {100 * row['tpr']:.0f} % of the members" in html
    made = report_html.text_of(html, '<section id="made"', "</section>")
    assert "over documents" in made
    links = re.findall(r'href="figures/demo-(\w+)\.pdf"', html)
    assert {"training", "pooling", "gaussian_tpr", "advantage", "audit"} <= {*links}
    assert all((tmp_path / "figures" / f"demo-{name}.pdf").is_file() for name in links)


def test_texts_that_can_be_extracted_have_a_section(tmp_path: Path):
    settings = {"attacks": ("lira_online",), "references": 8, "bootstraps": 0}
    recipe = write_workdir(tmp_path, samples=240, **settings)
    recipe = read(write_extraction(recipe, 40).recipe_dir)
    html = html_of(recipe)
    assert section_ids(html)[1:4] == ["samples", "extracted", "trust"]
    assert headings(html)[2].startswith("2b. ")
    assert "of the 40 tried" in html


@pytest.mark.usefixtures("undrawn")
def test_a_page_without_targets_has_what_its_references_show(tmp_path: Path):
    settings = {"attacks": ("lira_online",), "bootstraps": 0, "replicas": 0}
    recipe = write_workdir(tmp_path, samples=100, leave_one_out=True, **settings)
    html = html_of(read(recipe.recipe_dir))
    assert lead(html).startswith("No model of ")
    assert "<b>Thresholds" in html


def test_budgets(recipe: RecipeResults):
    html = html_of(recipe)
    assert len(report_html.unfolded(html).split()) <= report_html.MAX_WORDS
    assert len(html.encode()) <= report_html.MAX_BYTES
    assert len(lead(html).split()) <= 90
    for detail in re.findall(
        r'(?s)<summary><b>.*?</b> <span>(.*?)</span>|class="result".*?<span>(.*?)</span>', html
    ):
        assert len(re.sub(r"<[^>]+>", "", "".join(detail)).split()) <= 20
    for kind, most in (("figcaption", 60), ("caption", 60)):
        for part in re.findall(rf"(?s)<{kind}>(.*?)</{kind}>", html):
            assert len(re.sub(r"<[^>]+>", "", part).split()) <= most, part
    for margin in re.findall(r'(?s)<div class="margin">(.*?)</div>', html):
        for note in re.findall(r"(?s)<p>(.*?)</p>", margin):
            assert len(re.sub(r"<[^>]+>", "", note).split()) <= 35, note


def test_the_budgets_of_a_full_page(tmp_path: Path):
    """As many models and as long texts as in the quickstart, and every list of samples is full."""
    html = html_of(quickstart_like.write(tmp_path / "w"))
    samples = html.partition('<script type="application/json">')[2].partition("</script>")[0]
    data = json.loads(samples)
    keys = [choice["key"] for choice in data["filters"]]
    chosen = [row[data["fields"].index("filters")] for row in data["samples"]]
    counts = {key: sum(i in of_sample for of_sample in chosen) for i, key in enumerate(keys)}
    assert counts["top"] == 150
    assert counts["coin"] == 100
    assert counts["alarm"] >= 50
    assert len(html.encode()) <= report_html.MAX_BYTES
    assert len(report_html.unfolded(html).split()) <= report_html.MAX_WORDS


def test_pages_are_reproducible(replicas: RecipeResults):
    assert html_of(replicas) == html_of(read(replicas.recipe_dir))


def test_cost_counts_models_and_all_runs_of_a_stage(replicas: RecipeResults, tmp_path: Path):
    copy = copy_workdir(replicas, tmp_path / "w")
    workdir = Workdir(workdir_of(copy))
    shutil.rmtree(workdir.path / "metrics", ignore_errors=True)
    assert "Cost" not in facts_of(copy)
    for model in ("reference-00", "reference-01"):
        of_model = {"recipe": copy.name, "model": model}
        workdir.log_event({"event": "model_trained", "seconds": 50, **of_model})
        workdir.log_event({"event": "model_scored", "seconds": 7, "last": True, **of_model})
    for stage, seconds in (("corpus", 16), ("attack", 20), ("attack", 3), ("report", 9)):
        event = {"event": "stage", "stage": stage, "recipe": copy.name, "seconds": seconds}
        workdir.log_event(event)
    workdir.log_event({"event": "stage", "stage": "attack", "recipe": "other", "seconds": 500})
    models, stages = facts_of(copy)["Cost"].split("; ")
    assert re.findall(r"\d+ \w+", models) == ["2 minutes", "14 seconds", "2 models"]
    assert re.findall(r"\d+ \w+", stages) == ["16 seconds", "23 seconds", "2 runs"]


def facts_of(recipe: RecipeResults) -> dict[str, str]:
    return {str(fact.term): str(fact.description) for fact in recipe_page.made(recipe, None)}


# --- What is missing --------------------------------------------------------------------------------------------------


def test_nothing_attacked_yet(targets: RecipeResults, tmp_path: Path):
    copy = copy_workdir(targets, tmp_path / "w")
    for part in ("scores.zarr", "pieces", "tables"):
        shutil.rmtree(copy.recipe_dir / part)
    copy = read(copy.recipe_dir)
    html = html_of(copy)
    assert lead(html).startswith("Nothing")
    [banner] = banners(html)
    assert f"lm-mia run --workdir={workdir_of(copy)}" in banner
    assert section_ids(html) == ["made"]
    assert line_of(copy).startswith("no numbers: ")


def test_without_a_population_nothing_is_attacked(targets: RecipeResults, tmp_path: Path):
    copy = copy_workdir(targets, tmp_path / "w")
    shutil.rmtree(workdir_of(copy) / "populations")
    html = html_of(read(copy.recipe_dir))
    assert lead(html).startswith("Nothing")
    assert len(banners(html)) == 1


def test_references_that_attack_each_other_are_named(tmp_path: Path):
    recipe = write_workdir(
        tmp_path / "w", samples=200, references=8, replicas=2, attacks=("lira_online", "loss"), **SETTINGS
    )  # fmt: skip
    path = recipe.recipe_dir / "config.json"
    stored = json.loads(path.read_text())
    stored["config"]["attack"] |= {"replicas": 0, "leave_one_out": True}
    path.write_text(json.dumps(stored))
    html = html_of(read(recipe.recipe_dir))
    assert lead(html).startswith("No model of ")
    assert not re.search(r"of 100 members", lead(html), re.IGNORECASE)


def test_while_models_are_missing_the_answer_is_so_far(tmp_path: Path):
    settings = {**SETTINGS, "attacks": ("lira_online", "stacked", "loss")}
    absent = ["reference-03", "replica-07"]
    recipe = write_workdir(tmp_path / "w", samples=600, effect=1.0, absent=absent, **settings)
    html = html_of(recipe)
    assert lead(html).startswith("So far, ")
    [banner, *_] = banners(html)
    assert "15 of 16 references" in banner
    assert "15 of 16 trainings" in banner
    assert f"lm-mia run --workdir={workdir_of(recipe)}" in banner
    assert line_of(recipe) == lead(html)


def test_a_damaged_store_leaves_the_record(targets: RecipeResults, tmp_path: Path):
    copy = copy_workdir(targets, tmp_path / "w")
    (copy.recipe_dir / "scores.zarr" / "zarr.json").write_text("{")
    html = html_of(read(copy.recipe_dir))
    [banner] = banners(html)
    assert "scores.zarr" in banner
    assert "damaged" in banner
    assert "of 100 members" not in lead(html).lower()
    assert section_ids(html) == ["made"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
def test_missing_and_damaged_pieces_are_computed_again(
    targets: RecipeResults, tmp_path: Path, damage: Callable[[Path], Any]
):
    expected = html_of(targets)
    copy = copy_workdir(targets, tmp_path / "w")
    pieces = [*(copy.recipe_dir / "pieces").iterdir()]
    assert len(pieces) > 20
    for piece in pieces:
        damage(piece)
    html = html_of(read(copy.recipe_dir))
    assert html.replace(str(workdir_of(copy)), str(workdir_of(targets))) == expected


def with_table(
    recipe: RecipeResults, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]
) -> RecipeResults:
    """Returns a recipe with another content of a table."""
    table = change(recipe.view.table(name).copy())
    changed = dataclasses.replace(recipe)
    vars(changed)["view"] = dataclasses.replace(
        recipe.view, tables={**recipe.view.tables, name: lambda _: table}
    )
    return changed


def test_inverted_membership_has_a_warning(without_texts: RecipeResults):
    inverted = {
        "member_loss_nats": "nonmember_loss_nats",
        "nonmember_loss_nats": "member_loss_nats",
    }
    changed = with_table(without_texts, "models.csv", lambda table: table.rename(columns=inverted))
    [banner] = banners(html_of(changed))
    assert "inverted" in banner
    assert "7 models" in banner


def test_a_rate_without_intervals_is_not_called_guessing(replicas: RecipeResults):
    """Its members found, and what another training misses, are said without intervals and comparisons."""

    def without_intervals(table: pd.DataFrame) -> pd.DataFrame:
        ends = ["low", "high", "minus_headline_low", "minus_headline_high"]
        table.loc[table["metric"].isin(["tpr", "missed"]), ends] = math.nan
        return table

    html = html_of(with_table(replicas, "strength.csv", without_intervals))
    assert section_ids(html) == section_ids(html_of(replicas))
    assert "guessing at this rate" not in lead(html)
    assert "attack.focus_fpr" in lead(html)
    assert "missed" in lead(html)
    assert "told apart" not in html
    assert "not visibly help</b> at this rate" not in html


@pytest.mark.parametrize(
    ("table", "missing"),
    [
        slow_case("headline_roc.csv", QUESTIONS[0]),
        ("page_samples.parquet", QUESTIONS[1]),
        slow_case("found_again.csv", QUESTIONS[2]),
        slow_case("found_by_text.csv", QUESTIONS[3]),
    ],
)
def test_a_part_that_fails_leaves_the_rest(replicas: RecipeResults, table: str, missing: str):
    def fail(_: Any) -> Any:
        raise UserError(f"{table}: cannot be read")

    changed = dataclasses.replace(replicas)
    view = dataclasses.replace(replicas.view, tables={**replicas.view.tables, table: fail})
    vars(changed)["view"] = view
    html = html_of(changed)
    assert lead(html) == lead(html_of(replicas))
    titles = [title.partition(". ")[2] for title in headings(html) if title[0].isdigit()]
    assert titles == [q.partition(". ")[2] for q in QUESTIONS[:4] if q != missing]
    assert [title[0] for title in headings(html)[:3]] == ["1", "2", "3"]
    [banner] = [text for text in banners(html) if table in text]
    assert "not affected" in banner


@pytest.mark.parametrize(
    "table",
    [
        "audit.csv",
        slow_case("attack_flips.csv"),
        slow_case("models.csv"),
        slow_case("more_references.csv"),
    ],
)
def test_a_detail_that_fails_leaves_the_rest(replicas: RecipeResults, table: str):
    def fail(_: Any) -> Any:
        raise UserError(f"{table}: cannot be read")

    changed = dataclasses.replace(replicas)
    view = dataclasses.replace(replicas.view, tables={**replicas.view.tables, table: fail})
    vars(changed)["view"] = view
    html = html_of(changed)
    assert lead(html) == lead(html_of(replicas))
    assert "Details" in headings(html)


# --- The files --------------------------------------------------------------------------------------------------------


def test_a_workdir_of_one_recipe_has_its_page(replicas: RecipeResults, tmp_path: Path):
    copy = copy_workdir(replicas, tmp_path / "w")
    path = write.write(workdir_of(copy), [copy], [copy], {})
    html = path.read_text("utf-8")
    assert lead(html) == lead(html_of(replicas))
    assert not (copy.recipe_dir / "report.html").exists()


def test_a_workdir_of_simulations_names_their_figures(tmp_path: Path):
    (tmp_path / "figures").mkdir()
    pages = {"figures/mace.html": "Liu et al. (2020)", "figures/causal.html": "<Even>"}
    for name in pages:
        (tmp_path / name).write_text("")
    html = write.write(tmp_path, [], [], pages).read_text("utf-8")
    report_html.check(html, tmp_path)
    assert "No model" in lead(html)
    assert "Liu et al. (2020), <Even>." in lead(html)
