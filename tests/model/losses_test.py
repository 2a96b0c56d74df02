import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unoptimized import without_optimizations

from lm_mia.model import losses

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture


def slow(logits_BxLxV: np.ndarray, x_BxL: np.ndarray, length_B: np.ndarray) -> list[list[float]]:
    """Returns the losses of each sample's predicted tokens, computed one at a time in float64."""
    logits = np.asarray(logits_BxLxV, np.float64)
    return [
        [
            math.log(sum(math.exp(z - logits[b, i - 1].max()) for z in logits[b, i - 1]))
            + logits[b, i - 1].max()
            - logits[b, i - 1, int(x_BxL[b, i])]
            for i in range(1, int(n))
        ]
        for b, n in enumerate(length_B)
    ]


@functools.cache
def summed(chunk_tokens: int) -> Callable[..., Any]:
    return jax.jit(lambda *args: losses.weighted_cross_entropy(*args, chunk_tokens))


@functools.cache
def gradient(chunk_tokens: int) -> Callable[..., Any]:
    """Returns the value of three times the sum, and its gradients for activations and embeddings."""
    summed: Any = losses.weighted_cross_entropy
    return jax.jit(
        jax.value_and_grad(lambda *args: 3 * summed(*args, chunk_tokens), argnums=(0, 1))
    )


def chunk_case(T: int, seed: int = 0, V: int = 13, D: int = 6) -> tuple[Any, Any, Any, Any]:
    """Returns activations, embeddings, targets and weights, some of which are 0."""
    rng = np.random.default_rng(seed)
    weight_T = rng.uniform(0.5, 2, T) * (rng.random(T) < 0.7)
    return (
        rng.normal(0, 1, (T, D)).astype(np.float32),
        rng.normal(0, 1, (V, D)).astype(np.float32),
        rng.integers(0, V, T).astype(np.int32),
        weight_T.astype(np.float32),
    )


def slow_summed(h_TxD: Any, embed_VxD: Any, target_T: Any, weight_T: Any) -> tuple[float, Any, Any]:
    """Computes the value and both gradients one token at a time, in float64."""
    h, e, w = (np.asarray(a, np.float64) for a in (h_TxD, embed_VxD, weight_T))
    total, d_h, d_e = 0.0, np.zeros_like(h), np.zeros_like(e)
    for t, target in enumerate(np.asarray(target_T).tolist()):
        logits_V = e @ h[t]
        p_V = np.exp(logits_V - logits_V.max())
        p_V /= p_V.sum()
        total -= w[t] * math.log(p_V[target])
        p_V[target] -= 1
        d_h[t] = w[t] * p_V @ e
        d_e += w[t] * np.outer(p_V, h[t])
    return total, d_h, d_e


# Chunks of one token, chunks that divide the tokens, that do not, that leave one, longer than all; and a single token.
@pytest.mark.parametrize(
    ("T", "chunk_tokens"), [(30, 1), (30, 6), (30, 7), (30, 29), (30, 31), (1, 1), (1, 7)]
)
def test_cross_entropy_equals_slow_reference_for_any_chunks(T: int, chunk_tokens: int):
    for seed in (0, 4, 5):
        args = chunk_case(T, seed)
        total, d_h_TxD, d_embed_VxD = slow_summed(*args)
        plain = summed(chunk_tokens)(*args)
        assert (plain.dtype, plain.shape) == (np.float32, ())
        assert float(plain) == pytest.approx(total, rel=1e-6)
        value, (actual_h_TxD, actual_embed_VxD) = gradient(chunk_tokens)(*args)
        assert float(value) == pytest.approx(3 * total, rel=1e-6)
        for actual, expected in ((actual_h_TxD, d_h_TxD), (actual_embed_VxD, d_embed_VxD)):
            atol = 3e-6 * max(np.abs(expected).max(), 1e-9)
            np.testing.assert_allclose(actual, 3 * expected, rtol=0, atol=atol)
        assert (np.asarray(actual_h_TxD)[args[3] == 0] == 0).all()


def test_bfloat16_activations_give_exact_loss_and_close_gradient():
    """Products are accumulated in float32, and logits are float32; only the factors are rounded, by 2^-9."""
    h_TxD, embed_VxD, *targets_and_weights = chunk_case(400)
    bf16_TxD = h_TxD.astype(jnp.bfloat16)  # a numpy array too
    embed_VxD = embed_VxD.astype(jnp.bfloat16).astype(np.float32)
    total, d_h_TxD, d_embed_VxD = slow_summed(bf16_TxD, embed_VxD, *targets_and_weights)
    value, (actual_h_TxD, actual_embed_VxD) = gradient(64)(
        bf16_TxD, embed_VxD, *targets_and_weights
    )
    types = (value.dtype, actual_h_TxD.dtype, actual_embed_VxD.dtype)
    assert types == (np.float32, jnp.bfloat16, np.float32)
    assert float(value) == pytest.approx(3 * total, rel=1e-6)
    for actual, expected in ((actual_h_TxD, 3 * d_h_TxD), (actual_embed_VxD, 3 * d_embed_VxD)):
        error = np.abs(np.asarray(actual, np.float64) - expected).max() / np.abs(expected).max()
        assert error < 0.01


def test_large_logits_stay_finite():
    """The losses are 0 and 2e4, each with weight 1/2; the logits are the activations."""
    h_TxD = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], np.float32)
    weight_T = np.full(2, 0.5, np.float32)
    value, (d_h_TxD, _) = gradient(7)(
        h_TxD, np.eye(3, dtype=np.float32), np.array([0, 0]), weight_T
    )
    assert float(value) == 3e4
    np.testing.assert_allclose(d_h_TxD, [[0, 0, 0], [-1.5, 1.5, 0]])


def test_tokens_with_weight_0_change_no_bit():
    """A sum over no tokens is 0, and so is its gradient."""
    h_TxD, embed_VxD, target_T, weight_T = chunk_case(30)
    none_T = weight_T == 0
    assert none_T.any()
    other_TxD = np.where(none_T[:, None], np.float32(50), h_TxD)
    target_T = np.where(none_T, np.int32(0), target_T)
    both = [gradient(7)(h, embed_VxD, target_T, weight_T) for h in (h_TxD, other_TxD)]
    jax.tree.map(np.testing.assert_array_equal, *both)
    for leaf in jax.tree.leaves(gradient(7)(h_TxD, embed_VxD, target_T, np.zeros_like(weight_T))):
        assert not leaf.any()


PACKED = jax.jit(losses.packed_loss, static_argnums=4)


def test_packed_loss_worked_by_hand():
    """With uniform probabilities over 4 tokens, each token that follows a token of the same sample adds log 4.

    The first packed sequence has 2 + 0 + 1 of these tokens, the second has 2, and the third, a full sample, has 7.
    """
    segment_BxL = np.array([[1, 1, 1, 2, 3, 3, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [1] * 8])
    h_BxLxD, x_BxL = np.ones((3, 8, 2), np.float32), np.zeros((3, 8), np.int32)
    for chunk_tokens in (5, 8, 100):
        actual = PACKED(h_BxLxD, np.zeros((4, 2), np.float32), x_BxL, segment_BxL, chunk_tokens)
        assert float(actual) == pytest.approx((3 + 2 + 7) * math.log(4), rel=1e-6)


def test_packed_loss_is_the_sum_of_token_losses():
    """Samples of 6, 2 and 3 tokens are in two packed sequences, or each in a separate one."""
    rng = np.random.default_rng(0)
    embed_VxD = rng.normal(0, 1, (5, 4)).astype(np.float32)
    h_BxLxD = rng.normal(0, 1, (3, 6, 4)).astype(np.float32)
    x_BxL, length_B = rng.integers(0, 5, (3, 6)).astype(np.int32), np.array([6, 2, 3])
    expected = sum(map(sum, slow(h_BxLxD @ embed_VxD.T, x_BxL, length_B)))
    both = [np.concatenate([a[1, :2], a[2, :4]]) for a in (h_BxLxD, x_BxL)]
    h_BxLxD, x_BxL = (np.stack([a[0], b]) for a, b in zip((h_BxLxD, x_BxL), both, strict=True))
    segment_BxL = np.array([[1] * 6, [1, 1, 2, 2, 2, 0]])
    actual = PACKED(h_BxLxD, embed_VxD, x_BxL, segment_BxL, 5)
    assert float(actual) == pytest.approx(expected, rel=1e-6)
