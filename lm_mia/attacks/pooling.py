"""True positive rates averaged over models and samples, by strategy for the threshold (Reliability, Figures 1 and A1).

Every reference is attacked with all the others. The threshold is one quantile of the scores of all non-members, a
quantile after standardizing the losses of each sample, an analytical quantile, or a threshold of each sample or model
(`STRATEGIES`). The rates are also computed with fewer models, and with moments of the losses under all models but the
target ("oracle" in the paper).

    pooling.csv                thresholds, TPRs with intervals and realized FPRs of every strategy
    pooling_jackknife.parquet  the TPRs without groups of models and on halves of the samples, for intervals
    pooling.json               settings and models of the tables; if there are no tables, the reason

The tables of single samples are in `lm_mia.attacks.vulnerability`.

M: models, N: samples, C: samples of a block, F: false positive rates, K: numbers of OUT references, A1: all models, and
then without each group of models, H1: all samples, and then each half, S: strategies.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy  # its parts are loaded when they are first used

from lm_mia import config, stats
from lm_mia.attacks import models, spec, vulnerability
from lm_mia.attacks.designs import reference_design
from lm_mia.attacks.inputs import AttackInputs, Block, open_inputs
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.table_sets import Facts, TableSet, Work, Write
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store

TABLE, JACKKNIFE = "pooling.csv", "pooling_jackknife.parquet"
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
_STUDY_SAMPLES = 2**14
"""The number of samples with which fewer models and intervals are computed, which bounds time and memory. The first
samples are a random choice, since the population is in random order."""
_STEP_SAMPLES = 2**11  # evaluated at a time; their thresholds have an axis for FPRs


def table_set(
    store: Store, population: Population, c: config.Attack, work: Work
) -> TableSet | None:
    """Returns the tables and those of single samples; None unless attack.leave_one_out is set.

    Args:
      store: the score store of the recipe.
      population: provides the documents of the samples.
      c: settings of the recipe.
      work: threads that compute parts of the samples.
    """
    if not c.leave_one_out:
        return None
    store = dataclasses.replace(store, statistics=(), token_samples=(), step=c.step)
    present = models.present_models(store, c.step)
    references = [m for m in present if m.role == "reference" and m.subset_seed < c.references]
    replicas = [m for m in present if m.role == "replica" and m.order_seed < c.replicas]
    settings = {
        "config": spec.decision_settings(c),
        "reference_models": [*map(str, references)],
        "replica_models": [*map(str, replicas)],
    }

    def compute(write: Write) -> Facts:
        fprs = [fpr for fpr in c.fprs if 0 < fpr < 1]
        if not fprs:
            return {"reason": "no rate of attack.fprs is between 0 and 1"}
        inputs = None
        if references:
            inputs = open_inputs(store, population, references[:1], references, ())
        if inputs is None or len(inputs.references) < config.FEWEST_FOR_LEAVE_ONE_OUT:
            reason = (
                f"{len(inputs.references) if inputs else 0} references can be attacked with the others; at least "
                f"{config.FEWEST_FOR_LEAVE_ONE_OUT} are needed"
            )
            return {"reason": reason}
        roles = spec.assign_roles(models.model_numbers(present), c)
        return _compute(inputs, replicas, roles, population, c, fprs, work, write)

    return TableSet("pooling", [*references, *replicas], settings, compute)


def _compute(
    inputs: AttackInputs,
    replicas: Sequence[ModelSeeds],
    roles: spec.ModelRoles,
    population: Population,
    c: config.Attack,
    fprs: list[float],
    work: Work,
    write: Write,
) -> Facts:
    """Computes the tables from attacks on every reference with all the others."""

    def show(done: int) -> None:
        work.progress("thresholds", done, 3)

    show(0)
    design = reference_design(inputs.store, inputs.references)
    table, jackknife = _study(inputs, population.document_N, c, design, fprs, work.pool)
    show(1)
    with _all_scores(inputs, c, design, work.folder, work.pool) as grid:
        on_all_samples = evaluate(grid, fprs, work.pool)
        show(2)
        scores = grid.standardized_MxN, grid.count_out_MxN
        facts = vulnerability.write_tables(inputs, replicas, roles, *scores, c, work, write)
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
    return facts | {
        "reason": "",
        "models": len(inputs.references),
        "pairs": design.has_complements,
    }


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

    def select(self, models: Any = slice(None), samples: Any = slice(None)) -> "ScoreGrid":
        """Returns the grid with some models and samples only."""
        fields = dataclasses.fields(self)
        return ScoreGrid(**{f.name: getattr(self, f.name)[models][:, samples] for f in fields})


def compute_scores(
    loss_MxC: np.ndarray,
    member_MxC: np.ndarray,
    id_C: np.ndarray,
    c: config.Attack,
    design: stats.Design,
    scatter_Mx2x2: np.ndarray | None = None,
) -> ScoreGrid:
    """Returns the scores of every model as the target.

    Args:
      loss_MxC: losses in nats per token.
      member_MxC: booleans, whether each sample was in each model's training subset.
      id_C: ids of the samples.
      c: settings of LiRA.
      design: how the training subsets of the models are related.
      scatter_Mx2x2: as in `stats.lira_leave_one_out`.
    """
    lira_MxC = stats.lira_leave_one_out(
        loss_MxC,
        member_MxC,
        variance=c.variance,
        sampled_share=0.5 if c.finite_population else 0.0,
        design=design,
        id_N=id_C,
        scatter_Mx2x2=scatter_Mx2x2,
    )
    standardized = stats.standardized_leave_one_out(loss_MxC, member_MxC, design=design, id_N=id_C)
    return ScoreGrid(lira_MxC, standardized.score_MxN, standardized.count_out_MxN, member_MxC)


@contextlib.contextmanager
def _all_scores(
    inputs: AttackInputs,
    c: config.Attack,
    design: stats.Design,
    folder: Path,
    pool: ThreadPoolExecutor,
) -> Iterator[ScoreGrid]:
    """Context manager that computes the scores of all samples and keeps them in files until it exits."""
    shape = len(inputs.references), inputs.num_samples
    scatter_Mx2x2 = None
    if c.variance == "pooled":

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
        lira, standardized, count_out, member = (
            stack.enter_context(MembershipScoreFile(folder, *shape, np.dtype(dtype)))
            for dtype in (np.float64, np.float64, np.int16, np.bool_)
        )

        def write(part: Block) -> None:
            scores = compute_scores(
                part.reference_loss_RxC,
                part.reference_member_RxC,
                inputs.ids(part.at),
                c,
                design,
                scatter_Mx2x2,
            )
            lira.write(0, part.at, scores.lira_MxN)
            standardized.write(0, part.at, scores.standardized_MxN)
            count_out.write(0, part.at, scores.count_out_MxN)
            member.write(0, part.at, scores.member_MxN)

        for _ in map_in_order(pool, write, (p for b in inputs.blocks() for p in b.split())):
            pass
        yield ScoreGrid(*(file.as_array() for file in (lira, standardized, count_out, member)))


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
    def of_cells(cls, rates: stats.PooledRates) -> "_Sums":
        """Returns the sums of one block for rates over all scores."""
        return cls(
            rates.called_in_F,
            rates.called_out_F,
            rates.in_cells,
            rates.out_cells,
            rates.left_out,
        )

    @classmethod
    def of_samples(cls, rates: stats.SampleRates) -> "_Sums":
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

    def __add__(self, other: "_Sums") -> "_Sums":
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
    counted: Mapping[str, stats.SampleRates] | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns strategy -> columns of `evaluate`, for all strategies but per_model.

    Args:
      grid, fprs, pool: as for `evaluate`.
      student_df: degrees of freedom of Student's t.
      counted: the result of `_count_by_sample` for these samples; None computes it here.
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
        of_samples = (
            {name: _select(rates, at, len(member_MxC)) for name, rates in counted.items()}
            if counted
            else _count_by_sample(block, fprs, student_df)
        )
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
    normal_F = scipy.stats.norm.isf(fpr_F)
    student_F = normal_F if np.isinf(student_df) else scipy.stats.t.isf(fpr_F, student_df)
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


def _select(rates: stats.SampleRates, at: slice | np.ndarray, models: int) -> stats.SampleRates:
    """Returns the decisions of some models on a part of the samples."""
    in_S, out_S = rates.in_N[at], rates.out_N[at]
    # Sums over samples have the same last bits as those of counts that were computed for these samples alone.
    called_in_FxS, called_out_FxS = (
        np.ascontiguousarray(called_FxN[:, at])
        for called_FxN in (rates.called_in_FxN, rates.called_out_FxN)
    )
    left_out = models * len(in_S) - int(in_S.sum() + out_S.sum())
    return stats.SampleRates(called_in_FxS, called_out_FxS, in_S, out_S, left_out)


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
    c: config.Attack,
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
            return compute_scores(loss_of_used_MxN, member_MxN, id_N, c, design).select(used_M)
        arrays = loss_MxN[used_M], member_MxN[used_M], id_N
        return compute_scores(*arrays, c, design.select(used_M))

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
    models, samples = grid.member_MxN.shape
    blocks = [
        _count_by_sample(grid.select(samples=at), fprs, student_df)
        for at in _sample_blocks(samples)
    ]
    counted = {name: _concatenate([block[name] for block in blocks]) for name in blocks[0]}
    columns = [_pooled_strategies(grid, fprs, student_df, counted=counted)]
    for half_N in half_HxN:
        of_half = {name: _select(rates, half_N, models) for name, rates in counted.items()}
        part = grid.select(samples=half_N)
        columns.append(_pooled_strategies(part, fprs, student_df, counted=of_half))
    return np.array([[of[name]["tpr"] for name in STRATEGIES[:-1]] for of in columns])


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
