"""LiRA and offline RMIA with as few references as PrivacyGuard has, for its figures and tables.

The paper attacks with 7 references (LiRA) and 3 (RMIA). Here they are 8 and 4, since some designs have references in
pairs. With 64 references or more, numbers for claims and tables are means over eight disjoint sets of them.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from analysis import attacks
from analysis.attacks import JackknifedAttack
from analysis.epsilons import AttackEpsilons, read_epsilons
from analysis.io import RecipeResults
from lm_mia.attacks.spec import Need, RmiaA, Variant
from lm_mia.data.subsets import ModelSeeds

RECIPE = "epochs-140M"
DEFAULT_A = 0.3
"""The parameter a of offline RMIA that is the default of PrivacyGuard."""
TUNED_NOTE = (
    "The tuned a is the value among 0, 0.1, ..., 1 with the highest AUC when the first reference is attacked with the "
    "others, so tuning needs no target."
)


@dataclasses.dataclass(frozen=True)
class FewReferences:
    """An attack with few references."""

    name: str
    most_references: int | None
    """None: all."""
    rmia_a: RmiaA | None = None
    """As in `spec.AttackSpec`."""

    def read(self, recipe: RecipeResults) -> JackknifedAttack:
        """Reads the attack on every target, with what its interval needs; raises as `attacks.read_jackknife`."""
        return attacks.read_jackknife(recipe, self.variant(recipe))

    def epsilons(self, recipe: RecipeResults) -> AttackEpsilons:
        """Reads the epsilons of the attack on every target; raises as `epsilons.read_epsilons`."""
        return read_epsilons(recipe, self.variant(recipe))

    def sample_scores(
        self, recipe: RecipeResults
    ) -> Iterator[tuple[ModelSeeds, np.ndarray, np.ndarray]]:
        """Yields (target, member_N2, score_N2), as `attacks.read_sample_scores`."""
        return attacks.read_sample_scores(recipe, self.variant(recipe))

    def variant(self, recipe: RecipeResults) -> Variant:
        """Returns the attack with the references of a recipe."""
        return Variant(self.name, self.count(recipe), rmia_a=self.rmia_a)

    def count(self, recipe: RecipeResults) -> int:
        """Returns the number of references."""
        present = len(recipe.references)
        return present if self.most_references is None else min(self.most_references, present)


LIRA = {
    "Online": FewReferences("lira_online", 8),
    "Offline": FewReferences("lira_offline", 8),
}
"""Label -> attack."""
LIRA_WITH_ALL = {
    label: dataclasses.replace(attack, most_references=None) for label, attack in LIRA.items()
}
"""The same with all references of the recipe."""
RMIA = {
    f"a = {DEFAULT_A:g}": FewReferences("rmia_offline", 4, DEFAULT_A),
    "tuned a": FewReferences("rmia_offline", 4, "tuned"),
}
"""Label -> attack."""
LIRA_NEED = Need((RECIPE,), ("lira_online", "lira_offline"), most_references=8, jackknife=True)
LIRA_WITH_ALL_NEED = dataclasses.replace(LIRA_NEED, most_references=None)
RMIA_NEED = Need(
    (RECIPE,),
    ("rmia_offline",),
    most_references=4,
    rmia_as=(DEFAULT_A, "tuned"),
    jackknife=True,
)
"""What figures need to read these attacks; they add what else they need."""


def read_attacks(
    recipe: RecipeResults, by_label: Mapping[str, FewReferences]
) -> dict[str, JackknifedAttack]:
    """Reads several attacks: label -> attack."""
    return {label: attack.read(recipe) for label, attack in by_label.items()}
