"""Figure 10: AUC of LiRA and RMIA against the number of references."""

import sys

import figures
import numpy as np
import pandas as pd
import rmia_z
import series
import style
import workdir
from claims import Claim, above, difference, untested
from drawn import Drawn
from measured import Attacked, Recipes, attacked

TITLE = "Figure 10: AUC of LiRA and RMIA by the number of references"
PAPER = (
    "On a 140M model of 7M samples RMIA is ahead with 4 to 16 IN references (at 4: AUC 0.643 against 0.594), LiRA "
    "with more (at 64: 0.678 against 0.658) and with 1 or 2. LiRA goes on gaining where RMIA levels off."
)
STATEMENTS = (
    "With few references RMIA is ahead of LiRA.",
    "With many references LiRA is ahead of RMIA.",
    "As references are added, LiRA gains more than RMIA.",
)
FEW, SOME = 8, 16


def draw(recipes: Recipes) -> Drawn:
    """A line an attack, with a band over targets."""
    main = recipes["main"]
    counts = series.powers(main)
    lira = {count: attacked(main, references=count) for count in counts}
    rmia = {count: attacked(main, "rmia", references=count) for count in counts}
    figure = style.new_figure(6.2, 4.4)
    axes = figure.subplots()
    for name, found in (("lira_online", lira), ("rmia", rmia)):
        color, dash, marker = style.ATTACKS[name]
        auc_KxT = [one.auc_T for one in found.values()]
        series.against(axes, counts, auc_KxT, workdir.attack_name(name), color, dash, marker)
    axes.set(xlabel="References, IN and OUT", ylabel="AUC")
    series.only(axes, [(count, str(count)) for count in counts])
    axes.legend(loc="upper left")
    frames = [
        series.by_target(one, attack=name, references=count)
        for name, found in (("lira_online", lira), ("rmia", rmia))
        for count, one in found.items()
    ]
    published = {4: FEW, 64: min(2 * 64, counts[-1])}  # IN references -> all of them, here
    ours = {
        f"{name}_{in_references}": series.auc_of(found[count])
        for name, found in (("lira", lira), ("rmia", rmia))
        for in_references, count in published.items()
        if count in found
    }
    return Drawn(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=_claims(lira, rmia),
        ours=ours,
        notes=(
            "References are IN and OUT ones together; the paper counts IN ones, which are half of them.",
            f"RMIA compares with {rmia_z.compared(main):,} samples.",
            series.left_out([series.Line(f"LiRA, {n} references", one) for n, one in lira.items()]),
        ),
    )


def _claims(lira: dict[int, Attacked], rmia: dict[int, Attacked]) -> tuple[Claim, ...]:
    most = max(lira)
    if most <= SOME or not {FEW, SOME} <= set(lira):
        return tuple(untested(said, f"{most} references are too few") for said in STATEMENTS)

    def lead(count: int) -> np.ndarray:
        return lira[count].auc_T - rmia[count].auc_T

    return (
        above(
            STATEMENTS[0],
            f"AUC of RMIA less of LiRA with {FEW} references",
            difference(rmia[FEW].auc_T, lira[FEW].auc_T, paired=True),
        ),
        above(
            STATEMENTS[1],
            f"AUC of LiRA less of RMIA with {most} references",
            difference(lira[most].auc_T, rmia[most].auc_T, paired=True),
        ),
        above(
            STATEMENTS[2],
            f"what LiRA gains from {SOME} to {most} references, less what RMIA gains",
            difference(lead(most), lead(SOME), paired=True),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
