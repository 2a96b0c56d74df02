import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from lm_mia.errors import UserError
from lm_mia.model import gpu_attention
from lm_mia.model.attention import AttentionKind, attention
from lm_mia.train.execution import choose_attention


def random_qkv(L: int, K: int = 4, H: int = 2, seed: int = 0) -> list[np.ndarray]:
    """Returns queries, keys and values of two packed sequences, with unit variance."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1, (2, L, H, K)).astype(np.float32) for _ in range(3)]


def segments(L: int) -> Any:
    """Returns the segments of two packed sequences.

    The first has two samples and padding. The second has three samples, one of a single token, and no padding.
    """
    first_length, half = L // 3, L // 2
    sequences = [
        np.repeat([1, 2, 0], [first_length, half - first_length, L - half]),
        np.repeat([1, 2, 3], [first_length, 1, L - first_length - 1]),
    ]
    return np.stack(sequences).astype(np.int32)


def slow(q: Any, k: Any, v: Any, segment_BxL: np.ndarray) -> np.ndarray:
    """Computes attention one token at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.empty_like(q)
    for r, segment_L in enumerate(segment_BxL):
        for i in range(len(segment_L)):
            visible = np.flatnonzero(segment_L[: i + 1] == segment_L[i])
            a_HxT = np.einsum("thk,hk->ht", k[r, visible], q[r, i]) / math.sqrt(q.shape[-1])
            weights_HxT = np.exp(a_HxT - a_HxT.max(1, keepdims=True))
            weights_HxT /= weights_HxT.sum(1, keepdims=True)
            out[r, i] = np.einsum("ht,thk->hk", weights_HxT, v[r, visible])
    return out


def emulate_on_cpu(kind: AttentionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets an accelerator's implementation run on CPU, by interpreting its kernel or by using XLA (cudnn)."""
    original = jax.nn.dot_product_attention

    def on_cpu(*args: Any, implementation: str, **kwargs: Any) -> jax.Array:
        assert implementation == "cudnn"
        return original(*args, implementation="xla", **kwargs)

    make = splash_attention_kernel.make_splash_mha_single_device
    interpreted = functools.partial(make, interpret=True)
    if kind == "cudnn":
        monkeypatch.setattr(jax.nn, "dot_product_attention", on_cpu)
    if kind == "pallas_gpu":
        monkeypatch.setattr(
            "lm_mia.model.attention.gpu_attention",
            lambda q, k, v, segment_BxL: gpu_attention.gpu_attention(q, k, v, segment_BxL, True),
        )
    if kind == "pallas_tpu":
        monkeypatch.setattr(splash_attention_kernel, "make_splash_mha_single_device", interpreted)


# One block of queries of the XLA implementation, two blocks of which the second is short, and two full blocks.
@pytest.mark.parametrize("L", [1, 7, 256, 257, 512])
def test_xla_attention_equals_slow_reference(L: int):
    q, k, v = random_qkv(L)
    actual = jax.jit(attention)(q, k, v, segments(L))
    np.testing.assert_allclose(actual, slow(q, k, v, segments(L)), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", ["cudnn", "pallas_gpu", "pallas_tpu"])
def test_accelerator_kinds_equal_xla_in_values_and_gradients(
    kind: AttentionKind, monkeypatch: pytest.MonkeyPatch
):
    """The implementations get the same mask, scale and order of axes."""
    emulate_on_cpu(kind, monkeypatch)
    L = 256
    q, k, v = random_qkv(L, K=64)
    direction = random_qkv(L, K=64, seed=1)[0]

    def value(
        kind: AttentionKind, q: jax.Array, k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        o = attention(q, k, v, segments(L), kind)
        return (o * direction).sum(), o

    grad = jax.jit(jax.grad(value, argnums=(1, 2, 3), has_aux=True), static_argnums=0)
    expected, actual = grad("xla", q, k, v), grad(kind, q, k, v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=5e-6), actual, expected)


@pytest.mark.parametrize("L", [20, 300])
def test_other_samples_and_later_tokens_change_no_bit(L: int):
    """Neither values nor gradients change, even if the other tokens are huge."""
    q, k, v = random_qkv(L)
    segment_BxL = segments(L)
    first_length = L // 3
    sample = slice(first_length, L // 2)  # the second sample of the first packed sequence
    last = L // 2 - 2

    @jax.jit
    def output_and_gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
        def total(q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array]:
            o = attention(q, k, v, segment_BxL)[0, sample][: last - first_length + 1]
            return jnp.square(o).sum(), o

        grads, o = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return o, grads

    is_outside = np.ones((2, L, 1, 1), bool)
    is_outside[0, first_length : last + 1] = False
    before, grads = output_and_gradients(q, k, v)
    changed = [np.where(is_outside, 1e4 * x + 3, x).astype(np.float32) for x in (q, k, v)]
    after, grads_after = output_and_gradients(*changed)
    assert np.asarray(after).tobytes() == np.asarray(before).tobytes()
    for g, g_after in zip(grads, grads_after, strict=True):
        np.testing.assert_array_equal(np.where(is_outside, g, 0), 0)
        assert np.asarray(g_after).tobytes() == np.asarray(g).tobytes()
        assert (np.abs(g[0, first_length + 1 : last + 1]).max((-1, -2)) > 0).all()


def test_padding_is_finite_even_without_any_sample():
    q, k, v = (30 * x for x in random_qkv(12))
    segment_BxL: Any = np.zeros((2, 12), np.int32)
    segment_BxL[0, :5] = 1

    def total(q: Any, k: Any, v: Any) -> jax.Array:
        return attention(q, k, v, segment_BxL).sum()

    value_and_grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(value_and_grads)))


def test_output_of_one_token_sample_is_its_value():
    q, k, v = random_qkv(9)
    out = jax.jit(attention)(q, k, v, np.arange(18).reshape(2, 9) + 1)
    np.testing.assert_array_equal(out, v)


def test_output_keeps_dtype_and_softmax_is_float32():
    q, k, v = (x.astype(jnp.bfloat16) for x in random_qkv(300))
    out = jax.jit(attention)(q, k, v, segments(300))
    assert out.dtype == jnp.bfloat16
    exact = slow(q, k, v, segments(300))
    error = np.abs(np.asarray(out, np.float64) - exact).max()
    assert 1e-4 < error < 0.03
    jaxpr = str(jax.make_jaxpr(attention)(q, k, v, segments(300)))
    exponentials = [line for line in jaxpr.splitlines() if "= exp " in line]
    assert exponentials
    assert all(":f32[" in line for line in exponentials)


def test_xla_attention_computes_five_eighths_of_all_pairs():
    """With L = 1,024: 256 (256 + 512 + 768 + 1,024) = 5/8 of L^2, and never L x L at once."""
    q, k, v = (jax.ShapeDtypeStruct((2, 1024, 2, 4), jnp.float32) for _ in range(3))
    segment_BxL = jax.ShapeDtypeStruct((2, 1024), jnp.int32)
    jaxpr = jax.make_jaxpr(attention)(q, k, v, segment_BxL)
    shapes = [out.aval.shape for eqn in jaxpr.eqns for out in eqn.outvars]  # type: ignore[attr-defined]
    scores = [
        eqn.outvars[0].aval.shape[-2:]  # type: ignore[attr-defined]
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "dot_general" and 4 not in eqn.outvars[0].aval.shape  # type: ignore[attr-defined]
    ]
    assert sum(a * b for a, b in scores) == 1024**2 * 5 // 8
    assert not any(shape[-2:] == (1024, 1024) for shape in shapes)


@pytest.mark.parametrize(
    ("platform", "dtype", "head_width", "length_tokens", "kind", "reason"),
    [
        ("cpu", "float32", 64, 1024, "xla", "the only one for CPUs"),
        ("cpu", "bfloat16", 7, 9, "xla", "the only one for CPUs"),
        ("gpu", "bfloat16", 64, 1024, "pallas_gpu", "fastest on gpu"),
        ("gpu", "bfloat16", 128, 64, "pallas_gpu", "fastest on gpu"),
        ("gpu", "float32", 64, 1024, "xla", "slow for model.dtype=float32"),
        ("gpu", "bfloat16", 60, 1024, "xla", "of 16, 32, 64 or 128, not 60"),
        ("gpu", "bfloat16", 256, 1024, "xla", "of 16, 32, 64 or 128, not 256"),
        ("gpu", "bfloat16", 64, 100, "xla", "population.length_tokens .*64, not 100"),
        ("tpu", "float32", 64, 1024, "pallas_tpu", "fastest on tpu"),
        ("tpu", "bfloat16", 60, 128, "pallas_tpu", "fastest on tpu"),
        ("tpu", "bfloat16", 64, 1000, "xla", "divisible by 128, not 1000"),
    ],
)
def test_auto_chooses_the_fastest_supported_kind_with_a_reason(
    platform: str, dtype: str, head_width: int, length_tokens: int, kind: str, reason: str
):
    assert (choice := choose_attention("auto", platform, dtype, head_width, length_tokens))[
        0
    ] == kind
    assert re.search(reason, choice[1])
    if kind == "xla" and platform != "cpu":
        assert choice[1].startswith("slower than pallas, ")


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_requested_attention_is_used(platform: str):
    kinds: dict[str, dict[Any, AttentionKind]] = {
        "cpu": {},
        "gpu": {"cudnn": "cudnn", "pallas": "pallas_gpu"},
        "tpu": {"pallas": "pallas_tpu"},
    }
    for name, kind in {"xla": "xla", **kinds[platform]}.items():
        assert choose_attention(name, platform, "bfloat16", 64, 1024) == (kind, "requested")


def test_unsupported_attention_is_refused_with_all_reasons():
    with pytest.raises(UserError) as error:
        choose_attention("cudnn", "cpu", "float32", 132, 1023)
    assert str(error.value) == (
        "compute.attention='cudnn': it needs an NVIDIA GPU, but the platform is cpu; it needs model.dtype=bfloat16, "
        "not float32; it needs model.width / model.heads divisible by 8, not 132; it needs "
        "model.width / model.heads of at most 128, not 132; it needs an even population.length_tokens, "
        "not 1023; set --config.compute.attention=auto"
    )
    with pytest.raises(UserError, match=r"NVIDIA GPU or a TPU, .*cpu; .*\b64, not 100;"):
        choose_attention("pallas", "cpu", "bfloat16", 64, 100)
    with pytest.raises(UserError, match=r"compute.attention='pallas': .*\b128, not 100"):
        choose_attention("pallas", "tpu", "bfloat16", 64, 100)
