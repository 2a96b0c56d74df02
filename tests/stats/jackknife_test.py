"""Metrics on halves of the samples and without groups of replicas, against slow computations."""

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
        "coin_flip_tpr": (decision_BxN & coin_N)[:, member_N].mean(),
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
