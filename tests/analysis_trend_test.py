"""Rank correlations and binned shares by hand."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
trend = importlib.import_module("trend")
INF, NAN = float("inf"), float("nan")


def test_the_interval_is_fishers_with_the_deviation_for_ranks() -> None:
    x_N, y_N = np.array([1, 2, 3, 4, 5.0]), np.array([2, 1, 4, 3, 5.0])
    found = trend.Trend.of(x_N, y_N)
    assert found.r == pytest.approx(1 - 6 * 4 / (5 * 24))  # by the squares of differences of ranks
    far = stats.norm.ppf(0.975) * math.sqrt((1 + 0.8**2 / 2) / 2)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.8) - far))
    assert found.high == pytest.approx(math.tanh(math.atanh(0.8) + far))
    assert found.sign == 0
    assert str(found) == "rank correlation 0.80, 95% interval −0.46 to 0.99"


def test_infinite_numbers_have_ranks_and_missing_ones_are_left_out() -> None:
    x_N = np.array([-INF, 1, 2, INF, NAN, 3])
    y_N = np.array([0, 1, 2, 5, -77, NAN])
    found = trend.Trend.of(x_N, y_N)
    assert (found.r, found.low, found.high, found.sign) == (1, 1, 1, 1)
    assert trend.Trend.of(-x_N, y_N).sign == -1


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), ([1, 2, 3, 4, 5], [INF] * 5), ([1, 2, 3], [1, 2, 3])],
)
def test_without_variation_there_is_no_trend(x: list[float], y: list[float]) -> None:
    assert trend.Trend.of(np.array(x, float), np.array(y, float)) is None


def test_noise_has_no_trend_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    signs = [trend.Trend.of(*rng.normal(size=(2, 50))).sign for _ in range(1000)]
    assert 25 <= np.count_nonzero(signs) <= 75


def test_bands_of_decisions_are_exact_and_of_shares_normal() -> None:
    x_N = np.arange(40.0)
    found = trend.Curve.of(x_N, (x_N >= 20).astype(float), 2)
    assert found.x_K.tolist() == [9.5, 29.5]
    assert (found.y_K.tolist(), found.count_K.tolist()) == ([0, 1], [20, 20])
    assert found.high_K[0] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert found.low_K[1] == pytest.approx(0.025 ** (1 / 20))
    share_N = np.tile([0.25, 0.75], 20)
    found = trend.Curve.of(x_N, share_N, 2)
    far = stats.norm.ppf(0.975) * share_N[:20].std(ddof=1) / math.sqrt(20)
    assert found.low_K == pytest.approx([0.5 - far] * 2)
    assert found.high_K == pytest.approx([0.5 + far] * 2)


def test_a_band_of_one_sample_is_not_known() -> None:
    found = trend.Curve.of(np.array([1.0, 2.0]), np.array([0.5, 0.25]), 2)
    assert np.isnan(found.low_K).all()
    assert len(trend.Curve.of(np.full(3, NAN), np.ones(3), 2).x_K) == 0
