"""The state of a row, fresh or saved: parameters, optimizer state, and the number of updates as its name.

One whole state at a time, by orbax, in a folder of the row's own. A save is atomic; what a killed one leaves behind is
no state, and gone when the folder is next opened. States may lie on several devices and hosts; one that was saved on
some can be restored on others.
"""

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.seeds import rng
from lm_mia.train import sharding

State = dict[str, Any]
"""{"params": model.Params, "opt": the optimizer's state}"""


def abstract(
    shape: transformer.ModelConfig, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> State:
    """Shapes, types and places of a row's state on a mesh, without the numbers."""

    def state() -> State:
        params = transformer.init(jax.random.key(0), shape)
        return {"params": params, "opt": tx.init(params)}

    shapes = jax.eval_shape(state)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        sharding.shardings(shapes, mesh),
    )


def fresh(
    init_seed: int,
    shape: transformer.ModelConfig,
    tx: optax.GradientTransformation,
    mesh: jax.sharding.Mesh | None = None,
) -> State:
    """The state of a row before its first update: a pure function of init_seed, the same on any mesh.

    On the first device, if there is no mesh.
    """
    raw = rng(init_seed, "initial weights").bit_generator.random_raw()
    mesh = mesh or sharding.mesh(jax.local_devices()[:1])
    return _initial(shape, tx, mesh)(jax.random.key(raw >> 32))


@functools.lru_cache(maxsize=8)
def _initial(
    shape: transformer.ModelConfig, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> Callable[[jax.Array], State]:
    """Compiled once for all rows that share their optimizer."""

    def state(key: jax.Array) -> State:
        params = transformer.init(key, shape)
        return {"params": params, "opt": tx.init(params)}

    places = jax.tree.map(lambda leaf: leaf.sharding, abstract(shape, tx, mesh))
    return jax.jit(state, out_shardings=places)


def manager(folder: Path, keep: Sequence[int] = ()) -> ocp.CheckpointManager:
    """An orbax manager of a row's folder that keeps the newest state and those of certain steps.

    Close it, or use it as a context. Where a job has several processes, all must call this and what follows.
    """
    # not cleanup_tmp_directories: its thread outlives the manager, and the next one's meets half-removed folders
    if jax.process_index() == 0:
        for unfinished in folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(unfinished)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"leftovers of {folder.name} are gone")
    policies = ocp.checkpoint_managers
    kept = policies.AnyPreservationPolicy([policies.LatestN(1), policies.CustomSteps(list(keep))])
    options = ocp.CheckpointManagerOptions(preservation_policy=kept)
    return _Manager(folder.absolute(), options=options)


class _Manager(ocp.CheckpointManager):
    """Orbax asks JAX's preemption service with numbers of its own, which must only grow; `preemption` alone does."""

    def reached_preemption(self, step: int) -> bool:
        return False


@jax.jit
def fingerprint(part: Any) -> jax.Array:
    """A 32-bit sum of all bits of a pytree, each word weighted by an odd number that depends on its place.

    Any one flipped bit changes it, and integer sums do not depend on their order, so it is the same on any devices.
    """
    total = jnp.uint32(0)
    for i, leaf in enumerate(jax.tree.leaves(part)):
        words_W = jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(-1)
        weights_W = 2 * jnp.arange(words_W.size, dtype=jnp.uint32) + 1
        total += (2 * i + 1) * (words_W * weights_W).sum(dtype=jnp.uint32)
    return total


def save(checkpoints: ocp.CheckpointManager, steps_done: int, state: State) -> None:
    """Saves a state under the number of updates it has had; returns when it is on disk."""
    prints = {name: int(fingerprint(part)) for name, part in state.items()}
    items: dict[str, Any] = {name: ocp.args.StandardSave(part) for name, part in state.items()}
    items["fingerprint"] = ocp.args.JsonSave(prints)
    checkpoints.save(steps_done, args=ocp.args.Composite(**items))
    checkpoints.wait_until_finished()


def restore(checkpoints: ocp.CheckpointManager, steps_done: int, like: State) -> State:
    """The parts of a saved state that ``like`` has, with its structure, shapes and types.

    Raises:
      UserError: naming the folder, if it cannot be read or a bit of it is not what was saved.
    """
    items: dict[str, Any] = {
        name: ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, part))
        for name, part in like.items()
    }
    items["fingerprint"] = ocp.args.JsonRestore()
    folder = f"{checkpoints.directory}/{steps_done}"
    try:
        restored = checkpoints.restore(steps_done, args=ocp.args.Composite(**items))
        whole = all(int(fingerprint(restored[n])) == restored["fingerprint"][n] for n in like)
    except Exception as error:  # orbax meets damage with whatever its parts raise
        raise UserError(_damaged(folder)) from error
    if not whole:
        raise UserError(_damaged(folder))
    return {name: restored[name] for name in like}


def _damaged(folder: str) -> str:
    return f"{folder}: damaged checkpoint; delete it and run the same command again"
