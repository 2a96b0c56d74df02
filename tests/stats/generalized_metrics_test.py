import itertools

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom

from lm_mia import stats
from lm_mia.stats import METRICS, GeneralizedMetric

COUNTS = {"tp": 8, "fp": 6, "fn": 2, "tn": 24}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 32 / 40),
        ("balanced_accuracy", (8 / 10 + 24 / 30) / 2),
        ("ppv", 8 / 14),
        ("tpr", 8 / 10),
        ("tnr", 24 / 30),
        ("f1", 16 / (16 + 8)),
        ("jaccard", 8 / 16),
        ("weighted_accuracy", 64 / (64 + 8)),
    ],
)
def test_metrics_by_hand(name: str, expected: float):
    # The members are 1/4 of the samples, so weighting by a prior of 1/4 changes nothing.
    assert stats.metric_value(METRICS[name], **COUNTS) == pytest.approx(expected)
    assert stats.metric_value(METRICS[name], **COUNTS, prior=0.25) == pytest.approx(expected)


def test_metrics_weighted_by_a_prior():
    assert stats.metric_value(METRICS["accuracy"], **COUNTS, prior=0.1) == pytest.approx(0.8)
    assert stats.metric_value(METRICS["ppv"], **COUNTS, prior=0.1) == pytest.approx(
        0.1 * 0.8 / (0.1 * 0.8 + 0.9 * 0.2)
    )


def test_balanced_accuracy_is_the_mean_of_tpr_and_tnr_for_any_prior():
    # Also if the members are another share of the samples than the prior, or if no prior is given.
    counts = {"tp": 90, "fp": 10, "fn": 10, "tn": 890}
    mean = (90 / 100 + 890 / 900) / 2
    for prior in (None, 0.5, 0.1, 0.9):
        balanced = stats.metric_value(METRICS["balanced_accuracy"], **counts, prior=prior)
        assert balanced == pytest.approx(mean, rel=1e-12)
    low, high = stats.metric_interval(METRICS["balanced_accuracy"], **counts, prior=0.1)
    again = stats.metric_interval(METRICS["balanced_accuracy"], **counts, prior=0.5)
    assert (low, high) == again
    assert low < mean < high


def test_ratios_are_of_sums_and_not_averaged_over_samples():
    # Eq. 18 averages the metric over samples: for F1, 1 for each true positive, 0 for errors, and 0/0 otherwise.
    value = stats.metric_value(METRICS["f1"], tp=1, fp=1, fn=0, tn=2)
    assert value == pytest.approx(2 / 3)
    assert np.isnan(stats.metric_value(METRICS["ppv"], 0, 0, 5, 5))
    assert np.isnan(stats.metric_value(METRICS["accuracy"], 0, 5, 0, 5, prior=0.5))
    np.testing.assert_allclose(stats.metric_value(METRICS["tpr"], [1, 2], 1, [3, 0], 9), [0.25, 1])


@pytest.mark.parametrize("prior", [0.5, 0.1, 0.875])
def test_optimal_threshold_is_the_best_of_all(prior: float):
    rng = np.random.default_rng(0)
    density_2xK = rng.dirichlet(np.ones(30), 2)  # of members and of other samples, over 30 queries
    eta_K = prior * density_2xK[0] / (prior * density_2xK[0] + (1 - prior) * density_2xK[1])
    metrics = [METRICS[name] for name in ("accuracy", "balanced_accuracy", "tpr", "tnr")]
    metrics.append(GeneralizedMetric(a0=1, a11=3, a10=-1, a01=0.5, a00=1, b0=2, b11=1, b01=1))
    for metric in metrics:
        in_weight = 0.5 if metric.equal_classes else prior

        def value(
            threshold: float, metric: GeneralizedMetric = metric, in_weight: float = in_weight
        ) -> float:
            called_K = eta_K >= threshold
            tp, fp = (density_K[called_K].sum() for density_K in density_2xK)
            counts = np.array([tp, fp, 1 - tp, 1 - fp]) * ([in_weight, 1 - in_weight] * 2)
            a = metric.a0 + counts @ [metric.a11, metric.a10, metric.a01, metric.a00]
            return float(
                a / (metric.b0 + counts @ [metric.b11, metric.b10, metric.b01, metric.b00])
            )

        best = max(value(threshold) for threshold in [*eta_K, np.inf])
        assert value(stats.optimal_threshold(metric, prior)) == pytest.approx(best, rel=1e-12)


def test_optimal_thresholds_by_hand():
    expected = {"accuracy": 0.5, "balanced_accuracy": 0.3, "tpr": 0, "tnr": 1}
    for name, threshold in expected.items():
        assert stats.optimal_threshold(METRICS[name], 0.3) == pytest.approx(threshold)
    for name in ("ppv", "f1", "jaccard", "weighted_accuracy"):
        with pytest.raises(ValueError, match="on the decisions"):
            stats.optimal_threshold(METRICS[name], 0.3)
    # Without a positive slope, calling members is harmful where they are most likely.
    with pytest.raises(ValueError, match="must be positive"):
        stats.optimal_threshold(GeneralizedMetric(a10=1, a01=1, b0=1), 0.3)
    with pytest.raises(ValueError, match="denominator"):
        stats.optimal_threshold(GeneralizedMetric(a11=1, b0=1, b11=-2, b01=-2), 0.3)


def test_weighted_accuracy_has_the_threshold_of_accuracy():
    # It is 2 A / (1 + A), although its denominator depends on the decisions.
    rng = np.random.default_rng(1)
    eta_N = rng.random(400)
    member_N = rng.random(400) < eta_N
    accuracy, weighted = (
        stats.fitted_threshold(eta_N, member_N, METRICS[name], 0.5)
        for name in ("accuracy", "weighted_accuracy")
    )
    assert weighted.threshold == accuracy.threshold
    assert weighted.value == pytest.approx(2 * accuracy.value / (1 + accuracy.value))


@pytest.mark.parametrize("prior", [None, 0.5, 0.1])
@pytest.mark.parametrize("name", METRICS)
def test_fitted_threshold_is_the_best_of_all(name: str, prior: float | None):
    rng = np.random.default_rng(2)
    eta_N = np.append(rng.integers(0, 12, 60) / 12, np.nan)
    member_N = rng.random(61) < np.nan_to_num(eta_N)
    metric = METRICS[name]
    actual = stats.fitted_threshold(eta_N, member_N, metric, prior)
    values = {}
    for threshold in [*np.unique(eta_N[:-1]), np.inf]:
        called_N = eta_N[:-1] >= threshold
        m = member_N[:-1]
        tp, fp, fn = np.sum(called_N & m), np.sum(called_N & ~m), np.sum(~called_N & m)
        tn = np.sum(~called_N & ~m)
        values[threshold] = stats.metric_value(metric, tp, fp, fn, tn, prior), [tp, fp, fn]
    best = np.nanmax([value for value, _ in values.values()])
    expected = min(t for t, (value, _) in values.items() if np.isclose(value, best, rtol=1e-12))
    assert actual.threshold == expected
    assert actual.value == pytest.approx(best)
    assert [actual.tp, actual.fp, actual.fn] == values[expected][1]
    assert actual.left_out == 1


def test_fitted_threshold_of_ppv_calls_few():
    eta_N = np.arange(10) / 10
    member_N = np.array([0, 0, 1, 0, 1, 0, 1, 1, 0, 1], dtype=bool)
    best = stats.fitted_threshold(eta_N, member_N, METRICS["ppv"])
    assert (best.threshold, best.value, best.tp, best.fp) == (0.9, 1.0, 1, 0)
    tnr = stats.fitted_threshold(eta_N, member_N, METRICS["tnr"])
    assert (tnr.tp, tnr.fp, tnr.value) == (1, 0, 1.0)
    # The highest eta belongs to a non-member, so it is best to call no sample a member.
    nobody = stats.fitted_threshold([0.1, 0.2], [True, False], METRICS["tnr"])
    assert nobody.threshold == np.inf


@pytest.mark.parametrize(
    "name", ["accuracy", "balanced_accuracy", "ppv", "f1", "weighted_accuracy"]
)
@pytest.mark.parametrize("prior", [0.5, 0.1])
def test_interval_covers_the_metric(name: str, prior: float):
    # Exact: sums over all counts of two binomial distributions.
    n, tpr, tnr = 40, 0.7, 0.6
    count = np.arange(n + 1)
    tp, tn = (a.ravel() for a in np.meshgrid(count, count, indexing="ij"))
    weight = np.outer(binom.pmf(count, n, tpr), binom.pmf(count, n, tnr)).ravel()
    kept = weight > 1e-12  # without counts for which PPV can be 0/0
    metric = METRICS[name]
    low, high = stats.metric_interval(metric, tp[kept], n - tn[kept], n - tp[kept], tn[kept], prior)
    truth = stats.metric_value(metric, 7, 4, 3, 6, prior)
    assert (weight[kept] * ((low <= truth) & (truth <= high))).sum() >= 0.95


def test_interval_has_its_extremes_at_the_corners():
    metric, prior = METRICS["f1"], 0.2
    low, high = stats.metric_interval(metric, **COUNTS, prior=prior)
    ends = (
        stats.clopper_pearson(8, 10, confidence=0.975),
        stats.clopper_pearson(24, 30, confidence=0.975),
    )
    tpr, tnr = np.meshgrid(*(np.linspace(*end, 201) for end in ends))
    tp, fp = prior * tpr, (1 - prior) * (1 - tnr)
    inside = 2 * tp / (2 * tp + fp + prior * (1 - tpr))
    np.testing.assert_allclose([low, high], [inside.min(), inside.max()], rtol=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy"])
@pytest.mark.parametrize("prior", [0.5, 0.1])
def test_pointwise_interval_against_a_grid(name: str, prior: float):
    # Lemma 9 as it is printed, for metrics with a constant denominator of 1.
    m, is_balanced = METRICS[name], name == "balanced_accuracy"
    a11, a00 = (1 / (2 * prior), 1 / (2 * (1 - prior))) if is_balanced else (1, 1)
    rectangles = [(0.1, 0.4, 0.2, 0.3), (0.3, 0.5, 0.01, 0.1), (0.01, 0.05, 0.3, 0.6)]
    for threshold, (p_low, p_high, q_low, q_high) in itertools.product(
        (0.5, prior, 0.3), rectangles
    ):
        x, y = np.meshgrid(np.linspace(p_low, p_high, 1000), np.linspace(q_low, q_high, 1000))
        called = x >= (1 - prior) * threshold / ((1 - threshold) * prior) * y
        value = np.where(called, a11 * x * prior, a00 * y * (1 - prior))
        value /= x * prior + y * (1 - prior)
        low, high = stats.pointwise_metric_interval(
            m, [np.log(p_low / q_high)], [np.log(p_high / q_low)], threshold, prior
        )
        # The grid misses the jump by at most one step.
        np.testing.assert_allclose([low[0], high[0]], [value.min(), value.max()], atol=5e-3 * a11)
        assert low[0] <= value.min() + 1e-12
        assert high[0] >= value.max() - 1e-12


def test_mean_of_pointwise_contributions_is_the_metric():
    # Also if the denominator is not the same for both classes, where Lemma 9 as printed averages ratios: the TPR.
    prior = 0.3
    p_K, q_K = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    log_ratio_K, share_K = np.log(p_K / q_K), prior * p_K + (1 - prior) * q_K
    called_K = expit(log_ratio_K + logit(prior)) >= 0.3
    for name, expected in (
        ("tpr", p_K[called_K].sum()),
        ("tnr", q_K[~called_K].sum()),
        ("accuracy", prior * p_K[called_K].sum() + (1 - prior) * q_K[~called_K].sum()),
    ):
        low_K, high_K = stats.pointwise_metric_interval(
            METRICS[name], log_ratio_K, log_ratio_K, 0.3, prior
        )
        np.testing.assert_array_equal(low_K, high_K)
        assert share_K @ low_K == pytest.approx(expected)


def test_pointwise_interval_of_infinite_and_missing_ratios():
    low_N, high_N = stats.pointwise_metric_interval(
        METRICS["accuracy"], [-np.inf, np.nan, 2.0], [np.inf, 1.0, np.inf], 0.5, 0.5
    )
    np.testing.assert_allclose(low_N, [0.5, np.nan, expit(2.0)])
    np.testing.assert_allclose(high_N, [1, np.nan, 1])


def test_invalid_arguments_raise():
    accuracy = METRICS["accuracy"]
    for prior in (0.0, 1.0):
        with pytest.raises(ValueError, match="prior="):
            stats.metric_value(accuracy, 1, 1, 1, 1, prior)
        with pytest.raises(ValueError, match="prior="):
            stats.metric_interval(accuracy, 1, 1, 1, 1, prior)
        with pytest.raises(ValueError, match="prior="):
            stats.pointwise_metric_interval(accuracy, [0.0], [1.0], 0.5, prior)
    with pytest.raises(ValueError, match="confidence"):
        stats.metric_interval(accuracy, 1, 1, 1, 1, 0.5, 1.5)
    with pytest.raises(ValueError, match="whole numbers"):
        stats.metric_value(accuracy, 0.5, 1, 1, 1)
    with pytest.raises(ValueError, match="denominator can be 0"):
        stats.metric_interval(METRICS["ppv"], 0, 0, 9, 9, 0.5)
    with pytest.raises(ValueError, match="low ends"):
        stats.pointwise_metric_interval(accuracy, [1.0], [0.0], 0.5, 0.5)
    with pytest.raises(ValueError, match="on the decisions"):
        stats.pointwise_metric_interval(METRICS["f1"], [0.0], [1.0], 0.5, 0.5)
    with pytest.raises(ValueError, match="a non-member"):
        stats.fitted_threshold([0.1, np.nan], [True, False], accuracy)
    with pytest.raises(ValueError, match="match"):
        stats.fitted_threshold([0.1], [True, False], accuracy)
    with pytest.raises(ValueError, match="0/0 at every"):
        stats.fitted_threshold([0.1, 0.2], [True, False], GeneralizedMetric())


@pytest.mark.filterwarnings("error")
def test_pointwise_interval_at_infinite_thresholds():
    accuracy = METRICS["accuracy"]
    low, high = np.array([0.0]), np.array([np.log(3)])  # eta from 1/2 to 3/4
    for threshold, ends in ((-np.inf, (0.5, 0.75)), (np.inf, (0.25, 0.5))):
        actual = stats.pointwise_metric_interval(accuracy, low, high, threshold, 0.5)
        np.testing.assert_allclose(np.ravel(actual), ends)
    with pytest.raises(ValueError, match="threshold=nan"):
        stats.pointwise_metric_interval(accuracy, low, high, np.nan, 0.5)


@pytest.mark.filterwarnings("error")
def test_metric_of_billions_of_samples():
    many, few = 3 * 2**40, 2**40
    value = stats.metric_value(METRICS["accuracy"], many, few, few, many, 0.5)
    assert value == 0.75
