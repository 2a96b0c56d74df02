"""Simulates the bounds and estimates of epsilon in lm_mia.stats, and prints Markdown tables.

    python -m benchmarks audit [SECTION ...] [--experiments 1000]

The sections are independent, one_run, counts, leave_one_out, tutorial, estimates and speed; all run by default, in
about 10 minutes on one core.

A bound is valid if it is above the true epsilon in at most 5% of the experiments; the standard error of a share of 5%
in 1,000 experiments is 0.7 points. Its power is how close its median comes to the true value. The Gaussian mechanism
releases b + s z for a membership b (0 or 1) and standard Gaussian noise z; it is exactly (1/s)-GDP.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from lm_mia import stats

_DELTA = 1e-5


def independent(experiments: int) -> None:
    """Prints violations and medians of `independent_trials_bound`."""
    print(
        "| mu | trials | true epsilon | above it | no bound (0) | median bound | perfect attack |"
    )
    print(f"|{'---|' * 7}")
    rng = np.random.default_rng(0)
    for mu in (0.0, 0.5, 1.0, 2.0):
        truth = float(stats.gaussian_dp_epsilon(mu, _DELTA))
        for trials in (64, 500, 5000):
            member_N = np.arange(trials) % 2 == 0
            bounds = [
                stats.independent_trials_bound(
                    rng.standard_normal(trials) + mu * member_N, member_N, delta=_DELTA
                )
                for _ in range(experiments)
            ]
            value_E = np.array([bound.epsilon for bound in bounds])
            print(
                f"| {mu} | {trials:,} | {truth:.3f} | {percent(value_E > truth)} | {percent(value_E == 0)} "
                f"| {np.median(value_E):.3f} | {bounds[0].ceiling:.3f} |"
            )


def one_run(experiments: int) -> None:
    """Prints violations and medians of `one_run_bound`."""
    print(
        "| membership | scores | samples | true mu | mu above | median mu | true epsilon | epsilon if Gaussian above "
        "| median | epsilon above | median | no bound (0) |"
    )
    print(f"|{'---|' * 12}")
    for membership, digits, samples, noise in (
        *(("coins", None, n, s) for n in (500, 2000, 5000) for s in (np.inf, 2.0, 1.0, 0.5)),
        *(("half", None, n, s) for n in (500, 2000, 5000) for s in (np.inf, 2.0, 1.0, 0.5)),
        *(("coins", 0, 2000, s) for s in (np.inf, 1.0)),
        *(("coins", 1, 2000, s) for s in (np.inf, 1.0)),
        *(("half", 1, 2000, s) for s in (np.inf, 1.0)),
    ):
        print(one_run_row(membership, digits, samples, noise, experiments), flush=True)


def one_run_row(
    membership: Any, digits: int | None, samples: int, noise: float, experiments: int
) -> str:
    """Returns a row of `one_run`."""
    mu = 1 / noise * (1 if membership == "coins" else np.sqrt(2))
    truth = float(stats.gaussian_dp_epsilon(mu, _DELTA))
    bounds = one_run_bounds(membership, digits, samples, noise, experiments)
    mu_E, gaussian_E, epsilon_E = np.array(
        [(bound.mu, bound.epsilon_if_gaussian, bound.epsilon) for bound in bounds]
    ).T
    scores = "exact" if digits is None else f"rounded to {10.0**-digits:g}"
    return (
        f"| {membership} | {scores} | {samples:,} | {mu:.3f} | {percent(mu_E > mu)} | {np.median(mu_E):.3f} "
        f"| {truth:.3f} | {percent(gaussian_E > truth)} | {np.median(gaussian_E):.3f} "
        f"| {percent(epsilon_E > truth)} | {np.median(epsilon_E):.3f} | {percent(mu_E == 0)} |"
    )


def one_run_bounds(
    membership: Any, digits: int | None, samples: int, noise: float, experiments: int
) -> list[stats.OneRunBound]:
    """Audits runs of the Gaussian mechanism; infinite noise reveals nothing."""
    rng = np.random.default_rng(1)
    bounds: list[stats.OneRunBound] = []
    for seed in range(experiments):
        coin_N, half_N = rng.random(samples) < 0.5, rng.permutation(samples) < samples // 2
        member_N = coin_N if membership == "coins" else half_N
        score_N = rng.standard_normal(samples) + (member_N / noise)
        if digits is not None:
            score_N = score_N.round(digits)
        bounds.append(
            stats.one_run_bound(score_N, member_N, membership=membership, delta=_DELTA, seed=seed)
        )
    return bounds


def counts(experiments: int) -> None:
    """Prints violations and medians of `one_run_epsilon` for randomized response, without a choice of guesses."""
    print("| true epsilon | canaries | delta of the bound | above | median | perfect attack |")
    print(f"|{'---|' * 6}")
    rng = np.random.default_rng(2)
    for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
        for canaries in (100, 1000, 10_000):
            correct_E = rng.binomial(canaries, expit(epsilon), size=experiments)
            for delta in (0.0, 1e-5):
                value_E = np.array(
                    [
                        stats.one_run_epsilon(canaries, canaries, correct, delta=delta)
                        for correct in correct_E.tolist()
                    ]
                )
                perfect = stats.one_run_epsilon(canaries, canaries, canaries, delta=delta)
                print(
                    f"| {epsilon} | {canaries:,} | {delta:g} | {percent(value_E > epsilon)} | {np.median(value_E):.3f} "
                    f"| {perfect:.3f} |"
                )


def leave_one_out(experiments: int) -> None:
    """Prints how often models without any leakage are said to leak, if their scores are pooled."""
    print(
        "| models | references of each | SD of the correct guesses / binomial SD | epsilon above 0 |"
    )
    print("|---|---|---|---|")
    for models in (8, 16):
        for own in (False, True):
            deviation_E, rejected = pooled_deviations(models, own, experiments)
            name = (
                "the other models (leave-one-out)" if own else "other models, which are not audited"
            )
            print(f"| {models} | {name} | {np.std(deviation_E):.2f} | {percent(rejected)} |")


def pooled_deviations(
    models: int, own: bool, experiments: int, samples: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the correct guesses in standard deviations, and whether epsilon is above 0, for pure noise."""
    rng = np.random.default_rng(3)
    guesses = models * samples // 4
    deviations: list[float] = []
    rejected: list[bool] = []
    for _ in range(experiments):
        log_p_MxN = rng.standard_normal((2 * models, samples))
        member_MxN = rng.random((2 * models, samples)) < 0.5
        ours, others = slice(models), slice(models, None)
        if own:
            score_MxN = stats.lira_leave_one_out(log_p_MxN[ours], member_MxN[ours])
        else:
            score_MxN = stats.lira(log_p_MxN[ours], log_p_MxN[others], member_MxN[others])
        count = stats.count_guesses(score_MxN.ravel(), member_MxN[ours].ravel(), guesses)
        correct = int(count.correct_G[0])
        deviations.append((correct - guesses / 2) / np.sqrt(guesses / 4))
        rejected.append(stats.one_run_epsilon(models * samples, guesses, correct) > 0)
    return np.array(deviations), np.array(rejected)


def tutorial(experiments: int) -> None:
    """Prints PrivacyGuard's example beside the corrected numbers."""
    del experiments
    draw = np.random.RandomState(42)
    score_N = np.concatenate([draw.normal(0.8, 0.3, 1000), draw.normal(0.3, 0.3, 1000)])
    member_N = np.arange(2000) < 1000
    guesses_G = 2 * np.logspace(1, 3, num=50, dtype=int)
    of_guesses = stats.count_guesses(score_N, member_N, guesses_G)
    tests = [*zip(guesses_G.tolist(), of_guesses.correct_G.tolist(), strict=True)]
    print("| method | guesses | correct | epsilon |")
    print("|---|---|---|---|")

    def best(name: str, epsilon: Callable[[int, int], float]) -> None:
        value, (guesses, correct) = max((epsilon(*test), test) for test in tests)
        print(f"| {name} | {guesses} | {correct} | {value:.3f} |")

    def continuous(guesses: int, correct: int, level: float) -> float:
        mu = stats.one_run_mu(2000, guesses, correct, level=level)
        return float(stats.gaussian_dp_epsilon(mu, _DELTA))

    best(
        "PrivacyGuard: best of 50 numbers of guesses, grid of noise levels",
        lambda r, v: stats.noise_grid_epsilon(2000, r, v, delta=_DELTA),
    )
    best("the same, without the grid", lambda r, v: continuous(r, v, 0.05))
    different = len(set(tests))
    best(
        f"corrected for the {different} different numbers of guesses",
        lambda r, v: continuous(r, v, 0.05 / different),
    )
    bound = stats.one_run_bound(score_N, member_N, delta=_DELTA)
    print(
        f"| `one_run_bound`, if Gaussian | {bound.guesses_gaussian} | {bound.correct_gaussian} "
        f"| {bound.epsilon_if_gaussian:.3f} |"
    )
    print(
        f"| `one_run_bound`, no assumption | {bound.guesses} | {bound.correct} | {bound.epsilon:.3f} |"
    )
    pairs = stats.one_run_bound(score_N, member_N, membership="half", delta=_DELTA)
    print(
        f"| pairs, since exactly half are members: no assumption | {pairs.guesses} | {pairs.correct} "
        f"| {pairs.epsilon:.3f} |"
    )
    truth = float(stats.gaussian_dp_epsilon(0.5 / 0.3, _DELTA))
    print(f"| true value of the two Gaussians, mu = 5/3 | | | {truth:.3f} |")


def estimates(experiments: int) -> None:
    """Prints how often the percentiles of the bootstrap contain the true epsilon of the rates."""
    print(
        "| mu | samples | false positives at 1% TPR | true value at 1% TPR | median | inside "
        "| upper end above the true epsilon | largest: median | inside | upper end above the true epsilon |"
    )
    print(f"|{'---|' * 10}")
    rng = np.random.default_rng(4)
    for mu in (0.0, 1.0, 2.0):
        for samples in (2000, 20_000):
            member_N = np.arange(samples) % 2 == 0
            fpr = norm.sf(norm.isf(0.01) + mu)
            at_tpr = np.log(0.01 - _DELTA) - np.log(fpr)
            rate_K = np.arange(1, 100) / 100
            fpr_K, fnr_K = norm.sf(norm.isf(rate_K) + mu), norm.cdf(norm.ppf(1 - rate_K) - mu)
            largest = max(
                np.max(np.log(rate_K) - np.log(fpr_K)), np.max(np.log(rate_K) - np.log(fnr_K))
            )
            truth = float(stats.gaussian_dp_epsilon(mu, _DELTA))
            rows = []
            for seed in range(max(experiments // 5, 1)):
                score_N = rng.standard_normal(samples) + mu * member_N
                r = stats.epsilon_intervals(
                    score_N, member_N, delta=_DELTA, replicates=200, seed=seed
                )
                rows.append(
                    (
                        r.at_tpr_T[0],
                        r.at_tpr_low_T[0] <= at_tpr <= r.at_tpr_high_T[0],
                        r.at_tpr_high_T[0] > truth,
                        r.largest_T[0],
                        r.largest_low_T[0] <= largest <= r.largest_high_T[0],
                        r.largest_high_T[0] > truth,
                    )
                )
            at, inside, above, value, value_inside, value_above = np.array(rows, dtype=float).T
            print(
                f"| {mu} | {samples:,} | {fpr * samples / 2:.2g} | {at_tpr:.3f} | {np.median(at):.3f} "
                f"| {percent(inside)} | {percent(above)} | {np.median(value):.3f} "
                f"| {percent(value_inside)} | {percent(value_above)} |",
                flush=True,
            )


def speed(experiments: int) -> None:
    """Prints seconds on one core."""
    del experiments
    rng = np.random.default_rng(5)
    samples = 2**20
    member_N = rng.random(samples) < 0.5
    score_N = rng.standard_normal(samples) + member_N
    part = slice(0, 2**18)
    intervals: dict[str, Any] = {"delta": _DELTA, "replicates": 100}
    calls: dict[str, Callable[[], Any]] = {
        "`one_run_bound`, coins, 2^20 samples": lambda: stats.one_run_bound(
            score_N, member_N, delta=_DELTA
        ),
        "`one_run_bound`, half, 2^20 samples": lambda: stats.one_run_bound(
            score_N, member_N, membership="half", delta=_DELTA
        ),
        "`one_run_mu`, 2^20 canaries, all guessed, 51% correct": lambda: stats.one_run_mu(
            samples, samples, int(0.51 * samples)
        ),
        "`independent_trials_bound`, 2^20 trials": lambda: stats.independent_trials_bound(
            score_N, member_N
        ),
        "`max_balanced_accuracy`, 2^20 samples": lambda: stats.max_balanced_accuracy(
            score_N, member_N
        ),
        "`epsilon_intervals`, 2^18 samples, per 100 replicates": lambda: stats.epsilon_intervals(
            score_N[part], member_N[part], **intervals
        ),
        "a loop over such replicates, each by sorting, per 100": lambda: sorted_replicates(
            score_N[part], member_N[part], 100
        ),
    }
    print("| call | seconds |")
    print("|---|---|")
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        print(f"| {name} | {time.perf_counter() - start:.2f} |", flush=True)


def sorted_replicates(score_N: np.ndarray, member_N: np.ndarray, replicates: int) -> None:
    """Evaluates each replicate as the PrivacyGuard package does: draws scores, sorts them, and makes a ROC curve."""
    rng = np.random.default_rng(6)
    for _ in range(replicates):
        drawn = [rng.choice(score_N[c], size=int(c.sum())) for c in (member_N, ~member_N)]
        both_N = np.concatenate(drawn)
        label_N = np.arange(both_N.size) < drawn[0].size
        order_N = np.argsort(-both_N, kind="stable")
        tpr_N = np.cumsum(label_N[order_N]) / drawn[0].size
        fpr_N = np.cumsum(~label_N[order_N]) / drawn[1].size
        with np.errstate(divide="ignore", invalid="ignore"):
            by_tpr_N = np.log(tpr_N - _DELTA) - np.log(fpr_N)
            by_tnr_N = np.log(1 - fpr_N - _DELTA) - np.log(1 - tpr_N)
        np.fmax(by_tpr_N, by_tnr_N)
        np.max(tpr_N - fpr_N)


def percent(is_true: np.ndarray) -> str:
    """Formats a share as a percentage."""
    return f"{100 * np.mean(is_true):.1f}%"


SECTIONS: dict[str, Callable[[int], None]] = {
    "independent": independent,
    "one_run": one_run,
    "counts": counts,
    "leave_one_out": leave_one_out,
    "tutorial": tutorial,
    "estimates": estimates,
    "speed": speed,
}


def main() -> None:
    """Prints the sections that are requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], metavar="SECTION")
    parser.add_argument("--experiments", type=int, default=1000)
    args = parser.parse_args()
    for name in args.sections or SECTIONS:
        start = time.perf_counter()
        print(f"## {name}\n")
        SECTIONS[name](args.experiments)
        print(f"\n{time.perf_counter() - start:.1f} s\n", flush=True)


if __name__ == "__main__":
    main()
