"""Sends the metrics of models to TensorBoard and Weights & Biases; the log of the workdir also contains all of them."""

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lm_mia.errors import UserError
from lm_mia.events import Event

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
"""The tracked fields of each event; they are logged under their names, at the step of the event."""

_MAX_OPEN = 64
"""Maximum number of open runs per tracker. The least recently used one is closed, and reopened if needed."""


class TrackedModel(NamedTuple):
    """The run of a model in a tracker."""

    log: Callable[[int, dict[str, float]], None]
    """Logs values: (step, {name: value})."""
    finish: Callable[[], None]
    """Closes the run."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises UserError if a tracker is not installed or needs a login. Imports nothing if `names` is empty."""
    problems = [
        f"train.trackers={name!r}: not installed; install its extra, `uv run --extra {name} lm-mia ...`"
        for name in names
        if importlib.util.find_spec(name) is None
    ]
    if problems:
        raise UserError("\n".join(problems))
    if "wandb" in names:
        import wandb  # imported here because it takes seconds, and few runs need it

        mode = wandb.setup().settings.mode  # from WANDB_MODE or the settings of W&B
        is_online = mode in ("online", "shared")
        if is_online and not wandb.login(prompt=False, verify=False):
            raise UserError(
                "train.trackers='wandb': not logged in to W&B; run `uv run --extra wandb wandb login`, or set "
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
    """Yields a function to call with each event of the workers; closes all runs at the end of the block.

    TensorBoard: ``WORKDIR/tensorboard/RECIPE/MODEL``. W&B: one run per model, in the group RECIPE of the project
    WANDB_PROJECT (default: lm-mia); a model that is resumed in the same workdir continues its run.

    If a tracker fails while models are trained, the failure is reported, the tracker is disabled, and training
    continues.

    Args:
      names: the value of ``train.trackers``.
      workdir: the workdir.
      recipe: the name of the recipe.
      settings: the config, stored by W&B.
      say: shows a line to the user.

    Raises:
      UserError: as in `check_trackers`, before the block begins.
    """
    check_trackers(names)
    starters = {"tensorboard": _tensorboard, "wandb": _wandb}
    active = {name: starters[name](workdir, recipe, settings) for name in names}
    runs: dict[str, dict[str, TrackedModel]] = {name: {} for name in names}

    def track(event: Event) -> None:
        kind = event["event"]
        values = {k: event[k] for k in METRICS.get(kind, ()) if event.get(k) is not None}
        is_last = kind == "model_diverged" or (kind == "model_scored" and event["last"])
        for name in list(active):
            with _errors_disable_tracker(name, active, say):
                if values:
                    run = _open_run(runs[name], event, active[name])
                    run.log(event["step"], values)
                if is_last and event["model"] in runs[name]:
                    runs[name].pop(event["model"]).finish()

    try:
        yield track
    finally:
        for name in list(active):
            with _errors_disable_tracker(name, active, say):
                for run in runs[name].values():
                    run.finish()


def _open_run(
    open_runs: dict[str, TrackedModel], event: Event, start_run: Callable[[str, str], TrackedModel]
) -> TrackedModel:
    """Returns the run of an event's model, which becomes the last of `open_runs`; opens it if needed."""
    model = event["model"]
    run = open_runs.pop(model, None)
    if run is None:
        while len(open_runs) >= _MAX_OPEN:
            open_runs.pop(next(iter(open_runs))).finish()
        run = start_run(model, event["role"])
    open_runs[model] = run
    return run


@contextlib.contextmanager
def _errors_disable_tracker(
    name: str, active: dict[str, Any], say: Callable[[str], None]
) -> Iterator[None]:
    try:
        yield
    # Trackers raise errors of many types if the disk is full or the network is lost.
    except Exception as error:
        del active[name]
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        say(
            f"{name} failed and was disabled ({problem}); the log in the folder metrics has all metrics"
        )


def _tensorboard(
    workdir: Path, recipe: str, settings: Mapping[str, Any]
) -> Callable[[str, str], TrackedModel]:
    # Imported here because it is an extra. This writer does not need TensorFlow.
    from tensorboard.summary import Writer

    def start_run(model: str, role: str) -> TrackedModel:
        writer = Writer(str(workdir / "tensorboard" / recipe / model))

        def log(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return TrackedModel(log, writer.close)

    return start_run


def _wandb(
    workdir: Path, recipe: str, settings: Mapping[str, Any]
) -> Callable[[str, str], TrackedModel]:
    import wandb  # imported here because it is an extra

    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    workdir_hash = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:8]

    def start_run(model: str, role: str) -> TrackedModel:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lm-mia"),
            group=recipe,
            job_type=role,
            name=model,
            id=f"{recipe}-{model}-{workdir_hash}",  # a resumed model has the same id
            resume="allow",
            reinit="create_new",  # several runs are open at the same time
            dir=workdir,
            config={**settings, "recipe": recipe, "model_name": model, "role": role},
            settings=quiet,
        )
        # W&B's own step never decreases, but that of a resumed model does.
        run.define_metric("*", step_metric="step")
        return TrackedModel(lambda step, values: run.log({**values, "step": step}), run.finish)

    return start_run
