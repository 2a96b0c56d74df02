"""What figures need from the attacks stage, and the attacks and evaluations that it computes, as plain data.

A figure declares `Need`s. `lm_mia.attacks.requests` turns them into attacks on the models that are present, each an
`AttackSpec`, and evaluations of these. A figure that reads them names the same attacks as `Variant`s.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from lm_mia.attacks import user_code
from lm_mia.attacks.declarations import Column, Table
from lm_mia.config.schema import (
    Attack,
    Config,
    epoch_steps,
    score_steps,
)

if TYPE_CHECKING:
    from lm_mia.attacks.studies import StudyView
    from lm_mia.data.subsets import ModelSeeds

FORMAT = 11
"""Part of every table of the attacks stage. It is increased whenever the same scores would give other numbers or
another layout, so that tables of an earlier version are computed again."""

PAPER_REFERENCES = 128
"""The number of references in the paper, except where it varies that number."""
MIN_REFERENCES = 2
"""An attack with fewer references is not possible."""
FEWEST_FOR_VARIANCES = 8
"""Studies of the number of references pool variances over the samples below this number."""
JACKKNIFE_GROUPS = 8
"""References are divided into this many groups. Attacks with half of the groups show how much the choice of the
references matters; with few references, attacks with disjoint sets, one from each group, do."""
NUM_HALVES = 2 * (JACKKNIFE_GROUPS - 1)
"""The number of `half_groups`."""
JACKKNIFE_SAMPLES = 2**16
"""Attacks with a part of the references keep the membership scores of at most this many samples, the first ones."""

EPSILON_TPRS = (0.01, 0.1)
"""True positive rates at which epsilon is estimated, the first as in PrivacyGuard."""

ObservedStatistic = Literal["loss", "target_logit"]
RmiaA = float | Literal["tuned"]
TargetKind = Literal["targets", "replicas", "either"]


class _FieldChecks:
    """Collects the mistakes in the fields of a need, which may be part of a user's own figure."""

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name
        self._mistakes: list[str] = []

    def add(self, field: str, value: object, rule: str) -> None:
        self._mistakes.append(f"{field}={value!r}: {rule}")

    def names(self, field: str, value: object, choices: Sequence[str] = ()) -> None:
        if not isinstance(value, tuple) or not value or not all(isinstance(v, str) for v in value):
            self.add(field, value, 'must be a tuple of names, such as ("main",)')
        elif choices and not {*value} <= {*choices}:
            self.add(field, value, f"choose from {', '.join(choices)}")

    def one_of(self, field: str, value: object, choices: Sequence[str]) -> None:
        if value not in choices:
            self.add(field, value, f"choose from {', '.join(choices)}")

    def integer(self, field: str, value: object, minimum: int) -> None:
        if not isinstance(value, int) or value < minimum:
            self.add(field, value, f"must be an integer, {minimum} or larger")

    def positive_numbers(self, field: str, value: object, maximum: float = math.inf) -> None:
        if not isinstance(value, tuple) or not all(
            isinstance(v, int | float) and 0 < v <= maximum and math.isfinite(v) for v in value
        ):
            limit = f" and at most {maximum:g}" if math.isfinite(maximum) else ""
            self.add(field, value, f"must be a tuple of numbers above 0{limit}")

    def report(self) -> None:
        """Raises ValueError with all mistakes."""
        if self._mistakes:
            raise ValueError(f"{self._class_name}: {'; '.join(self._mistakes)}")


@dataclasses.dataclass(frozen=True)
class Need:
    """Attacks that a figure needs: each combination of the fields below, on each recipe."""

    recipes: tuple[str, ...]
    """Names of recipes; ``*`` matches any characters, as in ``chinchilla-*``. The recipes are compared with each
    other, so they are attacked with equal numbers of references, and on targets with the same seeds."""
    attacks: tuple[str, ...] = ("lira_online",)
    """Names of attacks."""
    references: Literal["common", "powers"] = "common"
    """Numbers of references. common: the largest number that all recipes have, at most ``most_references``; powers:
    also the smaller numbers of `reference_counts`, all on the same samples (`AttackSpec.in_and_out_among`)."""
    most_references: int | None = PAPER_REFERENCES
    """Maximum number of references; None: no maximum."""
    targets: TargetKind = "targets"
    """targets: models with training subsets of their own; replicas: models that share one training subset; either:
    targets, or replicas for recipes without targets."""
    observed: tuple[ObservedStatistic, ...] = ("loss",)
    """The statistic of each sample that the attacker observes."""
    epochs: tuple[float, ...] | Literal["end", "all"] = "end"
    """Numbers of training epochs after which the models are attacked. end: the end of training; all: each of
    score.at_epochs, and the end."""
    rmia_shares: tuple[float, ...] = ()
    """Numbers of samples that RMIA compares with, as fractions of the population; empty: attack.rmia_samples."""
    rmia_gammas: tuple[float, ...] = ()
    """Thresholds gamma of RMIA; empty: attack.rmia_gamma."""
    rmia_as: tuple[RmiaA, ...] = ()
    """Parameters a of offline RMIA, as attack.rmia_a; empty: attack.rmia_a."""
    jackknife: bool = False
    """Whether the tables also hold what intervals need: each attack with parts of the references
    (`AttackSpec.reference_part`), and the AUC and TPRs of all of these on halves of the samples."""
    epsilons: bool = False
    """Whether the tables also hold the empirical epsilon and the balanced accuracy under each target, on all samples
    and on halves of them, and the one-run bound on epsilon of the first target."""
    sample_scores: bool = False
    """Whether the membership score of each sample under each target is kept, too."""

    def __post_init__(self) -> None:
        check = _FieldChecks("Need")
        check.names("recipes", self.recipes)
        check.names("attacks", self.attacks)
        check.names("observed", self.observed, get_args(ObservedStatistic))
        check.one_of("references", self.references, ("common", "powers"))
        check.one_of("targets", self.targets, get_args(TargetKind))
        if self.most_references is not None:
            check.integer("most_references", self.most_references, MIN_REFERENCES)
        if self.epochs not in ("end", "all"):
            check.positive_numbers("epochs", self.epochs)
        check.positive_numbers("rmia_shares", self.rmia_shares, maximum=1)
        check.positive_numbers("rmia_gammas", self.rmia_gammas)
        if not isinstance(self.rmia_as, tuple) or not all(
            a == "tuned" or (isinstance(a, int | float) and 0 <= a <= 1) for a in self.rmia_as
        ):
            rule = 'must be a tuple of numbers from 0 to 1, or "tuned"'
            check.add("rmia_as", self.rmia_as, rule)
        check.report()


@dataclasses.dataclass(frozen=True)
class LossNeed:
    """Samples whose losses under each reference and target a figure needs, with the mean loss of each model."""

    recipes: tuple[str, ...]
    """As in `Need`."""
    from_end: tuple[int, ...]
    """Positions of the samples, counted from the end of the population: 1 is the last sample."""

    def __post_init__(self) -> None:
        check = _FieldChecks("LossNeed")
        check.names("recipes", self.recipes)
        if not isinstance(self.from_end, tuple) or not all(
            isinstance(position, int) and position >= 1 for position in self.from_end
        ):
            check.add("from_end", self.from_end, "must be a tuple of integers, 1 or larger")
        check.report()


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Tables of a recipe that belong to an experiment, and the function that computes them."""

    name: str
    compute: Callable[..., Mapping[str, Any] | None]
    """``compute(view, write, *, SETTINGS)`` passes each table to ``write(FILE, table)``, and returns facts about them
    as JSON values, or None. ``view`` is a `lm_mia.attacks.studies.StudyView`; the keyword-only parameters are the
    settings of the attack that it reads, such as ``focus_fpr``.

    It raises `lm_mia.errors.Unavailable` if the models of a recipe do not allow the study. The tables are computed
    again if its code changes, that of the other definitions of its file that it names included."""
    tables: tuple[Table, ...]
    """All tables that it may write."""
    reads: tuple[str, ...] = ()
    """File names of the other tables of the recipe that it reads."""
    not_requested: Callable[..., str] | None = None
    """``not_requested(*, SETTINGS)`` returns why the settings of a recipe do not ask for the study; empty if they do.
    None: it is always computed."""
    models: Callable[["StudyView"], Sequence["ModelSeeds"]] | None = None
    """Returns the models whose scores it reads; None: those that the config asks for, without crossed models."""
    facts: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """The facts that are exported as NAME.json, with its settings and the models; empty: there is no such file."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier() and callable(self.compute)):
            raise ValueError(
                f"Study: name={self.name!r}: must be a word, and compute a function with the parameters view, write "
                "and settings"
            )
        if not self.tables or not all(isinstance(table, Table) for table in self.tables):
            raise ValueError(f"Study: tables={self.tables!r}: must be a tuple of Table")


@dataclasses.dataclass(frozen=True)
class StudyNeed:
    """A study of recipes that a figure needs; recipes with too few models for it are left out."""

    recipes: tuple[str, ...]
    """As in `Need`."""
    study: Study

    def __post_init__(self) -> None:
        check = _FieldChecks("StudyNeed")
        check.names("recipes", self.recipes)
        if not isinstance(self.study, Study):
            raise ValueError(f"StudyNeed: study={self.study!r}: must be a Study")
        check.report()


@dataclasses.dataclass(frozen=True, eq=False)
class AttackTable:
    """A table with the rows of an evaluation of each attack of the config, with all its references."""

    table: Table
    """The columns attack and references come first, unless it is about one attack; all others are those of the
    evaluation."""
    evaluation: Callable[..., Any]
    """``evaluation(scores, *, SETTINGS)`` returns a data frame; ``scores`` is a `lm_mia.attacks.evaluations.Scores`.
    It is computed again if its code changes, as of a `Study`."""
    of_headline: bool = False
    """Whether the table is about attack.headline alone, such as one with a row for each sample."""


@dataclasses.dataclass(frozen=True)
class AttackTableNeed:
    """A table about each attack on recipes."""

    recipes: tuple[str, ...]
    """As in `Need`."""
    table: AttackTable

    def __post_init__(self) -> None:
        check = _FieldChecks("AttackTableNeed")
        check.names("recipes", self.recipes)
        if not isinstance(self.table, AttackTable):
            raise ValueError(f"AttackTableNeed: table={self.table!r}: must be an AttackTable")
        check.report()


FigureNeed = Need | LossNeed | StudyNeed | AttackTableNeed
"""What a figure may need from the attacks stage."""


@dataclasses.dataclass(frozen=True)
class PresentModels:
    """The models of a recipe that are present at the end of their training, by number, in ascending order."""

    references: tuple[int, ...]
    """Models with training subsets of their own, including the targets."""
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ModelRoles:
    """The models of a recipe by their role in an attack, by number."""

    references: tuple[int, ...]
    targets: tuple[int, ...]
    """Models with training subsets of their own that are attacked with the references."""
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RecipeModels:
    """A recipe, with the models that can be attacked."""

    names: tuple[str, ...]
    config: Config
    models: PresentModels


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attack as a figure asks for it, whatever models a recipe has."""

    attack: str = "lira_online"
    references: int = 0
    """The number of references, the first ones; 0: all of the recipe."""
    replicas: bool = False
    """Whether replicas are attacked, rather than targets with training subsets of their own."""
    step: int = 0
    """As in `AttackSpec`."""
    observed: ObservedStatistic = "loss"
    rmia_samples: int = 0
    """For RMIA; 0: attack.rmia_samples."""
    rmia_gamma: float = 0.0
    """For RMIA; 0: attack.rmia_gamma."""
    rmia_a: RmiaA | None = None
    """For offline RMIA; None: attack.rmia_a."""
    is_count_study: bool = False
    """Whether the attack is part of a study of the number of references, whose samples depend on
    `AttackSpec.in_and_out_among`: the first two references, or those of a part that is a disjoint set."""


@dataclasses.dataclass(frozen=True)
class AttackSpec:
    """One attack on the targets, or on the replicas, of a recipe, with the models that take part."""

    attack: str
    targets_are_replicas: bool
    targets: tuple[int, ...]
    """Numbers of the attacked models."""
    references: tuple[int, ...]
    """Numbers of the references."""
    step: int = 0
    """The training step at which all models were scored; 0: the end of training."""
    observed: ObservedStatistic = "loss"
    """The statistic of each sample that the attacker observes."""
    rmia_samples: int = 0
    """The number of samples that RMIA compares with; 0 for other attacks."""
    rmia_gamma: float = 0.0
    """The threshold gamma of RMIA; 0 for other attacks."""
    rmia_a: RmiaA | None = None
    """The parameter a of offline RMIA; None for other attacks."""
    reference_part: int | None = None
    """Which references are used: with two references or more of each of the `JACKKNIFE_GROUPS` groups, those of the
    groups `half_groups(reference_part)`; with fewer, those of the group of this number. None: the first references."""
    in_and_out_among: tuple[int, ...] = ()
    """Numbers of two references in a study of the number of references: only samples that one of them was trained on,
    and the other was not, have a score. Two references suffice for LiRA on these samples, so that attacks with any
    number of references are on the same ones. Empty: each attack is on the samples that its references suffice for."""

    @property
    def pools_variances(self) -> bool:
        """Whether LiRA pools variances over the samples even if attack.variance is per_sample."""
        return bool(self.in_and_out_among) and len(self.references) < FEWEST_FOR_VARIANCES

    @property
    def name(self) -> str:
        """The name of the attack in tables, without the file of a user's attack."""
        return user_code.short(self.attack)

    @functools.cached_property
    def id(self) -> str:
        """Identifies the attack in the tables: name, number of references, and a hash of `FORMAT` and all fields."""
        fields = dataclasses.astuple(dataclasses.replace(self, attack=self.name))
        digest = hashlib.sha256(json.dumps([FORMAT, fields]).encode()).hexdigest()[:8]
        return f"{self.name}-{len(self.references)}-{digest}"


class Request(NamedTuple):
    """An evaluation of an attack, and of the same attack with parts of its references, which one piece holds."""

    spec: AttackSpec
    evaluation: Callable[..., Any]
    """A function of `lm_mia.attacks.evaluations`, or one like them."""
    parts: tuple[AttackSpec, ...] = ()
    """The result of `reference_parts`; empty if the intervals do not cover the references."""


@dataclasses.dataclass(frozen=True)
class RecipeNeeds:
    """What the attacks stage computes for one recipe in addition to the tables of decisions."""

    requests: Sequence[Request] = ()
    score_table: Sequence[AttackSpec] = ()
    """The attacks whose scores under every target are in membership_scores.parquet; empty if there are replicas, whose
    scores are in that table then."""
    loss_samples: Sequence[int] = ()
    """Ids of samples whose losses under each reference and target are listed."""
    studies: Sequence[Study] = ()
    """Studies of the recipe."""
    attack_tables: Sequence[AttackTable] = ()
    """Tables of all attacks of the config."""


def attack_settings(attack: Attack) -> dict[str, Any]:
    """Returns the settings of a recipe that affect the numbers of all its attacks, as JSON values."""
    return {
        "format": FORMAT,
        "fprs": list(attack.fprs),
        "band": list(attack.band),
        "variance": attack.variance,
        "finite_population": attack.finite_population,
        "delta": attack.delta,
        "alpha": attack.alpha,
    }


def decision_settings(attack: Attack) -> dict[str, Any]:
    """Returns the settings that the tables of flips, pooled thresholds and more references may depend on.

    Those of zero-run evaluation and of crossed models are not among them, so that these tables are kept when either is
    added to a recipe, nor is the attack that results are named by.
    """
    others = "zero_run", "replica_inits", "orders_per_init", "headline"
    settings = dataclasses.asdict(attack)
    return {name: value for name, value in settings.items() if not name.startswith(others)}


def assign_roles(models: PresentModels, attack: Attack) -> ModelRoles:
    """Divides the models that are present into references, targets and replicas.

    The targets are the first models with training subsets of their own, and the references follow them, so that
    further references never change which models are attacked. A target that is missing is not replaced.
    """
    return ModelRoles(
        references=tuple(i for i in models.references if attack.targets <= i < attack.references),
        targets=tuple(i for i in models.references if i < attack.targets),
        replicas=tuple(i for i in models.replicas if i < attack.replicas),
    )


def with_equal_counts(configs: Sequence[Config]) -> list[Config]:
    """Returns the configs with the smallest numbers of references and of targets that any of them requests.

    If one of the designs is balanced, both numbers are rounded down to even numbers, so that the complement of a target
    is a target, too: as a reference, it would reveal the target's members.
    """
    references = min(config.attack.references for config in configs)
    targets = min(config.attack.targets for config in configs)
    if any(config.train.subset == "balanced" for config in configs):
        references, targets = references - references % 2, targets - targets % 2
    return [
        dataclasses.replace(
            config,
            attack=dataclasses.replace(config.attack, references=references, targets=targets),
        )
        for config in configs
    ]


def reference_counts(config: Config, most: int) -> list[int]:
    """Returns the numbers of references, up to ``most``, in a study of their number.

    They are powers of two and ``most`` itself, from 2 on. In the balanced design they begin with 4: of each pair of
    references one is IN and one OUT for every sample, so that two show no variance within a class.
    """
    smallest = 4 if config.train.subset == "balanced" else 2
    counts = [smallest * 2**i for i in range(32) if smallest * 2**i < most]
    return [*counts, most]


def score_step(config: Config, epochs: float) -> int | None:
    """Returns the step of the scores after a number of epochs: 0 for the end, None if models are not scored then."""
    if epochs >= config.train.epochs:
        return 0
    score = dataclasses.replace(config.score, at_epochs=(epochs,), at_steps=())
    [step] = epoch_steps(dataclasses.replace(config, score=score))
    return step if step in score_steps(config) else None


def scored_epochs(config: Config) -> list[float]:
    """Returns the numbers of epochs after which the models of a recipe are scored, including the end."""
    return sorted({*config.score.at_epochs, float(config.train.epochs)})


def reference_groups(numbers: Iterable[int]) -> list[int]:
    """Returns the group of each reference, from 0 to JACKKNIFE_GROUPS - 1.

    References 2i and 2i + 1, which are complements in the balanced design, are in the same group, also if others are
    missing.
    """
    pair_of = [number // 2 for number in numbers]
    rank = {pair: i for i, pair in enumerate(dict.fromkeys(pair_of))}
    return [rank[pair] % JACKKNIFE_GROUPS for pair in pair_of]


def half_groups(half: int) -> frozenset[int]:
    """Returns half of the `JACKKNIFE_GROUPS` groups.

    Halves 2i and 2i + 1 are complements. Any two halves of different pairs share half of their groups, so that the
    differences between the halves of a pair are uncorrelated with those of other pairs (balanced half-samples).

    Args:
      half: from 0 to NUM_HALVES - 1.
    """
    split, parity = half // 2 + 1, half % 2
    return frozenset(g for g in range(JACKKNIFE_GROUPS) if (g & split).bit_count() % 2 == parity)


def num_reference_parts(references: int, available: int) -> int:
    """Returns the number of parts of the references of an attack, as `AttackSpec.reference_part`.

    Args:
      references: the number of references of the attack.
      available: the number of references of the recipe.

    Returns:
      The number; 0 if there are too few references for parts.
    """
    if references >= 2 * JACKKNIFE_GROUPS:
        return NUM_HALVES
    return JACKKNIFE_GROUPS if references * JACKKNIFE_GROUPS <= available else 0
