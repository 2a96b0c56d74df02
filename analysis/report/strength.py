"""What the page reads of the strength of attacks on a recipe: the tables strength.csv and attacked_models.csv."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.io import RecipeResults
from analysis.report.answer import Findings
from analysis.report.numbers import Estimate
from lm_mia.attacks import user_code
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable

FAMILIES = (
    ("stacked", "shrunk", "shrunk_offline"),
    ("base_calibrated",),
    ("rmia", "rmia_offline", "rmia_simple"),
    ("reference_calibrated",),
    ("lira_online", "lira_offline"),
    ("loss", "zlib", "min_k_plus_plus", "min_k", "lowercase"),
)
"""Attacks that order samples much alike, from the strongest by rule to the weakest."""
_MAX_SHOWN = 5
_STRENGTH, _MODELS = "strength.csv", "attacked_models.csv"


@dataclasses.dataclass(frozen=True, eq=False)
class Strength:
    """The numbers of strength.csv of one recipe, and what they are about."""

    headline: str
    """The name of the headline attack in tables."""
    fpr: float
    second_fpr: float
    rows: Mapping[tuple[str, str], Mapping[Any, Any]]
    """(attack, metric) -> row of strength.csv."""
    models: Sequence[Mapping[Any, Any]]
    """The rows of attacked_models.csv about the headline attack."""
    has_replicas: bool

    @property
    def attacks(self) -> list[str]:
        """The attacks, the strongest by rule first: the order does not depend on results."""
        order = [attack for family in FAMILIES for attack in family]
        found = [*dict.fromkeys(attack for attack, _ in self.rows)]
        of_users = [attack for attack in found if attack not in order]
        return [*of_users, *(attack for attack in order if attack in found)]

    @property
    def trainings(self) -> int:
        """The number of attacked models."""
        return len(self.models)

    @property
    def members(self) -> int:
        """Members of the first attacked model that have a score."""
        return int(self.models[0]["members"])

    @property
    def nonmembers(self) -> int:
        """Non-members of the first attacked model that have a score."""
        return int(self.models[0]["nonmembers"])

    @property
    def references(self) -> int:
        """References of the headline attack."""
        return int(self.models[0]["references"])

    @property
    def found_by_model(self) -> tuple[float, ...]:
        """The TPR of the headline attack under each attacked model."""
        return tuple(float(row["tpr"]) for row in self.models)

    def estimate(self, attack: str, metric: str) -> Estimate:
        """Returns a number of an attack with its interval; it is not known if there is no such number."""
        return self._read(attack, metric, "value", "low", "high")

    def minus_headline(self, attack: str, metric: str) -> Estimate:
        """Returns the difference of a number from that of the headline attack."""
        names = ("minus_headline", "minus_headline_low", "minus_headline_high")
        return self._read(attack, metric, *names)

    def _read(self, attack: str, metric: str, *columns: str) -> Estimate:
        row = self.rows.get((attack, metric))
        return Estimate(math.nan) if row is None else Estimate(*(float(row[c]) for c in columns))

    @property
    def found(self) -> Estimate:
        """The TPR of the headline attack."""
        return self.estimate(self.headline, "tpr")

    @property
    def auc(self) -> Estimate:
        """The AUC of the headline attack."""
        return self.estimate(self.headline, "auc")

    @property
    def missed(self) -> Estimate:
        """The share of its hits that another training would miss."""
        return self.estimate(self.headline, "missed")

    @property
    def findings(self) -> Findings:
        """The numbers of the first sentences."""
        return Findings(
            self.fpr,
            self.found,
            self.auc,
            self.missed,
            self.members,
            self.nonmembers,
            self.trainings,
            self.has_replicas,
        )

    @property
    def shown(self) -> list[str]:
        """The attacks of the chart and of the first table: the first one of each family, at most five.

        LiRA and the loss are always among them, since papers report them.
        """
        chosen = first_of_families(self.attacks, self.headline)
        return [self.headline, *(a for a in self.attacks if a in chosen[1:])]


def first_of_families(attacks: Sequence[str], headline: str) -> list[str]:
    """Returns the headline and, for a chart, the first of some attacks in each other family, at most five in all.

    LiRA and the loss are always among them, since papers report them.
    """
    chosen = [headline]
    of_users = [a for a in attacks if not any(a in family for family in FAMILIES)]
    always = [name for name in ("lira_online", "loss") if name in attacks]
    others = [
        next((a for a in family if a in attacks), None)
        for family in FAMILIES
        if headline not in family
    ]
    # Others of a family order samples much as its first one, so no further row has them.
    for name in (*always, *of_users, *others):
        if name is not None and name not in chosen and len(chosen) < _MAX_SHOWN:
            chosen.append(name)
    return chosen


def read(recipe: RecipeResults) -> Strength:
    """Returns the numbers of a recipe; raises `Unavailable` if there are none."""
    table = recipe.view.table(_STRENGTH).to_dict("records")
    rows = {(str(row["attack"]), str(row["metric"])): row for row in table}
    attack = recipe.view.c
    headline = user_code.short(attack.headline)
    if (headline, "tpr") not in rows:
        raise Unavailable(
            f"{recipe.name}: {attack_name(attack.headline)} has no score of members and non-members; run lm-mia run "
            "for more models, or choose another attack.headline"
        )
    return Strength(
        headline,
        attack.focus,
        float(rows[headline, "second_tpr"]["fpr"]),
        rows,
        [row for row in recipe.view.table(_MODELS).to_dict("records") if row["attack"] == headline],
        bool(attack.replicas) and len(recipe.replicas) > 1,
    )
