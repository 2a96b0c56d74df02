"""The study "text_groups": whether a membership score means the same for all texts.

Samples are divided by their length, by their mean TF-IDF, and by whether others share their prefix. The same replicas
are attacked with one threshold for all samples, and with a threshold for each group of samples. Thresholds are at
attack.focus_fpr and are applied to samples on which they were not calibrated: samples are divided into the groups of
`stats.sample_groups`, and each of them is decided with the thresholds of the others.

    text_groups.parquet   rates and flips of each group, with all models and samples, and with parts of them

B: replicas, N: the samples that are used, J: sample groups (folds), K: groups of texts, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.study_inputs import StudyError, StudyInputs

TABLE = "text_groups.parquet"
ALL = -1
"""The group of the rows of all samples."""
QUARTERS = 4
COLUMNS = ("tokens", "tfidf", "prefix_group")
"""Columns of the sample table by which samples are divided."""
_FEWEST_REPLICAS = 9  # with fewer, too few would remain without a group of them
_METRICS = ("fpr", "tpr", "precision", "flip_rate")


def tables(study: StudyInputs) -> dict[str, pd.DataFrame]:
    """Returns the table of the study.

    Raises:
      StudyError: there are too few replicas or references, or the texts are not known.
      UserError: scores are corrupt.
    """
    missing = [name for name in COLUMNS if name not in study.population.column_names]
    if missing:
        raise StudyError(f"the samples have no {', '.join(missing)}")
    inputs = study.replicas(_FEWEST_REPLICAS)
    member_N2 = inputs.target_member_TxN2[0]
    fold_N2 = stats.sample_groups(study.population.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    samples = study_inputs.first_parts(inputs)[-1].sample_slice.stop
    groups = _groups(study, samples)

    def evaluate(_: int, score_BxN: np.ndarray) -> list[np.ndarray]:
        """Returns value_A1xH1xTxK1xV for each division: one threshold or several, groups and all samples."""
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(fold_N2[:samples]) & present_N
        member_N, fold_N = member_N2[:samples], fold_N2[:samples]
        values = []
        for group_N in groups.values():
            shape = len(kept_A1xB), len(used_H1xN), 2, len(np.unique(group_N)) + 1, len(_METRICS)
            values.append(np.full(shape, np.nan))
        for h, used_N in enumerate(used_H1xN):
            score_BxU, member_U, fold_U = score_BxN[:, used_N], member_N[used_N], fold_N[used_N]
            one_group_U = np.zeros(len(member_U), np.int64)
            shared = _decisions(score_BxU, member_U, fold_U, one_group_U, study.focus)
            for value, group_N in zip(values, groups.values(), strict=True):
                group_U = group_N[used_N]
                own = _decisions(score_BxU, member_U, fold_U, group_U, study.focus)
                for t, decision_BxU in enumerate((shared, own)):
                    for a, kept_B in enumerate(kept_A1xB):
                        value[a, h, t] = _rates(
                            decision_BxU[kept_B], member_U, group_U, np.unique(group_N)
                        )
        return values

    halves = study_inputs.reference_halves(len(inputs.references))
    results = study_inputs.map_reference_sets(inputs, halves, study.c, study.pool, evaluate)
    rows = []
    for (name, group_N), by_part in zip(groups.items(), zip(*results, strict=True), strict=True):
        value_A1xR1xH1xTxK1xV = np.stack(by_part, axis=1)
        for t, thresholds in enumerate(("one", "by_group")):
            for k, group in enumerate([*np.unique(group_N), ALL]):
                value = value_A1xR1xH1xTxK1xV[:, :, :, t, k]
                columns = {column: value[..., v] for v, column in enumerate(_METRICS)}
                rows.append(
                    study_inputs.parts_table(columns).assign(
                        division=name,
                        group=group,
                        thresholds=thresholds,
                        samples_in_group=int((group_N == group).sum()) if group != ALL else samples,
                        focus_fpr=study.focus,
                    )
                )
    return {TABLE: pd.concat(rows, ignore_index=True)}


def _groups(study: StudyInputs, samples: int) -> dict[str, np.ndarray]:
    """Returns division -> group_N, numbered from 0."""
    population = study.population
    divisions = {}
    for name in ("tokens", "tfidf"):
        value_N = population.column(name)[:samples].astype(np.float64)
        edges = np.nanquantile(value_N, np.arange(1, QUARTERS) / QUARTERS)
        divisions[name] = np.searchsorted(np.unique(edges), value_N, side="right")
    prefix_N2 = population.column("prefix_group")
    _, index_N2, count = np.unique(prefix_N2, return_inverse=True, return_counts=True)
    divisions["prefix"] = (count[index_N2] > 1).astype(np.int64)[:samples]
    return divisions


def _decisions(
    score_BxN: np.ndarray, member_N: np.ndarray, fold_N: np.ndarray, group_N: np.ndarray, fpr: float
) -> np.ndarray:
    """Returns booleans decision_BxN, with thresholds of the same group and of other folds.

    Where these have no non-member, there is no threshold, and no sample is called a member.
    """
    decision_BxN = np.zeros(score_BxN.shape, np.bool_)
    for group in np.unique(group_N):
        for fold in np.unique(fold_N):
            decided_N = (group_N == group) & (fold_N == fold)
            calibration_N = (group_N == group) & (fold_N != fold) & ~member_N
            if not (decided_N.any() and calibration_N.any()):
                continue
            threshold_B = [stats.threshold_at_fpr(s, fpr) for s in score_BxN[:, calibration_N]]
            decision_BxN[:, decided_N] = score_BxN[:, decided_N] >= np.array(threshold_B)[:, None]
    return decision_BxN


def _rates(
    decision_BxN: np.ndarray, member_N: np.ndarray, group_N: np.ndarray, group_K: np.ndarray
) -> np.ndarray:
    """Returns value_K1xV of `_METRICS`, of each group and of all samples; NaN where a rate has no samples.

    Rates are over all pairs of a replica and a sample, and the flip rate is that of members.
    """
    votes_N, replicas = decision_BxN.sum(axis=0), len(decision_BxN)
    flip_rate_N = stats.flip_rate(votes_N, replicas)
    rows = []
    for in_group_N in [*(group_N == k for k in group_K), np.ones(len(group_N), np.bool_)]:
        inside_N, outside_N = in_group_N & member_N, in_group_N & ~member_N
        true, false = votes_N[inside_N].sum(), votes_N[outside_N].sum()
        rows.append(
            [
                _share(false, replicas * outside_N.sum()),
                _share(true, replicas * inside_N.sum()),
                _share(true, true + false),
                _share(flip_rate_N[inside_N].sum(), inside_N.sum()),
            ]
        )
    return np.array(rows)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else np.nan
