"""Shards the training of one model over several devices, each of which holds a part of every parameter and batch.

Parameters, moments and gradients are split over one mesh axis (fully sharded data parallelism). A step gathers the
parameters once, sums the gradients of each device's micro-batches without communication, and gives each device its part
of the total: one all-gather and one reduce-scatter per parameter and step. These transfer as many bytes as one
all-reduce, the minimum for plain data parallelism. With one device, there is no communication.

For TPU slices with three axes, the compiler uses all-reduces instead of reduce-scatters. They transfer twice as many
bytes, but over all links at once; docs/results/accelerators.md compares the two.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """Returns a mesh of one axis over the devices."""
    axis_types = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=axis_types, devices=devices)


def is_gpu(mesh: Mesh) -> bool:
    """Returns whether the devices of a mesh are GPUs."""
    return mesh.devices.flat[0].platform == "gpu"


def compiler_options(mesh: Mesh) -> dict[str, bool | int] | None:
    """Returns options for `jax.jit` with which two processes compile the same program for the devices of a mesh.

    On GPUs, the compiler would otherwise time several algorithms for each matrix product, and processes that chose
    different ones would round differently.
    """
    if not is_gpu(mesh):
        return None
    return {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


def partition_spec(shape: Sequence[int], num_devices: int) -> PartitionSpec:
    """Returns how an array is sharded: along the longest axis that is divisible by the number of devices, if any."""
    divisible = [i for i, size in enumerate(shape) if size % num_devices == 0 and size > 0]
    if num_devices == 1 or not divisible:
        return PartitionSpec()
    longest = max(divisible, key=lambda i: (shape[i], -i))
    return PartitionSpec(*(AXIS if i == longest else None for i in range(longest + 1)))


def partition_specs(tree: Any, mesh: Mesh) -> Any:
    """Returns the `partition_spec` of every array of a pytree."""
    return jax.tree.map(lambda leaf: partition_spec(leaf.shape, mesh.size), tree)


def named_shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the `partition_specs` as shardings on the mesh."""
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, partition_spec(leaf.shape, mesh.size)), tree
    )


def all_gather(tree: Any, specs: Any) -> Any:
    """Returns whole arrays from the shards of all devices; to be called inside `jax.shard_map`."""
    return jax.tree.map(_all_gather, tree, specs)


def reduce_scatter(tree: Any, specs: Any) -> Any:
    """Returns each device's shard of the sum of whole arrays over devices; to be called inside `jax.shard_map`."""
    return jax.tree.map(_reduce_scatter, tree, specs)


def _all_gather(shard: jax.Array, spec: PartitionSpec) -> jax.Array:
    if AXIS not in spec:
        return shard
    return jax.lax.all_gather(shard, AXIS, axis=spec.index(AXIS), tiled=True)


def _reduce_scatter(array: jax.Array, spec: PartitionSpec) -> jax.Array:
    if jax.lax.axis_size(AXIS) == 1:  # the compiler would turn the collective into a copy
        return array
    if AXIS not in spec:
        return jax.lax.psum(array, AXIS)
    return jax.lax.psum_scatter(array, AXIS, scatter_dimension=spec.index(AXIS), tiled=True)
