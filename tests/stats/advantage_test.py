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


def test_advantage_at_half_gives_the_balanced_accuracy():
    # AM does not depend on the prior: its best value, 0.69146, is (1 + 0.38292) / 2 for every p.
    best = (norm.sf(0.5, 1) + norm.cdf(0.5)) / 2
    assert best == pytest.approx(0.69146, abs=1e-5)
    assert 2 * best - 1 == pytest.approx(0.38292, abs=1e-5)


def test_mean_of_smoothed_f_is_not_the_advantage_of_smoothed_densities():
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
