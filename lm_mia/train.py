"""Training: one row after another with one compiled step, each row resumable at any moment, bit for bit.

B: samples of a batch, L: tokens of a sample, T: steps of a row.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lm_mia import batches, checkpoint, config, loss, model, subsets
from lm_mia.checkpoint import State
from lm_mia.errors import UserError
from lm_mia.optimizer import learning_rates, optimizer
from lm_mia.population import Population

Event = dict[str, Any]
Step = Callable[..., tuple[State, jax.Array]]

_LOGGED = 20  # training losses logged a row
_REPORT_SECONDS = 0.2  # between reports for a progress bar


def make_step(shape: model.Shape, recipe: config.Optimizer) -> Step:
    """The compiled update: (state, x_BxL, length_B, learning_rate) -> (new state, mean loss in nats before it).

    The state that goes in is donated. Every row of a recipe uses the same executable.
    """
    tx = optimizer(recipe)

    def step(
        state: State, x_BxL: jax.Array, length_B: jax.Array, learning_rate: jax.Array
    ) -> tuple[State, jax.Array]:
        def mean_loss(params: model.Params) -> jax.Array:
            return loss.batch_loss(model.forward(params, x_BxL, shape.dtype), x_BxL, length_B)

        loss_nats, grads = jax.value_and_grad(mean_loss)(state["params"])
        update, opt = tx.update(grads, state["opt"], state["params"])
        update = jax.tree.map(lambda u: -learning_rate * u, update)
        return {"params": optax.apply_updates(state["params"], update), "opt": opt}, loss_nats

    return jax.jit(step, donate_argnums=0)


def train_row(
    row: subsets.Row,
    population: Population,
    shape: model.Shape,
    recipe: config.Optimizer,
    train: config.Train,
    steps: int,
    folder: Path,
    step: Step,
    report: Callable[[Event], None],
) -> None:
    """Trains a row to its end, from its newest checkpoint if it has one, and saves its last state.

    Args:
      row: whose seeds say everything random.
      population: the samples; its length is the model's.
      shape: of the model.
      recipe: optimizer settings.
      train: batch size, epochs, subset design and time between checkpoints.
      steps: updates from start to end.
      folder: of this row's checkpoints.
      step: of ``make_step``, shared by rows.
      report: called with events ("step" often, "train" with a loss now and then, "row_trained" at the end).

    Raises:
      UserError: if a logged loss or a state to be saved is not finite; the row is named, and its newest checkpoint
        is still a finite one.
    """
    member_ids_N = np.flatnonzero(subsets.member(row.subset_seed, len(population), train.subset))
    members, batch_size = len(member_ids_N), train.batch_size
    per_epoch = batches.steps_per_epoch(members, batch_size)
    rate_T, tx = learning_rates(recipe, steps), optimizer(recipe)
    log_every = max(steps // _LOGGED, 1)
    order_N, order_epoch = np.empty(0, np.int64), -1
    with checkpoint.manager(folder) as checkpoints:
        start = checkpoints.latest_step() or 0
        if start == steps:
            return
        state = checkpoint.fresh(row.init_seed, shape, tx)
        if start:
            state = checkpoint.restore(checkpoints, start, state)
        began = saved = reported = time.monotonic()
        tokens = 0
        for t in range(start, steps):
            epoch, place = divmod(t, per_epoch)
            if epoch != order_epoch:
                order_N, order_epoch = batches.epoch_order(row.order_seed, epoch, members), epoch
            ids_B = batches.batch(order_N, member_ids_N, place, batch_size)
            x_BxL, length_B = batches.padded(population, ids_B, batch_size)
            state, loss_nats = step(state, x_BxL, length_B, rate_T[t])
            tokens += int(length_B.sum())
            now = time.monotonic()
            if t % log_every == 0 or t == steps - 1:
                value = float(loss_nats)
                if not math.isfinite(value):
                    raise _diverged(row, f"loss={value}", t)
                rate = tokens / (time.monotonic() - began)
                report(
                    {
                        "event": "train",
                        "row": str(row),
                        "role": row.role,
                        "step": t,
                        "steps": steps,
                        "epoch": epoch,
                    }
                    | {
                        "loss_nats": value,
                        "learning_rate": float(rate_T[t]),
                        "tokens_per_second": round(rate),
                    }
                )
            if now - reported > _REPORT_SECONDS:
                report({"event": "step", "row": str(row), "step": t + 1, "steps": steps})
                reported = now
            if now - saved > 60 * train.checkpoint_minutes or t == steps - 1:
                if not _finite(state):
                    raise _diverged(row, "weights or moments not finite", t)
                checkpoint.save(checkpoints, t + 1, state)
                saved = time.monotonic()
    report(
        {
            "event": "row_trained",
            "row": str(row),
            "role": row.role,
            "steps": steps,
            "resumed_at": start,
        }
        | {"seconds": round(time.monotonic() - began, 3)}
    )


@jax.jit
def _finite(state: State) -> jax.Array:
    """Whether every number of a state is finite."""
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()


def _diverged(row: subsets.Row, what: str, t: int) -> UserError:
    way_out = "lower optimizer.peak_learning_rate in a new workdir"
    return UserError(f"row {row}: {what} at step {t}; {way_out}")
