"""Attacks on the rows of a recipe, straight from its score store: what ROC figures and comparisons are made of.

T: targets, F: false positive rates of the config, G: points of a curve, N2: samples of the population.
"""

import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.io import Absent, Recipe, fewest_references
from lm_mia.attacks import runner, score_matrix, signals
from lm_mia.attacks.score_matrix import ScoreFile
from lm_mia.config import AttackName
from lm_mia.data.subsets import Row
from lm_mia.stats import roc

FEWEST_REFERENCES = 2
GROUPS = 8
"""Of references, of which one is left out at a time where their choice is to show."""


@dataclasses.dataclass(frozen=True)
class Attacked:
    """One attack on the targets of a recipe."""

    points: roc.OperatingPoints
    """At the rates of the config, then at those of the curve."""
    rates: int
    """F."""
    references: int
    """With which every target was attacked."""
    targets: tuple[Row, ...]

    @property
    def auc_T(self) -> np.ndarray:
        """Area under the curve of every target."""
        return self.points.auc_T

    @property
    def left_out(self) -> int:
        """Samples without a score, of the target that has most."""
        return int(self.points.left_out_T.max())

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(fpr_G, tpr_TxG)."""
        return self.points.fpr_F[self.rates :], self.points.tpr_TxF[:, self.rates :]

    def tpr_T(self, fpr: float) -> np.ndarray:
        """At one of the rates of the config; NaN if it is none of them."""
        at = np.flatnonzero(np.isclose(self.points.fpr_F[: self.rates], fpr, rtol=1e-9))
        return self.points.tpr_TxF[:, at[0]] if len(at) else np.full(len(self.auc_T), np.nan)


@functools.cache
def attacked(
    recipe: Recipe, name: AttackName = "lira_online", references: int = 0, **how: Any
) -> Attacked:
    """An attack on every target of a recipe; arguments and errors as of `scored`."""
    targets, found, rates = [], [], []
    for row, member_N2, score_N2 in scored(recipe, name, references, **how):
        rates = rates or runner.rates(recipe.config.attack, member_N2)
        targets.append(row)
        found.append(roc.tpr_at_fpr(score_N2, member_N2, rates))
    used, fprs = references or len(recipe.rows[0]), recipe.config.attack.fprs
    return Attacked(roc.concatenate(found), len(fprs), used, tuple(targets))


def scored(
    recipe: Recipe,
    name: AttackName = "lira_online",
    references: int = 0,
    *,
    step: int = 0,
    observed: Literal["loss", "target_logit"] = "loss",
    replicas: bool = False,
    without: int | None = None,
    **settings: Any,
) -> Iterator[tuple[Row, np.ndarray, np.ndarray]]:
    """(target, member_N2, score_N2) of every target of a recipe; a score is NaN where the references do not suffice.

    Args:
      recipe: with some rows.
      name: of the attack.
      references: so many, the first ones; 0: all that are there.
      step: a score point; 0: the end.
      observed: what the attack sees of a sample.
      replicas: whether the replicas are attacked, which share a subset, and not the targets of different subsets.
      without: one of `GROUPS` groups of the references that is left out, by whole pairs (2i, 2i + 1); None: none is.
      settings: other values of fields of `lm_mia.config.schema.Attack`.

    Raises:
      Absent: without a target or with fewer references than asked for.
    """
    c = dataclasses.replace(recipe.config.attack, **settings, attacks=(name,))
    some, of_own, alike = recipe.rows
    targets = alike if replicas else of_own
    kind = "replicas" if replicas else "targets"
    if not targets or len(some) < max(references, FEWEST_REFERENCES):
        raise Absent(f"{recipe.name}: {len(some)} references and {len(targets)} {kind} are there")
    some = some[: references or len(some)]
    if without is not None:
        some = [row for i, row in enumerate(some) if i // 2 % GROUPS != without]
        if len(some) < FEWEST_REFERENCES or references < 2 * GROUPS:
            raise Absent(f"{recipe.name}: too few references to leave some out")
    store = dataclasses.replace(
        recipe.store,
        statistics=() if observed == "loss" else (observed,),
        token_samples=(),
        step=step,
    )
    if lacking := store.missing([*some, *targets], step):
        raise Absent(f"{recipe.name}: {len(lacking)} models lack {observed} at step {step}")
    _, member_TxN2 = store.read(targets)
    source = signals.Source(
        store,
        targets,
        some,
        member_TxN2[0],
        recipe.population.column("zlib_bytes"),
        observed=observed,
    )
    of_rmia = runner.comparisons(source, c)
    fitted = signals.fit(source, [name], of_rmia, c)
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        ScoreFile(Path(tempfile.gettempdir()), len(targets), member_TxN2.shape[1]) as file,
    ):
        score_matrix.fill({name: file}, source, fitted, c, pool)
        for t, row in enumerate(targets):
            yield row, member_TxN2[t], file.target(t)


MOST_REFERENCES = 128
"""With which the paper attacks where it does not count references."""


def alike(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with the rows of the one that asks for fewest: as many references, and targets of the same seeds."""
    attacks = [recipe.config.attack for recipe in recipes]
    fewest = {
        "references": min(a.references for a in attacks),
        "targets": min(a.targets for a in attacks),
    }
    return [
        dataclasses.replace(
            recipe,
            config=dataclasses.replace(
                recipe.config, attack=dataclasses.replace(recipe.config.attack, **fewest)
            ),
        )
        for recipe in recipes
    ]


def powers(recipe: Recipe) -> list[int]:
    """Numbers of references of a study: powers of two, and all that are there.

    From 2 on where variances are pooled (a sample needs one IN and one OUT reference), else from 4.
    """
    most, least = len(recipe.rows[0]), 2 if recipe.config.attack.variance == "pooled" else 4
    counts = sorted({least * 2**i for i in range(12) if least * 2**i <= most} | {most})
    if len(counts) < 2:
        raise Absent(f"{recipe.name}: {most} references are there, too few to study their number")
    return counts


def references(recipes: Sequence[Recipe]) -> int:
    """How many references all recipes have, at most those of the paper."""
    return min(MOST_REFERENCES, fewest_references(recipes))


def lowest_rate(recipe: Recipe) -> float:
    """The lowest FPR of the config at which ten non-members of a target are taken for members."""
    fprs = recipe.config.attack.fprs
    return min((f for f in fprs if f * recipe.samples >= 10), default=max(fprs))


def by_epoch(recipe: Recipe, needed: Sequence[float] = (1,)) -> dict[float, Attacked]:
    """LiRA after every epoch at which the rows were scored, with the references of the paper; Absent without some."""
    epochs = sorted({*recipe.config.score.at_epochs, float(recipe.config.train.epochs)})
    if lacking := [f"{epoch:g}" for epoch in needed if epoch not in epochs]:
        raise Absent(f"{recipe.name}: not scored after epoch {', '.join(lacking)}")
    count = references([recipe])
    return {e: attacked(recipe, references=count, step=recipe.step(e)) for e in epochs}


RMIA_ONE_Z = (
    "All targets are compared with the same samples, whose choice the intervals hold fixed. Below an FPR of about "
    "1 / |Z| RMIA tells nothing, whatever the model: its highest score is shared by as many non-members."
)
"""A note where |Z| is cut."""


def rmia_comparisons(recipe: Recipe) -> list[int]:
    """|Z| of RMIA's studies: 10,000 to 300,000 of the paper's 2^20 samples, and as large shares of fewer."""
    shares = (10_000, 30_000, 100_000, 300_000)
    return [round(recipe.config.population.samples * z / 2**20) for z in shares]


def rmia_unreached(recipe: Recipe, compared: int) -> float:
    """The highest FPR of the config too low for RMIA: at most a quarter of 1 / |Z|, the share of its highest score."""
    fprs = recipe.config.attack.fprs
    return max((f for f in fprs if 4 * compared * f <= 1), default=min(fprs))


def rmia_reached(recipe: Recipe, compared: int) -> float:
    """The FPR of the config nearest to 1 / |Z| by ratio: about the share of non-members with RMIA's highest score."""
    return min(recipe.config.attack.fprs, key=lambda f: abs(math.log(max(f, 1e-300) * compared)))


def rmia_compared(recipe: Recipe) -> int:
    """|Z| of RMIA where nothing else is said."""
    return min(recipe.config.attack.rmia_samples, recipe.config.population.samples)
