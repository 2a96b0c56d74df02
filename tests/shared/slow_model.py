"""The model in plain numpy: parameters without a compiler, and a slow forward pass that tests compare with."""

import math
from typing import Any

import jax
import numpy as np

from lm_mia.model import transformer


def shapes(shape: transformer.ModelConfig) -> Any:
    """Shapes and types of the parameters."""
    return jax.eval_shape(lambda: transformer.init(jax.random.key(0), shape))


def parameters(
    shape: transformer.ModelConfig, seed: int = 0, noise: float = 0.0
) -> transformer.Params:
    """Arrays of numpy, distributed much like first values, with so much noise that every one of them counts."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, of: Any) -> np.ndarray:
        is_norm = path[-1].key.startswith("ln")
        first = np.ones(of.shape) if is_norm else rng.normal(0, shape.width**-0.5, of.shape)
        return (first + noise * rng.standard_normal(of.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes(shape))


def slow_norm(x_D: np.ndarray, scale_D: np.ndarray) -> np.ndarray:
    return (x_D - x_D.mean()) / math.sqrt(x_D.var() + 1e-6) * scale_D


def slow_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_forward(params: Any, x_L: np.ndarray) -> np.ndarray:
    """Logits of one sample, one position and one head at a time, in float64."""
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


def slow_losses(logits_LxV: np.ndarray, x_L: np.ndarray) -> np.ndarray:
    """Loss in nats of every token but the first, from logits of one sample, in float64."""
    z_LxV = np.asarray(logits_LxV, np.float64)[: len(x_L) - 1]
    highest_Lx1 = z_LxV.max(1, keepdims=True)
    log_z_L = np.log(np.exp(z_LxV - highest_Lx1).sum(1)) + highest_Lx1[:, 0]
    return log_z_L - z_LxV[np.arange(len(x_L) - 1), x_L[1:]]
