"""Figure 27: flip rates of 302M replicas in detail, and against those of 140M."""

import dataclasses
import sys

import figures
import flips
import workdir
from claims import Claim, above, difference
from drawn import Drawn
from fig26_flip_detail_140m import STATEMENTS as OF_BOTH
from fig26_flip_detail_140m import of
from measured import Recipe, Recipes
from workdir import percent

TITLE = "Figure 27: Flip rates in detail, 302M"
PAPER = (
    "As Figure 26, and members flip still more: at an FPR of 10%, 70% of members and 7% of non-members have a flip "
    "rate of 0.4 or more. The gap between the classes grows with the size of the model."
)
STATEMENTS = (
    *OF_BOTH,
    "Members flip more than non-members.",
    "The gap between members and non-members is larger for the larger model.",
)


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR; columns as of the paper."""
    large, small = recipes["flip-302M"], recipes["flip-140M"]
    drawn = of(large)
    return dataclasses.replace(drawn, claims=(*drawn.claims, *_gaps(large, small)))


def _gaps(large: Recipe, small: Recipe) -> tuple[Claim, Claim]:
    fpr = workdir.flip_facts(large.folder)["config"]["focus_fpr"]
    at, column = f"at an FPR of {percent(fpr)}", f"flip_{fpr:g}"
    members, nonmembers = flips.split(large.folder, column)
    gap = difference(members, nonmembers, paired=False, over="samples of these models")
    # the same samples under both sizes: each one's own growth, and then the classes
    large_N, small_N, member_N = flips.both(large.folder, small.folder, column)
    growth_N = large_N - small_N
    there_N = growth_N == growth_N
    wider = difference(
        growth_N[there_N & member_N],
        growth_N[there_N & ~member_N],
        paired=False,
        over="samples of these models",
    )
    return (
        above(STATEMENTS[1], f"Flip rate of members less of non-members {at}", gap),
        above(STATEMENTS[2], f"That gap, 302M less 140M, {at}", wider),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
