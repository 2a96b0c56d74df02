"""Runs of lm_mia's statistics for the measurements; `peers` has the corresponding runs of other libraries.

If the definition of a peer differs, the results also contain those of lm_mia under that definition ("as_theirs"), so
that the agreement can be computed; this part is not timed.

Legend: N samples, M references, T targets, Z population samples. The files are those that `synthetic.write` writes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import synthetic
from fresh import Clock, Results

from lm_mia import stats

FPRS = (0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9)
"""11 false positive rates; their values do not affect the time."""
METER_FPRS = (0.01, 0.001, 0.0)
"""The false positive rates that ml_privacy_meter reports."""


def fit_and_score(clock: Clock, folder: Path) -> Results:
    """Computes online LiRA of each target from the losses."""
    target_TxN = synthetic.read(folder, "target_loss")
    reference_MxN, member_MxN = _references(folder)
    with clock:
        gaussians = stats.fit_gaussians(reference_MxN, member_MxN)
        score_TxN = stats.lira_from_gaussians(target_TxN, gaussians)
    theirs = stats.lira_from_gaussians(target_TxN, _with_ddof_0(gaussians))
    return {"score": score_TxN, "as_theirs": theirs}


def score(clock: Clock, folder: Path) -> Results:
    """Computes online LiRA of each target from fitted Gaussians."""
    target_TxN = synthetic.read(folder, "target_loss")
    gaussians = stats.fit_gaussians(*_references(folder))
    with clock:
        score_TxN = stats.lira_from_gaussians(target_TxN, gaussians)
    return {"score": score_TxN}


def save_scores(clock: Clock, folder: Path) -> Results:
    """Writes score.npy and gaussians.npy, which other runs read."""
    target_TxN = synthetic.read(folder, "target_loss")
    with clock:
        g = stats.fit_gaussians(*_references(folder))
        score_TxN = stats.lira_from_gaussians(target_TxN, g)
    sd_in_N, sd_out_N = np.sqrt(g.var_in_N), np.sqrt(g.var_out_N)
    np.save(folder / "gaussians.npy", np.stack([g.mean_in_N, sd_in_N, g.mean_out_N, sd_out_N]))
    np.save(folder / "score.npy", score_TxN)
    return {}


def leave_one_out(clock: Clock, folder: Path) -> Results:
    """Computes LiRA of each reference against those of the other pairs."""
    loss_MxN, member_MxN = _references(folder)
    with clock:
        score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN)
    return {"first": score_MxN[0]}


def rmia_online(clock: Clock, folder: Path) -> Results:
    """Computes RMIA of each target with all references and gamma = 1."""
    target_TxN, target_TxZ = (-loss for loss in _targets(folder))
    reference_MxN = -synthetic.read(folder, "reference_loss")
    reference_MxZ = -synthetic.read(folder, "population_reference")
    with clock:
        score_TxN = stats.rmia(target_TxN, reference_MxN, target_TxZ, reference_MxZ)
    return {"score": score_TxN}


def rmia_offline(clock: Clock, folder: Path, *, a: float) -> Results:
    """Computes RMIA of each target with OUT references and gamma = 1."""
    target_TxN, target_TxZ = (-loss for loss in _targets(folder))
    loss_MxN, member_MxN = _references(folder)
    reference_MxN = -loss_MxN
    reference_MxZ = -synthetic.read(folder, "population_reference")
    no_members_MxZ = np.zeros(reference_MxZ.shape, bool)
    with clock:
        score_TxN = stats.rmia(
            target_TxN,
            reference_MxN,
            target_TxZ,
            reference_MxZ,
            reference_member_MxN=member_MxN,
            reference_member_MxZ=no_members_MxZ,
            offline=True,
            a=a,
        )
    # For z, ml_privacy_meter averages only the larger half of the probabilities.
    half = len(reference_MxZ) // 2
    theirs = stats.rmia(
        target_TxN,
        reference_MxN,
        target_TxZ,
        np.where(_rank(-reference_MxZ) < half, reference_MxZ, np.nan),
        reference_member_MxN=member_MxN,
        reference_member_MxZ=no_members_MxZ,
        offline=True,
        a=a,
    )
    return {"score": score_TxN, "as_theirs": theirs}


def rates(clock: Clock, folder: Path, *, fprs: Sequence[float] = METER_FPRS) -> Results:
    """Computes the AUC of each target, and its TPR at some false positive rates."""
    score_TxN, member_N = synthetic.read(folder, "score"), synthetic.read(folder, "target_member")
    with clock:
        points = stats.tpr_at_fpr(score_TxN, member_N, fprs, at="vertex")
    return {"auc_tpr": np.column_stack([points.auc_T, points.tpr_TxF])}


def intervals(
    clock: Clock, folder: Path, *, replicates: int, targets: int, fprs: Sequence[float] = FPRS
) -> Results:
    """Computes 95 % bootstrap intervals of AUC and TPR of the first targets."""
    score_TxN = synthetic.read(folder, "score")[:targets]
    member_N = synthetic.read(folder, "target_member")
    with clock:
        result = stats.bootstrap_intervals(score_TxN, member_N, fprs, replicates=replicates)
    columns = [result.auc_T, result.auc_low_T, result.auc_high_T]
    return {"auc_low_high": np.column_stack(columns)}


def _with_ddof_0(g: stats.LiraGaussians) -> stats.LiraGaussians:
    """Replaces variances as PrivacyGuard's prepare_lira_data computes them: ddof=0, plus 1e-8 on the STD."""

    def variance(var_N: np.ndarray, count_N: np.ndarray) -> np.ndarray:
        return (np.sqrt(var_N * (count_N - 1) / count_N) + 1e-8) ** 2

    return dataclasses.replace(
        g,
        var_in_N=variance(g.var_in_N, g.count_in_N),
        var_out_N=variance(g.var_out_N, g.count_out_N),
    )


def _references(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return synthetic.read(folder, "reference_loss"), synthetic.read(folder, "reference_member")


def _targets(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return synthetic.read(folder, "target_loss"), synthetic.read(folder, "population_target")


def _rank(loss_MxZ: np.ndarray) -> np.ndarray:
    """Ranks the losses of each column, from 0 for the lowest."""
    return np.argsort(np.argsort(loss_MxZ, axis=0, kind="stable"), axis=0)
