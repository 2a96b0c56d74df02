"""What the margins of hits tell about the decisions of other replicas: a hand-worked case and slow counting."""

import itertools

import numpy as np
import pytest
import scipy.stats

from lm_mia import stats


def test_hand_worked_case():
    """With 8 other replicas, 0 or 8 votes are not like a coin flip; the sample of 9 votes is stable, that of 5 not."""
    score_BxN = np.zeros((9, 3))
    score_BxN[:, 0] = 2
    score_BxN[:5, 1] = 1
    found = stats.hit_stability(score_BxN, np.full(9, 0.5), bins=2)
    np.testing.assert_array_equal(found.hits_B, [2] * 5 + [1] * 4)
    np.testing.assert_array_equal(found.stable_B, [0.5] * 5 + [1] * 4)
    np.testing.assert_array_equal(found.stable_auc_B, [1] * 5 + [np.nan] * 4)
    np.testing.assert_array_equal(found.flip_correlation_B, [-1] * 5 + [np.nan] * 4)
    np.testing.assert_array_equal(found.margin_BxK[0], [0.5, 1.5])
    np.testing.assert_array_equal(found.stable_BxK[0], [0, 1])
    np.testing.assert_array_equal(found.agreement_BxK[0], [4 / 8, 1])
    np.testing.assert_allclose(found.flip_rate_BxK[0], [2 * 4 * 4 / (8 * 7), 0])
    assert np.isnan(found.stable_BxK[5:]).all()  # one hit, two bins


def test_slow_counting():
    rng = np.random.default_rng(0)
    score_BxN = rng.normal(size=50) + rng.normal(size=(11, 50)).round(1)
    threshold_B = rng.normal(0.5, 0.1, 11)
    found = stats.hit_stability(score_BxN, threshold_B, alpha=0.1, bins=3)
    decision_BxN = score_BxN >= threshold_B[:, None]
    for b in range(11):
        others = [decision_BxN[i] for i in range(11) if i != b]
        hits = [n for n in range(50) if decision_BxN[b, n]]
        margins = [score_BxN[b, n] - threshold_B[b] for n in hits]
        pairs = [[x[n] != y[n] for x, y in itertools.combinations(others, 2)] for n in hits]
        flips = [np.mean(different) for different in pairs]
        votes = [sum(x[n] for x in others) for n in hits]
        stable = [bool(v > 5 and scipy.stats.binomtest(int(v), 10).pvalue < 0.1) for v in votes]
        assert found.hits_B[b] == len(hits)
        expected = np.corrcoef(scipy.stats.rankdata(margins), scipy.stats.rankdata(flips))[0, 1]
        assert found.flip_correlation_B[b] == pytest.approx(expected)
        assert found.stable_B[b] == pytest.approx(np.mean(stable))
        assert found.stable_auc_B[b] == pytest.approx(stats.auc(margins, stable).auc_T[0])
        order = np.argsort(margins, kind="stable")
        for k, part in enumerate(np.array_split(order, 3)):
            assert found.margin_BxK[b, k] == pytest.approx(np.mean([margins[i] for i in part]))
            assert found.stable_BxK[b, k] == pytest.approx(np.mean([stable[i] for i in part]))
            assert found.agreement_BxK[b, k] == pytest.approx(
                np.mean([votes[i] for i in part]) / 10
            )
            assert found.flip_rate_BxK[b, k] == pytest.approx(np.mean([flips[i] for i in part]))


def test_replicas_without_hits_have_no_numbers():
    found = stats.hit_stability(np.zeros((4, 2)), np.array([1.0, 1.0, 1.0, -1.0]), bins=1)
    np.testing.assert_array_equal(found.hits_B, [0, 0, 0, 2])
    np.testing.assert_array_equal(found.stable_B, [np.nan, np.nan, np.nan, 0])
    assert np.isnan(found.flip_correlation_B).all()  # of equal margins


@pytest.mark.parametrize(
    ("score_BxN", "threshold_B", "message"),
    [
        (np.zeros((3, 2)), np.zeros(2), "3 replicas must have"),
        (np.zeros((2, 2)), np.zeros(2), "at least 3"),
        (np.full((3, 2), np.nan), np.zeros(3), "be NaN"),
    ],
)
def test_invalid_arguments(score_BxN: np.ndarray, threshold_B: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        stats.hit_stability(score_BxN, threshold_B)
