"""Measures how fast this machine trains and scores models of a recipe on its CPU, in a few seconds.

A probe makes two small models in each worker process, as `lm-mia run` would: the same program on packed sequences of
the same shapes, with checkpoints and a score store, but fewer samples. It loads no JAX in the calling process. The
compiled code stays in the compilation cache, from which a run then reads it.
"""

import dataclasses
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
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
from lm_mia.run import supervisor
from lm_mia.run.worker import WorkerTask
from lm_mia.store.store import open_store

_MODEL_SECONDS = 3.0  # of each model of a probe
_MAX_SAMPLE_SECONDS = 4.0  # of training on one packed sequence
_TIMEOUT_SECONDS = 90.0
_ASSUMED_FLOPS_PER_SECOND = 3e10  # of one worker; determines only the size of the probe
_MODELS_PER_WORKER = 2  # the first one of each includes compilation
_MIN_STEPS = 4

TimedEvent = tuple[float, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Speed:
    """How long workers take that make models of a recipe side by side."""

    start_seconds: float
    """From the start of a worker until it is ready."""
    compile_seconds: float
    """How much longer the first model of a worker takes than the next ones."""
    step_seconds: float
    """A training step."""
    train_extra_seconds: float
    """Of training a model, in addition to its steps: the first and the last checkpoint."""
    score_seconds_per_sample: float
    """Of scoring a model once, including its share of reading the checkpoint."""
    core_share: float
    """The fraction of a core that each worker had."""


def probe(c: Config, lengths: Callable[[int], np.ndarray], num_workers: int, name: str) -> Speed:
    """Trains and scores a few small models in worker processes.

    Args:
      c: the config of the recipe.
      lengths: returns length_N, numbers of tokens of N samples, as they are in the recipe.
      num_workers: number of worker processes.
      name: name of the recipe, for messages.

    Raises:
      UserError: if a single packed sequence takes too long for a probe, or workers fail.
    """
    small = _small_config(c, num_workers, name)
    began = time.monotonic()
    events: list[TimedEvent] = []

    def on_event(event: dict[str, Any]) -> None:
        now = time.monotonic() - began
        events.append((now, event))
        if now > _TIMEOUT_SECONDS:
            raise _too_slow(name)

    with tempfile.TemporaryDirectory(prefix="lm_mia_plan_") as folder:
        population_dir, recipe_dir = Path(folder) / "population", Path(folder) / "recipe"
        length_N = lengths(small.population.samples)
        _write_population(small, length_N, population_dir)
        recipe_dir.mkdir()
        models = models_of_config(small)
        open_store(small, recipe_dir).create_or_extend(models, {"tokens": length_N}, {})
        began, cpu_began = time.monotonic(), _cpu_seconds_of_children()
        supervisor.run(WorkerTask("run", small, population_dir, recipe_dir), on_event)
        seconds = time.monotonic() - began
        cpu_seconds = _cpu_seconds_of_children() - cpu_began
    is_compiled_for_run = small.train.batch_size == c.train.batch_size
    measured = _speed(events, seconds, len(length_N), is_compiled_for_run, cpu_seconds)
    ratio = c.train.batch_size / small.train.batch_size
    return dataclasses.replace(measured, step_seconds=measured.step_seconds * ratio)


def _small_config(c: Config, num_workers: int, name: str) -> Config:
    """Returns the config of a probe, whose models take a few seconds each."""
    length_tokens, batch_size = c.population.length_tokens, c.train.batch_size
    micro_batch_size = memory.micro_batch_size(
        c.compute.micro_batch_size, length_tokens, batch_size, 1, memory.CPU_TOKENS
    )
    sequence_flops = flops.training(
        c.model.layers, c.model.width, c.tokenizer.vocab_size, length_tokens, length_tokens**2
    )
    if sequence_flops / _ASSUMED_FLOPS_PER_SECOND > _MAX_SAMPLE_SECONDS:
        raise _too_slow(name)
    # Each sample is scored, which costs a third of training on it, and every second one is trained on.
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
            # It needs the tokenizer; the plan counts its second forward pass.
            statistics=tuple(s for s in c.score.statistics if s != "lowercase_loss"),
        ),
        attack=dataclasses.replace(
            c.attack, references=_MODELS_PER_WORKER * num_workers, targets=0, replicas=0, step=0
        ),
    )


def _too_slow(name: str) -> UserError:
    return UserError(
        f"--device=cpu: the models of recipe {name} are too large to be measured in seconds on this machine; choose an "
        "accelerator, such as --device=h100, or a smaller model"
    )


def _cpu_seconds_of_children() -> float:
    """Returns the CPU time of the processes that this process has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_population(c: Config, length_N: np.ndarray, folder: Path) -> None:
    """Writes a population of random tokens, with only the files that workers read."""
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


@dataclasses.dataclass
class _ModelTimes:
    """The times at which a model of a probe was started, logged, trained and scored."""

    started: float
    steps: int = 0
    logged: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    trained: float = math.nan
    scored: float = math.nan

    @property
    def step_seconds(self) -> float:
        """The mean duration of a training step after the first one."""
        (begin, first), (end, last) = self.logged[0], self.logged[-1]
        return (end - begin) / (last - first) if last > first else self.trained - self.started


def _speed(
    events: Sequence[TimedEvent],
    seconds: float,
    samples: int,
    is_compiled_for_run: bool,
    cpu_seconds: float,
) -> Speed:
    """Returns the speed that the events of a probe show.

    Args:
      events: all events and their times, in seconds since the workers were started.
      seconds: duration of the probe.
      samples: number of samples that each model scored.
      is_compiled_for_run: whether a run reads the code that was compiled for the probe from the cache.
      cpu_seconds: CPU time of the workers.
    """
    ready: dict[int, float] = {}
    models: dict[int, list[_ModelTimes]] = {}
    compilation: list[float] = []
    for now, event in events:
        kind, index = event["event"], event.get("index", 0)
        if kind == "worker":
            ready[index] = now
        elif kind == "model_started":
            models.setdefault(index, []).append(_ModelTimes(now))
        elif kind == "train":
            models[index][-1].logged.append((now, event["step"]))
        elif kind == "model_trained":
            models[index][-1].trained, models[index][-1].steps = now, event["steps"]
        elif kind == "model_scored":
            models[index][-1].scored = now
        elif kind == "compiled":
            count = event["compiled"] + event["from_cache"]
            compilation.append(event["seconds"] * event["compiled"] / count)
    # If one worker was so fast that another one made a single model, there are still later models.
    later = [m for worker_models in models.values() for m in worker_models[1:]]
    mean = statistics.fmean
    later_seconds = mean(m.scored - m.started for m in later)
    compile_seconds = mean(m[0].scored - m[0].started for m in models.values()) - later_seconds
    if is_compiled_for_run and compilation:
        compile_seconds -= mean(compilation)
    step_seconds = mean(m.step_seconds for m in later)
    extra_seconds = mean(m.trained - m.started - m.steps * step_seconds for m in later)
    end_seconds = seconds - max(
        m.scored for worker_models in models.values() for m in worker_models
    )
    core_share = min(cpu_seconds / (seconds * len(ready)), 1.0)
    return Speed(
        start_seconds=mean(ready.values()) + end_seconds,
        compile_seconds=max(compile_seconds, 0),
        step_seconds=step_seconds,
        train_extra_seconds=max(extra_seconds, 0),
        score_seconds_per_sample=mean(m.scored - m.trained for m in later) / samples,
        core_share=core_share,
    )
