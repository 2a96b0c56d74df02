"""Figures and the attacks stage: what is computed for a figure, and what a figure says whose tables are not there."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from synthetic_figures import attack, without_targets

from analysis import attacks, figure_section, page
from analysis.figures import find
from analysis.io import SweepResults
from lm_mia.config.needs import Need


def copied(names: Sequence[str], recipes: SweepResults, workdir: Path) -> SweepResults:
    """Some recipes in a workdir of their own, with their scores and no tables of targets."""
    return SweepResults([without_targets(recipes[name], workdir) for name in names])


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("fig06_vulnerability", ["main"]),  # scores of all samples
        ("fig08_statistic", ["main"]),  # logits
        ("fig14_offline", ["small"]),  # RMIA
        ("fig16_duplicates", ["main", "distinct"]),  # without groups of references
        ("fig24_mean_roc", ["flip-140M", "flip-302M"]),  # replicas
        (
            "fig32_losses_by_size",
            ["fixed-10M", "fixed-44M", "fixed-140M", "fixed-302M", "fixed-1018M"],
        ),
    ],
)
def test_a_figure_is_the_same_whatever_was_computed_with_it(
    name: str, of: list[str], recipes: SweepResults, tmp_path: Path
):
    alone = copied(of, recipes, tmp_path)
    attack([name], alone)
    found, expected = (find(name).draw(some) for some in (alone, recipes))
    pd.testing.assert_frame_equal(found.data, expected.data)
    assert (found.claims, found.notes) == (expected.claims, expected.notes)


def cut(tables: Path, name: str) -> None:
    data = (tables / name).read_bytes()
    (tables / name).write_bytes(data[: len(data) // 2])


def other_settings(tables: Path) -> None:
    settings = json.loads((tables / "targets.json").read_text())
    (tables / "targets.json").write_text(json.dumps(settings | {"fprs": [0.25]}))


@pytest.fixture(scope="module")
def attacked(recipes: SweepResults, tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    """A recipe with the tables of one figure."""
    small = copied(["small"], recipes, tmp_path_factory.mktemp("attacked"))
    attack(["fig14_offline"], small)
    return small


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda tables: (tables / "models.csv").unlink(), "small: not attacked yet; "),
        (lambda tables: (tables / "targets.csv").unlink(), "small: no attacks on targets yet; "),
        (lambda tables: (tables / "targets.json").unlink(), "small: no attacks on targets yet; "),
        (other_settings, "small: the attacks were made with other settings; "),
        (lambda tables: cut(tables, "targets.json"), "small: the attacks were made with other "),
        (lambda tables: cut(tables, "models.csv"), "small: tables/models.csv "),
        (
            lambda tables: (tables / "targets.csv").write_text("x\n1\n"),
            "small: tables/targets.csv has no column attack_id, references, target, auc, left_out; ",
        ),
        (
            lambda tables: cut(tables, "target_roc.parquet"),
            "tables/target_roc.parquet cannot be read; ",
        ),
        (
            lambda tables: (tables / "target_roc.parquet").unlink(),
            "tables/target_roc.parquet cannot be read; ",
        ),
    ],
)
def test_damaged_tables_are_said_in_a_line_whose_command_mends_them(
    damage: Callable[[Path], None], said: str, attacked: SweepResults, tmp_path: Path
):
    name, [recipe] = "fig14_offline", attacked.recipes
    shutil.copytree(recipe.recipe_dir.parents[1], tmp_path / "w")
    folder = tmp_path / "w" / "recipes" / "small"
    small = SweepResults([dataclasses.replace(recipe, recipe_dir=folder)])
    damage(folder / "tables")
    shown = figure_section.make_section(name, small, tmp_path)
    assert said in shown.missing
    assert "\n" not in shown.missing
    assert "; run lm-mia attack" in shown.missing
    assert {claim.verdict for claim in shown.claims} == {"not tested"}
    attack([name], small)
    pd.testing.assert_frame_equal(find(name).draw(small).data, find(name).draw(attacked).data)


def test_a_figure_whose_attacks_are_not_in_the_tables_says_so(
    attacked: SweepResults, tmp_path: Path
):
    shown = figure_section.make_section("fig13_rmia_gamma", attacked, tmp_path)
    assert re.fullmatch(
        r"small: the tables do not contain rmia with 24 references and \|Z\|=[0-9]+, gamma=1; run lm-mia attack with "
        r"this figure in figures \(its needs must include this attack\)",
        shown.missing,
    )


def example_figure() -> str:
    """Returns the Python file of docs/how-to/figure.md."""
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "figure.md"
    return page.read_text(encoding="utf-8").partition('title="mine.py"\n')[2].partition("```")[0]


def test_the_attacks_that_a_users_figure_needs_are_computed(
    recipes: SweepResults, attacked: SweepResults, tmp_path: Path
):
    mine = tmp_path / "mine.py"
    mine.write_text(example_figure())
    page.check_figures([str(mine)])
    assert page.figure_needs([str(mine)]) == [Need(("*",), ("lira_online", "rmia"))]
    names = ["fixed-10M", "fixed-302M", "flip-140M"]  # the last one has no targets
    some = copied(names, recipes, tmp_path / "w")
    lacking = figure_section.make_section(str(mine), some, tmp_path)
    assert lacking.missing == "fixed-10M: no attacks on targets yet; run lm-mia attack"
    attack([str(mine)], some)
    shown = figure_section.make_section(str(mine), some, tmp_path)
    assert (shown.missing, shown.title) == ("", "LiRA against RMIA")
    data = pd.read_csv(tmp_path / "tables" / "mine.csv")
    assert data["recipe"].tolist() == ["fixed-10M", "fixed-302M"]
    expected = attacks.read_attack(some["fixed-10M"], "rmia", 16).auc_T.mean()
    assert data["rmia"].tolist()[0] == pytest.approx(expected, abs=1e-12)
    assert (tmp_path / "figures" / "mine.png").is_file()
