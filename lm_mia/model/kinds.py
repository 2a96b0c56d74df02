"""The kinds of models, by the name that ``model.kind`` sets, and their counts of parameters and FLOPs.

A kind is one module with a subclass of `TransformerLM`, which it may take apart as far as it likes.
"""

import functools
import math
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from lm_mia import user_files
from lm_mia.errors import UserError
from lm_mia.model import checkpoint_mapping, gpt2, llama
from lm_mia.model.checkpoint_mapping import Format
from lm_mia.model.memory import ModelSize
from lm_mia.model.transformer import ModelConfig, Params, TransformerLM, abstract_params

KINDS: dict[str, type[TransformerLM]] = {
    "gpt": TransformerLM,
    "gpt2": gpt2.Gpt2LM,
    "llama": llama.LlamaLM,
}
"""The class of each kind. The settings that a kind reads are those of `lm_mia.config.schema.KIND_SETTINGS`."""

FORMATS: dict[str, Format] = {"gpt2": gpt2.CHECKPOINT, "llama": llama.CHECKPOINT}
"""For each kind of which Hugging Face checkpoints exist, how these name their tensors."""


def build(config: ModelConfig) -> TransformerLM:
    """Returns the model of a config.

    Raises:
      UserError: if its kind is FILE.py:CLASS, and the file fails, defines no such class, or was changed after the
        recipe was made.
    """
    return _model_class(config.kind, config.kind_source)(config)


@functools.cache
def _model_class(kind: str, source: str) -> type[TransformerLM]:
    if kind in KINDS:
        return KINDS[kind]
    found = user_files.load("model.kind", kind, source or None)
    if not (isinstance(found, type) and issubclass(found, TransformerLM)):
        raise UserError(
            f"model.kind={kind}: must be a subclass of lm_mia.model.transformer.TransformerLM; correct the class"
        )
    return found


@functools.cache
def size(config: ModelConfig) -> ModelSize:
    """Returns the counts on which estimates of memory and FLOPs are based. Nothing is computed or allocated."""
    model = build(config)
    shapes = abstract_params(model)
    flat: dict[Any, Any] = flatten_dict(shapes)
    counts = {path: math.prod(leaf.shape) for path, leaf in flat.items()}
    return ModelSize(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        vocab_size=config.vocab_size,
        length_tokens=config.length_tokens,
        dtype=config.dtype,
        parameters=sum(counts.values()),
        kernels=sum(count for path, count in counts.items() if path[-1] == "kernel"),
        embeddings=sum(count for path, count in counts.items() if path[-1] == "embedding"),
        activation_numbers=model.activation_numbers(config),
        attention_width=math.prod(config.heads_shape),
    )


def load_params(config: ModelConfig, files: list[Path]) -> Params:
    """Returns the parameters of a checkpoint, float32 arrays of NumPy; raises UserError if it does not fit the model.

    Args:
      config: the model.
      files: the safetensors files of the checkpoint.
    """
    shapes = abstract_params(build(config))
    return checkpoint_mapping.load_params(files, FORMATS[config.kind], config, shapes)
