"""Cost of a model computed from its size: FLOPs of training and scoring, parameters, and peak rates of devices.

Only useful work counts: matrix products over the samples' tokens, and attention to earlier tokens. Padding and
rematerialization are not useful work, so they lower the model FLOPs utilization (MFU).
"""

import re
from typing import Protocol

# Dense bfloat16 rates with float32 accumulation, in TFLOP/s per chip, the number of JAX devices per chip, and the
# memory per chip in GB. The keys are words of JAX's device_kind. From the manufacturers' data sheets (half of a rate
# "with sparsity"; the smallest memory size if there are several); TPUs from cloud.google.com/tpu/docs. Volta and Turing
# have no bfloat16 and are left out.
_CHIPS = {
    **{"a100": (312, 1, 40), "a800": (312, 1, 40), "a30": (165, 1, 24), "a10": (125, 1, 24)},
    **{"a10g": (70, 1, 24), "a40": (149.7, 1, 48), "a6000": (154.8, 1, 48), "l4": (121, 1, 24)},
    **{"l40": (181, 1, 48), "l40s": (362, 1, 48), "6000 ada": (364.2, 1, 48)},
    **{"rtx 3090": (71, 1, 24), "rtx 4090": (165.2, 1, 24), "rtx 5090": (209.5, 1, 32)},
    **{"h100": (989, 1, 80), "h100 pcie": (756, 1, 80), "h100 nvl": (835, 1, 94)},
    **{"h800": (989, 1, 80), "h200": (989, 1, 141), "h200 nvl": (835, 1, 141)},
    **{"gh200": (989, 1, 96), "h20": (148, 1, 96), "b200": (2250, 1, 180)},
    **{"gb200": (2500, 1, 186), "b300": (2250, 1, 262), "gb300": (2500, 1, 278)},
    **{"tpu v2": (46, 2, 16), "tpu v3": (123, 2, 32), "tpu v4": (275, 1, 32)},
    **{"tpu v4 lite": (138, 1, 8), "tpu v5 lite": (197, 1, 16), "tpu v5e": (197, 1, 16)},
    **{"tpu v5": (459, 1, 95), "tpu v5p": (459, 1, 95), "tpu v6 lite": (918, 1, 32)},
    **{"tpu v6e": (918, 1, 32), "tpu7x": (2307, 2, 192), "tpu v7x": (2307, 2, 192)},
}
_CANONICAL_NAMES = {"tpu v5": "tpu v5p", "tpu v5 lite": "tpu v5e", "tpu v6 lite": "tpu v6e"}
# Words of a device name that mean another, slower or smaller device than the name without them.
_VARIANTS = {"laptop", "mobile", "max", "mig", "ti", "super", "d", "cpu"}

DEVICE_NAMES = tuple(_CHIPS)
"""Device names that `device_peak` and `chip_peak` accept, besides the ``device_kind`` of JAX devices."""


class Counts(Protocol):
    """What FLOPs follow from; a `memory.ModelSize` satisfies this protocol."""

    @property
    def kernels(self) -> int:
        """The number of parameters in dense layers."""
        ...

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def width(self) -> int:
        """The width of the residual stream."""
        ...

    @property
    def attention_width(self) -> int:
        """The width of all heads of the queries together."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the vocabulary."""
        ...


def training(size: Counts, num_tokens: float, sum_squared_lengths: float) -> float:
    """Returns the useful FLOPs of one forward and backward pass over some samples.

    The forward pass takes two FLOPs per weight and token (the output embedding counts, embedding look-ups do not), plus
    attention to earlier tokens, which is half of all pairs of a sample's tokens. The backward pass takes twice as many.

    Args:
      size: counts of the model.
      num_tokens: total number of tokens of the samples.
      sum_squared_lengths: sum of the squares of the samples' numbers of tokens.
    """
    weights = size.kernels + size.width * size.vocab_size
    return (
        6.0 * weights * num_tokens + 6.0 * size.layers * size.attention_width * sum_squared_lengths
    )


def scoring(size: Counts, num_tokens: float, sum_squared_lengths: float) -> float:
    """Returns the useful FLOPs of one forward pass, a third of `training`, which describes the arguments."""
    return training(size, num_tokens, sum_squared_lengths) / 3


def device_peak(device_kind: str) -> float | None:
    """Returns the peak rate of one JAX device in dense bfloat16 FLOP/s.

    A JAX device is one chip, except on TPU v2, v3 and v7x, where it is half a chip.

    Args:
      device_kind: JAX's name of the device, or one of `DEVICE_NAMES`.

    Returns:
      The rate; None if it is unknown, as for CPUs, devices without bfloat16 (V100, T4), slices of a device, and devices
      that are not in the table.
    """
    name = _find(device_kind)
    return None if name is None else _CHIPS[name][0] * 1e12 / _CHIPS[name][1]


def chip_peak(device_kind: str) -> float | None:
    """Returns the peak rate of one whole chip in dense bfloat16 FLOP/s; otherwise as `device_peak`."""
    name = _find(device_kind)
    return None if name is None else _CHIPS[name][0] * 1e12


def device_memory_bytes(device_kind: str) -> float | None:
    """Returns the memory of one JAX device in bytes, or None if it is unknown."""
    name = _find(device_kind)
    return None if name is None else _CHIPS[name][2] * 1e9 / _CHIPS[name][1]


def chip_name(device_kind: str) -> str | None:
    """Returns the canonical name of a chip, which is one of `DEVICE_NAMES`, or None if the chip is unknown."""
    name = _find(device_kind)
    return None if name is None else _CANONICAL_NAMES.get(name, name)


def _find(device_kind: str) -> str | None:
    """Returns the longest key of `_CHIPS` whose words all occur in the name of a device, or None."""
    words = set(re.findall(r"[a-z0-9]+", device_kind.casefold()))
    matches = [name for name in _CHIPS if words.issuperset(name.split())]
    if not matches or words & _VARIANTS:
        return None
    return max(matches, key=lambda name: len(name.split()))
