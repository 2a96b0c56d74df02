"""Figure 1: ROC curves of LiRA with more and more references."""

import math
import sys
from collections.abc import Mapping

import figures
import numpy as np
import pandas as pd
import series
from claims import Claim, above, difference, every, untested
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 1: LiRA with different numbers of references"
PAPER = (
    "The AUC of a 140M model grows with the number of references, with diminishing returns: by 13.3% from 1 to 8 IN "
    "references, by 7.6% from 8 to 64, and by 0.2% from 128 to 256; it never reaches 0.7."
)
STATEMENTS = (
    "The AUC of LiRA grows with the number of references.",
    "Its growth has diminishing returns.",
)


def draw(recipes: Recipes) -> Drawn:
    """Curves, means over targets, and the growth of the AUC."""
    main = recipes["main"]
    counts = series.powers(main)
    found = {count: attacked(main, references=count) for count in counts}
    lines = [series.Line(f"{count} references", found[count]) for count in counts]
    auc = {count: found[count].auc_T for count in counts}
    ours = {
        f"growth_{a}_{b}": (100 * float((auc[2 * b] / auc[2 * a] - 1).mean()), float("nan"))
        for a, b in ((1, 8), (8, 64), (128, 256))
        if 2 * a in auc and 2 * b in auc
    }
    return Drawn(
        data=pd.concat([line.data() for line in lines]),
        figure=series.roc(lines),
        claims=_claims(auc),
        ours=ours,
        notes=(series.left_out(lines),),
    )


def _claims(auc: Mapping[int, np.ndarray]) -> tuple[Claim, ...]:
    """From the fewest references to the middle number of them, and from there to the most."""
    counts = list(auc)
    if len(counts) < 3:
        why = f"{counts[-1]} references are there, too few to compare three numbers of them"
        return tuple(untested(said, why) for said in STATEMENTS)
    few, middle, many = counts[0], counts[len(counts) // 2], counts[-1]
    grows = [
        above("", f"AUC with {b} less with {a} references", difference(auc[b], auc[a], paired=True))
        for a, b in ((few, middle), (middle, many))
    ]
    early, late = ((auc[b] - auc[a]) / math.log2(b / a) for a, b in ((few, middle), (middle, many)))
    doubling = (
        f"AUC gained a doubling from {few} to {middle} references less from {middle} to {many}"
    )
    return (
        every(STATEMENTS[0], grows),
        above(STATEMENTS[1], doubling, difference(early, late, paired=True)),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
