import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm_mia.stats import baselines
from lm_mia.stats.baselines import (
    loss_attack,
    lowercase,
    min_k,
    min_k_plus_plus,
    reference_calibrated,
    zlib_ratio,
)

nan, inf = np.nan, np.inf
SEEDS = st.integers(0, 2**32 - 1)


def slow_lowest(values, share):
    """The definition, for the values of one text; shares as the decimals that they are written."""
    there = sorted(float(v) for v in values if not math.isnan(v))
    k = max(1, math.floor(Fraction(str(share)) * len(there)))
    return math.fsum(there[:k]) / len(there[:k]) if there else nan


def tokens(seed, N=30, L=25):
    """Log probabilities with means and deviations; texts of all lengths, none included."""
    rng = np.random.default_rng(seed)
    log_prob_NxL = -rng.gamma(1, 2, (N, L))
    log_prob_NxL[np.arange(L) >= rng.integers(0, L + 1, N)[:, None]] = nan
    return log_prob_NxL, -rng.gamma(4, 1, (N, L)), rng.gamma(4, 0.5, (N, L))


def test_loss_by_hand():
    np.testing.assert_array_equal(
        loss_attack([[1.0, 2.0], [np.nan, 0.5]]), [[-1, -2], [np.nan, -0.5]]
    )
    assert loss_attack(np.array([1, 2, 3], np.float32)).shape == (1, 3)
    assert loss_attack(np.array([1], np.float32)).dtype == np.float64


def test_reference_calibrated_by_hand():
    score = reference_calibrated([[1.0, 5.0, 1.0]], [[2.0, 4.0, np.nan], [4.0, np.nan, np.nan]])
    np.testing.assert_array_equal(score, [[2.0, -1.0, np.nan]])


def test_reference_calibrated_against_nanmean():
    rng = np.random.default_rng(0)
    target_TxN, reference_MxN = rng.normal(3, 1, (5, 40)), rng.normal(3, 1, (9, 40))
    reference_MxN[rng.random((9, 40)) < 0.2] = np.nan
    want = np.nanmean(reference_MxN, axis=0) - target_TxN
    np.testing.assert_allclose(reference_calibrated(target_TxN, reference_MxN), want, atol=1e-12)
    np.testing.assert_allclose(
        reference_calibrated(target_TxN, reference_MxN[rng.permutation(9)]), want, atol=1e-12
    )
    np.testing.assert_allclose(
        reference_calibrated(target_TxN + 1e6, reference_MxN + 1e6), want, atol=1e-8
    )


def test_float32_references_are_averaged_in_float64():
    reference_MxN = np.array([[16777216], [1], [1]], np.float32)
    np.testing.assert_allclose(reference_calibrated([[0.0]], reference_MxN), [[16777218 / 3]])


def test_zlib_by_hand():
    score = zlib_ratio([[2.0, 3.0, 1.0]], [100, 300, np.nan])
    np.testing.assert_array_equal(score, [[-0.02, -0.01, np.nan]])


def test_zlib_ranks_low_loss_for_its_size_first():
    # Equal losses: the text that compresses worst should have been hardest, so it looks memorised.
    assert np.argmax(zlib_ratio([[2.0, 2.0]], [50, 500])) == 1
    assert np.argmax(zlib_ratio([[2.0, 1.0]], [50, 50])) == 1


def test_lowercase_by_hand():
    # The member's text loses more by lowercasing.
    score = lowercase([[2.0, 3.0, nan, 1.0]], [[5.0, 3.0, 1.0, nan]])
    np.testing.assert_array_equal(score, [[3.0, 0.0, nan, nan]])
    got = lowercase(np.array([1e6], np.float32), np.array([1e6 + 0.0625], np.float32))
    np.testing.assert_array_equal(got, [[0.0625]], strict=True)


def test_lowercase_ranks_as_the_ratio_of_perplexities():
    rng = np.random.default_rng(0)
    loss, lower = rng.gamma(4, 1, 50), rng.gamma(5, 1, 50)
    ratio = np.exp(loss) / np.exp(lower)  # before over after: small for memorised text
    np.testing.assert_array_equal(np.argsort(-lowercase(loss, lower)[0]), np.argsort(ratio))


def test_min_k_by_hand():
    log_prob = [[-1.0, -4.0, -2.0, -3.0, -0.5], [-1.0, nan, -4.0, nan, -2.0], [nan] * 5]
    for share, want in [(0.2, [-4, -4]), (0.4, [-3.5, -4]), (0.7, [-3, -3]), (1.0, [-2.1, -7 / 3])]:
        np.testing.assert_allclose(min_k(log_prob, share=share), [*want, nan], rtol=1e-15)
    np.testing.assert_array_equal(min_k(log_prob), min_k(log_prob, share=0.2))
    # Fewer than 1 / share tokens still have a lowest one.
    np.testing.assert_array_equal(min_k([[-1.0, -2.0]], share=0.01), [-2.0])
    np.testing.assert_array_equal(
        min_k([[-inf, -1.0, -2.0], [-1, -2, -3]], share=0.7), [-inf, -2.5]
    )


def test_min_k_plus_plus_by_hand():
    # z = -1, 2, -3.
    log_prob, mean, std = [[-2.0, -1.0, -8.0]], [[-1.0, -2.0, -2.0]], [[1.0, 0.5, 2.0]]
    for share, want in [(0.2, -3), (0.7, -2), (1.0, -2 / 3)]:
        np.testing.assert_allclose(min_k_plus_plus(log_prob, mean, std, share=share), [want])
    default = min_k_plus_plus(*(np.tile(v, 5) for v in (log_prob, mean, std)))
    np.testing.assert_array_equal(default, [-3])  # 3 of 15


def test_share_of_the_tokens_is_counted_as_written():
    log_prob = -np.arange(100.0)[None]
    for share in (0.07, 0.14, 0.28, 0.29, 0.55, 0.56, 0.57, 0.58):  # 0.29 * 100 < 29 in floats
        k = round(100 * share)
        np.testing.assert_allclose(min_k(log_prob, share=share), [-(99 - (k - 1) / 2)])


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, percent=st.integers(1, 100))
def test_min_k_against_the_definition(seed, percent):
    log_prob, mean, std = tokens(seed)
    share = percent / 100
    want = [slow_lowest(row, share) for row in log_prob]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "_CHUNK", 60)
        np.testing.assert_allclose(min_k(log_prob, share=share), want, rtol=1e-13)
        patch.setattr(baselines, "_CHUNK", 10)  # less than one text
        got = min_k_plus_plus(log_prob, mean, std, share=share)
    want = [slow_lowest(row, share) for row in (log_prob - mean) / std]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shares=st.tuples(*[st.floats(0.01, 1)] * 2).map(sorted))
def test_a_larger_share_never_lowers_and_order_is_of_no_consequence(seed, shares):
    log_prob, mean, std = tokens(seed)
    low, high = (min_k(log_prob, share=share) for share in shares)
    there = ~np.isnan(low)
    assert np.all(low[there] <= high[there] + 1e-12)
    order = np.random.default_rng(seed).permutation(log_prob.shape[1])  # padding moves too
    np.testing.assert_array_equal(min_k(log_prob[:, order], share=shares[0]), low)
    got = min_k_plus_plus(log_prob[:, order], mean[:, order], std[:, order])
    np.testing.assert_array_equal(got, min_k_plus_plus(log_prob, mean, std))
    # A change of units is undone by mean and deviation.
    got = min_k_plus_plus(3 * log_prob - 2, 3 * mean - 2, 3 * std)
    np.testing.assert_allclose(got, min_k_plus_plus(log_prob, mean, std), rtol=1e-9, atol=1e-12)


def test_known_distribution():
    # Exponential -log p: its highest fifth lies above log 5 and has the mean 1 + log 5.
    rng = np.random.default_rng(1)
    log_prob = -rng.exponential(size=(4, 100_000))
    np.testing.assert_allclose(min_k(log_prob), -(1 + np.log(5)), atol=0.05)
    # Normal z: the mean of the lowest fifth is -phi(q) / 0.2.
    mean, std = np.full(log_prob.shape, -50.0), np.full(log_prob.shape, 3.0)
    got = min_k_plus_plus(mean + std * rng.normal(size=log_prob.shape), mean, std)
    np.testing.assert_allclose(got, -stats.norm.pdf(stats.norm.ppf(0.2)) / 0.2, atol=0.03)


def test_float32_tokens_are_averaged_in_float64():
    log_prob, mean, std = (v.astype(np.float32) for v in tokens(3))
    wide = [v.astype(np.float64) for v in (log_prob, mean, std)]
    np.testing.assert_array_equal(min_k(log_prob), min_k(wide[0]), strict=True)
    got = min_k_plus_plus(log_prob, mean, std)
    np.testing.assert_array_equal(got, min_k_plus_plus(*wide), strict=True)
    far = np.array([[-16777216, -1, -1]], np.float32)
    np.testing.assert_allclose(min_k(far, share=1), [-16777218 / 3], rtol=1e-15)


def test_tokens_without_spread():
    def z(log_prob, mean, std):
        return min_k_plus_plus([[log_prob]], [[mean]], [[std]])[0]

    assert z(0.0, 0.0, 0.0) == 0
    # Uniform choices, off by rounding on either side; and rounding in the deviation itself.
    assert z(-10.373491, -10.373490, 0.0) == z(-10.373489, -10.373490, 0.0) == 0
    assert z(-1e-7, 0.0, 1e-320) == 0
    assert z(-20.0, 0.0, 0.0) == z(-inf, 0.0, 0.0) == z(-inf, -1.0, 1.0) == -inf
    # The limit: a token of probability 1 - e among two.
    for e in (1e-6, 1e-12):
        p = np.array([1 - e, e])
        mean = np.sum(p * np.log(p))
        std = np.sqrt(np.sum(p * (np.log(p) - mean) ** 2))
        np.testing.assert_allclose(z(np.log1p(-e), mean, std), np.sqrt(e), rtol=0.1)


def test_missing_means_and_deviations():
    log_prob = [[-1.0, -2.0], [-1.0, -2.0], [-1.0, nan], [nan, nan]]
    mean, std = [[-1.0, nan], [-1.0, -1.0], [-2.0, nan], [nan, -1.0]], np.ones((4, 2))
    std[1, 0] = std[2, 1] = nan
    got = min_k_plus_plus(log_prob, mean, std)
    np.testing.assert_array_equal(got, [nan, nan, 1, nan])
    std[0] = 0  # a missing mean stays missing there
    assert np.isnan(min_k_plus_plus(log_prob, mean, std)[0])


def test_no_samples():
    assert reference_calibrated(np.empty((2, 0)), np.empty((3, 0))).shape == (2, 0)
    assert np.isnan(reference_calibrated([[1.0]], np.empty((0, 1)))).all()
    assert lowercase(np.empty((2, 0)), np.empty((2, 0))).shape == (2, 0)
    for shape in [(0, 0), (0, 5), (3, 0)]:
        none = np.empty(shape)
        np.testing.assert_array_equal(min_k(none), np.full(shape[0], nan))
        np.testing.assert_array_equal(min_k_plus_plus(none, none, none), np.full(shape[0], nan))


def test_bad_arguments():
    with pytest.raises(ValueError, match="finite"):
        reference_calibrated([[1.0]], [[np.inf]])
    with pytest.raises(ValueError, match="same samples"):
        reference_calibrated([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="1 or more"):
        zlib_ratio([[1.0]], [0])
    with pytest.raises(ValueError, match="one size"):
        zlib_ratio([[1.0]], [[1], [2]])
    with pytest.raises(ValueError, match="same samples"):
        lowercase([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="same targets"):
        lowercase([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="finite"):
        lowercase([[inf]], [[inf]])


def test_bad_tokens():
    one: Any = [[-1.0]]
    for share in (0, -0.1, 1.01, nan):
        for log_prob in (one, np.empty((0, 3))):
            with pytest.raises(ValueError, match="share"):
                min_k(log_prob, share=share)
            with pytest.raises(ValueError, match="share"):
                min_k_plus_plus(log_prob, log_prob, log_prob, share=share)
    for log_prob, said in [
        ([-1.0], "texts x tokens"),
        ([[2.0]], "losses"),
        ([[-1, 0.01]], "losses"),
    ]:
        with pytest.raises(ValueError, match=said):
            min_k(log_prob)
        with pytest.raises(ValueError, match=said):
            min_k_plus_plus(log_prob, log_prob, log_prob)
    np.testing.assert_array_equal(min_k([[1e-6]]), [1e-6])  # a certain token, rounded
    for mean, std, said in [
        ([[-1.0, -1.0]], one, "same tokens"),
        (one, [[1.0, 1.0]], "same tokens"),
        (one, [[-1.0]], "not negative"),
        ([[-inf]], [[1.0]], "finite"),
        (one, [[inf]], "finite"),
    ]:
        with pytest.raises(ValueError, match=said):
            min_k_plus_plus(one, mean, std)
