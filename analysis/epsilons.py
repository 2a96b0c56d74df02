"""Reads empirical epsilons, balanced accuracies and bounds of attacks on targets from their pieces.

T: targets, H1: all samples, and then each half of them, P: parts of the references.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import attacks
from analysis.claims.jackknife import Jackknife
from analysis.io import RecipeResults
from lm_mia.attacks import evaluations
from lm_mia.attacks.spec import JACKKNIFE_GROUPS, Request, Variant, reference_parts
from lm_mia.errors import Unavailable

BOUNDS = ("bound_epsilon", "bound_epsilon_if_gaussian")


@dataclasses.dataclass(frozen=True)
class AttackEpsilons:
    """The epsilons of one attack on the targets of a recipe."""

    whole: pd.DataFrame
    """The rows of the attack with the first references."""
    parts_P: Sequence[pd.DataFrame]
    """Those with each part of the references; none if there are no parts."""
    over: str
    """As in `Jackknife`."""
    not_covered: tuple[str, ...]

    def jackknife(self, column: str) -> Jackknife:
        """Returns the mean over targets of an estimate, such as balanced_accuracy, with what its interval needs."""
        whole_TxH1, *parts_PxTxH1 = (
            rows.pivot(index="target", columns="half", values=column).to_numpy(float)
            for rows in (self.whole, *self.parts_P)
        )
        return Jackknife.from_attacks(whole_TxH1, parts_PxTxH1, self.over, self.not_covered)

    def bound(self, column: str) -> np.ndarray:
        """Returns bound_T, one of `BOUNDS` for each target, with the first references."""
        return self.whole.loc[self.whole["half"] == 0, column].to_numpy(float)


def read_epsilons(recipe: RecipeResults, variant: Variant) -> AttackEpsilons:
    """Reads the epsilons of an attack on every target of a recipe.

    Raises:
      Unavailable: there are too few models, or the attack was not made.
    """
    attack, parts = (
        attacks.find_attack(recipe, variant),
        reference_parts(recipe.attackable, variant),
    )
    for used in (parts, ()):
        table = attacks.find_piece(recipe, Request(attack, evaluations.epsilons, used))
        if table is not None:
            table = table if used else table.assign(part=0)
            return _to_epsilons(table, variant.references, len(used))
    raise Unavailable(
        f"{recipe.name}: there are no epsilons of {variant.attack} with {variant.references} references; run lm-mia "
        "attack with this figure in figures (its needs must have epsilons=True)"
    )


def _to_epsilons(table: pd.DataFrame, references: int, parts: int) -> AttackEpsilons:
    whole, *parts_P = (rows for _, rows in table.groupby("part"))
    sets = f"{parts} sets of " if parts == JACKKNIFE_GROUPS else ""
    return AttackEpsilons(
        whole,
        parts_P,
        f"{whole['target'].nunique()} targets"
        + (f", {sets}{references} references" if parts else "")
        + " and the samples",
        () if parts else ("the references",),
    )
