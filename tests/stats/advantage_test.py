import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

from lm_mia import stats


def gaussian_scores(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores from N(1, 1) for members, every second sample, and from N(0, 1) for the others."""
    member_N = np.arange(samples) % 2 == 0
    return np.random.default_rng(seed).normal(size=samples) + member_N, member_N


def f_of_second_half(score_N: np.ndarray, member_N: np.ndarray, bins: int, prior: float):
    """Returns f of the second half of the samples, estimated from the first half, and their membership."""
    half = len(score_N) // 2
    bin_N = stats.quantile_bins(score_N, score_N[:half], bins)
    ratio = stats.log_ratio_bins(bin_N[:half], member_N[:half], bin_N[half:], bins)
    return stats.privacy_loss(ratio.value_N, prior), member_N[half:]


@pytest.mark.parametrize(("prior", "optimum"), [(0.5, 0.38292), (0.1, 0.80267)])
def test_advantage_of_two_gaussians(prior: float, optimum: float):
    # The best adversary calls members above 1/2 + log((1 - p) / p).
    cut = 0.5 + np.log((1 - prior) / prior)
    assert 2 * (prior * norm.sf(cut, 1) + (1 - prior) * norm.cdf(cut)) - 1 == pytest.approx(
        optimum, abs=1e-5
    )
    score_N, member_N = gaussian_scores(10**6)
    f_N, member_H = f_of_second_half(score_N, member_N, stats.num_bins(250_000), prior)
    actual = stats.held_out_advantage(f_N, member_H, prior)
    assert actual.value == pytest.approx(optimum, abs=0.005)
    assert actual.low < optimum
    assert stats.plug_in_advantage(f_N, member_H, prior) == pytest.approx(optimum, abs=0.005)
    # Algorithm 1 as printed, without the absolute value, shows the prior only.
    as_printed = prior * f_N[member_H].mean() + (1 - prior) * f_N[~member_H].mean()
    assert as_printed == pytest.approx(2 * prior - 1, abs=0.005)


def test_balanced_accuracy_does_not_depend_on_the_prior():
    # AM: its best value, 0.69146, is (1 + 0.38292) / 2, the advantage at a prior of 1/2, for every p.
    score_N, member_N = gaussian_scores(2 * 10**5)
    for prior in (0.5, 0.1):
        metric = stats.METRICS["balanced_accuracy"]
        best = stats.fitted_threshold(score_N, member_N, metric, prior)
        assert best.value == pytest.approx((1 + 0.38292) / 2, abs=0.003)
        assert best.threshold == pytest.approx(0.5, abs=0.1)


def test_the_fitted_samples_show_an_advantage_without_leakage():
    # As in MACE's Section 7.1: each sample is in its own bin.
    rng = np.random.default_rng(7)
    query_N, member_N = rng.normal(size=1024), np.arange(1024) % 2 == 0
    bin_N = stats.quantile_bins(query_N, query_N, 100)
    in_bins = stats.log_ratio_bins(bin_N, member_N, bin_N, 100)
    of_kernels = stats.log_ratio_kde(query_N, member_N, query_N, bandwidth=0.01)
    for ratio in (in_bins, of_kernels):
        f_N = stats.privacy_loss(ratio.value_N, 0.5)
        assert stats.held_out_advantage(f_N, member_N, 0.5).low > 0.1


def test_mean_of_pointwise_intervals_is_no_confidence_interval():
    # It is far wider than an interval of the mean, and contains the advantage in all runs instead of 95%.
    inside, runs = 0, 100
    for seed in range(runs):
        score_N, member_N = gaussian_scores(1200, seed)
        bin_N = stats.quantile_bins(score_N, score_N[:600], 13)
        ratio = stats.log_ratio_bins(bin_N[:600], member_N[:600], bin_N[600:], 13)
        f_N, *ends = (
            stats.privacy_loss(x, 0.5) for x in (ratio.value_N, ratio.low_N, ratio.high_N)
        )
        low, high = map(stats.plug_in_advantage, stats.absolute_ends(*ends))
        held_out = stats.held_out_advantage(f_N, member_N[600:], 0.5)
        assert high - low > 2 * (held_out.high - held_out.low)
        inside += low < 0.38292 < high
    assert inside == runs


def test_bins_of_equal_width_fail_for_heavy_tails():
    rng = np.random.default_rng(8)
    member_N = np.arange(4000) % 2 == 0
    query_N = rng.standard_cauchy(4000) + member_N
    equal_count_N, _ = f_of_second_half(query_N, member_N, 25, 0.5)
    low, high = query_N.min(), query_N.max()
    width_N = np.minimum((query_N - low) / (high - low) * 25, 24) // 1
    ratio = stats.log_ratio_bins(width_N[:2000], member_N[:2000], width_N[2000:], 25)
    equal_width_N = stats.privacy_loss(ratio.value_N, 0.5)
    counts, widths = (
        stats.held_out_advantage(f_N, member_N[2000:], 0.5).value
        for f_N in (equal_count_N, equal_width_N)
    )
    assert counts > 0.25  # the best adversary has 2 arctan(1/2) / pi = 0.295
    assert widths < 0.05


def test_mean_of_smoothed_f_differs_from_smoothed_advantage():
    # With a bandwidth of 1, f = tanh((x - 1/2) / 4). The advantage for smoothed densities is 0.27633, but samples are
    # drawn from the densities themselves.
    assert 2 * norm.cdf(0.5 / np.sqrt(2)) - 1 == pytest.approx(0.27633, abs=1e-5)
    expected, _ = quad(
        lambda x: np.abs(np.tanh((x - 0.5) / 4)) * (norm.pdf(x) + norm.pdf(x, 1)) / 2, -10, 11
    )
    score_N, member_N = gaussian_scores(2**15)
    half = 2**14
    ratio = stats.log_ratio_kde(score_N[:half], member_N[:half], score_N[half:], bandwidth=1.0)
    plug_in = stats.plug_in_advantage(stats.privacy_loss(ratio.value_N, 0.5))
    assert plug_in == pytest.approx(expected, abs=0.01)
    assert expected == pytest.approx(0.21359, abs=1e-5)


@pytest.mark.parametrize(("bins", "samples"), [(16, 512), (100, 2048)])
def test_without_leakage_only_the_plug_in_is_biased(bins: int, samples: int):
    # samples: of each class, in each half
    rng, runs = np.random.default_rng(4), 200
    plug_in, held_out = [], []
    for _ in range(runs):
        member_N = rng.permutation(4 * samples) % 2 == 0
        f_N, member_H = f_of_second_half(rng.normal(size=4 * samples), member_N, bins, 0.5)
        plug_in.append(stats.plug_in_advantage(f_N, member_H, 0.5))
        held_out.append(stats.held_out_advantage(f_N, member_H, 0.5).value)
    assert np.mean(plug_in) == pytest.approx(np.sqrt(bins / (np.pi * samples)), rel=0.1)
    assert abs(np.mean(held_out)) < 4 * np.std(held_out) / np.sqrt(runs)


def test_lower_end_rarely_exceeds_the_optimum():
    rng, runs, optimum = np.random.default_rng(5), 400, 2 * norm.cdf(0.5) - 1
    above = 0
    for _ in range(runs):
        score_N, member_N = gaussian_scores(1200, int(rng.integers(2**31)))
        f_N, member_H = f_of_second_half(score_N, member_N, 13, 0.5)
        above += stats.held_out_advantage(f_N, member_H, 0.5).low > optimum
    assert above / runs <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / runs)


def test_held_out_by_hand():
    f_N = [0.5, 0.0, -0.2, np.nan, 0.1, -0.9, -0.3, -0.3]
    member_N = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    actual = stats.held_out_advantage(f_N, member_N, 0.25)
    assert (actual.tpr, actual.tnr, actual.left_out) == (2 / 3, 3 / 4, 1)
    assert actual.value == pytest.approx(2 * (0.25 * 2 / 3 + 0.75 * 0.75) - 1)
    tpr_ends, tnr_ends = (
        stats.clopper_pearson(2, 3, confidence=0.975),
        stats.clopper_pearson(3, 4, confidence=0.975),
    )
    for actual_end, tpr, tnr in zip((actual.low, actual.high), tpr_ends, tnr_ends, strict=True):
        assert actual_end == pytest.approx(2 * (0.25 * tpr + 0.75 * tnr) - 1)


def test_plug_in_by_hand():
    f_N, member_N = [0.5, -1.0, np.nan, -0.25], np.array([True, False, True, False])
    assert stats.plug_in_advantage(f_N) == pytest.approx((0.5 + 1 + 0.25) / 3)
    weighted = stats.plug_in_advantage(f_N, member_N, 0.1)
    assert weighted == pytest.approx(0.1 * 0.5 + 0.9 * 0.625)
    assert np.isnan(stats.plug_in_advantage([np.nan]))


def test_ends_of_absolute_values():
    low_N, high_N = stats.absolute_ends([-0.5, 0.2, -0.9, np.nan], [0.3, 0.4, -0.1, 1.0])
    np.testing.assert_array_equal(low_N, [0, 0.2, 0.1, np.nan])
    np.testing.assert_array_equal(high_N, [0.5, 0.4, 0.9, np.nan])


def test_knowing_nothing_has_the_advantage_of_the_baseline():
    member_N = np.arange(100) < 50
    nothing_N = stats.privacy_loss(np.zeros(100), 0.1)
    assert stats.held_out_advantage(nothing_N, member_N, 0.1).value == pytest.approx(0.8)
    assert stats.plug_in_advantage(nothing_N, member_N, 0.1) == pytest.approx(0.8)


def test_privacy_loss_of_infinite_ratios_and_of_lira():
    np.testing.assert_array_equal(stats.privacy_loss([np.inf, -np.inf], 0.1), [1, -1])
    assert np.isnan(stats.privacy_loss(np.nan, 0.5))
    score_N = np.array([-3.0, 0.5])
    np.testing.assert_allclose(stats.privacy_loss(score_N, 0.5), 2 * stats.posterior(score_N) - 1)


def test_bound_of_differential_privacy():
    np.testing.assert_allclose(
        stats.dp_advantage_bound([1, np.inf, 0], 0.5), [0.46212, 1, 0], atol=1e-5
    )
    assert stats.dp_advantage_bound(1, 0.1) == pytest.approx(0.92146, abs=1e-5)
    assert stats.dp_advantage_bound(1, 0.9) == pytest.approx(0.92146, abs=1e-5)
    log_ratio_N = np.linspace(-1, 1, 1001)  # all that epsilon = 1 allows
    for prior in (0.5, 0.1, 0.7):
        loss_N = np.abs(stats.privacy_loss(log_ratio_N, prior))
        assert loss_N.max() == pytest.approx(stats.dp_advantage_bound(1, prior))


def test_mechanisms_of_known_epsilon():
    epsilon, rng = 1.0, np.random.default_rng(6)
    member_N = np.arange(2 * 10**5) % 2 == 0
    # Randomized response answers truthfully with probability e / (1 + e), and attains the bound at a prior of 1/2.
    answer_N = np.where(rng.random(member_N.size) < 1 / (1 + np.exp(epsilon)), ~member_N, member_N)
    noisy_N = laplace.rvs(scale=1 / epsilon, size=member_N.size, random_state=rng) + member_N
    for query_N, optimum in (
        (answer_N.astype(float), stats.dp_advantage_bound(epsilon, 0.5)),
        (noisy_N, 0.39347),
    ):
        f_N, member_H = f_of_second_half(query_N, member_N, 40, 0.5)
        assert stats.held_out_advantage(f_N, member_H, 0.5).value == pytest.approx(
            optimum, abs=0.01
        )
    # The mean of |f| is at most max(|1 - 2p|, tanh(epsilon / 2)), below the bound of |f| for other priors.
    eta = {True: np.exp(epsilon), False: np.exp(-epsilon)}
    for prior in (0.1, 0.4):
        truth = np.exp(epsilon) / (1 + np.exp(epsilon))
        share = {True: prior * truth + (1 - prior) * (1 - truth)}
        share[False] = 1 - share[True]
        mean = sum(
            share[answer] * abs(stats.privacy_loss(np.log(eta[answer]), prior))
            for answer in (True, False)
        )
        assert mean == pytest.approx(max(abs(1 - 2 * prior), np.tanh(epsilon / 2)))


def test_a_fixed_training_set_has_no_bound():
    # A deterministic query that differs between samples is epsilon-private for every epsilon if the training set is not
    # random, but it identifies the members: both classes have disjoint queries.
    member_N = np.array([True, False, True, False])
    ratio = stats.log_ratio_bins(np.arange(4), member_N, np.arange(4), 4)
    np.testing.assert_array_equal(np.abs(stats.privacy_loss(ratio.value_N, 0.5)), 1)
    assert stats.dp_advantage_bound(0, 0.5) == 0


def test_invalid_arguments_raise():
    f_N, member_N = [0.1, -0.1], np.array([True, False])
    for prior in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="prior="):
            stats.privacy_loss(0.0, prior)
        with pytest.raises(ValueError, match="prior="):
            stats.held_out_advantage(f_N, member_N, prior)
        with pytest.raises(ValueError, match="prior="):
            stats.plug_in_advantage(f_N, member_N, prior)
        with pytest.raises(ValueError, match="prior="):
            stats.dp_advantage_bound(1.0, prior)
    for epsilon in (-0.1, np.nan):
        with pytest.raises(ValueError, match="epsilon"):
            stats.dp_advantage_bound(epsilon, 0.5)
    with pytest.raises(ValueError, match="confidence=0"):
        stats.held_out_advantage(f_N, member_N, 0.5, confidence=0)
    with pytest.raises(ValueError, match="non-member"):
        stats.held_out_advantage(f_N, [True, True], 0.5)
    with pytest.raises(ValueError, match="match"):
        stats.held_out_advantage(f_N, [True], 0.5)
    with pytest.raises(ValueError, match="give both"):
        stats.plug_in_advantage(f_N, member_N)
    with pytest.raises(ValueError, match="low ends"):
        stats.absolute_ends([1.0], [0.0])
