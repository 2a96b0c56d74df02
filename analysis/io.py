"""Recipes of a workdir, and the tables, settings and log of each; errors for missing parts are one line.

`workdir` holds config.json (which lists the recipes), the log and the populations; `recipe_dir` is the folder of
one recipe, WORKDIR/recipes/NAME.
"""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import pandas as pd

from lm_mia import events
from lm_mia.attacks.spec import (
    PresentModels,
    RecipeModels,
    RecipeNeeds,
    assign_roles,
    score_step,
)
from lm_mia.config import (
    MODEL_SIZES,
    Config,
    first_canary,
    listed_figures,
    num_canaries,
    training_samples,
)
from lm_mia.data import subsets
from lm_mia.data.population import Population, open_population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable, UserError
from lm_mia.model.memory import ModelSize

if TYPE_CHECKING:
    from lm_mia.attacks.experiment import RecipeView
    from lm_mia.attacks.pieces import Pieces

T = TypeVar("T")
Record = dict[str, Any]
"""A table row or a JSON object."""

REPLICA_SIZES = ("140M", "302M")
"""The model sizes of which the paper trains replicas."""


def read_table(recipe: "RecipeResults", name: str) -> list[Record]:
    """Returns the rows of a table of a recipe, such as attacks.csv; missing values are NaN.

    Raises:
      Unavailable: the recipe has no such table; the message says why.
    """
    rows = read_frame(recipe, name).to_dict("records")
    return [{str(k): v for k, v in row.items()} for row in rows]


def read_samples(
    recipe: "RecipeResults", columns: Sequence[str], name: str = "samples.parquet"
) -> dict[str, np.ndarray]:
    """Returns columns of a table, such as those of each sample; missing votes are NaN.

    Raises:
      Unavailable: the recipe has no such table; the message says why.
    """
    frame = read_frame(recipe, name, columns)
    return {c: frame[c].to_numpy() for c in columns}


def read_frame(
    recipe: "RecipeResults", name: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Returns a table of a recipe, or some of its columns; missing values are NaN, also among integers.

    Raises:
      Unavailable: the recipe has no such table; the message says why.
    """
    frame = recipe.view.table(name, columns)
    with_missing = [c for c in frame.columns if isinstance(frame[c].dtype, pd.Int64Dtype)]
    without_values = frame.columns[frame.isna().all()]
    return frame.astype(dict.fromkeys([*with_missing, *without_values], float))


def read_documents(recipe: "RecipeResults") -> np.ndarray:
    """Returns document_N, the document of each attacked sample, on which intervals depend.

    Unless documents are split, each sample has its own.
    """
    document_N: np.ndarray = recipe.attacked.document_N
    return document_N


def read_json(
    directory: Path, name: str, fields: Sequence[str] = (), command: str = "attack"
) -> Record:
    """Reads the JSON object in DIRECTORY/NAME, which must have these fields and is written by ``lm-mia COMMAND``.

    Raises:
      UserError: the file is missing, is not a JSON object or lacks a field.
    """
    try:
        contents = json.loads(_existing(directory, name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{directory}: {name} is not valid JSON; {_rerun(command)}") from error
    if not isinstance(contents, dict):
        raise UserError(f"{directory}: {name} is not a JSON object; {_rerun(command)}")
    _check_names(directory, name, list(contents), fields, "field", command)
    return contents


def read_warnings(recipe: "RecipeResults") -> list[str]:
    """Returns sentences for the reader about targets whose membership may depend on properties of the samples."""
    for name in ("flips", "membership_scores"):
        with contextlib.suppress(Unavailable):
            warnings = recipe.view.facts(name)["warnings"]
            return [f"{warning[0].upper()}{warning[1:]}." for warning in warnings]
    return []


def read_run_record(recipe: "RecipeResults") -> Record:
    """Reads config.json of a recipe: the config and the versions of the commands that made it."""
    recipe_dir, name = recipe.recipe_dir, "config.json"
    record = read_json(recipe_dir, name, ("config", "lm_mia", "packages", "commit", "later"))
    sections = record["config"] if isinstance(record["config"], dict) else {}
    needed = ("corpus", "tokenizer", "population", "model", "train")
    _check_names(recipe_dir, f"{name} config", list(sections), needed, "section")
    return record


def read_manifest(recipe: "RecipeResults") -> Record:
    """Reads the manifest of the population of a recipe; empty if there is no manifest."""
    if not recipe.has_population:
        return {}
    return read_json(recipe.population_dir, "manifest.json", command="corpus")


def coin_flip_test_has_power(facts: Record) -> bool:
    """Returns whether the coin-flip test can reject any split of votes, which takes enough replicas."""
    return facts["k_low"] > 0


def read_flip_facts_with_power(recipe: "RecipeResults") -> Record:
    """Returns what flips.json says of a recipe whose replicas suffice for the coin-flip test.

    Raises:
      Unavailable: there are no tables of decisions, or too few replicas.
    """
    facts = recipe.view.facts("flips")
    if not coin_flip_test_has_power(facts):
        raise Unavailable(
            f"{recipe.name}: {facts['replicas']} replicas are too few to tell a decision from a coin flip; run "
            "lm-mia run with a larger --config.attack.replicas"
        )
    return facts


def read_mean_losses(recipe: "RecipeResults") -> pd.DataFrame:
    """Returns the mean losses at the end of training of all models, by name, from models.csv.

    Returns:
      A table with the columns member_loss_nats and nonmember_loss_nats.
    """
    columns = ["member_loss_nats", "nonmember_loss_nats"]
    return read_frame(recipe, "models.csv", ["model", *columns]).set_index("model")


def read_events(recipe: "RecipeResults", *kinds: str) -> list[Record]:
    """Reads the events of some kinds of a recipe from the log of the workdir, in the order of their times."""
    name = json.dumps(recipe.name).encode()
    quoted = [json.dumps(kind).encode() for kind in kinds]
    logged = events.read(
        parent_workdir(recipe.recipe_dir),
        lambda line: name in line and any(kind in line for kind in quoted),
    )
    return [
        record
        for _, record in logged
        if record.get("event") in kinds and record.get("recipe") == recipe.name
    ]


def parent_workdir(recipe_dir: Path) -> Path:
    """Returns the workdir that a recipe belongs to."""
    return _absolute(recipe_dir).parents[1]


def recipe_name(recipe_dir: Path) -> str:
    """Returns the name of a recipe's folder."""
    return _absolute(recipe_dir).name


def _absolute(recipe_dir: Path) -> Path:
    # Path.resolve would follow a symbolic link, and leave the workdir.
    return Path(os.path.abspath(recipe_dir))


def _existing(directory: Path, name: str) -> Path:
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder; run lm-mia run first")
    path = directory / name
    if path.is_file():
        return path
    raise UserError(f"{directory}: {name} is missing; run lm-mia run first")


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
        raise UserError(
            f"{directory}: {file} has no {kind} {', '.join(missing)}; {_rerun(command)}"
        )


def _rerun(command: str = "attack") -> str:
    return f"run lm-mia {command} again"


@dataclasses.dataclass(frozen=True, eq=False)
class RecipeResults:
    """One recipe of a workdir, with its config, population and models."""

    recipe_dir: Path
    """WORKDIR/recipes/NAME."""
    config: Config
    """The config of the last command, with the attack settings of its tables (`effective_attack`)."""
    names: tuple[str, ...]
    """All names by which figures refer to the recipe."""
    population_dir: Path
    """In the workdir; recipes with the same samples share it."""
    declared: Callable[[], RecipeNeeds] = RecipeNeeds
    """Returns the tables of every recipe, and what figures need of this one. It is a function because declarations are
    beside the code that computes them, which takes a second to load."""
    progress: Callable[[str, float, float], None] = lambda *_: None
    """Called as ``progress(label, done, total)`` while missing attacks are computed."""
    chosen_headline: str = "auto"
    """attack.headline as it was requested."""

    @property
    def name(self) -> str:
        """The name of the recipe's folder."""
        return recipe_name(self.recipe_dir)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of the recipe that pages show.

        If the model is not compared with those of papers, names that contain another model size are left out: for
        example ``flip-140M``, by which the figures of StrongMIA find the recipe ``flip-2x64``.
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
        """The number of parameters of dense layers, 12 layers width^2 of the kind gpt; 0 if it is unknown."""
        return 0 if self.is_imported else self.model_size.kernels

    @functools.cached_property
    def model_size(self) -> ModelSize:
        """The counts of the models, which were made when the recipe was."""
        return ModelSize(
            **read_json(self.recipe_dir, "config.json", ("model_size",), command="run")[
                "model_size"
            ]
        )

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
        """The results of the attacks stage, with what is declared."""
        from lm_mia.attacks.exports import open_view  # loads the score store

        return open_view(
            self.config, self.recipe_dir, lambda: self.population, self.declared(), self.progress
        )

    @functools.cached_property
    def models(self) -> PresentModels:
        """Seeds of the models that are scored."""
        from lm_mia.attacks.models import model_numbers

        return model_numbers(self.view.present)

    @property
    def attackable(self) -> RecipeModels:
        """The recipe as the attacks stage saw it, from which `lm_mia.attacks.requests.attack_spec` finds attacks."""
        return RecipeModels(self.names, self.config, self.models)

    @property
    def references(self) -> list[ModelSeeds]:
        """The references that are present, without the targets; see `spec.assign_roles`."""
        return [*map(subsets.reference, assign_roles(self.models, self.config.attack).references)]

    @property
    def targets(self) -> list[ModelSeeds]:
        """The targets that are present, each with its own training subset."""
        return [*map(subsets.reference, assign_roles(self.models, self.config.attack).targets)]

    @property
    def replicas(self) -> list[ModelSeeds]:
        """The replicas that are present, which share a training subset."""
        return [*map(subsets.replica, assign_roles(self.models, self.config.attack).replicas)]

    def step_after(self, epochs: float) -> int:
        """Returns the training step at which models were scored after a number of epochs; 0 is the end of training.

        Raises:
          Unavailable: the models were not scored at this point.
        """
        step = score_step(self.config, epochs)
        if step is None:
            raise Unavailable(
                f"{self.name}: not scored after epoch {epochs:g}; run lm-mia run with this epoch in "
                "--config.score.at_epochs"
            )
        return step


def _no_recipe(name: str) -> Unavailable:
    return Unavailable(
        f"no recipe {name} in this workdir; run lm-mia run with a config that has it"
    )


class SweepResults(Mapping[str, RecipeResults]):
    """The recipes of one or more workdirs, by each of their names; recipes without a population are listed separately.

    Args:
      recipes: the recipes.
      workdir: where figures that simulate keep the results of their simulation; None keeps none.
      progress: called by such figures as ``progress(label, done, total)``.

    Raises:
      UserError: two recipes have the same name.
    """

    def __init__(
        self,
        recipes: Sequence[RecipeResults],
        workdir: Path | None = None,
        progress: Callable[[str, float, float], None] = lambda *_: None,
    ):
        self.workdir, self.progress = workdir, progress
        self._recipes = [recipe for recipe in recipes if recipe.has_population]
        self._read: dict[str, RecipeResults] = {}
        self.without_population = [recipe for recipe in recipes if not recipe.has_population]
        by_name: dict[str, RecipeResults] = {}
        for recipe in self._recipes:
            for name in recipe.names:
                if name in by_name:
                    raise UserError(
                        f"name={name!r}: both {by_name[name].recipe_dir} and {recipe.recipe_dir} have this name; "
                        "select one with --recipe=NAME, or use another workdir for one of them"
                    )
                by_name[name] = recipe

    @property
    def recipes(self) -> list[RecipeResults]:
        """The recipes that have a population."""
        self._read |= {recipe.name: recipe for recipe in self._recipes}
        return [*self._recipes]

    def unread(self) -> "SweepResults":
        """Returns the same recipes, none of which has been read yet."""
        return SweepResults([*self._recipes, *self.without_population], self.workdir, self.progress)

    @property
    def read(self) -> list[RecipeResults]:
        """The recipes that were read from this object, such as those that a figure is drawn with."""
        return [*self._read.values()]

    @property
    def compares_with_papers(self) -> bool:
        """Whether figures show what the papers found, which simulations without a recipe always do."""
        recipes = [*self._recipes, *self.without_population]
        return not recipes or any(recipe.config.compare_with_papers for recipe in recipes)

    def __getitem__(self, name: str) -> RecipeResults:
        for recipe in self._recipes:
            if name in recipe.names:
                self._read[recipe.name] = recipe
                return recipe
        raise _no_recipe(name)

    def __contains__(self, name: object) -> bool:
        return any(name in recipe.names for recipe in self._recipes)

    @overload
    def get(self, name: str, /) -> RecipeResults | None: ...
    @overload
    def get(self, name: str, /, default: RecipeResults | T) -> RecipeResults | T: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """Returns the recipe of a name, or the default if there is none."""
        try:
            return self[name]
        except Unavailable:
            return default

    def __iter__(self) -> Iterator[str]:
        return (name for recipe in self._recipes for name in recipe.names)

    def __len__(self) -> int:
        return sum(len(recipe.names) for recipe in self._recipes)

    def family(self, prefix: str) -> list[tuple[str, RecipeResults]]:
        """Returns the recipes named PREFIX-SUFFIX as (suffix, recipe), sorted by parameters and samples.

        Raises:
          Unavailable: there is no such recipe.
        """
        suffixes = [n.removeprefix(f"{prefix}-") for n in self if n.startswith(f"{prefix}-")]
        if not suffixes:
            raise _no_recipe(f"{prefix}-...")
        recipes = [(suffix, self[f"{prefix}-{suffix}"]) for suffix in suffixes]
        return sorted(recipes, key=lambda item: (item[1].parameters, item[1].samples))


def read_workdir(workdir: Path) -> Record:
    """Reads config.json of a workdir: the names of its recipes and of the requested figures.

    Raises:
      UserError: there is no workdir, or no config.json in it.
    """
    if not workdir.is_dir():
        raise UserError(f"{workdir}: there is no such folder; run lm-mia run first")
    if not (workdir / "config.json").is_file():
        raise UserError(f"{workdir}: there are no recipes in it; run lm-mia run first")
    record = read_json(workdir, "config.json", ("recipes", "figures"), command="run")
    return record | {"figures": listed_figures.from_file(record["figures"], workdir)}


def fewest_references(recipes: Sequence[RecipeResults]) -> int:
    """Returns the number of references that all recipes have, with which they can be compared fairly."""
    return min(len(recipe.references) for recipe in recipes)
