"""Reports the memory that the compiler plans for a training step, for a device that need not be present.

    python -m benchmarks memory [--platform=cuda|tpu|cpu] [--kind=gpt|gpt2|llama] [--sizes=302M,1018M] ...

Lowers the step that training uses (`lm_mia.train.step`) from shapes alone, for one NVIDIA H100 of 80 GB (cuda), one
chip of a TPU v5p (tpu) or this CPU, compiles it, and prints a Markdown table of the memory that the compiler will
allocate. cuda needs `jax[cuda13]` (the extra cuda) and tpu needs `jax[tpu]` (the extra tpu), but neither a driver nor a
device. A compilation takes 10 to 60 s and 1 to 3 GB of memory.

- arguments: parameters, two moments and the batch. outputs: those that do not reuse the memory of arguments.
- workspace: for --attention=cudnn. cuDNN allocates it at run time, and the compiler does not count it without a device.
  It is computed as 4 R H L (K + 1) bytes, which cuDNN 9.23 plans for the backward pass on an H100; R is the number of
  packed sequences per micro-batch, H the number of heads and K their width.
- fits 80 GB (cuda) or 95 GB (tpu, a v5p): JAX takes 75 % of a GPU's memory by default; "yes" means within that, and
  ".95" means that it fits with XLA_PYTHON_CLIENT_MEM_FRACTION=.95.
- XLA rematerializes values automatically if its plan exceeds about 76 % of a GPU's memory, with or without a device. A
  total of about 60 GiB may therefore be the reduced value of a larger one, at a cost in speed.
- estimate: what `lm_mia.model.memory` computes, from which lm_mia chooses micro-batches and numbers of devices.
- auto: the setting that `compute.*` chooses on that device by default.

Without a device, kernels are not tuned, and neither are those of training on GPUs (`sharding.compiler_options`).
CPUs compute bfloat16 in float32, so their numbers are larger; they show how settings compare rather than what fits.
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
from lm_mia.model import kinds, memory, transformer
from lm_mia.train import batching, checkpoint, execution, sharding
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import make_step

Platform = Literal["cuda", "tpu", "cpu"]

DEVICE_BYTES = 84_942_979_072  # of an H100 with 80 GB, as its driver reports it
_TPU_BYTES = 95 * 10**9  # of a TPU v5p
_DEFAULT_SHARE, _LARGE_SHARE = 0.75, 0.95  # fractions of a GPU's memory that JAX takes
_ATTENTION: dict[Platform, tuple[str, ...]] = {
    "cuda": ("pallas", "cudnn", "xla"),
    "tpu": ("pallas", "xla"),
    "cpu": ("xla",),
}
_TPU = "v5p:2x2x1"  # the smallest v5p topology that libtpu supports; one of its chips is used
_OPTIMIZER = config.Optimizer()

# XLA's description of a GPU (GpuTargetConfigProto), with the public numbers of an H100.
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


class MemoryPlan(NamedTuple):
    """Memory that the compiler plans, and the workspace of cuDNN, in bytes."""

    arguments: int
    outputs: int
    temporaries: int
    workspace: int
    seconds: float
    """Duration of lowering and compiling."""

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.arguments + self.outputs + self.temporaries + self.workspace


def device_mesh(platform: Platform) -> Mesh:
    """Returns a mesh of one device to compile for. Raises SystemExit as `target_devices` does."""
    if platform == "cpu":
        return sharding.make_mesh(jax.local_devices(backend="cpu")[:1])
    return sharding.make_mesh(target_devices(platform, _TPU)[:1])


def target_devices(platform: Platform, tpu_topology: str = "", num_gpus: int = 1) -> Sequence[Any]:
    """Returns devices to compile for, which need not exist on this machine.

    Args:
      platform: cuda or tpu.
      tpu_topology: for tpu, the topology of the slice, such as "v5p:2x2x1".
      num_gpus: for cuda, the number of GPUs of the machine.

    Raises:
      SystemExit: if JAX has no compiler for the platform here.
    """
    try:
        if platform == "tpu":
            topology = topologies.get_topology_desc(tpu_topology, platform="tpu")
        else:
            topology = topologies.get_topology_desc(
                platform="cuda", target_config=_H100, topology=f"1x1x{num_gpus}"
            )
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SystemExit(
            f"--platform={platform}: JAX has no compiler for it here ({str(error).splitlines()[0]}); "
            f"install the extra {platform}, or use --platform=cpu"
        ) from error
    return topology.devices


def plan_memory(
    model_config: transformer.ModelConfig,
    execution_plan: execution.ExecutionPlan,
    batch_size: int,
    mesh: Mesh,
) -> MemoryPlan:
    """Compiles the train step of a model for the mesh's device.

    Raises:
      jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED, if the compiler itself reports that it does not fit.
    """
    start = time.perf_counter()
    planned = lower_step(execution_plan, batch_size, mesh).compile().memory_analysis()
    return MemoryPlan(
        arguments=planned.argument_size_in_bytes,
        outputs=planned.output_size_in_bytes - planned.alias_size_in_bytes,
        temporaries=planned.temp_size_in_bytes,
        workspace=workspace(model_config, execution_plan),
        seconds=time.perf_counter() - start,
    )


def lower_step(execution_plan: execution.ExecutionPlan, batch_size: int, mesh: Mesh) -> Any:
    """Returns the lowered train step of the plan's model for the mesh, ready to be compiled."""
    length_tokens = execution_plan.model_config.length_tokens
    micro_batches = batching.max_micro_batches(
        batch_size, execution_plan.micro_batch_size, mesh.size
    )
    size = (micro_batches, execution_plan.micro_batch_size * mesh.size, length_tokens)
    model = kinds.build(execution_plan.model_config)
    state = checkpoint.abstract_state(model, optimizer(_OPTIMIZER), mesh)
    batch = batching.PackedBatch(
        *(abstract_array(mesh, size, jnp.int32, None, sharding.AXIS) for _ in range(3))
    )
    numbers = (abstract_array(mesh, (), dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32))
    step: Any = make_step(model, _OPTIMIZER, execution_plan.chunk_tokens, mesh)
    return step.lower(state, batch, *numbers)


def abstract_array(
    mesh: Mesh, size: Sequence[int], dtype: Any, *axes: str | None
) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an array on the mesh, sharded along the given axes."""
    named_sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(tuple(size), dtype, sharding=named_sharding)


def workspace(
    model_config: transformer.ModelConfig, execution_plan: execution.ExecutionPlan
) -> int:
    """Returns the bytes that cuDNN's attention allocates in addition to what the compiler plans."""
    if execution_plan.model_config.attention != "cudnn":
        return 0
    # Gradients of queries, and a sum.
    values_per_token = model_config.heads * (model_config.heads_shape[1] + 1)
    return 4 * execution_plan.micro_batch_size * model_config.length_tokens * values_per_token


def fits(total_bytes: int, platform: Platform) -> str:
    """Returns whether a total fits into the memory of a device: "yes", "no" or ".95"; see the module docstring."""
    if platform != "cuda":  # TPUs and CPUs can use all of their memory
        return "yes" if total_bytes <= _TPU_BYTES else "no"
    if total_bytes <= _DEFAULT_SHARE * DEVICE_BYTES:
        return "yes"
    return f"{_LARGE_SHARE:.2f}"[1:] if total_bytes <= _LARGE_SHARE * DEVICE_BYTES else "no"


def execution_plans(
    c: argparse.Namespace, model_config: transformer.ModelConfig
) -> Iterator[tuple[execution.ExecutionPlan, bool]]:
    """Yields the requested settings, and whether "auto" would choose them."""
    kind = "gpu" if c.platform == "cuda" else c.platform
    device_bytes = None if kind == "cpu" else int(_DEFAULT_SHARE * DEVICE_BYTES)
    auto = execution.plan_execution(
        config.Compute(), model_config, c.batch_size, kind, device_bytes
    )
    for attention, layers, remat, micro_batch_size in itertools.product(
        c.attention, c.layers, c.remat, c.micro_batch_size
    ):
        if c.platform == "tpu" and layers == "unrolled" and remat != "none":
            continue  # saves no memory, and `plan_execution` refuses it
        compute = config.Compute(
            attention=attention, layers=layers, remat=remat, micro_batch_size=micro_batch_size
        )
        plan = execution.plan_execution(compute, model_config, c.batch_size, kind, device_bytes)
        is_auto = plan == dataclasses.replace(auto, attention_reason=plan.attention_reason)
        yield plan, is_auto


def table_row(
    size: str,
    execution_plan: execution.ExecutionPlan,
    is_auto: bool,
    c: argparse.Namespace,
    mesh: Mesh,
) -> str:
    """Returns a row of the table."""
    cells = [
        size,
        execution_plan.model_config.attention,
        "scanned" if execution_plan.model_config.scan_layers else "unrolled",
    ]
    cells += [execution_plan.model_config.remat, str(execution_plan.micro_batch_size)]
    try:
        planned = plan_memory(sized_model_config(size, c.kind), execution_plan, c.batch_size, mesh)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        cells += [*["-"] * 6, "no: the compiler refuses", "-"]
    else:
        parts = (
            planned.arguments,
            planned.outputs,
            planned.temporaries,
            planned.workspace,
            planned.total,
        )
        cells += [f"{part / 2**30:.2f}" for part in parts]
        cells += [f"{estimate(execution_plan) / 2**30:.2f}"]
        cells += [fits(planned.total, c.platform), f"{planned.seconds:.0f}"]
    return f"| {' | '.join([*cells, 'auto' if is_auto else ''])} |"


def estimate(execution_plan: execution.ExecutionPlan) -> float:
    """Returns the bytes that `lm_mia.model.memory` expects, on which "auto" is based."""
    model_config = execution_plan.model_config
    return memory.training_bytes(
        kinds.size(model_config),
        model_config.attention,
        execution_plan.micro_batch_size,
        1,
        model_config.scan_layers,
    )


def sized_model_config(size: str, kind: str = "gpt") -> transformer.ModelConfig:
    """Returns the config of a named size in bfloat16, with the paper's vocabulary and length."""
    size_name: Any = size
    sized = config.resolve(config.Config(model=config.Model(size=size_name, kind=kind)))
    model_config = transformer.ModelConfig.from_settings(
        sized.model, sized.tokenizer.vocab_size, sized.population.length_tokens
    )
    return dataclasses.replace(model_config, dtype="bfloat16")


def main() -> None:
    """Prints the table."""
    c = _arguments()
    # Keeps libtpu from querying the metadata server of a cloud machine.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    jax.config.update("jax_platforms", "cpu")  # a present device must not be initialized
    mesh = device_mesh(c.platform)
    device = mesh.devices.flat[0].device_kind
    print(
        f"Batch {c.batch_size} x 1,024, V = 32,000, bfloat16, {c.kind}, {device}, JAX {jax.__version__}; GiB\n"
    )
    header = ("size", "attention", "layers", "remat", "micro-batch size", "arguments", "outputs")
    header += (
        "temporaries",
        "workspace",
        "total",
        "estimate",
        "fits 80 GB" if c.platform == "cuda" else "fits 95 GB",
    )
    header += ("compile s", "")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for size in c.sizes:
        for plan, is_auto in execution_plans(c, sized_model_config(size, c.kind)):
            print(table_row(size, plan, is_auto, c, mesh), flush=True)
            jax.clear_caches()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--platform", choices=get_args(Platform), default="cuda")
    add("--sizes", type=_names, default=("302M", "1018M"), help=", ".join(config.MODEL_SIZES))
    add("--kind", choices=tuple(kinds.KINDS), default="gpt", help="model.kind")
    add("--attention", type=_names, help="default: all of the platform")
    add("--layers", type=_names, default=("unrolled", "scanned"))
    add("--remat", type=_names, default=("none", "dots", "full"))
    add(
        "--micro-batch-size",
        type=_numbers,
        default=(8, 16, 32),
        help="packed sequences per device and micro-batch",
    )
    add("--batch-size", type=int, default=128)
    c = parser.parse_args()
    c.attention = c.attention or _ATTENTION[c.platform]
    choices = {"sizes": tuple(config.MODEL_SIZES), "attention": _ATTENTION[c.platform]}
    choices |= {"layers": ("unrolled", "scanned"), "remat": ("none", "dots", "full")}
    for name, words in choices.items():
        if unknown := set(getattr(c, name)) - set(words):
            parser.error(
                f"--{name}: unknown: {', '.join(sorted(unknown))}; one of {', '.join(words)}"
            )
    if c.batch_size < 1 or min(c.micro_batch_size) < 1 or max(c.micro_batch_size) > c.batch_size:
        parser.error("--micro-batch-size: must be from 1 to --batch-size")
    return c


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
