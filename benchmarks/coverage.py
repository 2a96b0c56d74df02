"""Simulates how often the confidence intervals of lm_mia.stats contain the true value, and prints Markdown tables.

    python -m benchmarks coverage [SECTION ...] [--experiments 2000] [--replicates 1000]

The sections are bootstrap, without_rule, exact, mean, calibrated and fixed; all run by default, in about 25 minutes on
one core.

An experiment draws the scores of members and non-members from known distributions, for which the true AUC and the true
TPR at each FPR follow in closed form. The coverage is the share of experiments whose interval contains the true value;
it is a percentage, and its standard error is about half a point at 95 % of 2,000 experiments. The first two
sections show the same experiments: with the bootstrap intervals that `bootstrap_intervals` gives, and with those that
it would give without its rule on small counts, where it gives exact intervals instead.
"""

import argparse
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.stats

from lm_mia import stats
from lm_mia.stats import intervals

FALSE_POSITIVES = (1, 2, 5, 10, 20, 50)
"""Numbers of allowed false positives, n x FPR, of the first columns of TPRs."""
RATES = (0.1, 0.5, 0.9)
"""The other rates."""


@dataclasses.dataclass(frozen=True)
class Design:
    """The distributions from which the scores of an experiment are drawn, and their true AUC and TPR."""

    name: str
    nonmembers: int
    members: int
    draw_nonmember: Callable[[np.random.Generator, int], np.ndarray]
    draw_member: Callable[[np.random.Generator, int], np.ndarray]
    auc: float
    tpr: Callable[[np.ndarray], np.ndarray]
    """Returns the true TPR at each FPR."""

    @property
    def fpr_F(self) -> np.ndarray:
        """The FPRs of the table's columns."""
        return np.r_[np.array(FALSE_POSITIVES) / self.nonmembers, RATES]


def gaussian(name: str, n: int, m: int, gap: float, sd: float = 1.0) -> Design:
    """Returns a design with non-members from N(0, 1) and members from N(gap, sd^2)."""
    normal = scipy.stats.norm
    return Design(
        name,
        n,
        m,
        lambda rng, size: rng.normal(size=size),
        lambda rng, size: rng.normal(gap, sd, size=size),
        float(normal.cdf(gap / math.hypot(1, sd))),
        lambda fpr_F: normal.sf((normal.isf(fpr_F) - gap) / sd),
    )


def exponential(name: str, n: int, m: int, mean: float) -> Design:
    """Returns a design with exponential scores, of mean 1 for non-members: a heavy upper tail."""
    return Design(
        name,
        n,
        m,
        lambda rng, size: rng.exponential(size=size),
        lambda rng, size: rng.exponential(mean, size=size),
        mean / (1 + mean),
        lambda fpr_F: fpr_F ** (1 / mean),
    )


def tied(name: str, n: int, m: int, gap: float, levels: int) -> Design:
    """Returns a design whose scores are multiples of 1 / levels, as those of RMIA with as many comparison samples.

    A score is the share of fixed numbers from N(0, 1) below a number from N(0, 1), or N(gap, 1) for members. The true
    TPR is that at the lowest score that at most the share FPR of all non-members reaches.
    """
    normal = scipy.stats.norm
    compared_Z = np.sort(np.random.default_rng(levels).normal(size=levels))
    nonmember_K1, member_K1 = (
        np.r_[1, normal.sf(compared_Z - shift), 0] for shift in (0, gap)
    )  # the share of a class with at least k of the numbers below, and 0

    def shares(rng: np.random.Generator, mean: float, size: int) -> np.ndarray:
        return np.searchsorted(compared_Z, rng.normal(mean, size=size)) / levels

    return Design(
        name,
        n,
        m,
        lambda rng, size: shares(rng, 0, size),
        lambda rng, size: shares(rng, gap, size),
        float(-np.diff(member_K1) @ (1 - (nonmember_K1[:-1] + nonmember_K1[1:]) / 2)),
        lambda fpr_F: member_K1[np.argmax(nonmember_K1 <= fpr_F[:, None], axis=1)],
    )


DESIGNS = (
    gaussian("Gaussian, AUC 0.75, 1,000 and 1,000", 1000, 1000, 0.954),
    gaussian("Gaussian, AUC 0.75, 200 and 200", 200, 200, 0.954),
    gaussian("Gaussian, AUC 0.75, 5,000 and 100", 5000, 100, 0.954),
    gaussian("Gaussian, AUC 0.75, 200 and 2,000", 200, 2000, 0.954),
    gaussian("wider members, AUC 0.67, 1,000 and 1,000", 1000, 1000, 0.8, 1.5),
    exponential("exponential, AUC 0.67, 1,000 and 1,000", 1000, 1000, 2.0),
    gaussian("noise, AUC 0.5, 1,000 and 1,000", 1000, 1000, 0.0),
    gaussian("strong attack, AUC 0.99, 1,000 and 1,000", 1000, 1000, 3.29),
    tied("ties, multiples of 1/1,000, AUC 0.75, 1,000 and 1,000", 1000, 1000, 0.954, 1000),
    tied("ties, multiples of 1/100, AUC 0.75, 1,000 and 1,000", 1000, 1000, 0.954, 100),
)


def _ends(
    design: Design, score_N: np.ndarray, member_N: np.ndarray, seed: int, replicates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the intervals of the AUC and of the TPRs: low_S, high_S."""
    result = stats.bootstrap_intervals(
        score_N, member_N, design.fpr_F, replicates=replicates, seed=seed
    )
    return np.r_[result.auc_low_T, result.tpr_low_TxF[0]], np.r_[
        result.auc_high_T, result.tpr_high_TxF[0]
    ]


@functools.cache
def simulate(design: Design, experiments: int, replicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (whether each bootstrap interval contains the true value, whether the rule gives it): two arrays ExS."""
    rng = np.random.default_rng([design.nonmembers, design.members, len(design.name)])
    n, m, fpr_F = design.nonmembers, design.members, design.fpr_F
    member_N = np.arange(n + m) >= n
    truth_S = np.r_[design.auc, design.tpr(fpr_F)]
    covered_ExS, given_ExS = np.zeros((2, experiments, truth_S.size), bool)
    rule = intervals.MIN_COUNT
    for e in range(experiments):
        score_N = np.r_[design.draw_nonmember(rng, n), design.draw_member(rng, m)]
        # Experiments must not share bootstrap draws.
        intervals.MIN_COUNT = 0
        low_S, high_S = _ends(design, score_N, member_N, e, replicates)
        intervals.MIN_COUNT = rule
        covered_ExS[e] = (low_S <= truth_S) & (truth_S <= high_S)
        # The rule does not depend on the replicates, and a single one is fast.
        result = stats.bootstrap_intervals(score_N, member_N, fpr_F, replicates=1)
        given_ExS[e] = np.r_[True, ~result.exact_TxF[0]]
    return covered_ExS, given_ExS


_HEADER = (
    "scores, non-members and members",
    "AUC",
    *(f"n x FPR = {count}" for count in FALSE_POSITIVES),
    *(f"FPR {rate:g}" for rate in RATES),
)


def bootstrap(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Bootstrap intervals as they are shown: coverage in %; in brackets, the experiments in % that have one"""

    def rows() -> Iterator[Sequence[str]]:
        for design in DESIGNS:
            covered_ExS, given_ExS = simulate(design, args.experiments, args.replicates)
            cells = []
            for covered_E, given_E in zip(covered_ExS.T, given_ExS.T, strict=True):
                share = given_E.mean()
                # Few experiments do not suffice for a coverage.
                cell = f"{100 * covered_E[given_E].mean():.1f}" if given_E.sum() >= 100 else "none"
                cells.append(cell + (f" ({100 * share:.0f})" if 0.05 <= share < 0.995 else ""))
            yield design.name, *cells

    return _HEADER, rows()


def without_rule(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Bootstrap intervals without the rule on small counts: coverage in %"""

    def rows() -> Iterator[Sequence[str]]:
        for design in DESIGNS:
            covered_ExS, _ = simulate(design, args.experiments, args.replicates)
            yield design.name, *(f"{100 * share:.1f}" for share in covered_ExS.mean(axis=0))

    return _HEADER, rows()


def exact(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Exact intervals (`stats.tpr_interval`): coverage in %; in brackets, their mean width"""

    def rows() -> Iterator[Sequence[str]]:
        for design in DESIGNS:
            score_ExN, member_N = _draw_scores(design, args.experiments)
            low_ExF, high_ExF = stats.tpr_interval(score_ExN, member_N, design.fpr_F)
            truth_F = design.tpr(design.fpr_F)
            covered_F = ((low_ExF <= truth_F) & (truth_F <= high_ExF)).mean(axis=0)
            width_F = (high_ExF - low_ExF).mean(axis=0)
            yield (
                design.name,
                *(
                    f"{100 * share:.1f} ({width:.2f})"
                    for share, width in zip(covered_F, width_F, strict=True)
                ),
            )

    return (_HEADER[0], *_HEADER[2:]), rows()


def mean(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Intervals of the mean over targets (`stats.mean_rate_interval`), 1,000 samples of each class: coverage in %"""
    samples, fpr_F, gap = 1000, np.array([0.005, 0.01, 0.05, 0.1]), 2.0
    member_N = np.arange(2 * samples) < samples
    group_N = stats.sample_groups(np.arange(2 * samples))
    quantile_Q = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)

    def coverage(targets: int, correlation: float, spread: float) -> np.ndarray:
        rng = np.random.default_rng([targets, int(100 * correlation), int(100 * spread)])
        gap_Qx1 = gap + spread * quantile_Q[:, None]
        truth_S = np.r_[
            scipy.stats.norm.cdf(gap_Qx1 / math.sqrt(2)).mean(),
            scipy.stats.norm.sf(scipy.stats.norm.isf(fpr_F) - gap_Qx1).mean(axis=0),
        ]
        experiments = max(args.experiments // 5, 1)
        covered_S = np.zeros(truth_S.size)
        for _ in range(experiments):
            shared_N, own_TxN = (
                rng.normal(size=2 * samples),
                rng.normal(size=(targets, 2 * samples)),
            )
            score_TxN = math.sqrt(correlation) * shared_N + math.sqrt(1 - correlation) * own_TxN
            score_TxN += member_N * (gap + spread * rng.normal(size=(targets, 1)))
            points = stats.tpr_at_fpr(score_TxN, member_N, fpr_F)
            auc_TxH, tpr_TxHxF = stats.rates_of_halves(score_TxN, member_N, group_N, fpr_F)
            low_S, high_S = stats.mean_rate_interval(
                np.column_stack([points.auc_T, points.tpr_TxF]),
                np.concatenate([auc_TxH[..., None], tpr_TxHxF], axis=2),
            )
            covered_S += (low_S <= truth_S) & (truth_S <= high_S)
        return covered_S / experiments

    def rows() -> Iterator[Sequence[str]]:
        for targets in (4, 16):
            for correlation in (0.0, 0.5, 0.9):
                for spread in (0.0, 0.3):
                    shares = coverage(targets, correlation, spread)
                    yield (
                        *(str(targets), f"{correlation:g}", f"{spread:g}"),
                        *(f"{100 * share:.1f}" for share in shares),
                    )

    header = ("targets", "correlation of their scores", "SD of their gaps", "AUC")
    return (*header, *(f"FPR {fpr:g}" for fpr in fpr_F)), rows()


def _draw_scores(design: Design, experiments: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns score_ExN of a number of experiments, and member_N."""
    rng, (n, m) = np.random.default_rng(0), (design.nonmembers, design.members)
    score_ExN = np.array(
        [
            np.r_[design.draw_nonmember(rng, n), design.draw_member(rng, m)]
            for _ in range(experiments)
        ]
    )
    return score_ExN, np.arange(n + m) >= n


def calibrated(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Clopper-Pearson intervals of the TPR at a calibrated threshold, which lm_mia does not show: coverage in %"""

    def rows() -> Iterator[Sequence[str]]:
        for design in DESIGNS:
            score_ExN, member_N = _draw_scores(design, args.experiments)
            points = stats.tpr_at_fpr(score_ExN, member_N, design.fpr_F)
            true_positives_ExF = np.rint(np.nan_to_num(points.tpr_TxF) * design.members)
            low, high = stats.clopper_pearson(true_positives_ExF, design.members)
            truth_F = design.tpr(design.fpr_F)
            covered_F = ((low <= truth_F) & (truth_F <= high)).mean(axis=0)
            yield design.name, *(f"{100 * share:.1f}" for share in covered_F)

    return (_HEADER[0], *_HEADER[2:]), rows()


def fixed(args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Clopper-Pearson intervals of a count whose threshold is fixed beforehand: exact coverage in %, over all rates"""
    del args

    def rows() -> Iterator[Sequence[str]]:
        for trials in (5, 20, 100, 1000):
            hits = np.arange(trials + 1)
            low, high = stats.clopper_pearson(hits, trials)
            edges = np.r_[low, high]  # the coverage drops at the ends of intervals
            rate_R = np.r_[np.linspace(0.001, 0.999, 999), edges * (1 - 1e-9), edges * (1 + 1e-9)]
            rate_R = rate_R[(rate_R > 0) & (rate_R < 1)]
            covers_RxK = (low <= rate_R[:, None]) & (rate_R[:, None] <= high)
            coverage_R = (scipy.stats.binom.pmf(hits, trials, rate_R[:, None]) * covers_RxK).sum(
                axis=1
            )
            mean = coverage_R[:999].mean()
            yield f"{trials:,}", f"{100 * coverage_R.min():.2f}", f"{100 * mean:.1f}"

    return ("trials", "lowest", "mean over rates from 0 to 1"), rows()


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "bootstrap": bootstrap,
    "without_rule": without_rule,
    "exact": exact,
    "mean": mean,
    "calibrated": calibrated,
    "fixed": fixed,
}


def main() -> None:
    """Prints one table per section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--replicates", type=int, default=1000)
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"unknown section: {', '.join(sorted(unknown))}")
    for name in args.sections or SECTIONS:
        header, rows = SECTIONS[name](args)
        print(f"\n{SECTIONS[name].__doc__}:\n")
        print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
        for cells in rows:
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
