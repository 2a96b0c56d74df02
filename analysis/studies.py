"""Reads the tables of studies, which the attacks stage computes only for figures that need them.

A1, R1, H1: as in `analysis.claims.jackknife`.
"""

import math
from collections.abc import Mapping

import numpy as np

from analysis import io
from analysis.claims.jackknife import Jackknife
from analysis.io import RecipeResults
from lm_mia.errors import Unavailable

AXES = ("replicas", "references", "samples")
"""Columns of the tables of studies for intervals, as in decision_jackknife.parquet."""
TRAINING_SUBSET = "the training subset"


def read_parts(
    recipe: RecipeResults, table: str, name: str, where: Mapping[str, object] | None = None
) -> Jackknife:
    """Reads a number of a study of replicas; its interval covers the replicas, the references and the samples.

    Replicas share one training subset, which the interval holds fixed. It also holds the references fixed if the table
    has no parts of them.

    Args:
      recipe: the recipe.
      table: file name of the table, which has a row for each choice of replicas, references and samples.
      name: the column of the number.
      where: further columns and their values, which together select the rows of one number.

    Raises:
      Unavailable: there is no such table, or no such row.
    """
    where = where or {}
    columns = io.read_samples(recipe, [*AXES, *where, name], table)
    at = np.ones(len(columns[name]), np.bool_)
    for key, value in where.items():
        at &= columns[key] == value
    if not at.any():
        raise Unavailable(f"{recipe.name}: {table} has no rows with {dict(where)}")
    index = tuple(columns[axis][at] for axis in AXES)
    value_A1xR1xH1 = np.full([axis.max() + 1 for axis in index], math.nan)
    value_A1xR1xH1[index] = columns[name][at]
    covers_references = value_A1xR1xH1.shape[1] > 1
    # Replicas are attacked with all references, also with those that are targets of other attacks.
    count = len(recipe.references) + len(recipe.targets)
    references = f", {count} references" if covers_references else ""
    fixed = (TRAINING_SUBSET,) if covers_references else (TRAINING_SUBSET, "the references")
    over = f"{len(recipe.replicas)} replicas{references} and the samples"
    return Jackknife(value_A1xR1xH1, over, fixed)
