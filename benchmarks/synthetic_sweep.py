"""A sweep whose populations are real, made of random words, and whose losses are drawn: no row is trained.

N2: samples of the population (2N).
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config
from lm_mia.attacks import runner
from lm_mia.config import Config
from lm_mia.data import build, subsets
from lm_mia.data.population import MEASURES, open_population
from lm_mia.data.subsets import Row, member
from lm_mia.seeds import rng
from lm_mia.store.store import scores_of

Entry = tuple[dict[str, Any], Config]
"""What an entry of a sweep sets, and its config."""

_LEVEL_NATS, _SPREAD_NATS = 4.0, 0.1


def corpus(path: Path, documents: int, words: int = 40) -> None:
    """A parquet file of so many documents of random words."""
    draw = rng(0, "words of documents")
    known = np.array([f"{a}{b}" for a in _ONSETS for b in _ENDS])
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for low in range(0, documents, 2**14):
            drawn = known[draw.integers(0, len(known), (min(2**14, documents - low), words))]
            writer.write_table(pa.table({"text": [" ".join(row) for row in drawn]}, schema))


_ONSETS = ("ri", "sto", "ma", "win", "let", "gar", "cap", "eng", "mor", "sil", "for", "tea")
_ENDS = ("ver", "ne", "ket", "ter", "den", "tain", "ine", "ning", "est", "cher", "bour", "per")


@dataclasses.dataclass(frozen=True)
class Made:
    """A recipe of the workdir."""

    config: Config
    folder: Path
    """WORKDIR/recipes/NAME."""
    population: Path


def write(workdir: Path, entries: Sequence[Entry], gain: float = 1.0) -> list[Made]:
    """A workdir of many recipes as after training and scoring.

    Training on a sample lowers its loss the more, the larger the model, the more often it was seen and the later;
    larger models have lower losses. Replicas draw their noise anew.

    Args:
      workdir: to make.
      entries: of `lm_mia.config.load.sweep`; corpora must be there.
      gain: times this; 0: members and others are alike.

    Returns:
      Its recipes.
    """
    made = []
    for names, c in _recipes(entries):
        population = workdir / "populations" / _samples_hash(c)
        found = build.build(c.corpus, c.tokenizer, c.population, population)
        recipe = Made(c, workdir / "recipes" / names[0], population)
        recipe.folder.mkdir(parents=True)
        facts = {"config": config.to_dict(c), "names": names, "recipe_hash": "0" * 8, "format": 1}
        facts |= {"population": population.name, "population_sha256": found.sha256}
        facts |= {"lm_mia": "0", "packages": {}, "commit": None, "cpu_cores": 1, "later": []}
        (recipe.folder / "config.json").write_text(json.dumps(facts, indent=1))
        store = scores_of(c, recipe.folder)
        rows = subsets.rows_of(c)
        store.ensure(rows, {n: found.column(n) for n in MEASURES}, {"recipe": names[0]})
        at = [*config.score_steps(c), 0]
        for row in rows:
            member_N2 = member(row.subset_seed, len(found), c.train.subset)
            for step in at:
                loss_N2 = _losses(c, row, member_N2, step, gain)
                logit_N2 = -loss_N2 + 0.2 * _noise(row, "logit", len(loss_N2))
                extra = {str(name): logit_N2 for name in c.score.statistics}
                store.write_row(row, loss_N2, member_N2, extra, step)
            _log(workdir, recipe, row)
        made.append(recipe)
    listed = {"format": 1, "recipes": [m.folder.name for m in made], "figures": []}
    (workdir / "config.json").write_text(json.dumps(listed))
    return made


def attacked(made: Sequence[Made]) -> None:
    """Decision tables of every recipe that has replicas, by the attack stage."""
    for recipe in made:
        if not recipe.config.attack.replicas:
            continue
        store = scores_of(recipe.config, recipe.folder)
        population = open_population(recipe.population, verify=False)
        tables = recipe.folder / "tables"
        silent: Any = lambda *_: None  # noqa: E731
        runner.run(store, population, recipe.config.attack, tables, silent, silent)


_MERGED = ("references", "replicas", "targets", "leave_one_out")
"""Fields of an attack of which a recipe gets the most that any of its entries wants."""


def _recipes(entries: Sequence[Entry]) -> list[tuple[list[str], Config]]:
    """(names, config) of every recipe; entries that differ in the number of models or in statistics share one."""
    found: dict[str, tuple[list[str], Config]] = {}
    for _, c in entries:
        parts = config.to_dict(c)
        train = {name: value for name, value in parts["train"].items() if name != "validations"}
        made_of = [parts[name] for name in ("corpus", "tokenizer", "population", "model")]
        made_of += [train, parts["optimizer"], config.score_steps(c)]
        key = json.dumps(made_of, sort_keys=True)
        names, old = found.get(key, ([], c))
        found[key] = list(dict.fromkeys([*names, c.name])), _union(old, c)
    return list(found.values())


def _union(a: Config, b: Config) -> Config:
    """A config that wants the models and statistics of both."""
    most = {name: max(getattr(a.attack, name), getattr(b.attack, name)) for name in _MERGED}
    statistics = dict.fromkeys([*a.score.statistics, *b.score.statistics])
    return dataclasses.replace(
        a,
        attack=dataclasses.replace(a.attack, **most),
        score=dataclasses.replace(a.score, statistics=tuple(statistics)),
        extract=max(a.extract, b.extract, key=lambda e: e.samples),
        train=dataclasses.replace(
            a.train, validations=max(a.train.validations, b.train.validations)
        ),
    )


def _samples_hash(c: Config) -> str:
    parts = config.to_dict(c)
    named = json.dumps([parts[name] for name in ("corpus", "tokenizer", "population")])
    return hashlib.sha256(named.encode()).hexdigest()[:8]


def _losses(c: Config, row: Row, member_N2: np.ndarray, step: int, gain: float) -> np.ndarray:
    n, total = len(member_N2), config.total_steps(c)
    size = 12 * c.model.layers * c.model.width**2
    epochs = c.train.epochs * (step or total) / total
    per_sample_N2 = rng(1, "gain of a sample").gamma(2, 0.5, n)
    gained_N2 = gain * _SPREAD_NATS * 0.8 * (size / 1e5) ** 0.3 * epochs * per_sample_N2
    level_N2 = _LEVEL_NATS - 0.2 * np.log(size) / 10 + rng(1, "level of a sample").normal(0, 0.5, n)
    noise_N2 = _SPREAD_NATS * _noise(row, f"loss {step}", n)
    return (level_N2 - gained_N2 * member_N2 + noise_N2).clip(0.01).astype(np.float32)


def _noise(row: Row, purpose: str, n: int) -> np.ndarray:
    return rng(row.order_seed, f"{row.role} {purpose}").standard_normal(n).astype(np.float32)


def _log(workdir: Path, recipe: Made, row: Row) -> None:
    """What training says of a row, as far as figures read it."""
    c, total = recipe.config, config.total_steps(recipe.config)
    about = {"recipe": recipe.folder.name, "row": str(row), "role": row.role, "steps": total}
    size = 12 * c.model.layers * c.model.width**2
    with (workdir / "metrics.jsonl").open("a") as log:
        for i in range(1, c.train.validations + 1):
            step = -(-i * total // c.train.validations)
            loss = 3 - 0.1 * np.log(size) + 3 * np.exp(-4 * step / total)
            event = {"event": "validation", "step": step, "validation_loss_nats": float(loss)}
            log.write(json.dumps(about | event) + "\n")
