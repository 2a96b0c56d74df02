"""Metrics of the decisions of replicas, computed with parts of the replicas, references and samples, for intervals.

B: replicas, R: references, H: halves, N: the samples that are used.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs

_SAMPLES = study_inputs.FIRST_SAMPLES


DECISION_JACKKNIFE_TABLE = Table(
    "decision_jackknife.parquet",
    (
        "For intervals of claims. Each row is a choice of replicas, references and samples, and an FPR of "
        "`attack.fprs`. The numbers are of online LiRA on the first 32,768 samples, and thresholds are calibrated on "
        "the samples that are used."
    ),
    {
        "replicas": Column(
            "none",
            (
                "0: all replicas; g: without group g. Replicas are divided into 8 groups, or each is a group if there "
                "are fewer"
            ),
        ),
        "references": Column(
            "none",
            "0: all references; h: a half of them, as `part` of `target_jackknife.parquet`, if there are 16 or more",
        ),
        "samples": Column("none", "as `half` of `target_jackknife.parquet`"),
        **common("fpr"),
        "auc": Column("fraction", "mean AUC; the same at every FPR"),
        "distance_correlation": Column(
            "none",
            (
                "rank correlation over members of the flip rate with the mean distance of the posterior from the "
                "threshold, at `attack.focus_fpr`; the same at every FPR"
            ),
        ),
        "member_flip_rate, nonmember_flip_rate": Column("fraction", "mean flip rate of the class"),
        "member_coin_flips, nonmember_coin_flips": Column(
            "fraction",
            "samples of the class whose decisions are coin flips, with the cutoff for the replicas that are used",
        ),
        "tpr": Column("fraction", "mean true positive rate"),
        "coin_flip_tpr, unstable_tpr": Column(
            "fraction",
            (
                "the parts of it that are due to members whose decisions are coin flips, and very unstable or coin "
                "flips"
            ),
        ),
        "threshold_spread": Column(
            "fraction",
            "distance of a replica's threshold, as a posterior, from the median threshold, mean over replicas",
        ),
    },
    key=("references", "replicas", "samples", "fpr"),
)


def decision_jackknife(
    inputs: AttackInputs,
    document_N2: np.ndarray,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns decision_jackknife.parquet: metrics of decisions with all models and samples, and with parts of them.

    Each row leaves out at most one group of replicas, and uses all or half of the references (`spec.half_groups`) and
    of the samples (`stats.HALVES_HxG`). All references are always used if there are fewer than two of each group.

    Args:
      inputs: the replicas and references.
      document_N2: the document of each sample; samples of one document are in the same half.
      c: settings of the recipe.
      pool: threads, each of which computes the metrics with some of the references.
    """
    member_N2 = inputs.target_member_TxN2[0]

    def evaluate(index: int, score_BxN: np.ndarray) -> pd.DataFrame:
        metrics = _metrics(score_BxN, member_N2, document_N2, c.alpha, c.focus, c.fprs)
        return to_frame(metrics, index, c.fprs)

    halves = study_inputs.reference_halves(inputs.references)
    tables = study_inputs.map_reference_sets(inputs, halves, vars(c), pool, evaluate, _SAMPLES)
    return pd.concat(tables)


def metrics_of_scores(
    scores: Scores, *, alpha: float, focus_fpr: float, fprs: tuple[float, ...]
) -> stats.DecisionMetrics:
    """Returns the metrics of an attack on the same samples as in `decision_jackknife`, with all its references."""
    samples = min(_SAMPLES, scores.file.num_samples)
    score_BxN, document_N2 = (
        scores.file.read_samples(slice(0, samples)),
        scores.population.document_N,
    )
    return _metrics(score_BxN, scores.member_TxN[0], document_N2, alpha, focus_fpr, fprs)


def _metrics(
    score_BxN: np.ndarray,
    member_N2: np.ndarray,
    document_N2: np.ndarray,
    alpha: float,
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> stats.DecisionMetrics:
    samples = score_BxN.shape[1]
    focus = min(range(len(fprs)), key=lambda f: abs(fprs[f] - focus_fpr))
    group_N = stats.sample_groups(document_N2[:samples])
    return stats.decision_metrics(score_BxN, member_N2[:samples], group_N, fprs, focus, alpha)


def to_frame(
    metrics: stats.DecisionMetrics, references: int, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns a row for each left-out group of replicas, half of the samples and FPR; the index 0 stands for all."""
    shape = (*metrics.auc_A1xH1.shape, len(fprs))
    replicas, samples, _ = (index.ravel() for index in np.indices(shape))
    columns = {"replicas": replicas, "references": references, "samples": samples}
    columns |= {"fpr": np.tile(fprs, shape[0] * shape[1])}
    for field in dataclasses.fields(metrics):
        value = getattr(metrics, field.name)
        value_A1xH1xF = value if value.ndim == 3 else np.repeat(value[..., None], len(fprs), axis=2)
        columns[field.name.partition("_A1x")[0]] = value_A1xH1xF.ravel()
    return pd.DataFrame(columns)
