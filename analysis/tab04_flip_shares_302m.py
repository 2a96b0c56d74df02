"""Table 4: shares of members and of non-members in each range of flip rates, 302M."""

import sys

import figures
from drawn import Drawn
from measured import Recipes
from tab03_flip_shares_140m import of

TITLE = "Table 4: Flip rates, 302M"
PAPER = (
    "Of 127 replicas, with 0.487 as the cutoff: at an FPR of 1% a share of 35.27% of members and 95.41% of non-members "
    "is very stable, and 12.55% and 0.00% are like coin flips."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-302M"])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
