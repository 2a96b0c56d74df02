"""Two further analyses of the same rows: one target under other references, and every reference as a target.

Flip rates usually hold the references fixed and vary the target. Here the target is fixed and each set of references
acts as a replica: the target is scored with each set, a threshold is calibrated on its non-members, and the scores, one
array row per set, go to `stats.count_votes` (StrongMIA Appendix E.2.8).

S: sets of references, R: references of a set, as indices of rows, M: references, C: samples of a block, F: false
positive rates.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_mia import config, stats
from lm_mia.atomic import replacing
from lm_mia.attacks import score_matrix, signals, tables
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.errors import UserError
from lm_mia.seeds import rng


def reference_pairs(inputs: signals.AttackInputs) -> np.ndarray:
    """index_Px2 of references with subset seeds 2i and 2i + 1, both there.

    Under the balanced design a pair shares one draw, so that only whole pairs make independent sets, with as many IN as
    OUT references; under the others any references do, and pairs are as good.
    """
    place = {row.subset_seed: i for i, row in enumerate(inputs.references)}
    found = [
        (i, place[seed + 1]) for seed, i in place.items() if not seed % 2 and seed + 1 in place
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def resampled_references(
    inputs: signals.AttackInputs, c: config.Attack, folder: Path, pool: ThreadPoolExecutor
) -> pd.DataFrame:
    """Flip shares when the first target is fixed and the references vary (StrongMIA Appendix E.2.8).

    Two ways of varying, told apart by the column "sampling": disjoint sets are independent, and the coin-flip cutoff is
    exact; subsampled sets, as many as there are targets, overlap: they depend on each other, and their cutoff only
    describes. Sets are made of whole `pairs`; thresholds are calibrated for every set.
    """
    pair_Px2, half = reference_pairs(inputs), c.resample_references // 2
    fprs, samples = c.fprs, inputs.num_samples
    draw = rng(0, "subsampled reference sets")
    ways = {
        "disjoint": disjoint_sets(len(pair_Px2), half),
        "subsampled (dependent)": subsampled_sets(len(pair_Px2), half, len(inputs.targets), draw),
    }
    one = dataclasses.replace(inputs, targets=inputs.targets[:1])
    found = []
    for name, index_SxR in ways.items():
        sets = len(index_SxR)
        with MembershipScoreFile(folder, sets, samples) as file:
            for s, index_R in enumerate(index_SxR):
                some = one.with_references(pair_Px2[index_R].ravel())
                group = signals.AttackGroup(("lira_online",), c)
                with score_matrix.score_all([group], some, folder, pool) as [(_, files)]:
                    file.write(s, slice(0, samples), files["lira_online"].read_target(0)[None])
            member_SxN2 = np.broadcast_to(inputs.target_member_TxN2[0], (sets, samples))
            points = score_matrix.operating_points(file, member_SxN2, fprs, pool)
            counts = _flip_counts(file, points.threshold_TxF, member_SxN2[0], c, pool)
        table = tables.flip_shares(counts, sets, fprs, c.alpha).drop(columns="replicas")
        for place, (column, value) in enumerate(
            {"sampling": name, "sets": sets, "references_per_set": 2 * half}.items()
        ):
            table.insert(place, column, value)
        found.append(table)
    return pd.concat(found)


def check_not_balanced(inputs: signals.AttackInputs) -> None:
    """UserError where each reference has its complement among the others, which tells who is in the one left out."""
    for pair_2 in reference_pairs(inputs)[:1]:
        _, member_2xN2 = inputs.store.read([inputs.references[i] for i in pair_2])
        if (member_2xN2[0] ^ member_2xN2[1]).all():
            raise UserError(
                "attack.leave_one_out=True: references are complements of each other (train.subset='balanced'), which "
                "gives away who is in the one left out; use the exact or the bernoulli design"
            )


def write_true_positive_probability(
    inputs: signals.AttackInputs, c: config.Attack, path: Path, pool: ThreadPoolExecutor
) -> None:
    """Writes, for every sample, the posterior of membership over the references that trained on it (Appendix E.1).

    Each reference is attacked with all the others. Columns: id, mean and std (ddof 0) of the posterior, the share of
    targets whose posterior is above 1/2, and the number of targets.
    """
    share = 0.5 if c.finite_population else 0.0
    inputs = dataclasses.replace(inputs, targets=inputs.targets[:1])
    scatter_Mx2x2 = None
    if c.variance == "pooled":
        scatter_Mx2x2 = np.zeros((len(inputs.references), 2, 2))
        for block in inputs.blocks():
            scatter_Mx2x2 += stats.leave_one_out_scatter(
                block.reference_loss_MxC, block.reference_member_MxC
            )

    def work(block: signals.SampleBlock) -> pa.Table:
        score_MxC = stats.lira_leave_one_out(
            block.reference_loss_MxC,
            block.reference_member_MxC,
            variance=c.variance,
            sampled_share=share,
            scatter_Mx2x2=scatter_Mx2x2,
        )
        found = stats.true_positive_probability(
            stats.posterior(score_MxC), block.reference_member_MxC
        )
        return pa.table(
            {
                "id": np.arange(block.sample_slice.start, block.sample_slice.stop),
                "mean": found.mean_N,
            }
            | {"std": found.std_N, "share_above_half": found.share_above_half_N}
            | {"targets": found.models_N}
        )

    writer = None
    with replacing(path) as temporary:
        for block in inputs.blocks():
            table = pa.concat_tables(list(map_in_order(pool, work, block.split())))
            writer = writer or pq.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()


def _flip_counts(
    file: MembershipScoreFile,
    threshold_SxF: np.ndarray,
    member_N2: np.ndarray,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> stats.FlipBinCounts:
    def work(at: slice) -> stats.FlipBinCounts:
        votes = stats.count_votes(file.read_samples(at), threshold_SxF)
        return stats.count_flip_bins(votes.votes_FxN, member_N2[at], file.num_targets, c.alpha)

    found = list(map_in_order(pool, work, signals.sample_slices(file.num_samples)))
    return sum(found[1:], start=found[0])


def disjoint_sets(references: int, size: int) -> NDArray[np.int64]:
    """As many sets as there are without a common reference, in the order of the references.

    Models of different subset seeds are independent draws, so these sets are too, and so are a
    sample's decisions given the target: the exact test of `stats.p_value` and its
    coin-flip cutoff apply with B = S. Under the balanced design, where references 2i and 2i + 1
    complement each other, this takes sets of an even size, which split no pair. Few sets give
    little power: below 6 nothing can be told from a coin at alpha = 0.05.

    Args:
      references: how many there are.
      size: references a set, 1 or more.

    Returns:
      index_SxR with S = references // size; what is left over is in no set.

    Raises:
      ValueError: size outside 1 to references.

    Source: StrongMIA Appendix E.2.8.
    """
    _check_size(references, size)
    sets = references // size
    return np.arange(sets * size, dtype=np.int64).reshape(sets, size)


def subsampled_sets(
    references: int, size: int, sets: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Sets drawn from one pool, each without replacement: they overlap and are dependent.

    The votes of such sets are not independent draws. Flip rates over them say how much the choice
    among these references matters, and understate that of references trained anew; the exact test
    of `stats.p_value` does not hold, and its coin-flip cutoff is a mark on the scale, no
    more: descriptive. Label results as such.

    Args:
      references: size of the pool.
      size: references a set, 1 or more; at references all sets are the same.
      sets: how many to draw, 1 or more.
      rng: source of the draws.

    Returns:
      index_SxR, rising within each set.

    Raises:
      ValueError: size outside 1 to references, or sets below 1.

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
