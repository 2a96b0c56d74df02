"""The epsilon of PrivacyGuard's tutorial, whose numbers are those of its printed output."""

import numpy as np
import pytest

from lm_mia import stats


def test_tutorial():
    assert stats.noise_grid_epsilon(100, 80, 70, delta=1e-6) == pytest.approx(3.2906, abs=1e-3)
    draw = np.random.RandomState(42)
    score_N = np.concatenate([draw.normal(0.8, 0.3, 1000), draw.normal(0.3, 0.3, 1000)])
    member_N = np.arange(2000) < 1000
    one_side_G = np.logspace(1, 3, num=50, dtype=int)
    counts = stats.count_guesses(score_N, member_N, 2 * one_side_G)
    epsilons = [
        stats.noise_grid_epsilon(2000, made, correct, delta=1e-5)
        for made, correct in zip(counts.made_G.tolist(), counts.correct_G.tolist(), strict=True)
    ]
    best = int(np.argmax(epsilons))
    assert (one_side_G[best], counts.correct_G[best]) == (126, 249)
    assert epsilons[best] == pytest.approx(5.3558, abs=1e-3)
    # With a level for each number of guesses, and without its grid.
    continuous = stats.gaussian_dp_epsilon(stats.one_run_mu(2000, 252, 249), 1e-5)
    assert epsilons[best] < continuous < epsilons[best] + 0.1


def test_walks_to_the_first_noise_that_is_rejected():
    for correct in (50, 70, 95):
        noises = 0.001 + 0.01 * np.arange(1000)
        rejected = [stats.gaussian_rejected(1 / s, 300, 100, correct, 0.05) for s in noises]
        first = noises[np.argmax(rejected)] if any(rejected) else noises[-1]
        expected = float(stats.gaussian_dp_epsilon(1 / first, 1e-5))
        actual = stats.noise_grid_epsilon(300, 100, correct, delta=1e-5)
        assert actual == pytest.approx(expected, rel=1e-12)
    # Without evidence it is not 0.
    assert stats.noise_grid_epsilon(300, 100, 50, delta=1e-5) == pytest.approx(0.34, abs=0.01)
