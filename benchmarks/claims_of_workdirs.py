"""Compares recipes of workdirs with themselves; the rows of the tables of `benchmarks/claims.py --workdir`.

M: models with training subsets of their own, B: replicas, R: references, H: halves of the samples, Q: recipes, P: pairs
of models, S: comparisons.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import scipy.stats
from claim_numbers import (
    FPR,
    Decisions,
    Recipe,
    Result,
    find_misses,
    paired,
    property_correlation,
    target_jackknife,
    unpaired,
)

from lm_mia import stats
from lm_mia.attacks import spec

TARGETS = 8
"""The largest number of targets of an attack."""


def split_models(rng: np.random.Generator, models: int) -> np.ndarray:
    """Returns the indices of the models in two random halves, with complete pairs of consecutive models."""
    pairs = models // 4
    pair_2xP = rng.permutation(models // 2)[: 2 * pairs].reshape(2, pairs)
    return (2 * pair_2xP[..., None] + np.arange(2)).reshape(2, 2 * pairs)


def halves_of_models(
    rng: np.random.Generator,
    recipe: Recipe,
    references: int,
    available: int = 0,
    other_samples: bool = False,
) -> Result:
    """Attacks up to 8 models of each half with others of the half, on the same samples or on half of them each."""
    available = available or references
    half_2xM = split_models(rng, len(recipe.loss_MxN2))
    if half_2xM.shape[1] < available + 2:
        return {}
    samples = recipe.loss_MxN2.shape[1]
    part_N2 = rng.permutation(samples) % 2
    recipes = [recipe.of_samples(part_N2 == i) if other_samples else recipe for i in range(2)]
    new, old = (
        target_jackknife(r, half_M[available:][:TARGETS], half_M[:available], references)
        for r, half_M in zip(recipes, half_2xM, strict=True)
    )
    return unpaired(new, old) if other_samples else paired(new, old)


def halves_of_references(rng: np.random.Generator, recipe: Recipe, references: int) -> Result:
    """Attacks the same models with each of two halves of the others."""
    first_M, second_M = split_models(rng, len(recipe.loss_MxN2))
    targets = np.concatenate([first_M[references:], second_M[references:]])[:TARGETS]
    if len(targets) < 2:
        return {}
    return paired(*(target_jackknife(recipe, targets, m[:references]) for m in (first_M, second_M)))


def random_property(rng: np.random.Generator, recipe: Recipe, references: int) -> Result:
    """Correlates with random numbers."""
    model_M = split_models(rng, len(recipe.loss_MxN2)).ravel()
    if len(model_M) < references + 2:
        return {}
    return property_correlation(rng, recipe, model_M[references:][:TARGETS], model_M[:references])


def halves_of_replicas(rng: np.random.Generator, recipe: Recipe, references: int) -> Result:
    """Attacks each half of the replicas with references of its own."""
    half_2xM = split_models(rng, len(recipe.loss_MxN2))[:, :references]
    replicas = len(recipe.replica_loss_BxN2) // 2
    if half_2xM.shape[1] < references or replicas < spec.JACKKNIFE_GROUPS:
        return {}
    half_2xB = rng.permutation(2 * replicas).reshape(2, replicas)
    new, old = (Decisions.compute(recipe, *half) for half in zip(half_2xB, half_2xM, strict=True))
    return new.compare(old)


SELF_COMPARISONS: dict[str, Callable[..., Result]] = {
    "targets, halves of the models; 16 references": functools.partial(
        halves_of_models, references=16
    ),
    "targets, halves of the models; 8 sets of 4 references": functools.partial(
        halves_of_models, references=4, available=32
    ),
    "targets, halves of the models and of the samples; 16 references": functools.partial(
        halves_of_models, references=16, other_samples=True
    ),
    "targets, halves of the references; 16 references": functools.partial(
        halves_of_references, references=16
    ),
    "targets, random property; 16 references": functools.partial(random_property, references=16),
    "targets, halves of the models; 4 references held fixed": functools.partial(
        halves_of_models, references=4
    ),
    "targets, halves of the models; 8 references held fixed": functools.partial(
        halves_of_models, references=8
    ),
    "targets, halves of the models; 12 references held fixed": functools.partial(
        halves_of_models, references=12
    ),
    "halves of the replicas; 16 references": functools.partial(halves_of_replicas, references=16),
}
"""Comparisons of a recipe with itself; empty where it has too few models."""


@dataclasses.dataclass(frozen=True)
class ModelAucs:
    """The AUC on halves of the samples of models with subsets and initial weights of their own, and of replicas."""

    auc_MxH: np.ndarray
    auc_BxH: np.ndarray

    @classmethod
    def measure(cls, recipe: Recipe) -> Self:
        """Attacks each model with the others, without its complement, and each replica with all models."""
        loss_MxN2, member_MxN2 = recipe.loss_MxN2, recipe.member_MxN2
        score_MxN2 = stats.lira_leave_one_out(loss_MxN2, member_MxN2, variance="pooled")
        score_BxN2 = recipe.lira(recipe.replica_loss_BxN2, np.arange(len(loss_MxN2)))
        group_N2 = stats.sample_groups(np.arange(loss_MxN2.shape[1]))
        auc_MxH, _ = stats.rates_of_halves(score_MxN2, member_MxN2, group_N2, [FPR])
        auc_BxH, _ = stats.rates_of_halves(score_BxN2, recipe.replica_member_N2, group_N2, [FPR])
        return cls(auc_MxH, auc_BxH)

    def __sub__(self, other: Self) -> Self:
        """Returns the difference of two recipes with the same training subsets."""
        return type(self)(self.auc_MxH - other.auc_MxH, self.auc_BxH - other.auc_BxH)

    def cells(self) -> list[str]:
        """Returns standard deviations of the AUC, and what follows from them for an interval over replicas.

        What a model adds to the AUC on one half of the samples, it adds on the other, but for chance; the covariance
        of the two halves over models is the variance over models without the noise of single samples.
        """
        variances = []
        for auc_TxH in (self.auc_MxH, self.auc_BxH):
            deviation_TxH = auc_TxH - auc_TxH.mean(axis=0)
            covariance_S = (deviation_TxH[:, ::2] * deviation_TxH[:, 1::2]).sum(axis=0)
            variances.append(max(covariance_S.mean() / (len(auc_TxH) - 1), 0))
        half_gap_S = (self.auc_BxH[:, ::2] - self.auc_BxH[:, 1::2]).mean(axis=0) / 2
        models, order, samples = (*variances, (half_gap_S**2).mean())
        subset, interval = max(models - order, 0), order / len(self.auc_BxH) + samples
        deviations = 1.96 * math.sqrt(interval / (interval + subset))
        misses = 2 * scipy.stats.norm.sf(deviations)
        counts = [str(len(self.auc_MxH)), str(len(self.auc_BxH))]
        sds = [f"{math.sqrt(variance):.3f}" for variance in (models, order, subset, samples)]
        return [*counts, *sds, f"{100 * misses:.0f}"]


def _percent_of_recipes(missed_of_recipe: Sequence[np.ndarray]) -> str:
    """Returns the mean over recipes of the rate in percent, with its 95% t interval if there are 5 recipes."""
    with_interval = [missed_S[~np.isnan(missed_S)] for missed_S in missed_of_recipe]
    rate_Q = np.array([100 * missed_S.mean() for missed_S in with_interval if missed_S.size])
    if not rate_Q.size:
        return "–"
    if len(rate_Q) < 5:
        return f"{rate_Q.mean():.1f}"
    margin = scipy.stats.t.ppf(0.975, len(rate_Q) - 1) * scipy.stats.sem(rate_Q)
    low, high = max(rate_Q.mean() - margin, 0), rate_Q.mean() + margin
    return f"{rate_Q.mean():.1f} [{low:.1f}, {high:.1f}]"


COMPARISON_COLUMNS = (
    "construction",
    "number",
    "recipes",
    "comparisons",
    "misses now, %",
    "misses before, %",
)


def self_comparisons(recipes: Sequence[Recipe], splits: int, seed: int) -> Iterator[Sequence[str]]:
    """Yields the rows of the table of self-comparisons."""
    for construction, compare in SELF_COMPARISONS.items():
        missed: dict[str, list[np.ndarray]] = {}
        for index, recipe in enumerate(recipes):
            design = functools.partial(compare, recipe=recipe)
            for name, missed_Sx2 in find_misses(
                design, splits, seed * len(recipes) + index
            ).items():
                missed.setdefault(name, []).append(missed_Sx2)
        for name, missed_of_recipe in missed.items():
            counts = str(len(missed_of_recipe)), str(sum(map(len, missed_of_recipe)))
            now, before = (
                _percent_of_recipes([missed_Sx2[:, column] for missed_Sx2 in missed_of_recipe])
                for column in range(2)
            )
            yield construction, name, *counts, now, before


SUBSET_COLUMNS = (
    "recipe",
    "models",
    "replicas",
    "SD over models",
    "SD over replicas",
    "SD due to the subset",
    "SD due to the samples",
    "misses, %",
)


def subset_effects(recipes: Sequence[tuple[str, Recipe]]) -> Iterator[Sequence[str]]:
    """Yields the rows of the table of the spread of the AUC, for recipes with replicas and for their differences.

    Args:
      recipes: the names and losses of recipes.
    """
    measured = [
        (name, recipe.member_MxN2, ModelAucs.measure(recipe))
        for name, recipe in recipes
        if len(recipe.replica_loss_BxN2) >= spec.JACKKNIFE_GROUPS
    ]
    for name, _, aucs in measured:
        yield name, *aucs.cells()
    for (old_name, old_MxN2, old), (name, member_MxN2, new) in itertools.combinations(measured, 2):
        if np.array_equal(old_MxN2, member_MxN2):
            yield f"{name} minus {old_name}", *(new - old).cells()
