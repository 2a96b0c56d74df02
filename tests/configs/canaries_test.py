"""The recipe of the figure about canaries."""

import pytest

from lm_mia import config
from lm_mia.attacks import spec
from lm_mia.config import load
from lm_mia.config.validate import problems


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_half_of_the_canaries_are_random(setting: str):
    [(_, c)] = load.load_sweep(f"canaries:{setting}")
    assert problems(c) == []
    assert (c.name, c.figures) == ("canaries", ("canaries_fig01_random_tokens",))
    assert c.train.subset == "bernoulli"
    assert c.train.canaries == 2 * c.population.random_samples < c.population.samples
    assert config.num_canaries(c) <= spec.JACKKNIFE_SAMPLES  # the scores of all canaries are kept
    assert config.training_samples(c) == c.population.samples - c.population.random_samples
