"""Figure 23: losses of a clear and of ambiguous samples, of 302M references and replicas."""

import sys

import figures
from drawn import Drawn
from fig22_archetypes_140m import of
from measured import Recipes

TITLE = "Figure 23: Sample archetypes, 302M"
PAPER = (
    "At an FPR of 1% of 127 replicas there are clear, stable non-members and ambiguous samples, stable or not; a clear "
    "member with a flip rate of 0.2 or less was not found."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A panel for each kind that has a sample."""
    return of(recipes["flip-302M"])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
