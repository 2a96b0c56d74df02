"""Views: what tables, figures and the page read of a recipe.

A view gives the evaluations of attacks and the tables of a recipe. What is stored is read; what is missing or damaged
is computed on the spot, and stored if the folder of the pieces can be written.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import threadpoolctl

from lm_mia import config
from lm_mia.attacks import models, table_sets, targets
from lm_mia.attacks.evaluate import evaluate
from lm_mia.attacks.inputs import call_once
from lm_mia.attacks.pieces import Pieces
from lm_mia.attacks.replicas import Replicas, find_replicas
from lm_mia.attacks.results import to_frame
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request
from lm_mia.attacks.table_sets import StoredTables, TableSet, Work
from lm_mia.attacks.user_code import UserCodeError
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable, UserError
from lm_mia.machine import available_cores
from lm_mia.store.store import Store

_FEW_SAMPLES = 2**12
"""With so few samples, two threads take longer than one, since each call of NumPy is short and Python runs one of them
at a time."""
_SMALL_BYTES = 2**21

Content = pd.DataFrame | Iterator[pa.Table] | Mapping[str, Any]
"""A table, in parts if it is stored, or the object of a JSON file."""
Out = TypeVar("Out")


@dataclasses.dataclass(frozen=True)
class TokenSettings:
    """The settings of a recipe, other than those of the attack, that studies may depend on."""

    samples: tuple[int, ...] = ()
    """score.token_samples."""
    prefix_tokens: int = 50
    suffix_tokens: int = 50
    batches: Batches = dataclasses.field(default_factory=Batches)


def silent(*_: object) -> None:
    """Shows no progress."""


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    """Returns the libraries with threads of their own; finding them takes some milliseconds."""
    return threadpoolctl.ThreadpoolController()


@dataclasses.dataclass(frozen=True, eq=False)
class RecipeView:
    """A recipe with its scores, samples, pieces and tables."""

    name: str
    store: Store
    """The scores, with the statistics that the attacks of the config need."""
    open_population: Callable[[], Population]
    """Returns all samples of the recipe."""
    c: config.Attack
    """Settings of the recipe."""
    stored: Pieces
    tables: Mapping[str, Callable[["RecipeView"], Content]]
    """File name of a table -> the function that returns it; it raises `Unavailable` if the recipe has no such table."""
    declared: RecipeNeeds = dataclasses.field(default_factory=RecipeNeeds)
    """What figures read in addition to the tables of decisions."""
    token_settings: TokenSettings = dataclasses.field(default_factory=TokenSettings)
    extraction: config.Extract = dataclasses.field(default_factory=config.Extract)
    """Settings of the extraction of samples."""
    extract: Callable[[table_sets.Write], table_sets.Facts] | None = None
    """Computes the tables of the extraction from a model; None: this command computes none."""
    progress: Callable[[str, float, float], None] = silent
    """Called as ``progress(label, done, total)``."""
    say: Callable[[str], None] = silent
    """Called with lines for the user."""
    computes: bool = True
    """Whether missing evaluations of attacks are computed when they are read."""
    no_replicas: str = ""
    """Why there are no attacks on replicas, for a command that found out; empty: unknown."""
    failed: dict[Hashable, UserCodeError] = dataclasses.field(default_factory=dict, repr=False)
    """Evaluations and studies of the user that failed, which are not tried again -> the error."""
    _tried: set[Request] = dataclasses.field(default_factory=set, init=False, repr=False)
    _once: dict[Hashable, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def once(self, function: Callable[["RecipeView"], Out]) -> Out:
        """Returns ``function(view)``, which is computed once."""
        return call_once(self._once, function, self, {})

    @functools.cached_property
    def population(self) -> Population:
        """All samples of the recipe."""
        return self.open_population()

    @functools.cached_property
    def attacked(self) -> Population:
        """The attacked samples."""
        return self.population.from_sample(self.store.first_canary)

    @functools.cached_property
    def present(self) -> list[ModelSeeds]:
        """The models that are scored at the end of training, without the base."""
        return models.present_models(self.store)

    @functools.cached_property
    def replicas(self) -> Replicas:
        """The attacks of the config on replicas; raises `Unavailable` if there are too few models."""
        if not self.c.replicas:
            raise Unavailable(
                f"{self.name}: attack.replicas=0: tables of decisions need replicas; run again with attack.replicas > 0"
            )
        if self.no_replicas:
            raise Unavailable(self.no_replicas)
        return find_replicas(self.store, self.attacked, self.c, self.say)

    @functools.cached_property
    def pieces(self) -> Pieces:
        """The evaluations of attacks; those that are missing are computed when they are read."""
        return dataclasses.replace(self.stored, compute=self._compute if self.computes else None)

    @functools.cached_property
    def work(self) -> Work:
        """Threads that compute, and whom they tell."""
        threads = 1 if len(self.population) <= _FEW_SAMPLES else available_cores()
        pool = ThreadPoolExecutor(threads)
        results = self.stored.results
        folder = results.scratch() if self.computes else results.folder
        return Work(pool, folder, self.progress, self.say)

    @functools.cached_property
    def target_requests(self) -> list[Request]:
        """The evaluations of attacks on targets: those that figures read, and those of the config without replicas."""
        specs = self.declared.score_table
        of_config = targets.requests_of_score_table(specs, self.c)
        return [*self.declared.requests, *of_config, *self._of_attack_tables(specs)]

    def replica_requests(self) -> list[Request]:
        """Returns the evaluations of attacks on replicas; none if there are too few models."""
        with contextlib.suppress(Unavailable):
            return self.required_replica_requests()
        return []

    def required_replica_requests(self) -> list[Request]:
        """Returns the evaluations of attacks on replicas; raises Unavailable if there are too few models."""
        return [*self.replicas.requests(), *self._of_attack_tables(self.replicas.complete)]

    def _of_attack_tables(self, specs: Sequence[AttackSpec]) -> list[Request]:
        sound = []
        for made in self.declared.attack_tables:
            try:
                read_settings(made.evaluation, self.stored.settings)
                sound.append(made)
            except UserCodeError as error:
                self.failed[made.evaluation] = error
        return [
            Request(spec, made.evaluation)
            for spec in specs
            for made in sound
            if spec.attack == self.c.headline or not made.of_headline
        ]

    def evaluate(self, requests: Sequence[Request], label: str) -> dict[str, int]:
        """Computes the missing ones of some evaluations, and returns the numbers of attacks; see `evaluate`."""
        self._tried.update(requests)
        with self.computing():
            return evaluate(
                requests,
                self.pieces,
                self.store,
                self.attacked,
                self.work.pool,
                lambda done, total: self.progress(label, done, total),
                self.say,
                self.failed,
            )

    def ensure(self, requests: Sequence[Request]) -> None:
        """Computes the missing ones of some evaluations, unless this was tried before, as of models without scores."""
        if not self.computes:
            return
        untried = [request for request in dict.fromkeys(requests) if request not in self._tried]
        if any(not self.pieces.has(request) for request in untried):
            self.evaluate(untried, "attack")

    def has(self, name: str) -> bool:
        """Returns whether the recipe has a table."""
        try:
            self.content(name)
        except Unavailable:
            return False
        return True

    def stored_tables(self) -> list[str]:
        """Returns the file names of the tables whose results are stored; none is computed."""
        view, names = dataclasses.replace(self, computes=False), []
        for name in self.tables:
            if not name.endswith(".json"):
                with contextlib.suppress(UserError):
                    content = view.content(name)
                    if isinstance(content, Iterator):
                        next(content)  # opens it
                    names.append(name)
        return names

    def content(self, name: str) -> Content:
        """Returns a table, in parts if it is large, or the object of a JSON file; raises `Unavailable` without it."""
        if name not in self.tables:
            raise Unavailable(
                f"{self.name}: there is no table {name}; if it belongs to a figure, run lm-mia attack with it in "
                "figures"
            )
        if name in self._once:
            return self._once[name].copy()
        with self.computing():
            content = self.tables[name](self)
        return self._keep(name, content) if isinstance(content, pd.DataFrame) else content

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Returns a table, or some of its columns.

        Raises:
          Unavailable: the models or the settings of the recipe do not allow it; the message says why.
        """
        whole = "whole", name
        if whole in self._once:
            kept: pd.DataFrame = self._once[whole]
            return (kept if columns is None else kept[[*columns]]).copy()
        content = self.content(name)
        assert not isinstance(content, Mapping), f"{name} is no table"
        if not isinstance(content, pd.DataFrame):
            parts = content if columns is None else (part.select(columns) for part in content)
            content = to_frame(pa.concat_tables([*parts]))
            return self._keep(whole, content) if columns is None else content
        return content if columns is None else content[[*columns]]

    def _keep(self, key: Hashable, table: pd.DataFrame) -> pd.DataFrame:
        """Returns a table, which is kept in memory if it is small, since figures and exports read it."""
        table = table.reset_index(drop=True)
        if table.memory_usage(deep=True).sum() > _SMALL_BYTES:
            return table
        self._once[key] = table
        return table.copy()

    def facts(self, name: str) -> dict[str, Any]:
        """Returns what tables/NAME.json says about the tables of decisions ("flips"), or of a study."""
        key = "facts", name
        if key not in self._once:
            self._once[key] = json.loads(json.dumps(self.content(f"{name}.json")))
        return self._once[key]

    def stored_set(self, make: Callable[["RecipeView"], TableSet]) -> StoredTables:
        """Returns the tables of a set, which are computed if they are not there."""
        key = "stored", make
        if make in self.failed:
            raise self.failed[make]
        if key not in self._once:
            try:
                tables = self.once(make)
                if (stored := table_sets.find(tables, self.stored)) is None:
                    if not self.computes:
                        raise Unavailable(
                            f"{self.name}: {tables.name} is missing; run lm-mia attack"
                        )
                    self.once(_check_scores)
                    with self.computing():
                        stored = table_sets.get(tables, self.pieces)
                self._once[key] = stored
            except UserCodeError as error:
                self.failed[make] = error
                raise
        return self._once[key]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Limits the threads of libraries while pieces are computed."""
        # glibc returns freed memory to the system beyond twice the largest block that was ever freed. Without the large
        # block that is freed here, the temporaries of each chunk of LiRA would be requested again, which doubles the
        # time of a fit.
        np.empty(2**21)
        # The pool keeps the cores busy. Further threads of BLAS would wait for each other longer than they compute,
        # since its matrices are small; on a busy machine, ranges of coin flips would take a hundred times as long.
        with _libraries().limit(limits=1, user_api="blas"):
            yield

    def _compute(self, request: Request) -> None:
        """Computes a piece that is missing, with all others that are missing."""
        requests = [*self.replica_requests(), *self.target_requests]
        if request.evaluation in self.failed:
            raise self.failed[request.evaluation]
        if request not in requests:
            raise Unavailable(
                f"{self.name}: there are no results of {request.evaluation.__name__} of {request.spec.name}; run "
                "lm-mia attack with this figure in figures (its needs must include this attack)"
            )
        self.ensure(requests)
        if request.evaluation in self.failed:
            raise self.failed[request.evaluation]


def _check_scores(view: RecipeView) -> None:
    models.check_scores(view.store)
