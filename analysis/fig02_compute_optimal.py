"""Figure 2: LiRA on models of several sizes, each on its compute-optimal data."""

import itertools
import sys

import figures
import series
import style
from claims import above, every, mean
from comparisons import compared
from drawn import Drawn
from measured import Recipes, attacked, size_of

TITLE = "Figure 2: LiRA on compute-optimally trained models"
PAPER = (
    "With 128 references the AUC is 0.592 at 10M, 0.699 at 85M, 0.689 at 302M, 0.547 at 489M, 0.654 at 604M and 0.553 "
    "at 1018M, all below 0.7. Where the data grow with the model, neither AUC nor TPR is monotone in size."
)
STATEMENTS = (
    "On its compute-optimal data, every size is attacked better than by chance.",
    "The AUC stays below 0.7 at every size.",
    "The AUC is not monotone in the size of the model.",
)


def draw(recipes: Recipes) -> Drawn:
    """(a) Curves, a size each. (b) TPR at fixed FPRs by size."""
    family = recipes.family("chinchilla")
    some = series.alike([recipe for _, recipe in family])
    count = series.references(some)
    found = [(recipe, attacked(recipe, references=count)) for recipe in some]
    lines = [
        series.Line(f"{size_of(recipe)}, {recipe.samples:,} samples", one) for recipe, one in found
    ]
    figure = style.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    series.draw_roc(left, lines, "(a) ROC")
    series.at_rates(right, found, "(b) TPR at fixed FPR")
    auc = {size_of(recipe): one.auc_T for recipe, one in found}
    level = 1 - 0.05 / max(len(some) - 1, 1)  # any step may show it
    steps = [
        (f"AUC at {size_of(b)} less at {size_of(a)}", compared(b, a, count, level=level))
        for a, b in itertools.pairwise(some)
    ]
    return Drawn(
        data=series.data([("", lines)]),
        figure=figure,
        claims=(
            every(
                STATEMENTS[0],
                [above("", f"AUC at {s} less 0.5", mean(x - 0.5)) for s, x in auc.items()],
            ),
            every(
                STATEMENTS[1],
                [above("", f"0.7 less AUC at {s}", mean(0.7 - x)) for s, x in auc.items()],
            ),
            series.both_ways(STATEMENTS[2], steps),
        ),
        ours={name: series.auc_of(one) for (name, _), (_, one) in zip(family, found, strict=True)},
        notes=(f"Attacks use {count} references.", series.left_out(lines)),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
