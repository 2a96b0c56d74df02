"""Estimates of the memory that training needs on each device, and of the number of devices that a model needs.

For models of 140M to 1018M on 1 to 8 H100s or chips of a TPU v5p, the estimates are between 12 % too low and 29 % too
high, compared with the memory that the compiler plans (`benchmarks/roofline.py`, docs/results/accelerators.md).
"""

import dataclasses

from lm_mia.model import flops

CPU_TOKENS, DEVICE_TOKENS = 2048, 8192
"""Number of tokens of a micro-batch on CPUs and on accelerators, unless the config sets the size."""
DEVICE_CHUNK_TOKENS = 4096
"""Number of tokens whose logits are in memory at once on accelerators."""
_USABLE_SHARE = 0.88  # of the memory, since estimates may be too low by 12 %


@dataclasses.dataclass(frozen=True)
class ModelSize:
    """The properties of a model that determine its memory."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    length_tokens: int
    """Number of tokens of a packed sequence."""
    dtype: str
    """Type of the activations."""

    @property
    def itemsize(self) -> int:
        """Bytes of one activation."""
        return 2 if self.dtype == "bfloat16" else 4


def micro_batch_size(
    requested: int,
    length_tokens: int,
    batch_size: int,
    num_devices: int = 1,
    micro_batch_tokens: int = DEVICE_TOKENS,
) -> int:
    """Returns the number of packed sequences that a device processes at once, at most the number of its samples.

    If the config does not set the number, it is at most an eighth of a device's samples, so that few packed sequences
    of the last micro-batch are empty.

    Args:
      requested: ``compute.micro_batch_size`` of the config; 0: chosen automatically.
      length_tokens: number of tokens of a packed sequence.
      batch_size: number of samples per step.
      num_devices: number of devices that share a batch.
      micro_batch_tokens: maximum number of tokens of a micro-batch, unless one packed sequence is longer.
    """
    samples_per_device = -(-batch_size // num_devices)
    default = max(min(micro_batch_tokens // length_tokens, samples_per_device // 8), 1)
    return min(requested or default, samples_per_device)


def activation_bytes(size: ModelSize, attention: str, micro_batch_size: int) -> float:
    """Estimates the bytes of the activations that layers keep for the backward pass, without rematerialization.

    Per layer and token, these are about 18 vectors of the model's width in the dtype of activations and 4 in float32,
    and, if attention is "xla", all attention weights.
    """
    num_tokens = micro_batch_size * size.length_tokens
    vectors = size.width * (18 * size.itemsize + 16)
    weights = size.heads * size.length_tokens * (4 + size.itemsize) * 0.6
    per_token = vectors + (weights if attention == "xla" else 0)
    return size.layers * num_tokens * per_token


def training_bytes(
    size: ModelSize,
    attention: str,
    micro_batch_size: int,
    num_devices: int,
    memory_bytes: float,
) -> float:
    """Estimates the bytes of memory that training one model needs on each of its devices.

    The estimate is the sum of

    - parameters and two moments in float32, which are sharded over the devices,
    - the parameters that each device gathers: kernels in the dtype of activations, and, with several devices, float32
      embeddings,
    - sums of gradients in float32, which are not sharded,
    - activations: those of all layers if they need less than half of the memory; otherwise, since layers are then
      scanned and recomputed, the inputs of all layers, the activations of one layer, and two copies of the kernels'
      gradients of one micro-batch,
    - logits and their gradients for one chunk of tokens.

    Args:
      size: the model.
      attention: the implementation of attention: "xla", "cudnn" or "pallas".
      micro_batch_size: number of packed sequences that a device processes at once.
      num_devices: number of devices that train the model together.
      memory_bytes: bytes of memory of a device.
    """
    kernels = 12 * size.layers * size.width**2
    parameters = flops.num_parameters(size.layers, size.width, size.vocab_size, size.length_tokens)
    embeddings = parameters - kernels
    gathered = kernels * size.itemsize + (embeddings * 4 if num_devices > 1 else 0)
    activations = activation_bytes(size, attention, micro_batch_size)
    num_tokens = micro_batch_size * size.length_tokens
    if activations >= memory_bytes / 2:
        inputs = size.layers * num_tokens * size.width * size.itemsize
        activations = inputs + activations / size.layers + 2 * kernels * size.itemsize
    logits = 2 * 4 * min(num_tokens, DEVICE_CHUNK_TOKENS) * size.vocab_size
    return 12 * parameters / num_devices + gathered + 4 * parameters + activations + logits


def choose_devices_per_model(
    size: ModelSize,
    attention: str,
    batch_size: int,
    requested_micro_batch_size: int,
    memory_bytes: float,
    num_devices: int,
) -> int:
    """Returns the smallest number of devices of a machine whose memory suffices to train a model.

    Args:
      size: the model.
      attention: the implementation of attention: "xla", "cudnn" or "pallas".
      batch_size: number of samples per step.
      requested_micro_batch_size: ``compute.micro_batch_size`` of the config; 0: chosen automatically.
      memory_bytes: bytes of memory of a device.
      num_devices: number of devices of the machine.

    Returns:
      A divisor of the number of devices, so that no device is idle, or 0 if one machine does not suffice.
    """
    for count in range(1, num_devices + 1):
        if num_devices % count:
            continue
        per_device = micro_batch_size(
            requested_micro_batch_size, size.length_tokens, batch_size, count
        )
        if (
            training_bytes(size, attention, per_device, count, memory_bytes)
            <= _USABLE_SHARE * memory_bytes
        ):
            return count
    return 0
