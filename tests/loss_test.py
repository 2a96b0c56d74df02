import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import loss


def case(seed: int, B: int = 4, L: int = 6, V: int = 5) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    logits_BxLxV = rng.normal(0, 3, (B, L, V)).astype(np.float32)
    return (
        jnp.asarray(logits_BxLxV),
        jnp.asarray(rng.integers(0, V, (B, L)), jnp.int32),
        jnp.asarray(rng.integers(0, L + 1, B), jnp.int32),
    )


def slow(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> list[list[float]]:
    """Losses of every sample's predicted tokens, float64, one at a time."""
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


def test_hand_worked():
    """Probabilities 1/2, 1/4 and 1/4; position l predicts token l + 1."""
    logits_BxLxV = jnp.log(jnp.array([[[2.0, 1.0, 1.0], [1.0, 1.0, 2.0], [7.0, 0.1, 0.1]]]))
    x_BxL, length_B = jnp.array([[1, 0, 0]]), jnp.array([3])
    expected = [math.log(2), math.log(4)]
    got = loss.token_losses(logits_BxLxV, x_BxL, length_B)
    np.testing.assert_allclose(got, [expected], rtol=1e-6)
    assert float(loss.batch_loss(logits_BxLxV, x_BxL, length_B)) == pytest.approx(1.5 * math.log(2))
    np.testing.assert_allclose(
        loss.sample_losses(logits_BxLxV, x_BxL, length_B), [1.5 * math.log(2)], rtol=1e-6
    )


@pytest.mark.parametrize("V", [2, 5, 1000])
def test_uniform_logits_cost_the_log_of_the_vocabulary(V: int):
    _, x_BxL, _ = case(0)
    length_B = jnp.array([6, 2, 3, 6])
    for level in (0.0, -7.5, 1e4):
        logits_BxLxV = jnp.full((4, 6, V), level)
        assert float(loss.batch_loss(logits_BxLxV, x_BxL % V, length_B)) == pytest.approx(
            math.log(V), abs=1e-3 if level == 1e4 else 1e-6 * V
        )


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_equals_a_slow_reference(seed: int):
    logits_BxLxV, x_BxL, length_B = case(seed)
    expected = slow(logits_BxLxV, x_BxL, length_B)
    got_BxL1 = loss.token_losses(logits_BxLxV, x_BxL, length_B)
    assert (got_BxL1.dtype, got_BxL1.shape) == (np.float32, (4, 5))
    padded = [row + [0.0] * (5 - len(row)) for row in expected]
    np.testing.assert_allclose(got_BxL1, padded, rtol=1e-4, atol=1e-5)
    means = np.array([sum(row) / len(row) if row else math.nan for row in expected])
    got_B = loss.sample_losses(logits_BxLxV, x_BxL, length_B)
    np.testing.assert_allclose(got_B, means, rtol=1e-4, atol=1e-5)
    every = [value for row in expected for value in row]
    if every:
        got = float(loss.batch_loss(logits_BxLxV, x_BxL, length_B))
        assert got == pytest.approx(np.mean(every), rel=1e-4)


def test_padding_counts_exactly_nothing():
    logits_BxLxV, x_BxL, _ = case(1)
    length_B = jnp.array([6, 3, 2, 1])
    losses = np.asarray(loss.token_losses(logits_BxLxV, x_BxL, length_B))
    assert (losses > 0).tolist() == [[True] * (n - 1) + [False] * (6 - n) for n in (6, 3, 2, 1)]
    assert losses[3].tolist() == [0.0] * 5
    # Logits at and after the last real token, and the tokens there, are not read.
    real_BxL = np.arange(6) < np.asarray(length_B)[:, None]
    used_BxL = np.arange(6) < np.asarray(length_B)[:, None] - 1
    other = loss.token_losses(
        jnp.where(used_BxL[..., None], logits_BxLxV, 99.0), jnp.where(real_BxL, x_BxL, 4), length_B
    )
    np.testing.assert_array_equal(other, losses)


def test_the_batch_mean_is_over_tokens_not_samples():
    logits_BxLxV, x_BxL, _ = case(2, B=2)
    length_B = jnp.array([6, 2])
    of_each = np.asarray(loss.sample_losses(logits_BxLxV, x_BxL, length_B))
    got = float(loss.batch_loss(logits_BxLxV, x_BxL, length_B))
    assert got == pytest.approx((5 * of_each[0] + 1 * of_each[1]) / 6, rel=1e-6)
    assert abs(got - of_each.mean()) > 0.01


def test_fewer_than_two_tokens_and_filler():
    logits_BxLxV, x_BxL, _ = case(3)
    got = np.asarray(loss.sample_losses(logits_BxLxV, x_BxL, jnp.array([0, 1, 2, 6])))
    assert np.isnan(got).tolist() == [True, True, False, False]
    alone = loss.batch_loss(logits_BxLxV[2:], x_BxL[2:], jnp.array([2, 6]))
    filled = loss.batch_loss(logits_BxLxV, x_BxL, jnp.array([0, 1, 2, 6]))
    assert float(filled) == pytest.approx(float(alone), rel=1e-6)
    for length in (0, 1):
        assert np.isnan(loss.batch_loss(logits_BxLxV, x_BxL, jnp.full(4, length)))


def test_large_logits_stay_finite():
    logits_BxLxV = jnp.array([[[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 0.0, 0.0]]])
    x_BxL, length_B = jnp.array([[2, 0, 0]]), jnp.array([3])
    got = loss.token_losses(logits_BxLxV, x_BxL, length_B)
    assert np.asarray(got).tolist() == [[0.0, 2e4]]
    grads = jax.grad(loss.batch_loss)(logits_BxLxV, x_BxL, length_B)
    np.testing.assert_allclose(grads, [[[0, 0, 0], [-0.5, 0.5, 0], [0, 0, 0]]])


def test_gradient_equals_the_formula_and_finite_differences():
    """(softmax - one hot) / predicted tokens where a token is predicted, exactly 0 elsewhere."""
    logits_BxLxV, x_BxL, length_B = case(4)
    length_B = length_B.at[0].set(0).at[1].set(6)
    grads = np.asarray(jax.grad(loss.batch_loss)(logits_BxLxV, x_BxL, length_B), np.float64)
    count = sum(max(int(n) - 1, 0) for n in length_B)
    expected = np.zeros_like(grads)
    for b, n in enumerate(length_B):
        for i in range(1, int(n)):
            z_V = np.asarray(logits_BxLxV[b, i - 1], np.float64)
            expected[b, i - 1] = np.exp(z_V) / np.exp(z_V).sum() / count
            expected[b, i - 1, int(x_BxL[b, i])] -= 1 / count
    np.testing.assert_allclose(grads, expected, rtol=1e-4, atol=1e-6)
    assert (grads[expected == 0] == 0).all()

    def slow_mean(logits: np.ndarray) -> float:
        return sum(map(sum, slow(jnp.asarray(logits), x_BxL, length_B))) / count

    logits = np.asarray(logits_BxLxV, np.float32)
    for place in [(1, 0, 0), (1, 4, 3), (1, 5, 2), (0, 0, 0)]:
        up, down = logits.copy(), logits.copy()
        up[place] += 0.25
        down[place] -= 0.25
        step = np.float64(up[place]) - np.float64(down[place])
        # Central differences of width h err by h^2 / 24 times a third derivative below 1 / 8 a token.
        assert grads[place] == pytest.approx((slow_mean(up) - slow_mean(down)) / step, abs=1e-3)


summed: Any = loss.summed


def chunk_case(T: int, seed: int = 0, V: int = 13, D: int = 6) -> tuple[Any, Any, Any, Any]:
    """Activations, embeddings, targets and weights, some of which are 0."""
    rng = np.random.default_rng(seed)
    weight_T = rng.uniform(0.5, 2, T) * (rng.random(T) < 0.7)
    return (
        jnp.asarray(rng.normal(0, 1, (T, D)), jnp.float32),
        jnp.asarray(rng.normal(0, 1, (V, D)), jnp.float32),
        jnp.asarray(rng.integers(0, V, T), jnp.int32),
        jnp.asarray(weight_T, jnp.float32),
    )


def slow_summed(h_TxD: Any, embed_VxD: Any, target_T: Any, weight_T: Any) -> tuple[float, Any, Any]:
    """Value and both gradients, float64, a token at a time."""
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


# T = 30: chunks of a token, that divide it, that do not, of all, of more than all
@pytest.mark.parametrize("chunk_tokens", [1, 6, 7, 29, 30, 31, 4096])
def test_summed_equals_a_slow_reference_whatever_the_chunks(chunk_tokens: int):
    args = chunk_case(30)
    total, d_h_TxD, d_embed_VxD = slow_summed(*args)
    plain = summed(*args, chunk_tokens)
    assert (plain.dtype, plain.shape) == (np.float32, ())
    assert float(plain) == pytest.approx(total, rel=1e-6)
    grad = jax.value_and_grad(lambda *a: 3 * summed(*a, chunk_tokens), argnums=(0, 1))
    value, (got_h_TxD, got_embed_VxD) = grad(*args)
    assert float(value) == pytest.approx(3 * total, rel=1e-6)
    np.testing.assert_allclose(got_h_TxD, 3 * d_h_TxD, rtol=0, atol=3e-6 * np.abs(d_h_TxD).max())
    np.testing.assert_allclose(
        got_embed_VxD, 3 * d_embed_VxD, rtol=0, atol=3e-6 * np.abs(d_embed_VxD).max()
    )
    assert (np.asarray(got_h_TxD)[np.asarray(args[3]) == 0] == 0).all()


def plain_formula(h_TxD: Any, embed_VxD: Any, target_T: Any, weight_T: Any) -> jax.Array:
    log_p_TxV = jax.nn.log_softmax(h_TxD.astype(jnp.float32) @ embed_VxD.T)
    return -(weight_T * log_p_TxV[jnp.arange(len(target_T)), target_T]).sum()


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 10**6))
@settings(deadline=None, max_examples=5)
def test_gradient_equals_that_of_the_plain_formula(T: int, chunk_tokens: int, seed: int):
    args = chunk_case(T, seed)
    expected = jax.grad(plain_formula, argnums=(0, 1))(*args)
    got = jax.grad(lambda *a: summed(*a, chunk_tokens), argnums=(0, 1))(*args)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_bfloat16_activations_have_an_exact_loss_and_a_near_gradient():
    """Products are added up in float32, and logits stay so; only what goes into a product is rounded, by 2^-9."""
    h_TxD, embed_VxD, *rest = chunk_case(400)
    rough_TxD = h_TxD.astype(jnp.bfloat16)
    embed_VxD = embed_VxD.astype(jnp.bfloat16).astype(jnp.float32)
    total, d_h_TxD, d_embed_VxD = slow_summed(rough_TxD, embed_VxD, *rest)
    grad = jax.value_and_grad(summed, argnums=(0, 1))
    value, (got_h_TxD, got_embed_VxD) = grad(rough_TxD, embed_VxD, *rest, 64)
    types = (value.dtype, got_h_TxD.dtype, got_embed_VxD.dtype)
    assert types == (np.float32, jnp.bfloat16, np.float32)
    assert float(value) == pytest.approx(total, rel=1e-6)
    for got, expected in ((got_h_TxD, d_h_TxD), (got_embed_VxD, d_embed_VxD)):
        error = np.abs(np.asarray(got, np.float64) - expected).max() / np.abs(expected).max()
        assert error < 0.01


def test_tokens_without_weight_count_exactly_nothing():
    """Whatever they hold; a sum of none is 0, and so is its gradient."""
    h_TxD, embed_VxD, target_T, weight_T = chunk_case(30)
    none_T = np.asarray(weight_T) == 0
    assert none_T.any()
    other_TxD = jnp.where(none_T[:, None], 50.0, h_TxD)
    grad = jax.value_and_grad(lambda *a: summed(*a, 7), argnums=(0, 1))
    both = [
        grad(h, embed_VxD, jnp.where(none_T, 0, target_T), weight_T) for h in (h_TxD, other_TxD)
    ]
    jax.tree.map(np.testing.assert_array_equal, *both)
    for leaf in jax.tree.leaves(grad(h_TxD, embed_VxD, target_T, jnp.zeros(30))):
        assert not leaf.any()


def test_a_hand_worked_packed_row():
    """Uniform probabilities over 4: log 4 for each token that follows one of its own sample.

    2 of 3 tokens, 0 of 1, 1 of 2 and none of the tail; 2 of 3; and 7 of 8, a whole row.
    """
    segment_RxL = jnp.array([[1, 1, 1, 2, 3, 3, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [1] * 8])
    h_RxLxD, x_RxL = jnp.ones((3, 8, 2)), jnp.zeros((3, 8), jnp.int32)
    for chunk_tokens in (5, 8, 100):
        got = loss.packed_loss(h_RxLxD, jnp.zeros((4, 2)), x_RxL, segment_RxL, chunk_tokens)
        assert float(got) == pytest.approx((3 + 2 + 7) * math.log(4), rel=1e-6)


def test_packed_loss_is_the_sum_of_token_losses():
    """Samples of 6, 2 and 3 tokens in two rows, and each in a row of its own."""
    rng = np.random.default_rng(0)
    embed_VxD = jnp.asarray(rng.normal(0, 1, (5, 4)), jnp.float32)
    h_BxLxD = jnp.asarray(rng.normal(0, 1, (3, 6, 4)), jnp.float32)
    x_BxL, length_B = jnp.asarray(rng.integers(0, 5, (3, 6))), jnp.array([6, 2, 3])
    expected = loss.token_losses(h_BxLxD @ embed_VxD.T, x_BxL, length_B).sum()
    both = [jnp.concatenate([a[1, :2], a[2, :4]]) for a in (h_BxLxD, x_BxL)]
    h_RxLxD, x_RxL = (jnp.stack([a[0], b]) for a, b in zip((h_BxLxD, x_BxL), both, strict=True))
    segment_RxL = jnp.array([[1] * 6, [1, 1, 2, 2, 2, 0]])
    got = loss.packed_loss(h_RxLxD, embed_VxD, x_RxL, segment_RxL, 5)
    assert float(got) == pytest.approx(float(expected), rel=1e-6)
