"""A small state for tests of checkpoints and the processes that they start."""

import jax
import jax.numpy as jnp
import numpy as np

from lm_mia import config
from lm_mia.model import transformer
from lm_mia.train import checkpoint, sharding
from lm_mia.train.optimizer import optimizer

MODEL_CONFIG = transformer.ModelConfig(layers=2, width=8, heads=2, vocab_size=16, length_tokens=6)
MODEL = transformer.TransformerLM(MODEL_CONFIG)
TX = optimizer(config.Optimizer())


def state(seed: int = 0, step: int = 5) -> checkpoint.TrainState:
    """Returns a state without two equal leaves, in which moments and count differ from their initial values."""
    like = checkpoint.abstract_state(MODEL, TX, sharding.make_mesh(jax.local_devices()[:1]))
    noise = np.random.default_rng(seed)

    def leaf(struct: jax.ShapeDtypeStruct) -> jax.Array:
        is_count = struct.dtype == np.int32
        values = np.full(struct.shape, 7 + seed) if is_count else noise.normal(size=struct.shape)
        return jax.device_put(values.astype(struct.dtype), struct.sharding)

    return jax.tree.map(leaf, like).replace(step=jnp.int32(step))
