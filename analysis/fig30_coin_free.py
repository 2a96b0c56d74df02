"""Figure 30: mean ROC curves of two sizes, with and without true positives that are like coin flips."""

import sys

import coin_free
import figures
import flips
import numpy as np
import pandas as pd
import stability
import style
import workdir
from claims import Claim, above, difference
from drawn import Drawn
from fig24_mean_roc import SIZES, titled
from measured import Recipe, Recipes
from workdir import Record, percent

TITLE = "Figure 30: ROC curves without coin flips"
PAPER = (
    "Of the AUC of 302M about 0.059 rests on coin flips. Between FPRs of 0.01% and 10% the curve without them keeps "
    "53% of the lift over chance, and the mean TPR falls by 39.4%. The effect is greater for 302M than for 140M."
)
STATEMENTS = ("Coin flips carry more of the true positive rate of the larger model.",)
_BAND = (1e-4, 0.1)
_NO_INTERVAL = "Without some positives a curve can only fall, so that it does is no claim; how far has no interval."


def draw(recipes: Recipes) -> Drawn:
    """A row a size: both curves on logarithmic and on linear axes."""
    of = {size: recipes[f"flip-{size}"] for size in SIZES}
    facts = {size: flips.decisive(recipe.folder) for size, recipe in of.items()}
    figure = style.new_figure(8.4, 7.4)
    grid = figure.subplots(2, 2)
    data, notes, ours = [], [], {}
    for (left, right), (size, recipe) in zip(grid, of.items(), strict=True):
        band = tuple(facts[size]["config"]["band"])
        curves = workdir.table(recipe.folder, "coin_free_roc.csv", coin_free.COLUMNS)
        areas = workdir.table(recipe.folder, "partial_auc.csv", coin_free.AREA_COLUMNS)
        coin_free.panels(left, right, curves, band)
        raw, free = (r["pauc"] for r in areas if (r["low"], r["high"]) == (0, 1))
        left.set_title(f"{titled(size, recipe)}: area {raw:.3f}, {free:.3f} without coin flips")
        data.append(pd.DataFrame(curves).assign(size=size))
        notes.append(f"{size}: {stability.without_coins(areas, band)}")
        ours |= {f"{size} {name}": (value, np.nan) for name, value in _areas(areas, band).items()}
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    told = [sentence for size in SIZES for sentence in stability.notes(facts[size])]
    return Drawn(
        data=pd.concat(data),
        figure=figure,
        claims=(_more(of, facts),),
        ours=ours,
        notes=(*notes, _NO_INTERVAL, *dict.fromkeys(told)),
    )


def _areas(areas: list[Record], band: tuple[float, ...]) -> dict[str, float]:
    """The numbers of the paper's example, of one size."""
    inside = {r["curve"]: r for r in areas if (r["low"], r["high"]) == band}
    whole = {r["curve"]: r for r in areas if (r["low"], r["high"]) == (0, 1)}
    raw, free = inside["raw"], inside["coin-free"]
    found = {
        "auc": whole["raw"]["pauc"],
        "auc lost": whole["raw"]["pauc"] - whole["coin-free"]["pauc"],
    }
    if band != _BAND:
        return found  # the other numbers are of other rates, and in the notes
    return found | {
        "pauc": raw["pauc_normalised"],
        "pauc coin-free": free["pauc_normalised"],
        "lift": raw["lift_normalised"],
        "lift coin-free": free["lift_normalised"],
        "lift retained": free["lift_retained_percent"],
        "tpr dropped": free["mean_tpr_dropped_percent"],
    }


def _more(of: dict[str, Recipe], facts: dict[str, Record]) -> Claim:
    """By what each member adds to the TPR while its decision is like a coin flip."""
    small, large = SIZES
    fpr = facts[large]["config"]["focus_fpr"]
    votes = flips.both(of[large].folder, of[small].folder, f"votes_{fpr:g}")
    parts = {
        size: flips.like_coins(votes_N, facts[size])[votes[2]]
        * votes_N[votes[2]]
        / facts[size]["replicas"]
        for size, votes_N in zip((large, small), votes[:2], strict=True)
    }
    return above(
        STATEMENTS[0],
        f"Part of the TPR that coin flips carry at an FPR of {percent(fpr)}, {large} less {small}",
        difference(parts[large], parts[small], paired=True, over="members of these models"),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
