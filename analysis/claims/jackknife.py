"""Estimates that cover the models, the references and the samples at once.

A number, such as the mean AUC over the targets, depends on which models were attacked, with which references, and on
which samples. It is therefore also computed without each group of models (jackknife), with each half of the references
and on each half of the samples (balanced half-samples), and with every combination of these. Contrasts between them
show the parts of its variance. V with a set of factors estimates the variance of their interaction, including its
interactions with the other factors:

    variance = V_models + V_references + V_samples
               - V_models,references - V_models,samples - V_references,samples + V_models,references,samples

For example, noise that differs between models and between samples is part of V_models, of V_samples and of
V_models,samples, and so counts once. If the first three terms were only added, intervals would be too wide.

The sum is noisy, since a few models or halves determine each term. None of the first three terms is larger than the
variance, except by chance, so it is at least the largest of them. benchmarks/claims.py simulates how often the
intervals miss.

References and samples are halved because a number varies on one of two halves as it would on new references or samples,
with about twice the variance. Without one group of eight, only few samples would cross a threshold, and their small
number would exaggerate the variance of a TPR.

A1: all models, and then without each group; R1, H1: all references and samples, and then each half; T: targets;
P: parts of the references; S: parts that are disjoint sets.

Sources: Efron and Stein (1981), The jackknife estimate of variance; McCarthy (1969), Pseudo-replication: half samples;
Cameron, Gelbach and Miller (2011), Robust inference with multiway clustering, for the signs.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from analysis.claims.compare import Estimate, VarianceTerm
from lm_mia.config import needs


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
        cls, value_TxR1xH1: np.ndarray, over: str, not_covered: tuple[str, ...] = ()
    ) -> Self:
        """Returns the mean over targets of a number that each target has."""
        mean_1xR1xH1, targets = value_TxR1xH1.mean(axis=0, keepdims=True), len(value_TxR1xH1)
        without_TxR1xH1 = (targets * mean_1xR1xH1 - value_TxR1xH1) / max(targets - 1, 1)
        if targets == 1:  # A single target has no spread.
            without_TxR1xH1 = np.full_like(mean_1xR1xH1, np.nan)
        return cls(np.concatenate([mean_1xR1xH1, without_TxR1xH1]), over, not_covered)

    @classmethod
    def from_attacks(
        cls,
        value_TxH1: np.ndarray,
        parts_PxTxH1: Sequence[np.ndarray],
        over: str,
        not_covered: tuple[str, ...] = (),
    ) -> Self:
        """Returns the mean over targets of a number of an attack, which is repeated with parts of its references.

        Args:
          value_TxH1: the number with the first references.
          parts_PxTxH1: the number with each of the `needs.num_reference_parts` parts of the references. If they are
            disjoint sets, the mean over these sets takes the place of the number with the first references.
          over, not_covered: as the fields.
        """
        values = [value_TxH1, *parts_PxTxH1]
        if len(parts_PxTxH1) == needs.JACKKNIFE_GROUPS:
            # The mean over disjoint sets of references, and over each half of the sets.
            set_SxTxH1 = np.array(parts_PxTxH1)
            halves = map(needs.half_groups, range(needs.NUM_HALVES))
            sets = [range(needs.JACKKNIFE_GROUPS), *halves]
            values = [set_SxTxH1[[*index]].mean(axis=0) for index in sets]
        return cls.from_targets(np.stack(values, axis=1), over, not_covered)

    @property
    def value(self) -> float:
        """The number with all models, references and samples."""
        return float(self.value_A1xR1xH1[0, 0, 0])

    def __sub__(self, other: Self) -> Self:
        """Returns the difference of two numbers of the same models, references and samples, part by part.

        An axis that one of the two does not vary is not varied.
        """
        shape = map(min, self.value_A1xR1xH1.shape, other.value_A1xR1xH1.shape)
        common = tuple(slice(length) for length in shape)
        return dataclasses.replace(
            max(self, other, key=lambda number: len(number.not_covered)),
            value_A1xR1xH1=self.value_A1xR1xH1[common] - other.value_A1xR1xH1[common],
            not_covered=_union(self.not_covered, other.not_covered),
        )

    def scaled(self, factor: float, constant: float = 0.0) -> Self:
        """Returns factor x number + constant."""
        return dataclasses.replace(self, value_A1xR1xH1=factor * self.value_A1xR1xH1 + constant)

    def variance(self) -> VarianceTerm:
        """Returns the variance of the number, as in the docstring of the module."""
        varied = [axis for axis, length in enumerate(self.value_A1xR1xH1.shape) if length > 1]
        terms = {
            axes: self._variance_of(axes)
            for count in range(1, len(varied) + 1)
            for axes in itertools.combinations(varied, count)
        }
        total = sum(term.variance * (-1) ** (len(axes) + 1) for axes, term in terms.items())
        single = [term for axes, term in terms.items() if len(axes) == 1]
        largest = max(single, key=lambda term: term.variance)
        if total <= largest.variance:
            return largest
        spread = sum(term.variance**2 / term.degrees_of_freedom for term in single)
        return VarianceTerm(total, total**2 / spread)

    def _variance_of(self, axes: tuple[int, ...]) -> VarianceTerm:
        """Returns the part of the variance that is due to the interaction of the factors on some axes, or to one."""
        contrast, df = self.value_A1xR1xH1, 1
        for axis in range(contrast.ndim):
            values = np.moveaxis(contrast, axis, 0)
            if axis not in axes:
                contrast = values[:1]
            elif axis == 0:
                # The values without each group deviate from their mean by 1 / (A - 1) of the deviation of the group.
                groups = len(values) - 1
                contrast = (values[1:] - values[1:].mean(axis=0)) * math.sqrt((groups - 1) / groups)
                df *= groups - 1
            else:
                # Half the difference of two halves varies as their mean does.
                splits = (len(values) - 1) // 2
                contrast = (values[1::2] - values[2::2]) / (2 * math.sqrt(splits))
                df *= splits
            contrast = np.moveaxis(contrast, 0, axis)
        return VarianceTerm(float((contrast**2).sum()), max(df, 1))

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
