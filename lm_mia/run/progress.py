"""What a person sees while a run is at work: bars with time left on a terminal, a line a row elsewhere."""

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

_LINE_SECONDS = 10  # between lines where there is no terminal


class Display:
    """One bar for each stage, and one over all stages of a command that has several."""

    def __init__(self, console: Console, progress: Progress, overall: bool):
        self.console = console
        self._progress = progress
        self._overall = progress.add_task("overall", total=1.0) if overall else None
        self._bars: dict[str, TaskID] = {}
        self._said = time.monotonic()
        self._before, self._share, self._steps = 0.0, 0.0, 1
        self._parts: dict[str, float] = {}

    def stage(self, share: float, steps: int = 1) -> None:
        """Begins a stage that takes about this share of the command's time and shows so many bars."""
        self._before, self._share = self._before + self._share, share
        self._steps, self._parts = steps, {}
        self._move()

    def say(self, line: str) -> None:
        """One line above the bars."""
        self._progress.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, label: str, done: float, total: float) -> None:
        """Moves a stage's bar; a new label starts a new bar."""
        if label not in self._bars:
            self._bars[label] = self._progress.add_task(label, total=total, completed=done)  # pyright: ignore[reportArgumentType]
        self._progress.update(self._bars[label], completed=done, total=total)
        self._parts[label] = done / max(total, 1)
        self._move()
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said > _LINE_SECONDS:
            self._said = now
            self.say(", ".join(self._line(name) for name in ("overall", label)))

    def _line(self, name: str) -> str:
        bar = self._overall if name == "overall" else self._bars[name]
        if bar is None:
            return "at work"
        left = self._progress.tasks[bar].time_remaining
        return f"{name} {self._progress.tasks[bar].percentage:.0f}%" + (
            f" ({left:.0f} s left)" if left is not None else ""
        )

    def _move(self) -> None:
        """Moves the overall bar by what the bars of this stage say."""
        if self._overall is not None:
            part = min(sum(self._parts.values()) / self._steps, 1)
            self._progress.update(self._overall, completed=self._before + self._share * part)


@contextmanager
def display(overall: bool) -> Iterator[Display]:
    """Shows bars while the block runs, one of them over all stages if asked for."""
    console = Console(stderr=True)
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    columns += [TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn()]
    # Rows end in bursts, one a worker: the rate must be taken over more than the usual 30 seconds.
    with Progress(*columns, console=console, speed_estimate_period=300) as progress:
        try:
            yield Display(console, progress, overall)
        except BaseException:
            # unfinished bars, and the empty line after them, would only distract from the error message
            progress.live.transient, console.quiet = True, not console.is_terminal
            raise
        for task in progress.tasks:
            progress.update(task.id, completed=task.total)


class Tally:
    """Turns the events of workers into bars and lines: how much of the rows is trained, how many are scored."""

    def __init__(self, display: Display, verb: ModelVerb, wanted: int, missing: int):
        self._display, self._verb, self._wanted, self._missing = display, verb, wanted, missing
        self._trained: dict[str, float] = {}
        self._scored: dict[str, float] = {}
        self._started: set[str] = set()
        self._said_waiting, self._choice = False, ""
        self._show()

    def on_event(self, event: dict[str, Any]) -> None:
        """Takes in one event of `lm_mia.run.supervisor`."""
        kind = event["event"]
        if kind == "worker":
            several = f" x {event['devices']}" if event["devices"] > 1 else ""
            several += f" on {event['processes']} processes" if event["processes"] > 1 else ""
            self._display.say(
                f"worker {event['index']}: {event['platform']}, {event['device']}{several}"
            )
            if event["choice"] != self._choice:  # the same in most workers
                self._choice = event["choice"]
                self._display.say(f"{self._choice}; compiled code is kept in {event['cache']}")
        elif kind == "compiled":
            self._display.say(
                f"worker {event['index']}: compiled in {event['seconds']:.1f} s, {event['from_cache']} functions from "
                f"the cache, {event['anew']} anew"
            )
        elif kind == "model_diverged":
            self._trained.pop(event["model"], None)
            self._display.say(f"{event['message']}; the other models continue")
        elif kind == "worker_lost":
            self._display.say(
                f"a worker ended with code {event['exit_code']} (killed, or out of memory?); "
                f"{event['left']} left, which make its models"
            )
        elif kind == "stopping":
            self._display.say(
                "stopping: workers finish what cannot be interrupted, and save the models in training"
            )
        elif kind == "waiting":
            # Rows that one of our own workers is at work on are no news.
            others = sorted(set(event["models"]) - self._started)
            if others and not self._said_waiting:
                self._display.say(f"waiting for {', '.join(others)}: another command is at work")
                self._said_waiting = True
        elif kind == "model_started":
            self._started.add(event["model"])
        elif kind == "step":
            self._trained[event["model"]] = event["step"] / event["steps"]
        elif kind == "model_trained":
            self._trained[event["model"]] = 1.0
            since = f" from step {event['resumed_at']}" if event["resumed_at"] else ""
            self._display.say(
                f"{event['model']}: trained {event['steps']} steps{since} in {event['seconds']:.1f} s"
            )
        elif kind == "scoring":
            self._scored[event["model"]] = event["share"]
        elif kind == "model_scored" and event["last"]:
            self._scored[event["model"]] = 1.0
            self._trained[event["model"]] = 1.0  # by an earlier command, if no event told of it
            self._display.say(
                f"{event['model']}: scored in {event['seconds']:.1f} s, loss of members "
                f"{event['member_loss_nats']:.3f}, of non-members {event['nonmember_loss_nats']:.3f} nats a token"
            )
        self._show()

    def finish(self) -> None:
        """Fills the bars; models that other processes made count too."""
        self._trained = self._scored = {"": float(self._missing)}
        self._show()

    def _show(self) -> None:
        present = self._wanted - self._missing
        if self._verb != "score":
            self._display.update("train", present + sum(self._trained.values()), self._wanted)
        if self._verb != "train":
            self._display.update("score", present + sum(self._scored.values()), self._wanted)
