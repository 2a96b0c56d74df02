"""Figure 29: shares of samples in each range of flip rates against the false positive rate, 302M."""

import dataclasses
import sys

import figures
import flips
from claims import Claim, above, difference
from drawn import Drawn
from fig28_flip_by_fpr_140m import STATEMENTS as OF_BOTH
from fig28_flip_by_fpr_140m import of
from measured import Recipe, Recipes
from workdir import percent

TITLE = "Figure 29: Flip rates by FPR, 302M"
PAPER = (
    "As Figure 28, with larger gaps between members and non-members and more decisions that are like coin flips than "
    "for 140M."
)
STATEMENTS = (*OF_BOTH, "More decisions on members are like coin flips for the larger model.")


def draw(recipes: Recipes) -> Drawn:
    """A panel for each of five ranges, with the TPR above."""
    large, small = recipes["flip-302M"], recipes["flip-140M"]
    drawn = of(large)
    return dataclasses.replace(drawn, claims=(*drawn.claims, _more(large, small)))


def _more(large: Recipe, small: Recipe) -> Claim:
    of_large, of_small = (flips.decisive(recipe.folder) for recipe in (large, small))
    fpr = of_large["config"]["focus_fpr"]
    large_N, small_N, member_N = flips.both(large.folder, small.folder, f"votes_{fpr:g}")
    new_N = 100 * flips.like_coins(large_N, of_large)[member_N]
    old_N = 100 * flips.like_coins(small_N, of_small)[member_N]
    return above(
        STATEMENTS[-1],
        f"Percentage points of coin flips, 302M less 140M, at an FPR of {percent(fpr)}",
        difference(new_N, old_N, paired=True, over="members of these models"),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
