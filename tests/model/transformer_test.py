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
from slow_case import slow_case
from slow_model import parameters, shapes, slow_forward, slow_losses
from unoptimized import without_optimizations

from lm_mia.model import transformer
from lm_mia.model.transformer import ModelConfig, Params, TransformerLM

CONFIG = ModelConfig(layers=2, width=16, heads=4, vocab_size=23, length_tokens=9)
MODEL = TransformerLM(CONFIG)
pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture


@functools.partial(jax.jit, static_argnames="model")
def forward(params: Params, x_BxL: Any, model: TransformerLM = MODEL) -> Any:
    return model.apply({"params": params}, x_BxL)


@functools.partial(jax.jit, static_argnames="model")
def init(seed: int, model: TransformerLM) -> Any:
    return transformer.init_params(model, jax.random.key(seed))


@functools.cache
def make(config: ModelConfig = CONFIG) -> Params:
    """Returns parameters that differ enough from their initial values for every one to have an effect."""
    return parameters(config, seed=3, noise=0.3)


def sample_losses(logits_BxLxV: Any, x_BxL: np.ndarray) -> np.ndarray:
    both = zip(np.asarray(logits_BxLxV), x_BxL, strict=True)
    return np.array([slow_losses(logits_LxV, x_L).mean() for logits_LxV, x_L in both])


def tokens(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 23, shape).astype(np.int32)


@pytest.mark.parametrize(("layers", "width", "heads"), [(1, 8, 1), (2, 16, 4), (2, 8, 8)])
def test_logits_equal_a_slow_float64_reference(layers: int, width: int, heads: int):
    config = dataclasses.replace(CONFIG, layers=layers, width=width, heads=heads)
    params, x_BxL = make(config), tokens(2, 9)
    logits = np.asarray(forward(params, x_BxL, TransformerLM(config)))
    expected = np.stack([slow_forward(params, x_L) for x_L in x_BxL])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_model_computed_by_hand():
    """Its block has no effect: logits are products of embeddings with the normalized sum of two embeddings."""
    config = ModelConfig(layers=1, width=2, heads=1, vocab_size=3, length_tokens=2)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes(config))
    params["token_embed"]["embedding"] = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    params["pos_embed"]["embedding"] = np.array([[0.0, 0.0], [2.0, 0.0]])
    params["ln_out"]["scale"] = np.array([1.0, 2.0])
    # Token 1 at position 0 is (0, 3): centered (-1.5, 1.5), normalized (-1, 1), scaled (-1, 2).
    # Token 0 at position 1 is (3, 0): normalized (1, -1), scaled (1, -2).
    logits = forward(params, np.array([[1, 0]]), TransformerLM(config))
    np.testing.assert_allclose(logits, [[[-1, 6, 2], [1, -6, -2]]], rtol=1e-5)


def test_shapes_and_dtypes():
    params = shapes(CONFIG)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == {
        "token_embed": {"embedding": (23, 16)},
        "pos_embed": {"embedding": (9, 16)},
        "blocks": {
            "ln_attn": {"scale": (2, 16)},
            "attn": {
                **{name: {"kernel": (2, 16, 4, 4)} for name in ("query", "key", "value")},
                "out": {"kernel": (2, 4, 4, 16)},
            },
            "ln_mlp": {"scale": (2, 16)},
            "mlp": {"up": {"kernel": (2, 16, 64)}, "down": {"kernel": (2, 64, 16)}},
        },
        "ln_out": {"scale": (16,)},
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    for dtype in ("float32", "bfloat16"):
        model = TransformerLM(dataclasses.replace(CONFIG, dtype=dtype))
        for length in (1, 5, 9):
            x_BxL = tokens(3, length)
            logits = jax.eval_shape(functools.partial(forward, model=model), params, x_BxL)
            assert (logits.shape, logits.dtype) == ((3, length, 23), np.float32)
            h = jax.eval_shape(
                lambda p, x, m=model: m.apply({"params": p}, x, x, x, method="hidden"),
                params,
                x_BxL,
            )
            assert (h.shape, h.dtype) == ((3, length, 16), jnp.dtype(dtype))


WIDE = TransformerLM(dataclasses.replace(CONFIG, width=64, vocab_size=400, length_tokens=100))


def test_initial_values_have_the_documented_distributions():
    params = jax.device_get(init(0, WIDE))
    for name in ("token_embed", "pos_embed"):
        embedding = params[name]["embedding"]
        assert float(embedding.std()) == pytest.approx(1 / 8, rel=0.05)
        assert abs(float(embedding.mean())) < 5 / 8 / embedding.size**0.5
    blocks = params["blocks"]
    for norm in (params["ln_out"], blocks["ln_attn"], blocks["ln_mlp"]):
        assert (norm["scale"] == 1).all()
    # Glorot-uniform, as for matrices from D to D and between D and F: the number of heads does not change the fans.
    for layer, fans in (("attn", 64 + 64), ("mlp", 64 + 256)):
        limit = (6 / fans) ** 0.5
        for dense in blocks[layer].values():
            for kernel in dense["kernel"]:
                assert 0.97 * limit < float(np.abs(kernel).max()) <= limit
                assert float(kernel.std()) == pytest.approx(limit / 3**0.5, rel=0.05)
    # The logits of a token that has not occurred before are standard normal: the log of the mean of e^z is 1/2.
    x_BxL = np.random.default_rng(0).integers(0, 400, (8, 50)).astype(np.int32)
    losses = [slow_losses(slow_forward(params, x_L), x_L) for x_L in x_BxL]
    assert np.mean(losses) == pytest.approx(math.log(400) + 0.5, abs=0.3)


def test_initial_values_depend_on_the_key_and_no_two_arrays_are_equal():
    one, again, other = (jax.device_get(init(seed, WIDE)) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    arrays: list[bytes] = []
    for params in (one, other):
        arrays += [params[name]["embedding"].tobytes() for name in ("token_embed", "pos_embed")]
        for layer in ("attn", "mlp"):
            for dense in params["blocks"][layer].values():
                arrays += [kernel.tobytes() for kernel in dense["kernel"]]
    assert len(set(arrays)) == len(arrays) == 2 * (2 + 2 * 6)


@pytest.mark.parametrize(
    ("scan_layers", "remat"),
    [
        *[(False, "none"), (False, "full"), (True, "dots")],
        *(
            slow_case(scan_layers, remat)
            for scan_layers, remat in [(False, "dots"), (True, "none"), (True, "full")]
        ),
    ],
)
def test_initial_values_do_not_depend_on_how_the_model_is_computed(scan_layers: bool, remat: Any):
    config = dataclasses.replace(
        WIDE.config, scan_layers=scan_layers, remat=remat, attention="cudnn", dtype="bfloat16"
    )
    one, other = init(1, WIDE), init(1, TransformerLM(config))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    key, x_1x1 = jax.random.key(1), jnp.zeros((1, 1), jnp.int32)
    by_flax = jax.jit(TransformerLM(dataclasses.replace(config, attention="xla")).init)(key, x_1x1)
    jax.tree.map(np.testing.assert_array_equal, one, by_flax["params"])


@given(st.integers(0, 8), st.integers(0, 22), st.integers(0, 5))
@settings(deadline=None, max_examples=25)
def test_a_token_leaves_all_earlier_logits_bitwise_unchanged(position: int, token: int, seed: int):
    params, x_BxL = make(), tokens(2, 9, seed=seed)
    before = np.asarray(forward(params, x_BxL))
    changed = x_BxL.copy()
    changed[0, position] = (changed[0, position] + 1 + token % 22) % 23
    after = np.asarray(forward(params, changed))
    assert after[0, :position].tobytes() == before[0, :position].tobytes()
    assert after[1].tobytes() == before[1].tobytes()
    assert (np.abs(after[0, position:] - before[0, position:]).max(-1) > 1e-6).all()


def test_logits_depend_on_positions():
    logits = np.asarray(forward(make(), np.full((2, 9), 5, np.int32)))
    assert np.abs(np.diff(logits, axis=1)).max(-1).min() > 1e-3


def test_embeddings_are_tied():
    """The logit of a token that does not occur in the input depends on its embedding, and on no other."""
    params, x_BxL = make(), np.minimum(tokens(2, 9), 21)
    factor_Vx1 = np.where(np.arange(23) == 22, 2, 1)[:, None]
    moved = params | {"token_embed": {"embedding": params["token_embed"]["embedding"] * factor_Vx1}}
    before, after = (np.asarray(forward(p, x_BxL)) for p in (params, moved))
    np.testing.assert_array_equal(after[..., :22], before[..., :22])
    np.testing.assert_allclose(after[..., 22], 2 * before[..., 22], rtol=1e-6)


@pytest.mark.parametrize("length", [2, 5])
def test_padding_does_not_change_a_loss(length: int):
    """Bitwise for different contents of the padding; to 1e-6 for different lengths, since XLA sums in another order."""
    params, x_BxL = make(), tokens(2, 9)

    def logits(x_BxL: np.ndarray) -> np.ndarray:
        return np.asarray(forward(params, x_BxL))[:, :length]

    zeros = np.where(np.arange(9) < length, x_BxL, 0)
    assert logits(zeros).tobytes() == logits(x_BxL).tobytes()
    short_BxL = x_BxL[:, :length]
    both = [sample_losses(logits(x), short_BxL) for x in (short_BxL, x_BxL)]
    np.testing.assert_allclose(*both, rtol=1e-6)


def test_other_samples_of_the_batch_do_not_change_a_loss():
    params, x_BxL = make(), tokens(2, 9)
    filled = np.concatenate([x_BxL, np.zeros((5, 9), np.int32)])
    both = [np.asarray(forward(params, x))[:2] for x in (filled, x_BxL)]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-5)


def test_bfloat16_is_close_to_float32():
    """With 8 bits of mantissa, logits differ by at most a few percent of their standard deviation, but they differ."""
    params, x_BxL = make(), tokens(2, 9)
    exact, rounded = (
        np.asarray(forward(params, x_BxL, TransformerLM(dataclasses.replace(CONFIG, dtype=dtype))))
        for dtype in ("float32", "bfloat16")
    )
    error = float(np.abs(exact - rounded).max() / exact.std())
    assert 1e-4 < error < 0.1
    both = [sample_losses(logits, x_BxL).mean() for logits in (rounded, exact)]
    assert both[0] == pytest.approx(both[1], rel=0.01)


# Two packed sequences of the maximum length: samples of 4, 1 and 2 tokens and an unused tail of 2; one sample of 9.
SEGMENTS_BxL: Any = np.array([[1, 1, 1, 1, 2, 3, 3, 0, 0], [1] * 9], np.int32)
POSITIONS_BxL: Any = np.array([[0, 1, 2, 3, 0, 0, 1, 0, 0], range(9)], np.int32)
COMPUTED = [
    TransformerLM(dataclasses.replace(CONFIG, scan_layers=scan_layers, remat=remat))
    for scan_layers in (False, True)
    for remat in ("none", "dots", "full")
]


def computed(model: Any) -> str:
    config = model.config
    return f"{'scanned' if config.scan_layers else 'unrolled'}-{config.remat}"


def hidden(params: Params, x_BxL: Any, model: TransformerLM) -> Any:
    return model.apply({"params": params}, x_BxL, SEGMENTS_BxL, POSITIONS_BxL, method="hidden")


@functools.partial(jax.jit, static_argnames="model")
def _value_and_gradient(
    params: Params, x_BxL: Any, direction_BxLxD: Any, model: TransformerLM
) -> Any:
    def total(params: Params) -> tuple[jax.Array, jax.Array]:
        h_BxLxD = hidden(params, x_BxL, model)
        return (h_BxLxD * direction_BxLxD).sum(), h_BxLxD

    return jax.value_and_grad(total, has_aux=True)(params)


def value_and_gradient(
    x_BxL: Any, direction_BxLxD: Any, model: TransformerLM = MODEL
) -> tuple[Any, Any]:
    """Returns the activations, and the gradient of their inner product with a direction."""
    (_, h_BxLxD), grads = _value_and_gradient(make(), x_BxL, direction_BxLxD, model)
    return jax.device_get((h_BxLxD, grads))


DIRECTION_BxLxD: Any = np.random.default_rng(3).standard_normal((2, 9, 16)).astype(np.float32)


def test_unstacked_layers_give_the_same_values_and_gradients():
    x_BxL, params = tokens(2, 9), make()
    unstacked = transformer.unstack_blocks(params)
    jax.tree.map(np.testing.assert_array_equal, transformer.stack_blocks(unstacked), params)
    expected_BxLxD, expected = value_and_gradient(x_BxL, DIRECTION_BxLxD)
    (_, h_BxLxD), grads = _value_and_gradient(
        unstacked, x_BxL, DIRECTION_BxLxD, MODEL.clone(is_unstacked=True)
    )
    np.testing.assert_allclose(h_BxLxD, expected_BxLxD, rtol=0, atol=2e-6)
    stacked = transformer.stack_blocks(jax.device_get(grads))
    for a, b in zip(*map(jax.tree.leaves, (stacked, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


def test_the_backward_pass_of_gelu_keeps_its_argument_only():
    x = jnp.linspace(-5, 5, 101)
    y, backward = jax.vjp(transformer.gelu, x)
    expected, expected_backward = jax.vjp(jax.nn.gelu, x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(backward(y)[0], expected_backward(y)[0], rtol=1e-6, atol=1e-7)
    [kept] = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == x.shape]
    np.testing.assert_array_equal(kept, x)


def test_packed_samples_have_the_same_logits_as_alone():
    x_BxL = tokens(2, 9)
    h_BxLxD = value_and_gradient(x_BxL, DIRECTION_BxLxD)[0]
    logits = h_BxLxD @ make()["token_embed"]["embedding"].T
    for sequence, low, high in [(0, 0, 4), (0, 4, 5), (0, 5, 7), (1, 0, 9)]:
        alone = slow_forward(make(), x_BxL[sequence, low:high])
        np.testing.assert_allclose(logits[sequence, low:high], alone, rtol=0, atol=2e-5)
    assert np.isfinite(logits).all()
    packed = jax.jit(MODEL.apply)({"params": make()}, x_BxL, SEGMENTS_BxL, POSITIONS_BxL)
    np.testing.assert_allclose(np.asarray(packed), logits, rtol=0, atol=1e-5)


def test_neighbors_in_a_packed_sequence_change_no_bit():
    """Neither neighbors nor the unused tail change values or the gradient of any parameter."""
    x_BxL, direction_BxLxD = tokens(2, 9), np.zeros_like(DIRECTION_BxLxD)
    direction_BxLxD[0, 5:7] = DIRECTION_BxLxD[0, 5:7]
    is_same_BxL = (SEGMENTS_BxL == 3) & (np.arange(2)[:, None] == 0)
    other_BxL = np.where(is_same_BxL, x_BxL, (x_BxL + 7) % 23)
    (h_BxLxD, grads), (other_BxLxD, other_grads) = (
        value_and_gradient(x, direction_BxLxD) for x in (x_BxL, other_BxL)
    )
    assert h_BxLxD[0, 5:7].tobytes() == other_BxLxD[0, 5:7].tobytes()
    assert h_BxLxD[1].tobytes() != other_BxLxD[1].tobytes()
    for before, after in zip(*map(jax.tree.leaves, (grads, other_grads)), strict=True):
        assert before.tobytes() == after.tobytes()
    with_gradient = np.flatnonzero(np.abs(grads["token_embed"]["embedding"]).sum(1))
    assert set(with_gradient.tolist()) == set(x_BxL[0, 5:7].tolist())
    assert np.flatnonzero(np.abs(grads["pos_embed"]["embedding"]).sum(1)).tolist() == [0, 1]


@pytest.mark.parametrize(
    "model",
    # Unrolled with each checkpoint policy, and scanned with one; tests of the step compare others.
    [*COMPUTED[1:4], *(slow_case(model) for model in COMPUTED[4:])],
    ids=computed,
)
def test_scan_and_remat_change_values_and_gradients_only_by_rounding(model: TransformerLM):
    both = (value_and_gradient(tokens(2, 9), DIRECTION_BxLxD, m) for m in (MODEL, model))
    for expected, actual in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def num_products(jaxpr: Any) -> int:
    """Returns the number of matrix products in a program and all that it calls, counting the body of a scan once."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    inner = [p for eqn in eqns for p in jax.tree.leaves(list(eqn.params.values()))]
    return sum(eqn.primitive.name == "dot_general" for eqn in eqns) + sum(
        num_products(p) for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr")
    )


@pytest.mark.parametrize("model", COMPUTED, ids=computed)
def test_the_backward_pass_recomputes_what_remat_selects(model: TransformerLM):
    """A block has 8 products, and 16 backward; the 2 of attention are batched (dots), the last is not needed (full)."""
    grad = jax.grad(lambda params: hidden(params, tokens(2, 9), model).sum())
    recomputed = {"none": 0, "dots": 2, "full": 7}[model.config.remat]
    jaxpr = jax.make_jaxpr(grad)(make())
    assert num_products(jaxpr) == 24 + recomputed
    # Without prevent_cse, XLA would merge the two computations of an unrolled layer and keep the activations.
    prevents_cse = model.config.remat != "none" and not model.config.scan_layers
    assert ("prevent_cse=True" in str(jaxpr)) == prevents_cse


@pytest.mark.parametrize("scan_layers", [False, True])
def test_unrolled_layers_compile_without_a_loop(scan_layers: bool):
    model = TransformerLM(dataclasses.replace(CONFIG, scan_layers=scan_layers))
    grad = jax.jit(jax.grad(lambda params: hidden(params, tokens(2, 9), model).sum()))
    assert ("while" in grad.lower(make()).as_text()) == scan_layers
