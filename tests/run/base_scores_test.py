"""The scores of a base are copied from another recipe of the workdir; nothing is trained or scored here."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_checkpoint
import tiny_run

from lm_mia import cli
from lm_mia.data.subsets import base
from lm_mia.run import base_scores
from lm_mia.run.sweep import SweepRecipe, read_sweep
from lm_mia.store.store import Store, open_store

LOSS_N = np.random.default_rng(0).gamma(4.0, 1.0, 100).astype(np.float32)
TOKENS = (3, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a workdir of two recipes, a and b, with one checkpoint and one population."""
    folder = tmp_path_factory.mktemp("bases")
    tiny_checkpoint.save(folder / "base")
    (folder / "texts").mkdir()
    for i in range(110):
        (folder / "texts" / f"{i:02d}.txt").write_text(
            f"Number {i} of some short texts, {i * 7919} in other words."
        )
    for name in ("a", "b"):
        add_recipe(folder, name)
    return folder


def add_recipe(folder: Path, name: str, *flags: str, samples: int = 100) -> None:
    """Adds a recipe to the workdir; those with other names have other learning rates."""
    with tiny_run.on_cpu():
        assert not cli.main(
            [
                "corpus",
                f"--config=finetune:{folder / 'base'},{folder / 'texts'}",
                f"--workdir={folder / 'w'}",
                f"--config.name={name}",
                f"--config.optimizer.peak-learning-rate={ord(name[0])}e-5",
                "--config.population.length-tokens=24",
                f"--config.population.samples={samples}",
                *flags,
            ]
        )


def recipe_of(folder: Path, name: str) -> SweepRecipe:
    sweep = read_sweep(None, str(folder / "w"), [])
    return next(recipe for recipe in sweep.recipes if recipe.name == name)


def make_store(recipe: SweepRecipe) -> Store:
    store = open_store(recipe.config, recipe.folder)
    columns = {"tokens": np.arange(len(LOSS_N))}
    store.create_or_extend([base()], columns, {}, {"token_id": np.arange(8)})
    return store


def write(store: Store) -> None:
    values_N = {name: LOSS_N + k for k, name in enumerate(store.statistics)}
    store.write_model(base(), LOSS_N, LOSS_N < 0, values_N)


@pytest.fixture
def recipes(folder: Path, tmp_path: Path) -> tuple[SweepRecipe, SweepRecipe]:
    """Returns the two recipes, of a copy of the workdir, with stores that have no values yet."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    pair = recipe_of(tmp_path, "a"), recipe_of(tmp_path, "b")
    for recipe in pair:
        make_store(recipe)
    return pair


def test_scores_are_copied_with_their_digest(recipes: tuple[SweepRecipe, SweepRecipe]):
    a, b = (open_store(recipe.config, recipe.folder) for recipe in recipes)
    write(a)
    assert base_scores.copy_from_another_recipe(recipes[1]) == "a"
    assert b.missing_models([base()]) == []
    np.testing.assert_array_equal(b.read([base()])[0], [LOSS_N])
    assert b.digests([base()]) == a.digests([base()])
    b.check_digests([base()])
    assert base_scores.copy_from_another_recipe(recipes[1]) == ""  # nothing is missing any more


def test_nothing_is_copied_where_no_recipe_has_scores(recipes: tuple[SweepRecipe, SweepRecipe]):
    assert base_scores.copy_from_another_recipe(recipes[1]) == ""


def test_damaged_scores_are_not_copied(recipes: tuple[SweepRecipe, SweepRecipe]):
    a, b = (open_store(recipe.config, recipe.folder) for recipe in recipes)
    write(a)
    shard = a.path / "loss" / "c" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert base_scores.copy_from_another_recipe(recipes[1]) == ""
    assert b.missing_models([base()]) == [base()]


def test_scores_that_lack_a_statistic_are_not_copied(recipes: tuple[SweepRecipe, SweepRecipe]):
    write(open_store(recipes[0].config, recipes[0].folder))
    c = recipes[1].config
    c = dataclasses.replace(c, score=dataclasses.replace(c.score, statistics=("min_k",)))
    b = dataclasses.replace(recipes[1], config=c)
    make_store(b)
    assert base_scores.copy_from_another_recipe(b) == ""


@pytest.mark.parametrize(
    ("samples", "flags"), [(64, ()), (100, ("--config.model.dtype=bfloat16",))]
)
def test_another_population_or_model_is_another_base(
    recipes: tuple[SweepRecipe, SweepRecipe], tmp_path: Path, samples: int, flags: tuple[str, ...]
):
    write(open_store(recipes[0].config, recipes[0].folder))
    add_recipe(tmp_path, "c", *flags, samples=samples)
    c = recipe_of(tmp_path, "c")
    make_store(c)
    assert base_scores.copy_from_another_recipe(c) == ""


def test_all_steps_and_tokens_have_the_values_of_the_end(tmp_path: Path):
    source = Store(tmp_path / "a.zarr", ("min_k",), token_samples=TOKENS)
    store = Store(tmp_path / "b.zarr", ("min_k",), (3, 6), 9, token_samples=TOKENS)
    token_W = np.arange(8, dtype=np.float32)
    for s in (source, store):
        s.create_or_extend(
            [base()], {"tokens": np.arange(len(LOSS_N))}, {}, {"token_id": np.arange(8)}
        )
    write(source)
    source.write_tokens(base(), token_W)
    store.copy_untrained(base(), source)
    assert store.missing_models([base()]) == []
    store.check_digests([base()])
    for step in (3, 6, 0):
        at_step = dataclasses.replace(store, step=step)
        np.testing.assert_array_equal(at_step.read([base()])[0], [LOSS_N])
        requests = {"x": ("min_k", [base()])}
        np.testing.assert_array_equal(at_step.samples(requests, [0, 5])["x"], LOSS_N[None, [0, 5]])
        requests = {"x": ("token_log_prob", [base()])}
        np.testing.assert_array_equal(at_step.samples(requests, range(8))["x"], token_W[None])
