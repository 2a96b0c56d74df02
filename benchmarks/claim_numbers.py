"""The numbers of claims, with their intervals, from the losses of models.

N2: samples of the population, M: models with training subsets of their own, T: targets, R: references, B: replicas,
S: members; A1, R1, H1 as in analysis.claims.jackknife.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import zarr

from analysis.claims import jackknife
from analysis.claims.compare import Estimate, VarianceTerm
from analysis.claims.jackknife import Jackknife
from analysis.claims.trends import rank_correlation
from lm_mia import stats
from lm_mia.attacks import spec

FPR = 0.05
Result = dict[str, tuple[Estimate, Estimate]]
"""Number -> (its estimate, the estimate that claims had before). Before, an interval was over targets with fixed
references and samples, or over samples with fixed replicas, references and thresholds."""
Design = Callable[[np.random.Generator], Result]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The losses of the models of one recipe."""

    loss_MxN2: np.ndarray
    member_MxN2: np.ndarray
    replica_loss_BxN2: np.ndarray
    replica_member_N2: np.ndarray

    @classmethod
    def read(cls, recipe_dir: Path) -> Self:
        """Reads the losses at the end of training from the score store of a recipe."""
        store = zarr.open_group(recipe_dir / "scores.zarr", mode="r")
        loss, member, role = (np.asarray(store[name]) for name in ("loss", "member", "role"))
        if loss.ndim == 3:  # checkpoints; the end of training is the last
            loss = loss[:, -1]
        is_replica = role.astype(str) == "replica"
        replica_member_N2 = np.any(member[is_replica][:1], axis=0)
        return cls(
            loss[~is_replica].astype(float),
            member[~is_replica].astype(bool),
            loss[is_replica].astype(float),
            replica_member_N2,
        )

    def of_samples(self, used_N2: np.ndarray) -> Self:
        """Returns the losses of some of the samples."""
        arrays = {f.name: getattr(self, f.name)[..., used_N2] for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **arrays)

    def lira(self, loss_TxN2: np.ndarray, index_R: np.ndarray) -> np.ndarray:
        """Returns the membership scores of LiRA with some of the models as references."""
        references = self.loss_MxN2[index_R], self.member_MxN2[index_R]
        return stats.lira(loss_TxN2, *references, variance="pooled")


def reference_parts(references: int, available: int) -> list[np.ndarray]:
    """Returns the indices of the first references, and of their parts as in `spec.AttackSpec.reference_part`."""
    group_R = np.array(spec.reference_groups(range(available)))
    parts = spec.num_reference_parts(references, available)
    if parts == spec.NUM_HALVES:
        halves = [np.isin(group_R, [*spec.half_groups(h)]) for h in range(parts)]
        indices = [np.flatnonzero(half_R[:references]) for half_R in halves]
    else:
        indices = [np.flatnonzero(group_R == g)[:references] for g in range(parts)]
    return [np.arange(references), *indices]


def target_jackknife(
    recipe: Recipe, index_T: np.ndarray, index_R: np.ndarray, references: int = 0
) -> dict[str, Jackknife]:
    """Attacks targets as `analysis.attacks.read_jackknife` reads it.

    Args:
      recipe: the losses.
      index_T: the models that are attacked.
      index_R: the models that are available as references.
      references: the number of references of an attack; 0 uses all that are available.
    """
    loss_TxN2, member_TxN2 = recipe.loss_MxN2[index_T], recipe.member_MxN2[index_T]
    group_N2 = stats.sample_groups(np.arange(loss_TxN2.shape[1]))
    values = {"AUC": [], f"TPR at {100 * FPR:g}%": []}
    parts = reference_parts(references or len(index_R), len(index_R))
    for part in parts:
        score_TxN2 = recipe.lira(loss_TxN2, index_R[part])
        points = stats.tpr_at_fpr(score_TxN2, member_TxN2, [FPR])
        auc_TxH, tpr_TxHx1 = stats.rates_of_halves(score_TxN2, member_TxN2, group_N2, [FPR])
        for name, whole_T, half_TxH in zip(
            values, (points.auc_T, points.tpr_TxF[:, 0]), (auc_TxH, tpr_TxHx1[..., 0]), strict=True
        ):
            values[name].append(np.column_stack([whole_T, half_TxH]))
    return {name: Jackknife.from_attacks(v[0], v[1:], "") for name, v in values.items()}


def with_fixed(value: Jackknife) -> Jackknife:
    """Returns the number with an interval that holds references and samples fixed."""
    return dataclasses.replace(value, value_A1xR1xH1=value.value_A1xR1xH1[:, :1, :1])


def paired(new: dict[str, Jackknife], old: dict[str, Jackknife]) -> Result:
    """Compares numbers of the same samples."""
    gaps = {name: new[name] - old[name] for name in new}
    return {name: (gap.estimate(), with_fixed(gap).estimate()) for name, gap in gaps.items()}


def unpaired(new: dict[str, Jackknife], old: dict[str, Jackknife]) -> Result:
    """Compares numbers of different samples."""
    return {
        name: (
            jackknife.independent_difference(new[name], old[name]),
            jackknife.independent_difference(with_fixed(new[name]), with_fixed(old[name])),
        )
        for name in new
    }


def property_correlation(
    rng: np.random.Generator, recipe: Recipe, index_T: np.ndarray, index_R: np.ndarray
) -> Result:
    """Correlates the posterior of members with a property of samples that has no effect."""
    loss_TxN2, member_TxN2 = recipe.loss_MxN2[index_T], recipe.member_MxN2[index_T]
    samples = loss_TxN2.shape[1]
    property_N2 = rng.normal(size=samples)
    used_H1xN2 = np.concatenate(
        [np.ones((1, samples), bool), stats.HALVES_HxG[:, stats.sample_groups(np.arange(samples))]]
    )

    def correlation(score_N2: np.ndarray, used_N2: np.ndarray) -> float:
        return rank_correlation(property_N2[used_N2], score_N2[used_N2])

    value_R1xTxH1 = np.array(
        [
            [
                [correlation(score_N2, member_N2 & used_N2) for used_N2 in used_H1xN2]
                for score_N2, member_N2 in zip(
                    recipe.lira(loss_TxN2, index_R[part]), member_TxN2, strict=True
                )
            ]
            for part in reference_parts(len(index_R), len(index_R))
        ]
    )
    value = Jackknife.from_targets(value_R1xTxH1.swapaxes(0, 1), "")
    return {"rank correlation": (value.estimate(), with_fixed(value).estimate())}


def mean_loss(recipe: Recipe) -> dict[str, Jackknife]:
    """Returns the mean loss over models and samples, as in Figure 32."""
    samples = recipe.loss_MxN2.shape[1]
    half_HxN2 = stats.HALVES_HxG[:, stats.sample_groups(np.arange(samples))]
    halves = [recipe.loss_MxN2[:, half_N2].mean(axis=1) for half_N2 in half_HxN2]
    mean_MxH1 = np.stack([recipe.loss_MxN2.mean(axis=1), *halves], axis=1)
    return {"mean loss": Jackknife.from_targets(mean_MxH1[:, None], "")}


_DECISIONS = {
    "AUC": "auc_A1xH1",
    "flip rate of members": "member_flip_rate_A1xH1xF",
    "coin flips of members": "member_coin_flips_A1xH1xF",
    "TPR from coin flips": "coin_flip_tpr_A1xH1xF",
    "rank correlation with the distance": "distance_correlation_A1xH1",
    "spread of thresholds": "threshold_spread_A1xH1xF",
}


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Numbers about the decisions of some replicas, attacked with some references."""

    value: dict[str, Jackknife]
    value_of_sample: dict[str, np.ndarray]
    """The numbers that are means over members, for each member."""

    @classmethod
    def compute(cls, recipe: Recipe, index_B: np.ndarray, index_R: np.ndarray) -> Self:
        """Computes the numbers as lm_mia.attacks.decision_jackknife does."""
        loss_BxN2, member_N2 = recipe.replica_loss_BxN2[index_B], recipe.replica_member_N2
        group_N2, replicas = stats.sample_groups(np.arange(member_N2.size)), len(index_B)
        parts = [index_R[part] for part in reference_parts(len(index_R), len(index_R))]
        metrics = [
            stats.decision_metrics(recipe.lira(loss_BxN2, part), member_N2, group_N2, [FPR], 0)
            for part in parts
        ]
        value = {
            name: np.stack([np.atleast_3d(getattr(m, field))[..., 0] for m in metrics], axis=1)
            for name, field in _DECISIONS.items()
        }
        score_BxN2 = recipe.lira(loss_BxN2, index_R)
        threshold_BxF = stats.tpr_at_fpr(score_BxN2, member_N2, [FPR]).threshold_TxF
        votes_S = stats.count_votes(score_BxN2, threshold_BxF).votes_FxN[0, member_N2]
        k_low, _ = stats.coin_flip_cutoff(replicas)
        coin_S = (k_low <= votes_S) & (votes_S <= replicas - k_low)
        of_sample = {
            "flip rate of members": stats.flip_rate(votes_S, replicas),
            "coin flips of members": coin_S.astype(float),
            "TPR from coin flips": coin_S * votes_S / replicas,
        }
        return cls({name: Jackknife(v, "") for name, v in value.items()}, of_sample)

    def compare(self, other: Self) -> Result:
        """Compares with other decisions on the same samples."""
        result = {}
        for name in _DECISIONS:
            now = (self.value[name] - other.value[name]).estimate()
            before = Estimate(now.value, math.nan, math.nan, "")
            if name in self.value_of_sample:
                gap_S = self.value_of_sample[name] - other.value_of_sample[name]
                term = VarianceTerm(gap_S.var(ddof=1) / len(gap_S), len(gap_S) - 1)
                before = Estimate.from_variance(float(gap_S.mean()), [term], "")
            result[name] = now, before
        return result


def find_misses(design: Design, repetitions: int, seed: int) -> dict[str, np.ndarray]:
    """Returns missed_Sx2 for each number: whether its intervals, now and before, exclude 0; NaN without an interval."""
    missed: dict[str, list[list[float]]] = {}
    for repetition in range(repetitions):
        for name, estimates in design(np.random.default_rng([seed, repetition])).items():
            missed.setdefault(name, []).append(
                [float(e.p_value() < 0.05) if e.has_interval else math.nan for e in estimates]
            )
    return {name: np.array(missed_Sx2) for name, missed_Sx2 in missed.items()}
