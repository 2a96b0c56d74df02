"""Errors of adjusted audits when members and non-members have different sources, in simulations with known truth.

    python -m benchmarks covariate_adjustment [--repetitions=100]

Three covariates decide who is a member and what a sample scores; membership adds 0.5 to the score. The audit's models,
which are those of `lm-mia audit --covariates`, see the covariates only. The truth is what the members would have scored
without membership, which the simulation knows. Each entry of the first table is the root mean squared error over
repetitions, and the mean error in brackets. The second table is how often the 95% intervals contain the truth of the
whole distribution, taken from 2^20 samples. Prints Markdown tables; takes eight CPU minutes.
"""

import argparse
from collections.abc import Callable

import numpy as np
import threadpoolctl

from lm_mia import stats
from lm_mia.audits import causal as audit_causal
from lm_mia.data.covariates import Covariates

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
_COVERAGE = (SETTINGS[0], SETTINGS[1], SETTINGS[3], SETTINGS[5])


def draw(setting: Setting, repetition: int) -> tuple[audit_causal.Adjustment, stats.CausalEstimate]:
    """Returns simulated scores with fitted models, and the true metrics of their members."""
    score_N, member_N, value_NxC, truth = simulate(setting, setting[1], repetition)
    covariates = Covariates(("a", "b", "c"), value_NxC, np.ones(3, bool))
    return audit_causal.fit(score_N, member_N, covariates), truth


def simulate(
    setting: Setting, samples: int, repetition: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, stats.CausalEstimate]:
    """Returns score_N, member_N, value_NxC and the true metrics of the members."""
    _, _, log_odds, outcome = setting
    rng = np.random.default_rng([repetition, samples])
    value_NxC, noise_N = rng.normal(size=(samples, 3)), rng.normal(size=samples)
    member_N = rng.random(samples) < 1 / (1 + np.exp(-log_odds(value_NxC)))
    without_N = outcome(value_NxC, noise_N)
    score_N = without_N + EFFECT * member_N
    both_N = np.repeat([True, False], member_N.sum())
    truth = stats.unadjusted_estimate(
        np.concatenate([score_N[member_N], without_N[member_N]]), both_N, FPRS
    )
    return score_N, member_N, value_NxC, truth


def errors(setting: Setting, repetition: int) -> np.ndarray:
    """Returns error_ExS, of each estimator and metric, and whether the audit sees overlap as another column."""
    adjustment, truth = draw(setting, repetition)
    results = [adjustment.intervals(name, FPRS, 0.95, 1) for name in audit_causal.ESTIMATORS]
    frames, _ = audit_causal.tables(adjustment, results, FPRS)
    has_overlap = frames["causal"]["has_overlap"].iloc[0]

    def row(estimate: stats.CausalEstimate) -> np.ndarray:
        return np.array([estimate.ate, estimate.auc, *estimate.tpr_F])

    return np.array([[*(row(r.estimate) - row(truth)), has_overlap] for r in results])


def coverage(setting: Setting, repetitions: int) -> np.ndarray:
    """Returns covered_ExS: how often the intervals of IPW and AIPW of the mean effect and of the AUC hold the truth."""
    *_, truth = simulate(setting, 2**20, 0)
    covered_RxExS = []
    for repetition in range(repetitions):
        adjustment, _ = draw(setting, repetition)
        results = [adjustment.intervals(name, FPRS, 0.95, 200) for name in ("ipw", "aipw")]
        covered_RxExS.append(
            [
                [r.ate_low <= truth.ate <= r.ate_high, r.auc_low <= truth.auc <= r.auc_high]
                for r in results
                if r.estimate.has_overlap
            ]
            or np.full((2, 2), np.nan)
        )
    return np.nanmean(covered_RxExS, axis=0)


def main() -> None:
    """Prints the tables."""
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
        print("\n| shift | samples | IPW: ATE | IPW: AUC | AIPW: ATE | AIPW: AUC |")
        print("|---|---|---|---|---|---|")
        for setting in _COVERAGE:
            cells = [f"{share:.0%}" for share in coverage(setting, 60).ravel()]
            print(f"| {setting[0]} | {setting[1]:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
