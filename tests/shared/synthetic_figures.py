"""A synthetic sweep with every recipe of configs/strongmia.py:cpu, with few models and samples."""

import dataclasses
import importlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from built_once import built_once

from analysis import page
from analysis.experiments import MODULES
from analysis.experiments.open import text_groups
from analysis.io import RecipeResults, SweepResults
from analysis.opening import tables_of_every_recipe, with_needs
from lm_mia import events
from lm_mia.attacks.requests import matching_recipes
from lm_mia.attacks.spec import RecipeNeeds
from lm_mia.config import Config, Corpus, Tokenizer, load
from lm_mia.data.population import Population
from lm_mia.run import pipeline
from lm_mia.run.sweep import SweepRecipe
from lm_mia.run.workdir import Workdir

ROOT = Path(__file__).resolve().parents[2]


def entries(corpus: Path) -> list[tuple[dict[str, Any], Config]]:
    """Returns the entries of the cpu setting with an eighth of the samples and fewer models."""
    return [
        (sets, smaller(c, corpus))
        for sets, c in load.load_sweep(f"{ROOT}/configs/strongmia.py:cpu")
    ]


def smaller(c: Config, corpus: Path) -> Config:
    n, a = max(c.population.samples // 16, 24), c.attack
    population = dataclasses.replace(c.population, samples=2 * n, validation_samples=8)
    attack = dataclasses.replace(
        a,
        references=16 + 4 * bool(a.targets) + 8 * (a.references > 40),
        targets=4 * bool(a.targets),
        replicas=min(a.replicas, 12),
        attacks=("lira_online", "loss"),  # beside those that figures need
    )
    return dataclasses.replace(
        c,
        corpus=Corpus(source="parquet", path=str(corpus), deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=150),
        population=population,
        train=dataclasses.replace(c.train, validations=2),
        optimizer=dataclasses.replace(c.optimizer, warmup_steps=1),
        attack=attack,
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir of many recipes, without extraction; the first test process that needs it makes it."""
    return built_once(tmp_path_factory, "figures", made)


def made(folder: Path) -> Path:
    make(folder)
    return folder / "sweep"


def make(
    folder: Path,
    gain: float = 1.0,
    prefixes: tuple[str, ...] = ("",),
    figures: Sequence[str] = tuple(MODULES),
) -> None:
    """Makes a sweep of the recipes whose names begin with one of the prefixes, and the tables that figures need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setattr(text_groups, "FEWEST_FALSE_POSITIVES", 0.5)  # there are few samples
        synthetic_sweep = importlib.import_module("synthetic_sweep")
        folder.mkdir(parents=True, exist_ok=True)
        synthetic_sweep.corpus(folder / "corpus.parquet", 1000)
        selected = [e for e in entries(folder / "corpus.parquet") if e[1].name.startswith(prefixes)]
        tasks = synthetic_sweep.write(folder / "sweep", selected, gain)
        synthetic_sweep.attacked(tasks, figures)


OF_TARGETS = (
    "targets.csv",
    "target_roc.parquet",
    "target_jackknife.parquet",
    "target_epsilons.parquet",
    "sample_losses.csv",
    "pieces",
)
"""What the attack stage makes for figures, in addition to models.csv and the tables of decisions."""


def without_targets(recipe: RecipeResults, workdir: Path) -> RecipeResults:
    """Returns the recipe in another workdir, with links to its scores and tables except those of `OF_TARGETS`."""
    folder = workdir / "recipes" / recipe.name
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for path in (*recipe.recipe_dir.iterdir(), *(recipe.recipe_dir / "tables").iterdir()):
        if path.name not in ("tables", *OF_TARGETS):
            (folder / path.relative_to(recipe.recipe_dir)).symlink_to(path)
    log = workdir / events.FOLDER
    if not log.exists():
        shutil.copytree(recipe.recipe_dir.parents[1] / log.name, log)  # attacks add to it
    return dataclasses.replace(recipe, recipe_dir=folder, declared=tables_of_every_recipe)


def requested(
    figures: Sequence[str], recipes: SweepResults
) -> list[tuple[RecipeResults, SweepRecipe, Population, RecipeNeeds]]:
    """Returns what the attack stage computes for the figures, for each recipe that one of them needs."""
    needs = page.figure_needs(figures)
    patterns = [pattern for need in needs for pattern in need.recipes]
    names = matching_recipes(patterns, {recipe.name: recipe.names for recipe in recipes.recipes})
    selected = [recipe for recipe in recipes.recipes if recipe.name in names]
    tasks = [
        SweepRecipe(Workdir(r.recipe_dir.parents[1]), r.name, r.config, r.names) for r in selected
    ]
    pairs = [*zip(tasks, [r.population for r in selected], strict=True)]
    needs_by_recipe = pipeline.requested_attacks(pairs, needs)
    return [(r, *pair, needs_by_recipe[r.name]) for r, pair in zip(selected, pairs, strict=True)]


def attack(figures: Sequence[str], recipes: SweepResults) -> None:
    """Runs the attack stage with what the figures need."""
    silent: Any = lambda *_: None  # noqa: E731
    for _, task, population, needs in requested(figures, recipes):
        pipeline.attack(task, population, needs, silent, silent)


class NeedsAlone:
    """Recipes with only those pieces that one figure needs.

    Figures that need the same of a recipe share its folder, and so what they compute in it.
    """

    def __init__(self, recipes: SweepResults, folder: Path) -> None:
        self._recipes, self._folder = recipes, folder
        self._alone: dict[tuple[str, str], RecipeResults] = {}

    def recipes_of(self, figure: str) -> SweepResults:
        """Returns all recipes, with what the figure needs of each."""
        needs = {r.name: need for r, _, _, need in requested([figure], self._recipes)}
        alone = [self._recipe(r, needs.get(r.name, RecipeNeeds())) for r in self._recipes.recipes]
        return with_needs(SweepResults(alone), page.figure_needs([figure]))

    def _recipe(self, recipe: RecipeResults, needs: RecipeNeeds) -> RecipeResults:
        key = recipe.name, repr(needs)
        if key not in self._alone:
            alone = without_targets(recipe, self._folder / str(len(self._alone)))
            links, pieces = alone.recipe_dir / "pieces", recipe.pieces
            links.mkdir()
            for request in needs.requests:
                path = pieces.results.path(pieces.key(request))
                if path.exists():
                    (links / path.name).symlink_to(path)
            self._alone[key] = alone
        return self._alone[key]


if __name__ == "__main__":
    make(Path(sys.argv[1]), float(sys.argv[2]))
