"""The study "fragile_hits": whether an attacker with one target can tell which true positives are stable.

Each replica in turn is the only target. The margins of its true positives at attack.focus_fpr are compared with the
decisions of the other replicas (`stats.hit_stability`).

    fragile_hits.parquet   what the margin tells, with all models and samples, and with parts of them
    fragile_hit_bins.csv   stability of the true positives by their margin

B: replicas, N: the samples that are used, M: members, A1, R1, H1: as in `lm_mia.stats.jackknife`.
"""

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.study_inputs import StudyInputs

TABLE, BINS = "fragile_hits.parquet", "fragile_hit_bins.csv"
_QUARTERS, _TENTHS = 4, 10
_COLUMNS = ("flip_correlation", "stable_auc", "stable", "lowest_stable", "highest_stable", "hits")


def tables(study: StudyInputs) -> dict[str, pd.DataFrame]:
    """Returns the tables of the study.

    Raises:
      StudyError: there are too few replicas or references.
      UserError: scores are corrupt.
    """
    inputs = study.replicas()
    member_N2 = inputs.target_member_TxN2[0]
    group_N2 = stats.sample_groups(study.population.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))

    def evaluate(references: int, score_BxN: np.ndarray) -> tuple[np.ndarray, pd.DataFrame]:
        """Returns value_A1xH1xV of `_COLUMNS`, and the bins with all models and samples."""
        samples = score_BxN.shape[1]
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N2[:samples]) & present_N
        member_N = member_N2[:samples]
        values = np.full((len(kept_A1xB), len(used_H1xN), len(_COLUMNS)), np.nan)
        bins = pd.DataFrame()
        for h, used_N in enumerate(used_H1xN):
            score_BxM = score_BxN[:, used_N & member_N]
            outside_BxN = score_BxN[:, used_N & ~member_N]
            if not (score_BxM.size and study_inputs.has_threshold(outside_BxN, study.focus)):
                continue
            threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, study.focus)
            for a, kept_B in enumerate(kept_A1xB):
                values[a, h] = _summary(score_BxM[kept_B], threshold_B[kept_B], study.c.alpha)
            if h == references == 0:
                bins = _bins(score_BxM, threshold_B, study.c.alpha)
        return values, bins

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, study.c, study.pool, evaluate)
    value_A1xR1xH1xV = np.stack([values for values, _ in results], axis=1)
    columns = {name: value_A1xR1xH1xV[..., v] for v, name in enumerate(_COLUMNS)}
    return {TABLE: study_inputs.parts_table(columns), BINS: results[0][1].assign(fpr=study.focus)}


def _summary(score_BxM: np.ndarray, threshold_B: np.ndarray, alpha: float) -> list[float]:
    """Returns `_COLUMNS`, means over the replicas that have a value."""
    found = stats.hit_stability(score_BxM, threshold_B, alpha, _QUARTERS)
    by_replica = (
        found.flip_correlation_B,
        found.stable_auc_B,
        found.stable_B,
        found.stable_BxK[:, 0],
        found.stable_BxK[:, -1],
        found.hits_B,
    )
    return [_mean(value_B) for value_B in by_replica]


def _bins(score_BxM: np.ndarray, threshold_B: np.ndarray, alpha: float) -> pd.DataFrame:
    """Returns the rows of fragile_hit_bins.csv, means over replicas."""
    found = stats.hit_stability(score_BxM, threshold_B, alpha, _TENTHS)
    columns = {
        "margin_mean": found.margin_BxK,
        "stable": found.stable_BxK,
        "agreement": found.agreement_BxK,
        "flip_rate": found.flip_rate_BxK,
    }
    means = {name: [_mean(value_B) for value_B in v.T] for name, v in columns.items()}
    return pd.DataFrame({"bin": np.arange(_TENTHS)} | means)


def _mean(value_B: np.ndarray) -> float:
    """Returns the mean over the replicas that have a value; NaN if none has one."""
    known = value_B[~np.isnan(value_B)]
    return float(known.mean()) if known.size else np.nan
