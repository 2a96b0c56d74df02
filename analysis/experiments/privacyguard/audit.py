"""Audit of every attack: what its scores of the first target show about epsilon of differential privacy.

A bound needs memberships that were drawn at random in a known way, so it depends on the design of the training subsets.
Only the first target is audited: replicas have the same members, and other targets may be complements of each other.

The scores are valid for bounds, because the attacks use the membership in the references, which is independent of that
in the target, and the target's own membership only through its losses. This includes the balanced design, since a
target is never attacked with its complement.

N2: samples that training subsets are drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import io, plotting
from analysis.io import RecipeResults, Record
from lm_mia import stats
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.privacy_bounds import (
    CONFIDENCE,
    as_table,
    bound_rows,
    curve_table,
    epsilon_intervals,
    estimate_rows,
    one_run_bound,
)
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import AttackTable
from lm_mia.data.subsets import Design

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AUDIT_TABLE = Table(
    "audit.csv",
    (
        "What the scores of the first replica or target reveal about epsilon of (epsilon, delta)-differential privacy. "
        "Each row is an attack of `attack.attacks` with all references, and a "
        "[method](how-to/audit-models.md#from-a-run); if `train.subset` is `given`, there are only the estimates. "
        "There are no rows for an attack without scores of members or without scores of non-members."
    ),
    {
        **common("attack", "references"),
        "method": Column("none", "`estimate_tpr`, `estimate_max`, `one_run` or `one_run_gaussian`"),
        "adjacency": Column(
            "none",
            (
                "which training sets are neighbors: they differ by one sample that is added or removed (`add_remove`), "
                "or replaced (`replace_one`)"
            ),
        ),
        "delta": Column("fraction", "`attack.delta`"),
        "confidence": Column(
            "fraction",
            "of the interval of an estimate, 0.95; of a bound, 1 - `attack.alpha`, for each attack on its own",
        ),
        "canaries": Column(
            "count",
            (
                "of an estimate, samples; of a bound, samples or pairs of a member and a non-member, whose membership "
                "was drawn by coin tosses, with or without a score"
            ),
        ),
        "guesses": Column(
            "count",
            (
                "number of guesses that gives the largest bound; guesses that missing scores prevent count as wrong; "
                "tied scores are ordered by keys of the samples"
            ),
        ),
        "correct": Column("count", "correct guesses"),
        "epsilon": Column(
            "none",
            (
                "the bound or the estimate; bounds are 0 if the guesses show nothing, and estimates are at most "
                "ln(number of members)"
            ),
        ),
        "low, high": Column(
            "none",
            (
                "2.5% and 97.5% quantiles of an estimate over `attack.bootstraps` sets of samples, as in "
                "`intervals.csv`; neither is a lower bound on epsilon"
            ),
        ),
        "mu": Column("none", "of mu-GDP, for `one_run_gaussian`"),
        "ceiling": Column(
            "none",
            "`epsilon` of an attack whose guesses are all correct; of an estimate, ln(number of members)",
        ),
        "is_bound": Column(
            "none", "whether `epsilon` is a lower bound for any mechanism: `True` for `one_run`"
        ),
        **common("left_out"),
    },
    key=("attack", "method"),
)


def epsilon_audit(
    scores: Scores, *, alpha: float, bootstraps: int, delta: float, design: Design
) -> pd.DataFrame:
    """Returns the rows of audit.csv of one attack; none if no member or no non-member of the first target has a score.

    Args:
      scores: its scores.
      alpha: one minus the confidence of bounds.
      bootstraps: number of draws for the intervals of estimates; 0: there are no intervals.
      delta: of (epsilon, delta)-differential privacy.
      design: how the members of the first target were drawn; "given": unknown, and there are no bounds.
    """
    score_N2, member_N2 = scores.file.read_target(0), scores.member_TxN[0]
    missing_N2 = np.isnan(score_N2)
    members, nonmembers = (int((c_N2 & ~missing_N2).sum()) for c_N2 in (member_N2, ~member_N2))
    if not (members and nonmembers):
        return as_table([])
    intervals = None
    if bootstraps:
        intervals = scores.once(epsilon_intervals, bootstraps=bootstraps, delta=delta)
    rows = estimate_rows(score_N2, member_N2, delta, CONFIDENCE, intervals)
    bound = scores.once(_bound_of_first, alpha=alpha, delta=delta, design=design)
    if bound is not None:
        rows += bound_rows(bound, delta, 1 - alpha, int(missing_N2.sum()))
    return as_table(rows)


AUDIT_CURVE_TABLE = Table(
    "audit_curve.csv",
    (
        "Written with `audit.csv`. Each row is an attack and one of the tests whose largest bounds are in "
        "`audit.csv`: 16, 32, 64, ... guesses, and which sides of the scores are guessed. The level `attack.alpha` "
        "is divided by the number of tests."
    ),
    {
        **common("attack", "references"),
        "guesses, correct": Column("count", "number of guesses, and how many were correct"),
        "sides": Column(
            "none",
            (
                "`both`: the highest half of them are guessed to be members and the lowest half not; `members`: the "
                "highest are guessed to be members, or, for pairs, the larger score of the pairs with the largest "
                "differences"
            ),
        ),
        "epsilon, mu": Column(
            "none",
            "lower bounds on epsilon for any mechanism, and on mu of Gaussian differential privacy",
        ),
    },
    key=("attack", "sides", "guesses"),
)


def audit_curve(scores: Scores, *, alpha: float, delta: float, design: Design) -> pd.DataFrame:
    """Returns the rows of audit_curve.csv of one attack; none if no bound holds. Settings are as in `epsilon_audit`."""
    score_N2, member_N2 = scores.file.read_target(0), scores.member_TxN[0]
    scored_N2 = member_N2[~np.isnan(score_N2)]
    bound = None
    if scored_N2.any() and not scored_N2.all():
        bound = scores.once(_bound_of_first, alpha=alpha, delta=delta, design=design)
    return curve_table(bound)


def _bound_of_first(
    scores: Scores, alpha: float, delta: float, design: Design
) -> stats.OneRunBound | None:
    return one_run_bound(scores.file.read_target(0), scores.member_TxN[0], design, alpha, delta)


ATTACK_TABLES = (
    AttackTable(AUDIT_TABLE, epsilon_audit),
    AttackTable(AUDIT_CURVE_TABLE, audit_curve),
)


TABLE, CURVE_TABLE = "audit.csv", "audit_curve.csv"

Audits = Mapping[str, Mapping[str, Record]]
"""Attack -> method -> row."""


def read(recipe: RecipeResults) -> Audits:
    """Reads tables/audit.csv; attacks with a larger bound come first, then those with a larger estimate."""
    audits: dict[str, dict[str, Record]] = {}
    for row in io.read_table(recipe, TABLE):
        audits.setdefault(row["attack"], {})[row["method"]] = row

    def order(item: tuple[str, Mapping[str, Record]]) -> tuple[float, ...]:
        methods = ("one_run", "one_run_gaussian", "estimate_max")
        values = [item[1][name]["epsilon"] if name in item[1] else 0.0 for name in methods]
        return tuple(-value if value == value else math.inf for value in values)

    return dict(sorted(audits.items(), key=order))


def _canaries(row: Record) -> str:
    return (
        "samples, which was drawn by coin tosses"
        if row["adjacency"] == "add_remove"
        else "pairs of a member and a non-member"
    )


def draw(curves: Mapping[str, Sequence[Record]], audits: Audits) -> Figure:
    """Draws epsilon against the number of guesses, and the ceiling.

    Args:
      curves: rows of audit_curve.csv by attack.
      audits: the result of `read`.
    """
    figure = plotting.new_figure(6.2, 3.6)
    axes = figure.subplots()
    names = [name for name in audits if name in curves]
    for name in names:
        if name not in plotting.ATTACKS:
            continue
        color, line, marker = plotting.ATTACKS[name]
        best: dict[float, float] = {}
        for row in curves[name]:
            best[row["guesses"]] = max(best.get(row["guesses"], 0.0), row["epsilon"])
        guesses = sorted(best)
        axes.plot(
            guesses,
            [best[n] for n in guesses],
            color=color,
            linestyle=line,
            marker=marker,
            markersize=4,
            label=attack_name(name),
        )
    ceiling = audits[names[0]]["one_run"]["ceiling"]
    axes.axhline(
        ceiling, color=plotting.BLACK, linestyle="--", linewidth=1.2, label="perfect attack"
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03 * ceiling, 1.08 * ceiling)
    axes.set_xlabel("Number of guesses")
    axes.set_ylabel("Lower bound on epsilon")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if no bound holds."""
    curves: dict[str, list[Record]] = {}
    for row in io.read_table(recipe, CURVE_TABLE):
        curves.setdefault(row["attack"], []).append(row)
    return {"audit": draw(curves, read(recipe)) if curves else None}
