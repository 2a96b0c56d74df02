"""Tables that are no evaluation of one attack, such as attacks on every model with all others.

A function computes all tables of a set together, from the scores of models. Each table is a piece, and so are facts
about the tables, which are stored last: if they are there, and all tables are intact, nothing is computed.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_mia.attacks.pieces import Pieces
from lm_mia.attacks.results import RESULTS_FORMAT, Key, Table
from lm_mia.data.subsets import ModelSeeds

Write = Callable[[str, Table], None]
"""Stores a table under its file name."""
Facts = Mapping[str, Any]
"""What is said about tables, as JSON values."""


@dataclasses.dataclass(frozen=True)
class Work:
    """With what a stage computes, and whom it tells."""

    pool: ThreadPoolExecutor
    folder: Path
    """For temporary files of scores."""
    progress: Callable[[str, float, float], None]
    """Called as ``progress(label, done, total)``."""
    say: Callable[[str], None]
    """Called with lines for the user."""


@dataclasses.dataclass(frozen=True)
class TableSet:
    """Tables that one function computes."""

    name: str
    models: Sequence[ModelSeeds]
    """The models whose scores the tables depend on."""
    settings: Mapping[str, Any]
    """Everything else that the function reads, as JSON values."""
    compute: Callable[[Write], Facts]
    """Passes each table to its argument, and returns facts about the tables."""
    code: str = ""
    """Stands for the code of the function, if RESULTS_FORMAT does not."""

    def key(self, pieces: Pieces, table: str = "") -> Key:
        """Returns what determines a table, or the facts."""
        names = sorted({*pieces.always, *map(str, self.models)})
        code = {"code": self.code} if self.code else {}
        return code | {
            "what": self.name,
            "table": table,
            "format": RESULTS_FORMAT,
            "recipe": pieces.recipe_hash,
            "models": {name: pieces.digests.get(name, "") for name in names},
            "design": pieces.design,
            "settings": self.settings,
        }


@dataclasses.dataclass(frozen=True)
class StoredTables:
    """The tables of a set that are stored."""

    of: TableSet
    facts: dict[str, Any]
    names: tuple[str, ...]
    """The file names of the tables."""

    def parts(self, name: str, pieces: Pieces) -> Iterator[pa.Table]:
        """Yields the row groups of a table; raises UserError if it is missing or damaged."""
        return pieces.results.parts(self.of.key(pieces, name))


def find(tables: TableSet, pieces: Pieces) -> StoredTables | None:
    """Returns the tables of a set; None if one of them, or the facts about them, are missing or damaged."""
    stored = pieces.results.read(tables.key(pieces))
    if stored is None:
        return None
    content = json.loads(stored["facts"].iloc[0])
    if not all(pieces.results.has(tables.key(pieces, name)) for name in content["tables"]):
        return None
    return StoredTables(tables, content["facts"], tuple(content["tables"]))


def get(tables: TableSet, pieces: Pieces) -> StoredTables:
    """Returns the tables of a set, which are computed if they are not there."""
    if (stored := find(tables, pieces)) is not None:
        return stored
    names: list[str] = []

    def write(name: str, table: Table) -> None:
        pieces.results.write(tables.key(pieces, name), table)
        names.append(name)

    facts = json.loads(json.dumps(tables.compute(write)))
    content = json.dumps({"facts": facts, "tables": names})
    pieces.results.write(tables.key(pieces), pd.DataFrame({"facts": [content]}))
    return StoredTables(tables, facts, tuple(names))
