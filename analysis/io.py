"""Reads a workdir: its recipes, and the tables, settings and log of each; errors for missing parts are one line.

`workdir` holds config.json (which lists the recipes), metrics.jsonl and the populations; `recipe_dir` is the folder of
one recipe, WORKDIR/recipes/NAME.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from lm_mia.atomic import CSV_MISSING_VALUES, FLIPS_JSON, MEMBERSHIP_SCORES_JSON
from lm_mia.attacks.spec import (
    FigureNeed,
    PresentModels,
    RecipeModels,
    RecipeNeeds,
    assign_roles,
    recipe_needs,
    score_step,
)
from lm_mia.config import (
    MODEL_SIZES,
    Config,
    first_canary,
    listed_figures,
    measurable_attack,
    num_canaries,
    training_samples,
)
from lm_mia.config.recipe import check_format, from_dict
from lm_mia.data import subsets
from lm_mia.data.population import Population, open_population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError, raise_failed_read

if TYPE_CHECKING:
    from lm_mia.attacks.experiment import RecipeView
    from lm_mia.attacks.pieces import Pieces

T = TypeVar("T")
Record = dict[str, Any]
"""A table row or a JSON object."""

REPLICA_SIZES = ("140M", "302M")
"""The model sizes of which the paper trains replicas."""


class WorkdirError(UserError):
    """A part of the workdir is missing or broken; printed as one line, exit code 2."""


def read_table(
    recipe_dir: Path, name: str, columns: Sequence[str] = (), command: str = "attack"
) -> list[Record]:
    """Reads tables/NAME, a CSV file.

    Args:
      recipe_dir: the folder of the recipe.
      name: the file name of the table.
      columns: columns that the table must have.
      command: the `lm-mia` command that writes the table; named in error messages.

    Returns:
      The rows. Numbers are read to the last digit; empty cells are NaN.

    Raises:
      WorkdirError: the table is missing, cannot be parsed or lacks a column.
    """
    path = _existing(recipe_dir, f"tables/{name}")
    try:
        frame = pc.read_csv(path, _READ_OPTIONS, _PARSE_OPTIONS, _CONVERT_OPTIONS).to_pandas()
    except (ValueError, pa.ArrowException) as error:
        raise WorkdirError(
            f"{recipe_dir}: tables/{name} is not a valid table ({type(error).__name__}); {_rerun(command)}"
        ) from error
    _check_names(recipe_dir, f"tables/{name}", list(frame.columns), columns, command=command)
    frame = frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def read_samples(
    recipe_dir: Path, columns: Sequence[str], name: str = "samples.parquet"
) -> dict[str, np.ndarray]:
    """Reads columns of the table tables/NAME in Parquet, such as those of each sample; missing votes are NaN.

    Raises:
      WorkdirError: the table is missing, cannot be read or lacks a column.
    """
    path = _existing(recipe_dir, f"tables/{name}")
    try:
        _check_names(recipe_dir, f"tables/{name}", pq.read_schema(path).names, columns)
        frame = pd.read_parquet(path, columns=list(columns))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise_failed_read(error, recipe_dir / "tables")
        raise WorkdirError(f"{recipe_dir}: tables/{name} cannot be read; {_rerun()}") from error
    return {c: frame[c].to_numpy() for c in columns}


def read_documents(recipe_dir: Path) -> np.ndarray:
    """Returns document_N, the document of each sample in tables/samples.parquet, on which intervals depend.

    Unless documents are split, each sample has its own.

    Raises:
      WorkdirError: as `read_samples`.
    """
    try:
        is_split = (
            "document" in pq.read_schema(_existing(recipe_dir, "tables/samples.parquet")).names
        )
    except (ValueError, OSError, pa.ArrowException) as error:
        raise_failed_read(error, recipe_dir / "tables")
        raise WorkdirError(
            f"{recipe_dir}: tables/samples.parquet cannot be read; {_rerun()}"
        ) from error
    if is_split:
        return read_samples(recipe_dir, ["document"])["document"]
    return np.arange(len(read_samples(recipe_dir, ["id"])["id"]))


def read_json(
    directory: Path, name: str, fields: Sequence[str] = (), command: str = "attack"
) -> Record:
    """Reads the JSON object in DIRECTORY/NAME, which must have these fields and is written by ``lm-mia COMMAND``.

    Raises:
      WorkdirError: the file is missing, is not a JSON object or lacks a field.
    """
    try:
        contents = json.loads(_existing(directory, name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkdirError(f"{directory}: {name} is not valid JSON; {_rerun(command)}") from error
    if not isinstance(contents, dict):
        raise WorkdirError(f"{directory}: {name} is not a JSON object; {_rerun(command)}")
    _check_names(directory, name, list(contents), fields, "field", command)
    return contents


def read_flip_facts(recipe_dir: Path) -> Record:
    """Reads tables/flips.json, which describes the tables of decisions.

    Its "config" holds the settings of the attack. Its "references" and "replicas" are the numbers of models that were
    present, which may be smaller than the config's.

    Raises:
      WorkdirError: the file is missing, incomplete or belongs to another recipe.
    """
    name = "tables/flips.json"
    facts = read_json(recipe_dir, name, ("recipe", "config", "first_target", *_FLIP_FACTS))
    if not isinstance(facts["config"], dict) or facts["recipe"] != recipe_name(recipe_dir):
        raise WorkdirError(f"{recipe_dir}: {name} belongs to another recipe; {_rerun()}")
    _check_names(recipe_dir, f"{name} config", list(facts["config"]), _ATTACK_SETTINGS, "field")
    return facts


def read_warnings(recipe_dir: Path) -> list[str]:
    """Returns sentences for the reader about targets whose membership may depend on properties of the samples.

    Raises:
      WorkdirError: the file that holds them is damaged.
    """
    for marker in (FLIPS_JSON, MEMBERSHIP_SCORES_JSON):
        if has_table(recipe_dir, marker.name):
            warnings = read_json(recipe_dir, str(marker)).get("warnings", [])
            return [f"{warning[0].upper()}{warning[1:]}." for warning in warnings]
    return []


def read_run_record(recipe_dir: Path) -> Record:
    """Reads config.json of a recipe: the config and the versions of the commands that made it.

    Its attack section may be older than the tables; see `read_flip_facts`.
    """
    name = "config.json"
    record = read_json(recipe_dir, name, ("config", "lm_mia", "packages", "commit", "later"))
    sections = record["config"] if isinstance(record["config"], dict) else {}
    needed = ("corpus", "tokenizer", "population", "model", "train")
    _check_names(recipe_dir, f"{name} config", list(sections), needed, "section")
    return record


def read_manifest(recipe_dir: Path) -> Record:
    """Reads the manifest of the population of a recipe; empty if there is no manifest."""
    record = read_json(recipe_dir, "config.json", ("population",))
    population_dir = parent_workdir(recipe_dir) / "populations" / str(record["population"])
    if not (population_dir / "manifest.json").is_file():
        return {}
    return read_json(population_dir, "manifest.json", command="corpus")


def require_tables(recipe_dir: Path, names: Iterable[str]) -> None:
    """Raises WorkdirError for the first of these tables that is missing."""
    for name in names:
        _existing(recipe_dir, f"tables/{name}")


def has_table(recipe_dir: Path, name: str) -> bool:
    """Returns whether tables/NAME exists; for tables that are written only on request."""
    return (recipe_dir / "tables" / name).is_file()


def coin_flip_test_has_power(facts: Record) -> bool:
    """Returns whether the coin-flip test can reject any split of votes, which takes enough replicas."""
    return facts["k_low"] > 0


def read_flip_facts_with_power(recipe_dir: Path) -> Record:
    """Reads tables/flips.json of a recipe whose replicas suffice for the coin-flip test.

    Raises:
      WorkdirError: as `read_flip_facts`, or there are too few replicas.
    """
    facts = read_flip_facts(recipe_dir)
    if not coin_flip_test_has_power(facts):
        raise WorkdirError(
            f"{recipe_dir}: {facts['replicas']} replicas are too few to tell a decision from a coin flip"
        )
    return facts


def read_mean_losses(recipe_dir: Path) -> pd.DataFrame:
    """Reads the mean losses at the end of training of all models, by name, from models.csv.

    Returns:
      A table with the columns member_loss_nats and nonmember_loss_nats.

    Raises:
      WorkdirError: as in `read_table`.
    """
    columns = ["member_loss_nats", "nonmember_loss_nats"]
    rows = read_table(recipe_dir, "models.csv", ("model", *columns))
    return pd.DataFrame(rows, columns=["model", *columns]).set_index("model")


def read_events(recipe_dir: Path, event: str) -> list[Record]:
    """Reads the events of one kind of a recipe from the workdir's metrics.jsonl, in order; skips invalid lines."""
    path, name = parent_workdir(recipe_dir) / "metrics.jsonl", recipe_name(recipe_dir)
    events: list[Record] = []
    if not path.is_file():
        return events
    quoted = json.dumps(event), json.dumps(name)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not all(text in line for text in quoted):  # avoids parsing most lines
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and (record.get("event"), record.get("recipe")) == (
                event,
                name,
            ):
                events.append(record)
    return events


def parent_workdir(recipe_dir: Path) -> Path:
    """Returns the workdir that a recipe belongs to."""
    return _absolute(recipe_dir).parents[1]


def recipe_name(recipe_dir: Path) -> str:
    """Returns the name of a recipe's folder."""
    return _absolute(recipe_dir).name


def _absolute(recipe_dir: Path) -> Path:
    # Path.resolve would follow a symbolic link, and leave the workdir.
    return Path(os.path.abspath(recipe_dir))


# One block, so that column types are inferred from the whole file.
_READ_OPTIONS, _PARSE_OPTIONS = (
    pc.ReadOptions(block_size=2**28),
    pc.ParseOptions(newlines_in_values=True),
)
_CONVERT_OPTIONS = pc.ConvertOptions(null_values=[*CSV_MISSING_VALUES], strings_can_be_null=True)
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
_ATTACK_SETTINGS = (
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


def _existing(directory: Path, name: str) -> Path:
    if not directory.is_dir():
        raise WorkdirError(f"{directory}: there is no such folder; run lm-mia run first")
    path = directory / name
    if path.is_file():
        return path
    if name.startswith("tables/") and _requested_replicas(directory) == 0:
        raise WorkdirError(
            f"{directory}: attack.replicas=0: tables of decisions need replicas; run again with attack.replicas > 0"
        )
    raise WorkdirError(f"{directory}: {name} is missing; run lm-mia attack first")


def _requested_replicas(recipe_dir: Path) -> object:
    """Returns the number of replicas that the last command requested; None if unknown."""
    if not (recipe_dir / "config.json").is_file():
        return None
    return read_run_record(recipe_dir)["config"].get("attack", {}).get("replicas")


def _check_names(
    directory: Path,
    file: str,
    present: Sequence[str],
    needed: Sequence[str],
    kind: str = "column",
    command: str = "attack",
) -> None:
    missing = [name for name in needed if name not in present]
    if missing:
        raise WorkdirError(
            f"{directory}: {file} has no {kind} {', '.join(missing)}; {_rerun(command)}"
        )


def _rerun(command: str = "attack") -> str:
    return f"run lm-mia {command} again"


class MissingModelsError(Exception):
    """Recipes, models or attacks that a figure needs are missing; the message is shown instead of the figure."""


@dataclasses.dataclass(frozen=True)
class RecipeResults:
    """One recipe of a workdir, with its config, population and models."""

    recipe_dir: Path
    """WORKDIR/recipes/NAME."""
    config: Config
    """The config of the last command, with the attack settings of its tables (`measurable_attack`)."""
    names: tuple[str, ...]
    """All names by which figures refer to the recipe."""
    population_dir: Path
    """In the workdir; recipes with the same samples share it."""
    declared: RecipeNeeds = dataclasses.field(default_factory=RecipeNeeds)
    """What the figures need of the recipe."""
    progress: Callable[[str, float, float], None] = lambda *_: None
    """Called as ``progress(label, done, total)`` while missing attacks are computed."""

    @property
    def name(self) -> str:
        """The name of the recipe's folder."""
        return recipe_name(self.recipe_dir)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of the recipe that pages show.

        If the model is not compared with those of papers, names that contain another model size are left out: for
        example ``flip-140M``, by which the figures of StrongMIA find the recipe ``flip-98.3k``.
        """
        other_sizes = {*MODEL_SIZES} - {self.config.model.size}
        if self.config.compare_with_papers:
            return self.names
        return tuple(n for n in self.names if n == self.name or not {*n.split("-")} & other_sizes)

    @property
    def has_population(self) -> bool:
        """Whether the population has been built."""
        return (self.population_dir / "manifest.json").is_file()

    @property
    def samples(self) -> int:
        """The number of training samples per model: N, half of the population, or more with train.canaries."""
        return training_samples(self.config)

    @property
    def nonmembers(self) -> int:
        """The number of attacked samples on which a model is not trained: half of the population or of the canaries."""
        return num_canaries(self.config) // 2

    @property
    def is_imported(self) -> bool:
        """Whether the losses were imported, so that nothing is known about the models and their training."""
        return self.config.corpus.source == "imported"

    @property
    def parameters(self) -> int:
        """The number of parameters without embeddings, as in the paper: 12 layers width^2; 0 if it is unknown."""
        if self.is_imported:
            return 0
        return 12 * self.config.model.layers * self.config.model.width**2

    @functools.cached_property
    def population(self) -> Population:
        """The population of the recipe."""
        return open_population(self.population_dir, verify=False)

    @functools.cached_property
    def attacked(self) -> Population:
        """The samples that are attacked, whose scores the tables have: the population or its canaries."""
        return self.population.from_sample(first_canary(self.config))

    @property
    def tokens_per_parameter(self) -> float:
        """Training tokens of a model, over all epochs, per parameter without embeddings."""
        mean = float(np.diff(self.population.offsets_N1).mean())
        return self.samples * self.config.train.epochs * mean / self.parameters

    @functools.cached_property
    def pieces(self) -> "Pieces":
        """The results of attacks; those that figures declare are computed if they are missing."""
        return self.view.pieces

    @functools.cached_property
    def view(self) -> "RecipeView":
        """The results of the attacks stage."""
        from lm_mia.attacks.exports import open_view  # loads the score store

        return open_view(
            self.config, self.recipe_dir, lambda: self.population, self.declared, self.progress
        )

    @functools.cached_property
    def models(self) -> PresentModels:
        """Seeds of the models that were present at the last attack.

        Raises:
          MissingModelsError: the recipe has not been attacked yet.
        """
        path = self.recipe_dir / "tables" / "models.csv"
        if not path.is_file():
            raise MissingModelsError(f"{self.name}: not attacked yet; run lm-mia attack")
        rows = read_table(self.recipe_dir, "models.csv", ("role", "subset_seed", "order_seed"))
        return PresentModels(
            references=tuple(int(m["subset_seed"]) for m in rows if m["role"] == "reference"),
            replicas=tuple(int(m["order_seed"]) for m in rows if m["role"] == "replica"),
        )

    @property
    def attackable(self) -> RecipeModels:
        """The recipe as the attacks stage saw it, from which `spec.attack_spec` finds attacks."""
        return RecipeModels(self.names, self.config, self.models)

    @property
    def references(self) -> list[ModelSeeds]:
        """The references that were present at the last attack, without the targets; see `spec.assign_roles`."""
        return [*map(subsets.reference, assign_roles(self.models, self.config.attack).references)]

    @property
    def targets(self) -> list[ModelSeeds]:
        """The targets that were present at the last attack, each with its own training subset."""
        return [*map(subsets.reference, assign_roles(self.models, self.config.attack).targets)]

    @property
    def replicas(self) -> list[ModelSeeds]:
        """The replicas that were present at the last attack, which share a training subset."""
        return [*map(subsets.replica, assign_roles(self.models, self.config.attack).replicas)]

    def step_after(self, epochs: float) -> int:
        """Returns the training step at which models were scored after a number of epochs; 0 is the end of training.

        Raises:
          MissingModelsError: the models were not scored at this point.
        """
        step = score_step(self.config, epochs)
        if step is None:
            raise MissingModelsError(f"{self.name}: not scored after epoch {epochs:g}")
        return step


class SweepResults(Mapping[str, RecipeResults]):
    """The recipes of one or more workdirs, by each of their names; recipes without a population are listed separately.

    Args:
      recipes: the recipes.
      workdir: where figures that simulate keep the results of their simulation; None keeps none.
      progress: called by such figures as ``progress(label, done, total)``.

    Raises:
      WorkdirError: two recipes have the same name.
    """

    def __init__(
        self,
        recipes: Sequence[RecipeResults],
        workdir: Path | None = None,
        progress: Callable[[str, float, float], None] = lambda *_: None,
    ):
        self.workdir, self.progress = workdir, progress
        self.recipes = [recipe for recipe in recipes if recipe.has_population]
        self.without_population = [recipe for recipe in recipes if not recipe.has_population]
        by_name: dict[str, RecipeResults] = {}
        for recipe in self.recipes:
            for name in recipe.names:
                if name in by_name:
                    raise WorkdirError(
                        f"name={name!r}: both {by_name[name].recipe_dir} and {recipe.recipe_dir} have this name; "
                        "select one with --recipe=NAME, or use another workdir for one of them"
                    )
                by_name[name] = recipe

    @property
    def compares_with_papers(self) -> bool:
        """Whether figures show what the papers found."""
        recipes = [*self.recipes, *self.without_population]
        return any(recipe.config.compare_with_papers for recipe in recipes)

    def __getitem__(self, name: str) -> RecipeResults:
        for recipe in self.recipes:
            if name in recipe.names:
                return recipe
        raise MissingModelsError(f"no recipe {name} in this workdir")

    def __contains__(self, name: object) -> bool:
        return any(name in recipe.names for recipe in self.recipes)

    @overload
    def get(self, name: str, /) -> RecipeResults | None: ...
    @overload
    def get(self, name: str, /, default: RecipeResults | T) -> RecipeResults | T: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """Returns the recipe of a name, or the default if there is none."""
        try:
            return self[name]
        except MissingModelsError:
            return default

    def __iter__(self) -> Iterator[str]:
        return (name for recipe in self.recipes for name in recipe.names)

    def __len__(self) -> int:
        return sum(len(recipe.names) for recipe in self.recipes)

    def family(self, prefix: str) -> list[tuple[str, RecipeResults]]:
        """Returns the recipes named PREFIX-SUFFIX as (suffix, recipe), sorted by parameters and samples.

        Raises:
          MissingModelsError: there is no such recipe.
        """
        suffixes = [n.removeprefix(f"{prefix}-") for n in self if n.startswith(f"{prefix}-")]
        if not suffixes:
            raise MissingModelsError(f"no recipe {prefix}-... in this workdir")
        recipes = [(suffix, self[f"{prefix}-{suffix}"]) for suffix in suffixes]
        return sorted(recipes, key=lambda item: (item[1].parameters, item[1].samples))


def read_recipes(
    workdir: Path,
    names: Sequence[str] | None = None,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> SweepResults:
    """Reads the recipes of a workdir, in the order in which they were added to it.

    Args:
      workdir: the workdir, with one recipe or more.
      names: names of the recipes to read; None reads all.
      progress: as in `SweepResults`.

    Raises:
      WorkdirError: there is no such workdir or recipe, or a config.json is damaged.
    """
    listed = read_workdir(workdir)["recipes"]
    existing = [name for name in listed if (workdir / "recipes" / name / "config.json").is_file()]
    recipes = [read_recipe(workdir / "recipes" / name) for name in existing]
    if not recipes:
        raise WorkdirError(f"{workdir}: there are no recipes in it; run lm-mia run first")
    if names is None:
        return SweepResults(recipes, workdir, progress)
    by_name = {name: recipe for recipe in recipes for name in (*recipe.names, recipe.name)}
    for name in names:
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, 3) or list(by_name)[:10]
            raise WorkdirError(
                f"--recipe={name}: {workdir} has no such recipe; did you mean {' or '.join(close)}?"
            )
    selected = {by_name[name].recipe_dir for name in names}
    chosen = [recipe for recipe in recipes if recipe.recipe_dir in selected]
    return SweepResults(chosen, workdir, progress)


def read_workdir(workdir: Path) -> Record:
    """Reads config.json of a workdir: the names of its recipes and of the requested figures.

    Raises:
      WorkdirError: there is no workdir, or no config.json in it.
    """
    if not workdir.is_dir():
        raise WorkdirError(f"{workdir}: there is no such folder; run lm-mia run first")
    if not (workdir / "config.json").is_file():
        raise WorkdirError(f"{workdir}: there are no recipes in it; run lm-mia run first")
    record = read_json(workdir, "config.json", ("recipes", "figures"), command="run")
    return record | {"figures": listed_figures.from_file(record["figures"], workdir)}


def read_recipe(recipe_dir: Path) -> RecipeResults:
    """Reads the recipe in WORKDIR/recipes/NAME; raises UserError if there is none, or if it has another format."""
    fields = ("config", "names", "population", "format")
    record = read_json(recipe_dir, "config.json", fields, command="run")
    check_format(record, recipe_dir)
    population_dir = recipe_dir.parents[1] / "populations" / str(record["population"])
    try:
        config = from_dict(record["config"])
    except (TypeError, ValueError) as error:
        raise WorkdirError(
            f"{recipe_dir}: config.json was written by another version of lm_mia, with other fields; "
            "draw it with that version"
        ) from error
    config = dataclasses.replace(config, attack=measurable_attack(config))
    return RecipeResults(recipe_dir, config, tuple(record["names"]), population_dir)


def with_needs(recipes: SweepResults, needs: Sequence[FigureNeed]) -> SweepResults:
    """Returns recipes whose view has what figures need; those that were not attacked yet are unchanged."""
    attacked: dict[str, RecipeModels] = {}
    for recipe in recipes.recipes:
        with contextlib.suppress(MissingModelsError):
            attacked[recipe.name] = recipe.attackable
    declared = recipe_needs(needs, attacked)
    views = [
        dataclasses.replace(recipe, declared=declared[recipe.name], progress=recipes.progress)
        if recipe.name in declared
        else recipe
        for recipe in recipes.recipes
    ]
    return SweepResults([*views, *recipes.without_population], recipes.workdir, recipes.progress)


def fewest_references(recipes: Sequence[RecipeResults]) -> int:
    """Returns the number of references that all recipes have, with which they can be compared fairly."""
    return min(len(recipe.references) for recipe in recipes)
