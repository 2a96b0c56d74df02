"""Simulates estimates of the membership advantage and their intervals, and measures the time of the attacks stage.

    python -m benchmarks advantage [SECTION ...] [--experiments 2000]

Prints Markdown tables. Sections: bins, kernels, held_out, metrics, without_leakage, mechanisms, cost. All of them take
about 80 seconds; cost needs 1 GiB of temporary disk and uses all cores. Unless stated otherwise, queries have the
distribution N(1, 1) for members and N(0, 1) for others, with n fitted samples of each class.

E: experiments, T: targets, N: samples, J: bins.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.stats import laplace, norm

from analysis.experiments.mace.advantage import membership_advantage
from lm_mia import stats
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.attacks.spec import AttackSpec
from lm_mia.data import subsets
from lm_mia.machine import available_cores

_N = 300
_LARGE = 10**6


def bins(experiments: int) -> None:
    """Prints how often the interval of a bin contains its log ratio (MACE, Lemma 6)."""
    print(
        "| share of members in the bin | share of others | fitted samples of a class | coverage |"
    )
    print("|---|---|---|---|")
    rng = np.random.default_rng(0)
    for p, q in ((0.3, 0.1), (0.1, 0.1), (0.05, 0.02), (0.01, 0.1), (0.01, 0.003), (0.5, 0.6)):
        inside = 0
        for i, j in zip(
            rng.binomial(_N, p, experiments), rng.binomial(_N, q, experiments), strict=True
        ):
            ratio = stats.log_ratio_of_counts([i, _N - i], [j, _N - j])
            inside += ratio.low_N[0] <= np.log(p / q) <= ratio.high_N[0]
        print(f"| {p} | {q} | {_N} | {percent(inside / experiments)} |")
    print()
    print("| equal-count bins | bin | coverage of the ratio in the bin |")
    print("|---|---|---|")
    count, inside_J = stats.num_bins(_N), np.zeros(stats.num_bins(_N))
    for _ in range(experiments):
        query, member = draw_gaussian(rng, 2 * _N)
        edge_J = stats.equal_count_edges(np.sort(query), count)
        ends = np.array([-np.inf, *edge_J[1:], np.inf])
        truth_J = np.log(np.diff(norm.cdf(ends, 1)) / np.diff(norm.cdf(ends)))
        bin_K = stats.quantile_bins(query, query, count)
        ratio = stats.log_ratio_bins(bin_K, member, np.arange(count), count)
        inside_J += (ratio.low_N <= truth_J) & (truth_J <= ratio.high_N)
    for j in (0, count // 2, count - 1):
        print(f"| {count} | {j} | {percent(inside_J[j] / experiments)} |")


def kernels(experiments: int) -> None:
    """Prints how often the intervals of kernel estimates contain the smoothed and the true log ratio (Lemmas 7-8)."""
    print(
        "| n | bandwidth | query | expected kernels of members | of others | smoothed ratio | true ratio |"
    )
    print(f"|{'---|' * 7}")
    rng = np.random.default_rng(1)
    at_N = np.array([-3.0, -2, -1, 0, 0.5, 2, 3])
    for n, bandwidth in ((300, 0.2), (300, 1.0), (3000, 0.2)):
        sd = np.sqrt(1 + bandwidth**2)
        smoothed_N = norm.logpdf(at_N, 1, sd) - norm.logpdf(at_N, 0, sd)
        inside_2xN = np.zeros((2, at_N.size))
        for _ in range(experiments if n < 1000 else experiments // 4):
            query, member = draw_gaussian(rng, 2 * n)
            ratio = stats.log_ratio_kde(query, member, at_N, bandwidth=bandwidth)
            for inside_N, truth_N in zip(inside_2xN, (smoothed_N, at_N - 0.5), strict=True):
                inside_N += (ratio.low_N <= truth_N) & (truth_N <= ratio.high_N)
        inside_2xN /= experiments if n < 1000 else experiments // 4
        for x, smoothed, true in zip(at_N, *inside_2xN, strict=True):
            expected = (n * bandwidth * norm.pdf(x, mean, sd) for mean in (1, 0))
            print(
                f"| {n} | {bandwidth} | {x:g} | {' | '.join(f'{e:.3g}' for e in expected)} | {percent(smoothed)} "
                f"| {percent(true)} |"
            )


def held_out(experiments: int) -> None:
    """Prints the bias of both estimates, and how often the held-out interval is right."""
    print(
        "| n | bins | prior | best adversary | plug-in | held-out | its rule | interval contains its rule's "
        "| lower end above the best |"
    )
    print(f"|{'---|' * 9}")
    rng = np.random.default_rng(2)
    for n, count, prior in (
        (_N, 13, 0.5),
        (_N, 100, 0.5),
        (3000, 29, 0.5),
        (_N, 13, 0.1),
        (3000, 29, 0.1),
    ):
        best, values = best_of_gaussians(prior), []
        for _ in range(experiments):
            query, member = draw_gaussian(rng, 4 * n)
            half = 2 * n
            edge_J = stats.equal_count_edges(np.sort(query[:half]), count)
            f_N = fitted_f(query, member, half, count, prior)
            result = stats.held_out_advantage(f_N, member[half:], prior)
            called_J = (
                stats.privacy_loss(
                    stats.log_ratio_bins(
                        stats.quantile_bins(query[:half], query[:half], count),
                        member[:half],
                        np.arange(edge_J.size),
                        count,
                    ).value_N,
                    prior,
                )
                >= 0
            )
            ends = np.array([-np.inf, *edge_J[1:], np.inf])
            tpr, fpr = (np.diff(norm.cdf(ends, mean))[called_J].sum() for mean in (1, 0))
            rule = 2 * (prior * tpr + (1 - prior) * (1 - fpr)) - 1
            plug_in = stats.plug_in_advantage(f_N, member[half:], prior)
            inside = result.low <= rule <= result.high
            values.append((plug_in, result.value, rule, inside, result.low > best))
        plug_in, value, rule, inside, above = np.mean(values, axis=0)
        print(
            f"| {n} | {count} | {prior} | {best:.4f} | {plug_in:.4f} | {value:.4f} | {rule:.4f} | {percent(inside)} "
            f"| {percent(above)} |"
        )
    print()
    print("| samples | prior | best adversary | held-out | plug-in | 95% interval |")
    print("|---|---|---|---|---|---|")
    for prior in (0.5, 0.1):
        query, member = draw_gaussian(rng, _LARGE)
        f_N = fitted_f(query, member, _LARGE // 2, 100, prior)
        result = stats.held_out_advantage(f_N, member[_LARGE // 2 :], prior)
        plug_in = stats.plug_in_advantage(f_N, member[_LARGE // 2 :], prior)
        print(
            f"| {_LARGE:,} | {prior} | {best_of_gaussians(prior):.5f} | {result.value:.5f} | {plug_in:.5f} "
            f"| {result.low:.5f} to {result.high:.5f} |"
        )


def metrics(experiments: int) -> None:
    """Prints how often the interval of a metric contains it."""
    print(
        "| metric | prior | value | coverage, TPR 0.3 and TNR 0.95 | coverage, TPR 0.9 and TNR 0.5 |"
    )
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(3)
    for name, metric in stats.METRICS.items():
        for prior in (0.5, 0.1):
            cells, truth = [], 0.0
            for tpr, tnr in ((0.9, 0.5), (0.3, 0.95)):
                tp, fp, fn, tn = (round(100 * x) for x in (tpr, 1 - tnr, 1 - tpr, tnr))
                truth = float(stats.metric_value(metric, tp, fp, fn, tn, prior))
                tp, tn = rng.binomial(_N, tpr, experiments), rng.binomial(_N, tnr, experiments)
                low, high = stats.metric_interval(metric, tp, _N - tn, _N - tp, tn, prior)
                cells.append(percent(float(np.mean((low <= truth) & (truth <= high)))))
            print(f"| {name} | {prior} | {truth:.3f} | {cells[1]} | {cells[0]} |")


def without_leakage(experiments: int) -> None:
    """Prints both estimates if members and others have the same distribution."""
    print(
        "| prior | baseline | n | bins | sqrt(bins / (pi n)) | plug-in | held-out, with its standard error |"
    )
    print(f"|{'---|' * 7}")
    rng, runs = np.random.default_rng(4), max(experiments // 4, 2)
    for prior, n, count in (
        (0.5, 512, 16),
        (0.5, 512, 100),
        (0.5, 10_000, 43),
        (0.1, 512, 16),
        (0.1, 512, 100),
    ):
        plug_in, value_E = 0.0, []
        for _ in range(runs):
            query, member = rng.standard_normal(4 * n), rng.permutation(4 * n) % 2 == 0
            f_N = fitted_f(query, member, 2 * n, count, prior)
            plug_in += stats.plug_in_advantage(f_N, member[2 * n :], prior) / runs
            value_E.append(stats.held_out_advantage(f_N, member[2 * n :], prior).value)
        error = np.std(value_E) / np.sqrt(runs)
        formula = f"{np.sqrt(count / (np.pi * n)):.4f}" if prior == 0.5 else ""
        print(
            f"| {prior} | {abs(1 - 2 * prior):g} | {n} | {count} | {formula} | {plug_in:.4f} "
            f"| {np.mean(value_E):.4f} ± {error:.4f} |"
        )


def mechanisms(experiments: int) -> None:
    """Prints the advantage against mechanisms of known epsilon, and the bound of MACE's Theorem 2."""
    del experiments
    print(
        "| epsilon | prior | bound of abs(f) | bound of the advantage | randomized response: best | held-out "
        "| Laplace: best | held-out |"
    )
    print(f"|{'---|' * 8}")
    rng = np.random.default_rng(5)
    member = np.arange(_LARGE) % 2 == 0
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        lies = rng.random(_LARGE) < 1 / (1 + np.exp(epsilon))
        noise = laplace.rvs(scale=1 / epsilon, size=_LARGE, random_state=rng)
        queries = {"response": (member ^ lies).astype(float), "laplace": noise + member}
        for prior in (0.5, 0.1):
            bound, mean_bound = (
                float(stats.dp_advantage_bound(epsilon, prior)),
                max(abs(1 - 2 * prior), np.tanh(epsilon / 2)),
            )
            # At a cut c, members are above it with probability P(Laplace > c - 1).
            cut = np.linspace(-5, 6, 100_001)
            of_cut = prior * laplace.sf(cut - 1, scale=1 / epsilon) + (1 - prior) * laplace.cdf(
                cut, scale=1 / epsilon
            )
            best = {
                "response": mean_bound,
                "laplace": max(2 * of_cut.max() - 1, abs(1 - 2 * prior)),
            }
            cells = []
            for name, query in queries.items():
                f_N = fitted_f(query, member, _LARGE // 2, 100, prior)
                value = stats.held_out_advantage(f_N, member[_LARGE // 2 :], prior).value
                cells.append(f"{best[name]:.4f} | {value:.4f}")
            print(f"| {epsilon} | {prior} | {bound:.4f} | {mean_bound:.4f} | {' | '.join(cells)} |")


def cost(experiments: int) -> None:
    """Prints the time of advantage.csv for many targets and attacks."""
    del experiments
    targets, samples, attacks = 128, 2**20, 8
    cores = available_cores()
    rng = np.random.default_rng(6)
    member_TxN = np.stack([rng.integers(0, 2, samples, dtype=np.int8) == 1 for _ in range(targets)])
    with (
        tempfile.TemporaryDirectory() as folder,
        MembershipScoreFile(Path(folder), targets, samples) as file,
        ThreadPoolExecutor(cores) as pool,
    ):
        for t in range(targets):
            file.write(t, slice(0, samples), rng.standard_normal((1, samples)) + member_TxN[t])
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins at the present value.
        before, start = memory_mib("VmRSS"), time.perf_counter()
        for _ in range(attacks):
            membership_advantage(_scores(file, member_TxN, pool), priors=(0.5, 0.1))
        seconds = time.perf_counter() - start
        more = memory_mib("VmHWM") - before
    print("| attacks | targets | samples | cores | seconds | additional memory, MiB |")
    print("|---|---|---|---|---|---|")
    print(f"| {attacks} | {targets} | {samples:,} | {cores} | {seconds:.0f} | {more:.0f} |")


class _Population:
    """The part of a population that the advantage depends on."""

    has_split_documents = False

    def __init__(self, samples: int) -> None:
        self.document_N = np.arange(samples)


def _scores(file: MembershipScoreFile, member_TxN: np.ndarray, pool: ThreadPoolExecutor) -> Scores:
    targets, samples = member_TxN.shape
    nothing_N = np.zeros(samples)
    inputs = AttackInputs(
        cast(Any, None),
        [*map(subsets.reference, range(targets))],
        [],
        member_TxN,
        nothing_N,
        nothing_N[:, None],
    )
    spec = AttackSpec("loss", False, tuple(range(targets)), ())
    population = cast(Any, _Population(samples))
    return Scores(spec, file, None, inputs, population, nothing_N, pool)


def draw_gaussian(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns queries and membership; every second sample is a member."""
    member = np.arange(samples) % 2 == 0
    return rng.standard_normal(samples) + member, member


def fitted_f(
    query: np.ndarray, member: np.ndarray, half: int, count: int, prior: float
) -> np.ndarray:
    """Returns f of the samples after the first half, estimated from the first half."""
    bin_N = stats.quantile_bins(query, query[:half], count)
    ratio = stats.log_ratio_bins(bin_N[:half], member[:half], bin_N[half:], count)
    return stats.privacy_loss(ratio.value_N, prior)


def best_of_gaussians(prior: float) -> float:
    """Returns the advantage of the best adversary."""
    cut = 0.5 + np.log((1 - prior) / prior)
    return float(2 * (prior * norm.sf(cut, 1) + (1 - prior) * norm.cdf(cut)) - 1)


def memory_mib(field: str) -> float:
    """Returns a field of /proc/self/status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{field}:"))


def percent(share: float) -> str:
    """Formats a share as a percentage."""
    return f"{100 * share:.1f}%"


SECTIONS: dict[str, Callable[[int], None]] = {
    "bins": bins,
    "kernels": kernels,
    "held_out": held_out,
    "metrics": metrics,
    "without_leakage": without_leakage,
    "mechanisms": mechanisms,
    "cost": cost,
}


def main() -> None:
    """Prints the sections that are requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], metavar="SECTION")
    parser.add_argument("--experiments", type=int, default=2000)
    args = parser.parse_args()
    for name in args.sections or SECTIONS:
        start = time.perf_counter()
        print(f"## {name}\n")
        SECTIONS[name](args.experiments)
        print(f"\n{time.perf_counter() - start:.1f} s\n", flush=True)


if __name__ == "__main__":
    main()
