"""A worker process, which trains and scores models and reports events to the command that started it.

The command itself never loads JAX: `lm_mia.run.model_maker`, which does, is imported only in the worker.
"""

import functools
import multiprocessing.connection
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_mia import config, errors
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.run.stages import ModelVerb

Event = dict[str, Any]
Report = Callable[[Event], None]


def main(
    pipe: multiprocessing.connection.Connection,
    verb: ModelVerb,
    c: config.Config,
    population_dir: Path,
    recipe_dir: Path,
    worker_index: int,
    num_workers: int,
    environment: dict[str, str],
    selected_models: Sequence[ModelSeeds] | None = None,
) -> None:
    """Runs a worker process. If the command that started it dies, the worker exits at its next report.

    Args:
      pipe: receives the events.
      verb: whether to train models, score them, or both ("run").
      c: the config.
      population_dir: folder of the samples.
      recipe_dir: folder of the recipe.
      worker_index: index of this worker among those of the command.
      num_workers: number of workers of the command.
      environment: environment variables to be set before JAX is loaded.
      selected_models: as in `work`.
    """
    os.environ |= environment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C and sends SIGTERM
    try:
        problem = _problem(
            functools.partial(
                work,
                verb,
                c,
                population_dir,
                recipe_dir,
                worker_index,
                num_workers,
                pipe.send,
                selected_models,
            ),
            recipe_dir,
        )
        if problem is None:
            return
        pipe.send(problem)
    except BrokenPipeError:
        pass
    # Exit at once: a normal exit would wait for a save that failed, or for processes of the job that wait for this one.
    os._exit(1)


def work(
    verb: ModelVerb,
    c: config.Config,
    population_dir: Path,
    recipe_dir: Path,
    worker_index: int,
    num_workers: int,
    report: Report,
    selected_models: Sequence[ModelSeeds] | None = None,
) -> None:
    """Makes the missing models of a recipe in this process.

    The arguments up to ``num_workers`` are those of `main`.

    Args:
      report: called with each event.
      selected_models: the models to make, except those that are locked by another process. None: all models; those
        that are locked are waited for.
    """
    # imported here, since it loads JAX, and the environment must be set before
    from lm_mia.run.model_maker import ModelMaker

    maker = ModelMaker(verb, c, population_dir, recipe_dir, worker_index, num_workers, report)
    maker.run(selected_models)


def _problem(act: Callable[[], None], recipe_dir: Path) -> Event | None:
    """Calls a function; returns the event that describes its failure, or None if it succeeded."""
    try:
        try:
            act()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is about to exit
    except UserError as error:
        kind = "rendezvous" if isinstance(error, errors.RendezvousError) else "user_error"
        return {"event": kind, "message": str(error)}
    except BrokenPipeError:
        raise
    except Exception as error:
        if problem := errors.disk_problem(error):
            message = f"{recipe_dir}: {problem}; {errors.DISK_REMEDY}"
            return {"event": "disk", "message": message}
        return {"event": "crash", "message": traceback.format_exc()}
    return None
