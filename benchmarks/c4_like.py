"""Samples of C4-like lengths, in memory: lognormal, cut at L, 400 of 1,024 tokens on average after the cut.

N: samples, L: tokens of a row.
"""

from pathlib import Path

import numpy as np
from scipy import optimize, stats

from lm_mia.data.population import Population

LENGTH_TOKENS, MEAN_TOKENS = 1024, 400
_SIGMA = 1.0  # of log lengths: a tenth of the samples is cut
_FIRST_PIECE = 4  # below are pad, eos, bos and unk


def log_median(mean_tokens: float, length_tokens: int) -> float:
    """The mean of log lengths with which samples cut at length_tokens have so many tokens on average."""

    def surplus(mu: float) -> float:
        z = (np.log(length_tokens) - mu) / _SIGMA
        uncut = np.exp(mu + _SIGMA**2 / 2) * stats.norm.cdf(z - _SIGMA)
        return float(uncut + length_tokens * stats.norm.sf(z) - mean_tokens)

    return float(optimize.brentq(surplus, 0, 2 * np.log(length_tokens)))  # type: ignore[arg-type]


def lengths(samples: int, scale: int = 1, seed: int = 0) -> np.ndarray:
    """length_N: tokens of each sample, 3 to 1,024 / scale, with a mean of about 400 / scale."""
    L = LENGTH_TOKENS // scale
    drawn_N = np.random.default_rng(seed).lognormal(
        log_median(MEAN_TOKENS / scale, L), _SIGMA, samples
    )
    return np.clip(np.rint(drawn_N), 3, L).astype(np.int64)


def population(samples: int, vocab_size: int, scale: int = 1, seed: int = 0) -> Population:
    """Samples of such lengths and of random pieces, none of them padding."""
    length_N = lengths(samples, scale, seed)
    rng = np.random.default_rng([seed, 1])
    tokens = rng.integers(_FIRST_PIECE, vocab_size, length_N.sum(), dtype=np.uint16)
    settings = {"population.length_tokens": LENGTH_TOKENS // scale}
    manifest = {"settings": settings, "vocab_size": vocab_size}
    return Population(Path(), tokens, np.append(0, np.cumsum(length_N)), manifest)
