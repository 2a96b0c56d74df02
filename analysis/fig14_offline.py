"""Figure 14: LiRA, simple RMIA and RMIA with OUT references only, and with all."""

import sys

import figures
import rmia_z
import series
import style
from claims import above, difference, near
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 14: Offline and online attacks"
PAPER = (
    "On a 10M model of 2^19 samples RMIA beats LiRA offline, in AUC and in TPR at low FPRs. Online, with 128 "
    "references, their AUCs are about the same, and LiRA is ahead at low FPRs."
)
STATEMENTS = (
    "Offline, RMIA has a higher AUC than LiRA.",
    "Offline, RMIA is ahead of LiRA at low false positive rates.",
    "Online, LiRA and RMIA have about the same AUC.",
    "Online, LiRA is ahead of RMIA at low false positive rates.",
)
MARGIN = 0.02


def draw(recipes: Recipes) -> Drawn:
    """A panel a setting, a curve an attack."""
    small = recipes["small"]
    count, many = series.references([small]), rmia_z.comparisons(small)[-1]
    whole = small.config.population.samples
    lira_off = attacked(small, "lira_offline", references=count)
    rmia_off = attacked(small, "rmia_offline", references=count, rmia_samples=many)
    # compared with every sample, an attack of gamma 1 ranks samples by their ratio alone, as simple RMIA does
    simple_off = attacked(small, "rmia_offline", references=count, rmia_samples=whole)
    lira = attacked(small, references=count)
    rmia = attacked(small, "rmia", references=count, rmia_samples=many)
    simple = attacked(small, "rmia_simple", references=count)
    titled = [
        (
            title,
            [
                series.Line("LiRA", a, style.BLUE),
                series.Line("Simple RMIA", b, style.PURPLE, "-."),
                series.Line("RMIA", c, style.GREEN, "--"),
            ],
        )
        for title, a, b, c in (
            ("(a) Offline", lira_off, simple_off, rmia_off),
            ("(b) Online", lira, simple, rmia),
        )
    ]
    low = series.lowest_rate(small)
    at = f"TPR at an FPR of {low:g}"
    return Drawn(
        data=series.data(titled),
        figure=series.panels(titled),
        claims=(
            above(
                STATEMENTS[0],
                "AUC of offline RMIA less of offline LiRA",
                difference(rmia_off.auc_T, lira_off.auc_T, paired=True),
            ),
            above(
                STATEMENTS[1],
                f"{at} of offline RMIA less of offline LiRA",
                difference(rmia_off.tpr_T(low), lira_off.tpr_T(low), paired=True),
            ),
            near(
                STATEMENTS[2],
                "AUC of LiRA less of RMIA",
                difference(lira.auc_T, rmia.auc_T, paired=True),
                MARGIN,
            ),
            above(
                STATEMENTS[3],
                f"{at} of LiRA less of RMIA",
                difference(lira.tpr_T(low), rmia.tpr_T(low), paired=True),
            ),
        ),
        notes=(
            f"Attacks use {count} references online and those of them that are OUT, half on average, offline.",
            f"RMIA compares with {many:,} samples; offline simple RMIA is drawn as RMIA that compares with all "
            f"{whole:,}, which ranks samples in the same order.",
            series.left_out([line for _, lines in titled for line in lines]),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
