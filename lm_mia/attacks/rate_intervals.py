"""intervals.csv: 95% intervals of the AUC and the TPRs of each attack, for one model and for the mean over several.

The interval of one model covers the choice of the samples, and that of a mean also the training of the models. Every
row says what its interval does not cover.

T: targets, N: samples.
"""

from typing import Literal

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import privacy_bounds
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores, rates_of_halves

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


INTERVALS_TABLE = Table(
    "intervals.csv",
    (
        "Written if `attack.bootstraps` is above 0. Each row is an attack with all references and a metric, with a 95 "
        "% interval: of the first model that is attacked, of the mean over all of them, and, in recipes with replicas, "
        "of the mean of LiRA over the references, each of which is attacked with the others. `not_covered` says for "
        "what the interval does not account."
    ),
    {
        **common("attack"),
        "role": Column("none", "what the models are: `replica`, `target` or `reference`"),
        "models": Column("count", "1 for the first model, or the number of models in the mean"),
        "metric": Column(
            "none",
            (
                "`auc`, `tpr_at_FPR` for an FPR of `attack.fprs`, or `balanced_accuracy`, the largest (TPR + 1 - FPR) "
                "/ 2 over all thresholds, which is above 0.5 even without leakage"
            ),
        ),
        "value": Column(
            "fraction", "the number; the TPR is empty if the FPR needs more non-members"
        ),
        "low, high": Column("fraction", "ends of the interval"),
        "method": Column(
            "none",
            (
                "`bootstrap`: 2.5 % and 97.5 % quantiles over `attack.bootstraps` sets of samples, drawn with "
                "replacement within each class, or sets of whole documents if `corpus.split_documents` is set; "
                "thresholds are recalibrated in each. `exact`: `stats.tpr_interval`, for a TPR if fewer than 10 false "
                "positives are allowed (FPR x number of non-members), or if fewer than 10 members are found or fewer "
                "than 10 are missed, where the bootstrap would contain the true TPR far too rarely. `models and "
                "samples`: `stats.mean_rate_interval`, for new models and new samples. Empty without an interval: if "
                "documents are split and these samples are from fewer than 10 documents, or fewer than 50 documents "
                "have members or have non-members; and for a mean, if half of the non-members are too few for the FPR"
            ),
        ),
        "not_covered": Column(
            "none",
            "what would also be drawn anew if the experiment were repeated, but is not covered by the interval",
        ),
        "true_positives": Column("count", "members that are found; only for TPRs of one model"),
        **common("members", "left_out"),
    },
    key=("role", "attack", "models", "metric"),
)


def rate_intervals(
    scores: Scores,
    *,
    band: tuple[float, float],
    bootstraps: int,
    delta: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the rows of intervals.csv of one attack: of the first model and, if there are several, of their mean.

    There are none without bootstrap draws, or if no member or no non-member of the first model has a score.
    """
    score_N, member_N = scores.file.read_target(0), scores.member_TxN[0]
    scored_N = member_N[~np.isnan(score_N)]
    if not (bootstraps and scored_N.any() and not scored_N.all()):
        return pd.DataFrame()
    role: Role = "replica" if scores.spec.targets_are_replicas else "target"
    estimates = scores.once(privacy_bounds.epsilon_intervals, bootstraps=bootstraps, delta=delta)
    result = stats.bootstrap_intervals(
        score_N, member_N, fprs, cluster_N=scores.cluster_N, replicates=bootstraps
    )
    first = _first_model(result, estimates, int(scored_N.sum()), fprs)
    first.insert(0, "role", role)
    if len(scores.targets) == 1:
        return first
    points = scores.operating_points(fprs, band)
    mean = mean_interval(role, points, rates_of_halves(scores, fprs), fprs)
    return pd.concat([first, mean], ignore_index=True)


def _first_model(
    result: stats.BootstrapIntervals,
    estimates: stats.EpsilonIntervals,
    members: int,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the rows of one model; ``members`` is the number of members with a score."""
    tpr_names = _tpr_names(fprs)
    table = pd.DataFrame(
        {"models": 1, "metric": ["auc", *tpr_names, "balanced_accuracy"]}
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


def mean_interval(
    role: Role,
    points: stats.OperatingPoints,
    halves: tuple[np.ndarray, np.ndarray],
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the rows of the mean over models that are attacked together: AUC and TPRs.

    Args:
      role: what the models are.
      points: their operating points, at ``fprs`` first.
      halves: (auc_TxH, tpr_TxHxF), their rates on halves of the samples.
      fprs: the false positive rates of the TPRs.
    """
    auc_TxH, tpr_TxHxF = halves
    rate_TxS = np.column_stack([points.auc_T, points.tpr_TxF[:, : len(fprs)]])
    rate_TxHxS = np.concatenate([auc_TxH[:, :, None], tpr_TxHxF], axis=2)
    low_S, high_S = stats.mean_rate_interval(rate_TxS, rate_TxHxS)
    table = pd.DataFrame(
        {"role": role, "models": len(rate_TxS), "metric": ["auc", *_tpr_names(fprs)]}
        | {"value": rate_TxS.mean(axis=0), "low": low_S, "high": high_S}
    )
    table["method"] = np.where(table["low"].isna(), "", "models and samples")
    table["not_covered"] = _NOT_COVERED[role]
    table["true_positives"] = pd.array([pd.NA] * len(table), dtype="Int64")
    return table.assign(members=int(points.members_T.max()), left_out=int(points.left_out_T.max()))


def _tpr_names(fprs: tuple[float, ...]) -> list[str]:
    return [f"tpr_at_{fpr:g}" for fpr in fprs]
