"""Causal evaluation of membership inference: the effect of membership on the scores of a target distribution.

A sample has two potential outcomes: Y(1), its score if it is in the training set, and Y(0), its score if it is not. The
target distribution P_T is that of the members. If the members of the evaluation set were drawn at random (multi-run or
one-run evaluation), non-members show Y(0), and `unadjusted_estimate` is right. If the classes have different sources
(zero-run evaluation), the unadjusted comparison also measures how the sources differ. Then non-members are weighted by
the odds of membership given their covariates (`ipw_estimate`), or Y(0) is predicted for the members by a regression on
the non-members (`g_formula_estimate`), or both (`aipw_estimate`). All three need overlap: wherever there are members,
there must be non-members; `CausalEstimate.has_overlap` says whether too few of them carry the weight.

All metrics are estimates, not bounds, and their quality depends on the estimated odds or regressions.

Legend: N samples, A members, B non-members, J residuals, F false positive rates, Q draws of the bootstrap.

Source: Even et al., Membership Inference Attacks from Causal Principles (CausalMIA), Sections 3-6, Appendices C and D.
Its Eqs. 5, 6, 9 and 11 divide the weighted sum of the non-members by their number (or P(A = 0)). That is right only if
there are as many members as non-members, since the odds sum to the number of members.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.causal_roc import (
    CausalCurve,
    EvaluationSet,
    causal_metrics,
    evaluation_set,
    predicted_rates,
)
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_magnitude
from lm_mia.stats.intervals import MIN_CLUSTERS, MIN_COUNT, check_confidence
from lm_mia.stats.resamples import Clusters, draw_clusters, sorted_clusters

MIN_EFFECTIVE_NONMEMBERS = 50
"""With fewer effective non-members, `CausalEstimate.has_overlap` is false."""
MAX_WEIGHT_SHARE = 0.1
"""If one non-member has a larger share of the weight, `CausalEstimate.has_overlap` is false."""
_MAX_SCORE = 1e100  # so that sums do not overflow
_BATCH = 2**20
"""Number of samples of all bootstrap replicates that are drawn at once."""


@dataclasses.dataclass(frozen=True)
class OutcomeModel:
    """A model of the scores that samples have without membership: Y(0) = mean given the covariates + residual.

    The residuals have the same distribution for all covariates, so one regression predicts the rates at all thresholds:
    Pr[Y(0) >= t | x] is the share of residuals at or above t - mean(x).
    """

    mean_N: FloatArray
    """E[Y(0) | x] of every sample, members included; fit it on other non-members than those that it predicts."""
    residual_J: FloatArray
    """Scores minus predicted means of non-members; their mean should be about 0."""


@dataclasses.dataclass(frozen=True)
class CausalEstimate:
    """Metrics of one evaluation set; all are estimates for the distribution of its members."""

    ate: float
    """E[Y(1) - Y(0)], the average effect of membership on the score, in units of the score."""
    auc: float
    """Area under the causal ROC curve: Pr[Y(1) > Y(0)] for two independent samples, ties counted as 1/2."""
    youden: float
    """Largest TPR(t) - FPR(t) over all thresholds, 0 or larger; biased upwards, since the threshold is fitted."""
    tpr_F: FloatArray
    """TPR at the smallest score of a non-member with an FPR of at most each requested rate, as for `threshold_at_fpr`.
    NaN if there are too few non-members for the rate (`nonmembers_needed`). With an outcome model, which predicts rates
    at all thresholds, it is at the smallest threshold with such an FPR."""
    realized_fpr_F: FloatArray
    """FPR at these thresholds."""
    members: int
    """Number of members that are used."""
    nonmembers: int
    """Number of non-members that are used."""
    left_out: int
    """Number of samples that are left out because of NaN."""
    effective_nonmembers: float
    """(sum of weights)^2 / sum of squared weights; NaN for the G-formula."""
    largest_weight_share: float
    """Largest weight of a non-member / sum of weights; NaN for the G-formula."""
    curve: CausalCurve

    @property
    def has_overlap(self) -> bool:
        """Whether enough non-members share the weight.

        True is no guarantee: non-members that should have most of the weight may be so rare that none was drawn. With
        about 100 effective non-members or fewer, intervals are too short (docs/results/statistics.md). False for the
        G-formula, which has no weights: check `ipw_estimate` of the same samples.
        """
        return (
            self.effective_nonmembers >= MIN_EFFECTIVE_NONMEMBERS
            and self.largest_weight_share <= MAX_WEIGHT_SHARE
        )


@dataclasses.dataclass(frozen=True)
class CausalIntervals:
    """An estimate with bootstrap intervals; ends are NaN where there are too few samples for an interval."""

    estimate: CausalEstimate
    ate_low: float
    ate_high: float
    auc_low: float
    auc_high: float
    tpr_low_F: FloatArray
    tpr_high_F: FloatArray


def unadjusted_estimate(score_N: ArrayLike, member_N: ArrayLike, fprs: ArrayLike) -> CausalEstimate:
    """Compares members with non-members as they are.

    Right if membership was drawn at random. In a zero-run evaluation, this estimate is biased.

    Args:
      score_N: membership scores, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      fprs: one false positive rate in [0, 1], or several.

    Returns:
      The estimate; AUC and TPRs equal those of `auc` and `tpr_at_fpr`.

    Raises:
      ValueError: if the shapes do not match, member_N is not boolean, a rate is outside [0, 1], or a class has no
        score.

    Source: CausalMIA, Eqs. 3 and 10.
    """
    return _estimate(_prepare(score_N, member_N, None, None, "weights"), fprs)


def ipw_estimate(
    score_N: ArrayLike,
    member_N: ArrayLike,
    log_odds_N: ArrayLike,
    fprs: ArrayLike,
    *,
    normalize: Literal["weights", "members"] = "weights",
) -> CausalEstimate:
    """Weights each non-member by its odds of membership (inverse propensity weighting).

    The weighted non-members have the distribution of the members' covariates, so that they show what the scores of the
    members would be without membership.

    Args:
      score_N: membership scores, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      log_odds_N: log(P(member | x) / P(non-member | x)) of each sample, or the log ratio of the densities of members
        and non-members. Only those of non-members are used; -inf is a weight of 0, and samples with NaN are left out.
        With normalize="weights" a constant does not matter.
      fprs: one false positive rate in [0, 1], or several.
      normalize: what the weighted sums are divided by: the sum of the weights, or the number of members. The latter is
        unbiased if the odds are right, but rates then end at the sum of the weights / members instead of 1, and the AUC
        may be above 1.

    Returns:
      The estimate.

    Raises:
      ValueError: as for `unadjusted_estimate`, and if the log odds of a non-member are +inf, all are -inf, or the
        weights overflow with normalize="members".

    Source: CausalMIA, Eqs. 6 and 11, divided by the number of members; self-normalized by default.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import ipw_estimate
      >>> member_N = np.array([True, True, False, False, False])
      >>> odds_N = np.array([1.0, 1.0, 2.0, 1.0, 0.5])
      >>> estimate = ipw_estimate([3.0, 1.0, 2.0, 0.0, 4.0], member_N, np.log(odds_N), fprs=0.2)
      >>> round(estimate.ate, 4), round(estimate.auc, 4)  # unadjusted: 0.0 and 0.5
      (0.2857, 0.5714)
      >>> round(estimate.effective_nonmembers, 3), estimate.has_overlap
      (2.333, False)
    """
    return _estimate(_prepare(score_N, member_N, log_odds_N, None, normalize), fprs)


def g_formula_estimate(
    score_N: ArrayLike, member_N: ArrayLike, outcome: OutcomeModel, fprs: ArrayLike
) -> CausalEstimate:
    """Compares the scores of the members with those that an outcome model predicts for them without membership.

    With more than 2,048 distinct scores the curve has that many thresholds, the largest 1,024 scores and evenly spaced
    ranks of the others, and TPRs are interpolated between them. With more than 1,024 members, predictions are averaged
    in 1,024 groups of neighbors.

    Args:
      score_N: membership scores, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      outcome: predicted means and residuals; samples with a NaN mean are left out.
      fprs: one false positive rate in [0, 1], or several.

    Returns:
      The estimate, without effective non-members: the model extrapolates where there are none.

    Raises:
      ValueError: as for `unadjusted_estimate`, and if the means do not match the scores, or residuals are not finite.

    Source: CausalMIA, Eq. 7 and Appendix D.
    """
    return _estimate(_prepare(score_N, member_N, None, outcome, "weights"), fprs)


def aipw_estimate(
    score_N: ArrayLike,
    member_N: ArrayLike,
    log_odds_N: ArrayLike,
    outcome: OutcomeModel,
    fprs: ArrayLike,
    *,
    normalize: Literal["weights", "members"] = "weights",
) -> CausalEstimate:
    """Corrects the predictions of an outcome model by its weighted errors on the non-members.

    The ATE is right if either the odds or the predicted means are right (double robustness), and the rates if either
    the odds or the predicted rates are. FPR(t) is the mean prediction for the members plus the weighted mean of
    the non-members' errors, 1[Y >= t] minus their prediction; Appendix D prints this term with the wrong sign. The
    curve is then replaced by the nearest monotone one in [0, 1], before AUC and TPRs are computed. Thresholds
    and groups of predictions are those of `g_formula_estimate`.

    Args:
      score_N: membership scores, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      log_odds_N: log odds of membership, as for `ipw_estimate`.
      outcome: predicted means and residuals, as for `g_formula_estimate`.
      fprs: one false positive rate in [0, 1], or several.
      normalize: what the weighted errors are divided by, as for `ipw_estimate`.

    Returns:
      The estimate.

    Raises:
      ValueError: as for `ipw_estimate` and `g_formula_estimate`.

    Source: CausalMIA, Eq. 8 and Appendix D.
    """
    return _estimate(_prepare(score_N, member_N, log_odds_N, outcome, normalize), fprs)


def causal_intervals(
    score_N: ArrayLike,
    member_N: ArrayLike,
    fprs: ArrayLike,
    *,
    log_odds_N: ArrayLike | None = None,
    outcome: OutcomeModel | None = None,
    normalize: Literal["weights", "members"] = "weights",
    cluster_N: ArrayLike | None = None,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> CausalIntervals:
    """Computes percentile bootstrap intervals of ATE, AUC and TPRs.

    The estimator follows from what is given: the unadjusted one, IPW with log odds, the G-formula with an outcome
    model, AIPW with both. Members and non-members are drawn separately, with replacement. Odds and outcome model are
    held fixed: the intervals do not cover that they are estimated, nor their bias, nor that the model was trained
    once.

    There is no interval without overlap (`CausalEstimate.has_overlap`). For the G-formula, which has no weights, only
    the ATE has an interval: the AUC and the TPRs rest on the distribution of the residuals, which the outcome model
    assumes to be known and the same for all covariates. Intervals with this assumption contain the true AUC in 71 % of
    experiments if the residuals are those of 200 non-members, and in 7 % or less if their spread depends on the
    covariates; AIPW corrects both. A TPR has no interval if it rests on fewer than 10 samples: of the effective
    non-members that may be called members, of the members that are detected, or of those that are not.

    If samples depend on each other, as pieces of one document do, give their clusters, which are then drawn as a whole,
    as by `bootstrap_intervals`. The 10 samples must be of 10 clusters, and there are no intervals at all with fewer
    than `MIN_CLUSTERS` = 50 clusters of members or of non-members.

    Args:
      score_N: membership scores, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      fprs: one false positive rate in [0, 1], or several.
      log_odds_N: log odds of membership, as for `ipw_estimate`.
      outcome: predicted means and residuals, as for `g_formula_estimate`.
      normalize: as for `ipw_estimate`.
      cluster_N: the cluster of each sample, as any integer; None if the samples are independent.
      confidence: share of the replicates inside the interval, in (0, 1); each tail has half of the remainder.
      replicates: number of replicates, at least 1.
      seed: seed of the draws.

    Returns:
      The estimate with the ends of the intervals.

    Raises:
      ValueError: if confidence or replicates is out of range, if there is not one integer per sample in cluster_N, or
        as for the estimate.

    Source: Efron and Tibshirani 1993, Section 13.3.
    """
    check_confidence(confidence)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: must be at least 1")
    prepared = _prepare(score_N, member_N, log_odds_N, outcome, normalize, cluster_N)
    estimate = _estimate(prepared, fprs)
    samples, clusters, fpr_F = prepared.samples, prepared.clusters, ranking.as_fprs(fprs)
    members, nonmembers = samples.score_A.size, samples.score_B.size
    is_missing = samples.weight_B is not None and not estimate.has_overlap
    is_missing |= clusters is not None and clusters.smallest_count < MIN_CLUSTERS
    rng = np.random.default_rng(seed)
    value_QxS = np.full((replicates, 2 + fpr_F.size), np.nan)
    step = max(1, _BATCH // (members + nonmembers))
    for start in range(0, 0 if is_missing else replicates, step):
        size = min(step, replicates - start)
        if clusters is None:
            count_QxA, count_QxB = (_draw_counts(rng, size, n) for n in (members, nonmembers))
        else:
            # A draw without members or non-members would miss 50 clusters or more, with a probability of exp(-50).
            count_QxG = draw_clusters(clusters.count, size, rng).astype(np.float64)
            count_QxA = count_QxG[:, clusters.member_N]
            count_QxB = count_QxG[:, clusters.nonmember_N]
        predicted_QxK = predicted_rates(samples, count_QxA, count_QxB)
        for r, predicted_K in enumerate(predicted_QxK):
            drawn = causal_metrics(samples, count_QxA[r], count_QxB[r], predicted_K, fpr_F)
            value_QxS[start + r] = drawn.ate, drawn.auc, *drawn.tpr_F
    tail = (1 - confidence) / 2
    low_S, high_S = np.quantile(value_QxS, [tail, 1 - tail], axis=0)
    effective = estimate.effective_nonmembers
    effective = nonmembers if math.isnan(effective) else effective
    positives_F = estimate.tpr_F * members
    fewest_F = np.minimum(np.minimum(positives_F, members - positives_F), fpr_F * effective)
    has_enough_F = fewest_F >= MIN_COUNT - 1e-9  # False for a TPR of NaN
    if clusters is not None:
        allowed_F = nonmembers - ranking.min_true_negatives(nonmembers, fpr_F)
        tp_F = np.rint(np.nan_to_num(positives_F)).astype(np.int64)
        has_enough_F &= clusters.fewest(allowed_F, tp_F) >= MIN_COUNT
    rests_on_residuals = samples.weight_B is None
    is_missing_S = np.concatenate([[False, rests_on_residuals], ~has_enough_F | rests_on_residuals])
    low_S[is_missing_S] = high_S[is_missing_S] = np.nan
    return CausalIntervals(
        estimate=estimate,
        ate_low=float(low_S[0]),
        ate_high=float(high_S[0]),
        auc_low=float(low_S[1]),
        auc_high=float(high_S[1]),
        tpr_low_F=low_S[2:],
        tpr_high_F=high_S[2:],
    )


def hoeffding_radius(members: int, nonmembers: int, width: float, confidence: float) -> float:
    """Computes how far the difference in means can be from the ATE if all trials are independent (multi-run).

    With a probability of at least ``confidence`` the difference in means of `unadjusted_estimate` is at most this far
    from the ATE. It is a sum of independent terms of width w / members and w / nonmembers, so by Hoeffding's inequality
    an error above r has a probability of at most 2 exp(-2 r^2 / (w^2 (1 / members + 1 / nonmembers))). The radius that
    the paper prints is two to three times as large. The samples of a single model are not independent.

    Args:
      members: number of members, at least 1.
      nonmembers: number of non-members, at least 1.
      width: largest minus smallest possible score, larger than 0.
      confidence: in (0, 1).

    Returns:
      The radius, in units of the score.

    Raises:
      ValueError: if an argument is out of range, or a number of samples is not a whole number.

    Source: Hoeffding 1963, Theorem 2; CausalMIA, Proposition 4.2, without its union bound over both classes.
    """
    check_confidence(confidence)
    if not as_counts([members, nonmembers], "members and nonmembers").all():
        raise ValueError(f"members={members}, nonmembers={nonmembers}: both must be at least 1")
    if not 0 < width < math.inf:
        raise ValueError(f"width={width}: must be larger than 0, and finite")
    return width * math.sqrt(math.log(2 / (1 - confidence)) / 2 * (1 / members + 1 / nonmembers))


def _draw_counts(rng: np.random.Generator, replicates: int, samples: int) -> FloatArray:
    """Draws how often each sample occurs in each replicate."""
    index_QxN = rng.integers(samples, size=(replicates, samples))
    return np.array([np.bincount(i_N, minlength=samples) for i_N in index_QxN], dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class _Prepared:
    samples: EvaluationSet
    clusters: Clusters | None
    """None if the samples are independent."""
    left_out: int


def _prepare(
    score_N: ArrayLike,
    member_N: ArrayLike,
    log_odds_N: ArrayLike | None,
    outcome: OutcomeModel | None,
    normalize: str,
    cluster_N: ArrayLike | None = None,
) -> _Prepared:
    """Checks the arguments, and leaves out samples with NaN."""
    score_N, member_N = as_float64(score_N, "score_N"), as_members(member_N, "member_N")
    if score_N.ndim != 1 or member_N.shape != score_N.shape:
        raise ValueError(
            f"scores of shape {score_N.shape} do not match members of shape {member_N.shape}"
        )
    if normalize not in ("weights", "members"):
        raise ValueError(f'normalize={normalize!r}: must be "weights" or "members"')
    if np.any(np.abs(score_N[np.isfinite(score_N)]) >= _MAX_SCORE):
        raise ValueError(
            f"score_N: the magnitude of finite scores must be below {_MAX_SCORE:g}; divide all scores by a number"
        )
    present_N = ~np.isnan(score_N)
    if log_odds_N is not None:
        log_odds_N = as_float64(log_odds_N, "log_odds_N")
        if log_odds_N.shape != score_N.shape:
            raise ValueError(
                f"log_odds_N of shape {log_odds_N.shape}: must have one number per score"
            )
        # Weights are of non-members only, so a member may lack log odds.
        present_N &= member_N | ~np.isnan(log_odds_N)
    mean_N = residual_J = None
    if outcome is not None:
        mean_N = as_float64(outcome.mean_N, "outcome.mean_N")
        residual_J = as_float64(outcome.residual_J, "outcome.residual_J")
        check_magnitude(mean_N, "outcome.mean_N", _MAX_SCORE)
        check_magnitude(residual_J, "outcome.residual_J", _MAX_SCORE)
        if mean_N.shape != score_N.shape:
            raise ValueError(
                f"outcome.mean_N of shape {mean_N.shape}: must have one number per score"
            )
        if residual_J.ndim != 1 or not residual_J.size or not np.all(np.isfinite(residual_J)):
            raise ValueError("outcome.residual_J: must be one or more finite numbers")
        present_N &= ~np.isnan(mean_N)
    is_A, is_B = present_N & member_N, present_N & ~member_N
    if not (is_A.any() and is_B.any()):
        raise ValueError("score_N: there must be a member and a non-member with a score")
    weight_B, unit_weight = None, math.nan
    if log_odds_N is not None:
        weight_B, unit_weight = _weights(log_odds_N[is_B], normalize)
    elif outcome is None:
        weight_B = np.ones(int(is_B.sum()))
    samples = evaluation_set(
        score_N[is_A],
        score_N[is_B],
        weight_B=weight_B,
        unit_weight=unit_weight,
        mean_A=None if mean_N is None else mean_N[is_A],
        mean_B=None if mean_N is None else mean_N[is_B],
        residual_J=residual_J,
    )
    clusters = next(sorted_clusters(np.where(present_N, score_N, np.nan), member_N, cluster_N))
    return _Prepared(samples, clusters, int((~present_N).sum()))


def _weights(log_odds_B: FloatArray, normalize: str) -> tuple[FloatArray, float]:
    """Returns weights divided by the largest one, so that none overflows, and a weight of 1 on this scale."""
    largest = float(log_odds_B.max())
    if largest == math.inf:
        raise ValueError(
            "log_odds_N: +inf for a non-member, which means that no non-member has its covariates; it is a member, "
            "or the odds are wrong"
        )
    if largest == -math.inf:
        raise ValueError("log_odds_N: -inf for all non-members, which leaves no weight")
    with np.errstate(over="ignore"):  # a difference above the largest number is a weight of 0
        weight_B = np.exp(log_odds_B - largest)
    if normalize == "weights":
        return weight_B, math.nan
    if not abs(largest) < 700:
        raise ValueError(
            f'log_odds_N: the largest of a non-member is {largest:g}, too far from 0 for normalize="members"; use '
            '"weights"'
        )
    return weight_B, math.exp(-largest)


def _estimate(prepared: _Prepared, fprs: ArrayLike) -> CausalEstimate:
    samples = prepared.samples
    members, nonmembers = samples.score_A.size, samples.score_B.size
    count_A, count_B = np.ones(members), np.ones(nonmembers)
    (predicted_K,) = predicted_rates(samples, count_A[None], count_B[None])
    with np.errstate(invalid="ignore"):  # infinite scores have no mean
        metrics = causal_metrics(samples, count_A, count_B, predicted_K, ranking.as_fprs(fprs))
    fpr_F, tpr_F = ranking.as_fprs(fprs), metrics.tpr_F
    if (
        samples.members is None
    ):  # a rate below 1 / n is reached only by a non-member with little weight
        is_unreached_F = ranking.too_low(nonmembers, fpr_F) & (metrics.realized_fpr_F == 0)
        tpr_F = np.where(is_unreached_F, np.nan, tpr_F)
    effective = share = math.nan
    if samples.weight_B is not None:
        total = float(samples.weight_B.sum())
        effective = total**2 / float(np.sum(samples.weight_B**2))
        share = float(samples.weight_B.max()) / total
    return CausalEstimate(
        ate=metrics.ate,
        auc=metrics.auc,
        youden=metrics.youden,
        tpr_F=tpr_F,
        realized_fpr_F=metrics.realized_fpr_F,
        members=members,
        nonmembers=nonmembers,
        left_out=prepared.left_out,
        effective_nonmembers=effective,
        largest_weight_share=share,
        curve=CausalCurve(samples.threshold_K, metrics.fpr_K, metrics.tpr_K),
    )
