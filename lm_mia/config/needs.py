"""What figures need from the attacks stage, as plain data, and the attacks that follow from it.

A figure declares `Need`s. `target_attacks` turns them into attacks on the models that are present, each a
`TargetAttack`. The attacks stage computes these attacks and writes them to tables, where a figure looks them up by
`TargetAttack.id`. Both sides build them with the functions of this module, so that they agree about every model.
"""

import dataclasses
import fnmatch
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from lm_mia.config.schema import Attack, AttackName, Config, epoch_steps, score_steps

FORMAT = 2
"""Part of every table of the attacks stage. It is increased whenever the same scores would give other numbers or
another layout, so that tables of an earlier version are computed again."""

PAPER_REFERENCES = 128
"""The number of references in the paper, except where it varies that number."""
MIN_REFERENCES = 2
"""An attack with fewer references is not possible."""
JACKKNIFE_GROUPS = 8
"""References are divided into this many groups; attacks that leave out one group at a time show how much the choice of
the references matters (a jackknife)."""

ObservedStatistic = Literal["loss", "target_logit"]
TargetKind = Literal["targets", "replicas", "either"]
REFERENCE_FREE = ("loss", "zlib", "min_k", "min_k_plus_plus", "lowercase")
"""Attacks that use no references."""
_RMIA = ("rmia", "rmia_offline")


class _Checks:
    """Collects the mistakes in the fields of a need; a user's figure may have some."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._wrong: list[str] = []

    def add(self, field: str, value: object, rule: str) -> None:
        self._wrong.append(f"{field}={value!r}: {rule}")

    def names(self, field: str, value: object, known: Sequence[str] = ()) -> None:
        if not isinstance(value, tuple) or not value or not all(isinstance(v, str) for v in value):
            self.add(field, value, 'must be a tuple of names, such as ("main",)')
        elif known and not set(value) <= set(known):
            self.add(field, value, f"choose from {', '.join(known)}")

    def choice(self, field: str, value: object, known: Sequence[str]) -> None:
        if value not in known:
            self.add(field, value, f"choose from {', '.join(known)}")

    def number(self, field: str, value: object, least: int) -> None:
        if not isinstance(value, int) or value < least:
            self.add(field, value, f"must be a whole number, {least} or larger")

    def numbers(self, field: str, value: object, most: float = math.inf) -> None:
        if not isinstance(value, tuple) or not all(
            isinstance(v, int | float) and 0 < v <= most and math.isfinite(v) for v in value
        ):
            limit = f" and at most {most:g}" if math.isfinite(most) else ""
            self.add(field, value, f"must be a tuple of numbers above 0{limit}")

    def report(self) -> None:
        """Raises ValueError with all mistakes."""
        if self._wrong:
            raise ValueError(f"{self._what}: {'; '.join(self._wrong)}")


@dataclasses.dataclass(frozen=True)
class Need:
    """Attacks that a figure needs: every combination of the fields below, on every recipe."""

    recipes: tuple[str, ...]
    """Names of recipes; ``*`` stands for any characters, as in ``chinchilla-*``. The recipes are compared with each
    other, so they are attacked with equal numbers of references, and on targets with the same seeds."""
    attacks: tuple[AttackName, ...] = ("lira_online",)
    references: Literal["common", "powers"] = "common"
    """common: as many as all recipes have, at most ``most_references``; powers: also all powers of two below that
    number, as `powers` lists them."""
    most_references: int | None = PAPER_REFERENCES
    """None: no limit."""
    targets: TargetKind = "targets"
    """targets: models with training subsets of their own; replicas: models that share one subset; either: replicas
    for recipes without targets."""
    observed: tuple[ObservedStatistic, ...] = ("loss",)
    """What the attacker observes of each sample."""
    epochs: tuple[float, ...] | Literal["end", "all"] = "end"
    """After how many epochs of training the targets and references are attacked; all: after each of
    score.at_epochs, and at the end."""
    rmia_shares: tuple[float, ...] = ()
    """Numbers of samples that RMIA compares with, as shares of the population; empty: attack.rmia_samples."""
    rmia_gammas: tuple[float, ...] = ()
    """Empty: attack.rmia_gamma."""
    jackknife: bool = False
    """Whether each attack is repeated without each of the `GROUPS` of references."""
    sample_scores: bool = False
    """Whether the score of every sample under every target is kept, too."""

    def __post_init__(self) -> None:
        check = _Checks("Need")
        check.names("recipes", self.recipes)
        check.names("attacks", self.attacks, get_args(AttackName))
        check.names("observed", self.observed, get_args(ObservedStatistic))
        check.choice("references", self.references, ("common", "powers"))
        check.choice("targets", self.targets, get_args(TargetKind))
        if self.most_references is not None:
            check.number("most_references", self.most_references, MIN_REFERENCES)
        if self.epochs not in ("end", "all"):
            check.numbers("epochs", self.epochs)
        check.numbers("rmia_shares", self.rmia_shares, most=1)
        check.numbers("rmia_gammas", self.rmia_gammas)
        check.report()


@dataclasses.dataclass(frozen=True)
class LossNeed:
    """Losses of single samples that a figure needs, under every reference and target, with the models' mean losses."""

    recipes: tuple[str, ...]
    """As in `Need`."""
    from_end: tuple[int, ...]
    """Sample ids, counted from the end of the population: 1 is the last sample."""

    def __post_init__(self) -> None:
        check = _Checks("LossNeed")
        check.names("recipes", self.recipes)
        if not isinstance(self.from_end, tuple) or not all(
            isinstance(place, int) and place >= 1 for place in self.from_end
        ):
            check.add("from_end", self.from_end, "must be a tuple of whole numbers, 1 or larger")
        check.report()


@dataclasses.dataclass(frozen=True)
class PresentModels:
    """The models of a recipe that are present at the end of their training, by number, in ascending order."""

    references: tuple[int, ...]
    """Models with training subsets of their own, among them the targets."""
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ModelRoles:
    """The models of a recipe by their part in an attack, by number."""

    references: tuple[int, ...]
    targets: tuple[int, ...]
    """Models with training subsets of their own that are attacked with the references."""
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RecipeModels:
    """What `target_attacks` needs to know about a recipe."""

    names: tuple[str, ...]
    config: Config
    models: PresentModels


@dataclasses.dataclass(frozen=True)
class TargetAttack:
    """One attack on the targets, or on the replicas, of a recipe, with the models that take part."""

    attack: AttackName
    targets_are_replicas: bool
    """Whether the targets are replicas."""
    targets: tuple[int, ...]
    references: tuple[int, ...]
    step: int = 0
    """The training step at which all models were scored; 0: the end."""
    observed: ObservedStatistic = "loss"
    rmia_samples: int = 0
    """0 for attacks other than RMIA; so is ``rmia_gamma``."""
    rmia_gamma: float = 0.0
    group_left_out: int | None = None
    """Which of the `GROUPS` of references is not among them."""

    @property
    def id(self) -> str:
        """Identifies the attack in the tables: name, number of references, and a hash of `FORMAT` and all fields."""
        text = json.dumps([FORMAT, dataclasses.astuple(self)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.attack}-{len(self.references)}-{digest}"


@dataclasses.dataclass(frozen=True)
class RecipeNeeds:
    """What is computed for one recipe in addition to the tables of decisions."""

    attacks: Sequence[TargetAttack] = ()
    keep_scores: frozenset[str] = frozenset()
    """Ids of the attacks of which the scores of all samples are kept."""
    loss_samples: Sequence[int] = ()
    """Samples whose losses under every reference and target are listed."""


def attack_settings(c: Attack) -> dict[str, Any]:
    """Returns the settings of the recipe on which the numbers of all its attacks depend, as JSON."""
    fixed = {"format": FORMAT, "fprs": list(c.fprs), "band": list(c.band), "rmia_a": c.rmia_a}
    return fixed | {"variance": c.variance, "finite_population": c.finite_population}


def assign_roles(models: PresentModels, c: Attack) -> ModelRoles:
    """Divides the models that are present into references, targets and replicas.

    Targets are the last of the references that the config requests. If most of these are missing, because more
    references were requested than are trained yet, the last complete set before them remains the targets; it ends at
    an even distance from the end, since pairs of models are complements of each other in the balanced design.
    """
    present = frozenset(models.references)

    def missing(end: int) -> int:
        return sum(i not in present for i in range(end - c.targets, end))

    end = c.references
    if 2 * missing(end) > c.targets:
        end = next((k for k in range(end, c.targets, -2) if not missing(k)), end)
    first = end - c.targets
    return ModelRoles(
        references=tuple(i for i in models.references if i < first),
        targets=tuple(i for i in models.references if first <= i < end),
        replicas=tuple(i for i in models.replicas if i < c.replicas),
    )


def with_equal_counts(configs: Sequence[Config]) -> list[Config]:
    """Returns the configs with the smallest numbers of references and of targets that any of them requests.

    If one of the designs is balanced, both numbers are rounded down to even ones, so that the complement of a target is
    a target, too: as a reference, it would give away the target's members.
    """
    references = min(c.attack.references for c in configs)
    targets = min(c.attack.targets for c in configs)
    if any(c.train.subset == "balanced" for c in configs):
        references, targets = references - references % 2, targets - targets % 2
    return [
        dataclasses.replace(
            c, attack=dataclasses.replace(c.attack, references=references, targets=targets)
        )
        for c in configs
    ]


def reference_counts(c: Attack, most: int) -> list[int]:
    """Returns the numbers of references, up to ``most``, in a study of their number.

    They are powers of two and ``most`` itself, from 2 on if variances are pooled (a sample then needs one IN and one
    OUT reference), else from 4 on.
    """
    least = 2 if c.variance == "pooled" else 4
    counts = [least * 2**i for i in range(32) if least * 2**i < most]
    return [*counts, most]


def score_step(c: Config, epochs: float) -> int | None:
    """Returns the step of the scores after a number of epochs: 0 for the end, None if models are not scored there."""
    if epochs >= c.train.epochs:
        return 0
    score = dataclasses.replace(c.score, at_epochs=(epochs,), at_steps=())
    [step] = epoch_steps(dataclasses.replace(c, score=score))
    return step if step in score_steps(c) else None


def scored_epochs(c: Config) -> list[float]:
    """Returns the numbers of epochs after which the models of a recipe are scored, the end among them."""
    return sorted({*c.score.at_epochs, float(c.train.epochs)})


def target_attack(
    c: Config,
    models: PresentModels,
    attack: AttackName,
    references: int,
    *,
    targets_are_replicas: bool = False,
    step: int = 0,
    observed: ObservedStatistic = "loss",
    rmia_samples: int = 0,
    rmia_gamma: float = 0.0,
    group_left_out: int | None = None,
) -> TargetAttack | None:
    """Returns an attack on all targets of a recipe.

    Args:
      c: the config of the recipe.
      models: the models that are present.
      attack: the name of the attack.
      references: their number; the first ones are used.
      replicas: whether replicas are attacked, rather than targets with training subsets of their own.
      step, observed: as in `TargetAttack`.
      rmia_samples, rmia_gamma: for RMIA; 0: those of the config.
      group_left_out: one of the `GROUPS` of references, which is not used. Groups are
        made of pairs of consecutive references, which are the pairs (2i, 2i+1) if none is missing.

    Returns:
      The attack, or None if there are too few models for it, or a group is to be left out of no references.
    """
    parts = assign_roles(models, c.attack)
    targets = parts.replicas if targets_are_replicas else parts.targets
    if not targets or len(parts.references) < max(references, MIN_REFERENCES):
        return None
    used = parts.references[:references]
    if group_left_out is not None:
        if references < 2 * JACKKNIFE_GROUPS or attack in REFERENCE_FREE:
            return None
        used = tuple(r for i, r in enumerate(used) if i // 2 % JACKKNIFE_GROUPS != group_left_out)
    is_rmia = attack in _RMIA
    samples = min(rmia_samples or c.attack.rmia_samples, c.population.samples)
    return TargetAttack(
        attack,
        targets_are_replicas,
        targets,
        () if attack in REFERENCE_FREE else used,
        step,
        observed,
        samples if is_rmia else 0,
        (rmia_gamma or c.attack.rmia_gamma) if is_rmia else 0.0,
        group_left_out,
    )


def matching_recipes(patterns: Iterable[str], recipes: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the keys of the recipes of which a name fits one of the patterns, in the order of the recipes.

    Args:
      patterns: as `Need.recipes`.
      recipes: a key of each recipe, and its names.
    """
    patterns = list(patterns)
    return [
        key
        for key, names in recipes.items()
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
    ]


def recipe_needs(
    needs: Iterable[Need | LossNeed], recipes: Mapping[str, RecipeModels]
) -> dict[str, RecipeNeeds]:
    """Returns what the attacks stage computes for each recipe in addition to its tables of decisions.

    Recipes with targets are always attacked with all their references, for the comparison of recipes.

    Args:
      needs: of all figures.
      recipes: a key of each recipe of the command, and the recipe.
    """
    needs = list(needs)
    attacks, kept = target_attacks((n for n in needs if isinstance(n, Need)), recipes)
    names = {key: recipe.names for key, recipe in recipes.items()}
    samples: dict[str, set[int]] = {key: set() for key in recipes}
    for need in (n for n in needs if isinstance(n, LossNeed)):
        for key in matching_recipes(need.recipes, names):
            size = recipes[key].config.population.samples
            samples[key] |= {size - place for place in need.from_end if place <= size}
    found = {}
    for key, recipe in recipes.items():
        count = len(assign_roles(recipe.models, recipe.config.attack).references)
        strongest = target_attack(recipe.config, recipe.models, "lira_online", count)
        also = [strongest] if strongest and strongest not in attacks[key] else []
        found[key] = RecipeNeeds(
            (*attacks[key], *also), frozenset(kept[key]), tuple(sorted(samples[key]))
        )
    return found


def target_attacks(
    needs: Iterable[Need], recipes: Mapping[str, RecipeModels]
) -> tuple[dict[str, list[TargetAttack]], dict[str, set[str]]]:
    """Returns the attacks that needs come to, without duplicates.

    A recipe that has too few models for a need, or was not scored at the epochs, is left out.

    Args:
      needs: of all figures.
      recipes: a key of each recipe of the command, and the recipe.

    Returns:
      For each key, the attacks, and the ids of those of which the scores of all samples are kept.
    """
    attacks: dict[str, dict[str, TargetAttack]] = {key: {} for key in recipes}
    kept: dict[str, set[str]] = {key: set() for key in recipes}
    names = {key: recipe.names for key, recipe in recipes.items()}
    for need in needs:
        group = {key: recipes[key] for key in matching_recipes(need.recipes, names)}
        for key, found in _attacks_of(need, group).items():
            attacks[key] |= {attack.id: attack for attack in found}
            if need.sample_scores:
                kept[key] |= {attack.id for attack in found}
    return {key: list(found.values()) for key, found in attacks.items()}, kept


def _attacks_of(need: Need, recipes: Mapping[str, RecipeModels]) -> dict[str, list[TargetAttack]]:
    """Returns the attacks that one need comes to, for each of its recipes."""
    configs = comparable_configs(need.targets, recipes)
    counts = {
        k: len(assign_roles(recipes[k].models, c.attack).references) for k, c in configs.items()
    }
    common = min(counts.values(), default=0)
    if need.most_references is not None:
        common = min(common, need.most_references)
    found: dict[str, list[TargetAttack]] = {}
    for key, c in configs.items():
        references = reference_counts(c.attack, common) if need.references == "powers" else [common]
        groups = [None, *range(JACKKNIFE_GROUPS)] if need.jackknife else [None]
        epochs = scored_epochs(c) if need.epochs == "all" else need.epochs
        steps = {0} if epochs == "end" else {score_step(c, epoch) for epoch in epochs}
        sizes = [round(share * c.population.samples) for share in need.rmia_shares] or [0]
        one_by_one = (
            target_attack(
                c,
                recipes[key].models,
                attack,
                count,
                targets_are_replicas=attacks_replicas(need.targets, c),
                step=step,
                observed=observed,
                rmia_samples=size,
                rmia_gamma=gamma,
                group_left_out=group,
            )
            for attack in need.attacks
            for observed in need.observed
            for step in sorted(s for s in steps if s is not None)
            for count in references
            for size in (sizes if attack in _RMIA else [0])
            for gamma in ((need.rmia_gammas or [0.0]) if attack in _RMIA else [0.0])
            for group in groups
        )
        found[key] = [attack for attack in one_by_one if attack is not None]
    return found


def comparable_configs(
    targets: TargetKind, recipes: Mapping[str, RecipeModels]
) -> dict[str, Config]:
    """Returns the configs of the recipes that have enough models, with equal numbers of references and targets.

    Args:
      targets: as `Need.targets`.
      recipes: a key of each recipe, and the recipe.
    """
    compared = [
        key
        for key, recipe in recipes.items()
        if recipe.config.attack.targets and not attacks_replicas(targets, recipe.config)
    ]
    same = with_equal_counts([recipes[k].config for k in compared]) if compared else []
    configs = {k: r.config for k, r in recipes.items()} | dict(zip(compared, same, strict=True))
    return {
        key: c
        for key, c in configs.items()
        if target_attack(
            c,
            recipes[key].models,
            "lira_online",
            MIN_REFERENCES,
            targets_are_replicas=attacks_replicas(targets, c),
        )
    }


def attacks_replicas(targets: TargetKind, c: Config) -> bool:
    """Returns whether replicas are attacked, for a value of `Need.targets`."""
    return targets == "replicas" or (targets == "either" and not c.attack.targets)
