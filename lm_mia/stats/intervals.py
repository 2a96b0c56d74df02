"""Confidence intervals: bootstrap intervals of AUC and TPR, and exact (Clopper-Pearson) intervals of a count.

The bootstrap resamples within each class and recalibrates the threshold in every replicate. A replicate is a count per
sample, so that the scores are sorted only once. Shapes: T targets, N samples, F false positive rates, S statistics (the
AUC and one TPR per rate), R replicates drawn at once; N1 is N + 1.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from lm_mia.stats import ranking

_BLOCK = 2**16
"""Samples drawn at once, over replicates or within one: memory that is taken from the system anew
for every replicate would cost more than the draws."""


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, *, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Exact two-sided interval for a rate: it covers the truth with probability confidence or more.

    Args:
      successes: counts, any shape.
      trials: counts, broadcast with successes.
      confidence: in (0, 1); each tail has half of the rest.

    Returns:
      (low, high); low is 0 at no success, high is 1 at no failure, and both so for no trial.

    Raises:
      ValueError: confidence out of range, or counts that are not 0 <= successes <= trials.

    Source: Clopper and Pearson 1934, as quantiles of beta distributions.
    """
    check_confidence(confidence)
    hits, n = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    if not np.all((hits >= 0) & (hits <= n)):
        raise ValueError("counts must satisfy 0 <= successes <= trials")
    tail = (1 - confidence) / 2
    # The parameters at the two closed ends are invalid for the beta, hence the stand-ins.
    low = betaincinv(np.maximum(hits, 1), n - hits + 1, tail)
    high = betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - tail)
    return np.where(hits == 0, 0.0, low), np.where(hits == n, 1.0, high)


def check_confidence(confidence: float) -> None:
    """ValueError unless confidence is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must lie between 0 and 1, both excluded")


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Every target's AUC and TPRs with the ends of their intervals; NaN where a class is empty."""

    fpr_F: NDArray[np.float64]
    """As asked for."""
    auc_T: NDArray[np.float64]
    auc_low_T: NDArray[np.float64]
    auc_high_T: NDArray[np.float64]
    tpr_TxF: NDArray[np.float64]
    tpr_low_TxF: NDArray[np.float64]
    tpr_high_TxF: NDArray[np.float64]
    left_out_T: NDArray[np.int64]
    """NaN scores."""


def intervals(
    score_TxN: ArrayLike,
    member: ArrayLike,
    fprs: ArrayLike = (),
    *,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> Intervals:
    """Percentile intervals of AUC and of TPR at each FPR: what other samples would have given.

    They cover the choice of samples, not the training of the target or its references. A replicate
    is exactly what `lm_mia.stats.roc.tpr_at_fpr` says of as many samples of each class, drawn from
    it with replacement; where so many drawn scores are +inf that no threshold reaches a rate, its
    TPR is 0. Every target sees the same draws for a seed, so its interval does not depend on the
    other targets given.

    A bootstrap cannot see beyond the scores it has: where fpr is few non-members, say fpr * n below
    10, TPR intervals are rough.

    Args:
      score_TxN: scores, larger for members; one dimension is one target. NaN is left out.
      member: member_N or member_TxN, booleans.
      fprs: fpr_F, rates in [0, 1], or one rate; by default AUC alone.
      confidence: share of the replicates inside, in (0, 1); each tail has half of the rest.
      replicates: number of draws, 1 or more.
      seed: of the draws.

    Raises:
      ValueError: confidence or replicates out of range, or as of `lm_mia.stats.roc.tpr_at_fpr`.

    Source: Efron and Tibshirani 1993, section 13.3.
    """
    check_confidence(confidence)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: must be 1 or more")
    tail = (1 - confidence) / 2
    fpr_F = ranking.rates(fprs)
    found: list[NDArray[np.float64]] = []
    left_out_T: list[int] = []
    for out, ins, left_out in ranking.classes(score_TxN, member):
        rows_3xS = np.full((3, 1 + fpr_F.size), np.nan)
        if out.size and ins.size:
            tpr_F = ranking.called(ins, ranking.thresholds(out, fpr_F)) / ins.size
            rows_3xS[0] = [ranking.area(out, ins), *tpr_F]
            drawn_RxS = _replicates(out, ins, fpr_F, replicates, seed)
            rows_3xS[1:] = np.quantile(drawn_RxS, [tail, 1 - tail], axis=0)
        found.append(rows_3xS)
        left_out_T.append(left_out)
    value_Tx3xS = np.array(found).reshape(len(found), 3, 1 + fpr_F.size)
    auc_T, auc_low_T, auc_high_T = value_Tx3xS[:, :, 0].T
    tpr_TxF, tpr_low_TxF, tpr_high_TxF = value_Tx3xS[:, :, 1:].transpose(1, 0, 2)
    return Intervals(
        fpr_F=fpr_F,
        auc_T=auc_T,
        auc_low_T=auc_low_T,
        auc_high_T=auc_high_T,
        tpr_TxF=tpr_TxF,
        tpr_low_TxF=tpr_low_TxF,
        tpr_high_TxF=tpr_high_TxF,
        left_out_T=np.array(left_out_T, dtype=np.int64),
    )


def _replicates(
    out: ranking.Scores,
    ins: ranking.Scores,
    fpr_F: NDArray[np.float64],
    replicates: int,
    seed: int,
) -> NDArray[np.float64]:
    """AUC, then the TPRs, of every redrawn sample: one row a replicate."""
    block = min(replicates, max(1, _BLOCK // max(out.size, ins.size)))
    # A stream for each class, so what is drawn does not depend on how many are drawn at once.
    of_out, of_ins = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    outs, inside = _Draws(out.size, block, of_out), _Draws(ins.size, block, of_ins)
    below_N, not_above_N = np.searchsorted(out, ins, "left"), np.searchsorted(out, ins, "right")
    ties = not np.array_equal(below_N, not_above_N)
    lower_RxN = np.empty((block, ins.size), dtype=np.int64)
    k_F = ranking.ranks(out.size, fpr_F)
    rows: list[NDArray[np.float64]] = []
    for start in range(0, replicates, block):
        size = min(block, replicates - start)
        outs.draw(size)
        inside.draw(size)
        # Pairs with the member above count twice, ties once: whole numbers up to the division.
        twice_R = _pairs(outs, inside, below_N, lower_RxN[:size])
        twice_R += _pairs(outs, inside, not_above_N, lower_RxN[:size]) if ties else twice_R
        auc_R = twice_R / (2 * out.size * ins.size)
        tpr_RxF = _called(out, ins, k_F, outs, inside) / ins.size
        rows.append(np.column_stack([auc_R, tpr_RxF]))
    return np.concatenate(rows)


class _Draws:
    """n draws of n sorted samples with replacement, in up to ``block`` replicates at once."""

    count_RxN1: NDArray[np.int64]
    """How often sample i was drawn at i + 1, after a 0."""
    up_to_RxN1: NDArray[np.int64]
    """r n + how many of the first i samples were drawn at i: so flattened it is sorted."""

    def __init__(self, n: int, block: int, rng: np.random.Generator):
        self.n, self._rng = n, rng
        self._both = np.empty((2, block, n + 1), dtype=np.int64)

    def draw(self, size: int) -> None:
        self.count_RxN1, self.up_to_RxN1 = self._both[:, :size]
        self.count_RxN1.fill(0)
        row_Rx1 = (self.n + 1) * np.arange(size)[:, None] + 1
        for start in range(0, self.n, _BLOCK):
            drawn = self._rng.integers(self.n, size=(size, min(_BLOCK, self.n - start)))
            drawn += row_Rx1
            np.add.at(self.count_RxN1.reshape(-1), drawn.reshape(-1), 1)
        np.cumsum(self.count_RxN1, out=self.up_to_RxN1.reshape(-1))


def _pairs(
    outs: _Draws, inside: _Draws, rank_N: NDArray[np.intp], lower_RxN: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pairs of a redrawn member and a redrawn non-member among the first rank of them."""
    np.take(outs.up_to_RxN1, rank_N, axis=1, out=lower_RxN, mode="clip")  # "raise" would copy
    lower_RxN -= outs.up_to_RxN1[:, :1]
    return np.einsum("rn,rn->r", inside.count_RxN1[:, 1:], lower_RxN)


def _called(
    out: ranking.Scores, ins: ranking.Scores, k_F: NDArray[np.int64], outs: _Draws, inside: _Draws
) -> NDArray[np.int64]:
    """Redrawn members called at what `ranking.thresholds` says of the redrawn non-members.

    Samples that were not drawn are stepped over: the k-th smallest is the first sample up to which
    k were drawn, and the next distinct score is of the first sample that raises the number drawn
    beyond all that are tied with the k-th.
    """
    n, flat = out.size, outs.up_to_RxN1.reshape(-1)
    row_Rx1 = np.arange(outs.up_to_RxN1.shape[0])[:, None]
    first_Rx1 = (n + 1) * row_Rx1 + 1  # where a row's sample 0 stands in flat
    kth_RxF = out[np.searchsorted(flat, n * row_Rx1 + np.maximum(k_F, 1)) - first_Rx1]
    not_above_RxF = np.searchsorted(out, kth_RxF, side="right")
    drawn_RxF = np.take_along_axis(outs.up_to_RxN1, not_above_RxF, axis=1)
    next_RxF = np.searchsorted(flat, drawn_RxF, side="right") - first_Rx1
    # With nothing drawn above, the search ran on into the next row, and the threshold is +inf.
    threshold_RxF = np.append(out, out.dtype.type(np.inf))[np.minimum(next_RxF, n)]
    threshold_RxF[:, k_F == 0] = -np.inf
    below_RxF = np.searchsorted(ins, threshold_RxF, side="left")
    # Too many drawn at +inf: no threshold is high enough, so no member is called.
    below_RxF[(kth_RxF == np.inf) & (k_F > 0)] = ins.size
    lower_RxF = np.take_along_axis(inside.up_to_RxN1, below_RxF, axis=1)
    return inside.up_to_RxN1[:, -1:] - lower_RxF
