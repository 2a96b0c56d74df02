import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_compilation import quickly_compiled
from slow_model import parameters, shapes, slow_forward, slow_losses

from lm_mia.model import transformer

SHAPE = transformer.ModelConfig(layers=2, width=16, heads=4, vocab_size=23, length_tokens=9)
FORWARD = jax.jit(transformer.forward, static_argnames="dtype")
INIT = jax.jit(transformer.init, static_argnames="shape")
pytestmark = pytest.mark.usefixtures("quickly_compiled")
__all__ = ["quickly_compiled"]  # a fixture


def init(seed: int, shape: transformer.ModelConfig) -> transformer.Params:
    return jax.device_get(INIT(jax.random.key(seed), shape))


@functools.cache
def make(shape: transformer.ModelConfig = SHAPE) -> transformer.Params:
    """Parameters far enough from their first values that every one of them counts."""
    return parameters(shape, seed=3, noise=0.3)


def sample_losses(logits_BxLxV: Any, x_BxL: np.ndarray) -> np.ndarray:
    both = zip(np.asarray(logits_BxLxV), x_BxL, strict=True)
    return np.array([slow_losses(logits_LxV, x_L).mean() for logits_LxV, x_L in both])


def tokens(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 23, shape).astype(np.int32)


@pytest.mark.parametrize(("layers", "width", "heads"), [(1, 8, 1), (2, 16, 4), (2, 8, 8)])
def test_forward_equals_a_slow_float64_reference(layers: int, width: int, heads: int):
    shape = dataclasses.replace(SHAPE, layers=layers, width=width, heads=heads)
    params, x_BxL = make(shape), tokens(2, 9)
    logits = np.asarray(FORWARD(params, x_BxL))
    expected = np.stack([slow_forward(params, x_L) for x_L in x_BxL])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_hand_worked_model():
    """No layers of effect: logits are inner products of embeddings with the normalised sum of two embeddings."""
    shape = transformer.ModelConfig(layers=1, width=2, heads=1, vocab_size=3, length_tokens=2)
    params = jax.tree.map(lambda of: np.zeros(of.shape, np.float32), shapes(shape))
    params["embed_VxD"] = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    params["position_LxD"] = np.array([[0.0, 0.0], [2.0, 0.0]])
    params["ln_D"] = np.array([1.0, 2.0])
    # Token 1 at place 0 is (0, 3): centred (-1.5, 1.5), normalised (-1, 1), scaled (-1, 2).
    # Token 0 at place 1 is (3, 0): normalised (1, -1), scaled (1, -2).
    logits = FORWARD(params, np.array([[1, 0]]))
    np.testing.assert_allclose(logits, [[[-1, 6, 2], [1, -6, -2]]], rtol=1e-5)


def test_shapes_and_dtypes():
    params = shapes(SHAPE)
    of_layer = {
        **{"ln1_D": (16,), "ln2_D": (16,), "in_DxF": (16, 64), "out_FxD": (64, 16)},
        **{f"{name}_DxHxK": (16, 4, 4) for name in ("query", "key", "value")},
        "out_HxKxD": (4, 4, 16),
    }
    assert jax.tree.map(lambda of: of.shape, params) == {
        "embed_VxD": (23, 16),
        "position_LxD": (9, 16),
        "layers": {name: (2, *shape) for name, shape in of_layer.items()},
        "ln_D": (16,),
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    for dtype in ("float32", "bfloat16"):
        for length in (1, 5, 9):
            x_BxL = tokens(3, length)
            logits = jax.eval_shape(
                functools.partial(transformer.forward, dtype=dtype), params, x_BxL
            )
            assert (logits.shape, logits.dtype) == ((3, length, 23), np.float32)


WIDE = dataclasses.replace(SHAPE, width=64, vocab_size=400, length_tokens=100)


def test_initial_values_have_the_stated_scales():
    params = init(0, WIDE)
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
        assert 0.97 * limit < float(np.abs(kernel).max()) <= limit
        assert float(kernel.std()) == pytest.approx(limit / 3**0.5, rel=0.05)
    # Logits of a token unlike those before are then standard normal: log of the mean of e^z is 1/2.
    x_BxL = np.random.default_rng(0).integers(0, 400, (8, 50)).astype(np.int32)
    losses = [slow_losses(slow_forward(params, x_L), x_L) for x_L in x_BxL]
    assert np.mean(losses) == pytest.approx(math.log(400) + 0.5, abs=0.3)


def test_initial_values_depend_on_the_key_alone_and_no_two_are_equal():
    one, again, other = (init(seed, WIDE) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    values = [
        leaf.tobytes()
        for params in (one, other)
        for path, leaf in jax.tree.leaves_with_path(transformer.unstacked(params))
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
    logits = np.asarray(FORWARD(make(), np.full((2, 9), 5, np.int32)))
    assert np.abs(np.diff(logits, axis=1)).max(-1).min() > 1e-3


def test_embeddings_are_tied():
    """The output of a piece that no input holds depends on its embedding, and on it alone."""
    params, x_BxL = make(), np.minimum(tokens(2, 9), 21)
    moved = params | {
        "embed_VxD": params["embed_VxD"] * np.where(np.arange(23) == 22, 2, 1)[:, None]
    }
    before, after = (np.asarray(FORWARD(of, x_BxL)) for of in (params, moved))
    np.testing.assert_array_equal(after[..., :22], before[..., :22])
    np.testing.assert_allclose(after[..., 22], 2 * before[..., 22], rtol=1e-6)


@pytest.mark.parametrize("length", [2, 5])
def test_padding_changes_no_loss(length: int):
    """Bitwise by what the padding holds; to 1e-6 by how much of it there is, since XLA sums otherwise."""
    params, x_BxL = make(), tokens(2, 9)

    def logits(x_BxL: np.ndarray) -> np.ndarray:
        return np.asarray(FORWARD(params, x_BxL))[:, :length]

    zeros = np.where(np.arange(9) < length, x_BxL, 0)
    assert logits(zeros).tobytes() == logits(x_BxL).tobytes()
    short_BxL = x_BxL[:, :length]
    both = [sample_losses(logits(x), short_BxL) for x in (short_BxL, x_BxL)]
    np.testing.assert_allclose(*both, rtol=1e-6)


def test_filler_samples_change_no_other():
    params, x_BxL = make(), tokens(2, 9)
    filled = np.concatenate([x_BxL, np.zeros((5, 9), np.int32)])
    both = [np.asarray(FORWARD(params, x))[:2] for x in (filled, x_BxL)]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-5)


def test_bfloat16_is_near_float32():
    """8 bits of mantissa: logits within a few percent of their spread, and not equal."""
    params, x_BxL = make(), tokens(2, 9)
    exact, rough = (np.asarray(FORWARD(params, x_BxL, kind)) for kind in ("float32", "bfloat16"))
    error = float(np.abs(exact - rough).max() / exact.std())
    assert 1e-4 < error < 0.1
    both = [sample_losses(logits, x_BxL).mean() for logits in (rough, exact)]
    assert both[0] == pytest.approx(both[1], rel=0.01)


# Two rows of the model's length: samples of 4, 1 and 2 tokens and an unused tail of 2; one of 9.
SEGMENT_RxL: Any = np.array([[1, 1, 1, 1, 2, 3, 3, 0, 0], [1] * 9], np.int32)
POSITION_RxL: Any = np.array([[0, 1, 2, 3, 0, 0, 1, 0, 0], range(9)], np.int32)
WAYS = [
    transformer.Way(scanned=scanned, remat=remat)
    for scanned in (False, True)
    for remat in ("none", "dots", "full")
]


def hidden(params: transformer.Params, x_RxL: Any, way: transformer.Way = WAYS[0]) -> jax.Array:
    params = params if way.scanned else transformer.unstacked(params)
    return transformer.hidden(params, x_RxL, SEGMENT_RxL, POSITION_RxL, way=way)


@functools.partial(jax.jit, static_argnames="way")
def _value_and_gradient(
    params: transformer.Params, x_RxL: Any, toward_RxLxD: Any, way: transformer.Way
) -> Any:
    def total(params: transformer.Params) -> tuple[jax.Array, jax.Array]:
        h_RxLxD = hidden(params, x_RxL, way)
        return (h_RxLxD * toward_RxLxD).sum(), h_RxLxD

    return jax.value_and_grad(total, has_aux=True)(params)


def value_and_gradient(
    x_RxL: Any, toward_RxLxD: Any, way: transformer.Way = WAYS[0]
) -> tuple[Any, Any]:
    """The activations, and the gradient of their inner product with something."""
    (_, h_RxLxD), grads = _value_and_gradient(make(), x_RxL, toward_RxLxD, way)
    return jax.device_get((h_RxLxD, grads))


TOWARD_RxLxD: Any = np.random.default_rng(3).standard_normal((2, 9, 16)).astype(np.float32)


def test_each_sample_of_a_row_is_what_it_is_alone():
    x_RxL = tokens(2, 9)
    got = value_and_gradient(x_RxL, TOWARD_RxLxD)[0] @ make()["embed_VxD"].T
    for row, low, high in [(0, 0, 4), (0, 4, 5), (0, 5, 7), (1, 0, 9)]:
        alone = slow_forward(make(), x_RxL[row, low:high])
        np.testing.assert_allclose(got[row, low:high], alone, rtol=0, atol=2e-5)
    assert np.isfinite(got).all()


def test_a_neighbour_changes_nothing_bitwise():
    """Nor a tail; in values, and in the gradient of every parameter."""
    x_RxL, toward_RxLxD = tokens(2, 9), np.zeros_like(TOWARD_RxLxD)
    toward_RxLxD[0, 5:7] = TOWARD_RxLxD[0, 5:7]
    other = np.where((SEGMENT_RxL == 3) & (np.arange(2)[:, None] == 0), x_RxL, (x_RxL + 7) % 23)
    (h_RxLxD, grads), (other_RxLxD, other_grads) = (
        value_and_gradient(x, toward_RxLxD) for x in (x_RxL, other)
    )
    assert h_RxLxD[0, 5:7].tobytes() == other_RxLxD[0, 5:7].tobytes()
    assert h_RxLxD[1].tobytes() != other_RxLxD[1].tobytes()
    for before, after in zip(*map(jax.tree.leaves, (grads, other_grads)), strict=True):
        assert before.tobytes() == after.tobytes()
    seen = np.flatnonzero(np.abs(grads["embed_VxD"]).sum(1))
    assert set(seen.tolist()) == set(x_RxL[0, 5:7].tolist())
    assert np.flatnonzero(np.abs(grads["position_LxD"]).sum(1)).tolist() == [0, 1]


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_all_ways_give_the_same_values_and_gradients(way: transformer.Way):
    both = (value_and_gradient(tokens(2, 9), TOWARD_RxLxD, way) for way in (WAYS[0], way))
    for expected, got in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def products(jaxpr: Any) -> int:
    """Matrix products in a program and in all that it calls; those of a scan's body once."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    inner = [p for eqn in eqns for p in jax.tree.leaves(list(eqn.params.values()))]
    return sum(eqn.primitive.name == "dot_general" for eqn in eqns) + sum(
        products(p) for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr")
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_backward_pass_computes_again_what_it_is_told_to(way: transformer.Way):
    """8 products a layer, twice as many backward; again the 2 of attention, batched (dots), all but the last (full)."""
    grad = jax.grad(lambda params: hidden(params, tokens(2, 9), way).sum())
    layers, again = 2 - way.scanned, {"none": 0, "dots": 2, "full": 7}[way.remat]
    jaxpr = jax.make_jaxpr(grad)(make())
    assert products(jaxpr) == layers * (24 + again)
    # else XLA merges the two computations, and keeps what it was told to forget
    assert ("prevent_cse=True" in str(jaxpr)) == (way.remat != "none" and not way.scanned)


def test_layers_go_into_a_list_and_back():
    params = make()
    apart = jax.device_get(jax.jit(transformer.unstacked)(params))
    for i, layer in enumerate(apart["layers"]):
        for name, leaf in layer.items():
            np.testing.assert_array_equal(leaf, params["layers"][name][i])
    whole = jax.jit(transformer.stacked)(apart)
    jax.tree.map(np.testing.assert_array_equal, whole, params)
