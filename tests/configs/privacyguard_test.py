"""The recipe of PrivacyGuard's figures, whose models are those of StrongMIA."""

import pytest

from analysis.figures import MODULES
from lm_mia.config import Config, load
from lm_mia.config.recipe import recipe_key
from lm_mia.errors import UserError

FIGURES = [name for name in MODULES if name.startswith("privacyguard_")]
# Setting -> (references, targets)
MODELS = {"paper": (128, 16), "gpu": (32, 4), "cpu": (32, 8)}


def recipes_of(argument: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(argument)}


@pytest.mark.parametrize("setting", MODELS)
def test_the_recipe_has_the_models_of_strongmia(setting: str):
    [(name, c)] = recipes_of(f"privacyguard:{setting}").items()
    a = c.attack
    assert [*c.figures] == FIGURES
    assert (a.references - a.targets, a.targets, a.replicas) == (*MODELS[setting], 0)
    assert recipe_key(c) == recipe_key(recipes_of(f"strongmia:fig17,{setting}")[name])


def test_a_figure_is_named_by_its_number():
    [c] = recipes_of("privacyguard:tab02,cpu").values()
    assert c.figures == ("privacyguard_tab02_lira",)
    with pytest.raises(UserError, match="PrivacyGuard has no such figure; did you mean fig07"):
        load.load_config("privacyguard:fig7,cpu")
