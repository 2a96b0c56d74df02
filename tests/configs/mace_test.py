"""The recipes of MACE's figures: models shared with StrongMIA, and the names under which figures find them."""

import pytest

from analysis.experiments import MODULES
from lm_mia.config import Config, load
from lm_mia.config.recipe import recipe_key, recipe_requests

FIGURES = [name for name in MODULES if name.startswith("mace_")]


def recipes_of(argument: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(argument)}


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_recipes_have_the_models_of_strongmia(setting: str):
    recipes, others = recipes_of(f"mace:{setting}"), recipes_of(f"strongmia:{setting}")
    assert [*recipes] == ["epochs-140M-small", "main", "fixed-140M"]
    assert [*recipes["main"].figures] == FIGURES
    for name, c in recipes.items():
        assert (c.attack.references, c.attack.targets) == (
            others[name].attack.references,
            others[name].attack.targets,
        )
        assert (c.attack.replicas, c.attack.leave_one_out, c.extract.samples) == (0, False, 0)
        assert recipe_key(c) == recipe_key(others[name])
    assert recipes["main"].score.statistics == ("target_logit",)


def test_main_and_fixed_are_one_recipe_at_cpu():
    entries = load.load_sweep("mace:cpu")
    names = [{entries[n][1].name for n in r.entries} for r in recipe_requests(entries, "mace")]
    assert names == [{"epochs-140M-small"}, {"main", "fixed-140M"}]
