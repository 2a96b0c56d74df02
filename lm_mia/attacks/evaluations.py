"""Evaluations: plain functions of membership scores and members, each of which returns one table.

    evaluation(scores, *, SETTINGS) -> a data frame, or data frames one after another

The keyword-only parameters are the settings of the section ``attack`` of the config that it reads; it is computed again
only if one of them, or the scores, change. A table has no columns about the attack.

T: attacked models, C: samples of a block, N: attacked samples, F: false positive rates, H: halves of the samples, H1:
all samples, and then each half of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import score_matrix
from lm_mia.attacks.inputs import AttackInputs, call_once
from lm_mia.attacks.registry import RmiaFit
from lm_mia.attacks.results import Table
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.spec import EPSILON_TPRS, JACKKNIFE_SAMPLES, AttackSpec
from lm_mia.data.population import Population

Out = TypeVar("Out")

MAX_SCORES = 2**25
"""Maximum number of scores of an attack that `stored_scores` keeps, which take 128 MiB."""
_GROUP_SAMPLES = 2**17  # number of samples per row group of a table of samples
_GROUP_SCORES = 2**20
"""Number of scores per row group. An export holds a row group of each attack in memory."""
_ESTIMATES = (*(f"epsilon_at_tpr_{tpr:g}" for tpr in EPSILON_TPRS), "balanced_accuracy")
_BOUNDS = ("canaries", "guesses", "correct", "epsilon", "epsilon_if_gaussian", "mu", "ceiling")


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """The membership scores of one attack on models that are attacked together."""

    spec: AttackSpec
    file: MembershipScoreFile
    """score_TxN, read by model or by block of samples."""
    fit: Any
    """What the attack estimated on all samples or on drawn ones, as `registry.FittedAttack.fit`."""
    inputs: AttackInputs
    """The attacked models and the references."""
    population: Population
    """The attacked samples."""
    group_N: np.ndarray
    """The result of `stats.sample_groups`."""
    pool: ThreadPoolExecutor
    _once: dict[Hashable, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def member_TxN(self) -> np.ndarray:
        """Whether each attacked model was trained on each sample."""
        return self.inputs.target_member_TxN2

    @functools.cached_property
    def targets(self) -> list[str]:
        """The names of the attacked models."""
        return [*map(str, self.inputs.targets)]

    @property
    def first_id(self) -> int:
        """Id of the first sample."""
        return self.population.first_id

    @property
    def is_part(self) -> bool:
        """Whether the attack uses a part of the references, for the variance that is due to their choice."""
        return self.spec.reference_part is not None

    @property
    def cluster_N(self) -> np.ndarray | None:
        """The document of each sample if documents are split into samples, otherwise None."""
        return self.population.document_N if self.population.has_split_documents else None

    @functools.cached_property
    def has_both_classes(self) -> bool:
        """Whether every attacked model has a member with a score and a non-member with one."""
        return all(
            member_N[~missing_N].any() and not member_N[~missing_N].all()
            for member_N, missing_N in (
                (self.member_TxN[t], np.isnan(self.file.read_target(t)))
                for t in range(len(self.targets))
            )
        )

    def once(self, function: Callable[..., Out], **arguments: Hashable) -> Out:
        """Returns ``function(self, **arguments)``, which is computed once for all evaluations of the attack."""
        return call_once(self._once, function, self, arguments)

    def operating_points(
        self, fprs: tuple[float, ...], band: tuple[float, float]
    ) -> stats.OperatingPoints:
        """Returns the operating points of each model at rates, and then at the points of a ROC curve; computed once."""
        return self.once(_operating_points, fprs=fprs, band=band)

    def by_target(
        self, evaluate: Callable[[np.ndarray, np.ndarray], Mapping[str, Any]]
    ) -> pd.DataFrame:
        """Returns the columns of ``evaluate(score_N, member_N)``, model after model, after the column "target"."""

        def evaluate_target(t: int) -> Mapping[str, Any]:
            return evaluate(self.file.read_target(t), self.member_TxN[t])

        # Arrays are collected, since a data frame for each model would take longer than evaluating few samples.
        parts = [*map_in_order(self.pool, evaluate_target, range(len(self.targets)))]
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        rows_T = [len(next(iter(part.values()))) for part in parts]
        return pd.DataFrame({"target": np.repeat(self.targets, rows_T)} | table)


Evaluation = Callable[..., Table]


def operating_points(
    scores: Scores, *, fprs: tuple[float, ...], band: tuple[float, float]
) -> pd.DataFrame:
    """Returns AUC and TPRs of each model, at ``fprs`` and then at the points of a ROC curve (on_curve).

    The curve has the points 0, the ends of ``band``, and 100 rates from 1 / non-members to 1 in equal ratios. A TPR is
    NaN at an FPR above 0 of less than one non-member. The column rmia_a is the parameter a that offline RMIA used; it
    is NaN for other attacks, and if it could not be tuned.
    """
    points = scores.operating_points(fprs, band)
    rates, models = len(points.fpr_F), len(scores.targets)
    table = {
        "target": np.repeat(scores.targets, rates),
        "on_curve": np.tile(np.arange(rates) >= len(fprs), models),
        "fpr": np.tile(points.fpr_F, models),
        "tpr": points.tpr_TxF.ravel(),
    }
    for name in ("auc", "members", "nonmembers", "left_out"):
        table[name] = np.repeat(getattr(points, f"{name}_T"), rates)
    rmia_a = scores.fit.a if isinstance(scores.fit, RmiaFit) else np.nan
    return pd.DataFrame(table).assign(rmia_a=rmia_a)


def read_points(table: pd.DataFrame) -> stats.OperatingPoints:
    """Returns the points of a table of `operating_points`, whose thresholds and accuracies are not stored (NaN)."""
    of_target = table.drop_duplicates("target")
    shape = len(of_target), len(table) // max(len(of_target), 1)
    unknown_TxF = np.full(shape, np.nan)
    return stats.OperatingPoints(
        table["fpr"].to_numpy()[: shape[1]],
        unknown_TxF,
        table["tpr"].to_numpy().reshape(shape),
        unknown_TxF,
        unknown_TxF,
        unknown_TxF,
        *(of_target[name].to_numpy() for name in ("auc", "members", "nonmembers", "left_out")),
    )


def missing_scores(scores: Scores) -> pd.DataFrame:
    """Returns whether each sample has no score under the first model."""
    return pd.DataFrame({"missing": np.isnan(scores.file.read_target(0))})


def num_stored(targets: int, samples: int) -> int:
    """Returns for how many models, the first ones, `stored_scores` has a column."""
    return targets if targets * samples <= MAX_SCORES else 1


def stored_scores(scores: Scores) -> Iterator[pd.DataFrame]:
    """Yields the scores of each sample as float32: a column for each model, or the mean and the first of many models.

    Many are those that have more than `MAX_SCORES` scores together.
    """
    first, samples, targets = scores.targets[0], scores.file.num_samples, len(scores.targets)
    has_all = num_stored(targets, samples) == targets
    rows = max(1024, _GROUP_SCORES // targets)
    for low in range(0, samples, rows):
        score_TxC = scores.file.read_samples(slice(low, min(low + rows, samples)))
        columns = dict(zip(scores.targets, score_TxC, strict=True))
        if not has_all:
            columns = {"mean": score_TxC.mean(axis=0), first: score_TxC[0]}
        with np.errstate(over="ignore"):  # infinite where a score exceeds the range of float32
            yield pd.DataFrame({k: v.astype(np.float32) for k, v in columns.items()})


def rates_of_halves(scores: Scores, fprs: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (auc_TxH, tpr_TxHxF), the rates of each model on halves of the samples; computed once."""
    return scores.once(_rates_of_halves, fprs=fprs)


def halved_rates(scores: Scores, *, fprs: tuple[float, ...]) -> pd.DataFrame:
    """Returns AUC and TPRs of each model on all samples and on halves of them, for intervals.

    The column half is 0 for all samples, and h for ``stats.HALVES_HxG[h - 1]``.
    """
    points = score_matrix.operating_points(scores.file, scores.member_TxN, fprs, scores.pool)
    auc_TxH, tpr_TxHxF = rates_of_halves(scores, fprs)
    auc_TxH1 = np.concatenate([points.auc_T[:, None], auc_TxH], axis=1)
    tpr_TxH1xF = np.concatenate([points.tpr_TxF[:, None], tpr_TxHxF], axis=1)
    models, halves = auc_TxH1.shape
    table = {
        "target": np.repeat(scores.targets, halves),
        "half": np.tile(np.arange(halves), models),
        "auc": auc_TxH1.ravel(),
    }
    table |= {f"tpr_at_{fpr:g}": tpr_TxH1xF[..., f].ravel() for f, fpr in enumerate(fprs)}
    return pd.DataFrame(table)


def epsilons(scores: Scores, *, delta: float, alpha: float, design: str) -> pd.DataFrame:
    """Returns empirical epsilon and balanced accuracy of each model, and bounds on epsilon from its run.

    The column half is 0 for all samples, and h for ``stats.HALVES_HxG[h - 1]``. Estimates of epsilon are at most the
    logarithm of the number of members with a score. Bounds are in the rows of all samples; they are NaN for a part of
    the references, and if it is not known how members were drawn.
    """
    has_bounds = not scores.is_part and design != "given"
    half_HxN = stats.HALVES_HxG[:, scores.group_N]

    def evaluate(score_N: np.ndarray, member_N: np.ndarray) -> dict[str, np.ndarray]:
        members = max(int((member_N & ~np.isnan(score_N)).sum()), 1)
        rows = [_estimates(score_N, member_N, members, delta)]
        rows += [
            _estimates(score_N[half_N], member_N[half_N], members, delta) for half_N in half_HxN
        ]
        value_H1xK = np.array(rows)
        columns = {"half": np.arange(len(rows))}
        columns |= dict(zip(_ESTIMATES, value_H1xK.T, strict=True))
        bound_K = _bounds(score_N, member_N, delta, alpha) if has_bounds else None
        for k, name in enumerate(_BOUNDS):
            value_H1 = np.full(len(rows), np.nan)
            if bound_K is not None:
                value_H1[0] = bound_K[k]
            columns[f"bound_{name}"] = value_H1
        return columns

    return scores.by_target(evaluate)


def sample_scores(scores: Scores) -> Iterator[pd.DataFrame]:
    """Yields sample ids, and for each model its membership scores and its members, a column each.

    A part of the references keeps the first samples only (`JACKKNIFE_SAMPLES`), since it serves intervals.
    """
    samples = scores.file.num_samples
    samples = min(samples, JACKKNIFE_SAMPLES) if scores.is_part else samples
    for low in range(0, samples, _GROUP_SAMPLES):
        at = slice(low, min(low + _GROUP_SAMPLES, samples))
        columns = {"id": scores.first_id + np.arange(at.start, at.stop)}
        columns |= dict(zip(scores.targets, scores.file.read_samples(at), strict=True))
        members = (f"member/{target}" for target in scores.targets)
        columns |= dict(zip(members, scores.member_TxN[:, at], strict=True))
        yield pd.DataFrame(columns)


def _operating_points(
    scores: Scores, fprs: tuple[float, ...], band: tuple[float, float]
) -> stats.OperatingPoints:
    curve = score_matrix.curve_fprs(band, scores.member_TxN[0])
    return score_matrix.operating_points(scores.file, scores.member_TxN, fprs, scores.pool, curve)


def _rates_of_halves(scores: Scores, fprs: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    return score_matrix.rates_of_halves(
        scores.file, scores.member_TxN, scores.group_N, fprs, scores.pool
    )


def _estimates(
    score_N: np.ndarray, member_N: np.ndarray, members: int, delta: float
) -> list[float]:
    """Returns the values of `_ESTIMATES`; epsilons are at most ln(members)."""
    estimated = stats.empirical_epsilons(score_N, member_N, delta=delta, rates_G=EPSILON_TPRS)
    accuracy = stats.max_balanced_accuracy(score_N, member_N).balanced_accuracy_T
    return [*map(float, stats.capped_epsilon(estimated.tpr_G, members)), *map(float, accuracy)]


def _bounds(score_N: np.ndarray, member_N: np.ndarray, delta: float, alpha: float) -> list[float]:
    """Returns the values of `_BOUNDS`: pairs of a member and a non-member are valid for every design of the subsets."""
    bound = stats.one_run_bound(
        score_N, member_N, membership="half", delta=delta, confidence=1 - alpha
    )
    return [float(getattr(bound, name)) for name in _BOUNDS]
