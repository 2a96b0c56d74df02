"""Parameters from the tensors of a Hugging Face checkpoint, by a table that each kind of model declares."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from lm_mia.errors import UserError

if TYPE_CHECKING:
    from lm_mia.model.transformer import ModelConfig


class Tensor(NamedTuple):
    """The tensor of a checkpoint from which a parameter is read."""

    name: str
    """In a block, "{}" stands for the number of the layer."""
    is_transposed: bool = False
    """Whether the tensor is (out, in), as torch.nn.Linear stores it; kernels are (in, out)."""
    part: int = 0
    """Which one of ``parts`` equal parts of the last axis."""
    parts: int = 1
    has_more_rows: bool = False
    """Whether only the first rows are read, as of positions that no sample reaches."""


class Format(NamedTuple):
    """How the checkpoints of a kind of model name their tensors."""

    tensors: "Callable[[ModelConfig], dict[str, Tensor]]"
    """Returns the tensor of each parameter, by its path, whose names are joined by "/"."""
    prefix: str
    """What the names begin with, except in checkpoints of the bare model without an output."""
    ignored: tuple[str, ...]
    """Ends of names of constants, such as masks, that old checkpoints hold."""


def load_params(
    files: list[Path], format_: Format, config: "ModelConfig", shapes: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads the parameters of a checkpoint, one tensor at a time; see `params_from_tensors`.

    If the token embeddings are the output, a checkpoint may hold them twice.

    Args:
      files: its safetensors files.
      format_: that of the kind of model.
      config: the model.
      shapes: as `params_from_tensors` takes them.

    Raises:
      UserError: as `params_from_tensors`; if an output that is not used differs from the token embeddings; or if a file
        is damaged.
    """
    mapping = {
        path: tensor._replace(name=tensor.name.removeprefix(format_.prefix))
        for path, tensor in format_.tensors(config).items()
    }
    with contextlib.ExitStack() as stack:
        tensors = dict(_tensors(files, format_, stack))
        output = (
            tensors.pop("lm_head.weight", None) if "output_embed/embedding" not in mapping else None
        )
        params = params_from_tensors(_Lazy(tensors), mapping, shapes)
        if output is not None and not np.array_equal(
            np.asarray(output(), np.float32), params["token_embed"]["embedding"]
        ):
            raise UserError(
                "checkpoint: lm_head.weight differs from the token embeddings; set tie_word_embeddings to false in its "
                "config.json"
            )
    return params


def _tensors(
    files: list[Path], format_: Format, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yields the name of each tensor, without the prefix, and the function that reads it."""
    import safetensors

    for path in files:
        try:
            # NumPy knows bfloat16 since JAX registers it.
            file: Any = stack.enter_context(safetensors.safe_open(path, framework="numpy"))
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"checkpoint: {path} cannot be read ({error}); copy it again") from None
        for name in file.keys():  # noqa: SIM118
            if not name.endswith(format_.ignored):
                yield name.removeprefix(format_.prefix), functools.partial(file.get_tensor, name)


class _Lazy(Mapping[str, np.ndarray]):
    """Tensors that are read when they are asked for."""

    def __init__(self, tensors: Mapping[str, Callable[[], np.ndarray]]):
        self._tensors = tensors

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


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
    parts: list[tuple[str, str, Any]] = []
    for path, array in params.items():
        for i, part in enumerate(array if path.startswith("blocks/") else [array]):
            parts.append((path, mapping[path].name.format(i), part))
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
    for path, name, part in parts:
        part[...] = _converted(
            tensors[name], name, mapping[path], _folded(path, part.shape)
        ).reshape(part.shape)
    return unflatten_dict(params, sep="/")


def _folded(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a parameter in which heads and their width are one axis, as in checkpoints."""
    if path.endswith("bias"):
        return (math.prod(shape),)
    if path.endswith("kernel"):  # (D, H, A), or (H, A, D) for the output of the attention
        inputs = -1 if path.endswith("out/kernel") else 1
        return math.prod(shape[:inputs]), math.prod(shape[inputs:])
    return shape


def _converted(array: np.ndarray, name: str, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the part of a tensor that a parameter is read from, as (in, out)."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(f"checkpoint: tensor {name} has type {array.dtype}; it must be of floats")
    whole = array.shape
    if tensor.parts > 1 and array.ndim and array.shape[-1] % tensor.parts == 0:
        array = np.split(array, tensor.parts, axis=-1)[tensor.part]
    array = array.T if tensor.is_transposed else array
    if tensor.has_more_rows and array.shape[:1] > shape[:1]:
        array = array[: shape[0]]
    if array.shape != shape:
        raise UserError(
            f"checkpoint: tensor {name} has shape {whole}, which does not fit {shape}; choose the model.* settings "
            "with which the checkpoint was made"
        )
    return array
