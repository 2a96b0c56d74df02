"""Formats numbers for people: counts, and means with their standard deviations."""

import math


def plural(count: int, word: str) -> str:
    """1 sample, 2,000 samples."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def plus_minus(mean: float, std: float, digits: int = 3) -> str:
    """0.831 ± 0.004; a dash for NaN."""
    if math.isnan(mean):
        return "–"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")
