"""What a sweep is made of: a task for each recipe, and its folder in the sweep's workdir."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from lm_mia import config
from lm_mia.config import Config
from lm_mia.config.recipe import Asked, Entry, asked, recipe_hash
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.run.workdir import Workdir

_LABEL = 48  # characters of a folder's name that say what an entry sets


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be made of one recipe."""

    asked: Asked
    home: Path
    """The sweep's folder."""
    shared: Path | None
    """The population that tasks with the same samples share; None: it is the workdir's own."""
    others: frozenset[str] = frozenset()
    """Names of the sweep's other recipes."""

    @property
    def key(self) -> str:
        """What jobs call the recipe."""
        return self.asked.key

    @property
    def config(self) -> Config:
        """Of all rows that the sweep wants of the recipe."""
        return self.asked.config

    @property
    def label(self) -> str:
        """Its name or else what its entry of the sweep sets, for people."""
        if self.config.name:
            return self.config.name.partition("+")[0]
        sets = self.asked.sets.items()
        return ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in sets) or "the config"

    @property
    def folder(self) -> Path:
        """A workdir of `lm-mia`: in the sweep's folder, or that folder itself if the config is alone and has no name.

        Asked of the disk each time: who makes it first, under whatever label, names it for all.
        """
        if self.shared is None:
            return self.home
        there = sorted(self.home.glob(f"*_{self.key}"))
        name = re.sub(r"[^A-Za-z0-9.+-]+", "_", self.label).strip("_")
        return there[0] if there else self.home / f"{name[:_LABEL]}_{self.key}"

    @property
    def rows(self) -> list[subsets.Row]:
        """All rows that are wanted, in the order in which they are numbered."""
        return subsets.rows(self.config.attack.references, self.config.attack.replicas)

    @property
    def workdir(self) -> Workdir:
        """The folder, as `lm-mia` sees it."""
        return Workdir(self.folder)

    @property
    def population(self) -> Path:
        """Where the samples are, or will be."""
        return self.shared or self.workdir.population

    def recipe(self) -> Path | None:
        """The folder of scores and checkpoints; None before there is a population, which is a part of its name."""
        if not self.population.exists():
            return None
        from lm_mia.data.population import open_population  # here: pandas and pyarrow take a second

        sha256 = open_population(self.population, verify=False).sha256
        return self.workdir.recipe(recipe_hash(self.config, sha256))


def tasks(folder: str, entries: Sequence[Entry]) -> list[Task]:
    """The recipes of a sweep, each once, and where they are.

    A config that is alone and has no name has the folder to itself. Otherwise each recipe has a workdir of its own in
    it, found again by its key whatever its label is by now, and recipes of the same samples share a population.

    Args:
      folder: where everything is written; it need not exist.
      entries: of `lm_mia.config.load.sweep`.

    Raises:
      UserError: the folder is a file, or has the rows of one config.
    """
    where = Path(folder)
    if where.exists() and not where.is_dir():
        raise UserError(f"--workdir={folder}: is a file; choose a folder that can be written")
    if is_alone(entries):
        check_alone(where)
        return [Task(request, where, None) for request in asked(entries)]
    if folder and (where / "config.json").exists() and not (where / "populations").exists():
        raise UserError(
            f"--workdir={folder}: has the rows of one config, not of a sweep; choose another folder for the sweep"
        )
    found, names = [], set[str]()
    for request in asked(entries):
        if twice := names & {*filter(None, request.config.name.split("+"))}:
            raise UserError(
                f"name={min(twice)!r}: is the name of two recipes; give each entry of the sweep one of its own"
            )
        names |= {*request.config.name.split("+")}
        parts = config.to_dict(request.config)
        named = {k: parts[k] for k in ("corpus", "tokenizer", "population")}
        del named["corpus"]["processes"]
        samples = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]
        found.append(Task(request, where, where / "populations" / samples))
    return [
        dataclasses.replace(t, others=frozenset(names - {*t.config.name.split("+")})) for t in found
    ]


def check_alone(folder: Path) -> None:
    """UserError if a folder that one config wants for itself is a sweep's."""
    if (folder / "populations").exists():
        raise UserError(
            f"--workdir={folder}: has the recipes of a sweep; choose another folder, or give the config a name"
        )


def is_alone(entries: Sequence[Entry]) -> bool:
    """Whether a config has the workdir to itself."""
    return len(entries) == 1 and not entries[0][1].name


def link(task: Task) -> bool:
    """Lets the task's workdir show the population that it shares; whether it did not before."""
    if task.shared is None:
        return False
    try:
        os.symlink(Path("..", "populations", task.shared.name), task.workdir.population)
    except FileExistsError:
        return False
    return True
