"""intervals.csv: 95% intervals of the AUC and the TPRs of each attack, for one model and for the mean over several.

The interval of one model covers the choice of the samples, and that of a mean also the training of the models. Every
row says what its interval does not cover.

T: targets, N2: samples of the population (2N).
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks import score_matrix
from lm_mia.attacks.score_matrix import MembershipScoreFile

TABLE = "intervals.csv"
COLUMNS = (
    *("attack", "role", "models", "metric", "value", "low", "high", "method", "not_covered"),
    *("true_positives", "members", "left_out"),
)
Role = Literal["replica", "target", "reference"]
"""What the attacked models are: replicas share their training subset and initial weights, the others share nothing."""
_ONE_MODEL = "other models and references"
_NOT_COVERED: dict[Role, str] = {
    "replica": "other training subsets, initial weights and references",
    "target": "other references",
    "reference": "other references",
}


def of_first_model(
    attack: str,
    role: Role,
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    cluster_N2: np.ndarray | None,
    estimates: stats.EpsilonIntervals,
    c: config.Attack,
) -> pd.DataFrame:
    """Returns the rows of the first model: AUC, TPRs and balanced accuracy.

    Args:
      attack: name of the attack.
      role: what the model is.
      score_N2: its membership scores.
      member_N2: its members.
      cluster_N2: the document of each sample if documents are split into samples, otherwise None.
      estimates: the result of `stats.epsilon_intervals`, which has the balanced accuracy.
      c: settings of the recipe.
    """
    result = stats.bootstrap_intervals(
        score_N2, member_N2, c.fprs, cluster_N=cluster_N2, replicates=c.bootstraps
    )
    is_scored_N2 = ~np.isnan(score_N2)
    members = int((member_N2 & is_scored_N2).sum())
    tpr_names = _tpr_names(c)
    table = pd.DataFrame(
        {"attack": attack, "role": role, "models": 1}
        | {"metric": ["auc", *tpr_names, "balanced_accuracy"]}
        | {
            name: [
                getattr(result, f"auc{end}_T")[0],
                *getattr(result, f"tpr{end}_TxF")[0],
                getattr(estimates, f"balanced_accuracy{end}_T")[0],
            ]
            for name, end in (("value", ""), ("low", "_low"), ("high", "_high"))
        }
    )
    table["method"] = np.where(table["low"].isna(), "", "bootstrap")
    table.loc[table["metric"].isin(tpr_names), "method"] = result.method_TxF[0]
    table["not_covered"] = _ONE_MODEL
    true_positives = np.rint(table["value"] * members).where(table["metric"].isin(tpr_names))
    table["true_positives"] = true_positives.astype("Int64")
    return table.assign(members=members, left_out=int(result.left_out_T[0]))


def of_mean(
    attack: str,
    role: Role,
    file: MembershipScoreFile,
    members: Iterable[np.ndarray],
    points: stats.OperatingPoints,
    group_N2: np.ndarray,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns the rows of the mean over all models of a file of scores: AUC and TPRs.

    Args:
      attack, role, c: as in `of_first_model`.
      file: the membership scores of every model.
      members: member_N2 of each model.
      points: their operating points, at attack.fprs first.
      group_N2: the result of `stats.sample_groups`.
      pool: threads, each of which evaluates some of the models.
    """
    auc_TxH, tpr_TxHxF = score_matrix.rates_of_halves(file, members, group_N2, c.fprs, pool)
    rate_TxS = np.column_stack([points.auc_T, points.tpr_TxF[:, : len(c.fprs)]])
    rate_TxHxS = np.concatenate([auc_TxH[:, :, None], tpr_TxHxF], axis=2)
    low_S, high_S = stats.mean_rate_interval(rate_TxS, rate_TxHxS)
    table = pd.DataFrame(
        {"attack": attack, "role": role, "models": len(rate_TxS)}
        | {"metric": ["auc", *_tpr_names(c)]}
        | {"value": rate_TxS.mean(axis=0), "low": low_S, "high": high_S}
    )
    table["method"] = np.where(table["low"].isna(), "", "models and samples")
    table["not_covered"] = _NOT_COVERED[role]
    table["true_positives"] = pd.array([pd.NA] * len(table), dtype="Int64")
    return table.assign(members=int(points.members_T.max()), left_out=int(points.left_out_T.max()))


def _tpr_names(c: config.Attack) -> list[str]:
    return [f"tpr_at_{fpr:g}" for fpr in c.fprs]
