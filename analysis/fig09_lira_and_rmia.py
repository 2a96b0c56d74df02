"""Figure 9: ROC curves of LiRA and RMIA with more and more references."""

import sys

import figures
import rmia_z
import series
from claims import above, difference
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 9: LiRA and RMIA with different numbers of references"
PAPER = (
    "On a 140M model of 7M samples both attacks gain from more references. LiRA goes on gaining where RMIA, with "
    "10,000 samples to compare with, levels off. Neither reaches an AUC of 0.7."
)
STATEMENTS = (
    "The AUC of LiRA grows with the number of references.",
    "The AUC of RMIA grows with the number of references.",
)


def draw(recipes: Recipes) -> Drawn:
    """A panel an attack, a curve a number of references."""
    main = recipes["main"]
    counts = series.powers(main)
    found = {
        name: [attacked(main, name, references=count) for count in counts]
        for name in ("lira_online", "rmia")
    }
    titles = ("(a) LiRA", "(b) RMIA")
    titled = [
        (title, [series.Line(f"{one.references} references", one) for one in ones])
        for title, ones in zip(titles, found.values(), strict=True)
    ]
    what = f"AUC with {counts[-1]} less with {counts[0]} references"
    claims = [
        above(statement, what, difference(ones[-1].auc_T, ones[0].auc_T, paired=True))
        for statement, ones in zip(STATEMENTS, found.values(), strict=True)
    ]
    return Drawn(
        data=series.data(titled),
        figure=series.panels(titled),
        claims=tuple(claims),
        notes=(
            "References are IN and OUT ones together; the paper counts IN ones, which are half of them.",
            f"RMIA compares with {rmia_z.compared(main):,} samples.",
            series.left_out([line for _, lines in titled for line in lines]),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
