"""Reads empirical epsilons, balanced accuracies and bounds of attacks on targets from their table.

T: targets, H1: all samples, and then each half of them, P: parts of the references.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import attacks, io
from analysis.claims.jackknife import Jackknife
from analysis.io import MissingModelsError, RecipeResults
from lm_mia.attacks.spec import EPSILON_TPRS, JACKKNIFE_GROUPS, RmiaA, num_reference_parts

TABLE = "target_epsilons.parquet"
BOUNDS = ("bound_epsilon", "bound_epsilon_if_gaussian")
_COLUMNS = (
    *("attack_id", "target", "half", "balanced_accuracy"),
    *(f"epsilon_at_tpr_{tpr:g}" for tpr in EPSILON_TPRS),
    *BOUNDS,
)


@dataclasses.dataclass(frozen=True)
class AttackEpsilons:
    """The epsilons of one attack on the targets of a recipe."""

    whole: pd.DataFrame
    """The rows of the attack with the first references."""
    parts_P: Sequence[pd.DataFrame]
    """Those with each part of the references; none if there are no parts, or if the table does not have them."""
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


def read_epsilons(
    recipe: RecipeResults, name: str, references: int, rmia_a: RmiaA | None = None
) -> AttackEpsilons:
    """Reads the epsilons of an attack on every target of a recipe.

    Args:
      recipe: the recipe whose table is read.
      name: the name of the attack.
      references: the number of references, the first ones.
      rmia_a: as for `attacks.read_attack`.

    Raises:
      MissingModelsError: there are too few models, or the table does not have the attack.
      WorkdirError: the table cannot be read.
    """
    attacks.read_attack(
        recipe, name, references, rmia_a=rmia_a
    )  # raises if it was made with other settings
    parts = num_reference_parts(references, len(recipe.references))
    ids = [
        attacks.find_attack(recipe, name, references, reference_part=part, rmia_a=rmia_a).id
        for part in (None, *range(parts))
    ]
    table = pd.DataFrame(io.read_samples(recipe.recipe_dir, _COLUMNS, TABLE))
    by_id = dict(tuple(table.groupby("attack_id", sort=False)))
    if ids[0] not in by_id:
        raise MissingModelsError(
            f"{recipe.name}: tables/{TABLE} does not have {name} with {references} references; run lm-mia attack with "
            "this figure in figures (its needs must have epsilons=True)"
        )
    whole = by_id[ids[0]]
    parts_P = [by_id[part] for part in ids[1:] if part in by_id]
    has_parts = parts > 0 and len(parts_P) == parts
    sets = f"{parts} sets of " if parts == JACKKNIFE_GROUPS else ""
    return AttackEpsilons(
        whole,
        parts_P if has_parts else [],
        f"{whole['target'].nunique()} targets"
        + (f", {sets}{references} references" if has_parts else "")
        + " and the samples",
        () if has_parts else ("the references",),
    )
