"""Scores of the base of fine-tuned models, which is scored once for each population.

The base is not trained. So its scores are the same at every step, and in every recipe that starts from the same
checkpoint and has the same population.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import filelock

from lm_mia import config
from lm_mia.config.recipe import from_dict
from lm_mia.data.subsets import ModelSeeds, base
from lm_mia.errors import UserError
from lm_mia.run import inventory
from lm_mia.run.sweep import SweepRecipe
from lm_mia.store.store import Store, open_store, with_stored_statistics


def copy_from_another_recipe(recipe: SweepRecipe) -> str:
    """Copies the scores of the base from another recipe of the workdir, if they are missing and another one has them.

    Args:
      recipe: the recipe, whose store must exist.

    Returns:
      The name of the other recipe; "" if nothing was copied.
    """
    c, model = recipe.config, base()
    if not config.starts_from_checkpoint(c):
        return ""
    store = open_store(c, recipe.folder)
    # A process that holds the lock scores or copies the base already.
    with contextlib.suppress(filelock.Timeout), inventory.model_lock(recipe.folder, model):
        if not store.missing_models([model]):
            return ""
        for name, other in _stores_of_the_same_base(recipe):
            if _has_scores(other, model, store):
                store.copy_untrained(model, other)
                return name
    return ""


def _stores_of_the_same_base(recipe: SweepRecipe) -> Iterator[tuple[str, Store]]:
    """Yields (name, store) of the other recipes with the same population and the same checkpoint."""
    workdir = recipe.workdir
    own = workdir.read_recipe_config(recipe.name)
    assert own is not None
    for name in workdir.recipe_names():
        stored = workdir.read_recipe_config(name)
        if (
            stored is None
            or name == recipe.name
            or stored["population_sha256"] != own["population_sha256"]
        ):
            continue
        c, folder = from_dict(stored["config"]), workdir.recipe_dir(name)
        # The digest of the checkpoint, init_source, is part of the model; its path is not.
        if dataclasses.replace(c.model, init=recipe.config.model.init) == recipe.config.model:
            yield name, open_store(with_stored_statistics(c, folder), folder)


def _has_scores(source: Store, model: ModelSeeds, store: Store) -> bool:
    """Returns whether a source has all values of a model that a store requires, and they agree with their digest."""
    if not {*store.variables} <= {*source.variables}:
        return False
    if store.token_samples and source.token_samples != store.token_samples:
        return False
    try:
        return (
            model in source.models()
            and not source.missing_models([model])
            and not source.models_with_other_values([model])
        )
    except UserError:  # damaged scores of the other recipe are no reason to stop this one
        return False
