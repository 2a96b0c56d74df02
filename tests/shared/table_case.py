"""Runs the function of a set of tables, and exports what it returns, as a command would."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_mia.attacks import exports
from lm_mia.attacks.results import Table
from lm_mia.attacks.table_sets import TableSet, Work


@contextmanager
def working(folder: Path, say: Callable[[str], None] = print) -> Iterator[tuple[Work, list[Any]]]:
    """Context manager that yields with what tables are computed, and a list to which progress is added."""
    progress: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        yield Work(pool, folder, lambda *at: progress.append(at), say), progress


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
