"""Thresholds and rates of all models and samples against sorts, loops and exact distributions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from lm_mia import stats
from lm_mia.stats import pooling

FPRS = [0.0, 0.001, 0.01, 0.05, 0.1, 1 - 0.9, 0.5, 0.999, 1.0]
RULES: list[Any] = ["conservative", "linear"]


def scores(kind: str, models: int = 12, samples: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores, a tenth of which are NaN, and members."""
    generator = np.random.default_rng(len(kind))
    shape = models, samples
    score_MxN = {
        "normal": generator.standard_normal(shape),
        "ties": generator.integers(-3, 4, shape) / 3,
        "infinite": generator.choice([-np.inf, -np.inf, -1.0, 0.5], shape),
        "float32": generator.standard_normal(shape).astype(np.float32),
    }[kind]
    score_MxN[generator.random(shape) < 0.1] = np.nan
    return score_MxN, generator.random(shape) < 0.5


def expected_threshold(out_scores: np.ndarray, fpr: float, rule: str) -> float:
    """Returns the threshold of a one-dimensional array."""
    if rule == "conservative":
        return stats.threshold_at_fpr(out_scores, fpr)
    with np.errstate(invalid="ignore"):
        quantile = np.quantile(out_scores.astype(np.float64), 1 - fpr)
    if np.isnan(quantile):  # between two numbers, one of which is -inf
        quantile = -np.inf
    as_type = out_scores.dtype.type(quantile)
    return float(
        as_type if as_type > quantile else np.nextafter(as_type, as_type.dtype.type(np.inf))
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["normal", "ties", "infinite", "float32"])
def test_pooled_threshold_equals_that_of_the_concatenated_scores(kind: str, rule: Any):
    score_MxN, member_MxN = scores(kind)
    out_scores = score_MxN[~member_MxN & ~np.isnan(score_MxN)]
    actual_F = stats.pooled_threshold(score_MxN, member_MxN, FPRS, rule=rule)
    expected_F = [expected_threshold(out_scores, fpr, rule) for fpr in FPRS]
    np.testing.assert_array_equal(actual_F, expected_F)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["normal", "ties", "infinite", "float32"])
def test_per_sample_threshold_equals_that_of_each_sample(kind: str, rule: Any):
    score_MxN, member_MxN = scores(kind)
    member_MxN[:, 0] = True  # no score of a non-member
    actual_FxN = stats.per_sample_threshold(score_MxN, member_MxN, FPRS, rule=rule)
    for n in range(score_MxN.shape[1]):
        out_scores = score_MxN[:, n][~member_MxN[:, n] & ~np.isnan(score_MxN[:, n])]
        for fpr, actual in zip(FPRS, actual_FxN[:, n], strict=True):
            expected = np.nan
            # 1 / (1 - 0.9) is slightly above 10.
            if out_scores.size and (rule == "linear" or fpr * out_scores.size >= 1):
                expected = expected_threshold(out_scores, fpr, rule)
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rule", RULES)
def test_chunks_and_memory_maps_change_nothing(
    rule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    score_MxN, member_MxN = scores("normal")
    score_MxN.tofile(tmp_path / "scores")
    mapped_MxN = np.memmap(tmp_path / "scores", np.float64, "r", shape=score_MxN.shape)

    def results(score_MxN: np.ndarray) -> list[Any]:
        pooled_F = stats.pooled_threshold(score_MxN, member_MxN, FPRS, rule=rule)
        each_FxN = stats.per_sample_threshold(score_MxN, member_MxN, FPRS, rule=rule)
        values: list[Any] = [pooled_F, each_FxN, stats.fit_student_t(score_MxN, member_MxN)]
        for threshold in (pooled_F, each_FxN, np.repeat(each_FxN[:, None], 12, axis=1)):
            values += [*vars(stats.pooled_rates(score_MxN, member_MxN, threshold)).values()]
            values += [*vars(stats.rates_by_sample(score_MxN, member_MxN, threshold)).values()]
        return values

    whole = results(score_MxN)
    monkeypatch.setattr(pooling, "_CELLS", 12 * 7)
    for actual, expected in zip(results(mapped_MxN), whole, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_thresholds_of_no_or_too_many_infinite_scores():
    none = np.array([[np.nan, 1.0]]), np.array([[False, True]])
    for rule in RULES:
        assert np.isnan(stats.pooled_threshold(*none, 0.1, rule=rule)).all()
        assert np.isnan(stats.per_sample_threshold(*none, 0.1, rule=rule)).all()
        infinite = np.full((20, 1), np.inf), np.zeros((20, 1), np.bool_)
        with pytest.raises(ValueError, match=r"too many .*\+inf"):
            stats.pooled_threshold(*infinite, 0.1, rule=rule)
        assert np.isnan(stats.per_sample_threshold(*infinite, 0.1, rule=rule)).all()


def test_only_models_that_were_not_trained_on_a_sample_count():
    # 15 models are more than 1 / 0.1, but only 9 of them are OUT for the second sample.
    member_15x2 = np.arange(15)[:, None] < [5, 6]
    score_15x2 = np.random.default_rng(2).random((15, 2))
    threshold = stats.per_sample_threshold(score_15x2, member_15x2, 0.1)
    np.testing.assert_array_equal(np.isnan(threshold), [[False, True]])
    rates = stats.rates_by_sample(score_15x2, member_15x2, threshold)
    np.testing.assert_array_equal(rates.called_out_FxN, [[1, 0]])


def test_the_linear_rule_exceeds_the_fpr_by_at_most_one_score():
    for n in (10, 37, 100):
        score_1xN = np.random.default_rng(n).random((1, n))
        member_1xN = np.zeros((1, n), np.bool_)
        for fpr in (0.33, 0.05):
            realized = [
                stats.pooled_rates(
                    score_1xN,
                    member_1xN,
                    stats.pooled_threshold(score_1xN, member_1xN, fpr, rule=r),
                ).realized_fpr_F[0]
                for r in RULES
            ]
            assert realized[0] <= fpr
            assert realized[1] == np.ceil(np.round(fpr * (n - 1), 9)) / n
            assert realized[1] <= fpr + 1 / n
        assert realized[1] > fpr or n == 100  # 5 of 100 are reached exactly


@pytest.mark.parametrize("threshold_shape", ["F", "FxN", "FxMxN"])
def test_rates_equal_a_loop_and_pooled_rates_their_weighted_mean(threshold_shape: str):
    score_MxN, member_MxN = scores("ties")  # ragged: NaN scores, and members drawn independently
    models, samples = score_MxN.shape
    generator = np.random.default_rng(8)
    shape = {"F": (3,), "FxN": (3, samples), "FxMxN": (3, models, samples)}[threshold_shape]
    threshold = generator.choice([-1.0, 0.0, 1 / 3, np.nan], shape)
    each_FxMxN = np.broadcast_to(
        threshold.reshape(shape[0], *([1] * (3 - len(shape))), *shape[1:]), (3, models, samples)
    )
    by_sample = stats.rates_by_sample(score_MxN, member_MxN, threshold)
    for f in range(3):
        for n in range(samples):
            for is_in, called_FxN, count_N in (
                (True, by_sample.called_in_FxN, by_sample.in_N),
                (False, by_sample.called_out_FxN, by_sample.out_N),
            ):
                used_M = (member_MxN[:, n] == is_in) & ~np.isnan(score_MxN[:, n])
                assert count_N[n] == used_M.sum()
                above_M = score_MxN[:, n] >= each_FxMxN[f, :, n]
                assert called_FxN[f, n] == (above_M & used_M).sum()
    # Proposition 4.1 in whole numbers: samples are weighted by their number of scores of the class.
    pooled = stats.pooled_rates(score_MxN, member_MxN, threshold)
    np.testing.assert_array_equal(pooled.called_in_F, by_sample.called_in_FxN.sum(axis=1))
    np.testing.assert_array_equal(pooled.called_out_F, by_sample.called_out_FxN.sum(axis=1))
    assert (pooled.in_cells, pooled.out_cells) == (by_sample.in_N.sum(), by_sample.out_N.sum())
    assert pooled.left_out == by_sample.left_out == np.isnan(score_MxN).sum()
    np.testing.assert_array_equal(pooled.tpr_F, pooled.called_in_F / pooled.in_cells)
    weighted_F = np.average(
        by_sample.called_out_FxN / by_sample.out_N, axis=1, weights=by_sample.out_N
    )
    np.testing.assert_allclose(pooled.realized_fpr_F, weighted_F)
    unweighted_F = np.mean(by_sample.called_in_FxN / by_sample.in_N, axis=1)
    assert (np.abs(pooled.tpr_F - unweighted_F) > 1e-4).any()


@pytest.mark.parametrize("kind", ["normal", "ties", "infinite", "float32"])
def test_tprs_of_parts_equal_those_at_the_thresholds_of_each_part(kind: str):
    score_MxN, member_MxN = scores(kind)
    samples = score_MxN.shape[1]
    used_PxN = np.array([np.arange(samples) % 2 == 0, np.arange(samples) < samples])
    fprs = [0.0, 0.05, 0.1, 0.5, 1.0]
    tpr_PxF = stats.pooled_tprs_of_parts(score_MxN, member_MxN, used_PxN, fprs)
    for tpr_F, used_N in zip(tpr_PxF, used_PxN, strict=True):
        part = score_MxN[:, used_N], member_MxN[:, used_N]
        rates = stats.pooled_rates(*part, stats.pooled_threshold(*part, fprs))
        np.testing.assert_array_equal(tpr_F, rates.tpr_F)


def test_tprs_of_parts_without_enough_scores_of_a_class_are_missing():
    score_1x4, member_1x4 = [[1.0, 2.0, 3.0, np.nan]], [[False, False, True, True]]
    used_3x4 = [[True, True, True, True], [True, True, False, True], [False, False, True, True]]
    tpr_3x2 = stats.pooled_tprs_of_parts(score_1x4, member_1x4, used_3x4, [0.1, 0.5])
    np.testing.assert_array_equal(tpr_3x2, [[np.nan, 1.0], [np.nan, np.nan], [np.nan, np.nan]])
    with pytest.raises(ValueError, match="parts"):
        stats.pooled_tprs_of_parts(score_1x4, member_1x4, [[True]], [0.1])


def test_pooled_rates_of_blocks_add_up():
    score_MxN, member_MxN = scores("normal")
    threshold_FxN = np.random.default_rng(3).standard_normal((2, 90))
    whole = stats.pooled_rates(score_MxN, member_MxN, threshold_FxN)
    first, second = (
        stats.pooled_rates(score_MxN[:, block], member_MxN[:, block], threshold_FxN[:, block])
        for block in (slice(40), slice(40, 90))
    )
    for actual, expected in zip(vars(first + second).values(), vars(whole).values(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    empty = stats.pooled_rates(score_MxN[:, :0], member_MxN[:, :0], [0.0])
    assert np.isnan([empty.tpr_F, empty.realized_fpr_F]).all()


def test_the_mean_of_all_calls_is_not_the_tpr():
    # Reliability's Eq. 26 divides by all cells. Here every sample is in half of the subsets.
    score_4x2 = np.array([[3.0, 2.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    member_4x2 = np.array([[True, True], [True, False], [False, True], [False, False]])
    rates = stats.pooled_rates(score_4x2, member_4x2, 2.0)
    assert (rates.tpr_F[0], rates.realized_fpr_F[0]) == (1.0, 0.0)
    assert np.mean(score_4x2 >= 2.0) == (rates.tpr_F[0] + rates.realized_fpr_F[0]) / 2


def test_predictive_threshold_is_exact_for_normal_losses():
    assert stats.predictive_threshold(3, 0.1) == pytest.approx(2.17732, abs=5e-6)
    count_2x3 = [[0, 1, 2], [8, 16, 300]]
    threshold_Fx2x3 = stats.predictive_threshold(count_2x3, [0.01, 0.5])
    np.testing.assert_array_equal(np.isnan(threshold_Fx2x3[0]), [[True, True, False], [False] * 3])
    expected = np.sqrt(1 + 1 / 8) * scipy.stats.t.isf(0.01, 7)
    assert threshold_Fx2x3[0, 1, 0] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(threshold_Fx2x3[1, 1], 0, atol=1e-12)
    generator = np.random.default_rng(5)
    for n, normal_fpr in ((8, 0.0322), (16, 0.0197), (64, 0.0121)):
        draws = 2**15
        loss_MxN = generator.normal(2, 0.3, (n + 1, draws))
        fitted = stats.fit_gaussians(loss_MxN[1:], np.zeros((n, draws), np.bool_))
        score_N = stats.standardized_scores(loss_MxN[0], fitted)[0]
        for threshold, fpr in (
            (stats.predictive_threshold(n, 0.01), 0.01),
            (scipy.stats.norm.isf(0.01), normal_fpr),
        ):
            # The FPR of the normal threshold is that of a t-tail.
            exact = scipy.stats.t.sf(threshold / np.sqrt(1 + 1 / n), n - 1)
            assert exact == pytest.approx(fpr, abs=5e-5)
            assert np.mean(score_N >= threshold) == pytest.approx(fpr, abs=4 * np.sqrt(fpr / draws))


@pytest.mark.parametrize("freedom", [1.5, 4.0, 30.0])
def test_fit_student_t_agrees_with_scipy(freedom: float):
    z_N = scipy.stats.t.rvs(freedom, size=4000, random_state=int(freedom))
    expected, *_ = scipy.stats.t.fit(z_N, floc=0, fscale=1)
    thresholds = scipy.stats.t.isf(0.01, [stats.fit_student_t(z_N), expected])
    assert thresholds[0] == pytest.approx(thresholds[1], abs=1e-3)


def test_fit_student_t_returns_inf_for_lighter_tails():
    z_N = scipy.stats.t.rvs(3, size=(2, 4000), random_state=1)
    with_members_N = np.concatenate([z_N, [[np.nan] * 4000], z_N + 5])
    member_MxN = np.repeat([False, False, False, True, True], 4000).reshape(5, 4000)
    assert stats.fit_student_t(with_members_N, member_MxN) == stats.fit_student_t(z_N)
    assert stats.fit_student_t(np.random.default_rng(1).uniform(-1, 1, 4000)) == np.inf
    assert scipy.stats.t.isf(0.01, np.inf) == pytest.approx(scipy.stats.norm.isf(0.01))
    assert np.isnan(stats.fit_student_t([np.nan]))
    assert 0 < stats.fit_student_t([1e-200, 1e200, -1e308]) < 0.1
    with pytest.raises(ValueError, match=r"^standardized scores .*finite"):
        stats.fit_student_t([1.0, np.inf])


def test_rate_spread_leaves_out_binomial_noise():
    spread = stats.rate_spread([1, 2], [2, 2])
    # 2 of 4 ordered pairs of one sample are positive, and 4 of 8 of two samples.
    assert (spread.mean, spread.variance) == (0.75, 0.0)
    generator = np.random.default_rng(6)
    variances = []
    for a, b in ((np.inf, np.inf), (2.0, 8.0)):  # equal rates of 0.2, and a beta distribution
        variance_S = []
        for _ in range(1000):
            rate_N = np.full(100, 0.2) if a == np.inf else generator.beta(a, b, 100)
            variance_S.append(
                stats.rate_spread(generator.binomial(12, rate_N), np.full(100, 12)).variance
            )
        expected = 0.0 if a == np.inf else a * b / ((a + b) ** 2 * (a + b + 1))
        error = np.std(variance_S) / np.sqrt(1000)
        assert np.mean(variance_S) == pytest.approx(expected, abs=3 * error)
        variances.append(variance_S)
    assert np.min(variances[0]) < 0  # never clipped
    assert np.isnan(stats.rate_spread([1], [2]).variance)
    assert np.isnan(stats.rate_spread([0, 0], [0, 0]).mean)
    for called_N, trials_N in (([3], [2]), ([1], [2, 2])):
        with pytest.raises(ValueError, match=r"positive decisions than"):
            stats.rate_spread(called_N, trials_N)


def test_false_positives_of_mutual_references_vary_little():
    models, samples, fpr = 32, 20_000, 0.1
    generator = np.random.default_rng(10)
    loss_MxN = generator.standard_normal((2 * models, samples))
    member_MxN = generator.random((2 * models, samples)) < 0.5
    inside = stats.standardized_leave_one_out(loss_MxN[:models], member_MxN[:models]).score_MxN
    outside = stats.standardized_scores(
        loss_MxN[models:], stats.fit_gaussians(loss_MxN[:models], member_MxN[:models])
    )
    spreads = []
    for score_MxN, member in ((inside, member_MxN[:models]), (outside, member_MxN[models:])):
        threshold_F = stats.pooled_threshold(score_MxN, member, fpr)
        rates = stats.rates_by_sample(score_MxN, member, threshold_F)
        spreads.append(stats.rate_spread(rates.called_out_FxN[0], rates.out_N).variance)
    assert spreads[0] == pytest.approx(-0.00375, abs=0.0002)
    # Targets outside the references share the errors of the moments, which make their rates differ.
    assert spreads[1] > 0.001


def test_thresholds_of_another_number_of_models_have_another_fpr():
    generator = np.random.default_rng(12)
    loss_MxN = generator.standard_normal((64, 2000))
    member_MxN = generator.random((64, 2000)) < 0.5
    few, many = (
        stats.standardized_leave_one_out(loss_MxN[:m], member_MxN[:m]).score_MxN for m in (16, 64)
    )
    threshold_F = stats.pooled_threshold(few, member_MxN[:16], 0.01)
    assert stats.pooled_rates(few, member_MxN[:16], threshold_F).realized_fpr_F[0] > 0.0099
    assert stats.pooled_rates(many, member_MxN, threshold_F).realized_fpr_F[0] < 0.005


def test_wrong_arguments_are_refused():
    score_2x3, member_2x3 = np.zeros((2, 3)), np.zeros((2, 3), np.bool_)
    wrong: Any = "median"
    for function in (stats.pooled_threshold, stats.per_sample_threshold):
        with pytest.raises(ValueError, match=r"^rule='median': must be"):
            function(score_2x3, member_2x3, 0.1, rule=wrong)
        with pytest.raises(ValueError, match=r"^scores of shape \(2, 3\) "):
            function(score_2x3, member_2x3[:1], 0.1)
        with pytest.raises(ValueError, match=r"must be .* in \[0, 1\]"):
            function(score_2x3, member_2x3, 1.5)
    for function in (stats.pooled_rates, stats.rates_by_sample):
        for shape in ((1, 2), (1, 3, 2), (1, 1, 2, 3)):
            with pytest.raises(ValueError, match=r"^thresholds of shape .*scores"):
                function(score_2x3, member_2x3, np.zeros(shape))


def test_thresholds_at_the_edges():
    # A rate of 0 calls nobody, and a rate of 1 everybody; without enough references, there is no threshold.
    threshold_2x3 = stats.predictive_threshold([1, 2, 50], [0.0, 1.0])
    inf = np.inf
    np.testing.assert_array_equal(threshold_2x3, [[np.nan, inf, inf], [np.nan, -inf, -inf]])
    score_2x3, member_2x3 = np.arange(6.0).reshape(2, 3), np.zeros((2, 3), bool)
    for rule in ("conservative", "linear"):
        assert stats.pooled_threshold(score_2x3, member_2x3, [], rule=rule).shape == (0,)
        assert stats.per_sample_threshold(score_2x3, member_2x3, [], rule=rule).shape == (0, 3)
        no_models = stats.per_sample_threshold(score_2x3[:0], member_2x3[:0], 0.1, rule=rule)
        np.testing.assert_array_equal(no_models, np.full((1, 3), np.nan))
