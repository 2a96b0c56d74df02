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


COMMON: Mapping[str, Column] = {
    "attack": Column("none", "name of the attack"),
    "attack_id": Column(
        "none",
        "identifies an attack: its name, number of references, and 8 digits of a hash of everything that determines it",
    ),
    "auc": Column(
        "fraction",
        (
            "area under the ROC curve: the probability that a member has a larger score than a non-member, where ties "
            "count 1/2; empty if a class has no score"
        ),
    ),
    "class": Column("none", "`members` or `nonmembers` of the attacked models"),
    "cutoff": Column(
        "fraction", "t, the smallest flip rate of a coin flip with this number of replicas"
    ),
    "document": Column("none", "as in the sample table; only if `corpus.split_documents` is set"),
    "fpr": Column("fraction", "requested FPR"),
    "half": Column(
        "none",
        "0: all samples; 1 to 14: half of them, as `stats.HALVES_HxG`; halves 2i - 1 and 2i are complements",
    ),
    "id": Column("none", "the sample: its number in the population, from 0"),
    "left_out": Column(
        "count",
        (
            "samples without a score, the largest number over several models or repetitions; where votes are counted, "
            "samples of both classes without votes, since they have no score under one of the models"
        ),
    ),
    "member": Column(
        "none",
        (
            "whether the model of the row or, without one, the replicas (else the first target) were trained on the "
            "sample"
        ),
    ),
    "members": Column("count", "members with a score, the largest number over several models"),
    "model": Column("none", "name of the model"),
    "nonmembers": Column("count", "non-members with a score, likewise"),
    "piece": Column("none", "as in the sample table; only if `corpus.split_documents` is set"),
    "prefix_group": Column("none", "as in the sample table"),
    "reason": Column("none", "why there are no tables; empty if there are"),
    "recipe": Column("none", "name of the recipe's folder"),
    "references": Column("count", "number of references; 0 for attacks without references"),
    "replicas": Column(
        "count",
        "B, the number of replicas: of votes on each sample, and of models that means and standard deviations are of",
    ),
    "roles": Column("none", "the numbers of the references, targets and replicas that are present"),
    "sample": Column("none", "as `id`"),
    "scheme": Column(
        "none",
        (
            "`greedy` (always the most likely token), `sampled` (temperature 1, all tokens) or `chosen` "
            "(`extract.temperature`, `top_k` and `top_p`)"
        ),
    ),
    "settings": Column("none", "the settings that the tables depend on, such as `attack.fprs`"),
    "step": Column("steps", "`attack.step`"),
    "target": Column("none", "name of the attacked model"),
    "tfidf": Column("none", "as in the sample table"),
    "tokens": Column("count", "as in the sample table"),
    "tpr_at_FPR": Column(
        "fraction",
        (
            "true positive rate at the threshold of this FPR, which is calibrated on the non-members that are used; "
            "empty if they cannot show it, or if a class has no score"
        ),
    ),
    "unk": Column("count", "as in the sample table"),
    "zlib_bytes": Column("bytes", "as in the sample table"),
}
"""Columns that have the same meaning in many tables: docs/tables.md defines them once."""


def common(*names: str) -> dict[str, Column]:
    """Returns some of the `COMMON` columns."""
    return {name: COMMON[name] for name in names}


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
