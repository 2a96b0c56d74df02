"""Estimates, p-values, verdicts and Holm's adjustment: exact values and coverage."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from verdicts import SUPPORTED_HERE

from analysis.claims import compare
from analysis.claims.compare import Claim, Estimate, VarianceTerm

INF = float("inf")
NAN = float("nan")


def estimate(low: float, high: float, not_covered: tuple[str, ...] = ()) -> Estimate:
    """Returns an estimate with 9 degrees of freedom and this 95% interval."""
    value, quantile = (low + high) / 2, float(scipy.stats.t.ppf(0.975, 9))
    return Estimate(value, (high - low) / 2 / quantile, 9, "9 targets", not_covered)


NONE = estimate(NAN, NAN)


def test_variances_are_added_with_satterthwaites_degrees_of_freedom():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 2, 5)
    result = compare.independent_difference(np.append(a, NAN), b, "models", ("the samples",))
    welch = scipy.stats.ttest_ind(a, b, equal_var=False)
    ends = welch.confidence_interval()
    assert (result.low, result.high) == pytest.approx((ends.low, ends.high))
    assert result.p_value() == pytest.approx(welch[1])
    assert (result.over, result.not_covered) == ("8 and 5 models", ("the samples",))
    assert not compare.independent_difference(a, b[:1], "models").has_interval
    assert math.isnan(compare.independent_difference(a, b[:0], "models").value)


def test_zero_variance_gives_an_interval_only_if_nothing_differs():
    tied = Estimate.from_variance(0.013, [VarianceTerm(0, 7)], "2 targets")
    assert compare.claim_greater("", "x", tied).verdict == "not tested"
    equal = Estimate.from_variance(0.0, [VarianceTerm(0, 7)], "2 targets")
    assert (equal.low, equal.high, equal.p_value()) == (0, 0, 1)
    assert compare.claim_equivalent("", "x", equal, 0.01).verdict == "supported"
    assert compare.claim_greater("", "x", equal).verdict == "undecided"


def test_p_value_is_that_of_a_two_sided_t_test():
    values = np.array([0.1, 0.2, 0.4, 0.3])
    result = Estimate(values.mean(), float(scipy.stats.sem(values)), 3, "4 targets")
    for level in (0, 0.1, 0.5):
        expected = scipy.stats.ttest_1samp(values, level)[1]
        assert result.p_value(level) == pytest.approx(expected)
    assert (-result).value == -result.value
    assert str(result) == f"{result.value:.3f}, 95% interval 0.045 to 0.455 over {result.over}"
    assert str(NONE) == "nan (no interval)"
    fixed = estimate(0.1, 0.3, ("the references", "the samples"))
    held = str(fixed).partition(f" over {fixed.over}")[2]
    assert [name in held for name in ("the references", "the samples", "fixed")] == [True] * 3


@pytest.mark.parametrize(
    ("low", "high", "verdict", "in_these_models"),
    [
        (0.1, 0.2, "supported", "supported for these models only"),
        (0.0, 0.2, "undecided", "undecided"),
        (-0.1, 0.2, "undecided", "undecided"),
        (-0.2, -0.1, "contradicted", "undecided"),
        (NAN, NAN, "not tested", "not tested"),
    ],
)
def test_claim_greater(low: float, high: float, verdict: str, in_these_models: str):
    result = compare.claim_greater("It grows.", "gain", estimate(low, high))
    assert (result.statement, result.verdict) == ("It grows.", verdict)
    assert ("lies below 0" in result.finding) == (high < 0)
    incomplete = compare.claim_greater("", "gain", estimate(low, high, ("the references",)))
    assert incomplete.verdict == in_these_models


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.1, 0.1, "supported"),
        (-0.2, 0.1, "undecided"),
        (0.3, 0.4, "contradicted"),
        (-0.4, -0.3, "contradicted"),
        (0.05, 0.19, "supported"),
        (0.05, 0.21, "undecided"),
        (-0.5, 0.5, "undecided"),
        (NAN, NAN, "not tested"),
    ],
)
def test_claim_equivalent(low: float, high: float, verdict: str):
    result = compare.claim_equivalent("", "", estimate(low, high), 0.2)
    assert result.verdict == verdict
    if math.isnan(low):
        return
    # The p-value is the alpha of the widest interval that decides.
    value, se = (low + high) / 2, result.estimate.standard_error if result.estimate else NAN
    distance = abs(abs(value) - 0.2)
    assert result.p_value == pytest.approx(2 * scipy.stats.t.sf(distance / se, 9))


def test_claim_different_is_the_opposite_of_equivalent():
    for low, high in ((2.5, 3.5), (-0.5, 0.5), (0.5, 1.5)):
        same = compare.claim_equivalent("", "", estimate(low, high), 1)
        other = compare.claim_different("", "", estimate(low, high), 1)
        opposites = {
            "supported": "contradicted",
            "contradicted": "supported",
            "undecided": "undecided",
        }
        assert other.verdict == opposites[same.verdict]
        assert other.p_value == same.p_value


def test_claim_below_names_every_number():
    gaps = {"with 2 references": estimate(0.1, 0.2), "with 4 references": estimate(-0.2, -0.1)}
    claim = compare.claim_below("", "AUC", 0.7, gaps)
    assert claim.verdict == "contradicted"
    assert claim.finding.startswith(f"0.7 minus AUC {next(iter(gaps))}: 0.150, 95% interval 0.100 ")
    del gaps["with 4 references"]
    assert compare.claim_below("", "AUC", 0.7, gaps).verdict == "supported"


def part(holds: bool, p_value: float, is_complete: bool = True) -> Claim:
    return Claim("", "x", holds, p_value, is_complete)


@pytest.mark.parametrize(
    ("parts", "verdict", "p_value"),
    [
        ([part(True, 0.01), part(True, 0.04)], "supported", 0.04),
        ([part(True, 0.01), part(True, 0.04, False)], SUPPORTED_HERE, 0.04),
        ([part(True, 0.01), part(True, 0.06)], "undecided", 0.06),
        ([part(True, 0.01), part(False, 0.02)], "contradicted", 0.04),
        ([part(True, 0.01), part(False, 0.03)], "undecided", 0.06),
        ([part(True, 0.01), part(False, 0.02, False)], "undecided", 0.04),
        ([part(True, NAN), part(False, 0.02)], "contradicted", 0.02),
        ([part(True, NAN), part(False, 0.02, False)], "not tested", NAN),
        ([part(True, 0.01), part(True, NAN)], "not tested", NAN),
        ([], "not tested", NAN),
    ],
)
def test_claim_all(parts: list[Claim], verdict: str, p_value: float):
    result = compare.claim_all("All.", parts)
    assert result.verdict == verdict
    assert result.p_value == pytest.approx(p_value, nan_ok=True)


@pytest.mark.parametrize(
    ("parts", "verdict", "p_value"),
    [
        ([part(True, 0.02), part(False, 0.01)], "supported", 0.04),
        ([part(True, 0.02, False), part(False, 0.9)], SUPPORTED_HERE, 0.04),
        ([part(True, 0.03), part(True, 0.04)], "undecided", 0.06),
        ([part(False, 0.01), part(False, 0.04)], "contradicted", 0.04),
        ([part(False, 0.01), part(False, 0.04, False)], "undecided", 0.04),
        ([part(False, 0.01), part(True, 0.9)], "undecided", 1.0),
        ([part(False, 0.01), part(False, NAN)], "not tested", NAN),
        ([part(True, 0.01), part(False, NAN)], "supported", 0.01),
        ([], "not tested", NAN),
    ],
)
def test_claim_any(parts: list[Claim], verdict: str, p_value: float):
    result = compare.claim_any("Any.", parts)
    assert (result.statement, result.verdict) == ("Any.", verdict)
    assert result.p_value == pytest.approx(p_value, nan_ok=True)


UP, DOWN, FLAT = estimate(0.1, 0.3), estimate(-0.3, -0.1), estimate(-0.1, 0.12)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([UP, DOWN], "supported"),
        ([DOWN, FLAT, UP], "supported"),
        ([UP, UP], "contradicted"),
        ([DOWN, DOWN], "contradicted"),
        ([UP, FLAT], "undecided"),
        ([DOWN, FLAT], "undecided"),
        ([UP], "not tested"),
        ([], "not tested"),
        ([UP, DOWN, NONE], "not tested"),
        ([UP, estimate(-0.3, -0.1, ("the references",))], SUPPORTED_HERE),
    ],
)
def test_claim_up_and_down(steps: list[Any], verdict: str):
    claim = compare.claim_up_and_down(
        "It rises and falls.", [(f"step {i}", s) for i, s in enumerate(steps)]
    )
    assert claim.verdict == verdict
    assert all(f"step {i}" in claim.finding for i in range(len(steps)))


def test_each_direction_is_corrected_for_the_number_of_steps():
    claim = compare.claim_up_and_down("", [("a", UP), ("b", DOWN), ("c", FLAT)])
    assert claim.p_value == pytest.approx(3 * UP.p_value())
    slightly_down = estimate(-0.3, -0.001)  # p = 0.046
    claim = compare.claim_up_and_down("", [("a", UP), ("b", slightly_down)])
    assert (claim.verdict, claim.p_value) == ("undecided", 2 * slightly_down.p_value())


def test_holms_adjustment_by_hand():
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which may not fall below the one before.
    assert compare.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert compare.holm([0.01, NAN, 0.6]) == pytest.approx([0.02, NAN, 0.6], nan_ok=True)
    assert compare.holm([0.7, 0.8]) == [1, 1]
    assert compare.holm([]) == []


@pytest.mark.montecarlo
def test_holms_adjustment_bounds_the_probability_of_any_error():
    """The probability is 0.05 if all of 20 hypotheses are true; 2,000 draws have a standard error of 0.005."""
    p_SxP = np.random.default_rng(0).random((2000, 20))
    errors = sum(min(compare.holm([*p_P])) < 0.05 for p_P in p_SxP)
    assert 0.03 < errors / 2000 < 0.07
    assert (p_SxP < 0.05).any(axis=1).mean() > 0.6
