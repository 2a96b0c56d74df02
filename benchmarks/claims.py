"""How often the intervals of claims miss the truth when two recipes, or two attacks, are alike.

    python benchmarks/claims.py [--simulations=200] [--seed=0] [DESIGN ...]

Simulates losses of two recipes from the same distribution, so that no number truly differs between them, and counts the
95% intervals of their difference that exclude 0. A correct interval does so in 5% of the simulations. Prints a row of a
Markdown table for each design and number. With 200 simulations, a design of targets takes 1 to 2 minutes on one core
and a design of replicas 3 to 8 minutes; DESIGNS are named below.

The loss of a model on a sample is the sum of

- the level of the sample, which all models share;
- minus, for members, the gain of training on the sample: gamma distributed over samples, different in each recipe, and
  larger or smaller for a model as a whole;
- noise of the training subset and of the order of training. Each has a part that is independent for every sample, and a
  part that related samples share, from factors with weights of the sample. Replicas share the noise of the subset.

"Before" is the interval that claims had before: over targets with fixed references and samples, or
over samples with fixed replicas, references and thresholds.

N2: samples of the population, M: models, T: targets, R: references, B: replicas, K: factors; A1, R1, H1 as in
analysis.jackknife.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy.stats

from analysis import jackknife
from analysis.compare import Estimate, RankCorrelation, VarianceTerm
from analysis.jackknife import Jackknife
from lm_mia import stats
from lm_mia.config import needs

FPR = 0.05
_FACTORS = 4
_NOISE_NATS, _GAIN_NATS = 0.1, 0.08
_SHARED = 0.5
"""The part of the variance of the noise that related samples share."""
Result = dict[str, tuple[Estimate, Estimate]]
"""Number -> (its estimate now, its estimate before)."""


@dataclasses.dataclass(frozen=True)
class Population:
    """The samples of a population."""

    level_N2: np.ndarray
    gain_N2: np.ndarray
    weight_KxN2: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, samples: int) -> "Population":
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


class Recipe:
    """The losses of the models of one recipe, with balanced subsets; replicas have the subset of the last model."""

    def __init__(
        self,
        rng: np.random.Generator,
        population: Population,
        member_MxN2: np.ndarray,
        replicas: int = 0,
        subset_noise: bool = True,
    ) -> None:
        self._rng, self._population = rng, population
        self._gain_N2 = population.gain_N2 * rng.lognormal(-0.125, 0.5, member_MxN2.shape[1])
        self.member_MxN2 = member_MxN2
        self.loss_MxN2 = self._losses(member_MxN2, len(member_MxN2))
        member_BxN2 = np.broadcast_to(member_MxN2[-1], (replicas, member_MxN2.shape[1]))
        self.replica_loss_BxN2 = self._losses(member_BxN2, 1 if subset_noise else replicas)

    def _losses(self, member_MxN2: np.ndarray, subsets: int) -> np.ndarray:
        """Returns the losses of models that all have one subset, or each its own."""
        rng, models = self._rng, len(member_MxN2)
        noise_MxN2 = self._population.noise(rng, subsets) + self._population.noise(rng, models)
        strength_Mx1 = (rng.normal(size=(subsets, 1)) + rng.normal(size=(models, 1))) / math.sqrt(2)
        gain_MxN2 = _GAIN_NATS * (1 + 0.1 * strength_Mx1) * self._gain_N2 * member_MxN2
        return self._population.level_N2 - gain_MxN2 + _NOISE_NATS * noise_MxN2 / math.sqrt(2)

    def lira(self, loss_TxN2: np.ndarray, index_R: np.ndarray) -> np.ndarray:
        """Returns the membership scores of LiRA with some of the models as references."""
        references = self.loss_MxN2[index_R], self.member_MxN2[index_R]
        return stats.lira(loss_TxN2, *references, variance="pooled")


def balanced_subsets(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN2: the models of each pair have complementary halves of the samples."""
    half = np.arange(samples) < samples // 2
    first = [rng.permutation(half) for _ in range(models // 2)]
    return np.stack([subset for one in first for subset in (one, ~one)])


def reference_parts(references: int, available: int) -> list[np.ndarray]:
    """Returns the indices of the first references, and of their parts as in `needs.TargetAttack.reference_part`."""
    group_R = np.array(needs.reference_groups(available))
    parts = needs.num_reference_parts(references, available)
    if parts == needs.NUM_HALVES:
        halves = [np.isin(group_R, [*needs.half_groups(h)]) for h in range(parts)]
        indices = [np.flatnonzero(half_R[:references]) for half_R in halves]
    else:
        indices = [np.flatnonzero(group_R == g)[:references] for g in range(parts)]
    return [np.arange(references), *indices]


def target_jackknife(
    recipe: Recipe, targets: int, references: int, available: int = 0, first: int = 0
) -> dict[str, Jackknife]:
    """Attacks the last targets of a recipe with references from ``first`` on."""
    loss_TxN2, member_TxN2 = recipe.loss_MxN2[-targets:], recipe.member_MxN2[-targets:]
    group_N2 = stats.sample_groups(np.arange(loss_TxN2.shape[1]))
    values = {"AUC": [], f"TPR at {100 * FPR:g}%": []}
    indices = reference_parts(references, available or references)
    for index_R in indices:
        score_TxN2 = recipe.lira(loss_TxN2, first + index_R)
        points = stats.tpr_at_fpr(score_TxN2, member_TxN2, [FPR])
        auc_TxH, tpr_TxHx1 = stats.rates_of_halves(score_TxN2, member_TxN2, group_N2, [FPR])
        for name, whole_T, half_TxH in zip(
            values, (points.auc_T, points.tpr_TxF[:, 0]), (auc_TxH, tpr_TxHx1[..., 0]), strict=True
        ):
            values[name].append(np.column_stack([whole_T, half_TxH]))
    if len(indices) == 1 + needs.JACKKNIFE_GROUPS:
        halves = [needs.half_groups(h) for h in range(needs.NUM_HALVES)]
        sets = [[*groups] for groups in (range(needs.JACKKNIFE_GROUPS), *halves)]
        values = {
            name: [np.mean([v[1 + s] for s in groups], axis=0) for groups in sets]
            for name, v in values.items()
        }
    return {name: Jackknife.from_targets(np.stack(v, axis=1), "") for name, v in values.items()}


def with_fixed(value: Jackknife) -> Jackknife:
    """Returns the number with an interval that holds references and samples fixed."""
    return dataclasses.replace(value, value_A1xR1xH1=value.value_A1xR1xH1[:, :1, :1])


def same_population(
    rng: np.random.Generator, samples: int, targets: int, references: int, available: int = 0
) -> Result:
    """Compares two recipes with the same samples and subsets; pairs of targets have the same subset."""
    population = Population.draw(rng, samples)
    subsets = balanced_subsets(rng, (available or references) + targets, samples)
    new, old = (
        target_jackknife(Recipe(rng, population, subsets), targets, references, available)
        for _ in range(2)
    )
    gaps = {name: new[name] - old[name] for name in new}
    return {name: (gap.estimate(), with_fixed(gap).estimate()) for name, gap in gaps.items()}


def other_population(
    rng: np.random.Generator, samples: int, targets: int, references: int
) -> Result:
    """Compares two recipes on different samples."""
    new, old = (
        target_jackknife(
            Recipe(
                rng,
                Population.draw(rng, samples),
                balanced_subsets(rng, references + targets, samples),
            ),
            targets,
            references,
        )
        for _ in range(2)
    )
    return {
        name: (
            jackknife.independent_difference(new[name], old[name]),
            jackknife.independent_difference(with_fixed(new[name]), with_fixed(old[name])),
        )
        for name in new
    }


def two_attacks(rng: np.random.Generator, samples: int, targets: int, references: int) -> Result:
    """Compares two attacks on the same targets, each with references of its own."""
    subsets = balanced_subsets(rng, 2 * references + targets, samples)
    recipe = Recipe(rng, Population.draw(rng, samples), subsets)
    new, old = (
        target_jackknife(recipe, targets, references, first=first) for first in (0, references)
    )
    gaps = {name: new[name] - old[name] for name in new}
    return {name: (gap.estimate(), with_fixed(gap).estimate()) for name, gap in gaps.items()}


def unrelated_property(
    rng: np.random.Generator, samples: int, targets: int, references: int
) -> Result:
    """Correlates the posterior of members with a property of samples that has no effect."""
    recipe = Recipe(
        rng, Population.draw(rng, samples), balanced_subsets(rng, references + targets, samples)
    )
    loss_TxN2, member_TxN2 = recipe.loss_MxN2[-targets:], recipe.member_MxN2[-targets:]
    property_N2 = rng.normal(size=samples)
    used_H1xN2 = np.concatenate(
        [np.ones((1, samples), bool), stats.HALVES_HxG[:, stats.sample_groups(np.arange(samples))]]
    )

    def correlation(score_N2: np.ndarray, used_N2: np.ndarray) -> float:
        trend = RankCorrelation.from_samples(property_N2[used_N2], score_N2[used_N2])
        return math.nan if trend is None else trend.r

    value_R1xTxH1 = np.array(
        [
            [
                [correlation(score_N2, member_N2 & used_N2) for used_N2 in used_H1xN2]
                for score_N2, member_N2 in zip(
                    recipe.lira(loss_TxN2, index_R), member_TxN2, strict=True
                )
            ]
            for index_R in reference_parts(references, references)
        ]
    )
    value = Jackknife.from_targets(value_R1xTxH1.swapaxes(0, 1), "")
    return {"rank correlation": (value.estimate(), with_fixed(value).estimate())}


_DECISIONS = {
    "AUC": "auc_A1xH1",
    "flip rate of members": "member_flip_rate_A1xH1xF",
    "coin flips of members": "member_coin_flips_A1xH1xF",
    "TPR from coin flips": "coin_flip_tpr_A1xH1xF",
    "rank correlation with the distance": "distance_correlation_A1xH1",
    "spread of thresholds": "threshold_spread_A1xH1xF",
}


def replicas(
    rng: np.random.Generator,
    samples: int,
    replicas: int,
    references: int,
    subset_noise: bool = True,
) -> Result:
    """Compares the decisions of the replicas of two recipes with the same samples and subset.

    Without noise of the subset, replicas are as independent as models with subsets of their own.
    """
    population = Population.draw(rng, samples)
    subsets = balanced_subsets(rng, references + 2, samples)
    member_N2, group_N2 = subsets[-1], stats.sample_groups(np.arange(samples))
    k_low, _ = stats.coin_flip_cutoff(replicas)
    values, per_sample = [], []
    for recipe in (Recipe(rng, population, subsets, replicas, subset_noise) for _ in range(2)):
        metrics = [
            stats.decision_metrics(score_BxN2, member_N2, group_N2, [FPR], 0)
            for index_R in reference_parts(references, references)
            for score_BxN2 in [recipe.lira(recipe.replica_loss_BxN2, index_R)]
        ]
        values.append(
            {
                name: np.stack([np.atleast_3d(getattr(m, field))[..., 0] for m in metrics], axis=1)
                for name, field in _DECISIONS.items()
            }
        )
        score_BxN2 = recipe.lira(recipe.replica_loss_BxN2, np.arange(references))
        threshold_BxF = stats.tpr_at_fpr(score_BxN2, member_N2, [FPR]).threshold_TxF
        votes_S = stats.count_votes(score_BxN2, threshold_BxF).votes_FxN[0, member_N2]
        coin_S = (k_low <= votes_S) & (votes_S <= replicas - k_low)
        per_sample.append(
            {
                "flip rate of members": stats.flip_rate(votes_S, replicas),
                "coin flips of members": coin_S.astype(float),
                "TPR from coin flips": coin_S * votes_S / replicas,
            }
        )
    result = {}
    for name in _DECISIONS:
        now = Jackknife(values[0][name] - values[1][name], "").estimate()
        before = Estimate(now.value, math.nan, math.nan, "")
        if name in per_sample[0]:
            gap_S = per_sample[0][name] - per_sample[1][name]
            term = VarianceTerm(gap_S.var(ddof=1) / len(gap_S), len(gap_S) - 1)
            before = Estimate.from_variance(float(gap_S.mean()), [term], "")
        result[name] = now, before
    return result


Design = Callable[[np.random.Generator], Result]
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
    "replicas-8": (
        "8 replicas, two recipes on the same samples; 32 references",
        lambda rng: replicas(rng, 1024, 8, 32),
    ),
    "order-8": (
        "the same, without noise of the training subset that the replicas share",
        lambda rng: replicas(rng, 1024, 8, 32, subset_noise=False),
    ),
    "order-32": (
        "32 replicas without such noise, two recipes on the same samples; 32 references",
        lambda rng: replicas(rng, 1024, 32, 32, subset_noise=False),
    ),
}


def simulate(design: Design, simulations: int, seed: int) -> dict[str, np.ndarray]:
    """Returns missed_Sx2 for each number: whether its intervals, now and before, exclude 0; NaN without an interval."""
    missed: dict[str, list[list[float]]] = {}
    for simulation in range(simulations):
        for name, estimates in design(np.random.default_rng([seed, simulation])).items():
            missed.setdefault(name, []).append(
                [float(e.p_value() < 0.05) if e.has_interval else math.nan for e in estimates]
            )
    return {name: np.array(missed_Sx2) for name, missed_Sx2 in missed.items()}


def _percent(missed_S: np.ndarray) -> str:
    """Returns the rate in percent, with its 95% Clopper-Pearson interval."""
    if np.isnan(missed_S).any():
        return "–"
    count, n = int(missed_S.sum()), len(missed_S)
    low, high = scipy.stats.binomtest(count, n).proportion_ci()
    return f"{100 * count / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Simulates the intervals of claims.")
    parser.add_argument("design", nargs="*", help=f"one of {', '.join(DESIGNS)} (default: all)")
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| design | number | simulations | misses now, % | misses before, % |")
    print("|---|---|---:|---:|---:|")
    for design in options.design or DESIGNS:
        description, function = DESIGNS[design]
        for name, missed_Sx2 in simulate(function, options.simulations, options.seed).items():
            now, before = map(_percent, missed_Sx2.T)
            cells = description, name, str(len(missed_Sx2)), now, before
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
