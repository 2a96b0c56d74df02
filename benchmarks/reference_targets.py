"""Simulates LiRA on every reference with the others: its AUC on noise, and the spread of its AUC over subsets.

    python -m benchmarks reference_targets [--rounds 200]

Prints two Markdown tables, in about 2 minutes on one core.

Noise: losses do not depend on membership, so the mean AUC must be 0.5. A reference is attacked with all others or, if
the references are pairs of complements (balanced), with those of all other pairs. benchmarks/noise.py shows that all
others would reveal its members there.

Spread: members have lower losses, by an amount that differs between samples. A third of the variance of a loss is due
to the batch order, and the rest to the training subset. The table compares standard deviations of the AUC (with ddof 0,
as in the headline of a recipe; the root of their mean square over rounds): over 16 replicas of one subset, and over the
references, each attacked with the other references or pairs. The true value is that over 64 new targets with subsets of
their own, which are attacked with equally many references. All losses are drawn anew in each round.

T: targets, M: references, N: samples.
"""

import argparse

import numpy as np

from lm_mia import stats
from lm_mia.data import subsets

SAMPLES = 2048
REPLICAS, NEW_TARGETS = 16, 64
DESIGNS: tuple[subsets.Design, ...] = ("exact", "bernoulli", "balanced")
VARIANCES: tuple[stats.Variance, ...] = ("per_sample", "pooled")
_LOSS_STD, _ORDER_SHARE = 0.2, 1 / 3


def noise(rounds: int) -> None:
    """Prints the mean AUC on noise, with its standard error over rounds."""
    print("| design | references | variance | AUC |\n|---|---|---|---|")
    for design in DESIGNS:
        for models in (6, 8, 16, 32, 64):
            for variance, aucs in aucs_on_noise(models, design, rounds).items():
                error = np.std(aucs, ddof=1) / np.sqrt(rounds)
                print(
                    f"| {design} | {models} | {variance} | {np.mean(aucs):.4f} ± {error:.4f} |",
                    flush=True,
                )


def aucs_on_noise(
    models: int, design: subsets.Design, rounds: int
) -> dict[stats.Variance, list[float]]:
    """Returns the mean AUC over all references in each round, for each kind of variance."""
    rng = np.random.default_rng([models, len(design)])
    aucs: dict[stats.Variance, list[float]] = {variance: [] for variance in VARIANCES}
    for _ in range(rounds):
        member_MxN = _members(rng, models, design)
        loss_MxN = rng.normal(3, _LOSS_STD, member_MxN.shape)
        for variance in VARIANCES:
            auc_M = _auc(loss_MxN, member_MxN, variance)
            aucs[variance].append(float(auc_M.mean()))
    return aucs


def spread(rounds: int) -> None:
    """Prints standard deviations of the AUC over replicas, over references as targets, and over new targets."""
    print(
        "| design | references | variance | 16 replicas | references as targets | new targets | ratio |\n"
        "|---|---|---|---|---|---|---|"
    )
    for design in DESIGNS[::2]:
        for models in (8, 16, 32, 64):
            for variance in VARIANCES:
                replicas, references, new = standard_deviations(models, design, variance, rounds)
                print(
                    f"| {design} | {models} | {variance} | {replicas:.4f} | {references:.4f} | {new:.4f} "
                    f"| {references / new:.2f} |",
                    flush=True,
                )


def standard_deviations(
    models: int, design: subsets.Design, variance: stats.Variance, rounds: int
) -> tuple[float, float, float]:
    """Returns the standard deviations of the AUC over replicas, over references as targets, and over new targets."""
    rng = np.random.default_rng([models, len(design), len(variance)])
    rounds_of_aucs = [_aucs(rng, models, design, variance) for _ in range(rounds)]
    replicas, references, new = (
        float(np.sqrt(np.mean([np.var(auc_T) for auc_T in aucs])))
        for aucs in zip(*rounds_of_aucs, strict=True)
    )
    return replicas, references, new


def _aucs(
    rng: np.random.Generator, models: int, design: subsets.Design, variance: stats.Variance
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the AUC of each replica, of each reference as a target, and of each new target."""
    level_N, gain_N = rng.normal(3, 0.5, SAMPLES), 0.3 * rng.gamma(2, 0.5, SAMPLES)
    order_std = _LOSS_STD * np.sqrt(_ORDER_SHARE)
    subset_std = _LOSS_STD * np.sqrt(1 - _ORDER_SHARE)

    def losses(member_TxN: np.ndarray) -> np.ndarray:
        return level_N - gain_N * member_TxN + rng.normal(0, subset_std, member_TxN.shape)

    def reordered(loss_TxN: np.ndarray) -> np.ndarray:
        return loss_TxN + rng.normal(0, order_std, loss_TxN.shape)

    member_MxN = _members(rng, models, design)
    loss_MxN = reordered(losses(member_MxN))
    new_TxN = _members(rng, NEW_TARGETS, "exact")
    one_1xN = _members(rng, 1, "exact")
    replica_TxN = reordered(np.repeat(losses(one_1xN), REPLICAS, axis=0))
    # As many references as there are for each reference: without the last pair, or the last model.
    fewer = slice(models - (2 if design == "balanced" else 1))
    new_score_TxN = stats.lira(
        reordered(losses(new_TxN)), loss_MxN[fewer], member_MxN[fewer], variance=variance
    )
    replica_score_TxN = stats.lira(replica_TxN, loss_MxN, member_MxN, variance=variance)
    return (
        stats.auc(replica_score_TxN, one_1xN[0]).auc_T,
        _auc(loss_MxN, member_MxN, variance),
        stats.auc(new_score_TxN, new_TxN).auc_T,
    )


def _members(rng: np.random.Generator, models: int, design: subsets.Design) -> np.ndarray:
    """Returns member_MxN of consecutive subset seeds, beginning with a random even one."""
    first = 2 * int(rng.integers(2**30))
    return np.array([subsets.member(first + m, SAMPLES, design) for m in range(models)])


def _auc(loss_MxN: np.ndarray, member_MxN: np.ndarray, variance: stats.Variance) -> np.ndarray:
    score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN, variance=variance)
    return stats.auc(score_MxN, member_MxN).auc_T


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    noise(rounds)
    print()
    spread(rounds)


if __name__ == "__main__":
    main()
