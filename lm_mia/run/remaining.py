"""The remaining time of a command that makes models, estimated from the models that it has finished.

This module reads no clock: the estimate is a function of events and of their times.
"""

import dataclasses
import heapq
import statistics
from collections.abc import Sequence

from lm_mia.run.model_times import Event, Timeline, WorkerTimes, durations


@dataclasses.dataclass(frozen=True)
class RecipeWork:
    """The work of a command on one recipe."""

    name: str
    missing_models: int
    """Number of models that this command or other processes still have to make."""
    model_cost: float
    """Cost of training and scoring one model, in any unit that all recipes share, such as FLOPs."""
    tables_seconds: float
    """Estimated duration of the attacks and of extraction."""


class RemainingTime:
    """Estimates the remaining seconds of a command.

    Args:
      recipes: the recipes whose models the command makes, in this order.
      report_seconds: estimated duration of the report, which follows the tables of all recipes.
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
        self._max_workers = 0
        self._costs: list[tuple[float, float]] = []
        """For each earlier recipe: the cost and the mean seconds of a model."""
        self._earlier_workers: list[WorkerTimes] = []
        """The workers of earlier recipes."""
        self._report_started_at: float | None = None
        self._tables_started_at: float | None = None
        self._start_recipe(0.0)

    def _start_recipe(self, now: float) -> None:
        self._recipe_started_at = now
        self._timeline = Timeline()
        self._missing = self._trained = 0
        self._num_elsewhere, self._elsewhere_at = 0, now
        self._waiting_since: float | None = None

    def add(self, now: float, event: Event) -> None:
        """Takes an event into account.

        Args:
          now: its time in seconds, on any clock.
          event: an event of `lm_mia.run.supervisor`, or one of these: "models" (the workers of ``recipe`` are about to
            start; ``verb`` says whether they train, score or do both; ``missing`` models are missing, ``trained`` of
            which only have to be scored), "finished_elsewhere" (other processes have finished ``count`` of the missing
            models), "models_present" (no model of ``recipe`` is missing), "tables" and "tables_finished" (of
            ``recipe``), and "report".
        """
        kind = event["event"]
        if kind == "models":
            self._start_recipe(now)
            self._recipe = next(r for r in self._recipes if r.name == event["recipe"])
            self._missing, self._trained = event["missing"], event["trained"]
            self._timeline.add(now, event)
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
            self._timeline.add(now, event)
            self._max_workers = max(self._max_workers, len(self._timeline.workers))
            if kind == "model_started":
                self._waiting_since = None
            elif kind == "waiting" and self._waiting_since is None:
                self._waiting_since = now

    @property
    def _workers(self) -> list[WorkerTimes]:
        """The workers of the current recipe that are running."""
        return list(self._timeline.workers.values())

    def _has_finished_model(self) -> bool:
        """Returns whether a running worker has finished a model of the current recipe."""
        return any(worker.models for worker in self._workers)

    @property
    def _workers_with_models(self) -> list[WorkerTimes]:
        """The workers of all recipes that have finished a model."""
        workers = [*self._earlier_workers, *self._timeline.all_workers]
        return [worker for worker in workers if worker.models]

    def _compile_seconds(self) -> float:
        """Returns the mean seconds of compilation during the first model of a worker; 0 if unknown."""
        seconds = [w.models[0].compile_seconds for w in self._workers_with_models if w.compilation]
        return statistics.fmean(seconds) if seconds else 0.0

    def _num_finished(self) -> int:
        """Returns the number of models of the current recipe that this command has finished, or that diverged."""
        names = {m.name for worker in self._timeline.all_workers for m in worker.models}
        return len(names | self._timeline.diverged)

    def _end_recipe(self, name: str) -> None:
        self._finished_recipes.add(name)
        seconds = self._mean_model_seconds()
        if self._recipe is not None and seconds is not None:
            self._costs.append((self._recipe.model_cost, seconds))
        self._recipe = None
        self._earlier_workers += self._timeline.all_workers
        self._start_recipe(0.0)

    def seconds(self, now: float) -> float | None:
        """Returns the remaining seconds at a time.

        Returns:
          The estimate; None until this command has finished a model, and while the command waits for models of other
          processes that take longer than its own.
        """
        if not (self._costs or self._has_finished_model()):
            return None
        models_seconds = 0.0
        if self._recipe is not None:
            current = self._current_recipe_seconds(now)
            if current is None:
                return None
            models_seconds = current
        later = [
            self._later_recipe_seconds(recipe)
            for recipe in self._recipes
            if recipe.name not in self._finished_recipes and recipe is not self._recipe
        ]
        return models_seconds + sum(later) + self._seconds_after_models(now)

    def _seconds_after_models(self, now: float) -> float:
        """Returns the remaining seconds of the tables and of the report."""
        if self._report_started_at is not None:
            return max(self._report_seconds - (now - self._report_started_at), 0)
        tables = [r.tables_seconds for r in self._recipes if r.name not in self._finished_tables]
        if tables and self._tables_started_at is not None:
            tables[0] = max(tables[0] - (now - self._tables_started_at), 0)
        return sum(tables) + self._report_seconds

    def _later_recipe_seconds(self, recipe: RecipeWork) -> float:
        """Returns the seconds of a recipe that has not been started."""
        workers = min(max(self._max_workers, 1), recipe.missing_models)
        if not workers:
            return 0.0
        known = list(self._costs)
        current = self._mean_model_seconds()
        if self._recipe is not None and current is not None:
            known.append((self._recipe.model_cost, current))
        seconds_per_cost = sum(s for _, s in known) / sum(cost for cost, _ in known)
        model_seconds = seconds_per_cost * recipe.model_cost
        starts = [w.start_seconds for w in self._workers_with_models if w.start_seconds is not None]
        start = (statistics.fmean(starts) if starts else 0.0) + self._compile_seconds()
        queue = [(start, model_seconds)] * workers
        return _finish_time(queue, recipe.missing_models)

    def _mean_part_seconds(self, part: str) -> float | None:
        """Returns the mean seconds of "train" or "score", with equal weights of all workers; None if unknown."""
        means = [mean for w in self._workers if (mean := _worker_mean_seconds(w, part)) is not None]
        return statistics.fmean(means) if means else None

    def _mean_model_seconds(self) -> float | None:
        """Returns the mean seconds of making a model of the current recipe; None if unknown."""
        needed = [part for part, does in (("train", self._trains), ("score", self._scores)) if does]
        means = [self._mean_part_seconds(part) for part in needed]
        if any(value is None for value in means):
            return None
        return sum(value for value in means if value is not None)

    def _current_recipe_seconds(self, now: float) -> float | None:
        num_left = self._missing - self._num_finished() - self._num_elsewhere
        if num_left <= 0:
            return 0.0
        if self._costs and not self._has_finished_model():
            # This recipe has no times yet, so those of earlier recipes are used.
            assert self._recipe is not None
            elapsed = now - self._recipe_started_at
            return max(self._later_recipe_seconds(self._recipe) - elapsed, 0)
        train_mean = self._mean_part_seconds("train") if self._trains else 0.0
        score_mean = self._mean_part_seconds("score") if self._scores else 0.0
        if score_mean is None or (train_mean is None and self._trained < self._missing):
            return None
        train_mean = train_mean or 0.0
        queue: list[tuple[float, float]] = []
        num_running = 0
        for worker in self._workers:
            train, score = self._worker_seconds(worker, train_mean, score_mean)
            busy_seconds = self._running_model_seconds(worker, train, score, now)
            num_running += worker.running is not None
            queue.append((busy_seconds, train + score))
        num_waiting = num_left - num_running
        if self._waiting_since is not None and num_waiting > 0:
            # Other processes are making all models that no worker of this command is making.
            left = train_mean + score_mean - (now - self._waiting_since)
            return max(left, *(busy for busy, _ in queue)) if left > 0 else None
        if self._num_elsewhere:
            interval = (self._elsewhere_at - self._recipe_started_at) / self._num_elsewhere
            queue.append((max(interval - (now - self._elsewhere_at), 0), interval))
            num_waiting -= 1
        # It is assumed that models that only have to be scored are spread evenly over the remaining models.
        scored_only = self._trained / self._missing
        queue = [(busy, s - scored_only * min(train_mean, s)) for busy, s in queue]
        return _finish_time(queue, max(num_waiting, 0))

    def _worker_seconds(
        self, worker: WorkerTimes, train_mean: float, score_mean: float
    ) -> tuple[float, float]:
        """Returns the seconds that a worker needs to train and to score a model; the means are over all workers."""
        train, score = _worker_mean_seconds(worker, "train"), _worker_mean_seconds(worker, "score")
        if train is None:
            running = worker.running
            train = (running.all_steps_seconds if running else None) or train_mean
        if score is None:
            score = score_mean * (train / train_mean if train_mean else 1.0)
        return train, score

    def _running_model_seconds(
        self, worker: WorkerTimes, train: float, score: float, now: float
    ) -> float:
        """Returns the seconds until a worker finishes the model that it is working on; 0 if there is none."""
        model = worker.running
        if model is None:
            return 0.0
        if model.trained_at is not None:
            return max(score - (now - model.trained_at), 0)
        if model.steps:
            steps_at, taken = model.steps[-1]
            return max((1 - taken / model.num_steps) * train - (now - steps_at), 0) + score
        compilation = self._compile_seconds() if model.is_first else 0.0
        return max(compilation + train - (now - model.started_at), 0) + score


def _worker_mean_seconds(worker: WorkerTimes, part: str) -> float | None:
    """Returns the mean seconds that a worker takes to "train" or "score" a model; None if it has finished none."""
    seconds = durations(worker.models, f"{part}_seconds")
    return statistics.fmean(seconds) if seconds else None


def _finish_time(workers: Sequence[tuple[float, float]], num_models: int) -> float:
    """Returns the time at which all models are finished, if each worker takes the next one as soon as it is free.

    Args:
      workers: for each worker, the time at which it can begin another model, and its seconds per model.
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
