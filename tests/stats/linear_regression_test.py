"""Linear regression: the simulated data, and both algorithms compared with training every model on its own."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from lm_mia import seeds
from lm_mia.stats import (
    DpSgd,
    RegressionData,
    dp_sgd_residuals,
    ridge_residuals,
    simulate_regression,
)


@pytest.fixture(scope="module")
def data() -> RegressionData:
    """More features than training samples."""
    return simulate_regression(60, samples=50, trials=10, seed=3)


def test_true_weights_are_correlated_with_the_shift(data: RegressionData):
    assert np.linalg.norm(data.shift_D) == pytest.approx(1)
    norm = np.linalg.norm(data.weight_D)
    assert data.weight_D @ data.shift_D == pytest.approx(0.9 * norm)
    assert norm == pytest.approx(math.sqrt(60), rel=0.3)


def test_samples_have_the_stated_distributions():
    data = simulate_regression(5, samples=20_000, trials=1_000, seed=1)
    for samples, mean_D in (
        (data.training, np.zeros(5)),
        (data.held_out, np.zeros(5)),
        (data.shifted, data.shift_D),
        (data.trials, np.zeros(5)),
    ):
        count = len(samples.label_N)
        tolerance = 5 / math.sqrt(count)
        assert np.allclose(samples.feature_NxD.mean(axis=0), mean_D, atol=tolerance)
        assert np.allclose(np.cov(samples.feature_NxD.T), np.eye(5), atol=2 * tolerance)
        noise_N = samples.label_N - samples.feature_NxD @ data.weight_D
        assert noise_N.mean() == pytest.approx(0, abs=tolerance)
        assert noise_N.std() == pytest.approx(1, abs=tolerance)
    assert data.trial_member_M.sum() == 500
    # No two sets share samples.
    first = [s.feature_NxD[0] for s in (data.training, data.held_out, data.shifted, data.trials)]
    assert len(np.unique(np.array(first).round(12), axis=0)) == 4


def test_density_ratio_is_that_of_the_normal_distributions():
    data = simulate_regression(4, samples=20, trials=2)
    x_NxD = data.shifted.feature_NxD
    expected_N = multivariate_normal(np.zeros(4)).logpdf(x_NxD) - multivariate_normal(
        data.shift_D
    ).logpdf(x_NxD)
    np.testing.assert_allclose(data.log_density_ratio(x_NxD), expected_N, atol=1e-12)


@pytest.mark.parametrize("penalty", [0.5, 30.0])
@pytest.mark.parametrize("dimensions", [60, 20])
def test_ridge_is_that_of_models_trained_one_by_one(penalty: float, dimensions: int):
    data = simulate_regression(dimensions, samples=50, trials=10, seed=3)

    def train(x_NxD: np.ndarray, y_N: np.ndarray) -> np.ndarray:
        return np.linalg.solve(x_NxD.T @ x_NxD + penalty * np.eye(dimensions), x_NxD.T @ y_N)

    found = ridge_residuals(data, penalty)
    x_NxD, y_N = data.training.feature_NxD, data.training.label_N
    theta_D = train(x_NxD, y_N)
    for samples, residual_N in (
        (data.training, found.training_N),
        (data.held_out, found.held_out_N),
        (data.shifted, found.shifted_N),
    ):
        np.testing.assert_allclose(residual_N, samples.label_N - samples.feature_NxD @ theta_D)
    for m, (x_D, y) in enumerate(zip(data.trials.feature_NxD, data.trials.label_N, strict=True)):
        own_D = train(np.vstack([x_NxD, x_D]), np.append(y_N, y)) if m < 5 else theta_D
        assert found.trial_M[m] == pytest.approx(y - x_D @ own_D)


def train_by_dp_sgd(
    data: RegressionData, settings: DpSgd, seed: int, model: int
) -> tuple[np.ndarray, float]:
    """Trains one model with a gradient for each sample; returns its weights and the largest norm of a gradient."""
    (samples, dimensions), trials = data.training.feature_NxD.shape, len(data.trials.label_N)
    batches, noise, joins = (
        seeds.rng(seed, f"linear_regression/dp_sgd/{purpose}")
        for purpose in ("batches", "noise", "joins")
    )
    theta_D, largest = np.zeros(dimensions), 0.0
    for _ in range(settings.steps(samples)):
        chosen = [
            (data.training.feature_NxD[n], data.training.label_N[n])
            for n, u in enumerate(batches.random(samples))
            if u < settings.batch_size / samples
        ]
        u_M = joins.random(trials // 2)
        if model < trials // 2 and u_M[model] < settings.batch_size / samples:
            chosen.append((data.trials.feature_NxD[model], data.trials.label_N[model]))
        total_D = np.zeros(dimensions)
        for x_D, y in chosen:
            gradient_D = (x_D @ theta_D - y) * x_D
            largest = max(largest, float(np.linalg.norm(gradient_D)))
            total_D += gradient_D / max(1, np.linalg.norm(gradient_D) / settings.clipping_norm)
        noise_D = noise.standard_normal((dimensions, trials + 1))[:, model]
        total_D -= settings.noise_multiplier * settings.clipping_norm * noise_D
        mean_D = total_D / settings.batch_size + settings.penalty * theta_D
        theta_D = theta_D - settings.learning_rate * mean_D
    return theta_D, largest


@pytest.mark.parametrize("clipping_norm", [1.0, 30.0])
def test_dp_sgd_is_that_of_models_trained_one_by_one(data: RegressionData, clipping_norm: float):
    settings = DpSgd(
        learning_rate=0.05, epochs=3, batch_size=15, clipping_norm=clipping_norm, penalty=1.0
    )
    found = dp_sgd_residuals(data, settings, seed=7)
    models = [train_by_dp_sgd(data, settings, 7, model) for model in range(11)]
    assert max(largest for _, largest in models) > clipping_norm  # gradients are clipped
    for m, (x_D, y) in enumerate(zip(data.trials.feature_NxD, data.trials.label_N, strict=True)):
        assert found.trial_M[m] == pytest.approx(y - x_D @ models[m][0])
    theta_D = models[-1][0]
    for samples, residual_N in (
        (data.training, found.training_N),
        (data.held_out, found.held_out_N),
        (data.shifted, found.shifted_N),
    ):
        np.testing.assert_allclose(residual_N, samples.label_N - samples.feature_NxD @ theta_D)


def test_gradient_descent_without_privacy_is_ridge_regression(data: RegressionData):
    settings = DpSgd(
        learning_rate=0.2,
        epochs=200,
        batch_size=50,
        clipping_norm=1e9,
        noise_multiplier=0.0,
        penalty=0.5,
    )
    found, expected = dp_sgd_residuals(data, settings), ridge_residuals(data, 50 * 0.5)
    for name in ("training_N", "held_out_N", "shifted_N", "trial_M"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-8)


def test_noise_has_the_stated_size(data: RegressionData):
    """One step from zero: gradients are clipped to norm c, and noise is added once to their sum."""
    big = simulate_regression(3, samples=40, trials=4_000, seed=2)
    settings = DpSgd(epochs=1, batch_size=40, clipping_norm=1e-9, noise_multiplier=2e9, penalty=0.0)
    found = dp_sgd_residuals(big, settings, seed=1)
    # theta = 0.01 / 40 * N(0, (2e9 * 1e-9)^2), so that y - residual = x . theta
    fitted_M = big.trials.label_N - found.trial_M
    standard_M = fitted_M / np.linalg.norm(big.trials.feature_NxD, axis=1)
    assert standard_M.std() == pytest.approx(0.01 / 40 * 2, rel=0.05)


def test_results_depend_on_the_seed_only(data: RegressionData):
    settings = DpSgd(epochs=1, batch_size=10)
    runs = [dp_sgd_residuals(data, settings, seed=seed).trial_M for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])
    again = simulate_regression(60, samples=50, trials=10, seed=3)
    np.testing.assert_array_equal(again.training.feature_NxD, data.training.feature_NxD)


def test_steps_and_sampling_rate_of_the_paper():
    assert DpSgd().steps(2_000) == 1_172
    assert DpSgd().sampling_rate(2_000) == pytest.approx(0.064)


def test_wrong_arguments_are_refused(data: RegressionData):
    with pytest.raises(ValueError, match="penalty=0: "):
        ridge_residuals(data, 0)
    with pytest.raises(ValueError, match="correlation=2: "):
        simulate_regression(4, correlation=2)
    with pytest.raises(ValueError, match="trials=1: "):
        simulate_regression(4, trials=1)
    both = "batch_size=51: must be from 1 to 50\nclipping_norm=0: must be above 0"
    with pytest.raises(ValueError, match=both):
        dp_sgd_residuals(data, DpSgd(batch_size=51, clipping_norm=0))
    with pytest.raises(ValueError, match="epochs=0: "):
        dp_sgd_residuals(data, DpSgd(epochs=0, batch_size=50))
