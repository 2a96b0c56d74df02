"""Figures 5 and 26 to 30: decisions on which replicas disagree."""

import dataclasses
import functools
import operator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import archetype_panels, attacks, flip_panels, io, notes, plotting, tables
from analysis.claims import decisions
from analysis.claims.compare import Claim, claim_all, claim_greater, claim_untested
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent, size_label, size_title
from analysis.io import (
    REPLICA_SIZES,
    RecipeResults,
    Record,
    SweepResults,
)
from lm_mia.errors import Unavailable

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
    archetypes = [
        a for a in archetype_panels.read_archetypes(recipe) if a.kind == "ambiguous unstable"
    ]
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


def _fig05_figure(
    shares: list[Record], rates: list[Record], archetypes: list[archetype_panels.Archetype]
) -> Figure:
    figure = plotting.new_figure(6.2 * (1 + len(archetypes)), 4.9)
    parts = figure.subfigures(1, 1 + len(archetypes), squeeze=False)[0]
    axes = parts[0].subplots()
    flip_panels.draw_shares_panel(axes, shares, "coin flip")
    flip_panels.annotate_tpr(axes, rates)
    axes.set(xlabel="False positive rate (above: mean TPR ± STD)", ylabel="Coin-flip decisions")
    for part, archetype in zip(parts[1:], archetypes, strict=True):
        panel = part.subplots()
        archetype_panels.draw_panel(panel, archetype)
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
    if flip_panels.available_fprs(facts, _RISE) != list(_RISE):
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
FIG26_STATEMENTS = ("The flip rate of members falls with the distance to the threshold.",)
FPRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""The FPRs of the rows of the figure in the paper."""


def draw_fig26(recipes: SweepResults) -> Drawing:
    """Draws a row per FPR, with the columns of the paper."""
    return _flip_detail(recipes["flip-140M"])


def _flip_detail(recipe: RecipeResults) -> Drawing:
    """Draws the figure of one recipe, with the claim that Figures 26 and 27 share."""
    facts = io.read_flip_facts_with_power(recipe)
    fprs = flip_panels.available_fprs(facts, FPRS)
    if not fprs:
        raise Unavailable(
            f"{recipe.name}: attack.fprs has none of {', '.join(map(str, FPRS))}; run lm-mia attack with "
            "one of them"
        )
    columns = io.read_samples(recipe, ["member", *(f"flip_rate_{f:g}" for f in fprs)])
    member_N = columns["member"].astype(bool)
    flip = {f: columns[f"flip_rate_{f:g}"].astype(float) for f in fprs}
    curves = io.read_table(recipe, "flip_curves.csv")
    curves = {f: flip_panels.rows_at_fpr(curves, f) for f in fprs}
    fewest, most = flip_panels.bin_sizes([row for rows in curves.values() for row in rows])
    ours = {
        f"fpr={f:g} from_0.4 {name}": (100 * share, np.nan)
        for f, flip_N in flip.items()
        for name, class_N in (("members", member_N), ("nonmembers", ~member_N))
        for share in [float(np.mean(flip_N[class_N & ~np.isnan(flip_N)] >= 0.4))]
    }
    return Drawing(
        data=_flip_detail_data(flip, member_N, curves),
        figure=_flip_detail_figure(flip, member_N, curves, facts),
        claims=(_claim_falls(recipe, facts),),
        ours=ours,
        not_comparable=notes.depends_on_replicas(facts, ours),
        not_comparable_note=notes.not_comparable_note(facts),
        notes=(
            f"Points of the middle and right panels are means of {fewest:,} to {most:,} samples.",
            *notes.replica_notes(facts),
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
        flip_panels.draw_ccdf_panel(first, flip_N, member_N, facts)
        first.set_ylabel(f"FPR {percent(fpr)}\nShare of samples")
        for axes, (against, _) in zip(others, flip_panels.CURVE_PANELS, strict=True):
            flip_panels.draw_curves_panel(axes, curves[fpr], against, facts)
            axes.set_ylabel("Mean flip rate")
    grid[-1, 0].set_xlabel("Minimum flip rate")
    for axes, (_, title) in zip(grid[-1, 1:], flip_panels.CURVE_PANELS, strict=True):
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
            x, y = flip_panels.ccdf(flip_N[class_N])
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
            FIG27_STATEMENTS[1], f"Flip rate of members minus non-members {at}", gap.estimate()
        ),
        claim_greater(
            FIG27_STATEMENTS[2],
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
        flip_panels.draw_shares_panel(axes, shares, flip_bin["bin"])
        axes.set_ylabel(f"{flip_bin['bin'].capitalize()}\n{flip_bin['range']}", fontsize=10.5)
    figure.align_ylabels()
    flip_panels.annotate_tpr(grid[0], rates)
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
        flip_panels.draw_coin_free_panels(left, right, curves, band)
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
    """Returns the claim about the share of the TPR from members whose decisions are coin flips."""
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
    """Returns the area under the curve of a TPR between the first and the last FPR."""
    tpr = [decisions.read_jackknife(recipe, name, fpr) for fpr in fprs]
    trapezoids = [
        (a + b).scaled((high - low) / 2)
        for a, b, low, high in zip(tpr, tpr[1:], fprs, fprs[1:], strict=False)
    ]
    return functools.reduce(operator.add, trapezoids)


FIGURES = {
    "strongmia_fig05_instability": Experiment(
        title="Figure 5: Decision instability of replicas, 302M",
        paper=(
            "Over 127 replicas of a 302M model trained on 2^19 samples, the AUC is stable (0.752 ± 0.007). Yet at an "
            "FPR of 2% the decisions on 18.4% of members and on 0.03% of non-members are like coin flips (a flip "
            "rate of 0.487 or more), 39.8% and 0.2% if very unstable ones are added; of the true positives at an FPR "
            "of 0.1%, 15.4% are (Section 5.2)."
        ),
        expect=(
            "At cpu the AUC is about 0.69 ± 0.02. At an FPR of 2% about 7% of members and 1% of non-members have "
            "decisions like coin flips; 127 replicas would show 0.3% to 5% and 0.1% to 2%. The share is largest at an "
            "FPR of 20%: 56% of members, and 13% to 36% with 127 replicas. With 32 replicas a flip rate of 0.444 "
            "already counts as a coin flip."
        ),
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
    ),
    "strongmia_fig26_flip_detail_140m": Experiment(
        title="Figure 26: Flip rates in detail, 140M",
        paper=(
            "Flip rates over 125 replicas rise with the FPR, more for members: at an FPR of 10%, 49% of members and "
            "8% of non-members have one of 0.4 or more. They fall with the distance of a sample's scores to the "
            "threshold, and are highest where the mean posterior is near it (Appendix E.2.5)."
        ),
        expect=(
            "At cpu there are rows of panels for FPRs of 0.1%, 1% and 10%. The shapes are the same but noisy, since "
            "each point is a mean of 20 samples. At an FPR of 10% about 27% of members and 11% of non-members have "
            "a flip rate of 0.4 or more."
        ),
        statements=FIG26_STATEMENTS,
        draw=draw_fig26,
    ),
    "strongmia_fig27_flip_detail_302m": Experiment(
        title="Figure 27: Flip rates in detail, 302M",
        paper=(
            "As Figure 26, over 127 replicas, and members flip still more: at an FPR of 10%, 70% of members and 7% "
            "of non-members have a flip rate of 0.4 or more. The gap between the classes grows with the size of the "
            "model (Appendix E.2.5)."
        ),
        expect=(
            "The gap between the classes is wider than for 140M at cpu too: at an FPR of 10% about 41% of members and "
            "12% of non-members have a flip rate of 0.4 or more. The recipe flip-140M is needed for the comparison."
        ),
        statements=FIG27_STATEMENTS,
        draw=draw_fig27,
    ),
    "strongmia_fig28_flip_by_fpr_140m": Experiment(
        title="Figure 28: Flip rates by FPR, 140M",
        paper=(
            "As the FPR grows, fewer decisions are very stable and more are like coin flips. At FPRs up to about 20% "
            "members flip far more than non-members: at 20%, decisions on 24.3% of members and 8.95% of non-members "
            "are like coin flips (Appendix E.2.5)."
        ),
        expect=(
            "The trend is the same at cpu, with coin flips on 36% of members and 18% of non-members at an FPR of 20%; "
            "127 replicas would show 6% to 19% and 2% to 16%. With 32 replicas the range of very unstable decisions, "
            "from 0.4 to 0.444, is narrow."
        ),
        statements=FIG28_STATEMENTS,
        draw=draw_fig28,
    ),
    "strongmia_fig29_flip_by_fpr_302m": Experiment(
        title="Figure 29: Flip rates by FPR, 302M",
        paper=(
            "As Figure 28, with larger gaps between members and non-members and more decisions that are like coin "
            "flips than for 140M: 32.49% of members and 8.66% of non-members at an FPR of 20% (Appendix E.2.5)."
        ),
        expect=(
            "There are more coin flips than for 140M at cpu too: about 56% of members and 22% of non-members at an "
            "FPR of 20%; 127 replicas would show 13% to 36% and 5% to 15%. Sizes are compared only with equally many "
            "replicas; at paper, use `--config.attack.replicas=125`."
        ),
        statements=FIG29_STATEMENTS,
        draw=draw_fig29,
    ),
    "strongmia_fig30_coin_free": Experiment(
        title="Figure 30: ROC curves without coin flips",
        paper=(
            "Of the AUC of 302M about 0.059 rests on coin flips. Between FPRs of 0.01% and 10% the curve without "
            "them keeps 53% of the lift over chance, and the mean TPR falls by 39.4%. The effect is greater for 302M "
            "than for 140M. Without very unstable decisions, larger decreases are expected (Appendix E.2.6)."
        ),
        expect=(
            "With 32 replicas more decisions count as coin flips, so the loss is greater and not comparable with that "
            "in the paper. At cpu the curve without them loses 0.12 of the area at 140M and 0.14 at 302M, and keeps "
            "23% of the lift between FPRs of 0.1% and 10% at both sizes. Very unstable decisions, with flip rates from "
            "0.4 to 0.444, are a further 8% of the partial AUC at 140M."
        ),
        statements=FIG30_STATEMENTS,
        draw=draw_fig30,
    ),
}
