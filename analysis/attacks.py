"""Reads attacks on the targets of a recipe from its pieces, for ROC figures and comparisons.

The attacks stage computes what figures declare in `Experiment.needs`; nothing is computed from losses here.

T: targets, F: false positive rates of the config, G: points of a ROC curve, N2: samples of the population (2N), P:
parts of the references, R1: all references, and then each half of them, H1: all samples, and then each half of them.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.claims import jackknife
from analysis.claims.compare import Claim, Estimate, claim_below
from analysis.claims.jackknife import Jackknife
from analysis.io import RecipeResults, fewest_references
from lm_mia import stats
from lm_mia.attacks import evaluations, spec
from lm_mia.attacks.requests import attack_spec, reference_parts
from lm_mia.attacks.spec import (
    PAPER_REFERENCES,
    AttackSpec,
    Need,
    Request,
    Variant,
)
from lm_mia.config import num_canaries
from lm_mia.data import subsets
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

ONLINE_LIRA = Variant()
"""With all references, on targets."""


@dataclasses.dataclass(frozen=True)
class AttackResult:
    """The results of one attack on the targets of a recipe."""

    references: int
    """The number of references with which every target was attacked."""
    targets: tuple[str, ...]
    """Names of the targets."""
    auc_T: np.ndarray
    """Area under the ROC curve of each target."""
    left_out: int
    """The number of samples without a membership score, for the target that has the most of them."""
    rmia_a: float
    """The parameter a of offline RMIA; NaN for other attacks."""
    fpr_F: np.ndarray
    tpr_TxF: np.ndarray
    """TPR of each target at the FPRs of the config."""
    fpr_G: np.ndarray
    tpr_TxG: np.ndarray
    """TPR of each target at the points of the ROC curve."""

    def tpr_T(self, fpr: float) -> np.ndarray:
        """Returns the TPR of each target at one of the FPRs of the config; NaN if ``fpr`` is not one of them."""
        at = np.flatnonzero(np.isclose(self.fpr_F, fpr, rtol=1e-9))
        return self.tpr_TxF[:, at[0]] if len(at) else np.full(len(self.auc_T), np.nan)


def read_attack(recipe: RecipeResults, variant: Variant = ONLINE_LIRA) -> AttackResult:
    """Reads an attack on every target of a recipe.

    Raises:
      Unavailable: there are too few models, or the attack was not made with these settings.
    """
    attack = find_attack(recipe, variant)
    return _to_result(attack, read_piece(recipe, Request(attack, evaluations.operating_points)))


def read_piece(
    recipe: RecipeResults, request: Request, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Returns an evaluation of an attack, or some of its columns; raises Unavailable if it was not made."""
    table = find_piece(recipe, request, columns)
    if table is None:
        raise _missing_attack(recipe, request.spec)
    return table


def find_piece(
    recipe: RecipeResults, request: Request, columns: Sequence[str] | None = None
) -> pd.DataFrame | None:
    """Returns an evaluation of an attack; None if no figure declares it, or if models are not scored as it requires."""
    try:
        return recipe.pieces.read(request, columns)
    except Unavailable:
        return None


@dataclasses.dataclass(frozen=True)
class JackknifedAttack:
    """An attack on the targets of a recipe, repeated with parts of its references, for intervals of claims."""

    result: AttackResult
    """With the first references."""
    rates: pd.DataFrame
    """AUC and TPRs with all references (part 0) and with the `reference_parts`, on halves of the samples."""
    over: str
    """As in `Jackknife`."""
    not_covered: tuple[str, ...]

    @property
    def num_parts(self) -> int:
        """The number of parts of the references."""
        return int(self.rates["part"].max())

    @property
    def auc(self) -> Jackknife:
        """The mean AUC over targets."""
        return self._jackknife("auc")

    def tpr(self, fpr: float, summary: jackknife.Summary = jackknife.mean) -> Jackknife:
        """Returns the mean TPR over targets, or another summary, at an FPR of the config; NaN if it is not one."""
        return self._jackknife(self._tpr_column(fpr), summary)

    def shared_tpr_variance(self, fpr: float) -> float:
        """Returns the variance of the TPR that the targets share, since one set of references attacks all of them.

        It is estimated from halves of the references, and is 0 where the estimate is negative; NaN if there are no
        halves, or a single target. ``fpr`` is one of the FPRs of the config.
        """
        if self.num_parts != spec.NUM_HALVES:
            return math.nan
        half_TxH = self._values(self._tpr_column(fpr))[1:, :, 0].T
        return float(np.maximum(stats.shared_reference_variance(half_TxH), 0.0))

    def _tpr_column(self, fpr: float) -> str:
        """Returns the name of the column of the TPR at an FPR; empty if it is not one of the config's."""
        at = np.flatnonzero(np.isclose(self.result.fpr_F, fpr, rtol=1e-9))
        return f"tpr_at_{self.result.fpr_F[at[0]]:g}" if len(at) else ""

    def _values(self, column: str) -> np.ndarray:
        """Returns value_PxTxH1, with all references first; NaN without a column."""
        shape = self.num_parts + 1, len(self.result.auc_T), -1
        values = self.rates[column] if column else self.rates["auc"] * math.nan
        return values.to_numpy(float).reshape(shape)

    def _jackknife(self, column: str, summary: jackknife.Summary = jackknife.mean) -> Jackknife:
        whole_TxH1, *parts_PxTxH1 = self._values(column)
        return Jackknife.from_attacks(
            whole_TxH1, parts_PxTxH1, self.over, self.not_covered, summary
        )


def read_jackknife(recipe: RecipeResults, variant: Variant = ONLINE_LIRA) -> JackknifedAttack:
    """Reads an attack on every target of a recipe, with what its interval needs.

    The interval covers the targets, the samples and, if there are parts of the references, the references. With parts
    that are disjoint sets (see `spec.AttackSpec.reference_part`), the number is the mean over these sets.

    Raises:
      Unavailable: as `read_attack`, or the attack was not made on halves of the samples.
    """
    result, attack = read_attack(recipe, variant), find_attack(recipe, variant)
    parts = reference_parts(recipe.attackable, variant)
    rates = find_piece(recipe, Request(attack, evaluations.halved_rates, parts))
    if rates is None:
        raise Unavailable(
            f"{recipe.name}: there are no results of {variant.attack} on halves of the samples; run lm-mia attack with "
            "this figure in figures (its needs must have jackknife=True)"
        )
    sets = f"{len(parts)} sets of " if len(parts) == spec.JACKKNIFE_GROUPS else ""
    references_text = f", {sets}{result.references} references" if parts else ""
    fixed = () if parts else ("the references",)
    compared = variant.rmia_samples or recipe.config.attack.rmia_samples
    if variant.attack in ("rmia", "rmia_offline") and compared < num_canaries(recipe.config):
        fixed += ("the samples that RMIA compares with",)
    over = f"{len(result.auc_T)} targets{references_text} and the samples"
    return JackknifedAttack(result, rates if parts else rates.assign(part=0), over, fixed)


def recipe_difference(
    new: RecipeResults,
    old: RecipeResults,
    references: int,
    value: Callable[[JackknifedAttack], Jackknife] = lambda attack: attack.auc,
) -> Estimate:
    """Returns the mean over targets of a number of LiRA under one recipe minus that under another.

    Models and samples are paired if the targets of both recipes are trained on the same subsets of the same population.

    Args:
      new, old: the recipes.
      references: the number of references with which the targets of both are attacked.
      value: returns the number, such as the AUC.
    """
    new_value, old_value = (
        value(read_jackknife(r, Variant(references=references))) for r in (new, old)
    )
    return paired_or_independent(new, old, new_value, old_value)


def paired_or_independent(
    new: RecipeResults, old: RecipeResults, new_value: Jackknife, old_value: Jackknife
) -> Estimate:
    """Returns the difference of two numbers of the targets of two recipes, paired as in `recipe_difference`."""
    if same_targets(new, old):
        return (new_value - old_value).estimate()
    return jackknife.independent_difference(new_value, old_value)


def same_targets(new: RecipeResults, old: RecipeResults) -> bool:
    """Returns whether the targets of two recipes have the same subsets of the same samples to attack."""
    new_seeds, old_seeds = (
        [target.subset_seed for target in recipe.targets] for recipe in (new, old)
    )
    has_same_canaries = num_canaries(new.config) == num_canaries(old.config)
    is_same_population = new.population.sha256 == old.population.sha256
    return is_same_population and has_same_canaries and new_seeds == old_seeds


def lira_reference_counts(recipe: RecipeResults, *, replicas: bool) -> set[int]:
    """Returns the numbers of references with which LiRA was made on all targets, or replicas, of a recipe."""
    counts = set[int]()
    for n in range(spec.MIN_REFERENCES, len(recipe.references) + 1):
        attack = attack_spec(recipe.attackable, Variant(references=n, replicas=replicas))
        if attack and recipe.pieces.has(Request(attack, evaluations.operating_points)):
            counts.add(n)
    return counts


def read_sample_scores(
    recipe: RecipeResults, variant: Variant, part: int | None = None
) -> Iterator[tuple[ModelSeeds, np.ndarray, np.ndarray]]:
    """Yields (target, member_N2, score_N2) of an attack for each target of a recipe.

    The arrays are of the attacked samples, as `RecipeResults.attacked`. The membership score of a sample with too few
    references is NaN. For a part of the references, as in `attack_spec`, the arrays hold the first
    `spec.JACKKNIFE_SAMPLES` samples only. Errors are those of `read_attack`; there are the scores of needs with
    sample_scores=True.
    """
    attack = find_attack(recipe, variant, part)
    request = Request(attack, evaluations.sample_scores)
    for target in map(subsets.reference, attack.targets):
        names = [str(target), f"member/{target}"]
        table = read_piece(recipe, request, names)
        score_N2, member_N2 = (table[name].to_numpy() for name in names)
        yield target, member_N2, score_N2


def find_attack(recipe: RecipeResults, variant: Variant, part: int | None = None) -> AttackSpec:
    """Returns an attack on all targets, or replicas, of a recipe, as `lm_mia.attacks.requests.attack_spec`.

    Raises:
      Unavailable: there are too few models.
    """
    attack = attack_spec(recipe.attackable, variant, part)
    if attack is None:
        kind = "replicas" if variant.replicas else "targets"
        attacked = recipe.replicas if variant.replicas else recipe.targets
        raise Unavailable(
            f"{recipe.name}: {len(recipe.references)} references and {len(attacked)} {kind} are too few for this "
            f"attack; run lm-mia run with larger --config.attack.references and --config.attack.{kind}"
        )
    return attack


def _missing_attack(recipe: RecipeResults, attack: AttackSpec) -> Unavailable:
    details = f"{attack.attack} with {len(attack.references)} references"
    if attack.reference_part is not None:
        details += f" (part {attack.reference_part})"
    if attack.rmia_samples:
        details += f" and |Z|={attack.rmia_samples}, gamma={attack.rmia_gamma:g}"
    if attack.rmia_a is not None:
        details += f", a={attack.rmia_a}"
    details += f" on {attack.observed}" if attack.observed != "loss" else ""
    details += " on replicas" if attack.targets_are_replicas else ""
    details += f" at step {attack.step}" if attack.step else ""
    return Unavailable(
        f"{recipe.name}: there are no results of {details}; run lm-mia attack with this figure in figures (its needs "
        "must include this attack)"
    )


def _to_result(attack: AttackSpec, table: pd.DataFrame) -> AttackResult:
    T = len(attack.targets)

    def select(on_curve: bool) -> tuple[np.ndarray, np.ndarray]:
        selected = table[table["on_curve"] == on_curve]
        fpr_TxK, tpr_TxK = (
            selected[name].to_numpy(float).reshape(T, -1) for name in ("fpr", "tpr")
        )
        return fpr_TxK[0], tpr_TxK

    (fpr_F, tpr_TxF), (fpr_G, tpr_TxG) = select(False), select(True)
    of_target = table.drop_duplicates("target")
    return AttackResult(
        references=len(attack.references),
        targets=tuple(of_target["target"]),
        auc_T=of_target["auc"].to_numpy(float),
        left_out=int(of_target["left_out"].max()),
        rmia_a=float(of_target["rmia_a"].iloc[0]),
        fpr_F=fpr_F,
        tpr_TxF=tpr_TxF,
        fpr_G=fpr_G,
        tpr_TxG=tpr_TxG,
    )


def with_equal_models(recipes: Sequence[RecipeResults]) -> list[RecipeResults]:
    """Returns the recipes restricted to the models of the one that requests the fewest.

    All then have equally many references, and targets with the same seeds.
    """
    configs = spec.with_equal_counts([recipe.config for recipe in recipes])
    return [dataclasses.replace(r, config=c) for r, c in zip(recipes, configs, strict=True)]


def reference_counts(recipe: RecipeResults, most: int = 0) -> list[int]:
    """Returns the numbers of references to compare: powers of two, up to ``most`` or, if 0, all that are present.

    Raises:
      Unavailable: there are fewer than two such numbers.
    """
    counts = spec.reference_counts(recipe.config, most or len(recipe.references))
    if len(counts) < 2:
        raise Unavailable(
            f"{recipe.name}: {counts[-1]} references are too few to compare numbers of references; run lm-mia "
            "run with a larger --config.attack.references"
        )
    return counts


def common_references(recipes: Sequence[RecipeResults]) -> int:
    """Returns the number of references that all recipes have, at most that of the paper."""
    return min(PAPER_REFERENCES, fewest_references(recipes))


def lowest_resolved_fpr(recipe: RecipeResults) -> float:
    """Returns the lowest FPR of the config at which at least ten non-members of a target are called members."""
    fprs = recipe.config.attack.fprs
    return min((f for f in fprs if f * recipe.nonmembers >= 10), default=max(fprs))


def resolved_fprs(recipes: Sequence[RecipeResults]) -> list[float]:
    """Returns the FPRs up to 20% at which at least ten non-members of each target are called members."""
    fewest = min(recipe.nonmembers for recipe in recipes)
    return [f for f in recipes[0].config.attack.fprs if 10 / fewest <= f <= 0.2]


def lira_by_epoch(
    recipe: RecipeResults, references: int, required: Sequence[float] = (1,)
) -> dict[float, JackknifedAttack]:
    """Reads LiRA after every epoch at which the models were scored.

    Raises:
      Unavailable: the models were not scored after one of the required epochs.
    """
    epochs = spec.scored_epochs(recipe.config)
    if missing := [f"{epoch:g}" for epoch in required if epoch not in epochs]:
        raise Unavailable(
            f"{recipe.name}: not scored after epoch {', '.join(missing)}; run lm-mia run with these epochs in "
            "--config.score.at_epochs"
        )
    return {
        e: read_jackknife(recipe, Variant(references=references, step=recipe.step_after(e)))
        for e in epochs
    }


NEVER_REACHED_AUC = 0.7
"""The paper's bound on the AUC under typical training: with any number of references and at any size."""


def claim_auc_bound(statement: str, auc: Mapping[str, Mapping[int, Jackknife]]) -> Claim:
    """Returns the claim that the AUC stays below 0.7 with every number of references.

    Args:
      statement: the statement of the paper.
      auc: an attack as it is named after "AUC", such as "of RMIA " -> number of references -> AUC.
    """
    gaps = {
        f"{name}with {count} references": x.scaled(-1, NEVER_REACHED_AUC).estimate()
        for name, by_count in auc.items()
        for count, x in by_count.items()
    }
    return claim_below(statement, "AUC", NEVER_REACHED_AUC, gaps)


COUNT_STUDY_NOTE = (
    "Curves for all numbers of references are on the same samples: those that one of the first two references was "
    f"trained on, and the other was not. With fewer than {spec.FEWEST_FOR_VARIANCES} references, variances are pooled "
    "over the samples."
)
"""The note on figures that compare numbers of references."""
LIRA_AND_RMIA_BY_REFERENCES = Need(
    ("main",), ("lira_online", "rmia"), references="powers", most_references=None, jackknife=True
)
"""What Figures 9 and 10 need: both attacks with 2, 4, ... references, up to all."""
RMIA_NOTE = (
    "All targets use the same comparison samples Z, and the intervals hold this choice fixed. At FPRs below about "
    "1 / |Z|, RMIA cannot distinguish samples, whatever the model: about that share of the non-members ties for the "
    "highest score."
)
"""The note on figures in which |Z|, the number of comparison samples of RMIA, is small."""


RMIA_SHARES = tuple(samples / 2**20 for samples in (10_000, 30_000, 100_000, 300_000))
"""The numbers of samples that RMIA compares with in the paper, as fractions of its 2^20 samples."""


def rmia_sample_counts(recipe: RecipeResults) -> list[int]:
    """Returns |Z| for the studies of RMIA: the same shares of the population as in the paper (`RMIA_SHARES`)."""
    return [round(num_canaries(recipe.config) * share) for share in RMIA_SHARES]


def unresolved_rmia_fpr(recipe: RecipeResults, rmia_samples: int) -> float:
    """Returns the highest FPR of the config that is too low for RMIA: at most a quarter of 1 / |Z|."""
    fprs = recipe.config.attack.fprs
    return max((f for f in fprs if 4 * rmia_samples * f <= 1), default=min(fprs))


def resolved_rmia_fpr(recipe: RecipeResults, rmia_samples: int) -> float:
    """Returns the FPR of the config nearest to 1 / |Z| by ratio, about the share of non-members with the top score."""
    fprs = recipe.config.attack.fprs
    return min(fprs, key=lambda f: abs(math.log(max(f, 1e-300) * rmia_samples)))


def default_rmia_samples(recipe: RecipeResults) -> int:
    """Returns |Z| of RMIA by the config."""
    return min(recipe.config.attack.rmia_samples, num_canaries(recipe.config))
