import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import loss, model

SHAPE = model.Shape(layers=2, width=16, heads=4, vocab_size=23, length_tokens=9)
FORWARD = jax.jit(model.forward, static_argnames="dtype")
INIT = jax.jit(model.init, static_argnames="shape")


def mean_loss(logits_BxLxV: jax.Array, x_BxL: Any) -> float:
    return float(loss.batch_loss(logits_BxLxV, x_BxL, jnp.full(len(x_BxL), x_BxL.shape[1])))


def make(seed: int = 0, shape: model.Shape = SHAPE) -> model.Params:
    """Parameters far enough from their first values that every one of them counts."""
    params = INIT(jax.random.key(seed), shape)
    noise = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: p + 0.3 * noise.standard_normal(p.shape).astype(np.float32), params
    )


def tokens(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 23, shape).astype(np.int32)


def slow_norm(x_D: np.ndarray, scale_D: np.ndarray) -> np.ndarray:
    return (x_D - x_D.mean()) / math.sqrt(x_D.var() + 1e-6) * scale_D


def slow_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_forward(params: Any, x_L: np.ndarray) -> np.ndarray:
    """One sample, one position and one head at a time, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    h_LxD = [
        p["embed_VxD"][token] + p["position_LxD"][place] for place, token in enumerate(x_L.tolist())
    ]
    for i in range(len(p["layers"]["ln1_D"])):
        layer = {name: leaf_N[i] for name, leaf_N in p["layers"].items()}
        before = [slow_norm(h_D, layer["ln1_D"]) for h_D in h_LxD]
        heads, K = layer["query_DxHxK"].shape[1:]
        for place in range(len(h_LxD)):
            for h in range(heads):
                q_K = before[place] @ layer["query_DxHxK"][:, h]
                logits = [
                    q_K @ (before[t] @ layer["key_DxHxK"][:, h]) / math.sqrt(K)
                    for t in range(place + 1)
                ]
                weights = np.exp(np.array(logits) - max(logits))
                weights /= weights.sum()
                for t, weight in enumerate(weights):
                    value_K = before[t] @ layer["value_DxHxK"][:, h]
                    h_LxD[place] = h_LxD[place] + weight * (value_K @ layer["out_HxKxD"][h])
        h_LxD = [
            h_D + slow_gelu(slow_norm(h_D, layer["ln2_D"]) @ layer["in_DxF"]) @ layer["out_FxD"]
            for h_D in h_LxD
        ]
    return np.stack([p["embed_VxD"] @ slow_norm(h_D, p["ln_D"]) for h_D in h_LxD])


@pytest.mark.parametrize(("layers", "width", "heads"), [(1, 8, 1), (2, 16, 4), (2, 8, 8)])
def test_forward_equals_a_slow_float64_reference(layers: int, width: int, heads: int):
    shape = dataclasses.replace(SHAPE, layers=layers, width=width, heads=heads)
    params, x_BxL = make(3, shape), tokens(3, 7)
    logits = np.asarray(FORWARD(params, x_BxL))
    expected = np.stack([slow_forward(params, x_L) for x_L in x_BxL])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_hand_worked_model():
    """No layers of effect: logits are inner products of embeddings with the normalised sum of two embeddings."""
    shape = model.Shape(layers=1, width=2, heads=1, vocab_size=3, length_tokens=2)
    params = jax.tree.map(jnp.zeros_like, INIT(jax.random.key(0), shape))
    params["embed_VxD"] = jnp.array([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    params["position_LxD"] = jnp.array([[0.0, 0.0], [2.0, 0.0]])
    params["ln_D"] = jnp.array([1.0, 2.0])
    # Token 1 at place 0 is (0, 3): centred (-1.5, 1.5), normalised (-1, 1), scaled (-1, 2).
    # Token 0 at place 1 is (3, 0): normalised (1, -1), scaled (1, -2).
    logits = FORWARD(params, np.array([[1, 0]]))
    np.testing.assert_allclose(logits, [[[-1, 6, 2], [1, -6, -2]]], rtol=1e-5)


def test_shapes_and_dtypes():
    params = INIT(jax.random.key(0), SHAPE)
    shapes = {
        **{"ln1_D": (16,), "ln2_D": (16,), "in_DxF": (16, 64), "out_FxD": (64, 16)},
        **{f"{name}_DxHxK": (16, 4, 4) for name in ("query", "key", "value")},
        "out_HxKxD": (4, 4, 16),
    }
    assert jax.tree.map(jnp.shape, params) == {
        "embed_VxD": (23, 16),
        "position_LxD": (9, 16),
        "layers": {name: (2, *shape) for name, shape in shapes.items()},
        "ln_D": (16,),
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    for dtype in ("float32", "bfloat16"):
        for length in (1, 5, 9):
            x_BxL = tokens(3, length)
            logits = jax.eval_shape(functools.partial(model.forward, dtype=dtype), params, x_BxL)
            assert (logits.shape, logits.dtype) == ((3, length, 23), np.float32)


def test_initial_values_have_the_stated_scales():
    shape = dataclasses.replace(SHAPE, layers=1, width=64, vocab_size=400, length_tokens=100)
    params = INIT(jax.random.key(0), shape)
    for name in ("embed_VxD", "position_LxD"):
        assert float(params[name].std()) == pytest.approx(1 / 8, rel=0.05)
        assert abs(float(params[name].mean())) < 5 / 8 / params[name].size ** 0.5
    for scale in (params["ln_D"], params["layers"]["ln1_D"], params["layers"]["ln2_D"]):
        assert (scale == 1).all()
    for name, kernel in params["layers"].items():
        if "ln" in name:
            continue
        fans = 64 + (256 if "F" in name else 64)
        limit = (6 / fans) ** 0.5
        assert 0.97 * limit < float(jnp.abs(kernel).max()) <= limit
        assert float(kernel.std()) == pytest.approx(limit / 3**0.5, rel=0.05)
    # Logits of a token unlike those before are then standard normal: log of the mean of e^z is 1/2.
    x_BxL = np.random.default_rng(0).integers(0, 400, (8, 50)).astype(np.int32)
    first = mean_loss(FORWARD(params, x_BxL), x_BxL)
    assert first == pytest.approx(math.log(400) + 0.5, abs=0.3)


def test_initial_values_depend_on_the_key_alone_and_no_two_are_equal():
    one, again, other = (INIT(jax.random.key(k), SHAPE) for k in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    values = [
        leaf.tobytes()
        for params in (one, other)
        for path, leaf in jax.tree.leaves_with_path(model.unstacked(jax.device_get(params)))
        if "ln" not in jax.tree_util.keystr(path)
    ]
    assert len(set(values)) == len(values) == 2 * (2 + 2 * 6)


@given(st.integers(0, 8), st.integers(0, 22), st.integers(0, 5))
@settings(deadline=None, max_examples=25)
def test_a_token_leaves_every_logit_before_it_bitwise_unchanged(place: int, token: int, seed: int):
    params, x_BxL = make(), tokens(2, 9, seed=seed)
    before = np.asarray(FORWARD(params, x_BxL))
    changed = x_BxL.copy()
    changed[0, place] = (changed[0, place] + 1 + token % 22) % 23
    after = np.asarray(FORWARD(params, changed))
    assert after[0, :place].tobytes() == before[0, :place].tobytes()
    assert after[1].tobytes() == before[1].tobytes()
    assert (np.abs(after[0, place:] - before[0, place:]).max(-1) > 1e-6).all()


def test_positions_matter():
    logits = np.asarray(FORWARD(make(), np.full((1, 4), 5, np.int32)))
    assert np.abs(np.diff(logits[0], axis=0)).max(-1).min() > 1e-3


def test_embeddings_are_tied():
    """The output of a piece that no input holds depends on its embedding, and on it alone."""
    params, x_BxL = make(), np.minimum(tokens(2, 6), 21)
    moved = params | {"embed_VxD": params["embed_VxD"].at[22].multiply(2.0)}
    before, after = FORWARD(params, x_BxL), FORWARD(moved, x_BxL)
    np.testing.assert_array_equal(after[..., :22], before[..., :22])
    np.testing.assert_allclose(after[..., 22], 2 * before[..., 22], rtol=1e-6)


@pytest.mark.parametrize("length", [2, 5])
def test_padding_changes_no_loss(length: int):
    """Bitwise by what the padding holds; to 1e-6 by how much of it there is, since XLA sums otherwise."""
    params, x_BxL = make(), tokens(4, 9)
    length_B = jnp.full(4, length)

    def losses(x_BxL: np.ndarray) -> np.ndarray:
        return np.asarray(loss.sample_losses(FORWARD(params, x_BxL), jnp.asarray(x_BxL), length_B))

    zeros = np.where(np.arange(9) < length, x_BxL, 0)
    assert losses(zeros).tobytes() == losses(x_BxL).tobytes()
    np.testing.assert_allclose(losses(x_BxL[:, :length]), losses(x_BxL), rtol=1e-6)


def test_filler_samples_change_no_other():
    params, x_BxL = make(), tokens(3, 9)
    filled = np.concatenate([x_BxL, np.zeros((5, 9), np.int32)])
    np.testing.assert_allclose(
        FORWARD(params, filled)[:3], FORWARD(params, x_BxL), rtol=0, atol=1e-5
    )


def test_bfloat16_is_near_float32():
    """8 bits of mantissa: logits within a few percent of their spread, and not equal."""
    params, x_BxL = make(), tokens(8, 9)
    exact, rough = FORWARD(params, x_BxL), FORWARD(params, x_BxL, dtype="bfloat16")
    error = float(jnp.abs(exact - rough).max() / exact.std())
    assert 1e-4 < error < 0.1
    assert mean_loss(rough, x_BxL) == pytest.approx(mean_loss(exact, x_BxL), rel=0.01)


# Two rows of the model's length: samples of 4, 1 and 2 tokens and an unused tail of 2; one of 9.
SEGMENT_RxL: Any = np.array([[1, 1, 1, 1, 2, 3, 3, 0, 0], [1] * 9], np.int32)
POSITION_RxL: Any = np.array([[0, 1, 2, 3, 0, 0, 1, 0, 0], range(9)], np.int32)
WAYS = [
    model.Way(scanned=scanned, remat=remat)
    for scanned in (False, True)
    for remat in ("none", "dots", "full")
]


@functools.partial(jax.jit, static_argnames="way")
def hidden(params: model.Params, x_RxL: Any, way: model.Way = WAYS[0]) -> jax.Array:
    params = params if way.scanned else model.unstacked(params)
    return model.hidden(params, x_RxL, SEGMENT_RxL, POSITION_RxL, way=way)


def test_each_sample_of_a_row_is_what_it_is_alone():
    params, x_RxL = make(), tokens(2, 9)
    got = np.asarray(hidden(params, x_RxL) @ params["embed_VxD"].T)
    for row, low, high in [(0, 0, 4), (0, 4, 5), (0, 5, 7), (1, 0, 9)]:
        alone = slow_forward(params, x_RxL[row, low:high])
        np.testing.assert_allclose(got[row, low:high], alone, rtol=0, atol=2e-5)
    assert np.isfinite(got).all()


def test_a_neighbour_changes_nothing_bitwise():
    """Nor a tail; in values, and in the gradient of every parameter."""
    params, x_RxL = make(), tokens(2, 9)
    toward_2xD = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)

    @jax.jit
    def third(params: model.Params, x_RxL: Any) -> Any:
        def total(params: model.Params) -> tuple[jax.Array, jax.Array]:
            h_2xD = hidden(params, x_RxL)[0, 5:7]
            return (h_2xD * toward_2xD).sum(), h_2xD

        return jax.grad(total, has_aux=True)(params)

    other = np.where((SEGMENT_RxL == 3) & (np.arange(2)[:, None] == 0), x_RxL, (x_RxL + 7) % 23)
    for before, after in zip(
        *(jax.tree.leaves(jax.device_get(third(params, x))) for x in (x_RxL, other)), strict=True
    ):
        assert before.tobytes() == after.tobytes()
    grads, _ = third(params, x_RxL)
    seen = np.flatnonzero(np.abs(grads["embed_VxD"]).sum(1))
    assert set(seen.tolist()) == set(x_RxL[0, 5:7].tolist())
    assert np.flatnonzero(np.abs(grads["position_LxD"]).sum(1)).tolist() == [0, 1]


@functools.cache
def value_and_gradient(way: model.Way) -> list[np.ndarray]:
    toward = np.random.default_rng(3).standard_normal((2, 9, 16)).astype(np.float32)

    def total(params: model.Params) -> jax.Array:
        return (hidden(params, tokens(2, 9), way) * toward).sum()

    return jax.tree.leaves(jax.device_get(jax.jit(jax.value_and_grad(total))(make())))


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_all_ways_give_the_same_values_and_gradients(way: model.Way):
    for expected, got in zip(value_and_gradient(WAYS[0]), value_and_gradient(way), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def products(jaxpr: Any) -> int:
    """Matrix products in a program and in all that it calls; those of a scan's body once."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    inner = [p for eqn in eqns for p in jax.tree.leaves(list(eqn.params.values()))]
    return sum(eqn.primitive.name == "dot_general" for eqn in eqns) + sum(
        products(p) for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr")
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_backward_pass_computes_again_what_it_is_told_to(way: model.Way):
    """8 products a layer, twice as many backward; again the 2 of attention, batched (dots), all but the last (full)."""
    grad = jax.grad(lambda params: hidden(params, tokens(2, 9), way).sum())
    layers, again = 2 - way.scanned, {"none": 0, "dots": 2, "full": 7}[way.remat]
    jaxpr = jax.make_jaxpr(grad)(make())
    assert products(jaxpr) == layers * (24 + again)
    # else XLA merges the two computations, and keeps what it was told to forget
    assert ("prevent_cse=True" in str(jaxpr)) == (way.remat != "none" and not way.scanned)


def test_layers_go_into_a_list_and_back():
    params = make()
    apart = model.unstacked(params)
    for i, layer in enumerate(apart["layers"]):
        for name, leaf in layer.items():
            np.testing.assert_array_equal(leaf, params["layers"][name][i])
    jax.tree.map(np.testing.assert_array_equal, model.stacked(apart), params)
