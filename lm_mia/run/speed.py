"""The speed at which a plan expects models to be made: devices per model, idle places of batches, and the MFU.

A batch of n packed sequences on k devices, in micro-batches of m packed sequences per device, takes ceil(n / (m k)) m k
places, of which n hold samples. Table mfu_bounds.csv has the MFU that the roofline of the compiled training step allows
(`benchmarks/roofline.py`); it is an upper bound, and contains the idle places of its number of devices.
"""

import csv
import dataclasses
import functools
import math
import statistics
from pathlib import Path
from typing import Literal

import numpy as np

from lm_mia import config
from lm_mia.model import flops, memory

_PACKING_FILL = (
    0.985  # of packed sequences by tokens, in batches of C4-like samples (`lm_mia.train.batching`)
)
_ASSUMED_MFU = 0.4
_MACHINE_GPUS, _MACHINE_TPU_CHIPS = 8, 4
_GPU_SHARE = 0.75  # of a GPU's memory that JAX takes by default
# Quantiles of a normal distribution, as sizes of batches.
_QUANTILES = [statistics.NormalDist().inv_cdf((i + 0.5) / 100) for i in range(100)]


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator chip. Hours are those of one chip."""

    name: str
    flops: float
    """Peak rate of dense bfloat16 arithmetic, in FLOP/s."""
    mfu: float | None
    """Model FLOPs utilization with one device per model: the fraction of the peak that is useful work; None: that of
    the table of bounds, or 0.4 if the chip is not in the table."""


@dataclasses.dataclass(frozen=True)
class Batches:
    """The settings and lengths that determine how batches fill devices."""

    devices_per_model: int | Literal["auto"]
    """``compute.devices_per_model`` of the config."""
    batch_size: int
    micro_batch_size: int
    """``compute.micro_batch_size`` of the config."""
    sequences: float
    """Mean number of packed sequences of a batch."""
    sequences_std: float
    """Standard deviation of this number between batches."""
    size: memory.ModelSize
    attention: str
    """``compute.attention`` of the config."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a chip makes models of a recipe."""

    devices_per_model: int
    """Number of devices that make one model together."""
    filled_share: float
    """The fraction of the places of training batches that hold packed sequences."""
    mfu: float
    """MFU of training, idle places included."""
    mfu_source: Literal["given", "roofline", "assumed"]
    """given: by --mfu; roofline: an upper bound; assumed: 0.4, since there is no bound for the chip."""
    train_flops_per_second: float
    """Useful FLOP/s of training per chip."""
    score_flops_per_second: float
    """Useful FLOP/s of scoring per chip, which has no idle places of this kind."""


def batches(c: config.Config, mean_tokens: float, mean_square_tokens: float) -> Batches:
    """Returns how the batches of a recipe fill devices.

    Args:
      c: the config.
      mean_tokens: mean length of a sample.
      mean_square_tokens: mean of the squared lengths.
    """
    m, length_tokens = c.model, c.population.length_tokens
    capacity_tokens = _PACKING_FILL * length_tokens
    variance = max(mean_square_tokens - mean_tokens**2, 0)
    return Batches(
        devices_per_model=c.compute.devices_per_model,
        batch_size=c.train.batch_size,
        micro_batch_size=c.compute.micro_batch_size,
        sequences=c.train.batch_size * mean_tokens / capacity_tokens,
        sequences_std=math.sqrt(c.train.batch_size * variance) / capacity_tokens,
        size=memory.ModelSize(
            m.layers, m.width, m.heads, c.tokenizer.vocab_size, length_tokens, m.dtype
        ),
        attention=c.compute.attention,
    )


def filled_share(b: Batches, num_devices: int) -> float:
    """Returns the fraction of the places of batches that hold packed sequences, on average over batches.

    Args:
      b: the batches.
      num_devices: number of devices that share each batch.
    """
    default_size = memory.default_micro_batch_size(b.size.length_tokens, b.batch_size, num_devices)
    per_device = min(b.micro_batch_size or default_size, -(-b.batch_size // num_devices))
    places = per_device * num_devices
    sizes = [min(max(b.sequences + b.sequences_std * z, 1), b.batch_size) for z in _QUANTILES]
    return sum(sizes) / sum(math.ceil(size / places) * places for size in sizes)


def resolve_devices(b: Batches, chip: Chip) -> int:
    """Returns the number of devices per model; "auto" by the memory of the chip, and 0 as one machine.

    A machine has 8 GPUs, or 4 chips of a TPU. "auto" is 1 for a chip whose memory is unknown.
    """
    is_tpu = chip.name.casefold().startswith("tpu")
    machine = _MACHINE_TPU_CHIPS if is_tpu else _MACHINE_GPUS
    if b.devices_per_model != "auto":
        return b.devices_per_model or machine
    memory_bytes = flops.device_memory_bytes(chip.name)
    if memory_bytes is None:
        return 1
    fast = "pallas" if is_tpu else "cudnn"
    attention = b.attention if b.attention != "auto" else fast
    usable_bytes = memory_bytes if is_tpu else _GPU_SHARE * memory_bytes
    count = memory.choose_devices_per_model(
        b.size, attention, b.batch_size, b.micro_batch_size, usable_bytes, machine
    )
    return count or machine


def speed(b: Batches, chip: Chip) -> Speed:
    """Returns how fast a chip makes models of a recipe.

    A given MFU is that of one device per model. With k devices it is multiplied by the ratio of the filled places with
    k devices and with one. The same holds for a bound of the table if it has none for k devices.
    """
    count = resolve_devices(b, chip)
    filled = filled_share(b, count)
    ratio = filled / filled_share(b, 1)
    non_embedding = flops.num_non_embedding_parameters(b.size.layers, b.size.width)
    single = bound(chip.name, non_embedding, 1)
    together = bound(chip.name, non_embedding, count)
    source: Literal["given", "roofline", "assumed"] = "assumed"
    mfu, score_mfu = _ASSUMED_MFU * ratio, _ASSUMED_MFU
    if chip.mfu is not None:
        source, mfu, score_mfu = "given", chip.mfu * ratio, chip.mfu
    elif single is not None:
        source, mfu, score_mfu = "roofline", together or single * ratio, single
    return Speed(count, filled, mfu, source, chip.flops * mfu, chip.flops * score_mfu)


def bound(chip_name: str, non_embedding_parameters: int, devices_per_model: int) -> float | None:
    """Returns the upper bound of the MFU of training by roofline, or None if the table has no such chip or number.

    Between the sizes of the table, the bound is interpolated linearly in the logarithm of the number of parameters;
    outside them, it is that of the nearest size. A number of devices counts as missing if it lacks a size that one
    device per model has.
    """
    name = flops.chip_name(chip_name)
    bounds = mfu_bounds()
    points, single = bounds.get((name, devices_per_model), {}), bounds.get((name, 1), {})
    if not points or not single.keys() <= points.keys():
        return None
    sizes = sorted(points)
    logs = np.log(sizes)
    mfus = [points[size] for size in sizes]
    return float(np.interp(math.log(non_embedding_parameters), logs, mfus))


@functools.cache
def mfu_bounds() -> dict[tuple[str | None, int], dict[int, float]]:
    """Returns the table: (chip, devices per model) -> {parameters without embeddings: MFU}."""
    bounds: dict[tuple[str | None, int], dict[int, float]] = {}
    with Path(__file__).with_name("mfu_bounds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            parameters = flops.num_non_embedding_parameters(*config.MODEL_SIZES[row["size"]])
            key = row["chip"], int(row["devices_per_model"])
            bounds.setdefault(key, {})[parameters] = float(row["mfu"])
    return bounds


def footnotes(speeds: dict[str, Speed], chip: Chip) -> list[str]:
    """Returns lines on the MFU and the devices of recipes, given by name."""
    rates = sorted({float(f"{s.mfu:.3g}") for s in speeds.values()})
    mfu = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    source = next(iter(speeds.values())).mfu_source
    reason = {
        "given": "",
        "roofline": ", an upper bound by roofline of the compiled program; a measured one (--mfu) is better",
        "assumed": ", assumed since the chip has no entry in the table of bounds (--mfu sets another)",
    }[source]
    lines = [
        f"chip-hours   of {chip.name}, {chip.flops / 1e12:g} TFLOP/s of dense bfloat16, at an MFU of {mfu}{reason}"
    ]
    groups: dict[tuple[int, str], list[str]] = {}
    for name, s in speeds.items():
        if s.devices_per_model > 1:
            key = s.devices_per_model, f"{s.filled_share:.0%}"
            groups.setdefault(key, []).append(name)
    for (count, filled), names in groups.items():
        listed = "" if len(names) == len(speeds) else f" of {', '.join(names)}"
        lines.append(
            f"devices      {count} per model{listed}; {filled} of the places of training batches are "
            "filled, and chip-hours count the idle ones"
        )
    return lines
