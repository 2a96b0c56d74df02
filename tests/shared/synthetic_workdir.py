"""A synthetic workdir: lm_mia's own attack on Gaussian losses, so that the tables are what an attack writes.

Its log contains more than the tables cover: events of models of an earlier, larger attack, of another recipe, and of an
earlier training of the first model. The losses of all of these differ widely from those of the models in the tables.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import opening, page
from analysis.io import RecipeResults
from lm_mia import config, events
from lm_mia.attacks import exports, runner, table_sets
from lm_mia.attacks.experiment import Content
from lm_mia.config.recipe import FORMAT, POPULATION_FORMAT, recipe_hash
from lm_mia.data import subsets
from lm_mia.data.population import IMPORTED, SPLIT_DOCUMENTS, describe_files, manifest_bytes
from lm_mia.data.subsets import ModelSeeds
from lm_mia.run import model_sizes
from lm_mia.score import extraction
from lm_mia.store.store import Store

FPRS, FOCUS = (0.01, 0.05, 0.1, 0.2, 0.5), 0.05
RECIPE, OTHER_RECIPE = "demo", "other"
FAR, TARGET_SEED = 77.0, 2**31
LATER = {"lm_mia": "0.2.0", "packages": {"jax": "9.9.9"}, "commit": "abc123+", "cpu_cores": 96}
NASTY = "<script>alert('x & y')</script>\n\"quoted\", " + "long" * 40
ATTACKS = (
    "lira_online",
    "lira_offline",
    "rmia",
    "rmia_offline",
    "rmia_simple",
    "reference_calibrated",
    "shrunk",
    "stacked",
    "loss",
    "zlib",
)
STATISTICS = {"min_k": "min_k", "min_k_plus_plus": "min_k_plus_plus", "lowercase": "lowercase_loss"}


@dataclasses.dataclass(frozen=True)
class World:
    """Losses of the models of an attack on N samples."""

    models: Sequence[ModelSeeds]
    loss_MxN: np.ndarray
    member_MxN: np.ndarray
    larger: Sequence[ModelSeeds]
    """Models of an earlier, larger attack, which are only in the log."""


class Page(HTMLParser):
    """Collects tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())


def write_workdir(
    folder: Path,
    name: str = RECIPE,
    *,
    samples: int = 300,
    pieces: int = 1,
    effect: float = 0.6,
    design: subsets.Design = "exact",
    absent: Sequence[str] = (),
    later: tuple[dict[str, Any], ...] = (),
    texts: Sequence[str] | None = None,
    **settings: Any,
) -> RecipeResults:
    """Writes a workdir of one recipe as after `lm-mia attack`; training on a sample lowers its loss by `effect`.

    Args:
      folder: a new or existing workdir.
      name: name of the recipe.
      samples: number of samples of the population.
      pieces: number of samples per document.
      effect: mean decrease of a member's loss, in nats.
      design: design of the training subsets.
      absent: names of models without values in the store.
      later: later commands of config.json.
      texts: the texts of the samples; None: `NASTY` and some words.
      settings: settings of the attack, in addition to or instead of the defaults of this function.

    Returns:
      The recipe.
    """
    defaults = {"references": 16, "replicas": 16, "fprs": FPRS, "focus_fpr": FOCUS}
    defaults |= {"attacks": ATTACKS, "bootstraps": 40, "rmia_samples": 100, "band": (0.01, 0.2)}
    c = config.Attack(**(defaults | settings))
    rng = np.random.default_rng(0)
    models = subsets.requested_seeds(c.references, c.replicas, c.replica_inits, c.orders_per_init)
    member_MxN = subsets.members(models, samples, design)
    level_N, gain_N = rng.normal(4, 0.6, samples), effect * rng.gamma(2, 0.5, samples)
    loss_MxN = level_N - gain_N * member_MxN + rng.normal(0, 0.25, member_MxN.shape)
    larger = [
        r for r in subsets.requested_seeds(c.references + 4, c.replicas + 1) if r not in models
    ]
    world = World(models, loss_MxN.astype(np.float32), member_MxN, larger)
    recipe = folder / "recipes" / name
    _write_store(recipe, world, c, absent)
    _write_config(folder, name, samples, later, c, design)
    _write_population(folder / "populations" / "89abcdef", samples, pieces, texts)
    runner.run(read_attacked(recipe).view, recipe / "tables")
    present = [m for m, model in enumerate(models) if str(model) not in absent]
    _write_log(folder / events.FOLDER / "synthetic.jsonl", name, world, present, rng)
    return read_attacked(recipe)


def read_attacked(recipe_dir: Path) -> RecipeResults:
    """Returns a recipe as commands read it: with what every page needs."""
    recipes = opening.read_recipes(recipe_dir.parents[1], [recipe_dir.name])
    [recipe] = opening.with_needs(recipes, page.figure_needs(())).recipes
    return recipe


def copy_workdir(recipe: RecipeResults, to: Path) -> RecipeResults:
    """Copies the whole workdir of a recipe; returns the recipe in the copy."""
    shutil.copytree(recipe.recipe_dir.parents[1], to)
    return read_attacked(to / "recipes" / recipe.name)


def with_tables(recipe: RecipeResults, **tables: Callable[[pd.DataFrame], Any]) -> RecipeResults:
    """Returns a recipe with changed tables: name of a table without ".csv" -> function of the original table."""
    frames = {
        f"{name}.csv": change(recipe.view.table(f"{name}.csv")) for name, change in tables.items()
    }
    return with_files(recipe, frames)


def with_files(recipe: RecipeResults, contents: Mapping[str, Content]) -> RecipeResults:
    """Returns a recipe with other tables: file name -> content."""
    changed = {name: lambda _, content=content: content for name, content in contents.items()}
    copy = dataclasses.replace(recipe)
    view = dataclasses.replace(recipe.view, tables={**recipe.view.tables, **changed})
    vars(copy)["view"] = view  # the cached property
    return copy


def write_extraction(
    recipe: RecipeResults, samples: int = 60, level: float = -9.0, **settings: Any
) -> RecipeResults:
    """Writes what lm-mia extract stores for the highest scores; suffixes have about this log probability.

    Args:
      recipe: the recipe, whose config gets the settings of the extraction.
      samples: number of samples.
      level: mean log probability of a suffix under plain sampling.
      settings: further settings of the extraction; with ``reference=True``, nothing is extracted from the reference.

    Returns:
      The recipe with the extraction.
    """
    c = config.Extract(samples=samples, prefix_tokens=20, suffix_tokens=30, **settings)
    path = recipe.recipe_dir / "config.json"
    stored = json.loads(path.read_text())
    stored["config"]["extract"] = json.loads(json.dumps(dataclasses.asdict(c)))
    path.write_text(json.dumps(stored))
    view, rng = opening.read_recipe(recipe.recipe_dir).view, np.random.default_rng(1)
    scored = view.table("samples.parquet", ["id", "member", "score"])
    table = scored.sort_values("score", ascending=False).head(samples).reset_index(drop=True)
    table["in_prompt"] = np.where(np.arange(samples) % 25 == 1, 1.0, 0.0)
    log_p_N = np.minimum(level + 4 * rng.normal(size=samples), -0.01)
    table["log_p_greedy"] = np.where(np.arange(samples) % 20 == 0, 0.0, -np.inf)
    table["log_p_sampled"] = log_p_N
    table["log_p_chosen"] = np.where(np.arange(samples) % 4 == 0, -np.inf, log_p_N / 2)
    for name, every in (("greedy", 20), ("sampled", 30)):
        written = np.arange(samples) % every == 0
        for measure in ("exact", "contained", "included"):
            table[f"{measure}_{name}"] = written.astype(float)
        table[f"overlap_{name}"] = np.where(np.arange(samples) % every <= 2, 1.0, 0.25)
        table[f"substring_{name}"] = table[f"edit_{name}"] = np.where(written, 1.0, 0.1)
    if c.reference:
        other = table.assign(log_p_greedy=-np.inf, included_greedy=0.0, overlap_greedy=0.0)
        table = extraction.add_reference(table, other, np.arange(len(scored)) % 2 == 0)

    def extract(write: table_sets.Write) -> table_sets.Facts:
        for name, rows in extraction.tables(table, c).items():
            write(name, rows)
        schemes = extraction.sampling_schemes(c)
        return {"step": 7, "schemes": {name: str(scheme) for name, scheme in schemes.items()}}

    folder, results = recipe.recipe_dir / "tables", view.stored.results
    results.path(exports.extraction_set(view).key(view.stored)).unlink(missing_ok=True)
    exports.write_extraction(dataclasses.replace(view, extract=extract), folder)
    return opening.read_recipe(recipe.recipe_dir)


def _statistics(c: config.Attack) -> tuple[Any, ...]:
    return tuple(STATISTICS[a] for a in c.attacks if a in STATISTICS)


def _write_store(folder: Path, world: World, c: config.Attack, absent: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    statistics = _statistics(c)
    store = Store(folder / "scores.zarr", statistics)
    samples = world.loss_MxN.shape[1]
    store.create_or_extend(world.models, {"tokens": np.arange(samples)}, {})
    for model, loss_N, member_N in zip(world.models, world.loss_MxN, world.member_MxN, strict=True):
        if str(model) not in absent:
            values = {name: loss_N + 0.01 * i for i, name in enumerate(statistics, 1)}
            store.write_model(model, loss_N, member_N, values)


def _write_config(
    folder: Path,
    name: str,
    samples: int,
    later: tuple[dict[str, Any], ...],
    attack: config.Attack,
    design: subsets.Design,
) -> None:
    """Writes config.json of the recipe, and lists it in that of the workdir."""
    c = config.Config(
        tokenizer=config.Tokenizer(vocab_size=1024),
        population=config.Population(samples=samples, length_tokens=128),
        model=config.Model(size="custom", layers=2, width=64, heads=4, dtype="float32"),
        train=config.Train(subset=design, batch_size=16, epochs=4),
        score=config.Score(statistics=_statistics(attack)),
        attack=attack,
        name=name,
    )
    run = {
        "config": config.to_dict(c),
        "names": [name],
        "recipe_hash": recipe_hash(c),
        "model_size": dataclasses.asdict(model_sizes.size(c)),
        "format": FORMAT,
    }
    run |= {"population": "89abcdef", "population_sha256": "f" * 64}
    run |= {"packages": {"jax": "0.10.2"}, "lm_mia": "0.1.0", "commit": None}
    run |= {"cpu_cores": 2, "later": later}
    (folder / "recipes" / name / "config.json").write_text(json.dumps(run))
    listed, names = folder / "config.json", [name]
    if listed.exists():
        names = [*json.loads(listed.read_text())["recipes"], name]
    listed.write_text(json.dumps({"format": FORMAT, "recipes": names, "figures": []}))


def _write_population(
    population: Path, samples: int, pieces: int, texts: Sequence[str] | None
) -> None:
    if population.exists():
        return
    n = np.arange(samples)
    words_Nx9 = np.random.default_rng(0).choice([f"word{i}" for i in range(40)], (samples, 9))
    columns = {
        "id": n,
        "tokens": 20 + n % 108,
        "unk": np.where(n % 3 == 0, n % 7, 0),
        "zlib_bytes": 100 + n % 37,
        "tfidf": np.where(n % 50 == 0, np.nan, 2 + n * 37 % 101 / 40),
        "prefix_group": n,
        "source": np.full(samples, "", object),
        "text": texts or [f"{NASTY} {' '.join(words)}" for words in words_Nx9],
    }
    if pieces > 1:
        columns |= {"document": n // pieces, "piece": n % pieces}
    population.mkdir(parents=True)
    pd.DataFrame(columns).to_parquet(population / "samples.parquet")
    used = {"documents": samples // pieces, "document_tokens": 10_000_000, "sample_tokens": 125_000}
    manifest = {
        "format": POPULATION_FORMAT,
        "files": describe_files(population, ["samples.parquet"]),
        "samples": samples,
        "sha256": "f" * 64,
        "vocab_size": 1024,
        "provenance": {"corpus_sha256": "0" * 64, "text": used},
        "settings": {
            "corpus.source": IMPORTED,  # there are no tokens
            "population.length_tokens": 128,
            SPLIT_DOCUMENTS: pieces > 1,
        },
    }
    (population / "manifest.json").write_bytes(manifest_bytes(manifest))


def _write_log(
    path: Path, recipe: str, world: World, present: list[int], rng: np.random.Generator
) -> None:
    steps = 4 * -(-world.loss_MxN.shape[1] // 2 // 16)
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as log:

        def write(names: dict[str, Any], loss: float) -> None:
            common = {"time": "2026-01-01T00:00:00", **names}
            for t in [*range(0, steps - 1, 5), steps - 1]:
                now = loss + 4 * np.exp(-3 * t / steps) + rng.normal(0, 0.1)
                event = {"event": "train", "step": t, "steps": steps, "loss_nats": now}
                log.write(json.dumps(common | event) + "\n")
            log.write(json.dumps(common | {"event": "model_trained", "seconds": 1.7 * loss}) + "\n")

        def named(model: ModelSeeds) -> dict[str, Any]:
            return {"model": str(model), "role": model.role, "recipe": recipe}

        for model in (world.models[0], *world.larger):  # the first is trained again below
            write(named(model), FAR)
        for m in present:
            write(named(world.models[m]), 3)
            write(named(world.models[m]) | {"recipe": OTHER_RECIPE}, FAR)
        log.write('{"event": "worker_lost"}\n{"event": "waiting", "models": 3}\n')
        log.write('{"event": "train", "model": "refer\n')
