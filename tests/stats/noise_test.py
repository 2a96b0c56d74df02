"""All attacks have an AUC of 0.5 on noise, under every design of the training subsets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import subset_designs as draw

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
Drawn = Callable[[np.random.Generator, int, int], np.ndarray]
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
    rng: np.random.Generator, member_MxN: np.ndarray, rounds: int
) -> dict[str, np.ndarray]:
    """Returns the AUCs of all models against the others, over several rounds of independent noise."""
    auc: dict[str, list[np.ndarray]] = {name: [] for name in LEFT_OUT}
    for _ in range(rounds):
        loss_MxN = rng.normal(4, 0.3, member_MxN.shape)
        for variance in VARIANCES:
            score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN, variance=variance)
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
    results |= leave_one_out_auc(rng, member_MxN, rounds)
    for name, auc_R in results.items():
        assert len(auc_R) >= REPETITIONS
        assert np.mean(auc_R) == pytest.approx(0.5, abs=TOLERANCE), name
        assert 0.009 < np.std(auc_R) < 0.017, name  # noise rather than a constant


@pytest.mark.parametrize(
    ("references", "leaking_auc"), [(4, 0.412), (6, 0.457), (8, 0.473), (16, 0.488)]
)
def test_the_complement_of_a_target_would_leak(references: int, leaking_auc: float):
    """Models leave one IN reference fewer for their members, who therefore score lower; whole pairs do not leak.

    benchmarks/noise.py has the figures.
    """
    member_MxN = reference_members(references, "balanced")
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


RELATED: dict[str, Drawn] = {
    "bernoulli": lambda rng, M, N: rng.random((M, N)) < 0.5,
    "pairs": draw.pairs,
    "pairs, one sample never trained": lambda rng, M, N: draw.with_untrained(
        draw.pairs(rng, M, N - 1), 1
    ),
    "two seeds": lambda rng, M, N: draw.seeds(draw.exact(rng, M // 2, N)),
    "columns": draw.columns,
    "columns with two seeds": lambda rng, M, N: draw.seeds(draw.columns(rng, M // 2, N)),
}


def tpr_of_ranks(score_N: np.ndarray, member_N: np.ndarray, fpr: float) -> tuple[float, float]:
    """Returns the TPR at the j-th largest score of n non-members, j <= fpr n, and its expectation on noise."""
    out_N = np.sort(score_N[~member_N & ~np.isnan(score_N)])
    j = int(fpr * out_N.size + 1e-9)
    found = np.nanmean(np.where(np.isnan(score_N), np.nan, score_N >= out_N[-j])[member_N])
    return float(found), j / (out_N.size + 1)


@pytest.mark.parametrize("held_out", [0.0, 0.25])
@pytest.mark.parametrize("models", [8, 16])
@pytest.mark.parametrize("name", RELATED)
def test_related_subsets_leak_nothing_in_leave_one_out(name: str, models: int, held_out: float):
    """Also if a quarter of the samples are in no subset: these have no score."""
    excess: dict[str, list[list[float]]] = {}
    for seed in range(320 // models):
        rng = np.random.default_rng([seed, models])
        samples = round(SAMPLES * (1 - held_out))
        member_MxN = RELATED[name](rng, models, samples)
        member_MxN = draw.with_untrained(member_MxN, SAMPLES - samples)
        loss_MxN = rng.normal(3, 0.5, SAMPLES) + rng.normal(0, 0.2, member_MxN.shape)
        scores = {
            f"{variance} {offline}": stats.lira_leave_one_out(
                loss_MxN, member_MxN, variance=variance, offline=offline
            )
            for variance in VARIANCES
            for offline in (False, True)
        }
        scores["standardized"] = stats.standardized_leave_one_out(loss_MxN, member_MxN).score_MxN
        for attack, score_MxN in scores.items():
            for score_N, member_N in zip(score_MxN, member_MxN, strict=True):
                scored_N = ~np.isnan(score_N)
                if min(scored_N[member_N].sum(), scored_N[~member_N].sum()) < 100:
                    continue
                auc = stats.auc(score_N, member_N).auc_T[0] - 0.5
                tpr, expected = tpr_of_ranks(score_N, member_N, 0.05)
                excess.setdefault(attack, []).append([auc, tpr - expected])
    assert len(excess) >= 4
    for attack, excess_Rx2 in excess.items():
        mean_2 = np.mean(excess_Rx2, axis=0)
        # Models are each other's references, which about doubles the variance of the mean over models.
        error_2 = np.std(excess_Rx2, axis=0) * np.sqrt(2 / len(excess_Rx2))
        assert np.all(np.abs(mean_2) < 4 * error_2), (attack, mean_2, error_2)
        assert np.all(error_2 < 0.004)


def test_models_with_the_same_subset_and_columns_would_leak():
    """The test above would detect these mistakes: only the target is left out."""
    for name, leaking_auc in (("two seeds", 0.58), ("columns", 0.445)):
        results: list[float] = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            member_MxN = RELATED[name](rng, 8, SAMPLES)
            loss_MxN = rng.normal(3, 0.5, SAMPLES) + rng.normal(0, 0.2, member_MxN.shape)
            alone = stats.Design(np.arange(8), np.arange(8))
            score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN, design=alone)
            results += stats.auc(score_MxN, member_MxN).auc_T.tolist()
        assert np.mean(results) == pytest.approx(leaking_auc, abs=0.01)
