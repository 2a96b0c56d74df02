"""How long workers took to start, and to train and score models, from the events that they report.

Used by everything that estimates durations: the remaining time of a command (`remaining`), a probe of this machine
(`cpu_probe`), and a plan from an earlier run (`cpu_plan`). This module reads no clock: each event comes with its time,
in seconds on any clock.
"""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

Event = dict[str, Any]

_MIN_SHARE = 0.2  # the smallest share of the training steps from which the duration of all steps is extrapolated


@dataclasses.dataclass
class ModelTimes:
    """When a worker trained and scored a model."""

    name: str
    started_at: float
    """When the worker finished its previous model, so that the time in between is counted. If the worker was waiting,
    or if this is its first model: when it began this one."""
    is_first: bool
    """Whether it is the first model of the worker, which includes compilation."""
    num_steps: int = 0
    """Number of training steps of the model; 0 while it is unknown."""
    resumed_at: int = 0
    """Number of training steps that an earlier command had completed."""
    steps: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    """The first and the last event about its training steps: the time, and the number of steps taken by then."""
    logged: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    """The same, but only events with a loss. At these the step is complete; at others, it may still be computed."""
    trained_at: float | None = None
    """None while it is being trained, and if an earlier command trained it."""
    scored_at: float | None = None
    compile_seconds: float = 0.0
    """Seconds of compilation, including those of reading the cache."""

    @property
    def trained_share(self) -> float:
        """The fraction of its training steps that this worker took; 0 while it is being trained."""
        if self.trained_at is None or not self.num_steps:
            return 0.0
        return 1 - self.resumed_at / self.num_steps

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a training step, from the first to the last event with a loss; None if there is only one."""
        if not self.logged:
            return None
        (begin, first), (end, last) = self.logged[0], self.logged[-1]
        return (end - begin) / (last - first) if last > first else None

    @property
    def all_steps_seconds(self) -> float | None:
        """Seconds of all training steps, extrapolated from those after the first event; None if these are too few."""
        if not self.steps:
            return None
        begin, first = self.steps[0]
        end, last = self.steps[-1]
        if self.trained_at is not None:
            end, last = self.trained_at, self.num_steps
        share = (last - first) / self.num_steps
        return (end - begin) / share if share >= _MIN_SHARE else None

    @property
    def train_seconds(self) -> float | None:
        """Seconds of training it from its first to its last step, without compilation; None if unknown."""
        if self.trained_at is None or not self.trained_share:
            return None
        if not self.is_first:
            return (self.trained_at - self.started_at) / self.trained_share
        if self.all_steps_seconds is not None:  # compilation precedes the first event
            return self.all_steps_seconds
        seconds = self.trained_at - self.started_at
        return max(seconds - self.compile_seconds, 0.1 * seconds) / self.trained_share

    @property
    def score_seconds(self) -> float | None:
        """Seconds of scoring it, without compilation; None if it has not been scored."""
        if self.scored_at is None:
            return None
        trained_at = self.started_at if self.trained_at is None else self.trained_at
        seconds, compilation = self.scored_at - trained_at, self.compile_seconds
        if self.train_seconds is not None:
            # The part of the time before scoring that training does not explain was compilation.
            compilation -= trained_at - self.started_at - self.train_seconds * self.trained_share
        return seconds - min(max(compilation, 0.0), 0.9 * seconds) if self.is_first else seconds


@dataclasses.dataclass
class WorkerTimes:
    """What a worker process has done and is doing."""

    ready_at: float
    start_seconds: float | None
    """From the start of the recipe's workers until this one was ready; None if their start is unknown."""
    scores: bool
    """Whether a model counts as finished once it is scored; otherwise, once it is trained."""
    models: list[ModelTimes] = dataclasses.field(default_factory=list)
    """The models that it has finished."""
    running: ModelTimes | None = None
    """The model that it is working on."""
    free_at: float | None = None
    """When it finished its last model, unless it has been waiting since; None before its first model."""
    compilation: Event | None = None
    """The event about compilation during its first model."""


def durations(models: Iterable[ModelTimes], part: str) -> list[float]:
    """Returns the known seconds of a part of the work on models; those of first models only if no others are known.

    Args:
      models: models of one or more workers.
      part: "train_seconds" or "score_seconds".
    """
    known = [(m.is_first, seconds) for m in models if (seconds := getattr(m, part)) is not None]
    later = [seconds for is_first, seconds in known if not is_first]
    return later or [seconds for _, seconds in known]


class Timeline:
    """The times of the workers of one recipe, and of its stages that make no models."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[float, bool]] = {}
        """Job -> when it started its workers, and whether they score models."""
        self.workers: dict[Hashable, WorkerTimes] = {}
        """The latest worker of each job and index, unless it was killed."""
        self.all_workers: list[WorkerTimes] = []
        """All workers, in the order in which they became ready."""
        self.diverged: set[str] = set()
        """The names of models that diverged."""
        self.stage_seconds: dict[str, float] = {}
        """Seconds of each stage that makes no models; the longest, if it ran several times."""

    def add(self, now: float, event: Event) -> None:
        """Takes an event into account.

        Args:
          now: its time in seconds.
          event: an event of `lm_mia.run.supervisor`, or "models" or "stage" as in metrics.jsonl. Others are ignored.
        """
        kind, job = event["event"], event.get("job", "")
        key = job, event.get("index", 0)
        if kind == "stage":
            stage = event["stage"]
            self.stage_seconds[stage] = max(self.stage_seconds.get(stage, 0.0), event["seconds"])
        elif kind == "models":
            self._started[job] = now, event["verb"] != "train"
        elif kind == "worker":
            start, scores = self._started.get(job, (None, True))
            seconds = None if start is None else now - start
            self.workers[key] = WorkerTimes(now, seconds, scores)
            self.all_workers.append(self.workers[key])
        elif kind == "worker_lost":
            self.workers.pop(key, None)
        elif key in self.workers:
            self._add_worker_event(now, event, self.workers[key])

    def _add_worker_event(self, now: float, event: Event, worker: WorkerTimes) -> None:
        kind = event["event"]
        if kind == "model_started":
            started_at = now if worker.free_at is None else worker.free_at
            worker.running = ModelTimes(event["model"], started_at, is_first=not worker.models)
        elif kind == "model_diverged":
            self.diverged.add(event["model"])
            worker.running, worker.free_at = None, now
        elif kind == "waiting":
            worker.free_at = None
        elif kind == "compiled" and len(worker.models) == 1:
            worker.compilation = event
            worker.models[0].compile_seconds = event["seconds"]
        elif worker.running is not None:
            model = worker.running
            _add_model_event(now, event, model)
            if (model.scored_at if worker.scores else model.trained_at) is not None:
                worker.models.append(model)
                worker.running, worker.free_at = None, now


def _add_model_event(now: float, event: Event, model: ModelTimes) -> None:
    kind = event["event"]
    if kind in ("step", "train"):
        # "train" counts steps from 0 and is reported after the step.
        point = now, event["step"] + (kind == "train")
        model.num_steps = event["steps"]
        model.steps = [*model.steps[:1], point]
        if kind == "train":
            model.logged = [*model.logged[:1], point]
    elif kind == "model_trained":
        model.num_steps, model.resumed_at = event["steps"], event["resumed_at"]
        model.trained_at = now
    elif kind == "model_scored" and event["last"]:
        model.scored_at = now
