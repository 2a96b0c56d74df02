"""Bounds and estimates of epsilon of differential privacy from the scores of one target.

N2: samples that training subsets are drawn from, C: tests of one-run audits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks.evaluations import Scores
from lm_mia.data.subsets import Design

AT_TPR = 0.01
"""The true positive rate of the first estimate, as in PrivacyGuard."""
CONFIDENCE = 0.95
"""Of the intervals of estimates, as in intervals.csv."""

_COLUMNS = (
    "method",
    "adjacency",
    "delta",
    "confidence",
    "canaries",
    "guesses",
    "correct",
    "epsilon",
    "low",
    "high",
    "mu",
    "ceiling",
    "is_bound",
    "left_out",
)
_CURVE_COLUMNS = ("guesses", "sides", "correct", "epsilon", "mu")


def epsilon_intervals(scores: Scores, bootstraps: int, delta: float) -> stats.EpsilonIntervals:
    """Returns estimates with their intervals for the first target, whose confidence is that of intervals.csv."""
    return stats.epsilon_intervals(
        scores.file.read_target(0),
        scores.member_TxN[0],
        delta=delta,
        at_tpr=AT_TPR,
        confidence=CONFIDENCE,
        replicates=bootstraps,
        cluster_N=scores.cluster_N,
    )


def one_run_bound(
    score_N2: np.ndarray, member_N2: np.ndarray, design: Design, alpha: float, delta: float
) -> stats.OneRunBound | None:
    """Returns the bound of one target; None if it is not known how the membership was drawn."""
    if design == "given":
        return None
    return stats.one_run_bound(
        score_N2,
        member_N2,
        membership="coins" if design == "bernoulli" else "half",
        delta=delta,
        confidence=1 - alpha,
    )


def say_if_delta_is_large(
    delta: float, canaries: int, design: Design, say: Callable[[str], None]
) -> None:
    """Tells the user if delta is so large that the audit can hardly show anything."""
    if design != "bernoulli":
        canaries //= 2  # pairs
    if design != "given" and delta * canaries > 1:
        say(
            f"attack.delta={delta:g}: above 1/{canaries:,}, one over the number of canaries, so a mechanism may "
            f"reveal a whole canary, and the bounds of audit.csv can hardly show anything; try "
            f"--config.attack.delta={0.1 / canaries:.0e}"
        )


def estimate_rows(
    score_N: np.ndarray,
    member_N: np.ndarray,
    delta: float,
    confidence: float,
    intervals: stats.EpsilonIntervals | None,
) -> list[dict[str, Any]]:
    """Returns the rows of audit.csv of the estimates of epsilon of one target.

    Args:
      score_N: the scores, NaN where they are missing.
      member_N: whether the target was trained on each sample; some members and non-members have a score.
      delta: of (epsilon, delta)-differential privacy.
      confidence: of the intervals.
      intervals: the estimates with their intervals; None: they are computed here, without intervals.
    """
    missing_N = np.isnan(score_N)
    members = int((member_N & ~missing_N).sum())
    shared = {"adjacency": "add_remove", "delta": delta, "confidence": confidence}
    shared |= {"ceiling": float(np.log(members)), "is_bound": False}
    shared |= {"canaries": len(score_N), "left_out": int(missing_N.sum())}
    if intervals is not None:
        at_tpr = (intervals.at_tpr_T, intervals.at_tpr_low_T, intervals.at_tpr_high_T)
        largest = (intervals.largest_T, intervals.largest_low_T, intervals.largest_high_T)
        return [
            {"method": method}
            | dict(zip(("epsilon", "low", "high"), (float(v[0]) for v in value), strict=True))
            | shared
            for method, value in (("estimate_tpr", at_tpr), ("estimate_max", largest))
        ]
    at = stats.empirical_epsilons(score_N, member_N, delta=delta, rates_G=AT_TPR)
    grid = stats.empirical_epsilons(score_N, member_N, delta=delta)
    largest = np.fmax.reduce([grid.tpr_G, grid.fpr_G, grid.tnr_G, grid.fnr_G], axis=None)
    return [
        {"method": method, "epsilon": float(stats.capped_epsilon(value, members))} | shared
        for method, value in (("estimate_tpr", at.tpr_G[0]), ("estimate_max", largest))
    ]


def is_capped(row: Mapping[Any, Any], end: str = "epsilon") -> bool:
    """Returns whether an estimate in a row of audit.csv is the largest that its number of members can show.

    Args:
      row: the row; those of bounds have no cap.
      end: ``epsilon``, or an end of its interval, ``low`` or ``high``.
    """
    return str(row["method"]).startswith("estimate") and bool(row[end] >= row["ceiling"])


def is_of_pairs(row: Mapping[Any, Any]) -> bool:
    """Returns whether the canaries of a bound in a row of audit.csv are pairs of a member and a non-member."""
    return str(row["method"]).startswith("one_run") and row["adjacency"] == "replace_one"


def bound_rows(
    bound: stats.OneRunBound, delta: float, confidence: float, left_out: int
) -> list[dict[str, Any]]:
    """Returns the rows of audit.csv of a bound, and of its value if the mechanism were Gaussian.

    The latter is a bound only for Gaussian mechanisms, and training is not known to be one.
    """
    shared = {"adjacency": bound.adjacency, "delta": delta, "confidence": confidence}
    shared |= {"canaries": bound.canaries, "left_out": left_out}
    return [
        shared
        | {"method": "one_run", "guesses": bound.guesses, "correct": bound.correct}
        | {"epsilon": bound.epsilon, "ceiling": bound.ceiling, "is_bound": True},
        shared
        | {"method": "one_run_gaussian", "guesses": bound.guesses_gaussian}
        | {"correct": bound.correct_gaussian, "epsilon": bound.epsilon_if_gaussian}
        | {"mu": bound.mu, "ceiling": bound.ceiling_if_gaussian, "is_bound": False},
    ]


def as_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Returns rows of audit.csv as a data frame, in which what does not apply is missing."""
    table = pd.DataFrame(rows, columns=[*_COLUMNS])
    texts = {"method": object, "adjacency": object, "is_bound": bool}
    counts = {"canaries": np.int64, "left_out": np.int64, "guesses": "Int64", "correct": "Int64"}
    others = dict.fromkeys([n for n in _COLUMNS if n not in (*texts, *counts)], np.float64)
    return table.astype(texts | counts | others)


def curve_table(bound: stats.OneRunBound | None) -> pd.DataFrame:
    """Returns the rows of audit_curve.csv: the bound for each number of guesses; none without a bound."""
    if bound is None:
        return pd.DataFrame({name: np.zeros(0) for name in _CURVE_COLUMNS})
    c = bound.curve
    values = (c.guesses_C, c.sides_C, c.correct_C, c.epsilon_C, c.mu_C)
    return pd.DataFrame(dict(zip(_CURVE_COLUMNS, values, strict=True)))
