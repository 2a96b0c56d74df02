"""Estimates that cover the models, the references and the samples at once.

A number, such as the mean AUC over the targets, depends on which models were attacked, with which references, and on
which samples. It is therefore also computed without each group of models (jackknife), with each half of the references
and on each half of the samples (balanced half-samples), and with every combination of these.
`lm_mia.stats.jackknife_variance` estimates its variance from these values.

A1: all models, and then without each group; R1, H1: all references and samples, and then each half; T: targets;
P: parts of the references; S: parts that are disjoint sets.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from analysis.claims.compare import Estimate, VarianceTerm
from lm_mia import stats
from lm_mia.attacks import spec

Summary = Callable[[np.ndarray], np.ndarray]
"""Summarizes numbers over the targets, which are their first axis."""


def mean(value_TxR1xH1: np.ndarray) -> np.ndarray:
    """Returns the mean over targets."""
    return value_TxR1xH1.mean(axis=0)


def log_std(value_TxR1xH1: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the standard deviation (ddof=1) over targets; NaN if it is 0 or there is one target."""
    if len(value_TxR1xH1) < 2:
        return np.full(value_TxR1xH1.shape[1:], np.nan)
    return _log(value_TxR1xH1.std(axis=0, ddof=1))


def log_relative_std(value_TxR1xH1: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the standard deviation divided by the mean; NaN as for `log_std`."""
    return log_std(value_TxR1xH1) - _log(mean(value_TxR1xH1))


def _log(value: np.ndarray) -> np.ndarray:
    return np.log(np.where(value > 0, value, np.nan))


@dataclasses.dataclass(frozen=True)
class Jackknife:
    """A number computed with all models, references and samples, and with parts of them."""

    value_A1xR1xH1: np.ndarray
    """An axis of length 1 is not varied: the interval holds these models, references or samples fixed."""
    over: str
    """What the models, references and samples are, such as "8 targets, 32 references and the samples"."""
    not_covered: tuple[str, ...] = ()
    """As in `Estimate`."""

    @classmethod
    def from_targets(
        cls,
        value_TxR1xH1: np.ndarray,
        over: str,
        not_covered: tuple[str, ...] = (),
        summary: Summary = mean,
    ) -> Self:
        """Returns the mean over targets of a number that each target has, or another summary."""
        values = [summary(value_TxR1xH1)]
        if len(value_TxR1xH1) == 1:  # A single target has no spread.
            values.append(np.full_like(values[0], np.nan))
        else:
            targets = range(len(value_TxR1xH1))
            values += [summary(np.delete(value_TxR1xH1, t, axis=0)) for t in targets]
        return cls(np.stack(values), over, not_covered)

    @classmethod
    def from_attacks(
        cls,
        value_TxH1: np.ndarray,
        parts_PxTxH1: Sequence[np.ndarray],
        over: str,
        not_covered: tuple[str, ...] = (),
        summary: Summary = mean,
    ) -> Self:
        """Returns the mean over targets, or another summary, of a number of an attack with parts of its references.

        Args:
          value_TxH1: the number with the first references.
          parts_PxTxH1: the number with each of the `spec.num_reference_parts` parts of the references. If they are
            disjoint sets, the mean over these sets takes the place of the number with the first references.
          over, not_covered: as the fields.
          summary: summarizes the numbers of the targets.
        """
        values = [value_TxH1, *parts_PxTxH1]
        if len(parts_PxTxH1) == spec.JACKKNIFE_GROUPS:
            # The mean over disjoint sets of references, and over each half of the sets.
            set_SxTxH1 = np.array(parts_PxTxH1)
            halves = map(spec.half_groups, range(spec.NUM_HALVES))
            sets = [range(spec.JACKKNIFE_GROUPS), *halves]
            values = [set_SxTxH1[[*index]].mean(axis=0) for index in sets]
        return cls.from_targets(np.stack(values, axis=1), over, not_covered, summary)

    @property
    def value(self) -> float:
        """The number with all models, references and samples."""
        return float(self.value_A1xR1xH1[0, 0, 0])

    def __sub__(self, other: Self) -> Self:
        """Returns the difference of two numbers of the same models, references and samples, part by part.

        An axis that one of the two does not vary is not varied.
        """
        return self._combine(other, np.subtract)

    def __add__(self, other: Self) -> Self:
        """Returns the sum, as for the difference."""
        return self._combine(other, np.add)

    def __truediv__(self, other: Self) -> Self:
        """Returns the ratio, as for the difference; NaN where the other number is 0."""
        value_A1xR1xH1 = np.where(other.value_A1xR1xH1 == 0, np.nan, other.value_A1xR1xH1)
        return self._combine(
            dataclasses.replace(other, value_A1xR1xH1=value_A1xR1xH1), np.true_divide
        )

    def _combine(self, other: Self, operation: np.ufunc) -> Self:
        shape = map(min, self.value_A1xR1xH1.shape, other.value_A1xR1xH1.shape)
        common = tuple(slice(length) for length in shape)
        return dataclasses.replace(
            max(self, other, key=lambda number: len(number.not_covered)),
            value_A1xR1xH1=operation(self.value_A1xR1xH1[common], other.value_A1xR1xH1[common]),
            not_covered=_union(self.not_covered, other.not_covered),
        )

    def scaled(self, factor: float, constant: float = 0.0) -> Self:
        """Returns factor x number + constant."""
        return dataclasses.replace(self, value_A1xR1xH1=factor * self.value_A1xR1xH1 + constant)

    def variance(self) -> VarianceTerm:
        """Returns the variance of the number."""
        return VarianceTerm(*stats.jackknife_variance(self.value_A1xR1xH1))

    def estimate(self) -> Estimate:
        """Returns the number with its interval."""
        return Estimate.from_variance(self.value, [self.variance()], self.over, self.not_covered)


def independent_difference(new: Jackknife, old: Jackknife) -> Estimate:
    """Returns new - old, where the models, the references and the samples of the two are different."""
    return Estimate.from_variance(
        new.value - old.value,
        [new.variance(), old.variance()],
        f"{new.over} of each recipe" if new.over == old.over else f"{new.over}, and {old.over}",
        _union(new.not_covered, old.not_covered),
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
