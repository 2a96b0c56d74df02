"""Parameters from the tensors of a Hugging Face checkpoint, by a table that each kind of model declares."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from lm_mia.errors import UserError


class Tensor(NamedTuple):
    """The tensor of a checkpoint from which a parameter is read."""

    name: str
    """In a block, "{}" stands for the number of the layer."""
    is_transposed: bool = False
    """Whether the tensor is (out, in), as torch.nn.Linear stores it; kernels are (in, out)."""
    part: int = 0
    """Which one of ``parts`` equal parts of the last axis."""
    parts: int = 1


def params_from_tensors(
    tensors: Mapping[str, np.ndarray], mapping: Mapping[str, Tensor], shapes: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the parameters of a model, float32.

    Args:
      tensors: the tensors of a checkpoint by their names.
      mapping: the tensor for each parameter, by its path in ``shapes``, whose names are joined by "/".
      shapes: parameters as `jax.eval_shape` of the initialization returns them, with layers stacked in "blocks".

    Raises:
      UserError: if a tensor is missing, unexpected, of another shape, or not of floating-point numbers.
    """
    flat: dict[str, Any] = flatten_dict(dict(shapes), sep="/")
    if flat.keys() != mapping.keys():
        raise ValueError(f"mapping: {sorted(flat.keys() ^ mapping.keys())} is not on both sides")
    params = {path: np.empty(leaf.shape, np.float32) for path, leaf in flat.items()}
    parts: list[tuple[Tensor, str, Any]] = []
    for path, array in params.items():
        is_stacked = path.startswith("blocks/")
        for i, part in enumerate(array if is_stacked else [array]):
            parts.append((mapping[path], mapping[path].name.format(i), part))
    names = {name for _, name, _ in parts}
    for problem, wrong in (
        ("missing", names - tensors.keys()),
        ("unexpected", tensors.keys() - names),
    ):
        if wrong:
            raise UserError(
                f"checkpoint: {problem} tensor {min(wrong)} ({len(wrong)} in all); choose the model.* settings with "
                "which the checkpoint was made"
            )
    for tensor, name, part in parts:
        part[...] = _converted(tensors[name], name, tensor, part.shape)
    return unflatten_dict(params, sep="/")


def _converted(array: np.ndarray, name: str, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the values of a parameter; its heads, or those of its input, are one axis of the tensor."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(f"checkpoint: tensor {name} has type {array.dtype}; it must be of floats")
    # A kernel of heads is (D, H, K) or (H, K, D), and its tensor has two axes.
    allowed = {shape}
    for split in range(1, len(shape)):
        allowed.add((math.prod(shape[:split]), math.prod(shape[split:])))
    if len(shape) == 2 and name.endswith("bias"):
        allowed = {(math.prod(shape),)}
    last = array.shape[-1] if array.ndim else 1
    whole = array.shape
    if tensor.parts > 1 and last % tensor.parts == 0:
        array = np.split(array, tensor.parts, axis=-1)[tensor.part]
    array = array.T if tensor.is_transposed else array
    if array.shape not in allowed:
        raise UserError(f"checkpoint: tensor {name} has shape {whole}, which does not fit {shape}")
    return array.reshape(shape)
