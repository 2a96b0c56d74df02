"""Standard deviations of one-run estimates if the scores of different samples were independent."""

import math

import numpy as np
import pytest

from lm_mia import stats


def test_placements_by_hand_and_the_auc():
    member_N = np.array([True, False, True, False, False, True])
    score_N = np.array([2.0, 1.0, 0.5, 2.0, math.nan, math.nan])
    placement_N = stats.placements(score_N, member_N)
    np.testing.assert_allclose(placement_N, [0.75, -0.5, 0.0, -0.25, math.nan, math.nan])
    difference = np.nanmean(placement_N[member_N]) - np.nanmean(placement_N[~member_N])
    assert difference == pytest.approx(2 * stats.auc(score_N, member_N).auc_T[0])
    assert np.isnan(stats.placements([1.0, 2.0], [True, True])).all()


def test_independent_sd_by_hand():
    score_N, member_N = np.array([1.0, 3.0, 4.0, 8.0, math.nan]), np.array([0, 0, 1, 1, 1], bool)
    # Variances 2 and 8, of two samples each; the effects vary by 4 over 4 samples.
    assert stats.independent_sd(score_N, member_N) == pytest.approx(math.sqrt(2 / 2 + 8 / 2))
    assert stats.independent_sd(score_N, member_N, 4.0) == pytest.approx(2.0)
    assert stats.independent_sd(score_N, member_N, 99.0) == 0
    assert math.isnan(stats.independent_sd([1.0, 2.0, 3.0], [True, False, False]))


def test_effect_variance_by_hand():
    effect_N, se_N = [1.0, 3.0, 5.0, math.nan], [1.0, 1.0, 2.0, 1.0]
    assert stats.effect_variance(effect_N, se_N) == pytest.approx(4 - 2)
    assert stats.effect_variance([1.0, 1.1], [5.0, 5.0]) == stats.effect_variance([1.0], [0.0]) == 0


def worlds(shared: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and members of 1,200 models on the same 200 samples, whose effect varies with the model, too."""
    rng = np.random.default_rng(0)
    models, samples = 1200, 200
    out_N = rng.normal(0, 1, samples)
    effect_N = rng.normal(0.6, 1, samples)
    noise_N = rng.uniform(0.2, 1, samples)
    member_MxN = rng.permuted(np.tile(np.arange(samples) < samples / 2, (models, 1)), axis=1)
    effect_MxN = effect_N + shared * rng.normal(size=(models, 1))
    score_MxN = out_N + member_MxN * effect_MxN + noise_N * rng.normal(size=member_MxN.shape)
    return score_MxN, member_MxN


def variance_of_effects(value_MxN: np.ndarray, member_MxN: np.ndarray) -> float:
    parts = [np.where(class_MxN, value_MxN, np.nan) for class_MxN in (member_MxN, ~member_MxN)]
    effect_N = np.nanmean(parts[0], axis=0) - np.nanmean(parts[1], axis=0)
    variances = [np.nanvar(p, axis=0, ddof=1) / (~np.isnan(p)).sum(axis=0) for p in parts]
    return stats.effect_variance(effect_N, np.sqrt(sum(variances)))


def test_spread_of_independent_samples_and_with_interference():
    for shared in (0.0, 0.3):
        score_MxN, member_MxN = worlds(shared)
        placement_MxN = np.array(
            [stats.placements(s, m) for s, m in zip(score_MxN, member_MxN, strict=True)]
        )
        ate_M = [s[m].mean() - s[~m].mean() for s, m in zip(score_MxN, member_MxN, strict=True)]
        observed = np.std(ate_M), np.std(stats.auc(score_MxN, member_MxN).auc_T)
        for sd, value_MxN in zip(observed, (score_MxN, placement_MxN), strict=True):
            variance = variance_of_effects(value_MxN, member_MxN)
            assert variance > 0
            rows = [*zip(value_MxN, member_MxN, strict=True)]
            independent = math.sqrt(
                np.mean([stats.independent_sd(*r, variance) ** 2 for r in rows])
            )
            # The standard deviation of 1,200 models has a relative standard error of 2 %.
            if shared:
                assert sd > 1.3 * independent
            else:
                assert sd == pytest.approx(independent, rel=0.06)
