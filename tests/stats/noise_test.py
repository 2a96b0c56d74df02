"""All attacks have an AUC of 0.5 on noise, under every design of the training subsets."""

from typing import Any

import numpy as np
import pytest

from lm_mia import stats
from lm_mia.data import subsets

pytestmark = pytest.mark.montecarlo

REPETITIONS, SAMPLES, TOKENS = 100, 2048, 6
TOLERANCE = 0.005  # the STD of one AUC is 0.0128, of the mean of 100 it is 0.0013
ATTACKS = {
    "lira online per_sample",
    "lira offline per_sample",
    "lira online pooled",
    "lira offline pooled",
    "shrunk",
    "shrunk offline",
    "stacked",
    "rmia online",
    "rmia offline",
    "rmia offline a",
    "rmia simple",
    "reference-calibrated",
    "loss",
    "zlib",
    "min_k",
    "min_k_plus_plus",
    "lowercase",
}
VARIANCES: tuple[stats.Variance, ...] = ("per_sample", "pooled")
LEFT_OUT = {f"left out {variance}" for variance in VARIANCES}


def reference_members(references: int, design: subsets.Design) -> np.ndarray:
    """Returns member_MxN of the references of an attack."""
    return subsets.members(subsets.requested_seeds(references, 0), SAMPLES, design)


def scores_of_noise(
    rng: np.random.Generator, member_MxN: np.ndarray, zlib_N: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns score_TxN of each attack on noise, for many targets and for samples of different difficulty.

    All targets have the same references, as in an attack. Only their losses and training subsets are random.
    """
    T, N, L = REPETITIONS, SAMPLES, TOKENS
    level_N = rng.normal(4, 0.5, N)
    loss_MxN = (level_N + rng.normal(0, 0.3, member_MxN.shape)).astype(np.float32)
    token_TxNxL = -level_N[:, None] * rng.standard_exponential((T, N, L), dtype=np.float32)
    target_TxN = -token_TxNxL.mean(axis=2)
    # min_k expects the tokens of all samples, one sample after another.
    count_TN = np.full(T * N, L)
    results = {}
    for variance in VARIANCES:
        gaussians = stats.fit_gaussians(loss_MxN, member_MxN, variance=variance)
        results[f"lira online {variance}"] = stats.lira_from_gaussians(target_TxN, gaussians)
        results[f"lira offline {variance}"] = stats.lira_from_gaussians(
            target_TxN, gaussians, offline=True
        )
    both = target_TxN, loss_MxN, member_MxN
    results["shrunk"] = stats.shrunk_lira(*both)
    results["shrunk offline"] = stats.shrunk_lira(*both, offline=True)
    results["stacked"] = stats.stacked_lira(*both)
    z = rng.choice(N, N // 4, replace=False)
    log_p_TxN, log_p_MxN = -target_TxN, -loss_MxN
    both = log_p_TxN, log_p_MxN, log_p_TxN[:, z], log_p_MxN[:, z]
    members: Any = {"reference_member_MxN": member_MxN, "reference_member_MxZ": member_MxN[:, z]}
    mean_TxNxL = -4 * rng.standard_exponential((T, N, L), dtype=np.float32)
    std_TxNxL = 1 + rng.random((T, N, L), dtype=np.float32)
    z_TxNxL = (token_TxNxL - mean_TxNxL) / std_TxNxL
    lowercase_TxN = level_N + rng.normal(0, 0.5, (T, N))
    return results | {
        "rmia online": stats.rmia(*both),
        "rmia offline": stats.rmia(*both, **members, offline=True, gamma=2.0),
        "rmia offline a": stats.rmia(*both, **members, offline=True, a=0.3),
        "rmia simple": stats.rmia_simple(log_p_TxN, log_p_MxN),
        "reference-calibrated": stats.reference_calibrated_loss(target_TxN, loss_MxN),
        "loss": stats.loss_attack(target_TxN),
        "zlib": stats.zlib_ratio(target_TxN, zlib_N),
        "min_k": stats.min_k(token_TxNxL.ravel(), count_TN).reshape(T, N),
        "min_k_plus_plus": stats.min_k(z_TxNxL.ravel(), count_TN).reshape(T, N),
        "lowercase": stats.lowercase_loss_difference(target_TxN, lowercase_TxN),
    }


def leave_one_out_auc(
    rng: np.random.Generator, member_MxN: np.ndarray, rounds: int, *, pairs: bool
) -> dict[str, np.ndarray]:
    """Returns the AUCs of all models against the others, over several rounds of independent noise."""
    auc: dict[str, list[np.ndarray]] = {name: [] for name in LEFT_OUT}
    for _ in range(rounds):
        loss_MxN = rng.normal(4, 0.3, member_MxN.shape)
        for variance in VARIANCES:
            score_MxN = stats.lira_leave_one_out(
                loss_MxN, member_MxN, variance=variance, pairs=pairs
            )
            auc[f"left out {variance}"].append(stats.auc(score_MxN, member_MxN).auc_T)
    return {name: np.concatenate(parts) for name, parts in auc.items()}


@pytest.mark.parametrize("design", ["exact", "bernoulli", "balanced"])
@pytest.mark.parametrize("references", [8, 16, 64])
def test_every_attack_is_at_chance_on_noise(references: int, design: subsets.Design):
    """Subsets are drawn as for an attack, so a leak through the number of IN references would be detected."""
    rng = np.random.default_rng([references, len(design)])
    member_MxN = reference_members(references, design)
    seeds = range(subsets.TARGET_SEED, subsets.TARGET_SEED + REPETITIONS)
    member_TxN = np.array([subsets.member(seed, SAMPLES, design) for seed in seeds])
    score = scores_of_noise(rng, member_MxN, rng.integers(40, 400, SAMPLES))
    results = {name: stats.auc(score_TxN, member_TxN).auc_T for name, score_TxN in score.items()}
    assert set(results) == ATTACKS
    # Models are each other's references, which about doubles the variance of the mean over models.
    rounds = -(-2 * REPETITIONS // references)
    results |= leave_one_out_auc(rng, member_MxN, rounds, pairs=design == "balanced")
    for name, auc_R in results.items():
        assert len(auc_R) >= REPETITIONS
        assert np.mean(auc_R) == pytest.approx(0.5, abs=TOLERANCE), name
        assert 0.009 < np.std(auc_R) < 0.017, name  # noise rather than a constant


@pytest.mark.parametrize(
    ("references", "leaking_auc"), [(4, 0.412), (6, 0.457), (8, 0.473), (16, 0.488)]
)
def test_leave_one_out_of_a_balanced_design_leaks_and_is_refused(
    references: int, leaking_auc: float
):
    """Models leave one IN reference fewer for their members, who therefore score lower; whole pairs do not leak.

    benchmarks/noise.py has the figures.
    """
    member_MxN = reference_members(references, "balanced")
    with pytest.raises(ValueError, match="complement"):
        stats.lira_leave_one_out(np.zeros(member_MxN.shape), member_MxN)
    rng = np.random.default_rng(references)
    alone, pairs = [], []
    for _ in range(-(-400 // references)):
        loss_MxN = rng.normal(4, 0.3, member_MxN.shape)
        for m in range(references):
            for left_out, results in (([m], alone), ([m, m ^ 1], pairs)):
                others = np.delete(loss_MxN, left_out, 0), np.delete(member_MxN, left_out, 0)
                score_1xN = stats.lira(loss_MxN[m], *others, variance="pooled")
                results += stats.auc(score_1xN, member_MxN[m]).auc_T.tolist()
    assert np.mean(alone) == pytest.approx(leaking_auc, abs=TOLERANCE)
    if references > 4:  # with two references, no variance can be estimated
        assert np.mean(pairs) == pytest.approx(0.5, abs=TOLERANCE)


@pytest.mark.parametrize("references", [8, 16])
def test_target_among_its_references_leaks(references: int):
    """The test above would detect this mistake."""
    rng = np.random.default_rng(references)
    member_MxN = reference_members(references, "exact")
    results: list[float] = []
    for row in range(references):
        loss_MxN = rng.normal(4, 0.3, member_MxN.shape)
        score_1xN = stats.lira(loss_MxN[row], loss_MxN, member_MxN)
        results += stats.auc(score_1xN, member_MxN[row]).auc_T.tolist()
    assert np.mean(results) > 0.5 + 4 * TOLERANCE
