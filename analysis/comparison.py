"""Compares the recipes of a workdir: a table with AUC, TPR and coin flips of each recipe.

The numbers of a recipe are read from its tables. If it has tables of decisions, the numbers are over replicas of one
target; otherwise they are over its targets, each of which is trained on its own subset.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import attacks, io, markup, tables
from analysis.formatting import MIN_HEADLINE_REPLICAS
from analysis.io import RecipeResults
from lm_mia.atomic import write_csv
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.spec import Variant
from lm_mia.errors import Unavailable, UserError

Number = tuple[float, float]
"""A mean and its standard deviation over the attacked models; NaN if unknown."""
_NONE: Number = (math.nan, math.nan)
_ATTACK = "lira_online"
"""The attack whose numbers are compared, so that they are of the same attack in all recipes."""


@dataclasses.dataclass(frozen=True)
class RecipeSummary:
    """The main numbers of one recipe; shares are fractions, and unknown numbers of models are 0."""

    recipe: RecipeResults
    fpr: float
    """The false positive rate at which the TPR and the shares are measured."""
    attack: str = ""
    """The attack of `auc` and `tpr`; empty without numbers."""
    auc: Number = _NONE
    """The AUC of LiRA."""
    tpr: Number = _NONE
    """The TPR of LiRA at the FPR."""
    reference_targets_auc: Number = _NONE
    """The AUC of LiRA over the references as targets, which have training subsets of their own."""
    loss_auc: Number = _NONE
    coin_flip_cutoff: float = math.nan
    """The lowest flip rate of a coin flip, which depends on the number of replicas."""
    coin_flip_members: float = math.nan
    """The observed share; NaN with too few replicas for a main number."""
    coin_flip_nonmembers: float = math.nan
    members_at_127: Number = _NONE
    """The range of the share that 127 replicas would show: its low and high end."""
    nonmembers_at_127: Number = _NONE
    over: str = ""
    """Which models are attacked: replicas or targets."""
    references: int = 0
    targets: int = 0
    replicas: int = 0
    missing_reason: str = ""
    """The reason why there are no numbers; empty if there are numbers."""

    @property
    def models(self) -> int:
        """The number of models of the recipe; attacks on replicas also use its targets as references."""
        return self.references + self.replicas + self.targets * (self.over != "replicas")

    def to_row(self) -> dict[str, Any]:
        """Returns the recipe's row of tables/comparison.csv."""
        recipe = self.recipe
        return {
            "recipe": recipe.name,
            "names": " ".join(recipe.shown_names),
            "parameters": None if recipe.is_imported else recipe.parameters,
            "samples": None if recipe.is_imported else recipe.samples,
            "epochs": None if recipe.is_imported else recipe.config.train.epochs,
            "attack": self.attack,
            "auc": self.auc[0],
            "auc_std": self.auc[1],
            "fpr": self.fpr,
            "tpr": self.tpr[0],
            "tpr_std": self.tpr[1],
            "reference_targets_auc": self.reference_targets_auc[0],
            "reference_targets_auc_std": self.reference_targets_auc[1],
            "loss_auc": self.loss_auc[0],
            "loss_auc_std": self.loss_auc[1],
            "coin_flip_cutoff": self.coin_flip_cutoff,
            "coin_flip_members": self.coin_flip_members,
            "coin_flip_members_127_low": self.members_at_127[0],
            "coin_flip_members_127_high": self.members_at_127[1],
            "coin_flip_nonmembers": self.coin_flip_nonmembers,
            "coin_flip_nonmembers_127_low": self.nonmembers_at_127[0],
            "coin_flip_nonmembers_127_high": self.nonmembers_at_127[1],
            "over": self.over,
            "references": self.references,
            "targets": self.targets,
            "replicas": self.replicas,
            "missing_reason": self.missing_reason,
        }


def summarize(recipe: RecipeResults) -> RecipeSummary:
    """Reads the main numbers of a recipe from its tables; if there are none, `missing_reason` says why."""
    summary = RecipeSummary(recipe, recipe.config.attack.focus)
    if not recipe.has_population:
        return dataclasses.replace(summary, missing_reason="its population is not built yet")
    try:
        references, targets, replicas = map(
            len, (recipe.references, recipe.targets, recipe.replicas)
        )
        summary = dataclasses.replace(
            summary, references=references, targets=targets, replicas=replicas
        )
        if recipe.view.has("flips.json"):
            return _summarize_replicas(recipe)
        attack = recipe.config.attack
        if not attack.targets and (attack.leave_one_out or attack.zero_run) and not attack.replicas:
            reason = (
                "it has neither replicas nor targets; each reference is attacked with the others"
            )
            return dataclasses.replace(summary, missing_reason=reason)
        if not attack.targets:
            recipe.view.facts("flips")  # says what is missing
        return _summarize_targets(recipe, summary)
    except UserError as error:
        return dataclasses.replace(summary, missing_reason=markup.reason(error))


def table(summaries: Sequence[RecipeSummary]) -> pd.DataFrame:
    """Returns the contents of tables/comparison.csv."""
    return pd.DataFrame([m.to_row() for m in summaries])


COMPARISON_TABLE = Table(
    "comparison.csv",
    (
        "Written with the page, unless it shows a single recipe that has tables of decisions. Each row is a recipe of "
        "the page. Its numbers are over replicas, from the tables of decisions, if it has these; otherwise over "
        "targets, from `targets.csv`; of the attack with all references, whose number may differ between recipes."
    ),
    {
        **common("recipe"),
        "names": Column("none", "all names of the recipe, separated by spaces"),
        "parameters": Column(
            "count", "parameters of a model without embeddings; of the kind gpt, 12 layers width^2"
        ),
        "samples": Column(
            "count",
            "training samples of a model: half of the population, or more with `train.canaries`",
        ),
        "epochs": Column("count", "epochs of training"),
        "attack": Column(
            "none",
            (
                "the attack of `auc`, `tpr`, `reference_targets_auc` and the coin flips, always `lira_online`, "
                "whichever attack is `attack.headline`; empty without numbers"
            ),
        ),
        "auc, auc_std": Column(
            "fraction",
            (
                "mean and standard deviation of the AUC of online LiRA over the attacked models; over targets, the "
                "deviation of a single one is empty"
            ),
        ),
        "fpr": Column(
            "fraction", "`attack.focus_fpr`, at which the TPR and the coin flips are taken"
        ),
        "tpr, tpr_std": Column("fraction", "TPR of online LiRA, likewise"),
        "reference_targets_auc, reference_targets_auc_std": Column(
            "fraction", "those of `reference_targets.csv`; empty without tables of decisions"
        ),
        "loss_auc, loss_auc_std": Column(
            "fraction",
            "AUC of the loss attack, likewise; empty over targets, and if `attack.attacks` has no `loss`",
        ),
        "coin_flip_cutoff": Column("fraction", "`cutoff`; empty over targets"),
        "coin_flip_members, coin_flip_nonmembers": Column(
            "fraction",
            "samples of the class in the bin `coin flip`; empty over targets, and with fewer than 12 replicas",
        ),
        "coin_flip_members_127_low, coin_flip_members_127_high": Column(
            "fraction", "[range at 127 replicas](#conventions); empty over targets"
        ),
        "coin_flip_nonmembers_127_low, coin_flip_nonmembers_127_high": Column(
            "fraction", "the same of non-members"
        ),
        "over": Column(
            "none", "which models were attacked: `replicas` or `targets`; empty without numbers"
        ),
        "references": Column(
            "count",
            (
                "references used: over replicas all that are present, targets included; otherwise those that are not "
                "targets"
            ),
        ),
        "targets, replicas": Column(
            "count", "references that are targets, and replicas that are present; 0 if unknown"
        ),
        "missing_reason": Column("none", "why there are no numbers"),
    },
    key=("recipe",),
)


def write(workdir: Path, summaries: Sequence[RecipeSummary]) -> None:
    """Writes tables/comparison.csv."""
    (workdir / "tables").mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "tables" / "comparison.csv", table(summaries))


def _summarize_replicas(recipe: RecipeResults) -> RecipeSummary:
    facts = recipe.view.facts("flips")
    if not facts["references"]:
        raise Unavailable(
            f"{recipe.name}: LiRA needs references, and all imported models are replicas"
        )
    focus = facts["config"]["focus_fpr"]
    rows = tables.best_per_attack(io.read_table(recipe, "attacks.csv"))
    lira, loss = (tables.find_attack(rows, name) for name in (_ATTACK, "loss"))
    if lira is None:
        raise Unavailable(
            f"{recipe.name}: LiRA has no AUC, since samples have too few IN or OUT references; run lm-mia run with a "
            "larger --config.attack.references"
        )
    shares: dict[str, Any] = {}
    for row in tables.coin_flip_rows(tables.read_flip_shares(recipe)):
        if math.isclose(row["fpr"], focus):
            for kind in tables.CLASS_NAMES:
                limits = (row[f"{kind}_fraction_127_{end}"] for end in ("low", "high"))
                shares[f"{kind}s_at_127"] = tuple(limits)
                if facts["replicas"] >= MIN_HEADLINE_REPLICAS:
                    shares[f"coin_flip_{kind}s"] = row[f"{kind}_fraction"]
            shares["coin_flip_cutoff"] = row["cutoff"]
    subsets = tables.read_reference_targets(recipe, [focus])
    return RecipeSummary(
        recipe,
        focus,
        attack=_ATTACK,
        auc=(lira["auc_mean"], lira["auc_std"]),
        reference_targets_auc=(subsets["auc_mean"], subsets["auc_std"]),
        tpr=(lira[f"tpr_at_{focus:g}_mean"], lira[f"tpr_at_{focus:g}_std"]),
        loss_auc=(loss["auc_mean"], loss["auc_std"]) if loss else _NONE,
        **shares,
        over="replicas",
        references=facts["references"],
        targets=len(recipe.targets) if recipe.config.attack.targets else 0,
        replicas=facts["replicas"],
    )


def _summarize_targets(recipe: RecipeResults, summary: RecipeSummary) -> RecipeSummary:
    result = attacks.read_attack(recipe, Variant(_ATTACK, references=summary.references))
    tpr_T = result.tpr_T(summary.fpr)
    tpr_T = tpr_T[~pd.isna(tpr_T)]
    tpr = (float(tpr_T.mean()), _std(tpr_T)) if len(tpr_T) else _NONE
    auc = float(result.auc_T.mean()), _std(result.auc_T)
    return dataclasses.replace(summary, attack=_ATTACK, auc=auc, tpr=tpr, over="targets")


def _std(values_T: Any) -> float:
    return float(values_T.std()) if len(values_T) > 1 else math.nan
