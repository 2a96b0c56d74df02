"""Covariates of samples, for `lm-mia audit`: numbers, dates, categories and texts of a table or of arrays.

Legend: N samples, C columns of numbers (a category has one column for each of its values), X distinct texts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lm_mia.data.arrays import Column, Values, check_real, is_text
from lm_mia.errors import UserError, collect_errors

MAX_CATEGORIES = 50
"""Maximum number of distinct values of a column of strings."""
MAX_COVARIATE = 1e30
"""Values must be smaller in magnitude, so that no sum of squares overflows."""
_SECONDS_PER_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Covariates:
    """Properties of samples that training does not change, such as length, date or source."""

    names: tuple[str, ...]
    """Of the columns, such as "length", or "source=news" for a value of a category."""
    value_NxC: np.ndarray
    """Numbers; dates in days; 0 or 1 for a value of a category."""
    is_number_C: np.ndarray
    """False for values of categories."""
    text_N: np.ndarray | None = None
    """The text of each sample, as an index of `texts`."""
    texts: Sequence[str] = ()
    """The distinct texts of all samples of the source."""

    def take(self, samples: np.ndarray) -> "Covariates":
        """Returns the covariates of some samples."""
        text_N = None if self.text_N is None else self.text_N[samples]
        return dataclasses.replace(self, value_NxC=self.value_NxC[samples], text_N=text_N)


def read_covariates(
    columns: Mapping[str, Values], names: Sequence[str], text: str, samples: int
) -> Covariates | None:
    """Reads columns of covariates and of texts.

    Args:
      columns: has those of all names.
      names: names of the covariates.
      text: name of the column of texts, or "".
      samples: number of samples, which all columns have.

    Returns:
      The covariates; None if there are no names.

    Raises:
      UserError: with one line per column that cannot be used.
    """
    if not names and not text:
        return None
    problems: list[str] = []
    parsed = [
        collect_errors(problems, lambda name=name: _parse(columns[name], name)) for name in names
    ]
    texts: tuple[Any, Sequence[str]] | None = None, ()
    if text:
        texts = collect_errors(problems, lambda: _texts(columns[text]))
    if problems or texts is None:
        raise UserError("\n".join(problems))
    parts = [part for part in parsed if part is not None]
    return Covariates(
        tuple(name for part in parts for name in part[0]),
        np.hstack([np.empty((samples, 0)), *(part[1] for part in parts)]),
        np.array([part[2] for part in parts for _ in part[0]], bool),
        *texts,
    )


def _parse(source: Values, name: str) -> tuple[list[str], np.ndarray, bool]:
    """Returns the names and the values of the columns of a covariate, and whether it is a number."""
    column, label = source.column(), source.label
    kind = column.type
    if is_text(kind):
        return *_categories(column, name, label), False
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        check_real(values, label, limit=MAX_COVARIATE)
        _check_complete(np.isnan(values), label)
        return [name], values[:, None], True
    _check_complete(column.is_null().to_numpy(zero_copy_only=False), label)
    if pa.types.is_boolean(kind):
        return [name], column.cast(pa.int8()).to_numpy().astype(np.float64)[:, None], False
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise UserError(
            f"{label}: holds values of type {kind}; a covariate is a number, a date, or a string that names a category"
        )
    seconds = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() / 1e6
    return [name], seconds[:, None] / _SECONDS_PER_DAY, True


def _categories(column: "Column", name: str, label: str) -> tuple[list[str], np.ndarray]:
    import pandas as pd

    values = column.to_pandas()
    index_N, categories = pd.factorize(values, sort=True)
    _check_complete((index_N < 0) | (values == "").to_numpy(), label)
    if len(categories) > MAX_CATEGORIES:
        raise UserError(
            f"{label}: has {len(categories):,} distinct strings; a category may have at most {MAX_CATEGORIES}; merge "
            "rare ones or, if it holds texts, pass it as the column of texts"
        )
    # The first of two categories tells everything about the second.
    kept = range(1 if len(categories) == 2 else 0, len(categories))
    columns = [index_N == i for i in kept]
    return [f"{name}={categories[i]}" for i in kept], np.column_stack(columns).astype(np.float64)


def _texts(source: Values) -> tuple[np.ndarray, list[str]]:
    import pandas as pd

    column, label = source.column(), source.label
    if pa.types.is_null(column.type):
        raise UserError(f"{label}: is empty; save the text of each sample")
    if pa.types.is_binary(column.type):
        raise UserError(f"{label}: holds bytes; save the texts as UTF-8")
    if not is_text(column.type):
        raise UserError(
            f"{label}: holds values of type {column.type}; must hold the text of each sample"
        )
    values = column.to_pandas()
    text_N, texts = pd.factorize(values)
    _check_complete((text_N < 0) | (values == "").to_numpy(), label)
    return text_N, texts.tolist()


def _check_complete(is_missing_N: np.ndarray, label: str) -> None:
    missing = np.flatnonzero(is_missing_N)
    if missing.size:
        raise UserError(
            f"{label}: is missing in {missing.size:,} rows, such as row {missing[0] + 1}; fill it in, or remove these "
            "rows, as samples without it cannot be compared with others"
        )
