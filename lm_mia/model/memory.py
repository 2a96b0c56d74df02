"""Estimates of the memory that training needs on each device, and of the number of devices that a model needs.

With unrolled layers, for models of 10M to 1018M on 1 to 8 H100s, the estimates differ by at most 2 % from the memory
that the compiler plans (`benchmarks/roofline.py`, docs/results/accelerators.md). With scanned layers, for 302M and
1018M on one H100, they are 9 % to 18 % too high (`benchmarks/memory.py`, docs/results/memory.md). With unrolled layers
and attention "xla", for 10M and 140M, they are 6 % to 8 % too low. They were fitted to H100s; programs for TPUs
have not been compiled since.
"""

import dataclasses

CPU_TOKENS, DEVICE_TOKENS = 2048, 8192
"""Number of tokens of a micro-batch on CPUs and on TPUs, unless the config sets the size."""
_MOST_SEQUENCES = 64
"""Largest number of packed sequences of a micro-batch on GPUs; larger ones are not faster."""
_FEWEST_UNROLLED = 4
"""With fewer packed sequences per micro-batch, recomputing the activations of larger ones is faster on GPUs."""
DEVICE_CHUNK_TOKENS = 4096
"""Number of tokens whose logits are in memory at once on accelerators."""
USABLE_SHARE = 0.9  # of the memory
ADAMW_STATE_BYTES = 8.0
"""Bytes of the state of AdamW per parameter: two moments in float32."""
UNKNOWN_BYTES = 16 * 2**30
"""Memory that is assumed of a device that does not report it."""


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
    parameters: int
    """Number of parameters."""
    kernels: int
    """Number of those in dense layers, which are converted to the type of the activations."""
    embeddings: int
    """Number of those in embeddings, of tokens and of positions."""
    activation_numbers: float
    """How many numbers a layer keeps per token for the backward pass, without attention weights."""
    attention_width: int
    """Width of all heads of the queries together."""
    state_bytes: float = ADAMW_STATE_BYTES
    """Bytes of the optimizer's state per parameter."""

    @property
    def blocks(self) -> int:
        """Number of parameters outside embeddings: those of layers and of the last normalization."""
        return self.parameters - self.embeddings

    @property
    def itemsize(self) -> int:
        """Bytes of one activation."""
        return 2 if self.dtype == "bfloat16" else 4


def gpt_size(
    layers: int, width: int, heads: int, vocab_size: int, length_tokens: int, dtype: str
) -> ModelSize:
    """Returns the size of a model of the kind "gpt", as `kinds.size` does, but without loading JAX."""
    kernels, embeddings = 12 * layers * width**2, (vocab_size + length_tokens) * width
    return ModelSize(
        layers,
        width,
        heads,
        vocab_size,
        length_tokens,
        dtype,
        parameters=kernels + (2 * layers + 1) * width + embeddings,
        kernels=kernels,
        embeddings=embeddings,
        activation_numbers=16.2 * width,
        attention_width=width,
    )


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


def micro_batch_sizes(
    requested: int,
    size: ModelSize,
    attention: str,
    batch_size: int,
    num_devices: int,
    platform: str,
    memory_bytes: float,
) -> tuple[tuple[int, ...], bool]:
    """Returns the numbers of packed sequences that a device may process at once, and whether layers are unrolled.

    On CPUs and TPUs there is one number, `micro_batch_size`, and layers are unrolled if the activations for the
    backward pass take less than half of the memory.

    On GPUs, the largest number is the largest one, up to 64, that fits into memory with unrolled layers. If that is
    less than 4, layers are scanned, and it is the largest one that fits then. If the config sets the largest number,
    layers are unrolled if they fit.

    The other numbers are all smaller ones, even ones above 32, so that a batch can be divided into micro-batches of
    equal size with hardly any empty sequences. Batches of few tokens are computed at once: each number that is used
    takes seconds to compile.

    Args:
      requested: ``compute.micro_batch_size`` of the config; 0: chosen automatically.
      size: the model.
      attention: the implementation of attention, as `activation_bytes` takes it.
      batch_size: number of samples per step.
      num_devices: number of devices that share a batch.
      platform: "cpu", "gpu" or "tpu".
      memory_bytes: bytes of memory of a device.
    """
    if platform != "gpu":
        tokens = CPU_TOKENS if platform == "cpu" else DEVICE_TOKENS
        single = micro_batch_size(requested, size.length_tokens, batch_size, num_devices, tokens)
        return (single,), activation_bytes(size, attention, single) < memory_bytes / 2
    samples = -(-batch_size // num_devices)
    limit = min(requested or _MOST_SEQUENCES, samples)

    def fits(number: int, is_scanned: bool) -> bool:
        needed = training_bytes(size, attention, number, num_devices, is_scanned)
        return needed <= USABLE_SHARE * memory_bytes

    def largest(is_scanned: bool) -> int:
        return next((number for number in range(limit, 0, -1) if fits(number, is_scanned)), 0)

    if requested:
        most, is_unrolled = limit, fits(limit, is_scanned=False)
    else:
        most = largest(is_scanned=False)
        is_unrolled = most >= min(_FEWEST_UNROLLED, limit)
        if not is_unrolled:
            most = max(largest(is_scanned=True), 1)
    if samples * size.length_tokens <= DEVICE_TOKENS:
        return (most,), is_unrolled
    sizes = (number for number in range(1, most + 1) if number <= 32 or number % 2 == 0)
    return (*dict.fromkeys((*sizes, most)),), is_unrolled


def activation_bytes(size: ModelSize, attention: str, micro_batch_size: int) -> float:
    """Estimates the bytes of the activations that layers keep for the backward pass, without rematerialization.

    Per layer and token, these are the numbers that the kind of the model states, in the dtype of activations, and, if
    attention is "xla", all attention weights.
    """
    num_tokens = micro_batch_size * size.length_tokens
    vectors = size.activation_numbers * size.itemsize
    weights = size.heads * size.length_tokens * (4 + size.itemsize) * 0.6
    per_token = vectors + (weights if attention == "xla" else 0)
    return size.layers * num_tokens * per_token


def training_bytes(
    size: ModelSize,
    attention: str,
    micro_batch_size: int,
    num_devices: int,
    is_scanned: bool,
) -> float:
    """Estimates the bytes of memory that training one model needs on each of its devices.

    The estimate is the sum of

    - parameters in float32 and the optimizer's state, which are sharded over the devices,
    - the parameters that each device gathers: kernels in the dtype of activations, and, with several devices, float32
      embeddings,
    - sums of gradients in float32, which are not sharded,
    - activations: those of all layers, or, if layers are scanned and recomputed, the inputs of all layers, the
      activations of one layer, and two copies of the kernels' gradients of one micro-batch,
    - logits and their gradients for one chunk of tokens.

    Args:
      size: the model.
      attention: the implementation of attention: "xla" or another one.
      micro_batch_size: number of packed sequences that a device processes at once.
      num_devices: number of devices that train the model together.
      is_scanned: whether layers are scanned and their activations recomputed.
    """
    kernels, parameters = size.kernels, size.parameters
    embeddings = parameters - kernels
    gathered = kernels * size.itemsize + (embeddings * 4 if num_devices > 1 else 0)
    activations = activation_bytes(size, attention, micro_batch_size)
    num_tokens = micro_batch_size * size.length_tokens
    if is_scanned:
        inputs = size.layers * num_tokens * size.width * size.itemsize
        activations = inputs + activations / size.layers + 2 * kernels * size.itemsize
    logits = 2 * 4 * min(num_tokens, DEVICE_CHUNK_TOKENS) * size.vocab_size
    state = (4 + size.state_bytes) * parameters / num_devices
    return state + gathered + 4 * parameters + activations + logits


def fewest_devices(
    size: ModelSize,
    attention: str,
    batch_size: int,
    requested_micro_batch_size: int,
    platform: str,
    memory_bytes: float,
    num_devices: int,
) -> int:
    """Returns the smallest number of devices of a machine whose memory suffices to train a model.

    Args:
      size: the model.
      attention: the implementation of attention: "xla" or another one.
      batch_size: number of samples per step.
      requested_micro_batch_size: ``compute.micro_batch_size`` of the config; 0: chosen automatically.
      platform: "gpu" or "tpu".
      memory_bytes: bytes of memory of a device.
      num_devices: number of devices of the machine.

    Returns:
      A divisor of the number of devices, so that no device is idle, or 0 if one machine does not suffice.
    """
    for count in range(1, num_devices + 1):
        if num_devices % count:
            continue
        sizes, is_unrolled = micro_batch_sizes(
            requested_micro_batch_size, size, attention, batch_size, count, platform, memory_bytes
        )
        needed = training_bytes(size, attention, sizes[-1], count, not is_unrolled)
        if needed <= USABLE_SHARE * memory_bytes:
            return count
    return 0
