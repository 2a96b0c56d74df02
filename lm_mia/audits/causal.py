"""Adjusts an audit for members and non-members from different sources, by covariates of the samples.

Scores of members and non-members from different sources differ even without training on the members. Two cross-fitted
models of the covariates correct for it (`lm_mia.attacks.propensity`): the odds of membership weight the non-members
so that they resemble the members, and a regression on the non-members predicts what the members would have scored.
Intervals hold both models fixed.

Legend: N units (samples or users), C columns of covariates, K features of the models, X distinct texts, U users, F
rates.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from lm_mia import stats
from lm_mia.attacks import propensity
from lm_mia.audits import curves as audit_curves
from lm_mia.data.covariates import Covariates
from lm_mia.errors import UserError

ESTIMATORS = ("unadjusted", "ipw", "g_formula", "aipw")
TABLES = ("causal", "causal_roc", "causal_weights", "covariate_balance")
"""The data frames of `tables`, and their files."""
RECOMMENDED = "aipw"
MAX_BEYOND = 0.1
"""There is no overlap if the log odds of a larger share of members are above those of all non-members."""
MAX_DIFFERENCE = 0.1
"""After weighting, a covariate with a larger standardized difference of means is usually not considered balanced."""
_MAX_CORRELATION = 0.999
_MIN_DISTINCT = 10  # values of a column whose rank correlation with the score is checked
_KNOTS = (0.05, 0.275, 0.5, 0.725, 0.95)
_PREFIX = 64  # characters by which texts are recognized as near-duplicates

Frames = dict[str, pd.DataFrame]


def describe_texts(covariates_T: Sequence[Covariates]) -> list[Covariates]:
    """Returns covariates with columns that describe the texts; ``text_N`` then numbers groups of near-duplicates.

    Args:
      covariates_T: of each model; they share the distinct texts, which are therefore read once.
    """
    texts = covariates_T[0].texts
    feature_XxK = propensity.text_features(texts).astype(np.float64)
    style = [f"text: {name}" for name in propensity.TEXT_STYLE]
    words = [f"text: words {k + 1}" for k in range(feature_XxK.shape[1] - len(style))]
    prefixes = [" ".join(text[: 4 * _PREFIX].lower().split())[:_PREFIX] for text in texts]
    group_X = pd.factorize(np.array(prefixes, object))[0]
    is_number_K = np.arange(feature_XxK.shape[1]) < len(style)
    described: dict[int, Covariates] = {}
    for covariates in covariates_T:
        assert covariates.text_N is not None
        if id(covariates) not in described:
            described[id(covariates)] = Covariates(
                (*covariates.names, *style, *words),
                np.hstack([covariates.value_NxC, feature_XxK[covariates.text_N]]),
                np.concatenate([covariates.is_number_C, is_number_K]),
                group_X[covariates.text_N],
            )
    return [described[id(covariates)] for covariates in covariates_T]


def by_user(covariates: Covariates, user_N: np.ndarray, user_U: np.ndarray) -> Covariates:
    """Returns the covariates of users, the means over their samples.

    Args:
      covariates: of samples.
      user_N: the user of each sample, as a number.
      user_U: the users to return.
    """
    count_U = np.bincount(user_N)[user_U]
    value_CxU = [np.bincount(user_N, weights=v)[user_U] / count_U for v in covariates.value_NxC.T]
    value_UxC = np.array(value_CxU).reshape(-1, user_U.size).T
    return dataclasses.replace(covariates, value_NxC=value_UxC, text_N=None)


def check(score_N: np.ndarray, member_N: np.ndarray, covariates: Covariates, where: str) -> None:
    """Raises UserError, with one line per problem, if covariates cannot be used with these scores."""
    problems = []
    scored_N = ~np.isnan(score_N)
    group_N = _groups(covariates, score_N.size)
    for name, is_member in (("members", True), ("non-members", False)):
        count = np.unique(group_N[scored_N & (member_N == is_member)]).size
        if count < 2:
            problems.append(
                f"{where}: covariates need at least 2 different {name} with a score, but there are {count}; add more"
            )
    value_NxC = covariates.value_NxC[scored_N]
    if len(value_NxC) and not np.ptp(value_NxC, axis=0).any():
        problems.append(
            f"{where}: all covariates are constant, so they cannot show how members and non-members differ; name "
            "columns that vary"
        )
    rank_N = scipy_stats.rankdata(score_N[scored_N])
    for name, value_N in zip(covariates.names, value_NxC.T, strict=True):
        if np.unique(value_N).size < _MIN_DISTINCT or not np.ptp(rank_N):
            continue
        correlation = np.corrcoef(scipy_stats.rankdata(value_N), rank_N)[0, 1]
        if abs(correlation) > _MAX_CORRELATION:
            problems.append(
                f"{where}: covariate {name!r} has a rank correlation of {correlation:.4f} with the scores: a covariate "
                "must not depend on the model, as the score and the loss do; leave it out"
            )
    if problems:
        raise UserError("\n".join(problems))


@dataclasses.dataclass(frozen=True)
class Adjustment:
    """The scores of a model, without missing ones, with the models of their covariates."""

    score_N: np.ndarray
    member_N: np.ndarray
    covariates: Covariates
    log_odds_N: np.ndarray
    outcome: stats.OutcomeModel
    document_N: np.ndarray | None
    """The document of each sample, as a number; None if the samples are independent."""
    left_out: int

    def intervals(
        self, estimator: str, fprs: Sequence[float], confidence: float, replicates: int
    ) -> stats.CausalIntervals:
        """Returns the estimates of one of `ESTIMATORS` with intervals."""
        return stats.causal_intervals(
            self.score_N,
            self.member_N,
            fprs,
            log_odds_N=self.log_odds_N if estimator in ("ipw", "aipw") else None,
            outcome=self.outcome if estimator in ("g_formula", "aipw") else None,
            cluster_N=self.document_N,
            confidence=confidence,
            replicates=replicates,
        )


def fit(
    score_N: np.ndarray,
    member_N: np.ndarray,
    covariates: Covariates,
    document_N: np.ndarray | None = None,
) -> Adjustment:
    """Fits the models to scores and covariates that `check` has accepted."""
    scored_N = ~np.isnan(score_N)
    group_N = _groups(covariates, score_N.size)[scored_N]
    covariates = covariates.take(scored_N)
    score_N, member_N = score_N[scored_N], member_N[scored_N]
    feature_NxK = _features(covariates)
    return Adjustment(
        score_N,
        member_N,
        covariates,
        propensity.cross_fitted_log_odds(feature_NxK, member_N, group_N),
        propensity.cross_fitted_outcome(feature_NxK, score_N, member_N, group_N),
        None if document_N is None else document_N[scored_N],
        int(np.count_nonzero(~scored_N)),
    )


def with_intervals(
    result: stats.CausalIntervals, intervals: stats.BootstrapIntervals
) -> stats.CausalIntervals:
    """Returns unadjusted estimates with the intervals that the audit has of the same AUC and TPRs of its only model."""
    is_known_F = ~np.isnan(result.estimate.tpr_F)
    return dataclasses.replace(
        result,
        auc_low=float(intervals.auc_low_T[0]),
        auc_high=float(intervals.auc_high_T[0]),
        tpr_low_F=np.where(is_known_F, intervals.tpr_low_TxF[0], np.nan),
        tpr_high_F=np.where(is_known_F, intervals.tpr_high_TxF[0], np.nan),
    )


def tables(
    adjustment: Adjustment, results: Sequence[stats.CausalIntervals], fprs: Sequence[float]
) -> tuple[Frames, list[str]]:
    """Returns the rows of one model in each of `TABLES`, and sentences on what makes the estimates unreliable.

    Args:
      adjustment: the scores and models.
      results: of each of `ESTIMATORS`, in this order.
      fprs: the false positive rates of the results.
    """
    member_N, log_odds_N = adjustment.member_N, adjustment.log_odds_N
    weighted = results[ESTIMATORS.index("ipw")].estimate
    beyond = propensity.share_beyond_nonmembers(log_odds_N, member_N)
    has_overlap = weighted.has_overlap and beyond <= MAX_BEYOND
    shared = {
        "effective_nonmembers": weighted.effective_nonmembers,
        "largest_weight_share": weighted.largest_weight_share,
        "members_beyond_nonmembers": beyond,
        "has_overlap": has_overlap,
        "covariate_auc": float(stats.auc(log_odds_N, member_N).auc_T[0]),
    }
    counts = {"members": weighted.members, "nonmembers": weighted.nonmembers}
    counts["left_out"] = adjustment.left_out
    causal, roc = [], []
    for name, result in zip(ESTIMATORS, results, strict=True):
        metrics = _metrics(result, fprs, has_intervals=has_overlap or name == "unadjusted")
        causal.append({"estimator": name} | counts | metrics | shared)
        curve = result.estimate.curve
        points = audit_curves.roc_points(
            curve.fpr_K, curve.tpr_K, curve.threshold_K, weighted.nonmembers
        )
        points.insert(0, "estimator", name)
        roc.append(points)
    weight_N = np.zeros(member_N.size)
    weight_N[~member_N] = np.exp(log_odds_N[~member_N] - log_odds_N[~member_N].max())
    balance = _balance(adjustment.covariates, member_N, weight_N)
    frames = {
        "causal": pd.DataFrame(causal),
        "causal_roc": pd.concat(roc, ignore_index=True),
        "causal_weights": audit_curves.histogram(log_odds_N, member_N, weight_N),
        "covariate_balance": balance,
    }
    constant = balance.loc[balance.pop("is_constant"), "covariate"]
    # A property of the texts, such as the share of digits, may well be the same for all of them.
    notes = [
        f"covariate {name!r} is constant, so it has no effect"
        for name in constant
        if not str(name).startswith("text: ")
    ]
    return frames, [*_notes(weighted, shared, balance), *notes]


def _groups(covariates: Covariates, samples: int) -> np.ndarray:
    """Returns group_N: samples with similar texts are in one group."""
    return np.arange(samples) if covariates.text_N is None else covariates.text_N


def _features(covariates: Covariates) -> np.ndarray:
    """Returns feature_NxK: a natural cubic spline of each number, and the other columns as they are."""
    value_NxC = np.ldexp(covariates.value_NxC, -_exponents(covariates))
    columns = [
        _spline(value_N) if is_number else value_N[:, None]
        for value_N, is_number in zip(value_NxC.T, covariates.is_number_C.tolist(), strict=True)
    ]
    return np.hstack(columns)


def _exponents(covariates: Covariates) -> np.ndarray:
    """Returns exponent_C, integers: values divided by 2^exponent are at most 1, so that their squares do not vanish."""
    return np.frexp(np.abs(covariates.value_NxC).max(axis=0))[1]


def _spline(value_N: np.ndarray) -> np.ndarray:
    """Returns value_NxD, a basis of natural cubic splines with up to five knots, linear beyond the outer ones.

    Source: Harrell 2015, "Regression Modeling Strategies", Section 2.4.5.
    """
    knot_T = np.unique(np.quantile(value_N, _KNOTS, method="lower"))
    if knot_T.size < 3:
        return value_N[:, None]
    width = knot_T[-1] - knot_T[0]
    # Scaled, and cut off where the cubes would lose the digits of the linear tails.
    scaled_N = np.clip((value_N - knot_T[0]) / width, -1, 1e3)
    knot_T = (knot_T - knot_T[0]) / width

    def cube(knot: float) -> np.ndarray:
        return np.maximum(scaled_N - knot, 0) ** 3

    *inner, second, last = knot_T.tolist()
    terms = [
        cube(knot)
        - cube(second) * (last - knot) / (last - second)
        + cube(last) * (second - knot) / (last - second)
        for knot in inner
    ]
    return np.column_stack([value_N, *terms])


def _metrics(
    result: stats.CausalIntervals, fprs: Sequence[float], *, has_intervals: bool
) -> dict[str, float]:
    estimate = result.estimate
    values = {
        "ate": (estimate.ate, result.ate_low, result.ate_high),
        "auc": (estimate.auc, result.auc_low, result.auc_high),
    }
    tpr = (estimate.tpr_F, result.tpr_low_F, result.tpr_high_F)
    values |= {f"tpr_{fpr:g}": ends for fpr, ends in zip(fprs, np.transpose(tpr), strict=True)}
    columns: dict[str, float] = {}
    for name, (value, low, high) in values.items():
        columns[name] = float(value)
        columns[f"{name}_low"] = float(low) if has_intervals else math.nan
        columns[f"{name}_high"] = float(high) if has_intervals else math.nan
    return columns


def _balance(covariates: Covariates, member_N: np.ndarray, weight_N: np.ndarray) -> pd.DataFrame:
    """Returns means of each column, and their differences in standard deviations before and after weighting.

    The standard deviation is the root of the mean of both variances, without weights. A difference is infinite if the
    column is constant in each class but differs.
    """
    exponent_C = _exponents(covariates)
    value_NxC = np.ldexp(covariates.value_NxC, -exponent_C)
    mean1_C, mean0_C = value_NxC[member_N].mean(axis=0), value_NxC[~member_N].mean(axis=0)
    weighted_C = weight_N @ value_NxC / weight_N.sum()
    deviation_C = np.sqrt((value_NxC[member_N].var(axis=0) + value_NxC[~member_N].var(axis=0)) / 2)

    def standardized(difference_C: np.ndarray) -> np.ndarray:
        difference_C = np.where(
            np.abs(difference_C) <= 1e-12 * np.maximum(np.abs(mean1_C), np.abs(mean0_C)),
            0,
            difference_C,
        )
        infinite_C = np.sign(difference_C) * np.where(difference_C, math.inf, 1)
        return np.divide(difference_C, deviation_C, out=infinite_C, where=deviation_C > 0)

    return pd.DataFrame(
        {
            "is_constant": np.ptp(value_NxC, axis=0) == 0,
            "covariate": covariates.names,
            "members_mean": np.ldexp(mean1_C, exponent_C),
            "nonmembers_mean": np.ldexp(mean0_C, exponent_C),
            "weighted_nonmembers_mean": np.ldexp(weighted_C, exponent_C),
            "difference": standardized(mean1_C - mean0_C),
            "weighted_difference": standardized(mean1_C - weighted_C),
        }
    )


def _notes(
    weighted: stats.CausalEstimate, shared: Mapping[str, Any], balance: pd.DataFrame
) -> Iterator[str]:
    """Yields sentences on missing overlap and remaining differences."""
    remedy = (
        "do not rely on the adjusted estimates; add non-members that resemble the members (same source, dates and "
        "lengths), or evaluate only members that have such non-members"
    )
    beyond = shared["members_beyond_nonmembers"]
    if beyond > MAX_BEYOND:
        yield (
            f"{beyond:.0%} of the members are unlike all non-members, judged by the covariates, so no weights can make "
            f"the classes comparable: {remedy}"
        )
    if not weighted.has_overlap:
        yield (
            f"too few non-members resemble the members: the effective number of the {weighted.nonmembers:,} weighted "
            f"non-members is {weighted.effective_nonmembers:.3g}, and a single one has "
            f"{weighted.largest_weight_share:.1%} of the weight: {remedy}"
        )
    if weighted.members < stats.MIN_EFFECTIVE_NONMEMBERS:
        yield (
            f"only {weighted.members} members have a score: models of few members are uncertain, and intervals of the "
            f"adjusted estimates are too short; add members, at least {stats.MIN_EFFECTIVE_NONMEMBERS}"
        )
    # The difference must also be larger than chance explains.
    error = math.sqrt(1 / weighted.members + 1 / weighted.effective_nonmembers)
    limit = max(MAX_DIFFERENCE, 3 * error)
    different = balance[balance["weighted_difference"].abs() > limit]
    if shared["has_overlap"] and len(different):
        worst = different.iloc[int(different["weighted_difference"].abs().argmax())]
        yield (
            f"weighting does not balance {len(different)} of {len(balance)} covariates: {worst['covariate']!r} still "
            f"differs by {abs(worst['weighted_difference']):.2f} standard deviations between members and weighted "
            "non-members; prefer AIPW to IPW, and check that non-members cover the range of the members"
        )
