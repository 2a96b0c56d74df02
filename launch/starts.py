"""Counts the starts of a job without progress, so that it is started again only while that helps.

A job that is stopped or killed is started again by its scheduler, under the same name, any number of times. At each
start it compares what is saved of its models with what was saved at the start before. Only if nothing was added in
several starts in a row does it give up. A job that ends by itself forgets the count.

The count is in ``logs/JOB.starts.json`` of the workdir.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import heartbeats
from lm_mia.atomic import write_atomically
from lm_mia.data.subsets import ModelSeeds
from lm_mia.run import inventory
from lm_mia.run.sweep import SweepRecipe

MAX_WITHOUT_PROGRESS = 5
"""Number of starts in a row without progress after which a job gives up."""

Progress = Mapping[str, list[int]]
"""Name of each missing model -> its newest checkpoint, and the number of parts of its scores that are missing."""


def starts_file(workdir: Path, job: str) -> Path:
    """Returns the file in which a job counts its starts."""
    return workdir / "logs" / f"{heartbeats.file_name(job)}.starts.json"


def progress(recipe: SweepRecipe, missing: Sequence[ModelSeeds]) -> dict[str, list[int]]:
    """Returns how far the missing models of a job are; a finished model is absent."""
    parts = inventory.missing_parts(recipe.config, recipe.folder, missing)
    return {
        str(model): [heartbeats.saved_step(recipe.folder, str(model)), number]
        for model, number in zip(missing, parts, strict=True)
    }


def without_progress(previous: object, now: Progress) -> int:
    """Returns the number of starts in a row, up to this one, that found nothing new.

    Args:
      previous: what the file of the job contained, as parsed JSON; None, or anything else, if there was no start.
      now: the progress of this start.
    """
    if isinstance(previous, dict) and previous.get("progress") == now:
        return int(previous.get("without_progress", 0)) + 1
    return 0


def count(path: Path, now: Progress) -> int:
    """Records a start, and returns the number of starts in a row without progress.

    Every start changes the content of the file.
    """
    try:
        previous = json.loads(path.read_bytes())
    except (OSError, ValueError):  # the first start, or a damaged file
        previous = None
    number = without_progress(previous, now)
    starts = 1 + (previous["starts"] if isinstance(previous, dict) else 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"starts": starts, "without_progress": number, "progress": now}
    write_atomically(path, json.dumps(record) + "\n")
    return number
