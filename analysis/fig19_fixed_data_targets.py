"""Figure 19: ROC curves of every target of Figure 4(b)."""

import sys

import figures
import series
from drawn import Drawn
from measured import Recipes

TITLE = "Figure 19: Every target of Figure 4(b)"
PAPER = (
    "LiRA on 16 targets of each size on the same 2^23 samples: the AUCs of a size are close, and at low FPRs the "
    "attack on one target of 604M fails altogether."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A panel a size, a line a target."""
    return series.every_target([recipe for _, recipe in recipes.family("fixed")])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
