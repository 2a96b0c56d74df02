"""The speed at which a plan expects models to be trained and scored: devices per model, padding of batches, and MFU.

If k devices train a model in micro-batches of m packed sequences per device, a batch of n packed sequences is padded
with empty sequences to a multiple of m k. The table measured_mfu.csv contains the MFU that `benchmarks/accelerator.py`
measured, and mfu_bounds.csv roofline bounds of that of training, computed from compiled programs by
`benchmarks/roofline.py`. Both include the cost of the empty sequences.
"""

import csv
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from lm_mia.model import flops, memory
from lm_mia.run.costs import Batches

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
    measured one, else the roofline bound, scaled by what a measured chip reaches of its own, else 0.4."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a chip trains and scores models of a recipe."""

    devices_per_model: int
    """Number of devices that train one model together."""
    filled_share: float
    """The fraction of the packed sequences of padded training batches that contain samples."""
    mfu: float
    """MFU of training, including the cost of empty sequences."""
    mfu_source: Literal["given", "measured", "roofline", "assumed"]
    """given: by --mfu; measured: with one device per model, by the benchmark; roofline: the bound of the compiled
    program, scaled; assumed: 0.4, since there is no bound for the chip."""
    train_flops_per_second: float
    """Useful FLOP/s of training per chip."""
    score_flops_per_second: float
    """Useful FLOP/s of scoring per chip. Scoring does not pad batches with empty sequences."""


def filled_share(b: Batches, chip_name: str, num_devices: int) -> float:
    """Returns the fraction of the packed sequences of padded batches that contain samples, averaged over batches.

    Args:
      b: the batches.
      chip_name: name of the chip.
      num_devices: number of devices that share each batch.
    """
    platform, attention, memory_bytes = _platform(b, chip_name)
    micro_batch_sizes, _ = memory.micro_batch_sizes(
        b.micro_batch_size,
        b.size,
        attention,
        b.batch_size,
        num_devices,
        platform,
        memory_bytes,
    )
    sizes = [min(max(b.sequences + b.sequences_std * z, 1), b.batch_size) for z in _QUANTILES]

    def padded(sequences: float) -> int:
        """Returns the number of packed sequences that are computed, as `batching.choose_micro_batch_size` chooses."""
        multiples = (number * num_devices for number in micro_batch_sizes)
        count, multiple = min((math.ceil(sequences / m), m) for m in multiples)
        return count * multiple

    return sum(sizes) / sum(padded(sequences) for sequences in sizes)


def planned_devices_per_model(b: Batches, chip: Chip, machine_devices: int) -> int:
    """Returns ``compute.devices_per_model``, or the number that "auto" means; 0: all devices of a job.

    "auto" is determined from the memory of the chip. It is 1 if the memory is unknown.

    Args:
      b: the batches.
      chip: the chip.
      machine_devices: number of devices of a machine.
    """
    if b.devices_per_model != "auto":
        return b.devices_per_model
    if flops.device_memory_bytes(chip.name) is None:
        return 1
    platform, attention, memory_bytes = _platform(b, chip.name)
    return memory.fewest_devices(
        b.size,
        attention,
        b.batch_size,
        b.micro_batch_size,
        platform,
        memory_bytes,
        machine_devices,
    )


def _platform(b: Batches, chip_name: str) -> tuple[str, str, float]:
    """Returns JAX's name of the platform of a chip, the attention that runs on it, and the memory that JAX takes."""
    attention = b.attention if b.attention != "auto" else "pallas"
    memory_bytes = flops.device_memory_bytes(chip_name) or memory.UNKNOWN_BYTES
    if _is_tpu(chip_name):
        return "tpu", attention, memory_bytes
    return "gpu", attention, _GPU_MEMORY_SHARE * memory_bytes


def resolve_devices_per_model(b: Batches, chip: Chip) -> int:
    """Returns the number of devices that train one model, on machines of 8 GPUs or 4 TPU chips.

    If all devices of a job train a model together, this is the number of devices of one machine.
    """
    machine_devices = _TPU_CHIPS_PER_MACHINE if _is_tpu(chip.name) else _GPUS_PER_MACHINE
    return planned_devices_per_model(b, chip, machine_devices) or machine_devices


def _is_tpu(chip_name: str) -> bool:
    return chip_name.casefold().startswith("tpu")


def speed(b: Batches, chip: Chip) -> Speed:
    """Returns how fast a chip trains and scores models of a recipe.

    The MFU of `chip` applies to one device per model. For k devices, it is multiplied by the filled share with k
    devices, divided by that with one device.
    """
    count = resolve_devices_per_model(b, chip)
    filled = filled_share(b, chip.name, count)
    ratio = filled / filled_share(b, chip.name, 1)
    single_bound = mfu_bound(chip.name, b, 1)
    group_bound = mfu_bound(chip.name, b, count)
    measured = measured_mfu(chip.name, b)
    source: Literal["given", "measured", "roofline", "assumed"] = "assumed"
    mfu, score_mfu = _ASSUMED_MFU * ratio, _ASSUMED_MFU
    if chip.mfu is not None:
        source, mfu, score_mfu = "given", chip.mfu * ratio, chip.mfu
    elif measured is not None:
        if single_bound is not None and group_bound is not None:
            ratio = group_bound / single_bound
        source, mfu, score_mfu = "measured", measured.train * ratio, measured.score
    elif single_bound is not None and group_bound is not None:
        scale = _reached_share(b)
        source, mfu, score_mfu = "roofline", group_bound * scale, single_bound * scale
    return Speed(count, filled, mfu, source, chip.flops * mfu, chip.flops * score_mfu)


@dataclasses.dataclass(frozen=True)
class MeasuredMfu:
    """MFU of training and of scoring with one device; NaN where it was not measured."""

    train: float
    score: float


def measured_mfu(chip_name: str, b: Batches) -> MeasuredMfu | None:
    """Returns the MFU that was measured on a chip, interpolated as `mfu_bound` does, or None if there is none."""
    points = measured_mfus().get(flops.chip_name(chip_name), {})
    if not points:
        return None
    parameters = b.size.blocks

    def interpolate(mfu_of: Callable[[MeasuredMfu], float]) -> float:
        measured = {size: mfu_of(mfu) for size, mfu in sorted(points.items())}
        measured = {size: mfu for size, mfu in measured.items() if not math.isnan(mfu)}
        return float(np.interp(math.log(parameters), np.log([*measured]), [*measured.values()]))

    return MeasuredMfu(interpolate(lambda mfu: mfu.train), interpolate(lambda mfu: mfu.score))


@functools.cache
def measured_mfus() -> dict[str | None, dict[int, MeasuredMfu]]:
    """Returns the table of measurements: chip -> {parameters without embeddings: MFU}."""
    measured: dict[str | None, dict[int, MeasuredMfu]] = {}
    with Path(__file__).with_name("measured_mfu.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            parameters = _blocks(row)
            train, score = (float(row[f"{task}_mfu"] or "nan") for task in ("train", "score"))
            mfu = MeasuredMfu(train, score)
            measured.setdefault(row["chip"], {})[parameters] = mfu
    return measured


def _reached_share(b: Batches) -> float:
    """Returns the share of its roofline bound that training reaches on the measured chip, with one device."""
    for name in measured_mfus():
        measured, bound = measured_mfu(str(name), b), mfu_bound(str(name), b, 1)
        if measured is not None and bound is not None:
            return measured.train / bound
    return 1.0


def mfu_bound(chip_name: str, b: Batches, devices_per_model: int) -> float | None:
    """Returns the roofline bound of the MFU of training, or None if the table does not contain the chip.

    Between the model sizes of the table, the bound is interpolated linearly in the logarithm of the number of
    parameters; outside them, it is that of the nearest size. The bound never rises with the number of devices: it is
    the lowest of the bounds of the table for at most this many devices, each scaled by the ratio of the filled shares.
    Bounds that were computed only for smaller models are left out if the chip has bounds for larger ones.
    """
    name = flops.chip_name(chip_name)
    parameters = b.size.blocks
    filled = filled_share(b, chip_name, devices_per_model)
    table = mfu_bounds()
    largest = max(table.get((name, 1), {}), default=0)
    bounds = []
    for (chip, count), points in table.items():
        covers = largest in points or parameters <= max(points)
        if chip == name and count <= devices_per_model and covers:
            sizes = sorted(points)
            mfu = np.interp(math.log(parameters), np.log(sizes), [points[size] for size in sizes])
            bounds.append(float(mfu) * min(filled / filled_share(b, chip_name, count), 1))
    return min(bounds, default=None)


def _blocks(row: dict[str, str]) -> int:
    """Returns the parameters outside embeddings of the model of a row, which is of the kind "gpt"."""
    return memory.gpt_size(int(row["layers"]), int(row["width"]), 1, 0, 0, "bfloat16").blocks


@functools.cache
def mfu_bounds() -> dict[tuple[str | None, int], dict[int, float]]:
    """Returns the table of roofline bounds: (chip, devices per model) -> {parameters without embeddings: MFU}."""
    bounds: dict[tuple[str | None, int], dict[int, float]] = {}
    with Path(__file__).with_name("mfu_bounds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            parameters = _blocks(row)
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
        "measured": " in training, from the nearest sizes that were measured on one such chip, and a measured rate of "
        "scoring (docs/results/accelerators.md; --mfu sets another one)",
        "roofline": ", not measured: the roofline bound of the compiled program times the share of its bound that an "
        "H100 reaches (--mfu sets a measured MFU)",
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
