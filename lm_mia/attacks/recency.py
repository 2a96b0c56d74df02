"""The study "recency": how much of what differs between replicas is explained by when they last saw a sample.

Replicas have one training subset and one initialization, and differ in the order of their batches. Each replica last
saw a member at a step of its own, which follows from its seed. Bins of this step are compared with the loss, the
membership score and the decision at attack.focus_fpr (`stats.explained_within_samples`).

    recency.parquet         explained shares, with all models and samples, and with parts of them
    recency_rates.parquet   decision rate of members by bin, with all and with parts
    recency_shuffled.csv    explained shares where the last steps are those of other replicas, which explain nothing

B: replicas, N: the samples that are used, M: members, K: bins, Q: quantities, S: shares, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import sys

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.study_inputs import StudyError, StudyInputs

TABLE, RATES, SHUFFLED = "recency.parquet", "recency_rates.parquet", "recency_shuffled.csv"
BINS = 8
QUANTITIES = ("loss", "score", "decision")
_SHARES = ("share", "own_share", "own_curve_share")


def tables(study: StudyInputs) -> dict[str, pd.DataFrame]:
    """Returns the tables of the study.

    Raises:
      StudyError: there are too few replicas or references, or the batch order is not known.
      UserError: scores are corrupt.
    """
    if study.store.design == "given":
        raise StudyError("the batch order of imported losses is not known")
    inputs = study.replicas()
    parts = study_inputs.first_parts(inputs)
    loss_BxN = np.concatenate([part.loss_TxC for part in parts], axis=1).astype(np.float64)
    samples = loss_BxN.shape[1]
    member_N = inputs.target_member_TxN2[0, :samples]
    last_seen_BxN = _last_seen(study, inputs, samples)
    edges = np.quantile(last_seen_BxN[:, member_N], np.arange(1, BINS) / BINS)
    bin_BxN = np.searchsorted(edges, last_seen_BxN, side="right")
    group_N = stats.sample_groups(study.population.document_N)[:samples]
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    shuffled: list[pd.DataFrame] = []

    def evaluate(references: int, score_BxN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns share_A1xH1xQxS, of `_SHARES`, and rate_A1xH1xK."""
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N) & present_N
        share = np.full((len(kept_A1xB), len(used_H1xN), len(QUANTITIES), len(_SHARES)), np.nan)
        rate = np.full((*share.shape[:2], BINS), np.nan)
        for h, used_N in enumerate(used_H1xN):
            members_N, outside_BxN = used_N & member_N, score_BxN[:, used_N & ~member_N]
            if not (members_N.any() and study_inputs.has_threshold(outside_BxN, study.focus)):
                continue
            score_BxM, bin_BxM = score_BxN[:, members_N], bin_BxN[:, members_N]
            threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, study.focus)
            decision_BxM = (score_BxM >= threshold_B[:, None]).astype(np.float64)
            value_QxBxM = (loss_BxN[:, members_N], score_BxM, decision_BxM)
            for a, kept_B in enumerate(kept_A1xB):
                share[a, h] = [_shares(v[kept_B], bin_BxM[kept_B]) for v in value_QxBxM]
                rate[a, h] = _bin_means(decision_BxM[kept_B], bin_BxM[kept_B])
            if h == references == 0:
                shuffled.append(_shuffled(value_QxBxM, bin_BxM))
        return share, rate

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, study.c, study.pool, evaluate)
    share_A1xR1xH1xQxS, rate_A1xR1xH1xK = (np.stack(v, axis=1) for v in zip(*results, strict=True))
    by_quantity = [
        study_inputs.parts_table(
            {name: share_A1xR1xH1xQxS[..., q, s] for s, name in enumerate(_SHARES)}
        ).assign(quantity=quantity)
        for q, quantity in enumerate(QUANTITIES)
    ]
    mean_last_seen_K = _bin_means(last_seen_BxN[:, member_N], bin_BxN[:, member_N])
    by_bin = [
        study_inputs.parts_table({"decision_rate": rate_A1xR1xH1xK[..., k]}).assign(
            bin=k, last_seen=mean_last_seen_K[k], fpr=study.focus
        )
        for k in range(BINS)
    ]
    return {
        TABLE: pd.concat(by_quantity, ignore_index=True),
        RATES: pd.concat(by_bin, ignore_index=True),
        SHUFFLED: pd.concat(shuffled, ignore_index=True),
    }


def _last_seen(study: StudyInputs, inputs: AttackInputs, samples: int) -> np.ndarray:
    """Returns last_seen_BxN of the first attacked samples, as a fraction of the steps; 0 if not seen."""
    store = inputs.store
    [(_, value)] = store.blocks({"member": ("member", inputs.targets[:1])}, sys.maxsize)
    used = slice(store.first_canary, store.first_canary + samples)
    return np.nan_to_num(
        [
            study.batches.last_seen_share(replica.order_seed, value["member"][0], store.step)[used]
            for replica in inputs.targets
        ]
    )


def _shares(value_BxM: np.ndarray, bin_BxM: np.ndarray) -> tuple[float, ...]:
    """Returns the numbers named in `_SHARES`."""
    found = stats.explained_within_samples(value_BxM, bin_BxM, BINS)
    return found.share, found.own_share, found.own_curve_share


def _bin_means(value_BxM: np.ndarray, bin_BxM: np.ndarray) -> np.ndarray:
    """Returns mean_K, the mean over pairs of replica and member in each bin; NaN if there are none."""
    count_K = np.bincount(bin_BxM.ravel(), minlength=BINS)
    sum_K = np.bincount(bin_BxM.ravel(), value_BxM.ravel(), minlength=BINS)
    return sum_K / np.where(count_K > 0, count_K, np.nan)


def _shuffled(value_QxBxM: tuple[np.ndarray, ...], bin_BxM: np.ndarray) -> pd.DataFrame:
    """Returns recency_shuffled.csv: the shares where replica b + shift gives the last step of replica b."""
    rows = [
        {"quantity": quantity, "shift": shift}
        | dict(zip(_SHARES, _shares(value_BxM, np.roll(bin_BxM, -shift, axis=0)), strict=True))
        for quantity, value_BxM in zip(QUANTITIES, value_QxBxM, strict=True)
        for shift in range(1, len(bin_BxM))
    ]
    return pd.DataFrame(rows)
