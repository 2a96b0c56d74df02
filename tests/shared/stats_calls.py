"""Calls of public functions of `lm_mia.stats` as functions of one array, for tests of unusual arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lm_mia import stats

MEMBER_N = np.array([True, False, True, False])
MEMBER_MxN = np.array([[True, False, True, False], [False, True, True, False]] * 4)
VALUE_N = [1.0, 2.0, 3.0, 4.0]
GROUP_N = [0, 0, 0, 0]
GAUSSIANS = stats.fit_gaussians(np.random.default_rng(0).normal(size=(8, 4)), MEMBER_MxN)

# Each function of the array under test, which has one value per sample, or per model and sample.
OF_SAMPLES: dict[str, Callable[[Any], Any]] = {
    "auc": lambda x: stats.auc(x, MEMBER_N),
    "bootstrap_intervals": lambda x: stats.bootstrap_intervals(x, MEMBER_N, 0.5, replicates=2),
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
    "lowercase target": lambda x: stats.lowercase_loss_difference(x, VALUE_N),
    "lowercase": lambda x: stats.lowercase_loss_difference(VALUE_N, x),
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
OF_MODELS: dict[str, Callable[[Any], Any]] = {
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
    "rmia offline": lambda x: stats.rmia_log_mean_probability(
        x, reference_member_MxN=MEMBER_MxN, offline=True, a=0.5
    ),
}
ALL = [(name, f, False) for name, f in OF_SAMPLES.items()]
ALL += [(name, f, True) for name, f in OF_MODELS.items()]

OF_MEMBERS: dict[str, Callable[[Any], Any]] = {
    "auc": lambda member_N: stats.auc(VALUE_N, member_N),
    "count_flip_bins": lambda member_N: stats.count_flip_bins(np.ones(4), member_N, 6),
    "count_member_votes": lambda member_N: stats.count_member_votes(np.ones((1, 4)), member_N, 6),
    "count_true_positives": lambda member_N: stats.count_true_positives(
        [VALUE_N], [[2.0]], np.zeros((1, 4)), member_N
    ),
    "decision_metrics": lambda member_N: stats.decision_metrics(
        [VALUE_N] * 2, member_N, GROUP_N, 0.5, 0
    ),
    "lira": lambda member_N: stats.lira(VALUE_N, [VALUE_N] * 2, [member_N, ~member_N]),
    "rates_of_halves": lambda member_N: stats.rates_of_halves(VALUE_N, member_N, GROUP_N, 0.5),
    "rmia offline": lambda member_N: stats.rmia_log_mean_probability(
        VALUE_N, reference_member_MxN=member_N, offline=True
    ),
    "true_positive_probability": lambda member_N: stats.true_positive_probability(
        np.ones((1, 4)), member_N[None]
    ),
}


def as_list(result: Any) -> list[Any]:
    """Returns the parts of a result, which is an array or a data class of arrays."""
    return [*vars(result).values()] if hasattr(result, "__dict__") else [*np.atleast_1d(result)]
