"""Probabilistic discoverable extraction: the probability that a model generates a suffix after its prefix.

Legend: N samples, S tokens of a suffix, V vocabulary entries. All arithmetic is in float64 and in log space.

Source: Hayes et al. 2025, Measuring memorization in language models via probabilistic extraction.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_counts, as_float64


@dataclasses.dataclass(frozen=True)
class SamplingScheme:
    """How tokens are sampled: by temperature, then among the top k tokens, then among the top-p tokens.

    Raises:
      ValueError: if the temperature is negative or not finite, if top_k is not a whole number of at least 0, or if
        top_p is outside [0, 1].
    """

    temperature: float = 1.0
    """0: greedy decoding, which always takes the most likely token."""
    top_k: int = 0
    """0: all tokens. Tokens that are as likely as the k-th are also kept."""
    top_p: float = 1.0
    """The most likely tokens are kept until their probabilities sum to at least top_p, and at least one of them. Among
    equally likely tokens, those with the lower number come first."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < np.inf:
            raise ValueError(f"temperature={self.temperature}: must be finite, 0 or larger")
        if not 0 <= self.top_k < np.inf or self.top_k != int(self.top_k):
            raise ValueError(
                f"top_k={self.top_k}: must be a whole number, 0 (all tokens) or larger"
            )
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must be between 0 and 1")

    def __str__(self) -> str:
        if self.temperature == 0:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top {self.top_k}"] if self.top_k else []
        parts += [f"top p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join(parts)


def token_log_probs(
    logits_SxV: ArrayLike, token_S: ArrayLike, scheme: SamplingScheme
) -> FloatArray:
    """Computes the log-probability of sampling each token, given the tokens before it (teacher forcing).

    Args:
      logits_SxV: logits or log-probabilities of the vocabulary at each position; -inf for a token of probability 0.
        Further leading dimensions are allowed.
      token_S: token numbers, of the same leading shape.
      scheme: how tokens are sampled. Greedy decoding takes the first of equally likely tokens.

    Returns:
      log_p_S, in nats; -inf for a token that the scheme never samples.

    Raises:
      ValueError: if the shapes do not match, if a token is not a number from 0 to V - 1, or if the largest logit of a
        position is not finite after division by the temperature, or one is NaN.

    Example:
      >>> from lm_mia import stats
      >>> logits_1xV = [[2.0, 1.0, 0.0]]
      >>> stats.token_log_probs(logits_1xV, [1], stats.SamplingScheme()).round(3)
      array([-1.408])
      >>> stats.token_log_probs(logits_1xV, [1], stats.SamplingScheme(temperature=0))
      array([-inf])
    """
    logits, token_S = as_float64(logits_SxV, "logits"), as_counts(token_S, "token numbers")
    if logits.ndim == 0 or logits.shape[-1] == 0 or token_S.shape != logits.shape[:-1]:
        raise ValueError(
            f"logits of shape {logits.shape} do not match token numbers of shape {token_S.shape}"
        )
    if np.any(token_S >= logits.shape[-1]):
        raise ValueError(f"token numbers must be below the {logits.shape[-1]} tokens of the logits")
    with np.errstate(over="ignore"):
        logits = logits / (scheme.temperature or 1.0)
    if not np.isfinite(logits.max(-1)).all():
        raise ValueError(
            "the largest logit of each position, divided by the temperature, must be finite, and none NaN"
        )
    token = token_S[..., None]
    if scheme.temperature == 0:
        return np.where(logits.argmax(-1) == token[..., 0], 0.0, -np.inf)
    token_logit = np.take_along_axis(logits, token, -1)
    kept = np.ones(logits.shape, bool)
    if 0 < scheme.top_k < logits.shape[-1]:
        kept = logits >= np.partition(logits, -scheme.top_k, -1)[..., [-scheme.top_k]]
    if scheme.top_p < 1:
        masked = np.where(kept, logits, -np.inf)
        order = np.argsort(-masked, axis=-1, kind="stable")
        descending = np.take_along_axis(masked, order, -1)
        p = np.exp(descending - descending[..., :1])  # the first is exactly 1, so ties remain ties
        p /= p.sum(-1, keepdims=True)
        # The token that reaches top_p is the last one to be kept, and the most likely one is always kept.
        in_nucleus = np.cumsum(p, -1) - p < scheme.top_p
        in_nucleus[..., 0] = True
        np.put_along_axis(kept, order, in_nucleus & np.take_along_axis(kept, order, -1), -1)
    token_kept = np.take_along_axis(kept, token, -1)[..., 0]
    log_p = token_logit[..., 0] - _log_sum_exp(np.where(kept, logits, -np.inf))
    return np.where(token_kept, log_p, -np.inf)


def suffix_log_prob(token_log_prob_NxS: ArrayLike) -> FloatArray:
    """Computes log p_z, the log-probability of sampling a whole suffix: the sum over its tokens.

    Args:
      token_log_prob_NxS: result of `token_log_probs` for each suffix, in nats.

    Returns:
      log_p_z_N, in nats; NaN if a token's is NaN.

    Raises:
      ValueError: if a log-probability is above 0.
    """
    token_log_prob_NxS = as_float64(token_log_prob_NxS, "log-probabilities")
    if np.any(token_log_prob_NxS > 0):
        raise ValueError("log-probabilities must not be above 0")
    with np.errstate(over="ignore"):  # -inf, a probability of 0
        return token_log_prob_NxS.sum(-1)


def extraction_probability(log_p_z: ArrayLike, queries: ArrayLike) -> FloatArray:
    """Computes the probability of generating the suffix at least once in n independent queries: 1 - (1 - p_z)^n.

    The result is accurate even if p_z is below 1e-16.

    Args:
      log_p_z: log-probability of the suffix in one query, in nats; of any shape.
      queries: number of queries, n, 0 or larger; broadcast with log_p_z.

    Returns:
      Probabilities in [0, 1]; NaN where log_p_z is NaN.

    Raises:
      ValueError: if a log-probability is above 0, or a number of queries is not a whole number, 0 or larger.

    Source: Hayes et al. 2025, (n, p)-discoverable extraction.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import extraction_probability
      >>> extraction_probability(np.log([0.5, 1e-20]), queries=2)
      array([7.5e-01, 2.0e-20])
    """
    n = as_float64(queries, "queries")
    # `as_counts` would refuse numbers of queries that are too large for an integer.
    if not np.all((n >= 0) & (n < np.inf) & (n == np.floor(n))):
        raise ValueError(f"queries={queries}: must be whole numbers, 0 or larger")
    log_failure = _log_one_minus_exp(log_p_z)
    # Without a query there is no success, even if log_failure is -inf.
    with np.errstate(over="ignore"):
        return 0.0 - np.expm1(np.where(n == 0, 0.0, np.maximum(n, 1e-300) * log_failure))


def required_queries(log_p_z: ArrayLike, probability: ArrayLike) -> FloatArray:
    """Computes the smallest number of independent queries that generates the suffix with the given probability.

    This is the inverse of `extraction_probability`: the smallest n with 1 - (1 - p_z)^n >= p.

    Args:
      log_p_z: log-probability of the suffix in one query, in nats; of any shape.
      probability: required probability p of at least one success, in (0, 1]; broadcast with log_p_z.

    Returns:
      Integers as floats, at least 1; inf if p_z is 0, or if p is 1 and p_z is not.

    Raises:
      ValueError: if a probability is outside (0, 1] or a log-probability is above 0.

    Source: Hayes et al. 2025, (n, p)-discoverable extraction.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import required_queries
      >>> required_queries(np.log([0.5, 0.01]), probability=0.9)
      array([  4., 230.])
    """
    p = as_float64(probability, "probability")
    if not ((p > 0) & (p <= 1)).all():
        raise ValueError(f"probability={probability}: must be in (0, 1]")
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log1p(-p) / _log_one_minus_exp(log_p_z)
    # If p_z is 1, both logarithms are infinite, and the quotient is 0 or NaN; one query is enough.
    exact = np.where(as_float64(log_p_z, "log_p_z") >= np.log(p), 1.0, exact)
    # A quotient that differs from an integer by rounding errors only is that integer.
    nearest = np.round(exact)
    return np.where(np.isclose(exact, nearest, rtol=1e-12, atol=0), nearest, np.ceil(exact))


@dataclasses.dataclass(frozen=True)
class ExtractionRate:
    """How many samples can be extracted."""

    share: float
    """Share of the samples with a log-probability that are extractable, in [0, 1]; NaN if there are none."""
    left_out: int
    """Number of NaN log-probabilities."""


def extraction_rate(log_p_z_N: ArrayLike, queries: int, probability: float) -> ExtractionRate:
    """Computes the share of samples that are (n, p)-discoverably extractable.

    Args:
      log_p_z_N: log-probability of each suffix in one query, in nats; NaN marks a missing one.
      queries: number of queries, n, 0 or larger.
      probability: required probability p of at least one success in n queries, in (0, 1].

    Returns:
      The share, and the number of suffixes that it leaves out.

    Raises:
      ValueError: if the probability is out of range, or as for `extraction_probability`.

    Source: Hayes et al. 2025, (n, p)-discoverable extraction.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import extraction_rate
      >>> extraction_rate([*np.log([0.5, 0.01]), np.nan], queries=4, probability=0.9)
      ExtractionRate(share=0.5, left_out=1)
    """
    if not 0 < probability <= 1:
        raise ValueError(f"probability={probability}: must be in (0, 1]")
    log_p_z_N = np.atleast_1d(as_float64(log_p_z_N, "log_p_z"))
    present_N = log_p_z_N[~np.isnan(log_p_z_N)]
    extractable_N = extraction_probability(present_N, queries) >= probability
    share = float(extractable_N.mean()) if present_N.size else float("nan")
    return ExtractionRate(share, left_out=log_p_z_N.size - present_N.size)


def _log_one_minus_exp(log_p_z: ArrayLike) -> FloatArray:
    """Computes log(1 - p_z), which is -inf if p_z is 1."""
    log_p = as_float64(log_p_z, "log_p_z")
    if (log_p > 0).any():
        raise ValueError("log_p_z must not be above 0")
    with np.errstate(divide="ignore"):
        # If p_z is close to 1, expm1 forms 1 - p_z without rounding p_z first.
        return np.where(log_p > -0.5, np.log(-np.expm1(log_p)), np.log1p(-np.exp(log_p)))


def _log_sum_exp(logits: FloatArray) -> FloatArray:
    largest = logits.max(-1)
    return largest + np.log(np.exp(logits - largest[..., None]).sum(-1))
