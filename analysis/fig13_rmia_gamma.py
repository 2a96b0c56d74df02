"""Figure 13: RMIA with different gamma, with few and with many samples to compare with."""

import sys

import figures
import numpy as np
import rmia_z
import series
from claims import Claim, above, difference, every, near, untested
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 13: RMIA by gamma"
PAPER = (
    "On a 10M model of 2^19 samples the AUC of RMIA is stable as gamma grows. With 10,000 comparison samples the TPR "
    "at an FPR of 0.0001 falls, to 0 from a gamma of 1.1 on; with 300,000 it keeps a meaningful value."
)
STATEMENTS = (
    "The AUC of RMIA is stable as gamma grows.",
    "With few comparison samples a larger gamma lowers the TPR at low false positive rates.",
    "With a large gamma, many comparison samples are ahead of few at low false positive rates.",
)
GAMMAS = (1.0, 1.02, 1.05, 1.1, 1.2)
MARGIN = 0.02


def draw(recipes: Recipes) -> Drawn:
    """A panel a number of comparison samples, a curve a gamma."""
    small = recipes["small"]
    count, sizes = series.references([small]), rmia_z.comparisons(small)
    few, many = sizes[0], sizes[-1]
    found = {
        z: [
            attacked(small, "rmia", references=count, rmia_samples=z, rmia_gamma=gamma)
            for gamma in GAMMAS
        ]
        for z in (few, many)
    }
    titled = [
        (
            f"({letter}) {z:,} comparison samples",
            [series.Line(f"γ = {g:g}", one) for g, one in zip(GAMMAS, ones, strict=True)],
        )
        for letter, (z, ones) in zip("ab", found.items(), strict=True)
    ]
    low = rmia_z.reached(small, few)
    at = f"TPR at an FPR of {low:g}"
    stable = [
        near(
            "",
            f"AUC with gamma {GAMMAS[-1]:g} less with 1, {z:,} comparison samples",
            difference(ones[-1].auc_T, ones[0].auc_T, paired=True),
            MARGIN,
        )
        for z, ones in found.items()
    ]
    return Drawn(
        data=series.data(titled),
        figure=series.panels(titled),
        claims=(
            every(STATEMENTS[0], stable),
            _lowered(found[few][0].tpr_T(low), found[few][-1].tpr_T(low), few, at),
            above(
                STATEMENTS[2],
                f"{at} with {many:,} less with {few:,} comparison samples, gamma {GAMMAS[-1]:g}",
                difference(found[many][-1].tpr_T(low), found[few][-1].tpr_T(low), paired=True),
            ),
        ),
        notes=(
            f"Attacks use {count} references.",
            rmia_z.ONE_Z,
            series.left_out([line for _, lines in titled for line in lines]),
        ),
    )


def _lowered(least_T: np.ndarray, most_T: np.ndarray, few: int, at: str) -> Claim:
    """Nothing is lower than a TPR of 0, so that with gamma 1 there must be some."""
    what = f"{at} with gamma 1 less with {GAMMAS[-1]:g}, {few:,} comparison samples"
    if not least_T.any():
        return untested(STATEMENTS[1], f"{at} is 0 with gamma 1")
    return above(STATEMENTS[1], what, difference(least_T, most_T, paired=True))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
