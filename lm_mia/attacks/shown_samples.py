"""The losses, decisions and texts of the samples on the page of single samples.

A browser loads the page as a whole, so it shows at most `MAX_SAMPLES` samples.

T: targets (replicas), M: references, F: false positive rates of the config, S: shown samples, C: samples of a block, N:
all samples.
"""

import dataclasses

import numpy as np
import pyarrow as pa

from lm_mia import stats
from lm_mia.attacks import tables
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import sample_slices, select_samples
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.seeds import draw

TABLE = "shown_samples.parquet"
"""Name of the table."""
MAX_SAMPLES = 2**12
"""The maximum number of samples in the table."""
MAX_TOKEN_SAMPLES = 2**8
"""The maximum number of samples that are in the table because the losses of their tokens are stored."""
MAX_CHARS = 2000
"""The maximum number of characters of a text."""


SHOWN_SAMPLES_TABLE = Table(
    "shown_samples.parquet",
    (
        "For [the page of single samples](how-to/single-samples.md). Each row is a sample of the page. Of more than "
        "4,096 samples, it has 4,096: up to 256 whose token losses are stored (`score.token_samples`); half of the "
        "others are random, a quarter have the highest flip rates at `attack.focus_fpr`, and a quarter the highest "
        "mean scores. Only the random ones represent all samples. Each value of a list belongs to a model, in the "
        "order of `reference_models` or `replica_models` in `flips.json`."
    ),
    {
        **common("id"),
        "chosen_by": Column(
            "none",
            "`all`, or the rule by which it was chosen: `tokens`, `random`, `flip rate` or `score`",
        ),
        "text": Column(
            "none",
            "first 2,000 characters of its text, as it was tokenized; empty for imported losses without texts",
        ),
        "reference_loss_nats": Column("nats per token", "list: loss under each reference"),
        "reference_member": Column("none", "list: whether each reference was trained on it"),
        "replica_loss_nats": Column("nats per token", "list: loss under each replica"),
        "decisions_FPR": Column(
            "none",
            "list: whether each replica's score reaches its threshold at this FPR; null without a score",
        ),
    },
    key=("id",),
)


def shown_samples(
    scores: Scores,
    *,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
    token_samples: tuple[int, ...],
) -> pa.Table:
    """Returns shown_samples.parquet.

    Args:
      scores: the scores of online LiRA with all references.
      band, focus_fpr, fprs: settings of the operating points.
      token_samples: ids of samples whose tokens are stored. They are shown in any case, up to `MAX_TOKEN_SAMPLES`.
    """
    points = tables.select_fprs(scores.operating_points(fprs, band), slice(len(fprs)))
    focus, inputs = fprs.index(focus_fpr), scores.inputs
    position_S, chosen_by_S = _choose(scores, points, focus, token_samples)
    # The statistics that other attacks need are not read.
    block = select_samples(dataclasses.replace(inputs, statistics=()), position_S)
    score_TxS = _read_scores(scores.file, position_S)
    columns = {
        "id": scores.first_id + position_S,
        "chosen_by": chosen_by_S,
        "text": [text[:MAX_CHARS] for text in scores.population.texts(position_S)],
        "reference_loss_nats": _lists(block.reference_loss_RxC),
        "reference_member": _lists(block.reference_member_RxC),
        "replica_loss_nats": _lists(block.loss_TxC),
    }
    for f, fpr in enumerate(fprs):
        decision_TxS = score_TxS >= points.threshold_TxF[:, f, None]
        is_missing_TxS = np.isnan(score_TxS) | ~tables.has_decisions(points)[f]
        columns[f"decisions_{fpr:g}"] = _lists(decision_TxS, is_missing_TxS)
    return pa.table(columns)


def _choose(
    scores: Scores, points: stats.OperatingPoints, focus: int, token_samples: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns position_S, ascending, and chosen_by_S, the rule that chose each sample.

    If there are more than `MAX_SAMPLES`, the samples whose tokens are stored come first. Of the remaining places, half
    go to random samples, and a quarter each to those with the highest flip rates at the focus FPR and the highest mean
    scores.
    """
    num_samples = scores.file.num_samples
    if num_samples <= MAX_SAMPLES:
        return np.arange(num_samples), np.full(num_samples, "all")
    attacked = [i for i in token_samples if i >= scores.first_id][:MAX_TOKEN_SAMPLES]
    rules = {"tokens": np.array(attacked, np.int64) - scores.first_id}
    # Each rule has enough candidates, although earlier rules may have chosen the same samples.
    rules["random"] = draw(0, "samples that the page shows", num_samples, MAX_SAMPLES)
    columns = _flips_and_scores(scores, points, focus)
    for rule, column_N in zip(("flip rate", "score"), columns, strict=True):
        # Missing values are last.
        rules[rule] = np.argsort(-column_N, kind="stable")[:MAX_SAMPLES]
    others = MAX_SAMPLES - len(attacked)
    sizes = {"tokens": len(attacked), "random": others // 2, "flip rate": others // 4}
    chosen_by: dict[int, str] = {}
    for rule, candidates in rules.items():
        new = [p for p in candidates.tolist() if p not in chosen_by]
        chosen_by |= dict.fromkeys(new[: sizes.get(rule, MAX_SAMPLES - len(chosen_by))], rule)
    position_S = np.array(sorted(chosen_by))
    return position_S, np.array([chosen_by[p] for p in position_S.tolist()])


def _flips_and_scores(
    scores: Scores, points: stats.OperatingPoints, focus: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the flip rate at one of the rates, and the mean score, of each sample."""
    flip_rate_N, mean_score_N = np.empty((2, scores.file.num_samples))
    threshold_Tx1, replicas = points.threshold_TxF[:, focus, None], len(scores.targets)
    has_decisions = tables.has_decisions(points)[focus]

    def fill(at: slice) -> None:
        score_TxC = scores.file.read_samples(at)
        votes_C = stats.count_votes(score_TxC, threshold_Tx1).votes_FxN[0]
        flip_rate_N[at] = stats.flip_rate(votes_C if has_decisions else votes_C * np.nan, replicas)
        mean_score_N[at] = score_TxC.mean(axis=0)

    for _ in map_in_order(scores.pool, fill, sample_slices(scores.file.num_samples)):
        pass
    return flip_rate_N, mean_score_N


def _read_scores(file: MembershipScoreFile, position_S: np.ndarray) -> np.ndarray:
    """Returns score_TxS of the samples at these positions, which are ascending."""
    parts = []
    for at in sample_slices(file.num_samples):
        first, end = np.searchsorted(position_S, (at.start, at.stop))
        if first < end:
            parts.append(file.read_samples(at)[:, position_S[first:end] - at.start])
    return np.concatenate(parts, axis=1)


def _lists(value_MxS: np.ndarray, missing_MxS: np.ndarray | None = None) -> pa.Array:
    """Returns a column with one list per sample, which has one value per model."""
    mask = None if missing_MxS is None else missing_MxS.T.ravel()
    return pa.FixedSizeListArray.from_arrays(
        pa.array(value_MxS.T.ravel(), mask=mask), len(value_MxS)
    )
