import itertools

import numpy as np
import pytest

from lm_mia import stats


def test_two_factors_by_hand():
    # Means of rows 2 and 5, of columns 1.5, 3.5 and 5.5, of all 3.5. Mean squares: rows 3 x 4.5 / 1, columns
    # 2 x 8 / 2, and residuals (-0.5, -0.5, 1 and the negative) 3 / 2.
    components = stats.crossed_components([[-0.5, 1.5, 5.0], [3.5, 5.5, 6.0]], factors=2)
    assert list(components) == [(0,), (1,), (0, 1)]
    assert components[0, 1] == pytest.approx(1.5)
    assert components[0,] == pytest.approx((13.5 - 1.5) / 3)
    assert components[1,] == pytest.approx((8 - 1.5) / 2)


def slow_components(value_AxBxC: np.ndarray) -> dict[tuple[int, ...], float]:
    """Estimates covariances of pairs of cells that share the levels of some factors, and no others.

    Such a covariance is the sum of the components of all sets of shared factors.
    """
    cells = [*np.ndindex(value_AxBxC.shape)]
    products: dict[tuple[int, ...], list[float]] = {}
    for a, b in itertools.product(cells, cells):
        shared = tuple(axis for axis in range(3) if a[axis] == b[axis])
        products.setdefault(shared, []).append(float(value_AxBxC[a] * value_AxBxC[b]))
    mean = {shared: float(np.mean(values)) for shared, values in products.items()}
    components: dict[tuple[int, ...], float] = {}
    for shared in sorted(mean, key=len):
        smaller = [part for part in components if set(part) < set(shared)]
        components[shared] = mean[shared] - sum(components[part] for part in smaller)
    components.pop(())  # the squared mean
    return components


def test_three_factors_equal_covariances_of_pairs_of_cells():
    value_3x2x4 = np.random.default_rng(0).normal(3, 1, (3, 2, 4))
    expected = slow_components(value_3x2x4)
    actual = stats.crossed_components(value_3x2x4, 3)
    assert len(actual) == 7
    for factors, component in expected.items():
        assert actual[factors] == pytest.approx(component), factors


def test_one_factor_has_the_sample_variance():
    value_Ax2 = np.random.default_rng(1).normal(size=(6, 2))
    [component_2] = stats.crossed_components(value_Ax2, 1).values()
    assert component_2 == pytest.approx(value_Ax2.var(axis=0, ddof=1))


def test_components_of_losses_and_decisions_are_unbiased():
    rng, draws = np.random.default_rng(2), 4000
    effect = {(0,): 1.0, (1,): 0.5, (0, 1): 0.7}
    value_5x4xN = (
        rng.normal(0, effect[0,], (5, 1, draws))
        + rng.normal(0, effect[1,], (1, 4, draws))
        + rng.normal(0, effect[0, 1], (5, 4, draws))
    )
    components = stats.crossed_components(value_5x4xN, 2)
    for factors, sd in effect.items():
        estimate_N = components[factors]
        error = estimate_N.std() / np.sqrt(draws)
        assert abs(estimate_N.mean() - sd**2) < 4 * error, factors
    # The components of decisions add up to the variance of a decision, whatever its distribution.
    decisions = stats.crossed_components((value_5x4xN > 1).astype(float), 2)
    total_N = sum(decisions.values())
    share = float((value_5x4xN > 1).mean())
    assert np.mean(total_N) == pytest.approx(share * (1 - share), abs=0.01)


def test_missing_values_stay_in_their_sample():
    value_2x2x3 = np.random.default_rng(3).normal(size=(2, 2, 3))
    expected = stats.crossed_components(value_2x2x3, 2)
    value_2x2x3[0, 1, 2] = np.nan
    for factors, component_3 in stats.crossed_components(value_2x2x3, 2).items():
        assert np.array_equal(component_3[:2], expected[factors][:2])
        assert np.isnan(component_3[2])


@pytest.mark.parametrize(
    ("shape", "factors"), [((2, 2), 0), ((2, 2), 3), ((2, 1, 5), 2), ((1,), 1)]
)
def test_too_few_levels_or_axes(shape: tuple[int, ...], factors: int):
    with pytest.raises(ValueError, match="two levels"):
        stats.crossed_components(np.zeros(shape), factors)
