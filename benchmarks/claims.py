"""How often the intervals of claims miss the truth when two recipes, or two attacks, are alike.

    python -m benchmarks claims [--simulations=200] [--seed=0] [DESIGN ...]
    python -m benchmarks claims --workdir DIR [DIR ...] [--splits=20] [--seed=0]

The first command simulates losses of two recipes from the same distribution, so that no number truly differs between
them, and counts the 95% intervals of their difference that exclude 0. A correct interval does so in 5% of the
simulations. Prints a row of a Markdown table for each design and number. With 200 simulations, a design of targets
takes about a minute on one core and a design of replicas 3 to 6 minutes; DESIGNS are named below.

The loss of a model on a sample is the sum of

- the level of the sample, which all models share;
- minus, for members, the gain of training on the sample: gamma distributed over samples, different in each recipe, and
  larger or smaller for a model as a whole;
- noise of the training subset and of the order of training. Each has a part that is independent for every sample, and a
  part that related samples share, from factors with weights of the sample. Replicas share the noise of the subset.

The second command compares recipes of real workdirs with themselves. It divides the models of a recipe into halves at
random, attacks some models of each half with the others of the half, and takes the difference, whose true value is 0.
All splits of a recipe use the same models, so comparisons depend on each other; brackets are 95% t intervals over
recipes. A second table shows how much the AUC depends on the training subset and initial weights, which replicas share:
the standard deviation (SD) of the AUC over models with subsets and weights of their own, over replicas, and due to the
choice of samples, each without the others, and the share of the subsets that a 95% interval over the replicas would
miss. 20 splits of a recipe with 40 models and 3,072 samples take about a minute on one core.

"Before" is the interval that claims had before: over targets with fixed references and samples, or
over samples with fixed replicas, references and thresholds.

N2: samples of the population, M: models with training subsets of their own, B: replicas, K: factors, S: simulations.
"""

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import scipy.stats
from claim_numbers import (
    Decisions,
    Design,
    Recipe,
    Result,
    find_misses,
    mean_loss,
    paired,
    property_correlation,
    target_jackknife,
    unpaired,
)
from claims_of_workdirs import (
    COMPARISON_COLUMNS,
    SUBSET_COLUMNS,
    self_comparisons,
    subset_effects,
)

_FACTORS = 4
_NOISE_NATS, _GAIN_NATS = 0.1, 0.08
_SHARED = 0.5
"""The part of the variance of the noise that related samples share."""


@dataclasses.dataclass(frozen=True)
class Population:
    """The samples of a simulated population."""

    level_N2: np.ndarray
    gain_N2: np.ndarray
    weight_KxN2: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, samples: int) -> Self:
        """Draws a population."""
        return cls(
            rng.normal(4, 0.5, samples),
            rng.gamma(2, 0.5, samples),
            rng.normal(size=(_FACTORS, samples)) / math.sqrt(_FACTORS),
        )

    def noise(self, rng: np.random.Generator, models: int) -> np.ndarray:
        """Returns noise_MxN2 with a variance of 1, a part of which related samples share."""
        shared_MxN2 = rng.normal(size=(models, _FACTORS)) @ self.weight_KxN2
        own_MxN2 = rng.normal(size=shared_MxN2.shape)
        return math.sqrt(_SHARED) * shared_MxN2 + math.sqrt(1 - _SHARED) * own_MxN2


def balanced_subsets(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN2: the models of each pair have complementary halves of the samples."""
    half = np.arange(samples) < samples // 2
    first = [rng.permutation(half) for _ in range(models // 2)]
    return np.stack([subset for one in first for subset in (one, ~one)])


def simulate_recipe(
    rng: np.random.Generator,
    population: Population,
    member_MxN2: np.ndarray,
    replicas: int = 0,
    subset_noise: bool = True,
) -> Recipe:
    """Simulates the models of a recipe; replicas have the subset of the last of them.

    Without noise of the subset, replicas are as independent as models with subsets of their own.
    """
    gain_N2 = population.gain_N2 * rng.lognormal(-0.125, 0.5, member_MxN2.shape[1])

    def losses(member_MxN2: np.ndarray, subsets: int) -> np.ndarray:
        models = len(member_MxN2)
        noise_MxN2 = population.noise(rng, subsets) + population.noise(rng, models)
        strength_Mx1 = rng.normal(size=(subsets, 1)) + rng.normal(size=(models, 1))
        gain_MxN2 = _GAIN_NATS * (1 + 0.1 * strength_Mx1 / math.sqrt(2)) * gain_N2 * member_MxN2
        return population.level_N2 - gain_MxN2 + _NOISE_NATS * noise_MxN2 / math.sqrt(2)

    loss_MxN2 = losses(member_MxN2, len(member_MxN2))
    member_BxN2 = np.broadcast_to(member_MxN2[-1], (replicas, member_MxN2.shape[1]))
    replica_loss_BxN2 = losses(member_BxN2, 1 if subset_noise else replicas)
    return Recipe(loss_MxN2, member_MxN2, replica_loss_BxN2, member_MxN2[-1])


def same_population(
    rng: np.random.Generator, samples: int, targets: int, references: int, available: int = 0
) -> Result:
    """Compares two recipes with the same samples and subsets; pairs of targets have the same subset."""
    population, available = Population.draw(rng, samples), available or references
    subsets = balanced_subsets(rng, available + targets, samples)
    models = available + np.arange(targets), np.arange(available)
    return paired(
        *(
            target_jackknife(simulate_recipe(rng, population, subsets), *models, references)
            for _ in range(2)
        )
    )


def other_population(
    rng: np.random.Generator, samples: int, targets: int, references: int
) -> Result:
    """Compares two recipes on different samples."""
    models = references + np.arange(targets), np.arange(references)

    def recipe() -> Recipe:
        population = Population.draw(rng, samples)
        return simulate_recipe(
            rng, population, balanced_subsets(rng, references + targets, samples)
        )

    return unpaired(*(target_jackknife(recipe(), *models) for _ in range(2)))


def two_attacks(rng: np.random.Generator, samples: int, targets: int, references: int) -> Result:
    """Compares two attacks on the same targets, each with references of its own."""
    subsets = balanced_subsets(rng, 2 * references + targets, samples)
    recipe = simulate_recipe(rng, Population.draw(rng, samples), subsets)
    index_T = 2 * references + np.arange(targets)
    first_R = np.arange(references)
    return paired(
        *(target_jackknife(recipe, index_T, first + first_R) for first in (0, references))
    )


def unrelated_property(
    rng: np.random.Generator, samples: int, targets: int, references: int
) -> Result:
    """Correlates with a property of samples that has no effect."""
    subsets = balanced_subsets(rng, references + targets, samples)
    recipe = simulate_recipe(rng, Population.draw(rng, samples), subsets)
    index_T, index_R = references + np.arange(targets), np.arange(references)
    return property_correlation(rng, recipe, index_T, index_R)


def losses(rng: np.random.Generator, samples: int, models: int) -> Result:
    """Compares the mean losses of two recipes with the same samples and subsets."""
    population, subsets = Population.draw(rng, samples), balanced_subsets(rng, models, samples)
    return paired(*(mean_loss(simulate_recipe(rng, population, subsets)) for _ in range(2)))


def replicas(
    rng: np.random.Generator,
    samples: int,
    replicas: int,
    references: int,
    subset_noise: bool = True,
) -> Result:
    """Compares the decisions of the replicas of two recipes with the same samples and subset."""
    population = Population.draw(rng, samples)
    subsets = balanced_subsets(rng, references + 2, samples)
    new, old = (
        Decisions.compute(
            simulate_recipe(rng, population, subsets, replicas, subset_noise),
            np.arange(replicas),
            np.arange(references),
        )
        for _ in range(2)
    )
    return new.compare(old)


DESIGNS: dict[str, tuple[str, Design]] = {
    "paired-16": (
        "targets, two recipes on the same samples; 8 targets, 16 references",
        lambda rng: same_population(rng, 1024, 8, 16),
    ),
    "paired-32": (
        "targets, two recipes on the same samples; 8 targets, 32 references",
        lambda rng: same_population(rng, 1024, 8, 32),
    ),
    "sets-4": (
        "targets, two recipes on the same samples; 8 targets, 8 sets of 4 references",
        lambda rng: same_population(rng, 1024, 8, 4, 32),
    ),
    "attacks-32": (
        "targets, two attacks with 32 references each; 8 targets",
        lambda rng: two_attacks(rng, 1024, 8, 32),
    ),
    "other-32": (
        "targets, two recipes on different samples; 8 targets, 32 references",
        lambda rng: other_population(rng, 1024, 8, 32),
    ),
    "property-32": (
        "targets, an unrelated property of samples; 8 targets, 32 references",
        lambda rng: unrelated_property(rng, 1024, 8, 32),
    ),
    "losses-32": (
        "losses, two recipes on the same samples; 32 models",
        lambda rng: losses(rng, 1024, 32),
    ),
    "fixed-4": (
        "targets, two recipes on the same samples; 8 targets, 4 references held fixed",
        lambda rng: same_population(rng, 1024, 8, 4),
    ),
    "fixed-8": (
        "targets, two recipes on the same samples; 8 targets, 8 references held fixed",
        lambda rng: same_population(rng, 1024, 8, 8),
    ),
    "fixed-12": (
        "targets, two recipes on the same samples; 8 targets, 12 references held fixed",
        lambda rng: same_population(rng, 1024, 8, 12),
    ),
    "replicas-8": (
        "8 replicas, two recipes on the same samples; 32 references",
        lambda rng: replicas(rng, 1024, 8, 32),
    ),
    "replicas-16": (
        "16 replicas, two recipes on the same samples; 16 references",
        lambda rng: replicas(rng, 1024, 16, 16),
    ),
    "order-8": (
        "8 replicas without noise of the training subset; 32 references",
        lambda rng: replicas(rng, 1024, 8, 32, subset_noise=False),
    ),
    "order-16": (
        "16 replicas without noise of the training subset; 16 references",
        lambda rng: replicas(rng, 1024, 16, 16, subset_noise=False),
    ),
    "order-32": (
        "32 replicas without noise of the training subset; 32 references",
        lambda rng: replicas(rng, 1024, 32, 32, subset_noise=False),
    ),
}


def _percent(missed_S: np.ndarray) -> str:
    """Returns the rate in percent, with its 95% Clopper-Pearson interval."""
    if np.isnan(missed_S).any():
        return "–"
    count, n = int(missed_S.sum()), len(missed_S)
    low, high = scipy.stats.binomtest(count, n).proportion_ci()
    return f"{100 * count / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def simulations(designs: Sequence[str], repetitions: int, seed: int) -> Iterator[Sequence[str]]:
    """Yields the rows of the table of simulations."""
    for design in designs:
        description, function = DESIGNS[design]
        for name, missed_Sx2 in find_misses(function, repetitions, seed).items():
            now, before = map(_percent, missed_Sx2.T)
            yield description, name, str(len(missed_Sx2)), now, before


def _print_table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Counts intervals of claims that miss the truth.")
    parser.add_argument("design", nargs="*", help=f"one of {', '.join(DESIGNS)} (default: all)")
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--workdir", type=Path, nargs="+", help="compare real recipes instead")
    parser.add_argument("--splits", type=int, default=20, help="comparisons of each recipe")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.workdir:
        recipe_dirs = [d for w in options.workdir for d in sorted((w / "recipes").iterdir())]
        recipes = [(directory.name, Recipe.read(directory)) for directory in recipe_dirs]
        rows = self_comparisons([recipe for _, recipe in recipes], options.splits, options.seed)
        _print_table(COMPARISON_COLUMNS, rows)
        print()
        _print_table(SUBSET_COLUMNS, subset_effects(recipes))
        return

    columns = "design", "number", "simulations", "misses now, %", "misses before, %"
    _print_table(
        columns, simulations(options.design or [*DESIGNS], options.simulations, options.seed)
    )


if __name__ == "__main__":
    main()
