"""What more references would add to each attack: its AUC and TPRs with parts of the references, extrapolated.

The attacks are repeated with each quarter, each half and all of the references (`stats.REFERENCE_SETS_SxQ`), on at most
16 targets and on the first samples only, so that the cost is bounded.

    more_references.csv   AUC and TPRs that were observed, and those predicted for 2 and 4 times as many references
    more_references.json  settings and models of the table; if there is no table, the reason

T: targets, A: attacks, F: false positive rates, K1: metrics and the fraction of samples without a score, Q: quarters of
the references, R: references of a set or quarter, S: sets of references, C: samples of a block, K: covariates of a
sample, N: the samples that are used, N2: samples of the population (2N).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import registry, user_code
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.inputs import AttackInputs, Block, FitInputs, open_inputs
from lm_mia.attacks.resampling import disjoint_sets, reference_units
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Facts, Write
from lm_mia.data import subsets

TABLE = "more_references.csv"
FACTORS = (2, 4)
"""Predictions are for the number of references times these factors."""
MAX_LEFT_OUT = 0.1
"""There is no prediction for an attack that has no score for a larger fraction of the samples with half of the
references, since its sets of references would be compared on different samples."""
_MIN_UNITS = 4  # one for each quarter of the references
_MAX_TARGETS = 16
_FPRS = (0.01, 0.05)  # rates of interest, in addition to attack.focus_fpr
_QUARTERS, _HALVES = slice(0, 4), slice(4, 10)


@dataclasses.dataclass(frozen=True)
class _FirstSamples(AttackInputs):
    """The inputs of attacks on the first samples of the population, which are in memory."""

    block: Block | None = None

    def blocks(self) -> Iterator[Block]:
        """Yields the samples as one block."""
        assert self.block is not None
        yield self.block


def compute(view: StudyView, write: Write, *, attack_settings: Mapping[str, Any]) -> Facts:
    """Computes more_references.csv.

    The targets are those with training subsets of their own or, if there are none, the replicas.
    """
    targets = [*map(subsets.reference, view.roles.targets)] or view.replicas
    targets = targets[:_MAX_TARGETS]
    references = [*map(subsets.reference, view.roles.references)]
    over = "targets" if view.roles.targets else "replicas"
    facts = {"over": over, "targets": len(targets), "references": len(references), "samples": 0}
    if not targets:
        return facts | {"reason": "there is no target or replica to attack"}
    design = model_design(view.store, view.present)
    units = reference_units(references, design)
    if len(units) < _MIN_UNITS:
        kind = "groups of references with related training subsets"
        kind = kind if any(len(unit_R) > 2 for unit_R in units) else "complete pairs of references"
        reason = (
            f"there are {len(units)} {kind}; an extrapolation needs at least {_MIN_UNITS}, one for each quarter of "
            "the references"
        )
        return facts | {"reason": reason}
    inputs = open_inputs(view.store, view.attacked, targets, references, (), design=design)
    parts = [_first_samples(part) for _, part in inputs.by_target()]
    # Replicas share their training subset, so together they count as one target.
    num_subsets = len(targets) if view.roles.targets else 1
    write(TABLE, _table(parts, _quarters(units), num_subsets, attack_settings, view.work.pool))
    return facts | {"samples": parts[0].num_samples}


def _quarters(units: Sequence[np.ndarray]) -> np.ndarray:
    """Returns index_QxR, quarters of the references of equal size that share no unit, as large as possible."""
    most = sum(map(len, units)) // 8 * 2
    sizes = (disjoint_sets(units, size)[:4] for size in range(most, 0, -2))
    return next(quarter_QxR for quarter_QxR in sizes if len(quarter_QxR) == 4)


def _first_samples(inputs: AttackInputs) -> _FirstSamples:
    """Returns the inputs with the first block of samples only, a random choice since the population is shuffled."""
    block = next(inputs.blocks())
    samples = block.at.stop
    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    fields |= {
        "target_member_TxN2": inputs.target_member_TxN2[:, :samples],
        "zlib_bytes_N2": block.zlib_bytes_C,
        "covariate_N2xK": block.covariate_CxK,
    }
    return _FirstSamples(**fields, block=block)


def _table(
    by_target: list[_FirstSamples],
    quarter_QxR: np.ndarray,
    num_subsets: int,
    settings: Mapping[str, Any],
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns more_references.csv; ``num_subsets`` is the number of different training subsets of the targets."""
    size, count = quarter_QxR.shape[1], len(by_target[0].references)
    index_S = [np.sort(quarter_QxR[set_Q].ravel()) for set_Q in stats.REFERENCE_SETS_SxQ]
    index_S[-1] = np.arange(count)  # with the references that are in no quarter
    attacks = [name for name in settings["attacks"] if registry.find(name).uses_references]
    fprs = sorted({settings["focus_fpr"], *(fpr for fpr in _FPRS if fpr in settings["fprs"])})
    whole = [FitInputs(inputs) for inputs in by_target]  # with the draws that all sets share
    member_TxN = np.concatenate([inputs.target_member_TxN2 for inputs in by_target])

    def score(
        index_R: np.ndarray, inputs: _FirstSamples, every: FitInputs
    ) -> dict[str, np.ndarray]:
        """Returns score_TxN of each attack."""
        assert inputs.block is not None
        selected = every.select(index_R)
        fits = registry.fit_attacks(
            [registry.Task(registry.find(name), selected, settings) for name in attacks]
        )
        parts = [part.with_references(index_R) for part in inputs.block.split()]
        return {
            name: np.concatenate([fitted(part) for part in parts], axis=1)
            for name, fitted in zip(attacks, fits, strict=True)
        }

    def evaluate(index_R: np.ndarray) -> list[tuple[float, ...]]:
        """Returns the AUC, the TPRs and the fraction of samples without a score for each attack, means over targets."""
        scores = [
            score(index_R, inputs, every) for inputs, every in zip(by_target, whole, strict=True)
        ]
        rows = []
        for name in attacks:
            score_TxN = np.concatenate([score[name] for score in scores])
            points = stats.tpr_at_fpr(score_TxN, member_TxN, fprs)
            left_out = points.left_out_T.mean() / member_TxN.shape[1]
            rows.append((points.auc_T.mean(), *points.tpr_TxF.mean(axis=0), left_out))
        return rows

    value_SxAxK1 = np.array([*map_in_order(pool, evaluate, index_S)])
    metrics = ["auc", *(f"tpr_at_{fpr:g}" for fpr in fprs)]
    references = size, 2 * size, count
    rows = []
    for (a, name), (k, metric) in itertools.product(enumerate(attacks), enumerate(metrics)):
        reason = _reason(value_SxAxK1[:, a, k], value_SxAxK1[:, a, -1], references)
        names = {"attack": user_code.short(name), "metric": metric}
        rows += _rows(value_SxAxK1[:, a, k], references, reason, names, num_subsets)
    return pd.DataFrame(rows)


def _reason(value_S: np.ndarray, left_out_S: np.ndarray, references: tuple[int, int, int]) -> str:
    """Returns why a metric cannot be predicted; empty if it can."""
    parts = value_S[_QUARTERS], value_S[_HALVES], value_S[-1:]
    for part, count in zip(parts, references, strict=True):
        if np.isnan(part).any():
            return f"no member or no non-member has a score with {count} references"
    if left_out_S[_HALVES].mean() > MAX_LEFT_OUT:
        share = f"{100 * left_out_S[_HALVES].mean():.0f}%"
        return f"{share} of the samples have no score with {references[1]} references"
    for part, count in zip(parts, references, strict=True):
        if not np.all((part > 0) & (part < 1)):
            return f"the value is 0 or 1 with {count} references"
    return ""


def _rows(
    value_S: np.ndarray,
    references: tuple[int, int, int],
    reason: str,
    names: dict[str, str],
    num_subsets: int,
) -> list[dict[str, Any]]:
    """Returns the rows of one metric of one attack, without predictions if there is a reason."""
    parts = value_S[_QUARTERS], value_S[_HALVES], value_S[-1:]
    rows: list[dict[str, Any]] = [
        {**names, "references": count, "kind": "observed", "sets": len(part), "value": part.mean()}
        | {"low": np.nan, "high": np.nan, "reason": ""}
        for count, part in zip(references, parts, strict=True)
    ]
    predicted = [factor * references[-1] for factor in FACTORS]
    usable_S = np.full_like(value_S, np.nan) if reason else value_S
    metric = "auc" if names["metric"] == "auc" else "tpr"
    more = stats.predict_more_references(
        usable_S, references, predicted, metric, targets=num_subsets
    )
    return rows + [
        {**names, "references": count, "kind": "predicted", "sets": 0, "value": value}
        | {"low": low, "high": high, "reason": reason}
        for count, value, low, high in zip(predicted, more.value, more.low, more.high, strict=True)
    ]


STUDY = Study(
    "more_references",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "[What more references would add](how-to/attacks.md#would-more-references-help) to each attack of "
                "`attack.attacks` that uses references. The M references are divided into quarters of whole pairs, and "
                "the attack is repeated with each quarter, every combination of two quarters, and all references, on "
                "the first 16 targets (or, without targets, the first 16 replicas) and on the first 65,536 samples. "
                "Each row is a metric of an attack with a number of references."
            ),
            {
                **common("attack"),
                "metric": Column(
                    "none",
                    (
                        "`auc`, or `tpr_at_` with `attack.focus_fpr`, 0.01 or 0.05 (the last two if they are in "
                        "`attack.fprs`)"
                    ),
                ),
                "references": Column(
                    "count", "number of references: a quarter, half, all (M), 2 M and 4 M"
                ),
                "kind": Column("none", "observed, or predicted by `stats.predict_more_references`"),
                "sets": Column(
                    "count",
                    "number of sets of references over which an observed value is averaged; 0 for predictions",
                ),
                "value": Column(
                    "fraction",
                    (
                        "mean over targets and sets of the AUC or TPR; empty if no sample of a class has a score, or "
                        "without a prediction"
                    ),
                ),
                "low, high": Column(
                    "fraction", "95% interval of a prediction, for the same targets and samples"
                ),
                "reason": Column("none", "why there is no prediction"),
            },
            key=("attack", "metric", "references"),
        ),
    ),
    facts={
        "over": Column("none", "which models are attacked: targets or replicas"),
        "targets": Column("count", "number of attacked models"),
        "references": Column("count", "number of references"),
        "samples": Column(
            "count",
            "number of samples that are used; 0 without the table",
        ),
    },
)
