"""Audit of every attack: what its scores of the first target show about epsilon of differential privacy.

A bound needs memberships that were drawn at random in a known way, so it depends on the design of the training subsets.
Only the first target is audited: replicas have the same members, and other targets may be complements of each other.

The scores are valid for bounds, because the attacks use the membership in the references, which is independent of that
in the target, and the target's own membership only through its losses. This includes the balanced design, since a
target is never attacked with its complement.

N2: samples that training subsets are drawn from.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.atomic import write_csv
from lm_mia.data.subsets import Design

TABLES = TABLE, CURVE_TABLE = "audit.csv", "audit_curve.csv"
"""Names of the tables."""
AT_TPR = 0.01
"""The true positive rate of the first estimate, as in PrivacyGuard."""
_COLUMNS = (
    "attack",
    "references",
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
_CURVE_COLUMNS = ("attack", "references", "guesses", "sides", "correct", "epsilon", "mu")
_CONFIDENCE = 0.95  # of the intervals of estimates, as in intervals.csv


@dataclasses.dataclass(frozen=True)
class Audit:
    """The audit of one attack."""

    rows: list[dict[str, Any]]
    """Rows of audit.csv."""
    curve: pd.DataFrame
    """Rows of audit_curve.csv; none if no bound holds."""
    intervals: stats.EpsilonIntervals | None
    """Estimates with their intervals; None without bootstrap draws."""


def audit(
    attack: str,
    references: int,
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    design: Design,
    c: config.Attack,
    cluster_N2: np.ndarray | None = None,
) -> Audit:
    """Audits one attack.

    Args:
      attack: name of the attack.
      references: number of references.
      score_N2: its scores under the first target; NaN where it has none.
      member_N2: membership in the training subset of that target.
      design: how this membership was drawn; "given": unknown, and there are no bounds.
      c: settings of the recipe.
      cluster_N2: documents of samples that are pieces of documents, for the intervals of estimates.

    Returns:
      The rows of both tables; none if no member or no non-member has a score.
    """
    missing_N2 = np.isnan(score_N2)
    members, nonmembers = (int((c_N2 & ~missing_N2).sum()) for c_N2 in (member_N2, ~member_N2))
    if not (members and nonmembers):
        return Audit([], pd.DataFrame(), None)
    intervals = None
    if c.bootstraps:
        intervals = stats.epsilon_intervals(
            score_N2,
            member_N2,
            delta=c.delta,
            at_tpr=AT_TPR,
            confidence=_CONFIDENCE,
            replicates=c.bootstraps,
            cluster_N=cluster_N2,
        )
    common = {"attack": attack, "references": references, "delta": c.delta}
    left_out = {"canaries": len(score_N2), "left_out": int(missing_N2.sum())}
    cap = float(np.log(members))
    rows: list[dict[str, Any]] = [
        common
        | {"method": method, "adjacency": "add_remove", "confidence": _CONFIDENCE}
        | estimate
        | {"ceiling": cap, "is_bound": False}
        | left_out
        for method, estimate in _estimates(score_N2, member_N2, c, intervals).items()
    ]
    curve = pd.DataFrame()
    if (bound := one_run_bound(score_N2, member_N2, design, c)) is not None:
        left_out["canaries"] = bound.canaries
        of_bound = common | {"adjacency": bound.adjacency, "confidence": 1 - c.alpha} | left_out
        rows.append(
            of_bound
            | {"method": "one_run", "guesses": bound.guesses, "correct": bound.correct}
            | {"epsilon": bound.epsilon, "ceiling": bound.ceiling, "is_bound": True}
        )
        rows.append(
            of_bound
            | {"method": "one_run_gaussian", "guesses": bound.guesses_gaussian}
            | {"correct": bound.correct_gaussian, "epsilon": bound.epsilon_if_gaussian}
            | {"mu": bound.mu, "ceiling": bound.ceiling_if_gaussian, "is_bound": False}
        )
        curve = pd.DataFrame(
            {"attack": attack, "references": references, "guesses": bound.curve.guesses_C}
            | {"sides": bound.curve.sides_C, "correct": bound.curve.correct_C}
            | {"epsilon": bound.curve.epsilon_C, "mu": bound.curve.mu_C}
        )
    return Audit(rows, curve, intervals)


def write(folder: Path, audits: Sequence[Audit]) -> None:
    """Writes the tables of audits."""
    rows = [row for one in audits for row in one.rows]
    counts = {"guesses": "Int64", "correct": "Int64"}
    write_csv(folder / TABLE, pd.DataFrame(rows, columns=[*_COLUMNS]).astype(counts))
    curves = [one.curve for one in audits if len(one.curve)]
    empty = pd.DataFrame(columns=[*_CURVE_COLUMNS])
    write_csv(folder / CURVE_TABLE, pd.concat(curves, ignore_index=True) if curves else empty)


def one_run_bound(
    score_N2: np.ndarray, member_N2: np.ndarray, design: Design, c: config.Attack
) -> stats.OneRunBound | None:
    """Returns the bound of one target; None if it is not known how the membership was drawn."""
    if design == "given":
        return None
    return stats.one_run_bound(
        score_N2,
        member_N2,
        membership="coins" if design == "bernoulli" else "half",
        delta=c.delta,
        confidence=1 - c.alpha,
    )


def say_if_delta_is_large(
    c: config.Attack, canaries: int, design: Design, say: Callable[[str], None]
) -> None:
    """Tells the user if delta is so large that the audit can hardly show anything."""
    if design != "bernoulli":
        canaries //= 2  # pairs
    if design != "given" and c.delta * canaries > 1:
        say(
            f"attack.delta={c.delta:g}: above 1/{canaries:,}, one over the number of canaries, so a mechanism may "
            f"reveal a whole canary, and the bounds of {TABLE} can hardly show anything; try "
            f"--config.attack.delta={0.1 / canaries:.0e}"
        )


def _estimates(
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    c: config.Attack,
    intervals: stats.EpsilonIntervals | None,
) -> dict[str, dict[str, float]]:
    """Returns the estimates of epsilon by method, with the ends of their intervals if these were computed."""
    if intervals is not None:
        at_tpr = (intervals.at_tpr_T, intervals.at_tpr_low_T, intervals.at_tpr_high_T)
        largest = (intervals.largest_T, intervals.largest_low_T, intervals.largest_high_T)
        return {
            method: dict(zip(("epsilon", "low", "high"), (float(v[0]) for v in value), strict=True))
            for method, value in (("estimate_tpr", at_tpr), ("estimate_max", largest))
        }
    members = int((member_N2 & ~np.isnan(score_N2)).sum())
    at = stats.empirical_epsilons(score_N2, member_N2, delta=c.delta, rates_G=AT_TPR)
    grid = stats.empirical_epsilons(score_N2, member_N2, delta=c.delta)
    largest = np.fmax.reduce([grid.tpr_G, grid.fpr_G, grid.tnr_G, grid.fnr_G], axis=None)
    return {
        method: {"epsilon": float(stats.capped_epsilon(value, members))}
        for method, value in (("estimate_tpr", at.tpr_G[0]), ("estimate_max", largest))
    }
