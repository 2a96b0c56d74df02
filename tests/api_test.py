import doctest
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_run
from tiny_run import tiny

import lm_mia
from lm_mia import api
from lm_mia.errors import UserError
from lm_mia.run.workdir import write_config

__all__ = ["tiny"]  # a fixture


@pytest.fixture
def recipe(tiny: tiny_run.Tiny) -> api.RecipeView:
    return lm_mia.open(tiny.workdir).recipes["tiny"]


def test_examples_in_docstrings_run(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a copy of the tiny run whose recipe has the name that the examples use."""
    workdir = tiny.copy(tmp_path / "runs" / "quickstart")
    shutil.move(workdir / "recipes" / "tiny", workdir / "recipes" / "quickstart")
    listed = json.loads((workdir / "config.json").read_text())
    write_config(workdir / "config.json", listed | {"recipes": ["quickstart"]})
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(api, extraglobs={"lm_mia": lm_mia})
    assert result.attempted > 15
    assert result.failed == 0


def test_scores_equal_those_of_the_store(tiny: tiny_run.Tiny, recipe: api.RecipeView):
    scores = recipe.scores()
    assert dict(scores.sizes) == {"model": 6, "sample": 32}
    assert {"loss", "member"} <= set(scores)
    loss_MxN = scores["loss"].to_numpy()
    shard = tiny_run.recipe_of(tiny.workdir) / "scores.zarr" / "loss"
    assert shard.is_dir()
    assert np.isfinite(loss_MxN).all()
    log = tiny_run.logged(tiny.workdir, "model_scored") or tiny_run.logged(
        tiny.workdir, "model_scored"
    )
    means = {event["model"]: event["member_loss_nats"] for event in log}
    member_MxN = scores["member"].to_numpy()
    for i, model in enumerate(scores["model"].to_numpy()):
        assert loss_MxN[i, member_MxN[i]].mean() == pytest.approx(means[str(model)], rel=1e-5)


def test_tables_are_data_frames(tiny: tiny_run.Tiny, recipe: api.RecipeView):
    tables = tiny_run.recipe_of(tiny.workdir) / "tables"
    files = [p for p in tables.rglob("*") if p.suffix in (".csv", ".parquet")]
    assert len(recipe.tables) == len(files) > 10
    assert {"attacks", "samples", "models"} <= set(recipe.tables)
    for name in recipe.tables:
        assert isinstance(recipe.table(name), pd.DataFrame)
    pd.testing.assert_frame_equal(recipe.table("attacks"), pd.read_csv(tables / "attacks.csv"))


def test_missing_results_are_computed(tiny: tiny_run.Tiny, recipe: api.RecipeView, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    folder = tiny_run.recipe_of(workdir)
    shutil.rmtree(folder / "pieces")
    (folder / "tables" / "attacks.csv").write_text("edited\n")  # nothing reads exports
    copy = lm_mia.open(workdir).recipes["tiny"]
    assert copy.tables == ()
    pd.testing.assert_frame_equal(copy.table("attacks"), recipe.table("attacks"))
    assert "attacks" in copy.tables


def test_samples_and_texts(recipe: api.RecipeView):
    samples = recipe.samples()
    assert samples.index.tolist() == samples["id"].tolist() == [*range(32)]
    assert all(recipe.text(i) for i in samples["id"])
    with pytest.raises(UserError, match=r"^sample=32: .*\b0 to 31$"):
        recipe.text(32)
    with pytest.raises(UserError, match=r"^sample=-1: "):
        recipe.text(-1)


def test_config_comes_from_the_last_command(recipe: api.RecipeView):
    assert (recipe.config.population.samples, recipe.config.train.subset) == (32, "balanced")
    assert recipe.config.train.workers == 1


def test_missing_names_list_those_that_exist(tiny: tiny_run.Tiny, recipe: api.RecipeView):
    with pytest.raises(UserError, match=r"^table='rocs': "):
        recipe.table("rocs")
    recipes = lm_mia.open(tiny.workdir).recipes
    for error in (UserError, KeyError):
        with pytest.raises(error) as caught:
            recipes["main"]
        assert re.match(r"recipe='main': .*\btiny$", str(caught.value))
    assert "main" not in recipes
    assert recipes.get("main") is None


def test_recipes_can_be_looked_up_by_other_names(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    path = workdir / "recipes" / "tiny" / "config.json"
    stored = json.loads(path.read_text())
    write_config(path, stored | {"names": ["tiny", "fixed-140M"]})
    recipes = lm_mia.open(workdir).recipes
    assert recipes["fixed-140M"].name == "tiny"
    assert list(recipes) == ["tiny"]


def test_workdirs_without_results_are_refused(tiny: tiny_run.Tiny, tmp_path: Path):
    with pytest.raises(UserError, match=r"^workdir='.*/missing': .*folder; "):
        lm_mia.open(tmp_path / "missing")
    with pytest.raises(UserError, match=r"^workdir='.*': .*config\.json; "):
        lm_mia.open(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^workdir='.*/file': .*a file; "):
        lm_mia.open(tmp_path / "file")
    new = tiny.copy(tmp_path / "w", models=False)
    recipe = lm_mia.open(new).recipes["tiny"]
    assert recipe.tables == ()
    with pytest.raises(UserError, match=r"scores\.zarr: .*; run `lm-mia run` first$"):
        recipe.scores()
    with pytest.raises(UserError, match="0 of 2 replicas"):
        recipe.table("attacks")
    shutil.rmtree(new / "populations")
    with pytest.raises(UserError, match=r"`lm-mia corpus` first$"):
        recipe.samples()


def test_config_of_another_version_is_reported_on_one_line(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    path = workdir / "recipes" / "tiny" / "config.json"
    stored = json.loads(path.read_text())
    stored["config"]["attack"]["strength"] = 3
    write_config(path, stored)
    recipe = lm_mia.open(workdir).recipes["tiny"]
    assert recipe.scores()["loss"].size
    for read in (lambda: recipe.config, lambda: recipe.table("attacks")):
        with pytest.raises(UserError, match="another version") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_damaged_scores_are_reported_on_one_line(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    (workdir / "recipes" / "tiny" / "scores.zarr" / "zarr.json").write_text("{")
    with pytest.raises(UserError, match=r"scores\.zarr: damaged .*\(zarr\.json"):
        lm_mia.open(workdir).recipes["tiny"].scores()


@pytest.mark.parametrize("name", ["loss", "member"])
def test_exchanged_and_deleted_scores_are_noticed(tiny: tiny_run.Tiny, tmp_path: Path, name: str):
    workdir = tiny.copy(tmp_path / "w")
    recipe = lm_mia.open(workdir).recipes["tiny"]
    expected = recipe.scores()[name].to_numpy()
    folder = workdir / "recipes" / "tiny" / "scores.zarr" / name / "c"
    first, other = folder / "0" / "0", folder / "1" / "0"
    contents = first.read_bytes()
    first.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"values of .* written"):
        recipe.scores()
    assert recipe.scores(verify=False)[name].shape == expected.shape
    first.unlink()
    with pytest.raises(UserError, match=r"values of .* written"):
        recipe.scores()
    first.write_bytes(contents)
    assert (recipe.scores()[name].to_numpy() == expected).all()


@pytest.mark.parametrize("name", ["tokens", "subset_seed", "role", "prefix_group"])
def test_deleted_coordinates_are_noticed(tiny: tiny_run.Tiny, tmp_path: Path, name: str):
    workdir = tiny.copy(tmp_path / "w")
    shutil.rmtree(workdir / "recipes" / "tiny" / "scores.zarr" / name / "c")
    with pytest.raises(UserError, match=r"scores\.zarr: damaged "):
        lm_mia.open(workdir).recipes["tiny"].scores()


def test_representations_are_short(tiny: tiny_run.Tiny, recipe: api.RecipeView):
    results = lm_mia.open(tiny.workdir)
    assert repr(results) == f"Results({str(tiny.workdir)!r}, recipes=['tiny'])"
    assert repr(results.recipes) == "Recipes(['tiny'])"
    assert repr(recipe) == "RecipeView('tiny')"


@pytest.mark.process
def test_importing_lm_mia_loads_nothing_else():
    code = (
        "import sys, lm_mia\n"
        "assert not {'jax', 'numpy', 'pandas', 'xarray', 'tyro', 'importlib.metadata'} & set(sys.modules)\n"
        "print(lm_mia.__version__)\n"
        "lm_mia.open, lm_mia.stats.lira\n"
        "assert not {'jax', 'pandas', 'xarray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split(".")[0].isdigit()
