"""Trains one model from start to end; training can be resumed at any checkpoint, with bitwise equal results.

C: samples of a batch, N: members, 2N: samples of the population, S: training steps.
"""

import dataclasses
import functools
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lm_mia import config
from lm_mia.config import hf_checkpoint
from lm_mia.data import batch_order, subsets
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.events import Event
from lm_mia.model import flops, kinds, transformer
from lm_mia.train import batching, checkpoint
from lm_mia.train.checkpoint import TrainState
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

_LOGS_PER_MODEL = 20  # training losses logged per model
_PROGRESS_SECONDS = 0.2  # time between events for progress bars
_BROADCAST_STEPS = 32  # steps between decisions of a job's processes on whether to save


class DivergedError(UserError):
    """The loss or the state of a model is not finite; ``evidence`` holds the step, the metrics and the samples."""

    def __init__(self, message: str, evidence: Event):
        super().__init__(message)
        self.evidence = evidence


class PreemptedError(Exception):
    """Training was stopped on request, and its state is saved."""


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Data, settings and devices that all models of a recipe share, and functions that are compiled on first use."""

    population: Population
    model: transformer.TransformerLM
    optimizer_config: config.Optimizer
    train_config: config.Train
    plan: ExecutionPlan
    mesh: Mesh
    start: config.Model | None = None
    """If not None, it says where training starts: ``start.init``."""

    @functools.cached_property
    def tx(self) -> optax.GradientTransformationExtraArgs:
        """The optimizer."""
        return optimizer(self.optimizer_config)

    @functools.cached_property
    def step(self) -> Step:
        """The compiled update; see `lm_mia.train.step.make_step`."""
        return make_step(self.model, self.optimizer_config, self.plan.chunk_tokens, self.mesh)

    def pack(
        self, population: Population, ids_C: np.ndarray
    ) -> tuple[batching.PackedBatch, batching.BatchStats]:
        """Packs samples and places them on the mesh; each process reads only the samples of its own devices."""
        length_C = population.lengths_N[ids_C]
        packing_plan = batching.plan_packing(length_C, population.length_tokens)
        num_devices = self.mesh.size
        micro_batch_size = batching.choose_micro_batch_size(
            self.plan.micro_batch_sizes, packing_plan.num_sequences, num_devices
        )
        num_samples = max(self.train_config.batch_size, len(ids_C))
        micro_batches = batching.max_micro_batches(num_samples, micro_batch_size, num_devices)
        batch, stats = batching.pack_batch(
            population,
            ids_C,
            packing_plan,
            micro_batches,
            micro_batch_size,
            num_devices,
            local_device_indices(self.mesh),
        )
        return to_global_array(batch, self.mesh), stats

    def init_state(self, seeds: subsets.ModelSeeds) -> TrainState:
        """Returns the state of a model before its first update."""
        if self.start is not None and self.start.init != "random":
            return checkpoint.state_of(self.initial_params, self.model, self.tx, self.mesh)
        return checkpoint.init_state(seeds.init_seed, self.model, self.tx, self.mesh)

    @functools.cached_property
    def initial_params(self) -> transformer.Params:
        """The parameters of the checkpoint from which all models start, arrays of NumPy.

        Raises:
          UserError: if the files have changed since the recipe was made, or do not fit the model.
        """
        assert self.start is not None
        init = self.start.init
        try:
            if hf_checkpoint.digest(init) != self.start.init_source:
                raise UserError(
                    f"model.init={init}: the files have changed since the recipe was made, whose models started from "
                    "others; restore them, or choose another --workdir"
                )
            files = hf_checkpoint.weight_files(hf_checkpoint.folder_of(init))
        except hf_checkpoint.CheckpointError as error:
            raise UserError(f"model.init={init}: {error}") from None
        return kinds.load_params(self.model.config, files)

    def restore_state(self, checkpoints: ocp.CheckpointManager, step: int) -> TrainState:
        """Restores the checkpoint of a step; raises UserError if it is damaged."""
        like = checkpoint.abstract_state(self.model, self.tx, self.mesh)
        return checkpoint.restore(checkpoints, step, like)

    def update(
        self,
        state: TrainState,
        batch: batching.PackedBatch,
        stats: batching.BatchStats,
        learning_rate: np.float32,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Returns the state after one update, and the metrics of the batch; see `step`."""
        num_micro_batches = np.int32(stats.num_micro_batches)
        num_targets = np.float32(stats.num_targets)
        return self.step(state, batch, num_micro_batches, num_targets, learning_rate)

    def validation_loss(self, params: transformer.Params) -> float:
        """Returns the mean loss of the validation samples, in nats per predicted token."""
        batch, stats = self._validation_batch
        num_micro_batches = np.int32(stats.num_micro_batches)
        num_targets = np.float32(stats.num_targets)
        return float(self._loss(params, batch, num_micro_batches, num_targets))

    @functools.cached_property
    def _validation_batch(self) -> tuple[batching.PackedBatch, batching.BatchStats]:
        validation = self.population.validation
        assert validation is not None, "train.validations needs population.validation_samples"
        return self.pack(validation, np.arange(len(validation)))

    @functools.cached_property
    def _loss(self) -> Loss:
        return make_loss(self.model, self.plan.chunk_tokens, self.mesh)

    def padded_tokens(self, stats: batching.BatchStats) -> int:
        """Returns the number of tokens that the devices compute for a batch, padding included."""
        sequences = stats.num_micro_batches * stats.micro_batch_size * self.mesh.size
        return sequences * self.model.config.length_tokens

    def throughput(
        self, num_tokens: float, sum_squared_lengths: float, seconds: float
    ) -> dict[str, float | None]:
        """Computes the useful tokens per second and the model FLOPs utilization (MFU).

        Args:
          num_tokens: tokens of the samples that were trained on.
          sum_squared_lengths: sum of the squares of their numbers of tokens.
          seconds: duration.

        Returns:
          {"tokens_per_second", "mfu"}; mfu is None if the peak rate of the device is unknown.
        """
        m, peak = self.model.config, flops.device_peak(self.mesh.devices.flat[0].device_kind)
        useful = flops.training(kinds.size(m), num_tokens, sum_squared_lengths)
        mfu = useful / seconds / (peak * self.mesh.size) if peak else None
        return {"tokens_per_second": round(num_tokens / seconds), "mfu": mfu}


def train_model(
    trainer: Trainer,
    seeds: subsets.ModelSeeds,
    steps: int,
    checkpoint_dir: Path,
    report: Callable[[Event], None],
    kept_steps: Sequence[int] = (),
    should_stop: Callable[[int], bool] = lambda step: False,
    on_start: Callable[[int], None] = lambda step: None,
) -> None:
    """Trains a model to its end, from its newest checkpoint if it has one, and saves its final state.

    Does nothing if the model is already trained.

    Args:
      trainer: shared by all models of the recipe.
      seeds: the seeds of the model, which determine everything random.
      steps: number of updates from start to end.
      checkpoint_dir: folder of this model's checkpoints.
      report: called with events: "step" for progress bars, "train" with losses and throughput, "validation" with the
        validation loss, and "model_trained" at the end.
      kept_steps: steps after which the state is saved and kept.
      should_stop: called after each step with the number of steps done. Once it returns True, the state is saved and
        training stops. It must return the same value in all processes of a job.
      on_start: called before the first update with the number of steps that are already done.

    Raises:
      DivergedError: at the first loss that is not finite, or if a state to be saved is not finite. The newest
        checkpoint is still a finite state.
      PreemptedError: if should_stop returned True before the last step.
    """
    train_config = trainer.train_config
    order = _BatchOrder(seeds, train_config, len(trainer.population))
    learning_rate_S = learning_rates(trainer.optimizer_config, steps)
    log_every = max(steps // _LOGS_PER_MODEL, 1)
    validations = train_config.validations
    validation_steps = {round(steps * (i + 1) / validations) for i in range(validations)}
    divergence = _DivergenceCheck(seeds, order)
    with checkpoint.manager(checkpoint_dir, kept_steps) as checkpoints:
        start = checkpoints.latest_step() or 0
        if start == steps:
            return
        on_start(start)
        state = trainer.restore_state(checkpoints, start) if start else trainer.init_state(seeds)
        log = _TrainingLog(trainer, seeds, steps, start, report)
        last_save_time = time.monotonic()
        for step in range(start, steps):
            batch, stats = trainer.pack(trainer.population, order.ids(step))
            state, metrics = trainer.update(state, batch, stats, learning_rate_S[step])
            divergence.check_previous_step(step, metrics)

            is_last = step == steps - 1
            log.add(stats)
            now = time.monotonic()
            if step % log_every == 0 or is_last:
                values = divergence.finite_metrics(step, metrics)
                log.report_metrics(step, order.epoch(step), values, float(learning_rate_S[step]))
            if step + 1 in validation_steps:
                log.report_validation(step + 1, trainer.validation_loss(state.params))
            log.report_progress(step + 1, now)

            is_stopping = should_stop(step + 1) and not is_last
            save_seconds = 60 * train_config.checkpoint_minutes
            is_due = _is_save_due(step, now - last_save_time > save_seconds)
            if is_due or is_last or is_stopping or step + 1 in kept_steps:
                divergence.check_state(step, metrics, state)
                checkpoint.save(checkpoints, state)
                last_save_time = time.monotonic()
            if is_stopping:
                raise PreemptedError
    log.report_end()


class _BatchOrder:
    """The order in which one model sees its samples."""

    def __init__(
        self, seeds: subsets.ModelSeeds, train_config: config.Train, num_samples: int
    ) -> None:
        is_member_2N = subsets.member(
            seeds.subset_seed,
            num_samples,
            train_config.subset,
            config.number(train_config.canaries),
        )
        self._member_ids_N = np.flatnonzero(is_member_2N)
        self._batch_size = train_config.batch_size
        members = len(self._member_ids_N)
        self._steps_per_epoch = batch_order.steps_per_epoch(members, self._batch_size)
        self._epoch_order = functools.lru_cache(maxsize=2)(
            lambda epoch: batch_order.epoch_order(seeds.order_seed, epoch, members)
        )

    def epoch(self, step: int) -> int:
        """Returns the epoch of a step, counted from 0."""
        return step // self._steps_per_epoch

    def ids(self, step: int) -> np.ndarray:
        """Returns ids_C, the sample ids of a step."""
        epoch, step_of_epoch = divmod(step, self._steps_per_epoch)
        order_N = self._epoch_order(epoch)
        return batch_order.batch(order_N, self._member_ids_N, step_of_epoch, self._batch_size)


class _DivergenceCheck:
    """Raises DivergedError if the loss or the state of a model is not finite."""

    def __init__(self, seeds: subsets.ModelSeeds, order: _BatchOrder) -> None:
        self._seeds, self._order = seeds, order
        self._previous: tuple[int, dict[str, jax.Array]] | None = None

    def check_previous_step(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Checks the loss of the previous step; that of this step is checked by the next call.

        The check is one step late, so that the device never waits for the host.
        """
        if self._previous:
            self.finite_metrics(*self._previous)
        self._previous = step, metrics

    def finite_metrics(self, step: int, metrics: dict[str, jax.Array]) -> dict[str, float]:
        """Returns the metrics of a step as numbers, after checking the loss; waits for the device."""
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss_nats"]):
            raise self._error(f"loss={values['loss_nats']}", step, values)
        return values

    def check_state(self, step: int, metrics: dict[str, jax.Array], state: TrainState) -> None:
        """Checks the loss of a step and the state after it; waits for the device."""
        values = self.finite_metrics(step, metrics)
        if not _is_finite(state):
            raise self._error("weights or moments not finite", step, values)

    def _error(self, problem: str, step: int, metrics: dict[str, float]) -> DivergedError:
        seeds = self._seeds
        evidence = {"model": str(seeds), "role": seeds.role, "step": step, "what": problem}
        evidence |= {name: str(value) for name, value in metrics.items()}
        evidence |= {"samples": self._order.ids(step).tolist()}
        remedy = "lower optimizer.peak_learning_rate in a new workdir"
        return DivergedError(f"model {seeds}: {problem} at step {step}; {remedy}", evidence)


class _TrainingLog:
    """Reports the events of one model's training, and measures its throughput between them."""

    def __init__(
        self,
        trainer: Trainer,
        seeds: subsets.ModelSeeds,
        steps: int,
        start: int,
        report: Callable[[Event], None],
    ) -> None:
        self._trainer, self._report, self._start = trainer, report, start
        self._fields: Event = {"model": str(seeds), "role": seeds.role, "steps": steps}
        self._began = self._logged = self._progress = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        """Resets the counters, after an event that reports the throughput so far."""
        self._num_tokens = self._sum_squared_lengths = self._padded_tokens = 0

    def add(self, stats: batching.BatchStats) -> None:
        """Counts a batch."""
        self._num_tokens += stats.num_tokens
        self._sum_squared_lengths += stats.sum_squared_lengths
        self._padded_tokens += self._trainer.padded_tokens(stats)

    def report_metrics(
        self, step: int, epoch: int, metrics: dict[str, float], learning_rate: float
    ) -> None:
        """Reports an event "train", with the throughput since the previous one."""
        seconds = time.monotonic() - self._logged
        throughput = self._trainer.throughput(self._num_tokens, self._sum_squared_lengths, seconds)
        if step == self._start:  # the first step includes compilation
            throughput = dict.fromkeys(throughput)
        self._report(
            {"event": "train", **self._fields, "step": step, "epoch": epoch}
            | metrics
            | {"learning_rate": learning_rate, **throughput}
            | {"padding_share": round(1 - self._num_tokens / self._padded_tokens, 4)}
            | {"memory_bytes": _peak_memory_bytes(self._trainer.mesh)}
        )
        self._logged = time.monotonic()
        self._clear()

    def report_validation(self, steps_done: int, loss_nats: float) -> None:
        """Reports an event "validation"."""
        self._report(
            {"event": "validation", **self._fields, "step": steps_done}
            | {"validation_loss_nats": loss_nats}
        )

    def report_progress(self, steps_done: int, now: float) -> None:
        """Reports an event "step", unless there was one less than `_PROGRESS_SECONDS` ago."""
        if now - self._progress > _PROGRESS_SECONDS:
            model, steps = self._fields["model"], self._fields["steps"]
            self._report({"event": "step", "model": model, "step": steps_done, "steps": steps})
            self._progress = now

    def report_end(self) -> None:
        """Reports that the model is trained."""
        seconds = round(time.monotonic() - self._began, 3)
        self._report(
            {
                "event": "model_trained",
                **self._fields,
                "resumed_at": self._start,
                "seconds": seconds,
            }
        )


def _is_save_due(step: int, is_due: bool) -> bool:
    """Returns whether a save is due in the first process, whose clock decides for all processes of a job."""
    if jax.process_count() == 1:
        return is_due
    if step % _BROADCAST_STEPS:
        return False
    return bool(multihost_utils.broadcast_one_to_all(np.array(is_due)))


@jax.jit
def _is_finite(state: TrainState) -> jax.Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()


def _peak_memory_bytes(mesh: Mesh) -> int:
    """Returns the peak memory of this process: on its first device, or of the whole process on CPU."""
    stats = mesh.devices.flat[local_device_indices(mesh)[0]].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit
