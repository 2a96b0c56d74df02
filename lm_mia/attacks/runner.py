"""Runs all attacks of a recipe: from the score store to membership scores, decisions and tables."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import threadpoolctl

from lm_mia import config
from lm_mia.atomic import CHANGED_TABLE, FLIPS_JSON, remove_changed_tables
from lm_mia.attacks import (
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
from lm_mia.attacks.evaluate import Pieces
from lm_mia.attacks.spec import RecipeNeeds, Request
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.machine import available_cores
from lm_mia.store.store import Store

_NOTHING, _NO_TOKENS = RecipeNeeds(), token_tables.TokenSettings()


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
    """Computes the tables of a recipe; results that the tables hold already are not computed again.

    Args:
      store: the score store of the recipe.
      population: provides lengths and texts of samples.
      c: models, attacks, false positive rates and levels.
      folder: folder of the tables.
      progress: called as ``progress(label, done, total)`` with numbers of attacks; the label is "attack" for the tables
        of decisions and "attack targets" for the others.
      say: called with lines for the user about missing models and about samples without a score.
      pieces: the pieces of the recipe, to which missing ones are added.
      requested: what figures need in addition to the tables of decisions.
      token_settings: the samples whose tokens have tables, and other settings of these.

    Returns:
      The numbers of attacks: "requested", "computed", and "left_out" because models are not scored as required. They
      include the attacks of the tables of decisions. The remaining attacks were in the tables already.

    Raises:
      UserError: if scores are corrupt, or if the tables of decisions cannot be made: too few models are present, or no
        member or no non-member has enough references. In the second case the attacks on targets are computed and
        written before the error is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(".*.[0-9]*"), *folder.glob("*/.*.[0-9]*")):  # of a killed process
        leftover.unlink()
    if changed := remove_changed_tables(folder):
        say(
            f"{', '.join(map(str, changed))}: {CHANGED_TABLE}; deleted with all tables of the same JSON file, which "
            "are computed again if they are requested"
        )
    present = models.present_models(store)
    models.write_models(store, present, folder / models.MODELS)
    if not c.replicas:
        # The tables of decisions, if any, were made with other settings.
        (folder / FLIPS_JSON.name).unlink(missing_ok=True)
        references = subsets.requested_seeds(c.references, 0)
        if missing := {*references} - {*present}:
            say(
                f"{len(missing)} of {len(references)} models are missing; run `lm-mia run` to make them"
            )
    canaries = population.from_sample(store.first_canary)
    on_replicas, failure = {"requested": 0, "computed": 0, "left_out": 0}, None
    # The pool keeps the cores busy. Further threads of BLAS would wait for each other longer than they compute, since
    # its matrices are small; on a busy machine, ranges of coin flips would take a hundred times as long.
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
    ):
        shared = pieces, folder, pool, progress, say
        on_replicas_requests: list[Request] = []
        try:
            if c.replicas:
                on_replicas, on_replicas_requests = replicas.run(
                    store, canaries, c, token_settings.samples, *shared
                )
        except UserError as error:
            failure = error  # such as too few replicas; the targets are attacked nevertheless
        on_targets = targets.run(store, canaries, c, requested, *shared)
        if not failure or requested.requests:
            targets.export([*on_replicas_requests, *requested.requests], pieces, folder)
        # If the command fails, the tables of earlier attacks stay as they are.
        if not failure or c.targets:
            more_references.run(store, canaries, c, folder, pool)
            pooling.run(store, canaries, c, folder, pool, progress)
            zero_run.run(store, canaries, c, folder, pool, progress, say)
            variance.run(store, canaries, c, folder, pool, say)
            token_tables.run(store, population, c, token_settings, folder, say)
            batches = token_settings.batches
            studies.run(store, canaries, c, batches, requested, folder, pool, progress)
    if requested.loss_samples:
        path, ids_S = folder / models.SAMPLE_LOSSES, requested.loss_samples
        references = [model for model in present if model.role == "reference"]
        models.write_sample_losses(store, references, ids_S, population.document_N, path)
    if failure:
        raise failure
    return {name: on_replicas[name] + on_targets[name] for name in on_targets}
