"""The page of several recipes: which lets an attacker find most, what may be said of a trend, and what is missing."""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import report_html
from report_html import banners, headings, lead, of_strength, section_ids
from strength_cases import of_attacks
from synthetic_workdir import write_workdir
from views import recipe_of_files

from analysis import opening, page
from analysis.io import RecipeResults
from analysis.report import document, numbers, strength, sweep_page, write
from analysis.report.numbers import Estimate
from analysis.report.sweep_page import Compared, Swept
from lm_mia import config
from lm_mia.run import model_sizes

EFFECTS = {"z": (1, 0.1), "m": (4, 0.5), "a": (16, 1.2)}
"""Recipe -> number of epochs, and effect of training; in the order of epochs, which is not that of names."""


# --- Parts, of invented numbers ---------------------------------------------------------------------------------------


def compared(name: str, *found: float, fpr: float = 0.01, **settings: Any) -> Compared:
    """Returns a recipe that finds a share of the members, with its interval."""
    c = config.Config(name=name)
    c = dataclasses.replace(c, **settings)
    invented = of_attacks(("stacked", "loss"), "stacked", models=4, has_replicas=False)
    value, low, high = found if len(found) == 3 else (*found, math.nan, math.nan)
    rows = {key: dict(row) for key, row in invented.rows.items()}
    rows["stacked", "tpr"] |= {"value": value, "low": low, "high": high}
    invented = dataclasses.replace(invented, rows=rows, fpr=fpr)
    return Compared(recipe_of_files(Path(name), c=c), invented)


def said(recipes: Sequence[Compared], swept: Swept | None = None) -> str:
    return " ".join(str(part.striptags()) for part in sweep_page.lead_sentences(recipes, swept))


def test_difference_of_independent_estimates():
    """Zou and Donner: 0.3 - 0.1 with the roots of 0.1^2 + 0.1^2 below and 0.1^2 + 0.05^2 above."""
    one, other = Estimate(0.3, 0.2, 0.4), Estimate(0.1, 0.05, 0.2)
    result = sweep_page.difference(one, other)
    assert result.value == pytest.approx(0.2)
    assert result.low == pytest.approx(0.2 - math.sqrt(0.02))
    assert result.high == pytest.approx(0.2 + math.sqrt(0.0125))
    swapped = sweep_page.difference(other, one)
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx(
        (-result.value, -result.high, -result.low)
    )
    assert not sweep_page.difference(one, Estimate(0.1)).has_interval
    assert not sweep_page.difference(one, Estimate(math.nan)).is_known


EPOCHS = Swept("number of epochs", {"a": 1, "b": 4, "c": 16})
RISING = (
    compared("a", 0.1, 0.05, 0.15),
    compared("b", 0.3, 0.2, 0.4),
    compared("c", 0.6, 0.5, 0.7),
)


def test_a_trend_needs_a_number_an_order_and_a_difference():
    assert f"larger the {EPOCHS.title}, the more" in said(RISING, EPOCHS)
    falling = Swept("number of texts", {"a": 16, "b": 4, "c": 1})
    in_order = RISING[::-1]
    assert "the smaller" not in said(RISING, EPOCHS)
    assert f"smaller the {falling.title}, the more" in said(
        in_order, Swept(falling.title, {"c": 1, "b": 4, "a": 16})
    )
    not_in_order = (RISING[1], RISING[0], RISING[2])
    for recipes, swept in (
        (not_in_order, Swept("number of epochs", {"b": 1, "a": 4, "c": 16})),
        (RISING, None),
        (RISING, Swept("model", {"a": 1, "b": 1, "c": 16})),
        (RISING, Swept("train.subset", {"a": "exact", "b": "balanced", "c": "bernoulli"})),
        ((*RISING[:2], compared("c", math.nan)), EPOCHS),
    ):
        text = said(recipes, swept)
        assert "the more" not in text
        assert "attacker find most" in text


@pytest.mark.parametrize(
    "second",
    [(0.35, 0.28, 0.42), (0.32,), (0.3, 0.2, 0.4)],
    ids=["overlap", "no interval", "equal"],
)
def test_recipes_without_a_difference_cannot_be_told_apart(second: tuple[float, ...]):
    recipes = [compared("a", 0.3, 0.2, 0.4), compared("b", *second)]
    text = said(recipes, Swept("number of epochs", {"a": 1, "b": 4}))
    assert "told apart" in text
    assert "the more" not in text
    assert "attacker find most" not in text


def test_the_sentence_names_the_most_and_the_least():
    text = said(RISING, EPOCHS)
    assert f"60 (50 to 70) in c and 10 (5 to 15) in a, at {numbers.false_alarms(0.01)}" in text
    assert text.startswith("All 3")
    assert "30" not in text


def test_the_intervals_say_what_they_cover():
    several = compared("a", 0.1, 0.05, 0.2)
    strength = dataclasses.replace(several.strength, has_replicas=True)
    replicas = dataclasses.replace(several, recipe=compared("b", 0.1).recipe, strength=strength)
    strength = dataclasses.replace(several.strength, models=several.strength.models[:1])
    one = dataclasses.replace(several, recipe=compared("c", 0.1).recipe, strength=strength)
    text = sweep_page.covered([several])
    covered, _, held = text.partition(";")
    assert ("choice of samples" in covered, "choice of models" in covered) == (True, True)
    assert "references" in held
    text = sweep_page.covered([several, replicas, one])
    assert re.search(r"samples, in b \w+ \w+ batch order, in a \w+ \w+ choice of models;", text)
    assert "choice of models" not in sweep_page.covered([one])


def test_different_rates_are_not_named_as_one():
    recipes = [compared("a", 0.1, 0.05, 0.15), compared("b", 0.6, 0.5, 0.7, fpr=0.05)]
    text = said(recipes)
    assert "false alarm" not in text
    assert "of each recipe" in text


def test_recipes_without_numbers_are_counted_with_the_reason():
    unknown = compared("z", math.nan)
    parts = sweep_page.lead_sentences((*RISING, unknown), EPOCHS, ["x", "y"])
    text = str(parts[-1].striptags())
    assert text.startswith("3 of 6 recipes ")
    assert " in x and y" in text
    assert "z cannot" in text
    assert "the more" not in " ".join(parts)  # nobody knows where the others are
    assert "no numbers" not in said(RISING, EPOCHS)


def test_while_models_are_missing_the_answer_is_so_far():
    rising = [dataclasses.replace(RISING[0], missing="3 of 4 references"), *RISING[1:]]
    equal = [dataclasses.replace(c, strength=rising[0].strength) for c in rising]
    for recipes, swept in ((rising, EPOCHS), (rising, None), (equal, EPOCHS)):
        assert said(recipes, swept).startswith("So far, ")


def test_without_numbers_nothing_is_claimed():
    assert said([]).startswith("Nothing")
    text = said([compared("a", math.nan), compared("b", math.nan)])
    assert "finds" not in text
    assert "enough" in text


@pytest.mark.parametrize(
    ("values", "is_number"),
    [
        ((1, 4, 16), True),
        ((0.5, 1.5), True),
        ((1, 4, 4), False),
        ((0, 1), False),
        (("a", "b"), False),
        ((True, False), False),
        ((1, "auto"), False),
    ],
)
def test_values_that_order_recipes(values: tuple[Any, ...], is_number: bool):
    assert Swept("s", dict(enumerate(values))).is_number == is_number  # type: ignore[arg-type]


def recipes_of(*settings: dict[str, Any], **common: Any) -> list[RecipeResults]:
    """Returns recipes with nested settings: {"train.epochs": 4}."""
    recipes = []
    for i, of_recipe in enumerate(settings):
        c = config.Config(name=f"r{i}", **common)
        for field, value in of_recipe.items():
            section, _, name = field.rpartition(".")
            if section:
                part = dataclasses.replace(getattr(c, section), **{name: value})
                c = dataclasses.replace(c, **{section: part})
            else:
                c = dataclasses.replace(c, **{name: value})
        c = config.resolve(c)
        recipe = recipe_of_files(Path(f"r{i}"), c=c)
        vars(recipe)["model_size"] = model_sizes.size(c)  # which a folder would have
        recipes.append(recipe)
    return recipes


def test_swept_settings():
    def swept(*settings: dict[str, Any]) -> Swept | None:
        return sweep_page.swept_setting(recipes_of(*settings))

    found = swept({"train.epochs": 1}, {"train.epochs": 4})
    assert found == Swept("number of epochs", {"r0": 1, "r1": 4})
    found = swept({"population.samples": 512}, {"population.samples": 256})
    assert found is not None
    assert (found.is_number, found.values) == (True, {"r0": 512, "r1": 256})
    found = swept({"train.subset": "exact"}, {"train.subset": "balanced"})
    assert found == Swept("train.subset", {"r0": "exact", "r1": "balanced"})
    # How models are computed, and which figures are drawn, changes no result.
    found = swept(
        {"train.epochs": 1, "compute.layers": "scanned", "figures": ("scaling",)},
        {"train.epochs": 4},
    )
    assert found == Swept("number of epochs", {"r0": 1, "r1": 4})
    assert swept({"train.epochs": 1}, {"train.epochs": 1}) is None
    assert swept({"train.epochs": 1}) is None
    assert swept({"train.epochs": 1, "train.batch_size": 8}, {"train.epochs": 4}) is None
    small = {"model.size": "custom", "model.layers": 1, "model.width": 64, "model.heads": 1}
    large = small | {"model.layers": 4, "model.width": 128}
    found = swept(large, small)
    assert found is not None
    assert (found.title, found.is_number) == ("model", True)
    assert found.values["r0"] > found.values["r1"]


# --- Pages of real attacks --------------------------------------------------------------------------------------------


def change(workdir: Path, name: str, **changes: dict[str, Any]) -> None:
    """Changes the stored config of a recipe: train={"epochs": 4}."""
    path = workdir / "recipes" / name / "config.json"
    stored = json.loads(path.read_text())
    for section, fields in changes.items():
        stored["config"][section] |= fields
    path.write_text(json.dumps(stored))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir of three recipes; the one with the most epochs has replicas."""
    workdir = tmp_path_factory.mktemp("sweep") / "w"
    for name, (epochs, effect) in EFFECTS.items():
        own: dict[str, Any] = {"replicas": 0, "targets": 4}
        if name == "a":
            own = {"replicas": 12, "targets": 0}
        write_workdir(
            workdir,
            name,
            samples=600,
            effect=effect,
            attacks=("lira_online", "stacked", "loss"),
            **{"bootstraps": 0, "resample_references": 0, **own},
        )
        change(workdir, name, train={"epochs": epochs})
    return workdir


@pytest.fixture
def workdir(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "w"))


def read(workdir: Path) -> list[RecipeResults]:
    sweep = opening.with_needs(opening.read_recipes(workdir), page.figure_needs(()))
    return [*sweep.recipes, *sweep.without_population]


def html_of(recipes: Sequence[RecipeResults], pages: dict[str, str] | None = None) -> str:
    html = document.render(sweep_page.page(recipes, "sweep", pages or {}))
    report_html.check(html)
    return html


def rows_of(html: str) -> list[list[str]]:
    """Returns the cells of the table of recipes."""
    table = html.partition('<section id="recipes"')[2].partition("</table>")[0]
    rows = re.findall(r"(?s)<tr>(.*?)</tr>", table.partition("<tbody>")[2])
    cells = [re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    return [[" ".join(re.sub(r"<[^>]+>", " ", c).split()) for c in row] for row in cells]


def test_recipes_are_compared_in_the_order_of_a_number(workdir: Path):
    for name in EFFECTS:  # the models under attack are the same
        change(workdir, name, attack={"replicas": 0, "targets": 4})
    recipes = read(workdir)
    html = html_of(recipes)
    by_name = {recipe.name: recipe for recipe in recipes}
    assert [row[:2] for row in rows_of(html)] == [["z", "1"], ["m", "4"], ["a", "16"]]
    for row in rows_of(html):
        found = of_strength(by_name[row[0]], "stacked", "tpr").replace("(", "").replace(")", "")
        assert row[2] == found
    assert f"larger the {EPOCHS.title}, the more" in lead(html)
    most, least = (of_strength(by_name[name], "stacked", "tpr") for name in "az")
    assert f"{most} in a and {least} in z, at {numbers.false_alarms(0.05)}" in lead(html)
    assert rows_of(html)[0][3] == numbers.MISSING
    assert section_ids(html)[:2] == ["recipes", "samples"]
    assert headings(html)[1].endswith(" in a?")
    assert len(re.findall("<summary>", html)) == 3
    assert most.partition(" ")[0] in report_html.description(html, "found-by-recipe")


@pytest.mark.slow
def test_recipes_that_differ_in_more_are_not_ordered(workdir: Path):
    html = html_of(read(workdir))  # one has replicas
    assert "the more" not in lead(html)
    assert "a lets" in lead(html)
    assert "epochs" not in rows_of(html)[0]
    assert report_html.description(html, "recipes")
    assert "missed after retraining" in html.lower()


def test_one_recipe_with_a_number_has_its_own_sentence(workdir: Path):
    [recipe] = [recipe for recipe in read(workdir) if recipe.name == "m"]
    known = Compared(recipe, strength.read(recipe))
    text = said([known, compared("b", math.nan)])
    assert f"an attacker finds {of_strength(recipe, 'stacked', 'tpr')}" in text
    assert "told apart" not in text
    assert "1 of 2 recipes " in text


def test_a_recipe_without_numbers_is_named(workdir: Path):
    shutil.rmtree(workdir / "recipes" / "m" / "scores.zarr")
    html = html_of(read(workdir))
    [banner] = banners(html)
    assert banner.startswith("m ")
    assert re.search(r"1 of 3 recipes\b.* in m\b", lead(html))
    assert f"lm-mia run --workdir={workdir}" in banner
    assert {row[0] for row in rows_of(html)} == {"z", "a"}


def test_nothing_was_attacked(workdir: Path):
    for name in EFFECTS:
        shutil.rmtree(workdir / "recipes" / name / "scores.zarr")
    html = html_of(read(workdir))
    assert lead(html) == said([])
    assert len(banners(html)) == 3
    assert section_ids(html) == ["made"]


def test_a_damaged_store_leaves_the_other_recipes(workdir: Path):
    (workdir / "recipes" / "z" / "scores.zarr" / "zarr.json").write_text("{")
    html = html_of(read(workdir))
    [banner] = banners(html)
    assert "damaged" in banner
    assert {row[0] for row in rows_of(html)} == {"m", "a"}


@pytest.mark.slow
def test_different_rates_are_a_column(workdir: Path):
    change(workdir, "m", attack={"focus_fpr": 0.1})
    html = html_of(read(workdir))
    assert "of each recipe" in lead(html)
    assert {row[0]: row[2] for row in rows_of(html)} == {"z": "5", "m": "10", "a": "5"}


@pytest.mark.slow
def test_many_recipes_have_their_comparison_alone(workdir: Path):
    copies = [f"z{i:02}" for i in range(sweep_page.MAX_DETAILS)]
    for i, name in enumerate(copies):
        shutil.copytree(workdir / "recipes" / "z", workdir / "recipes" / name)
        path = workdir / "recipes" / name / "config.json"
        stored = json.loads(path.read_text()) | {"names": [name]}
        stored["config"]["name"] = name
        stored["config"]["train"]["epochs"] = 20 + i
        path.write_text(json.dumps(stored))
    listed = json.loads((workdir / "config.json").read_text())
    listed["recipes"] = ["z", *copies]
    (workdir / "config.json").write_text(json.dumps(listed))
    shutil.rmtree(workdir / "recipes" / "a")
    shutil.rmtree(workdir / "recipes" / "m")
    html = html_of(read(workdir))
    assert len(rows_of(html)) == 13
    assert "told apart" in lead(html)
    assert "<details" not in html
    assert len(html.encode()) <= report_html.MAX_BYTES
    assert len(report_html.unfolded(html).split()) <= report_html.MAX_WORDS
    for name in copies:
        shutil.rmtree(workdir / "recipes" / name / "scores.zarr")
    html = html_of(read(workdir))
    assert len(banners(html)) == 4  # the first three, and how many more there are


@pytest.mark.usefixtures("undrawn")
def test_recipes_with_replicas_have_pages(workdir: Path):
    path = page.write_page(workdir, None, (), lambda *_: None, print)
    html = path.read_text("utf-8")
    report_html.check(html, workdir)
    assert 'href="recipes/a/report.html"' in html
    own = workdir / "recipes" / "a" / "report.html"
    assert {p.parent.name for p in workdir.glob("recipes/*/report.html")} == {"a"}
    report_html.check(own.read_text("utf-8"), own.parent)
    assert "would be missed" in lead(own.read_text("utf-8"))
    lines = page.summary_lines(workdir, None)
    for recipe in read(workdir):
        [line] = [text for text in lines if text.startswith(f"{recipe.name}: ")]
        assert of_strength(recipe, "stacked", "tpr") in line
    assert f"a: {lead(own.read_text('utf-8'))}" in lines


def test_a_single_recipe_of_a_sweep_has_its_own_page(workdir: Path):
    recipes = [recipe for recipe in read(workdir) if recipe.name == "m"]
    html = write.write(workdir, recipes, [], {}).read_text("utf-8")
    assert of_strength(recipes[0], "stacked", "tpr") in lead(html)
    assert "recipes" not in section_ids(html)
