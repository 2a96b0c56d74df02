"""Attacks: the score store -> membership scores, decisions and metrics -> tables."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lm_mia import config
from lm_mia.atomic import FLIPS_JSON
from lm_mia.attacks import models, replicas, targets
from lm_mia.config.needs import RecipeNeeds
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.store.store import Store

_NOTHING = RecipeNeeds()


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    folder: Path,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
    requested: RecipeNeeds = _NOTHING,
) -> dict[str, int]:
    """Makes the tables of a recipe; what they hold already is not computed again.

    Args:
      store: the scores of the recipe's models.
      population: for lengths and texts.
      c: which models, attacks, rates and levels.
      folder: of the tables.
      progress: called as ``progress(label, done, total)`` with numbers of attacks; the label is "attack" for the tables
        of decisions and "attack targets" for the others.
      say: called with lines for the user about missing models and about samples without a score.
      requested: what figures need in addition to the tables of decisions.

    Returns:
      Numbers of attacks: "requested", "computed", and "left_out" because models are not scored as needed. They include
      the attacks of the tables of decisions. The remaining ones were in the tables already.

    Raises:
      UserError: scores are corrupt; or the tables of decisions cannot be made, because too few models are present, no
        member or no non-member has enough references, or attack.leave_one_out is set with balanced subsets. In the
        second case the attacks on targets are still computed and written before the error is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*folder.glob(".*.[0-9]*"), *folder.glob("*/.*.[0-9]*")):  # by a killed attack
        left.unlink()
    present = models.present_models(store)
    models.write_models(folder / models.MODELS, present)
    if not c.replicas:
        # Tables of decisions that an earlier command made are not of these settings.
        (folder / FLIPS_JSON.name).unlink(missing_ok=True)
        wanted = subsets.requested_seeds(c.references, 0)
        if absent := {*wanted} - {*present}:
            say(f"{len(absent)} of {len(wanted)} models are absent; `lm-mia run` makes them")
    target_tables = targets.TargetTables(folder, c)
    on_replicas, failure = {"requested": 0, "computed": 0, "left_out": 0}, None
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        shared = target_tables, folder, pool, progress, say
        try:
            if c.replicas:
                on_replicas = replicas.run(store, population, c, *shared)
        except UserError as error:  # such as too few replicas, which does not concern the targets
            failure = error
        on_targets = targets.run(store, population, c, requested, *shared)
    if requested.loss_samples:
        path, ids_S = folder / models.SAMPLE_LOSSES, requested.loss_samples
        references = [row for row in present if row.role == "reference"]
        models.write_sample_losses(store, references, ids_S, path)
    if failure:
        raise failure
    return {name: on_replicas[name] + on_targets[name] for name in on_targets}
