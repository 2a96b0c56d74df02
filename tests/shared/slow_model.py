"""The model in plain numpy: parameters without a compiler, and a slow forward pass as a reference for tests."""

import math
from typing import Any

import jax
import numpy as np

from lm_mia.model import transformer


def shapes(config: transformer.ModelConfig) -> Any:
    """Returns the shapes and dtypes of the parameters."""
    model = transformer.TransformerLM(config)
    return jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))


def parameters(
    config: transformer.ModelConfig, seed: int = 0, noise: float = 0.0
) -> transformer.Params:
    """Returns numpy arrays, distributed about as initial values are, with noise so that every value has an effect."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, struct: Any) -> np.ndarray:
        is_scale = path[-1].key == "scale"
        initial = (
            np.ones(struct.shape) if is_scale else rng.normal(0, config.width**-0.5, struct.shape)
        )
        return (initial + noise * rng.standard_normal(struct.shape)).astype(np.float32)

    return jax.tree.map_with_path(leaf, shapes(config))


def slow_norm(x_D: np.ndarray, scale_D: np.ndarray) -> np.ndarray:
    return (x_D - x_D.mean()) / math.sqrt(x_D.var() + 1e-6) * scale_D


def slow_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_forward(params: Any, x_L: np.ndarray) -> np.ndarray:
    """Returns the logits of one sample, computed one position and one head at a time, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    embed_VxD, positions_LxD = p["token_embed"]["embedding"], p["pos_embed"]["embedding"]
    h_LxD = [embed_VxD[token] + positions_LxD[i] for i, token in enumerate(x_L.tolist())]
    for n in range(len(p["blocks"]["ln_attn"]["scale"])):
        layer = jax.tree.map(lambda leaf_N: leaf_N[n], p["blocks"])  # noqa: B023
        attn = {name: dense["kernel"] for name, dense in layer["attn"].items()}
        normed = [slow_norm(h_D, layer["ln_attn"]["scale"]) for h_D in h_LxD]
        heads, K = attn["query"].shape[1:]
        for i in range(len(h_LxD)):
            for h in range(heads):
                q_K = normed[i] @ attn["query"][:, h]
                logits = [
                    q_K @ (normed[t] @ attn["key"][:, h]) / math.sqrt(K) for t in range(i + 1)
                ]
                weights = np.exp(np.array(logits) - max(logits))
                weights /= weights.sum()
                for t, weight in enumerate(weights):
                    value_K = normed[t] @ attn["value"][:, h]
                    h_LxD[i] = h_LxD[i] + weight * (value_K @ attn["out"][h])
        up_DxF, down_FxD = (layer["mlp"][name]["kernel"] for name in ("up", "down"))
        normed = [slow_norm(h_D, layer["ln_mlp"]["scale"]) for h_D in h_LxD]
        h_LxD = [
            h_D + slow_gelu(normed_D @ up_DxF) @ down_FxD
            for h_D, normed_D in zip(h_LxD, normed, strict=True)
        ]
    return np.stack([embed_VxD @ slow_norm(h_D, p["ln_out"]["scale"]) for h_D in h_LxD])


def slow_losses(logits_LxV: np.ndarray, x_L: np.ndarray) -> np.ndarray:
    """Computes the loss in nats of every token but the first from the logits of one sample, in float64."""
    z_LxV = np.asarray(logits_LxV, np.float64)[: len(x_L) - 1]
    highest_Lx1 = z_LxV.max(1, keepdims=True)
    log_z_L = np.log(np.exp(z_LxV - highest_Lx1).sum(1)) + highest_Lx1[:, 0]
    return log_z_L - z_LxV[np.arange(len(x_L) - 1), x_L[1:]]
