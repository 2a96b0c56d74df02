"""Measures how fast this machine trains and scores models of a recipe on its CPU, in a few seconds.

A probe makes two small models in each worker process, as `lm-mia run` would: the same program on packed sequences of
the same shapes, with checkpoints and a score store, but on fewer samples. It ends after about `LIMIT_SECONDS` with what
it has measured by then. It does not load JAX in the calling process. The compiled code stays in the compilation cache,
from which a run then reads it.
"""

import dataclasses
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lm_mia import config, seeds
from lm_mia.config import Config
from lm_mia.config.recipe import POPULATION_FORMAT
from lm_mia.data.population import describe_files, manifest_bytes
from lm_mia.data.subsets import models_of_config
from lm_mia.errors import UserError
from lm_mia.model import flops, memory
from lm_mia.run import model_sizes, supervisor
from lm_mia.run.model_times import ModelTimes, Timeline
from lm_mia.run.progress import plural
from lm_mia.run.worker import WorkerTask
from lm_mia.store.store import open_store

LIMIT_SECONDS = 20.0
"""A probe ends after this many seconds, or, if it takes longer, when each worker has logged two training steps."""
_MODEL_SECONDS = 3.0  # intended duration of each model of a probe
_MAX_SEQUENCE_SECONDS = 4.0  # of training on one packed sequence
_TIMEOUT_SECONDS = 60.0  # after which a probe fails if it has not measured two training steps
_ASSUMED_FLOPS_PER_SECOND = 3e10  # of one worker; determines only the size of the probe
_MODELS_PER_WORKER = 2  # the first one of each includes compilation
_MIN_STEPS = 4


class _TimeLimitReached(Exception):
    """Ends a probe when its time is over and it has measured enough."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast worker processes make models of a recipe side by side."""

    start_seconds: float
    """From the start of a worker until it is ready, plus the time in which it ends."""
    compile_seconds: float
    """How much longer the first model of a worker takes than later ones."""
    step_seconds: float
    """Of a training step."""
    train_extra_seconds: float
    """Of training a model, in addition to its steps, mostly for checkpoints."""
    score_seconds_per_sample: float
    """Of scoring one sample under a model, including a share of the time to read the checkpoint."""
    core_share: float
    """The fraction of a core that each worker got on average."""
    description: str
    """What was measured, such as "4 small models"."""


def probe(
    c: Config,
    lengths: Callable[[int], np.ndarray],
    num_workers: int,
    name: str,
    limit_seconds: float = LIMIT_SECONDS,
) -> Speed:
    """Trains and scores a few small models in worker processes.

    Args:
      c: the config of the recipe.
      lengths: takes N and returns length_N, lengths in tokens of N samples, distributed as in the recipe.
      num_workers: number of worker processes.
      name: name of the recipe, for messages.
      limit_seconds: replaces `LIMIT_SECONDS`.

    Raises:
      UserError: if the models are too large for a probe, or workers fail.
    """
    small = _small_config(c, num_workers, name)
    timeline = Timeline()
    began = time.monotonic()

    def on_event(event: dict[str, Any]) -> None:
        now = time.monotonic() - began
        timeline.add(now, event)
        if now > limit_seconds and _has_measured_steps(timeline, num_workers):
            raise _TimeLimitReached
        if now > _TIMEOUT_SECONDS:
            raise _too_slow(name)

    with tempfile.TemporaryDirectory(prefix="lm_mia_plan_") as folder:
        population_dir, recipe_dir = Path(folder) / "population", Path(folder) / "recipe"
        length_N = lengths(small.population.samples)
        _write_population(small, length_N, population_dir)
        recipe_dir.mkdir()
        models = models_of_config(small)
        open_store(small, recipe_dir).create_or_extend(models, {"tokens": length_N}, {})
        began, cpu_began = time.monotonic(), _child_cpu_seconds()
        timeline.add(0.0, {"event": "models", "verb": "run"})
        is_complete = True
        try:
            supervisor.run(WorkerTask("run", small, population_dir, recipe_dir), on_event)
        except _TimeLimitReached:
            is_complete = False
        seconds = time.monotonic() - began
        cpu_seconds = _child_cpu_seconds() - cpu_began
    measured = _speed(
        timeline,
        seconds if is_complete else None,
        len(length_N),
        small.train.batch_size,
        is_compiled_for_run=small.train.batch_size == c.train.batch_size,
        core_share=min(cpu_seconds / (seconds * num_workers), 1.0),
    )
    ratio = c.train.batch_size / small.train.batch_size
    return dataclasses.replace(measured, step_seconds=measured.step_seconds * ratio)


def _has_measured_steps(timeline: Timeline, num_workers: int) -> bool:
    """Returns whether each worker has finished a model, or logged two steps of one."""
    return len(timeline.workers) == num_workers and all(
        worker.models or (worker.running and worker.running.step_seconds is not None)
        for worker in timeline.workers.values()
    )


def _small_config(c: Config, num_workers: int, name: str) -> Config:
    """Returns the config of a probe, whose models take a few seconds each."""
    length_tokens, batch_size = c.population.length_tokens, c.train.batch_size
    micro_batch_size = memory.micro_batch_size(
        c.compute.micro_batch_size, length_tokens, batch_size, 1, memory.CPU_TOKENS
    )
    sequence_flops = flops.training(model_sizes.size(c), length_tokens, length_tokens**2)
    if sequence_flops / _ASSUMED_FLOPS_PER_SECOND > _MAX_SEQUENCE_SECONDS:
        raise _too_slow(name)
    # Half of the samples are trained on, and all are scored, which costs a third of training on them.
    sample_flops = sequence_flops * (1 / 2 + 1 / 3)
    affordable = int(_MODEL_SECONDS * _ASSUMED_FLOPS_PER_SECOND / sample_flops)
    samples = min(c.population.samples, affordable)
    batch_size = max(min(batch_size, samples // 2 // _MIN_STEPS), min(batch_size, micro_batch_size))
    samples = max(samples, 2 * batch_size * min(_MIN_STEPS, config.total_steps(c)))
    return dataclasses.replace(
        c,
        population=dataclasses.replace(
            c.population, samples=samples - samples % 2, validation_samples=0
        ),
        optimizer=dataclasses.replace(c.optimizer, warmup_steps=0),
        train=dataclasses.replace(
            c.train,
            subset="exact",
            canaries=0,
            batch_size=batch_size,
            epochs=1,
            validations=0,
            trackers=(),
            workers=num_workers,
        ),
        compute=dataclasses.replace(c.compute, micro_batch_size=micro_batch_size),
        score=dataclasses.replace(
            c.score,
            at_epochs=(),
            at_steps=(),
            token_samples=(),
            # lowercase_loss needs the tokenizer; the plan accounts for its second forward pass.
            statistics=tuple(s for s in c.score.statistics if s != "lowercase_loss"),
        ),
        attack=dataclasses.replace(
            c.attack, references=_MODELS_PER_WORKER * num_workers, targets=0, replicas=0, step=0
        ),
    )


def _too_slow(name: str) -> UserError:
    return UserError(
        f"--device=cpu: the models of recipe {name} are too large to be measured quickly on this machine; choose an "
        "accelerator, such as --device=h100, or a smaller model"
    )


def _child_cpu_seconds() -> float:
    """Returns the CPU time of all ended child processes of this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_population(c: Config, length_N: np.ndarray, folder: Path) -> None:
    """Writes a population of random tokens; only the files that workers read."""
    folder.mkdir()
    vocab_size = c.tokenizer.vocab_size
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    tokens = seeds.rng(0, "probe").integers(4, vocab_size, int(length_N.sum())).astype(dtype)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "offsets.npy", np.append(0, np.cumsum(length_N)).astype(np.int64))
    manifest = {
        "format": POPULATION_FORMAT,
        "vocab_size": vocab_size,
        "settings": {"population.length_tokens": c.population.length_tokens},
        "files": describe_files(folder, ["tokens.npy", "offsets.npy"]),
    }
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))


def _speed(
    timeline: Timeline,
    end: float | None,
    samples: int,
    batch_size: int,
    is_compiled_for_run: bool,
    core_share: float,
) -> Speed:
    """Returns the speed that the events of a probe show.

    It is computed from all models except the first one of each worker; if there are none, from the first models; and if
    none is finished, from training steps.

    Args:
      timeline: the events of the probe, with times since the workers were started.
      end: when all workers had ended; None if the probe ended before its models were finished.
      samples: number of samples that were scored under each model.
      batch_size: number of samples of a training step.
      is_compiled_for_run: whether a run can read the code that was compiled for the probe from the cache.
      core_share: as in `Speed`.
    """
    workers, mean = timeline.all_workers, statistics.fmean
    finished = [model for worker in workers for model in worker.models]
    running = [worker.running for worker in workers if worker.running]
    first = [model for model in finished if model.is_first]
    # One worker may make so many models that another makes only its first one.
    later = [model for model in finished if not model.is_first]
    logged = [model for model in running if len(model.logged) == 2]
    step_seconds = mean(map(_step_seconds, later or first or logged))
    if later:
        compile_seconds = mean(map(_model_seconds, first)) - mean(map(_model_seconds, later))
    elif first:
        compile_seconds = mean(m.compile_seconds for m in first)
    else:
        compile_seconds = mean(m.logged[0][0] - m.started_at for m in logged) - step_seconds
    not_cached = [
        event["seconds"] * event["compiled"] / (event["compiled"] + event["from_cache"])
        for worker in workers
        if (event := worker.compilation)
    ]
    if is_compiled_for_run and not_cached:
        compile_seconds -= mean(not_cached)
    extra_seconds = 0.0
    if later:
        extra_seconds = mean(_known(m.train_seconds) - m.num_steps * step_seconds for m in later)
    if later or first:
        score_seconds = mean(_known(m.score_seconds) for m in later or first) / samples
        description = plural(len(finished), "small model")
    else:
        score_seconds = step_seconds / batch_size / 3
        steps = plural(sum(m.logged[-1][1] for m in logged), "training step")
        description = f"{steps}; scoring is assumed to take a third of their time"
    end_seconds = 0.0 if end is None else end - max(_known(m.scored_at) for m in finished)
    return Speed(
        start_seconds=mean(worker.ready_at for worker in workers) + end_seconds,
        compile_seconds=max(compile_seconds, 0),
        step_seconds=step_seconds,
        train_extra_seconds=max(extra_seconds, 0),
        score_seconds_per_sample=score_seconds,
        core_share=core_share,
        description=description,
    )


def _model_seconds(model: ModelTimes) -> float:
    """Returns the seconds of a finished model, including compilation."""
    return _known(model.scored_at) - model.started_at


def _step_seconds(model: ModelTimes) -> float:
    """Returns the mean seconds of a training step, also if the model has only a single one."""
    if model.step_seconds is not None:
        return model.step_seconds
    return _known(model.train_seconds) / model.num_steps


def _known(seconds: float | None) -> float:
    """Returns a time that is always known in a probe."""
    assert seconds is not None
    return seconds
