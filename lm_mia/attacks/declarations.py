"""Declarations of tables: what their rows and columns mean.

A declaration stands beside the function that makes the table. docs/tables.md is generated from all of them, and a test
compares them with the tables that are written.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

Unit = Literal[
    "none",
    "count",
    "fraction",
    "nats",
    "nats per token",
    "nats per token and byte",
    "standard deviations",
    "steps",
    "bytes",
    "tokens",
    "tokens per parameter",
    "FLOPs",
]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a JSON file."""

    unit: Unit
    """The unit of the numbers; "none" for names, identifiers, truth values and pure numbers."""
    meaning: str
    """In Markdown, as a part of a sentence."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, or a JSON file."""

    file: str
    """Its file name."""
    rows: str
    """When the table is written and what a row is, in Markdown."""
    columns: Mapping[str, Column]
    """All columns. Several with one meaning share an entry, such as "low, high". FPR in a name stands for each rate of
    attack.fprs; other placeholders, words of capital letters, are defined in ``rows``."""
    key: tuple[str, ...] = ()
    """The columns that identify a row. Rows are ordered by them: those with the same first column are together, among
    them those with the same second one, and so on."""
    notes: str = ""
    """What else is to be said, in Markdown."""

    @property
    def column_names(self) -> list[str]:
        """The declared names of columns, one by one, with placeholders."""
        return [name for names in self.columns for name in names.split(", ")]


def expand(names: Iterable[str], placeholders: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns declared names of columns with the values of placeholders in their place.

    Args:
      names: such as "tpr_at_FPR".
      placeholders: placeholder -> its values.
    """
    columns = {*names}
    for word, values in placeholders.items():
        columns = {n.replace(word, v) for n in columns for v in (values if word in n else [""])}
    return columns


def column_mismatches(
    table: Table, columns: Sequence[str], fprs: Iterable[float]
) -> tuple[list[str], list[str]]:
    """Compares the columns of a table with their declaration.

    Args:
      table: the declaration. Placeholders other than FPR may stand for any text.
      columns: the names of the columns.
      fprs: the rates that FPR stands for.

    Returns:
      The columns that are not declared, and the declared ones that are missing.
    """
    declared = expand(table.column_names, {"FPR": [f"{fpr:g}" for fpr in fprs]})
    missing, undeclared = declared - {*columns}, {*columns} - declared
    words = {*_PLACEHOLDER.findall(table.rows)}
    for name in [*missing]:
        parts = _PLACEHOLDER.split(name)
        if {*_PLACEHOLDER.findall(name)} & words:
            pattern = re.compile(".+".join(map(re.escape, parts)))
            if found := {column for column in undeclared if pattern.fullmatch(column)}:
                missing.remove(name)
                undeclared -= found
    return sorted(undeclared), sorted(missing)


_PLACEHOLDER = re.compile("[A-Z]{2,}")
