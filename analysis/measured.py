"""Attacks on the rows of a recipe, straight from its score store: what ROC figures and comparisons are made of.

T: targets, F: false positive rates of the config, G: points of a curve, N2: samples of the population.
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import workdir

from lm_mia import attack, identity, points, presence, scores
from lm_mia.config import AttackName, Config
from lm_mia.population import Population, open_population
from lm_mia.score_file import ScoreFile
from lm_mia.stats import roc
from lm_mia.store import Store
from lm_mia.subsets import Row

FEWEST_REFERENCES = 2
GROUPS = 8
"""Of references, of which one is left out at a time where their choice is to show."""


class Absent(Exception):
    """A figure lacks rows or recipes; said in one line in its place."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One recipe of a sweep: a workdir of its own."""

    folder: Path
    config: Config
    """As of its last command."""

    @property
    def names(self) -> list[str]:
        """What figures call it."""
        return self.config.name.split("+")

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
        return open_population(self.folder / "population", verify=False)

    @functools.cached_property
    def path(self) -> Path:
        """Of scores and checkpoints."""
        return self.folder / f"recipe_{identity.recipe_hash(self.config, self.population.sha256)}"

    @functools.cached_property
    def store(self) -> Store:
        """Its scores."""
        return presence.scores_of(self.config, self.path)

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens that a row is trained on, all epochs, of each of its parameters without embeddings."""
        mean = float(np.diff(self.population.offsets_N1).mean())
        return self.samples * self.config.train.epochs * mean / self.parameters

    @functools.cached_property
    def rows(self) -> tuple[list[Row], list[Row], list[Row]]:
        """(references, targets of their own subsets, replicas) that are there at the end of their training.

        Targets are the last of the references that the config asks for, or, while these are lacking, of as many as are
        there: in whole pairs, whose rows are complements in a balanced design.
        """
        c = self.config.attack
        plain = dataclasses.replace(self.store, statistics=(), token_samples=())
        wanted = presence.rows_of(self.config)
        absent = set(plain.missing(wanted))

        def lacks(end: int) -> int:
            return len(absent.intersection(wanted[end - c.targets : end]))

        end = c.references
        if (
            2 * lacks(end) > c.targets
        ):  # more were asked for and are not made yet: those before them stay targets
            end = next((k for k in range(end, c.targets, -2) if not lacks(k)), end)
        parts = wanted[: end - c.targets], wanted[end - c.targets : end], wanted[c.references :]
        references, targets, replicas = ([r for r in part if r not in absent] for part in parts)
        return references, targets, replicas

    def step(self, epochs: float) -> int:
        """The score point after so many epochs; 0 for the end."""
        if epochs >= self.config.train.epochs:
            return 0
        whole = dataclasses.replace(self.config.score, at_epochs=(epochs,), at_steps=())
        [step] = points.score_steps(dataclasses.replace(self.config, score=whole))
        if step not in points.score_steps(self.config):
            raise Absent(f"{self.config.name}: not scored after epoch {epochs:g}")
        return step


class Recipes(Mapping[str, Recipe]):
    """The recipes of a sweep by their names, those that have a population; remembers which were asked for.

    WorkdirError if two have one name.
    """

    def __init__(self, folders: Sequence[Path]):
        found = [read(folder) for folder in folders]
        self.all = [r for r in found if (r.folder / "population" / "manifest.json").is_file()]
        self.used: set[Path] = set()
        first: dict[str, Recipe] = {}
        for recipe in self.all:
            for name in filter(None, recipe.names):
                if name in first:
                    raise workdir.WorkdirError(
                        f"name={name!r}: {first[name].folder} and {recipe.folder} have it; say which recipes are meant "
                        "(figures.py: --recipe=DIR, scaling.py: DIR ...), or give each command a workdir of its own"
                    )
                first[name] = recipe

    def __getitem__(self, name: str) -> Recipe:
        for recipe in self.all:
            if name in recipe.names:
                self.used.add(recipe.folder)
                return recipe
        raise Absent(f"no recipe {name} in this sweep")

    def __contains__(self, name: object) -> bool:
        return any(name in recipe.names for recipe in self.all)

    def __iter__(self) -> Iterator[str]:
        return (name for recipe in self.all for name in recipe.names)

    def __len__(self) -> int:
        return sum(len(recipe.names) for recipe in self.all)

    def family(self, kind: str) -> list[tuple[str, Recipe]]:
        """What follows ``KIND-`` in a name, and the recipe, by parameters, samples."""
        of = [n.removeprefix(f"{kind}-") for n in self if n.startswith(f"{kind}-")]
        if not of:
            raise Absent(f"no recipe {kind}-... in this sweep")
        found = [(name, self[f"{kind}-{name}"]) for name in of]
        return sorted(found, key=lambda item: (item[1].parameters, item[1].samples))


def read(folder: Path) -> Recipe:
    """The recipe of a workdir; WorkdirError if it has none."""
    stored = workdir.read_json(folder, "config.json", ("config",), verb="train")["config"]
    try:
        return Recipe(folder, identity.from_dict(stored))
    except (TypeError, ValueError) as error:
        raise workdir.WorkdirError(
            f"{folder}: config.json is of another version of lm_mia ({error}); run it again"
        ) from error


@dataclasses.dataclass(frozen=True)
class Attacked:
    """One attack on the targets of a recipe."""

    points: roc.OperatingPoints
    """At the rates of the config, then at those of the curve."""
    rates: int
    """F."""
    references: int
    """With which every target was attacked."""
    targets: tuple[Row, ...]

    @property
    def auc_T(self) -> np.ndarray:
        """Area under the curve of every target."""
        return self.points.auc_T

    @property
    def left_out(self) -> int:
        """Samples without a score, of the target that has most."""
        return int(self.points.left_out_T.max())

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(fpr_G, tpr_TxG)."""
        return self.points.fpr_F[self.rates :], self.points.tpr_TxF[:, self.rates :]

    def tpr_T(self, fpr: float) -> np.ndarray:
        """At one of the rates of the config; NaN if it is none of them."""
        at = np.flatnonzero(np.isclose(self.points.fpr_F[: self.rates], fpr, rtol=1e-9))
        return self.points.tpr_TxF[:, at[0]] if len(at) else np.full(len(self.auc_T), np.nan)


@functools.cache
def attacked(
    recipe: Recipe, name: AttackName = "lira_online", references: int = 0, **how: Any
) -> Attacked:
    """An attack on every target of a recipe; arguments and errors as of `scored`."""
    targets, found, rates = [], [], []
    for row, member_N2, score_N2 in scored(recipe, name, references, **how):
        rates = rates or attack.rates(recipe.config.attack, member_N2)
        targets.append(row)
        found.append(roc.tpr_at_fpr(score_N2, member_N2, rates))
    used, fprs = references or len(recipe.rows[0]), recipe.config.attack.fprs
    return Attacked(roc.concatenate(found), len(fprs), used, tuple(targets))


def scored(
    recipe: Recipe,
    name: AttackName = "lira_online",
    references: int = 0,
    *,
    step: int = 0,
    observed: Literal["loss", "target_logit"] = "loss",
    replicas: bool = False,
    without: int | None = None,
    **settings: Any,
) -> Iterator[tuple[Row, np.ndarray, np.ndarray]]:
    """(target, member_N2, score_N2) of every target of a recipe; a score is NaN where the references do not suffice.

    Args:
      recipe: with some rows.
      name: of the attack.
      references: so many, the first ones; 0: all that are there.
      step: a score point; 0: the end.
      observed: what the attack sees of a sample.
      replicas: whether the replicas are attacked, which share a subset, and not the targets of different subsets.
      without: one of `GROUPS` groups of the references that is left out, by whole pairs (2i, 2i + 1); None: none is.
      settings: other values of fields of `lm_mia.config.Attack`.

    Raises:
      Absent: without a target or with fewer references than asked for.
    """
    c = dataclasses.replace(recipe.config.attack, **settings, attacks=(name,))
    some, of_own, alike = recipe.rows
    targets = alike if replicas else of_own
    kind = "replicas" if replicas else "targets"
    if not targets or len(some) < max(references, FEWEST_REFERENCES):
        raise Absent(
            f"{recipe.config.name}: {len(some)} references and {len(targets)} {kind} are there"
        )
    some = some[: references or len(some)]
    if without is not None:
        some = [row for i, row in enumerate(some) if i // 2 % GROUPS != without]
        if len(some) < FEWEST_REFERENCES or references < 2 * GROUPS:
            raise Absent(f"{recipe.config.name}: too few references to leave some out")
    store = dataclasses.replace(
        recipe.store,
        statistics=() if observed == "loss" else (observed,),
        token_samples=(),
        step=step,
    )
    if lacking := store.missing([*some, *targets], step):
        raise Absent(f"{recipe.config.name}: {len(lacking)} rows lack {observed} at step {step}")
    _, member_TxN2 = store.read(targets)
    source = scores.Source(
        store,
        targets,
        some,
        member_TxN2[0],
        recipe.population.column("zlib_bytes"),
        observed=observed,
    )
    of_rmia = attack.comparisons(source, c)
    fitted = scores.fit(source, [name], of_rmia, c)
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        ScoreFile(Path(tempfile.gettempdir()), len(targets), member_TxN2.shape[1]) as file,
    ):
        scores.fill({name: file}, source, fitted, c, pool)
        for t, row in enumerate(targets):
            yield row, member_TxN2[t], file.target(t)


def fewest_references(recipes: Sequence[Recipe]) -> int:
    """How many references all recipes have, so that a comparison of them is of nothing else."""
    return min(len(recipe.rows[0]) for recipe in recipes)


def size_of(recipe: Recipe) -> str:
    """A model's parameters without embeddings, for a legend: 98k, 140M."""
    size = recipe.config.model.size
    if size != "custom":
        return size
    n = recipe.parameters
    return f"{n / 1e6:.3g}M" if n >= 1e6 else f"{n / 1e3:.3g}k"
