"""A row over several devices: each holds a part of every parameter and computes a part of every batch.

Parameters, moments and gradients are split over one mesh axis (fully sharded data parallel). A step gathers the
parameters once, sums the micro-batches of each device without a word to the others, and hands each device its part of
the summed gradient: one all-gather and one reduce-scatter a parameter and step, as many bytes as one all-reduce, which
is the least that plain data parallelism needs. On one device nothing is communicated.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def mesh(devices: Sequence[Any]) -> Mesh:
    """One axis over the devices."""
    kinds = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=kinds, devices=devices)


def spec(shape: Sequence[int], devices: int) -> PartitionSpec:
    """Along which axis an array is split: its longest one that divides evenly; none, if there is none."""
    even = [i for i, size in enumerate(shape) if size % devices == 0 and size > 0]
    if devices == 1 or not even:
        return PartitionSpec()
    longest = max(even, key=lambda i: (shape[i], -i))
    return PartitionSpec(*(AXIS if i == longest else None for i in range(longest + 1)))


def specs(tree: Any, over: Mesh) -> Any:
    """`spec` of every array of a pytree."""
    return jax.tree.map(lambda leaf: spec(leaf.shape, over.size), tree)


def shardings(tree: Any, over: Mesh) -> Any:
    """The same as shardings."""
    return jax.tree.map(lambda leaf: NamedSharding(over, spec(leaf.shape, over.size)), tree)


def gathered(tree: Any, specs: Any) -> Any:
    """Whole arrays from each device's parts; inside `jax.shard_map`."""
    return jax.tree.map(_gathered, tree, specs)


def summed(tree: Any, specs: Any) -> Any:
    """Each device's part of the sum over devices of whole arrays; inside `jax.shard_map`."""
    return jax.tree.map(_summed, tree, specs)


def _gathered(part: jax.Array, spec: PartitionSpec) -> jax.Array:
    if AXIS not in spec:
        return part
    return jax.lax.all_gather(part, AXIS, axis=spec.index(AXIS), tiled=True)


def _summed(whole: jax.Array, spec: PartitionSpec) -> jax.Array:
    if jax.lax.axis_size(AXIS) == 1:  # the compiler would keep a copy in its place
        return whole
    if AXIS not in spec:
        return jax.lax.psum(whole, AXIS)
    return jax.lax.psum_scatter(whole, AXIS, scatter_dimension=spec.index(AXIS), tiled=True)
