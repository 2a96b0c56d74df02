"""Standardized scores and Gaussian TPRs against hand-worked cases, refits and exact distributions."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
import subset_designs as draw
from loss_moments import random_losses

from lm_mia import stats
from lm_mia.stats.design import design_of, left_out

ONE = np.ones(1)


def gaussians(mean_in: Any, sd_in: Any, mean_out: Any, sd_out: Any) -> stats.LiraGaussians:
    """Returns Gaussians of known moments."""
    arrays = np.broadcast_arrays(*np.atleast_1d(mean_in, sd_in, mean_out, sd_out))
    mean_in_N, sd_in_N, mean_out_N, sd_out_N = (a.astype(np.float64) for a in arrays)
    count_N = np.full(mean_in_N.shape, 9)
    return stats.LiraGaussians(mean_in_N, sd_in_N**2, count_N, mean_out_N, sd_out_N**2, count_N)


@pytest.mark.parametrize("direction", ["lower", "estimated"])
def test_hand_worked_scores(direction: Any):
    # OUT losses 1, 2, 3 have the mean 2 and the SD 1; IN losses 0, 1 are lower.
    fitted = stats.fit_gaussians(
        [[0.0], [1.0], [1.0], [2.0], [3.0]], [[True], [True], [False], [False], [False]]
    )
    score = stats.standardized_scores([[0.5], [2.0], [4.0]], fitted, direction=direction)
    np.testing.assert_allclose(score, [[1.5], [0.0], [-2.0]])


def test_the_estimated_direction_follows_the_references():
    higher = gaussians(3.0, 1.0, 2.0, 1.0)
    assert stats.standardized_scores(0.5, higher) == 1.5
    assert stats.standardized_scores(0.5, higher, direction="estimated") == -1.5


def test_undefined_scores_are_nan():
    in_N = [True, False, False]
    loss_3xN = np.array([[0.0, 0, 0, np.nan, 2], [2, 2, 1, 1, 1], [3, 2, np.nan, 3, 3]])
    fitted = stats.fit_gaussians(loss_3xN, np.repeat(np.array(in_N)[:, None], 5, axis=1))
    # equal OUT losses; one OUT loss; no IN loss; equal means
    lower = stats.standardized_scores(np.full(5, 0.5), fitted)
    np.testing.assert_array_equal(np.isnan(lower), [[False, True, True, False, False]])
    estimated = stats.standardized_scores(np.full(5, 0.5), fitted, direction="estimated")
    np.testing.assert_array_equal(np.isnan(estimated), [[False, True, True, True, True]])
    assert np.isnan(stats.standardized_scores(np.nan, gaussians(0.0, 1.0, 1.0, 1.0))).all()


def test_lower_ranks_the_targets_of_a_sample_as_offline_lira():
    loss_MxN, member_MxN = random_losses(3, 20, 30, 0.1)
    fitted = stats.fit_gaussians(loss_MxN[:12], member_MxN[:12])
    target_TxN = loss_MxN[12:]
    score = stats.standardized_scores(target_TxN, fitted)
    offline = stats.lira_from_gaussians(target_TxN, fitted, offline=True)
    np.testing.assert_array_equal(np.isnan(score), np.isnan(offline))
    np.testing.assert_array_equal(np.argsort(score, axis=None), np.argsort(offline, axis=None))


@pytest.mark.parametrize("direction", ["lower", "estimated"])
@pytest.mark.parametrize("drawn", [draw.exact, draw.pairs, draw.columns])
def test_leave_one_out_equals_a_refit_for_each_model(drawn: Any, direction: Any):
    loss_MxN, _ = random_losses(5, 10, 90, 0.15)
    member_MxN = draw.with_untrained(drawn(np.random.default_rng(5), 10, 80), 10)
    of_models = design_of(member_MxN)
    for offset in (0.0, 1e6):
        result = stats.standardized_leave_one_out(
            loss_MxN + offset, member_MxN, direction=direction
        )
        for m, loss_N in enumerate(loss_MxN + offset):
            is_left_out_MxN = left_out(of_models, member_MxN, m, np.arange(90))
            used_MxN = np.where(is_left_out_MxN, np.nan, loss_MxN + offset)
            fitted = stats.fit_gaussians(used_MxN, member_MxN)
            expected = stats.standardized_scores(loss_N, fitted, direction=direction)[0]
            expected[fitted.count_in_N == 0] = np.nan
            np.testing.assert_allclose(result.score_MxN[m], expected, rtol=1e-7, atol=1e-8)
            np.testing.assert_array_equal(result.count_out_MxN[m], fitted.count_out_N)
        assert np.isnan(result.score_MxN[:, 80:]).all()
        assert np.isfinite(result.score_MxN[:, :80]).mean() > 0.7


def test_wrong_arguments_are_refused():
    wrong: Any = "higher"
    with pytest.raises(ValueError, match=r"^direction='higher': must be"):
        stats.standardized_scores(0.0, gaussians(0.0, 1.0, 1.0, 1.0), direction=wrong)
    with pytest.raises(ValueError, match=r"^direction='higher': must be"):
        stats.standardized_leave_one_out([[0.0]], [[True]], direction=wrong)
    with pytest.raises(ValueError, match=r"Gaussians of 1 samples"):
        stats.standardized_scores([0.0, 1.0], gaussians(0.0, 1.0, 1.0, 1.0))
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"^order_share=.*: "):
            stats.gaussian_tpr(gaussians(0.0, 1.0, 1.0, 1.0), 0.1, order_share=share)


def test_the_estimated_sign_adds_false_positives_without_effect():
    # Reliability's Eq. 22 takes the sign for known. The variance is known here.
    draws, n, fpr = 10**6, 16, 0.01
    generator = np.random.default_rng(16)
    mean_in_N, mean_out_N = generator.normal(0, 1 / np.sqrt(n), (2, draws))
    known = gaussians(mean_in_N, 1.0, mean_out_N, 1.0)
    score = stats.standardized_scores(
        generator.standard_normal(draws), known, direction="estimated"
    )
    t = scipy.stats.norm.isf(fpr)
    expected = scipy.stats.skewnorm.sf(t / np.sqrt(1 + 1 / n), 1 / np.sqrt(2 * n + 1))
    assert expected == pytest.approx(0.0162, abs=5e-5)
    assert np.mean(score > t) == pytest.approx(expected, abs=4 * float(np.sqrt(expected / draws)))
    assert scipy.stats.norm.sf(t / np.sqrt(1 + 1 / n)) == pytest.approx(0.0120, abs=5e-5)


def test_gaussian_tpr_is_the_power_of_the_one_sided_test():
    exact = gaussians([0.5, 1.0, 3.0], [2.0, 0.5, 1.0], 2.0, [1.0, 1.0, 4.0])
    tpr_FxN = stats.gaussian_tpr(exact, [0.0, 0.02, 1.0])
    np.testing.assert_array_equal(tpr_FxN[[0, 2]], [[0.0] * 3, [1.0] * 3])
    # The threshold is the quantile of the OUT losses, and the TPR is the share of IN losses below it.
    threshold_N = scipy.stats.norm.ppf(0.02, 2.0, [1.0, 1.0, 4.0])
    expected_N = scipy.stats.norm.cdf(threshold_N, [0.5, 1.0, 3.0], [2.0, 0.5, 1.0])
    np.testing.assert_allclose(tpr_FxN[1], expected_N, rtol=1e-12)
    undefined = gaussians([1.0, 1.0], [0.0, np.nan], 2.0, 1.0)
    assert np.isnan(stats.gaussian_tpr(undefined, 0.1)).all()


def test_the_finite_population_factor_of_gaussian_tpr():
    # For draws from the population's distribution, the gap is 1 SD; subsets of one half have sqrt(2) of their own SDs.
    finite = gaussians(0.0, np.sqrt(0.5), 1.0, np.sqrt(0.5))
    assert stats.gaussian_tpr(finite, 0.01) == pytest.approx(0.181, abs=5e-4)
    assert stats.gaussian_tpr(finite, 0.01, sampled_share=0.5) == pytest.approx(0.092, abs=5e-4)
    # A third of the variance is due to the batch order: the factor is 1/3 + 2/3 x 2.
    mixed = stats.gaussian_tpr(finite, 0.01, sampled_share=0.5, order_share=1 / 3)
    sd = np.sqrt(0.5 * 5 / 3)
    assert mixed == pytest.approx(scipy.stats.norm.sf(scipy.stats.norm.isf(0.01) - 1 / sd))
    np.testing.assert_array_equal(
        stats.gaussian_tpr(finite, 0.01, sampled_share=0.5, order_share=1.0),
        stats.gaussian_tpr(finite, 0.01),
    )
    # Thresholds with corrected variances are not calibrated for the targets of the experiment.
    z = scipy.stats.norm.isf([0.01, 0.1]) * np.sqrt(2)
    np.testing.assert_allclose(scipy.stats.norm.sf(z), [0.0005, 0.035], atol=5e-5)


def test_unequal_variances_keep_the_fpr_and_cost_power():
    generator = np.random.default_rng(9)
    draws, fpr = 200_000, 0.05
    for sd_in in (0.3, 1.0, 2.5):
        model = gaussians(0.0, sd_in, 1.5, 1.0)
        rates = []
        for attack in (stats.standardized_scores, stats.lira_from_gaussians):
            out_score, in_score = (
                attack(generator.normal(*moments, (draws, 1)), model)
                for moments in ((1.5, 1.0), (0.0, sd_in))
            )
            threshold = np.quantile(out_score, 1 - fpr)
            rates.append(
                (np.mean(out_score > scipy.stats.norm.isf(fpr)), np.mean(in_score > threshold))
            )
        assert rates[0][0] == pytest.approx(fpr, abs=4 * np.sqrt(fpr / draws))
        error = 4 * np.sqrt(0.5 / draws) + 4 * np.sqrt(fpr / draws)
        assert rates[0][1] <= rates[1][1] + error
        if sd_in == 1:  # the score rises with the likelihood ratio
            assert rates[0][1] == pytest.approx(rates[1][1], abs=error)
        elif sd_in == 0.3:
            assert rates[0][1] < rates[1][1] - error
