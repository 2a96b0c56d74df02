"""Attacks losses of models whose training subsets are related in the ways that people draw them, and judges the scores.

    python -m benchmarks noise run TABLE.csv [--worlds noise gap] [--models 4 8 16 64]
    python -m benchmarks noise show TABLE.csv

Each cell is a design of the subsets, a number of models, and which of them are attacked: one with all others, or each
in turn with all others. All attacks and all leave-one-out statistics of a cell share the losses of its rounds, and each
round draws new subsets and losses. Each attack is repeated until the standard error of its mean AUC over the rounds is
at most 0.0015 (gap: that of the difference 0.002). Finished cells are added to the table at once, and a later call
continues with the others. All cells take about an hour on one core.

noise: losses do not depend on membership. The AUC must be 0.5 and, with n non-members, the TPR at the threshold of the
  paper floor(fpr n) / (n + 1). A deviation is the mean over rounds of the AUC or TPR minus this value, and z is the
  deviation in standard errors, as the quantile of the normal distribution that corresponds to Student's t.
gap: losses of members are lower by 0.7 standard deviations of the sample's loss over models. The mean AUC is compared
  with that of the same target, subset and losses as a fresh target: its references are further models, whose subsets
  are drawn by the same design but independently of it, as many as remain for a target of the cell: M - 1 for
  independent subsets, M - 2 for pairs, two seeds and columns (without the partner), M - 4 for columns with two seeds.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy.stats
import threadpoolctl

from lm_mia import config, stats
from lm_mia.attacks import registry
from lm_mia.attacks.designs import ModelDesign, model_design
from lm_mia.attacks.inputs import Block, FitInputs
from lm_mia.attacks.loss_arrays import LossArrays
from lm_mia.data import subsets
from lm_mia.errors import UserError

World = Literal["noise", "gap"]
Scope = Literal["one", "all"]
SAMPLES = 1024
"""The number of samples of a round; those that are held out or never trained are among them."""
FPRS = (0.01, 0.1)
GAP = 0.7
MAX_ERROR: dict[World, float] = {"noise": 0.0015, "gap": 0.002}
"""Standard error of each mean AUC or, with a gap, of its difference from fresh targets at which a cell is finished."""
MIN_ROUNDS = 12
MAX_TARGETS: dict[World, int] = {"noise": 8, "gap": 4}
"""Of more models than this, as many are attacked, evenly spaced; the leave-one-out statistics are of all models."""
MAX_Z, MAX_SHARE = 4.5, 0.01
"""No value may be beyond so many standard errors, and no larger share of the values beyond 3."""
MAX_DIFFERENCE = 0.01
"""Largest difference from the AUC of a fresh target."""
MODELS = (4, 8, 16, 64)
HELD_OUT = {"": 0, "25% held out": SAMPLES // 4, "1 never trained": 1}
"""Numbers of samples that no model is trained on."""


def exact(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN of halves that are drawn independently."""
    return _drawn(rng, models, samples, "exact")


def bernoulli(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN of independent coins."""
    return _drawn(rng, models, samples, "bernoulli")


def pairs(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN of complementary halves."""
    return _drawn(rng, models, samples, "balanced")


def _drawn(
    rng: np.random.Generator, models: int, samples: int, design: subsets.Design
) -> np.ndarray:
    first = 2 * int(rng.integers(2**29))  # even, so that pairs stay together
    return subsets.members(map(subsets.reference, range(first, first + models)), samples, design)


def columns(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN where each sample is in half of the subsets, as in the script of Carlini et al. 2022."""
    return rng.random((models, samples)).argsort(axis=0).argsort(axis=0) < models // 2


def two_seeds(
    draw: Callable[[np.random.Generator, int, int], np.ndarray],
    rng: np.random.Generator,
    models: int,
    samples: int,
) -> np.ndarray:
    """Returns member_MxN where models m and m + M / 2 have the same subset."""
    return np.tile(draw(rng, models // 2, samples), (2, 1))


Draw = Callable[[np.random.Generator, int, int], np.ndarray]
DESIGNS: dict[str, Draw] = {
    "exact": exact,
    "bernoulli": bernoulli,
    "pairs": pairs,
    "columns": columns,
    "two seeds": functools.partial(two_seeds, exact),
    "columns, two seeds": functools.partial(two_seeds, columns),
}
_LEFT_OUT = {"exact": 1, "bernoulli": 1, "pairs": 2, "columns": 2, "two seeds": 2}
_LEFT_OUT |= {"columns, two seeds": 4}
"""The number of models that are not used with a target, which is one of them."""

_CONFIG = config.Attack()
_ALL_ATTACKS: tuple[str, ...] = (
    *("lira_online", "lira_offline", "rmia", "rmia_offline", "rmia_simple"),
    *("reference_calibrated", "shrunk", "shrunk_offline", "stacked"),
    *("loss", "zlib", "min_k", "min_k_plus_plus", "lowercase"),
)
ATTACKS: dict[str, tuple[str, config.Attack]] = {name: (name, _CONFIG) for name in _ALL_ATTACKS}
ATTACKS |= {
    f"{name}, pooled": (name, dataclasses.replace(_CONFIG, variance="pooled"))
    for name in ("lira_online", "lira_offline")
}
ATTACKS["rmia_offline, tuned a"] = "rmia_offline", dataclasses.replace(_CONFIG, rmia_a="tuned")
"""Name in the table -> the attack, and its settings."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is repeated with new subsets and losses."""

    world: World
    design: str
    held_out: str
    models: int
    scope: Scope


@dataclasses.dataclass(frozen=True)
class Models:
    """The losses and the subsets of all models of a round, how the subsets are related, and the samples."""

    loss_MxN: np.ndarray
    member_MxN: np.ndarray
    design: ModelDesign
    statistics: dict[str, np.ndarray]
    """Name of a statistic other than the loss -> its value_MxN."""
    zlib_bytes_N: np.ndarray
    covariate_NxK: np.ndarray

    def select(self, index_M: Sequence[int], design: ModelDesign) -> "Models":
        """Returns some of the models, whose subsets are related as in a design."""
        return dataclasses.replace(
            self,
            loss_MxN=self.loss_MxN[index_M],
            member_MxN=self.member_MxN[index_M],
            design=design,
            statistics={name: value_MxN[index_M] for name, value_MxN in self.statistics.items()},
        )


@dataclasses.dataclass(frozen=True)
class _OneTarget:
    """One model, attacked with all others."""

    models: Models
    target: int

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.models.loss_MxN.shape[1]

    def blocks(self) -> Iterator[Block]:
        """Yields all samples, as `inputs.AttackInputs` yields those of a store."""
        all_, index_R = self.models, np.delete(np.arange(len(self.models.loss_MxN)), self.target)
        is_used_RxN, has_score_1xN = all_.design.use(
            [self.target], index_R.tolist(), all_.member_MxN, np.arange(self.num_samples)
        )
        yield Block(
            slice(0, self.num_samples),
            all_.loss_MxN[[self.target]],
            np.where(is_used_RxN, all_.loss_MxN[index_R], np.nan),
            all_.member_MxN[index_R],
            {name: value_MxN[[self.target]] for name, value_MxN in all_.statistics.items()},
            all_.zlib_bytes_N,
            all_.covariate_NxK,
            has_score_1xN,
        )


def draw_models(rng: np.random.Generator, member_MxN: np.ndarray, gap: float) -> Models:
    """Returns models on samples of unequal difficulty and spread; each is attacked with all others.

    Some models have a lower loss on all samples.
    """
    shape = member_MxN.shape
    level_N, sd_N = rng.normal(3.5, 0.4, shape[1]), 0.2 * np.exp(rng.normal(0, 0.3, shape[1]))
    of_model_Mx1 = rng.normal(0, 0.05, (shape[0], 1))
    loss_MxN = level_N + of_model_Mx1 + sd_N * (rng.normal(size=shape) - gap * member_MxN)
    tokens_N, zlib_N = rng.integers(50, 500, shape[1]), rng.normal(2, 0.2, shape[1]).clip(1)
    covariate_NxK = np.stack([np.log(tokens_N), np.log(zlib_N) + level_N / 10, level_N], axis=1)
    statistics = {
        name: (rng.normal(level_N, 0.3, shape) * sign).astype(np.float32)
        for name, sign in (("lowercase_loss", 1), ("min_k", -1), ("min_k_plus_plus", -1))
    }
    return Models(
        loss_MxN.astype(np.float32),
        member_MxN,
        independent(member_MxN),
        statistics,
        zlib_N * tokens_N,
        covariate_NxK.astype(np.float32),
    )


def independent(member_MxN: np.ndarray) -> ModelDesign:
    """Returns the design in which only the target itself is left out."""
    index_M = np.arange(len(member_MxN))
    has_members_M = np.logical_or.reduce(member_MxN, axis=1)
    return ModelDesign((), stats.Design(index_M, index_M), has_members_M)


def find_design(member_MxN: np.ndarray) -> ModelDesign:
    """Returns how the subsets are related, as `lm-mia audit` finds it; raises UserError if they overlap."""
    models = [subsets.reference(i) for i in range(len(member_MxN))]
    index = {model: i for i, model in enumerate(models)}
    rows = {"loss": [*member_MxN], "member": [*member_MxN]}
    design = model_design(LossArrays("the models", "given", index, rows, {}), models)
    assert design is not None
    return design


def draw_subsets(cell: Cell, rng: np.random.Generator, models: int) -> np.ndarray:
    """Returns member_MxN of a design, of which the last samples are in no subset."""
    untrained = HELD_OUT[cell.held_out]
    member_MxN = DESIGNS[cell.design](rng, models, SAMPLES - untrained)
    return np.pad(member_MxN, ((0, 0), (0, untrained)))


def attack(models: Models, targets: Sequence[int], names: Collection[str]) -> dict[str, np.ndarray]:
    """Returns score_TxN of attacks on each target with all other models, as the attacks stage computes it."""
    used = {name: attack for name, attack in ATTACKS.items() if name in names}
    scores: dict[str, list[np.ndarray]] = {name: [] for name in used}
    for target in targets if used else []:
        inputs = FitInputs(_OneTarget(models, target))
        fits = registry.fit_attacks(
            [registry.Task(registry.find(name), inputs, vars(c)) for name, c in used.values()]
        )
        for block in inputs.blocks():
            for name, fitted in zip(used, fits, strict=True):
                scores[name].append(fitted(block))
    return {name: np.concatenate(parts) for name, parts in scores.items()}


def _leave_one_out() -> dict[str, Callable[[Models], np.ndarray]]:
    """Returns the function that computes score_MxN of each leave-one-out statistic."""

    def lira(models: Models, variance: stats.Variance, offline: bool) -> np.ndarray:
        return stats.lira_leave_one_out(
            models.loss_MxN,
            models.member_MxN,
            variance=variance,
            offline=offline,
            design=models.design.design,
        )

    def standardized(models: Models, direction: stats.Direction) -> np.ndarray:
        return stats.standardized_leave_one_out(
            models.loss_MxN, models.member_MxN, direction=direction, design=models.design.design
        ).score_MxN

    functions: dict[str, Callable[[Models], np.ndarray]] = {}
    for variance, offline in itertools.product(get_args(stats.Variance), (False, True)):
        name = f"leave-one-out lira_{'offline' if offline else 'online'}"
        name += ", pooled" if variance == "pooled" else ""
        functions[name] = functools.partial(lira, variance=variance, offline=offline)
    for direction in get_args(stats.Direction):
        name = f"leave-one-out standardized, {direction}"
        functions[name] = functools.partial(standardized, direction=direction)
    return functions


LEAVE_ONE_OUT = _leave_one_out()
NAMES = [*ATTACKS, *LEAVE_ONE_OUT]
"""All attacks and leave-one-out statistics."""


def evaluate(score_TxN: np.ndarray, member_TxN: np.ndarray) -> np.ndarray:
    """Returns the means over targets of the AUC and of the TPRs minus what they are on noise; NaN without scores."""
    points = stats.tpr_at_fpr(score_TxN, member_TxN, FPRS)
    n_Tx1 = points.nonmembers_T[:, None]
    excess_TxF = points.tpr_TxF - np.floor(np.array(FPRS) * n_Tx1 + 1e-9) / (n_Tx1 + 1)
    return np.r_[points.auc_T.mean(), excess_TxF.mean(axis=0)]


def run_round(cell: Cell, seed: int, names: Collection[str]) -> dict[str, np.ndarray]:
    """Returns what attacks and leave-one-out statistics show in one round of a cell.

    Args:
      cell: the cell.
      seed: number of the round.
      names: some of `NAMES`.

    Returns:
      For each name the values of `evaluate` and, in the world "gap", the AUC of fresh targets.

    Raises:
      UserError: if the subsets are refused.
    """
    rng = np.random.default_rng([seed, cell.models, *f"{cell.design}, {cell.held_out}".encode()])
    member_MxN = draw_subsets(cell, rng, cell.models)
    drawn_MxN, has_gap = member_MxN, cell.world == "gap"
    if has_gap:  # references whose subsets are independent of those of the targets
        fresh_RxN = draw_subsets(cell, rng, cell.models - _LEFT_OUT[cell.design])
        drawn_MxN = np.concatenate([member_MxN, fresh_RxN])
    drawn = draw_models(rng, drawn_MxN, GAP if has_gap else 0.0)
    models = drawn.select(range(cell.models), find_design(member_MxN))
    every = -(-cell.models // MAX_TARGETS[cell.world])
    targets = [0] if cell.scope == "one" else [*range(0, cell.models, every)]
    scores = attack(models, targets, names)
    values = {name: evaluate(score_TxN, member_MxN[targets]) for name, score_TxN in scores.items()}
    judged = targets if cell.scope == "one" or has_gap else [*range(cell.models)]
    for name in LEAVE_ONE_OUT.keys() & names:
        values[name] = evaluate(LEAVE_ONE_OUT[name](models)[judged], member_MxN[judged])
    if has_gap:
        fresh = _aucs_of_fresh_targets(drawn, cell.models, targets, names)
        values = {name: np.r_[value_3, fresh[name]] for name, value_3 in values.items()}
    return values


def _aucs_of_fresh_targets(
    drawn: Models, first: int, targets: Sequence[int], names: Collection[str]
) -> dict[str, float]:
    """Returns the mean AUC over targets, each attacked with the models from the first one on."""
    aucs: dict[str, list[float]] = {name: [] for name in names}
    for target in targets:
        index_M = [target, *range(first, len(drawn.loss_MxN))]
        models = drawn.select(index_M, independent(drawn.member_MxN[index_M]))
        scores = attack(models, [0], names)
        scores |= {name: LEAVE_ONE_OUT[name](models)[:1] for name in LEAVE_ONE_OUT.keys() & names}
        for name, score_1xN in scores.items():
            aucs[name].append(evaluate(score_1xN, models.member_MxN[:1])[0])
    return {name: float(np.mean(auc_T)) for name, auc_T in aucs.items()}


@dataclasses.dataclass(frozen=True)
class Result:
    """One attack or leave-one-out statistic in one cell."""

    attack: str
    rounds: int
    """Rounds with scores; 0 if there are none."""
    auc: float
    auc_error: float
    auc_z: float
    """NaN in the world "gap"."""
    tpr_excess_F: tuple[float, ...]
    tpr_z_F: tuple[float, ...]
    fresh_auc: float = math.nan
    difference_error: float = math.nan
    """Standard error of the difference of the two AUCs, which are of the same targets."""
    reason: str = ""
    """Why there are no scores."""


def no_scores(cell: Cell, attack_name: str) -> str:
    """Returns why an attack has no score in a cell."""
    member_MxN = draw_subsets(cell, np.random.default_rng(0), cell.models)
    design = find_design(member_MxN)
    _, has_score_1xN = design.use([0], [*range(1, cell.models)], member_MxN, np.arange(SAMPLES))
    if not has_score_1xN.any():
        return "the models that remain were all trained on a sample, or none of them was"
    if "tuned" in attack_name:
        return "too few references to tune a"
    return "fewer than two IN or two OUT losses of each sample remain"


def run_cell(cell: Cell, max_error: float) -> list[Result]:
    """Repeats a cell until the standard errors are small enough, and returns its results.

    Args:
      cell: the cell.
      max_error: largest standard error of a mean AUC or, in the world "gap", of its difference from fresh targets.
    """
    rounds: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    pending = [*NAMES]
    for seed in itertools.count():
        try:
            for name, value_V in run_round(cell, seed, pending).items():
                rounds[name].append(value_V)
        except UserError as error:
            return [_refused("every attack", str(error))]
        if seed + 1 >= MIN_ROUNDS and seed % 4 == 0:
            # Attacks without a score in some round are not repeated any more.
            errors = [_error(_differences(cell, np.array(rounds[name]))) for name in pending]
            pending = [n for n, error in zip(pending, errors, strict=True) if error > max_error]
            if not pending:
                break
    return [_result(cell, name, np.array(value_RxV)) for name, value_RxV in rounds.items()]


def _differences(cell: Cell, value_RxV: np.ndarray) -> np.ndarray:
    """Returns the AUC of each round minus what it must be."""
    return value_RxV[:, 0] - (value_RxV[:, -1] if cell.world == "gap" else 0.5)


def _error(value_RxV: np.ndarray) -> Any:
    return value_RxV.std(axis=0, ddof=1) / math.sqrt(len(value_RxV))


def _refused(name: str, reason: str) -> Result:
    nan_F = (math.nan,) * len(FPRS)
    return Result(name, 0, math.nan, math.nan, math.nan, nan_F, nan_F, reason=reason)


def _result(cell: Cell, name: str, value_RxV: np.ndarray) -> Result:
    rounds, has_gap = len(value_RxV), cell.world == "gap"
    if np.isnan(value_RxV).any():  # scores in some rounds only would be a selection
        return _refused(name, no_scores(cell, name))
    mean_V, error_V = value_RxV.mean(axis=0), _error(value_RxV)
    deviation_3, error_3 = mean_V[:3] - [0.5, 0, 0], error_V[:3]
    t_3 = np.divide(deviation_3, error_3, out=np.zeros(3), where=error_3 > 0)
    # The normal quantile of the tail of Student's t, so that few rounds are not counted as surprising.
    z_3 = np.sign(t_3) * scipy.stats.norm.isf(scipy.stats.t.sf(np.abs(t_3), rounds - 1))
    auc_z, *tpr_z_F = np.where(has_gap, np.nan, z_3).tolist()
    return Result(
        name,
        rounds,
        float(mean_V[0]),
        float(error_V[0]),
        auc_z,
        tuple(mean_V[1:3].tolist()),
        tuple(tpr_z_F),
        float(mean_V[-1]) if has_gap else math.nan,
        float(_error(_differences(cell, value_RxV))) if has_gap else math.nan,
    )


def all_cells(worlds: Sequence[World], models: Sequence[int]) -> list[Cell]:
    """Returns the cells of the table; a gap is only of interest with 8 models and more."""
    cells = itertools.product(worlds, models, DESIGNS, HELD_OUT, get_args(Scope))
    return [
        Cell(world, design, held_out, count, scope)
        for world, count, design, held_out, scope in cells
        if world == "noise" or count >= 8
    ]


_CELL_COLUMNS = [field.name for field in dataclasses.fields(Cell)]


def run(path: Path, worlds: Sequence[World], models: Sequence[int]) -> None:
    """Adds the cells that the table does not have, with a line for each."""
    cells, done = all_cells(worlds, models), set[Cell]()
    if path.is_file():
        table = pd.read_csv(path, keep_default_na=False, usecols=_CELL_COLUMNS)
        done = {Cell(*row) for row in table.itertuples(index=False, name=None)}
    missing = [cell for cell in cells if cell not in done]
    weight = {cell: _expected_seconds(cell) for cell in missing}
    start, finished = time.monotonic(), 0.0
    for i, cell in enumerate(missing):
        table = to_table(cell, run_cell(cell, MAX_ERROR[cell.world]))
        with path.open("a", encoding="utf-8") as file:  # a cell is written by one call
            file.write(table.to_csv(index=False, header=not path.stat().st_size))
        finished += weight[cell]
        seconds = time.monotonic() - start
        left = seconds / finished * (sum(weight.values()) - finished)
        name = ", ".join(filter(None, map(str, dataclasses.astuple(cell))))
        print(f"{i + 1} of {len(missing)}: {name}; {left / 60:.0f} min left", flush=True)


def _expected_seconds(cell: Cell) -> float:
    targets = min(cell.models, MAX_TARGETS[cell.world])
    rounds = 250 if cell.scope == "one" else max(2 * MIN_ROUNDS, 250 / targets)
    if cell.world == "gap":
        rounds = 2 * MIN_ROUNDS
    attacked = 1 if cell.scope == "one" else targets
    return rounds * attacked * (0.02 + 0.003 * cell.models)


def to_table(cell: Cell, results: Sequence[Result]) -> pd.DataFrame:
    """Returns one row for each attack and leave-one-out statistic of a cell."""
    rows = []
    for result in results:
        row = dataclasses.asdict(cell) | dataclasses.asdict(result)
        excess_F, z_F = row.pop("tpr_excess_F"), row.pop("tpr_z_F")
        for fpr, excess, z in zip(FPRS, excess_F, z_F, strict=True):
            row |= {f"tpr_at_{fpr:g}_excess": excess, f"tpr_at_{fpr:g}_z": z}
        rows.append(row)
    table = pd.DataFrame(rows)
    reason = table.pop("reason")
    return table.round(5).assign(reason=reason)


def failures(table: pd.DataFrame) -> list[str]:
    """Returns what is wrong with the cells of a table, one line each: nothing if all attacks are right."""
    z_columns = _z_columns(table)
    scored, lines = table[table["rounds"] > 0], list[str]()
    noise = scored[scored["world"] == "noise"]
    z = noise[z_columns].abs()
    for _, row in noise[(z > MAX_Z).any(axis=1)].iterrows():
        lines.append(f"{_label(row)}: z of {', '.join(f'{row[name]:.1f}' for name in z_columns)}")
    share = float((z > 3).to_numpy().mean()) if len(z) else 0.0
    if share > MAX_SHARE:
        lines.append(f"{100 * share:.1f} % of the values on noise are beyond 3 standard errors")
    gap = scored[scored["world"] == "gap"]
    difference = gap["auc"] - gap["fresh_auc"]
    for (_, row), value in zip(gap.iterrows(), difference, strict=True):
        if abs(value) > MAX_DIFFERENCE:
            lines.append(
                f"{_label(row)}: AUC {row['auc']:.4f}, fresh target {row['fresh_auc']:.4f}"
            )
    return lines


def _label(row: pd.Series) -> str:
    return ", ".join(str(row[name]) for name in [*_CELL_COLUMNS, "attack"] if row[name] != "")


def show(path: Path) -> None:
    """Prints the Markdown tables of a finished table, and the cells that fail."""
    table = pd.read_csv(path, dtype={"held_out": str, "reason": str}).fillna({"held_out": ""})
    table["z"] = table[_z_columns(table)].abs().max(axis=1)
    table["deviation"] = (table["auc"] - table["fresh_auc"].fillna(0.5)).abs()
    for world, part in table.groupby("world", sort=False):
        models = sorted(part["models"].unique())
        _print_header(
            str(world), ["design", "samples", "attacked", *(f"{m} models" for m in models)]
        )
        for key, cells in part.groupby(["design", "held_out", "scope"], sort=False):
            design, held_out, scope = map(str, key)
            summaries = [_summary(cells[cells["models"] == m], str(world)) for m in models]
            _print_row([design, held_out or "all drawn", scope, *summaries])
    _print_header("without scores", ["models", "design", "attacks", "reason"])
    refused = table[table["rounds"] == 0]
    for key, cells in refused.groupby(["models", "design", "reason"], sort=False):
        models, design, reason = map(str, key)
        _print_row([models, design, "; ".join(cells["attack"].unique()), reason])
    print()
    print("\n".join(failures(table) or ["All values are as they must be."]))


def _print_header(title: str, names: Sequence[str]) -> None:
    print(f"\n### {title}\n")
    _print_row(names)
    print("|" + "---|" * len(names))


def _print_row(values: Sequence[str]) -> None:
    print(f"| {' | '.join(values)} |")


def _z_columns(table: pd.DataFrame) -> list[str]:
    return [name for name in map(str, table) if name.endswith("_z")]


def _summary(rows: pd.DataFrame, world: str) -> str:
    """Returns the largest deviation of the AUC among attacks and, on noise, the largest z of AUC and TPRs."""
    scored = rows[rows["rounds"] > 0]
    if not len(scored):
        return "none" if len(rows) else ""
    z = f", z {scored['z'].max():.1f}" if world == "noise" else ""
    return f"{scored['deviation'].max():.4f}{z} ({len(scored)})"


def main() -> None:
    """Computes or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("table", type=Path)
    parser.add_argument("--worlds", nargs="*", default=[*get_args(World)], choices=get_args(World))
    parser.add_argument("--models", nargs="*", type=int, default=[*MODELS], choices=MODELS)
    args = parser.parse_args()
    if args.action == "run":
        with threadpoolctl.threadpool_limits(1):
            run(args.table, args.worlds, args.models)
    else:
        show(args.table)


if __name__ == "__main__":
    main()
