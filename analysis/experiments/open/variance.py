"""How much of the variance of losses, scores and decisions is due to order, initialization, subset and references.

Replicas and crossed models are trained on one subset, from each of several initializations in each of several orders,
and all of them are attacked with each of several disjoint sets of references. These three factors are crossed, so that
`stats.crossed_components` estimates the variance that is due to each of them and to their interactions. References
differ in their subsets, too: what their variance exceeds that of the crossed models is due to the subset.

T: crossed models and references as targets, M: references, S: sets of references, I: initializations, J: orders, P:
parts of the models and samples, C: samples that are used, H: halves of the samples.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pandas as pd

from analysis import io, plotting
from analysis.claims.compare import Claim, Estimate, VarianceTerm, claim_equivalent, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import stats
from lm_mia.attacks import registry, resampling
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.inputs import AttackInputs, Block, FitInputs, open_inputs
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Facts, Write
from lm_mia.data import subsets
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = "variance_components.csv"
_SAMPLES = 2**15
"""The number of samples that are used, which bounds time and memory. The first samples are a random choice, since the
population is in random order."""
_FACTORS = ("references", "init", "order")


@dataclasses.dataclass(frozen=True)
class Scores:
    """The losses and membership scores of some samples under all targets, with each set of references."""

    loss_TxC: np.ndarray
    """The crossed models come first, initialization after initialization, then the references."""
    score_SxTxC: np.ndarray
    member_TxC: np.ndarray
    set_M: np.ndarray
    """The set of each reference; -1: it is in none."""
    shape: tuple[int, int]
    """(I, J)."""

    @property
    def num_crossed(self) -> int:
        """The number of crossed models, replicas included."""
        return self.shape[0] * self.shape[1]

    def select(self, used_C: np.ndarray) -> Scores:
        """Returns the scores of some of the samples."""
        return dataclasses.replace(
            self,
            loss_TxC=self.loss_TxC[:, used_C],
            score_SxTxC=self.score_SxTxC[:, :, used_C],
            member_TxC=self.member_TxC[:, used_C],
        )

    def thresholds(self, fpr: float) -> np.ndarray:
        """Returns threshold_SxT, calibrated on the non-members of each target among these samples."""
        return np.array(
            [
                [
                    stats.threshold_at_fpr(score_C[~member_C], fpr)
                    for score_C, member_C in zip(score_TxC, self.member_TxC, strict=True)
                ]
                for score_TxC in self.score_SxTxC
            ]
        )


@dataclasses.dataclass(frozen=True)
class _Levels:
    """The initializations, orders and sets of references that are used."""

    inits: Sequence[int]
    orders: Sequence[int]
    sets: Sequence[int]


def not_requested(*, replica_inits: int) -> str:
    """Returns why the settings do not ask for the study; empty if they do."""
    if replica_inits > 1:
        return ""
    return "attack.replica_inits must be above 1, and all of its models present; run lm-mia run with it"


def scored_models(view: StudyView) -> list[ModelSeeds]:
    """Returns the crossed models, replicas and references that are present."""
    return [*(m for m in view.present if m.role == "crossed"), *view.replicas, *view.references]


def compute(
    view: StudyView,
    write: Write,
    *,
    replica_inits: int,
    orders_per_init: int,
    resample_references: int,
    focus_fpr: float,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> Facts:
    """Computes variance_components.csv; the user is told if models are missing.

    Raises:
      Unavailable: models are missing, or too few samples have a score.
    """
    crossed = [
        subsets.crossed(i, b) if i else subsets.replica(b)
        for i in range(replica_inits)
        for b in range(orders_per_init)
    ]
    missing = {*crossed} - {*view.present}
    references = view.references
    units, size = resampling.reference_units(references), resample_references // 2 * 2
    sets = sum(map(len, units)) // size
    if missing or sets < 2:
        _refuse(
            view,
            f"attack.replica_inits={replica_inits}: {len(missing)} of {len(crossed)} models with the target's subset "
            f"are missing, and there are {sets} sets of references, of which at least 2 are needed; {TABLE} is not "
            "written; run `lm-mia run` to make the missing models",
        )
    index_SxR = resampling.disjoint_sets(units, size)
    inputs = open_inputs(view.store, view.attacked, crossed, references, ())
    lira = {"variance": variance, "finite_population": finite_population}
    shape = replica_inits, orders_per_init
    scores = _score(inputs, shape, index_SxR, lira, view.work.pool)
    group_C = stats.sample_groups(view.attacked.document_N[: scores.loss_TxC.shape[1]])
    has_score_C = np.logical_not(np.isnan(scores.score_SxTxC).any(axis=(0, 1)))
    if not all(
        (scores.member_TxC[:, has_score_C] == is_member).sum(axis=1).min() >= 8
        for is_member in (False, True)
    ):
        _refuse(
            view,
            f"attack.resample_references={resample_references}: too few samples have a score with every set of "
            f"references; {TABLE} is not written; use larger sets or attack.variance=pooled",
        )
    write(TABLE, components_table(scores, has_score_C, group_C, focus_fpr, view.work.pool))
    facts = {"sets": sets, "references_per_set": index_SxR.shape[1], "fpr": focus_fpr}
    return facts | {"references": len(references), "samples": int(has_score_C.sum())}


def _refuse(view: StudyView, reason: str) -> NoReturn:
    view.work.say(reason)
    raise Unavailable(reason)


@dataclasses.dataclass(frozen=True)
class _OneBlock:
    """The samples of one block, as a source of blocks."""

    block: Block

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.block.at.stop

    def blocks(self) -> Iterator[Block]:
        """Yields the block."""
        yield self.block


def _score(
    inputs: AttackInputs,
    shape: tuple[int, int],
    index_SxR: np.ndarray,
    lira: Mapping[str, Any],
    pool: ThreadPoolExecutor,
) -> Scores:
    """Attacks the targets of the inputs, and their references as targets, with each set of references."""
    read = next(inputs.blocks())
    used = slice(0, min(read.at.stop, _SAMPLES))
    loss_TxC = np.concatenate([read.loss_TxC, read.reference_loss_RxC])[:, used]
    block = dataclasses.replace(
        read,
        at=used,
        loss_TxC=loss_TxC,
        reference_loss_RxC=read.reference_loss_RxC[:, used],
        reference_member_RxC=read.reference_member_RxC[:, used],
        zlib_bytes_C=read.zlib_bytes_C[used],
        covariate_CxK=read.covariate_CxK[used],
    )

    def score(index_R: np.ndarray) -> np.ndarray:
        inputs = FitInputs(_OneBlock(block), index_R)
        fitted = registry.fit_attack("lira_online", inputs, lira)
        return fitted(block.with_references(index_R))

    set_M = np.full(len(inputs.references), -1)
    set_M[index_SxR] = np.arange(len(index_SxR))[:, None]
    return Scores(
        loss_TxC.astype(np.float64),
        np.array([*map_in_order(pool, score, index_SxR)]),
        np.concatenate([inputs.target_member_TxN2[:, used], block.reference_member_RxC]),
        set_M,
        shape,
    )


def components_table(
    scores: Scores,
    has_score_C: np.ndarray,
    group_C: np.ndarray,
    fpr: float,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns variance_components.csv: the components of all, without each level of a factor, and on each half.

    Args:
      scores: losses and membership scores of all targets.
      has_score_C: booleans, which samples have a score with every set of references.
      group_C: the result of `stats.sample_groups`.
      fpr: the false positive rate of decisions.
      pool: threads that compute components of parts of the models or samples.
    """
    levels = [range(scores.shape[0]), range(scores.shape[1]), range(len(scores.score_SxTxC))]
    everything = _Levels(*levels)
    whole = scores.select(has_score_C)
    threshold_SxT = whole.thresholds(fpr)
    parts = [("all", 0, everything)]
    for field, all_levels in zip(("inits", "orders", "sets"), levels, strict=True):
        # With two levels, a single one would remain, which shows no variance.
        for left_out in all_levels if len(all_levels) > 2 else ():
            kept = [level for level in all_levels if level != left_out]
            parts.append((field, left_out, dataclasses.replace(everything, **{field: kept})))

    def of_levels(part: tuple[str, int, _Levels]) -> list[dict[str, Any]]:
        varied, index, kept = part
        rows = _components(whole, threshold_SxT, kept)
        return [{**row, "varied": varied, "part": index} for row in rows]

    def of_half(half: int) -> list[dict[str, Any]]:
        on_half = scores.select(has_score_C & stats.HALVES_HxG[half][group_C])
        rows = _components(on_half, on_half.thresholds(fpr), everything)
        return [{**row, "varied": "samples", "part": half} for row in rows]

    halves = range(len(stats.HALVES_HxG))
    rows = [*map_in_order(pool, of_levels, parts), *map_in_order(pool, of_half, halves)]
    return pd.DataFrame([*itertools.chain.from_iterable(rows)])


def _components(scores: Scores, threshold_SxT: np.ndarray, levels: _Levels) -> list[dict[str, Any]]:
    """Returns a row (quantity, class, component, variance) for each component of each quantity, for both classes."""
    score_SxTxC, threshold_SxTx1 = scores.score_SxTxC, threshold_SxT[..., None]
    # If non-members are too few or tied, no score of theirs is a threshold, and nothing is known about decisions.
    has_thresholds = bool(np.isfinite(threshold_SxT).all())
    if not has_thresholds:
        threshold_SxTx1 = np.zeros_like(threshold_SxTx1)
    margin_SxTxC = score_SxTxC - threshold_SxTx1
    quantities = {
        "loss": scores.loss_TxC[None],
        "score": score_SxTxC,
        "threshold": np.broadcast_to(threshold_SxTx1, score_SxTxC.shape),
        "margin": margin_SxTxC,
        "decision": (margin_SxTxC >= 0).astype(np.float64),
    }
    rows = []
    member_C = scores.member_TxC[0]
    for quantity, value_SxTxC in quantities.items():
        components = _crossed(value_SxTxC, scores, levels)
        for is_member, name in ((True, "members"), (False, "nonmembers")):
            class_C = member_C == is_member
            mean = {key: float(value_C[class_C].mean()) for key, value_C in components.items()}
            of_targets = sum(v for key, v in mean.items() if key != "references")
            other_subsets_C = _between_references(value_SxTxC, scores, levels, is_member)[class_C]
            mean["subset"] = float(np.nanmean(other_subsets_C)) - of_targets
            if quantity in ("threshold", "margin", "decision") and not has_thresholds:
                mean = dict.fromkeys(mean, np.nan)
            rows += [
                {"quantity": quantity, "class": name, "component": key, "variance": variance}
                for key, variance in mean.items()
            ]
    return rows


def _crossed(value_SxTxC: np.ndarray, scores: Scores, levels: _Levels) -> Mapping[str, np.ndarray]:
    """Returns {component: variance_C} of the crossed models; losses, which need no references, have fewer of them."""
    num_sets = len(value_SxTxC)
    value_SxIxJxC = value_SxTxC[:, : scores.num_crossed].reshape(num_sets, *scores.shape, -1)
    is_crossed_with_sets = num_sets > 1
    sets = levels.sets if is_crossed_with_sets else [0]
    chosen_SxIxJxC = value_SxIxJxC[np.ix_(sets, levels.inits, levels.orders)]
    if is_crossed_with_sets:
        components, names = stats.crossed_components(chosen_SxIxJxC, 3), _FACTORS
    else:
        components, names = stats.crossed_components(chosen_SxIxJxC[0], 2), _FACTORS[1:]
    return {"_".join(names[axis] for axis in key): v_C for key, v_C in components.items()}


def _between_references(
    value_SxTxC: np.ndarray, scores: Scores, levels: _Levels, is_member: bool
) -> np.ndarray:
    """Returns variance_C over the references of one class of each sample, the mean over the sets that attack them.

    A reference is attacked with the sets to which it does not belong. References of sets that are not used are not used
    as targets either. NaN for samples with fewer than two references of the class.
    """
    member_MxC = scores.member_TxC[scores.num_crossed :]
    is_used_M = (scores.set_M < 0) | np.isin(scores.set_M, levels.sets)
    total_C, count_C = np.zeros(member_MxC.shape[1]), np.zeros(member_MxC.shape[1])
    for s in levels.sets if len(value_SxTxC) > 1 else [-2]:
        value_MxC = value_SxTxC[max(s, 0), scores.num_crossed :]
        is_target_M = is_used_M & (scores.set_M != s)
        in_class_MxC = (member_MxC == is_member) & is_target_M[:, None]
        n_C = in_class_MxC.sum(axis=0)
        mean_C = np.where(in_class_MxC, value_MxC, 0).sum(axis=0) / np.maximum(n_C, 1)
        squares_C = (np.where(in_class_MxC, value_MxC - mean_C, 0) ** 2).sum(axis=0)
        enough_C = n_C >= 2
        total_C += np.where(enough_C, squares_C / np.maximum(n_C - 1, 1), 0)
        count_C += enough_C
    return np.where(count_C > 0, total_C / np.maximum(count_C, 1), np.nan)


STUDY = Study(
    "variance_components",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written if `attack.replica_inits` is above 1 and all models with the target's subset are present. The "
                "crossed models, together with the first `attack.orders_per_init` replicas, have every combination of "
                "some initializations and batch orders, and are attacked with online LiRA and each of several disjoint "
                "sets of `attack.resample_references` references. Initialization, order and set of references are "
                "therefore crossed factors, and each row is the variance that is due to one of them or to an "
                "interaction (`lm_mia.stats.crossed_components`), the mean over the samples of a class. The numbers "
                "are of the first 32,768 samples, without those that have no score with one of the sets. Estimates are "
                "unbiased and may be negative."
            ),
            {
                "quantity": Column(
                    "none",
                    (
                        "of which the variance is: `loss` (nats per token), `score`, `threshold` at "
                        '`attack.focus_fpr`, `margin` (score minus threshold; nats) or `decision` (1 for "member", 0 '
                        "otherwise). StrongMIA Appendix E.2.8 splits the margin in this way"
                    ),
                ),
                **common("class"),
                "component": Column(
                    "none",
                    (
                        "`order`, `init` (initialization), `references` (set of references), interactions such as "
                        "`init_order`, or `subset`: by how much the variance over references as targets that are in "
                        "the same class for a sample exceeds that over the crossed models, both with the same set of "
                        "references; it includes interactions of the training subset"
                    ),
                ),
                "variance": Column("none", "the variance, in the squared unit of the quantity"),
                "varied": Column(
                    "none",
                    (
                        "`all`: all models and samples; `inits`, `orders`, `sets`: without one initialization, order, "
                        "or set of references; `samples`: on half of the samples"
                    ),
                ),
                "part": Column(
                    "none",
                    "which one is left out, or which half is used, as `half` of `target_jackknife.parquet`",
                ),
            },
            key=("varied", "part", "quantity", "class", "component"),
            notes=(
                "Two decisions of which some factors are drawn anew differ with a probability, the flip rate, that "
                "is twice the sum of the components that contain one of these factors."
            ),
        ),
    ),
    not_requested=not_requested,
    models=scored_models,
    facts={
        "sets": Column("count", "number of sets of references"),
        "references_per_set": Column("count", "references of each set"),
        "references": Column(
            "count",
            "number of references; those in no set are targets only",
        ),
        "fpr": Column("fraction", "FPR of the decisions"),
        "samples": Column("count", "samples that are used"),
    },
)


RECIPE = "crossed-140M"
FACTS = "variance_components.json"
STATEMENTS = (
    "A member's loss depends more on the batch order than on the initialization.",
    "The decision about a member depends more on order and initialization than on the rest of the training subset.",
    "With references drawn anew, decisions about members flip as often as with a target in another order (within a "
    "factor of 2).",
    "With references drawn anew, a member's margin varies because of its score more than because of the threshold.",
)
_FACTOR = 2.0
_CLASSES = {
    "members": ("Members", plotting.MEMBER, "o"),
    "nonmembers": ("Non-members", plotting.NONMEMBER, "s"),
}
_GROUPS: dict[str, tuple[str, ...]] = {
    "Training subset": ("subset",),
    "Order": ("order",),
    "Initialization": ("init",),
    "Order × initialization": ("init_order",),
    "References": ("references",),
    "References × target": ("references_init", "references_order", "references_init_order"),
}
"""Label of a group of components -> its components. The subset's includes its interactions."""
_REDRAWN: dict[str, tuple[str, ...]] = {
    "Order": ("order",),
    "Initialization": ("init",),
    "Order and initialization": ("order", "init"),
    "References": ("references",),
}
"""Label of what is drawn anew -> its factors."""
_PANELS = {"loss": "(a) Loss", "score": "(b) LiRA score", "decision": "(c) Decision"}


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of variance of a recipe, for all models and samples and for parts of them."""

    value_P: Mapping[tuple[str, str, str], np.ndarray]
    """(quantity, class, component) -> its variance in every part."""
    index_P: pd.MultiIndex
    """(what is varied, which part) of each part."""
    facts: Record

    @classmethod
    def read(cls, recipe: RecipeResults) -> Components:
        """Reads the table of a recipe; raises Unavailable without it."""
        if not recipe.view.has(FACTS):
            raise Unavailable(
                f"{recipe.name}: attack.replica_inits must be above 1, and all its models present; run lm-mia run"
            )
        facts = recipe.view.facts("variance_components")
        rows = io.read_frame(recipe, TABLE)
        return cls.from_rows(rows, facts)

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, facts: Record) -> Components:
        """Returns the components of the rows of variance_components.csv and the facts of variance_components.json."""
        table = rows.pivot_table(
            index=["varied", "part"], columns=["quantity", "class", "component"], values="variance"
        )
        columns: list[Any] = [*table.columns]
        value_P = {key: table[key].to_numpy(float) for key in columns}
        assert isinstance(table.index, pd.MultiIndex)
        return cls(value_P, table.index, facts)

    def sum_of(self, quantity: str, of_class: str, chosen: Callable[[str], bool]) -> np.ndarray:
        """Returns sum_P of the components whose names are chosen."""
        parts = [
            value_P
            for (q, c, component), value_P in self.value_P.items()
            if (q, c) == (quantity, of_class) and chosen(component)
        ]
        return np.sum(parts, axis=0) if parts else np.zeros(len(self.index_P))

    def share(self, quantity: str, of_class: str, components: tuple[str, ...]) -> np.ndarray:
        """Returns share_P of the variance that is due to some components."""
        part_P = self.sum_of(quantity, of_class, lambda name: name in components)
        return part_P / self.sum_of(quantity, of_class, lambda name: True)

    def redrawn(self, quantity: str, of_class: str, factors: tuple[str, ...]) -> np.ndarray:
        """Returns variance_P of a quantity if some factors are drawn anew, and the others are as they are."""

        def is_redrawn(name: str) -> bool:
            return name != "subset" and not {*name.split("_")}.isdisjoint(factors)

        return self.sum_of(quantity, of_class, is_redrawn)

    def flip_rate(self, of_class: str, factors: tuple[str, ...]) -> np.ndarray:
        """Returns flip_P, the probability that two decisions differ if some factors are drawn anew."""
        return 2 * self.redrawn("decision", of_class, factors)

    def estimate(self, value_P: np.ndarray) -> Estimate:
        """Returns a number with an interval over initializations, orders, references and samples.

        Its variance is the sum of the jackknife variances over each of them, which counts interactions more than once,
        so that the interval is rather too wide (benchmarks/variance_coverage.py). The training subset of the target is
        held fixed.
        """
        by_part: Any = pd.Series(value_P, index=self.index_P)
        whole = float(by_part["all", 0])
        terms, fixed = [], ["the training subset"]
        names = {"inits": "the initializations", "orders": "the orders", "sets": "the references"}
        for varied, name in names.items():
            if varied in by_part.index:
                values = np.append(whole, by_part[varied].sort_index())
                terms.append(VarianceTerm(*stats.jackknife_variance(values[:, None, None])))
            else:
                fixed.append(name)
        halves = np.append(whole, by_part["samples"].sort_index())
        terms.append(VarianceTerm(*stats.jackknife_variance(halves[None, None, :])))
        settings = self.facts["settings"]
        over = (
            f"{settings['replica_inits']} initializations, {settings['orders_per_init']} orders, "
            f"{self.facts['sets']} sets of references and the samples"
        )
        if math.isnan(whole) or any(math.isnan(term.variance) for term in terms):
            return Estimate(whole, math.nan, math.nan, over, tuple(fixed))
        return Estimate.from_variance(whole, terms, over, tuple(fixed))


def draw(recipes: SweepResults) -> Drawing:
    """Draws shares of the variance of losses, scores and decisions, and flip rates by what is drawn anew."""
    components = Components.read(recipes[RECIPE])
    figure = plotting.new_figure(11.4, 8)
    grid = figure.subplots(2, 2)
    frames = []
    for axes, (quantity, title) in zip(grid.flat, _PANELS.items(), strict=False):
        groups = {
            label: names
            for label, names in _GROUPS.items()
            if quantity != "loss" or not label.startswith("References")
        }
        rows = _rows(components, groups, functools.partial(components.share, quantity))
        _draw_rows(axes, rows)
        axes.set(title=title, xlabel="Share of the variance")
        frames.append(rows.assign(panel=quantity))
    flips = _rows(components, _REDRAWN, components.flip_rate)
    fpr = components.facts["fpr"]
    _draw_rows(grid[1, 1], flips)
    grid[1, 1].set(
        title="(d) Decisions, by what is drawn anew",
        xlabel=f"Flip rate at an FPR of {percent(fpr)}",
    )
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    frames.append(flips.assign(panel="flip_rate"))
    claims, settings = claims_about(components), components.facts["settings"]
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            f"A target was trained on one subset from {settings['replica_inits']} initializations in "
            f"{settings['orders_per_init']} batch orders each, and attacked with "
            f"{components.facts['sets']} disjoint sets of {components.facts['references_per_set']} references. The "
            "part of the training subset is by how much other models vary more, on the samples for which they are in "
            "the same class. Bars are 95% intervals; estimates are unbiased and may be negative.",
            _margin_note(components),
            f"“Within a factor of {_FACTOR:g}” is our choice.",
            unsupported_note(claims),
        ),
    )


def _rows(
    components: Components,
    names_by_label: Mapping[str, tuple[str, ...]],
    value_of: Callable[[str, tuple[str, ...]], np.ndarray],
) -> pd.DataFrame:
    """Returns rows (label, class, value, low, high) of numbers, which are functions of (class, names)."""
    rows = []
    for label, names in names_by_label.items():
        for of_class in _CLASSES:
            estimate = components.estimate(value_of(of_class, names))
            ends = {"low": estimate.low, "high": estimate.high}
            rows.append({"label": label, "class": of_class, "value": estimate.value} | ends)
    return pd.DataFrame(rows)


def _draw_rows(axes: Axes, rows: pd.DataFrame) -> None:
    labels = [*dict.fromkeys(rows["label"])]
    for offset, (of_class, (name, color, marker)) in zip(
        (-0.13, 0.13), _CLASSES.items(), strict=True
    ):
        shown = rows[rows["class"] == of_class]
        margin = (shown["high"] - shown["value"]).fillna(0)
        axes.errorbar(
            shown["value"],
            np.arange(len(labels)) + offset,
            xerr=margin,
            fmt=marker,
            color=color,
            capsize=3,
            label=name,
        )
    axes.axvline(0, color=plotting.GREY, linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: percent(share))


def _margin_note(components: Components) -> str:
    """Returns a note on the split of a member's margin (Appendix E.2.8)."""
    parts = []
    for label, factors in (("the references", ("references",)), ("the order", ("order",))):
        score, threshold, margin = (
            float(components.redrawn(quantity, "members", factors)[_whole(components)])
            for quantity in ("score", "threshold", "margin")
        )
        covariance = (score + threshold - margin) / 2
        parts.append(
            f"if {label} are drawn anew, {margin:.2f} = {score:.2f} (score) + {threshold:.2f} (threshold) − 2 × "
            f"{covariance:.2f} (covariance)"
            if label == "the references"
            else f"if {label} is, {margin:.2f} = {score:.2f} + {threshold:.2f} − 2 × {covariance:.2f}"
        )
    return f"Variance of a member's margin, score minus threshold (Appendix E.2.8): {'; '.join(parts)}."


def _whole(components: Components) -> int:
    position = components.index_P.get_loc(("all", 0))
    assert isinstance(position, int)
    return position


def claims_about(components: Components) -> tuple[Claim, ...]:
    """Returns the claims of the figure, in the order of `STATEMENTS`."""

    def share(quantity: str, *names: str) -> np.ndarray:
        return components.share(quantity, "members", names)

    def log_ratio(numerator_P: np.ndarray, denominator_P: np.ndarray) -> np.ndarray:
        """Returns the base-2 logarithm of a ratio; NaN where a variance is not positive."""
        ratio_P = np.where(
            (numerator_P > 0) & (denominator_P > 0), numerator_P / denominator_P, np.nan
        )
        return np.log2(ratio_P)

    flips = [components.flip_rate("members", (name,)) for name in ("references", "order")]
    score, threshold = (
        components.redrawn(name, "members", ("references",)) for name in ("score", "threshold")
    )
    of_training = ("order", "init", "init_order")
    of_training_and_references = (*of_training, *_GROUPS["References × target"])
    return (
        claim_greater(
            STATEMENTS[0],
            "Share of the variance of a member's loss, order minus initialization",
            components.estimate(share("loss", "order") - share("loss", "init")),
        ),
        claim_greater(
            STATEMENTS[1],
            "Share of the variance of the decision about a member, order and initialization (with their interactions) "
            "minus subset",
            components.estimate(
                share("decision", *of_training_and_references) - share("decision", "subset")
            ),
        ),
        claim_equivalent(
            STATEMENTS[2],
            "Log2 of the flip rate of members with other references over that with another order",
            components.estimate(log_ratio(*flips)),
            math.log2(_FACTOR),
        ),
        claim_greater(
            STATEMENTS[3],
            "Log2 of the variance of a member's score over that of the threshold, with other references",
            components.estimate(log_ratio(score, threshold)),
        ),
    )


EXPERIMENTS = {
    "open_fig04_variance": Experiment(
        title="Open question 4: Order, initialization, subset or references",
        about=(
            "Replicas differ only in the seed of the batch order (Section 5). To vary the references instead is said "
            "to be too expensive, and expected to show similar instability, since both the score and the threshold "
            "then vary (Appendix E.2.8). The paper does not vary the initialization."
        ),
        statements=STATEMENTS,
        draw=draw,
    )
}
