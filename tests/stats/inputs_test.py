"""Unexpected inputs of statistics: they give a clear ValueError or the right answer, never a silently wrong result."""

import decimal
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stats_calls
from stats_calls import (
    GROUP_N,
    MEMBER_CALLS,
    MEMBER_N,
    SYSTEMATIC_CALLS,
    VALUE_N,
    MEMBER_MxN,
    as_list,
)

from lm_mia import stats

CASES = pytest.mark.parametrize(
    ("function", "per_model"),
    [c[1:] for c in SYSTEMATIC_CALLS],
    ids=[c[0] for c in SYSTEMATIC_CALLS],
)


def arrange(values: Any, per_model: bool) -> Any:
    """Returns one value per sample, or the same for each of eight models."""
    return [values] * 8 if per_model else values


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_random_inputs_reach_every_public_function():
    """tests/soak/fuzz.py uses these calls: each accepts at least one input, and no function is left out."""
    samples = np.array([[1, 2, 3, 4], [0, 0.1, 0.5, 1], [0.6, 0.61, 0.62, 0.63], [-4, -3, -2, -1]])
    samples_8x4 = np.concatenate([samples, samples])
    sample_arrays = [*samples, MEMBER_N, MEMBER_N * 1, 100 * samples[0]]
    model_arrays = [stats_calls.LOSS_MxN, samples_8x4, MEMBER_MxN, MEMBER_MxN * 1, MEMBER_MxN * 0.5]
    calls = stats_calls.array_calls()
    refused = {
        name
        for name, (function, is_per_model) in calls.items()
        if all(
            isinstance(outcome(function, array), str)
            for array in (model_arrays if is_per_model else sample_arrays)
        )
    }
    assert refused == set()
    for function, arguments in stats_calls.NUMBER_CALLS.values():
        function(**arguments)
    called = {name.split()[0] for name in [*calls, *stats_calls.NUMBER_CALLS]}
    assert called == stats_calls.public_functions()


@CASES
@pytest.mark.parametrize(
    "values",
    [
        [1 + 2j, 1, 1, 1],
        [None, 1.0, 1.0, 1.0],
        [decimal.Decimal(1)] * 4,
        ["1", "2", "3", "4"],
        [np.datetime64("2026-01-01")] * 4,
    ],
    ids=["complex", "None", "Decimal", "text", "dates"],
)
def test_values_that_are_not_real_numbers_are_refused(
    function: Callable[..., Any], per_model: bool, values: Any
):
    with pytest.raises(ValueError, match=r"real numbers, not (complex|object|<U|datetime)"):
        function(arrange(values, per_model))


@CASES
def test_masked_values_are_refused(function: Callable[..., Any], per_model: bool):
    values = np.broadcast_to(np.array(VALUE_N), (8, 4)) if per_model else np.array(VALUE_N)
    with pytest.raises(ValueError, match="masked"):
        function(np.ma.masked_equal(values, 2.0))


@pytest.mark.parametrize("function", MEMBER_CALLS.values(), ids=[*MEMBER_CALLS])
def test_members_must_be_booleans_without_a_mask(function: Callable[..., Any]):
    function(MEMBER_N)
    for wrong in (MEMBER_N.astype(int), MEMBER_N.astype(object)):
        with pytest.raises(ValueError, match=r"members .*booleans, not (int64|object)"):
            function(wrong)
    if function is not MEMBER_CALLS["lira"]:  # which is given a list of arrays here
        with pytest.raises(ValueError, match=r"members: .*masked"):
            function(np.ma.masked_array(MEMBER_N, MEMBER_N))


def test_masked_documents_are_refused():
    masked = np.ma.masked_array(range(4), MEMBER_N)
    with pytest.raises(ValueError, match=r"cluster_N: .*masked"):
        stats.bootstrap_intervals(VALUE_N, MEMBER_N, cluster_N=masked)
    with pytest.raises(ValueError, match=r"documents: .*masked"):
        stats.count_vote_histograms([VALUE_N] * 2, np.ones((2, 1)), masked)


def test_groups_and_focus_of_halves():
    score_2xN, member_N = np.ones((2, 4)), MEMBER_N
    for groups in ([0, 1, 2], [0, 1, 2, 8], [0, 1, 2, -1], [0, 1, 2, 0.5], 0):
        with pytest.raises(ValueError, match="groups"):
            stats.rates_of_halves(score_2xN, member_N, groups, 0.5)
    for focus in (1, -1, 0.5):
        with pytest.raises(ValueError, match=r"focus=.*: .*\b1 rates"):
            stats.decision_metrics(score_2xN, member_N, GROUP_N, 0.5, focus)  # pyright: ignore
    with pytest.raises(ValueError, match="share their members"):
        stats.decision_metrics(score_2xN, [member_N] * 2, GROUP_N, 0.5, 0)


def test_rates_of_curves_outside_0_to_1_are_refused():
    for bad in (-0.1, 1.1, np.inf):
        with pytest.raises(ValueError, match=r"true positive rates .*\[0, 1\]"):
            stats.partial_auc([0, bad], [0, 1], 0, 1)
        with pytest.raises(ValueError, match=r"false positive rates .*\[0, 1\]"):
            stats.partial_auc([0, 0, 1], sorted([0, bad, 1]), 0, 1)


def outcome(function: Callable[[Any], Any], values: Any) -> list[Any] | str:
    """Returns the result as a list of arrays, or the message of a ValueError; warnings are raised as errors."""
    try:
        return as_list(function(values))
    except ValueError as error:
        return str(error)


@CASES
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "uint32", "int64", "float16", "float32", ">f8", "longdouble"]
)
def test_small_whole_numbers_of_any_type_give_the_same_result(
    function: Callable[..., Any], per_model: bool, dtype: str
):
    values = np.array([[1, 2, 3, 4], [2, 4, 1, 3]] * 4) if per_model else np.array([1, 2, 3, 4])
    expected = outcome(function, values.astype(np.float64))
    actual = outcome(function, values.astype(dtype))
    assert isinstance(actual, str) == isinstance(expected, str), actual
    if isinstance(actual, str) or isinstance(expected, str):  # such as a log-probability of 2
        assert "real numbers" not in actual
        return
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3)


@CASES
@pytest.mark.parametrize("huge", [1e300, -1e300, 1e308])
def test_huge_numbers_do_not_overflow_silently(
    function: Callable[..., Any], per_model: bool, huge: float
):
    result = outcome(function, arrange([huge, 1.0, 2.0, huge / 2], per_model))
    if isinstance(result, str):
        assert re.search(r"must|too large|match", result)
    else:
        # A NaN would come from a difference of two infinities.
        assert not any(np.isnan(np.asarray(value, float)).any() for value in result[:1])


@CASES
def test_empty_inputs(function: Callable[..., Any], per_model: bool):
    result = outcome(function, np.empty((8, 0)) if per_model else np.empty(0))
    assert not isinstance(result, str) or re.search(r"must|match|is empty", result)


def test_statistics_of_no_sample_or_no_model():
    nothing = np.empty((0, 3))
    members = np.empty((0, 3), bool)
    assert np.isnan(stats.lira(VALUE_N[:3], nothing, members)).all()
    assert np.isnan(stats.lira(VALUE_N[:3], nothing, members, variance="pooled")).all()
    assert np.isnan(stats.rmia_simple(VALUE_N[:3], nothing)).all()
    assert np.isnan(stats.reference_calibrated_loss(VALUE_N[:3], nothing)).all()
    assert stats.lira_leave_one_out(nothing, members).shape == (0, 3)
    assert stats.lira(np.empty((2, 0)), np.empty((5, 0)), np.empty((5, 0), bool)).shape == (2, 0)
    assert stats.lira_leave_one_out(np.empty((5, 0)), np.empty((5, 0), bool)).shape == (5, 0)
    assert stats.min_k([], []).shape == (0,)
    assert stats.auc(np.empty((2, 0)), np.empty(0, bool)).auc_T.shape == (2,)
    assert math.isnan(stats.extraction_rate([], 1, 0.5).share)
    assert stats.token_log_probs(np.empty((0, 5)), [], stats.SamplingScheme()).shape == (0,)
    low, high = stats.clopper_pearson([], [])
    assert low.shape == high.shape == (0,)


def test_min_k_on_integers_and_invalid_counts():
    values = [-5, -4, -3, -2, -1, -9, -8, -7, -6, -10]
    for dtype in (np.int8, np.int64, np.float16):
        actual = stats.min_k(np.array(values, dtype), np.array([5, 5], np.uint8))
        np.testing.assert_array_equal(actual, [-5, -10])
    # The lowest 2 of 10 tokens of type uint8, and 200 + 100, which exceeds the type.
    np.testing.assert_array_equal(stats.min_k(np.array([100, 200] * 5, np.uint8), [10]), [100])
    np.testing.assert_array_equal(stats.min_k(np.full(10, 200, np.uint8), [10]), [200])
    for counts in ([5, 4], [5, 6], [10, 0], [-1, 11], [5.5, 4.5], [np.nan, 5], [[5, 5]]):
        with pytest.raises(ValueError, match="token counts"):
            stats.min_k(values, counts)
    # NaN is sorted last, so that it is not among the averaged tokens; nevertheless the score is unknown.
    np.testing.assert_array_equal(stats.min_k([-1, np.nan, -3, -4, -5, -1], [5, 1]), [np.nan, -1])


@pytest.mark.parametrize("tokens", [[-1], [3], [2**40], [0.5], [np.nan], [0, 1], 0])
def test_token_numbers_out_of_range_are_refused(tokens: Any):
    for scheme in (stats.SamplingScheme(), stats.SamplingScheme(temperature=0)):
        with pytest.raises(ValueError, match="token numbers"):
            stats.token_log_probs([[1.0, 2.0, 3.0]], tokens, scheme)


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": t} for t in (-1.0, -1e-9, np.inf, np.nan)),
        *({"top_k": k} for k in (-1, 1.5, np.inf, np.nan)),
        *({"top_p": p} for p in (-0.1, 1.1, np.nan)),
    ],
    ids=str,
)
def test_sampling_schemes_out_of_range_are_refused(settings: Any):
    [name] = settings
    with pytest.raises(ValueError, match=f"{name}=.*: must be"):
        stats.SamplingScheme(**settings)


def test_top_p_of_0_keeps_the_most_likely_token():
    scheme, logits_1xV = stats.SamplingScheme(top_p=0), [[1.0, 3.0, 2.0, 3.0]]
    log_p = [stats.token_log_probs(logits_1xV, [v], scheme)[0] for v in range(4)]
    assert log_p == [-np.inf, 0, -np.inf, -np.inf]


def test_logits_without_a_finite_maximum_are_refused():
    scheme = stats.SamplingScheme(temperature=0.5)
    for bad in ([np.nan, 1], [np.inf, 1], [-np.inf, -np.inf], [1e308, 1]):
        with pytest.raises(ValueError, match="largest logit"):
            stats.token_log_probs([bad], [0], scheme)
    assert stats.token_log_probs([[-np.inf, 1.0]], [0], scheme)[0] == -np.inf
    assert stats.token_log_probs([[-1e308, 1.0]], [1], scheme)[0] == 0


def test_nan_log_probabilities_are_left_out_and_counted():
    log_p = [0.0, -50.0, np.nan, np.nan]
    assert stats.extraction_rate(log_p, 1, 0.5) == stats.ExtractionRate(0.5, 2)
    assert stats.extraction_rate(log_p[:2], 1, 0.5) == stats.ExtractionRate(0.5, 0)
    wrong: list[tuple[Any, float]] = [(-1, 0.5), (np.nan, 0.5), (1, 0.0), (1, 1.5), (1, np.nan)]
    for queries, probability in wrong:
        with pytest.raises(ValueError, match=r"queries|probability"):
            stats.extraction_rate(log_p, queries, probability)
    np.testing.assert_array_equal(
        stats.extraction_probability([0.0, -1e-320, -np.inf, np.nan], 0), [0, 0, 0, 0]
    )
    np.testing.assert_array_equal(stats.extraction_probability([0.0, -np.inf], 1e308), [1, 0])


@pytest.mark.parametrize(
    ("hits", "n"), [(0.5, 2), (1, 2.5), (1, np.nan), (np.inf, np.inf), (-1, 2), (3, 2)]
)
def test_fractional_counts_have_no_clopper_pearson_interval(hits: float, n: float):
    with pytest.raises(ValueError, match=r"whole numbers|0 <= successes <= trials"):
        stats.clopper_pearson(hits, n)


def test_unsigned_losses_are_not_negated_within_their_type():
    loss_TxN, reference_MxN = np.array([[3, 1]], np.uint8), np.array([[2, 2], [1, 4]], np.uint8)
    np.testing.assert_array_equal(stats.loss_attack(loss_TxN), [[-3, -1]])
    np.testing.assert_array_equal(
        stats.reference_calibrated_loss(loss_TxN, reference_MxN), [[-1.5, 2]]
    )
    # As signals, which are negated within RMIA.
    np.testing.assert_allclose(
        stats.rmia_simple(loss_TxN, reference_MxN),
        stats.rmia_simple(loss_TxN.astype(float), reference_MxN.astype(float)),
    )


def test_losses_that_would_overflow_are_refused():
    loss_MxN = np.random.default_rng(0).normal(size=(8, 4))
    for bad in (1e300, -1e300, np.inf, 1e29):
        wrong_MxN = loss_MxN.copy()
        wrong_MxN[3, 1] = bad
        for call in (
            lambda x: stats.lira(x[0], x, MEMBER_MxN),
            lambda x: stats.lira_leave_one_out(x, MEMBER_MxN),
            lambda x: stats.rmia_simple(x[:1], x),
            lambda x: stats.reference_calibrated_loss(x[:1], x),
            lambda x: stats.lowercase_loss_difference(x[:1], x[3:4]),
        ):
            with pytest.raises(ValueError, match="must be finite"):
                call(wrong_MxN)
    # The largest allowed losses, and references that are almost equal: the score is infinite, without a warning.
    near = 1 + 1e-12 * np.arange(8)[:, None]
    for sign in (1, -1):
        score = stats.lira([sign * 9e28], near, MEMBER_MxN[:, 1:2])
        assert abs(score[0, 0]) > 1e60


def test_sums_that_overflow_are_refused():
    with pytest.raises(ValueError, match="too large"):
        stats.equal_count_bins([1.0, 2.0, 3.0], [1e308, 1e308, 1e308], 1)


def test_counts_of_true_positives_must_be_whole_numbers():
    tp_RxFx5 = np.ones((2, 1, 5))
    assert stats.tpr_contributions(tp_RxFx5, [10]).tpr.mean_F == [0.5]
    for bad in (tp_RxFx5 * 0.5, tp_RxFx5 * np.nan, -tp_RxFx5):
        with pytest.raises(ValueError, match="whole numbers"):
            stats.tpr_contributions(bad, [10])


def test_shapes_and_infinite_values_of_interference_and_jackknife():
    for call in (stats.placements, stats.independent_sd):
        with pytest.raises(ValueError, match="value per sample"):
            call([1.0], MEMBER_N)
    with pytest.raises(ValueError, match="value per sample"):
        stats.effect_variance(VALUE_N, [1.0])
    with pytest.raises(ValueError, match="must be finite"):
        stats.effect_variance(VALUE_N, [2.0, 1e308, 3.0, 2.0])
    with pytest.raises(ValueError, match="one dimension"):
        stats.equal_count_edges(np.ones((2, 2, 2)), 2)
    with pytest.raises(ValueError, match="must be finite"):
        stats.shared_reference_variance([[np.inf, 1.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.plug_in_advantage([1e308, 1e308]), "from -1 to 1"),
        (lambda: stats.aggregate_by_group([1e308] * 4, GROUP_N, "mean"), "too large"),
        (lambda: stats.crossed_components([[np.inf, 1], [2, 3]], 2), "must be finite"),
        (lambda: stats.equal_count_edges(["1", "2"], 2), "real numbers"),
        (lambda: stats.explained_within_samples([[np.inf]] * 3, [[0]] * 3, 1), "must be finite"),
        (lambda: stats.jackknife_margin(np.ones((0, 3, 1))), "three axes"),
        (lambda: stats.jackknife_variance(np.ones((1, 4, 1))), "pairs of halves"),
        (lambda: stats.jackknife_variance(np.full((1, 3, 1), 1e200)), "must be finite"),
        (lambda: stats.potential_outcomes(_blocks, [1e308] * 4, 0.5), "below 1e"),
        (lambda: stats.potential_outcomes(_blocks, [5e-324] * 4, 0.5), "of the weights"),
        (lambda: stats.unadjusted_estimate([1e308] * 4, MEMBER_N, 0.5), "magnitude of finite"),
        (
            lambda: stats.g_formula_estimate(
                VALUE_N, MEMBER_N, stats.OutcomeModel(np.full(4, 1e308), np.ones(1)), 0.5
            ),
            "must be finite",
        ),
        (
            lambda: stats.dp_sgd_residuals(
                stats_calls.REGRESSION_DATA, stats.DpSgd(epochs=1, batch_size=0)
            ),
            "batch_size=0: .*50",
        ),
        (
            lambda: stats.dp_sgd_residuals(
                stats_calls.REGRESSION_DATA,
                stats.DpSgd(epochs=1, batch_size=5, learning_rate=1e308),
            ),
            "models diverged",
        ),
        (lambda: stats.ridge_residuals(stats_calls.REGRESSION_DATA, np.inf), "and finite"),
    ],
)
def test_numbers_whose_results_would_overflow_are_refused(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call()


def _blocks() -> list[tuple[np.ndarray, np.ndarray]]:
    return [(stats_calls.LOSS_MxN, MEMBER_MxN)]


def test_extreme_numbers_have_results_without_warnings():
    assert np.isnan(
        stats.aggregate_by_group([np.inf, -np.inf, 1, 1], GROUP_N, "mean").score_G
    ).all()
    assert np.isnan(stats.jackknife_margin(np.array([1, np.inf, 2])[:, None, None]))
    assert stats.dp_sgd_mu(0.1, 5e-324, 100) == np.inf
    estimate = stats.ipw_estimate(VALUE_N, MEMBER_N, [0, -1e308, 0, 1e308], 0.5)
    assert estimate.effective_nonmembers == 1
    ridge = stats.ridge_residuals(stats_calls.REGRESSION_DATA, 5e-324)
    assert np.isfinite(ridge.held_out_N).all()


@pytest.mark.parametrize(
    "statistic",
    [
        stats.lira,
        stats.shrunk_lira,
        stats.stacked_lira,
        lambda target, *references: stats.standardized_scores(
            target, stats.fit_gaussians(*references)
        ),
        lambda target, *references: stats.lira_leave_one_out(*references),
    ],
)
def test_losses_of_a_tiny_scale_are_refused(statistic: Callable[..., Any]):
    loss_MxN, target_N = np.abs(stats_calls.LOSS_MxN), np.array(VALUE_N)
    for scale in (1e-160, 1e-101, 5e-324):
        with pytest.raises(ValueError, match=r"losses.*\b1e-100\b"):
            statistic(scale * target_N, scale * loss_MxN, MEMBER_MxN)
    # LiRA does not depend on the unit, and no loss is too small if others are not.
    np.testing.assert_allclose(
        statistic(1e-90 * target_N, 1e-90 * loss_MxN, MEMBER_MxN),
        statistic(target_N, loss_MxN, MEMBER_MxN),
        rtol=1e-6,
    )
    for rare in (0.0, 1e-160):
        some = np.where(np.arange(4) == 2, rare, loss_MxN)
        assert np.isfinite(statistic(target_N, some, MEMBER_MxN)).any()
    statistic(0 * target_N, 0 * loss_MxN, MEMBER_MxN)


@CASES
def test_bfloat16_is_refused_with_the_conversion(function: Callable[..., Any], per_model: bool):
    values = np.asarray(arrange(VALUE_N, per_model)).astype(ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match=r"bfloat16; .*astype\(np.float32\)"):
        function(values)


def test_numbers_of_small_types_do_not_overflow():
    hundred: Any = np.int8(100)
    counts: list[Any] = [hundred, np.int8(20), np.int8(18)]
    assert stats.silverman_bandwidth(hundred, hundred) == stats.silverman_bandwidth(100, 100)
    expected = stats.one_run_epsilon(100, 20, 18, delta=1e-5)
    assert stats.one_run_epsilon(*counts, delta=1e-5) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.one_run_epsilon(100.5, 10.2, 9.7),  # pyright: ignore
        lambda: stats.one_run_mu(100, 10, 9.7),  # pyright: ignore
        lambda: stats.one_run_p_value(100, 10.2, 9, 1.0, 0.0),  # pyright: ignore
        lambda: stats.gaussian_rejected(1.0, 100.5, 10, 9, 0.05),  # pyright: ignore
        lambda: stats.noise_grid_epsilon(100.5, 10, 9, delta=0.1),  # pyright: ignore
        lambda: stats.capped_epsilon(5.0, 10.5),  # pyright: ignore
        lambda: stats.dp_sgd_mu(0.1, 3.0, 100.5),  # pyright: ignore
        lambda: stats.hoeffding_radius(10.5, 20, 1.0, 0.95),  # pyright: ignore
        lambda: stats.silverman_bandwidth(100, 2.5),  # pyright: ignore
        lambda: stats.extraction_probability(-1.0, 2.5),
        lambda: stats.extraction_rate([-1.0], 2.5, 0.5),  # pyright: ignore
    ],
)
def test_counts_that_are_fractions_are_refused(call: Callable[[], Any]):
    with pytest.raises(ValueError, match="whole number"):
        call()
