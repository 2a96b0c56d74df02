"""One target attacked with many sets of references.

Flip rates usually keep the references fixed and vary the target. Here the target is fixed, and each set of references
takes the place of a replica: the target is scored with each set, a threshold is calibrated on its non-members, and the
scores of all sets go to `stats.count_votes` (StrongMIA Appendix E.2.8).

S: sets of references, R: references of a set, P: pairs of references, M: references, C: samples of a block, F: false
positive rates, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lm_mia import config, stats
from lm_mia.attacks import score_matrix, signals, tables
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.subsets import ModelSeeds
from lm_mia.seeds import rng


def reference_pairs(references: Sequence[ModelSeeds]) -> np.ndarray:
    """Returns index_Px2, the pairs of references with subset seeds 2i and 2i + 1 that are both present.

    In the balanced design, the subsets of a pair are complements, so only sets of whole pairs are independent and have
    as many IN as OUT references. In the other designs all references are independent, and pairs do no harm.
    """
    index = {model.subset_seed: i for i, model in enumerate(references)}
    pairs = [
        (i, index[seed + 1]) for seed, i in index.items() if not seed % 2 and seed + 1 in index
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def resampled_references(
    inputs: signals.AttackInputs, c: config.Attack, folder: Path, pool: ThreadPoolExecutor
) -> pd.DataFrame:
    """Returns resampled_references.csv: flip rates with a fixed target and varying references (StrongMIA E.2.8).

    The column "sampling" names the two ways to choose sets. Disjoint sets are independent, and the coin-flip cutoff is
    exact. Subsampled sets, as many as there are replicas, overlap and depend on each other, so their cutoff is only
    descriptive. Sets consist of whole `reference_pairs`; each set has a threshold of its own.
    """
    pair_Px2, half = reference_pairs(inputs.references), c.resample_references // 2
    fprs, samples = c.fprs, inputs.num_samples
    draw = rng(0, "subsampled reference sets")
    indices = {
        "disjoint": disjoint_sets(len(pair_Px2), half),
        "subsampled (dependent)": subsampled_sets(len(pair_Px2), half, len(inputs.targets), draw),
    }
    first_target = dataclasses.replace(inputs, targets=inputs.targets[:1])
    parts = []
    for name, index_SxR in indices.items():
        sets = len(index_SxR)
        with MembershipScoreFile(folder, sets, samples) as file:
            for s, index_R in enumerate(index_SxR):
                subset = first_target.with_references(pair_Px2[index_R].ravel())
                group = signals.AttackGroup(("lira_online",), c)
                with score_matrix.score_all([group], subset, folder, pool) as [(_, files)]:
                    file.write(s, slice(0, samples), files["lira_online"].read_target(0)[None])
            member_SxN2 = np.broadcast_to(inputs.target_member_TxN2[0], (sets, samples))
            points = score_matrix.operating_points(file, member_SxN2, fprs, pool)
            counts = _flip_counts(file, points, member_SxN2[0], c, pool)
        table = tables.flip_shares(counts, sets, fprs, c.alpha).drop(columns="replicas")
        for position, (column, value) in enumerate(
            {"sampling": name, "sets": sets, "references_per_set": 2 * half}.items()
        ):
            table.insert(position, column, value)
        parts.append(table)
    return pd.concat(parts)


def _flip_counts(
    file: MembershipScoreFile,
    points: stats.OperatingPoints,
    member_N2: np.ndarray,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> stats.FlipBinCounts:
    def work(at: slice) -> stats.FlipBinCounts:
        votes_FxN = stats.count_votes(file.read_samples(at), points.threshold_TxF).votes_FxN
        votes_FxN[~tables.has_decisions(points)] = np.nan
        return stats.count_flip_bins(votes_FxN, member_N2[at], file.num_targets, c.alpha)

    counts = list(map_in_order(pool, work, signals.sample_slices(file.num_samples)))
    return sum(counts[1:], start=counts[0])


def disjoint_sets(references: int, size: int) -> NDArray[np.int64]:
    """Returns the largest number of disjoint sets of references, in the order of the references.

    Models with different subset seeds are independent draws. So are these sets and, given the target, a sample's
    decisions: the exact test `stats.p_value` and the coin-flip cutoff apply with B = S. In the balanced design,
    where references 2i and 2i + 1 are complements, sets of an even size split no pair. Few sets have little power: with
    fewer than 6, no decision can be distinguished from a coin flip at alpha = 0.05.

    Args:
      references: number of references.
      size: number of references per set, 1 or more.

    Returns:
      index_SxR with S = references // size; the remaining references are in no set.

    Raises:
      ValueError: if size is not between 1 and references.

    Source: StrongMIA Appendix E.2.8.
    """
    _check_size(references, size)
    sets = references // size
    return np.arange(sets * size, dtype=np.int64).reshape(sets, size)


def subsampled_sets(
    references: int, size: int, sets: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns random sets of references, each drawn without replacement; the sets overlap and are dependent.

    The votes of such sets are not independent. Their flip rates show how much the choice among these references matters
    and underestimate the effect of newly trained references. The exact test `stats.p_value` does not apply, and the
    coin-flip cutoff is only descriptive; label results accordingly.

    Args:
      references: number of references to draw from.
      size: number of references per set, 1 or more; if it equals references, all sets are equal.
      sets: number of sets, 1 or more.
      rng: random number generator.

    Returns:
      index_SxR, ascending within each set.

    Raises:
      ValueError: if size is not between 1 and references, or if sets is below 1.

    Source: StrongMIA Appendix E.2.8, its last resort.
    """
    _check_size(references, size)
    if sets < 1:
        raise ValueError(f"sets={sets}: must be 1 or more")
    drawn = [np.sort(rng.choice(references, size, replace=False)) for _ in range(sets)]
    return np.array(drawn, dtype=np.int64)


def _check_size(references: int, size: int) -> None:
    if not 1 <= size <= references:
        raise ValueError(f"size={size}: must be from 1 to references={references}")
