"""Studies of a recipe that only some figures need, each with tables of its own in the folder of the tables.

A study is a function that returns tables. If there are none, NAME.json has the reason.

The studies are listed in `STUDIES`, and `lm_mia.attacks.spec.Study` has their names. A figure requests one by a
`StudyNeed`.
"""

import dataclasses
from collections.abc import Callable, Mapping

import pandas as pd

from lm_mia import config
from lm_mia.attacks import (
    fragile_hits,
    models,
    recency,
    reference_numbers,
    text_groups,
    token_tfidf,
)
from lm_mia.attacks.spec import Study, decision_settings
from lm_mia.attacks.study_inputs import StudyError, StudyInputs
from lm_mia.attacks.table_sets import Facts, TableSet, Work, Write
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.store.store import Store

STUDIES: Mapping[Study, Callable[[StudyInputs], Mapping[str, pd.DataFrame]]] = {
    "fragile_hits": fragile_hits.tables,
    "recency": recency.tables,
    "reference_numbers": reference_numbers.tables,
    "text_groups": text_groups.tables,
    "token_tfidf": token_tfidf.tables,
}
"""Name of a study -> the function that returns its tables: file name -> table; it may raise `StudyError`."""


def table_set(
    name: Study,
    store: Store,
    population: Population,
    c: config.Attack,
    batches: Batches,
    work: Work,
) -> TableSet:
    """Returns the tables of a study.

    If the recipe does not allow it, for example because it has too few models, there are none, and the facts have the
    reason.

    Args:
      name: the study.
      store: the score store of the recipe.
      population: the attacked samples.
      c: settings of the recipe.
      batches: batch size and epochs of the recipe.
      work: threads that compute parts of the study.
    """
    present = models.present_models(store, c.step)
    settings = {"config": decision_settings(c), "batches": dataclasses.asdict(batches)}

    def compute(write: Write) -> Facts:
        try:
            tables = STUDIES[name](StudyInputs(store, population, c, batches, work.pool))
        except StudyError as error:
            return {"reason": str(error)}
        for file, table in tables.items():
            write(file, table)
        return {"reason": ""}

    return TableSet(name, present, settings | {"models": [*map(str, present)]}, compute)
