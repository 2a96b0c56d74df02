"""Progress of a running command: bars with the remaining time on a terminal, and otherwise lines of text."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lm_mia.run.stages import ModelVerb

_LINE_SECONDS = 10  # between lines if the output is not a terminal


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun, such as "1 model" or "1,024 models"."""
    return f"{count:,} {noun}" + "s" * (count != 1)


class Display:
    """A bar for each part of a stage, and one for the whole command if it runs several stages.

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
        left = f" ({task.time_remaining:.0f} s left)" if task.time_remaining is not None else ""
        return f"{task.description} {task.percentage:.0f}%{left}"

    def _update_overall(self) -> None:
        if self._overall is not None:
            share = min(sum(self._part_shares.values()) / self._num_parts, 1)
            completed = self._finished_share + self._stage_share * share
            self._progress.update(self._overall, completed=completed)


@contextmanager
def display(overall: bool) -> Iterator[Display]:
    """Shows bars on stderr during the block, optionally with one for the whole command."""
    console = Console(stderr=True)
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    columns += [TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn()]
    # Workers finish their models at about the same time, so average the rate over more than the default of 30 s.
    with Progress(*columns, console=console, speed_estimate_period=300) as progress:
        try:
            yield Display(console, progress, overall)
        except BaseException:
            # Unfinished bars, and the empty line after them, would only distract from the error message.
            progress.live.transient, console.quiet = True, not console.is_terminal
            raise
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
        kind, say = event["event"], self._display.say
        model = event.get("model", "")
        if kind == "worker":
            self._report_worker(event)
        elif kind == "compiled":
            say(
                f"worker {event['index']}: {event['seconds']:.1f} s of compilation: "
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
            say(f"{model}: trained {event['steps']} steps{resumed} in {event['seconds']:.1f} s")
        elif kind == "scoring":
            self._scored_shares[model] = event["share"]
        elif kind == "model_scored" and event["last"]:
            self._scored_shares[model] = 1.0
            self._trained_shares[model] = 1.0  # if it was trained by an earlier command
            say(
                f"{model}: scored in {event['seconds']:.1f} s; mean loss {event['member_loss_nats']:.3f} nats per "
                f"token on members, {event['nonmember_loss_nats']:.3f} on non-members"
            )
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
