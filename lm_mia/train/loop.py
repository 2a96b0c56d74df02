"""Training a row from start to end, resumable at any step, bit for bit.

B: samples of a batch, L: tokens of a row, T: steps of a row.
"""

import dataclasses
import functools
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lm_mia import config
from lm_mia.data import batch_order, subsets
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import flops, transformer
from lm_mia.train import batching, checkpoint
from lm_mia.train.checkpoint import State
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import learning_rates, optimizer
from lm_mia.train.step import (
    Loss,
    Step,
    local_device_indices,
    make_loss,
    make_step,
    to_global_array,
)

Event = dict[str, Any]

_LOGGED = 20  # training losses logged a row
_REPORT_SECONDS = 0.2  # between reports for a progress bar


class DivergedError(UserError):
    """A row whose loss or state is not finite any more; ``evidence`` says where and on what."""

    def __init__(self, message: str, evidence: Event):
        super().__init__(message)
        self.evidence = evidence


class PreemptedError(Exception):
    """Training was asked to stop, and its state is saved."""


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What all rows of a recipe share: data, settings, devices, and compiled functions, made on first use."""

    population: Population
    model: transformer.ModelConfig
    optimizer_config: config.Optimizer
    train: config.Train
    plan: ExecutionPlan
    mesh: Mesh

    @functools.cached_property
    def tx(self) -> optax.GradientTransformation:
        """The optimizer."""
        return optimizer(self.optimizer_config)

    @functools.cached_property
    def step(self) -> Step:
        """The update."""
        return make_step(self.model, self.optimizer_config, self.plan, self.mesh)

    def pack(
        self, population: Population, ids_B: np.ndarray
    ) -> tuple[batching.PackedBatch, batching.BatchStats]:
        """Samples on the mesh, and what they come to; each host reads those of its own devices only."""
        length_B = population.lengths_N[ids_B]
        plan = batching.packed_plan(length_B, population.length_tokens)
        most = max(self.train.batch_size, len(ids_B))
        devices, micro_batch_size = self.mesh.size, self.plan.micro_batch_size
        count = batching.micro_batches(most, micro_batch_size, devices)
        found, sizes = batching.rows(
            population,
            ids_B,
            plan,
            count,
            micro_batch_size,
            devices,
            local_device_indices(self.mesh),
        )
        return to_global_array(found, self.mesh), sizes

    def validation_loss(self, params: transformer.Params) -> float:
        """Mean loss in nats a predicted token of the held-out samples."""
        rows, sizes = self._validation
        return float(
            self._loss(
                params, rows, np.int32(sizes.num_micro_batches), np.float32(sizes.num_targets)
            )
        )

    @functools.cached_property
    def _validation(self) -> tuple[batching.PackedBatch, batching.BatchStats]:
        held_out = self.population.validation
        assert held_out is not None, "rules: train.validations needs population.validation_samples"
        return self.pack(held_out, np.arange(len(held_out)))

    @functools.cached_property
    def _loss(self) -> Loss:
        return make_loss(self.model, self.plan, self.mesh)

    def padded_tokens(self, sizes: batching.BatchStats) -> int:
        """Tokens, padding included, that a batch makes the devices compute."""
        L = self.model.length_tokens
        return sizes.num_micro_batches * self.plan.micro_batch_size * self.mesh.size * L

    def throughput(self, counts: np.ndarray, seconds: float) -> dict[str, float | None]:
        """Useful tokens a second, and useful FLOPs over the devices' peak: None where that is unknown.

        Args:
          counts: tokens of samples, and the sum of their squares, that were trained on.
          seconds: in which.
        """
        shape, peak = self.model, flops.peak(self.mesh.devices.flat[0].device_kind)
        useful = flops.training(shape.layers, shape.width, shape.vocab_size, counts[0], counts[1])
        mfu = useful / seconds / (peak * self.mesh.size) if peak else None
        return {"tokens_per_second": round(counts[0] / seconds), "mfu": mfu}


def train_model(
    trainer: Trainer,
    row: subsets.ModelSeeds,
    steps: int,
    folder: Path,
    report: Callable[[Event], None],
    keep: Sequence[int] = (),
    stop: Callable[[int], bool] = lambda step: False,
) -> None:
    """Trains a row to its end, from its newest checkpoint if it has one, and saves its last state.

    Args:
      trainer: of the recipe.
      row: whose seeds say everything random.
      steps: updates from start to end.
      folder: of this row's checkpoints.
      report: called with events: "step" often, "train" with losses and rates and "validation" now and then,
        "row_trained" at the end.
      keep: steps whose states are saved and stay.
      stop: asked after every step, with the number of steps done, whether to save and stop; must say the same in all
        processes of a job.

    Raises:
      DivergedError: at the first loss that is not finite, or if a state to be saved is not; the newest checkpoint is
        still a finite one.
      PreemptedError: after a stop.
    """
    t = trainer
    member_ids_N = np.flatnonzero(
        subsets.member(row.subset_seed, len(t.population), t.train.subset)
    )
    members, batch_size = len(member_ids_N), t.train.batch_size
    per_epoch = batch_order.steps_per_epoch(members, batch_size)
    rate_T = learning_rates(t.optimizer_config, steps)
    log_every = max(steps // _LOGGED, 1)
    validated = {round(steps * (i + 1) / t.train.validations) for i in range(t.train.validations)}
    about: Event = {"row": str(row), "role": row.role, "steps": steps}

    @functools.lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        return batch_order.epoch_order(row.order_seed, epoch, members)

    def ids(done: int) -> np.ndarray:
        epoch, place = divmod(done, per_epoch)
        return batch_order.batch(order(epoch), member_ids_N, place, batch_size)

    def finite(done: int, metrics: dict[str, jax.Array]) -> dict[str, float]:
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss_nats"]):
            raise _diverged(row, f"loss={values['loss_nats']}", done, values, ids(done))
        return values

    with checkpoint.manager(folder, keep) as checkpoints:
        start = checkpoints.latest_step() or 0
        if start == steps:
            return
        if start:
            like = checkpoint.abstract(t.model, t.tx, t.mesh)
            state = checkpoint.restore(checkpoints, start, like)
        else:
            state = checkpoint.fresh(row.init_seed, t.model, t.tx, t.mesh)
        began = saved = reported = time.monotonic()
        logged, counts = began, np.zeros(3)  # since the last log: tokens, their squares, room
        before: tuple[int, dict[str, jax.Array]] | None = None
        for done in range(start, steps):
            rows, sizes = t.pack(t.population, ids(done))
            state, metrics = t.step(
                state,
                rows,
                np.int32(sizes.num_micro_batches),
                np.float32(sizes.num_targets),
                rate_T[done],
            )
            if before:  # a step late, so that the device never waits for the host
                finite(*before)
            before = done, metrics
            last = done == steps - 1
            counts += sizes.tokens, sizes.square_tokens, t.padded_tokens(sizes)
            now = time.monotonic()
            if done % log_every == 0 or last:
                values = finite(done, metrics)
                seconds = time.monotonic() - logged
                rates = t.throughput(counts, seconds)
                if done == start:  # its seconds are those of compiling
                    rates = dict.fromkeys(rates)
                report(
                    {"event": "train", **about, "step": done, "epoch": done // per_epoch}
                    | values
                    | {"learning_rate": float(rate_T[done]), **rates}
                    | {"padding_share": round(1 - counts[0] / counts[2], 4)}
                    | {"memory_bytes": _memory_bytes(t.mesh)}
                )
                logged, counts = time.monotonic(), np.zeros(3)
            if done + 1 in validated:
                value = t.validation_loss(state["params"])
                report(
                    {"event": "validation", **about, "step": done + 1}
                    | {"validation_loss_nats": value}
                )
            if now - reported > _REPORT_SECONDS:
                report({"event": "step", "row": str(row), "step": done + 1, "steps": steps})
                reported = now
            stopping = stop(done + 1) and not last
            due = _agreed(done, now - saved > 60 * t.train.checkpoint_minutes)
            if due or last or stopping or done + 1 in keep:
                values = finite(done, metrics)
                if not _finite(state):
                    what = "weights or moments not finite"
                    raise _diverged(row, what, done, values, ids(done))
                checkpoint.save(checkpoints, done + 1, state)
                saved = time.monotonic()
            if stopping:
                raise PreemptedError
    report(
        {"event": "row_trained", **about, "resumed_at": start}
        | {"seconds": round(time.monotonic() - began, 3)}
    )


def _agreed(done: int, due: bool) -> bool:
    """Whether a save is due by the first process's clock; the others are told every 32 steps."""
    if jax.process_count() == 1:
        return due
    return done % 32 == 0 and bool(multihost_utils.broadcast_one_to_all(np.array(due)))


@jax.jit
def _finite(state: State) -> jax.Array:
    """Whether every number of a state is finite."""
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()


def _memory_bytes(mesh: Mesh) -> int:
    """The most that this process has held: on its first device, or on CPU in all."""
    stats = mesh.devices.flat[local_device_indices(mesh)[0]].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _diverged(
    row: subsets.ModelSeeds, what: str, done: int, values: dict[str, float], ids_B: np.ndarray
) -> DivergedError:
    way_out = "lower optimizer.peak_learning_rate in a new workdir"
    evidence = {"row": str(row), "role": row.role, "step": done, "what": what}
    evidence |= {name: str(value) for name, value in values.items()} | {"samples": ids_B.tolist()}
    return DivergedError(f"model {row}: {what} at step {done}; {way_out}", evidence)
