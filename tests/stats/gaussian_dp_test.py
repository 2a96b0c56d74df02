"""Gaussian differential privacy, compared with series of 60 digits, and DP-SGD with numerical accounting."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.stats import norm

from lm_mia.stats import dp_sgd_mu, dp_tpr_bound, gaussian_dp_delta, gaussian_dp_epsilon


def normal_cdf(x: Decimal) -> Decimal:
    """Computes Phi(x) by the series of the error function."""
    term = x
    total, k = x, 0
    while abs(term) > Decimal(10) ** -75:
        k += 1
        term *= -x * x / (2 * k)
        total += term / (2 * k + 1)
    # 2 pi to 50 digits
    two_pi = Decimal("6.2831853071795864769252867665590057683943387987502")
    return Decimal("0.5") + total / two_pi.sqrt()


def exact_delta(mu: float, epsilon: float) -> float:
    with localcontext() as context:
        context.prec = 110  # the terms of the series are large and alternate
        m, e = Decimal(mu), Decimal(epsilon)
        return float(normal_cdf(m / 2 - e / m) - e.exp() * normal_cdf(-m / 2 - e / m))


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (1e-3, 0.0),
        (1e-3, 1e-3),
        (0.1, 0.05),
        (0.5, 1.0),
        (1, 0.0),
        (1, 4.4),
        (1, 8),
        (3, 2),
        (9, 30),
    ],
)
def test_delta_of_the_definition(mu: float, epsilon: float):
    actual = float(gaussian_dp_delta(mu, epsilon))
    assert actual == pytest.approx(exact_delta(mu, epsilon), rel=1e-11, abs=1e-30)


def test_published_values():
    # Noise 1 and 1/2 at delta = 1e-5, as PrivacyGuard's tutorial prints 4.38 for the first.
    assert gaussian_dp_epsilon([1, 2], 1e-5).round(2).tolist() == [4.38, 10.0]


def test_edges():
    assert gaussian_dp_delta([0, 0, np.inf, 2], [0, 1, 1, np.inf]).tolist() == [0, 0, 1, 0]
    assert gaussian_dp_delta(200, 1) == 1  # nothing overflows
    assert 0 < gaussian_dp_delta(1, 30) < 1e-180
    assert gaussian_dp_delta(0.01, 5) == 0  # below the smallest number
    largest = float(gaussian_dp_delta(1, 0))
    assert gaussian_dp_epsilon([0, 1, 1, 1], [0, 0, largest, 1]).tolist() == [0, np.inf, 0, 0]
    assert gaussian_dp_epsilon(1, largest * 0.999) > 0
    assert gaussian_dp_epsilon([[1], [2]], [1e-5, 1e-3]).shape == (2, 2)


@pytest.mark.parametrize("mu", [1e-4, 0.3, 2, 40])
@pytest.mark.parametrize("delta", [1e-200, 1e-12, 1e-5])
def test_epsilon_is_the_inverse(mu: float, delta: float):
    epsilon = float(gaussian_dp_epsilon(mu, delta))
    assert float(gaussian_dp_delta(mu, epsilon)) == pytest.approx(delta, rel=1e-6)


def test_monotone():
    grid = np.linspace(0, 10, 101)
    assert np.all(np.diff(gaussian_dp_delta(1, grid)) < 0)
    assert np.all(np.diff(gaussian_dp_delta(grid, 1)) >= 0)
    assert np.all(np.diff(gaussian_dp_epsilon(grid, 1e-5)) >= 0)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="mu: must be"):
        gaussian_dp_delta(-1, 1)
    with pytest.raises(ValueError, match="epsilon: must be"):
        gaussian_dp_delta(1, np.nan)
    with pytest.raises(ValueError, match="delta: must be"):
        gaussian_dp_epsilon(1, 1.5)


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "numerical", "renyi"),
    [
        (0.064, 3, 1172, 1.5902, 1.9221),
        (0.064, math.sqrt(3), 1172, 3.5991, 4.2619),
        (1 / 16, 6, 1200, 0.6015, 0.7543),
        (0.064, 6, 1172, 0.6113, 0.7659),
    ],
)
def test_dp_sgd_agrees_with_numerical_accounting(
    rate: float, multiplier: float, steps: int, numerical: float, renyi: float
):
    """Numbers of dp-accounting 0.6.0 at delta = 0.01, which needs an older attrs than this project.

    For (rate, multiplier, steps) = (q, z, T):
        event = PoissonSampledDpEvent(q, GaussianDpEvent(z))
        accountant = pld.PLDAccountant(value_discretization_interval=1e-4)  # or rdp.RdpAccountant()
        accountant.compose(SelfComposedDpEvent(event, T)).get_epsilon(0.01)
    """
    epsilon = float(gaussian_dp_epsilon(dp_sgd_mu(rate, multiplier, steps), 0.01))
    assert epsilon == pytest.approx(numerical, rel=0.01)
    assert epsilon < renyi


def test_dp_sgd_without_sampling_composes_gaussian_mechanisms():
    # With a large multiplier, T steps of a (1/z)-GDP mechanism are sqrt(T)/z-GDP.
    assert dp_sgd_mu(1.0, 1e4, 400) == pytest.approx(20 / 1e4)
    assert dp_sgd_mu(0.5, 2.0, 0) == 0
    assert dp_sgd_mu(0.5, 1e-3, 0) == 0
    assert dp_sgd_mu(0.5, 1e-3, 1) == np.inf


def test_dp_sgd_refuses_wrong_settings():
    problems = (
        "sampling_rate=0: must be above 0 and at most 1",
        "noise_multiplier=-1: must be above 0",
        "steps=-1: must be a whole number, 0 or larger",
    )
    with pytest.raises(ValueError, match="\n".join(problems)):
        dp_sgd_mu(0.0, -1.0, -1)


def test_largest_tpr_is_that_of_the_paper_and_of_randomized_response():
    fpr = np.linspace(0, 1, 11)
    e, d = 0.7, 0.05
    expected = [min(1, math.exp(e) * x + d, 1 - math.exp(-e) * (1 - d - x)) for x in fpr]
    np.testing.assert_allclose(dp_tpr_bound(fpr, e, d), expected)
    # Randomized response attains it: TPR e^eps / (1 + e^eps) at FPR 1 / (1 + e^eps).
    truth = math.exp(e) / (1 + math.exp(e))
    assert dp_tpr_bound(1 - truth, e, 0.0) == pytest.approx(truth)
    np.testing.assert_allclose(dp_tpr_bound(fpr, 0.0, 0.0), fpr)
    np.testing.assert_array_equal(dp_tpr_bound([0.0, 0.1], np.inf, 0.2), [0.2, 1.0])
    np.testing.assert_array_equal(dp_tpr_bound([0.0, 0.1], np.inf, 0.0), [0.0, 1.0])


def test_no_gaussian_mechanism_is_above_the_largest_tpr():
    """The ROC curve of N(0, 1) against N(mu, 1) touches the line of each of its (epsilon, delta)."""
    mu, fpr = 1.2, np.linspace(0.0005, 0.9995, 2_000)
    tpr = norm.cdf(mu + norm.ppf(fpr))
    for epsilon in (0.0, 0.5, 2.0):
        gap = dp_tpr_bound(fpr, epsilon, float(gaussian_dp_delta(mu, epsilon))) - tpr
        assert -1e-12 < gap.min() < 1e-4


@pytest.mark.parametrize(
    ("fpr", "epsilon", "delta", "message"),
    [
        (1.1, 1.0, 0.0, "fpr: must"),
        (0.1, -1.0, 0.0, "epsilon=-1"),
        (0.1, 1.0, 2.0, "delta=2"),
    ],
)
def test_largest_tpr_refuses_wrong_arguments(fpr: float, epsilon: float, delta: float, message: str):  # fmt: skip
    with pytest.raises(ValueError, match=message):
        dp_tpr_bound(fpr, epsilon, delta)
