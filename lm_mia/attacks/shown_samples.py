"""Writes shown_samples.parquet, the losses, decisions and texts of the samples on the page of single samples.

A browser loads the page as a whole, so it shows at most `MAX_SAMPLES` samples.

T: targets (replicas), M: references, F: false positive rates of the config, S: shown samples, N2: samples of the
population (2N).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import replacing
from lm_mia.attacks import tables
from lm_mia.attacks.inputs import AttackInputs, sample_slices, select_samples
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.data.population import Population
from lm_mia.seeds import draw

TABLE = "shown_samples.parquet"
"""Name of the table."""
MAX_SAMPLES = 2**12
"""The maximum number of samples in the table."""
MAX_TOKEN_SAMPLES = 2**8
"""The maximum number of samples that are in the table because the losses of their tokens are stored."""
_MAX_CHARS = 2000  # of a text


def write(
    folder: Path,
    inputs: AttackInputs,
    population: Population,
    file: MembershipScoreFile,
    points: stats.OperatingPoints,
    token_samples: Sequence[int],
    c: config.Attack,
) -> None:
    """Writes shown_samples.parquet.

    Args:
      folder: folder of the tables, with samples.parquet.
      inputs: the models.
      population: provides the texts of the attacked samples.
      file: scores of online LiRA with all references.
      points: operating points of the replicas at attack.fprs.
      token_samples: ids of samples to show in any case, if there are more than `MAX_SAMPLES`.
      c: settings of the recipe.
    """
    position_S, chosen_by_S = _choose(folder / "samples.parquet", inputs, token_samples, c)
    # The statistics that other attacks need are not read.
    block = select_samples(dataclasses.replace(inputs, statistics=()), position_S)
    score_TxS = _read_scores(file, position_S)
    columns = {
        "id": inputs.store.first_canary + position_S,
        "chosen_by": chosen_by_S,
        "text": [text[:_MAX_CHARS] for text in population.texts(position_S)],
        "reference_loss_nats": _lists(block.reference_loss_RxC),
        "reference_member": _lists(block.reference_member_RxC),
        "replica_loss_nats": _lists(block.loss_TxC),
    }
    for f, fpr in enumerate(c.fprs):
        decision_TxS = score_TxS >= points.threshold_TxF[:, f, None]
        is_missing_TxS = np.isnan(score_TxS) | ~tables.has_decisions(points)[f]
        columns[f"decisions_{fpr:g}"] = _lists(decision_TxS, is_missing_TxS)
    with replacing(folder / TABLE) as temporary:
        pq.write_table(pa.table(columns), temporary)


def _choose(
    samples: Path, inputs: AttackInputs, token_samples: Sequence[int], c: config.Attack
) -> tuple[np.ndarray, np.ndarray]:
    """Returns position_S, ascending, and chosen_by_S, the rule that chose each sample.

    If there are more than `MAX_SAMPLES`, the samples whose tokens are stored come first. Of the remaining places, half
    go to random samples, and a quarter each to those with the highest flip rates at attack.focus_fpr and the highest
    mean scores.
    """
    num_samples = inputs.num_samples
    if num_samples <= MAX_SAMPLES:
        return np.arange(num_samples), np.full(num_samples, "all")
    rules = {"tokens": np.array(token_samples, np.int64) - inputs.store.first_canary}
    # Each rule has enough candidates, although earlier rules may have chosen the same samples.
    rules["random"] = draw(0, "samples that the page shows", num_samples, MAX_SAMPLES)
    table = pq.read_table(samples, columns=[f"flip_rate_{c.focus_fpr:g}", "mean_score"])
    for rule, column_N2 in zip(("flip rate", "score"), table.columns, strict=True):
        # Missing values are last.
        rules[rule] = np.argsort(-column_N2.to_numpy(), kind="stable")[:MAX_SAMPLES]
    others = MAX_SAMPLES - len(token_samples)
    sizes = {"tokens": len(token_samples), "random": others // 2, "flip rate": others // 4}
    chosen_by: dict[int, str] = {}
    for rule, candidates in rules.items():
        new = [p for p in candidates.tolist() if p not in chosen_by]
        chosen_by |= dict.fromkeys(new[: sizes.get(rule, MAX_SAMPLES - len(chosen_by))], rule)
    position_S = np.array(sorted(chosen_by))
    return position_S, np.array([chosen_by[p] for p in position_S.tolist()])


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
