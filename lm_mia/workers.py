"""Making sure that rows exist: worker processes that share a recipe's rows, and nothing but files between them.

Any number of workers, of this command or of others, may be at work on one workdir. A row is worked on under a lock
that the operating system frees when its holder dies, however it dies; whoever finds a row missing and its lock free
takes it.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from lm_mia import batches, config, subsets
from lm_mia.errors import UserError
from lm_mia.population import open_population
from lm_mia.store import Store

Event = dict[str, Any]


def missing(
    todo: str, c: config.Config, recipe: Path, rows: list[subsets.Row]
) -> list[subsets.Row]:
    """The rows that a stage ("train", "score", or "run" for both) has yet to make, in their order.

    A row is scored when its losses and all that ``score.statistics`` asks for are stored. Such a row needs no training,
    whether its checkpoint is still there or not; one that lacks a statistic is scored again from its checkpoint.
    """
    unscored = scores_of(c, recipe).missing(rows)
    return [row for row in unscored if todo != "train" or not trained(c, recipe, row)]


def scores_of(c: config.Config, recipe: Path) -> Store:
    """The recipe's score store, whose rows have what the config asks for."""
    return Store(recipe / "scores.zarr", c.score.statistics)


def trained(c: config.Config, recipe: Path, row: subsets.Row) -> bool:
    """Whether a row's last state is saved; reads names only."""
    return (_checkpoints(recipe, row) / str(total_steps(c, row))).is_dir()


@functools.cache  # a Bernoulli subset is drawn to be counted
def total_steps(c: config.Config, row: subsets.Row) -> int:
    """Updates of a row from start to end."""
    members = c.population.samples // 2
    if c.train.subset == "bernoulli":
        members = int(subsets.member(row.subset_seed, c.population.samples, c.train.subset).sum())
    return c.train.epochs * batches.steps_per_epoch(members, c.train.batch_size)


def run(
    todo: str, c: config.Config, workdir: Path, recipe: Path, on_event: Callable[[Event], None]
) -> None:
    """Starts the workers, passes on what they report, returns when no row is missing.

    Args:
      todo: "train", "score", or "run" for both.
      c: the whole config.
      workdir: of the run.
      recipe: folder of the recipe in it.
      on_event: called in this process with every event of every worker.

    A worker that is killed is lost: the others make its rows.

    Raises:
      UserError: what a worker found wrong, or that all were killed; finished rows stay.
    """
    count, on_cpu = worker_count(c.train.workers)
    count = min(count, len(missing(todo, c, recipe, rows_of(c))))
    if on_cpu:  # read by XLA's CPU client when the worker imports JAX
        os.environ["NPROC"] = "1"
    context = multiprocessing.get_context("spawn")
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess] = {}
    try:
        for index in range(count):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_main, args=(theirs, todo, c, workdir, recipe, index), daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        for event in _events(processes):
            if event["event"] == "user_error":
                raise UserError(event["message"])
            if event["event"] == "crash":
                raise RuntimeError(f"a worker failed:\n{event['message']}")
            on_event(event)
        if left := missing(todo, c, recipe, rows_of(c)):
            raise UserError(
                f"all workers were lost (killed, or out of memory?) with {len(left)} rows missing; "
                "finished rows are kept: run the same command again to go on"
            )
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def worker_count(workers: int) -> tuple[int, bool]:
    """(number of processes at most, whether they compute on CPU) for ``train.workers``, told without loading JAX.

    Processes on CPU have one thread each: rows side by side gain more than threads inside a row, and so a row's bits
    depend on neither the number of cores nor that of workers.
    """
    wanted = os.environ.get("JAX_PLATFORMS", "")
    plugins = importlib.metadata.entry_points(group="jax_plugins")  # CUDA's; a TPU's has none
    installed = bool(plugins) or importlib.util.find_spec("libtpu") is not None
    if wanted not in ("", "cpu") or (not wanted and installed):
        return workers or 1, False
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return workers or cores, True


def rows_of(c: config.Config) -> list[subsets.Row]:
    """The rows that a config asks for."""
    return subsets.rows(c.attack.references, c.attack.replicas)


def _checkpoints(recipe: Path, row: subsets.Row) -> Path:
    return recipe / "checkpoints" / str(row)


def _events(
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess],
) -> Iterator[Event]:
    """Events of all workers as they come, until every worker has ended; a killed one makes an event of its own."""
    pipes = list(processes)
    while pipes:
        for pipe in multiprocessing.connection.wait(pipes):
            assert isinstance(pipe, multiprocessing.connection.Connection)
            try:
                event = pipe.recv()
            except (EOFError, ConnectionResetError):
                pipes.remove(pipe)
                processes[pipe].join()
                if code := processes[pipe].exitcode:
                    yield {"event": "worker_lost", "exit_code": code, "left": len(pipes)}
            else:
                yield event


def _main(
    pipe: multiprocessing.connection.Connection,
    todo: str,
    c: config.Config,
    workdir: Path,
    recipe: Path,
    index: int,
) -> None:
    """A worker process; when whoever started it dies, the pipe breaks at the next report and it ends too."""
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            _work(todo, c, workdir, recipe, index, pipe.send)
        except UserError as error:
            pipe.send({"event": "user_error", "message": str(error)})
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception:
            pipe.send({"event": "crash", "message": traceback.format_exc()})


def _work(
    todo: str,
    c: config.Config,
    workdir: Path,
    recipe: Path,
    index: int,
    report: Callable[[Event], None],
) -> None:
    import jax  # here, so that the process that only watches never loads it

    from lm_mia import model, score, train

    population = open_population(workdir / "population")
    store = scores_of(c, recipe)
    shape = model.Shape(
        **{k: getattr(c.model, k) for k in ("layers", "width", "heads", "dtype")},
        vocab_size=population.vocab_size,
        length_tokens=population.length_tokens,
    )
    step = train.make_step(shape, c.optimizer)
    scorer = score.Scorer(shape, population, c.score.batch_size)
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(f"JAX_PLATFORMS={wanted!r}: no such device here; unset it") from error
    report(
        {
            "event": "worker",
            "index": index,
            "platform": device.platform,
            "device": device.device_kind,
        }
        | {"cpu_cores": os.cpu_count()}
    )

    def make(row: subsets.Row) -> None:
        folder, steps = _checkpoints(recipe, row), total_steps(c, row)
        report({"event": "row_started", "row": str(row), "role": row.role})
        if todo != "score":
            train.train_row(
                row, population, shape, c.optimizer, c.train, steps, folder, step, report
            )
        if todo != "train":
            began = time.monotonic()
            params = score.restore_params(row, steps, shape, folder)
            lacking = [name for name in store.lacking(row) if name in c.score.statistics]
            values = scorer.values(params, lacking)
            for name, values_N2 in values.items():
                if bad := int((~np.isfinite(values_N2)).sum()):
                    what = "losses are" if name == "loss" else f"values of {name} are"
                    raise UserError(f"row {row}: {bad} {what} not finite; the row is not stored")
            loss_N2 = values.pop("loss")
            member_N2 = subsets.member(row.subset_seed, len(population), c.train.subset)
            store.write_row(row, loss_N2, member_N2, values)
            means = {
                "member_loss_nats": loss_N2[member_N2],
                "nonmember_loss_nats": loss_N2[~member_N2],
            }
            report(
                {"event": "row_scored", "row": str(row), "role": row.role}
                | {"seconds": round(time.monotonic() - began, 3)}
                | {name: float(values.mean(dtype="float64")) for name, values in means.items()}
            )

    rows, (count, _) = rows_of(c), worker_count(c.train.workers)
    while waiting := missing(todo, c, recipe, rows):
        took = False
        # Workers start at different places, so that they rarely ask for the same lock.
        start = index * len(waiting) // count
        for row in waiting[start:] + waiting[:start]:
            lock = filelock.FileLock(recipe / "locks" / f"{row}.lock", timeout=0)
            with contextlib.suppress(filelock.Timeout), lock:
                if missing(todo, c, recipe, [row]):
                    make(row)
                    took = True
        if not took:  # somebody else is at work on every row that is left
            report({"event": "waiting", "rows": [str(row) for row in waiting]})
            time.sleep(0.5)
