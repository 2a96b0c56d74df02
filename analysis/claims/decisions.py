"""Reads numbers about the decisions of replicas from the tables of a recipe, with what their intervals need.

A1, R1, H1: as in `analysis.claims.jackknife`; the models are the replicas.
"""

import math

import numpy as np

from analysis import io
from analysis.claims.jackknife import Jackknife
from analysis.io import RecipeResults
from lm_mia.errors import Unavailable, UserError

TABLE = "decision_jackknife.parquet"
_AXES = ("replicas", "references", "samples")


def read_jackknife(recipe: RecipeResults, name: str, fpr: float | None = None) -> Jackknife:
    """Reads a number about the decisions of all replicas; its interval covers replicas, references and samples.

    Replicas share one training subset, which the interval holds fixed. Models with other subsets differ more from each
    other than replicas do: benchmarks/claims.py simulates how often such intervals miss, and measures this effect on
    real models. The references are held fixed, too, if there are fewer than 16.

    Args:
      recipe: a recipe with replicas.
      name: a column of tables/decision_jackknife.parquet.
      fpr: one of the false positive rates of the config; None for numbers that are the same at each.

    Raises:
      Unavailable: there is no such table, or it does not have this FPR.
    """
    facts = recipe.view.facts("flips")
    columns = io.read_samples(recipe, (*_AXES, "fpr", name), TABLE)
    fprs = columns["fpr"]
    at = np.isclose(fprs, fprs[0] if fpr is None else fpr, rtol=1e-9)
    if not at.any():
        raise Unavailable(f"{recipe.name}: {TABLE} has no FPR of {fpr:g}; add it to attack.fprs")
    index = tuple(columns[axis][at] for axis in _AXES)
    value_A1xR1xH1 = np.full([axis.max() + 1 for axis in index], math.nan)
    value_A1xR1xH1[index] = columns[name][at]
    covers_references = value_A1xR1xH1.shape[1] > 1
    references = f", {facts['references']} references" if covers_references else ""
    return Jackknife(
        value_A1xR1xH1,
        f"{facts['replicas']} replicas{references} and the samples",
        ("the training subset",)
        if covers_references
        else ("the training subset", "the references"),
    )


def different_replicas(first: RecipeResults, other: RecipeResults) -> str:
    """Returns why shares of coin flips of two recipes cannot be compared; empty if they have equally many replicas."""
    replicas = [recipe.view.facts("flips")["replicas"] for recipe in (first, other)]
    if replicas[0] == replicas[1]:
        return ""
    return (
        f"{first.name} has {replicas[0]} replicas and {other.name} {replicas[1]}, and the share of coin flips depends "
        "on their number"
    )


def check_same_members(first: RecipeResults, other: RecipeResults) -> None:
    """Raises UserError if the replicas of two recipes have different members, so that samples are not paired."""
    member_N2, other_N2 = (io.read_samples(r, ["member"])["member"] for r in (first, other))
    if not np.array_equal(member_N2, other_N2):
        raise UserError(f"{first.name} and {other.name} do not have the same members")
