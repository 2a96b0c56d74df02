"""Figure 16: LiRA with all samples, and without those that begin alike."""

import sys

import figures
import series
import style
from claims import near
from comparisons import compared
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 16: LiRA with and without samples that begin alike"
PAPER = (
    "A 140M model of 7M samples is attacked with an AUC of 0.683 on C4 and of 0.680 where samples that share a prefix "
    "are left out, 4% of C4: duplicates hardly matter."
)
STATEMENTS = ("Samples that begin alike hardly change the AUC.",)
MARGIN = 0.02


def draw(recipes: Recipes) -> Drawn:
    """Curves of both, of populations of their own."""
    main, distinct = series.alike([recipes["main"], recipes["distinct"]])
    count = series.references([main, distinct])
    with_all, without = (attacked(recipe, references=count) for recipe in (main, distinct))
    tokens = distinct.config.population.distinct_prefix_tokens
    lines = [
        series.Line("All samples", with_all, style.BLUE),
        series.Line(f"No two of the same {tokens} first tokens", without, style.VERMILLION, "--"),
    ]
    gain = compared(main, distinct, count)
    what = "AUC with all samples less without those that begin alike"
    return Drawn(
        data=series.data([("", lines)]),
        figure=series.roc(lines),
        claims=(near(STATEMENTS[0], what, gain, MARGIN),),
        ours={"all": series.auc_of(with_all), "distinct": series.auc_of(without)},
        notes=(
            f"Attacks use {count} references. The two populations are drawn from one corpus and differ in their "
            "samples.",
            series.left_out(lines),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
