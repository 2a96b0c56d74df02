"""Progress of a running command: bars with the remaining time on a terminal, and otherwise lines of text."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from lm_mia.printing import format_duration, format_rate, plural
from lm_mia.run.remaining import RemainingTime
from lm_mia.run.stages import ModelVerb

_LINE_SECONDS = 10  # between lines if the output is not a terminal
MODEL_BARS = ("train", "score")
"""The labels of the bars that count models."""


class Display:
    """A bar for each part of a stage, and one for the whole command if it runs several stages.

    Each bar of a stage shows its own remaining time. The bar of the whole command, or the bars of models if there is no
    such bar, show the models per hour and the remaining time that follows, once two models are finished.

    Args:
      console: where the bars are drawn.
      progress: the bars.
      overall: whether to show a bar for the whole command.
    """

    def __init__(self, console: Console, progress: Progress, overall: bool):
        self.console = console
        self._progress = progress
        self._overall = progress.add_task("overall", total=1.0) if overall else None
        self._bars: dict[str, TaskID] = {}
        self._last_line_time = time.monotonic()
        self._finished_share = 0.0  # of the command, by earlier stages
        self._stage_share = 0.0
        self._num_parts = 1
        self._part_shares: dict[str, float] = {}
        self._remaining: RemainingTime | None = None
        self._models_per_hour: float | None = None
        self._end_time: float | None = None  # of the last model, as estimated

    @property
    def estimates_models(self) -> bool:
        """Whether the remaining time is estimated from models."""
        return self._remaining is not None

    def estimate_from_models(self, remaining: RemainingTime) -> None:
        """Estimates the remaining time of the command from the events that `track` receives from now on."""
        self._remaining = remaining

    def track(self, event: dict[str, Any]) -> None:
        """Updates the estimate of the remaining time with an event, as `RemainingTime.add` describes it."""
        if self._remaining is None:
            return
        now = time.monotonic()
        self._remaining.add(now, event)
        self._models_per_hour, seconds = self._remaining.per_hour(now), self._remaining.seconds(now)
        self._end_time = None if seconds is None else now + seconds

    def remaining_text(self, bar: Task) -> str:
        """Returns the remaining time that a bar shows, such as "3 min left", or "" if it is unknown.

        For models, it is preceded by the rate, as in "40 models per hour, 3 min left".
        """
        if bar.finished:
            return ""
        if bar.id == self._overall:
            return self._models_text()
        of_models = bar.description in MODEL_BARS and self._overall is None and self._models_text()
        return of_models or _left_text(bar.time_remaining)

    def _models_text(self) -> str:
        # Nothing is shown once the estimated end has passed.
        left = _left_text(None if self._end_time is None else self._end_time - time.monotonic())
        if not (left and self._models_per_hour):
            return left
        return f"{format_rate(self._models_per_hour)} models per hour, {left}"

    def stage(self, share: float, num_parts: int = 1) -> None:
        """Starts a stage.

        Args:
          share: the approximate fraction of the command's time that the stage takes.
          num_parts: number of bars that the stage will show.
        """
        self._finished_share += self._stage_share
        self._stage_share, self._num_parts, self._part_shares = share, num_parts, {}
        self._update_overall()

    def say(self, line: str) -> None:
        """Prints a line above the bars."""
        self._progress.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, label: str, done: float, total: float) -> None:
        """Updates the bar of this label, or adds one."""
        if label not in self._bars:
            self._bars[label] = self._progress.add_task(label, total=total, completed=done)  # pyright: ignore[reportArgumentType]
        self._progress.update(self._bars[label], completed=done, total=total)
        self._part_shares[label] = done / max(total, 1)
        self._update_overall()
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line_time > _LINE_SECONDS:
            self._last_line_time = now
            bars = [self._bars[label]]
            if self._overall is not None:
                bars.insert(0, self._overall)
            self.say(", ".join(map(self._describe, bars)))

    def _describe(self, bar: TaskID) -> str:
        task = self._progress.tasks[bar]
        left = self.remaining_text(task)
        return f"{task.description} {task.percentage:.0f}%" + (f" ({left})" if left else "")

    def _update_overall(self) -> None:
        if self._overall is not None:
            share = min(sum(self._part_shares.values()) / self._num_parts, 1)
            completed = self._finished_share + self._stage_share * share
            self._progress.update(self._overall, completed=completed)


def _left_text(seconds: float | None) -> str:
    return f"{format_duration(round(seconds))} left" if seconds and seconds >= 1 else ""


class _DurationColumn(ProgressColumn):
    """A column of durations.

    Args:
      text: returns the text for a bar.
    """

    def __init__(self, text: Callable[[Task], str]):
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        """Returns the text of a bar."""
        return Text(self._text(task), style="progress.remaining")


def _elapsed_text(bar: Task) -> str:
    seconds = bar.finished_time if bar.finished else bar.elapsed
    return "" if seconds is None else format_duration(round(seconds))


@contextmanager
def display(overall: bool) -> Iterator[Display]:
    """Shows bars on stderr during the block, optionally with one for the whole command."""
    console = Console(stderr=True)
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    columns += [TextColumn("{task.percentage:>3.0f}%"), _DurationColumn(_elapsed_text)]
    # Workers finish their models at about the same time, so average the rate over more than the default of 30 s.
    with Progress(*columns, console=console, speed_estimate_period=300) as progress:
        shown = Display(console, progress, overall)
        progress.columns = (*progress.columns, _DurationColumn(shown.remaining_text))
        try:
            yield shown
        except BaseException:
            # Unfinished bars, and the empty line after them, would only distract from the error message.
            progress.live.transient, console.quiet = True, not console.is_terminal
            raise
        if not progress.tasks:  # nor does an empty line serve commands that have shown no bar
            progress.live.transient, console.quiet = True, not console.is_terminal
        for task in progress.tasks:
            progress.update(task.id, completed=task.total)


class Tally:
    """Turns the events of workers into bars and lines.

    Args:
      display: where they are shown.
      verb: whether models are trained, scored, or both ("run").
      requested: number of requested models.
      missing: number of these that this command makes.
    """

    def __init__(self, display: Display, verb: ModelVerb, requested: int, missing: int):
        self._display, self._verb = display, verb
        self._requested, self._missing = requested, missing
        self._trained_shares: dict[str, float] = {}
        self._scored_shares: dict[str, float] = {}
        self._started: set[str] = set()
        self._has_reported_waiting, self._execution_plan = False, ""
        self._update_bars()

    def on_event(self, event: dict[str, Any]) -> None:
        """Handles an event of `lm_mia.run.supervisor`."""
        self._display.track(event)
        kind, say = event["event"], self._display.say
        model = event.get("model", "")
        if kind == "worker":
            self._report_worker(event)
        elif kind == "compiled":
            say(
                f"worker {event['index']}: {format_duration(event['seconds'])} of compilation: "
                f"{plural(event['compiled'], 'function')} compiled, {event['from_cache']} read from the cache"
            )
        elif kind == "idle_devices":
            say(event["message"])
        elif kind == "model_diverged":
            self._trained_shares.pop(model, None)
            say(f"{event['message']}; the other models continue")
        elif kind == "worker_lost":
            say(
                f"worker {event['index']} exited with code {event['exit_code']} (killed, or out of memory?); "
                f"{plural(event['left'], 'worker')} left to make its models"
            )
        elif kind == "stopping":
            say("stopping: the workers are saving the models that they are training")
        elif kind == "waiting":
            # Models that workers of this command are making are not reported.
            others = sorted(set(event["models"]) - self._started)
            if others and not self._has_reported_waiting:
                say(f"waiting for models locked by another process: {', '.join(others)}")
                self._has_reported_waiting = True
        elif kind == "model_started":
            self._started.add(model)
        elif kind == "step":
            self._trained_shares[model] = event["step"] / event["steps"]
        elif kind == "model_trained":
            self._trained_shares[model] = 1.0
            resumed = f", resumed at step {event['resumed_at']}," if event["resumed_at"] else ""
            say(
                f"{model}: trained {event['steps']} steps{resumed} in {format_duration(event['seconds'])}"
            )
        elif kind == "scoring":
            self._scored_shares[model] = event["share"]
        elif kind == "model_scored" and event["last"]:
            self._scored_shares[model] = 1.0
            self._trained_shares[model] = 1.0  # if it was trained by an earlier command
            on_members, on_others = event["member_loss_nats"], event["nonmember_loss_nats"]
            losses = f"{on_members:.3f} nats per token on members, {on_others:.3f} on non-members"
            if event.get("role") == "base":
                losses = f"{on_others:.3f} nats per token"
            say(f"{model}: scored in {format_duration(event['seconds'])}; mean loss {losses}")
        self._update_bars()

    def _report_worker(self, event: dict[str, Any]) -> None:
        devices = f", {event['devices']} devices" if event["devices"] > 1 else ""
        devices += f" in {event['processes']} processes" if event["processes"] > 1 else ""
        self._display.say(
            f"worker {event['index']}: {event['device']} ({event['platform']}){devices}"
        )
        if event["execution_plan"] != self._execution_plan:  # usually the same for all workers
            self._execution_plan = event["execution_plan"]
            self._display.say(f"{self._execution_plan}; compilation cache: {event['cache']}")

    def finish(self) -> None:
        """Fills the bars, including the models that other processes made."""
        self._trained_shares = self._scored_shares = {"": float(self._missing)}
        self._update_bars()

    def _update_bars(self) -> None:
        present = self._requested - self._missing
        if self._verb != "score":
            done = present + sum(self._trained_shares.values())
            self._display.update("train", done, self._requested)
        if self._verb != "train":
            done = present + sum(self._scored_shares.values())
            self._display.update("score", done, self._requested)
