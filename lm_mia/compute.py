"""How a step is computed on the device at hand: what ``compute.*`` asks for, and what "auto" comes to."""

import dataclasses

from lm_mia import attention, config, model

_CPU_TOKENS, _DEVICE_TOKENS = 2048, 8192  # of a micro-batch
_CPU_CHUNK, _DEVICE_CHUNK = 512, 4096  # tokens whose logits are held at once
_UNKNOWN_BYTES = 16 * 2**30  # of memory, for a device that does not tell


@dataclasses.dataclass(frozen=True)
class Choice:
    """A resolved ``config.Compute``, for one device."""

    way: model.Way
    micro_rows: int
    """Rows that a device takes at once."""
    chunk_tokens: int
    """Tokens whose logits are held at once."""
    packed: bool
    because: str
    """Why this attention."""

    def __str__(self) -> str:
        layers = "scanned" if self.way.scanned else "unrolled"
        return (
            f"attention {self.way.attention} ({self.because}), layers {layers}, remat {self.way.remat}, "
            f"{'packed' if self.packed else 'padded'} in micro-batches of {self.micro_rows} rows"
        )


def choose(
    asked: config.Compute,
    shape: model.Shape,
    batch_size: int,
    platform: str,
    memory_bytes: int | None = None,
    devices: int = 1,
) -> Choice:
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
    kind, because = attention.choose(
        asked.attention, platform, shape.dtype, head_width, shape.length_tokens
    )
    on_cpu = platform == "cpu"
    tokens = _CPU_TOKENS if on_cpu else _DEVICE_TOKENS
    share = -(-batch_size // devices)
    rows = max(min(tokens // shape.length_tokens, share // 8), 1)
    micro_rows = min(asked.micro_rows or rows, share)
    fits = kept_bytes(shape, kind, micro_rows) < (memory_bytes or _UNKNOWN_BYTES) / 2
    scanned = {"auto": not (on_cpu or fits), "scanned": True, "unrolled": False}[asked.layers]
    remat = asked.remat
    if remat == "auto":
        remat = "full" if scanned else "none"
    return Choice(
        way=model.Way(kind, scanned, remat),
        micro_rows=micro_rows,
        chunk_tokens=_CPU_CHUNK if on_cpu else _DEVICE_CHUNK,
        packed=asked.batching == "packed",
        because=because,
    )


def kept_bytes(shape: model.Shape, kind: attention.Kind, micro_rows: int) -> float:
    """An estimate of what the layers keep for the backward pass of a micro-batch, without rematerialisation.

    About 18 activations of a token's width a layer, in the activations' type, and 4 in float32; and all attention
    weights where attention keeps them (xla).
    """
    size = 2 if shape.dtype == "bfloat16" else 4
    tokens = micro_rows * shape.length_tokens
    of_token = shape.width * (18 * size + 16)
    weights = shape.heads * shape.length_tokens * (4 + size) * 0.6 if kind == "xla" else 0
    return shape.layers * tokens * (of_token + weights)
