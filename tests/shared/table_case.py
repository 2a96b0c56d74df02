"""Runs the function of a set of tables, and exports what it returns, as a command would."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_mia import config
from lm_mia.attacks import exports
from lm_mia.attacks.experiment import RecipeView, TokenSettings
from lm_mia.attacks.results import Table
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import study_set
from lm_mia.attacks.table_sets import TableSet, Work
from lm_mia.data.population import Population
from lm_mia.errors import Unavailable
from lm_mia.store.store import Store


@contextmanager
def working(folder: Path, say: Callable[[str], None] = print) -> Iterator[tuple[Work, list[Any]]]:
    """Context manager that yields with what tables are computed, and a list to which progress is added."""
    progress: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        yield Work(pool, folder, lambda *at: progress.append(at), say), progress


def set_of_study(
    study: Study,
    store: Store,
    population: Population,
    c: config.Attack,
    work: Work,
    tokens: TokenSettings | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
) -> TableSet | None:
    """Returns the tables of a study of a store; None if the settings do not ask for it.

    Args:
      study: the study.
      store, population: the scores and the attacked samples.
      c, tokens: settings.
      work: with what the tables are computed.
      tables: the tables that the study reads.
    """
    nothing: Any = None
    others = {name: lambda _, table=table: table for name, table in (tables or {}).items()}
    view = RecipeView("recipe", store, lambda: population, c, nothing, others)
    view = dataclasses.replace(view, token_settings=tokens or TokenSettings())
    vars(view).update(attacked=population, work=work)  # cached properties
    try:
        return study_set(study)(view)
    except Unavailable:
        return None


def compute(tables: TableSet | None, folder: Path) -> list[str]:
    """Writes the tables of a set and its JSON file to a folder; returns their names."""
    if tables is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []

    def write(name: str, table: Table) -> None:
        if not isinstance(table, pd.DataFrame):
            table = iter([table] if isinstance(table, pa.Table) else [*table])
        exports.write(folder, name, table)
        names.append(name)

    facts = tables.compute(write)
    if names or facts.get("reason"):
        names.append(f"{tables.name}.json")
        exports.write(folder, names[-1], {**tables.settings, **facts})
    return names
