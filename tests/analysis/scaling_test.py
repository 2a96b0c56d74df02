"""The comparison of recipes with equal numbers of references, on a synthetic sweep."""

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from synthetic_figures import attack, without_targets

from analysis import attacks, io, opening, scaling
from analysis.io import SweepResults
from lm_mia.attacks.spec import Variant
from lm_mia.run.workdir import write_config


def test_table_is_tidy_with_equal_numbers_of_references(recipes: SweepResults):
    drawn = scaling.draw(recipes)
    data = drawn.data
    assert set(data["references"][data["metric"] != "coin_flip_members"]) >= {16}
    attack_rows = data[data["metric"].isin(["auc", "tpr"])]
    assert attack_rows["references"].unique().tolist() == [16]
    assert attack_rows["recipe"].nunique() == len(recipes.recipes)
    auc_rows = data[(data["recipe"] == "fixed-10M") & (data["metric"] == "auc")]
    row, recipe = auc_rows.to_dict("records")[0], recipes["fixed-10M"]
    assert (row["layers"], row["width"], row["parameters"]) == (1, 32, 12 * 32**2)
    assert row["samples"] == recipe.samples
    result = attacks.read_attack(recipe, Variant(references=16))
    assert row["value"] == pytest.approx(result.auc_T[0], abs=1e-12)
    per_sample = len(recipe.population.tokens) / (2 * row["samples"])
    assert row["tokens_per_parameter"] == pytest.approx(
        row["samples"] * per_sample / 12288, rel=0.2
    )
    flips = data[data["metric"] == "coin_flip_members"]
    assert {"flip-140M", "flip-302M"} <= set(flips["recipe"])
    assert flips["value"].between(0, 1).all()


def test_lines_join_recipes_that_differ_in_one_quantity(recipes: SweepResults):
    selected = ("main", "fixed-10M", "fixed-302M", "data-384", "epochs-140M", "schedule-linear")
    points = [
        scaling._read_point(recipe, 16)
        for recipe in attacks.with_equal_models([recipes[name] for name in selected])
    ]
    names = {
        quantity: [
            [p.recipe.names[0] for p in family] for family in scaling.families(points, quantity)
        ]
        for quantity in scaling.LINES
    }
    main = points[0].recipe.names[0]
    assert names["parameters"] == [["fixed-10M", main, "fixed-302M"]]
    assert names["samples"] == [["data-384", main]]
    assert names["epochs"] == [[main, "epochs-140M"]]


def test_selected_recipes_and_one_quantity(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    selection = [f"--recipe={name}" for name in ("fixed-10M", "fixed-302M")]
    assert scaling.main([str(folder), *selection, "--x=parameters", f"--out={tmp_path}"]) == 0
    data = pd.read_csv(tmp_path / "tables" / "scaling.csv")
    assert data["recipe"].unique().tolist() == ["fixed-10M", "fixed-302M"]
    assert (tmp_path / "figures" / "scaling.pdf").is_file()
    assert "2 recipes attacked with 16 " in capsys.readouterr().out


def test_recipes_of_several_workdirs_have_prefixed_names(folder: Path, tmp_path: Path):
    other = tmp_path / "again"
    other.symlink_to(folder)
    shutil.copytree(folder / "recipes" / "fixed-10M", tmp_path / "w" / "recipes" / "fixed-10M")
    shutil.copy(folder / "config.json", tmp_path / "w")
    (tmp_path / "w" / "populations").symlink_to(folder / "populations")
    result = scaling._read_recipes([folder, other, tmp_path / "w"], ["fixed-10M"])
    assert list(result) == ["sweep/fixed-10M", "w/fixed-10M"]
    assert list(scaling._read_recipes([folder, other], ["fixed-10M"])) == ["fixed-10M"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{here}"], "{here}: there are no recipes"),
        (["{sweep}", "--x=size"], "--x=size: "),
    ],
)
def test_invalid_input_is_reported_on_one_line(
    argv: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folders = {"here": tmp_path, "sweep": folder}
    assert scaling.main([a.format(**folders) for a in argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(message.format(**folders))


def test_recipes_without_models_are_left_out(recipes: SweepResults, tmp_path: Path):
    folder = tmp_path / "recipes" / "small"
    folder.mkdir(parents=True)
    left = dataclasses.replace(recipes["small"], recipe_dir=folder)
    drawn = scaling.draw(io.SweepResults([recipes["fixed-10M"], left]))
    assert drawn.notes[-1] == "Left out because models are missing: small."
    with pytest.raises(io.Unavailable, match=r"^no recipe has .*; run lm-mia run first$"):
        scaling.draw(io.SweepResults([left]))


def make_two_workdirs(names: tuple[str, str], recipes: SweepResults, folder: Path) -> list[Path]:
    """Writes two workdirs with one recipe each, attacked separately for this figure."""
    workdirs = [folder / "one", folder / "make_two_workdirs"]
    for workdir, name in zip(workdirs, names, strict=True):
        recipe = without_targets(recipes[name], workdir)
        attack(["scaling"], io.SweepResults([recipe]))
        listed = {"recipes": [recipe.name], "figures": []}
        write_config(workdir / "config.json", listed)
        (workdir / "populations").symlink_to(recipe.population_dir.parent)
    return workdirs


def test_two_workdirs_with_equal_numbers_of_references(
    recipes: SweepResults, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdirs = make_two_workdirs(("fixed-10M", "fixed-302M"), recipes, tmp_path)
    assert scaling.main([*map(str, workdirs), "--x=parameters"]) == 0
    assert "2 recipes attacked with 16 " in capsys.readouterr().out
    data = pd.read_csv(workdirs[0] / "tables" / "scaling.csv")
    auc = data[data["metric"] == "auc"].groupby("recipe", sort=False)["value"].mean()
    assert [*auc.index] == ["one/fixed-10M", "make_two_workdirs/fixed-302M"]
    expected = [
        attacks.read_attack(recipes[name], Variant(references=16)).auc_T.mean()
        for name in ("fixed-10M", "fixed-302M")
    ]
    assert auc.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_two_workdirs_with_unequal_numbers_of_references(
    recipes: SweepResults, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdirs = make_two_workdirs(("fixed-10M", "small"), recipes, tmp_path)
    argv = [*map(str, workdirs), "--x=parameters"]
    assert scaling.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "run lm-mia attack" in line
    assert "--config.attack.references" in line
    folder = workdirs[1] / "recipes" / "small"
    stored = json.loads((folder / "config.json").read_text())
    stored["config"]["attack"]["references"] = recipes["fixed-10M"].config.attack.references
    (folder / "config.json").unlink()
    write_config(folder / "config.json", stored)
    attack(["scaling"], opening.read_recipes(workdirs[1]))
    assert scaling.main(argv) == 0
    assert "2 recipes attacked with 16 " in capsys.readouterr().out
