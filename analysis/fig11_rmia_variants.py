"""Figure 11: LiRA, simple RMIA and RMIA with few samples to compare with."""

import sys

import figures
import rmia_z
import series
import style
from claims import above, difference, every, near
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 11: LiRA, simple RMIA and RMIA"
PAPER = (
    "On a 10M model of 2^19 samples with 128 references the three attacks have about the same AUC. RMIA compares with "
    "10,000 samples, so that its scores take few values and tell nothing at the lowest false positive rates."
)
STATEMENTS = (
    "LiRA, simple RMIA and RMIA have about the same AUC.",
    "With few samples to compare with, RMIA is behind simple RMIA at low false positive rates.",
    "LiRA is ahead of RMIA at low false positive rates.",
)
MARGIN = 0.02


def draw(recipes: Recipes) -> Drawn:
    """Curves of the three, of the same rows."""
    small = recipes["small"]
    count, few = series.references([small]), rmia_z.comparisons(small)[0]
    lira = attacked(small, references=count)
    simple = attacked(small, "rmia_simple", references=count)
    rmia = attacked(small, "rmia", references=count, rmia_samples=few)
    lines = [
        series.Line("LiRA", lira, style.BLUE),
        series.Line("Simple RMIA", simple, style.PURPLE, "-."),
        series.Line(f"RMIA, |Z| = {few:,}", rmia, style.GREEN, "--"),
    ]
    low = rmia_z.unreached(small, few)
    at = f"TPR at an FPR of {low:g}"
    return Drawn(
        data=series.data([("", lines)]),
        figure=series.roc(lines),
        claims=(
            every(
                STATEMENTS[0],
                [
                    near("", f"AUC of {a} less of {b}", difference(x, y, paired=True), MARGIN)
                    for a, x, b, y in (
                        ("LiRA", lira.auc_T, "simple RMIA", simple.auc_T),
                        ("RMIA", rmia.auc_T, "simple RMIA", simple.auc_T),
                    )
                ],
            ),
            above(
                STATEMENTS[1],
                f"{at} of simple RMIA less of RMIA",
                difference(simple.tpr_T(low), rmia.tpr_T(low), paired=True),
            ),
            above(
                STATEMENTS[2],
                f"{at} of LiRA less of RMIA",
                difference(lira.tpr_T(low), rmia.tpr_T(low), paired=True),
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
