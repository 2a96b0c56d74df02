"""The remaining time of a command that makes models, estimated from the models that it has finished.

This module reads no clock: the estimate is a function of events and of their times.
"""

import dataclasses
import heapq
import statistics
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

_MIN_SHARE = 0.2  # of the training steps, from whose duration that of all steps is extrapolated


@dataclasses.dataclass(frozen=True)
class RecipeWork:
    """The work of a command on one recipe."""

    name: str
    missing_models: int
    """Number of models that are made, by this command or by others."""
    model_cost: float
    """Cost of training and scoring one model, in any unit that is the same for all recipes, such as FLOPs."""
    tables_seconds: float
    """Estimated duration of the attacks and of extraction."""


@dataclasses.dataclass
class _Times:
    """The seconds that training, or scoring, of whole models took, without compilation."""

    first: float | None = None
    """Those of the first model of a worker, which are less certain."""
    later: list[float] = dataclasses.field(default_factory=list)

    def mean(self) -> float | None:
        """Returns the mean over the later models, or else that of the first one; None if there is neither."""
        return statistics.fmean(self.later) if self.later else self.first


@dataclasses.dataclass
class _Worker:
    """What a worker process of this command has done and is doing; times are those of the events."""

    ready_at: float
    train: _Times = dataclasses.field(default_factory=_Times)
    score: _Times = dataclasses.field(default_factory=_Times)
    num_finished: int = 0
    last_seconds: tuple[float, float] = (0.0, 0.0)
    """The seconds of training and of scoring of the last model."""
    model: str | None = None
    """The model that it is making."""
    started_at: float = 0.0
    steps: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    """The times of the first and of the last event about its training steps, with the fractions of steps taken."""
    trained_at: float | None = None
    new_share: float = 0.0
    """The fraction of the training steps of its model that it has taken itself."""

    def seconds_of_all_steps(self) -> float | None:
        """Returns the seconds of all steps of its model, judging by those that it has taken; None if they are few."""
        if len(self.steps) < 2:
            return None
        (begin, first), (end, last) = self.steps
        return (end - begin) / (last - first) if last - first >= _MIN_SHARE else None


class RemainingTime:
    """Estimates the remaining seconds of a command.

    Args:
      recipes: the recipes whose models the command makes, in this order.
      report_seconds: estimated duration of what follows all tables.
      trains: whether models are trained.
      scores: whether models are scored.
    """

    def __init__(
        self, recipes: Sequence[RecipeWork], report_seconds: float, *, trains: bool, scores: bool
    ):
        self._recipes, self._report_seconds = list(recipes), report_seconds
        self._trains, self._scores = trains, scores
        self._finished_recipes: set[str] = set()
        self._finished_tables: set[str] = set()
        self._recipe: RecipeWork | None = None
        self._most_workers = 0
        self._costs: list[tuple[float, float]] = []
        """The cost and the seconds of each finished model of earlier recipes."""
        self._startups: list[float] = []
        """Seconds from the start of a recipe's workers until each was ready."""
        self._compilations: list[float] = []
        """Seconds of compilation during the first model of each worker."""
        self._report_started_at: float | None = None
        self._tables_started_at: float | None = None
        self._start_recipe(0.0)

    def _start_recipe(self, now: float) -> None:
        self._recipe_started_at = now
        self._workers: dict[int, _Worker] = {}
        self._missing = self._trained = 0
        self._finished: set[str] = set()
        self._num_elsewhere, self._elsewhere_at = 0, now
        self._waiting_since: float | None = None

    def add(self, now: float, event: Event) -> None:
        """Takes an event into account.

        Args:
          now: its time in seconds, by any clock.
          event: an event of `lm_mia.run.supervisor`, or one of these: "models" (the workers of ``recipe`` are about to
            start; ``missing`` models, of which ``trained`` only have to be scored), "finished_elsewhere" (other
            processes have finished ``count`` of the missing models), "models_present" (no model of ``recipe`` is
            missing), "tables" and "tables_finished" (of ``recipe``), and "report".
        """
        kind = event["event"]
        if kind == "models":
            self._start_recipe(now)
            self._recipe = next(r for r in self._recipes if r.name == event["recipe"])
            self._missing, self._trained = event["missing"], event["trained"]
        elif kind == "models_present":
            self._end_recipe(event["recipe"])
        elif kind == "finished_elsewhere":
            if event["count"] > self._num_elsewhere:
                self._num_elsewhere, self._elsewhere_at = event["count"], now
                self._waiting_since = None
        elif kind == "tables":
            self._tables_started_at = now
        elif kind == "tables_finished":
            self._finished_tables.add(event["recipe"])
            self._tables_started_at = None
        elif kind == "report":
            self._report_started_at = now
        else:
            self._add_event_of_worker(now, event)

    def _add_event_of_worker(self, now: float, event: Event) -> None:
        kind, index = event["event"], event.get("index", 0)
        if kind == "worker":
            self._workers[index] = _Worker(ready_at=now)
            self._most_workers = max(self._most_workers, len(self._workers))
        elif kind == "worker_lost":
            self._workers.pop(index, None)
        worker = self._workers.get(index)
        if worker is None:
            return
        if kind == "model_started":
            self._waiting_since = None
            worker.model, worker.started_at = event["model"], now
            worker.steps, worker.trained_at, worker.new_share = [], None, 0.0
        elif kind == "step":
            worker.steps = [*worker.steps[:1], (now, event["step"] / event["steps"])]
        elif kind == "model_trained":
            worker.steps = [*worker.steps[:1], (now, 1.0)]
            worker.trained_at = now
            worker.new_share = 1 - event["resumed_at"] / event["steps"]
            if not self._scores:
                self._finish_model(worker, now)
        elif kind == "model_scored" and event["last"]:
            self._finish_model(worker, now)
        elif kind == "model_diverged":
            self._finished.add(event["model"])
            worker.model = None
        elif kind == "compiled" and worker.num_finished == 1:
            self._compilations.append(event["seconds"])
            self._set_first_times(worker, *worker.last_seconds, event["seconds"])
        elif kind == "waiting" and self._waiting_since is None:
            self._waiting_since = now

    def _finish_model(self, worker: _Worker, now: float) -> None:
        trained_at = worker.started_at if worker.trained_at is None else worker.trained_at
        score = now - trained_at
        if worker.num_finished == 0:
            self._startups.append(worker.ready_at - self._recipe_started_at)
            self._set_first_times(worker, trained_at - worker.started_at, score, 0.0)
        else:
            if worker.new_share:
                worker.train.later.append((trained_at - worker.started_at) / worker.new_share)
            worker.score.later.append(score)
        if worker.model is not None:
            self._finished.add(worker.model)
        worker.model, worker.last_seconds = None, (trained_at - worker.started_at, score)
        worker.num_finished += 1

    def _set_first_times(
        self, worker: _Worker, train: float, score: float, compilation: float
    ) -> None:
        """Sets the times of a worker's first model, from the seconds that it took and those of its compilation."""
        if worker.new_share:
            # Compilation precedes the first event about steps.
            all_steps = worker.seconds_of_all_steps()
            if all_steps is None:
                all_steps = max(train - compilation, 0.1 * train) / worker.new_share
            worker.train.first = all_steps
            compilation -= train - all_steps * worker.new_share
        worker.score.first = score - min(max(compilation, 0.0), 0.9 * score)

    def _end_recipe(self, name: str) -> None:
        self._finished_recipes.add(name)
        seconds = self._mean_seconds()
        if self._recipe is not None and seconds is not None:
            self._costs.append((self._recipe.model_cost, seconds))
        self._recipe = None
        self._start_recipe(0.0)

    def seconds(self, now: float) -> float | None:
        """Returns the remaining seconds at a time.

        Returns:
          The estimate; None as long as this command has finished no model, or if models of other processes take longer
          than those of this command.
        """
        if not (self._costs or any(worker.num_finished for worker in self._workers.values())):
            return None
        models_seconds = 0.0
        if self._recipe is not None:
            current = self._seconds_of_current_recipe(now)
            if current is None:
                return None
            models_seconds = current
        later = [
            self._seconds_of_later_recipe(recipe)
            for recipe in self._recipes
            if recipe.name not in self._finished_recipes and recipe is not self._recipe
        ]
        return models_seconds + sum(later) + self._seconds_after_models(now)

    def _seconds_after_models(self, now: float) -> float:
        """Returns the seconds of the tables that are not finished, and of the report."""
        if self._report_started_at is not None:
            return max(self._report_seconds - (now - self._report_started_at), 0)
        tables = [r.tables_seconds for r in self._recipes if r.name not in self._finished_tables]
        if tables and self._tables_started_at is not None:
            tables[0] = max(tables[0] - (now - self._tables_started_at), 0)
        return sum(tables) + self._report_seconds

    def _seconds_of_later_recipe(self, recipe: RecipeWork) -> float:
        """Returns the seconds of a recipe that has not been started."""
        workers = min(max(self._most_workers, 1), recipe.missing_models)
        if not workers:
            return 0.0
        known = list(self._costs)
        current = self._mean_seconds()
        if self._recipe is not None and current is not None:
            known.append((self._recipe.model_cost, current))
        seconds_per_cost = sum(s for _, s in known) / sum(cost for cost, _ in known)
        model_seconds = seconds_per_cost * recipe.model_cost
        start = sum(statistics.fmean(v) for v in (self._startups, self._compilations) if v)
        queue = [(start, model_seconds)] * workers
        return _finish_time(queue, recipe.missing_models)

    def _mean_of(self, part: str) -> float | None:
        """Returns the mean seconds of "train" or "score" over the workers that have finished a model."""
        means = [getattr(worker, part).mean() for worker in self._workers.values()]
        values = [value for value in means if value is not None]
        return statistics.fmean(values) if values else None

    def _mean_seconds(self) -> float | None:
        """Returns the mean seconds of a whole model of the current recipe; None if it is unknown."""
        needed = [part for part, does in (("train", self._trains), ("score", self._scores)) if does]
        means = [self._mean_of(part) for part in needed]
        if any(value is None for value in means):
            return None
        return sum(value for value in means if value is not None)

    def _seconds_of_current_recipe(self, now: float) -> float | None:
        num_left = self._missing - len(self._finished) - self._num_elsewhere
        if num_left <= 0:
            return 0.0
        if self._costs and not any(worker.num_finished for worker in self._workers.values()):
            # The times of this recipe are not known yet, so those of earlier recipes are used.
            assert self._recipe is not None
            elapsed = now - self._recipe_started_at
            return max(self._seconds_of_later_recipe(self._recipe) - elapsed, 0)
        train_mean = self._mean_of("train") if self._trains else 0.0
        score_mean = self._mean_of("score") if self._scores else 0.0
        if score_mean is None or (train_mean is None and self._trained < self._missing):
            return None
        train_mean = train_mean or 0.0
        queue: list[tuple[float, float]] = []
        num_running = 0
        for worker in self._workers.values():
            train, score = self._seconds_of_worker(worker, train_mean, score_mean)
            busy_seconds = self._seconds_of_running_model(worker, train, score, now)
            num_running += worker.model is not None
            queue.append((busy_seconds, train + score))
        num_waiting = num_left - num_running
        if self._waiting_since is not None and num_waiting > 0:
            # All models that no worker of this command is making are being made by other processes now.
            left = train_mean + score_mean - (now - self._waiting_since)
            return max(left, *(busy for busy, _ in queue)) if left > 0 else None
        if self._num_elsewhere:
            interval = (self._elsewhere_at - self._recipe_started_at) / self._num_elsewhere
            queue.append((max(interval - (now - self._elsewhere_at), 0), interval))
            num_waiting -= 1
        # The models that only have to be scored are spread evenly over the models that are left.
        scored_only = self._trained / self._missing
        queue = [(busy, s - scored_only * min(train_mean, s)) for busy, s in queue]
        return _finish_time(queue, max(num_waiting, 0))

    def _seconds_of_worker(
        self, worker: _Worker, train_mean: float, score_mean: float
    ) -> tuple[float, float]:
        """Returns the seconds that a worker needs to train and to score a model; the means are of all workers."""
        train, score = worker.train.mean(), worker.score.mean()
        if train is None:
            train = worker.seconds_of_all_steps() or train_mean
        if score is None:
            score = score_mean * (train / train_mean if train_mean else 1.0)
        return train, score

    def _seconds_of_running_model(
        self, worker: _Worker, train: float, score: float, now: float
    ) -> float:
        """Returns the seconds until a worker has finished the model that it is making; 0 if it is making none."""
        if worker.model is None:
            return 0.0
        if worker.trained_at is not None:
            return max(score - (now - worker.trained_at), 0)
        if worker.steps:
            steps_at, share = worker.steps[-1]
            return max((1 - share) * train - (now - steps_at), 0) + score
        compiles = worker.num_finished == 0 and self._compilations
        compilation = statistics.fmean(self._compilations) if compiles else 0.0
        return max(compilation + train - (now - worker.started_at), 0) + score


def _finish_time(workers: Sequence[tuple[float, float]], num_models: int) -> float:
    """Returns the time at which workers that always take the next model have finished all of them.

    Args:
      workers: for each, the time at which it can begin another model, and the seconds of a model.
      num_models: number of models that no worker has begun.
    """
    queue = list(workers)
    heapq.heapify(queue)
    finish = max((free_at for free_at, _ in queue), default=0.0)
    for _ in range(num_models if queue else 0):
        free_at, seconds = queue[0]
        heapq.heapreplace(queue, (free_at + seconds, seconds))
        finish = max(finish, free_at + seconds)
    return finish
