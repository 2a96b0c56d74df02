"""Probabilistic discoverable extraction: how likely a model is to say a suffix, given what came before it.

N: samples, S: tokens of a suffix, V: pieces of the vocabulary. Everything is float64 and in logarithms to the end.

Source: Hayes et al. 2025, Measuring memorization in language models via probabilistic extraction.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How tokens are drawn: temperature, then the top k pieces, then the smallest set that holds top_p."""

    temperature: float = 1.0
    """0: greedy, the likeliest piece always."""
    top_k: int = 0
    """0: all. Pieces as likely as the k-th are kept too."""
    top_p: float = 1.0
    """The likeliest pieces until their sum reaches it; of equally likely ones, those with the lower number first."""

    def __str__(self) -> str:
        if self.temperature == 0:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top {self.top_k}"] if self.top_k else []
        parts += [f"top p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join(parts)


def token_log_probs(
    logits_SxV: ArrayLike, token_S: ArrayLike, scheme: Scheme
) -> NDArray[np.float64]:
    """log_p_S: of drawing each token where the tokens before it are given (teacher forcing); -inf where it never is.

    Args:
      logits_SxV: of the pieces at each place, or their log-probabilities; leading dimensions are kept.
      token_S: the tokens.
      scheme: how they are drawn. Greedy takes the first of equally likely pieces.
    """
    logits = np.asarray(logits_SxV, np.float64)
    token = np.asarray(token_S)[..., None]
    if scheme.temperature == 0:
        return np.where(logits.argmax(-1) == token[..., 0], 0.0, -np.inf)
    logits = logits / scheme.temperature
    of_token = np.take_along_axis(logits, token, -1)
    kept = np.ones(logits.shape, bool)
    if 0 < scheme.top_k < logits.shape[-1]:
        kept = logits >= np.partition(logits, -scheme.top_k, -1)[..., [-scheme.top_k]]
    if scheme.top_p < 1:
        masked = np.where(kept, logits, -np.inf)
        order = np.argsort(-masked, axis=-1, kind="stable")
        sorted_ = np.take_along_axis(masked, order, -1)
        p = np.exp(sorted_ - sorted_[..., :1])  # of the likeliest exactly 1, so that ties stay ties
        p /= p.sum(-1, keepdims=True)
        # the piece that reaches top_p is the last one kept
        whole = np.cumsum(p, -1) - p < scheme.top_p
        np.put_along_axis(kept, order, whole & np.take_along_axis(kept, order, -1), -1)
    there = np.take_along_axis(kept, token, -1)[..., 0]
    value = of_token[..., 0] - _log_sum(np.where(kept, logits, -np.inf))
    return np.where(there, value, -np.inf)


def log_probability(token_log_prob_NxS: ArrayLike) -> NDArray[np.float64]:
    """log p_z, N: of drawing a whole suffix, the sum over its tokens."""
    return np.asarray(token_log_prob_NxS, np.float64).sum(-1)


def probability(log_p_z: ArrayLike, queries: ArrayLike) -> NDArray[np.float64]:
    """p: of at least one success in n independent queries, 1 - (1 - p_z)^n, exact also where p_z is below 1e-16."""
    return -np.expm1(np.asarray(queries, np.float64) * _log_miss(log_p_z))


def queries(log_p_z: ArrayLike, probability: ArrayLike) -> NDArray[np.float64]:
    """n, whole numbers as floats: the fewest queries that succeed at least once with this probability.

    1 where p_z is that large; inf where p_z is 0, or the probability 1 and p_z below it.

    Raises:
      ValueError: unless 0 < probability <= 1.
    """
    p = np.asarray(probability, np.float64)
    if not ((p > 0) & (p <= 1)).all():
        raise ValueError(f"probability={probability}: must be in (0, 1]")
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log1p(-p) / _log_miss(log_p_z)
    # p_z = 1 gives 0 or nan (both logs infinite): one query is enough
    exact = np.where(np.asarray(log_p_z, np.float64) >= np.log(p), 1.0, exact)
    # a quotient that is whole but for rounding is that number
    near = np.round(exact)
    return np.where(np.isclose(exact, near, rtol=1e-12, atol=0), near, np.ceil(exact))


def extracted_share(log_p_z_N: ArrayLike, queries: int, probability: float) -> float:
    """Share of samples that are (n, p)-discoverably extractable: p at least, within n queries."""
    log_p_z_N = np.asarray(log_p_z_N, np.float64)
    return float((-np.expm1(queries * _log_miss(log_p_z_N)) >= probability).mean())


def _log_miss(log_p_z: ArrayLike) -> NDArray[np.float64]:
    """log(1 - p_z), -inf where p_z is 1."""
    log_p = np.asarray(log_p_z, np.float64)
    if (log_p > 0).any():
        raise ValueError("log_p_z: must not be above 0")
    with np.errstate(divide="ignore"):
        # close to 1, 1 - p_z must not be rounded before it is formed
        return np.where(log_p > -0.5, np.log(-np.expm1(log_p)), np.log1p(-np.exp(log_p)))


def _log_sum(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    most = logits.max(-1)
    return most + np.log(np.exp(logits - most[..., None]).sum(-1))
