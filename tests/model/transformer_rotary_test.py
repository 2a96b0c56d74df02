"""A model with rotary instead of learned positions is trained, scored and decoded by the unmodified package."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from slow_model import slow_losses
from tiny_training import OPTIMIZER, SEEDS, mesh
from unoptimized import without_optimizations

from lm_mia import config, stats
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.model import decoding
from lm_mia.model.transformer import ModelConfig, SelfAttention, TransformerLM
from lm_mia.score.scorer import Scorer, restore_params
from lm_mia.train import execution, loop

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture


def rotate(x_BxLxHxA: jax.Array, positions_BxL: jax.Array) -> jax.Array:
    """Rotates pairs of features by angles proportional to the position (Su et al. 2021)."""
    K = x_BxLxHxA.shape[-1]
    frequency_J = 10_000 ** (-jnp.arange(K // 2) / (K // 2))  # J: pairs
    angle_BxLx1xJ = (positions_BxL[..., None] * frequency_J)[:, :, None]
    cos, sin = jnp.cos(angle_BxLx1xJ), jnp.sin(angle_BxLx1xJ)
    a, b = jnp.split(x_BxLxHxA.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return rotated.astype(x_BxLxHxA.dtype)


class RotaryAttention(SelfAttention):
    def project(self, x_BxLxD: jax.Array, positions_BxL: jax.Array) -> Any:
        q_BxLxHxA, k_BxLxHxA, v_BxLxHxA = super().project(x_BxLxD, positions_BxL)
        return rotate(q_BxLxHxA, positions_BxL), rotate(k_BxLxHxA, positions_BxL), v_BxLxHxA


class RotaryLM(TransformerLM):
    attention_class: type[nn.Module] = RotaryAttention

    def embed(self, x_BxL: jax.Array, positions_BxL: jax.Array) -> jax.Array:
        return self.token_embed(x_BxL).astype(self.config.dtype)


CONFIG = ModelConfig(layers=2, width=8, heads=2, vocab_size=32, length_tokens=8)
PLAN = execution.plan_execution(config.Compute(), CONFIG, 4, "cpu")
MODEL = RotaryLM(PLAN.model_config)


@functools.partial(jax.jit, static_argnums=0)
def logits(model: TransformerLM, params: Any, *arrays: Any) -> Any:
    return model.apply({"params": params}, *arrays)


@pytest.fixture(scope="module")
def params(tiny: Population, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the parameters after 60 steps."""
    folder: Path = tmp_path_factory.mktemp("rotary")
    train_config = config.Train(batch_size=4, epochs=20)
    trainer = loop.Trainer(tiny, MODEL, OPTIMIZER, train_config, PLAN, mesh())
    loop.train_model(trainer, SEEDS, 60, folder, lambda event: None)
    return restore_params(SEEDS, 60, MODEL, folder, mesh(), mesh())


def test_a_variant_is_trained_and_scored(tiny: Population, params: Any):
    """Packed sequences give each sample the loss that it has alone, and members have lower losses."""
    assert set(params) == {"token_embed", "blocks", "ln_out"}
    loss_N2 = Scorer(MODEL, tiny, 16, 4, mesh()).score(params, (), 0, 20)["loss"]
    for i, logits_LxV in enumerate(logits(MODEL, params, tiny.pad(np.arange(6)))):
        assert loss_N2[i] == pytest.approx(slow_losses(logits_LxV, tiny.sample(i)).mean(), rel=1e-5)
    member_N2 = subsets.member(SEEDS.subset_seed, 20, "exact")
    assert loss_N2[member_N2].mean() + 0.2 < loss_N2[~member_N2].mean()


def test_a_variant_generates_text_with_the_cache(params: Any):
    prefix_BxP = np.random.default_rng(0).integers(0, 32, (3, 2)).astype(np.int32)
    keys, greedy = jax.random.split(jax.random.key(0), 3), stats.SamplingScheme(temperature=0)
    text_BxG = decoding.generate(MODEL, params, prefix_BxP, keys, 6, greedy)
    x_BxT = np.concatenate([prefix_BxP, text_BxG], axis=1)
    logits_BxTxV = np.asarray(logits(MODEL, params, x_BxT))
    assert logits_BxTxV[:, 1:-1].argmax(-1).tolist() == x_BxT[:, 2:].tolist()


def test_only_relative_positions_matter_to_rotary_attention(params: Any):
    x_BxL = np.arange(16, dtype=np.int32).reshape(2, 8)
    positions_BxL = np.tile(np.arange(8), (2, 1))
    expected = logits(MODEL, params, x_BxL, None, positions_BxL)
    moved, stretched = (
        logits(MODEL, params, x_BxL, None, p) for p in (positions_BxL + 100, 2 * positions_BxL)
    )
    np.testing.assert_allclose(moved, expected, atol=1e-3)
    assert np.abs(stretched - expected).max() > 1e-2
    scanned = RotaryLM(dataclasses.replace(CONFIG, scan_layers=True, remat="full"))
    by_scan = logits(scanned, params, x_BxL, None, positions_BxL)
    np.testing.assert_allclose(by_scan, expected, atol=1e-5)
