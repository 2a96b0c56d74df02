"""The numbers of PrivacyGuard's tutorial, from its seed."""

import pytest

from analysis.experiments.privacyguard import one_run
from lm_mia import stats


def test_the_numbers_of_the_paper():
    curve = one_run.Curve.of(*one_run.simulate(one_run.SEED), "both")
    best = curve.best
    assert (curve.guesses_G[best], curve.correct_G[best]) == (252, 249)
    epsilon = stats.noise_grid_epsilon(2000, 252, 249, delta=one_run.DELTA)
    assert epsilon == pytest.approx(5.356, abs=5e-4)
    assert curve.epsilon_if_gaussian_G[best] == pytest.approx(5.425, abs=5e-4)
    assert (curve.epsilon_G <= curve.epsilon_if_gaussian_G).all()
