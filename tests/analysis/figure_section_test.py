"""Figures and the attack stage: which attacks a figure needs, and messages about missing tables."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from slow_case import slow_case
from synthetic_figures import attack, without_targets

from analysis import attacks, figure_section, opening, page
from analysis.experiments import find
from analysis.io import SweepResults
from lm_mia.attacks.spec import Need, StudyNeed, Variant


def copied(names: Sequence[str], recipes: SweepResults, workdir: Path) -> SweepResults:
    """Copies recipes to another workdir, with their scores but without the tables of targets."""
    return SweepResults([without_targets(recipes[name], workdir) for name in names])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "names"),
    [
        slow_case("strongmia_fig08_statistic", ["main"]),  # logits
        ("strongmia_fig14_offline", ["small"]),  # RMIA
        # without groups of references
        slow_case("strongmia_fig16_duplicates", ["main", "distinct"]),
    ],
)
def test_figures_do_not_depend_on_attacks_of_other_figures(
    name: str, names: list[str], recipes: SweepResults, tmp_path: Path
):
    alone = copied(names, recipes, tmp_path)
    attack([name], alone)
    alone = opening.with_needs(alone, page.figure_needs([name]))
    result, expected = (find(name).draw(results) for results in (alone, recipes))
    pd.testing.assert_frame_equal(result.data, expected.data)
    assert (result.claims, result.notes) == (expected.claims, expected.notes)


def test_a_figure_says_of_which_models_its_numbers_are(recipes: SweepResults, tmp_path: Path):
    shown = figure_section.make_section("strongmia_fig08_statistic", recipes, tmp_path)
    main = recipes["main"]
    assert f"models of {main.parameters:,} parameters" in shown.models
    assert f"trained on {main.samples:,} samples of {main.config.corpus.source}" in shown.models
    several = figure_section.describe_models([recipe for _, recipe in recipes.family("fixed")])
    assert "12,288 to 589,824 parameters" in several
    assert "simulation" in figure_section.describe_models([])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def attacked(recipes: SweepResults, tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    """A recipe with the tables for one figure."""
    small = copied(["small"], recipes, tmp_path_factory.mktemp("attacked"))
    attack(["strongmia_fig14_offline"], small)
    return small


@pytest.mark.parametrize(
    "damage",
    [
        slow_case(lambda folder: shutil.rmtree(folder / "tables")),
        slow_case(lambda folder: shutil.rmtree(folder / "pieces")),
        lambda folder: [truncate(path) for path in (folder / "pieces").glob("halved_rates-*")],
    ],
)
def test_missing_or_damaged_results_are_computed_again(
    damage: Callable[[Path], None], attacked: SweepResults, tmp_path: Path
):
    name, [recipe] = "strongmia_fig14_offline", attacked.recipes
    shutil.copytree(recipe.recipe_dir.parents[1], tmp_path / "w")
    folder = tmp_path / "w" / "recipes" / "small"
    damage(folder)
    copy = SweepResults([dataclasses.replace(recipe, recipe_dir=folder)])
    small = opening.with_needs(copy, page.figure_needs([name]))
    assert not figure_section.make_section(name, small, tmp_path).missing
    pd.testing.assert_frame_equal(find(name).draw(small).data, find(name).draw(attacked).data)


def test_missing_attacks_are_reported(attacked: SweepResults, tmp_path: Path):
    shown = figure_section.make_section("strongmia_fig13_rmia_gamma", attacked, tmp_path)
    assert re.fullmatch(
        r"small: .*\brmia with 24 references and \|Z\|=[0-9]+, gamma=1; run lm-mia attack .*\bfigures\b.*",
        shown.missing,
    )


def example_figure(name: str = "mine.py") -> str:
    """Returns a Python file of docs/how-to/experiment.md."""
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "experiment.md"
    return page.read_text(encoding="utf-8").partition(f'title="{name}"\n')[2].partition("```")[0]


def test_attacks_of_a_user_defined_figure_are_computed(
    recipes: SweepResults, attacked: SweepResults, tmp_path: Path
):
    figure_file = tmp_path / "mine.py"
    figure_file.write_text(example_figure())
    page.check_figures([str(figure_file)])
    assert page.figure_needs([str(figure_file)])[-1] == Need(("*",), ("lira_online", "rmia"))
    names = ["fixed-10M", "fixed-302M", "flip-140M"]  # the last recipe has no targets
    own = copied(names, recipes, tmp_path / "w")
    without_attacks = figure_section.make_section(str(figure_file), own, tmp_path)
    assert re.match(r"fixed-10M: .*\blira_online with", without_attacks.missing)
    attack([str(figure_file)], own)
    shown = figure_section.make_section(str(figure_file), own, tmp_path)
    assert (shown.missing, shown.title) == ("", "LiRA against RMIA")
    data = pd.read_csv(tmp_path / "tables" / "mine.csv")
    assert data["recipe"].tolist() == ["fixed-10M", "fixed-302M"]
    expected = attacks.read_attack(own["fixed-10M"], Variant("rmia", 16)).auc_T.mean()
    assert data["rmia"].tolist()[0] == pytest.approx(expected, abs=1e-12)
    assert (tmp_path / "figures" / "mine.png").is_file()


@pytest.mark.slow  # The page on experiments runs the same figure.
def test_the_study_of_a_user_defined_figure_is_computed(recipes: SweepResults, tmp_path: Path):
    figure_file = tmp_path / "zlib_flips.py"
    figure_file.write_text(example_figure("zlib_flips.py"))
    own = copied(["flip-140M"], recipes, tmp_path / "w")
    need = page.figure_needs([str(figure_file)])[-1]
    assert isinstance(need, StudyNeed)
    shown = figure_section.make_section(str(figure_file), opening.with_needs(own, [need]), tmp_path)
    assert (shown.missing, shown.title.split()[:2]) == ("", ["Flip", "rate"])
    [recipe] = own.recipes
    samples = recipe.view.table("samples.parquet")
    members = samples[samples["member"]]
    data = pd.read_csv(tmp_path / "tables" / "zlib_flips.csv")
    assert len(data) == 8
    assert data["zlib_bytes"].is_monotonic_increasing
    smallest = members.sort_values("zlib_bytes", kind="stable")[: len(members) // 8]
    assert data["flip_rate"][0] == pytest.approx(smallest["flip_rate_0.05"].mean(), abs=0.02)
    # The correlation with all models and samples is that of the exported flip rates.
    [claim] = shown.claims
    assert claim.estimate is not None
    rates = members.dropna(subset=["flip_rate_0.05"])
    expected = rates["zlib_bytes"].corr(rates["flip_rate_0.05"], method="spearman")
    assert claim.estimate.value == pytest.approx(expected)
    assert claim.estimate.has_interval
    # Its table is exported by the command, and removed when no figure names it any more.
    table = recipe.recipe_dir / "tables" / "zlib_flip_bins.csv"
    attack([str(figure_file)], own)
    assert pd.read_csv(table)["flip_rate"].tolist() == data["flip_rate"].tolist()
    attack(["open_fig03_recency"], own)
    assert not table.exists()
