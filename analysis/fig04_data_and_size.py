"""Figure 4: LiRA by the size of the data, and by the size of the model on the same data."""

import functools
import itertools
import sys
from collections.abc import Sequence

import figures
import pandas as pd
import series
import style
from claims import Claim, above, every
from comparisons import compared
from drawn import Drawn
from measured import Attacked, Recipe, Recipes, attacked, size_of
from workdir import percent

TITLE = "Figure 4: LiRA by the size of the data and of the model"
PAPER = (
    "140M models on 50K to 10M samples: the AUC is highest, 0.753, at about 1M samples, and below 0.7 at both ends. "
    "On the same 2^23 samples larger models, from 10M to 1018M, are attacked with a higher TPR at each FPR."
)
STATEMENTS = (
    "The AUC is not monotone in the number of training samples.",
    "On the same data the largest model has a higher AUC than the smallest.",
    "On the same data the largest model has a higher TPR than the smallest at fixed false positive rates.",
    "On the same data every step up in size raises the AUC.",
)


def draw(recipes: Recipes) -> Drawn:
    """(a) Curves, a number of samples each. (b) TPR at fixed FPRs by the size of the model."""
    by_data = series.alike([recipe for _, recipe in recipes.family("data")])
    by_size = series.alike([recipe for _, recipe in recipes.family("fixed")])
    count = series.references([*by_data, *by_size])
    data = [(recipe, attacked(recipe, references=count)) for recipe in by_data]
    size = [(recipe, attacked(recipe, references=count)) for recipe in by_size]
    lines = [series.Line(f"{recipe.samples:,} samples", one) for recipe, one in data]
    models = [series.Line(size_of(recipe), one) for recipe, one in size]
    figure = style.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    series.draw_roc(left, lines, f"(a) {size_of(by_data[0])} on different data")
    series.at_rates(right, size, f"(b) Models on the same {by_size[0].samples:,} samples")
    level = 1 - 0.05 / max(len(data) - 1, 1)  # any step may show it
    steps = [
        (
            f"AUC on {new.samples:,} less on {old.samples:,} samples",
            compared(new, old, count, level=level),
        )
        for (old, _), (new, _) in itertools.pairwise(data)
    ]
    return Drawn(
        data=pd.concat(
            [line.data().assign(panel=p) for p, of in (("a", lines), ("b", models)) for line in of]
        ),
        figure=figure,
        claims=(series.both_ways(STATEMENTS[0], steps), *_of_sizes(by_size, count)),
        ours={"highest": max(series.auc_of(one) for _, one in data)},
        notes=(f"Attacks use {count} references.", series.left_out([*lines, *models])),
    )


def _of_sizes(size: Sequence[Recipe], count: int) -> tuple[Claim, ...]:
    small, large = size[0], size[-1]
    ends = f"at {size_of(large)} less at {size_of(small)}"
    fewest = min(recipe.samples for recipe in size)
    rates = [f for f in small.config.attack.fprs if 10 / fewest <= f <= 0.2]
    return (
        above(STATEMENTS[1], f"AUC {ends}", compared(large, small, count)),
        every(
            STATEMENTS[2],
            [
                above(
                    "",
                    f"TPR at an FPR of {percent(rate)} {ends}",
                    compared(large, small, count, functools.partial(Attacked.tpr_T, fpr=rate)),
                )
                for rate in rates
            ],
        ),
        every(
            STATEMENTS[3],
            [
                above(
                    "",
                    f"AUC at {size_of(new)} less at {size_of(old)}",
                    compared(new, old, count),
                )
                for old, new in itertools.pairwise(size)
            ],
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
