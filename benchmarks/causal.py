"""Simulates causal estimates of membership inference and their intervals, and measures time and memory.

    python -m benchmarks causal [SECTION ...] [--experiments 400]

Prints Markdown tables. Sections: bias (with a quarter of the experiments), coverage, overlap, radius, jackknife, cost.
All of them take about 10 minutes on one core and 1 GB of memory.

Unless stated otherwise, samples have covariates x from N(0, I) in R^2 and are members with a known probability that
depends on x, 2/3 on average. Without membership, a score is mu0(x) + N(0, 1), and membership adds an effect, which
depends on x, too. True values are integrals over the distribution of the members.

E: experiments, N: samples, P: nodes of the integrals, M: models, Q: quantities, F: false positive rates.
"""

import argparse
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from lm_mia import stats

_FPRS = [0.05, 0.2]


@dataclasses.dataclass(frozen=True)
class Truth:
    """Causal metrics of the members' distribution."""

    ate: float
    auc: float
    tpr_F: list[float]
    mean_out: float
    """Mean score that the members would have as non-members."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """An evaluation set with its true odds and outcome regression."""

    score_N: np.ndarray
    member_N: np.ndarray
    log_odds_N: np.ndarray
    mean_N: np.ndarray


def log_odds(x_Nx2: np.ndarray, strength: float) -> np.ndarray:
    """Returns the log odds of membership; a third are non-members."""
    return intercept(strength) + strength * (x_Nx2[:, 0] - 0.5 * x_Nx2[:, 1])


def mu0(x_Nx2: np.ndarray) -> np.ndarray:
    """Returns the mean score without membership."""
    return 1 + x_Nx2[:, 0] + 0.5 * x_Nx2[:, 1] ** 2


def effect(x_Nx2: np.ndarray) -> np.ndarray:
    """Returns the effect of membership."""
    return 0.5 + 0.25 * x_Nx2[:, 0]


def nodes() -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and weights of Gauss-Hermite quadrature for N(0, I) in R^2."""
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    x_Px2 = np.stack(np.meshgrid(node, node), axis=-1).reshape(-1, 2)
    weight_P = np.outer(weight, weight).ravel()
    return x_Px2, weight_P / weight_P.sum()


@functools.cache
def intercept(strength: float) -> float:
    """Returns the intercept at which two thirds are members."""
    x_Px2, weight_P = nodes()
    slope_P = strength * (x_Px2[:, 0] - 0.5 * x_Px2[:, 1])
    return brentq(lambda b: float(weight_P @ expit(b + slope_P)) - 2 / 3, -20, 20)  # pyright: ignore


@functools.cache
def truth(strength: float) -> Truth:
    """Returns the metrics of the members' distribution."""
    x_Px2, weight_P = nodes()
    weight_P = weight_P * expit(log_odds(x_Px2, strength))
    keep_P = weight_P > 1e-9
    x_Px2, weight_P = x_Px2[keep_P], weight_P[keep_P] / weight_P[keep_P].sum()
    out_P = mu0(x_Px2)
    in_P = out_P + effect(x_Px2)
    tprs = []
    for fpr in _FPRS:
        cut = brentq(lambda t, f=fpr: float(weight_P @ norm.sf(t - out_P)) - f, -50, 50)
        tprs.append(float(weight_P @ norm.sf(cut - in_P)))
    wins_PxP = norm.cdf((in_P[:, None] - out_P) / np.sqrt(2))
    return Truth(
        ate=float(weight_P @ (in_P - out_P)),
        auc=float(weight_P @ wins_PxP @ weight_P),
        tpr_F=tprs,
        mean_out=float(weight_P @ out_P),
    )


def draw(samples: int, strength: float, rng: np.random.Generator) -> Drawn:
    """Draws an evaluation set."""
    x_Nx2 = rng.normal(size=(samples, 2))
    log_odds_N = log_odds(x_Nx2, strength)
    member_N = rng.random(samples) < expit(log_odds_N)
    mean_N = mu0(x_Nx2)
    score_N = mean_N + rng.normal(size=samples) + np.where(member_N, effect(x_Nx2), 0.0)
    return Drawn(score_N, member_N, log_odds_N, mean_N)


def estimates(drawn: Drawn, residual_J: np.ndarray) -> dict[str, list[float]]:
    """Returns ATE, AUC and TPRs of each estimator, and the ATE of Eq. 6 as printed."""
    arguments = drawn.score_N, drawn.member_N
    right = stats.OutcomeModel(drawn.mean_N, residual_J)
    wrong = stats.OutcomeModel(np.zeros_like(drawn.mean_N), residual_J)
    right_odds_N, wrong_odds_N = drawn.log_odds_N, np.zeros_like(drawn.log_odds_N)
    results = {
        "unadjusted": stats.unadjusted_estimate(*arguments, _FPRS),
        "IPW": stats.ipw_estimate(*arguments, right_odds_N, _FPRS),
        "IPW, divided by members": stats.ipw_estimate(
            *arguments, right_odds_N, _FPRS, normalize="members"
        ),
        "G-formula": stats.g_formula_estimate(*arguments, right, _FPRS),
        "AIPW": stats.aipw_estimate(*arguments, right_odds_N, right, _FPRS),
        "AIPW, wrong odds": stats.aipw_estimate(*arguments, wrong_odds_N, right, _FPRS),
        "AIPW, wrong outcome model": stats.aipw_estimate(*arguments, right_odds_N, wrong, _FPRS),
    }
    values = {name: [e.ate, e.auc, *e.tpr_F] for name, e in results.items()}
    nonmember_N = ~drawn.member_N
    weighted_N = np.exp(drawn.log_odds_N[nonmember_N]) * drawn.score_N[nonmember_N]
    printed = float(drawn.score_N[drawn.member_N].mean() - weighted_N.mean())
    values["IPW as printed (Eq. 6)"] = [printed, *[np.nan] * (1 + len(_FPRS))]
    return values


def bias(experiments: int) -> None:
    """Prints the bias of each estimator, in units of its standard error."""
    samples, strength = 10**5, 0.8
    runs = max(2, experiments // 4)
    rng = np.random.default_rng(0)
    true = truth(strength)
    runs_of_estimates = [
        estimates(draw(samples, strength, rng), rng.normal(size=samples)) for _ in range(runs)
    ]
    expected_Q = np.array([true.ate, true.auc, *true.tpr_F])
    print(f"True values: ATE {true.ate:.4f}, AUC {true.auc:.4f}, TPRs {rounded(true.tpr_F)}.")
    print(f"Predicted bias of Eq. 6 as printed: -E[Y(0)] (n1 / n0 - 1) = {-true.mean_out:.4f}.\n")
    names = ["ATE", "AUC", *(f"TPR at {100 * f:g}% FPR" for f in _FPRS)]
    print("| estimator | " + " | ".join(f"{n}: bias | bias / s.e." for n in names) + " |")
    print("|---" * (1 + 2 * len(names)) + "|")
    for name in runs_of_estimates[0]:
        error_ExQ = np.array([r[name] for r in runs_of_estimates]) - expected_Q
        bias_Q = error_ExQ.mean(axis=0)
        ratio_Q = bias_Q / (error_ExQ.std(axis=0, ddof=1) / np.sqrt(runs))
        cells = [
            "" if np.isnan(b) else f"{b:.4f} | {r:.1f}"
            for b, r in zip(bias_Q, ratio_Q, strict=True)
        ]
        print(f"| {name} | " + " | ".join(c or " | " for c in cells) + " |")


def coverage(experiments: int) -> None:
    """Prints how often the bootstrap intervals contain the true values; odds and outcome model are the true ones."""
    names = ["ATE", "AUC", *(f"TPR at {100 * f:g}% FPR" for f in _FPRS)]
    print("| estimator | samples | mean effective non-members | " + " | ".join(names) + " |")
    print("|---" * (3 + len(names)) + "|")
    for samples in (600, 3000):
        for name in (
            "unadjusted",
            "IPW",
            "G-formula",
            "AIPW",
            "AIPW, own residuals",
        ):
            # Without confounding, members and non-members have the same distribution.
            strength = 0.0 if name == "unadjusted" else 0.8
            true = truth(strength)
            rng = np.random.default_rng(1)
            inside, effective = [], []
            for seed in range(experiments):
                drawn = draw(samples, strength, rng)
                residual_J = rng.normal(size=10_000)
                if "own" in name:
                    residual_J = (drawn.score_N - drawn.mean_N)[~drawn.member_N]
                outcome = stats.OutcomeModel(drawn.mean_N, residual_J)
                result = stats.causal_intervals(
                    drawn.score_N,
                    drawn.member_N,
                    _FPRS,
                    log_odds_N=drawn.log_odds_N if "IPW" in name else None,
                    outcome=outcome if "G-formula" in name or "AIPW" in name else None,
                    replicates=200,
                    seed=seed,
                )
                effective.append(result.estimate.effective_nonmembers)
                low_Q = np.array([result.ate_low, result.auc_low, *result.tpr_low_F])
                high_Q = np.array([result.ate_high, result.auc_high, *result.tpr_high_F])
                true_Q = np.array([true.ate, true.auc, *true.tpr_F])
                inside.append(
                    np.where(np.isnan(low_Q), np.nan, (low_Q <= true_Q) & (true_Q <= high_Q))
                )
            inside_ExQ = np.array(inside)
            cells = [
                percent(float(np.nanmean(inside_E))) if np.isfinite(inside_E).any() else "none"
                for inside_E in inside_ExQ.T
            ]
            share = "" if "G-formula" in name else f"{np.mean(effective):.0f}"
            print(f"| {name} | {samples:,} | {share} | " + " | ".join(cells) + " |")


def overlap(experiments: int) -> None:
    """Prints the coverage of intervals without overlap, which `causal_intervals` does not return."""
    samples = 1000
    print(
        "| strength of the shift | median effective non-members | median largest weight share | has overlap | "
        "95% interval of the ATE contains it | where there is overlap | RMSE of IPW | RMSE unadjusted |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for strength in (0.4, 0.8, 1.2, 1.6, 2.0, 3.0):
        true = truth(strength).ate
        rng = np.random.default_rng(2)
        rows = []
        for _ in range(experiments):
            drawn = draw(samples, strength, rng)
            arguments = drawn.score_N, drawn.member_N
            estimate = stats.ipw_estimate(*arguments, drawn.log_odds_N, [])
            low, high = ate_interval(drawn, rng)
            rows.append(
                (
                    estimate.effective_nonmembers,
                    estimate.largest_weight_share,
                    estimate.has_overlap,
                    low <= true <= high,
                    (estimate.ate - true) ** 2,
                    (stats.unadjusted_estimate(*arguments, []).ate - true) ** 2,
                )
            )
        value_ExQ = np.array(rows, dtype=np.float64)
        effective, largest = np.median(value_ExQ[:, :2], axis=0)
        has, inside, ipw, unadjusted = value_ExQ[:, 2:].mean(axis=0)
        inside_E = value_ExQ[value_ExQ[:, 2] == 1, 3]
        where = percent(inside_E.mean()) if inside_E.size else ""
        print(
            f"| {strength} | {effective:.0f} | {percent(largest)} | {percent(has)} | {percent(inside)} | {where} | "
            f"{np.sqrt(ipw):.2f} | {np.sqrt(unadjusted):.2f} |"
        )


def ate_interval(drawn: Drawn, rng: np.random.Generator) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of the self-normalized ATE, whatever the overlap is."""
    score_A, score_B = drawn.score_N[drawn.member_N], drawn.score_N[~drawn.member_N]
    weight_B = np.exp(drawn.log_odds_N[~drawn.member_N])
    index_RxA = rng.integers(score_A.size, size=(200, score_A.size))
    index_RxB = rng.integers(score_B.size, size=(200, score_B.size))
    out_R = (weight_B * score_B)[index_RxB].sum(axis=1) / weight_B[index_RxB].sum(axis=1)
    low, high = np.quantile(score_A[index_RxA].mean(axis=1) - out_R, [0.025, 0.975])
    return float(low), float(high)


def radius(experiments: int) -> None:
    """Prints how often the error of a difference in means exceeds Hoeffding's radius at 95%, for fair coins."""
    trials = 500 * experiments
    rng = np.random.default_rng(3)
    print(
        "| members | non-members | radius as printed | `hoeffding_radius` | ATE: error above it | "
        "TPR at a fixed threshold: radius from the members only | error above it |"
    )
    print("|---|---|---|---|---|---|---|")
    for members, nonmembers in ((20, 20), (100, 50), (1000, 10), (10, 1000)):
        mean_A = rng.binomial(members, 0.5, trials) / members
        mean_B = rng.binomial(nonmembers, 0.5, trials) / nonmembers
        t = np.log(4 / 0.05)
        printed = np.sqrt(2 * t / members) + np.sqrt(2 * t / nonmembers)
        limit = stats.hoeffding_radius(members, nonmembers, 1.0, 0.95)
        tpr_limit = np.sqrt(np.log(2 / 0.05) / (2 * members))
        above = np.mean(np.abs(mean_A - mean_B) > limit)
        tpr_above = np.mean(np.abs(mean_A - 0.5) > tpr_limit)
        print(
            f"| {members:,} | {nonmembers:,} | {printed:.3f} | {limit:.3f} | {100 * above:.2f}% | {tpr_limit:.3f} | "
            f"{100 * tpr_above:.2f}% |"
        )


def jackknife(experiments: int) -> None:
    """Prints standard errors of `potential_outcomes` beside the spread over models that are trained anew."""
    samples, fprs = 400, [0.01, 0.05, 0.2]
    names = ["ATE", "AUC", *(f"TPR at {100 * f:g}% FPR" for f in fprs)]
    print(
        "Standard error (root mean square) / SD, and coverage of estimate +- 2 standard errors.\n"
    )
    print("| models | subsets | " + " | ".join(names) + " |")
    print("|---" * (2 + len(names)) + "|")
    effect_N = np.random.default_rng(4).exponential(0.5, size=samples)
    for models, pairs in ((16, False), (64, False), (16, True), (64, True)):
        rng = np.random.default_rng(5)
        value, se = [], []
        for _ in range(experiments):
            member_MxN = rng.random((models, samples)) < 0.5
            if pairs:
                member_MxN[1::2] = ~member_MxN[0::2]
            # Models differ in their mean score and in the strength of memorization.
            score_MxN = rng.normal(size=member_MxN.shape) + 0.2 * rng.normal(size=(models, 1))
            score_MxN += (1 + 0.3 * rng.normal(size=(models, 1))) * effect_N * member_MxN
            result = stats.potential_outcomes(
                lambda block=(score_MxN, member_MxN): [block], np.ones(samples), fprs, pairs=pairs
            )
            value.append([result.ate, result.auc, *result.tpr_F])
            se.append([result.ate_se, result.auc_se, *result.tpr_se_F])
        value_ExQ, se_ExQ = np.array(value), np.array(se)
        mean_Q = value_ExQ.mean(axis=0)
        ratio_Q = np.sqrt((se_ExQ**2).mean(axis=0)) / value_ExQ.std(axis=0, ddof=1)
        inside_Q = (np.abs(value_ExQ - mean_Q) <= 2 * se_ExQ).mean(axis=0)
        cells = [f"{r:.2f}, {percent(i)}" for r, i in zip(ratio_Q, inside_Q, strict=True)]
        kind = "complementary pairs" if pairs else "independent"
        print(f"| {models} | {kind} | " + " | ".join(cells) + " |")


def cost(experiments: int) -> None:
    """Prints CPU seconds and additional memory on one core."""
    del experiments
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(6)
    print("| call | CPU seconds | additional memory, GB |")
    print("|---|---|---|")
    size, parts, models = 2**16, 16, 128
    member_MxC = rng.random((models, size), dtype=np.float32) < 0.5
    score_MxC = rng.standard_normal((models, size), dtype=np.float32) + member_MxC

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(parts):
            yield score_MxC, member_MxC

    weight_N = np.ones(parts * size)
    call = f"`potential_outcomes`, 2^20 samples x {models} models"
    measure(call, lambda: stats.potential_outcomes(blocks, weight_N, [0.01, 0.05]))
    small = [(score_MxC[:39, :850].astype(np.float64), member_MxC[:39, :850])]
    call = "`potential_outcomes`, 850 samples x 39 models, 100 calls"
    measure(
        call,
        lambda: [stats.potential_outcomes(lambda: small, np.ones(850), _FPRS) for _ in range(100)],
    )
    for samples in (2**20, 2**17, 850):
        drawn = draw(samples, 0.8, rng)
        arguments = drawn.score_N, drawn.member_N
        outcome = stats.OutcomeModel(drawn.mean_N, rng.normal(size=samples // 3))
        odds_N = drawn.log_odds_N
        calls: dict[str, Callable[[], object]] = {
            "unadjusted_estimate": lambda a=arguments: stats.unadjusted_estimate(*a, _FPRS),
            "ipw_estimate": lambda a=arguments, o=odds_N: stats.ipw_estimate(*a, o, _FPRS),
            "g_formula_estimate": lambda a=arguments, m=outcome: stats.g_formula_estimate(
                *a, m, _FPRS
            ),
            "aipw_estimate": lambda a=arguments, o=odds_N, m=outcome: stats.aipw_estimate(
                *a, o, m, _FPRS
            ),
            "causal_intervals (IPW, 100 replicates)": lambda a=arguments, o=odds_N: (
                stats.causal_intervals(*a, _FPRS, log_odds_N=o, replicates=100)
            ),
        }
        if samples < 2**20:
            calls["causal_intervals (AIPW, 100 replicates)"] = (
                lambda a=arguments, o=odds_N, m=outcome: stats.causal_intervals(
                    *a, _FPRS, log_odds_N=o, outcome=m, replicates=100
                )
            )
        for name, function in calls.items():
            measure(f"`{name}`, {samples:,} samples", function)


def measure(name: str, function: Callable[[], object]) -> None:
    """Prints the CPU time of a call, which other processes hardly change, and how much the peak of memory rises."""
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins at the present value.
    before, start = memory_gb("VmRSS"), time.process_time()
    function()
    seconds = time.process_time() - start
    print(f"| {name} | {seconds:.3f} | {memory_gb('VmHWM') - before:.2f} |", flush=True)


def memory_gb(field: str) -> float:
    """Returns a field of /proc/self/status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 2**20 for line in lines if line.startswith(f"{field}:"))


def percent(share: float) -> str:
    """Formats a share as a percentage."""
    return f"{100 * share:.1f}%"


def rounded(values: list[float]) -> str:
    """Formats numbers."""
    return ", ".join(f"{value:.4f}" for value in values)


SECTIONS: dict[str, Callable[[int], None]] = {
    "bias": bias,
    "coverage": coverage,
    "overlap": overlap,
    "radius": radius,
    "jackknife": jackknife,
    "cost": cost,
}


def main() -> None:
    """Prints the sections that are requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], metavar="SECTION")
    parser.add_argument("--experiments", type=int, default=400)
    args = parser.parse_args()
    for name in args.sections or SECTIONS:
        start = time.perf_counter()
        print(f"## {name}\n")
        SECTIONS[name](args.experiments)
        print(f"\n{time.perf_counter() - start:.1f} s\n", flush=True)


if __name__ == "__main__":
    main()
