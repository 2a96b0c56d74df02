"""Studies of a recipe that only some figures need, each with tables of its own in the folder of the tables.

A study is a function that returns tables. This module opens the models for it, writes its tables, and skips a study
whose tables are current:

    NAME.json  settings and models of the tables of the study NAME; if there are no tables, the reason

The studies are listed in `STUDIES`, and `lm_mia.attacks.spec.Study` has their names. A figure requests one by a
`StudyNeed`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from lm_mia import config
from lm_mia.atomic import is_current, replacing, write_completion_marker, write_csv
from lm_mia.attacks import (
    fragile_hits,
    models,
    recency,
    reference_numbers,
    text_groups,
    token_tfidf,
)
from lm_mia.attacks.spec import FORMAT, RecipeNeeds, Study, decision_settings
from lm_mia.attacks.study_inputs import StudyError, StudyInputs
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.errors import raise_failed_read
from lm_mia.store.store import Store

STUDIES: Mapping[Study, Callable[[StudyInputs], Mapping[str, pd.DataFrame]]] = {
    "fragile_hits": fragile_hits.tables,
    "recency": recency.tables,
    "reference_numbers": reference_numbers.tables,
    "text_groups": text_groups.tables,
    "token_tfidf": token_tfidf.tables,
}
"""Name of a study -> the function that returns its tables: file name -> table; it may raise `StudyError`."""


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    batches: Batches,
    requested: RecipeNeeds,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
) -> None:
    """Writes the tables of the requested studies, unless they are current.

    If the recipe does not allow a study, for example because it has too few models, NAME.json gives the reason.

    Args:
      batches: batch size and epochs of the recipe.
      requested: the studies.
      pool: threads that compute parts of a study.
      store, population, c, folder, progress: as in `runner.run`.

    Raises:
      UserError: if scores are corrupt.
    """
    present = [str(model) for model in models.present_models(store, c.step)]
    identity: dict[str, Any] = {
        "format": FORMAT,
        "config": decision_settings(c),
        "models": present,
    }
    missing: list[Study] = [
        name for name in requested.studies if not is_current(folder / f"{name}.json", identity)
    ]
    for done, name in enumerate(missing):
        progress("studies", done, len(missing))
        _delete(name, folder)
        inputs = StudyInputs(store, population, c, batches, pool)
        try:
            tables, reason = STUDIES[name](inputs), ""
        except StudyError as error:
            tables, reason = {}, str(error)
        for file, table in tables.items():
            _write(folder / file, table)
        write_completion_marker(folder / f"{name}.json", identity | {"reason": reason}, tables)
        progress("studies", done + 1, len(missing))


def _write(path: Path, table: pd.DataFrame) -> None:
    if path.suffix == ".csv":
        write_csv(path, table)
        return
    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False)


def _delete(name: Study, folder: Path) -> None:
    """Deletes the tables of a study, so that no reader combines old tables with new settings."""
    marker = folder / f"{name}.json"
    try:
        files: Sequence[str] = [*json.loads(marker.read_text(encoding="utf-8"))["tables"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise_failed_read(error, marker)
        files = []  # There are none, or the marker is damaged and the tables are replaced one by one.
    for file in (marker.name, *files):
        (folder / file).unlink(missing_ok=True)
