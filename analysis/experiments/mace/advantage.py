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

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import io, plotting
from analysis.formatting import percent
from analysis.io import RecipeResults, Record
from lm_mia import seeds, stats
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.attacks.spec import AttackTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


ADVANTAGE_TABLE = Table(
    "advantage.csv",
    (
        "About the replicas; for recipes without replicas, about the targets. Each row is an attack of "
        "`attack.attacks` with all references, and a prior of `attack.priors`.\n"
        "\n"
        'The [membership advantage](reference/concepts.md#definitions) (MACE, Section 2.5) is that of the rule "member '
        'where a member is more likely", by the ratio of densities in equal-count bins of the score. It is fitted on a '
        "random half of each class and evaluated on the other, *held-out* half; pieces of a document are in the same "
        "half. Columns without `_mean` or `_std` are about the first target alone. The numbers of an attack are empty "
        "if fewer than two members or two non-members have a score."
    ),
    {
        **common("attack", "references"),
        "prior": Column("fraction", "probability that a sample is a member"),
        "baseline": Column(
            "fraction",
            "abs(1 - 2 `prior`): the advantage of always giving the more frequent answer",
        ),
        "held_out": Column(
            "fraction",
            "2 (`prior` TPR + (1 - `prior`) TNR) - 1 of the rule, on the held-out half; from -1 to 1",
        ),
        "held_out_low, held_out_high": Column(
            "fraction",
            (
                "95% interval of the rule's advantage, from Clopper-Pearson intervals of TPR and TNR. The advantage of "
                "the best rule for this score is at least `held_out_low` with a confidence of 97.5%, and always at "
                "least `baseline`; `held_out_high` does not bound it. Empty if `corpus.split_documents` is set, since "
                "pieces of a document are not independent"
            ),
        ),
        "plug_in": Column(
            "fraction",
            (
                "mean of abs(f) over the held-out half, with the classes weighted by the prior, where f = 2 P(member "
                "given the score) - 1 is estimated from the fitted half (MACE, Algorithm 1). Biased, upwards for a "
                "prior of 0.5; compare it with `shuffled_plug_in`"
            ),
        ),
        "pointwise_low, pointwise_high": Column(
            "fraction",
            (
                "means of the ends of the 95% intervals of abs(f) of single samples (MACE, Lemma 6). This is not a "
                "confidence interval of the advantage"
            ),
        ),
        "held_out_mean, held_out_std, plug_in_mean, plug_in_std": Column(
            "fraction", "the same over the targets"
        ),
        "shuffled_held_out": Column(
            "fraction",
            "`held_out` with labels shuffled within each half, mean over 10 shuffles: about `baseline`",
        ),
        "shuffled_plug_in": Column(
            "fraction",
            (
                "`plug_in` with shuffled labels, mean over the same shuffles: the value without leakage, or less if "
                "`corpus.split_documents` is set, since the labels of pieces are shuffled"
            ),
        ),
        "bins": Column(
            "count",
            (
                "equal-count bins of the score: 2 n^(1/3) for n fitted samples of the smaller class, rounded, at most "
                "100; fewer if scores are tied"
            ),
        ),
        "targets": Column("count", "number of attacked models"),
        **common("left_out"),
    },
    key=("attack", "prior"),
)


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
    ratio_T, ratio_of_shuffles = map(_log_ratio, counts_T), map(_log_ratio, shuffled)
    targets = [*zip(counts_T, ratio_T, strict=True)]
    shuffles = [*zip(shuffled, ratio_of_shuffles, strict=True)]
    rows: list[dict[str, Any]] = []
    for prior in priors:
        of_targets = [_estimate(*target, prior) for target in targets]
        of_shuffles = [_estimate(*shuffle, prior) for shuffle in shuffles]
        first = dataclasses.asdict(_with_intervals(of_targets[0], *targets[0], prior))
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


def _log_ratio(counts: _BinCounts) -> stats.LogRatio | None:
    """Returns the log ratio of each bin, from the fitted half; None if a half lacks a class."""
    if not all(c.sum(axis=1).all() for c in (counts.fitted_2xJ, counts.held_out_2xJ)):
        return None
    return stats.log_ratio_of_counts(*counts.fitted_2xJ)


def _estimate(counts: _BinCounts, ratio: stats.LogRatio | None, prior: float) -> _Estimates:
    """Returns `stats.held_out_advantage` and `stats.plug_in_advantage` of the held-out half, without intervals.

    Args:
      counts: the counts of a target.
      ratio: the result of `_log_ratio` for them.
      prior: probability of membership.
    """
    if ratio is None:
        return _Estimates()
    f_J = stats.privacy_loss(ratio.value_N, prior)
    accuracy = stats.metric_value(stats.METRICS["accuracy"], *_decisions(counts, f_J), prior)
    return _Estimates(
        held_out=2 * float(accuracy) - 1,
        plug_in=float(_weights(counts, prior) @ np.abs(f_J)),
    )


def _with_intervals(
    estimates: _Estimates, counts: _BinCounts, ratio: stats.LogRatio | None, prior: float
) -> _Estimates:
    """Returns estimates with their intervals; the other arguments are those of `_estimate`."""
    if ratio is None:
        return estimates
    f_J, low_J, high_J = (
        stats.privacy_loss(end_J, prior) for end_J in (ratio.value_N, ratio.low_N, ratio.high_N)
    )
    absolute_low_J, absolute_high_J = stats.absolute_ends(low_J, high_J)
    weight_J = _weights(counts, prior)
    accuracy = stats.METRICS["accuracy"]
    low, high = stats.metric_interval(accuracy, *_decisions(counts, f_J), prior)
    return dataclasses.replace(
        estimates,
        held_out_low=2 * float(low) - 1,
        held_out_high=2 * float(high) - 1,
        pointwise_low=float(weight_J @ absolute_low_J),
        pointwise_high=float(weight_J @ absolute_high_J),
    )


def _decisions(counts: _BinCounts, f_J: np.ndarray) -> tuple[int, int, int, int]:
    """Returns the numbers of true and false positives and of false and true negatives of the held-out half."""
    tp, fp = counts.held_out_2xJ[:, f_J >= 0].sum(axis=1)
    fn, tn = counts.held_out_2xJ[:, f_J < 0].sum(axis=1)
    return tp, fp, fn, tn


def _weights(counts: _BinCounts, prior: float) -> np.ndarray:
    """Returns weight_J, the probability of each bin if the classes of the held-out half have this prior."""
    held_out_2xJ = counts.held_out_2xJ
    return np.array([prior, 1 - prior]) @ (held_out_2xJ / held_out_2xJ.sum(axis=1)[:, None])


ATTACK_TABLES = (AttackTable(ADVANTAGE_TABLE, membership_advantage),)


TABLE = "advantage.csv"


def read(recipe: RecipeResults) -> dict[float, list[Record]]:
    """Reads tables/advantage.csv; returns prior -> rows, in the order of the config.

    Attacks with a larger advantage at the first prior come first, for every prior. Rows without a number are left out.
    """
    rows = [row for row in io.read_table(recipe, TABLE) if row["held_out"] == row["held_out"]]
    by_prior: dict[float, list[Record]] = {}
    for row in rows:
        by_prior.setdefault(row["prior"], []).append(row)
    first = next(iter(by_prior.values()), [])
    order = {row["attack"]: -row["held_out"] for row in first}
    return {
        prior: sorted(of_prior, key=lambda row: order.get(row["attack"], math.inf))
        for prior, of_prior in by_prior.items()
    }


def _draw_bar(axes: Axes, line: int, row: Record) -> None:
    axes.barh(line, row["held_out"], height=0.62, color=plotting.BLUE)
    axes.barh(
        line, row["plug_in"], height=0.78, facecolor="none", edgecolor=plotting.GREY, linewidth=1.0
    )
    if not math.isnan(row["held_out_low"]):
        below = row["held_out"] - row["held_out_low"]
        axes.errorbar(
            row["held_out"],
            line,
            xerr=[[below], [0]],
            color=plotting.BLACK,
            capsize=3,
            linewidth=1.6,
        )
    for name, color in (("held_out", plotting.VERMILLION), ("plug_in", plotting.ORANGE)):
        value = row[f"shuffled_{name}"]
        axes.plot([value, value], [line - 0.39, line + 0.39], color=color, linewidth=2.0)


def draw(by_prior: Mapping[float, Sequence[Record]]) -> Figure:
    """Draws a panel for each prior, with a bar for each attack.

    Args:
      by_prior: the result of `read`, not empty.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    attacks = [row["attack"] for row in next(iter(by_prior.values()))]
    columns = min(2, len(by_prior))
    lines = -(-len(by_prior) // columns)
    figure = plotting.new_figure(6.2, lines * (0.9 + 0.36 * len(attacks)) + 0.8)
    panels = [*figure.subplots(lines, columns, squeeze=False, sharey=True).flat]
    for axes, (prior, rows) in zip(panels, by_prior.items(), strict=False):
        for row in rows:
            _draw_bar(axes, attacks.index(row["attack"]), row)
        axes.axvline(
            rows[0]["baseline"], color=plotting.BLACK, linestyle="--", linewidth=1.2, zorder=1
        )
        axes.set_title(f"Prior {percent(prior)}")
        axes.grid(axis="y", visible=False)
        axes.set_xlim(min(0, *(row["held_out"] for row in rows)), 1)
        axes.set_xticks([0, 0.5, 1])
    for axes in panels[len(by_prior) :]:
        axes.set_visible(False)
    panels[0].set_yticks(range(len(attacks)), [attack_name(name) for name in attacks])
    panels[0].set_ylim(len(attacks) - 0.4, -0.6)
    figure.supxlabel("Membership advantage", fontsize="medium")
    handles = [
        Patch(facecolor=plotting.BLUE, label="held-out, with lower end of interval"),
        Patch(facecolor="none", edgecolor=plotting.GREY, label="plug-in"),
        Line2D(
            [],
            [],
            color=plotting.VERMILLION,
            linestyle="none",
            marker="|",
            label="held-out, shuffled",
        ),
        Line2D(
            [],
            [],
            color=plotting.ORANGE,
            linestyle="none",
            marker="|",
            label="plug-in, shuffled",
        ),
        Line2D([], [], color=plotting.BLACK, linestyle="--", label="baseline"),
    ]
    for handle in handles[2:4]:
        handle.set(markersize=9, markeredgewidth=2.0)
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if no attack has an advantage, since a class has too few scores."""
    by_prior = read(recipe)
    return {"advantage": draw(by_prior) if by_prior else None}
