"""Tests of the prediction for more references: exact curves, a case worked by hand, known distributions, edges."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr, ndtri

from lm_mia.stats import REFERENCE_SETS_SxQ, predict_more_references, unseen_share

COUNTS = 8, 16, 32
METRICS = "auc", "tpr"


def sets(quarter: float, half: float, all_references: float) -> list[float]:
    return [quarter] * 4 + [half] * 6 + [all_references]


def test_sets_are_quarters_complementary_halves_and_all():
    assert REFERENCE_SETS_SxQ.sum(axis=1).tolist() == [1] * 4 + [2] * 6 + [4]
    assert len({*map(tuple, REFERENCE_SETS_SxQ.tolist())}) == 11
    for i in range(6):
        assert not (REFERENCE_SETS_SxQ[4 + i] & REFERENCE_SETS_SxQ[9 - i]).any()


@pytest.mark.parametrize("counts", [COUNTS, (2, 4, 8), (2, 4, 10), (18, 36, 72)])
@pytest.mark.parametrize("metric", METRICS)
def test_exact_curves_are_recovered(metric, counts):
    # The TPR has no curvature; what it is with a quarter of the references is not used.
    a, b, c = 1.1, -1.7, 0.9 if metric == "auc" else 0.0
    count = np.array([*counts, 2 * counts[-1], 4 * counts[-1], 5 * counts[-1]], float)
    rate = ndtr(a + b / count + c / count**2)
    more = predict_more_references(sets(*rate[:3]), counts, count[3:], metric, targets=8)
    assert_allclose(more.value, rate[3:], rtol=1e-12)
    assert np.all((more.low < more.value) & (more.value < more.high))


def test_a_case_worked_by_hand():
    # y = 0.1 with 4 references, 0.4 with 8 and 0.6 with 16; complementary halves differ by 0.06, 0.00 and 0.03.
    y_S = [0.1] * 4 + [0.43, 0.40, 0.415, 0.385, 0.40, 0.37] + [0.6]
    more = predict_more_references(ndtr(y_S), (4, 8, 16), [32], "auc", targets=8)
    # Through the last two points, a + b / R adds half of the last growth: 0.1. The slopes in 1/R are
    # 0.3 / (1/8 - 1/4) = -2.4 and 0.2 / (1/16 - 1/8) = -3.2, the curvature is (-3.2 + 2.4) / (1/16 - 1/4) = 64/15, and
    # its share is 64/15 (1/32 - 1/16) (1/32 - 1/8) = 1/80.
    assert_allclose(ndtri(more.value), 0.6 + 0.1 + 0.0125)
    # w = (0.06^2 + 0 + 0.03^2) / 3 / 2 / 2 = 0.000375; half of it counts, and t = 3.1824.
    margin = 3.182446 * math.sqrt(0.0001875)
    # A quarter and 5/4 of the growth of 0.2 would be 0.65 and 0.85.
    assert_allclose(ndtri(more.low), 0.7125 - math.hypot(margin, 0.0625), rtol=1e-6)
    assert_allclose(ndtri(more.high), 0.7125 + math.hypot(margin, 0.1375), rtol=1e-6)

    more = predict_more_references(ndtr(y_S), (4, 8, 16), [32, 64], "tpr", targets=8)
    value_K = np.array([0.7, 0.75])
    assert_allclose(ndtri(more.value), value_K)
    # s is 1/2 and 3/4: w ((1 + s)^2 + M/R) + s^2 (2 w) / 6.
    margin_K = 3.182446 * np.sqrt(
        0.000375 * np.array([2.25 + 0.5 + 1 / 12, 3.0625 + 0.25 + 0.1875])
    )
    # At 4 M: 0.2 (1/4 + 1/16) = 0.0625 and 0.2 (5/4 + 25/16) = 0.5625.
    assert_allclose(ndtri(more.low), value_K - np.hypot(margin_K, [0.05, 0.0875]), rtol=1e-6)
    assert_allclose(ndtri(more.high), value_K + np.hypot(margin_K, [0.15, 0.4125]), rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_does_not_change_stays_as_it_is(metric):
    more = predict_more_references(sets(0.7, 0.7, 0.7), COUNTS, [64, 128], metric, targets=8)
    for limit in (more.value, more.low, more.high):
        assert_allclose(limit, 0.7)


@pytest.mark.parametrize("metric", METRICS)
def test_a_falling_metric_mirrors_a_rising_one(metric):
    rate_S = np.sort(np.random.default_rng(0).uniform(0.5, 0.7, 11))
    rising = predict_more_references(rate_S, COUNTS, [64, 128], metric, targets=8)
    falling = predict_more_references(1 - rate_S, COUNTS, [64, 128], metric, targets=8)
    assert np.all(rising.value > rate_S[-1])
    assert_allclose(falling.value, 1 - rising.value)
    assert_allclose(falling.low, 1 - rising.high)
    assert_allclose(falling.high, 1 - rising.low)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_are_predicted_independently_of_each_other(metric):
    rate_3xS = np.random.default_rng(1).uniform(0.2, 0.9, (3, 11))
    together = predict_more_references(rate_3xS, COUNTS, [64, 100, 128], metric, targets=8)
    for i, rate_S in enumerate(rate_3xS):
        alone = predict_more_references(rate_S, COUNTS, [64, 100, 128], metric, targets=8)
        assert_allclose(together.value[i], alone.value)
        assert_allclose(together.low[i], alone.low)
        assert_allclose(together.high[i], alone.high)


@pytest.mark.parametrize("bad", [np.nan, 0.0, 1.0])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("at", [0, 5, 10])
def test_there_is_no_prediction_from_values_that_have_no_probit(metric, bad, at):
    rate_S = np.full(11, 0.7)
    rate_S[at] = bad
    more = predict_more_references([rate_S, np.full(11, 0.7)], COUNTS, [64], metric, targets=8)
    assert np.isnan([more.value[0], more.low[0], more.high[0]]).all()
    assert_allclose(more.value[1], 0.7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": [0.5] * 10}, "must have 11 values"),
        ({"value": 0.5}, "must have 11 values"),
        ({"value": [0.5] * 10 + [1.5]}, r"in \[0, 1\]"),
        ({"references": (8, 17, 32)}, "in a quarter"),
        ({"references": (8, 16, 31)}, "in a quarter"),
        ({"references": (0, 0, 32)}, "in a quarter"),
        ({"predicted": [32]}, "the 32 references"),
        ({"predicted": [[64]]}, "the 32 references"),
        ({"targets": 0}, "1 or more"),
    ],
)
def test_invalid_arguments_are_refused(change, message):
    valid = {"value": [0.5] * 11, "references": COUNTS, "predicted": [64], "metric": "auc"}
    valid["targets"] = 8
    with pytest.raises(ValueError, match=message):
        predict_more_references(**valid | change)


def test_intervals_cover_additive_deviations_of_references():
    # Without growth, the interval is that of Student's distribution with 3 degrees of freedom, and it is exact.
    rng, draws, new = np.random.default_rng(2), 20_000, 4
    deviation_DxQ = rng.normal(
        0, 0.1, (draws, 4 * new)
    )  # of quarters: 4 at first, then 12 new ones
    first_DxQ = deviation_DxQ[:, :4]
    y_DxS = first_DxQ @ REFERENCE_SETS_SxQ.T / REFERENCE_SETS_SxQ.sum(axis=1)
    more = predict_more_references(ndtr(0.5 + y_DxS), COUNTS, [64, 128], "auc", targets=8)
    for k, quarters in enumerate((8, 16)):
        truth_D = ndtr(0.5 + deviation_DxQ[:, :quarters].mean(axis=1))
        covered_D = (more.low[:, k] <= truth_D) & (truth_D <= more.high[:, k])
        assert_allclose(covered_D.mean(), 0.95, atol=0.005)


def test_intervals_cover_if_the_values_of_all_sets_are_independent():
    rng, draws = np.random.default_rng(3), 20_000
    count_S = 8.0 * REFERENCE_SETS_SxQ.sum(axis=1)
    y_DxS = -1.6 + rng.normal(0, 0.3 / np.sqrt(count_S), (draws, 11))
    more = predict_more_references(ndtr(y_DxS), COUNTS, [64, 128], "tpr", targets=8)
    for k, count in enumerate((64, 128)):
        truth_D = ndtr(-1.6 + rng.normal(0, 0.3 / np.sqrt(count), draws))
        covered_D = (more.low[:, k] <= truth_D) & (truth_D <= more.high[:, k])
        # The range of curves adds to the width.
        assert 0.95 <= covered_D.mean() < 0.985


@pytest.mark.parametrize("targets", [1, 7])
def test_the_auc_of_few_targets_has_the_wider_interval_of_a_tpr(targets: int):
    y_S = [0.1] * 4 + [0.43, 0.40, 0.415, 0.385, 0.40, 0.37] + [0.6]
    many = predict_more_references(ndtr(y_S), (4, 8, 16), [32], "auc", targets=8)
    few = predict_more_references(ndtr(y_S), (4, 8, 16), [32], "auc", targets=targets)
    assert_allclose(few.value, many.value)
    # As in the case worked by hand, for s = 1/2.
    margin = 3.182446 * math.sqrt(0.000375 * (2.25 + 0.5 + 1 / 12))
    assert_allclose(ndtri(few.low), 0.7125 - math.hypot(margin, 0.0625), rtol=1e-6)
    assert_allclose(ndtri(few.high), 0.7125 + math.hypot(margin, 0.1375), rtol=1e-6)


def test_unseen_share_is_the_largest_that_no_reference_shows():
    for references in (1, 8, 32):
        assert_allclose((1 - unseen_share(references)) ** references, 0.05)
    assert [round(unseen_share(n), 2) for n in (8, 16, 32)] == [0.31, 0.17, 0.09]
    with pytest.raises(ValueError, match="1 or more"):
        unseen_share(0)
