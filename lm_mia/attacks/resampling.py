"""One target attacked with many sets of references.

Flip rates usually keep the references fixed and vary the target. Here the target is fixed, and each set of references
takes the place of a replica: the target is scored with each set, a threshold is calibrated on its non-members, and the
scores of all sets go to `stats.count_votes` (StrongMIA Appendix E.2.8).

S: sets of references, R: references of a set, P: pairs of references, U: units of references, M: references, C: samples
of a block, F: false positive rates, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from lm_mia import config, stats
from lm_mia.attacks import score_matrix, tables
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import ModelDesign
from lm_mia.attacks.inputs import AttackInputs, sample_slices
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.subsets import ModelSeeds
from lm_mia.seeds import rng


def reference_units(
    references: Sequence[ModelSeeds], design: ModelDesign | None = None
) -> list[NDArray[np.int64]]:
    """Returns the references that stay together where references are divided, as positions.

    They are the pairs with subset seeds 2i and 2i + 1 that are both present. In the balanced design, the subsets of a
    pair are complements, so only sets of whole pairs are independent and have as many IN as OUT references. In the
    other designs, pairs do no harm. Pairs of imported models are joined if one model of each has the same subset, or
    the complement of it.

    Args:
      references: the references.
      design: how the subsets of imported models are related.
    """
    index = {model.subset_seed: i for i, model in enumerate(references)}
    pair_Px2 = np.array(
        [(i, index[seed + 1]) for seed, i in index.items() if not seed % 2 and seed + 1 in index],
        np.int64,
    ).reshape(-1, 2)
    if not design or not len(pair_Px2):
        return [*pair_Px2]
    group_Px2 = design.design.group_M[design.index(references)][pair_Px2]
    is_joined_PxP = (group_Px2[:, None, :, None] == group_Px2[None, :, None, :]).any(axis=(2, 3))
    unit_P = connected_components(is_joined_PxP, directed=False)[1]
    return [pair_Px2[unit_P == unit].ravel() for unit in dict.fromkeys(unit_P.tolist())]


RESAMPLED_REFERENCES_TABLE = Table(
    "resampled_references.csv",
    (
        "Written with the tables of decisions, if `attack.resample_references` is above 0 and at least two sets can be "
        "made. The first replica is attacked with online LiRA and many sets of references, made of whole pairs (2i, 2i "
        "+ 1); each set has a threshold and a vote of its own, and takes the place of a replica. Each row is a way of "
        "choosing sets, an FPR of `attack.fprs` and a bin of flip rates. StrongMIA Appendix E.2.8."
    ),
    {
        "sampling": Column(
            "none",
            (
                "`disjoint`: sets without a common reference, for which the coin-flip test is exact; `subsampled "
                "(dependent)`: sets that overlap, for which the cutoff is only descriptive"
            ),
        ),
        "sets": Column(
            "count",
            "number of sets and votes; there is one subsampled set per replica",
        ),
        "references_per_set": Column(
            "count",
            "references of each set: `attack.resample_references`, rounded down to an even number",
        ),
        **common("fpr"),
        "bin": Column("none", "as in `flip_shares.csv`"),
        "low, high": Column("fraction", "range of flip rates of the bin, for this number of sets"),
        "member_fraction, nonmember_fraction": Column("fraction", "as in `flip_shares.csv`"),
        "members, nonmembers": Column("count", "as in `flip_shares.csv`"),
        **common("left_out"),
    },
    key=("sampling", "fpr", "bin"),
)


def resampled_references(
    inputs: AttackInputs, c: config.Attack, folder: Path, pool: ThreadPoolExecutor
) -> pd.DataFrame:
    """Returns resampled_references.csv: flip rates with a fixed target and varying references (StrongMIA E.2.8).

    The column "sampling" names the two ways to choose sets. Disjoint sets are independent, and the coin-flip cutoff is
    exact. Subsampled sets, as many as there are replicas, overlap and depend on each other, so their cutoff is only
    descriptive. Sets consist of whole `reference_units`; each set has a threshold of its own.
    """
    units = reference_units(inputs.references, inputs.design)
    size = c.resample_references // 2 * 2
    fprs, samples = c.fprs, inputs.num_samples
    draw = rng(0, "subsampled reference sets")
    indices = {
        "disjoint": disjoint_sets(units, size),
        "subsampled (dependent)": subsampled_sets(units, size, len(inputs.targets), draw),
    }
    first_target = dataclasses.replace(inputs, targets=inputs.targets[:1])
    parts = []
    for name, index_SxR in indices.items():
        sets = len(index_SxR)
        with MembershipScoreFile(folder, sets, samples) as file:
            for s, index_R in enumerate(index_SxR):
                subset = first_target.with_references(index_R)
                task = score_matrix.AttackTask("lira_online", vars(c))
                with score_matrix.score_all([task], subset, folder, pool) as [(_, scores)]:
                    file.write(s, slice(0, samples), scores.read_target(0)[None])
            member_SxN2 = np.broadcast_to(inputs.target_member_TxN2[0], (sets, samples))
            points = score_matrix.operating_points(file, member_SxN2, fprs, pool)
            counts = _flip_counts(file, points, member_SxN2[0], c, pool)
        table = tables.flip_shares(counts, sets, fprs, c.alpha).drop(columns="replicas")
        for position, (column, value) in enumerate(
            {"sampling": name, "sets": sets, "references_per_set": size}.items()
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

    counts = list(map_in_order(pool, work, sample_slices(file.num_samples)))
    return sum(counts[1:], start=counts[0])


def disjoint_sets(units: Sequence[NDArray[np.int64]], size: int) -> NDArray[np.int64]:
    """Returns the largest number of disjoint sets of references, in the order of the references.

    Models of different units are independent draws. So are these sets and, given the target, a sample's decisions: the
    exact test `stats.p_value` and the coin-flip cutoff apply with B = S. Few sets have little power: with fewer than 6,
    no decision can be distinguished from a coin flip at alpha = 0.05.

    Args:
      units: the result of `reference_units`. If the last unit of a set has more references than fit, the rest of them
        are in no set.
      size: number of references per set, 1 or more.

    Returns:
      index_SxR; the remaining references are in no set.

    Raises:
      ValueError: if size is not between 1 and the number of references.

    Source: StrongMIA Appendix E.2.8.
    """
    _check_size(units, size)
    sets, parts = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for unit_R in units:
        parts.append(unit_R)
        if sum(map(len, parts)) >= size:
            sets.append(np.concatenate(parts)[:size])
            parts = []
    return np.array(sets, np.int64).reshape(-1, size)


def subsampled_sets(
    units: Sequence[NDArray[np.int64]], size: int, sets: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns random sets of references, each drawn without replacement; the sets overlap and are dependent.

    The votes of such sets are not independent. Their flip rates show how much the choice among these references matters
    and underestimate the effect of newly trained references. The exact test `stats.p_value` does not apply, and the
    coin-flip cutoff is only descriptive; label results accordingly.

    Args:
      units: the result of `reference_units`, of which as few as possible are drawn. If the last one has more references
        than fit, the rest of them are left out.
      size: number of references per set, 1 or more; if it equals their number, all sets are equal.
      sets: number of sets, 1 or more.
      rng: random number generator.

    Returns:
      index_SxR, ascending within each set.

    Raises:
      ValueError: if size is not between 1 and the number of references, or if sets is below 1.

    Source: StrongMIA Appendix E.2.8, its last resort.
    """
    _check_size(units, size)
    if sets < 1:
        raise ValueError(f"sets={sets}: must be 1 or more")
    smallest = min(map(len, units))
    most = min(-(-size // smallest), len(units))  # of the smallest units
    drawn_SxU = [rng.choice(len(units), most, replace=False) for _ in range(sets)]
    index_SxR = [np.concatenate([units[u] for u in drawn_U])[:size] for drawn_U in drawn_SxU]
    return np.sort(np.array(index_SxR, np.int64), axis=1)


def _check_size(units: Sequence[NDArray[np.int64]], size: int) -> None:
    references = sum(map(len, units))
    if not 1 <= size <= references:
        raise ValueError(f"size={size}: must be from 1 to the number of references, {references}")
