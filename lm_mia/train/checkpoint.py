"""Initializes, saves and restores the training state of a model.

Orbax saves each state in the model's folder, under its number of updates. Saving is atomic: the files of an interrupted
save do not count as a checkpoint, and are removed when the folder is opened again. A state may be sharded over several
devices and hosts, and may be restored on different ones.

W: words of 32 bits of a state.
"""

import contextlib
import functools
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import struct
from jax.experimental import multihost_utils

from lm_mia.errors import UserError, raise_failed_read
from lm_mia.model import transformer
from lm_mia.model.transformer import Params, TransformerLM
from lm_mia.seeds import rng
from lm_mia.train import sharding

_PARTS = ("params", "opt_state")  # the items of a checkpoint, whose name is the step


class TrainState(struct.PyTreeNode):
    """Everything that is needed to continue training."""

    step: jax.Array
    """int32, the number of updates."""
    params: Params
    opt_state: optax.OptState


@functools.lru_cache(maxsize=8)  # traced once for all models that share their optimizer
def abstract_state(
    model: TransformerLM, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> TrainState:
    """Returns the shapes, dtypes and shardings of a training state, without values."""
    shapes = jax.eval_shape(lambda: _new_state(jax.random.key(0), model, tx))
    return jax.tree.map(
        lambda leaf, leaf_sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf_sharding
        ),
        shapes,
        sharding.named_shardings(shapes, mesh),
    )


def init_state(
    init_seed: int,
    model: TransformerLM,
    tx: optax.GradientTransformation,
    mesh: jax.sharding.Mesh | None = None,
) -> TrainState:
    """Returns the state before the first update, a pure function of the seed: the same on every mesh.

    Args:
      init_seed: the seed of the initial weights.
      model: the model.
      tx: the optimizer.
      mesh: the devices; by default, the first one.
    """
    raw = rng(init_seed, "initial weights").bit_generator.random_raw()
    mesh = mesh or sharding.make_mesh(jax.local_devices()[:1])
    return _compiled_init(model, tx, mesh)(jax.random.key(raw >> 32))


def state_of(
    params: Any,
    model: TransformerLM,
    tx: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> TrainState:
    """Returns the state before the first update of a model that starts from given parameters, arrays of NumPy."""
    like = abstract_state(model, tx, mesh)
    placed = jax.tree.map(
        lambda array, leaf: jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda index: array[index]
        ),
        params,
        like.params,
    )
    step, opt_shardings = like.step, jax.tree.map(lambda leaf: leaf.sharding, like.opt_state)
    opt_state: Any = jax.jit(tx.init, out_shardings=opt_shardings)(placed)
    count = jax.make_array_from_callback((), step.sharding, lambda _: np.asarray(0, np.int32))
    return TrainState(step=count, params=placed, opt_state=opt_state)


@functools.lru_cache(maxsize=8)  # compiled once for all models that share their optimizer
def _compiled_init(
    model: TransformerLM, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> Callable[[jax.Array], TrainState]:
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(model, tx, mesh))
    return jax.jit(lambda key: _new_state(key, model, tx), out_shardings=shardings)


def _new_state(
    key: jax.Array, model: TransformerLM, tx: optax.GradientTransformation
) -> TrainState:
    params = transformer.init_params(model, key)
    return TrainState(step=jnp.int32(0), params=params, opt_state=tx.init(params))


def manager(folder: Path, kept_steps: Sequence[int] = ()) -> ocp.CheckpointManager:
    """Returns an orbax manager for a model's folder, which keeps the newest checkpoint and those of some steps.

    It must be closed, or used as a context manager. In a job of several processes, all of them must call this function,
    `save`, `restore` and `restore_params`.
    """
    # The option cleanup_tmp_directories is not used: its thread outlives the manager, and the next manager would find
    # folders that are partly deleted.
    if jax.process_index() == 0:
        for unfinished in folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(unfinished)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"removed unfinished checkpoints of {folder.name}")
    policies = ocp.checkpoint_managers
    preserved = policies.AnyPreservationPolicy(
        [policies.LatestN(1), policies.CustomSteps(list(kept_steps))]
    )
    options = ocp.CheckpointManagerOptions(preservation_policy=preserved)
    return _Manager(folder.absolute(), options=options)


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Returns False: `lm_mia.run.preemption` alone calls JAX's preemption service.

        The service requires numbers that only increase, and orbax would call it with the steps of every model.
        """
        return False


@jax.jit
def fingerprint(tree: Any) -> jax.Array:
    """Returns a 32-bit checksum of all bits of a pytree.

    It is a sum of 32-bit words, weighted by odd numbers that depend on their positions. It changes if any single bit
    changes and, as a sum of integers, does not depend on the devices.
    """
    total = jnp.uint32(0)
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        words_W = jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(-1)
        weights_W = 2 * jnp.arange(words_W.size, dtype=jnp.uint32) + 1
        total += (2 * i + 1) * (words_W * weights_W).sum(dtype=jnp.uint32)
    return total


def save(checkpoints: ocp.CheckpointManager, state: TrainState) -> None:
    """Saves a state under its number of updates, and returns when it is on disk.

    If that fails, it raises the error, after which the process should exit: Orbax logs no more errors.
    """
    parts = {name: getattr(state, name) for name in _PARTS}
    items: dict[str, Any] = {name: ocp.args.StandardSave(part) for name, part in parts.items()}
    checksums = {name: int(fingerprint(part)) for name, part in parts.items()}
    items["fingerprint"] = ocp.args.JsonSave(checksums)
    with _without_errors_of_failed_saves():
        checkpoints.save(int(state.step), args=ocp.args.Composite(**items))
        checkpoints.wait_until_finished()


@contextlib.contextmanager
def _without_errors_of_failed_saves() -> Iterator[None]:
    """Hides what Orbax logs about a save that fails, hundreds of lines for a full disk, since the error is raised too.

    What it logs during a save that succeeds, such as an old checkpoint that it cannot remove, is shown afterwards.
    """
    logger, errors = logging.getLogger("absl"), list[logging.LogRecord]()

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            errors.append(record)
        return record.levelno < logging.ERROR

    logger.addFilter(keep)
    # If the save fails, the filter stays: each of Orbax's threads logs the traceback, some after the error is raised.
    yield
    logger.removeFilter(keep)
    for record in errors:
        logger.handle(record)


def restore(checkpoints: ocp.CheckpointManager, step: int, like: TrainState) -> TrainState:
    """Restores a state.

    Args:
      checkpoints: a `manager`.
      step: the number of updates.
      like: a state with the same shapes and dtypes, or `abstract_state`; its shardings are those of the result.

    Raises:
      UserError: if the checkpoint is damaged or differs in any bit from the saved state, or if the state of the
        optimizer was deleted; the message names its folder.
      OSError: if the system failed to read it.
    """
    folder = Path(checkpoints.directory)
    if not (folder / str(step) / "opt_state").exists() and (folder / str(step) / "params").exists():
        raise UserError(
            f"{folder / str(step)}: has no state of the optimizer (train.keep_moments=False), so that training cannot "
            f"go on from it; delete {folder} and run the same command again, which trains the model from the start"
        )
    parts = _restore(checkpoints, step, {name: getattr(like, name) for name in _PARTS})
    step_sharding = like.step.sharding
    count = jax.make_array_from_callback((), step_sharding, lambda _: np.asarray(step, np.int32))
    return TrainState(step=count, **parts)


def restore_params(checkpoints: ocp.CheckpointManager, step: int, like: Params) -> Params:
    """Restores only the parameters of a state; otherwise as `restore`."""
    return _restore(checkpoints, step, {"params": like})["params"]


def _restore(checkpoints: ocp.CheckpointManager, step: int, like: dict[str, Any]) -> dict[str, Any]:
    items: dict[str, Any] = {
        name: ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, part))
        for name, part in like.items()
    }
    items["fingerprint"] = ocp.args.JsonRestore()
    folder = f"{checkpoints.directory}/{step}"
    try:
        restored = checkpoints.restore(step, args=ocp.args.Composite(**items))
        checksums = {name: int(fingerprint(restored[name])) for name in like}
        is_intact = checksums.items() <= restored["fingerprint"].items()
    except (
        MemoryError,
        jax.errors.JaxRuntimeError,
    ):  # the devices' memory, or another process of the job
        raise
    except Exception as error:  # the parts of orbax raise errors of many types
        raise_failed_read(error, folder)
        raise UserError(_damaged_message(folder)) from error
    if not is_intact:
        raise UserError(_damaged_message(folder))
    return {name: restored[name] for name in like}


def _damaged_message(folder: str) -> str:
    return f"{folder}: damaged checkpoint; delete it and run the same command again"
