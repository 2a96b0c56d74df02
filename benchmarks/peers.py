"""Workloads that run the code of PrivacyGuard and ml_privacy_meter, imported from checkouts.

None of their code is copied or changed. They need torch (the CPU build is enough), pandas below 3, scikit-learn, tqdm
and matplotlib. Where they offer a choice, the fastest option is taken: float32 arrays, no aggregation by user, no
tuning of `a`, and one process per core for the bootstrap. Converting our arrays into their data frames is not timed;
what their code does with the data frames is. Our counterparts use one thread in all of these workloads.

N: samples, M: references, T: targets, Z: population samples. Files are read as `synthetic.write` writes them.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import synthetic
from fresh import Clock, Results

from lm_mia.machine import available_cores


def lira_privacyguard(clock: Clock, folder: Path, *, path: Path) -> Results:
    """Computes online LiRA of every target from the losses, by PrivacyGuard's prepare_lira_data and LiraAttack.

    Both are called once per target, since their interface takes one target. They use ddof 0 and add 1e-8 to standard
    deviations; ours uses ddof 1 and adds nothing. They compute in the type of the input, which is float32 here and
    costs them precision (1e-4 of a score); in float64 the results would agree to 1e-14.
    """
    attacks, frames = _privacyguard(path, "attacks.lira_attack"), _preparation(path)
    none = _privacyguard(path, "analysis.mia.aggregate_analysis_input").AggregationType.NONE
    signal_TxN, member_N = -synthetic.read(folder, "target_loss"), _member(folder)
    signal_MxNx1 = -synthetic.read(folder, "reference_loss")[:, :, None]
    # Of a data set, they only use the membership.
    shadows = [(None, in_N) for in_N in synthetic.read(folder, "reference_member")]
    score_TxN = np.empty(signal_TxN.shape)
    for t, signal_N in enumerate(signal_TxN):
        with clock:
            train, test, *_ = frames.prepare_lira_data(
                signal_N, signal_MxNx1, (None, member_N), shadows
            )
            attack = attacks.LiraAttack(train, test, none, online_attack=True)
            result = attack.run_attack()
        _put(score_TxN[t], member_N, result)
    return {"score": score_TxN}


def lira_scores_privacyguard(clock: Clock, folder: Path, *, path: Path) -> Results:
    """Runs PrivacyGuard's LiraAttack alone on fitted Gaussians (gaussians.npy: mean and std, IN then OUT, 4 x N)."""
    attacks, pd = _privacyguard(path, "attacks.lira_attack"), importlib.import_module("pandas")
    none = _privacyguard(path, "analysis.mia.aggregate_analysis_input").AggregationType.NONE
    loss_TxN, member_N = synthetic.read(folder, "target_loss").astype(np.float64), _member(folder)
    names = ("score_mean_in", "score_std_in", "score_mean_out", "score_std_out")
    columns = dict(zip(names, synthetic.read(folder, "gaussians"), strict=True))
    score_TxN = np.empty(loss_TxN.shape)
    for t, loss_N in enumerate(loss_TxN):
        frame = pd.DataFrame({"user_id": np.arange(len(loss_N)), "score_orig": loss_N} | columns)
        train, test = frame[member_N].copy(), frame[~member_N].copy()
        with clock:
            result = attacks.LiraAttack(train, test, none, online_attack=True).run_attack()
        _put(score_TxN[t], member_N, result)
    return {"score": score_TxN}


def rmia_privacyguard(clock: Clock, folder: Path, *, path: Path) -> Results:
    """Computes online RMIA of every target, gamma = 1, by PrivacyGuard's RmiaAttack with all references.

    It holds N x Z ratios at once, first for members and then for non-members. It takes p instead of log p, and counts a
    population sample if the ratio is above 1, where ours also counts a ratio of exactly 1.
    """
    attacks, pd = _privacyguard(path, "attacks.rmia_attack"), importlib.import_module("pandas")
    none = _privacyguard(path, "analysis.mia.aggregate_analysis_input").AggregationType.NONE
    member_N, arrays = _member(folder), _probabilities(folder)
    references = arrays.reference_NxM.shape[1]
    names = [f"score_ref_{m}" for m in range(references)]
    names += [f"member_ref_{m}" for m in range(references)]

    def frame(p_NxM: np.ndarray, in_NxM: np.ndarray) -> Any:
        columns = [*p_NxM.T, *in_NxM.T]
        return pd.DataFrame({"score_orig": np.float32(0)} | dict(zip(names, columns, strict=True)))

    train = frame(arrays.reference_NxM[member_N], arrays.member_NxM[member_N])
    test = frame(arrays.reference_NxM[~member_N], arrays.member_NxM[~member_N])
    population = frame(arrays.reference_ZxM, np.zeros(arrays.reference_ZxM.shape, bool))
    train["user_id"], test["user_id"] = np.arange(len(train)), np.arange(len(test))
    target_TxN, target_TxZ = arrays.target_TxN, arrays.target_TxZ
    del arrays
    score_TxN = np.empty(target_TxN.shape)
    for t, (target_N, target_Z) in enumerate(zip(target_TxN, target_TxZ, strict=True)):
        train["score_orig"], test["score_orig"] = target_N[member_N], target_N[~member_N]
        population["score_orig"] = target_Z
        with clock:
            attack = attacks.RmiaAttack(
                train, test, population, none, num_reference_models=references, online=True
            )
            result = attack.run_attack()
        _put(score_TxN[t], member_N, result)
        del attack, result
    return {"score": score_TxN}


def rmia_privacy_meter(clock: Clock, folder: Path, *, path: Path, a: float) -> Results:
    """Computes offline RMIA of every target, gamma = 1, by ml_privacy_meter's run_rmia with half of the references.

    It holds N x Z ratios at once. It sets probabilities that are not OUT to zero and averages the largest M/2. For
    samples these are the OUT references, since the design is balanced; for population samples they are the larger half
    of all references, where ours uses all of them.
    """
    attack = _file(path / "modules/mia/attacks/rmia.py")
    arrays = _probabilities(folder)
    score_TxN = np.empty(arrays.target_TxN.shape)
    for t, target_N in enumerate(arrays.target_TxN):
        with clock:
            score_TxN[t] = attack.run_rmia(
                target_N,
                arrays.reference_NxM,
                arrays.member_NxM,
                arrays.target_TxZ[t],
                arrays.reference_ZxM,
                a,
            )
    return {"score": score_TxN}


def rates_privacy_meter(clock: Clock, folder: Path, *, path: Path) -> Results:
    """Computes AUC and TPR at 1 %, 0.1 % and 0 % FPR of every target, by ml_privacy_meter's compute_attack_results.

    Theirs is the last vertex of the ROC curve, so ours is computed with at="vertex", too. The AUC is the same.
    """
    sys.path.insert(0, str(path))
    audit = _file(path / "audit.py")
    score_TxN, member_N = synthetic.read(folder, "score"), _member(folder)
    rows = []
    for score_N in score_TxN:
        with clock:
            result = audit.compute_attack_results(score_N, member_N)
        rows.append([result[name] for name in ("auc", "one_fpr", "one_tenth_fpr", "zero_fpr")])
    return {"auc_tpr": np.array(rows)}


def bootstrap_privacyguard(
    clock: Clock, folder: Path, *, path: Path, replicates: int, targets: int
) -> Results:
    """Computes the 95 % bootstrap interval of the AUC of the first targets, by PrivacyGuard's ParallelAnalysisNode.

    Besides the AUC, it resamples accuracy and epsilon at 100 rates, where ours resamples the TPR at the given FPRs.
    """
    node = _privacyguard(path, "analysis.mia.parallel_analysis_node")
    inputs = _privacyguard(path, "analysis.base_analysis_input")
    pd = importlib.import_module("pandas")
    score_TxN, member_N = synthetic.read(folder, "score")[:targets], _member(folder)
    rows = []
    for score_N in score_TxN:
        analysis_input = inputs.BaseAnalysisInput(
            pd.DataFrame({"score": score_N[member_N]}), pd.DataFrame({"score": score_N[~member_N]})
        )
        with clock:
            result = node.ParallelAnalysisNode(
                analysis_input,
                delta=1e-5,
                n_users_for_eval=1,
                eps_computation_tasks_num=available_cores(),
                num_bootstrap_resampling_times=replicates,
            ).run_analysis()
        rows.append([result.auc, *result.auc_ci])
    return {"auc_low_high": np.array(rows)}


def _privacyguard(path: Path, module: str) -> ModuleType:
    """Imports a module of PrivacyGuard from the checkout; the package privacy-guard on PyPI is a different one."""
    if not (path / "privacy_guard").is_dir():
        raise FileNotFoundError(f"{path}: not a checkout of facebookresearch/PrivacyGuard")
    if sys.path[0] != str(path):
        sys.path.insert(0, str(path))
    return importlib.import_module(f"privacy_guard.{module}")


def _preparation(path: Path) -> ModuleType:
    """Imports prepare_lira_data's module by its file, since its package imports torchvision for CIFAR-10."""
    return _file(path / "privacy_guard/shadow_model_training/training.py")


def _file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"{path}: no such file in the checkout")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _member(folder: Path) -> np.ndarray:
    return synthetic.read(folder, "target_member")


def _probabilities(folder: Path) -> SimpleNamespace:
    """Returns the probabilities in their layout, samples first."""
    return SimpleNamespace(
        target_TxN=np.exp(-synthetic.read(folder, "target_loss")),
        target_TxZ=np.exp(-synthetic.read(folder, "population_target")),
        reference_NxM=np.ascontiguousarray(np.exp(-synthetic.read(folder, "reference_loss")).T),
        reference_ZxM=np.ascontiguousarray(
            np.exp(-synthetic.read(folder, "population_reference")).T
        ),
        member_NxM=np.ascontiguousarray(synthetic.read(folder, "reference_member").T),
    )


def _put(score_N: np.ndarray, member_N: np.ndarray, result: Any) -> None:
    """Copies their scores, which are split into members and non-members, into the order of the samples."""
    score_N[member_N] = result.df_train_user["score"].to_numpy()
    score_N[~member_N] = result.df_test_user["score"].to_numpy()
