"""Figure 18: ROC curves of every target of Figure 2."""

import sys

import figures
import series
from drawn import Drawn
from measured import Recipes

TITLE = "Figure 18: Every target of Figure 2"
PAPER = (
    "LiRA on 16 targets of each size on its compute-optimal data, each target with a subset of its own: targets of "
    "some large models differ more from each other."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A panel a size, a line a target."""
    return series.every_target([recipe for _, recipe in recipes.family("chinchilla")])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
