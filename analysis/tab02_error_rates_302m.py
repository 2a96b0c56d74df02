"""Table 2: accuracy and error rates of LiRA on 302M replicas at fixed false positive rates."""

import sys

import figures
from drawn import Drawn
from measured import Recipes
from tab01_error_rates_140m import of

TITLE = "Table 2: Error rates, 302M"
PAPER = "As Table 1, over 127 replicas: TPRs at low FPRs are about twice those of 140M or more, and vary somewhat more."
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-302M"])


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
