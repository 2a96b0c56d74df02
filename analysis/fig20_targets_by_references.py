"""Figure 20: ROC curves of targets of Figure 2, by size and by the number of references."""

import sys

import figures
import pandas as pd
import series
import style
from claims import above, difference, every
from drawn import Drawn
from measured import Recipes, attacked, size_of

TITLE = "Figure 20: Targets of Figure 2 by the number of references"
PAPER = (
    "LiRA on 8 targets of each size on its compute-optimal data: at every size more references, up to 128, help, and "
    "targets of one size differ."
)
STATEMENTS = ("At every size the AUC grows with the number of references.",)


def draw(recipes: Recipes) -> Drawn:
    """A row of panels a size, a column a number of references, a line a target."""
    some = series.alike([recipe for _, recipe in recipes.family("chinchilla")])
    most = series.references(some)
    counts = [count for count in series.powers(some[0]) if count <= most]
    low = 1 / max(recipe.samples for recipe in some)
    figure = style.new_figure(1.9 * len(counts) + 0.6, 1.8 * len(some) + 0.4)
    grid = figure.subplots(len(some), len(counts), squeeze=False, sharex=True, sharey=True)
    frames, grows = [], []
    for recipe, row in zip(some, grid, strict=True):
        name, found = size_of(recipe), [attacked(recipe, references=c) for c in counts]
        for axes, one in zip(row, found, strict=True):
            series.draw_targets(axes, [series.Line("", one)], low=low)
            axes.set(xlabel="", ylabel="")
            frames.append(series.by_target(one, size=name, references=one.references))
        row[0].set_ylabel(name)
        gain = difference(found[-1].auc_T, found[0].auc_T, paired=True)
        what = f"AUC at {name} with {counts[-1]} less with {counts[0]} references"
        grows.append(above("", what, gain))
    for axes, count in zip(grid[0], counts, strict=True):
        axes.set_title(f"{count} references", fontsize=10)
    figure.supxlabel("False positive rate", fontsize=11)
    figure.supylabel("True positive rate", fontsize=11)
    return Drawn(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=(every(STATEMENTS[0], grows),),
        notes=("Rows are sizes. References are IN and OUT ones together.",),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
