"""The remaining time of a command that makes models, estimated from the models that it has finished.

This module reads no clock: the estimate is a function of events and of their times.
"""

import dataclasses
import heapq
import statistics
from collections.abc import Sequence

from lm_mia.run.model_times import Event, Timeline, WorkerTimes


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
          now: its time in seconds, by any clock.
          event: an event of `lm_mia.run.supervisor`, or one of these: "models" (the workers of ``recipe`` are about to
            start to "train", to "score" or to do both, as ``verb`` says; ``missing`` models, of which ``trained`` only
            have to be scored), "finished_elsewhere" (other processes have finished ``count`` of the missing models),
            "models_present" (no model of ``recipe`` is missing), "tables" and "tables_finished" (of ``recipe``), and
            "report".
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
            self._most_workers = max(self._most_workers, len(self._timeline.workers))
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
        """Returns the mean seconds of compilation during the first model of a worker; 0 if they are unknown."""
        seconds = [w.models[0].compile_seconds for w in self._workers_with_models if w.compilation]
        return statistics.fmean(seconds) if seconds else 0.0

    def _num_finished(self) -> int:
        """Returns the number of models of the current recipe that this command has finished, or that diverged."""
        names = {m.name for worker in self._timeline.all_workers for m in worker.models}
        return len(names | self._timeline.diverged)

    def _end_recipe(self, name: str) -> None:
        self._finished_recipes.add(name)
        seconds = self._mean_seconds()
        if self._recipe is not None and seconds is not None:
            self._costs.append((self._recipe.model_cost, seconds))
        self._recipe = None
        self._earlier_workers += self._timeline.all_workers
        self._start_recipe(0.0)

    def seconds(self, now: float) -> float | None:
        """Returns the remaining seconds at a time.

        Returns:
          The estimate; None as long as this command has finished no model, or if models of other processes take longer
          than those of this command.
        """
        if not (self._costs or self._has_finished_model()):
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
        starts = [w.start_seconds for w in self._workers_with_models if w.start_seconds is not None]
        start = (statistics.fmean(starts) if starts else 0.0) + self._compile_seconds()
        queue = [(start, model_seconds)] * workers
        return _finish_time(queue, recipe.missing_models)

    def _mean_of(self, part: str) -> float | None:
        """Returns the mean over the running workers of the mean seconds of "train" or "score"; None if unknown."""
        means = [mean for w in self._workers if (mean := _mean_of_worker(w, part)) is not None]
        return statistics.fmean(means) if means else None

    def _mean_seconds(self) -> float | None:
        """Returns the mean seconds of a whole model of the current recipe; None if it is unknown."""
        needed = [part for part, does in (("train", self._trains), ("score", self._scores)) if does]
        means = [self._mean_of(part) for part in needed]
        if any(value is None for value in means):
            return None
        return sum(value for value in means if value is not None)

    def _seconds_of_current_recipe(self, now: float) -> float | None:
        num_left = self._missing - self._num_finished() - self._num_elsewhere
        if num_left <= 0:
            return 0.0
        if self._costs and not self._has_finished_model():
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
        for worker in self._workers:
            train, score = self._seconds_of_worker(worker, train_mean, score_mean)
            busy_seconds = self._seconds_of_running_model(worker, train, score, now)
            num_running += worker.running is not None
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
        self, worker: WorkerTimes, train_mean: float, score_mean: float
    ) -> tuple[float, float]:
        """Returns the seconds that a worker needs to train and to score a model; the means are of all workers."""
        train, score = _mean_of_worker(worker, "train"), _mean_of_worker(worker, "score")
        if train is None:
            running = worker.running
            train = (running.all_steps_seconds if running else None) or train_mean
        if score is None:
            score = score_mean * (train / train_mean if train_mean else 1.0)
        return train, score

    def _seconds_of_running_model(
        self, worker: WorkerTimes, train: float, score: float, now: float
    ) -> float:
        """Returns the seconds until a worker has finished the model that it is making; 0 if it is making none."""
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


def _mean_of_worker(worker: WorkerTimes, part: str) -> float | None:
    """Returns the mean seconds that a worker takes to "train" or "score" a model; None if it has finished none."""
    seconds = worker.durations(f"{part}_seconds")
    return statistics.fmean(seconds) if seconds else None


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
