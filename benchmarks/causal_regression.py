"""The synthetic experiment of CausalMIA with more seeds, compared with its Table 2, and reasons for the differences.

    python -m benchmarks causal_regression [SECTION ...] [--seeds 20] [--dp-sgd-seeds SEEDS]

Prints Markdown tables. Sections: table, errata, spread. With 20 seeds of each algorithm the table takes 75 seconds on
two free cores and the other sections two minutes. --dp-sgd-seeds is the number of seeds of DP-SGD, by default --seeds.

S: seeds.
"""

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import threadpoolctl

from analysis import experiment
from analysis.experiments.causal import regression
from analysis.io import SweepResults
from lm_mia import stats


def table(seeds: int) -> None:
    """Prints all rows with those of the paper, the verdicts of the claims, and the time."""
    start = time.perf_counter()
    results = regression.compute(lambda *_: None)
    seconds = time.perf_counter() - start
    del seeds  # in regression.SIZES
    regression.load = lambda recipes: results  # both figures draw the same results
    for name in ("causal_tab02_regression", "causal_fig03b_dp_sgd"):
        drawn = regression.EXPERIMENTS[name].draw(SweepResults([]))
        if drawn.table is not None:
            print(experiment.markdown(drawn.table))
        for claim in drawn.claims:
            print(f"- {claim.verdict}: {claim.statement} {claim.finding}")
        print()
    print(f"{seconds:.0f} seconds for the seeds\n")


def errata(seeds: int) -> None:
    """Prints the results of the experiment under different readings of the paper."""
    print(
        "| reading | one-run AUC | unadjusted AUC | one-run ATE on r² / 2 | unadjusted ATE on r² / 2 | unadjusted ATE "
        "on r² |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    few = max(seeds // 4, 2)
    readings: list[tuple[str, str, int, dict[str, object]]] = [
        ("ridge, penalty 1e4", "ridge", few, {"penalty": 1e4}),
        ("ridge, penalty 1e3 as printed", "ridge", few, {"penalty": 1e3}),
    ]
    for multiplier, text in ((3.0, "3"), (math.sqrt(3), "sqrt 3"), (6.0, "6")):
        settings = dataclasses.replace(regression.DP_SGD, noise_multiplier=multiplier)
        readings.append((f"DP-SGD, noise multiplier {text}", "dp_sgd", few, {"dp_sgd": settings}))
    without = dataclasses.replace(regression.DP_SGD, noise_multiplier=0.0)
    readings.append(("DP-SGD without noise", "dp_sgd", few, {"dp_sgd": without}))
    weak = dataclasses.replace(regression.DP_SGD, noise_multiplier=0.0, penalty=0.0)
    readings.append(("DP-SGD without noise and penalty", "dp_sgd", few, {"dp_sgd": weak}))
    for text, algorithm, count, options in readings:
        rows = pd.concat(_run(algorithm, count, options))
        means = rows.groupby("evaluation")[["auc", "ate"]].mean()
        half = 1 if algorithm == "ridge" else 0.5
        one_run, raw = (-half * float(means.loc[e, "ate"]) for e in ("one_run", "raw"))  # pyright: ignore[reportArgumentType]
        aucs = f"{means.loc['one_run', 'auc']:.3f} | {means.loc['raw', 'auc']:.3f}"
        print(f"| {text} | {aucs} | {one_run:,.0f} | {raw:,.0f} | {2 * raw:,.0f} |")
    print()
    print("| sampling rate | noise multiplier | steps | epsilon at delta = 0.01 |")
    print("|---:|---:|---:|---:|")
    accounted = (
        (0.064, 3.0, 1172),
        (0.064, math.sqrt(3), 1172),
        (0.064, 6.0, 1172),
        (1 / 16, 6.0, 1200),
    )
    for rate, multiplier, steps in accounted:
        mu = stats.dp_sgd_mu(rate, multiplier, steps)
        epsilon = float(stats.gaussian_dp_epsilon(mu, regression.DELTA))
        print(f"| {rate:g} | {multiplier:.4g} | {steps:,} | {epsilon:.3f} |")
    print()


def spread(seeds: int) -> None:
    """Prints means and standard deviations of metrics if scores are noise, by the number of samples of each class."""
    print(
        "| members, as many non-members | SD of the AUC | mean largest TPR - FPR | its SD | SD of the TPR at 20% |"
    )
    print("|---:|---:|---:|---:|---:|")
    generator = np.random.default_rng(0)
    for members in (200, 500, 2_000):
        member_N = np.arange(2 * members) < members
        estimates = [
            stats.unadjusted_estimate(generator.standard_normal(2 * members), member_N, 0.2)
            for _ in range(max(20 * seeds, 100))
        ]
        auc_S, youden_S = ([getattr(e, name) for e in estimates] for name in ("auc", "youden"))
        tpr_S = [e.tpr_F.item() for e in estimates]
        print(
            f"| {members:,} | {np.std(auc_S):.3f} | {np.mean(youden_S):.3f} | {np.std(youden_S):.3f} | "
            f"{np.std(tpr_S):.3f} |"
        )
    print()


def _run(algorithm: str, seeds: int, options: dict[str, object]) -> Iterator[pd.DataFrame]:
    with threadpoolctl.threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        run = functools.partial(regression.run, algorithm, **options)  # pyright: ignore[reportArgumentType]
        runs = [pool.submit(run, seed) for seed in range(seeds)]
        for future in runs:
            yield future.result()[0]


SECTIONS = {"table": table, "errata": errata, "spread": spread}


def main() -> None:
    """Prints the sections that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--dp-sgd-seeds", type=int)
    options = parser.parse_args()
    dp_sgd_seeds = options.seeds if options.dp_sgd_seeds is None else options.dp_sgd_seeds
    regression.SIZES |= {"ridge_seeds": options.seeds, "dp_sgd_seeds": dp_sgd_seeds}
    for name in options.sections or SECTIONS:
        SECTIONS[name](options.seeds)


if __name__ == "__main__":
    main()
