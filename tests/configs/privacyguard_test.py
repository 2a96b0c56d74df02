"""The recipes of PrivacyGuard's figures: one of StrongMIA, and one for extraction."""

import pytest

from analysis.experiments import MODULES
from lm_mia.config import Config, load
from lm_mia.config.recipe import recipe_key
from lm_mia.errors import UserError

FIGURES = [name for name in MODULES if name.startswith("privacyguard_")]
# Setting -> (references, targets)
MODELS = {"paper": (128, 16), "gpu": (32, 4), "cpu": (32, 8)}


def recipes_of(argument: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(argument)}


@pytest.mark.parametrize("setting", MODELS)
def test_recipes_have_the_models_of_strongmia_and_few_for_extraction(setting: str):
    recipes = recipes_of(f"privacyguard:{setting}")
    assert [*recipes] == ["epochs-140M", "memorized"]
    c, memorized = recipes.values()
    a = c.attack
    assert [*c.figures] == FIGURES
    assert (a.references - a.targets, a.targets, a.replicas) == (*MODELS[setting], 0)
    assert recipe_key(c) == recipe_key(recipes_of(f"strongmia:fig17,{setting}")[c.name])
    assert not c.extract.samples
    a, extract = memorized.attack, memorized.extract
    assert (a.references, a.targets, a.replicas) == (4, 0, 2)
    assert (extract.choose, extract.reference) == ("random", True)
    assert not memorized.score.at_epochs


def test_a_figure_is_named_by_its_number():
    [c] = recipes_of("privacyguard:tab02,cpu").values()
    assert c.figures == ("privacyguard_tab02_lira",)
    assert [*recipes_of("privacyguard:fig08,tab04,cpu")] == ["memorized"]
    with pytest.raises(UserError, match=r"PrivacyGuard.* fig07"):
        load.load_config("privacyguard:fig7,cpu")
