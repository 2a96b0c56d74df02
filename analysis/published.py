"""Numbers that StrongMIA reports, each with its location in the paper."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

_FILE = Path(__file__).with_name("published.csv")


@dataclasses.dataclass(frozen=True)
class PublishedNumber:
    """A number that the paper reports."""

    description: str
    value: float
    std: float
    """NaN if none is reported."""
    location: str
    """Where the paper reports it, such as "Section 3.1"."""


@functools.cache
def _table() -> pd.DataFrame:
    return pd.read_csv(_FILE)


def published_numbers(figure: str) -> Mapping[str, PublishedNumber]:
    """Returns the numbers of a figure or table, such as fig01 or tab03, by key, in the order of published.csv."""
    rows = _table()
    rows = rows[rows["figure"] == figure]
    return {
        str(r["key"]): PublishedNumber(
            str(r["description"]), float(r["value"]), float(r["std"]), str(r["location"])
        )
        for _, r in rows.iterrows()
    }
