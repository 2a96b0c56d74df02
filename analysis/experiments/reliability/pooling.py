"""True positive rates averaged over models and samples, by strategy for the threshold (Reliability, Figures 1 and A1).

Every reference is attacked with all the others. The threshold is one quantile of the scores of all non-members, a
quantile after standardizing the losses of each sample, an analytical quantile, or a threshold of each sample or model
(`STRATEGIES`). The rates are also computed with fewer models, and with moments of the losses under all models but the
target ("oracle" in the paper).

    pooling.csv                thresholds, TPRs with intervals and realized FPRs of every strategy
    pooling_jackknife.parquet  the TPRs without groups of models and on halves of the samples, for intervals
    vulnerability.parquet      one row per sample: distance of its IN and OUT losses, observed and Gaussian TPRs
    sample_fpr.csv             how often samples are called members by targets that were not trained on them

Models that are attacked with each other cannot show how the false positive rate differs between samples: their OUT
losses are standardized by each other, so that the rates of samples vary less than binomial proportions. Targets that
are not among the references do not have this effect. Reliability, Sections 3 and 4.2 and Figure A2.

M: models, B: replicas, T: targets, N: samples, N2: samples of the population (2N), C: samples of a block, F: false
positive rates, K: numbers of OUT references, J: bins of a histogram, P: parts, A1: all models, and then without each
group of models, H1: all samples, and then each half, S: strategies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy  # its parts are loaded when they are first used

from analysis import io, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife, independent_difference
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import config, stats
from lm_mia.attacks import registry
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import model_design, reference_design
from lm_mia.attacks.inputs import BLOCK_SAMPLES, AttackInputs, Block, FitInputs, open_inputs
from lm_mia.attacks.registry import FittedAttack
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Facts, Write
from lm_mia.data import subsets
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE, JACKKNIFE = "pooling.csv", "pooling_jackknife.parquet"
VULNERABILITY, SAMPLE_FPR = "vulnerability.parquet", "sample_fpr.csv"
STRATEGIES = (
    "naive",
    "standardized",
    "standardized_normal",
    "standardized_student_t",
    "standardized_predictive",
    "per_sample",
    "per_sample_normal",
    "per_model",
)
"""docs/tables.md defines them. The last one, per_model, has no interval."""
_MIN_TARGETS = 2
_STUDY_SAMPLES = 2**14
"""The number of samples with which fewer models and intervals are computed, which bounds time and memory. The first
samples are a random choice, since the population is in random order."""
_STEP_SAMPLES = 2**11  # evaluated at a time; their thresholds have an axis for FPRs


@dataclasses.dataclass(frozen=True)
class LiraSettings:
    """The settings `attack.*` that online LiRA reads."""

    variance: Literal["per_sample", "pooled"] = "per_sample"
    finite_population: bool = False


def not_requested(*, leave_one_out: bool) -> str:
    """Returns why the settings do not ask for the study; empty if they do."""
    return "" if leave_one_out else "attack.leave_one_out must be set; run lm-mia attack with it"


def compute(
    view: StudyView,
    write: Write,
    *,
    fprs: tuple[float, ...],
    focus_fpr: float,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> Facts:
    """Computes the tables, and those of single samples, from attacks on every reference with all the others."""
    shown = [fpr for fpr in fprs if 0 < fpr < 1]
    if not shown:
        raise Unavailable("no rate of attack.fprs is between 0 and 1")
    inputs, references = None, view.references
    if references:
        inputs = open_inputs(view.store, view.attacked, references[:1], references, ())
    if inputs is None or len(inputs.references) < config.FEWEST_FOR_LEAVE_ONE_OUT:
        raise Unavailable(
            f"{len(inputs.references) if inputs else 0} references can be attacked with the others; at least "
            f"{config.FEWEST_FOR_LEAVE_ONE_OUT} are needed; run lm-mia run with a larger --config.attack.references"
        )
    work, lira = view.work, LiraSettings(variance, finite_population)

    def show(done: int) -> None:
        work.progress("thresholds", done, 3)

    show(0)
    design = reference_design(inputs.store, inputs.references)
    table, jackknife = _study(inputs, view.attacked.document_N, lira, design, shown, work.pool)
    show(1)
    with _all_scores(inputs, lira, design, work.folder, work.pool) as grid:
        on_all_samples = evaluate(grid, shown, work.pool)
        show(2)
        scores = grid.standardized_MxN, grid.count_out_MxN
        facts = _write_tables_of_samples(inputs, view, *scores, shown, focus_fpr, lira, write)
    # These models are evaluated on all samples, with the intervals on the first samples.
    columns = [name for name in on_all_samples if name not in ("fpr", "strategy")]
    for oracle in (False, True):
        is_replaced = (table["models"] == len(inputs.references)) & (table["oracle"] == oracle)
        table.loc[is_replaced, columns] = on_all_samples[columns].to_numpy()
    counts = ("in_cells", "out_cells", "samples", "left_out")
    margin = table.pop("margin")
    table = table.astype(dict.fromkeys(counts, np.int64))
    table["tpr_low"], table["tpr_high"] = (
        (table["tpr"] - margin).clip(0),
        (table["tpr"] + margin).clip(upper=1),
    )
    write(TABLE, table)
    write(JACKKNIFE, jackknife)
    show(3)
    return facts | {"models": len(inputs.references), "pairs": design.has_complements}


@dataclasses.dataclass(frozen=True)
class ScoreGrid:
    """The scores of every model as the target, in memory or in a file."""

    lira_MxN: np.ndarray
    """LiRA scores, with the variance of the config."""
    standardized_MxN: np.ndarray
    """As `stats.standardized_leave_one_out`."""
    count_out_MxN: np.ndarray
    """Number of OUT references of each standardized score."""
    member_MxN: np.ndarray

    def select(self, models: Any = slice(None), samples: Any = slice(None)) -> ScoreGrid:
        """Returns the grid with some models and samples only."""
        fields = dataclasses.fields(self)
        return ScoreGrid(**{f.name: getattr(self, f.name)[models][:, samples] for f in fields})


def compute_scores(
    loss_MxC: np.ndarray,
    member_MxC: np.ndarray,
    id_C: np.ndarray,
    lira: LiraSettings,
    design: stats.Design,
    scatter_Mx2x2: np.ndarray | None = None,
) -> ScoreGrid:
    """Returns the scores of every model as the target.

    Args:
      loss_MxC: losses in nats per token.
      member_MxC: booleans, whether each sample was in each model's training subset.
      id_C: ids of the samples.
      lira: settings of LiRA.
      design: how the training subsets of the models are related.
      scatter_Mx2x2: as in `stats.lira_leave_one_out`.
    """
    lira_MxC = stats.lira_leave_one_out(
        loss_MxC,
        member_MxC,
        variance=lira.variance,
        sampled_share=0.5 if lira.finite_population else 0.0,
        design=design,
        id_N=id_C,
        scatter_Mx2x2=scatter_Mx2x2,
    )
    standardized = stats.standardized_leave_one_out(loss_MxC, member_MxC, design=design, id_N=id_C)
    return ScoreGrid(lira_MxC, standardized.score_MxN, standardized.count_out_MxN, member_MxC)


@contextlib.contextmanager
def _all_scores(
    inputs: AttackInputs,
    lira: LiraSettings,
    design: stats.Design,
    folder: Path,
    pool: ThreadPoolExecutor,
) -> Iterator[ScoreGrid]:
    """Context manager that computes the scores of all samples and keeps them in files until it exits."""
    shape = len(inputs.references), inputs.num_samples
    scatter_Mx2x2 = None
    if lira.variance == "pooled":

        def scatter(part: Block) -> np.ndarray:
            return stats.leave_one_out_scatter(
                part.reference_loss_RxC,
                part.reference_member_RxC,
                design=design,
                id_N=inputs.ids(part.at),
            )

        parts = (part for block in inputs.blocks() for part in block.split())
        scatter_Mx2x2 = sum(map_in_order(pool, scatter, parts), np.zeros((shape[0], 2, 2)))
    with contextlib.ExitStack() as stack:
        score, standardized, count_out, member = (
            stack.enter_context(MembershipScoreFile(folder, *shape, np.dtype(dtype)))
            for dtype in (np.float64, np.float64, np.int16, np.bool_)
        )

        def write(part: Block) -> None:
            scores = compute_scores(
                part.reference_loss_RxC,
                part.reference_member_RxC,
                inputs.ids(part.at),
                lira,
                design,
                scatter_Mx2x2,
            )
            score.write(0, part.at, scores.lira_MxN)
            standardized.write(0, part.at, scores.standardized_MxN)
            count_out.write(0, part.at, scores.count_out_MxN)
            member.write(0, part.at, scores.member_MxN)

        for _ in map_in_order(pool, write, (p for b in inputs.blocks() for p in b.split())):
            pass
        yield ScoreGrid(*(file.as_array() for file in (score, standardized, count_out, member)))


def evaluate(
    grid: ScoreGrid, fprs: list[float], pool: ThreadPoolExecutor | None = None
) -> pd.DataFrame:
    """Returns the rates of every strategy, one row per FPR and strategy.

    Args:
      grid: the scores.
      fprs: false positive rates.
      pool: threads that compute parts of the samples, if there are many.

    Returns:
      The columns fpr, strategy, threshold (NaN if there are several), tpr, realized_fpr, in_cells and out_cells (the
      numbers of scores of members and non-members), samples, and left_out (the number of missing scores).
    """
    student_df = stats.fit_student_t(grid.standardized_MxN, grid.member_MxN)
    rates = _pooled_strategies(grid, fprs, student_df, pool)
    points = _model_points(grid, fprs, pool)
    per_model = {"threshold": np.nan, "tpr": _mean_over_models(points.tpr_TxF)}
    per_model |= {"realized_fpr": _mean_over_models(points.realized_fpr_TxF)}
    per_model |= {"in_cells": points.members_T.sum(), "out_cells": points.nonmembers_T.sum()}
    rates["per_model"] = per_model | {"left_out": points.left_out_T.sum()}
    samples = grid.member_MxN.shape[1]
    frames = [
        pd.DataFrame({"fpr": fprs, "strategy": name, **rates[name]}).assign(samples=samples)
        for name in STRATEGIES
    ]
    return pd.concat(frames, ignore_index=True)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums over the models and samples of a block, from which the rates of a strategy are computed."""

    called_in_F: np.ndarray
    called_out_F: np.ndarray
    in_cells: int
    out_cells: int
    left_out: int
    tpr_F: np.ndarray | float = 0.0
    """Sum of the TPRs of single samples, for strategies whose rates are means over samples."""
    fpr_F: np.ndarray | float = 0.0
    in_samples: int = 0
    """Number of samples that have a TPR."""
    out_samples: int = 0

    @classmethod
    def of_cells(cls, rates: stats.PooledRates) -> _Sums:
        """Returns the sums of one block for rates over all scores."""
        return cls(
            rates.called_in_F,
            rates.called_out_F,
            rates.in_cells,
            rates.out_cells,
            rates.left_out,
        )

    @classmethod
    def of_samples(cls, rates: stats.SampleRates) -> _Sums:
        """Returns the sums of one block, also for means of the rates of single samples."""
        return cls(
            rates.called_in_FxN.sum(axis=1),
            rates.called_out_FxN.sum(axis=1),
            int(rates.in_N.sum()),
            int(rates.out_N.sum()),
            int(rates.left_out),
            np.nansum(rates.tpr_FxN, axis=1),
            np.nansum(rates.fpr_FxN, axis=1),
            int((rates.in_N > 0).sum()),
            int((rates.out_N > 0).sum()),
        )

    def __add__(self, other: _Sums) -> _Sums:
        names = [field.name for field in dataclasses.fields(self)]
        return _Sums(*(getattr(self, name) + getattr(other, name) for name in names))

    def rates(self, threshold: Any, *, over_samples: bool) -> dict[str, Any]:
        """Returns the columns of a strategy: rates over all scores, or means of the rates of single samples."""
        if over_samples:
            tpr_F = self.tpr_F / (self.in_samples or math.nan)
            fpr_F = self.fpr_F / (self.out_samples or math.nan)
        else:
            tpr_F = self.called_in_F / (self.in_cells or math.nan)
            fpr_F = self.called_out_F / (self.out_cells or math.nan)
        if not self.out_cells:
            tpr_F = np.full_like(tpr_F, np.nan)  # at no known FPR
        return {
            "threshold": threshold,
            "tpr": tpr_F,
            "realized_fpr": fpr_F,
            "in_cells": self.in_cells,
            "out_cells": self.out_cells,
            "left_out": self.left_out,
        }


def _pooled_strategies(
    grid: ScoreGrid,
    fprs: list[float],
    student_df: float,
    pool: ThreadPoolExecutor | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns strategy -> columns of `evaluate`, for all strategies but per_model.

    Args:
      grid, fprs, pool: as for `evaluate`.
      student_df: degrees of freedom of Student's t.
    """
    num_samples = grid.member_MxN.shape[1]
    one_threshold = {
        "naive": stats.pooled_threshold(grid.lira_MxN, grid.member_MxN, fprs),
        "standardized": stats.pooled_threshold(grid.standardized_MxN, grid.member_MxN, fprs),
    }

    def sum_block(at: slice) -> dict[str, _Sums]:
        block = grid.select(samples=at)
        member_MxC = np.asarray(block.member_MxN)
        of_cells = {
            name: stats.pooled_rates(np.asarray(score_MxC), member_MxC, one_threshold[name])
            for name, score_MxC in (
                ("naive", block.lira_MxN),
                ("standardized", block.standardized_MxN),
            )
        }
        of_samples = _count_by_sample(block, fprs, student_df)
        sums = {name: _Sums.of_cells(rates) for name, rates in of_cells.items()}
        return sums | {name: _Sums.of_samples(rates) for name, rates in of_samples.items()}

    blocks = _sample_blocks(num_samples)
    results = map_in_order(pool, sum_block, blocks) if pool else map(sum_block, blocks)
    total = next(iter(results := iter(results)))
    for block_sums in results:
        total = {name: sums + block_sums[name] for name, sums in total.items()}
    one_threshold |= _normal_thresholds(fprs, student_df)
    rates = {
        name: sums.rates(one_threshold.get(name, np.nan), over_samples=name == "per_sample")
        for name, sums in total.items()
    }
    for name in ("naive", "standardized"):
        cells = rates[name]["out_cells"]
        has_tpr_F = [fpr == 0 or cells >= stats.nonmembers_needed(fpr) for fpr in fprs]
        rates[name]["tpr"] = np.where(has_tpr_F, rates[name]["tpr"], np.nan)
    normal = total["standardized_normal"]
    rates["per_sample_normal"] = normal.rates(
        one_threshold["standardized_normal"], over_samples=True
    )
    return rates


def _sample_blocks(samples: int) -> Iterator[slice]:
    """Yields the samples that are evaluated at a time; one block without samples if there are none."""
    for low in range(0, max(samples, 1), _STEP_SAMPLES):
        yield slice(low, min(low + _STEP_SAMPLES, samples))


def _normal_thresholds(fprs: list[float], student_df: float) -> dict[str, np.ndarray]:
    """Returns strategy -> threshold_F of standardized scores with a known distribution."""
    fpr_F = np.asarray(fprs)
    # Subtracted from 0, since the negative of the quantile of 1/2 would be -0.0.
    normal_F = 0 - scipy.special.ndtri(fpr_F)
    student_F = normal_F if np.isinf(student_df) else 0 - scipy.special.stdtrit(student_df, fpr_F)
    return {"standardized_normal": normal_F, "standardized_student_t": student_F}


def _count_by_sample(
    grid: ScoreGrid, fprs: list[float], student_df: float
) -> dict[str, stats.SampleRates]:
    """Returns strategy -> decisions on each sample, for strategies whose thresholds do not depend on other samples."""
    lira_MxN, standardized_MxN, member_MxN = (
        np.asarray(grid.lira_MxN),
        np.asarray(grid.standardized_MxN),
        np.asarray(grid.member_MxN),
    )
    count_out_MxN = np.asarray(grid.count_out_MxN)
    most_out = int(count_out_MxN.max(initial=0))
    predictive_FxK = stats.predictive_threshold(np.arange(most_out + 1), fprs)
    thresholds = _normal_thresholds(fprs, student_df)
    thresholds["standardized_predictive"] = predictive_FxK[:, count_out_MxN]
    rates = {
        name: stats.rates_by_sample(standardized_MxN, member_MxN, threshold)
        for name, threshold in thresholds.items()
    }
    threshold_FxN = stats.per_sample_threshold(lira_MxN, member_MxN, fprs, rule="linear")
    return rates | {"per_sample": stats.rates_by_sample(lira_MxN, member_MxN, threshold_FxN)}


def _model_points(
    grid: ScoreGrid, fprs: list[float], pool: ThreadPoolExecutor | None
) -> stats.OperatingPoints:
    """Returns the operating points of each model with its own threshold over all samples."""

    def evaluate_model(m: int) -> stats.OperatingPoints:
        return stats.tpr_at_fpr(np.array(grid.lira_MxN[m]), np.array(grid.member_MxN[m]), fprs)

    models = range(len(grid.member_MxN))
    points = map_in_order(pool, evaluate_model, models) if pool else map(evaluate_model, models)
    return stats.concatenate_operating_points(list(points))


def _study(
    inputs: AttackInputs,
    document_N2: np.ndarray,
    lira: LiraSettings,
    design: stats.Design,
    fprs: list[float],
    pool: ThreadPoolExecutor,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Evaluates the strategies on the first samples, with 8, 16, 32, ... models, and on parts of models and samples.

    Returns:
      ``(table, jackknife)``: pooling.csv, with a column "margin" in place of the ends of the intervals, and
      pooling_jackknife.parquet.
    """
    block = next(inputs.blocks())
    used = slice(0, min(block.at.stop, _STUDY_SAMPLES))
    loss_MxN, member_MxN = block.reference_loss_RxC[:, used], block.reference_member_RxC[:, used]
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(document_N2[used])]
    num_models = len(loss_MxN)
    counts = [n for n in (2**i for i in range(3, 32)) if n < num_models] + [num_models]
    group_M = stats.model_groups(num_models, design.group_M)
    id_N = inputs.ids(used)

    def scores_of(used_M: np.ndarray) -> ScoreGrid:
        """Returns the scores of some models against each other."""
        if design.columns:  # partners are drawn among all models, so others are treated as missing
            loss_of_used_MxN = np.where(used_M[:, None], loss_MxN, np.nan)
            return compute_scores(loss_of_used_MxN, member_MxN, id_N, lira, design).select(used_M)
        arrays = loss_MxN[used_M], member_MxN[used_M], id_N
        return compute_scores(*arrays, lira, design.select(used_M))

    def evaluate_part(task: tuple[int | None, int]) -> list[tuple[pd.DataFrame | None, np.ndarray]]:
        """Returns the rates if all models are in the part, and the TPRs of the part on all samples and each half.

        Args:
          task: the number of models, or None: each number, with the moments of all models; and the part, of which 0 has
            all models.
        """
        count, part = task
        used_M = group_M != part - 1
        if count:
            used_M[count:] = False
        grid = scores_of(used_M)
        parts = [grid.select(slice(int(used_M[:n].sum()))) for n in ([count] if count else counts)]
        return [
            (None if part else evaluate(grid, fprs), _tprs_of_halves(grid, half_HxN, fprs))
            for grid in parts
        ]

    def parts_of(models: int) -> range:
        """Returns the numbers of the parts: all models, and without each group that some of the models are in."""
        return range(2 + int(group_M[:models].max()))

    tasks: list[tuple[int | None, int]] = [(None, part) for part in parts_of(num_models)]
    tasks += [(n, part) for n in reversed(counts) for part in parts_of(n)]
    results = dict(zip(tasks, map_in_order(pool, evaluate_part, tasks), strict=True))
    table, jackknife = [], []
    for oracle, (i, count) in itertools.product((False, True), enumerate(counts)):
        parts = [
            result[i if oracle else 0]
            for (models, _), result in results.items()
            if models == (None if oracle else count)
        ]
        rates, tpr_A1xH1xSxF = parts[0][0], np.array([tpr for _, tpr in parts])
        assert rates is not None
        index = {"oracle": oracle, "models": count}
        jackknife.append(_jackknife_rows(tpr_A1xH1xSxF, fprs).assign(**index))
        margins = [
            stats.jackknife_margin(tpr_A1xH1xSxF[:, None, :, s, f])
            for s in range(len(STRATEGIES) - 1)
            for f in range(len(fprs))
        ]
        table.append(rates.assign(**index, margin=margins + [np.nan] * len(fprs)))
    first = ["fpr", "strategy", "oracle", "models"]
    rows, parts = pd.concat(table, ignore_index=True), pd.concat(jackknife, ignore_index=True)
    others = [column for column in rows if column not in first]
    return rows[[*first, *others]], parts[[*first, "part", "half", "tpr"]]


def _tprs_of_halves(grid: ScoreGrid, half_HxN: np.ndarray, fprs: list[float]) -> np.ndarray:
    """Returns tpr_H1xSxF of the strategies but per_model.

    Thresholds are those of the half, except that the degrees of freedom of Student's t are those of all samples.
    """
    student_df = stats.fit_student_t(grid.standardized_MxN, grid.member_MxN)
    samples = grid.member_MxN.shape[1]
    blocks = [
        _count_by_sample(grid.select(samples=at), fprs, student_df)
        for at in _sample_blocks(samples)
    ]
    counted = {name: _concatenate([block[name] for block in blocks]) for name in blocks[0]}
    used_H1xN = np.concatenate([np.ones((1, samples), np.bool_), half_HxN])
    tpr = {
        name: stats.pooled_tprs_of_parts(score_MxN, grid.member_MxN, used_H1xN, fprs)
        for name, score_MxN in (("naive", grid.lira_MxN), ("standardized", grid.standardized_MxN))
    }
    for name in ("standardized_normal", "standardized_student_t", "standardized_predictive"):
        tpr[name] = _tprs_over_cells(counted[name], used_H1xN)
    tpr["per_sample"] = _tprs_over_samples(counted["per_sample"], used_H1xN)
    tpr["per_sample_normal"] = _tprs_over_samples(counted["standardized_normal"], used_H1xN)
    return np.stack([tpr[name] for name in STRATEGIES[:-1]], axis=1)


def _tprs_over_cells(rates: stats.SampleRates, used_PxN: np.ndarray) -> np.ndarray:
    """Returns tpr_PxF over all scores of parts of the samples."""
    rows = []
    for at_S in map(np.flatnonzero, used_PxN):
        called_F = rates.called_in_FxN.take(at_S, axis=1).sum(axis=1)
        rows.append(called_F / (int(rates.in_N.take(at_S).sum()) or math.nan))
    return np.where(_has_out(rates, used_PxN), rows, np.nan)


def _tprs_over_samples(rates: stats.SampleRates, used_PxN: np.ndarray) -> np.ndarray:
    """Returns tpr_PxF, the means of the TPRs of the samples of some parts that have one."""
    has_tpr_N, tpr_FxN = rates.in_N > 0, np.nan_to_num(rates.tpr_FxN)
    rows = []
    for at_S in map(np.flatnonzero, used_PxN):
        # The last bits of sums depend on the blocks.
        blocks = [tpr_FxN.take(at_S[at], axis=1) for at in _sample_blocks(at_S.size)]
        total_F = sum(tpr_FxC.sum(axis=1) for tpr_FxC in blocks)
        rows.append(total_F / (int(has_tpr_N.take(at_S).sum()) or math.nan))
    return np.where(_has_out(rates, used_PxN), rows, np.nan)


def _has_out(rates: stats.SampleRates, used_PxN: np.ndarray) -> np.ndarray:
    """Returns whether each part has a score of a non-member, as a column; without one, no FPR is known."""
    return np.any(used_PxN & (rates.out_N > 0), axis=1, keepdims=True)


def _concatenate(blocks: Sequence[stats.SampleRates]) -> stats.SampleRates:
    """Returns the decisions on the samples of all blocks."""
    names = ("called_in_FxN", "called_out_FxN", "in_N", "out_N")
    arrays = (np.concatenate([getattr(b, name) for b in blocks], axis=-1) for name in names)
    return stats.SampleRates(*arrays, left_out=sum(block.left_out for block in blocks))


def _jackknife_rows(tpr_A1xH1xSxF: np.ndarray, fprs: list[float]) -> pd.DataFrame:
    """Returns rows of pooling_jackknife.parquet."""
    part, half, strategy, fpr = (index.ravel() for index in np.indices(tpr_A1xH1xSxF.shape))
    columns = {"fpr": np.array(fprs)[fpr], "strategy": np.array(STRATEGIES)[strategy]}
    columns |= {"part": part, "half": half, "tpr": tpr_A1xH1xSxF.ravel()}
    return pd.DataFrame(columns)


def _mean_over_models(rate_MxF: np.ndarray) -> np.ndarray:
    """Returns means over the models that have rates; a model whose losses are all missing has none."""
    count_F = np.count_nonzero(~np.isnan(rate_MxF), axis=0)
    return np.nansum(rate_MxF, axis=0) / np.where(count_F > 0, count_F, np.nan)


def _write_tables_of_samples(
    inputs: AttackInputs,
    view: StudyView,
    standardized_MxN: np.ndarray,
    count_out_MxN: np.ndarray,
    fprs: list[float],
    focus_fpr: float,
    lira: LiraSettings,
    write: Write,
) -> dict[str, float | int]:
    """Computes vulnerability.parquet and, if the recipe has at least 2 targets, sample_fpr.csv.

    Args:
      inputs: the models that are attacked with each other, as references.
      view: the recipe.
      standardized_MxN: standardized scores of the references.
      count_out_MxN: number of OUT references of each of these scores.
      fprs, focus_fpr: false positive rates of the two tables.
      lira: settings of LiRA.
      write: stores a table.

    Returns:
      Facts about the tables: "order_share", as in `stats.gaussian_tpr` (0 without replicas, which is a lower limit),
      "replicas" and "targets".
    """
    roles, replicas, work = view.roles, view.replicas, view.work
    order_share = _order_share(inputs, replicas) if len(replicas) > 1 else 0.0
    threshold_1xK = stats.predictive_threshold(np.arange(len(inputs.references) + 1), [focus_fpr])

    def compute(part: Block) -> pa.Table:
        at = part.at
        gaussians = stats.fit_gaussians(part.reference_loss_RxC, part.reference_member_RxC)
        sd_out_C = np.sqrt(np.where(gaussians.var_out_N > 0, gaussians.var_out_N, np.nan))
        rates = stats.rates_by_sample(
            np.asarray(standardized_MxN[:, at]),
            part.reference_member_RxC,
            threshold_1xK[:, count_out_MxN[:, at]],
        )
        gaussian_C, corrected_C = (
            stats.gaussian_tpr(gaussians, [focus_fpr], sampled_share=share, order_share=order)[0]
            for share, order in ((0.0, 0.0), (0.5, order_share))
        )
        return pa.table(
            {
                "id": inputs.ids(at),
                "gap": (gaussians.mean_out_N - gaussians.mean_in_N) / sd_out_C,
                "sd_ratio": np.sqrt(gaussians.var_in_N) / sd_out_C,
                "tpr": rates.tpr_FxN[0],
                "fpr": rates.fpr_FxN[0],
                "tpr_gaussian": gaussian_C,
                "tpr_gaussian_population": corrected_C,
                "in_models": rates.in_N,
                "out_models": rates.out_N,
            }
        )

    write(
        VULNERABILITY,
        (
            pa.concat_tables([*map_in_order(work.pool, compute, block.split())])
            for block in inputs.blocks()
        ),
    )
    has_targets = len(roles.targets) >= _MIN_TARGETS and len(roles.references) >= _MIN_TARGETS
    if has_targets:
        write(SAMPLE_FPR, _sample_fprs(inputs, view, fprs, lira))
    return {
        "order_share": order_share,
        "replicas": len(replicas),
        "targets": len(roles.targets) if has_targets else 0,
    }


def _order_share(inputs: AttackInputs, replicas: Sequence[ModelSeeds]) -> float:
    """Returns the share of the variance of the losses that is due to the order of the training data, at most 1.

    It is the mean variance over replicas, which share a subset and an initialization, divided by the mean variance over
    the references of the same class.
    """
    requests = {"loss": ("loss", replicas), "member": ("member", replicas[:1])}
    order, total = 0.0, 0.0
    for block, (_, value) in zip(
        inputs.blocks(), inputs.store.canary_blocks(requests, BLOCK_SAMPLES), strict=True
    ):
        gaussians = stats.fit_gaussians(block.reference_loss_RxC, block.reference_member_RxC)
        reference_C = np.where(value["member"][0], gaussians.var_in_N, gaussians.var_out_N)
        replica_C = value["loss"].astype(np.float64).var(axis=0, ddof=1)
        known_C = ~np.isnan(reference_C + replica_C)
        order += replica_C[known_C].sum()
        total += reference_C[known_C].sum()
    return min(order / total, 1.0) if total > 0 else 0.0


def _sample_fprs(
    inputs: AttackInputs, view: StudyView, fprs: list[float], lira: LiraSettings
) -> pd.DataFrame:
    """Returns sample_fpr.csv: numbers of samples by how many of the targets not trained on them call them members.

    Thresholds of the strategies naive and standardized are those at which all targets together have the FPR.
    """
    references, targets = (
        [*map(subsets.reference, numbers)]
        for numbers in (view.roles.references, view.roles.targets)
    )
    design = model_design(inputs.store, view.present)
    inputs = dataclasses.replace(
        inputs, references=references, targets=targets, statistics=(), design=design
    )
    by_target = [*inputs.by_target()]
    shape = len(targets), inputs.num_samples
    with contextlib.ExitStack() as stack:
        score, standardized, member = (
            stack.enter_context(MembershipScoreFile(view.work.folder, *shape, np.dtype(dtype)))
            for dtype in (np.float64, np.float64, np.bool_)
        )
        # Targets that leave out other references have other numbers of OUT references.
        count_out_PxN2 = np.zeros((len(by_target), shape[1]), np.int64)
        for p, (first, targets_of_part) in enumerate(by_target):
            fitted = registry.fit_attack(
                "lira_online", FitInputs(targets_of_part), dataclasses.asdict(lira)
            )

            def write(
                part: Block,
                p: int = p,
                first: int = first,
                fitted: FittedAttack = fitted,
            ) -> None:
                at = part.at
                lira_TxC = fitted(part)
                gaussians = stats.fit_gaussians(part.reference_loss_RxC, part.reference_member_RxC)
                score_TxC = stats.standardized_scores(part.loss_TxC, gaussians)
                if part.has_score_TxC is not None:
                    score_TxC = np.where(part.has_score_TxC, score_TxC, np.nan)
                score.write(first, at, lira_TxC)
                standardized.write(first, at, score_TxC)
                count_out_PxN2[p, at] = gaussians.count_out_N

            parts = (part for block in targets_of_part.blocks() for part in block.split())
            for _ in map_in_order(view.work.pool, write, parts):
                pass
        for block, value in inputs.store.canary_blocks({"member": ("member", targets)}):
            member.write(0, block, value["member"])
        lira_TxN, standardized_TxN, member_TxN = (
            file.as_array() for file in (score, standardized, member)
        )
        predictive_FxK = stats.predictive_threshold(np.arange(len(references) + 1), fprs)
        count_out = count_out_PxN2[0]
        if len(by_target) > 1:
            targets_P = [len(targets_of_part.targets) for _, targets_of_part in by_target]
            count_out = np.repeat(count_out_PxN2, targets_P, axis=0)
        thresholds = {
            "naive": (lira_TxN, stats.pooled_threshold(lira_TxN, member_TxN, fprs)),
            "standardized": (
                standardized_TxN,
                stats.pooled_threshold(standardized_TxN, member_TxN, fprs),
            ),
            "standardized_predictive": (
                standardized_TxN,
                predictive_FxK[:, count_out],
            ),
        }
        frames = []
        for strategy, (score_TxN, threshold) in thresholds.items():
            rates = stats.rates_by_sample(score_TxN, member_TxN, threshold)
            for fpr, called_N in zip(fprs, rates.called_out_FxN, strict=True):
                pair_Nx2 = np.stack([rates.out_N, called_N], axis=1)[rates.out_N > 0]
                pair_Kx2, samples_K = np.unique(pair_Nx2, axis=0, return_counts=True)
                frames.append(
                    pd.DataFrame(
                        {"strategy": strategy, "fpr": fpr, "nonmember_models": pair_Kx2[:, 0]}
                        | {"called": pair_Kx2[:, 1], "samples": samples_K}
                    )
                )
    return pd.concat(frames, ignore_index=True)


STUDY = Study(
    "pooling",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written if `attack.leave_one_out` is set and at least 8 references are present, also for recipes "
                "without replicas. Every reference is attacked with all the others, except those that would reveal its "
                "members, as in `reference_targets.csv`, and samples have a score only if the others include one that "
                "was trained on them and one that was not. Each row is a strategy for finding the threshold, an FPR of "
                "`attack.fprs` between 0 and 1, and a number of models. Reliability, Figures 1 and A1."
            ),
            {
                **common("fpr"),
                "strategy": Column("none", "see above"),
                "oracle": Column(
                    "none",
                    (
                        "`True`: the IN and OUT losses of all models but the target are used; `False`: only those of "
                        "the `models` that are evaluated"
                    ),
                ),
                "models": Column(
                    "count", "number of models that are evaluated: 8, 16, 32, ... and all"
                ),
                "threshold": Column(
                    "none",
                    "the threshold; empty if there are several, and `inf` if no score is one",
                ),
                "tpr, realized_fpr": Column(
                    "fraction",
                    (
                        "true positive rate, and false positive rate: the share of all pairs of a model and one of its "
                        "members (non-members), or a mean over samples or models"
                    ),
                ),
                "in_cells, out_cells": Column(
                    "count", "pairs of a model and a member or a non-member that have a score"
                ),
                "samples": Column(
                    "count",
                    "samples that are evaluated: all in the rows with all models, and otherwise the first 16,384",
                ),
                "left_out": Column(
                    "count",
                    (
                        "pairs of a model and a sample without a score, because of too few IN or OUT references or "
                        "losses without variance"
                    ),
                ),
                "tpr_low, tpr_high": Column(
                    "fraction",
                    (
                        "ends of its interval over models and samples, on the first 16,384 samples; empty for "
                        "`per_model`"
                    ),
                ),
            },
            key=("oracle", "models", "strategy", "fpr"),
            notes=(
                "The losses of each sample are standardized by its OUT losses: the score is (OUT mean - loss) / OUT "
                "standard deviation. Strategies:\n"
                "\n"
                "- `naive`: one threshold for the scores of online LiRA, with `attack.variance`, of all models and "
                "samples.\n"
                "- `standardized`: one threshold for the standardized losses. Like `naive`, the threshold is the "
                "lowest score of a non-member at which at most the requested share of all non-member scores is above "
                "it.\n"
                "- `standardized_normal`, `standardized_student_t`: the same with the quantile of a standard normal "
                "distribution, or of Student's t with degrees of freedom that are fitted to the scores of "
                "non-members.\n"
                "- `standardized_predictive`: the same with the quantile of the predictive distribution of a new "
                "standardized loss, if the losses of a sample are normal: sqrt(1 + 1/n) times that of Student's t with "
                "n - 1 degrees of freedom, for n OUT losses. Nothing is fitted.\n"
                "- `per_sample`: each sample has a threshold of its own, the interpolated quantile of its LiRA scores "
                "under models that were not trained on it; the rates are means over samples.\n"
                "- `per_sample_normal`: `standardized_normal`, but with means over samples. The two differ only if "
                "samples have different numbers of members. Then, without any leakage, its TPR is below its realized "
                "FPR: losses of members are standardized by one OUT loss more than those of non-members, and each "
                "sample has the same weight, however few OUT losses it has (7.3% and 9.4% for 8 models at an FPR of "
                "1%).\n"
                "- `per_model`: each model has a threshold of its own, as in the other tables; the rates are means "
                "over the models that have scores."
            ),
        ),
        Table(
            JACKKNIFE,
            (
                "Written with `pooling.csv`. Each row is a row of that table without a group of models or on half of "
                "the samples, from which `stats.jackknife_variance` computes the intervals."
            ),
            {
                "fpr, strategy, oracle, models": Column(
                    "none", "as in `pooling.csv`, without `per_model`"
                ),
                "part": Column(
                    "none",
                    (
                        "0: all models; 1 to 8: without one of 8 groups of pairs of models (1 to 4 if 8 models are "
                        "evaluated without the others)"
                    ),
                ),
                **common("half"),
                "tpr": Column("fraction", "true positive rate"),
            },
            key=("oracle", "models", "part", "half", "strategy", "fpr"),
        ),
        Table(
            VULNERABILITY,
            "Written with `pooling.csv`. Each row is a sample. Reliability, Sections 3 to 5.",
            {
                **common("id"),
                "gap": Column(
                    "standard deviations",
                    "(OUT mean - IN mean) / OUT standard deviation of its losses under all models",
                ),
                "sd_ratio": Column("fraction", "IN standard deviation / OUT standard deviation"),
                "tpr": Column(
                    "fraction",
                    (
                        "share of the models trained on it that call it a member at `attack.focus_fpr`, with the "
                        "predictive threshold"
                    ),
                ),
                "fpr": Column(
                    "fraction",
                    (
                        "the same share of the models that were not trained on it. Their losses are standardized by "
                        "each other, so these shares vary less than binomial proportions; `sample_fpr.csv` does not "
                        "have this effect"
                    ),
                ),
                "tpr_gaussian": Column(
                    "fraction",
                    (
                        "TPR at `attack.focus_fpr` if IN and OUT losses are normal with the mean and SD of this "
                        "sample's losses"
                    ),
                ),
                "tpr_gaussian_population": Column(
                    "fraction",
                    (
                        "the same for an adversary who knows only the distribution of the samples: the part of the "
                        "variance that is due to the training subset is twice as large"
                    ),
                ),
                "in_models, out_models": Column(
                    "count", "models with a score that were trained on it and that were not"
                ),
            },
            key=("id",),
        ),
        Table(
            SAMPLE_FPR,
            (
                "Written with `pooling.csv` if the recipe has at least 2 targets (`attack.targets`). The targets are "
                "attacked with the other references. Each row is a strategy (`naive`, `standardized` or "
                "`standardized_predictive`), an FPR and a pair of counts. Reliability, Figure A2."
            ),
            {
                "strategy": Column(
                    "none",
                    (
                        "as in `pooling.csv`; the thresholds of `naive` and `standardized` are those of the scores of "
                        "all targets together"
                    ),
                ),
                **common("fpr"),
                "nonmember_models": Column(
                    "count", "targets that were not trained on a sample and have a score for it"
                ),
                "called": Column("count", "number of them that call it a member"),
                "samples": Column("count", "samples with these two counts"),
            },
            key=("strategy", "fpr", "nonmember_models", "called"),
        ),
    ),
    not_requested=not_requested,
    facts={
        "models": Column("count", "references that were attacked with each other"),
        "pairs": Column(
            "none",
            "whether some were attacked without the complements of their subsets",
        ),
        "order_share": Column(
            "fraction",
            (
                "share of the variance of losses between models that is due to the order of the training data: mean "
                "variance over replicas / mean variance over references; 0 without replicas"
            ),
        ),
        "replicas, targets": Column(
            "count",
            "replicas for `order_share`, and targets of `sample_fpr.csv`",
        ),
    },
)


STRATEGY_TITLES = {
    "naive": "LiRA scores, one threshold",
    "standardized": "Standardized losses, one threshold",
    "standardized_normal": "Standardized losses, normal quantile",
    "standardized_student_t": "Standardized losses, fitted t quantile",
    "standardized_predictive": "Standardized losses, predictive t quantile",
    "per_sample": "Threshold per sample",
    "per_sample_normal": "Normal quantile, mean over samples",
    "per_model": "Threshold per model",
}
"""Strategy -> its name in figures and tables."""


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The strategies of a recipe at one FPR, with all models."""

    reason: str
    """Why there are no numbers; empty if there are."""
    models: int = 0
    fpr: float = math.nan
    rows: tuple[Record, ...] = ()
    """A row of pooling.csv per strategy, in the order of `STRATEGY_TITLES`."""

    @property
    def by_strategy(self) -> dict[str, Record]:
        """Strategy -> its row."""
        return {row["strategy"]: row for row in self.rows}

    @property
    def verdict(self) -> str:
        """The requested and the realized FPRs, and the TPRs, in one or two sentences."""
        rows, chosen = self.by_strategy, percent(self.fpr)
        normal, predictive = rows["standardized_normal"], rows["standardized_predictive"]
        naive, standardized = rows["naive"], rows["standardized"]
        difference = naive["tpr"] - standardized["tpr"]
        sentences = [
            f"For a requested FPR of {chosen}, the normal quantile has a realized FPR of "
            f"{percent(normal['realized_fpr'])}, and the predictive t quantile {percent(predictive['realized_fpr'])}."
        ]
        if not math.isnan(difference):
            sentences.append(
                f"One threshold for the LiRA scores of all samples finds {percent(naive['tpr'])} of the members, and "
                f"one for standardized losses {percent(standardized['tpr'])}."
            )
        return " ".join(sentences)


def read(recipe: RecipeResults) -> Pooling | None:
    """Reads the strategies at attack.focus_fpr; None if attack.leave_one_out did not request them."""
    if not recipe.view.has("pooling.json"):
        return None
    facts = recipe.view.facts("pooling")
    if facts["reason"]:
        return Pooling(facts["reason"])
    focus = facts["settings"]["focus_fpr"]
    rows = {
        row["strategy"]: row
        for row in io.read_table(recipe, TABLE)
        if math.isclose(row["fpr"], focus)
        and row["models"] == facts["models"]
        and not row["oracle"]
    }
    ordered = tuple(rows[name] for name in STRATEGY_TITLES if name in rows)
    if len(ordered) < len(STRATEGY_TITLES):
        return Pooling(f"there is no threshold for an FPR of {percent(focus)}")
    if any(row["realized_fpr"] != row["realized_fpr"] for row in ordered):
        return Pooling("no non-member has enough OUT references with different losses")
    return Pooling(
        "",
        facts["models"],
        focus,
        ordered,
    )


def draw(pooling: Pooling) -> Figure:
    """Draws the TPR and the realized FPR of every strategy as bars, with intervals of the TPR."""
    figure = plotting.new_figure(6.6, 4.2)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    at = np.arange(len(pooling.rows))[::-1]
    tpr = np.array([row["tpr"] for row in pooling.rows])
    ends = np.array([(row["tpr_low"], row["tpr_high"]) for row in pooling.rows])
    left.barh(at, tpr, color=plotting.BLUE, height=0.62)
    known = ~np.isnan(ends).any(axis=1)
    margins = np.abs(ends[known] - tpr[known, None]).T
    left.errorbar(
        tpr[known],
        at[known],
        xerr=margins,
        color=plotting.BLACK,
        linestyle="",
        linewidth=1.2,
        capsize=2.5,
    )
    right.barh(
        at, [row["realized_fpr"] for row in pooling.rows], color=plotting.VERMILLION, height=0.62
    )
    right.axvline(pooling.fpr, color=plotting.BLACK, linestyle="--", linewidth=1.2)
    names = [STRATEGY_TITLES[row["strategy"]].replace(", ", ",\n") for row in pooling.rows]
    left.set_yticks(at, names, fontsize=9.5)
    left.set(xlabel="True positive rate", xlim=(0, None))
    right.set(xlabel="Realized FPR", xlim=(0, None))
    for axes in (left, right):
        axes.grid(False, axis="y")
        axes.locator_params(axis="x", nbins=4)
    return figure


def draw_gaussian(recipe: RecipeResults, fpr: float) -> Figure:
    """Draws histograms of the TPRs that Gaussians predict for each sample, with and without population correction."""
    names = ("tpr_gaussian", "tpr_gaussian_population")
    columns = io.read_samples(recipe, names, VULNERABILITY)
    figure = plotting.new_figure(6.2, 3.9)
    axes = figure.subplots()
    edges = np.linspace(0, 1, 41)
    labels = ("adversary who knows this population", "adversary who knows only its distribution")
    for name, label, color, dash in zip(
        names, labels, (plotting.BLUE, plotting.ORANGE), ("-", "--"), strict=True
    ):
        value_N = columns[name].astype(float)
        value_N = value_N[~np.isnan(value_N)]
        share = np.histogram(value_N, edges)[0] / max(len(value_N), 1)
        mean = f"mean {value_N.mean():.3f}" if len(value_N) else "no sample"
        if len(value_N):
            axes.set_yscale("log")
        axes.stairs(
            share,
            edges,
            color=color,
            linestyle=dash,
            linewidth=1.8,
            label=f"{label} ({mean})",
        )
    axes.axvline(fpr, color=plotting.GREY, linestyle=":", linewidth=1.2, label="TPR = FPR")
    axes.set(
        xlabel=f"TPR of a sample at an FPR of {percent(fpr)}",
        ylabel="Share of samples",
        xlim=(0, 1),
    )
    figure.legend(loc="outside upper left", frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figures of a recipe; None without numbers."""
    pooling = read(recipe)
    if not pooling or pooling.reason:
        return {"pooling": None, "gaussian_tpr": None}
    return {"pooling": draw(pooling), "gaussian_tpr": draw_gaussian(recipe, pooling.fpr)}


FPRS = (0.01, 0.05, 0.1)
"""The false positive rates of the panels: those of the paper that are measurable with a thousand non-members."""
_STYLES: dict[str, tuple[str, plotting.LineStyle, str]] = {
    "naive": (plotting.VERMILLION, "-", "s"),
    "standardized": (plotting.BLUE, "-", "o"),
    "standardized_normal": (plotting.SKY, "--", "^"),
    "standardized_student_t": (plotting.GREEN, "--", "v"),
    "standardized_predictive": (plotting.BLACK, ":", "D"),
    "per_sample": (plotting.ORANGE, "-", "P"),
    "per_sample_normal": (plotting.PURPLE, "-.", "X"),
    "per_model": (plotting.GREY, "-.", "*"),
}
"""Strategy -> its color, line style and marker."""
_MARGIN = 0.01
_ALPHA = 0.05
"""The level of the exact binomial test of each sample, and the share of samples that it rejects by chance."""

FIG01_STATEMENTS = (
    "With the most models, one threshold for LiRA scores has a higher TPR than one for standardized losses.",
    "With the fewest models, the normal quantile gives a higher TPR than the quantile of the pooled scores.",
    "With the most models, the fitted t quantile and the quantile of the pooled scores have the same TPR.",
    "As models are added, the TPR with a threshold per sample approaches that with one for standardized losses.",
)
A1_STATEMENTS = (FIG01_STATEMENTS[0], FIG01_STATEMENTS[3])
A2_STATEMENTS = (
    "The FPR varies more between samples with one threshold for LiRA scores than for standardized losses.",
    "With one threshold for LiRA scores, more than 5% of samples have a significantly larger FPR than requested.",
)


@dataclasses.dataclass(frozen=True)
class Strategies:
    """TPRs of a recipe by strategy and number of models, from pooling.csv and pooling_jackknife.parquet."""

    rates: pd.DataFrame
    parts: pd.DataFrame
    """TPRs without groups of models, and on halves of the samples."""

    @classmethod
    def read(cls, recipe: RecipeResults, *, oracle: bool) -> Strategies:
        """Reads the rates at `FPRS`.

        Args:
          recipe: the recipe.
          oracle: whether moments are over the losses of all models but the target, for every number of models.

        Raises:
          Unavailable: the recipe has no such tables, or none of the rates.
        """
        rates = _read_table(recipe, "pooling.csv", _RATES)
        parts = io.read_frame(recipe, _JACKKNIFE, _PARTS)
        rates, parts = (
            frame[(frame["oracle"].astype(bool) == oracle) & _is_at(frame["fpr"], FPRS)]
            for frame in (rates, parts)
        )
        if rates.empty:
            wanted = ", ".join(map(percent, FPRS))
            raise Unavailable(
                f"{recipe.name}: pooling.csv has none of the FPRs {wanted}; add one to attack.fprs"
            )
        return cls(rates.reset_index(drop=True), parts)

    @property
    def fprs(self) -> list[float]:
        """The false positive rates."""
        return sorted(self.rates["fpr"].unique())

    @property
    def models(self) -> list[int]:
        """The numbers of models, ascending."""
        return sorted(int(count) for count in self.rates["models"].unique())

    def tpr(self, strategy: str, models: int, fpr: float) -> Jackknife:
        """Returns a TPR with what its interval over models and samples needs."""
        parts = self.parts[
            (self.parts["strategy"] == strategy)
            & (self.parts["models"] == models)
            & _is_at(self.parts["fpr"], [fpr])
        ]
        value_A1xH1 = parts.pivot(index="part", columns="half", values="tpr").to_numpy(float)
        return Jackknife(value_A1xH1[:, None, :], f"{models} models and the samples")

    def difference(self, strategy: str, other: str, models: int, fpr: float) -> Jackknife:
        """Returns the TPR of one strategy minus that of another, with the same models and samples."""
        return self.tpr(strategy, models, fpr) - self.tpr(other, models, fpr)


_RATES = ("fpr", "strategy", "oracle", "models", "tpr", "tpr_low", "tpr_high", "realized_fpr")
_JACKKNIFE = "pooling_jackknife.parquet"
_PARTS = ("fpr", "strategy", "oracle", "models", "part", "half", "tpr")


def _read_table(recipe: RecipeResults, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Reads a table of `lm-mia attack` with attack.leave_one_out; raises Unavailable without it."""
    if recipe.view.has(name):
        return io.read_frame(recipe, name)
    reason = "attack.leave_one_out must be set; run lm-mia attack"
    if recipe.view.has("pooling.json"):
        facts = recipe.view.facts("pooling")
        reason = (
            facts["reason"]
            or f"there is no {name}; at least two targets are needed; run lm-mia run"
        )
    raise Unavailable(f"{recipe.name}: {reason}")


def _is_at(fpr_K: pd.Series, fprs: Sequence[float]) -> np.ndarray:
    return np.isin(fpr_K.to_numpy(float), fprs)


def draw_fig01(recipes: SweepResults) -> Drawing:
    """Draws the TPR and the realized FPR of every strategy by the number of models, a column per FPR."""
    strategies = Strategies.read(recipes["main"], oracle=False)
    fewest, most = strategies.models[0], strategies.models[-1]
    claims = (
        _claim_greater(FIG01_STATEMENTS[0], strategies, "naive", "standardized", most),
        _claim_greater(
            FIG01_STATEMENTS[1], strategies, "standardized_normal", "standardized", fewest
        ),
        _claim_equal(FIG01_STATEMENTS[2], strategies, most),
        _claim_approach(FIG01_STATEMENTS[3], strategies),
    )
    moments = "The mean and the SD of a target are those over the other models that are evaluated."
    return _result(recipes["main"], strategies, claims, moments)


def draw_a1(recipes: SweepResults) -> Drawing:
    """Draws the same as `draw_fig01`, with moments over all models but the target."""
    strategies = Strategies.read(recipes["main"], oracle=True)
    claims = (
        _claim_greater(
            A1_STATEMENTS[0], strategies, "naive", "standardized", strategies.models[-1]
        ),
        _claim_approach(A1_STATEMENTS[1], strategies),
    )
    moments = f"Means and SDs are over all other {strategies.models[-1] - 1} models, however many are evaluated."
    return _result(recipes["main"], strategies, claims, moments)


def _result(
    recipe: RecipeResults, strategies: Strategies, claims: tuple[Claim, ...], moments: str
) -> Drawing:
    variance = {
        "pooled": "one variance for all samples",
        "per_sample": "a variance for each sample",
    }
    notes = (
        f"{moments} Claims must hold at each of the FPRs {', '.join(map(percent, strategies.fprs))}.",
        "Bands are 95% intervals over models and samples, for the two strategies with one quantile of the pooled "
        "scores. The lower row shows how many non-members each strategy calls members: a higher TPR at the same "
        "realized FPR is a stronger attack, but with a higher realized FPR it may only mean that the threshold is too "
        "low.",
        f"LiRA scores use {variance[recipe.config.attack.variance]} in each class (attack.variance); standardized "
        "losses always use a variance for each sample.",
        unsupported_note(claims),
    )
    return Drawing(strategies.rates, _draw_rates(strategies), claims=claims, notes=notes)


def _claim_greater(
    statement: str, strategies: Strategies, strategy: str, other: str, models: int
) -> Claim:
    parts = [
        claim_greater(
            "",
            f"TPR at an FPR of {percent(fpr)} with {models} models, {strategy} minus {other}",
            strategies.difference(strategy, other, models, fpr).estimate(),
        )
        for fpr in strategies.fprs
    ]
    return claim_all(statement, parts)


def _claim_equal(statement: str, strategies: Strategies, models: int) -> Claim:
    first, other = "standardized_student_t", "standardized"
    parts = [
        claim_equivalent(
            "",
            f"TPR at an FPR of {percent(fpr)} with {models} models, {first} minus {other}",
            strategies.difference(first, other, models, fpr).estimate(),
            _MARGIN,
        )
        for fpr in strategies.fprs
    ]
    return claim_all(statement, parts)


def _claim_approach(statement: str, strategies: Strategies) -> Claim:
    """Returns the claim that the absolute difference of per_sample and standardized shrinks as models are added."""
    fewest, most = strategies.models[0], strategies.models[-1]
    if fewest == most:
        return claim_untested(statement, f"there are only {most} models")
    parts = []
    for fpr in strategies.fprs:
        ends = [
            strategies.difference("per_sample", "standardized", count, fpr)
            for count in (fewest, most)
        ]
        few, many = (end.scaled(math.copysign(1, end.value)) for end in ends)
        # The fewest models are a small part of all, and their shared part makes this interval too wide, if anything.
        shrinks = independent_difference(few, many)
        what = f"|per_sample minus standardized| in TPR at {percent(fpr)}, {fewest} minus {most} models"
        parts.append(claim_greater("", what, shrinks))
    return claim_all(statement, parts)


def _draw_rates(strategies: Strategies) -> Figure:
    figure = plotting.new_figure(4.1 * len(strategies.fprs), 7.2)
    grid = figure.subplots(
        2, len(strategies.fprs), squeeze=False, sharex=True, height_ratios=(3, 2)
    )
    for (tpr_axes, fpr_axes), fpr in zip(grid.T, strategies.fprs, strict=True):
        rates = strategies.rates[_is_at(strategies.rates["fpr"], [fpr])]
        for name, (color, dash, marker) in _STYLES.items():
            rows = rates[rates["strategy"] == name].sort_values("models")
            if rows.empty:
                continue
            style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4}
            tpr_axes.plot(
                rows["models"], rows["tpr"], label=STRATEGY_TITLES[name], linewidth=1.4, **style
            )
            fpr_axes.plot(rows["models"], rows["realized_fpr"], linewidth=1.4, **style)
            if name in ("naive", "standardized"):
                ends = rows["tpr_low"].to_numpy(float), rows["tpr_high"].to_numpy(float)
                tpr_axes.fill_between(rows["models"], *ends, color=color, alpha=0.15, linewidth=0)
        tpr_axes.set(title=f"FPR {percent(fpr)}", ylim=(0, None))
        fpr_axes.axhline(fpr, color=plotting.GREY, linewidth=1)
        fpr_axes.set(xscale="log", ylim=(0, None), xlabel="Models")
        ticks = plotting.separated_ticks(strategies.models)
        plotting.set_x_ticks(fpr_axes, [(count, str(count)) for count in ticks])
        for axes in (tpr_axes, fpr_axes):
            plotting.use_percent_axis(axes)
    grid[0, 0].set_ylabel("True positive rate")
    grid[1, 0].set_ylabel("Realized FPR")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def draw_a2(recipes: SweepResults) -> Drawing:
    """Draws the distribution over samples of their false positive rates, beside that of equal rates."""
    recipe = recipes["small"]
    table = _read_table(recipe, "sample_fpr.csv", _SAMPLE_FPR)
    table = table[_is_at(table["fpr"], FPRS)]
    fprs = sorted(table["fpr"].unique())
    targets = int(table["nonmember_models"].max())
    if not fprs:
        raise Unavailable(
            f"{recipe.name}: sample_fpr.csv has none of the rates of the figure; add one to attack.fprs"
        )
    figure = plotting.new_figure(4.1 * len(fprs), 4.6)
    grid = figure.subplots(1, len(fprs), squeeze=False)[0]
    frames, excess_parts, rejected_parts = [], [], []
    for axes, fpr in zip(grid, fprs, strict=True):
        kinds = {
            name: _SampleRates.of(table[(table["strategy"] == name) & _is_at(table["fpr"], [fpr])])
            for name in ("naive", "standardized", "standardized_predictive")
        }
        frames.append(_draw_sample_fprs(axes, kinds, fpr, targets))
        naive, standardized = (kinds[name].excess_variance() for name in ("naive", "standardized"))
        excess = dataclasses.replace(
            naive,
            value=naive.value - standardized.value,
            standard_error=math.hypot(naive.standard_error, standardized.standard_error),
        )
        what = f"Excess variance of the FPR at {percent(fpr)} times 1,000, naive minus standardized"
        excess_parts.append(claim_greater("", what, excess))
        what = f"Share of samples with a significantly larger FPR than {percent(fpr)}"
        rejected_parts.append(claim_greater("", what, kinds["naive"].rejected(fpr), _ALPHA))
    grid[0].set_ylabel("Share of samples")
    figure.legend(
        *grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    claims = (
        claim_all(A2_STATEMENTS[0], excess_parts),
        claim_all(A2_STATEMENTS[1], rejected_parts),
    )
    notes = (
        f"Each sample is attacked in up to {targets} targets that were not trained on it and are not among the "
        "references. The gray area is the distribution if all samples had the requested rate.",
        "Excess variance is the estimated variance of the true rates, without binomial noise. The exact binomial test "
        f"is one-sided, at {percent(_ALPHA)}. Claims must hold at each FPR; the intervals are over samples.",
        unsupported_note(claims),
    )
    return Drawing(pd.concat(frames), figure, claims=claims, notes=notes)


_SAMPLE_FPR = ("strategy", "fpr", "nonmember_models", "called", "samples")


@dataclasses.dataclass(frozen=True)
class _SampleRates:
    """Numbers of samples by how many targets were not trained on them, and how many of these call them members."""

    trials_K: np.ndarray
    called_K: np.ndarray
    samples_K: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _SampleRates:
        return cls(*(rows[name].to_numpy(np.int64) for name in _SAMPLE_FPR[2:]))

    def excess_variance(self) -> Estimate:
        """Returns 1,000 times the variance of the samples' true rates, with an interval over samples.

        The estimate of `stats.rate_spread` is A - m^2, where A is the sum of k (k - 1) over that of n (n - 1), and m
        the mean rate. Its standard error follows from the influence of each sample on A and m.
        """
        n_K, k_K, samples_K = self.trials_K, self.called_K, self.samples_K
        spread = stats.rate_spread(np.repeat(k_K, samples_K), np.repeat(n_K, samples_K))
        num_samples = samples_K.sum()
        pairs, trials = samples_K @ (n_K * (n_K - 1)), samples_K @ n_K
        square = (samples_K @ (k_K * (k_K - 1))) / pairs
        influence_K = (k_K * (k_K - 1) - square * n_K * (n_K - 1)) * num_samples / pairs
        influence_K -= 2 * spread.mean * (k_K - spread.mean * n_K) * num_samples / trials
        error = math.sqrt(samples_K @ influence_K**2) / num_samples
        return self._estimate(1_000 * spread.variance, 1_000 * error)

    def rejected(self, fpr: float) -> Estimate:
        """Returns the share of samples for which an exact binomial test rejects that their rate is at most ``fpr``."""
        p_K = scipy.stats.binom.sf(self.called_K - 1, self.trials_K, fpr)
        share = float(self.samples_K[p_K <= _ALPHA].sum() / self.samples_K.sum())
        return self._estimate(share, math.sqrt(share * (1 - share) / self.samples_K.sum()))

    def _estimate(self, value: float, standard_error: float) -> Estimate:
        samples = int(self.samples_K.sum())
        return Estimate(value, standard_error, samples - 1, f"{samples:,} samples", ("the models",))

    def shares(self, edges_J1: np.ndarray) -> np.ndarray:
        """Returns the share of samples in each bin of the rate."""
        counts_J, _ = np.histogram(self.called_K / self.trials_K, edges_J1, weights=self.samples_K)
        return counts_J / self.samples_K.sum()

    def expected_shares(self, edges_J1: np.ndarray, fpr: float) -> np.ndarray:
        """Returns the expected shares if every sample has the rate ``fpr``."""
        shares_J = np.zeros(len(edges_J1) - 1)
        for n in np.unique(self.trials_K):
            k = np.arange(n + 1)
            share = self.samples_K[self.trials_K == n].sum() / self.samples_K.sum()
            weights = share * scipy.stats.binom.pmf(k, n, fpr)
            shares_J += np.histogram(k / n, edges_J1, weights=weights)[0]
        return shares_J


def _draw_sample_fprs(
    axes: Axes, kinds: dict[str, _SampleRates], fpr: float, targets: int
) -> pd.DataFrame:
    """Draws the histograms of one FPR; returns rows (fpr, series, low, high, share)."""
    width = 1 / max(targets // 2, 1)
    edges_J1 = (np.arange(targets // 2 + 2) - 0.5) * width
    expected_J = kinds["naive"].expected_shares(edges_J1, fpr)
    series = {"binomial": expected_J} | {
        name: kind.shares(edges_J1) for name, kind in kinds.items()
    }
    axes.stairs(expected_J, edges_J1, fill=True, color="#CCCCCC", label="Equal rates (binomial)")
    for name, kind in kinds.items():
        label, (color, dash, _) = STRATEGY_TITLES[name], _STYLES[name]
        axes.stairs(
            kind.shares(edges_J1), edges_J1, color=color, linestyle=dash, linewidth=1.6, label=label
        )
    shown_J = np.max([share_J for share_J in series.values()], axis=0) > 0.2 / sum(
        kinds["naive"].samples_K
    )
    highest = float(edges_J1[1:][shown_J].max())
    axes.axvline(fpr, color=plotting.GREY, linestyle=":", linewidth=1.2)
    axes.set(title=f"FPR {percent(fpr)}", xlabel="FPR of the sample", xlim=(-width / 2, highest))
    axes.set(yscale="log", ylim=(0.5 / sum(kinds["naive"].samples_K), 1.2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: percent(share))
    return pd.concat(
        pd.DataFrame(
            {"fpr": fpr, "series": name, "low": edges_J1[:-1], "high": edges_J1[1:], "share": s_J}
        )
        for name, s_J in series.items()
    )


EXPERIMENTS = {
    "reliability_fig01_strategies": Experiment(
        statements=FIG01_STATEMENTS,
        draw=draw_fig01,
    ),
    "reliability_figA1_oracle": Experiment(
        statements=A1_STATEMENTS,
        draw=draw_a1,
    ),
    "reliability_figA2_sample_fpr": Experiment(
        statements=A2_STATEMENTS,
        draw=draw_a2,
    ),
}
