"""The compiled update of a row: a batch in micro-batches, over the devices of a mesh.

R: rows of a micro-batch on one device, L: tokens of a row, M: rows of a micro-batch over all devices, N: micro-batches
that a batch may need.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lm_mia import config
from lm_mia.model import losses, transformer
from lm_mia.train import sharding
from lm_mia.train.batching import PackedBatch
from lm_mia.train.checkpoint import State
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import optimizer

Step = Callable[..., tuple[State, dict[str, jax.Array]]]
Loss = Callable[..., jax.Array]

_ROWS = PartitionSpec(None, sharding.AXIS)


def make_step(
    model: transformer.ModelConfig,
    optimizer_config: config.Optimizer,
    plan: ExecutionPlan,
    mesh: Mesh,
) -> Step:
    """The update: (state, rows, trips, predicted, learning_rate) -> (new state, metrics of the state before it).

    The gradient of the mean loss over all predicted tokens of a batch is the sum of those of its micro-batches, divided
    once. Their number is not part of the compiled shape, so batches of any number of rows share one executable, and so
    do all rows of a recipe. Devices work apart until their sums are added (`sharding`). The state is donated.

    Args of the step:
      state: of `checkpoint.fresh` or `checkpoint.restore`, on the mesh.
      rows: of `place`.
      num_micro_batches, num_targets: of `batching.BatchStats`.
      learning_rate: of the step.

    Returns:
      metrics are {"loss_nats", "gradient_norm"}: mean loss a predicted token, and norm before clipping.
    """
    tx = optimizer(optimizer_config)

    def gradients(
        params: transformer.Params, rows: PackedBatch, trips: jax.Array, specs: Any
    ) -> Any:
        whole = _prepared(params, model, plan, specs)

        def micro_batch(i: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            value, found = jax.value_and_grad(_loss)(whole, _at(rows, i), model, plan)
            return carry[0] + value, jax.tree.map(jnp.add, carry[1], found)

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), whole)
        total, found = jax.lax.fori_loop(0, trips, micro_batch, (jnp.float32(0), zeros))
        found = found if plan.way.scanned else transformer.stacked(found)
        return jax.lax.psum(total, sharding.AXIS), sharding.summed(found, specs)

    def step(
        state: State,
        rows: PackedBatch,
        trips: jax.Array,
        predicted: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[State, dict[str, jax.Array]]:
        specs = sharding.specs(state["params"], mesh)
        total, grads = jax.shard_map(
            lambda params, rows, trips: gradients(params, rows, trips, specs),
            mesh=mesh,
            in_specs=(specs, _ROWS, PartitionSpec()),
            out_specs=(PartitionSpec(), specs),
            check_vma=False,
        )(state["params"], rows, trips)
        grads = jax.tree.map(lambda g: g / predicted, grads)
        # Elementwise but for the norm, and all split alike: the compiler adds one sum of a number.
        update, opt = tx.update(grads, state["opt"], state["params"])
        update = jax.tree.map(lambda u: -learning_rate * u, update)
        new = {"params": optax.apply_updates(state["params"], update), "opt": opt}
        metrics = {"loss_nats": total / predicted, "gradient_norm": optax.tree.norm(grads)}
        return jax.lax.with_sharding_constraint(new, sharding.shardings(new, mesh)), metrics

    return jax.jit(step, donate_argnums=0)


def make_loss(model: transformer.ModelConfig, plan: ExecutionPlan, mesh: Mesh) -> Loss:
    """Of samples, without an update: (params, rows, trips, predicted) -> mean loss in nats a predicted token."""

    def total(
        params: transformer.Params, rows: PackedBatch, trips: jax.Array, specs: Any
    ) -> jax.Array:
        whole = _prepared(params, model, plan, specs)

        def micro_batch(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + _loss(whole, _at(rows, i), model, plan)

        return jax.lax.psum(jax.lax.fori_loop(0, trips, micro_batch, jnp.float32(0)), sharding.AXIS)

    def mean(
        params: transformer.Params, rows: PackedBatch, trips: jax.Array, predicted: jax.Array
    ) -> jax.Array:
        specs = sharding.specs(params, mesh)
        summed = jax.shard_map(
            lambda params, rows, trips: total(params, rows, trips, specs),
            mesh=mesh,
            in_specs=(specs, _ROWS, PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return summed(params, rows, trips) / predicted

    return jax.jit(mean)


def to_global_array(rows: PackedBatch, mesh: Mesh) -> PackedBatch:
    """Each process's rows of a batch (of the mesh's devices that are its own, `mine`) as arrays over the mesh."""
    split = NamedSharding(mesh, _ROWS)

    def one(local_NxMxL: np.ndarray) -> jax.Array:
        N, _, L = local_NxMxL.shape
        whole = (N, local_NxMxL.shape[1] // len(local_device_indices(mesh)) * mesh.size, L)
        return jax.make_array_from_process_local_data(split, local_NxMxL, whole)

    return PackedBatch(*(one(array) for array in rows))


def local_device_indices(mesh: Mesh) -> list[int]:
    """Which of the mesh's devices are this process's."""
    return [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]


def _prepared(
    params: transformer.Params, shape: transformer.ModelConfig, choice: ExecutionPlan, specs: Any
) -> transformer.Params:
    """Whole parameters as the micro-batches use them.

    Weights of layers are gathered in the activations' type: their gradient in a micro-batch has that precision anyway,
    and sums over micro-batches are float32. Embeddings stay float32, since many tokens add to one of their rows.
    """

    def rough(weight: jax.Array) -> jax.Array:
        return weight.astype(shape.dtype) if weight.ndim > 2 else weight

    params = params | {"layers": jax.tree.map(rough, params["layers"])}
    whole = sharding.gathered(params, specs)
    return whole if choice.way.scanned else transformer.unstacked(whole)


def _at(rows: PackedBatch, i: jax.Array) -> PackedBatch:
    return PackedBatch(*(jax.lax.dynamic_index_in_dim(array, i, keepdims=False) for array in rows))


def _loss(
    params: transformer.Params, rows: Any, shape: transformer.ModelConfig, choice: ExecutionPlan
) -> jax.Array:
    x_RxL, segment_RxL, position_RxL = rows
    h_RxLxD = transformer.hidden(params, x_RxL, segment_RxL, position_RxL, shape.dtype, choice.way)
    return losses.packed_loss(h_RxLxD, params["embed_VxD"], x_RxL, segment_RxL, choice.chunk_tokens)
