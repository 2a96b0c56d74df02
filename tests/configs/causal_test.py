"""The recipe of the figures of CausalMIA, which is one of StrongMIA."""

import pytest

from analysis.experiments import MODULES
from lm_mia.config import load
from lm_mia.config.recipe import recipe_key

FIGURES = [name for name in MODULES if name.startswith("causal_")]


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_the_models_are_those_of_strongmia(setting: str):
    [(_, c)] = load.load_sweep(f"causal:{setting}")
    [(_, strong), *_] = load.load_sweep(f"strongmia:fig17,{setting}")
    assert recipe_key(c) == recipe_key(strong)
    assert [*c.figures] == FIGURES
    assert c.attack.zero_run == ("groups", "graded", "disjoint")
    assert 0 in c.attack.zero_run_strengths  # without a shift, all estimators should agree
    assert c.attack.replicas == 0


def test_a_figure_is_named_by_its_number():
    assert load.load_config("causal:fig03c,cpu").figures == ("causal_fig03c_text",)
