"""The recipes of Reliability's figures: numbers of models, and models shared with StrongMIA."""

import pytest

from analysis.experiments import MODULES
from lm_mia.config import Config, load
from lm_mia.config.recipe import recipe_key
from lm_mia.errors import UserError

FIGURES = [name for name in MODULES if name.startswith("reliability_")]

# Setting -> recipe -> (references, targets, replicas)
MODELS = {
    "paper": {"main": (512, 16, 2), "small": (128, 128, 0)},
    "gpu": {"main": (64, 4, 2), "small": (64, 64, 0)},
    "cpu": {"main": (128, 8, 2), "small": (64, 64, 0)},
}


def recipes_of(argument: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(argument)}


@pytest.mark.parametrize("setting", MODELS)
def test_recipes_have_the_models_of_strongmia(setting: str):
    recipes, others = recipes_of(f"reliability:{setting}"), recipes_of(f"strongmia:{setting}")
    assert [*recipes["main"].figures] == FIGURES
    assert {*recipes} == {*MODELS[setting]}
    for name, c in recipes.items():
        a = c.attack
        assert (a.references - a.targets, a.targets, a.replicas) == MODELS[setting][name]
        assert a.leave_one_out
        assert not c.extract.samples
        assert recipe_key(c) == recipe_key(others[name])


def test_a_figure_has_its_own_recipe_alone():
    assert [*recipes_of("reliability:figA2,cpu")] == ["small"]
    assert [*recipes_of("reliability:fig02,reliability_figA1_oracle,cpu")] == ["main"]


def test_unknown_figures_are_refused():
    with pytest.raises(UserError, match=r"Reliability.* fig01"):
        load.load_config("reliability:fig1,cpu")
