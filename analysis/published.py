"""Numbers that StrongMIA prints, with the place where it does."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

_FILE = Path(__file__).with_name("published.csv")


@dataclasses.dataclass(frozen=True)
class Number:
    """A printed number."""

    what: str
    value: float
    std: float
    """NaN where none is printed."""
    place: str


@functools.cache
def _table() -> pd.DataFrame:
    return pd.read_csv(_FILE)


def numbers(figure: str) -> Mapping[str, Number]:
    """Key -> number, of a figure or table such as fig01 or tab03, in the order of the file."""
    rows = _table()
    rows = rows[rows["figure"] == figure]
    return {
        str(r["key"]): Number(str(r["what"]), float(r["value"]), float(r["std"]), str(r["place"]))
        for _, r in rows.iterrows()
    }
