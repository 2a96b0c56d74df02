"""Calls of all public functions of `lm_mia.stats`, for tests of unusual arrays and numbers.

Most are functions of one array, and the other arguments are valid. The name of a call is that of the public function,
sometimes followed by the tested argument or by settings. A function whose input is the result of another function is
called with this result.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from lm_mia import stats

MEMBER_N = np.array([True, False, True, False])
MEMBER_MxN = np.array([[True, False, True, False], [False, True, True, False]] * 4)
MEMBER_K = np.array([True, False] * 4)
VALUE_N = [1.0, 2.0, 3.0, 4.0]
GROUP_N = [0, 0, 0, 0]
FPR_K = [0, 0.1, 0.5, 1]
LOSS_MxN = np.random.default_rng(0).normal(size=(8, 4))
CALLED_RxK = [[0, 2 / 3, 2, 4]] * 3
GAUSSIANS = stats.fit_gaussians(LOSS_MxN, MEMBER_MxN)
ACCURACY = stats.METRICS["accuracy"]
OUTCOME = stats.OutcomeModel(np.zeros(4), np.array([-1.0, 0.0, 1.0]))
LOSS_MODEL = stats.fit_loss_model(VALUE_N, LOSS_MxN, MEMBER_MxN)
STACKED_REGRESSION = stats.fit_stacked_regression(LOSS_MxN, MEMBER_MxN, LOSS_MODEL)
REGRESSION_DATA = stats.simulate_regression(60, samples=50, trials=4)
REFERENCE_SETS = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]  # 11 of 4 values


def as_array(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else np.array(x)


def _three_parts(x: Any) -> np.ndarray:
    """Returns a number on all samples and on both halves, of one training."""
    part = as_array(x).flatten()[:3][None]
    if np.ma.is_masked(x) and part.size:
        part[0, 0] = np.ma.masked  # also if only other values of x are masked
    return part


# Functions of the array under test, which has one value per sample; in MODEL_CALLS, one per model and sample.
SAMPLE_CALLS: dict[str, Callable[[Any], Any]] = {
    "auc": lambda x: stats.auc(x, MEMBER_N),
    "bootstrap_intervals": lambda x: stats.bootstrap_intervals(x, MEMBER_N, 0.5, replicates=2),
    "tpr_interval": lambda x: stats.tpr_interval(x, MEMBER_N, 0.5),
    "clopper_pearson": lambda x: stats.clopper_pearson(x, 9),
    "clopper_pearson trials": lambda x: stats.clopper_pearson(0, x),
    "coin_flip_probability": lambda x: stats.coin_flip_probability(x, 6),
    "coin_flip_range": lambda x: stats.coin_flip_range(x, [[0, 2 / 3, 2, 4]] * 3),
    "count_flip_bins": lambda x: stats.count_flip_bins(x, MEMBER_N, 6),
    "equal_count_bins x": lambda x: stats.equal_count_bins(x, VALUE_N, 2),
    "equal_count_bins y": lambda x: stats.equal_count_bins(VALUE_N, x, 2),
    "extraction_probability": lambda x: stats.extraction_probability(-1.0, x),
    "flip_rate": lambda x: stats.flip_rate(x, 6),
    "lira_from_gaussians": lambda x: stats.lira_from_gaussians(x, GAUSSIANS),
    "loss_attack": stats.loss_attack,
    "lowercase_loss_difference": lambda x: stats.lowercase_loss_difference(x, VALUE_N),
    "lowercase_loss_difference lowercase": lambda x: stats.lowercase_loss_difference(VALUE_N, x),
    "min_k": lambda x: stats.min_k(x, [4]),
    "min_k counts": lambda x: stats.min_k(np.ones(10), x),
    "p_value": lambda x: stats.p_value(x, 6),
    "partial_auc": lambda x: stats.partial_auc(x, [0, 0.1, 0.5, 1], 0, 1),
    "posterior": stats.posterior,
    "reference_calibrated_loss": lambda x: stats.reference_calibrated_loss(x, np.ones((2, 4))),
    "rmia_from_log_alpha": lambda x: stats.rmia_from_log_alpha(x, VALUE_N),
    "rmia_from_log_alpha z": lambda x: stats.rmia_from_log_alpha(VALUE_N, x),
    "rmia_simple": lambda x: stats.rmia_simple(x, -np.ones((2, 4))),
    "roc_curve": lambda x: stats.roc_curve(x, MEMBER_N),
    "sample_groups": stats.sample_groups,
    "suffix_log_prob": stats.suffix_log_prob,
    "threshold_at_fpr": lambda x: stats.threshold_at_fpr(x, 0.5),
    "token_log_probs": lambda x: stats.token_log_probs(x, 0, stats.SamplingScheme()),
    "token_log_probs tokens": lambda x: stats.token_log_probs(
        np.zeros((4, 9)), x, stats.SamplingScheme()
    ),
    "tpr_at_fpr": lambda x: stats.tpr_at_fpr(x, MEMBER_N, 0.5),
    "variance_over_replicas": lambda x: stats.variance_over_replicas(
        [1, 2, 3, 4], [[0, 2 / 3, 2, 4]] * 3, x
    ),
    "zlib_ratio": lambda x: stats.zlib_ratio(x, VALUE_N),
    "zlib_ratio bytes": lambda x: stats.zlib_ratio(VALUE_N, x),
}
MODEL_CALLS: dict[str, Callable[[Any], Any]] = {
    "count_vote_histograms": lambda x: stats.count_vote_histograms(x, np.ones((8, 1))),
    "count_votes": lambda x: stats.count_votes(x, np.ones((8, 1))),
    "decision_metrics": lambda x: stats.decision_metrics(x, MEMBER_N, GROUP_N, 0.5, 0).auc_A1xH1[
        0, :2
    ],
    "fit_gaussians": lambda x: stats.fit_gaussians(x, MEMBER_MxN),
    "lira": lambda x: stats.lira(VALUE_N, x, MEMBER_MxN),
    "lira pooled": lambda x: stats.lira(VALUE_N, x, MEMBER_MxN, variance="pooled"),
    "lira_leave_one_out": lambda x: stats.lira_leave_one_out(x, MEMBER_MxN),
    "leave_one_out_scatter": lambda x: stats.leave_one_out_scatter(x, MEMBER_MxN),
    "rates_of_halves": lambda x: stats.rates_of_halves(x, MEMBER_N, GROUP_N, 0.5)[0][0, :1],
    "reference_calibrated_loss": lambda x: stats.reference_calibrated_loss(VALUE_N, x),
    "rmia": lambda x: stats.rmia(-np.ones(4), x, -np.ones(4), -np.ones((8, 4))),
    "rmia_simple": lambda x: stats.rmia_simple(-np.ones(4), x),
    "rmia_log_mean_probability offline": lambda x: stats.rmia_log_mean_probability(
        x, reference_member_MxN=MEMBER_MxN, offline=True, a=0.5
    ),
}
SYSTEMATIC_CALLS = [(name, f, False) for name, f in SAMPLE_CALLS.items()]
SYSTEMATIC_CALLS += [(name, f, True) for name, f in MODEL_CALLS.items()]

MEMBER_CALLS: dict[str, Callable[[Any], Any]] = {
    "auc": lambda member_N: stats.auc(VALUE_N, member_N),
    "two_sample_auc": lambda member_N: stats.two_sample_auc(sparse.csr_array(np.eye(4)), member_N),
    "count_flip_bins": lambda member_N: stats.count_flip_bins(np.ones(4), member_N, 6),
    "count_member_votes": lambda member_N: stats.count_member_votes(np.ones((1, 4)), member_N, 6),
    "count_true_positives": lambda member_N: stats.count_true_positives(
        [VALUE_N], [[2.0]], np.zeros((1, 4)), member_N
    ),
    "decision_metrics": lambda member_N: stats.decision_metrics(
        [VALUE_N] * 2, member_N, GROUP_N, 0.5, 0
    ),
    "design_of": lambda member_N: stats.design_of(np.atleast_2d(member_N)),
    "lira": lambda member_N: stats.lira(
        VALUE_N, [VALUE_N] * 2, [member_N, np.logical_not(member_N)]
    ),
    "rates_of_halves": lambda member_N: stats.rates_of_halves(VALUE_N, member_N, GROUP_N, 0.5),
    "rmia_log_mean_probability offline": lambda member_N: stats.rmia_log_mean_probability(
        VALUE_N, reference_member_MxN=member_N, offline=True
    ),
    "true_positive_probability": lambda member_N: stats.true_positive_probability(
        np.ones((1, 4)), as_array(member_N)[None]
    ),
}

# Further calls, only for random arrays, since systematic tests of all kinds of arrays would take too long.
MORE_SAMPLE_CALLS: dict[str, Callable[[Any], Any]] = {
    "absolute_ends": lambda x: stats.absolute_ends(x, VALUE_N),
    "absolute_ends high": lambda x: stats.absolute_ends([-5, -4, -3, -4], x),
    "aggregate_by_group": lambda x: stats.aggregate_by_group(x, GROUP_N, "mean"),
    "aggregate_by_group gmean": lambda x: stats.aggregate_by_group(x, GROUP_N, "gmean"),
    "aggregate_by_group abs_max": lambda x: stats.aggregate_by_group(x, GROUP_N, "abs_max"),
    "aggregate_by_group logsumexp": lambda x: stats.aggregate_by_group(x, GROUP_N, "logsumexp"),
    "aipw_estimate": lambda x: stats.aipw_estimate(x, MEMBER_N, np.zeros(4), OUTCOME, 0.5),
    "aipw_estimate odds": lambda x: stats.aipw_estimate(VALUE_N, MEMBER_N, x, OUTCOME, 0.5),
    "aipw_estimate means": lambda x: stats.aipw_estimate(
        VALUE_N, MEMBER_N, np.zeros(4), dataclasses.replace(OUTCOME, mean_N=x), 0.5
    ),
    "capped_epsilon": lambda x: stats.capped_epsilon(x, 10),
    "causal_intervals": lambda x: stats.causal_intervals(x, MEMBER_N, 0.5, replicates=2),
    "causal_intervals odds": lambda x: stats.causal_intervals(
        VALUE_N, MEMBER_N, 0.5, log_odds_N=x, outcome=OUTCOME, replicates=2
    ),
    "coin_flip_free_roc": lambda x: stats.coin_flip_free_roc(
        stats.count_member_votes(as_array(x)[None], MEMBER_N, 6), 6
    ),
    "concatenate_operating_points": lambda x: stats.concatenate_operating_points(
        [stats.tpr_at_fpr(x, MEMBER_N, 0.5), stats.tpr_at_fpr(VALUE_N, MEMBER_N, 0.5)]
    ),
    "conformal_p_value": lambda x: stats.conformal_p_value(x, VALUE_N),
    "conformal_p_value nonmembers": lambda x: stats.conformal_p_value(VALUE_N, x),
    "dp_advantage_bound": lambda x: stats.dp_advantage_bound(x, 0.5),
    "dp_tpr_bound": lambda x: stats.dp_tpr_bound(x, 1.0, 0.01),
    "effect_variance": lambda x: stats.effect_variance(x, np.ones(4)),
    "effect_variance errors": lambda x: stats.effect_variance(VALUE_N, x),
    "empirical_epsilons": lambda x: stats.empirical_epsilons(x, MEMBER_N, delta=0.1),
    "drawn_by_cluster": lambda x: stats.drawn_by_cluster(x, [0, 0, 1, 1]),
    "empirical_epsilons members": lambda x: stats.empirical_epsilons(VALUE_N, x, delta=0.1),
    "empirical_epsilons rates": lambda x: stats.empirical_epsilons(
        VALUE_N, MEMBER_N, delta=0.1, rates_G=x
    ),
    "equal_count_edges": lambda x: stats.equal_count_edges(x, 2),
    "epsilon_intervals": lambda x: stats.epsilon_intervals(x, MEMBER_N, delta=0.1, replicates=2),
    "error_rates": lambda x: stats.error_rates(stats.tpr_at_fpr(x, MEMBER_N, 0.5)),
    "extraction_rate": lambda x: stats.extraction_rate(x, 2, 0.5),
    "fit_loss_model": lambda x: stats.fit_loss_model(x, LOSS_MxN, MEMBER_MxN),
    "fitted_threshold": lambda x: stats.fitted_threshold(x, MEMBER_N, ACCURACY),
    "flip_bin_shares": lambda x: stats.flip_bin_shares(stats.count_flip_bins(x, MEMBER_N, 6), 6),
    "flip_bins": lambda x: stats.flip_bins(x, 6),
    "g_formula_estimate": lambda x: stats.g_formula_estimate(x, MEMBER_N, OUTCOME, 0.5),
    "g_formula_estimate residuals": lambda x: stats.g_formula_estimate(
        VALUE_N, MEMBER_N, dataclasses.replace(OUTCOME, residual_J=x), 0.5
    ),
    "gaussian_dp_delta": lambda x: stats.gaussian_dp_delta(x, 1.0),
    "gaussian_dp_delta epsilon": lambda x: stats.gaussian_dp_delta(1.0, x),
    "gaussian_dp_epsilon": lambda x: stats.gaussian_dp_epsilon(x, 0.1),
    "gaussian_dp_epsilon delta": lambda x: stats.gaussian_dp_epsilon(1.0, x),
    "gaussian_tpr": lambda x: stats.gaussian_tpr(GAUSSIANS, x),
    "held_out_advantage": lambda x: stats.held_out_advantage(x, MEMBER_N, 0.5),
    "held_out_advantage members": lambda x: stats.held_out_advantage(VALUE_N, x, 0.5),
    "hit_stability thresholds": lambda x: stats.hit_stability(LOSS_MxN[:4], x),
    "independent_sd": lambda x: stats.independent_sd(x, MEMBER_N),
    "independent_sd members": lambda x: stats.independent_sd(VALUE_N, x),
    "independent_trials_bound": lambda x: stats.independent_trials_bound(x, MEMBER_N),
    "independent_trials_bound members": lambda x: stats.independent_trials_bound(VALUE_N, x),
    "ipw_estimate": lambda x: stats.ipw_estimate(x, MEMBER_N, np.zeros(4), 0.5),
    "ipw_estimate odds": lambda x: stats.ipw_estimate(
        VALUE_N, MEMBER_N, x, 0.5, normalize="members"
    ),
    "lift": lambda x: stats.lift(x, FPR_K, 0, 1),
    "lift fpr": lambda x: stats.lift(FPR_K, x, 0, 1),
    "log_ratio_bins": lambda x: stats.log_ratio_bins(x, MEMBER_N, GROUP_N, 5),
    "log_ratio_bins members": lambda x: stats.log_ratio_bins(GROUP_N, x, GROUP_N, 5),
    "log_ratio_bins evaluated": lambda x: stats.log_ratio_bins(GROUP_N, MEMBER_N, x, 5),
    "log_ratio_of_counts": lambda x: stats.log_ratio_of_counts(x, VALUE_N),
    "log_ratio_of_counts nonmembers": lambda x: stats.log_ratio_of_counts(VALUE_N, x),
    "max_balanced_accuracy": lambda x: stats.max_balanced_accuracy(x, MEMBER_N),
    "mean_roc_curve": lambda x: stats.mean_roc_curve(stats.tpr_at_fpr(x, MEMBER_N, 0.5)),
    "mean_std_error": lambda x: stats.mean_std_error(x, CALLED_RxK, VALUE_N),
    "mean_std_error values": lambda x: stats.mean_std_error([1, 2, 3, 4], CALLED_RxK, x),
    "metric_interval": lambda x: stats.metric_interval(ACCURACY, x, 1, 2, 3, 0.5),
    "metric_value": lambda x: stats.metric_value(ACCURACY, 1, 2, 3, x, 0.5),
    "one_run_bound": lambda x: stats.one_run_bound(x, MEMBER_N, delta=0.1, guesses_G=[2]),
    "one_run_bound members": lambda x: stats.one_run_bound(VALUE_N, x, delta=0.1),
    "one_run_bound guesses": lambda x: stats.one_run_bound(
        VALUE_N, MEMBER_N, membership="half", delta=0.1, guesses_G=x
    ),
    "paired_canaries": lambda x: stats.paired_canaries(x, MEMBER_N, 0),
    "paired_canaries members": lambda x: stats.paired_canaries(VALUE_N, x, 0),
    "placements": lambda x: stats.placements(x, MEMBER_N),
    "placements members": lambda x: stats.placements(VALUE_N, x),
    "plug_in_advantage": lambda x: stats.plug_in_advantage(x),
    "plug_in_advantage with prior": lambda x: stats.plug_in_advantage(x, MEMBER_N, 0.1),
    "pointwise_metric_interval": lambda x: stats.pointwise_metric_interval(
        ACCURACY, x, VALUE_N, 0.5, 0.5
    ),
    "potential_outcomes weights": lambda x: stats.potential_outcomes(
        lambda: [(LOSS_MxN, MEMBER_MxN)], x, 0.5
    ),
    "predict_more_references": lambda x: stats.predict_more_references(
        as_array(x)[..., REFERENCE_SETS], (8, 16, 32), [64], "auc", targets=8
    ),
    "predict_more_references predicted": lambda x: stats.predict_more_references(
        [0.6] * 4 + [0.64] * 6 + [0.66], (8, 16, 32), x, "tpr", targets=8
    ),
    "predictive_threshold": lambda x: stats.predictive_threshold(x, 0.5),
    "predictive_threshold fprs": lambda x: stats.predictive_threshold(4, x),
    "privacy_loss": lambda x: stats.privacy_loss(x, 0.5),
    "quantile_bins": lambda x: stats.quantile_bins(x, VALUE_N, 2),
    "quantile_bins fitted": lambda x: stats.quantile_bins(VALUE_N, x, 2),
    "rate_spread": lambda x: stats.rate_spread(x, [9, 9, 9, 9]),
    "rate_spread trials": lambda x: stats.rate_spread([0, 1, 1, 2], x),
    "required_queries": lambda x: stats.required_queries(x, 0.5),
    "required_queries probability": lambda x: stats.required_queries(-1.0, x),
    "rmia_log_alpha": lambda x: stats.rmia_log_alpha(x, LOSS_MxN),
    "shrunk_from_model": lambda x: stats.shrunk_from_model(x, LOSS_MxN, MEMBER_MxN, LOSS_MODEL),
    "shrunk_lira": lambda x: stats.shrunk_lira(x, LOSS_MxN, MEMBER_MxN),
    "stacked_from_regression": lambda x: stats.stacked_from_regression(
        x, LOSS_MxN, MEMBER_MxN, LOSS_MODEL, STACKED_REGRESSION
    ),
    "stacked_lira": lambda x: stats.stacked_lira(x, LOSS_MxN, MEMBER_MxN),
    "standardized_scores": lambda x: stats.standardized_scores(x, GAUSSIANS),
    "tpr_contributions": lambda x: stats.tpr_contributions(
        stats.count_true_positives(as_array(x)[None], [[2.0]], np.zeros((1, 4)), MEMBER_N), [2]
    ),
    "tpr_contributions members": lambda x: stats.tpr_contributions(np.zeros((2, 4, 5)), x),
    "unlike_fair_coins": stats.unlike_fair_coins,
    "unadjusted_estimate": lambda x: stats.unadjusted_estimate(x, MEMBER_N, 0.5),
    "unadjusted_estimate fprs": lambda x: stats.unadjusted_estimate(VALUE_N, MEMBER_N, x),
}
MORE_MODEL_CALLS: dict[str, Callable[[Any], Any]] = {
    "count_guesses": lambda x: stats.count_guesses(as_array(x)[:, 0], MEMBER_K, [2, 8]),
    "crossed_components": lambda x: stats.crossed_components(x, 2),
    "explained_within_samples": lambda x: stats.explained_within_samples(x, MEMBER_MxN * 1, 2),
    "explained_within_samples bins": lambda x: stats.explained_within_samples(LOSS_MxN, x, 2),
    "fit_loss_model references": lambda x: stats.fit_loss_model(VALUE_N, x, MEMBER_MxN),
    "fit_loss_model covariates": lambda x: stats.fit_loss_model(
        VALUE_N, LOSS_MxN, MEMBER_MxN, covariate_NxK=as_array(x).T
    ),
    "fit_stacked_regression": lambda x: stats.fit_stacked_regression(x, MEMBER_MxN, LOSS_MODEL),
    "fit_student_t": lambda x: stats.fit_student_t(x, MEMBER_MxN),
    "fit_student_t members": lambda x: stats.fit_student_t(LOSS_MxN, x),
    "hit_stability": lambda x: stats.hit_stability(x, [0.5] * 8),
    "share_interval": lambda x: stats.share_interval(_three_parts(x), count=9),
    "difference_interval": lambda x: stats.difference_interval(_three_parts(x), np.zeros((1, 3))),
    "missed_share": lambda x: stats.missed_share(_three_parts(x), np.full((1, 3), 0.5)),
    "rates_without_groups": lambda x: stats.rates_without_groups(
        as_array(x).reshape(1, -1), np.full((1, 14, as_array(x).size), 0.5)
    ),
    "mean_rate_interval": lambda x: stats.mean_rate_interval(
        as_array(x), np.full((len(as_array(x)), 14, as_array(x).shape[-1]), 0.5)
    ),
    "jackknife_margin": lambda x: stats.jackknife_margin(as_array(x).ravel()[:, None, None]),
    "jackknife_variance": lambda x: stats.jackknife_variance(as_array(x).ravel()[:, None, None]),
    "log_ratio_kde": lambda x: stats.log_ratio_kde(x, MEMBER_K, LOSS_MxN, bandwidth=1.0),
    "log_ratio_kde evaluated": lambda x: stats.log_ratio_kde(LOSS_MxN, MEMBER_K, x, bandwidth=1.0),
    "log_ratio_kde queries": lambda x: stats.log_ratio_kde(
        as_array(x)[:, :1], MEMBER_K, LOSS_MxN[:, :1], bandwidth=0.1
    ),
    "mean_distance_to_threshold": lambda x: stats.mean_distance_to_threshold(x, [[0.5]] * 8),
    "mean_distance_to_threshold thresholds": lambda x: stats.mean_distance_to_threshold(
        np.full((8, 4), 0.5), x
    ),
    "multi_run_trials": lambda x: stats.multi_run_trials(as_array(x).T, MEMBER_MxN.T, 0),
    "multi_run_trials members": lambda x: stats.multi_run_trials(LOSS_MxN.T, as_array(x).T, 0),
    "normal_scores": lambda x: stats.normal_scores(x, LOSS_MxN),
    "normal_scores fitted": lambda x: stats.normal_scores(LOSS_MxN, x),
    "per_sample_threshold": lambda x: stats.per_sample_threshold(x, MEMBER_MxN, 0.5),
    "per_sample_threshold linear": lambda x: stats.per_sample_threshold(
        x, MEMBER_MxN, 0.5, rule="linear"
    ),
    "pooled_rates members": lambda x: stats.pooled_rates(LOSS_MxN, x, 0.0),
    "pooled_rates": lambda x: stats.pooled_rates(x, MEMBER_MxN, 0.0),
    "pooled_threshold": lambda x: stats.pooled_threshold(x, MEMBER_MxN, 0.5),
    "pooled_threshold linear": lambda x: stats.pooled_threshold(x, MEMBER_MxN, 0.5, rule="linear"),
    "pooled_tprs_of_parts": lambda x: stats.pooled_tprs_of_parts(
        x, MEMBER_MxN, MEMBER_MxN[:2], 0.5
    ),
    "potential_outcomes": lambda x: stats.potential_outcomes(
        lambda: [(as_array(x), MEMBER_MxN)], [1, 1, 1, 1], 0.5
    ),
    "rates_by_sample": lambda x: stats.rates_by_sample(x, MEMBER_MxN, 0.0),
    "rates_by_sample thresholds": lambda x: stats.rates_by_sample(LOSS_MxN, MEMBER_MxN, x),
    "rmia_log_alpha members": lambda x: stats.rmia_log_alpha(
        VALUE_N, LOSS_MxN, reference_member_MxN=x, offline=True, a=0.5
    ),
    "rmia_log_alpha references": lambda x: stats.rmia_log_alpha(VALUE_N, x),
    "shared_reference_variance": stats.shared_reference_variance,
    "shares_of_out_below": lambda x: stats.shares_of_out_below(x, MEMBER_MxN),
    "shares_of_out_below members": lambda x: stats.shares_of_out_below(LOSS_MxN, x),
    "shrunk_lira members": lambda x: stats.shrunk_lira(VALUE_N, LOSS_MxN, x),
    "shrunk_lira references": lambda x: stats.shrunk_lira(VALUE_N, x, MEMBER_MxN),
    "stacked_lira references": lambda x: stats.stacked_lira(VALUE_N, x, MEMBER_MxN),
    "standardized_leave_one_out": lambda x: stats.standardized_leave_one_out(
        x, MEMBER_MxN, direction="estimated"
    ),
    "standardized_leave_one_out members": lambda x: stats.standardized_leave_one_out(LOSS_MxN, x),
    "tuned_rmia_a": lambda x: stats.tuned_rmia_a(x, MEMBER_MxN, LOSS_MxN, MEMBER_MxN),
    "tuned_rmia_a population": lambda x: stats.tuned_rmia_a(LOSS_MxN, MEMBER_MxN, x, MEMBER_MxN),
    "true_positive_probability": lambda x: stats.true_positive_probability(x, MEMBER_MxN),
    "with_pooled_variance": lambda x: stats.with_pooled_variance(
        GAUSSIANS, stats.within_sample_scatter(stats.fit_gaussians(x, MEMBER_MxN))
    ),
    "within_sample_scatter": lambda x: stats.within_sample_scatter(
        stats.fit_gaussians(x, MEMBER_MxN)
    ),
}
# Functions of labels or texts, which need not be numbers.
LABEL_CALLS: dict[str, Callable[[Any], Any]] = {
    "aggregate_by_group groups": lambda x: stats.aggregate_by_group(VALUE_N, x, "max"),
    "clean_text": lambda x: stats.clean_text(str(x), collapse_spaces=True),
    "common_subsequence": lambda x: stats.common_subsequence(as_array(x).ravel().tolist(), VALUE_N),
    "common_substring": lambda x: stats.common_substring(str(x), "1. 2."),
    "edit_distance": lambda x: stats.edit_distance(VALUE_N, as_array(x).ravel().tolist()),
    "edit_similarity": lambda x: stats.edit_similarity(str(x), "1. 2."),
    "is_included": lambda x: stats.is_included(as_array(x).ravel().tolist(), VALUE_N),
    "member_by_group": lambda x: stats.member_by_group(MEMBER_N, x),
}
# Functions of numbers: the function, and valid arguments.
NUMBER_CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "nonmembers_needed": (stats.nonmembers_needed, {"fpr": 0.1}),
    "coin_flip_cutoff": (stats.coin_flip_cutoff, {"replicas": 6, "alpha": 0.05}),
    "dp_sgd_mu": (
        stats.dp_sgd_mu,
        {"sampling_rate": 0.1, "noise_multiplier": 3.0, "steps": 100},
    ),
    "dp_sgd_residuals": (
        lambda **settings: stats.dp_sgd_residuals(
            REGRESSION_DATA, stats.DpSgd(epochs=1, **settings)
        ),
        {
            "learning_rate": 0.01,
            "batch_size": 20,
            "clipping_norm": 1.0,
            "noise_multiplier": 3.0,
            "penalty": 10.0,
        },
    ),
    "epsilon_ceiling": (
        stats.epsilon_ceiling,
        {"members": 10, "nonmembers": 20, "level": 0.05, "delta": 1e-5},
    ),
    "flip_bin_edges": (stats.flip_bin_edges, {"replicas": 6, "alpha": 0.05}),
    "gaussian_rejected": (
        stats.gaussian_rejected,
        {"mu": 1.0, "canaries": 100, "guesses": 20, "correct": 18, "level": 0.05},
    ),
    "hoeffding_radius": (
        stats.hoeffding_radius,
        {"members": 10, "nonmembers": 20, "width": 1.0, "confidence": 0.95},
    ),
    "max_flip_rate": (stats.max_flip_rate, {"replicas": 6}),
    "model_groups": (stats.model_groups, {"models": 20}),
    "noise_grid_epsilon": (
        stats.noise_grid_epsilon,
        {"canaries": 100, "guesses": 20, "correct": 18, "delta": 1e-5, "level": 0.05},
    ),
    "num_bins": (stats.num_bins, {"samples_per_class": 100}),
    "one_run_epsilon": (
        stats.one_run_epsilon,
        {"canaries": 100, "guesses": 20, "correct": 18, "delta": 1e-5, "level": 0.05},
    ),
    "one_run_mu": (
        stats.one_run_mu,
        {"canaries": 100, "guesses": 20, "correct": 18, "level": 0.05},
    ),
    "one_run_p_value": (
        stats.one_run_p_value,
        {"canaries": 100, "guesses": 20, "correct": 18, "epsilon": 1.0, "delta": 1e-5},
    ),
    "optimal_threshold": (
        lambda prior, **coefficients: stats.optimal_threshold(
            stats.GeneralizedMetric(**coefficients), prior
        ),
        {"prior": 0.5, "a11": 1.0, "a00": 1.0, "b0": 1.0},
    ),
    "ridge_residuals": (
        lambda penalty: stats.ridge_residuals(REGRESSION_DATA, penalty),
        {"penalty": 1e4},
    ),
    "unseen_share": (stats.unseen_share, {"references": 32}),
    "silverman_bandwidth": (stats.silverman_bandwidth, {"samples": 100, "dimensions": 2}),
    "simulate_finite_population": (
        stats.simulate_finite_population,
        {"models": 8, "population": 10, "training_samples": 5, "dimensions": 3},
    ),
    "simulate_regression": (
        stats.simulate_regression,
        {"dimensions": 60, "samples": 20, "trials": 4, "correlation": 0.9},
    ),
}


def public_functions() -> set[str]:
    return {name for name in stats.__all__ if inspect.isfunction(getattr(stats, name))}


def array_calls() -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Returns all calls with an array: name -> (function of the array, whether it has one row per model)."""
    sample_calls = SAMPLE_CALLS | MORE_SAMPLE_CALLS | LABEL_CALLS
    member_calls = {f"{name} members": f for name, f in MEMBER_CALLS.items() if name != "lira"}
    calls = {name: (function, False) for name, function in (sample_calls | member_calls).items()}
    return calls | {name: (f, True) for name, f in (MODEL_CALLS | MORE_MODEL_CALLS).items()}


def as_list(result: Any) -> list[Any]:
    """Returns the parts of a result, which is an array or a data class of arrays."""
    if hasattr(result, "__dict__"):
        return [*vars(result).values()]
    return [*(result if isinstance(result, tuple) else np.atleast_1d(result))]
