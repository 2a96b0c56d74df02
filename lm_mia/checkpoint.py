"""The state of a row, fresh or saved: parameters, optimizer state, and the number of updates as its name.

One whole state at a time, by orbax, in a folder of the row's own. A save is atomic; what a killed one leaves behind is
no state, and gone after the next save.
"""

from pathlib import Path
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp

from lm_mia import model
from lm_mia.seeds import rng

State = dict[str, Any]
"""{"params": model.Params, "opt": the optimizer's state}"""


def fresh(init_seed: int, shape: model.Shape, tx: optax.GradientTransformation) -> State:
    """The state of a row before its first update: a pure function of init_seed."""
    raw = rng(init_seed, "initial weights").bit_generator.random_raw()
    key = jax.random.key(raw >> 32)
    params = jax.jit(model.init, static_argnums=1)(key, shape)
    return {"params": params, "opt": tx.init(params)}


def manager(folder: Path) -> ocp.CheckpointManager:
    """An orbax manager of a row's folder that keeps the newest state only; close it, or use it as a context."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, cleanup_tmp_directories=True)
    return ocp.CheckpointManager(folder.absolute(), options=options)


def save(checkpoints: ocp.CheckpointManager, steps_done: int, state: State) -> None:
    """Saves a state under the number of updates it has had; returns when it is on disk."""
    items = {name: ocp.args.StandardSave(part) for name, part in state.items()}
    checkpoints.save(steps_done, args=ocp.args.Composite(**items))
    checkpoints.wait_until_finished()


def restore(checkpoints: ocp.CheckpointManager, steps_done: int, like: State) -> State:
    """The parts of a saved state that ``like`` has, with its structure, shapes and types."""
    items = {
        name: ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, part))
        for name, part in like.items()
    }
    restored = checkpoints.restore(steps_done, args=ocp.args.Composite(**items))
    return {name: restored[name] for name in like}
