"""Intervals and verdicts, by hand and by how often they hold."""

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
claims = importlib.import_module("claims")


def test_the_mean_has_students_interval():
    values = np.array([0.1, 0.2, 0.4, 0.3])
    found = claims.mean(values)
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert found.over == "4 targets"


def test_one_value_has_no_interval_and_nan_is_no_value():
    assert math.isnan(claims.mean(np.array([0.5, np.nan])).low)
    assert claims.mean(np.array([0.5, np.nan])).value == 0.5
    assert math.isnan(claims.mean(np.array([])).value)


def test_a_difference_is_paired_or_welchs():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 2, 5)
    va, vb = a.var(ddof=1) / 8, b.var(ddof=1) / 5
    far = stats.t.ppf(0.975, (va + vb) ** 2 / (va**2 / 7 + vb**2 / 4)) * math.sqrt(va + vb)
    gap = a.mean() - b.mean()
    found = claims.difference(np.append(a, np.nan), b, paired=False)
    assert (found.low, found.high) == pytest.approx((gap - far, gap + far))
    paired = stats.ttest_rel(a[:5], b).confidence_interval()
    found = claims.difference(a[:5], b, paired=True)
    assert (found.low, found.high) == pytest.approx((paired.low, paired.high))
    assert math.isnan(claims.difference(a, b[:1], paired=False).low)
    same = claims.difference(np.ones(3), np.zeros(2), paired=False)
    assert math.isnan(same.low)


def test_intervals_of_differences_cover_what_they_should():
    rng, misses = np.random.default_rng(1), 0
    for _ in range(2000):
        found = claims.difference(rng.normal(0.3, 1, 5), rng.normal(0, 2, 9), paired=False)
        misses += not found.low <= 0.3 <= found.high
    assert abs(misses / 2000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)


def of(low: float, high: float) -> Any:
    return claims.Estimate((low + high) / 2, low, high, "9 targets")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.2, "seen"),
        (0.0, 0.2, "not seen"),
        (-0.1, 0.2, "not seen"),
        (-0.2, -0.1, "not seen"),
        (math.nan, math.nan, "not tested"),
    ],
)
def test_above(low: float, high: float, verdict: str):
    found = claims.above("It grows.", "gain", of(low, high))
    assert (found.statement, found.verdict) == ("It grows.", verdict)
    assert ("the opposite" in found.said) == (high < 0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.1, 0.1, "seen"),
        (-0.2, 0.1, "not seen"),
        (0.3, 0.4, "not seen"),
        (0.05, 0.19, "seen"),
        (math.nan, math.nan, "not tested"),
    ],
)
def test_near(low: float, high: float, verdict: str):
    assert claims.near("", "", of(low, high), 0.2).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("seen", "seen"), "seen"),
        (("seen", "not seen"), "not seen"),
        (("not tested", "not seen"), "not seen"),
        (("seen", "not tested"), "not tested"),
        ((), "not tested"),
    ],
)
def test_every(verdicts: tuple[str, ...], whole: str):
    parts = [claims.Claim("", v, v) for v in verdicts]
    assert claims.every("All.", parts).verdict == whole


def test_ties_of_a_few_targets_are_no_interval():
    tied = claims.difference(np.array([0.013, 0.013]), np.zeros(2), paired=True)
    assert claims.above("", "x", tied).verdict == "not tested"
    equal = claims.difference(np.ones(2), np.ones(2), paired=True)
    assert claims.near("", "x", equal, 0.01).verdict == "seen"
