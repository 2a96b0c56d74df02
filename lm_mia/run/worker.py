"""A worker process: takes rows that nobody is at work on, trains and scores them, and reports to who started it.

Rows are locked by files, so any number of workers, of any commands and hosts, may share a recipe. Where a row spans a
job, the job's processes work as one: the first of them takes the locks and tells the others, and writes what is stored.
"""

import contextlib
import dataclasses
import functools
import json
import multiprocessing.connection
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from lm_mia import config, errors
from lm_mia.atomic import write_atomically
from lm_mia.data import subsets
from lm_mia.data.population import open_population
from lm_mia.errors import UserError
from lm_mia.run import inventory
from lm_mia.run.stages import ModelVerb
from lm_mia.store.store import Store, open_store

Event = dict[str, Any]
Report = Callable[[Event], None]

_DONE, _WAIT = -1, -2  # in place of a row's number
_WAIT_SECONDS = 0.5


def main(
    pipe: multiprocessing.connection.Connection,
    verb: ModelVerb,
    c: config.Config,
    population_dir: Path,
    recipe: Path,
    place: tuple[int, int],
    environment: dict[str, str],
    selected_models: Sequence[subsets.ModelSeeds] | None = None,
) -> None:
    """The process; when whoever started it dies, the pipe breaks at the next report and it ends too.

    Args:
      pipe: to which events are sent.
      todo: "train", "score", or "run" for both.
      c: the whole config.
      population_dir: folder of the samples.
      recipe: folder of the recipe.
      place: index among the workers of the command, and their number.
      environment: set before JAX is loaded.
      only: the rows to make, but for those that others are at work on; None: all, waiting for others' too.
    """
    os.environ |= environment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us sends SIGTERM
    try:
        work = functools.partial(
            _work, verb, c, population_dir, recipe, place, pipe.send, selected_models
        )
        if (problem := _problem(work, recipe)) is None:
            return
        pipe.send(problem)
    except BrokenPipeError:
        pass
    # At once: leaving in order waits for a save that failed, or for other processes of the job, which wait for us.
    os._exit(1)


def _problem(work: Callable[[], None], recipe: Path) -> Event | None:
    """Does the work; what went wrong, as an event, if anything did."""
    try:
        try:
            work()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is on its way out
    except UserError as error:
        kind = "apart" if isinstance(error, errors.RendezvousError) else "user_error"
        return {"event": kind, "message": str(error)}
    except BrokenPipeError:
        raise
    except Exception as error:
        if problem := errors.disk_problem(error):
            message = f"{recipe}: {problem}; {errors.DISK_REMEDY}"
            return {"event": "disk", "message": message}
        return {"event": "crash", "message": traceback.format_exc()}
    return None


def _work(
    verb: ModelVerb,
    c: config.Config,
    population_dir: Path,
    recipe: Path,
    place: tuple[int, int],
    report: Report,
    selected_models: Sequence[subsets.ModelSeeds] | None,
) -> None:
    # here, so that the process that only watches never loads JAX
    from lm_mia.model import transformer
    from lm_mia.run import backend, preemption
    from lm_mia.score.scorer import Scorer, choose_micro_batch_size, restore_params
    from lm_mia.train import execution, loop

    here = backend.start(c.compute.sharding)
    stop = preemption.Stop()
    stop.install()
    tell: Report = report if here.is_primary else lambda event: None
    population = open_population(population_dir, verify=False)  # the command has
    model_config = transformer.ModelConfig.from_settings(
        c.model, population.vocab_size, population.length_tokens
    )
    choice = execution.plan_execution(
        c.compute,
        model_config,
        c.train.batch_size,
        here.description["platform"],
        backend.memory_bytes(),
        here.mesh.size,
    )
    model = transformer.TransformerLM(choice.model_config)
    trainer = loop.Trainer(population, model, c.optimizer, c.train, choice, here.mesh)
    score_micro_batch_size = choose_micro_batch_size(
        c.score.micro_batch_size, population.length_tokens, here.description["platform"]
    )
    scorer = Scorer(model, population, choice.chunk_tokens, score_micro_batch_size, here.local_mesh)
    report(
        {"event": "worker", "index": place[0], "lead": here.is_primary, **here.description}
        | {"choice": str(choice)}
    )
    store, keep = open_store(c, recipe), config.score_steps(c)

    def make(row: subsets.ModelSeeds) -> None:
        folder, steps = inventory.checkpoint_dir(recipe, row), inventory.total_steps(c, row)
        tell({"event": "model_started", "model": str(row), "role": row.role})
        if verb != "score":
            with stop.defer_sigterm() as asked:
                loop.train_model(trainer, row, steps, folder, tell, keep, asked)
        if (
            stop.should_stop()
        ):  # asked at the row's last step, which is no place to stop for train_model
            raise loop.PreemptedError
        for at in (*keep, steps) if verb != "train" else ():
            score_point(row, at, steps, folder)
            if stop.should_stop():
                raise loop.PreemptedError
        if compiled := here.new_compilations():
            report({"event": "compiled", "index": place[0], **compiled})

    def score_point(row: subsets.ModelSeeds, at: int, steps: int, folder: Path) -> None:
        point = 0 if at == steps else at
        # The leading process's list: another one may see a shared folder a little later.
        lacking = store.missing_shards(row, point) if here.is_primary else []
        count = here.broadcast(len(lacking))
        tokens = here.broadcast(here.is_primary and store.is_missing_tokens(row, point))
        if not (count or tokens):
            return
        began, of = time.monotonic(), len(population)
        before, all_points = (*keep, steps).index(at), len(keep) + 1
        member_N2 = subsets.member(row.subset_seed, of, c.train.subset)
        # a signal that cut orbax short would leave its threads with a closed loop
        with stop.defer_sigterm():
            params = restore_params(row, at, model, folder, here.mesh, here.local_mesh)
        if stop.should_stop():
            raise loop.PreemptedError
        for i in range(count):
            low, high, names = lacking[i] if here.is_primary else (0, 0, [])
            low, high = here.broadcast(low), here.broadcast(high)
            asked = here.broadcast(
                sum(2**n for n, name in enumerate(store.variables) if name in names)
            )
            names = [name for n, name in enumerate(store.variables) if asked >> n & 1]

            mine = here.local_samples(low, high)

            def on_samples(done: float, low: int = low, high: int = high) -> None:
                share = (before + (low + (high - low) * done) / of) / all_points
                tell({"event": "scoring", "model": str(row), "share": share})

            statistics = [name for name in names if name not in ("member", "loss")]
            found = scorer.score(params, statistics, mine.start, mine.stop, on_samples)
            values = {
                name: here.all_gather(found[name], high - low) for name in names if name in found
            }
            for name, value_C in values.items():
                if bad := int((~np.isfinite(value_C)).sum()):
                    what = "losses are" if name == "loss" else f"values of {name} are"
                    raise UserError(
                        f"model {row}: {bad} {what} not finite; its scores are not stored"
                    )
            if here.is_primary:
                values = {name: values.get(name, member_N2[low:high]) for name in names}
                store.write_shards(row, low, values, point)
            if stop.should_stop():
                raise loop.PreemptedError
        if here.is_primary:
            if tokens:  # of few samples: the others wait
                log_prob_T = scorer.token_log_probs(params, store.token_samples)
                store.write_tokens(row, log_prob_T, point)
            tell(
                {"event": "model_scored", "model": str(row), "role": row.role, "step": at}
                | {"last": at == steps, "seconds": round(time.monotonic() - began, 3)}
                | _mean_losses(dataclasses.replace(store, step=point), row)
            )

    rows = subsets.models_of_config(c)  # numbered alike in all processes of the job
    locked = _locked(verb, c, recipe, place, selected_models, tell) if here.is_primary else iter(())
    while (number := here.broadcast(next(locked, _DONE))) != _DONE:
        try:
            if number == _WAIT:  # in turns of all, since collectives do not wait for long
                time.sleep(_WAIT_SECONDS)
                if stop.should_stop():
                    raise loop.PreemptedError
            else:
                make(rows[number])
        except loop.DivergedError as error:
            if here.is_primary:
                path = inventory.divergence_file(recipe, rows[number])
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, json.dumps(error.evidence) + "\n")
            tell({"event": "model_diverged", **error.evidence, "message": f"{error}"})
        except loop.PreemptedError:
            report({"event": "preempted"})
            return


def _mean_losses(store: Store, row: subsets.ModelSeeds) -> dict[str, float]:
    """Of members and of others, from the store, since another process may have scored a part of the row."""
    total_2, count_2 = np.zeros(2), np.zeros(2)
    for _, block in store.blocks({name: (name, [row]) for name in ("loss", "member")}):
        member_C = block["member"][0]
        total_2 += [block["loss"][0][of_C].sum(dtype="float64") for of_C in (member_C, ~member_C)]
        count_2 += [member_C.sum(), (~member_C).sum()]
    names = ("member_loss_nats", "nonmember_loss_nats")
    return dict(zip(names, (total_2 / count_2).tolist(), strict=True))


def _locked(
    verb: ModelVerb,
    c: config.Config,
    recipe: Path,
    place: tuple[int, int],
    selected_models: Sequence[subsets.ModelSeeds] | None,
    tell: Report,
) -> Iterator[int]:
    """Which row is missing, while its lock is held, until none is; _WAIT, while others are at work on all of them.

    Of certain rows only: until none is that others are not at work on.
    """
    rows, (index, count) = subsets.models_of_config(c), place
    while waiting := inventory.missing_models(
        verb, c, recipe, rows if selected_models is None else list(selected_models)
    ):
        took = False
        # Workers start at different places, so that they rarely ask for the same lock.
        start = index * len(waiting) // count
        for row in waiting[start:] + waiting[:start]:
            with contextlib.suppress(filelock.Timeout), inventory.model_lock(recipe, row):
                if inventory.missing_models(verb, c, recipe, [row]):
                    took = True
                    yield rows.index(row)
        if not took and selected_models is not None:
            return
        if not took:  # somebody else is at work on every row that is left
            tell({"event": "waiting", "models": [str(row) for row in waiting]})
            yield _WAIT
