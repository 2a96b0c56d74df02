"""Standard deviations over subsets of one population, against theory."""

import itertools

import numpy as np
import pytest

from lm_mia import stats


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 0.75])
def test_subsets_vary_less_by_the_finite_population_factor(share: float):
    population, training_samples = 400, round(400 * share)
    result = stats.simulate_finite_population(1024, population, training_samples, 200, seed=3)
    # Given the other 399 samples, n (OUT) or n - 1 (IN) of which are drawn.
    for empirical_N, analytical_N, drawn in (
        (result.empirical_sd_out_N, result.analytical_sd_out_N, training_samples),
        (result.empirical_sd_in_N, result.analytical_sd_in_N, training_samples - 1),
    ):
        ratio_N = empirical_N / analytical_N
        assert ratio_N.mean() == pytest.approx(np.sqrt(1 - drawn / (population - 1)), abs=0.01)
        # The sampling error of a standard deviation of n values is 1 / sqrt(2 n); n is at least 128 of 1,024.
        assert ratio_N.std() < 0.12


def test_analytical_sds_are_those_over_new_training_sets():
    samples, dimensions, draws = 5, 3, 40_000
    generator = np.random.default_rng(4)
    x_D = generator.standard_normal(dimensions)
    drawn = generator.standard_normal((draws, samples, dimensions))
    out = (drawn @ x_D).mean(axis=1).std()
    drawn[:, 0] = x_D
    with_x = (drawn @ x_D).mean(axis=1).std()
    norm = np.linalg.norm(x_D)
    assert out == pytest.approx(norm / np.sqrt(samples), rel=0.02)
    assert with_x == pytest.approx(norm * np.sqrt(samples - 1) / samples, rel=0.02)
    result = stats.simulate_finite_population(8, 20, samples, dimensions)
    np.testing.assert_allclose(result.analytical_sd_out_N, result.norm_N / np.sqrt(5))
    np.testing.assert_allclose(result.analytical_sd_in_N, result.norm_N * 2 / 5)


def test_factors_of_means_of_subsets_by_enumeration():
    population, drawn = 7, 3
    value_P = np.random.default_rng(5).standard_normal(population)
    means = [np.mean(subset) for subset in itertools.combinations(value_P, drawn)]
    # Reliability's factor is relative to draws from the distribution, whose variance the one with ddof 1 estimates.
    # Relative to draws with replacement from the population, the factor is another one.
    assert np.var(means) == pytest.approx((1 - 3 / 7) * np.var(value_P, ddof=1) / drawn)
    assert np.var(means) == pytest.approx((7 - 3) / (7 - 1) * np.var(value_P) / drawn)


def test_simulation_depends_on_its_seed_only():
    first, again, other = (
        stats.simulate_finite_population(16, 20, 10, 5, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.empirical_sd_in_N, again.empirical_sd_in_N)
    assert (first.norm_N != other.norm_N).all()


@pytest.mark.parametrize(
    "arguments", [{"models": 0}, {"dimensions": 0}, {"training_samples": 1}, {"population": 501}]
)
def test_impossible_sizes_are_refused(arguments: dict[str, int]):
    with pytest.raises(ValueError, match=r"^(models|dimensions|training_samples)=\d+: must be"):
        stats.simulate_finite_population(**arguments)
