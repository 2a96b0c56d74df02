"""Compares what 2 and 4 times as many references were predicted to give with what they gave.

    python -m benchmarks more_references WORKDIR --recipes=tuning|testing|NAME,... [--csv FILE]
    python -m benchmarks more_references --simulate [--draws N]
    python -m benchmarks more_references --read FILE

WORKDIR holds the recipes of configs/strongmia.py:cpu, trained and scored. The references of each recipe are divided
into disjoint sets of 8, 16 and 32. From each set, `stats.predict_more_references` predicts the AUC and the TPRs of all
attacks with 2 and 4 times as many references, which are the set and its neighbors. --simulate does the same with losses
that are drawn from normal distributions, 100 times by default. Prints Markdown tables. Takes about 2 minutes for the 13
recipes for testing and 5 minutes for the simulation, on one core.

N: samples, M: models, R: references, S: sets of references, K: metrics, K1: metrics and another number.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from attack_strength import (
    ATTACKS,
    FPRS,
    METRICS,
    TARGETS,
    TESTING,
    TUNING,
    Losses,
    print_table,
    read_losses,
)

from analysis.experiments.recipe.more_references import MAX_LEFT_OUT
from lm_mia import stats
from lm_mia.data import subsets

COUNTS = (8, 16, 32)
FACTORS = (2, 4)
SIMULATED = {"AUC about 0.6": 0.1, "AUC about 0.7": 0.2, "AUC about 0.9": 0.5}
"""Name of a simulated recipe -> mean decrease of a member's loss, in nats."""
SIMULATED_ATTACKS = (
    "LiRA",
    "LiRA pooled",
    "LiRA offline",
    "RMIA simple",
    "calibrated loss",
    "shrunk",
)
SIMULATED_SAMPLES = 2000


def measure(losses: Losses, attack: str, index_R: np.ndarray) -> np.ndarray:
    """Returns each of `METRICS` and the fraction of samples without a score, means over targets: value_K1."""
    score_TxN = losses.attack(ATTACKS[attack], index_R)
    points = stats.tpr_at_fpr(score_TxN, losses.member_MxN2[-TARGETS:], FPRS)
    left_out = points.left_out_T.mean() / score_TxN.shape[1]
    return np.array([points.auc_T.mean(), *points.tpr_TxF.mean(axis=0), left_out])


def predictions(losses: Losses, attack: str, sets: int) -> Iterator[dict[str, object]]:
    """Yields a row for each prediction that can be compared with what more references gave.

    Args:
      losses: the models.
      attack: name of the attack.
      sets: the largest number of disjoint sets of each size from which there are predictions.
    """
    measured: dict[tuple[int, ...], np.ndarray] = {}

    def value_K1(index_R: np.ndarray) -> np.ndarray:
        key = tuple(index_R.tolist())
        if key not in measured:
            measured[key] = measure(losses, attack, index_R)
        return measured[key]

    for count in COUNTS:
        usable = min(losses.num_references // (2 * count) * 2, sets)
        for number in range(usable):
            start = number * count
            quarter_4xR = np.arange(start, start + count).reshape(4, -1)
            value_SxK1 = np.array(
                [value_K1(quarter_4xR[set_Q].ravel()) for set_Q in stats.REFERENCE_SETS_SxQ]
            )
            left_out = value_SxK1[4:10, -1].mean()
            for k, metric in enumerate(METRICS):
                more = stats.predict_more_references(
                    np.where(left_out > MAX_LEFT_OUT, np.nan, value_SxK1[:, k]),
                    (count // 4, count // 2, count),
                    [factor * count for factor in FACTORS],
                    "auc" if metric == "AUC" else "tpr",
                    targets=TARGETS,
                )
                for f, factor in enumerate(FACTORS):
                    first = start // (factor * count) * factor * count
                    if first + factor * count > losses.num_references:
                        continue
                    later = np.arange(first, first + factor * count)
                    yield {
                        "attack": attack,
                        "metric": metric,
                        "references": count,
                        "factor": factor,
                        "today": value_SxK1[-1, k],
                        "value": more.value[f],
                        "low": more.low[f],
                        "high": more.high[f],
                        "truth": value_K1(later)[k],
                    }


def simulated_losses(seed: int, effect: float) -> Losses:
    """Returns losses with gaps and deviations that differ between samples."""
    rng, samples = np.random.default_rng(seed), SIMULATED_SAMPLES
    models = subsets.requested_seeds(FACTORS[-1] * COUNTS[-1] + TARGETS, 0)
    member_MxN = subsets.members(models, samples, "exact")
    # The subsets of models depend only on their numbers; other samples are in them in every draw.
    member_MxN = member_MxN[:, rng.permutation(samples)]
    level_N = rng.normal(4, 0.7, samples)
    gap_N = effect * rng.lognormal(-0.5, 1, samples)
    sd_N = 0.2 * rng.lognormal(0, 0.3, samples)
    noise_MxN = sd_N * rng.normal(size=member_MxN.shape) + rng.normal(0, 0.1, (len(models), 1))
    return Losses(level_N - gap_N * member_MxN + noise_MxN, member_MxN, level_N[:, None])


def simulate(draws: int) -> pd.DataFrame:
    """Returns the predictions of all simulated recipes."""
    rows = []
    for (name, effect), draw in itertools.product(SIMULATED.items(), range(draws)):
        losses = simulated_losses(draw, effect)
        for attack in SIMULATED_ATTACKS:
            rows += [{"recipe": name} | row for row in predictions(losses, attack, sets=1)]
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> list[str]:
    """Returns the cells about some predictions, rates times 100."""
    error = 100 * (rows["value"] - rows["truth"])
    unchanged = 100 * (rows["today"] - rows["truth"])
    covered = (rows["low"] <= rows["truth"]) & (rows["truth"] <= rows["high"])
    return [
        str(len(rows)),
        f"{-unchanged.mean():+.2f}",
        f"{100 * (rows['value'] - rows['today']).mean():+.2f}",
        f"{(unchanged**2).mean() ** 0.5:.2f}",
        f"{(error**2).mean() ** 0.5:.2f}",
        f"{50 * (rows['high'] - rows['low']).mean():.2f}",
        f"{100 * covered.mean():.1f} %",
        f"{100 * (rows['truth'] < rows['low']).mean():.1f} %",
        f"{100 * (rows['truth'] > rows['high']).mean():.1f} %",
    ]


SUMMARY = (
    "predictions",
    "mean change",
    "predicted",
    "RMS error of no change",
    "RMS error",
    "half-width",
    "covered",
    "truth below",
    "truth above",
)


def print_tables(table: pd.DataFrame) -> None:
    """Prints the errors and the coverage by metric, number of references, attack and recipe."""
    table = table.rename(columns={"factor": "times"})
    predicted = table[table["value"].notna()]
    without = table[table["value"].isna()].groupby(["attack", "references"], sort=False)
    none = [f"{attack} with {count}" for (attack, count), _ in without]
    print(f"\nWithout a prediction: {', '.join(none) or 'none'}.")
    for title, keys in (
        ("All attacks", ["metric", "references", "times"]),
        ("By attack", ["metric", "times", "attack"]),
        ("By recipe", ["metric", "times", "recipe"]),
    ):
        print(f"\n{title}; AUC and TPR times 100:\n")
        lines = [
            [*map(str, names), *summary(rows)]
            for names, rows in predicted.groupby(keys, sort=title != "By attack")
        ]
        print_table([*keys, *SUMMARY], lines)


def main() -> None:
    """Measures or reads predictions and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", nargs="?", type=Path)
    parser.add_argument("--recipes", default="testing")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    if args.read:
        table = pd.read_csv(args.read)
    elif args.simulate:
        table = simulate(args.draws)
    else:
        names = {"tuning": TUNING, "testing": TESTING}.get(args.recipes, args.recipes.split(","))
        rows = []
        for name in names:
            losses = read_losses(args.workdir, name)
            for attack in ATTACKS:
                rows += [{"recipe": name} | row for row in predictions(losses, attack, sets=4)]
        table = pd.DataFrame(rows)
    if args.csv:
        table.to_csv(args.csv, index=False)
    print_tables(table)


if __name__ == "__main__":
    main()
