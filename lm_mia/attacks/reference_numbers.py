"""The study "reference_numbers": whether decisions about members are more stable with more references.

With more references LiRA finds more members at a false positive rate. Since a sample that no replica calls a member
never flips, flip rates are also computed at an equal true positive rate: that with the fewest references. LiRA pools
variances over the samples with any number of references, so that a few references suffice.

Each number is a mean over disjoint sets of references, on the samples that have scores with all sets of all numbers.
For intervals, the numbers are also computed with each half of the references. If sets have 8 references or more, a half
consists of half of the references of each set. With half of 4 references, most samples would have no IN or no OUT loss,
so there a half consists of half of the sets.

    reference_numbers.parquet   stability of the decisions about members, with all models and samples, and with parts

B: replicas, R: references, S: sets of references, N: the samples that are used, M: members, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lm_mia import stats
from lm_mia.attacks import spec, study_inputs
from lm_mia.attacks.study_inputs import StudyError, StudyInputs
from lm_mia.data.subsets import ModelSeeds

BoolArray = NDArray[np.bool_]
TABLE = "reference_numbers.parquet"
_FEWEST = 4
_FEWEST_TO_HALVE = 8  # half of them are 4, with which 7 of 8 samples have IN and OUT references
_MOST_SETS = 4  # if sets are halved
_OPERATING_POINTS = ("fpr", "tpr")
_COLUMNS = ("flip_rate", "coin_flips", "tpr")


def tables(study: StudyInputs) -> dict[str, pd.DataFrame]:
    """Returns the table of the study.

    Raises:
      StudyError: there are too few replicas or references.
      UserError: scores are corrupt.
    """
    inputs = study.replicas(fewest_references=2 * _FEWEST_TO_HALVE)
    c = dataclasses.replace(study.c, variance="pooled")
    member_N2 = inputs.target_member_TxN2[0]
    group_N2 = stats.sample_groups(study.population.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    counts = _numbers(len(inputs.references))
    sets_R1xS = {count: _parts(count, inputs.references) for count in counts}

    def presence(_: int, score_BxN: np.ndarray) -> BoolArray:
        """Returns which samples have scores under all replicas."""
        return np.logical_not(np.isnan(score_BxN).any(axis=0))

    whole = [index_R for count in counts for index_R in sets_R1xS[count][0]]
    present = study_inputs.map_reference_sets(inputs, whole, c, study.pool, presence)
    common_N = np.all(present, axis=0)
    member_N = member_N2[: len(common_N)]
    if not ((common_N & member_N).any() and (common_N & ~member_N).any()):
        raise StudyError("no members or no non-members have scores with all sets of references")

    def true_positive_rate(_: int, score_BxN: np.ndarray) -> float:
        """Returns the true positive rate at the focus FPR, the mean over replicas."""
        outside_BxN, score_BxM = (
            score_BxN[:, common_N & ~member_N],
            score_BxN[:, common_N & member_N],
        )
        threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, study.focus)
        return float((score_BxM >= threshold_B[:, None]).mean())

    fewest = sets_R1xS[counts[0]][0]
    fewest_tpr = float(
        np.mean(study_inputs.map_reference_sets(inputs, fewest, c, study.pool, true_positive_rate))
    )

    def evaluate(_: int, score_BxN: np.ndarray) -> np.ndarray:
        """Returns value_A1xH1xPxV of `_OPERATING_POINTS` and `_COLUMNS`."""
        present_N = common_N & ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N2[: len(common_N)]) & present_N
        shape = len(kept_A1xB), len(used_H1xN), len(_OPERATING_POINTS), len(_COLUMNS)
        value = np.full(shape, np.nan)
        for h, used_N in enumerate(used_H1xN):
            score_BxM, outside_BxN = (
                score_BxN[:, used_N & member_N],
                score_BxN[:, used_N & ~member_N],
            )
            if not (score_BxM.size and study_inputs.has_threshold(outside_BxN, study.focus)):
                continue
            threshold_PxB = (
                study_inputs.thresholds_at_fpr(outside_BxN, study.focus),
                np.array([_threshold_at_tpr(s, fewest_tpr) for s in score_BxM]),
            )
            for p, threshold_B in enumerate(threshold_PxB):
                decision_BxM = score_BxM >= threshold_B[:, None]
                for a, kept_B in enumerate(kept_A1xB):
                    value[a, h, p] = _stability(decision_BxM[kept_B], study.c.alpha)
        return value

    parts = [(count, r) for count in counts for r in range(len(sets_R1xS[count]))]
    index_SxR = [index_R for count, r in parts for index_R in sets_R1xS[count][r]]
    results = iter(study_inputs.map_reference_sets(inputs, index_SxR, c, study.pool, evaluate))
    # The mean over disjoint sets of the same number of references.
    mean = {
        (count, r): np.mean([next(results) for _ in sets_R1xS[count][r]], axis=0)
        for count, r in parts
    }
    rows = []
    for count in counts:
        value_R1xA1xH1xPxV = np.stack([mean[part] for part in parts if part[0] == count])
        for p, point in enumerate(_OPERATING_POINTS):
            value_A1xR1xH1xV = value_R1xA1xH1xPxV[..., p, :].swapaxes(0, 1)
            columns = {name: value_A1xR1xH1xV[..., v] for v, name in enumerate(_COLUMNS)}
            rows.append(
                study_inputs.parts_table(columns).assign(
                    reference_count=count,
                    sets=len(sets_R1xS[count][0]),
                    at_equal=point,
                    fpr=study.focus,
                )
            )
    return {TABLE: pd.concat(rows, ignore_index=True)}


def _numbers(references: int) -> list[int]:
    """Returns the numbers of references: 4 (if each group has as many), 8, 16, ..., and all of them."""
    fewest = _FEWEST if references >= _FEWEST * spec.JACKKNIFE_GROUPS else _FEWEST_TO_HALVE
    powers = [fewest << k for k in range(references.bit_length()) if fewest << k < references]
    return [*powers, references]


def _parts(count: int, references: Sequence[ModelSeeds]) -> list[list[np.ndarray]]:
    """Returns disjoint sets of references, as positions, and then the part of each set that is in each half.

    Sets that are not halved have the references of one group each, so that a half has all of a set or nothing.
    """
    group_R = np.array(spec.reference_groups(model.subset_seed for model in references))
    if count < _FEWEST_TO_HALVE:
        groups = range(spec.JACKKNIFE_GROUPS)
        sets = [np.flatnonzero(group_R == group)[:count] for group in groups]
    else:
        number = min(len(references) // count, _MOST_SETS)
        sets = [np.arange(k * count, (k + 1) * count) for k in range(number)]
    parts = [sets]
    for half in range(spec.NUM_HALVES):
        in_half_R = np.isin(group_R, [*spec.half_groups(half)])
        parts.append([chosen for index_R in sets if len(chosen := index_R[in_half_R[index_R]])])
    return parts


def _threshold_at_tpr(score_M: np.ndarray, tpr: float) -> float:
    """Returns the score that the given share of members reaches, rounded to a whole number of members."""
    called = round(tpr * len(score_M))
    return float(np.sort(score_M)[-called]) if called else np.inf


def _stability(decision_BxM: np.ndarray, alpha: float) -> list[float]:
    """Returns `_COLUMNS` of members."""
    votes_M, replicas = decision_BxM.sum(axis=0), len(decision_BxM)
    low, _ = stats.coin_flip_cutoff(replicas, alpha)
    coin_flip_M = (votes_M >= low) & (votes_M <= replicas - low)
    flip_rate = float(stats.flip_rate(votes_M, replicas).mean())
    return [flip_rate, float(coin_flip_M.mean()), float(decision_BxM.mean())]
