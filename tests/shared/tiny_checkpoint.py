"""Tiny random checkpoints as save_pretrained of Transformers writes them, from parameters of our own kinds."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict
from json_tokenizers import byte_level, unigram

from lm_mia.model import kinds
from lm_mia.model.transformer import ModelConfig, init_params

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 512,
}


def model_config(content: dict[str, Any], length_tokens: int = 64) -> ModelConfig:
    """Returns our config of the model that LLAMA or GPT2 describes."""
    if content["model_type"] == "gpt2":
        return ModelConfig(2, 16, 2, 512, length_tokens, kind="gpt2", mlp_width=64)
    return ModelConfig(
        *(2, 16, 4, 512, length_tokens),
        kind="llama",
        kv_heads=2,
        head_width=4,
        mlp_width=24,
        norm_epsilon=1e-6,
        tied=content["tie_word_embeddings"],
    )


@functools.cache
def initial_params(config: ModelConfig, seed: int) -> Any:
    return jax.jit(lambda: init_params(kinds.build(config), jax.random.key(seed)))()


def random_params(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Returns random parameters, none of which is 0 or 1."""
    rng = np.random.default_rng(seed)
    params = initial_params(config, seed)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf + 0.2 * rng.standard_normal(leaf.shape), np.float32), params
    )


def tensors_of(config: ModelConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint with these parameters, by name."""
    mapping = kinds.FORMATS[config.kind].tensors(config)
    parts: dict[str, dict[int, np.ndarray]] = {}
    flat: dict[str, Any] = flatten_dict(params, sep="/")
    for path, leaf in flat.items():
        source = mapping[path]
        for i, array in enumerate(leaf if path.startswith("blocks/") else [leaf]):
            if path.endswith("kernel"):  # (in, out)
                inputs = math.prod(array.shape[:2]) if "/out/" in path else array.shape[0]
                array = array.reshape(inputs, -1)
            elif path.endswith("bias"):
                array = array.reshape(-1)
            array = array.T if source.is_transposed else array
            parts.setdefault(source.name.format(i), {})[source.part] = np.ascontiguousarray(array)
    return {name: np.concatenate([p[i] for i in range(len(p))], -1) for name, p in parts.items()}


def save(folder: Path, content: dict[str, Any] = LLAMA, *, has_bos: bool = True) -> dict[str, Any]:
    """Saves a checkpoint, and returns its parameters; its tokenizer adds <s> to each text, or no token."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer.json").write_bytes(unigram() if has_bos else byte_level())
    config = model_config(content)
    params = random_params(config)
    safetensors.numpy.save_file(tensors_of(config, params), folder / "model.safetensors")
    return params
