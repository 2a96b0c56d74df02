"""Errors of adjusted audits when members and non-members have different sources, in simulations with known truth.

    python benchmarks/covariate_adjustment.py [--repetitions=100]

Three covariates decide who is a member and what a sample scores; membership adds 0.5 to the score. The audit's models,
which are those of `lm-mia audit --covariates`, see the covariates only. The truth is what the members would have scored
without membership, which the simulation knows. Each table entry is the root mean squared error over repetitions, and
the mean error in brackets. Prints a Markdown table; takes four CPU minutes.
"""

import argparse
from collections.abc import Callable

import numpy as np
import threadpoolctl

from lm_mia import stats
from lm_mia.data.covariates import Covariates
from lm_mia.run import audit_causal

FPRS = (0.01, 0.1)
METRICS = ("ATE", "AUC", "TPR at 1% FPR", "TPR at 10% FPR")
EFFECT = 0.5
Setting = tuple[
    str, int, Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray, np.ndarray], np.ndarray]
]
SETTINGS: tuple[Setting, ...] = (
    ("no shift", 2000, lambda x: 0 * x[:, 0], lambda x, e: x[:, 0] + e),
    ("linear", 2000, lambda x: x[:, 0] + 0.5 * x[:, 1], lambda x, e: x[:, 0] + e),
    ("linear", 400, lambda x: x[:, 0] + 0.5 * x[:, 1], lambda x, e: x[:, 0] + e),
    ("curved", 2000, lambda x: x[:, 0] ** 2 - 1, lambda x, e: np.abs(x[:, 0]) + e),
    ("interaction", 2000, lambda x: x[:, 0] * x[:, 1], lambda x, e: x[:, 0] * x[:, 1] + e),
    ("spread", 2000, lambda x: x[:, 0], lambda x, e: x[:, 0] + np.exp(0.5 * x[:, 0]) * e),
    ("strong", 2000, lambda x: 2.5 * x[:, 0], lambda x, e: x[:, 0] + e),
)  # fmt: skip
"""Name, samples, log odds of membership, and score without membership, given covariates and noise."""


def errors(setting: Setting, repetition: int) -> np.ndarray:
    """Returns error_ExS, of each estimator and metric, and whether the audit sees overlap as another column."""
    _, samples, log_odds, outcome = setting
    rng = np.random.default_rng([repetition, samples])
    value_NxC, noise_N = rng.normal(size=(samples, 3)), rng.normal(size=samples)
    member_N = rng.random(samples) < 1 / (1 + np.exp(-log_odds(value_NxC)))
    without_N = outcome(value_NxC, noise_N)
    score_N = without_N + EFFECT * member_N
    both_N = np.repeat([True, False], member_N.sum())
    truth = stats.unadjusted_estimate(
        np.concatenate([score_N[member_N], without_N[member_N]]), both_N, FPRS
    )
    covariates = Covariates(("a", "b", "c"), value_NxC, np.ones(3, bool))
    adjustment = audit_causal.fit(score_N, member_N, covariates)
    results = [adjustment.intervals(name, FPRS, 0.95, 1) for name in audit_causal.ESTIMATORS]
    frames, _ = audit_causal.tables(adjustment, results, FPRS)
    has_overlap = frames["causal"]["has_overlap"].iloc[0]

    def row(estimate: stats.CausalEstimate) -> np.ndarray:
        return np.array([estimate.ate, estimate.auc, *estimate.tpr_F])

    return np.array([[*(row(r.estimate) - row(truth)), has_overlap] for r in results])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Errors of adjusted audits")
    parser.add_argument("--repetitions", type=int, default=100)
    repetitions = parser.parse_args().repetitions
    print(f"| shift | samples | overlap seen | estimator | {' | '.join(METRICS)} |")
    print("|---" * (4 + len(METRICS)) + "|")
    with threadpoolctl.threadpool_limits(1):
        for setting in SETTINGS:
            error_RxExS = np.array([errors(setting, r) for r in range(repetitions)])
            seen = error_RxExS[:, 0, -1].mean()
            for e, name in enumerate(audit_causal.ESTIMATORS):
                error_RxS = error_RxExS[:, e, :-1]
                cells = [
                    f"{np.sqrt(np.mean(error_R**2)):.3f} ({error_R.mean():+.3f})"
                    for error_R in error_RxS.T
                ]
                print(
                    f"| {setting[0]} | {setting[1]:,} | {seen:.0%} | {name} | {' | '.join(cells)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
