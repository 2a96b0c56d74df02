"""Figure 28: shares of samples in each range of flip rates against the false positive rate, 140M."""

import sys

import figures
import flips
import pandas as pd
import series
import sheets
import stability
import style
import workdir
from claims import Claim, above, difference, every, untested
from drawn import Drawn
from matplotlib.figure import Figure
from measured import Recipe, Recipes
from workdir import Record, percent

TITLE = "Figure 28: Flip rates by FPR, 140M"
PAPER = (
    "As the FPR grows, fewer decisions are very stable and more are like coin flips. At FPRs up to about 20% members "
    "flip far more than non-members."
)
STATEMENTS = ("At all FPRs up to 20% members flip more than non-members.",)
_MOST_FPR = 0.2


def draw(recipes: Recipes) -> Drawn:
    """A panel for each of five ranges, with the TPR above."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The figure of one recipe, with the claim that Figures 28 and 29 share."""
    facts = flips.decisive(recipe.folder)
    shares = workdir.table(recipe.folder, "flip_shares.csv", flips.SHARE_COLUMNS)
    rates = sheets.error_rates(recipe.folder)
    low, fprs = series.lowest_rate(recipe), facts["config"]["fprs"]
    parts = [_gap(recipe, f) for f in fprs if low <= f <= 1.001 * _MOST_FPR]
    columns = ["fpr", "tpr_mean", "tpr_std"]
    return Drawn(
        data=pd.DataFrame(shares).merge(pd.DataFrame(rates)[columns], on="fpr"),
        figure=_figure(shares, rates),
        claims=(
            every(STATEMENTS[0], parts)
            if parts
            else untested(STATEMENTS[0], "no FPR up to 20% takes ten non-members"),
        ),
        notes=(
            *stability.notes(facts),
            f"The claim is tested from an FPR of {percent(low)} on, where ten non-members or more are called members.",
        ),
    )


def _figure(shares: list[Record], rates: list[Record]) -> Figure:
    bins = sheets.bins(shares)
    figure = style.new_figure(6.6, 1.9 + 1.75 * len(bins))
    grid = figure.subplots(len(bins), 1, sharex=True)
    for axes, one in zip(grid, bins, strict=True):
        flips.shares_panel(axes, shares, one["bin"])
        axes.set_ylabel(f"{one['bin'].capitalize()}\n{one['range']}", fontsize=10.5)
    figure.align_ylabels()
    flips.annotate_tpr(grid[0], rates)
    grid[-1].set_xlabel("False positive rate (at the top: mean TPR ± STD)")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _gap(recipe: Recipe, fpr: float) -> Claim:
    members, nonmembers = flips.split(recipe.folder, f"flip_{fpr:g}")
    gap = difference(members, nonmembers, paired=False, over="samples")
    return above("", f"Gap of flip rates at an FPR of {percent(fpr)}", gap)


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
