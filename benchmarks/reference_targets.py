"""Simulates LiRA on every reference with the others: is noise at chance, and is the spread over subsets right?

    python benchmarks/reference_targets.py [--rounds 200]

Prints two Markdown tables, in about 2 minutes on a core.

Noise: losses do not depend on membership, so the mean AUC must be 0.5. The references of a target are all others, or
those of all other pairs. If the references are pairs of complements (balanced), the former reveal its members.

Spread: members have lower losses, by an amount that differs between samples, and a third of the variance of a loss is
due to the batch order, the rest to the training subset. The table compares standard deviations of the AUC (ddof 0, the
root of the mean variance over rounds), as the headline of a recipe shows them: over 16 replicas of one subset, and over
the references, each attacked with all other references or pairs. The truth is that over 64 new targets with subsets of
their own, attacked with as many references. All losses are drawn again in each round.

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
    print(
        "| design | references | variance | target left out | pair left out |\n|---|---|---|---|---|"
    )
    for design in DESIGNS:
        for models in (6, 8, 16, 32, 64):
            rng = np.random.default_rng([models, len(design)])
            auc: dict[tuple[str, bool], list[float]] = {}
            for _ in range(rounds):
                member_MxN = _members(rng, models, design)
                loss_MxN = rng.normal(3, _LOSS_STD, member_MxN.shape)
                for variance in VARIANCES:
                    for pairs in (False, True) if design == "balanced" else (False,):
                        value = _auc(loss_MxN, member_MxN, variance, pairs=pairs).mean()
                        auc.setdefault((variance, pairs), []).append(float(value))
            for variance in VARIANCES:
                cells = [_mean_and_error(auc.get((variance, pairs), [])) for pairs in (False, True)]
                print(f"| {design} | {models} | {variance} | {cells[0]} | {cells[1]} |", flush=True)


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
    pairs = design == "balanced"
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
    fewer = slice(models - (2 if pairs else 1))
    new_score_TxN = stats.lira(
        reordered(losses(new_TxN)), loss_MxN[fewer], member_MxN[fewer], variance=variance
    )
    replica_score_TxN = stats.lira(replica_TxN, loss_MxN, member_MxN, variance=variance)
    return (
        stats.auc(replica_score_TxN, one_1xN[0]).auc_T,
        _auc(loss_MxN, member_MxN, variance, pairs=pairs),
        stats.auc(new_score_TxN, new_TxN).auc_T,
    )


def _members(rng: np.random.Generator, models: int, design: subsets.Design) -> np.ndarray:
    """Returns member_MxN of consecutive subset seeds, beginning with a random even one."""
    first = 2 * int(rng.integers(2**30))
    return np.array([subsets.member(first + m, SAMPLES, design) for m in range(models)])


def _auc(
    loss_MxN: np.ndarray, member_MxN: np.ndarray, variance: stats.Variance, *, pairs: bool
) -> np.ndarray:
    score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN, variance=variance, pairs=pairs)
    return stats.auc(score_MxN, member_MxN).auc_T


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.4f}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    noise(rounds)
    print()
    spread(rounds)


if __name__ == "__main__":
    main()
