"""How a step is computed on the device at hand: what ``compute.*`` asks for, and what "auto" resolves to."""

import dataclasses
from typing import Literal

from lm_mia import config
from lm_mia.config import validate
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.model.attention import AttentionKind

_CPU_TOKENS, _DEVICE_TOKENS = 2048, 8192  # of a micro-batch
_CPU_CHUNK, _DEVICE_CHUNK = 512, 4096  # tokens whose logits are held at once
_UNKNOWN_BYTES = 16 * 2**30  # of memory, for a device that does not tell


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """A resolved ``config.Compute``, for one device."""

    way: transformer.Way
    micro_batch_size: int
    """Rows that a device takes at once."""
    chunk_tokens: int
    """Tokens whose logits are held at once."""
    attention_reason: str
    """Why this attention."""

    def __str__(self) -> str:
        layers = "scanned" if self.way.scanned else "unrolled"
        return (
            f"attention {self.way.attention} ({self.attention_reason}), layers {layers}, remat {self.way.remat}, "
            f"micro-batches of {self.micro_batch_size} rows"
        )


def plan_execution(
    asked: config.Compute,
    shape: transformer.ModelConfig,
    batch_size: int,
    platform: str,
    memory_bytes: int | None = None,
    devices: int = 1,
) -> ExecutionPlan:
    """What is done on a platform ("cpu", "gpu" or "tpu").

    Micro-batches: small ones fit memory and leave few empty rows in the last one of a batch; large ones keep a device
    busy. About 2,048 tokens on CPU and 8,192 elsewhere, and at most an eighth of a device's samples, did best.

    Layers: unrolled and kept, which is fastest, where what they keep for the backward pass fits in half of the memory;
    else scanned and computed again.

    Args:
      asked: of the config.
      shape: of the model.
      batch_size: samples a step.
      platform: as JAX names it.
      memory_bytes: of a device, if known.
      devices: that share each batch.

    Raises:
      UserError: if an attention is asked for that does not exist here.
    """
    head_width = shape.width // shape.heads
    kind, because = choose_attention(
        asked.attention, platform, shape.dtype, head_width, shape.length_tokens
    )
    on_cpu = platform == "cpu"
    tokens = _CPU_TOKENS if on_cpu else _DEVICE_TOKENS
    share = -(-batch_size // devices)
    rows = max(min(tokens // shape.length_tokens, share // 8), 1)
    micro_batch_size = min(asked.micro_batch_size or rows, share)
    fits = kept_bytes(shape, kind, micro_batch_size) < (memory_bytes or _UNKNOWN_BYTES) / 2
    scanned = {"auto": not (on_cpu or fits), "scanned": True, "unrolled": False}[asked.layers]
    remat = asked.remat
    if remat == "auto":
        remat = "full" if scanned else "none"
    return ExecutionPlan(
        way=transformer.Way(kind, scanned, remat),
        micro_batch_size=micro_batch_size,
        chunk_tokens=_CPU_CHUNK if on_cpu else _DEVICE_CHUNK,
        attention_reason=because,
    )


def kept_bytes(shape: transformer.ModelConfig, kind: AttentionKind, micro_batch_size: int) -> float:
    """An estimate of what the layers keep for the backward pass of a micro-batch, without rematerialisation.

    About 18 activations of a token's width a layer, in the activations' type, and 4 in float32; and all attention
    weights where attention keeps them (xla).
    """
    size = 2 if shape.dtype == "bfloat16" else 4
    tokens = micro_batch_size * shape.length_tokens
    of_token = shape.width * (18 * size + 16)
    weights = shape.heads * shape.length_tokens * (4 + size) * 0.6 if kind == "xla" else 0
    return shape.layers * tokens * (of_token + weights)


def choose_attention(
    asked: Literal["auto", "xla", "cudnn", "pallas"],
    platform: str,
    dtype: str,
    head_width: int,
    length_tokens: int,
) -> tuple[AttentionKind, str]:
    """The way that is taken, and why, for the log.

    Raises:
      UserError: if the way that is asked for does not exist here.
    """
    why_not: dict[AttentionKind, list[str]] = {"cudnn": [], "pallas": [], "xla": []}
    if platform not in ("gpu", "cuda"):
        why_not["cudnn"].append(f"it needs an NVIDIA GPU, this is a {platform}")
    if platform != "tpu":
        why_not["pallas"].append(f"it needs a TPU, this is a {platform}")
    for kind, hurdles in why_not.items():
        hurdles += validate.unmet_attention_requirements(kind, dtype, head_width, length_tokens)
    if asked != "auto":
        if why_not[asked]:
            raise UserError(
                f"compute.attention={asked!r}: {'; '.join(why_not[asked])}; "
                "set --config.compute.attention=auto"
            )
        return asked, "asked for"
    for kind in ("cudnn", "pallas"):
        if not why_not[kind]:
            return kind, f"fastest on {platform}"
    if platform == "cpu":
        return "xla", "the one for CPUs"
    fast: AttentionKind = "pallas" if platform == "tpu" else "cudnn"
    return "xla", f"slower than {fast}, but {'; '.join(why_not[fast])}"
