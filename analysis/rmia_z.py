"""RMIA's studies of how many samples it compares with: |Z| of them, and at which rates that shows."""

import math

from measured import Recipe

ONE_Z = (
    "All targets are compared with the same samples, whose choice the intervals hold fixed. Below an FPR of about "
    "1 / |Z| RMIA tells nothing, whatever the model: its highest score is shared by as many non-members."
)
"""A note where |Z| is cut."""


def comparisons(recipe: Recipe) -> list[int]:
    """|Z| of RMIA's studies: 10,000 to 300,000 of the paper's 2^20 samples, and as large shares of fewer."""
    shares = (10_000, 30_000, 100_000, 300_000)
    return [round(recipe.config.population.samples * z / 2**20) for z in shares]


def unreached(recipe: Recipe, compared: int) -> float:
    """The highest FPR of the config too low for RMIA: at most a quarter of 1 / |Z|, the share of its highest score."""
    fprs = recipe.config.attack.fprs
    return max((f for f in fprs if 4 * compared * f <= 1), default=min(fprs))


def reached(recipe: Recipe, compared: int) -> float:
    """The FPR of the config nearest to 1 / |Z| by ratio: about the share of non-members with RMIA's highest score."""
    return min(recipe.config.attack.fprs, key=lambda f: abs(math.log(max(f, 1e-300) * compared)))


def compared(recipe: Recipe) -> int:
    """|Z| of RMIA where nothing else is said."""
    return min(recipe.config.attack.rmia_samples, recipe.config.population.samples)
