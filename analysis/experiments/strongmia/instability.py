"""Figures 5, 22, 23 and 26 to 30: decisions on which replicas disagree, and single samples. N: samples, M: members."""

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from scipy.stats import norm

from analysis import attacks, io, notes, plotting, tables
from analysis.claims import decisions
from analysis.claims.compare import Claim, claim_all, claim_greater, claim_untested
from analysis.claims.jackknife import Jackknife
from analysis.claims.trends import RankCorrelation, gap_at_equal
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent, plus_minus, size_label, size_title
from analysis.io import REPLICA_SIZES, RecipeResults, Record, SweepResults
from analysis.plotting import CLASSES
from lm_mia import stats
from lm_mia.errors import Unavailable
from lm_mia.printing import plural


@dataclasses.dataclass(frozen=True)
class Archetype:
    """One sample with everything that its panel shows; losses in nats per token."""

    kind: str
    """Such as "ambiguous unstable"."""
    rule: str
    """The rule that the sample satisfies, as the first of the candidates."""
    candidates: int
    """The number of samples that satisfy the rule."""
    sample: int
    """The sample id."""
    member: bool
    fpr: float
    votes: int
    """The number of replicas that call the sample a member."""
    flip_rate: float
    separation: float
    """Difference of the means of IN and OUT losses, in standard deviations."""
    text: str
    """The beginning of its text."""
    loss_in: np.ndarray
    loss_out: np.ndarray
    loss_replicas: np.ndarray

    @property
    def label(self) -> str:
        """The class of the sample: "member" or "non-member"."""
        return "member" if self.member else "non-member"


def read_archetypes(recipe: RecipeResults) -> list[Archetype]:
    """Reads the samples of tables/archetypes.csv with their losses from tables/archetype_losses.csv."""
    losses = io.read_frame(recipe, "archetype_losses.csv")
    archetypes = []
    for row in (row for row in _read_rows(recipe) if not _is_unmatched(row)):
        of_kind = losses[losses["kind"] == row["kind"]]
        loss, is_reference = of_kind["loss_nats"].to_numpy(float), of_kind["role"] == "reference"
        is_member = of_kind["member"].astype(bool)
        archetypes.append(
            Archetype(
                kind=str(row["kind"]),
                rule=str(row["rule"]),
                candidates=int(row["candidates"]),
                sample=int(row["id"]),
                member=str(row["member"]) == "True",
                fpr=float(row["fpr"]),
                votes=int(row["votes"]),
                flip_rate=float(row["flip_rate"]),
                separation=float(row["separation"]),
                text=row["text_preview"] if isinstance(row["text_preview"], str) else "",
                loss_in=loss[is_reference & is_member],
                loss_out=loss[is_reference & ~is_member],
                loss_replicas=loss[~is_reference],
            )
        )
    return archetypes


def read_unmatched_kinds(recipe: RecipeResults) -> list[Record]:
    """Reads the rows of tables/archetypes.csv whose rule no sample satisfies."""
    return [row for row in _read_rows(recipe) if _is_unmatched(row)]


def draw_archetypes(archetypes: Sequence[Archetype]) -> Figure:
    """Draws a panel per sample, one above the other."""
    figure = plotting.new_figure(6.2, 0.7 + 2.35 * len(archetypes))
    grid = figure.subplots(len(archetypes), 1, squeeze=False)
    for axes, archetype in zip(grid.flat, archetypes, strict=True):
        draw_panel(axes, archetype)
    grid[-1, 0].set_xlabel("Loss of the sample (nats per token)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _read_rows(recipe: RecipeResults) -> list[Record]:
    return io.read_table(recipe, "archetypes.csv")


def _is_unmatched(row: Record) -> bool:
    return math.isnan(row["id"])


def draw_panel(axes: Axes, archetype: Archetype) -> None:
    """Draws the losses of a sample under IN and OUT references, with fitted normals, and under replicas."""
    everything = np.concatenate([archetype.loss_in, archetype.loss_out, archetype.loss_replicas])
    low, high = (
        (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 1.0)
    )
    margin = 0.15 * (high - low) or 0.1
    grid = np.linspace(low - margin, high + margin, 300)
    bins = np.linspace(low, high, 16) if high > low else np.array([low - margin, high + margin])
    sides: tuple[tuple[str, np.ndarray, str, plotting.LineStyle, float], ...] = (
        ("IN references (trained on it)", archetype.loss_in, plotting.MEMBER, "-", 0.135),
        ("OUT references (not trained on it)", archetype.loss_out, plotting.NONMEMBER, "--", 0.085),
    )
    for label, loss, color, linestyle, rug_height in sides:
        if not len(loss):
            continue
        axes.hist(loss, bins=bins.tolist(), density=True, color=color, alpha=0.22)
        if np.ptp(loss) > 0:
            density = norm.pdf(grid, loss.mean(), loss.std(ddof=1))
            axes.plot(grid, density, color=color, linestyle=linestyle, label=label)
        _draw_rug(axes, loss, rug_height, color)
    if len(archetype.loss_replicas):
        quarter, median, three_quarters = np.quantile(archetype.loss_replicas, [0.25, 0.5, 0.75])
        axes.axvspan(
            quarter,
            three_quarters,
            color=plotting.GREY,
            alpha=0.25,
            linewidth=0,
            label="Replicas: middle half",
        )
        axes.axvline(median, color=plotting.BLACK, linewidth=1.4, label="Replicas: median")
        _draw_rug(axes, archetype.loss_replicas, 0.035, plotting.BLACK)
    top = axes.get_ylim()[1]
    axes.set(xlim=(grid[0], grid[-1]), ylim=(-0.2 * top, top), ylabel="Density")
    axes.set_yticks([])
    axes.axhline(0, color=plotting.GREY, linewidth=0.8)
    count = len(archetype.loss_replicas)
    kind = archetype.kind[:1].upper() + archetype.kind[1:]
    label = "" if archetype.kind.endswith("member") else f", a {archetype.label}"
    axes.set_title(
        f"{kind} (sample {archetype.sample}{label}): flip rate {archetype.flip_rate:.2f},\n"
        f"{archetype.votes} of {count} replicas say “member” at FPR {percent(archetype.fpr)}"
    )


def _draw_rug(axes: Axes, loss: np.ndarray, height: float, color: str) -> None:
    """Draws ticks below the zero line, at a height in fractions of the panel; the zero line is at one sixth."""
    transform = axes.get_xaxis_transform()
    axes.plot(
        loss, np.full(len(loss), height), "|", color=color, ms=7, mew=1.1, transform=transform
    )


# Figure 5: coin-flip decisions against the false positive rate, and one unstable sample.
FIG05_STATEMENTS = (
    "Members have more coin-flip decisions than non-members.",
    "The flip rate of members rises with the FPR.",
)
_RISE = (0.01, 0.1)


def draw_fig05(recipes: SweepResults) -> Drawing:
    """Draws shares of coin flips with the TPR above, and the losses of an unstable sample."""
    recipe = recipes["flip-302M"]
    facts = io.read_flip_facts_with_power(recipe)
    shares = tables.read_flip_shares(recipe)
    rates = tables.read_error_rates(recipe)
    archetypes = [a for a in read_archetypes(recipe) if a.kind == "ambiguous unstable"]
    no_sample_note = (
        "No sample is both ambiguous and like a coin flip, so the right panel is missing."
    )
    data = pd.DataFrame(tables.coin_flip_rows(shares))
    ours = _ours(recipe, shares)
    return Drawing(
        data=data.merge(pd.DataFrame(rates)[["fpr", "tpr_mean", "tpr_std"]], on="fpr"),
        figure=_fig05_figure(shares, rates, archetypes),
        claims=(_claim_more_in_members(recipe, facts), _claim_rises(recipe, facts)),
        ours=ours,
        not_comparable=notes.depends_on_replicas(facts, ours.keys() - {"auc"}),
        not_comparable_note=notes.not_comparable_note(facts),
        our_ranges={
            f"fpr={fpr:g} coin {kind}": limits
            for (fpr, kind), limits in tables.coin_flip_percent_ranges(shares).items()
        },
        notes=(
            *notes.replica_notes(facts),
            "" if archetypes else no_sample_note,
        ),
    )


def _fig05_figure(shares: list[Record], rates: list[Record], archetypes: list[Archetype]) -> Figure:
    figure = plotting.new_figure(6.2 * (1 + len(archetypes)), 4.9)
    parts = figure.subfigures(1, 1 + len(archetypes), squeeze=False)[0]
    axes = parts[0].subplots()
    draw_shares_panel(axes, shares, "coin flip")
    annotate_tpr(axes, rates)
    axes.set(xlabel="False positive rate (above: mean TPR ± STD)", ylabel="Coin-flip decisions")
    for part, archetype in zip(parts[1:], archetypes, strict=True):
        panel = part.subplots()
        draw_panel(panel, archetype)
        panel.set_xlabel("Loss of the sample (nats per token)")
    for part in parts:
        handles, labels = part.axes[0].get_legend_handles_labels()
        part.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _claim_more_in_members(recipe: RecipeResults, facts: Record) -> Claim:
    focus = facts["config"]["focus_fpr"]
    members, nonmembers = (
        decisions.read_jackknife(recipe, f"{kind}_coin_flips", focus)
        for kind in ("member", "nonmember")
    )
    return claim_greater(
        FIG05_STATEMENTS[0],
        f"Percentage points of coin flips, members minus non-members, at an FPR of {percent(focus)}",
        (members - nonmembers).scaled(100).estimate(),
    )


def _claim_rises(recipe: RecipeResults, facts: Record) -> Claim:
    if available_fprs(facts, _RISE) != list(_RISE):
        return claim_untested(
            FIG05_STATEMENTS[1], f"attack.fprs has no {_RISE[0]:g} or no {_RISE[1]:g}"
        )
    low, high = (decisions.read_jackknife(recipe, "member_flip_rate", fpr) for fpr in _RISE)
    return claim_greater(
        FIG05_STATEMENTS[1],
        f"Flip rate at an FPR of {percent(_RISE[1])} minus at {percent(_RISE[0])}",
        (high - low).estimate(),
    )


def _ours(recipe: RecipeResults, shares: list[Record]) -> dict[str, tuple[float, float]]:
    attacks = io.read_table(recipe, "attacks.csv")
    best = tables.best_per_attack(attacks)
    lira = next(row for row in best if row["attack"] == "lira_online")
    ours = {"auc": (lira["auc_mean"], lira["auc_std"])}
    for fpr, row in tables.shares_by_fpr(shares).items():
        for kind in ("member", "nonmember"):
            coin_flip, very_unstable = (
                100 * row[name][f"{kind}_fraction"] for name in ("coin flip", "very unstable")
            )
            ours[f"fpr={fpr:g} unstable {kind}s"] = (coin_flip + very_unstable, np.nan)
    for row in tables.read_true_positives(recipe):
        for part in ("coin_flip", "union"):
            mean, std = row[f"{part}_fraction_mean"], row[f"{part}_fraction_std"]
            ours[f"fpr={row['fpr']:g} {part} of tp"] = 100 * mean, 100 * std
    return ours


# Figure 26: flip rates of 140M replicas: their distribution, and flip rate against distance and posterior.
FIG26_STATEMENTS = (
    "The flip rate of members falls with the distance to the threshold.",
    "At a high FPR the flip rate of members is not monotone in the mean posterior: it rises towards the threshold and "
    "declines above it.",
    "At a high FPR members flip more than non-members at the same distance from the threshold.",
)
_HIGH_FPR = 0.1
"""The FPR at which the paper finds these two most clearly."""
_FIXED = ("the training subset", "the replicas", "the references")
"""What intervals over the samples hold fixed."""
FPRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""The FPRs of the rows of the figure in the paper."""


def draw_fig26(recipes: SweepResults) -> Drawing:
    """Draws a row per FPR, with the columns of the paper."""
    return _flip_detail(recipes["flip-140M"])


def _flip_detail(recipe: RecipeResults) -> Drawing:
    """Draws the figure of one recipe, with the claims that Figures 26 and 27 share."""
    facts = io.read_flip_facts_with_power(recipe)
    fprs = available_fprs(facts, FPRS)
    if not fprs:
        raise Unavailable(
            f"{recipe.name}: attack.fprs has none of {', '.join(map(str, FPRS))}; run lm-mia attack with "
            "one of them"
        )
    columns = io.read_samples(recipe, ["member", *(f"flip_rate_{f:g}" for f in fprs)])
    member_N = columns["member"].astype(bool)
    flip = {f: columns[f"flip_rate_{f:g}"].astype(float) for f in fprs}
    curves = io.read_table(recipe, "flip_curves.csv")
    curves = {f: rows_at_fpr(curves, f) for f in fprs}
    fewest, most = bin_sizes([row for rows in curves.values() for row in rows])
    ours = {
        f"fpr={f:g} from_0.4 {name}": (100 * share, np.nan)
        for f, flip_N in flip.items()
        for name, class_N in (("members", member_N), ("nonmembers", ~member_N))
        for share in [float(np.mean(flip_N[class_N & ~np.isnan(flip_N)] >= 0.4))]
    }
    return Drawing(
        data=_flip_detail_data(flip, member_N, curves),
        figure=_flip_detail_figure(flip, member_N, curves, facts),
        claims=(_claim_falls(recipe, facts), *_claims_at_high_fpr(recipe, facts)),
        ours=ours,
        not_comparable=notes.depends_on_replicas(facts, ours),
        not_comparable_note=notes.not_comparable_note(facts),
        notes=(
            f"Points of the middle and right panels are means of {fewest:,} to {most:,} samples.",
            *notes.replica_notes(facts),
        ),
        paper_notes=(
            "That flip rates are not monotone in the mean posterior is tested by rank correlations below and above the "
            "mean threshold of the replicas, a place that is chosen without looking at flip rates. It is tested on "
            "members, since few non-members are above it. The gap between members and non-members at the same "
            "distance is that within narrow bins of the distance. Both are tested at an FPR of 10%, with intervals "
            "over the samples that hold the replicas fixed.",
        ),
    )


def _flip_detail_figure(
    flip: dict[float, np.ndarray],
    member_N: np.ndarray,
    curves: dict[float, list[Record]],
    facts: Record,
) -> Figure:
    figure = plotting.new_figure(11, 0.9 + 2.6 * len(flip))
    grid = figure.subplots(len(flip), 3, squeeze=False, sharex="col")
    for (first, *others), (fpr, flip_N) in zip(grid, flip.items(), strict=True):
        draw_ccdf_panel(first, flip_N, member_N, facts)
        first.set_ylabel(f"FPR {percent(fpr)}\nShare of samples")
        for axes, (against, _) in zip(others, CURVE_PANELS, strict=True):
            draw_curves_panel(axes, curves[fpr], against, facts)
            axes.set_ylabel("Mean flip rate")
    grid[-1, 0].set_xlabel("Minimum flip rate")
    for axes, (_, title) in zip(grid[-1, 1:], CURVE_PANELS, strict=True):
        axes.set_xlabel(title + "\n(mean over replicas)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _flip_detail_data(
    flip: dict[float, np.ndarray], member_N: np.ndarray, curves: dict[float, list[Record]]
) -> pd.DataFrame:
    """Returns rows (fpr, binned_by, class, x, y, samples); for ccdf, y is the share with a flip rate of at least x."""
    rows = []
    for fpr, flip_N in flip.items():
        for name, class_N in (("members", member_N), ("nonmembers", ~member_N)):
            x, y = ccdf(flip_N[class_N])
            columns = {
                "fpr": fpr,
                "binned_by": "ccdf",
                "class": name,
                "samples": int(class_N.sum()),
            }
            rows += [columns | {"x": a, "y": b} for a, b in zip(x, y, strict=True)]
        rows += [
            {name: r[name] for name in ("fpr", "binned_by", "class", "samples")}
            | {"x": r["x_mean"], "y": r["flip_rate_mean"]}
            for r in curves[fpr]
        ]
    return pd.DataFrame(rows)


def _claim_falls(recipe: RecipeResults, facts: Record) -> Claim:
    fpr = facts["config"]["focus_fpr"]
    correlation = decisions.read_jackknife(recipe, "distance_correlation", fpr)
    if np.isnan(correlation.value):
        return claim_untested(
            FIG26_STATEMENTS[0],
            f"distances or flip rates are all equal at an FPR of {percent(fpr)}",
        )
    return claim_greater(
        FIG26_STATEMENTS[0],
        f"Rank correlation of flip rate and nearness to the threshold at an FPR of {percent(fpr)}",
        -correlation.estimate(),
    )


def _claims_at_high_fpr(recipe: RecipeResults, facts: Record) -> tuple[Claim, Claim]:
    """Returns the claims about the posterior and about equal distances, with intervals over the samples."""
    _, not_monotone, at_equal_distance = FIG26_STATEMENTS
    fprs = available_fprs(facts, [_HIGH_FPR])
    if not fprs or attacks.lowest_resolved_fpr(recipe) > _HIGH_FPR:
        reason = f"attack.fprs has no {percent(_HIGH_FPR)}, or there are not ten non-members at it"
        return claim_untested(not_monotone, reason), claim_untested(at_equal_distance, reason)
    names = ["member", "mean_posterior", f"flip_rate_{_HIGH_FPR:g}", f"distance_{_HIGH_FPR:g}"]
    member_N, posterior_N, flip_N, distance_N = io.read_samples(recipe, names).values()
    member_N, document_N = member_N.astype(bool), io.read_documents(recipe)
    thresholds = io.read_frame(recipe, "thresholds.csv")
    threshold_T = stats.posterior(
        thresholds.loc[np.isclose(thresholds["fpr"], _HIGH_FPR), "threshold"].to_numpy(float)
    )
    gap = gap_at_equal(distance_N, flip_N, member_N, document_N, _FIXED)
    return (
        _claim_rises_and_declines(
            posterior_N[member_N],
            flip_N[member_N],
            document_N[member_N],
            float(threshold_T.mean()),
        ),
        claim_untested(at_equal_distance, "members and non-members have no distances in common")
        if np.isnan(gap.value)
        else claim_greater(
            at_equal_distance,
            f"Flip rate of members minus non-members at equal distances and an FPR of {percent(_HIGH_FPR)}",
            gap,
        ),
    )


def _claim_rises_and_declines(
    posterior_M: np.ndarray, flip_M: np.ndarray, document_M: np.ndarray, threshold: float
) -> Claim:
    """Returns the claim that the flip rate of M members rises below the threshold and declines above it.

    If flip rates are monotone in the posterior, one of the two rank correlations has the other sign. The threshold
    follows from scores alone; if the bin with the highest flip rate were the peak, pure noise would have a peak.
    """
    parts = []
    for side, at_M in (("below", posterior_M < threshold), ("above", posterior_M > threshold)):
        trend = RankCorrelation.from_samples(posterior_M[at_M], flip_M[at_M], document_M[at_M])
        where = f"members with a posterior {side} {threshold:.3f}"
        if trend is None:
            reason = f"the flip rate or the posterior does not vary among {where}"
            parts.append(claim_untested("", reason))
            continue
        what = f"correlation of flip rate and mean posterior among {where}"
        rise = trend.estimate(_FIXED)
        parts.append(
            claim_greater("", f"Rank {what}", rise)
            if side == "below"
            else claim_greater("", f"Negative rank {what}", -rise)
        )
    return claim_all(FIG26_STATEMENTS[1], parts)


# Figure 27: flip rates of 302M replicas, compared with those of 140M.
FIG27_STATEMENTS = (
    *FIG26_STATEMENTS,
    "Members flip more than non-members.",
    "The gap between members and non-members is larger for the larger model.",
)


def draw_fig27(recipes: SweepResults) -> Drawing:
    """Draws a row per FPR, with the columns of the paper."""
    large, small = recipes["flip-302M"], recipes["flip-140M"]
    drawn = _flip_detail(large)
    return dataclasses.replace(drawn, claims=(*drawn.claims, *_claim_gaps(large, small)))


def _claim_gaps(large: RecipeResults, small: RecipeResults) -> tuple[Claim, Claim]:
    decisions.check_same_members(large, small)
    fpr = large.view.facts("flips")["config"]["focus_fpr"]
    at = f"at an FPR of {percent(fpr)}"
    gap, small_gap = (_gap(recipe, fpr) for recipe in (large, small))
    return (
        claim_greater(
            FIG27_STATEMENTS[-2], f"Flip rate of members minus non-members {at}", gap.estimate()
        ),
        claim_greater(
            FIG27_STATEMENTS[-1],
            f"This gap, {size_label(large)} minus {size_label(small)}, {at}",
            (gap - small_gap).estimate(),
        ),
    )


def _gap(recipe: RecipeResults, fpr: float) -> Jackknife:
    """Returns the mean flip rate of members minus that of non-members."""
    members, nonmembers = (
        decisions.read_jackknife(recipe, f"{kind}_flip_rate", fpr)
        for kind in ("member", "nonmember")
    )
    return members - nonmembers


# Figure 28: shares of samples in each range of flip rates against the false positive rate, 140M.
FIG28_STATEMENTS = ("At all FPRs up to 20%, members flip more than non-members.",)
_MOST_FPR = 0.2


def draw_fig28(recipes: SweepResults) -> Drawing:
    """Draws a panel for each of five ranges of flip rates, with the TPR above."""
    return _flip_by_fpr(recipes["flip-140M"])


def _flip_by_fpr(recipe: RecipeResults) -> Drawing:
    """Draws the figure of one recipe, with the claim that Figures 28 and 29 share."""
    facts = io.read_flip_facts_with_power(recipe)
    shares = tables.read_flip_shares(recipe)
    rates = tables.read_error_rates(recipe)
    low, fprs = attacks.lowest_resolved_fpr(recipe), facts["config"]["fprs"]
    parts = [_claim_gap(recipe, f) for f in fprs if low <= f <= 1.001 * _MOST_FPR]
    columns = ["fpr", "tpr_mean", "tpr_std"]
    return Drawing(
        data=pd.DataFrame(shares).merge(pd.DataFrame(rates)[columns], on="fpr"),
        figure=_flip_by_fpr_figure(shares, rates),
        claims=(
            claim_all(FIG28_STATEMENTS[0], parts)
            if parts
            else claim_untested(FIG28_STATEMENTS[0], "no FPR up to 20% has ten non-members"),
        ),
        notes=notes.replica_notes(facts),
        paper_notes=(
            f"The claim is tested at FPRs from {percent(low)} on, at which ten non-members or more are called members.",
        ),
    )


def _flip_by_fpr_figure(shares: list[Record], rates: list[Record]) -> Figure:
    bins = tables.flip_bins(shares)
    figure = plotting.new_figure(6.6, 1.9 + 1.75 * len(bins))
    grid = figure.subplots(len(bins), 1, sharex=True)
    for axes, flip_bin in zip(grid, bins, strict=True):
        draw_shares_panel(axes, shares, flip_bin["bin"])
        axes.set_ylabel(f"{flip_bin['bin'].capitalize()}\n{flip_bin['range']}", fontsize=10.5)
    figure.align_ylabels()
    annotate_tpr(grid[0], rates)
    grid[-1].set_xlabel("False positive rate (at the top: mean TPR ± STD)")
    handles, labels = grid[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _claim_gap(recipe: RecipeResults, fpr: float) -> Claim:
    what = f"Flip rate of members minus non-members at an FPR of {percent(fpr)}"
    return claim_greater("", what, _gap(recipe, fpr).estimate())


# Figure 29: shares of samples in each range of flip rates against the false positive rate, 302M.
FIG29_STATEMENTS = (
    *FIG28_STATEMENTS,
    "For the larger model, more decisions on members are like coin flips.",
)


def draw_fig29(recipes: SweepResults) -> Drawing:
    """Draws a panel for each of five ranges of flip rates, with the TPR above."""
    large, small = recipes["flip-302M"], recipes["flip-140M"]
    drawn = _flip_by_fpr(large)
    return dataclasses.replace(drawn, claims=(*drawn.claims, _claim_more_coin_flips(large, small)))


def _claim_more_coin_flips(large: RecipeResults, small: RecipeResults) -> Claim:
    large_facts, _ = (io.read_flip_facts_with_power(recipe) for recipe in (large, small))
    decisions.check_same_members(large, small)
    if reason := decisions.different_replicas(large, small):
        return claim_untested(FIG29_STATEMENTS[-1], reason)
    fpr = large_facts["config"]["focus_fpr"]
    new, old = (decisions.read_jackknife(r, "member_coin_flips", fpr) for r in (large, small))
    return claim_greater(
        FIG29_STATEMENTS[-1],
        f"Percentage points of coin flips, {size_label(large)} minus {size_label(small)}, at an FPR of {percent(fpr)}",
        (new - old).scaled(100).estimate(),
    )


# Figure 30: mean ROC curves of two sizes, with and without true positives that are coin flips.
FIG30_STATEMENTS = (
    "Coin flips contribute more to the true positive rate of the larger model.",
    "The partial AUC falls considerably further if very unstable decisions are removed, too.",
)
_UNSTABLE_FROM = 0.4
"""The flip rate from which decisions are very unstable, unless they are coin flips."""
_FURTHER_FALL = 0.1
"""What "considerably" means: a tenth of the partial AUC of all true positives."""
_BAND = (1e-4, 0.1)
_OF_ALL_VOTES = ("auc", "pauc", "lift")
"""Numbers of `_areas` that do not depend on the number of replicas."""
_CLAIM_NOTE = (
    "Removing true positives can only lower a curve, so that it falls is not tested. The claim on very unstable "
    f"decisions is that they are more than {percent(_FURTHER_FALL)} of the partial AUC, a margin of our choice; their "
    "partial AUC is that of straight lines between the FPRs of the tables."
)


def draw_fig30(recipes: SweepResults) -> Drawing:
    """Draws a row per size, with both curves on logarithmic and on linear axes."""
    by_size = {size: recipes[f"flip-{size}"] for size in REPLICA_SIZES}
    facts = {size: io.read_flip_facts_with_power(recipe) for size, recipe in by_size.items()}
    figure = plotting.new_figure(8.4, 7.4)
    grid = figure.subplots(2, 2)
    data, ours, not_comparable = [], {}, set()
    for (left, right), (size, recipe) in zip(grid, by_size.items(), strict=True):
        band = tuple(facts[size]["config"]["band"])
        curves = io.read_table(recipe, "coin_free_roc.csv")
        areas = tables.read_partial_aucs(recipe)
        draw_coin_free_panels(left, right, curves, band)
        raw, free, stable = (
            areas[0, 1][curve]["pauc"] for curve in ("raw", "coin-free", "unstable-free")
        )
        left.set_title(f"{size_title(recipe)}: area {raw:.3f}")
        right.set_title(f"{free:.3f} without coin flips, {stable:.3f} without either")
        data.append(pd.DataFrame(curves).assign(size=size_label(recipe)))
        numbers = {f"{size} {name}": (value, np.nan) for name, value in _areas(areas, band).items()}
        without_flips = {
            key for key in numbers if key.removeprefix(f"{size} ") not in _OF_ALL_VOTES
        }
        not_comparable |= notes.depends_on_replicas(facts[size], without_flips)
        ours |= numbers
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    shown = [note for size in REPLICA_SIZES for note in notes.replica_notes(facts[size])]
    not_comparable_notes = dict.fromkeys(map(notes.not_comparable_note, facts.values()))
    return Drawing(
        data=pd.concat(data),
        figure=figure,
        claims=(_claim_tpr_share(by_size, facts), _claim_further_fall(by_size, facts)),
        ours=ours,
        not_comparable=frozenset(not_comparable),
        not_comparable_note=" ".join(filter(None, not_comparable_notes)),
        notes=("The areas in the titles have no interval.", *dict.fromkeys(shown)),
        paper_notes=(_CLAIM_NOTE,),
    )


def _areas(
    areas: dict[tuple[float, float], dict[str, Record]], band: tuple[float, float]
) -> dict[str, float]:
    """Returns the numbers that the paper reports, for one size."""
    inside, whole = areas[band], areas[0, 1]
    raw, free = inside["raw"], inside["coin-free"]
    numbers = {
        "auc": whole["raw"]["pauc"],
        "auc lost": whole["raw"]["pauc"] - whole["coin-free"]["pauc"],
    }
    if band != _BAND:
        return numbers  # the paper reports the other numbers for this band only
    return numbers | {
        "pauc": raw["pauc_normalized"],
        "pauc coin-free": free["pauc_normalized"],
        "lift": raw["lift_normalized"],
        "lift coin-free": free["lift_normalized"],
        "lift retained": 100 * free["lift_retained_fraction"],
        "tpr dropped": 100 * free["mean_tpr_dropped_fraction"],
    }


def _claim_tpr_share(by_size: dict[str, RecipeResults], facts: dict[str, Record]) -> Claim:
    small, large = REPLICA_SIZES
    decisions.check_same_members(by_size[large], by_size[small])
    if reason := decisions.different_replicas(by_size[large], by_size[small]):
        return claim_untested(FIG30_STATEMENTS[0], reason)
    fpr = facts[large]["config"]["focus_fpr"]
    new, old = (
        decisions.read_jackknife(by_size[size], "coin_flip_tpr", fpr) for size in (large, small)
    )
    return claim_greater(
        FIG30_STATEMENTS[0],
        f"Contribution of coin flips to the TPR at an FPR of {percent(fpr)}, {size_label(by_size[large])} minus "
        f"{size_label(by_size[small])}",
        (new - old).estimate(),
    )


def _claim_further_fall(by_size: dict[str, RecipeResults], facts: dict[str, Record]) -> Claim:
    """Returns the claim about the partial AUC that rests on very unstable decisions, at each size."""
    parts = []
    for size, recipe in by_size.items():
        name, (low, high) = size_label(recipe), facts[size]["config"]["band"]
        fprs = [f for f in facts[size]["config"]["fprs"] if 0.999 * low <= f <= 1.001 * high]
        if facts[size]["cutoff"] <= _UNSTABLE_FROM:
            reason = (
                f"{name}: with so few replicas every very unstable decision counts as a coin flip"
            )
            parts.append(claim_untested("", reason))
            continue
        if len(fprs) < 2:
            parts.append(
                claim_untested("", f"{name}: attack.fprs has fewer than two rates in the band")
            )
            continue
        all_true, unstable, coin_flips = (
            _partial_auc(recipe, rate, fprs) for rate in ("tpr", "unstable_tpr", "coin_flip_tpr")
        )
        share = (unstable - coin_flips) / all_true
        band = f"FPR {percent(low)} to {percent(high)}"
        what = f"Share of very unstable decisions in the partial AUC of {name}, {band}"
        parts.append(claim_greater("", what, share.estimate(), _FURTHER_FALL))
    return claim_all(FIG30_STATEMENTS[1], parts)


def _partial_auc(recipe: RecipeResults, name: str, fprs: list[float]) -> Jackknife:
    tpr = [decisions.read_jackknife(recipe, name, fpr) for fpr in fprs]
    trapezoids = [
        (a + b).scaled((high - low) / 2)
        for a, b, low, high in zip(tpr, tpr[1:], fprs, fprs[1:], strict=False)
    ]
    return functools.reduce(operator.add, trapezoids)


def ccdf(flip_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (distinct flip rates, share of samples with at least that flip rate); NaN values are left out."""
    flip_N = flip_N[~np.isnan(flip_N)]
    values, first = np.unique(np.sort(flip_N), return_index=True)
    return values, 1 - first / max(len(flip_N), 1)


def available_fprs(facts: Record, wanted: Sequence[float]) -> list[float]:
    """Returns those of the wanted FPRs that the tables have."""
    fprs = facts["config"]["fprs"]
    return [f for f in wanted if any(math.isclose(f, fpr) for fpr in fprs)]


def draw_ccdf_panel(axes: Axes, flip_N: np.ndarray, member_N: np.ndarray, facts: Record) -> None:
    """Draws the share of members and of non-members whose flip rate is at least x."""
    for label, is_member, color, linestyle in CLASSES:
        values, share = ccdf(flip_N[member_N == is_member])
        end = facts["max_flip_rate"]
        x, y = np.concatenate([[0.0], values, [end]]), np.concatenate([[1.0], share, [0.0]])
        axes.step(x, y, where="pre", color=color, linestyle=linestyle, label=label)
    if io.coin_flip_test_has_power(facts):
        axes.axvline(
            facts["cutoff"],
            color=plotting.GREY,
            linestyle="-.",
            linewidth=1.2,
            label="Coin-flip cutoff",
        )
    axes.set(xlim=(0, 1.02 * facts["max_flip_rate"]), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


_AT_127 = f", range at {stats.STRONGMIA_REPLICAS} replicas"


def draw_shares_panel(axes: Axes, shares: Sequence[Record], bin_name: str) -> None:
    """Draws the share of members and of non-members in a bin of flip rates against the FPR.

    For coin flips, bands show what 127 replicas would show.
    """
    rows = sorted((r for r in shares if r["bin"] == bin_name), key=lambda r: r["fpr"])
    fprs = [r["fpr"] for r in rows]
    for label, is_member, color, linestyle in CLASSES:
        column = "member_fraction" if is_member else "nonmember_fraction"
        share = [100 * r[column] for r in rows]
        axes.plot(
            fprs,
            share,
            color=color,
            linestyle=linestyle,
            marker="o" if is_member else "s",
            label=label,
            clip_on=False,
        )
        if bin_name == "coin flip":
            low, high = ([100 * r[f"{column}_127_{end}"] for r in rows] for end in ("low", "high"))
            axes.fill_between(
                fprs, low, high, color=color, alpha=0.18, linewidth=0, label=f"{label}{_AT_127}"
            )
    axes.set_xscale("log")
    ticks = plotting.separated_ticks(fprs)
    axes.set_xticks(ticks, [percent(f) for f in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 1 else 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))


def annotate_tpr(axes: Axes, error_rates: Sequence[Record]) -> None:
    """Writes the mean TPR ± STD at each FPR above a panel whose x axis is the FPR."""
    low, high = np.log(axes.get_xlim())
    wanted = [(math.log(row["fpr"]) - low) / (high - low) for row in error_rates]
    positions = plotting.spread_labels(wanted, 0.045, 0, 1)
    for row, x in zip(error_rates, positions, strict=True):
        text = plus_minus(row["tpr_mean"], row["tpr_std"])
        axes.annotate(
            text,
            (x, 1.02),
            xycoords="axes fraction",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8.5,
        )


CURVE_PANELS = (
    ("distance", "Distance to the threshold"),
    ("posterior", "Posterior of membership"),
)
"""The quantities of tables/flip_curves.csv with the labels of their axes."""


def rows_at_fpr(rows: Sequence[Record], fpr: float) -> list[Record]:
    """Returns the rows of tables/flip_curves.csv at one FPR."""
    return [r for r in rows if math.isclose(r["fpr"], fpr)]


def bin_sizes(rows: Sequence[Record]) -> tuple[int, int]:
    """Returns the smallest and the largest number of samples per point; (0, 0) without points."""
    sizes = [int(r["samples"]) for r in rows]
    return min(sizes, default=0), max(sizes, default=0)


def draw_curves_panel(axes: Axes, rows: Sequence[Record], against: str, facts: Record) -> None:
    """Draws the flip rate against one quantity, a point per bin; rows and facts are those of `draw_curves`."""
    for label, is_member, color, linestyle in CLASSES:
        name = "members" if is_member else "nonmembers"
        bins = [r for r in rows if r["binned_by"] == against and r["class"] == name]
        axes.plot(
            [r["x_mean"] for r in bins],
            [r["flip_rate_mean"] for r in bins],
            color=color,
            linestyle=linestyle,
            linewidth=1.2,
            marker="o" if is_member else "s",
            markersize=3.5,
            label=label,
        )
    if io.coin_flip_test_has_power(facts):
        axes.axhline(
            facts["cutoff"], color=plotting.GREY, linestyle="-.", lw=1.2, label="Coin-flip cutoff"
        )
    axes.set(ylim=(0, 1.05 * facts["max_flip_rate"]))
    axes.set_xlim(left=0, right=1 if against == "posterior" else None)


_COIN_FREE_CURVES: tuple[tuple[str, str, str, plotting.LineStyle], ...] = (
    ("tpr_mean", "All true positives", plotting.BLUE, "-"),
    ("tpr_coin_free", "Without coin flips", plotting.VERMILLION, "--"),
    ("tpr_unstable_free", "Without very unstable ones either", plotting.GREEN, "-."),
)


def draw_coin_free_panels(
    left: Axes, right: Axes, rows: Sequence[Record], band: tuple[float, float]
) -> None:
    """Draws the curves of `draw_coin_free`: on logarithmic axes on the left, on linear axes on the right."""
    fpr_G = np.array([r["fpr"] for r in rows], float)
    lowest = []
    for axes, is_log in ((left, True), (right, False)):
        for column, label, color, linestyle in _COIN_FREE_CURVES:
            tpr_G = np.array([r[column] for r in rows], float)
            visible_G = (fpr_G > 0) & (tpr_G > 0) if is_log else np.ones(len(fpr_G), bool)
            axes.plot(
                fpr_G[visible_G], tpr_G[visible_G], color=color, linestyle=linestyle, label=label
            )
            lowest += [float(fpr_G[visible_G].min())] if is_log and visible_G.any() else []
        band_label = f"FPR {percent(band[0])} to {percent(band[1])}"
        axes.axvspan(*band, color=plotting.GREY, alpha=0.13, linewidth=0, label=band_label)
    plotting.finish_roc_axes(left, lowest)
    _finish_linear_axes(right)


def _finish_linear_axes(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="False positive rate")
    axes.set_xticks([0, 0.5, 1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _archetypes(recipe: RecipeResults) -> Drawing:
    """Draws a panel per kind of sample of one recipe; their rules and texts are notes."""
    facts = io.read_flip_facts_with_power(recipe)
    archetypes = read_archetypes(recipe)
    rows = [
        {
            "kind": a.kind,
            "sample": a.sample,
            "member": a.member,
            "votes": a.votes,
            "flip_rate": a.flip_rate,
        }
        | {"group": group, "loss_nats": loss}
        for a in archetypes
        for group, losses in (
            ("in", a.loss_in),
            ("out", a.loss_out),
            ("replica", a.loss_replicas),
        )
        for loss in losses
    ]
    shown = [
        f"{a.kind.capitalize()} ({a.rule}): {plural(a.candidates, 'sample')}. "
        f"The text of the first one, a {a.label}, begins: “{a.text}”"
        for a in archetypes
    ]
    unmatched = [
        f"{row['kind'].capitalize()} ({row['rule']}): no sample."
        for row in read_unmatched_kinds(recipe)
    ]
    columns = ["kind", "sample", "member", "votes", "flip_rate", "group", "loss_nats"]
    return Drawing(
        data=pd.DataFrame(rows, columns=pd.Index(columns)),
        figure=draw_archetypes(archetypes) if archetypes else None,
        notes=(*shown, *unmatched, *notes.replica_notes(facts)),
    )


EXPERIMENTS = {
    "strongmia_fig05_instability": Experiment(
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
    ),
    "strongmia_fig22_archetypes_140m": Experiment(
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-140M"]),
    ),
    "strongmia_fig23_archetypes_302m": Experiment(
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-302M"]),
    ),
    "strongmia_fig26_flip_detail_140m": Experiment(
        statements=FIG26_STATEMENTS,
        draw=draw_fig26,
    ),
    "strongmia_fig27_flip_detail_302m": Experiment(
        statements=FIG27_STATEMENTS,
        draw=draw_fig27,
    ),
    "strongmia_fig28_flip_by_fpr_140m": Experiment(
        statements=FIG28_STATEMENTS,
        draw=draw_fig28,
    ),
    "strongmia_fig29_flip_by_fpr_302m": Experiment(
        statements=FIG29_STATEMENTS,
        draw=draw_fig29,
    ),
    "strongmia_fig30_coin_free": Experiment(
        statements=FIG30_STATEMENTS,
        draw=draw_fig30,
    ),
}
