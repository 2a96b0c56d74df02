"""MACE Figure 6: mechanisms of known privacy budget and their bound."""

import numpy as np
import pytest

from analysis.experiments.mace import dp_bound
from lm_mia import stats


def test_exact_advantages_of_mechanisms():
    epsilon = np.array([0.0, 1.0, 2.0])
    laplace = dp_bound.exact_advantage("laplace", epsilon)
    response = dp_bound.exact_advantage("randomized_response", epsilon)
    np.testing.assert_allclose(laplace, [0, 0.393469, 0.632121], atol=1e-6)
    np.testing.assert_allclose(response, [0, 0.462117, 0.761594], atol=1e-6)
    np.testing.assert_allclose(response, stats.dp_advantage_bound(epsilon, 0.5))


@pytest.mark.parametrize("mechanism", ["laplace", "randomized_response"])
def test_simulated_advantages_are_the_exact_ones(mechanism: str):
    values = [dp_bound.simulate_advantage(mechanism, 1.0, seed) for seed in range(4)]
    exact = float(dp_bound.exact_advantage(mechanism, np.array(1.0)))
    assert np.mean(values) == pytest.approx(exact, abs=0.01)


def test_an_advantage_above_the_bound_is_found():
    estimate = dp_bound.Estimate(0.5, 0.01, 15, "16 simulations")
    assert dp_bound._claim_below_bound("M", 1.0, estimate).verdict == "contradicted"
    assert dp_bound._claim_below_bound("M", 1.2, estimate).verdict == "supported"
