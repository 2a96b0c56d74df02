"""Figure 12: RMIA with more and more samples to compare with."""

import sys

import figures
import rmia_z
import series
import style
from claims import above, difference, near
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 12: RMIA by the number of samples that it compares with"
PAPER = (
    "On a 10M model of 2^19 samples RMIA has about the same AUC with 10,000 to 300,000 comparison samples. Its TPR at "
    "low FPRs grows with their number, and LiRA stays ahead there."
)
STATEMENTS = (
    "The AUC of RMIA does not depend on the number of comparison samples.",
    "More comparison samples raise the TPR of RMIA at low false positive rates.",
    "With the most comparison samples, too, LiRA is ahead at low false positive rates.",
)
MARGIN = 0.02


def draw(recipes: Recipes) -> Drawn:
    """A curve a number of comparison samples, and those of simple RMIA and LiRA."""
    small = recipes["small"]
    count, sizes = series.references([small]), rmia_z.comparisons(small)
    rmia = [attacked(small, "rmia", references=count, rmia_samples=z) for z in sizes]
    lira = attacked(small, references=count)
    simple = attacked(small, "rmia_simple", references=count)
    lines = [
        *(series.Line(f"|Z| = {z:,}", one) for z, one in zip(sizes, rmia, strict=True)),
        series.Line("Simple RMIA", simple, style.VERMILLION, "--"),
        series.Line("LiRA", lira, style.BLACK, "-."),
    ]
    low = rmia_z.unreached(small, sizes[0])
    at = f"TPR at an FPR of {low:g}"
    return Drawn(
        data=series.data([("", lines)]),
        figure=series.roc(lines),
        claims=(
            near(
                STATEMENTS[0],
                f"AUC with {sizes[-1]:,} less with {sizes[0]:,} comparison samples",
                difference(rmia[-1].auc_T, rmia[0].auc_T, paired=True),
                MARGIN,
            ),
            above(
                STATEMENTS[1],
                f"{at} with {sizes[-1]:,} less with {sizes[0]:,} comparison samples",
                difference(rmia[-1].tpr_T(low), rmia[0].tpr_T(low), paired=True),
            ),
            above(
                STATEMENTS[2],
                f"{at} of LiRA less of RMIA with {sizes[-1]:,} comparison samples",
                difference(lira.tpr_T(low), rmia[-1].tpr_T(low), paired=True),
            ),
        ),
        notes=(
            f"Attacks use {count} references; |Z| counts the samples that RMIA compares with.",
            rmia_z.ONE_Z,
            series.left_out(lines),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
