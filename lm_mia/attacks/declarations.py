"""Declarations of tables: what their rows and columns mean.

A declaration stands beside the function that makes the table. docs/tables.md is generated from all of them, and a test
compares them with the tables that are written.
"""

import dataclasses
from collections.abc import Mapping
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
    attack.fprs; other placeholders are defined in ``rows``."""
    key: tuple[str, ...] = ()
    """The columns that identify a row. Rows are ordered by them: those with the same first column are together, among
    them those with the same second one, and so on."""
    notes: str = ""
    """What else is to be said, in Markdown."""
