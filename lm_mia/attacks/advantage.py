"""Membership advantage of every attack: how much better than chance its score tells members from non-members.

The samples of each class are divided at random into two halves; pieces of a document are in the same half. The density
ratio of the score is estimated from the first half, in equal-count bins, and the rule "member where a member is more
likely" is evaluated on the second half. Scores enter only as numbers of samples in each bin, so they are sorted once
and never evaluated one by one.

Labels shuffled within each half show what the numbers would be without leakage. Shuffling draws the members of each bin
without replacement, so their number has a multivariate hypergeometric distribution, from which it is drawn directly.

T: targets, N2: samples of the population (2N), D: documents, S: samples with a score, J: bins, 2xJ: members and
non-members in a bin.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import seeds, stats
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.score_matrix import map_in_order

TABLE = "advantage.csv"
"""Name of the table."""
_SHUFFLES = 10


@dataclasses.dataclass(frozen=True)
class _BinCounts:
    """Numbers of members (row 0) and of non-members (row 1) in each bin of the score of a target."""

    fitted_2xJ: np.ndarray
    held_out_2xJ: np.ndarray
    left_out: int
    """Number of samples without a score."""


@dataclasses.dataclass(frozen=True)
class _Estimates:
    """Estimates of the advantage at one prior; NaN if a half lacks a class."""

    held_out: float = np.nan
    held_out_low: float = np.nan
    held_out_high: float = np.nan
    plug_in: float = np.nan
    pointwise_low: float = np.nan
    pointwise_high: float = np.nan


def membership_advantage(scores: Scores, *, priors: tuple[float, ...]) -> pd.DataFrame:
    """Returns the rows of advantage.csv of one attack, one per prior probability of membership.

    If samples are pieces of documents, they are not independent, so there are no intervals.
    """
    file, member_TxN2 = scores.file, scores.member_TxN
    document_N2 = scores.population.document_N
    has_split_documents = scores.population.has_split_documents
    order_N2 = seeds.permutation(0, "advantage/halves", int(document_N2.max(initial=-1)) + 1)
    place_N2 = None
    if has_split_documents:
        place_D = np.argsort(order_N2)
        order_N2 = np.argsort(place_D[document_N2], kind="stable")
        place_N2 = place_D[document_N2][order_N2]

    def count_target(t: int) -> _BinCounts:
        return _count_in_bins(file.read_target(t)[order_N2], member_TxN2[t][order_N2], place_N2)

    counts_T = [*map_in_order(scores.pool, count_target, range(file.num_targets))]
    shuffled = [_shuffled(counts_T[0], seed) for seed in range(_SHUFFLES)]
    rows: list[dict[str, Any]] = []
    for prior in priors:
        of_targets = [_estimate(counts, prior) for counts in counts_T]
        of_shuffles = [_estimate(counts, prior) for counts in shuffled]
        first = dataclasses.asdict(of_targets[0])
        if has_split_documents:
            first |= {"held_out_low": np.nan, "held_out_high": np.nan}
        row = {"prior": prior, "baseline": abs(1 - 2 * prior), **first}
        for name in ("held_out", "plug_in"):
            value_T = np.array([getattr(estimates, name) for estimates in of_targets])
            row |= {f"{name}_mean": value_T.mean(), f"{name}_std": value_T.std()}
        for name in ("held_out", "plug_in"):
            row[f"shuffled_{name}"] = np.mean([getattr(values, name) for values in of_shuffles])
        row |= {"bins": counts_T[0].fitted_2xJ.shape[1], "targets": len(counts_T)}
        rows.append(row | {"left_out": max(counts.left_out for counts in counts_T)})
    return pd.DataFrame(rows)


def _count_in_bins(
    score_N2: np.ndarray, member_N2: np.ndarray, place_N2: np.ndarray | None = None
) -> _BinCounts:
    """Counts the samples in each equal-count bin of the fitted half, from scores in random order.

    Args:
      score_N2: scores; NaN is left out.
      member_N2: whether each sample is a member.
      place_N2: ascending numbers, equal for samples that must be in the same half; None: they are all different.
    """
    fitted, held_out = [], []
    for class_N2 in (member_N2, ~member_N2):
        score_S = np.compress(class_N2, score_N2)
        missing_S = np.isnan(score_S)
        if missing_S.any():
            score_S = score_S[~missing_S]
        half = (score_S.size + 1) // 2
        if place_N2 is not None and half:
            place_S = place_N2[class_N2 & ~np.isnan(score_N2)]
            half = int(np.searchsorted(place_S, place_S[half - 1], side="right"))
        fitted.append(np.sort(score_S[:half]))
        held_out.append(np.sort(score_S[half:]))
    # Both classes are sorted already, and a stable sort merges them.
    sorted_S = np.sort(np.concatenate(fitted), kind="stable")
    edge_J = stats.equal_count_edges(sorted_S, stats.num_bins(min(map(len, fitted))))
    scored = sum(map(len, (*fitted, *held_out)))
    return _BinCounts(
        _counts_between(fitted, edge_J), _counts_between(held_out, edge_J), len(score_N2) - scored
    )


def _counts_between(sorted_scores: Sequence[np.ndarray], edge_J: np.ndarray) -> np.ndarray:
    """Returns count_2xJ; scores below all edges are in the first bin."""
    rows = [
        np.diff(np.searchsorted(sorted_S, edge_J[1:]), prepend=0, append=sorted_S.size)
        for sorted_S in sorted_scores
    ]
    return np.array(rows)


def _shuffled(counts: _BinCounts, seed: int) -> _BinCounts:
    """Returns the counts with the labels shuffled within each half."""
    rng = seeds.rng(seed, "advantage/shuffle")

    def shuffle(count_2xJ: np.ndarray) -> np.ndarray:
        total_J, members = count_2xJ.sum(axis=0), int(count_2xJ[0].sum())
        member_J = rng.multivariate_hypergeometric(total_J, members, method="marginals")
        return np.stack([member_J, total_J - member_J])

    return _BinCounts(shuffle(counts.fitted_2xJ), shuffle(counts.held_out_2xJ), counts.left_out)


def _estimate(counts: _BinCounts, prior: float) -> _Estimates:
    """Returns `stats.held_out_advantage` and `stats.plug_in_advantage` of the held-out half, from counts."""
    if not all(c.sum(axis=1).all() for c in (counts.fitted_2xJ, counts.held_out_2xJ)):
        return _Estimates()
    ratio = stats.log_ratio_of_counts(*counts.fitted_2xJ)
    f_J, low_J, high_J = (
        stats.privacy_loss(end_J, prior) for end_J in (ratio.value_N, ratio.low_N, ratio.high_N)
    )
    held_out_2xJ = counts.held_out_2xJ
    weight_J = np.array([prior, 1 - prior]) @ (held_out_2xJ / held_out_2xJ.sum(axis=1)[:, None])
    absolute_low_J, absolute_high_J = stats.absolute_ends(low_J, high_J)
    tp, fp = held_out_2xJ[:, f_J >= 0].sum(axis=1)
    fn, tn = held_out_2xJ[:, f_J < 0].sum(axis=1)
    accuracy = stats.METRICS["accuracy"]
    low, high = stats.metric_interval(accuracy, tp, fp, fn, tn, prior)
    return _Estimates(
        held_out=2 * float(stats.metric_value(accuracy, tp, fp, fn, tn, prior)) - 1,
        held_out_low=2 * float(low) - 1,
        held_out_high=2 * float(high) - 1,
        plug_in=float(weight_J @ np.abs(f_J)),
        pointwise_low=float(weight_J @ absolute_low_J),
        pointwise_high=float(weight_J @ absolute_high_J),
    )
