"""Losses of IN and OUT references that are difficult for moments, and exact moments to compare with."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lm_mia.stats.moments import Moments


def exact_moments(values: Any) -> tuple[int, float, float]:
    """Computes count, mean and sum of squared deviations exactly; the mean is 0 without values."""
    present = [Fraction(float(v)) for v in values if not math.isnan(v)]
    if not present:
        return 0, 0.0, 0.0
    mean = sum(present) / len(present)
    return len(present), float(mean), float(sum((v - mean) ** 2 for v in present))


def assert_same_moments(
    actual: Moments, index: Any, expected: tuple[int, float, float], rtol: float = 1e-9
):
    count, mean, squares = (a[index] for a in (actual.count, actual.mean, actual.squares))
    assert count == expected[0]
    assert np.isfinite([mean, squares]).all()
    if count:
        assert mean == pytest.approx(expected[1], rel=1e-12)
        assert squares == pytest.approx(expected[2], rel=rtol, abs=1e-300)
        assert (squares == 0) == (expected[2] == 0)


def random_losses(seed: int, M: int, N: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.normal(3, 0.5, (M, N)) - 0.4 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = np.nan
    return loss_MxN, member_MxN


def difficult_losses(kind: type) -> tuple[np.ndarray, np.ndarray]:
    """Returns tens of columns: small spread, also far from 0, one outlier, two outliers, all but one equal, all
    equal."""
    rng = np.random.default_rng(8)
    loss_MxN = 1e-3 * rng.normal(size=(9, 60))
    member_MxN = rng.random((9, 60)) < 0.5
    member_MxN[:3, :50] = [[True], [True], [False]]
    loss_MxN[:, 10:20] += 1e6
    loss_MxN[0, 20:25] += 1e6
    loss_MxN[0, 25:30] += 100.0
    loss_MxN[[1, 2], 30:40] += [[1e6], [-1e6]]
    loss_MxN[1:, 40:50] = 0.1
    loss_MxN[:, 50:] = 0.3
    loss_MxN[4] = np.nan
    return loss_MxN.astype(kind), member_MxN
