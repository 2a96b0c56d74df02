"""Synthetic samples with C4-like lengths, in memory.

Lengths are lognormal and cut at L tokens; with L = 1,024, samples have 400 tokens on average after the cut.

N: samples, L: tokens per packed sequence.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from lm_mia.data.population import Population

LENGTH_TOKENS, MEAN_TOKENS = 1024, 400
_SIGMA = 1.0  # standard deviation of log lengths, with which a tenth of the samples is cut
_FIRST_TOKEN_ID = 4  # the ids below are pad, eos, bos and unk


def log_median(mean_tokens: float, length_tokens: int) -> float:
    """Returns the mean of log lengths with which samples cut at length_tokens have mean_tokens tokens on average."""

    def excess_tokens(mu: float) -> float:
        z = (np.log(length_tokens) - mu) / _SIGMA
        uncut = np.exp(mu + _SIGMA**2 / 2) * stats.norm.cdf(z - _SIGMA)
        return float(uncut + length_tokens * stats.norm.sf(z) - mean_tokens)

    return float(optimize.brentq(excess_tokens, 0, 2 * np.log(length_tokens)))  # type: ignore[arg-type]


def lengths(samples: int, scale: int = 1, seed: int = 0) -> np.ndarray:
    """Draws length_N, the number of tokens of each sample: 3 to 1,024 / scale, with a mean of about 400 / scale."""
    L = LENGTH_TOKENS // scale
    drawn_N = np.random.default_rng(seed).lognormal(
        log_median(MEAN_TOKENS / scale, L), _SIGMA, samples
    )
    return np.clip(np.rint(drawn_N), 3, L).astype(np.int64)


def population(samples: int, vocab_size: int, scale: int = 1, seed: int = 0) -> Population:
    """Returns samples with such lengths and random tokens, none of which is padding."""
    length_N = lengths(samples, scale, seed)
    rng = np.random.default_rng([seed, 1])
    tokens = rng.integers(_FIRST_TOKEN_ID, vocab_size, length_N.sum(), dtype=np.uint16)
    settings = {"population.length_tokens": LENGTH_TOKENS // scale}
    manifest = {"settings": settings, "vocab_size": vocab_size}
    return Population(Path(), tokens, np.append(0, np.cumsum(length_N)), manifest)


def check_scale(parser: argparse.ArgumentParser, scale: int) -> None:
    """Ends the command with an error message if --scale, which divides the lengths of samples, is invalid."""
    if scale < 1 or LENGTH_TOKENS % scale:
        parser.error(f"--scale={scale}: must divide {LENGTH_TOKENS}")
