import dataclasses
from typing import Any

import numpy as np
import pytest

from lm_mia import stats

MEMBER_N = np.array([True, True, False, False, False])
SCORE_N = np.array([3.0, 1.0, 2.0, 0.0, 4.0])
LOG_ODDS_N = np.log([1.0, 1.0, 2.0, 1.0, 0.5])


@dataclasses.dataclass
class Drawn:
    """An evaluation set with known odds and outcomes: x is N(1/2, 1) for members and N(-1/2, 1) for non-members."""

    x_N: np.ndarray
    member_N: np.ndarray
    score_N: np.ndarray
    log_odds_N: np.ndarray


def drawn(members: int, nonmembers: int, rng: np.random.Generator, effect: float = 0.5) -> Drawn:
    """Draws Y(0) = x + N(0, 1) and Y(1) = Y(0) + effect; for members, Y(0) is N(1/2, 2)."""
    member_N = np.arange(members + nonmembers) < members
    x_N = rng.normal(size=member_N.size) + member_N - 0.5
    score_N = x_N + rng.normal(size=member_N.size) + effect * member_N
    return Drawn(x_N, member_N, score_N, x_N + np.log(members / nonmembers))


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(9).normal(size=size)


def test_hand_case():
    estimate = stats.ipw_estimate(SCORE_N, MEMBER_N, LOG_ODDS_N, [0.1, 0.2, 0.75, 1.0])
    assert estimate.ate == pytest.approx(2 - 6 / 3.5)
    assert estimate.auc == pytest.approx(4 / 7)
    assert estimate.youden == pytest.approx(0.5 - 1 / 7)
    # The thresholds are +inf, since 4 has a weight of 1/7, then 4, 2 and -inf: 3 is not a score of a non-member.
    np.testing.assert_allclose(estimate.tpr_F, [np.nan, 0, 0.5, 1])
    np.testing.assert_allclose(estimate.realized_fpr_F, [0, 1 / 7, 5 / 7, 1])
    assert estimate.effective_nonmembers == pytest.approx(7 / 3)
    assert estimate.largest_weight_share == pytest.approx(4 / 7)
    assert (estimate.members, estimate.nonmembers, estimate.left_out) == (2, 3, 0)
    assert not estimate.has_overlap
    np.testing.assert_allclose(estimate.curve.threshold_K, [np.inf, 4, 3, 2, 1, 0])
    np.testing.assert_allclose(estimate.curve.fpr_K, np.array([0, 1, 1, 5, 5, 7]) / 7)
    np.testing.assert_allclose(estimate.curve.tpr_K, [0, 0, 0.5, 0.5, 1, 1])


def test_hand_case_divided_by_members():
    estimate = stats.ipw_estimate(SCORE_N, MEMBER_N, LOG_ODDS_N, 0.3, normalize="members")
    assert estimate.ate == pytest.approx(2 - 6 / 2)
    assert estimate.auc == pytest.approx(4 / 4)
    np.testing.assert_allclose(estimate.curve.fpr_K, np.array([0, 1, 1, 5, 5, 7]) / 4)
    np.testing.assert_allclose([estimate.tpr_F[0], estimate.realized_fpr_F[0]], [0, 0.25])


def test_hand_case_with_outcome_model():
    # Predicted Y(0) of the members: 1 +- 1 and 0 +- 1; of the non-members 2 +- 1, 0 +- 1, 2 +- 1.
    outcome = stats.OutcomeModel(np.array([1.0, 0.0, 2.0, 0.0, 2.0]), np.array([-1.0, 1.0]))
    g = stats.g_formula_estimate(SCORE_N, MEMBER_N, outcome, 0.25)
    assert g.ate == pytest.approx(2 - 0.5)
    # Pairs: 3 and 1 against 0, 2, -1, 1: 3 is above all four; 1 is above two and tied with one.
    assert g.auc == pytest.approx((4 + 2.5) / 8)
    np.testing.assert_allclose([g.tpr_F[0], g.realized_fpr_F[0]], [0.5, 0.25])
    assert np.isnan(g.effective_nonmembers)
    assert not g.has_overlap
    aipw = stats.aipw_estimate(SCORE_N, MEMBER_N, LOG_ODDS_N, outcome, 0.5)
    # The errors 0, 0 and 2 have the weights 2, 1 and 1/2.
    assert aipw.ate == pytest.approx(1.5 - 1 / 3.5)
    # At 2, 1/4 is predicted for the members, and the errors are 1 - 1/2, 0 - 0 and 1 - 1/2; at 1, 1/2 is predicted, and
    # the errors are 1 - 1, 0 - 1/2 and 1 - 1. These rates fall, so the nearest monotone curve has their mean. The
    # thresholds just above 1 and 0 have the same rates as 2 and 1.
    at_2, at_1 = 1 / 4 + 1.25 / 3.5, 1 / 2 - 0.5 / 3.5
    # At 3, nothing is predicted for the members, and the errors are 0 - 1/2, 0 - 0 and 1 - 1/2: clipped to 0.
    fpr_at = dict(zip(aipw.curve.threshold_K, aipw.curve.fpr_K, strict=True))
    assert fpr_at[3.0] == 0
    assert fpr_at[2.0] == fpr_at[1.0] == pytest.approx((at_2 + at_1) / 2)
    assert fpr_at[0.0] == pytest.approx(3 / 4 + 0.5 / 3.5)
    assert fpr_at[-np.inf] == 1


def test_weights_of_one_equal_the_roc_functions():
    rng = np.random.default_rng(0)
    for samples, decimals in ((7, 1), (400, 1), (3001, 8)):
        score_N = rng.normal(size=samples).round(decimals)
        member_N = rng.random(samples) < 0.4
        member_N[:2] = True, False
        fprs = [0.0, 0.01, 0.05, 1 / 3, 0.45, 0.7, 1.0]
        expected = stats.tpr_at_fpr(score_N, member_N, fprs)
        curve = stats.roc_curve(score_N, member_N)
        unadjusted = stats.unadjusted_estimate(score_N, member_N, fprs)
        constant = stats.ipw_estimate(score_N, member_N, np.full(samples, 3.7), fprs)
        for estimate in (unadjusted, constant):
            assert estimate.auc == expected.auc_T[0]
            np.testing.assert_array_equal(estimate.tpr_F, expected.tpr_TxF[0])
            np.testing.assert_array_equal(estimate.realized_fpr_F, expected.realized_fpr_TxF[0])
            np.testing.assert_array_equal(estimate.curve.fpr_K, curve.fpr_K)
            np.testing.assert_array_equal(estimate.curve.tpr_K, curve.tpr_K)
            np.testing.assert_array_equal(estimate.curve.threshold_K, curve.threshold_K)
            assert estimate.effective_nonmembers == estimate.nonmembers
        assert unadjusted.ate == pytest.approx(score_N[member_N].mean() - score_N[~member_N].mean())


def slow_estimate(
    sample: Drawn,
    fprs: list[float],
    weight_B: np.ndarray | None,
    outcome: stats.OutcomeModel | None,
) -> tuple[float, float, list[float]]:
    """Computes ATE, AUC and TPRs by loops over pairs; the distribution of Y(0) is a list of (score, mass)."""
    score_A, score_B = sample.score_N[sample.member_N], sample.score_N[~sample.member_N]
    mass: list[tuple[float, float]] = []
    share_B = np.zeros(score_B.size) if weight_B is None else weight_B / weight_B.sum()
    mass += zip(score_B, share_B, strict=True)
    if outcome is not None:
        mean_N, residual_J = outcome.mean_N, outcome.residual_J
        for mean in mean_N[sample.member_N]:
            mass += [(mean + r, 1 / score_A.size / residual_J.size) for r in residual_J]
        for mean, weight in zip(mean_N[~sample.member_N], share_B, strict=True):
            mass += [(mean + r, -weight / residual_J.size) for r in residual_J]
    value_P, mass_P = np.array(mass).T
    auc = np.mean([mass_P[value_P < y].sum() + mass_P[value_P == y].sum() / 2 for y in score_A])
    tprs = []
    for fpr in fprs:
        # Without an outcome model, only scores of non-members are thresholds.
        scores = score_B if outcome is None else sample.score_N
        allowed = [t for t in scores if mass_P[value_P >= t].sum() <= fpr + 1e-12]
        tprs.append(float(np.mean(score_A >= min(allowed))) if allowed else 0.0)
    return float(score_A.mean() - value_P @ mass_P), float(auc), tprs


def test_against_loops():
    rng = np.random.default_rng(1)
    sample = drawn(23, 37, rng)
    sample.score_N[:] = sample.score_N.round(1)  # with ties
    outcome = stats.OutcomeModel(sample.x_N, rng.normal(size=11))
    weight_B = np.exp(sample.log_odds_N[~sample.member_N])
    fprs = [0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5]
    score_N, member_N, log_odds_N = sample.score_N, sample.member_N, sample.log_odds_N
    ipw = stats.ipw_estimate(score_N, member_N, log_odds_N, fprs)
    ate, auc, tprs = slow_estimate(sample, fprs, weight_B, None)
    np.testing.assert_allclose([ipw.ate, ipw.auc, *ipw.tpr_F], [ate, auc, *tprs])
    g = stats.g_formula_estimate(score_N, member_N, outcome, fprs)
    # Without weights, predictions for non-members have no mass.
    ate, auc, tprs = slow_estimate(sample, fprs, None, outcome)
    np.testing.assert_allclose([g.ate, g.auc, *g.tpr_F], [ate + outcome_shift(outcome), auc, *tprs])
    aipw = stats.aipw_estimate(score_N, member_N, log_odds_N, outcome, fprs)
    ate, _, _ = slow_estimate(sample, fprs, weight_B, outcome)
    assert aipw.ate == pytest.approx(ate)


def outcome_shift(outcome: stats.OutcomeModel) -> float:
    """Returns the mean residual, which predicted rates contain and predicted means do not."""
    return float(np.mean(outcome.residual_J))


def test_constant_of_the_log_odds_does_not_matter():
    sample = drawn(300, 400, np.random.default_rng(2))
    args = sample.score_N, sample.member_N
    base = stats.ipw_estimate(*args, sample.log_odds_N, [0.1])
    for shift in (-1000.0, 5.0, 1e5):
        moved = stats.ipw_estimate(*args, sample.log_odds_N + shift, [0.1])
        assert moved.ate == pytest.approx(base.ate, abs=1e-9)
        assert moved.auc == pytest.approx(base.auc, abs=1e-9)
        assert moved.tpr_F[0] == base.tpr_F[0]
        assert moved.effective_nonmembers == pytest.approx(base.effective_nonmembers)
    with pytest.raises(ValueError, match='normalize="members"; use "weights"'):
        stats.ipw_estimate(*args, sample.log_odds_N + 1e5, [0.1], normalize="members")


def test_missing_values_and_zero_weights():
    nan = np.nan
    score_N = np.append(SCORE_N, [nan, nan, 9.0, 9.0])
    member_N = np.append(MEMBER_N, [True, False, False, False])
    log_odds_N = np.append(LOG_ODDS_N, [0.0, 0.0, nan, -np.inf])
    estimate = stats.ipw_estimate(score_N, member_N, log_odds_N, 0.75)
    assert estimate.left_out == 3
    assert estimate.nonmembers == 4  # the one with weight 0 counts, but not in rates
    assert estimate.ate == pytest.approx(2 / 7)
    assert estimate.auc == pytest.approx(4 / 7)
    assert estimate.tpr_F[0] == 0.5
    # Log odds of members are not used.
    log_odds_N[:2] = nan, np.inf
    assert stats.ipw_estimate(score_N, member_N, log_odds_N, 0.2).ate == estimate.ate
    means = stats.OutcomeModel(np.where(np.arange(9) == 0, nan, 0.0), np.zeros(1))
    assert stats.g_formula_estimate(score_N, member_N, means, 0.2).left_out == 3


def test_errors():
    def ipw(log_odds, **options):
        return stats.ipw_estimate(SCORE_N, MEMBER_N, log_odds, 0.1, **options)

    with pytest.raises(ValueError, match=r"\+inf .*non-member"):
        ipw([0, 0, 0, 0, np.inf])
    with pytest.raises(ValueError, match=r"-inf .*non-members"):
        ipw([0, 0, -np.inf, -np.inf, -np.inf])
    with pytest.raises(ValueError, match="per score"):
        ipw([0.0, 1.0])
    with pytest.raises(ValueError, match="normalize='nonmembers'"):
        ipw(LOG_ODDS_N, normalize="nonmembers")
    with pytest.raises(ValueError, match="non-member with a score"):
        stats.unadjusted_estimate(SCORE_N, np.full(5, True), 0.1)
    with pytest.raises(ValueError, match="match members"):
        stats.unadjusted_estimate(SCORE_N, MEMBER_N[:4], 0.1)
    with pytest.raises(ValueError, match=r"outcome\.residual_J"):
        stats.g_formula_estimate(
            SCORE_N, MEMBER_N, stats.OutcomeModel(np.zeros(5), np.full(1, np.nan)), 0.1
        )
    with pytest.raises(ValueError, match=r"outcome\.mean_N"):
        stats.g_formula_estimate(
            SCORE_N, MEMBER_N, stats.OutcomeModel(np.zeros(4), np.zeros(1)), 0.1
        )
    with pytest.raises(ValueError, match="replicates=0"):
        stats.causal_intervals(SCORE_N, MEMBER_N, 0.1, replicates=0)


def test_bias_and_double_robustness():
    # Twice as many members as non-members. E[Y(0)] of members is 1/2; the naive estimate sees -1/2.
    rng = np.random.default_rng(3)
    runs, members, nonmembers = 50, 200, 100
    residual_J = noise(50)
    residual_J -= residual_J.mean()
    value_QxE = np.empty((runs, 7))
    for r in range(runs):
        sample = drawn(members, nonmembers, rng)
        args = sample.score_N, sample.member_N
        wrong_odds = np.zeros_like(sample.x_N)
        right = stats.OutcomeModel(sample.x_N, residual_J)
        wrong = stats.OutcomeModel(np.zeros_like(sample.x_N), residual_J)
        members_odds = sample.log_odds_N
        value_QxE[r] = [
            stats.ipw_estimate(*args, members_odds, 0.1, normalize="members").ate,
            stats.g_formula_estimate(*args, right, 0.1).ate,
            stats.aipw_estimate(*args, members_odds, right, 0.1).ate,
            stats.aipw_estimate(*args, wrong_odds, right, 0.1).ate,
            stats.aipw_estimate(*args, members_odds, wrong, 0.1, normalize="members").ate,
            # Eq. 6 as printed divides by the non-members: E[Y(0)] = 1/2 is estimated as 1.
            printed_ipw(sample),
            stats.unadjusted_estimate(*args, 0.1).ate,
        ]
    se_E = value_QxE.std(axis=0, ddof=1) / np.sqrt(runs)
    expected_E = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5 - 0.5, 1.5]
    assert np.all(np.abs(value_QxE.mean(axis=0) - expected_E) < 3 * se_E)
    assert np.all(np.abs(value_QxE.mean(axis=0)[-2:] - 0.5) > 4 * se_E[-2:])


def printed_ipw(sample: Drawn) -> float:
    score_B = sample.score_N[~sample.member_N]
    weight_B = np.exp(sample.log_odds_N[~sample.member_N])
    return float(sample.score_N[sample.member_N].mean() - (weight_B * score_B).mean())


def test_sign_of_the_residual_in_the_rates_of_aipw():
    # The outcome model is wrong (a mean of 0), the odds are right: the rate at t = 1/2 is 1/2. With the sign that
    # Appendix D prints, the error of the model is doubled instead.
    sample = drawn(40_000, 20_000, np.random.default_rng(4))
    residual_J = noise(2000)
    wrong = stats.OutcomeModel(np.zeros_like(sample.x_N), residual_J)
    curve = stats.aipw_estimate(
        sample.score_N, sample.member_N, sample.log_odds_N, wrong, 0.1
    ).curve
    actual = float(np.interp(0.5, curve.threshold_K[::-1], curve.fpr_K[::-1]))
    assert actual == pytest.approx(0.5, abs=0.02)
    predicted = float(np.mean(residual_J >= 0.5))
    residual = 0.5 - predicted
    assert abs(residual) > 0.15
    weight_B = np.exp(sample.log_odds_N[~sample.member_N])
    exceeds_B = sample.score_N[~sample.member_N] >= 0.5
    printed = predicted - float(weight_B @ (exceeds_B - predicted)) / 40_000
    assert printed == pytest.approx(0.5 - 2 * residual, abs=0.03)


def test_curves_of_many_samples_are_close_to_exact():
    # Y(0) of members is N(1/2, 2), Y(1) is N(1, 2): thresholds and predictions are grouped.
    sample = drawn(60_000, 60_000, np.random.default_rng(5))
    args = sample.score_N, sample.member_N
    outcome = stats.OutcomeModel(sample.x_N, noise(5000))
    auc = 0.5987  # Phi(0.5 / 2)
    tpr_F = [0.0983, 0.3128]  # at 5% and 20%: sf(z - 0.5 / sqrt(2))
    for estimate in (
        stats.g_formula_estimate(*args, outcome, [0.05, 0.2]),
        stats.aipw_estimate(*args, sample.log_odds_N, outcome, [0.05, 0.2]),
    ):
        assert estimate.auc == pytest.approx(auc, abs=0.01)
        np.testing.assert_allclose(estimate.tpr_F, tpr_F, atol=0.015)
        assert estimate.curve.fpr_K.size <= 2 * 2048 + 2
        assert np.all(np.diff(estimate.curve.fpr_K) >= 0)


def test_intervals():
    sample = drawn(400, 300, np.random.default_rng(6))
    args = sample.score_N, sample.member_N
    outcome = stats.OutcomeModel(sample.x_N, noise(200))
    given = {
        "unadjusted": {},
        "ipw": {"log_odds_N": sample.log_odds_N},
        "g": {"outcome": outcome},
        "aipw": {"log_odds_N": sample.log_odds_N, "outcome": outcome},
    }
    for name, nuisances in given.items():
        interval = stats.causal_intervals(*args, [0.01, 0.2], **nuisances, replicates=50)
        estimate = interval.estimate
        assert interval.ate_low < estimate.ate < interval.ate_high, name
        ends = [interval.auc_low, interval.auc_high, interval.tpr_low_F[1], interval.tpr_high_F[1]]
        if name == "g":  # its rates rest on the residuals, which the bootstrap takes as known
            assert np.isnan(ends).all()
            continue
        assert interval.auc_low < estimate.auc < interval.auc_high, name
        assert interval.tpr_low_F[1] <= estimate.tpr_F[1] <= interval.tpr_high_F[1], name
        # 1% of 300 non-members are too few.
        assert np.isnan(interval.tpr_low_F[0]), name
    # One non-member with half of the weight: the estimate remains, but no interval.
    sample.log_odds_N[-1] = 100.0
    interval = stats.causal_intervals(*args, 0.2, log_odds_N=sample.log_odds_N, replicates=20)
    assert not interval.estimate.has_overlap
    assert np.isfinite(interval.estimate.ate)
    assert np.isnan([interval.ate_low, interval.auc_high, interval.tpr_low_F[0]]).all()


def test_intervals_are_as_wide_as_the_standard_error():
    # The variance of a difference in means is known.
    sample = drawn(2000, 1000, np.random.default_rng(7))
    interval = stats.causal_intervals(sample.score_N, sample.member_N, 0.1, replicates=400)
    se = np.sqrt(2 / 2000 + 2 / 1000)
    assert interval.ate_high - interval.ate_low == pytest.approx(2 * 1.96 * se, rel=0.12)


def test_clusters_are_drawn_as_a_whole():
    # Each sample occurs four times: as clusters of four, the copies say no more than one of them.
    sample = drawn(500, 400, np.random.default_rng(8))
    given = sample.score_N, sample.member_N, 0.1
    nuisances = {
        "log_odds_N": sample.log_odds_N,
        "outcome": stats.OutcomeModel(sample.x_N, noise(200)),
    }
    single = stats.causal_intervals(*given, **nuisances, replicates=400)
    times = np.tile(np.arange(900), 4)
    four: dict[str, Any] = {"log_odds_N": sample.log_odds_N[times]}
    four["outcome"] = stats.OutcomeModel(sample.x_N[times], noise(200))
    repeated = sample.score_N[times], sample.member_N[times], 0.1
    clusters = stats.causal_intervals(*repeated, **four, cluster_N=times, replicates=400)
    naive = stats.causal_intervals(*repeated, **four, replicates=400)
    assert clusters.estimate.auc == pytest.approx(single.estimate.auc, rel=1e-4)

    def widths(found):
        return [found.ate_high - found.ate_low, found.auc_high - found.auc_low]

    assert widths(clusters) == pytest.approx(widths(single), rel=0.15)
    assert (np.array(widths(naive)) < 0.75 * np.array(widths(clusters))).all()
    # A rate must rest on ten clusters: 1% of 1,600 non-members are 16 samples of at most 5 of them.
    few = stats.causal_intervals(*repeated[:2], 0.01, cluster_N=times, replicates=20)
    assert np.isnan(few.tpr_low_F).all()
    assert np.isfinite(stats.causal_intervals(*repeated[:2], 0.01, replicates=20).tpr_low_F).all()
    # With fewer than 50 clusters of a class there is no interval.
    large = stats.causal_intervals(*repeated[:2], 0.1, cluster_N=times % 40, replicates=20)
    assert np.isnan([large.ate_low, large.auc_low, *large.tpr_low_F]).all()
    with pytest.raises(ValueError, match="cluster_N"):
        stats.causal_intervals(*given, cluster_N=times, replicates=20)


def test_coverage_of_intervals():
    rng = np.random.default_rng(10)
    inside_Qx2 = []
    for seed in range(80):
        sample = drawn(120, 500, rng)
        result = stats.causal_intervals(
            sample.score_N,
            sample.member_N,
            [],
            log_odds_N=sample.log_odds_N,
            replicates=50,
            seed=seed,
        )
        auc_inside = result.auc_low <= 0.5987 <= result.auc_high  # Phi(0.5 / 2)
        inside_Qx2.append([result.ate_low <= 0.5 <= result.ate_high, auc_inside])
    assert np.all(np.mean(inside_Qx2, axis=0) > 0.87)


def test_hoeffding_radius():
    # 2 exp(-2 r^2 / (1/100 + 1/50)) = 0.05
    radius = stats.hoeffding_radius(100, 50, 1.0, 0.95)
    assert 2 * np.exp(-2 * radius**2 / 0.03) == pytest.approx(0.05)
    assert stats.hoeffding_radius(100, 50, 3.0, 0.95) == pytest.approx(3 * radius)
    # Proposition 4.2 prints more than twice as much.
    t = np.log(4 / 0.05)
    assert np.sqrt(2 * t / 100) + np.sqrt(2 * t / 50) > 2.9 * radius
    # Among infinitely many non-members, it is the radius of a TPR at a fixed threshold.
    assert stats.hoeffding_radius(100, 10**12, 1.0, 0.95) == pytest.approx(
        np.sqrt(np.log(40) / 200)
    )
    # Fair coins, the widest distribution of this range: the difference is rarely farther from 0.
    rng = np.random.default_rng(8)
    difference_Q = rng.binomial(100, 0.5, 20_000) / 100 - rng.binomial(50, 0.5, 20_000) / 50
    assert 0.001 < np.mean(np.abs(difference_Q) > radius) < 0.05
    assert np.mean(np.abs(difference_Q) > radius / 2) > 0.05
    with pytest.raises(ValueError, match="members=0"):
        stats.hoeffding_radius(0, 5, 1.0, 0.95)
    with pytest.raises(ValueError, match="width=inf"):
        stats.hoeffding_radius(5, 5, np.inf, 0.95)
