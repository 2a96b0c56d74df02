"""Reads a workdir: its recipes, and the tables, settings and log of each; one clear line if a part is missing.

A `folder` is that of a recipe, WORKDIR/recipes/NAME. WORKDIR itself holds config.json, which lists the recipes,
metrics.jsonl and the populations.
"""

import dataclasses
import difflib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from lm_mia.config import Config
from lm_mia.config.needs import PresentModels, assign_roles, score_step
from lm_mia.config.recipe import from_dict
from lm_mia.data import subsets
from lm_mia.data.population import Population, open_population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError

Record = dict[str, Any]

ATTACK_NAMES = {
    "lira_online": "LiRA",
    "lira_offline": "Offline LiRA",
    "rmia": "RMIA",
    "rmia_offline": "Offline RMIA",
    "rmia_simple": "Simple RMIA",
    "reference_calibrated": "Calibrated loss",
    "loss": "Loss",
    "zlib": "Zlib ratio",
    "min_k": "Min-K%",
    "min_k_plus_plus": "Min-K%++",
    "lowercase": "Lowercase",
}


REPLICA_SIZES = ("140M", "302M")
"""Of the models that the paper trains replicas of."""


class WorkdirError(UserError):
    """Something in the workdir is missing or broken; printed as one line, exit code 2."""


def attack_name(attack: str) -> str:
    """What figures and the page call an attack of the tables."""
    return ATTACK_NAMES.get(attack, attack.replace("_", " "))


def percent(share: float) -> str:
    """0.05 -> 5%, 0.001 -> 0.1%, 0.12345 -> 12.3%."""
    return f"{100 * share:.3g}%" if abs(share) < 0.9995 else f"{100 * share:.0f}%"


def table(
    folder: Path, name: str, columns: Sequence[str] = (), verb: str = "attack"
) -> list[Record]:
    """The rows of tables/NAME, which must have these columns and is made by ``lm-mia VERB``."""
    path = _existing(folder, f"tables/{name}")
    try:
        frame = pc.read_csv(path, _WHOLE, _LINES, _CELLS).to_pandas()
    except (ValueError, pa.ArrowException) as error:
        raise WorkdirError(
            f"{folder}: tables/{name} is not a table ({type(error).__name__}); {_again(verb)}"
        ) from error
    _check(folder, f"tables/{name}", list(frame.columns), columns, verb=verb)
    frame = frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def samples(
    folder: Path, columns: Sequence[str], name: str = "samples.parquet"
) -> dict[str, np.ndarray]:
    """These columns of tables/NAME, one number a sample; votes are NaN where there are none."""
    path = _existing(folder, f"tables/{name}")
    try:
        there = pq.read_schema(path).names
        _check(folder, f"tables/{name}", there, columns)
        frame = pd.read_parquet(path, columns=list(columns))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise WorkdirError(f"{folder}: tables/{name} cannot be read; {_again()}") from error
    return {c: frame[c].to_numpy() for c in columns}


def read_json(folder: Path, name: str, fields: Sequence[str] = (), verb: str = "attack") -> Record:
    """The object in WORKDIR/NAME, which must have these fields and is made by ``lm-mia VERB``."""
    try:
        found = json.loads(_existing(folder, name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkdirError(f"{folder}: {name} is not JSON; {_again(verb)}") from error
    if not isinstance(found, dict):
        raise WorkdirError(f"{folder}: {name} is no JSON object; {_again(verb)}")
    _check(folder, name, list(found), fields, "field", verb)
    return found


def flip_facts(folder: Path) -> Record:
    """tables/flips.json: what the tables are about.

    Its "config" holds the settings of the attack; its "references" and "replicas" are those that were there, which may
    be fewer than the config's.
    """
    name = "tables/flips.json"
    facts = read_json(folder, name, ("recipe", "config", "first_target", *_FLIP_FACTS))
    if not isinstance(facts["config"], dict) or facts["recipe"] != folder.resolve().name:
        raise WorkdirError(f"{folder}: {name} is not of this recipe and its settings; {_again()}")
    _check(folder, f"{name} config", list(facts["config"]), _SETTINGS, "field")
    return facts


def run(folder: Path) -> Record:
    """config.json: the command that made the recipe; its attack section may be older than the tables."""
    name = "config.json"
    found = read_json(folder, name, ("config", "lm_mia", "packages", "commit", "later"))
    sections = found["config"] if isinstance(found["config"], dict) else {}
    needed = ("corpus", "tokenizer", "population", "model", "train")
    _check(folder, f"{name} config", list(sections), needed, "section")
    return found


def manifest(folder: Path) -> Record:
    """The manifest of the population of a recipe; empty if there is none."""
    stored = read_json(folder, "config.json", ("population",))
    population = workdir_of(folder) / "populations" / str(stored["population"])
    there = (population / "manifest.json").is_file()
    return read_json(population, "manifest.json", verb="corpus") if there else {}


def require(folder: Path, names: Iterable[str]) -> None:
    """WorkdirError for the first of these tables that is missing."""
    for name in names:
        _existing(folder, f"tables/{name}")


def has(folder: Path, name: str) -> bool:
    """Whether there is a tables/NAME, of those that are made when asked for."""
    return (folder / "tables" / name).is_file()


def decides(facts: Record) -> bool:
    """Whether the coin-flip test can tell anything from a coin: with few replicas it rejects no split."""
    return facts["k_low"] > 0


def decisive(folder: Path) -> Record:
    """flips.json of a recipe; WorkdirError if it has too few replicas to tell a decision from a coin flip."""
    facts = flip_facts(folder)
    if not decides(facts):
        raise WorkdirError(
            f"{folder}: {facts['replicas']} replicas are too few to tell a decision from a coin flip"
        )
    return facts


def events(folder: Path, kind: str) -> list[Record]:
    """The lines of the workdir's metrics.jsonl that are of one event of the recipe, in order.

    Lines that are no JSON are skipped.
    """
    path, name = workdir_of(folder) / "metrics.jsonl", folder.resolve().name
    found: list[Record] = []
    if not path.is_file():
        return found
    both = json.dumps(kind), json.dumps(name)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not all(part in line for part in both):  # most lines, which need not be parsed
                continue
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and (event.get("event"), event.get("recipe")) == (
                kind,
                name,
            ):
                found.append(event)
    return found


def workdir_of(folder: Path) -> Path:
    """The workdir of a recipe's folder."""
    return folder.resolve().parents[1]


# Numbers are read as they were written, to the last digit; types are told from the whole file.
_WHOLE, _LINES = pc.ReadOptions(block_size=2**28), pc.ParseOptions(newlines_in_values=True)
_CELLS = pc.ConvertOptions(null_values=["", "nan", "NaN"], strings_can_be_null=True)
_FLIP_FACTS = (
    "references",
    "replicas",
    "reference_models",
    "replica_models",
    "k_low",
    "cutoff",
    "max_flip_rate",
    "left_out",
)
_SETTINGS = (
    "references",
    "replicas",
    "fprs",
    "focus_fpr",
    "alpha",
    "variance",
    "band",
    "bootstraps",
    "resample_references",
    "attacks",
    "step",
)


def _existing(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise WorkdirError(f"{folder}: no such folder; run lm-mia run first")
    path = folder / name
    if path.is_file():
        return path
    if name.startswith("tables/") and _replicas(folder) == 0:
        raise WorkdirError(
            f"{folder}: attack.replicas=0, and tables of decisions are of replicas; run again with some"
        )
    raise WorkdirError(f"{folder}: no {name}; run lm-mia attack first")


def _replicas(folder: Path) -> object:
    """How many the last command asked for; None if that is not known."""
    if not (folder / "config.json").is_file():
        return None
    return run(folder)["config"].get("attack", {}).get("replicas")


def _check(
    folder: Path,
    name: str,
    there: Sequence[str],
    needed: Sequence[str],
    what: str = "column",
    verb: str = "attack",
) -> None:
    lacking = [part for part in needed if part not in there]
    if lacking:
        raise WorkdirError(f"{folder}: {name} has no {what} {', '.join(lacking)}; {_again(verb)}")


def _again(verb: str = "attack") -> str:
    return f"run lm-mia {verb} again"


class MissingModelsError(Exception):
    """A figure lacks recipes, models or attacks; the message is shown in its place."""


@dataclasses.dataclass(frozen=True)
class RecipeResults:
    """One recipe of a workdir."""

    folder: Path
    """WORKDIR/recipes/NAME."""
    config: Config
    """As of its last command."""
    names: tuple[str, ...]
    """All names that figures call it by."""
    population_folder: Path
    """In the workdir; recipes of the same samples share it."""

    @property
    def name(self) -> str:
        """What people call it: that of its folder."""
        return self.folder.resolve().name

    @property
    def built(self) -> bool:
        """Whether its population is there."""
        return (self.population_folder / "manifest.json").is_file()

    @property
    def samples(self) -> int:
        """N, of which a row is trained."""
        return self.config.population.samples // 2

    @property
    def parameters(self) -> int:
        """Without embeddings, as the paper's sizes: 12 layers width^2."""
        return 12 * self.config.model.layers * self.config.model.width**2

    @functools.cached_property
    def population(self) -> Population:
        """Its samples."""
        return open_population(self.population_folder, verify=False)

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens that a row is trained on, all epochs, of each of its parameters without embeddings."""
        mean = float(np.diff(self.population.offsets_N1).mean())
        return self.samples * self.config.train.epochs * mean / self.parameters

    @functools.cached_property
    def models(self) -> PresentModels:
        """The models that were present when the recipe was last attacked, by number."""
        path = self.folder / "tables" / "models.csv"
        if not path.is_file():
            raise MissingModelsError(f"{self.name}: it is not attacked yet; run lm-mia attack")
        lines = table(self.folder, "models.csv", ("role", "subset_seed", "order_seed"))
        return PresentModels(
            references=tuple(int(m["subset_seed"]) for m in lines if m["role"] == "reference"),
            replicas=tuple(int(m["order_seed"]) for m in lines if m["role"] == "replica"),
        )

    @property
    def divided(self) -> tuple[list[ModelSeeds], list[ModelSeeds], list[ModelSeeds]]:
        """(references, targets, replicas) that were present; see `lm_mia.config.needs.assign_roles`."""
        parts = assign_roles(self.models, self.config.attack)
        return (
            [*map(subsets.reference, parts.references)],
            [*map(subsets.reference, parts.targets)],
            [*map(subsets.replica, parts.replicas)],
        )

    def step(self, epochs: float) -> int:
        """The training step of the scores after a number of epochs; 0 for the end."""
        step = score_step(self.config, epochs)
        if step is None:
            raise MissingModelsError(f"{self.name}: not scored after epoch {epochs:g}")
        return step


class SweepResults(Mapping[str, RecipeResults]):
    """Recipes by their names.

    Raises:
      WorkdirError: two recipes have one name.
    """

    def __init__(self, recipes: Sequence[RecipeResults]):
        self.all = [recipe for recipe in recipes if recipe.built]
        self.unbuilt = [recipe for recipe in recipes if not recipe.built]
        """Recipes without a population, of which nothing is known but their settings."""
        first: dict[str, RecipeResults] = {}
        for recipe in self.all:
            for name in recipe.names:
                if name in first:
                    raise WorkdirError(
                        f"name={name!r}: {first[name].folder} and {recipe.folder} have it; say which recipes are meant "
                        "with --recipe=NAME, or use another workdir for one of them"
                    )
                first[name] = recipe

    def __getitem__(self, name: str) -> RecipeResults:
        for recipe in self.all:
            if name in recipe.names:
                return recipe
        raise MissingModelsError(f"no recipe {name} in this workdir")

    def __contains__(self, name: object) -> bool:
        return any(name in recipe.names for recipe in self.all)

    def __iter__(self) -> Iterator[str]:
        return (name for recipe in self.all for name in recipe.names)

    def __len__(self) -> int:
        return sum(len(recipe.names) for recipe in self.all)

    def family(self, kind: str) -> list[tuple[str, RecipeResults]]:
        """What follows ``KIND-`` in a name, and the recipe, by parameters, samples."""
        of = [n.removeprefix(f"{kind}-") for n in self if n.startswith(f"{kind}-")]
        if not of:
            raise MissingModelsError(f"no recipe {kind}-... in this workdir")
        found = [(name, self[f"{kind}-{name}"]) for name in of]
        return sorted(found, key=lambda item: (item[1].parameters, item[1].samples))


def read_recipes(workdir: Path, names: Sequence[str] | None = None) -> SweepResults:
    """The recipes of a workdir, in the order in which they were added to it.

    Args:
      workdir: of one recipe or of many.
      names: of the recipes that are wanted; None: all of them.

    Raises:
      WorkdirError: there is no such workdir or recipe, or a config.json is damaged.
    """
    listed = read_workdir(workdir)["recipes"]
    known = [name for name in listed if (workdir / "recipes" / name / "config.json").is_file()]
    found = [read_recipe(workdir / "recipes" / name) for name in known]
    if not found:
        raise WorkdirError(f"{workdir}: no recipe in it; run lm-mia run first")
    if names is None:
        return SweepResults(found)
    of = {alias: recipe for recipe in found for alias in (*recipe.names, recipe.name)}
    for name in names:
        if name not in of:
            near = difflib.get_close_matches(name, of, 3) or list(of)[:10]
            raise WorkdirError(
                f"--recipe={name}: {workdir} has no such recipe; try {' or '.join(near)}"
            )
    wanted = {of[name].folder for name in names}
    return SweepResults([recipe for recipe in found if recipe.folder in wanted])


def read_workdir(workdir: Path) -> Record:
    """config.json of a workdir: the names of its recipes, and of the figures asked for; WorkdirError without one."""
    if not workdir.is_dir():
        raise WorkdirError(f"{workdir}: no such folder; run lm-mia run first")
    if not (workdir / "config.json").is_file():
        raise WorkdirError(f"{workdir}: no recipe in it; run lm-mia run first")
    return read_json(workdir, "config.json", ("recipes", "figures"), verb="run")


def read_recipe(folder: Path) -> RecipeResults:
    """The recipe of a folder WORKDIR/recipes/NAME; WorkdirError if it has none."""
    stored = read_json(folder, "config.json", ("config", "names", "population"), verb="run")
    population = folder.parents[1] / "populations" / str(stored["population"])
    try:
        return RecipeResults(
            folder, from_dict(stored["config"]), tuple(stored["names"]), population
        )
    except (TypeError, ValueError) as error:
        raise WorkdirError(
            f"{folder}: config.json is of another version of lm_mia ({error}); run it again"
        ) from error


def fewest_references(recipes: Sequence[RecipeResults]) -> int:
    """How many references all recipes have, so that a comparison of them is of nothing else."""
    return min(len(recipe.divided[0]) for recipe in recipes)


def size_of(recipe: RecipeResults) -> str:
    """A model's parameters without embeddings, for a legend: 98k, 140M."""
    size = recipe.config.model.size
    if size != "custom":
        return size
    n = recipe.parameters
    return f"{n / 1e6:.3g}M" if n >= 1e6 else f"{n / 1e3:.3g}k"


def titled(size: str, recipe: RecipeResults) -> str:
    """A size of the paper, and what it is in this run if that is something else."""
    here = size_of(recipe)
    return size if here == size else f"{size} (here {here})"
