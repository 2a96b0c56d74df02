"""Runs all attacks of a recipe: from the score store to pieces, and from these to exported tables."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from lm_mia import config
from lm_mia.attacks import (
    audit,
    evaluations,
    exports,
    models,
    more_references,
    pooling,
    replicas,
    studies,
    targets,
    token_tables,
    variance,
    zero_run,
)
from lm_mia.attacks.evaluate import evaluate
from lm_mia.attacks.exports import Export
from lm_mia.attacks.pieces import Pieces
from lm_mia.attacks.replicas import Replicas
from lm_mia.attacks.shown_samples import shown_samples
from lm_mia.attacks.spec import RecipeNeeds, Request
from lm_mia.attacks.table_sets import StoredTables, TableSet, Work, find, get
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.machine import available_cores
from lm_mia.store.store import Store

_NOTHING, _NO_TOKENS = RecipeNeeds(), token_tables.TokenSettings()
_FEW_SAMPLES = 2**12
"""With so few samples, two threads take longer than one, since each call of NumPy is short and Python runs one of them
at a time."""


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    folder: Path,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
    pieces: Pieces,
    requested: RecipeNeeds = _NOTHING,
    token_settings: token_tables.TokenSettings = _NO_TOKENS,
) -> dict[str, int]:
    """Computes the pieces of a recipe that are missing, and exports its tables.

    Args:
      store: the score store of the recipe.
      population: provides lengths and texts of samples.
      c: models, attacks, false positive rates and levels.
      folder: folder of the exported tables.
      progress: called as ``progress(label, done, total)``.
      say: called with lines for the user about missing models and about samples without a score.
      pieces: the pieces of the recipe, to which missing ones are added.
      requested: what figures need in addition to the tables of decisions.
      token_settings: the samples whose tokens have tables, and other settings of these.

    Returns:
      The numbers of attacks: "requested", "computed", and "left_out" because models are not scored as required. The
      remaining attacks were computed before.

    Raises:
      UserError: if scores are corrupt, or if the tables of decisions cannot be made: too few models are present, or no
        member or no non-member has enough references. In the second case the attacks on targets are computed and
        exported before the error is raised.
    """
    # glibc returns freed memory to the system beyond twice the largest block that was ever freed. Without the large
    # block that is freed here, the temporaries of each chunk of LiRA would be requested again, which doubles the time
    # of a fit.
    np.empty(2**21)
    scratch = pieces.results.folder
    scratch.mkdir(parents=True, exist_ok=True)
    present = models.present_models(store)
    if not c.replicas:
        references = subsets.requested_seeds(c.references, 0)
        if missing := {*references} - {*present}:
            say(
                f"{len(missing)} of {len(references)} models are missing; run `lm-mia run` to make them"
            )
    # The pool keeps the cores busy. Further threads of BLAS would wait for each other longer than they compute, since
    # its matrices are small; on a busy machine, ranges of coin flips would take a hundred times as long.
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(1 if len(population) <= _FEW_SAMPLES else available_cores()) as pool,
    ):
        recipe = _Recipe(store, population, c, pieces, Work(pool, scratch, progress, say))
        found = _Found({}, {exports.MODELS})
        found.add_tables(recipe.get(models.models_set(store, present)), pieces)
        failure, attacked = None, None
        counts = {"requested": 0, "computed": 0, "left_out": 0}
        try:
            if c.replicas:
                attacked = recipe.attack_replicas(counts, found)
        except UserError as error:
            failure = error  # such as too few replicas; the targets are attacked nevertheless
        recipe.attack_targets(requested, attacked, counts, found, has_failed=failure is not None)
        if not failure or c.targets:  # otherwise, the tables of earlier commands stay
            others = recipe.other_sets(requested, token_settings, attacked)
            for tables in others:
                if tables.name in requested.studies:
                    names = [*requested.studies]
                    progress("studies", names.index(tables.name), len(names))
                stored = recipe.get(tables)
                found.add_tables(stored, pieces)
                found.exports |= exports.facts_of(stored)
            found.names |= {*exports.OF_SETS}
        if losses := _sample_losses(store, population, requested, present):
            found.add_tables(recipe.get(losses), pieces)
        found.names.add(models.SAMPLE_LOSSES)
        exports.write(folder, found.exports, found.names)
    if failure:
        raise failure
    return counts


def ask(
    store: Store,
    population: Population,
    c: config.Attack,
    pieces: Pieces,
    requested: RecipeNeeds = _NOTHING,
    token_settings: token_tables.TokenSettings = _NO_TOKENS,
) -> None:
    """Asks for all pieces that `run` would export and computes none, so that `Results.unused` returns the others."""
    present = models.present_models(store)
    silent: Any = lambda *_: None  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        work = Work(pool, pieces.results.folder, silent, silent)
        recipe = _Recipe(store, population, c, pieces, work)
        scored = requested.score_table
        requests = [*requested.requests, *targets.requests_of_score_table(scored, c)]
        sets, attacked = [models.models_set(store, present)], None
        with contextlib.suppress(UserError):  # too few replicas
            if c.replicas:
                attacked = replicas.find_replicas(store, recipe.attacked, c, silent)
                requests += attacked.requests()
                sets += attacked.sets(work).values()
        sets += recipe.other_sets(requested, token_settings, attacked)
        optional = (
            targets.warnings_set(scored, store, recipe.attacked),
            _sample_losses(store, population, requested, present),
        )
        sets += filter(None, optional)
        for request in requests:
            pieces.results.path(pieces.key(request))
        for tables in sets:
            find(tables, pieces)


def _sample_losses(
    store: Store, population: Population, requested: RecipeNeeds, present: Sequence[ModelSeeds]
) -> TableSet | None:
    if not requested.loss_samples:
        return None
    references = [model for model in present if model.role == "reference"]
    return models.sample_losses_set(
        store, references, requested.loss_samples, population.document_N
    )


@dataclasses.dataclass
class _Found:
    """What a command exports."""

    exports: dict[str, Export]
    names: set[str]
    """Files that are removed if they are not exported."""

    def add_tables(self, stored: StoredTables, pieces: Pieces) -> None:
        """Adds the tables of a set."""
        self.exports |= exports.of_set(stored, pieces)


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """A recipe with its pieces."""

    store: Store
    population: Population
    c: config.Attack
    pieces: Pieces
    work: Work

    @property
    def attacked(self) -> Population:
        """The attacked samples."""
        return self.population.from_sample(self.store.first_canary)

    def get(self, tables: TableSet) -> StoredTables:
        """Returns the tables of a set, which are computed if they are not there."""
        return get(tables, self.pieces)

    def evaluate(self, requests: list[Request], label: str, counts: dict[str, int]) -> int:
        """Computes the missing evaluations; adds to the numbers of attacks, and returns how many were computed."""
        work = self.work
        result = evaluate(
            requests,
            self.pieces,
            self.store,
            self.attacked,
            work.pool,
            lambda done, total: work.progress(label, done, total),
            work.say,
        )
        for name, count in result.items():
            counts[name] += count
        return result["computed"]

    def attack_replicas(self, counts: dict[str, int], found: _Found) -> Replicas:
        """Attacks the replicas; returns their attacks."""
        attacks = replicas.find_replicas(self.store, self.attacked, self.c, self.work.say)
        computed = self.evaluate(attacks.requests(), "attack", counts)
        if computed:
            _say_what_is_left_out(attacks, self.pieces, self.work)
        sets = {name: self.get(tables) for name, tables in attacks.sets(self.work).items()}
        found.exports |= exports.of_replicas(attacks, sets, self.pieces)
        found.names |= {*exports.OF_REPLICAS, "membership_scores.json"}
        return attacks

    def attack_targets(
        self,
        requested: RecipeNeeds,
        attacked: Replicas | None,
        counts: dict[str, int],
        found: _Found,
        *,
        has_failed: bool,
    ) -> None:
        """Computes what figures need, and without replicas the attacks of the config on targets."""
        pieces, work = self.pieces, self.work
        scored = requested.score_table
        requests = [*requested.requests, *targets.requests_of_score_table(scored, self.c)]
        computed = self.evaluate(requests, "attack targets", counts)
        if scored:
            if computed:
                audit.say_if_delta_is_large(
                    self.c.delta, len(self.attacked), self.store.design, work.say
                )
            warned = targets.warnings_set(scored, self.store, self.attacked)
            warnings = self.get(warned).facts["warnings"] if warned else []
            found.exports |= exports.of_score_table(
                scored, warnings, self.store, self.attacked, pieces
            )
        if not self.c.replicas:
            found.names |= {*exports.OF_REPLICAS, "membership_scores.json"}
        of_replicas = (
            [Request(s, evaluations.operating_points) for s in attacked.specs] if attacked else []
        )
        if requested.requests or not has_failed:
            found.exports |= exports.of_requests([*of_replicas, *requested.requests], pieces)
            found.names |= {*exports.OF_REQUESTS}

    def other_sets(
        self,
        requested: RecipeNeeds,
        token_settings: token_tables.TokenSettings,
        attacked: Replicas | None,
    ) -> list[TableSet]:
        """Returns the tables that are no evaluation of one attack, but for those of replicas."""
        store, canaries, c, work = self.store, self.attacked, self.c, self.work
        shown_S = np.zeros(0, np.int64)
        if attacked:
            request = Request(attacked.main, shown_samples)
            shown = self.pieces.read(request, ["id"])
            shown_S = shown_S if shown is None else shown["id"].to_numpy()
        sets = [
            more_references.table_set(store, canaries, c, work),
            pooling.table_set(store, canaries, c, work),
            zero_run.table_set(store, canaries, c, work),
            variance.table_set(store, canaries, c, work),
            token_tables.table_set(store, self.population, c, token_settings, shown_S, work),
        ]
        of_studies = [
            studies.table_set(name, store, canaries, c, token_settings.batches, work)
            for name in requested.studies
        ]
        return [*filter(None, sets), *of_studies]


def _say_what_is_left_out(attacks: Replicas, pieces: Pieces, work: Work) -> None:
    """Tells the user how many samples have no score, and if delta is too large."""
    c = attacks.c
    main = Request(attacks.main, evaluations.operating_points)
    left_out = int(pieces.table(main)["left_out"].max())
    needed = 2 if c.variance == "per_sample" else 1
    if left_out:
        work.say(
            f"attack.references={len(attacks.references)}: {left_out} samples have fewer than {needed} IN or {needed} "
            "OUT references, or references with equal losses, and have no score (NaN); more references or "
            "train.subset='balanced' avoid this"
        )
    audit.say_if_delta_is_large(c.delta, len(attacks.population), attacks.store.design, work.say)
