import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats

nan, inf = np.nan, np.inf
SEEDS = st.integers(0, 2**32 - 1)


def slow_min_k(value_T: np.ndarray, count_N: np.ndarray) -> list[float]:
    """Computes the definition, one sample at a time."""
    scores, start = [], 0
    for n in count_N.tolist():
        k = max(1, n // 5)
        scores.append(math.fsum(sorted(value_T[start : start + n].tolist())[:k]) / k)
        start += n
    return scores


def test_loss_attack_by_hand():
    np.testing.assert_array_equal(
        stats.loss_attack([[1.0, 2.0], [np.nan, 0.5]]), [[-1, -2], [np.nan, -0.5]]
    )
    assert stats.loss_attack(np.array([1, 2, 3], np.float32)).shape == (1, 3)
    assert stats.loss_attack(np.array([1], np.float32)).dtype == np.float64


def test_reference_calibrated_loss_by_hand():
    score = stats.reference_calibrated_loss(
        [[1.0, 5.0, 1.0]], [[2.0, 4.0, np.nan], [4.0, np.nan, np.nan]]
    )
    np.testing.assert_array_equal(score, [[2.0, -1.0, np.nan]])


def test_reference_calibrated_loss_equals_nanmean():
    rng = np.random.default_rng(0)
    target_TxN, reference_MxN = rng.normal(3, 1, (5, 40)), rng.normal(3, 1, (9, 40))
    reference_MxN[rng.random((9, 40)) < 0.2] = np.nan
    expected = np.nanmean(reference_MxN, axis=0) - target_TxN
    np.testing.assert_allclose(
        stats.reference_calibrated_loss(target_TxN, reference_MxN), expected, atol=1e-12
    )
    np.testing.assert_allclose(
        stats.reference_calibrated_loss(target_TxN, reference_MxN[rng.permutation(9)]),
        expected,
        atol=1e-12,
    )
    np.testing.assert_allclose(
        stats.reference_calibrated_loss(target_TxN + 1e6, reference_MxN + 1e6), expected, atol=1e-8
    )


def test_float32_references_are_averaged_in_float64():
    reference_MxN = np.array([[16777216], [1], [1]], np.float32)
    np.testing.assert_allclose(
        stats.reference_calibrated_loss([[0.0]], reference_MxN), [[16777218 / 3]]
    )


def test_zlib_ratio_by_hand():
    score = stats.zlib_ratio([[2.0, 3.0, 1.0]], [100, 300, np.nan])
    np.testing.assert_array_equal(score, [[-0.02, -0.01, np.nan]])


def test_zlib_ratio_ranks_low_loss_per_byte_first():
    # Of two texts with equal losses, the one that compresses worse is expected to be harder, so it looks memorized.
    assert np.argmax(stats.zlib_ratio([[2.0, 2.0]], [50, 500])) == 1
    assert np.argmax(stats.zlib_ratio([[2.0, 1.0]], [50, 50])) == 1


def test_lowercase_loss_difference_by_hand():
    # Lowercasing raises the loss of the memorized text more.
    score = stats.lowercase_loss_difference([[2.0, 3.0, nan, 1.0]], [[5.0, 3.0, 1.0, nan]])
    np.testing.assert_array_equal(score, [[3.0, 0.0, nan, nan]])
    actual = stats.lowercase_loss_difference(
        np.array([1e6], np.float32), np.array([1e6 + 0.0625], np.float32)
    )
    np.testing.assert_array_equal(actual, [[0.0625]], strict=True)


def test_lowercase_ranking_is_that_of_the_perplexity_ratio():
    rng = np.random.default_rng(0)
    loss, lower = rng.gamma(4, 1, 50), rng.gamma(5, 1, 50)
    ratio = np.exp(loss) / np.exp(lower)  # original over lowercased: small for memorized text
    np.testing.assert_array_equal(
        np.argsort(-stats.lowercase_loss_difference(loss, lower)[0]), np.argsort(ratio)
    )


def test_min_k_by_hand():
    """Averages one of 1 to 9 tokens and two of 10; a -inf token affects only its own sample."""
    texts = [[-1, -4, -2, -3, -0.5], [-1, -2], [-inf, -1, -2], [-7.0], range(10)]
    actual = stats.min_k(np.concatenate(texts), np.array([len(text) for text in texts]))
    np.testing.assert_array_equal(actual, [-4, -2, -inf, -7, 0.5])


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_min_k_equals_slow_reference(seed: int):
    rng = np.random.default_rng(seed)
    count_N = rng.integers(1, 60, 30)
    value_T = rng.normal(-3, 2, count_N.sum())
    score_N = stats.min_k(value_T, count_N)
    np.testing.assert_allclose(score_N, slow_min_k(value_T, count_N), rtol=1e-12, atol=1e-13)
    # The result does not depend on the order of a sample's tokens.
    ends = np.cumsum(count_N)[:-1]
    shuffled_T = np.concatenate([rng.permutation(part) for part in np.split(value_T, ends)])
    np.testing.assert_array_equal(stats.min_k(shuffled_T, count_N), score_N)


def test_min_k_of_known_distributions():
    rng, count_N = np.random.default_rng(1), np.full(4, 100_000)
    # Exponential -log p: its highest fifth is above log 5 and has a mean of 1 + log 5.
    actual = stats.min_k(-rng.exponential(size=count_N.sum()), count_N)
    np.testing.assert_allclose(actual, -(1 + np.log(5)), atol=0.05)
    # Normal z: the mean of the lowest fifth is -phi(q) / 0.2.
    actual = stats.min_k(rng.normal(size=count_N.sum()), count_N)
    np.testing.assert_allclose(
        actual, -scipy.stats.norm.pdf(scipy.stats.norm.ppf(0.2)) / 0.2, atol=0.03
    )


def test_float32_tokens_are_averaged_in_float64():
    value_T = np.array([-16777216, -1, -1] + [0] * 12, np.float32)
    np.testing.assert_allclose(stats.min_k(value_T, np.array([15])), [-16777218 / 3], rtol=1e-15)


def test_empty_inputs():
    assert stats.reference_calibrated_loss(np.empty((2, 0)), np.empty((3, 0))).shape == (2, 0)
    assert np.isnan(stats.reference_calibrated_loss([[1.0]], np.empty((0, 1)))).all()
    assert stats.lowercase_loss_difference(np.empty((2, 0)), np.empty((2, 0))).shape == (2, 0)
    assert stats.min_k(np.empty(0), np.empty(0, np.int64)).shape == (0,)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="finite"):
        stats.reference_calibrated_loss([[1.0]], [[np.inf]])
    with pytest.raises(ValueError, match="same samples"):
        stats.reference_calibrated_loss([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="at least 1"):
        stats.zlib_ratio([[1.0]], [0])
    with pytest.raises(ValueError, match="one size"):
        stats.zlib_ratio([[1.0]], [[1], [2]])
    with pytest.raises(ValueError, match="same samples"):
        stats.lowercase_loss_difference([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="same targets"):
        stats.lowercase_loss_difference([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="finite"):
        stats.lowercase_loss_difference([[inf]], [[inf]])
