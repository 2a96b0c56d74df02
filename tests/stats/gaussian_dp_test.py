"""Gaussian differential privacy, compared with series of 60 digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from lm_mia.stats import gaussian_dp_delta, gaussian_dp_epsilon


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
