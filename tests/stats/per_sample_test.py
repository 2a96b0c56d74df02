import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import per_sample


def test_equal_count_bins_by_hand():
    x_N = [5.0, 1, np.nan, 2, 4, 3, 6]
    y_N = [50.0, 10, 7, 20, np.nan, 30, 60]
    actual = stats.equal_count_bins(x_N, y_N, 2)  # the samples with x = 1, 2, 3, 5, 6
    np.testing.assert_allclose(actual.x_mean_K, [2, 5.5])
    np.testing.assert_allclose(actual.y_mean_K, [20, 55])
    np.testing.assert_array_equal(actual.count_K, [3, 2])
    assert actual.left_out == 2


def test_equal_count_bins_keep_ties_together():
    x_N = np.array([0.0] * 6 + [1, 2, 3, 3])
    actual = stats.equal_count_bins(x_N, np.arange(10.0), 5)
    np.testing.assert_allclose(actual.x_mean_K, [0, 1.5, 3])
    np.testing.assert_allclose(actual.y_mean_K, [2.5, 6.5, 8.5])
    np.testing.assert_array_equal(actual.count_K, [6, 2, 2])
    equal = stats.equal_count_bins(np.ones(7), np.arange(7.0), 3)
    np.testing.assert_array_equal(equal.count_K, [7])


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.integers(1, 70), st.booleans())
def test_equal_count_bins_hold_equal_counts(seed, samples, bins, ties):
    rng = np.random.default_rng(seed)
    x_N = rng.integers(0, 12, samples).astype(float) if ties else rng.permutation(samples) * 1.0
    y_N = rng.normal(size=samples)
    actual = stats.equal_count_bins(x_N, y_N, bins)
    assert actual.count_K.sum() == samples
    assert np.all(actual.count_K > 0)
    assert np.all(np.diff(actual.x_mean_K) > 0)
    np.testing.assert_allclose(actual.x_mean_K @ actual.count_K, x_N.sum(), rtol=1e-12)
    np.testing.assert_allclose(actual.y_mean_K @ actual.count_K, y_N.sum(), atol=1e-12)
    if not ties:
        assert actual.count_K.size == min(bins, samples)
        assert samples == 0 or np.ptp(actual.count_K) <= 1
    else:  # no value of x is in two bins
        ends = np.cumsum(actual.count_K)[:-1]
        assert np.all(np.sort(x_N)[ends - 1] < np.sort(x_N)[ends])
    order = rng.permutation(samples)
    permuted = stats.equal_count_bins(x_N[order], y_N[order], bins)
    np.testing.assert_allclose(permuted.y_mean_K, actual.y_mean_K, atol=1e-12)


def test_equal_count_bins_of_large_values_with_small_spread():
    x_N = np.arange(1000) * 2.0**-20
    small = stats.equal_count_bins(x_N.astype(np.float32), x_N, 10)
    large = stats.equal_count_bins(x_N + 1e6, x_N + 1e6, 10)
    np.testing.assert_array_equal(large.count_K, [100] * 10)
    np.testing.assert_allclose(large.x_mean_K - 1e6, small.x_mean_K, atol=1e-9)
    np.testing.assert_allclose(large.y_mean_K - 1e6, small.y_mean_K, atol=1e-9)


def test_equal_count_bins_invalid_arguments_raise():
    for x_N, y_N, bins, match in (
        ([1.0], [1.0, 2.0], 1, "shape"),
        ([[1.0]], [[1.0]], 1, "shape"),
        ([1.0], [1.0], 0, "at least 1"),
        ([np.inf], [1.0], 1, "finite"),
        ([1.0], [-np.inf], 1, "finite"),
    ):
        with pytest.raises(ValueError, match=match):
            stats.equal_count_bins(x_N, y_N, bins)
    assert stats.equal_count_bins([np.nan], [1.0], 3).left_out == 1


def test_true_positive_probability_by_hand():
    posterior_MxN = np.array([[0.5, 0.9, 0.9, np.nan], [0.7, 1.0, np.nan, 0.3], [0.1, 0, 0.7, 0.4]])
    member_MxN = np.array([[1, 0, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]], dtype=bool)
    actual = stats.true_positive_probability(posterior_MxN, member_MxN)
    np.testing.assert_allclose(actual.mean_N, [0.6, np.nan, 0.8, np.nan])
    np.testing.assert_allclose(actual.std_N, [0.1, np.nan, 0.1, np.nan])
    np.testing.assert_allclose(actual.share_above_half_N, [0.5, np.nan, 1, np.nan])
    np.testing.assert_array_equal(actual.models_N, [2, 0, 2, 0])


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([np.float32, np.float64]))
def test_true_positive_probability_equals_slow_reference(seed, cells, dtype):
    rng = np.random.default_rng(seed)
    posterior_MxN = (rng.integers(0, 9, (6, 17)) / 8).astype(dtype)  # some are exactly 1/2
    posterior_MxN[rng.random(posterior_MxN.shape) < 0.1] = np.nan
    member_MxN = rng.random(posterior_MxN.shape) < 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(per_sample, "_CELLS", cells)
        actual = stats.true_positive_probability(posterior_MxN, member_MxN)
    for n in range(17):
        p = posterior_MxN[member_MxN[:, n] & ~np.isnan(posterior_MxN[:, n]), n].astype(np.float64)
        assert actual.models_N[n] == p.size
        expected = (p.mean(), p.std(), np.mean(p > 0.5)) if p.size else [np.nan] * 3
        actual_n = actual.mean_N[n], actual.std_N[n], actual.share_above_half_N[n]
        np.testing.assert_allclose(actual_n, expected, atol=1e-12)
    order = rng.permutation(6)
    permuted = stats.true_positive_probability(posterior_MxN[order], member_MxN[order])
    np.testing.assert_allclose(permuted.std_N, actual.std_N, atol=1e-12)


def test_true_positive_probability_of_known_distributions():
    # Uniform posteriors have mean 1/2, STD 1/sqrt(12) and half of them above 1/2. Those of non-members are ignored.
    rng = np.random.default_rng(0)
    member_MxN = np.arange(40_000)[:, None] % 2 == np.array([0, 1])
    posterior_MxN = np.where(member_MxN, rng.random((40_000, 2)), 0.99)
    actual = stats.true_positive_probability(posterior_MxN, member_MxN)
    np.testing.assert_allclose(actual.mean_N, 0.5, atol=0.01)
    np.testing.assert_allclose(actual.std_N, 12**-0.5, atol=0.01)
    np.testing.assert_allclose(actual.share_above_half_N, 0.5, atol=0.02)
    nearly = 0.75 + np.array([[-1e-9], [1e-9]])
    std_N = stats.true_positive_probability(nearly, np.ones((2, 1), bool)).std_N
    np.testing.assert_allclose(std_N, 1e-9, rtol=1e-6)


def test_true_positive_probability_empty_and_invalid_arguments():
    no_models = stats.true_positive_probability(np.empty((0, 3)), np.empty((0, 3), bool))
    assert np.isnan(no_models.mean_N).all()
    np.testing.assert_array_equal(no_models.models_N, [0, 0, 0])
    assert stats.true_positive_probability(
        np.empty((3, 0)), np.empty((3, 0), bool)
    ).std_N.shape == (0,)
    for posterior, member, match in (
        ([[0.5, 0.5]], [[True]], "do not match"),
        ([0.5], [True], "do not match"),
        ([[0.5]], [[1]], "booleans"),
        ([[1.5]], [[True]], "posterior"),
        ([[-0.1]], [[True]], "posterior"),
    ):
        with pytest.raises(ValueError, match=match):
            stats.true_positive_probability(posterior, np.array(member))
