"""TensorBoard and Weights & Biases: the metrics of rows, as they come, beside metrics.jsonl, which has them all."""

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lm_mia.errors import UserError

Event = dict[str, Any]

METRICS = {
    "train": (
        "loss_nats",
        "gradient_norm",
        "learning_rate",
        "tokens_per_second",
        "padding_share",
        "mfu",
        "memory_bytes",
    ),
    "validation": ("validation_loss_nats",),
    "model_scored": ("member_loss_nats", "nonmember_loss_nats"),
}
"""What is tracked of the events of workers that have it, under these names, by step."""

_MAX_OPEN = 64  # runs of a tracker; the one that has been silent for longest is closed, and opened again if need be


class TrackedModel(NamedTuple):
    """A row in a tracker."""

    log: Callable[[int, dict[str, float]], None]
    """(step, values by name)"""
    finish: Callable[[], None]


def check_trackers(names: Sequence[str]) -> None:
    """UserError if a tracker cannot work here: it is not installed, or needs a login. Free if none is asked for."""
    bad = [
        f"train.trackers={name!r}: not installed; run it with its extra, `uv run --extra {name} lm-mia ...`"
        for name in names
        if importlib.util.find_spec(name) is None
    ]
    if bad:
        raise UserError("\n".join(bad))
    if "wandb" in names:
        import wandb  # here: it takes seconds, and few ask for it

        sends = wandb.setup().settings.mode in ("online", "shared")  # WANDB_MODE, or its settings
        if sends and not wandb.login(prompt=False, verify=False):
            raise UserError(
                "train.trackers='wandb': nobody is logged in; run `uv run --extra wandb wandb login`, or set "
                "WANDB_MODE=offline"
            )


@contextlib.contextmanager
def open_trackers(
    names: Sequence[str],
    workdir: Path,
    recipe: str,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
) -> Iterator[Callable[[Event], None]]:
    """What is to be called with every event of the workers; closes everything at the end of the block.

    TensorBoard: ``WORKDIR/tensorboard/RECIPE/ROW``. W&B: a run a row, of the group RECIPE, in the project of
    WANDB_PROJECT or lm-mia; a row that is resumed in the same workdir continues its run.

    A tracker that fails while rows are made is told of once and left out from then on: rows matter more.

    Args:
      names: of ``train.trackers``.
      workdir: of the run.
      recipe: the name of its folder in it.
      settings: the config, for W&B.
      say: shows a line to a person.

    Raises:
      UserError: as of `check`, before the block begins.
    """
    check_trackers(names)
    begins = {"tensorboard": _tensorboard, "wandb": _wandb}
    active = {name: begins[name](workdir, recipe, settings) for name in names}
    runs: dict[str, dict[str, TrackedModel]] = {name: {} for name in names}

    def track(event: Event) -> None:
        kind = event["event"]
        values = {k: event[k] for k in METRICS.get(kind, ()) if event.get(k) is not None}
        last = kind == "model_diverged" or (kind == "model_scored" and event["last"])
        for name in list(active):
            with _errors_disable_tracker(name, active, say):
                if values:
                    run = _run(runs[name], event, active[name])
                    run.log(event["step"], values)
                if last and event["model"] in runs[name]:
                    runs[name].pop(event["model"]).finish()

    try:
        yield track
    finally:
        for name in list(active):
            with _errors_disable_tracker(name, active, say):
                for run in runs[name].values():
                    run.finish()


def _run(
    open_runs: dict[str, TrackedModel], event: Event, begin: Callable[[str, str], TrackedModel]
) -> TrackedModel:
    """The run of an event's row, opened if need be; it becomes the last of the open ones."""
    row = event["model"]
    run = open_runs.pop(row, None)
    if run is None:
        while len(open_runs) >= _MAX_OPEN:
            open_runs.pop(next(iter(open_runs))).finish()
        run = begin(row, event["role"])
    open_runs[row] = run
    return run


@contextlib.contextmanager
def _errors_disable_tracker(
    name: str, active: dict[str, Any], say: Callable[[str], None]
) -> Iterator[None]:
    try:
        yield
    except (
        Exception
    ) as error:  # trackers meet full disks and lost networks with whatever their parts raise
        del active[name]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"{name} failed and is left out from here on ({said}); metrics.jsonl has everything")


def _tensorboard(
    workdir: Path, recipe: str, settings: Mapping[str, Any]
) -> Callable[[str, str], TrackedModel]:
    from tensorboard.summary import (
        Writer,
    )  # here: an extra; its own writer, which needs no TensorFlow

    def begin(row: str, role: str) -> TrackedModel:
        writer = Writer(str(workdir / "tensorboard" / recipe / row))

        def log(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return TrackedModel(log, writer.close)

    return begin


def _wandb(
    workdir: Path, recipe: str, settings: Mapping[str, Any]
) -> Callable[[str, str], TrackedModel]:
    import wandb  # here: an extra

    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    where = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:8]

    def begin(row: str, role: str) -> TrackedModel:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lm-mia"),
            group=recipe,
            job_type=role,
            name=row,
            id=f"{recipe}-{row}-{where}",  # the same for a row that goes on
            resume="allow",
            reinit="create_new",  # several are open at once
            dir=workdir,
            config={**settings, "recipe": recipe, "model_name": row, "role": role},
            settings=quiet,
        )
        # W&B's own step never goes back, as a row that is resumed does.
        run.define_metric("*", step_metric="step")
        return TrackedModel(lambda step, values: run.log({**values, "step": step}), run.finish)

    return begin
