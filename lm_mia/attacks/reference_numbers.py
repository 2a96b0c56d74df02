"""The study "reference_numbers": whether decisions about members are more stable with more references.

With more references LiRA finds more members at a false positive rate. Since a sample that no replica calls a member
never flips, flip rates are also computed at an equal true positive rate: that with the fewest references. LiRA pools
variances over the samples with any number of references, so that half of the fewest references suffices for it.

    reference_numbers.parquet   stability of the decisions about members, with all models and samples, and with parts

B: replicas, R: references, S: sets of references, N: the samples that are used, M: members, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import dataclasses

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.study_inputs import StudyInputs
from lm_mia.config import needs

BoolArray = NDArray[np.bool_]
TABLE = "reference_numbers.parquet"
_FEWEST = 8  # half of them are 4, with which nearly all samples have IN and OUT references
_MOST_SETS = 4
_OPERATING_POINTS = ("fpr", "tpr")
_COLUMNS = ("flip_rate", "coin_flips", "tpr")


def tables(study: StudyInputs) -> dict[str, pd.DataFrame]:
    """Returns the table of the study.

    Raises:
      StudyError: there are too few replicas or references.
      UserError: scores are corrupt.
    """
    inputs = study.replicas(fewest_references=2 * _FEWEST)
    c = dataclasses.replace(study.c, variance="pooled")
    member_N2 = inputs.target_member_TxN2[0]
    group_N2 = stats.sample_groups(study.population.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    counts = _numbers(len(inputs.references))
    sets_R1xS = {count: _parts(count, len(inputs.references)) for count in counts}

    def presence_and_tpr(_: int, score_BxN: np.ndarray) -> tuple[BoolArray, float]:
        """Returns which samples have scores, and the true positive rate at the focus FPR."""
        present_N: BoolArray = np.logical_not(np.isnan(score_BxN).any(axis=0))
        member_N = member_N2[: score_BxN.shape[1]]
        outside_BxN, score_BxM = (
            score_BxN[:, present_N & ~member_N],
            score_BxN[:, present_N & member_N],
        )
        if not (outside_BxN.size and score_BxM.size):
            return present_N, np.nan
        threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, study.focus)
        return present_N, float((score_BxM >= threshold_B[:, None]).mean())

    whole = [index_R for count in counts for index_R in sets_R1xS[count][0]]
    first = study_inputs.map_reference_sets(inputs, whole, c, study.pool, presence_and_tpr)
    common_N = np.all([present_N for present_N, _ in first], axis=0)
    fewest_tpr = float(np.mean([tpr for _, tpr in first[: len(sets_R1xS[counts[0]][0])]]))

    def evaluate(_: int, score_BxN: np.ndarray) -> np.ndarray:
        """Returns value_A1xH1xPxV of `_OPERATING_POINTS` and `_COLUMNS`."""
        samples = score_BxN.shape[1]
        present_N = common_N & ~np.isnan(score_BxN).any(axis=0)
        member_N = member_N2[:samples]
        used_H1xN = study_inputs.sample_parts(group_N2[:samples]) & present_N
        shape = len(kept_A1xB), len(used_H1xN), len(_OPERATING_POINTS), len(_COLUMNS)
        value = np.full(shape, np.nan)
        for h, used_N in enumerate(used_H1xN):
            score_BxM, outside_BxN = (
                score_BxN[:, used_N & member_N],
                score_BxN[:, used_N & ~member_N],
            )
            if not (score_BxM.size and outside_BxN.size):
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
    """Returns the numbers of references: 8, 16, ... and at last all of them."""
    powers = [_FEWEST << k for k in range(references.bit_length()) if _FEWEST << k < references]
    return [*powers, references]


def _parts(count: int, references: int) -> list[list[np.ndarray]]:
    """Returns disjoint sets of references, as positions, and then the part of each set that is in each half."""
    group_R = np.array(needs.reference_groups(references))
    number = min(references // count, _MOST_SETS)
    sets = [np.arange(k * count, (k + 1) * count) for k in range(number)]
    parts = [sets]
    for half in range(needs.NUM_HALVES):
        in_half_R = np.isin(group_R, [*needs.half_groups(half)])
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
