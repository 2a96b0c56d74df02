"""How fast models are made, and the remaining time that follows, from the events that workers report.

The only place that estimates durations: for the progress of a command, for ``lm-mia status``, and for ``lm-mia plan``
if the workdir has models. This module reads no clock: each event comes with its time, in seconds on any clock.
"""

import dataclasses
import math
import statistics
from collections.abc import Hashable, Sequence
from pathlib import Path

from lm_mia import events
from lm_mia.events import Event
from lm_mia.run.stages import ModelVerb

_MIN_MODELS = 2  # finished ones from which a rate is known
# Models over which the rate is averaged: enough of each worker that the first and the last hardly matter.
_RECENT_MODELS, _RECENT_MODELS_PER_WORKER = 32, 4
_LOGGED = tuple(
    f'"{kind}"'.encode()
    for kind in ("worker", "model_started", "model_trained", "model_scored", "model_diverged")
)


@dataclasses.dataclass
class _Model:
    """The work on a model."""

    worker: Hashable
    """The worker that makes it, or made it last."""
    is_first: bool
    """Whether it is the first one of its worker, so that its time includes compilation."""
    spans: list[tuple[float, float]]
    """When it was trained and scored."""
    since: float | None
    """When its worker began what it is doing now; None: no worker is making it."""

    def spans_until(self, now: float) -> list[tuple[float, float]]:
        """Returns its spans, including the one that has not ended."""
        return [*self.spans, *([] if self.since is None else [(self.since, now)])]


class ModelRate:
    """How fast the models of one recipe are made.

    Args:
      verb: whether a model is finished once it is scored, or, with "train", once it is trained.
    """

    def __init__(self, verb: ModelVerb = "run"):
        self._last_event = "model_trained" if verb == "train" else "model_scored"
        self._device_by_worker: dict[Hashable, str] = {}
        self._new_workers: set[Hashable] = set()
        """Those that have not begun a model."""
        self._unfinished: dict[str, _Model] = {}
        self._finished: list[_Model] = []
        self._num_diverged = 0

    def add(self, now: float, event: Event) -> None:
        """Takes an event of `lm_mia.run.supervisor` into account; other events are ignored.

        Args:
          now: its time in seconds.
          event: the event; in the log, "job" tells the workers of different jobs apart.
        """
        kind, name = event["event"], event.get("model", "")
        worker = event.get("job", ""), event.get("index", 0)
        if kind == "worker":
            self._new_workers.add(worker)
            self._device_by_worker[worker] = event.get("device", "")
        elif kind == "worker_lost":
            for model in self._unfinished.values():
                model.since = None if model.worker == worker else model.since
        elif kind == "model_started":
            model = self._unfinished.setdefault(name, _Model(worker, False, [], None))
            model.worker, model.since = worker, now
            model.is_first |= worker in self._new_workers
            self._new_workers.discard(worker)
        elif kind == "model_diverged":
            self._unfinished.pop(name, None)
            self._num_diverged += 1
        elif kind == "model_trained" or (kind == "model_scored" and event["last"]):
            self._end(now, name, is_finished=kind == self._last_event)

    def _end(self, now: float, name: str, *, is_finished: bool) -> None:
        model = self._unfinished.get(name)
        if model is None or model.since is None:
            return
        model.spans.append((model.since, now))
        model.since = now
        if is_finished:
            self._finished.append(self._unfinished.pop(name))

    @property
    def num_made(self) -> int:
        """The number of models that were finished, or diverged."""
        return len(self._finished) + self._num_diverged

    @property
    def finished_at(self) -> float | None:
        """When the last model was finished; None: none is."""
        return self._finished[-1].spans[-1][1] if self._finished else None

    @property
    def devices(self) -> list[str]:
        """The names of the devices that made the recent models."""
        names = {self._device_by_worker.get(model.worker, "") for model in self._recent}
        return sorted(names - {""})

    @property
    def _recent(self) -> list[_Model]:
        workers = {model.worker for model in self._finished}
        count = max(_RECENT_MODELS, _RECENT_MODELS_PER_WORKER * len(workers))
        return self._finished[-count:]

    def model_seconds(self) -> float | None:
        """Returns the mean seconds of a model, without compilation if possible; None: too few are finished."""
        if len(self._finished) < _MIN_MODELS:
            return None
        later = [model for model in self._recent if not model.is_first] or self._recent
        return statistics.fmean(_sum_seconds(model.spans) for model in later) or None

    def per_second(self, now: float | None = None) -> float | None:
        """Returns the number of models that are finished per second; None: too few are finished.

        It is the mean number of models that are made side by side, divided by the seconds of a model. Time in which no
        model was made, as between two commands, does not count.

        Args:
          now: the time, to take into account what workers are making now; None: their state is unknown.
        """
        seconds = self.model_seconds()
        if seconds is None:
            return None
        spans = [span for model in self._recent for span in model.spans]
        if now is not None:
            running = (model for model in self._unfinished.values() if model.since is not None)
            spans += [span for model in running for span in model.spans_until(now)]
        return _sum_seconds(spans) / _union_seconds(spans) / seconds

    def running_share(self, now: float, model_seconds: float) -> float:
        """Returns the work on unfinished models, as a number of models that take ``model_seconds`` each."""
        unfinished = self._unfinished.values()
        return sum(min(_sum_seconds(m.spans_until(now)) / model_seconds, 1.0) for m in unfinished)


def _sum_seconds(spans: Sequence[tuple[float, float]]) -> float:
    return math.fsum(end - begin for begin, end in spans)


def _union_seconds(spans: Sequence[tuple[float, float]]) -> float:
    seconds, covered = 0.0, -math.inf
    for begin, end in sorted(spans):
        seconds += max(end - max(begin, covered), 0.0)
        covered = max(covered, end)
    return seconds


def read_rates(workdir: Path) -> dict[str, ModelRate]:
    """Returns the rates that the log of a workdir shows, by recipe."""
    rates: dict[str, ModelRate] = {}
    for now, event in read_events(workdir, _LOGGED):
        if "recipe" in event:
            rates.setdefault(event["recipe"], ModelRate()).add(now, event)
    return rates


def read_events(workdir: Path, names: Sequence[bytes] = ()) -> list[tuple[float, Event]]:
    """Returns the time in seconds and the event of each line of a log that has one of the names, or is for `ModelRate`.

    Args:
      workdir: the workdir, which need not have a log.
      names: names of further events, in quotation marks.
    """
    wanted = (*_LOGGED, *names)
    logged = events.read(workdir, lambda line: any(name in line for name in wanted))
    return [(now, event) for now, event in logged if "event" in event]


@dataclasses.dataclass(frozen=True)
class RecipeWork:
    """The work of a command on one recipe."""

    name: str
    missing_models: int
    """Number of models that this command or other processes still have to make."""
    model_cost: float
    """Cost of a model, in any unit that all recipes share, such as FLOPs."""


def seconds_left(works: Sequence[RecipeWork], per_second: dict[str, float]) -> dict[str, float]:
    """Returns the seconds that the missing models of each recipe take, by name.

    Args:
      works: the recipes.
      per_second: models per second of the recipes for which this is known. That of others is scaled by their costs.

    Returns:
      The seconds; those of a recipe without missing models are 0, and those of others are left out if no rate is known.
    """
    known = [(1 / per_second[w.name], w.model_cost) for w in works if w.name in per_second]
    seconds = {w.name: 0.0 for w in works if not w.missing_models}
    if known:
        scale = sum(s for s, _ in known) / sum(cost for _, cost in known)
        for work in works:
            model_seconds = scale * work.model_cost
            if work.name in per_second:
                model_seconds = 1 / per_second[work.name]
            seconds[work.name] = work.missing_models * model_seconds
    return seconds


class RemainingTime:
    """The remaining time of the models of a command, once two models of a recipe are finished.

    Args:
      works: the recipes whose models the command makes.
      verb: whether models are trained, scored, or both.
    """

    def __init__(self, works: Sequence[RecipeWork], verb: ModelVerb):
        self._works = list(works)
        self._missing = {work.name: work.missing_models for work in works}
        self._rates = {work.name: ModelRate(verb) for work in works}
        self._recipe = ""
        self._began = 0.0  # the recipe
        self._num_elsewhere = 0
        self._num_made_before = 0

    def add(self, now: float, event: Event) -> None:
        """Takes an event into account.

        Args:
          now: its time in seconds, on any clock.
          event: an event of `lm_mia.run.supervisor`, or one of these: "models" (the workers of ``recipe`` are about to
            start; ``missing`` models are missing), "finished_elsewhere" (other processes have finished ``count`` of
            them since), "models_present" (no model of ``recipe`` is missing).
        """
        kind = event["event"]
        if kind == "models":
            self._recipe, self._began, self._num_elsewhere = event["recipe"], now, 0
            self._missing[self._recipe] = event["missing"]
            self._num_made_before = self._rates[self._recipe].num_made
        elif kind == "models_present":
            self._missing[event["recipe"]] = 0
            self._recipe = ""
        elif kind == "finished_elsewhere":
            self._num_elsewhere = event["count"]
        elif self._recipe:
            self._rates[self._recipe].add(now, event)

    def per_hour(self, now: float) -> float | None:
        """Returns the number of models of the current recipe that are finished per hour; None if it is unknown."""
        rate = self._per_second(now).get(self._recipe)
        return None if rate is None else 3600 * rate

    def _per_second(self, now: float) -> dict[str, float]:
        """Returns the models per second of each recipe, as far as they are known."""
        rates = {name: rate.per_second(now) for name, rate in self._rates.items()}
        known = {name: rate for name, rate in rates.items() if rate is not None}
        if self._recipe in known and now > self._began:
            known[self._recipe] += self._num_elsewhere / (now - self._began)
        return known

    def seconds(self, now: float) -> float | None:
        """Returns the remaining seconds at a time; None until two models of a recipe are finished."""
        per_second = self._per_second(now)
        if not per_second:
            return None
        works = [dataclasses.replace(w, missing_models=self._missing[w.name]) for w in self._works]
        left = seconds_left(works, per_second)
        if self._recipe:
            left[self._recipe] = self._seconds_of_recipe(now, left[self._recipe])
        return sum(left.values())

    def _seconds_of_recipe(self, now: float, seconds: float) -> float:
        """Returns what is left of the seconds of all models of the current recipe that were missing at its start."""
        rate = self._rates[self._recipe]
        model_seconds = rate.model_seconds()
        if model_seconds is None:
            return max(seconds - (now - self._began), 0.0)
        made = rate.num_made - self._num_made_before + self._num_elsewhere
        made += rate.running_share(now, model_seconds)
        return max(1 - made / max(self._missing[self._recipe], 1), 0.0) * seconds
