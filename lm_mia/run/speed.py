"""The speed at which a plan expects models to be trained and scored: devices per model, padding of batches, and MFU.

If k devices train a model in micro-batches of m packed sequences per device, a batch of n packed sequences is padded
with empty sequences to a multiple of m k. The table mfu_bounds.csv contains roofline bounds of the MFU of training,
computed from compiled programs by `benchmarks/roofline.py`. They include the cost of the empty sequences.
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

# Tokens of samples, as a share of the tokens of packed sequences, in batches of C4-like samples.
_PACKING_EFFICIENCY = 0.985
_ASSUMED_MFU = 0.4
_GPUS_PER_MACHINE, _TPU_CHIPS_PER_MACHINE = 8, 4
_GPU_MEMORY_SHARE = 0.75  # the share of a GPU's memory that JAX allocates by default
# Quantiles of the standard normal distribution, over which the number of packed sequences of a batch is averaged.
_QUANTILES = [statistics.NormalDist().inv_cdf((i + 0.5) / 100) for i in range(100)]


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator chip. Hours are those of one chip."""

    name: str
    flops: float
    """Peak rate of dense bfloat16 arithmetic, in FLOP/s."""
    mfu: float | None
    """Model FLOPs utilization with one device per model: the fraction of the peak rate that is useful work; None: the
    roofline bound, or 0.4 if there is none for the chip."""


@dataclasses.dataclass(frozen=True)
class Batches:
    """The settings and sample lengths that determine how much of a batch is padding."""

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
    """How fast a chip trains and scores models of a recipe."""

    devices_per_model: int
    """Number of devices that train one model together."""
    filled_share: float
    """The fraction of the packed sequences of padded training batches that contain samples."""
    mfu: float
    """MFU of training, including the cost of empty sequences."""
    mfu_source: Literal["given", "roofline", "assumed"]
    """given: by --mfu; roofline: an upper bound; assumed: 0.4, since there is no roofline bound for the chip."""
    train_flops_per_second: float
    """Useful FLOP/s of training per chip."""
    score_flops_per_second: float
    """Useful FLOP/s of scoring per chip. Scoring does not pad batches with empty sequences."""


def batches(c: config.Config, mean_tokens: float, mean_square_tokens: float) -> Batches:
    """Returns the settings and the number of packed sequences of the batches of a recipe.

    Args:
      c: the config.
      mean_tokens: mean length of a sample in tokens.
      mean_square_tokens: mean of the squared lengths of samples.
    """
    m, length_tokens = c.model, c.population.length_tokens
    capacity_tokens = _PACKING_EFFICIENCY * length_tokens
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
    """Returns the fraction of the packed sequences of padded batches that contain samples, averaged over batches.

    Args:
      b: the batches.
      num_devices: number of devices that share each batch.
    """
    per_device = memory.micro_batch_size(
        b.micro_batch_size, b.size.length_tokens, b.batch_size, num_devices
    )
    multiple = per_device * num_devices
    sizes = [min(max(b.sequences + b.sequences_std * z, 1), b.batch_size) for z in _QUANTILES]
    return sum(sizes) / sum(math.ceil(size / multiple) * multiple for size in sizes)


def choose_devices_per_model(b: Batches, chip: Chip, machine_devices: int) -> int:
    """Returns ``compute.devices_per_model``, or the number that "auto" means; 0: all devices of a job.

    "auto" is determined from the memory of the chip. It is 1 if the memory is unknown.

    Args:
      b: the batches.
      chip: the chip.
      machine_devices: number of devices of a machine.
    """
    if b.devices_per_model != "auto":
        return b.devices_per_model
    memory_bytes = flops.device_memory_bytes(chip.name)
    if memory_bytes is None:
        return 1
    is_tpu = _is_tpu(chip)
    default_attention = "pallas" if is_tpu else "cudnn"
    attention = b.attention if b.attention != "auto" else default_attention
    usable_bytes = memory_bytes if is_tpu else _GPU_MEMORY_SHARE * memory_bytes
    return memory.choose_devices_per_model(
        b.size, attention, b.batch_size, b.micro_batch_size, usable_bytes, machine_devices
    )


def resolve_devices_per_model(b: Batches, chip: Chip) -> int:
    """Returns the number of devices that train one model, on machines of 8 GPUs or 4 TPU chips.

    If all devices of a job train a model together, this is the number of devices of one machine.
    """
    machine_devices = _TPU_CHIPS_PER_MACHINE if _is_tpu(chip) else _GPUS_PER_MACHINE
    return choose_devices_per_model(b, chip, machine_devices) or machine_devices


def _is_tpu(chip: Chip) -> bool:
    return chip.name.casefold().startswith("tpu")


def speed(b: Batches, chip: Chip) -> Speed:
    """Returns how fast a chip trains and scores models of a recipe.

    The MFU of `chip` applies to one device per model. For k devices, it is multiplied by the filled share with k
    devices, divided by that with one device.
    """
    count = resolve_devices_per_model(b, chip)
    filled = filled_share(b, count)
    ratio = filled / filled_share(b, 1)
    single_bound = mfu_bound(chip.name, b, 1)
    source: Literal["given", "roofline", "assumed"] = "assumed"
    mfu, score_mfu = _ASSUMED_MFU * ratio, _ASSUMED_MFU
    if chip.mfu is not None:
        source, mfu, score_mfu = "given", chip.mfu * ratio, chip.mfu
    elif single_bound is not None:
        group_bound = mfu_bound(chip.name, b, count) or single_bound
        source, mfu, score_mfu = "roofline", group_bound, single_bound
    return Speed(count, filled, mfu, source, chip.flops * mfu, chip.flops * score_mfu)


def mfu_bound(chip_name: str, b: Batches, devices_per_model: int) -> float | None:
    """Returns the roofline bound of the MFU of training, or None if the table does not contain the chip.

    Between the model sizes of the table, the bound is interpolated linearly in the logarithm of the number of
    parameters; outside them, it is that of the nearest size. The bound never rises with the number of devices: it is
    the lowest of the bounds of the table for at most this many devices, each scaled by the ratio of the filled shares.
    Bounds that were computed only for smaller models are left out if the chip has bounds for larger ones.
    """
    name = flops.chip_name(chip_name)
    parameters = flops.num_non_embedding_parameters(b.size.layers, b.size.width)
    filled = filled_share(b, devices_per_model)
    table = mfu_bounds()
    largest = max(table.get((name, 1), {}), default=0)
    bounds = []
    for (chip, count), points in table.items():
        covers = largest in points or parameters <= max(points)
        if chip == name and count <= devices_per_model and covers:
            sizes = sorted(points)
            mfu = np.interp(math.log(parameters), np.log(sizes), [points[size] for size in sizes])
            bounds.append(float(mfu) * min(filled / filled_share(b, count), 1))
    return min(bounds, default=None)


@functools.cache
def mfu_bounds() -> dict[tuple[str | None, int], dict[int, float]]:
    """Returns the table of roofline bounds: (chip, devices per model) -> {parameters without embeddings: MFU}."""
    bounds: dict[tuple[str | None, int], dict[int, float]] = {}
    with Path(__file__).with_name("mfu_bounds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            parameters = flops.num_non_embedding_parameters(*config.MODEL_SIZES[row["size"]])
            key = row["chip"], int(row["devices_per_model"])
            bounds.setdefault(key, {})[parameters] = float(row["mfu"])
    return bounds


def footnotes(speeds: dict[str, Speed], chip: Chip) -> list[str]:
    """Returns the footnotes of a plan about the MFU and the devices per model.

    Args:
      speeds: the speed of each recipe, by name.
      chip: the chip.
    """
    rates = sorted({float(f"{s.mfu:.3g}") for s in speeds.values()})
    mfu = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    source = next(iter(speeds.values())).mfu_source
    reason = {
        "given": "",
        "roofline": ", the roofline bound of the compiled program: real runs take longer (--mfu sets a measured MFU)",
        "assumed": ", an assumption, since there is no roofline bound for this chip (--mfu sets a measured MFU)",
    }[source]
    lines = [
        f"chip time    of {chip.name}, {chip.flops / 1e12:g} TFLOP/s of dense bfloat16, at an MFU of {mfu}{reason}"
    ]
    groups: dict[tuple[int, str], list[str]] = {}
    for name, s in speeds.items():
        if s.devices_per_model > 1:
            key = s.devices_per_model, f"{s.filled_share:.0%}"
            groups.setdefault(key, []).append(name)
    for (count, filled), names in groups.items():
        listed = "" if len(names) == len(speeds) else f" of {', '.join(names)}"
        lines.append(
            f"devices      {count} per model{listed}; {filled} of the packed sequences of padded training batches "
            "contain samples; the chip time includes the empty ones"
        )
    return lines
