"""Attacks on the targets of a recipe, as its tables hold them: what ROC figures and comparisons are made of.

The attacks stage computes what figures declare in `PaperFigure.needs`; nothing is computed from scores here.

T: targets, F: false positive rates of the config, G: points of a curve, N2: samples of the population (2N).
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis import io
from analysis.io import MissingModelsError, RecipeResults, WorkdirError, fewest_references
from lm_mia.atomic import TARGETS_CSV
from lm_mia.config import AttackName, needs
from lm_mia.config.needs import PAPER_REFERENCES, ObservedStatistic, TargetAttack
from lm_mia.data import subsets
from lm_mia.data.subsets import ModelSeeds


@dataclasses.dataclass(frozen=True)
class AttackResult:
    """One attack on the targets of a recipe."""

    references: int
    """With which every target was attacked."""
    targets: tuple[str, ...]
    """Their names."""
    auc_T: np.ndarray
    """Area under the curve of every target."""
    left_out: int
    """Samples without a score, of the target that has most."""
    fpr_F: np.ndarray
    tpr_TxF: np.ndarray
    """At the rates of the config."""
    fpr_G: np.ndarray
    tpr_TxG: np.ndarray
    """At the points of the ROC curve; no points for attacks that leave out a group of references."""

    def tpr_T(self, fpr: float) -> np.ndarray:
        """Returns the TPR of every target at one of the FPRs of the config; NaN if ``fpr`` is not one of them."""
        at = np.flatnonzero(np.isclose(self.fpr_F, fpr, rtol=1e-9))
        return self.tpr_TxF[:, at[0]] if len(at) else np.full(len(self.auc_T), np.nan)


def read_attack(
    recipe: RecipeResults,
    name: AttackName = "lira_online",
    references: int = 0,
    *,
    step: int = 0,
    observed: ObservedStatistic = "loss",
    replicas: bool = False,
    group_left_out: int | None = None,
    rmia_samples: int = 0,
    rmia_gamma: float = 0.0,
) -> AttackResult:
    """Reads an attack on every target of a recipe from its tables.

    Args:
      recipe: whose tables are read.
      name: of the attack.
      references: their number, the first ones; 0: all that are present.
      step: a score point; 0: the end.
      observed: what the attacker observes of each sample.
      replicas: whether the replicas are attacked, which share a subset, and not the targets of different subsets.
      group_left_out: which of the `lm_mia.config.needs.JACKKNIFE_GROUPS` groups of references is left out; None: none.
      rmia_samples, rmia_gamma: of RMIA; 0: those of the config.

    Raises:
      MissingModelsError: there are too few models, or the tables do not have this attack.
    """
    attack = _attack(
        recipe,
        name,
        references,
        step=step,
        observed=observed,
        replicas=replicas,
        group_left_out=group_left_out,
        rmia_samples=rmia_samples,
        rmia_gamma=rmia_gamma,
    )
    tables = _tables(recipe)
    if attack.id not in tables:
        raise _lacks(recipe, attack)
    return tables[attack.id]


def counts(recipe: RecipeResults, *, replicas: bool) -> set[int]:
    """The numbers of references with which the tables have LiRA on all targets, or on all replicas, of a recipe."""
    tables = _tables(recipe)
    found = {
        n: needs.target_attack(
            recipe.config, recipe.models, "lira_online", n, targets_are_replicas=replicas
        )
        for n in range(needs.MIN_REFERENCES, len(recipe.divided[0]) + 1)
    }
    return {n for n, attack in found.items() if attack and attack.id in tables}


def sample_scores(
    recipe: RecipeResults, references: int
) -> Iterator[tuple[ModelSeeds, np.ndarray, np.ndarray]]:
    """Yields (target, member_N2, score_N2) of LiRA for every target of a recipe, from its tables.

    A score is NaN if the references do not suffice. Arguments and errors are those of `attacked`.
    """
    attack = _attack(recipe, "lira_online", references)
    path = recipe.folder / TARGETS_CSV.parent / "target_scores" / f"{attack.id}.parquet"
    _tables(recipe)  # raises the errors of tables with other settings
    if not path.is_file():
        raise _lacks(recipe, attack)
    samples, design = recipe.config.population.samples, recipe.config.train.subset
    for row in map(subsets.reference, attack.targets):
        try:
            score_N2 = pd.read_parquet(path, columns=[str(row)])[str(row)].to_numpy()
        except (ValueError, OSError, pa.ArrowException) as error:
            raise WorkdirError(
                f"{path}: cannot be read; delete it, then run lm-mia attack"
            ) from error
        yield row, subsets.member(row.subset_seed, samples, design), score_N2


def _attack(
    recipe: RecipeResults,
    name: AttackName,
    references: int,
    *,
    replicas: bool = False,
    **how: object,
) -> TargetAttack:
    reference_rows, target_rows, replica_rows = recipe.divided
    attack = needs.target_attack(
        recipe.config,
        recipe.models,
        name,
        references or len(reference_rows),
        targets_are_replicas=replicas,
        **how,  # pyright: ignore[reportArgumentType]
    )
    if attack is None:
        kind, rows = ("replicas", replica_rows) if replicas else ("targets", target_rows)
        raise MissingModelsError(
            f"{recipe.name}: {len(reference_rows)} references and {len(rows)} {kind} are there, too few for this attack"
        )
    return attack


def _lacks(recipe: RecipeResults, attack: TargetAttack) -> MissingModelsError:
    what = f"{attack.attack} with {len(attack.references)} references"
    what += (
        f" (group {attack.group_left_out} left out)" if attack.group_left_out is not None else ""
    )
    what += (
        f" and |Z|={attack.rmia_samples}, gamma={attack.rmia_gamma:g}"
        if attack.rmia_samples
        else ""
    )
    what += f" on {attack.observed}" if attack.observed != "loss" else ""
    what += " on replicas" if attack.targets_are_replicas else ""
    what += f" at step {attack.step}" if attack.step else ""
    return MissingModelsError(
        f"{recipe.name}: its tables lack {what}; run lm-mia attack with this figure in figures (its needs must "
        "include this attack)"
    )


def _tables(recipe: RecipeResults) -> dict[str, AttackResult]:
    """The attacks of a recipe's tables by their ids; MissingModelsError if they were made with other settings."""
    path = recipe.folder / TARGETS_CSV
    try:
        made_with = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        stamp = path.stat().st_mtime_ns
    except FileNotFoundError:
        raise MissingModelsError(
            f"{recipe.name}: no attacks on targets; run lm-mia attack"
        ) from None
    except ValueError:
        made_with, stamp = None, 0
    if made_with != needs.attack_settings(recipe.config.attack):
        raise MissingModelsError(
            f"{recipe.name}: its attacks were made with other settings; run lm-mia attack again"
        )
    return _read(path, stamp)


@functools.lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> dict[str, AttackResult]:
    """Reads targets.csv and target_roc.parquet; ``stamp`` is the time of the last change."""
    del stamp  # only tells versions of the file apart
    lines = io.table(path.parents[1], path.name, _COLUMNS)
    try:
        roc = pd.read_parquet(path.with_name("target_roc.parquet"))
        points = dict(tuple(roc.groupby("attack_id", sort=False)))
        return {
            str(name): _attacked(found, points[name])
            for name, found in pd.DataFrame(lines).groupby("attack_id", sort=False)
        }
    except (ValueError, KeyError, OSError, pa.ArrowException) as error:
        raise WorkdirError(
            f"{path.parents[1]}: tables/target_roc.parquet cannot be read; run lm-mia attack again"
        ) from error


_COLUMNS = ("attack_id", "references", "target", "auc", "left_out")


def _attacked(targets: pd.DataFrame, points: pd.DataFrame) -> AttackResult:
    T = len(targets)

    def part(on_curve: bool) -> tuple[np.ndarray, np.ndarray]:
        some = points[points["on_curve"] == on_curve]
        fpr_TxK, tpr_TxK = (some[name].to_numpy(float).reshape(T, -1) for name in ("fpr", "tpr"))
        return fpr_TxK[0], tpr_TxK

    (fpr_F, tpr_TxF), (fpr_G, tpr_TxG) = part(False), part(True)
    return AttackResult(
        references=int(targets["references"].iloc[0]),
        targets=tuple(targets["target"]),
        auc_T=targets["auc"].to_numpy(float),
        left_out=int(targets["left_out"].max()),
        fpr_F=fpr_F,
        tpr_TxF=tpr_TxF,
        fpr_G=fpr_G,
        tpr_TxG=tpr_TxG,
    )


def with_equal_models(recipes: Sequence[RecipeResults]) -> list[RecipeResults]:
    """The recipes with the models of the one that requests fewest: equal references, and targets of the same seeds."""
    same = needs.with_equal_counts([recipe.config for recipe in recipes])
    return [dataclasses.replace(recipe, config=c) for recipe, c in zip(recipes, same, strict=True)]


def reference_counts(recipe: RecipeResults, most: int = 0) -> list[int]:
    """Numbers of references of a study of their number, up to all that are present or to ``most``."""
    counts = needs.reference_counts(recipe.config.attack, most or len(recipe.divided[0]))
    if len(counts) < 2:
        raise MissingModelsError(
            f"{recipe.name}: {counts[-1]} references are there, too few to study their number"
        )
    return counts


def common_references(recipes: Sequence[RecipeResults]) -> int:
    """How many references all recipes have, at most those of the paper."""
    return min(PAPER_REFERENCES, fewest_references(recipes))


def lowest_rate(recipe: RecipeResults) -> float:
    """The lowest FPR of the config at which ten non-members of a target are taken for members."""
    fprs = recipe.config.attack.fprs
    return min((f for f in fprs if f * recipe.samples >= 10), default=max(fprs))


def by_epoch(
    recipe: RecipeResults, references: int, needed: Sequence[float] = (1,)
) -> dict[float, AttackResult]:
    """LiRA after every epoch with scores; raises MissingModelsError if a needed epoch has none."""
    epochs = needs.scored_epochs(recipe.config)
    if lacking := [f"{epoch:g}" for epoch in needed if epoch not in epochs]:
        raise MissingModelsError(f"{recipe.name}: not scored after epoch {', '.join(lacking)}")
    return {e: read_attack(recipe, references=references, step=recipe.step(e)) for e in epochs}


RMIA_ONE_Z = (
    "All targets are compared with the same samples, whose choice the intervals hold fixed. Below an FPR of about "
    "1 / |Z| RMIA tells nothing, whatever the model: its highest score is shared by as many non-members."
)
"""A note where |Z| is cut."""


RMIA_SHARES = tuple(samples / 2**20 for samples in (10_000, 30_000, 100_000, 300_000))
"""The numbers of samples that RMIA compares with in the paper, as shares of its 2^20 samples."""


def rmia_comparisons(recipe: RecipeResults) -> list[int]:
    """|Z| of RMIA's studies: 10,000 to 300,000 of the paper's 2^20 samples, and as large shares of fewer."""
    return [round(recipe.config.population.samples * share) for share in RMIA_SHARES]


def rmia_unreached(recipe: RecipeResults, compared: int) -> float:
    """The highest FPR of the config too low for RMIA: at most a quarter of 1 / |Z|, the share of its highest score."""
    fprs = recipe.config.attack.fprs
    return max((f for f in fprs if 4 * compared * f <= 1), default=min(fprs))


def rmia_reached(recipe: RecipeResults, compared: int) -> float:
    """The FPR of the config nearest to 1 / |Z| by ratio: about the share of non-members with RMIA's highest score."""
    return min(recipe.config.attack.fprs, key=lambda f: abs(math.log(max(f, 1e-300) * compared)))


def rmia_compared(recipe: RecipeResults) -> int:
    """|Z| of RMIA where nothing else is said."""
    return min(recipe.config.attack.rmia_samples, recipe.config.population.samples)
