"""How much of the variance of a number is due to each of several crossed factors, such as initialization and order.

A number that depends on independent draws of some factors is the sum of a mean, an effect of each factor, and an
interaction of each set of factors, all uncorrelated (the functional analysis of variance). This holds for any number,
such as a loss or a decision, 0 or 1, and needs no normal distribution.

Sources: Efron and Stein (1981), The jackknife estimate of variance, for the decomposition; Searle, Casella and
McCulloch (1992), Variance Components, Chapter 4, for the estimates from mean squares in a balanced design.
"""

from __future__ import annotations

import itertools
import math

from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64, check_magnitude


def crossed_components(values: ArrayLike, factors: int) -> dict[tuple[int, ...], FloatArray]:
    """Estimates the variance that is due to each crossed factor, and to each interaction of factors.

    The estimates are unbiased and may therefore be negative. Their sum estimates the variance of the number if all
    factors are drawn anew. The interaction of all factors includes noise.

    Args:
      values: array whose first axes are the factors, with one number for each combination of their levels; the levels
        are random draws. Further axes, such as samples, are treated one by one; a NaN makes their components NaN.
      factors: number of axes that are factors.

    Returns:
      The component of each nonempty set of factors, ``{(0,): ..., (1,): ..., (0, 1): ...}``, smaller sets first; the
      shape is that of the further axes.

    Raises:
      ValueError: if ``factors`` is not from 1 to the number of axes, or if a factor has fewer than two levels.

    Example:
      Two initializations, in rows, and two orders, in columns:

      >>> from lm_mia.stats import crossed_components
      >>> components = crossed_components([[1.0, 2.0], [3.0, 8.0]], factors=2)
      >>> {factors: float(component) for factors, component in components.items()}
      {(0,): 6.0, (1,): 2.5, (0, 1): 4.0}
    """
    value = as_float64(values, "values")
    check_magnitude(value, "values")
    levels = value.shape[:factors]
    if not 1 <= factors <= value.ndim or min(levels) < 2:
        raise ValueError(
            f"values of shape {value.shape}: the first {factors} axes must be factors with two levels or more"
        )
    sets = [
        chosen
        for count in range(1, factors + 1)
        for chosen in itertools.combinations(range(factors), count)
    ]

    def repeats(chosen: tuple[int, ...]) -> int:
        """Returns the number of values with the same levels of the chosen factors."""
        return math.prod(levels[axis] for axis in range(factors) if axis not in chosen)

    components: dict[tuple[int, ...], FloatArray] = {}
    for chosen in reversed(
        sets
    ):  # larger sets first, since their components are parts of the mean squares
        effect = value
        for axis in range(factors):
            mean = effect.mean(axis=axis, keepdims=True)
            effect = effect - mean if axis in chosen else mean
        degrees = math.prod(levels[axis] - 1 for axis in chosen)
        mean_square = repeats(chosen) * (effect**2).sum(axis=tuple(range(factors))) / degrees
        larger = [other for other in components if set(chosen) < set(other)]
        rest = sum(repeats(other) * components[other] for other in larger)
        components[chosen] = (mean_square - rest) / repeats(chosen)
    return {chosen: components[chosen] for chosen in sets}
