"""Simulates intervals over samples that are pieces of documents: of rank correlations, means in bins and coin flips.

    python -m benchmarks pieces [--experiments 400]

This prints a Markdown table and takes about 9 minutes on one core.

An experiment draws 50 to 1,000 documents with 1 to 20 pieces each. Two properties of a piece, of which one may be
binary, share a part of their variance with the other pieces of the document. "rank correlation" is the interval of
their correlation (`RankCorrelation` in analysis/claims/trends.py), and "upper bin" that of the mean of the second over
the samples in the upper half of the first (`BinnedMeans`). "coin flips" are the intervals of the observed share of coin
flips among the votes of B replicas, value ± 2 standard errors (`stats.mean_std_error`), and of the share that 127
replicas would show (`stats.coin_flip_range`); the probability that a replica calls a piece a member has a part that the
pieces of a document share.

The coverage is the share of experiments whose nominal 95% interval contains the true value; its standard error is 1.1
points at 95% of 400 experiments. "samples" are intervals that treat pieces as independent, "documents" those over
documents.

D: documents, N: samples, B: replicas.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import scipy.special
import scipy.stats

from analysis.claims.trends import BinnedMeans, RankCorrelation
from lm_mia import stats

SIZES = ((50, 20), (200, 5), (1000, 1))
"""Numbers of documents, and of their pieces."""
SHARED = (0.0, 0.5, 0.9)
"""The part of the variance that the pieces of a document share."""
_CORRELATIONS = (0.0, 0.6)
_REPLICAS = (8, 32)
_BINARY_ABOVE = 1.0
# Probabilities are normal numbers with this mean and standard deviation, on the scale of probit.
_MEAN, _SPREAD = -0.5, 1.0

Covered = Mapping[str, tuple[bool, bool]]
"""Name of a number -> whether the intervals over samples and over documents cover it."""


def draw(
    rng: np.random.Generator, documents: int, pieces: int, shared: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns standard normal numbers of the pieces of all documents, and the document of each piece."""
    shared_D = np.sqrt(shared) * rng.normal(size=documents)
    own_N = np.sqrt(1 - shared) * rng.normal(size=documents * pieces)
    return np.repeat(shared_D, pieces) + own_N, np.repeat(np.arange(documents), pieces)


def trends(
    rng: np.random.Generator, documents: int, pieces: int, shared: float, r: float, *, binary: bool
) -> Covered:
    """Draws two properties with the correlation r, and computes the intervals."""
    x_N, document_N = draw(rng, documents, pieces, shared)
    y_N = r * x_N + np.sqrt(1 - r**2) * draw(rng, documents, pieces, shared)[0]
    y_N = (y_N > _BINARY_ABOVE).astype(float) if binary else scipy.special.ndtr(y_N)
    true_r, true_mean = true_values(r, binary)
    covered: dict[str, list[bool]] = {"rank correlation": [], "upper bin": []}
    for cluster_N in (np.arange(len(x_N)), document_N):
        trend = RankCorrelation.from_samples(x_N, y_N, cluster_N)
        covered["rank correlation"].append(trend is not None and trend.low <= true_r <= trend.high)
        means = BinnedMeans.from_samples(x_N, y_N, cluster_N, 2)
        covered["upper bin"].append(bool(means.low_K[1] <= true_mean <= means.high_K[1]))
    return {name: (first, second) for name, (first, second) in covered.items()}


@functools.cache
def true_values(r: float, binary: bool) -> tuple[float, float]:
    """Returns the rank correlation of infinitely many samples, and the mean of y where x is above its median.

    They follow from normal integrals over x of the mean and the mean rank of y given x.
    """
    at_x = scipy.stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    if binary:
        y_at_x = scipy.stats.norm.sf((_BINARY_ABOVE - r * at_x) / np.sqrt(1 - r**2))
        # The rank of a binary y is linear in y.
        p = y_at_x.mean()
        standard_deviation = np.sqrt(p * (1 - p))
    else:
        y_at_x = scipy.special.ndtr(r * at_x / np.sqrt(2 - r**2))
        standard_deviation = np.sqrt(1 / 12)
    rank_x = scipy.special.ndtr(at_x)
    covariance = np.mean((rank_x - 0.5) * y_at_x)
    return float(covariance / np.sqrt(1 / 12) / standard_deviation), float(y_at_x[100_000:].mean())


def coin_flips(
    rng: np.random.Generator, documents: int, pieces: int, shared: float, replicas: int
) -> Covered:
    """Draws votes of replicas, and computes the intervals of the observed share and of that at 127 replicas."""
    level_N, document_N = draw(rng, documents, pieces, shared)
    p_N = scipy.special.ndtr(_MEAN + _SPREAD * level_N)
    vote_BxN = (rng.random((replicas, len(p_N))) < p_N).astype(np.float32)
    threshold_Bx1 = np.full((replicas, 1), 0.5, np.float32)
    k_low, _ = stats.coin_flip_cutoff(replicas)
    votes_K = np.arange(replicas + 1)
    is_coin_flip_K = (k_low <= votes_K) & (votes_K <= replicas - k_low)
    truth, truth_at_127 = (true_share(count) for count in (replicas, stats.STRONGMIA_REPLICAS))
    covered: dict[str, list[bool]] = {"observed share": [], "share at 127": []}
    for cluster_N in (None, document_N):
        votes = stats.count_vote_histograms(vote_BxN, threshold_Bx1, cluster_N)
        counts = votes.samples_FxGxK[0], votes.called_FxRxK[0]
        share = votes.samples_FxK[0] @ is_coin_flip_K / len(p_N)
        error = stats.mean_std_error(*counts, is_coin_flip_K)
        covered["observed share"].append(abs(share - truth) <= 1.96 * error)
        limits = stats.coin_flip_range(*counts)
        covered["share at 127"].append(limits.low <= truth_at_127 <= limits.high)
    return {name: (first, second) for name, (first, second) in covered.items()}


@functools.cache
def true_share(replicas: int) -> float:
    """Returns the share of coin flips with this number of replicas, of infinitely many samples."""
    level = scipy.stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    p = scipy.special.ndtr(_MEAN + _SPREAD * level)
    return float(stats.coin_flip_probability(p, replicas).mean())


def rows(experiments: int) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table."""

    def simulate(name: str, *size: int | float, **options: float) -> Iterator[tuple[str, ...]]:
        kind = coin_flips if "replicas" in options else trends
        yield from coverage(kind, experiments, name, *size, **options)

    for (documents, pieces), shared in itertools.product(SIZES, SHARED):
        if pieces == 1 and shared:
            continue
        size = documents, pieces, shared
        for r, binary in itertools.product(_CORRELATIONS, (False, True)):
            kind = "binary" if binary else "continuous"
            yield from simulate(f"{kind}, correlation {r:g}", *size, r=r, binary=binary)
        for replicas in _REPLICAS:
            yield from simulate(f"coin flips, B = {replicas}", *size, replicas=replicas)


def coverage(
    experiment: Callable[..., Covered], experiments: int, name: str, *size: float, **options: float
) -> Iterator[tuple[str, ...]]:
    """Yields a row for each number of one experiment."""
    rng = np.random.default_rng([2026, *(int(100 * s) for s in size), len(name)])
    results = [experiment(rng, *size, **options) for _ in range(experiments)]
    for number in results[0]:
        share_2 = np.mean([result[number] for result in results], axis=0)
        documents, pieces, shared = size
        yield (
            *(name, number, f"{documents} x {pieces}", f"{100 * shared:.0f}%"),
            *(f"{100 * share:.1f}" for share in share_2),
        )


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description="Simulates intervals over pieces of documents.")
    parser.add_argument("--experiments", type=int, default=400)
    print("| design | number | documents x pieces | shared | over samples | over documents |")
    print("|---|---|---|---:|---:|---:|")
    for row in rows(parser.parse_args().experiments):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
