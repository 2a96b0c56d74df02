"""Trains and scores the missing models of a recipe, in one process or in all processes of a job.

Each model is locked by a file while it is trained and scored, so that any number of workers, of any commands and hosts,
may work on one recipe. In a job of several processes (``compute.devices_per_model=all``), all processes run this code
on the same models: the primary process acquires the locks, tells the others which model comes next, and writes the
results.

C: samples of one shard, N: samples of the population, W: tokens.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock
import numpy as np

from lm_mia import config
from lm_mia.atomic import write_atomically
from lm_mia.data import subsets
from lm_mia.data.population import open_population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.model import kinds, transformer
from lm_mia.model.memory import ADAMW_STATE_BYTES
from lm_mia.run import backend, inventory, preemption
from lm_mia.run.worker_task import Report, WorkerTask
from lm_mia.score.scorer import Scorer, choose_micro_batch_size, place_params, restore_params
from lm_mia.store.store import MEAN_LOSSES, NOT_REPRODUCIBLE, open_store
from lm_mia.train import execution, loop
from lm_mia.train.optimizer import check_optimizer

DONE, WAIT = -1, -2  # broadcast instead of the index of the next model
_WAIT_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A shard of samples, low to high (exclusive), and the variables of the store that are missing for it."""

    low: int
    high: int
    variables: list[str]


class ModelMaker:
    """Makes the models of a task with the devices of this process, or of its job.

    Args:
      task: the models to make.
      report: called with each event.
    """

    def __init__(self, task: WorkerTask, report: Report):
        c = task.config
        self._task, self._config, self._recipe_dir = task, c, task.recipe_dir
        self._backend = backend.start(task.devices_per_model)
        self._report = report
        self._report_once: Report = report if self._backend.is_primary else lambda event: None
        """Reports in the primary process only; for events of the whole job."""
        self._stop = preemption.Stop()
        self._stop.install()
        self._population = open_population(
            task.population_dir, verify=False
        )  # verified by the command
        self._store = open_store(c, task.recipe_dir)
        self._checkpoint_steps = config.score_steps(c)
        platform, mesh = self._backend.description["platform"], self._backend.mesh
        model_config = transformer.ModelConfig.from_settings(
            c.model, self._population.vocab_size, self._population.length_tokens
        )
        state_bytes = ADAMW_STATE_BYTES
        if task.verb != "score":  # for which the file of a user's optimizer need not exist
            state_bytes = check_optimizer(c.optimizer, kinds.build(model_config))
        plan = execution.plan_execution(
            c.compute,
            model_config,
            c.train.batch_size,
            platform,
            backend.memory_bytes(),
            mesh.size,
            state_bytes,
        )
        self._model = kinds.build(plan.model_config)
        self._trainer = loop.Trainer(
            self._population, self._model, c.optimizer, c.train, plan, mesh, c.model
        )
        micro_batch_size = choose_micro_batch_size(
            config.number(c.score.micro_batch_size), self._population.length_tokens, platform
        )
        self._scorer = Scorer(
            self._model,
            self._population,
            plan.chunk_tokens,
            micro_batch_size,
            self._backend.local_mesh,
        )
        report(
            {
                "event": "worker",
                "index": task.worker_index,
                "is_primary": self._backend.is_primary,
                **self._backend.description,
                "execution_plan": str(plan),
            }
        )

    def run(self) -> None:
        """Makes models until none is missing, or until this process is asked to stop.

        Raises:
          UserError: if a checkpoint or the population is missing or damaged, or a score is not finite.
        """
        models = subsets.models_of_config(self._config)  # in the same order in all processes
        indices = locked_models(self._task, self._report) if self._backend.is_primary else iter(())
        try:
            while (index := self._backend.broadcast(next(indices, DONE))) != DONE:
                if index == WAIT:
                    # All processes wait here, since a collective operation would time out.
                    time.sleep(_WAIT_SECONDS)
                    self._check_stop()
                    continue
                try:
                    self._make(models[index])
                except loop.DivergedError as error:
                    self._record_divergence(models[index], error)
        except loop.PreemptedError:
            self._report({"event": "preempted"})

    def _check_stop(self) -> None:
        """Raises PreemptedError if this process, or another one of its job, was asked to stop."""
        if self._stop.should_stop():
            raise loop.PreemptedError

    def _make(self, model: ModelSeeds) -> None:
        """Trains and/or scores a model, whose lock is held."""
        checkpoint_dir = inventory.checkpoint_dir(self._recipe_dir, model)
        total_steps = inventory.total_steps(self._config, model)
        if self._backend.broadcast(self._backend.is_primary and self._only_lacked_digest(model)):
            return
        self._report_once({"event": "model_started", "model": str(model), "role": model.role})
        if self._task.verb != "score" and model.role != "base":
            with self._stop.defer_sigterm() as should_stop:
                loop.train_model(
                    self._trainer,
                    model,
                    total_steps,
                    checkpoint_dir,
                    self._report_once,
                    self._checkpoint_steps,
                    should_stop,
                    lambda start: self._record_computation(model, start),
                )
        self._check_stop()  # train_model does not stop after the last step
        if self._task.verb != "train":
            steps = (*self._checkpoint_steps, total_steps)
            for step in steps[-1:] if model.role == "base" else steps:
                self._score(model, step, total_steps, checkpoint_dir)
                self._check_stop()
            if model.role == "base" and self._backend.is_primary:
                self._store.copy_untrained(model, self._store)
            if self._backend.is_primary and not self._config.train.keep_moments:
                inventory.drop_moments(self._recipe_dir, model)
        if compilations := self._backend.new_compilations():
            self._report({"event": "compiled", "index": self._task.worker_index, **compilations})

    def _record_computation(self, model: ModelSeeds, start: int) -> None:
        """Records in the store how a model is trained from step `start` on."""
        if not self._backend.is_primary:
            return
        plan, description = self._trainer.plan, self._backend.description
        devices = f"{description['devices']} x {description['device']}"
        words = f"{plan.model_config.attention} on {devices}"
        computation = words if plan.is_reproducible else f"{NOT_REPRODUCIBLE}: {words}"
        self._store.add_computation(model, computation, is_continued=start > 0)

    def _only_lacked_digest(self, model: ModelSeeds) -> bool:
        """Writes a digest that a killed process did not; returns whether nothing else was missing.

        This needs no checkpoint, which may have been deleted.
        """
        return self._store.write_digest(model) and not self._store.missing_models([model])

    def _score(self, model: ModelSeeds, step: int, total_steps: int, checkpoint_dir: Path) -> None:
        """Computes and stores the missing statistics of a model at one training step."""
        store_step = 0 if step == total_steps else step  # in the store, 0 is the end of training
        shards = self._missing_shards(model, store_step)
        is_missing_tokens = self._backend.broadcast(
            self._backend.is_primary and self._store.is_missing_tokens(model, store_step)
        )
        if not (shards or is_missing_tokens):
            return
        began = time.monotonic()
        # SIGTERM is deferred, since interrupting orbax would leave threads behind that use a closed event loop.
        with self._stop.defer_sigterm():
            if model.role == "base":
                params = place_params(self._trainer.initial_params, self._backend.local_mesh)
            else:
                params = restore_params(
                    model,
                    step,
                    self._model,
                    checkpoint_dir,
                    self._backend.mesh,
                    self._backend.local_mesh,
                )
        self._check_stop()
        for shard in shards:
            values = self._score_shard(model, params, shard, step, total_steps)
            if self._backend.is_primary:
                self._store.write_shards(model, shard.low, values, store_step)
            self._check_stop()
        if not self._backend.is_primary:
            return
        if is_missing_tokens:  # so few samples that the primary process scores them alone
            log_prob_W = self._scorer.token_log_probs(params, self._store.token_samples)
            self._store.write_tokens(model, log_prob_W, store_step)
        self._store.write_digest(model)  # unless other steps are missing
        self._report(
            {
                "event": "model_scored",
                "model": str(model),
                "role": model.role,
                "step": step,
                "last": step == total_steps,
                "seconds": round(time.monotonic() - began, 3),
                **self._mean_losses(model, store_step),
            }
        )

    def _mean_losses(self, model: ModelSeeds, store_step: int) -> dict[str, float]:
        """Returns the mean losses of a model; from the store, since other processes may have scored some samples."""
        mean_1x2 = dataclasses.replace(self._store, step=store_step).mean_losses([model])
        return dict(zip(MEAN_LOSSES, mean_1x2[0].tolist(), strict=True))

    def _missing_shards(self, model: ModelSeeds, store_step: int) -> list[_Shard]:
        """Returns the missing shards, the same in all processes of the job.

        Only the primary process lists the store, since the others may see an older state of a shared folder.
        """
        broadcast, variables = self._backend.broadcast, self._store.variables
        missing = self._store.missing_shards(model, store_step) if self._backend.is_primary else []
        shards = []
        for i in range(broadcast(len(missing))):
            low, high, names = missing[i] if self._backend.is_primary else (0, 0, [])
            low, high = broadcast(low), broadcast(high)
            mask = broadcast(sum(2**n for n, name in enumerate(variables) if name in names))
            shards.append(
                _Shard(low, high, [name for n, name in enumerate(variables) if mask >> n & 1])
            )
        return shards

    def _score_shard(
        self,
        model: ModelSeeds,
        params: transformer.Params,
        shard: _Shard,
        step: int,
        total_steps: int,
    ) -> Mapping[str, np.ndarray]:
        """Returns the values of the shard's variables; every process of the job scores some of the samples."""
        num_samples = len(self._population)
        points = (*self._checkpoint_steps, total_steps)

        def report_progress(share: float) -> None:
            samples = shard.low + (shard.high - shard.low) * share
            done = (points.index(step) + samples / num_samples) / len(points)
            self._report_once({"event": "scoring", "model": str(model), "share": done})

        local = self._backend.local_samples(shard.low, shard.high)
        statistics = [name for name in shard.variables if name not in ("member", "loss")]
        scores = self._scorer.score(params, statistics, local.start, local.stop, report_progress)
        values = {
            name: self._backend.all_gather(scores[name], shard.high - shard.low)
            for name in shard.variables
            if name in scores
        }
        for name, value_C in values.items():
            if count := int((~np.isfinite(value_C)).sum()):
                values_text = "losses are" if name == "loss" else f"values of {name} are"
                raise UserError(
                    f"model {model}: {count} {values_text} not finite; its scores are not stored"
                )
        if "member" in shard.variables:
            member_N = subsets.member_of_config(model, self._config)
            values["member"] = member_N[shard.low : shard.high]
        return values

    def _record_divergence(self, model: ModelSeeds, error: loop.DivergedError) -> None:
        if self._backend.is_primary:
            path = inventory.divergence_file(self._recipe_dir, model)
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, json.dumps(error.evidence) + "\n")
        self._report_once({"event": "model_diverged", **error.evidence, "message": f"{error}"})


def locked_models(task: WorkerTask, report: Report) -> Iterator[int]:
    """Yields the index of each missing model while its lock is held; yields WAIT if other processes hold all locks.

    Ends when no model is missing; if the task selects models, also when other processes hold the locks of all missing
    ones.
    """
    verb, c, recipe_dir = task.verb, task.config, task.recipe_dir
    models = subsets.models_of_config(c)
    requested = models if task.selected_models is None else list(task.selected_models)
    while missing := inventory.missing_models(verb, c, recipe_dir, requested):
        has_made_model = False
        # Workers start at different models, so that they rarely compete for a lock.
        start = task.worker_index * len(missing) // task.num_workers
        for model in missing[start:] + missing[:start]:
            with contextlib.suppress(filelock.Timeout), inventory.model_lock(recipe_dir, model):
                # Another worker may have made it in the meantime.
                if inventory.missing_models(verb, c, recipe_dir, [model]):
                    has_made_model = True
                    yield models.index(model)
        if has_made_model:
            continue
        if task.selected_models is not None:
            return
        report({"event": "waiting", "models": [str(model) for model in missing]})
        yield WAIT
