"""The compiled training step: one update from a batch in micro-batches, over the devices of a mesh.

B: packed sequences of a micro-batch on one device (over all devices in a batch as a whole), L: tokens of a packed
sequence, U: the largest number of micro-batches that a batch may need.
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
from lm_mia.model.transformer import Params, TransformerLM
from lm_mia.train import sharding
from lm_mia.train.batching import PackedBatch
from lm_mia.train.checkpoint import TrainState
from lm_mia.train.optimizer import optimizer

Step = Callable[..., tuple[TrainState, dict[str, jax.Array]]]
Loss = Callable[..., jax.Array]

_BATCH = PartitionSpec(None, sharding.AXIS)


def make_step(
    model: TransformerLM, optimizer_config: config.Optimizer, chunk_tokens: int, mesh: Mesh
) -> Step:
    """Returns the compiled update.

    It is called with ``(state, batch, num_micro_batches, num_targets, learning_rate)``, where the state is donated:

    - state: a `TrainState` on the mesh, as `checkpoint.init_state` and `checkpoint.restore` return it.
    - batch: as `to_global_array` returns it.
    - num_micro_batches, num_targets: of `batching.BatchStats`.
    - learning_rate: that of this step.

    It returns the new state, and ``{"loss_nats", "gradient_norm"}`` of the old one: the mean loss per predicted token,
    and the norm of the gradient before clipping.

    The gradient of the mean loss over all predicted tokens is the sum of the gradients of the micro-batches, divided
    once by the number of tokens. The number of micro-batches is not part of the compiled shapes, so that batches of any
    size, and all models of a recipe, share one executable. Devices do not communicate before their sums are added; see
    `sharding`.

    Args:
      model: the model.
      optimizer_config: settings of the optimizer.
      chunk_tokens: number of tokens whose logits are in memory at once.
      mesh: the devices.
    """
    tx = optimizer(optimizer_config)

    def sum_gradients(
        params: Params, batch: PackedBatch, num_micro_batches: jax.Array, specs: Any
    ) -> tuple[jax.Array, Params]:
        params = _gather(params, model, specs)
        # Otherwise, the gradients of unrolled layers would be stacked for each micro-batch. That costs little on CPUs,
        # where bfloat16 would be rounded otherwise.
        is_unstacked = sharding.is_gpu(mesh) and not model.config.scan_layers
        layered_model = model.clone(is_unstacked=is_unstacked)
        if is_unstacked:
            params = transformer.unstack_blocks(params)

        def add_micro_batch(
            i: jax.Array, sums: tuple[jax.Array, Params]
        ) -> tuple[jax.Array, Params]:
            loss, grads = jax.value_and_grad(_loss)(
                params, _micro_batch(batch, i), layered_model, chunk_tokens
            )
            return sums[0] + loss, jax.tree.map(jnp.add, sums[1], grads)

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        loss, grads = jax.lax.fori_loop(
            0, num_micro_batches, add_micro_batch, (jnp.float32(0), zeros)
        )
        if is_unstacked:
            grads = transformer.stack_blocks(grads)
        return jax.lax.psum(loss, sharding.AXIS), sharding.reduce_scatter(grads, specs)

    def step(
        state: TrainState,
        batch: PackedBatch,
        num_micro_batches: jax.Array,
        num_targets: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        specs = sharding.partition_specs(state.params, mesh)
        loss, grads = jax.shard_map(
            lambda params, batch, count: sum_gradients(params, batch, count, specs),
            mesh=mesh,
            in_specs=(specs, _BATCH, PartitionSpec()),
            out_specs=(PartitionSpec(), specs),
            check_vma=False,
        )(state.params, batch, num_micro_batches)
        grads = jax.tree.map(lambda g: g / num_targets, grads)
        # All arrays are sharded alike, and all operations of AdamW and Lion except the norm are elementwise, so that
        # the compiler adds a single collective, the sum of one number per device. Muon needs whole matrices.
        updates, opt_state = tx.update(
            grads, state.opt_state, state.params, learning_rate=learning_rate
        )
        params: Any = optax.apply_updates(state.params, updates)
        new_state = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        metrics = {"loss_nats": loss / num_targets, "gradient_norm": optax.tree.norm(grads)}
        shardings = sharding.named_shardings(new_state, mesh)
        return jax.lax.with_sharding_constraint(new_state, shardings), metrics

    return jax.jit(step, donate_argnums=0, compiler_options=sharding.compiler_options(mesh))


def make_loss(model: TransformerLM, chunk_tokens: int, mesh: Mesh) -> Loss:
    """Returns the compiled mean loss of a batch, in nats per predicted token, without an update.

    It is called with ``(params, batch, num_micro_batches, num_targets)``; see `make_step`.
    """

    def sum_losses(
        params: Params, batch: PackedBatch, num_micro_batches: jax.Array, specs: Any
    ) -> jax.Array:
        params = _gather(params, model, specs)

        def add_micro_batch(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + _loss(params, _micro_batch(batch, i), model, chunk_tokens)

        total = jax.lax.fori_loop(0, num_micro_batches, add_micro_batch, jnp.float32(0))
        return jax.lax.psum(total, sharding.AXIS)

    def mean_loss(
        params: Params, batch: PackedBatch, num_micro_batches: jax.Array, num_targets: jax.Array
    ) -> jax.Array:
        specs = sharding.partition_specs(params, mesh)
        total = jax.shard_map(
            lambda params, batch, count: sum_losses(params, batch, count, specs),
            mesh=mesh,
            in_specs=(specs, _BATCH, PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(params, batch, num_micro_batches)
        return total / num_targets

    return jax.jit(mean_loss, compiler_options=sharding.compiler_options(mesh))


def to_global_array(batch: PackedBatch, mesh: Mesh) -> PackedBatch:
    """Returns a batch as arrays over the mesh, from the packed sequences for this process's devices.

    See `local_device_indices`.
    """
    batch_sharding = NamedSharding(mesh, _BATCH)

    def convert(local_UxBxL: np.ndarray) -> jax.Array:
        U, local_B, L = local_UxBxL.shape
        shape = (U, local_B // len(local_device_indices(mesh)) * mesh.size, L)
        return jax.make_array_from_process_local_data(batch_sharding, local_UxBxL, shape)

    return PackedBatch(*(convert(array) for array in batch))


def local_device_indices(mesh: Mesh) -> list[int]:
    """Returns the positions in the mesh of the devices that belong to this process."""
    return [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]


def _gather(params: Params, model: TransformerLM, specs: Any) -> Params:
    """Returns whole parameters from each device's shards, as the micro-batches use them.

    Kernels are gathered in the dtype of activations: their gradient for a micro-batch has that precision anyway, and
    sums over micro-batches are float32. Embeddings stay float32, since many tokens add to the same embedding.
    """

    def cast(path: Any, weight: jax.Array) -> jax.Array:
        is_kernel = path[-1].key == "kernel"
        return weight.astype(model.config.dtype) if is_kernel else weight

    return sharding.all_gather(jax.tree.map_with_path(cast, params), specs)


def _micro_batch(batch: PackedBatch, i: jax.Array) -> PackedBatch:
    return PackedBatch(*(jax.lax.dynamic_index_in_dim(array, i, keepdims=False) for array in batch))


def _loss(
    params: Params, micro_batch: PackedBatch, model: TransformerLM, chunk_tokens: int
) -> jax.Array:
    """Returns the sum of the losses of all predicted tokens, in nats."""
    x_BxL, segments_BxL, positions_BxL = micro_batch
    h_BxLxD: Any = model.apply(
        {"params": params}, x_BxL, segments_BxL, positions_BxL, method="hidden"
    )
    embedding_VxD = model.output_embedding(params)
    return losses.packed_loss(h_BxLxD, embedding_VxD, x_BxL, segments_BxL, chunk_tokens)
