"""The numbers of PrivacyGuard's tutorial, from its seed."""

import pytest

from analysis.figures import one_run
from lm_mia import stats


def test_the_numbers_of_the_paper():
    curve = one_run.Curve.of(*one_run.simulate(one_run.SEED), "both")
    best = curve.best
    epsilon = stats.gaussian_dp_epsilon(1 / one_run.grid_noise(curve.mu_G[best]), one_run.DELTA)
    assert (curve.guesses_G[best], curve.correct_G[best]) == (252, 249)
    assert epsilon == pytest.approx(5.356, abs=5e-4)
    assert (curve.epsilon_G <= curve.epsilon_if_gaussian_G).all()


def test_the_grid_is_walked_to_the_first_rejected_noise():
    counts = 2000, 252, 249
    noise = one_run.grid_noise(stats.one_run_mu(*counts, level=one_run.LEVEL))
    first = next(
        noise
        for noise in (0.001 + 0.01 * i for i in range(1000))
        if stats.gaussian_rejected(1 / noise, *counts, one_run.LEVEL)
    )
    assert noise == pytest.approx(first)
    # Without evidence no noise is rejected, and the last one remains.
    assert one_run.grid_noise(0.0) == pytest.approx(9.991)
    assert stats.gaussian_dp_epsilon(1 / 9.991, one_run.DELTA) == pytest.approx(0.34, abs=0.01)
