"""Memory of a train step as the compiler plans it, for a device that need not be there.

    python benchmarks/memory.py [--platform=cuda|tpu|cpu] [--sizes=302M,1018M] [--attention=cudnn,xla] ...

Lowers the step that training uses (`lm_mia.train.step`), from shapes alone, for one NVIDIA H100 of 80 GB
(cuda), one chip of a TPU v5p (tpu) or this CPU, compiles it, and prints in Markdown what the
compiler will allocate. cuda needs `jax[cuda13]` (the extra cuda) and tpu `jax[tpu]` (the extra tpu);
no driver, no device. A compilation takes 10 to 60 s and 1 to 3 GB of memory here.

- arguments: parameters, two moments and the batch. outputs: what is not written over them.
- cuDNN asks for workspace when it runs. Without a device the compiler does not count it, so it is
  added: 4 R H L (K + 1) bytes, which is what cuDNN 9.23 plans for the backward pass on an H100, R
  being the rows of a micro-batch, H the heads and K their width.
- fits: in 80 GB. JAX takes 75 % of a GPU's memory unless told otherwise: "yes" is within that, and
  ".95" says that XLA_PYTHON_CLIENT_MEM_FRACTION=.95 makes it fit.
- XLA itself computes values again where its plan passes about 76 % of a GPU's memory, there as
  here: a total of about 60 GiB may be what is left of more, at a cost in speed.
- auto: what `compute.*` comes to on that device if nothing is asked for.

Without a device no kernel is tuned: workspaces of matrix products may come out a few tens of MB
different on one. CPUs compute bfloat16 in float32: their numbers are larger, and say how settings
compare rather than what fits.
"""

import argparse
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lm_mia import config
from lm_mia.model import transformer
from lm_mia.model.attention import AttentionKind
from lm_mia.train import batching, checkpoint, execution, sharding
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import make_step

Platform = Literal["cuda", "tpu", "cpu"]

DEVICE_BYTES = 84_942_979_072  # of an H100 with 80 GB, as its driver tells
_DEFAULT_SHARE, _LARGE_SHARE = 0.75, 0.95  # of a GPU's memory that JAX takes
_WAYS: dict[Platform, tuple[AttentionKind, ...]] = {
    "cuda": ("cudnn", "xla"),
    "tpu": ("pallas", "xla"),
    "cpu": ("xla",),
}
_TPU = "v5p:2x2x1"  # the smallest that libtpu knows by that name; one chip of it is used
_RECIPE = config.Optimizer()

# What XLA wants to know of a GPU: its GpuTargetConfigProto, with an H100's public numbers.
_H100 = f"""
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  name: "NVIDIA H100 80GB HBM3"
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  device_memory_size: {DEVICE_BYTES}
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  core_count: 132
  fpus_per_core: 128
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
"""


class Plan(NamedTuple):
    """What the compiler will allocate, in bytes; the workspace of cuDNN beside it."""

    arguments: int
    outputs: int
    temporaries: int
    workspace: int
    seconds: float
    """Of lowering and compiling."""

    @property
    def total(self) -> int:
        """All at once."""
        return self.arguments + self.outputs + self.temporaries + self.workspace


def mesh(platform: Platform) -> Mesh:
    """One device to compile for.

    Raises:
      SystemExit: if JAX has no compiler for it here.
    """
    if platform == "cpu":
        return sharding.make_mesh(jax.local_devices(backend="cpu")[:1])
    try:
        if platform == "tpu":
            found = topologies.get_topology_desc(_TPU, platform="tpu")
        else:
            found = topologies.get_topology_desc(
                platform="cuda", target_config=_H100, topology="1x1x1"
            )
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SystemExit(
            f"--platform={platform}: JAX has no compiler for it here ({str(error).splitlines()[0]}); "
            f"install the extra {platform}, or say --platform=cpu"
        ) from error
    return sharding.make_mesh(found.devices[:1])


def plan(
    shape: transformer.ModelConfig, choice: execution.ExecutionPlan, batch_size: int, mesh: Mesh
) -> Plan:
    """Compiles the train step of a model for the mesh's device.

    Raises:
      jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED, if the compiler itself says that it does not fit.
    """
    rows = batching.max_micro_batches(batch_size, choice.micro_batch_size, mesh.size)
    size = (rows, choice.micro_batch_size * mesh.size, shape.length_tokens)

    def leaf(size: Sequence[int], dtype: Any, *axes: str | None) -> jax.ShapeDtypeStruct:
        place = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(tuple(size), dtype, sharding=place)

    model = transformer.TransformerLM(choice.model_config)
    state = checkpoint.abstract_state(model, optimizer(_RECIPE), mesh)
    batch = batching.PackedBatch(*(leaf(size, jnp.int32, None, sharding.AXIS) for _ in range(3)))
    numbers = (leaf((), jnp.int32), leaf((), jnp.int32), leaf((), jnp.float32))
    start = time.perf_counter()
    step: Any = make_step(model, _RECIPE, choice.chunk_tokens, mesh)
    found = step.lower(state, batch, *numbers).compile().memory_analysis()
    return Plan(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes - found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        workspace=workspace(shape, choice),
        seconds=time.perf_counter() - start,
    )


def workspace(shape: transformer.ModelConfig, choice: execution.ExecutionPlan) -> int:
    """Bytes that cuDNN's attention asks for beside what the compiler plans."""
    if choice.model_config.attention != "cudnn":
        return 0
    of_token = shape.heads * (shape.width // shape.heads + 1)  # gradients of queries, and a sum
    return 4 * choice.micro_batch_size * shape.length_tokens * of_token


def fits(total_bytes: int, platform: Platform) -> str:
    """Whether that much is to be had on 80 GB."""
    if platform != "cuda":  # these take all of their memory
        return "yes" if total_bytes <= DEVICE_BYTES else "no"
    if total_bytes <= _DEFAULT_SHARE * DEVICE_BYTES:
        return "yes"
    return f"{_LARGE_SHARE:.2f}"[1:] if total_bytes <= _LARGE_SHARE * DEVICE_BYTES else "no"


def choices(
    c: argparse.Namespace, shape: transformer.ModelConfig
) -> Iterator[tuple[execution.ExecutionPlan, bool]]:
    """The settings asked for, and whether "auto" would take them."""
    kind = "gpu" if c.platform == "cuda" else c.platform
    memory = None if kind == "cpu" else int(_DEFAULT_SHARE * DEVICE_BYTES)
    auto = execution.plan_execution(config.Compute(), shape, c.batch_size, kind, memory)
    for attention, layers, remat, rows in itertools.product(
        c.attention, c.layers, c.remat, c.micro_batch_size
    ):
        asked = config.Compute(
            attention=attention, layers=layers, remat=remat, micro_batch_size=rows
        )
        choice = execution.plan_execution(asked, shape, c.batch_size, kind, memory)
        same = choice == dataclasses.replace(auto, attention_reason=choice.attention_reason)
        yield choice, same


def row(
    size: str, choice: execution.ExecutionPlan, auto: bool, c: argparse.Namespace, on: Mesh
) -> str:
    """A line of the table."""
    cells = [
        size,
        choice.model_config.attention,
        "scanned" if choice.model_config.scan_layers else "unrolled",
    ]
    cells += [choice.model_config.remat, str(choice.micro_batch_size)]
    try:
        found = plan(shape_of(size), choice, c.batch_size, on)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        cells += [*["-"] * 5, "no: the compiler refuses", "-"]
    else:
        parts = (found.arguments, found.outputs, found.temporaries, found.workspace, found.total)
        cells += [f"{part / 2**30:.2f}" for part in parts]
        cells += [fits(found.total, c.platform), f"{found.seconds:.0f}"]
    return f"| {' | '.join([*cells, 'auto' if auto else ''])} |"


def shape_of(size: str) -> transformer.ModelConfig:
    """The model of that size in bfloat16, with the paper's vocabulary and lengths."""
    of: Any = size
    sized = config.resolve(config.Config(model=config.Model(size=of)))
    m, pieces, tokens = sized.model, sized.tokenizer.vocab_size, sized.population.length_tokens
    return transformer.ModelConfig(m.layers, m.width, m.heads, pieces, tokens, "bfloat16")


def main() -> None:
    """Prints the table."""
    c = _arguments()
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # libtpu would ask a cloud machine's server what it is
    jax.config.update("jax_platforms", "cpu")  # a device that is there must not be started
    on = mesh(c.platform)
    kind = on.devices.flat[0].device_kind
    print(
        f"Batch {c.batch_size} x 1,024, V = 32,000, bfloat16, {kind}, JAX {jax.__version__}; GiB\n"
    )
    header = ("size", "attention", "layers", "remat", "rows", "arguments", "outputs")
    header += ("temporaries", "workspace", "total", "fits 80 GB", "compile s", "")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for size in c.sizes:
        for choice, auto in choices(c, shape_of(size)):
            print(row(size, choice, auto, c, on), flush=True)
            jax.clear_caches()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--platform", choices=get_args(Platform), default="cuda")
    add("--sizes", type=_names, default=("302M", "1018M"), help=", ".join(config.MODEL_SIZES))
    add("--attention", type=_names, help="by default all of the platform")
    add("--layers", type=_names, default=("unrolled", "scanned"))
    add("--remat", type=_names, default=("none", "dots", "full"))
    add(
        "--micro-batch-size",
        type=_numbers,
        default=(8, 16, 32),
        help="rows that a device takes at once",
    )
    add("--batch-size", type=int, default=128)
    c = parser.parse_args()
    c.attention = c.attention or _WAYS[c.platform]
    known = {"sizes": tuple(config.MODEL_SIZES), "attention": _WAYS[c.platform]}
    known |= {"layers": ("unrolled", "scanned"), "remat": ("none", "dots", "full")}
    for name, words in known.items():
        if unknown := set(getattr(c, name)) - set(words):
            parser.error(f"--{name}: no {', '.join(sorted(unknown))}; one of {', '.join(words)}")
    if c.batch_size < 1 or min(c.micro_batch_size) < 1 or max(c.micro_batch_size) > c.batch_size:
        parser.error("--micro-batch-size: from 1 to --batch-size")
    return c


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
