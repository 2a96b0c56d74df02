"""Simulates how often ranges of the coin-flip share at 127 replicas cover the true share, and prints a Markdown table.

    python -m benchmarks coin_flip_coverage [--samples N ...] [--replicas B ...] [--simulations S]

Each simulation draws the votes of B replicas on N samples and computes the range. The probability p that a replica
calls a sample a member has a known distribution over samples, from which the true share follows. "shock" means that a
normal number, shared by all samples, is added to the scores of a replica (of opposite signs for two halves of the
samples if "opposite"), so that votes are dependent. "calibrated" draws scores of N members and N non-members with such
shocks, and calibrates each replica's threshold at 5% FPR on its own non-members; the samples are the same in all
simulations, and their p is estimated from 4,000 replicas.

Columns: the true share at 127 replicas; the mean observed share with its standard deviation (SD) over simulations and
the root mean square of its estimated standard error (SE); the mean range, and the share of simulations in which it
covers the true share. About 20 minutes with the default settings on one core.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import special
from scipy.stats import beta

from lm_mia import stats

_POPULATION_SEED, _REPLICAS_OF_TRUTH = 2026, 4000
# Ends of ranges are computed up to this error.
_TOLERANCE = 2e-4

Votes = np.ndarray
"""vote_BxN, booleans."""


@dataclasses.dataclass(frozen=True)
class Design:
    """A distribution of p, with the dependence of votes."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Votes]
    """Draws votes from (generator, replicas, samples)."""
    true_share: Callable[[int], float]
    """The share that 127 replicas would show, given the number of samples."""


def independent(name: str, *parts: tuple[float, float | tuple[float, float]]) -> Design:
    """Returns a mixture of (weight, p) and (weight, (a, b)): a point mass or a beta distribution of p."""

    def draw(rng: np.random.Generator, replicas: int, samples: int) -> Votes:
        part_N = rng.choice(len(parts), samples, p=[weight for weight, _ in parts])
        p_N = np.empty(samples)
        for i, (_, p) in enumerate(parts):
            of_part_N = part_N == i
            p_N[of_part_N] = rng.beta(*p, of_part_N.sum()) if isinstance(p, tuple) else p
        return rng.random((replicas, samples), dtype=np.float32) < p_N

    def true_share(samples: int) -> float:
        quantile = (np.arange(20000) + 0.5) / 20000
        return sum(
            weight * share_at_127(beta.ppf(quantile, *p) if isinstance(p, tuple) else p)
            for weight, p in parts
        )

    return Design(name, draw, true_share)


def shocks(
    name: str, mean: float, spread: float, shock: float, *, opposite: bool = False
) -> Design:
    """Returns scores N(mean, spread^2) + sign x shock x N(0, 1) of the replica + N(0, 1), with the threshold 0."""

    def draw(rng: np.random.Generator, replicas: int, samples: int) -> Votes:
        score_N = rng.normal(mean, spread, samples).astype(np.float32)
        sign_N = np.where(np.arange(samples) % 2, -1, 1) if opposite else 1
        shock_B = rng.normal(0, shock, replicas).astype(np.float32)
        noise_BxN = rng.standard_normal((replicas, samples), dtype=np.float32)
        return noise_BxN + score_N + sign_N * shock_B[:, None] > 0

    def true_share(samples: int) -> float:
        score = mean + spread * special.ndtri((np.arange(20000) + 0.5) / 20000)
        return share_at_127(special.ndtr(score / np.sqrt(1 + shock**2)))

    return Design(name, draw, true_share)


def calibrated(name: str, of_members: bool) -> Design:
    """Returns the votes on members or on non-members, with a calibrated threshold for each replica."""

    def draw_class(rng: np.random.Generator, score_2xN: np.ndarray) -> np.ndarray:
        loading_N = np.where(np.arange(score_2xN.shape[1]) % 2, 0.3, -0.1).astype(np.float32)
        noise_2xN = 0.5 * rng.standard_normal(score_2xN.shape, dtype=np.float32)
        noisy_2xN = score_2xN + noise_2xN + loading_N * rng.standard_normal()
        count = int(0.05 * score_2xN.shape[1])
        threshold = np.partition(noisy_2xN[1], -count)[-count]
        return noisy_2xN[0 if of_members else 1] >= threshold

    def population(samples: int) -> np.ndarray:
        rng = np.random.default_rng(_POPULATION_SEED)
        return rng.normal([[1.0], [0.0]], 1, (2, samples)).astype(np.float32)

    def draw(rng: np.random.Generator, replicas: int, samples: int) -> Votes:
        score_2xN = population(samples)
        return np.array([draw_class(rng, score_2xN) for _ in range(replicas)])

    @functools.cache
    def true_share(samples: int) -> float:
        rng, votes_N = np.random.default_rng(_POPULATION_SEED + 1), np.zeros(samples)
        score_2xN = population(samples)
        for _ in range(_REPLICAS_OF_TRUTH):
            votes_N += draw_class(rng, score_2xN)
        return share_at_127(votes_N / _REPLICAS_OF_TRUTH)

    return Design(name, draw, true_share)


def share_at_127(p: float | np.ndarray) -> float:
    """Returns the mean probability that the decision of 127 replicas is labeled a coin flip."""
    return float(np.mean(stats.coin_flip_probability(p, stats.STRONGMIA_REPLICAS)))


DESIGNS = (
    independent("all p = 0.5", (1, 0.5)),
    independent("all p = 0.4", (1, 0.4)),
    independent("70% p = 0.02, 30% p = 0.5", (0.7, 0.02), (0.3, 0.5)),
    independent("uniform", (1, (1, 1))),
    independent("U-shaped, beta(0.2, 0.2)", (1, (0.2, 0.2))),
    independent("70% beta(0.2, 4), 30% beta(2, 2)", (0.7, (0.2, 4)), (0.3, (2, 2))),
    shocks("probit-normal, shock 0.3", -0.5, 1, 0.3),
    shocks("probit-normal, rarely members, shock 0.5", -2, 1, 0.5),
    shocks("narrow probit-normal, opposite shocks 0.5", 0, 0.5, 0.5, opposite=True),
    calibrated("calibrated, members", of_members=True),
    calibrated("calibrated, non-members", of_members=False),
)
COLUMNS = (
    "p over samples",
    "N",
    "B",
    "true share",
    "observed",
    "its SD",
    "its SE",
    "mean range",
    "covered",
)


@dataclasses.dataclass(frozen=True)
class Result:
    """Results of the simulations of one design."""

    true_share: float
    observed_S: np.ndarray
    """Observed shares of the simulations."""
    std_error_S: np.ndarray
    low_S: np.ndarray
    high_S: np.ndarray

    @property
    def covered(self) -> float:
        """Share of the simulations whose range covers the true share."""
        above_low_S = self.low_S - _TOLERANCE <= self.true_share
        return float(np.mean(above_low_S & (self.true_share <= self.high_S + _TOLERANCE)))


def simulate(
    design: Design, samples: int, replicas: int, simulations: int, seed: int = 0
) -> Result:
    """Draws votes and computes their range, repeatedly."""
    rng = np.random.default_rng([seed, samples, replicas])
    k_low, _ = stats.coin_flip_cutoff(replicas)
    coin_flip_K = (np.arange(replicas + 1) >= k_low) & (np.arange(replicas + 1) <= replicas - k_low)
    rows = []
    for _ in range(simulations):
        vote_BxN = design.draw(rng, replicas, samples)
        votes = stats.count_vote_histograms(vote_BxN, np.full((replicas, 1), 0.5))
        counts = votes.samples_FxK[0], votes.called_FxRxK[0]
        limits = stats.coin_flip_range(*counts)
        error = stats.mean_std_error(*counts, coin_flip_K.astype(float))
        rows.append((counts[0] @ coin_flip_K / samples, error, limits.low, limits.high))
    return Result(design.true_share(samples), *np.array(rows).T)


def table(args: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Yields the rows of the table."""
    for samples in args.samples:
        for design in DESIGNS:
            for replicas in args.replicas:
                result = simulate(design, samples, replicas, args.simulations)
                yield (
                    *(design.name, f"{samples:,}", f"{replicas}", f"{result.true_share:.3f}"),
                    *(f"{result.observed_S.mean():.3f}", f"{result.observed_S.std():.3f}"),
                    f"{np.sqrt(np.mean(result.std_error_S**2)):.3f}",
                    f"{result.low_S.mean():.3f} to {result.high_S.mean():.3f}",
                    f"{100 * result.covered:.1f}%",
                )


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description="Simulates how often ranges cover the true share.")
    parser.add_argument("--samples", type=int, nargs="+", default=[1000, 2**17])
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 16, 32, 127])
    parser.add_argument("--simulations", type=int, default=200)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in table(parser.parse_args()):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
