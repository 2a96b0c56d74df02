"""Metrics on halves of the samples and without groups of replicas, against slow computations."""

import math

import numpy as np
import pytest
import scipy.stats

from lm_mia import stats


def test_halves_are_balanced():
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(np.arange(80))]
    assert half_HxN.shape == (14, 80)
    assert (half_HxN.sum(axis=1) == 40).all()
    assert (half_HxN[::2] ^ half_HxN[1::2]).all()
    sign_SxN = np.where(half_HxN[::2], 1, -1)
    np.testing.assert_array_equal(sign_SxN @ sign_SxN.T, 80 * np.eye(7))


def test_pieces_of_a_document_are_in_the_same_group():
    group_N = stats.sample_groups([5, 3, 5, 5, 13])
    assert (group_N.tolist(), group_N.dtype) == ([5, 3, 5, 5, 5], np.uint8)


def test_groups_of_models_keep_pairs_together():
    for models, groups in ((0, 0), (1, 1), (6, 3), (16, 8), (33, 8)):
        group_M = stats.model_groups(models)
        assert group_M.size == models
        assert set(group_M) == set(range(groups))
        np.testing.assert_array_equal(group_M[1::2], group_M[: models // 2 * 2 : 2])
        if groups:
            assert np.ptp(np.bincount(group_M)) <= 2
    with pytest.raises(ValueError, match=r"^models: .*whole"):
        stats.model_groups(-1)


def test_groups_of_models_keep_related_subsets_together():
    pairs = stats.model_groups(20, np.arange(20) // 2)
    np.testing.assert_array_equal(pairs, stats.model_groups(20))
    np.testing.assert_array_equal(stats.model_groups(9, np.arange(9)), stats.model_groups(9))
    assert stats.model_groups(8, [0, 1, 2, 3, 0, 1, 2, 3]).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert stats.model_groups(6, [0, 1, 1, 2, 3, 4]).tolist() == [0, 0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"^group_M of shape \(2,\)"):
        stats.model_groups(3, [0, 1])


def test_rates_of_halves_are_those_of_the_samples_of_each_half():
    rng = np.random.default_rng(0)
    member_TxN = rng.random((3, 200)) < 0.5
    score_TxN = np.round(rng.normal(size=(3, 200)) + member_TxN, 1)  # with ties
    score_TxN[1, ::7] = np.nan
    group_N, fprs = stats.sample_groups(np.arange(200)), [0.05, 0.2]
    auc_TxH, tpr_TxHxF = stats.rates_of_halves(score_TxN, member_TxN, group_N, fprs)
    for h, half_N in enumerate(stats.HALVES_HxG[:, group_N]):
        points = stats.tpr_at_fpr(score_TxN[:, half_N], member_TxN[:, half_N], fprs)
        np.testing.assert_array_equal(auc_TxH[:, h], points.auc_T)
        np.testing.assert_array_equal(tpr_TxHxF[:, h], points.tpr_TxF)


def test_halves_without_a_class_are_nan():
    group_N = stats.sample_groups(np.arange(8))
    auc_TxH, tpr_TxHxF = stats.rates_of_halves(np.arange(8.0), np.arange(8) == 0, group_N, [0.5])
    np.testing.assert_array_equal(np.isnan(auc_TxH[0]), ~stats.HALVES_HxG[:, 0])
    np.testing.assert_array_equal(np.isnan(tpr_TxHxF[0, :, 0]), ~stats.HALVES_HxG[:, 0])


def slow(score_BxN: np.ndarray, member_N: np.ndarray, fpr: float) -> dict[str, float]:
    """Returns the metrics of some replicas and samples."""
    replicas = len(score_BxN)
    points = stats.tpr_at_fpr(score_BxN, member_N, [fpr])
    decision_BxN = score_BxN >= points.threshold_TxF
    votes_N = decision_BxN.sum(axis=0)
    flip_N = np.array(
        [
            np.mean([a[n] != b[n] for i, a in enumerate(decision_BxN) for b in decision_BxN[:i]])
            for n in range(len(member_N))
        ]
    )
    k_low, _ = stats.coin_flip_cutoff(replicas)
    coin_N = (votes_N >= k_low) & (votes_N <= replicas - k_low)
    unstable_N = coin_N | (flip_N >= 0.4)
    threshold_B = stats.posterior(points.threshold_TxF[:, 0])
    distance_N = np.abs(stats.posterior(score_BxN) - threshold_B[:, None]).mean(axis=0)
    ranks = [scipy.stats.rankdata(x_N[member_N]) for x_N in (distance_N, flip_N)]
    return {
        "auc": points.auc_T.mean(),
        "distance_correlation": np.corrcoef(ranks)[0, 1],
        "member_flip_rate": flip_N[member_N].mean(),
        "nonmember_flip_rate": flip_N[~member_N].mean(),
        "member_coin_flips": coin_N[member_N].mean(),
        "nonmember_coin_flips": coin_N[~member_N].mean(),
        "tpr": points.tpr_TxF.mean(),
        "coin_flip_tpr": (decision_BxN & coin_N)[:, member_N].mean(),
        "unstable_tpr": (decision_BxN & unstable_N)[:, member_N].mean(),
        "threshold_spread": np.abs(threshold_B - np.median(threshold_B)).mean(),
    }


@pytest.mark.parametrize("replicas", [7, 10])
def test_decision_metrics(replicas: int):
    rng = np.random.default_rng(replicas)
    member_N = rng.random(96) < 0.5
    score_BxN = rng.normal(size=96) + 0.7 * member_N + 0.6 * rng.normal(size=(replicas, 96))
    score_BxN[2, 5] = np.nan
    group_N = stats.sample_groups(np.arange(96))
    metrics = stats.decision_metrics(score_BxN, member_N, group_N, [0.1, 0.3], 1)
    groups = min(replicas, 8)
    assert metrics.auc_A1xH1.shape == (1 + groups, 15)
    used_H1xN = np.concatenate([np.ones((1, 96), bool), stats.HALVES_HxG[:, group_N]]) & (
        np.arange(96) != 5
    )
    for a in range(1 + groups):
        kept_B = np.arange(replicas) % groups != a - 1
        for h in (0, 1, 14):
            kept = score_BxN[np.ix_(kept_B, used_H1xN[h])], member_N[used_H1xN[h]]
            for f, fpr in enumerate((0.1, 0.3)):
                for name, value in slow(*kept, fpr).items():
                    if name == "distance_correlation" and f == 0:
                        continue
                    if name in ("auc", "distance_correlation"):
                        found = getattr(metrics, f"{name}_A1xH1")[a, h]
                    else:
                        found = getattr(metrics, f"{name}_A1xH1xF")[a, h, f]
                    assert found == pytest.approx(value, abs=1e-12), (name, a, h, fpr)


def test_decision_metrics_that_do_not_exist_are_nan():
    score_BxN = np.random.default_rng(0).normal(size=(2, 16))
    group_N = stats.sample_groups(np.arange(16))
    metrics = stats.decision_metrics(score_BxN, np.arange(16) == 0, group_N, [0.5], 0)
    assert not np.isnan(metrics.member_flip_rate_A1xH1xF[0, 0])
    assert np.isnan(metrics.member_flip_rate_A1xH1xF[1:]).all()  # one replica has no pairs
    np.testing.assert_array_equal(np.isnan(metrics.auc_A1xH1[0, 1:]), ~stats.HALVES_HxG[:, 0])
    assert np.isnan(metrics.distance_correlation_A1xH1).all()  # of a single member


def test_variance_of_the_mean_over_models_is_the_usual_one():
    value_T = np.array([3.0, 5.0, 10.0])
    mean = value_T.mean()
    without_T = (value_T.sum() - value_T) / 2
    value_A1xR1xH1 = np.array([mean, *without_T]).reshape(-1, 1, 1)
    assert stats.jackknife_variance(value_A1xR1xH1) == pytest.approx((value_T.var(ddof=1) / 3, 2))
    margin = scipy.stats.t.ppf(0.95, 2) * value_T.std(ddof=1) / np.sqrt(3)
    assert stats.jackknife_margin(value_A1xR1xH1, confidence=0.9) == pytest.approx(margin)


def test_variance_over_samples_is_that_of_complementary_halves():
    half = np.array([0.5, 0.7, 0.3, 0.6, 0.4])  # two splits with differences of 0.4 and 0.2
    variance, df = stats.jackknife_variance(half.reshape(1, 1, -1))
    assert variance == pytest.approx((0.4**2 + 0.2**2) / 8)
    assert df == 2


def test_noise_of_models_and_samples_counts_once():
    """Without the interaction, the variance would be the sum of that over the models and that over the samples."""
    value_A1xH1 = np.array([[0.0, 1, -1], [1, -0.5, 0.5], [-1, 0.5, -0.5]])
    variance, df = stats.jackknife_variance(value_A1xH1[:, None])
    assert variance == pytest.approx(1 + 1 - 0.25)
    assert df == pytest.approx(1.75**2 / 2)
    value_A1xH1[1:, 1:] *= 4  # an interaction of 4 leaves no more than the larger of the two
    assert stats.jackknife_variance(value_A1xH1[:, None]) == pytest.approx((1, 1))


def test_shared_variance_of_two_targets_by_hand():
    # Half differences of 0.2 and 0.1 in the first split, and of 0.1 and -0.3 in the second.
    half_TxH = [[0.7, 0.3, 0.6, 0.4], [0.5, 0.3, 0.1, 0.7]]
    assert stats.shared_reference_variance(half_TxH) == pytest.approx((0.02 - 0.03) / 2)
    assert np.isnan(stats.shared_reference_variance(half_TxH[:1]))
    for bad in (half_TxH[0], np.zeros((2, 3)), np.zeros((0, 2))):
        with pytest.raises(ValueError, match="row per target"):
            stats.shared_reference_variance(bad)


def test_shared_variance_equals_a_slow_reference():
    half_TxH = np.random.default_rng(0).normal(size=(5, 14))
    products = [
        (half_TxH[t, h] - half_TxH[t, h + 1]) * (half_TxH[u, h] - half_TxH[u, h + 1]) / 4
        for h in range(0, 14, 2)
        for t in range(5)
        for u in range(5)
        if t != u
    ]
    assert stats.shared_reference_variance(half_TxH) == pytest.approx(np.mean(products))


def test_variances_are_those_of_new_references_for_each_target():
    rng = np.random.default_rng(1)
    sets, targets, references = 3000, 4, 16
    half_HxR = stats.HALVES_HxG[:, np.arange(references) // 2 % 8]
    target_DxT = rng.normal(size=(sets, targets))
    # Each reference moves all targets together, and each of them by itself.
    own_DxTxR = 3 * rng.normal(size=(sets, targets, references))
    shared_DxTxR = own_DxTxR + 4 * rng.normal(size=(sets, 1, references))
    value_DxT = target_DxT + shared_DxTxR.mean(axis=2)
    half_DxTxH = target_DxT[..., None] + shared_DxTxR @ half_HxR.T / (references // 2)
    shared = np.mean([stats.shared_reference_variance(half_TxH) for half_TxH in half_DxTxH])
    with_own_sets = 1 + (3**2 + 4**2) / references
    assert value_DxT.var(axis=1, ddof=1).mean() == pytest.approx(1 + 3**2 / references, rel=0.05)
    assert value_DxT.var(axis=1, ddof=1).mean() + shared == pytest.approx(with_own_sets, rel=0.05)


def test_margin_exists_only_with_a_variance_or_for_identical_numbers():
    same = np.full((9, 1, 15), 0.25)
    assert np.isnan(stats.jackknife_margin(same))
    assert stats.jackknife_margin(0 * same) == 0
    same[3, 0, 4] = np.nan
    assert np.isnan(stats.jackknife_margin(same))


@pytest.mark.parametrize("shape", [(9, 15), (1, 1, 1)])
def test_variance_needs_three_axes_and_several_values(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="three axes"):
        stats.jackknife_variance(np.zeros(shape))
    with pytest.raises(ValueError, match="confidence=1"):
        stats.jackknife_margin(np.zeros((2, 1, 1)), confidence=1)


def test_interval_of_a_mean_rate_by_hand():
    # Two targets with 0.5 and 0.7: s^2 / T is 0.01. The means on the halves of each pair differ by 0.2, so the
    # variance over samples is 0.01, too. The degrees of freedom are 0.0004 / (0.0001 + 0.0001 / 7) = 3.5.
    rate_TxS = np.array([[0.5], [0.7]])
    half_TxHxS = np.where(np.arange(14) % 2, 0.5, 0.7)[None, :, None] + np.array(
        [[[-0.1]], [[0.1]]]
    )
    low, high = stats.mean_rate_interval(rate_TxS, half_TxHxS, confidence=0.8)
    margin = scipy.stats.t.ppf(0.9, 3.5) * math.sqrt(0.02)
    np.testing.assert_allclose([low[0], high[0]], [0.6 - margin, 0.6 + margin])


def test_interval_of_a_mean_rate_at_its_edges():
    half_TxHxS = np.full((3, 14, 2), 0.5)
    low, high = stats.mean_rate_interval(np.full((3, 2), 0.5), half_TxHxS)
    np.testing.assert_array_equal([low, high], np.full((2, 2), 0.5))  # all are equal
    half_TxHxS[1, 3, 1] = np.nan
    low, high = stats.mean_rate_interval(np.full((3, 2), 0.5), half_TxHxS)
    np.testing.assert_array_equal(np.isnan([low, high]), [[False, True]] * 2)
    low, high = stats.mean_rate_interval(np.ones((1, 2)), half_TxHxS[:1])
    assert np.isnan([low, high]).all()  # one target shows no variance over models
    low, high = stats.mean_rate_interval([[0.0], [0.9]], np.full((2, 14, 1), 0.4))
    assert (low[0], high[0]) == (0, 1)  # limited to rates
    with pytest.raises(ValueError, match="shape"):
        stats.mean_rate_interval(np.ones((3, 2)), np.ones((3, 7, 2)))
    with pytest.raises(ValueError, match="rates must"):
        stats.mean_rate_interval([[0.5], [np.inf]], np.full((2, 14, 1), 0.5))
    with pytest.raises(ValueError, match="rates of halves must"):
        stats.mean_rate_interval([[0.5], [0.6]], np.full((2, 14, 1), -0.1))


@pytest.mark.montecarlo
@pytest.mark.parametrize(("targets", "correlation", "spread"), [(4, 0.9, 0.0), (16, 0.5, 0.3)])
def test_interval_of_a_mean_rate_covers_models_and_samples(targets, correlation, spread):
    # Scores of a sample are correlated between targets, and the gaps of targets differ.
    rng, samples, fpr, rounds = np.random.default_rng(targets), 500, 0.05, 150
    member_N, group_N = (
        np.arange(2 * samples) < samples,
        stats.sample_groups(np.arange(2 * samples)),
    )
    gap_K = 2 + spread * rng.normal(size=10**5)
    truth = scipy.stats.norm.sf(scipy.stats.norm.isf(fpr) - gap_K).mean()
    covered = 0
    for _ in range(rounds):
        shared_N, own_TxN = rng.normal(size=2 * samples), rng.normal(size=(targets, 2 * samples))
        score_TxN = math.sqrt(correlation) * shared_N + math.sqrt(1 - correlation) * own_TxN
        score_TxN += member_N * (2 + spread * rng.normal(size=(targets, 1)))
        rate_TxS = stats.tpr_at_fpr(score_TxN, member_N, fpr).tpr_TxF
        _, half_TxHxS = stats.rates_of_halves(score_TxN, member_N, group_N, fpr)
        low, high = stats.mean_rate_interval(rate_TxS, half_TxHxS)
        covered += bool(low[0] <= truth <= high[0])
    assert covered / rounds >= 0.9
