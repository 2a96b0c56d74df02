"""A sweep with real populations of random words and with random losses; no model is trained.

N2: samples of the population (2N).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import page
from lm_mia import config
from lm_mia.config import Config
from lm_mia.config.recipe import SweepEntry, recipe_requests
from lm_mia.data import build
from lm_mia.data.population import open_population
from lm_mia.data.subsets import ModelSeeds, member
from lm_mia.run import model_sizes, pipeline
from lm_mia.run import sweep as sweeps
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.workdir import Workdir
from lm_mia.seeds import rng
from lm_mia.store.store import open_store

_LEVEL_NATS, _SPREAD_NATS = 4.0, 0.1


def corpus(path: Path, documents: int, words: int = 40) -> None:
    """Writes a Parquet file of documents of random words."""
    draw = rng(0, "words of documents")
    vocabulary = np.array([f"{a}{b}" for a in _ONSETS for b in _ENDS])
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for low in range(0, documents, 2**14):
            drawn = vocabulary[
                draw.integers(0, len(vocabulary), (min(2**14, documents - low), words))
            ]
            writer.write_table(pa.table({"text": [" ".join(row) for row in drawn]}, schema))


_ONSETS = ("ri", "sto", "ma", "win", "let", "gar", "cap", "eng", "mor", "sil", "for", "tea")
_ENDS = ("ver", "ne", "ket", "ter", "den", "tain", "ine", "ning", "est", "cher", "bour", "per")


def write(folder: Path, entries: Sequence[SweepEntry], gain: float = 1.0) -> list[SweepRecipe]:
    """Writes a workdir of many recipes as training and scoring would.

    Training on a sample lowers its loss more if the model is larger, if the sample was seen more often, and at later
    steps. Larger models have lower losses. Each replica has its own noise.

    Args:
      folder: the workdir.
      entries: result of `lm_mia.config.load.load_sweep`; the corpora must exist.
      gain: factor of the decrease; with 0, members and non-members do not differ.

    Returns:
      The recipes.
    """
    workdir = Workdir(folder)
    tasks = [
        SweepRecipe(workdir, r.names[0], r.config, r.names, r.entries, r.overrides)
        for r in recipe_requests(entries, "synthetic")
    ]
    sweeps.claim_folders(Sweep("synthetic", workdir, (), tuple(tasks), entries[0][1].figures))
    for task in tasks:
        c = task.config
        population = build.build_population(
            c.corpus, c.tokenizer, c.population, task.population_dir
        )
        sweeps.record_population(task, population.sha256)
        store = open_store(c, task.folder)
        store.create_or_extend(task.models, population.sample_columns(), {"recipe": task.name})
        for model in task.models:
            member_N2 = member(model.subset_seed, len(population), c.train.subset)
            for step in (*config.score_steps(c), 0):
                loss_N2 = _losses(c, model, member_N2, step, gain)
                logit_N2 = -loss_N2 + 0.2 * _noise(model, "logit", len(loss_N2))
                extra = {str(name): logit_N2 for name in c.score.statistics}
                store.write_model(model, loss_N2, member_N2, extra, step)
                if step == 0:
                    _log(task, model, loss_N2[member_N2].mean(), loss_N2[~member_N2].mean())
    return tasks


def attacked(tasks: Sequence[SweepRecipe], figures: Sequence[str]) -> None:
    """Runs the attack stage of all recipes with what the figures need."""
    pairs = [(task, open_population(task.population_dir, verify=False)) for task in tasks]
    needs_by_recipe = pipeline.requested_attacks(pairs, page.figure_needs(figures))
    silent: Any = lambda *_: None  # noqa: E731
    for task, population in pairs:
        pipeline.attack(task, population, needs_by_recipe[task.name], silent, silent)


def _losses(
    c: Config, model: ModelSeeds, member_N2: np.ndarray, step: int, gain: float
) -> np.ndarray:
    n, total = len(member_N2), config.total_steps(c)
    size = model_sizes.size(c).kernels
    epochs = c.train.epochs * (step or total) / total
    per_sample_N2 = rng(1, "gain of a sample").gamma(2, 0.5, n)
    gained_N2 = gain * _SPREAD_NATS * 0.8 * (size / 1e5) ** 0.3 * epochs * per_sample_N2
    level_N2 = _LEVEL_NATS - 0.2 * np.log(size) / 10 + rng(1, "level of a sample").normal(0, 0.5, n)
    noise_N2 = _SPREAD_NATS * _noise(model, f"loss {step}", n)
    return (level_N2 - gained_N2 * member_N2 + noise_N2).clip(0.01).astype(np.float32)


def _noise(model: ModelSeeds, purpose: str, n: int) -> np.ndarray:
    return rng(model.order_seed, f"{model.role} {purpose}").standard_normal(n).astype(np.float32)


def _log(
    task: SweepRecipe, model: ModelSeeds, member_loss_nats: float, nonmember_loss_nats: float
) -> None:
    """Logs the events of a model that figures read."""
    c, total = task.config, config.total_steps(task.config)
    fields = {"recipe": task.name, "model": str(model), "role": model.role, "steps": total}
    size = model_sizes.size(c).kernels
    for i in range(1, c.train.validations + 1):
        step = -(-i * total // c.train.validations)
        loss = 3 - 0.1 * np.log(size) + 3 * np.exp(-4 * step / total)
        event = {"event": "validation", "step": step, "validation_loss_nats": float(loss)}
        task.workdir.log_event(fields | event)
    losses = {"member_loss_nats": member_loss_nats, "nonmember_loss_nats": nonmember_loss_nats}
    scored = {name: float(loss) for name, loss in losses.items()}
    task.workdir.log_event(fields | {"event": "model_scored", "last": True, **scored})
