"""The kinds gpt2 and llama against slow references in float64, and what holds for every kind."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoint

from lm_mia import config, stats, user_files
from lm_mia.config.recipe import recipe_hash
from lm_mia.errors import UserError
from lm_mia.model import decoding, flops, kinds, memory
from lm_mia.model.checkpoint_mapping import params_from_tensors
from lm_mia.model.transformer import ModelConfig, init_params, stack_blocks, unstack_blocks

GPT = ModelConfig(layers=2, width=16, heads=4, vocab_size=32, length_tokens=12)
GPT2 = dataclasses.replace(GPT, kind="gpt2")
LLAMA = dataclasses.replace(GPT, kind="llama", kv_heads=2, mlp_width=24)
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True, tied=False, rope_theta=500.0)
QWEN3 = dataclasses.replace(LLAMA, qk_norm=True, norm_epsilon=1e-6)
ALL = pytest.mark.parametrize(
    "model_config",
    [GPT, GPT2, LLAMA, QWEN2, QWEN3],
    ids=["gpt", "gpt2", "llama", "qwen2", "qwen3"],
)


def shapes(model_config: ModelConfig) -> Any:
    """Returns the shapes and dtypes of the parameters."""
    model = kinds.build(model_config)
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


@functools.cache
def noisy_params(model_config: ModelConfig) -> Any:
    """Returns parameters of the size of initial ones, with noise so that biases and scales have an effect."""
    rng = np.random.default_rng(0)

    def leaf(path: Any, struct: Any) -> np.ndarray:
        mean = float(path[-1].key == "scale")
        return (mean + 0.4 * rng.standard_normal(struct.shape)).astype(np.float32)

    return jax.tree.map_with_path(leaf, shapes(model_config))


def slow_logits(model_config: ModelConfig, params: Any, x_L: np.ndarray) -> np.ndarray:
    """Returns the logits of one sample in float64, one position and one head at a time."""
    c, p = model_config, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    is_llama = c.kind == "llama"
    epsilon = c.norm_epsilon if is_llama else 1e-6 if c.kind == "gpt" else 1e-5

    def norm(x: np.ndarray, weights: Any) -> np.ndarray:
        if is_llama:
            return x / math.sqrt((x**2).mean() + epsilon) * weights["scale"]
        centered = (x - x.mean()) / math.sqrt(x.var() + epsilon)
        return centered * weights["scale"] + weights.get("bias", 0)

    def turn(x_K: np.ndarray, position: int) -> np.ndarray:
        out, half = x_K.copy(), len(x_K) // 2
        for j in range(half if is_llama else 0):
            pair = complex(x_K[j], x_K[j + half])
            pair *= np.exp(1j * position * c.rope_theta ** (-j / half))
            out[j], out[j + half] = pair.real, pair.imag
        return out

    def dense(x: np.ndarray, weights: Any, axes: int = 1) -> np.ndarray:
        return np.tensordot(x, weights["kernel"], axes) + weights.get("bias", 0)

    h_LxD = [p["token_embed"]["embedding"][t] for t in x_L]
    if not is_llama:
        h_LxD = [h + p["pos_embed"]["embedding"][i] for i, h in enumerate(h_LxD)]
    for n in range(c.layers):
        layer = jax.tree.map(lambda leaf: leaf[n], p["blocks"])  # noqa: B023
        attn, mlp = layer["attn"], layer["mlp"]
        normed = [norm(h, layer["ln_attn"]) for h in h_LxD]
        q, k, v = ([dense(x, attn[name]) for x in normed] for name in ("query", "key", "value"))
        if c.qk_norm:
            q = [np.stack([norm(head, attn["q_norm"]) for head in x]) for x in q]
            k = [np.stack([norm(head, attn["k_norm"]) for head in x]) for x in k]
        for i in range(len(h_LxD)):
            heads = []
            for h in range(c.heads):
                g = h * len(k[0]) // c.heads
                a = [
                    turn(q[i][h], i) @ turn(k[t][g], t) / math.sqrt(len(q[i][h]))
                    for t in range(i + 1)
                ]
                weights = np.exp(np.array(a) - max(a))
                heads.append(weights / weights.sum() @ np.stack([v[t][g] for t in range(i + 1)]))
            h_LxD[i] = h_LxD[i] + dense(np.stack(heads), attn["out"], 2)
        for i, h in enumerate(h_LxD):
            x = norm(h, layer["ln_mlp"])
            up = dense(x, mlp["up"])
            if is_llama:
                gate = dense(x, mlp["gate"])
                hidden = gate / (1 + np.exp(-gate)) * up
            else:
                hidden = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
            h_LxD[i] = h + dense(hidden, mlp["down"])
    output = p["token_embed"] if c.tied else p["output_embed"]
    return np.stack([output["embedding"] @ norm(h, p["ln_out"]) for h in h_LxD])


@functools.partial(jax.jit, static_argnums=0)
def logits(model_config: ModelConfig, params: Any, *arrays: Any) -> Any:
    return kinds.build(model_config).apply({"params": params}, *arrays)


# One shape for all tests, so that each kind is compiled once without packing and once with it.
X_BxL = np.random.default_rng(1).integers(0, 32, (3, 12))


def check(found_LxV: Any, expected_LxV: np.ndarray) -> None:
    np.testing.assert_allclose(found_LxV, expected_LxV, atol=1e-5 * np.ptp(expected_LxV))


@ALL
def test_slow_reference(model_config: ModelConfig) -> None:
    params = noisy_params(model_config)
    for found_LxV, x_L in zip(logits(model_config, params, X_BxL), X_BxL, strict=True):
        check(found_LxV, slow_logits(model_config, params, x_L))


@ALL
def test_packed_samples_equal_the_slow_reference_of_each_alone(model_config: ModelConfig) -> None:
    params = noisy_params(model_config)
    segments, positions = np.repeat([1, 2], [5, 7]), np.r_[np.arange(5), np.arange(7)]
    both = (np.tile(array, (3, 1)) for array in (segments, positions))
    packed_BxLxV = logits(model_config, params, X_BxL, *both)
    for part in (slice(0, 5), slice(5, 12)):
        check(packed_BxLxV[0, part], slow_logits(model_config, params, X_BxL[0, part]))


@ALL
def test_decoding_equals_full_pass(model_config: ModelConfig) -> None:
    params, model = noisy_params(model_config), kinds.build(model_config)
    prefix_BxP = jnp.asarray(X_BxL[:, :4])
    greedy = stats.SamplingScheme(temperature=0)
    keys = jax.random.split(jax.random.key(0), 3)
    text_BxG = decoding.generate(model, params, prefix_BxP, keys, 8, greedy)
    whole_BxT = jnp.concatenate([prefix_BxP, text_BxG], axis=1)
    expected_BxG = logits(model_config, params, np.asarray(whole_BxT))[:, 3:-1].argmax(-1)
    np.testing.assert_array_equal(text_BxG, expected_BxG)


@pytest.mark.parametrize("model_config", [GPT, LLAMA], ids=["gpt", "llama"])
def test_scan_remat_and_unstacked_layers(model_config: ModelConfig) -> None:
    params = noisy_params(model_config)

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.grad, argnums=1)
    def gradient(model: Any, params: Any) -> Any:
        return model.apply({"params": params}, X_BxL[:1]).astype(jnp.float32).var()

    plain = gradient(kinds.build(model_config), params)
    scanned = dataclasses.replace(model_config, scan_layers=True, remat="full")
    unstacked = kinds.build(model_config).clone(is_unstacked=True)
    for other in (
        gradient(kinds.build(scanned), params),
        stack_blocks(gradient(unstacked, unstack_blocks(params))),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), plain, other)


def test_gpt_size_equals_that_of_the_parameters() -> None:
    c = GPT
    assert kinds.size(c) == memory.gpt_size(
        c.layers, c.width, c.heads, c.vocab_size, c.length_tokens, c.dtype
    )


@ALL
def test_flops_against_the_compiler(model_config: ModelConfig) -> None:
    c = dataclasses.replace(
        model_config, width=128, mlp_width=256 * (model_config.kind == "llama"), vocab_size=512
    )
    x_1xL, L = jax.ShapeDtypeStruct((1, 12), jnp.int32), 12
    cost: Any = logits.lower(c, shapes(c), x_1xL).compile().cost_analysis()
    assert flops.scoring(kinds.size(c), L, L**2) == pytest.approx(cost["flops"], rel=0.06)


@pytest.mark.parametrize("model_config", [GPT2, LLAMA, QWEN2, QWEN3])
def test_checkpoint_mapping(model_config: ModelConfig) -> None:
    params, expected = noisy_params(model_config), shapes(model_config)
    mapping = kinds.FORMATS[model_config.kind].tensors(model_config)
    tensors = tiny_checkpoint.tensors_of(model_config, params)
    jax.tree.map(
        np.testing.assert_array_equal, params_from_tensors(tensors, mapping, expected), params
    )
    name = next(name for name in tensors if ".0." in name)
    with pytest.raises(UserError, match=f"missing tensor {name}"):
        params_from_tensors({k: v for k, v in tensors.items() if k != name}, mapping, expected)
    with pytest.raises(UserError, match="unexpected tensor extra"):
        params_from_tensors(tensors | {"extra": np.zeros(1)}, mapping, expected)
    with pytest.raises(UserError, match=name):
        params_from_tensors(tensors | {name: tensors[name][..., :-1]}, mapping, expected)
    with pytest.raises(UserError, match=name):
        params_from_tensors(tensors | {name: tensors[name].astype(int)}, mapping, expected)


FILE = """
from lm_mia.model.transformer import TransformerLM


class NoPositions(TransformerLM):
    def embed(self, x_BxL, positions_BxL):
        return self.token_embed(x_BxL).astype(self.config.dtype)
"""


def with_kind(kind: str, **fields: Any) -> config.Config:
    return config.resolve(config.Config(model=config.Model(kind=kind, **fields)))


def test_class_of_a_file(tmp_path: Path) -> None:
    hashes = []
    changed = FILE.replace("self.token_embed(x_BxL)", "self.token_embed(x_BxL) / 2")
    for name, text in (("a", FILE), ("b", FILE + "# a comment\n"), ("c", changed)):
        (tmp_path / f"{name}.py").write_text(text)
        hashes.append(recipe_hash(with_kind(f"{tmp_path / name}.py:NoPositions")))
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[0] != recipe_hash(with_kind("gpt"))
    kind = f"{tmp_path / 'a'}.py:NoPositions"
    own = dataclasses.replace(GPT, kind=kind, kind_source=user_files.source_digest(kind))
    assert kinds.size(own).parameters == kinds.size(GPT).parameters - 12 * 16
    with pytest.raises(UserError, match="does not define"):
        kinds.build(dataclasses.replace(GPT, kind=f"{tmp_path / 'a'}.py:Missing"))
    with pytest.raises(UserError, match="was changed"):
        kinds.build(dataclasses.replace(own, kind_source="another"))


def test_kinds_have_different_hashes() -> None:
    all_hashes = [
        recipe_hash(with_kind("gpt")),
        recipe_hash(with_kind("gpt2")),
        recipe_hash(with_kind("llama")),
        recipe_hash(with_kind("llama", kv_heads=2)),
        recipe_hash(with_kind("llama", tied=False)),
    ]
    assert len(set(all_hashes)) == len(all_hashes)
