import numpy as np
import pytest
from scipy.stats import binom, norm

from lm_mia import stats
from lm_mia.stats import density


def interval_of_f(ratio: stats.LogRatio) -> np.ndarray:
    return stats.privacy_loss(np.stack([ratio.low_N, ratio.high_N]), 0.5)


def test_bins_by_hand():
    member_K = np.repeat([True, False], 10)
    bin_K = np.concatenate([np.repeat([0, 1], [3, 7]), np.repeat([0, 1], [1, 9])]).astype(float)
    ratio = stats.log_ratio_bins(bin_K, member_K, [0, 1, np.nan], 2)
    np.testing.assert_allclose(np.exp(ratio.value_N), [3, 7 / 9, np.nan])
    f_N = stats.privacy_loss(ratio.value_N[:1], 0.5), stats.privacy_loss(ratio.value_N[:1], 0.1)
    np.testing.assert_allclose(f_N, [[0.5], [-0.5]])
    assert (ratio.unseen, ratio.left_out, ratio.unused) == (0, 1, 0)
    eight_of_ten = stats.log_ratio_of_counts([8, 2], [2, 8])
    # Each share has tails of delta / 4, not of delta / 2 as the text above Lemma 6 says.
    np.testing.assert_allclose(interval_of_f(eight_of_ten)[:, 0], [-0.1981, 0.9651], atol=5e-5)


def test_bins_with_samples_of_one_class_or_none():
    ratio = stats.log_ratio_of_counts([4, 0, 0], [0, 6, 0])
    np.testing.assert_array_equal(ratio.value_N, [np.inf, -np.inf, 0])
    assert ratio.low_N[0] > -np.inf
    assert ratio.high_N[0] == np.inf
    assert (ratio.low_N[2], ratio.high_N[2], ratio.unseen) == (-np.inf, np.inf, 1)
    np.testing.assert_allclose(stats.privacy_loss(ratio.value_N[2], 0.1), 2 * 0.1 - 1)
    at_unseen = stats.log_ratio_bins([0, 0, 1, np.nan], [True, False, False, True], [2, 2, 0], 3)
    assert (at_unseen.unseen, at_unseen.unused) == (2, 1)


def test_interval_of_every_bin_covers_its_ratio():
    # Exact: sums over all counts of two binomial distributions.
    n, count = 30, np.arange(31)
    for p, q in ((0.2, 0.1), (0.02, 0.3), (0.5, 0.5)):
        low_IxJ, high_IxJ = np.empty((2, n + 1, n + 1))
        for j in count:
            ratios = [stats.log_ratio_of_counts([i, n - i], [j, n - j]) for i in count]
            low_IxJ[:, j] = [r.low_N[0] for r in ratios]
            high_IxJ[:, j] = [r.high_N[0] for r in ratios]
        inside = (low_IxJ <= np.log(p / q)) & (np.log(p / q) <= high_IxJ)
        weight = np.outer(binom.pmf(count, n, p), binom.pmf(count, n, q))
        assert (weight * inside).sum() >= 0.95


def test_quantile_bins_do_not_change_under_rising_maps():
    rng = np.random.default_rng(0)
    by_K = rng.standard_cauchy(300)
    query_N = np.concatenate([rng.standard_cauchy(100), by_K[:5], [np.nan, -1e9, 1e9]])
    bin_N = stats.quantile_bins(query_N, by_K, 7)
    np.testing.assert_array_equal(
        bin_N, stats.quantile_bins(np.arctan(query_N), np.arctan(by_K), 7)
    )
    assert np.isnan(bin_N[-3])
    assert (bin_N[-2], bin_N[-1]) == (0, 6)
    np.testing.assert_array_equal(
        np.ptp(np.bincount(stats.quantile_bins(by_K, by_K, 7).astype(int))), 1
    )
    np.testing.assert_allclose(
        stats.normal_scores(query_N, by_K), stats.normal_scores(np.arctan(query_N), np.arctan(by_K))
    )


def test_number_of_bins_and_bandwidth():
    assert [stats.num_bins(n) for n in (0, 1, 8, 512, 2**17, 10**9)] == [1, 2, 4, 16, 100, 100]
    for count in (-1, 1.5, np.nan):
        with pytest.raises(ValueError, match="samples_per_class: "):
            stats.num_bins(count)  # type: ignore[arg-type]
    for bins in (0, 1.5, np.nan, np.inf):
        with pytest.raises(ValueError, match="whole number"):
            stats.quantile_bins([1.0], [1.0], bins)  # type: ignore[arg-type]
    assert stats.silverman_bandwidth(100) == pytest.approx((4 / 300) ** 0.2)
    assert stats.silverman_bandwidth(100, 2) == pytest.approx(100 ** (-1 / 6))


def test_normal_scores_by_hand():
    by_K = [3.0, 1.0, np.nan, 2.0, 2.0]
    score_N = stats.normal_scores([0, 1, 2, 2.5, 9, np.nan], by_K)
    np.testing.assert_allclose(
        norm.cdf(score_N[:5]), [0.1, 0.2, 0.5, 0.7, 0.9]
    )  # (r + 1/2) / (4 + 1), with r = 0, 1/2, 2, 3, 4
    assert np.isnan(score_N[5])
    two = stats.normal_scores(np.array([[1.0, 3.0]]), np.array([[1.0, 1.0], [2.0, 2.0]]))
    np.testing.assert_allclose(norm.cdf(two), [[1 / 3, 5 / 6]])


def slow_log_ratio(query_KxD, member_K, at_NxD, h):
    """Sums kernels in two loops."""
    value_N = []
    for at_D in at_NxD:
        total = {True: 0.0, False: 0.0}
        for query_D, member in zip(query_KxD, member_K, strict=True):
            u_D = (at_D - query_D) / h
            total[bool(member)] += np.exp(-u_D @ u_D / 2)
        value_N.append(np.log(total[True] / member_K.sum() / (total[False] / (~member_K).sum())))
    return value_N


@pytest.mark.parametrize("dimensions", [1, 3])
def test_kde_equals_a_double_loop(dimensions: int):
    rng = np.random.default_rng(1)
    member_K = rng.random(40) < 0.4
    query_KxD = rng.normal(size=(40, dimensions)) * 5 + member_K[:, None]
    at_NxD = rng.normal(size=(20, dimensions)) * 5
    ratio = stats.log_ratio_kde(query_KxD, member_K, at_NxD, bandwidth=2.5)
    expected_N = slow_log_ratio(query_KxD, member_K, at_NxD, 2.5)
    np.testing.assert_allclose(ratio.value_N, expected_N, rtol=1e-10)
    if dimensions == 1:
        flat = stats.log_ratio_kde(query_KxD[:, 0], member_K, at_NxD[:, 0], bandwidth=2.5)
        np.testing.assert_array_equal(flat.value_N, ratio.value_N)


def test_kde_is_finite_far_from_all_samples():
    far = stats.log_ratio_kde([0.0, 1.0], [True, False], [1e3, -1e3], bandwidth=1.0)
    np.testing.assert_allclose(far.value_N, [-(1e3**2 - 999**2) / 2, (1001**2 - 1e3**2) / 2])
    np.testing.assert_array_equal([far.low_N, far.high_N], [[-np.inf] * 2, [np.inf] * 2])
    assert far.unseen == 0


def test_kde_interval_by_hand():
    # At the only samples: the mean kernel is (2 pi)^(-1/2), n = 100 copies, z = Phi^-1(1 - 0.05 / 4).
    query_K, member_K = np.zeros(200), np.arange(200) < 100
    ratio = stats.log_ratio_kde(query_K, member_K, [0.0], bandwidth=3.0)
    margin = norm.ppf(0.9875) * np.sqrt((4 * np.pi) ** -0.5 / (100 * (2 * np.pi) ** -0.5))
    np.testing.assert_allclose(ratio.high_N, np.log((1 + margin) / (1 - margin)))
    np.testing.assert_allclose(ratio.low_N, -ratio.high_N)
    assert ratio.value_N[0] == 0
    few = stats.log_ratio_kde([0.0, 0.0], [True, False], [0.0], bandwidth=1.0)
    assert (few.low_N[0], few.high_N[0]) == (-np.inf, np.inf)  # lower ends are set to 0


def test_kde_on_a_grid_is_close_to_exact_sums(monkeypatch):
    rng = np.random.default_rng(2)
    member_K = np.arange(6000) < 3000
    query_K = rng.normal(size=6000) + member_K
    at_N = np.append(rng.normal(size=1000) + 0.5, np.nan)
    exact = stats.log_ratio_kde(query_K, member_K, at_N, bandwidth=0.2)
    monkeypatch.setattr(density, "_MAX_PAIRS", 0)
    grid = stats.log_ratio_kde(query_K, member_K, at_N, bandwidth=0.2)
    enough_N = 3000 * 0.2 * np.minimum(norm.pdf(at_N), norm.pdf(at_N, 1)) >= 10
    assert enough_N.sum() > 700
    np.testing.assert_allclose(grid.value_N[enough_N], exact.value_N[enough_N], atol=1e-4)
    assert (grid.left_out, grid.unused, exact.left_out) == (1, 0, 1)
    far = stats.log_ratio_kde([0.0, 5.0], [True, False], [-1.0, 6.5, 40.0], bandwidth=0.5)
    np.testing.assert_array_equal(far.value_N, [np.inf, -np.inf, 0])  # beyond 10 bandwidths
    assert (far.unseen, far.low_N[2], far.high_N[2]) == (1, -np.inf, np.inf)
    with pytest.raises(ValueError, match="bandwidth"):
        stats.log_ratio_kde([0.0, 1e9], [True, False], [0.0], bandwidth=0.5)


def test_kde_of_many_vectors_uses_the_first_of_each_class(monkeypatch):
    monkeypatch.setattr(density, "_MAX_PAIRS", 0)
    monkeypatch.setattr(density, "_MAX_CENTERS", 3)
    query_KxD, member_K = np.arange(20.0).reshape(10, 2), np.arange(10) % 2 == 0
    ratio = stats.log_ratio_kde(query_KxD, member_K, query_KxD, bandwidth=4.0)
    monkeypatch.undo()
    first = stats.log_ratio_kde(query_KxD[:6], member_K[:6], query_KxD, bandwidth=4.0)
    np.testing.assert_array_equal(ratio.value_N, first.value_N)
    assert (ratio.unused, first.unused) == (4, 0)


def test_kde_covers_the_smoothed_ratio_and_not_the_ratio():
    # N(1, 1) and N(0, 1) with a bandwidth of 1: smoothed, both have variance 2, so the log ratio is (x - 1/2) / 2.
    rng, runs, n = np.random.default_rng(3), 300, 500
    at_N, member_K = np.array([-1.0, 2.0]), np.arange(2 * n) < n
    inside_smoothed = inside_true = 0
    for _ in range(runs):
        query_K = rng.normal(size=2 * n) + member_K
        ratio = stats.log_ratio_kde(query_K, member_K, at_N, bandwidth=1.0)
        inside_smoothed += (ratio.low_N <= (at_N - 0.5) / 2) & ((at_N - 0.5) / 2 <= ratio.high_N)
        inside_true += (ratio.low_N <= at_N - 0.5) & (at_N - 0.5 <= ratio.high_N)
    assert np.all(inside_smoothed / runs >= 0.95)
    assert np.all(inside_true / runs <= 0.2)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"bandwidth": 0.0}, "bandwidth=0.0"),
        ({"bandwidth": np.nan}, "bandwidth=nan"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"member_K": np.array([True, True])}, "non-member"),
        ({"member_K": np.array([True])}, "match members"),
        ({"query_KxD": [np.inf, 0.0]}, "finite"),
        ({"at_NxD": np.zeros((3, 2))}, "numbers per sample"),
    ],
)
def test_kde_invalid_arguments_raise(changes: dict, match: str):
    arguments = {"query_KxD": [0.0, 1.0], "member_K": np.array([True, False]), "at_NxD": [0.0]}
    with pytest.raises(ValueError, match=match):
        stats.log_ratio_kde(**(arguments | {"bandwidth": 1.0} | changes))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([0.5, 1], [True, False], [0], 2), "whole numbers"),
        (([0, 2], [True, False], [0], 2), "bins - 1 = 1"),
        (([0, 1], [True, False], [-1], 2), "at_N"),
        (([0, 1], [True, True], [0], 2), "non-member"),
        (([0, 1], [1, 0], [0], 2), "booleans"),
        (([0, 1], [True, False], [0], 1.5), "bins=1.5"),
    ],
)
def test_bins_invalid_arguments_raise(arguments: tuple, match: str):
    with pytest.raises(ValueError, match=match):
        stats.log_ratio_bins(*arguments)
    with pytest.raises(ValueError, match="NaN"):
        stats.quantile_bins([1.0], [np.nan], 2)
    with pytest.raises(ValueError, match="equal dimensions"):
        stats.normal_scores([1.0], [[1.0, 2.0]])
