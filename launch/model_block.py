"""A job, which makes a block of models of one recipe; it may run on any machine that shares the workdir, and
repeatedly.

Exit codes. 0: the models are present or locked by another process. 2: the input is invalid. 3: some models were set
aside or diverged, and the others are present, or the job has started several times without progress (`launch.starts`).
143: run the job again; it was stopped and has saved its models, or a model that spans several processes failed. 200:
run the job again; its processes were killed before they started a model, or could not connect to each other.
"""

import dataclasses
import os
import socket
from pathlib import Path

from launch import heartbeats, jobs, starts
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import (
    SIGTERM_EXIT_CODE,
    DiskError,
    RendezvousError,
    UserError,
    WorkersKilledError,
)
from lm_mia.events import Event
from lm_mia.run import devices, inventory, pipeline, progress, trackers, workdir
from lm_mia.run.sweep import Sweep, SweepRecipe

RETRY_EXIT_CODE = 200
"""The exit code of a job that should be run again although no model was started."""


def run(
    sweep: Sweep,
    recipe: SweepRecipe,
    block: str,
    job_name: str = "",
    log: str = "",
    num_workers: int = 0,
    devices_per_model: int | None = None,
) -> int:
    """Makes a block of models of a recipe.

    Args:
      sweep: the recipes of the command.
      recipe: the recipe whose models are made.
      block: the models as BEGIN:END, the value of ``--models``.
      job_name: name of the job, which must be the same when the job is run again; empty: a new name is chosen.
      log: where the output of this process can be read.
      num_workers: number of worker processes; 0: as in the config.
      devices_per_model: number of devices that make one model together; None: as in the config.

    Returns:
      The exit code.

    Raises:
      UserError: if the input is invalid, or workers fail before they start a model.
      SystemExit: with code 143, if the job is stopped.
    """
    models = jobs.selected_models(block, recipe)
    trackers.check_trackers(recipe.config.train.trackers)
    worker_info = this_worker(job_name, log)
    log_fields = {
        "job": worker_info.job,
        "host": worker_info.host,
        "version": worker_info.version,
    }
    with progress.display(overall=False) as display:
        one_recipe = dataclasses.replace(sweep, recipes=(recipe,))
        _, [(recipe, population)] = pipeline.build_populations(one_recipe, display)
        # After config.json of the recipe was written, which keeps the numbers that the config requests.
        c = recipe.config
        if devices_per_model is None:
            devices_per_model = devices.choose_devices_per_model([c])
        compute = dataclasses.replace(c.compute, devices_per_model=devices_per_model or "all")
        train = dataclasses.replace(c.train, workers=num_workers or c.train.workers)
        c = dataclasses.replace(c, compute=compute, train=train)
        recipe = dataclasses.replace(recipe, config=c)
        missing = inventory.missing_models("run", recipe.config, recipe.folder, models)
        starts_file = starts.starts_file(sweep.workdir.path, worker_info.job)
        without_progress = starts.count(starts_file, starts.progress(recipe, missing))
        if without_progress >= starts.MAX_WITHOUT_PROGRESS:
            starts_file.unlink(missing_ok=True)
            display.say(
                f"job {worker_info.job}: started {without_progress} times in a row without a new checkpoint or a "
                "finished model, so it is not started again; give it more time, or a shorter "
                "train.checkpoint_minutes, and launch the sweep again"
            )
            return heartbeats.GIVEN_UP_EXIT_CODE
        for line in heartbeats.reap(recipe.folder, worker_info.job, set(map(str, missing))):
            display.say(line)
        record = heartbeats.RunningRecord(recipe.folder, worker_info)
        with record.alive():
            while remaining := _remaining_models(recipe, models):
                is_joint = devices_per_model == 0
                watcher = _EventWatcher(record, recipe.folder, worker_info, is_joint)
                try:
                    pipeline.make_models(
                        "run",
                        recipe,
                        population,
                        display,
                        selected_models=remaining,
                        log_fields=log_fields,
                        watch=watcher.on_event,
                    )
                except DiskError:
                    raise
                except (RendezvousError, WorkersKilledError) as error:
                    if not watcher.failures:
                        display.say(str(error))
                        return RETRY_EXIT_CODE
                except (UserError, RuntimeError):
                    if not watcher.failures:
                        raise
                if not watcher.failures:
                    break
                display.say("\n".join(watcher.failures))
                # The other processes of the job cannot continue without this one.
                if is_joint:
                    raise SystemExit(SIGTERM_EXIT_CODE)
        starts_file.unlink(missing_ok=True)
        return _summary(recipe, models, display)


def this_worker(name: str, log: str) -> heartbeats.WorkerInfo:
    """Returns a description of this process, with the name of its host as the scheduler knows it."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    rank = os.environ.get("JAX_PROCESS_ID") or os.environ.get("SLURM_PROCID") or "0"
    made_by = workdir.provenance()
    version = f"{made_by['lm_mia']} {(made_by['commit'] or '')[:9]}".strip()
    job_name = name or f"{host}-{os.getpid()}"
    return heartbeats.WorkerInfo(
        job_name + f".{rank}" * (rank != "0"), host, os.getpid(), log, version
    )


@dataclasses.dataclass
class _EventWatcher:
    """Records which model each worker is making, and which models failed."""

    record: heartbeats.RunningRecord
    recipe_dir: Path
    worker_info: heartbeats.WorkerInfo
    is_joint: bool
    """Whether all processes of the job make each model together."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """A message for each failure."""
    running_models: dict[int, str] = dataclasses.field(default_factory=dict)
    """Index of a worker -> name of the model."""

    def on_event(self, event: Event) -> None:
        kind, worker = event["event"], event.get("index", -1)
        if kind == "model_started":
            self.running_models[worker] = event["model"]
            self.record.begin(event["model"])
        elif kind == "model_diverged" or (kind == "model_scored" and event["last"]):
            self._end(worker)
        elif kind in ("crash", "user_error"):
            self._fail(worker, event["message"].strip().splitlines()[-1])
        elif kind == "worker_lost" and event["exit_code"] not in (SIGTERM_EXIT_CODE, -15):
            exit_code = event["exit_code"]
            self._fail(
                worker, f"its worker exited with code {exit_code} (killed, or out of memory?)"
            )
            if self.failures:
                # All workers are started again, without this model if it was set aside.
                raise RuntimeError("a worker was killed")

    def _end(self, worker: int) -> str | None:
        if model := self.running_models.pop(worker, None):
            self.record.end(model)
        return model

    def _fail(self, worker: int, reason: str) -> None:
        model = self._end(worker)
        models = [model] if model else []
        if not models and self.is_joint:
            models = _models_of_primary(self.recipe_dir, self.worker_info)
        for name in models:
            heartbeats.record_failure(self.recipe_dir, name, reason, self.worker_info)
            self.failures.append(f"{name}: failed: {reason}")


def _models_of_primary(recipe_dir: Path, worker_info: heartbeats.WorkerInfo) -> list[str]:
    """Returns the models that the primary process of this job is making."""
    primary_job, _, rank = worker_info.job.rpartition(".")
    if not rank.isdecimal():
        return []
    return [
        model
        for _, record, _ in heartbeats.running_jobs(recipe_dir)
        if record["job"] == primary_job
        for model in record["models"]
    ]


def _remaining_models(recipe: SweepRecipe, models: list[ModelSeeds]) -> list[ModelSeeds]:
    """Returns the models that are neither present nor diverged nor set aside."""
    missing = inventory.missing_models("run", recipe.config, recipe.folder, models)
    return [model for model in missing if not heartbeats.is_set_aside(recipe.folder, model)]


def _summary(recipe: SweepRecipe, models: list[ModelSeeds], display: progress.Display) -> int:
    """Prints the models that were set aside or diverged; returns the exit code."""
    recipe_dir = recipe.folder
    missing = inventory.missing_models("run", recipe.config, recipe_dir, models)
    set_aside = [model for model in missing if heartbeats.is_set_aside(recipe_dir, model)]
    for model in set_aside:
        reason = heartbeats.failures(recipe_dir, model)[-1]["reason"]
        display.say(
            f"{model}: set aside after {heartbeats.MAX_FAILURES} failures: {reason}; "
            f"{heartbeats.remedy(recipe_dir, model)}"
        )
    diverged = [m for m in models if inventory.divergence_file(recipe_dir, m).exists()]
    for model in diverged:
        display.say(f"{model}: diverged; see {inventory.divergence_file(recipe_dir, model)}")
    return heartbeats.GIVEN_UP_EXIT_CODE if set_aside or diverged else 0
