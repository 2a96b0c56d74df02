"""Roofline bounds of the speed of training and scoring on H100 GPUs and TPU v5p slices, from compiled programs.

    python -m benchmarks roofline [--chips=h100,"tpu v5p"] [--sizes=140M,302M,1018M] [--devices-per-model=1,2,4,8]
        [--programs=FOLDER] [--csv=lm_mia/plan/mfu_bounds.csv] [--scoring]

Compiles the training step ahead of time, as `memory.py` does, for models that are each trained by one or more devices
of a machine with eight H100s, or of the smallest v5p slice that has enough chips, and prints Markdown tables. No device
is needed, and nothing is measured on one; `memory.py` says what has to be installed. The settings of `compute` are
automatic.

- micro-batch: packed sequences per device and micro-batch. Batches may have micro-batches of different sizes; the
  program is compiled with the size that most batches use, and its loop is counted as often as gives the mean number of
  packed sequences of all batches.
- micro-batches: the mean number per batch of 128 samples with C4-like lengths, packed into about 50 sequences.
  filled sequences: the share of the packed sequences of all micro-batches that contain samples; the others are empty.
- memory: what the compiler plans per device, as in `memory.py`. estimate: that of `lm_mia.model.memory`.
- collectives: number and bytes of each kind; see `hlo.py`. Those inside the loop over micro-batches are marked "in
  loop". hidden: the share of their time during which the device computes something else.
- FLOPs and HBM bytes: per device and step, counted by `hlo.py`, with loop bodies multiplied by their iterations. They
  include padding, empty sequences and rematerialization. Attention computes whole blocks of pairs of queries and keys:
  on GPUs, those that the segments of the packed sequences need; on TPUs, all that are not above the diagonal.
- compute, HBM: the time that the FLOPs or the bytes alone would take at peak rates. instructions: the sum over
  instructions of the longer of the two. collectives: the time that their bytes take at the rate of all links between
  the devices of a group. step: instructions, plus the part of collectives that is not hidden.
- MFU bound: the useful FLOPs (`lm_mia.model.flops`) per second of the step, divided by the peak rate of all devices. A
  real device is slower: no kernel reaches the peak rates, and the start of kernels and collectives is not counted.

TPU programs of unrolled layers take many minutes to compile. They are compiled with fewer layers (--depths) instead,
and all numbers are extrapolated linearly to the layers of the model. docs/results/accelerators.md shows how accurate
this is.
"""

import argparse
import csv
import dataclasses
import functools
import json
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import c4_like
import hlo
import jax
import jax.numpy as jnp
import memory
import numpy as np
from jax.sharding import Mesh

from lm_mia import config
from lm_mia.model import flops, gpu_attention, kinds, transformer
from lm_mia.model import memory as memory_estimate
from lm_mia.score import scorer
from lm_mia.train import batching, execution, sharding

BATCH_SIZE = 128
LENGTH_TOKENS = c4_like.LENGTH_TOKENS
_BATCHES = 400  # over which numbers of micro-batches are averaged


class Chip(NamedTuple):
    """Public specifications of a device, and how XLA computes attention on it."""

    platform: memory.Platform
    memory_bytes: int
    """Memory that JAX allocates by default."""
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    """Of one direction of one link. An H100 has one link, to the switch of its machine."""
    attention_block: int
    """Number of the queries, and of the keys, of a block of pairs that attention computes."""
    skips_segments: bool
    """Whether attention skips blocks between different segments, rather than only those above the diagonal."""
    devices_per_model: tuple[int, ...]
    """Numbers of devices for which programs can be compiled."""


# H100 SXM: 3.35 TB/s; NVLink 900 GB/s in both directions together (nvidia.com/en-us/data-center/h100).
# TPU v5p: 95 GiB, 2,765 GB/s; interconnect 4,800 Gbit/s per chip, that is, 100 GB/s in each direction of its six links
# (docs.cloud.google.com/tpu/docs/v5p).
CHIPS = {
    "h100": Chip(
        "cuda",
        int(0.75 * memory.DEVICE_BYTES),
        3.35e12,
        450e9,
        gpu_attention.BLOCK_TOKENS,
        True,
        (1, 2, 4, 8),
    ),
    "tpu v5p": Chip("tpu", 95 * 2**30, 2.765e12, 100e9, 512, False, (1, 2, 4, 8, 16, 32, 64)),
}
# By number of chips: the slice that has as many, and whether its axes, of 4 chips each, are rings.
_SLICES = {
    4: ("v5p:2x2x1", False),
    8: ("v5p:2x2x2", False),
    16: ("v5p:2x2x4", False),
    32: ("v5p:2x4x4", False),
    64: ("v5p:4x4x4", True),
}


class Case(NamedTuple):
    """A model, and the devices that train it together."""

    chip: str
    size: str
    devices: int


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Costs of the compiled program of a case, per device and training step (or scoring call)."""

    memory_bytes: float
    flops: float
    hbm_bytes: float
    compute_seconds: float
    hbm_seconds: float
    instruction_seconds: float
    collective_seconds: float
    hidden_seconds: float
    collectives: dict[str, tuple[float, float]]
    """By kind, their number and bytes. Kinds of those inside the loop over micro-batches end in " in loop"."""

    @property
    def seconds(self) -> float:
        """Lower bound of the duration of a step."""
        return self.instruction_seconds + self.collective_seconds - self.hidden_seconds


class Packing(NamedTuple):
    """Samples in packed sequences."""

    length_B: np.ndarray
    """Number of tokens of each sample."""
    plan: batching.PackingPlan


class Batch(NamedTuple):
    """Means over batches of 128 C4-like samples."""

    micro_batch_size: int
    """Packed sequences per device and micro-batch: the size that most batches use."""
    micro_batches: float
    sequences: float
    """Packed sequences of all micro-batches on all devices together, empty ones included."""
    filled_share: float
    """Fraction of these that contain samples."""
    attention_share: float
    """Fraction of all pairs of queries and keys that attention computes."""

    def iterations(self, devices: int) -> float:
        """Returns the number of micro-batches of `micro_batch_size` with as many packed sequences."""
        return self.sequences / (self.micro_batch_size * devices)


@functools.cache
def packings() -> tuple[Packing, ...]:
    """Returns batches of 128 C4-like samples."""
    length_NxB = c4_like.lengths(_BATCHES * BATCH_SIZE).reshape(_BATCHES, BATCH_SIZE)
    return tuple(
        Packing(length_B, batching.plan_packing(length_B, LENGTH_TOKENS)) for length_B in length_NxB
    )


def mean_batch(micro_batch_sizes: Collection[int], chip: Chip, devices: int) -> Batch:
    """Returns the means over batches.

    Args:
      micro_batch_sizes: numbers of packed sequences that a device may process at once, as `ExecutionPlan` has them.
      chip: the kind of the devices.
      devices: number of devices that share each batch.
    """
    filled_N = np.array([packing.plan.num_sequences for packing in packings()])
    size_N = np.array(
        [batching.choose_micro_batch_size(micro_batch_sizes, n, devices) for n in filled_N.tolist()]
    )
    micro_batches_N = np.ceil(filled_N / (size_N * devices))
    sequences_N = micro_batches_N * size_N * devices
    shares = [
        attention_share(packing, int(n), chip)
        for packing, n in zip(packings(), sequences_N, strict=True)
    ]
    return Batch(
        micro_batch_size=int(np.bincount(size_N).argmax()),
        micro_batches=micro_batches_N.mean(),
        sequences=sequences_N.mean(),
        filled_share=filled_N.sum() / sequences_N.sum(),
        attention_share=float(np.average(shares, weights=sequences_N)),
    )


def attention_share(packing: Packing, num_sequences: int, chip: Chip) -> float:
    """Returns the fraction of all pairs of queries and keys that attention computes, which are whole blocks.

    A block of queries visits the blocks of keys up to its own from the first one or, if attention skips segments, from
    the one that holds the first token of the segment of its first query. Padding is a segment, too.

    Args:
      packing: the samples.
      num_sequences: number of packed sequences with the empty ones, which are padding as a whole.
      chip: determines the blocks.
    """
    block = chip.attention_block
    blocks = LENGTH_TOKENS // block
    if not chip.skips_segments:
        return (blocks + 1) / 2 / blocks
    plan = packing.plan
    filled_R = np.bincount(plan.sequence_C, packing.length_B, num_sequences).astype(np.int64)
    begin_S = np.concatenate([plan.start_C, filled_R])  # of each segment
    end_S = np.concatenate([plan.start_C + packing.length_B, np.full(num_sequences, LENGTH_TOKENS)])
    # A segment holds the first query of the blocks of queries from low to high (exclusive).
    low_S, high_S = -(-begin_S // block), -(-end_S // block)
    mean_visits_S = (low_S + high_S - 1) / 2 - begin_S // block + 1
    visits = ((high_S - low_S) * mean_visits_S).sum()
    return float(visits / (num_sequences * blocks**2))


def make_mesh(case: Case) -> Mesh:
    """Returns the mesh of the case's devices."""
    if CHIPS[case.chip].platform == "cuda":
        devices = memory.target_devices("cuda", num_gpus=8)
    else:
        name, _ = _slice(case.devices)
        devices = memory.target_devices("tpu", name)
    return sharding.make_mesh(devices[: case.devices])


def execution_plan(case: Case) -> execution.ExecutionPlan:
    """Returns the settings that training chooses automatically."""
    chip = CHIPS[case.chip]
    kind = "gpu" if chip.platform == "cuda" else chip.platform
    model_config = memory.sized_model_config(case.size)
    return execution.plan_execution(
        config.Compute(), model_config, BATCH_SIZE, kind, chip.memory_bytes, case.devices
    )


def lower_score(plan: execution.ExecutionPlan, mesh: Mesh) -> Any:
    """Returns the lowered function that computes losses of packed sequences, ready to be compiled."""
    model = transformer.TransformerLM(plan.model_config)
    shapes = jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))
    params = jax.tree.map(lambda leaf: memory.abstract_array(mesh, leaf.shape, leaf.dtype), shapes)
    sequences = _score_sequences() * mesh.size
    batch = (
        memory.abstract_array(mesh, (sequences, LENGTH_TOKENS), jnp.int32, sharding.AXIS)
        for _ in range(3)
    )
    score: Any = scorer.make_score(model, plan.chunk_tokens, frozenset(), mesh)
    return score.lower(params, *batch)


def compiled_program(
    path: Path | None, lower: Callable[[], Any], workspace: int
) -> tuple[str, float]:
    """Returns the text of a program and the bytes of memory that it needs per device.

    Args:
      path: file in which they are stored, without its suffix, and from which they are read if it exists; None: they are
        not stored.
      lower: returns the program to compile.
      workspace: bytes of memory that the compiler does not count.
    """
    if path and path.with_suffix(".json").exists():
        return path.with_suffix(".txt").read_text(), json.loads(
            path.with_suffix(".json").read_text()
        )
    start = time.perf_counter()
    compiled = lower().compile()
    planned = compiled.memory_analysis()
    total = planned.argument_size_in_bytes + planned.temp_size_in_bytes + workspace
    total += planned.output_size_in_bytes - planned.alias_size_in_bytes
    text = compiled.as_text()
    print(f"<!-- {path.name if path else ''}: {time.perf_counter() - start:.0f} s -->", flush=True)
    jax.clear_caches()
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt").write_text(text)
        path.with_suffix(".json").write_text(json.dumps(total))
    return text, total


def program_cost(
    text: str,
    memory_bytes: float,
    case: Case,
    micro_batches: float,
    attention_share: float,
    mesh: Mesh,
) -> StepCost:
    """Returns the costs of a program.

    Args:
      text: the program, as XLA writes it.
      memory_bytes: memory that it needs per device.
      case: the devices for which it was compiled.
      micro_batches: mean number of micro-batches.
      attention_share: fraction of all pairs of queries and keys that attention computes.
      mesh: the devices.
    """
    chip = CHIPS[case.chip]
    rates = hlo.Rates(flops.device_peak(case.chip) or 0.0, chip.hbm_bytes_per_second)
    cost = hlo.count(hlo.parse(text), micro_batches, rates, attention_share)
    kinds: dict[str, tuple[float, float]] = {}
    seconds = hidden = 0.0
    for collective in cost.collectives:
        kind = collective.kind + (" in loop" if collective.loops else "")
        number, size = kinds.get(kind, (0, 0))
        kinds[kind] = number + 1, size + collective.bytes * collective.executions
        link = link_seconds(collective, case, mesh)
        seconds += link * collective.executions
        hidden += min(link, collective.overlapped_seconds) * collective.executions
    return StepCost(
        memory_bytes=memory_bytes,
        flops=cost.flops,
        hbm_bytes=cost.bytes,
        compute_seconds=cost.compute_seconds,
        hbm_seconds=cost.memory_seconds,
        instruction_seconds=cost.seconds,
        collective_seconds=seconds,
        hidden_seconds=hidden,
        collectives=kinds,
    )


def link_seconds(collective: hlo.Collective, case: Case, mesh: Mesh) -> float:
    """Returns the least duration of one execution of a collective: that of the device with the fewest links."""
    devices = list(mesh.devices.flat)
    group = re.search(r"\{\{([\d,]+)\}", collective.groups)
    members = [devices[int(i)] for i in group[1].split(",")] if group else devices
    if len(members) == 1:
        return 0.0
    share = (len(members) - 1) / len(members)
    sent = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(collective.kind, share)
    links = 1
    if CHIPS[case.chip].platform == "tpu":
        _, has_rings = _slice(case.devices)
        links = min(_num_links(device, members, has_rings) for device in members)
    rate = max(links, 1) * CHIPS[case.chip].link_bytes_per_second
    return collective.bytes * sent / rate


def _num_links(device: Any, members: Sequence[Any], has_rings: bool) -> int:
    coordinates = {tuple(member.coords) for member in members}
    total = 0
    for axis in range(3):
        for step in (-1, 1):
            neighbor = list(device.coords)
            neighbor[axis] += step
            if has_rings:
                neighbor[axis] %= 4
            total += tuple(neighbor) in coordinates
    return total


def extrapolate(
    shallow: StepCost, deep: StepCost, depths: tuple[int, int], layers: int
) -> StepCost:
    """Returns the costs of a program with more layers, by linear extrapolation from those of two other programs."""
    factor = (layers - depths[0]) / (depths[1] - depths[0])

    def line(a: float, b: float) -> float:
        return a + factor * (b - a)

    fields = {
        field.name: line(getattr(shallow, field.name), getattr(deep, field.name))
        for field in dataclasses.fields(StepCost)
        if field.name != "collectives"
    }
    kinds = {}
    for kind in shallow.collectives | deep.collectives:
        few, many = (n.collectives.get(kind, (0, 0)) for n in (shallow, deep))
        kinds[kind] = (many[0], line(few[1], many[1]))
    return StepCost(**fields, collectives=kinds)


def step_cost(case: Case, c: argparse.Namespace, task: Literal["train", "score"]) -> StepCost:
    """Compiles the training step, or the scoring function, of a case, and returns its costs."""
    plan, mesh, chip = execution_plan(case), make_mesh(case), CHIPS[case.chip]
    batch = mean_batch(plan.micro_batch_sizes, chip, case.devices)
    plan = dataclasses.replace(plan, micro_batch_sizes=(batch.micro_batch_size,))
    share = batch.attention_share
    if task == "score":
        share = attention_share(_window(), _score_sequences() * _score_calls(), chip)

    def at_depth(layers: int) -> StepCost:
        model_config = dataclasses.replace(plan.model_config, layers=layers)
        depth_plan = dataclasses.replace(plan, model_config=model_config)
        name = f"{case.chip.replace(' ', '-')}-{case.size}-{case.devices}-{layers}"
        workspace = memory.workspace(model_config, plan) if task == "train" else 0
        text, memory_bytes = compiled_program(
            c.programs and c.programs / (name if task == "train" else f"{name}-score"),
            lambda: (
                memory.lower_step(depth_plan, BATCH_SIZE, mesh)
                if task == "train"
                else lower_score(depth_plan, mesh)
            ),
            workspace,
        )
        iterations = batch.iterations(case.devices)
        return program_cost(text, memory_bytes, case, iterations, share, mesh)

    layers = plan.model_config.layers
    if chip.platform == "cuda" or plan.model_config.scan_layers or not c.depths:
        return at_depth(layers)
    shallow, deep = c.depths
    return extrapolate(at_depth(shallow), at_depth(deep), c.depths, layers)


def useful_flops(case: Case) -> float:
    """Returns the mean useful FLOPs of a training step, of all devices together."""
    model = memory.sized_model_config(case.size)
    length_NxB = np.stack([packing.length_B for packing in packings()])
    tokens, squares = length_NxB.sum(1).mean(), (length_NxB**2).sum(1).mean()
    return flops.training(kinds.size(model), tokens, squares)


def scoring_flops(case: Case) -> float:
    """Returns the mean useful FLOPs of a scoring call on one device, over a window of C4-like samples."""
    model, length_C = memory.sized_model_config(case.size), _window().length_B
    tokens, squares = length_C.sum() / _score_calls(), (length_C**2).sum() / _score_calls()
    return flops.scoring(kinds.size(model), tokens, squares)


def mfu(case: Case, n: StepCost) -> float:
    """Returns the roofline bound of the model FLOPs utilization of training."""
    peak = flops.device_peak(case.chip) or 0.0
    return useful_flops(case) / n.seconds / peak / case.devices


def print_tables(results: dict[Case, StepCost]) -> None:
    """Prints a table of memory and collectives, and one of times."""
    header = ("chip", "model", "devices per model", "micro-batch", "memory GiB", "estimate GiB")
    header += ("collectives (number, MB)",)
    rows = []
    for case, n in results.items():
        batch = _batch(case)
        kinds = ", ".join(
            f"{kind} {number:.0f} ({size / 1e6:,.0f})"
            for kind, (number, size) in sorted(n.collectives.items())
        )
        row: list[Any] = [case.chip, case.size, case.devices, batch.micro_batch_size]
        row += [f"{size / 2**30:.2f}" for size in (n.memory_bytes, estimated_bytes(case))]
        rows.append([*row, kinds or "none"])
    _print_table(header, rows)
    header = ("chip", "model", "devices per model", "micro-batches", "filled sequences", "TFLOP")
    header += ("HBM GB", "compute ms", "HBM ms", "instructions ms", "collectives ms", "hidden")
    header += ("step ms", "MFU bound")
    rows = []
    for case, n in results.items():
        batch = _batch(case)
        row = [case.chip, case.size, case.devices, f"{batch.micro_batches:.2f}"]
        row += [f"{batch.filled_share:.1%}", f"{n.flops / 1e12:.2f}", f"{n.hbm_bytes / 1e9:.1f}"]
        times = (n.compute_seconds, n.hbm_seconds, n.instruction_seconds, n.collective_seconds)
        row += [f"{1e3 * value:.1f}" for value in times]
        hidden = n.hidden_seconds / n.collective_seconds if n.collective_seconds else 0.0
        row += [f"{hidden:.0%}", f"{1e3 * n.seconds:.1f}", f"{mfu(case, n):.1%}"]
        rows.append(row)
    _print_table(header, rows)


def print_scoring(results: dict[Case, StepCost]) -> None:
    """Prints a table of the memory and the times of scoring, which does not communicate."""
    header = ("chip", "model", "memory GiB", "TFLOP", "HBM GB", "compute ms", "HBM ms")
    rows = []
    for case, n in results.items():
        peak = flops.device_peak(case.chip) or 0.0
        row: list[Any] = [case.chip, case.size, f"{n.memory_bytes / 2**30:.2f}"]
        row += [f"{n.flops / 1e12:.2f}", f"{n.hbm_bytes / 1e9:.1f}"]
        times = (n.compute_seconds, n.hbm_seconds, n.seconds)
        row += [f"{1e3 * value:.1f}" for value in times]
        rows.append([*row, f"{scoring_flops(case) / n.seconds / peak:.1%}"])
    _print_table((*header, "call ms", "MFU bound"), rows)


def estimated_bytes(case: Case) -> float:
    """Returns the estimate of the memory that a device needs."""
    plan = execution_plan(case)
    return memory_estimate.training_bytes(
        kinds.size(plan.model_config),
        plan.model_config.attention,
        _batch(case).micro_batch_size,
        case.devices,
        plan.model_config.scan_layers,
    )


def write_csv(path: Path, results: dict[Case, StepCost]) -> None:
    """Adds the MFU bounds to a file, or replaces those of the same cases."""
    bounds: dict[tuple[str, int, int, int], str] = {}
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                shape = int(row["layers"]), int(row["width"])
                bounds[row["chip"], *shape, int(row["devices_per_model"])] = row["mfu"]
    for case, cost in results.items():
        shape = config.MODEL_SIZES[case.size]
        bounds[case.chip, *shape, case.devices] = f"{mfu(case, cost):.4f}"

    def by_size(case: tuple[str, int, int, int]) -> tuple[str, int, int]:
        chip, layers, width, devices = case
        return chip, layers * width**2, devices

    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("chip", "layers", "width", "devices_per_model", "mfu"))
        for case in sorted(bounds, key=by_size):
            writer.writerow((*case, bounds[case]))


def _print_table(header: Sequence[str], rows: list[list[Any]]) -> None:
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


def _batch(case: Case) -> Batch:
    return mean_batch(execution_plan(case).micro_batch_sizes, CHIPS[case.chip], case.devices)


@functools.cache
def _window() -> Packing:
    """Returns a window of C4-like samples, as scoring packs them."""
    length_C = c4_like.lengths(batching.WINDOW_SAMPLES)
    return Packing(length_C, batching.plan_packing(length_C, LENGTH_TOKENS))


def _score_calls() -> int:
    return -(-_window().plan.num_sequences // _score_sequences())


def _score_sequences() -> int:
    return scorer.choose_micro_batch_size(0, LENGTH_TOKENS, "gpu")  # the same on TPUs


def _slice(num_devices: int) -> tuple[str, bool]:
    return _SLICES[min(size for size in _SLICES if size >= num_devices)]


def main() -> None:
    """Prints the tables, and writes the bounds."""
    c = _arguments()
    # Keeps libtpu from querying the metadata server of a cloud machine.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    jax.config.update("jax_platforms", "cpu")  # a present device must not be initialized
    print(f"Batch {BATCH_SIZE} x 1,024, V = 32,000, bfloat16, JAX {jax.__version__}")
    if c.scoring:
        cases = [Case(chip, size, 1) for chip in c.chips for size in c.sizes]
        print_scoring({case: step_cost(case, c, "score") for case in cases})
        return
    results = {}
    for chip in c.chips:
        for size in c.sizes:
            for devices in CHIPS[chip].devices_per_model:
                if not c.devices_per_model or devices in c.devices_per_model:
                    case = Case(chip, size, devices)
                    results[case] = step_cost(case, c, "train")
                    if c.csv:
                        write_csv(c.csv, results)
    print_tables(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--chips", type=_words, default=tuple(CHIPS), help="default: all")
    add("--sizes", type=_words, default=("140M", "302M", "1018M"), help="sizes of models")
    add(
        "--devices-per-model",
        type=_integers,
        help="default: all powers of two up to 8 (H100) or 64 (TPU)",
    )
    add(
        "--depths",
        type=_integers,
        default=(2, 4),
        help="for TPUs, the two numbers of layers with which programs are compiled (default: 2,4); 0: all layers",
    )
    add("--programs", type=Path, help="folder in which compiled programs are stored for later runs")
    add("--csv", type=Path, help="CSV file to which the MFU bounds are added")
    add("--scoring", action="store_true", help="scoring on one device instead of training")
    c = parser.parse_args()
    c.depths = None if c.depths == (0,) else c.depths
    if c.depths and not (len(c.depths) == 2 and 0 < c.depths[0] < c.depths[1]):
        parser.error(
            f"--depths={','.join(map(str, c.depths))}: must be two numbers of layers in ascending order, such as 2,4, "
            "or 0"
        )
    for name, words in {"chips": CHIPS, "sizes": config.MODEL_SIZES}.items():
        if unknown := set(getattr(c, name)) - set(words):
            parser.error(
                f"--{name}={','.join(sorted(unknown))}: unknown {name}; choose from {', '.join(words)}"
            )
    for chip in c.chips:
        known = CHIPS[chip].devices_per_model
        if unknown := set(c.devices_per_model or ()) - set(known):
            parser.error(
                f"--devices-per-model={','.join(map(str, sorted(unknown)))}: cannot be compiled for {chip}; choose "
                f"from {', '.join(map(str, known))}, or name other --chips"
            )
    if c.scoring and (c.devices_per_model or c.csv):
        parser.error(
            "--scoring: uses one device and has no CSV file; leave out --devices-per-model and --csv"
        )
    return c


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
