"""Numbers that papers report, each with its location in the paper."""

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
    """Returns the numbers of a figure or table by key, in the order of published.csv.

    Args:
      figure: its full name, such as ``strongmia_fig05_instability``, or this name without its subject.
    """
    rows = _table()
    rows = rows[rows["figure"] == "_".join(figure.split("_")[:2])]
    return {
        str(r["key"]): PublishedNumber(
            str(r["description"]), float(r["value"]), float(r["std"]), str(r["location"])
        )
        for _, r in rows.iterrows()
    }
