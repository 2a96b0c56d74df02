"""Table 6: true positives on members whose decisions are very unstable or like coin flips, 302M."""

import sys

import figures
from drawn import Drawn
from measured import Recipes
from tab05_true_positives_140m import of

TITLE = "Table 6: What unstable members contribute to the TPR, 302M"
PAPER = (
    "Over 127 replicas at an FPR of 0.1%, 15.4% ± 0.6% of the true positives are on members whose decisions are like "
    "coin flips, and 42.2% ± 0.9% on those or very unstable ones; at 10%, 38.6% ± 1.4% and 81.5% ± 2.0%."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-302M"])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
