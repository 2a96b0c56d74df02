"""The study "text_groups": whether a membership score means the same for all texts.

Samples are divided by their length, by their mean TF-IDF, and by whether others share their prefix. The same replicas
are attacked with one threshold for all samples, and with a threshold for each group of samples. Thresholds are at
attack.focus_fpr and are applied to samples on which they were not calibrated: samples are divided into the groups of
`stats.sample_groups`, and each of them is decided with the thresholds of the others. The false positive rate to expect
on these samples must not depend on how many samples a threshold was calibrated on. Otherwise, groups would have more
false and true positives with thresholds of their own, only because they are small. So thresholds lie between the scores
of two non-members here (`_thresholds`).

    text_groups.parquet   rates and flips of each group, with all models and samples, and with parts of them

B: replicas, N: the samples that are used, J: sample groups (folds), K: groups of texts, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import dataclasses

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.study_inputs import StudyError, StudyInputs
from lm_mia.data.population import Population

TABLE = "text_groups.parquet"
ALL = -1
"""Stands for all groups together, which are all samples whose value is known."""
QUARTERS = 4
COLUMNS = ("tokens", "tfidf", "prefix_group")
"""Columns of the sample table by which samples are divided."""
DIVISIONS = ("tokens", "tfidf", "prefix")
FEWEST_FALSE_POSITIVES = 4
"""Texts are not divided into groups if one of them would have fewer false positives at the false positive rate. For
intervals, thresholds are calibrated on 3/4 of half of the samples, where 4 false positives become 1.5, so that they lie
below the highest score of these non-members."""
_NO_GROUP = -2
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
    inputs = study.replicas()
    member_N2 = inputs.target_member_TxN2[0]
    fold_N2 = stats.sample_groups(study.population.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    samples = study_inputs.first_parts(inputs)[-1].at.stop
    fewest_nonmembers = FEWEST_FALSE_POSITIVES / study.focus
    divisions = _divisions(study.population, ~member_N2[:samples], fewest_nonmembers)
    if not divisions:
        raise StudyError(
            f"the texts cannot be divided into groups of {fewest_nonmembers:.0f} or more non-members"
        )

    def evaluate(_: int, score_BxN: np.ndarray) -> list[np.ndarray]:
        """Returns value_A1xH1xTxK1xV for each division: one threshold or several, groups and all samples."""
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(fold_N2[:samples]) & present_N
        member_N, fold_N = member_N2[:samples], fold_N2[:samples]
        values = []
        for division in divisions.values():
            groups = len(division.group_K) + 1  # with all samples
            shape = len(kept_A1xB), len(used_H1xN), 2, groups, len(_METRICS)
            values.append(np.full(shape, np.nan))
        for h, used_N in enumerate(used_H1xN):
            score_BxU, member_U, fold_U = score_BxN[:, used_N], member_N[used_N], fold_N[used_N]
            one_group_U = np.zeros(len(member_U), np.int64)
            shared = _decisions(score_BxU, member_U, fold_U, one_group_U, study.focus)
            for value, division in zip(values, divisions.values(), strict=True):
                group_U = division.group_N[used_N]
                own = _decisions(score_BxU, member_U, fold_U, group_U, study.focus)
                for t, decision_BxU in enumerate((shared, own)):
                    for a, kept_B in enumerate(kept_A1xB):
                        value[a, h, t] = _rates(
                            decision_BxU[kept_B], member_U, group_U, division.group_K
                        )
        return values

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, study.c, study.pool, evaluate)
    rows = []
    for (name, division), by_part in zip(
        divisions.items(), zip(*results, strict=True), strict=True
    ):
        value_A1xR1xH1xTxK1xV = np.stack(by_part, axis=1)
        for t, thresholds in enumerate(("one", "by_group")):
            for k, group in enumerate([*division.group_K, ALL]):
                value = value_A1xR1xH1xTxK1xV[:, :, :, t, k]
                columns = {column: value[..., v] for v, column in enumerate(_METRICS)}
                in_group_N = division.group_N == group if group != ALL else division.group_N >= 0
                facts = {
                    "division": name,
                    "group": group,
                    "lowest": np.nanmin(division.value_N[in_group_N]),
                    "highest": np.nanmax(division.value_N[in_group_N]),
                    "samples_in_group": in_group_N.sum(),
                    "thresholds": thresholds,
                    "focus_fpr": study.focus,
                }
                rows.append(study_inputs.parts_table(columns).assign(**facts))
    return {TABLE: pd.concat(rows, ignore_index=True)}


@dataclasses.dataclass(frozen=True)
class _Division:
    """Groups of samples with similar values."""

    value_N: np.ndarray
    group_N: np.ndarray
    """Numbered from 0; `_NO_GROUP` where the value is NaN."""

    @property
    def group_K(self) -> np.ndarray:
        """The numbers of the groups."""
        return np.arange(self.group_N.max() + 1)

    def count_K(self, used_N: np.ndarray) -> np.ndarray:
        """Returns the number of samples of each group that are used."""
        return ((self.group_N == self.group_K[:, None]) & used_N).sum(axis=1)


def _divisions(
    population: Population, nonmember_N: np.ndarray, fewest_nonmembers: float
) -> dict[str, _Division]:
    """Returns the divisions of the first samples, by name, without those in which a group has too few non-members."""
    samples = len(nonmember_N)
    prefix_N2 = population.column("prefix_group")
    _, index_N2, count = np.unique(prefix_N2, return_inverse=True, return_counts=True)
    shared_N = count[index_N2][:samples]
    divisions = {"prefix": _Division(shared_N, (shared_N > 1).astype(np.int64))}
    for name in ("tokens", "tfidf"):
        value_N = population.column(name)[:samples].astype(np.float64)
        edge_K = stats.equal_count_edges(np.sort(value_N[~np.isnan(value_N)]), QUARTERS)
        group_N = np.searchsorted(edge_K, value_N, side="right") - 1
        divisions[name] = _Division(value_N, np.where(np.isnan(value_N), _NO_GROUP, group_N))
    return {
        name: divisions[name]
        for name in DIVISIONS
        if len(divisions[name].group_K) > 1
        and min(divisions[name].count_K(nonmember_N)) >= fewest_nonmembers
    }


def _decisions(
    score_BxN: np.ndarray, member_N: np.ndarray, fold_N: np.ndarray, group_N: np.ndarray, fpr: float
) -> np.ndarray:
    """Returns booleans decision_BxN, with thresholds of the same group and of other folds.

    Where these have no non-member, there is no threshold, and no sample is called a member. The same holds for samples
    without a group.
    """
    decision_BxN = np.zeros(score_BxN.shape, np.bool_)
    for group in np.unique(group_N[group_N != _NO_GROUP]):
        for fold in np.unique(fold_N):
            decided_N = (group_N == group) & (fold_N == fold)
            calibration_N = (group_N == group) & (fold_N != fold) & ~member_N
            if not (decided_N.any() and calibration_N.any()):
                continue
            threshold_B = _thresholds(score_BxN[:, calibration_N], fpr)
            decision_BxN[:, decided_N] = score_BxN[:, decided_N] >= threshold_B[:, None]
    return decision_BxN


def _thresholds(nonmember_score_BxN: np.ndarray, fpr: float) -> np.ndarray:
    """Returns threshold_B, which another non-member reaches with a probability of about the false positive rate.

    Another non-member lies above the k-th highest of n scores with probability k / (n + 1), since each of the n + 1
    non-members is as likely as any other to be one of the k highest. Thresholds are interpolated between these scores.
    """
    return np.quantile(nonmember_score_BxN, 1 - fpr, axis=1, method="weibull")


def _rates(
    decision_BxN: np.ndarray, member_N: np.ndarray, group_N: np.ndarray, group_K: np.ndarray
) -> np.ndarray:
    """Returns value_K1xV of `_METRICS`, of each group and of all groups; NaN where a rate has no samples.

    Rates are over all pairs of a replica and a sample, and the flip rate is that of members.
    """
    votes_N, replicas = decision_BxN.sum(axis=0), len(decision_BxN)
    flip_rate_N = stats.flip_rate(votes_N, replicas)
    rows = []
    for in_group_N in [*(group_N == k for k in group_K), group_N != _NO_GROUP]:
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
