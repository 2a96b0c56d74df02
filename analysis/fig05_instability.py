"""Figure 5: coin-flip decisions against the false positive rate, and one unstable sample."""

import sys

import archetypes
import figures
import flips
import numpy as np
import pandas as pd
import sheets
import stability
import style
import workdir
from claims import Claim, above, difference, untested
from drawn import Drawn
from matplotlib.figure import Figure
from measured import Recipe, Recipes
from workdir import Record, percent

TITLE = "Figure 5: Decision instability of 302M replicas"
PAPER = (
    "Over 127 replicas of a 302M model the AUC is stable (0.752 ± 0.007). Yet at an FPR of 2% the decisions on 18.4% "
    "of members and on 0.03% of non-members are like coin flips; of the true positives at an FPR of 0.1%, 15.4% are."
)
STATEMENTS = (
    "Members have more coin-flip decisions than non-members.",
    "The flip rate of members rises with the FPR.",
)
_RISE = (0.01, 0.1)


def draw(recipes: Recipes) -> Drawn:
    """Shares of coin flips with the TPR above, and losses of the sample that stands for the unstable ones."""
    recipe = recipes["flip-302M"]
    facts = flips.decisive(recipe.folder)
    shares = workdir.table(recipe.folder, "flip_shares.csv", flips.SHARE_COLUMNS)
    rates = sheets.error_rates(recipe.folder)
    found = [a for a in archetypes.read(recipe.folder) if a.kind == "ambiguous unstable"]
    lacking = "No sample is both ambiguous and like a coin flip, so there is no right panel."
    data = pd.DataFrame([r for r in shares if r["bin"] == "coin flip"])
    return Drawn(
        data=data.merge(pd.DataFrame(rates)[["fpr", "tpr_mean", "tpr_std"]], on="fpr"),
        figure=_figure(shares, rates, found),
        claims=(_more_of_members(recipe, facts), _rises(recipe, facts)),
        ours=_ours(recipe, shares),
        notes=(*stability.notes(facts), *([] if found else [lacking])),
    )


def _figure(shares: list[Record], rates: list[Record], found: list[archetypes.Archetype]) -> Figure:
    figure = style.new_figure(6.2 * (1 + len(found)), 4.9)
    parts = figure.subfigures(1, 1 + len(found), squeeze=False)[0]
    axes = parts[0].subplots()
    flips.shares_panel(axes, shares, "coin flip")
    flips.annotate_tpr(axes, rates)
    axes.set(xlabel="False positive rate (above: mean TPR ± STD)", ylabel="Coin-flip decisions")
    for part, archetype in zip(parts[1:], found, strict=True):
        panel = part.subplots()
        archetypes.panel(panel, archetype)
        panel.set_xlabel("Loss of the sample (nats a token)")
    for part in parts:
        handles, labels = part.axes[0].get_legend_handles_labels()
        part.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _more_of_members(recipe: Recipe, facts: Record) -> Claim:
    focus = facts["config"]["focus_fpr"]
    members, nonmembers = (
        100 * flips.like_coins(votes_N, facts)
        for votes_N in flips.split(recipe.folder, f"votes_{focus:g}")
    )
    return above(
        STATEMENTS[0],
        f"Percentage points of coin flips, members less non-members, at an FPR of {percent(focus)}",
        difference(members, nonmembers, paired=False, over="samples of these models"),
    )


def _rises(recipe: Recipe, facts: Record) -> Claim:
    if flips.shown_fprs(facts, _RISE) != list(_RISE):
        return untested(STATEMENTS[1], f"the run lacks an FPR of {_RISE[0]:g} or {_RISE[1]:g}")
    columns = [f"flip_{fpr:g}" for fpr in _RISE]
    found = workdir.samples(recipe.folder, ["member", *columns])
    low, high = (found[name][found["member"].astype(bool)].astype(float) for name in columns)
    return above(
        STATEMENTS[1],
        f"Flip rate at an FPR of {percent(_RISE[1])} less at {percent(_RISE[0])}",
        difference(high, low, paired=True, over="members of these models"),
    )


def _ours(recipe: Recipe, shares: list[Record]) -> dict[str, tuple[float, float]]:
    attacks = workdir.table(recipe.folder, "attacks.csv", ("attack", "auc_mean", "auc_std"))
    lira = next(row for row in attacks if row["attack"] == "lira_online")
    ours = {"auc": (lira["auc_mean"], lira["auc_std"])}
    for fpr, row in sheets.by_fpr(shares).items():
        for of in ("members", "nonmembers"):
            coin, very = (row[name][f"{of}_percent"] for name in ("coin flip", "very unstable"))
            ours[f"fpr={fpr:g} coin {of}"] = (coin, np.nan)
            ours[f"fpr={fpr:g} unstable {of}"] = (coin + very, np.nan)
    for row in sheets.true_positives(recipe.folder):
        for part in ("coin_flip", "union"):
            share = f"{part}_share_percent"
            ours[f"fpr={row['fpr']:g} {part} of tp"] = row[f"{share}_mean"], row[f"{share}_std"]
    return ours


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
