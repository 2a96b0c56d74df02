"""Attacks on every reference as a target: models with training subsets of their own, each attacked with the others.

The replicas of one target show how much the attack varies when a model is trained again on the same subset, from the
same initial weights. The references differ in both, so attacks on them show how much it varies between models. Each
reference is attacked with online LiRA and all other references (Carlini et al. 2022). Those that would reveal its
members, such as its complement in a balanced design, are left out, too (see `stats.lira_leave_one_out`).

M: attacked references, C: samples of a block, F: false positive rates, N2: samples of the population (2N).
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa

from lm_mia import config, stats
from lm_mia.attacks import rate_intervals, score_matrix, spec
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import reference_design
from lm_mia.attacks.inputs import AttackInputs, Block
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.table_sets import Facts, TableSet, Work, Write
from lm_mia.data.subsets import ModelSeeds

TABLE, PROBABILITIES = "reference_targets.csv", "true_positive_probability.parquet"
INTERVALS = "reference_intervals.csv"
"""Rows of intervals.csv."""


REFERENCE_TARGETS_TABLE = Table(
    "reference_targets.csv",
    (
        "Shows how much an attack varies between models with other subsets and initial weights, which replicas share. "
        "Each row is a reference, which is attacked with online LiRA and all other references (Carlini et al. 2022), "
        "without those whose training subset is that of the target, or its complement (`train.subset=balanced`), since "
        "the number of references that were trained on a sample would reveal whether the target was. If every sample "
        "is in the same number of subsets, a random reference of the other class is left out for each sample, too."
    ),
    {
        **common("target"),
        "references": Column(
            "count",
            (
                "all others whose subset is not that of the target or its complement; one fewer if every sample is in "
                "the same number of subsets"
            ),
        ),
        **common("auc", "tpr_at_FPR", "members", "nonmembers", "left_out"),
    },
    key=("target",),
)


TRUE_POSITIVE_PROBABILITY_TABLE = Table(
    "true_positive_probability.parquet",
    (
        "Written with the tables of decisions, if `attack.leave_one_out` is set. Every reference is attacked as in "
        "`reference_targets.csv`. Each row is a sample, and numbers are over the references that were trained on it. "
        "StrongMIA Appendix E.1, Figure 21."
    ),
    {
        **common("id"),
        "mean, std": Column(
            "fraction",
            "mean and standard deviation of the posterior; like the next one, empty if `targets` is 0",
        ),
        "share_above_half": Column("fraction", "references whose posterior is above 1/2"),
        "targets": Column("count", "references that have a posterior for the sample"),
    },
    key=("id",),
)


def table_set(
    open_inputs: Callable[[], AttackInputs],
    references: Sequence[ModelSeeds],
    c: config.Attack,
    group_N2: Callable[[], np.ndarray],
    work: Work,
) -> TableSet:
    """Returns the tables of online LiRA on every reference.

    Args:
      open_inputs: opens the models.
      references: the references, which are attacked.
      c: settings of the recipe.
      group_N2: computes `stats.sample_groups`.
      work: threads that compute parts of the samples, or targets.
    """

    def compute(write: Write) -> Facts:
        attack_references(open_inputs(), c, group_N2(), work, write)
        return {}

    names = [*map(str, references)]
    settings = {"config": spec.decision_settings(c), "reference_models": names}
    return TableSet("reference_targets", references, settings, compute)


def attack_references(
    inputs: AttackInputs, c: config.Attack, group_N2: np.ndarray, work: Work, write: Write
) -> None:
    """Computes AUC and TPRs of online LiRA on every reference, and with bootstrap draws the rows of intervals.csv.

    With attack.leave_one_out, also the posterior of membership of every sample over the references that trained on it
    (Appendix E.1).

    Args:
      inputs: the models; only the references are attacked.
      c: settings of the recipe.
      group_N2: the result of `stats.sample_groups`.
      work: threads that compute parts of the samples, or targets.
      write: stores a table.
    """
    inputs = dataclasses.replace(inputs, targets=inputs.targets[:1], statistics=())
    models = inputs.references
    design = reference_design(inputs.store, models)
    with MembershipScoreFile(work.folder, len(models), inputs.num_samples) as file:
        probabilities = _write_scores(inputs, c, design, file, work.pool)
        if c.leave_one_out:
            write(PROBABILITIES, probabilities)
        else:
            for _ in probabilities:
                pass
        points = score_matrix.operating_points(file, _members(inputs), c.fprs, work.pool)
        if c.bootstraps:
            halves = score_matrix.rates_of_halves(
                file, _members(inputs), group_N2, c.fprs, work.pool
            )
            rows = rate_intervals.mean_interval("reference", points, halves, c.fprs)
            write(INTERVALS, rows)
    table = pd.DataFrame({"target": [*map(str, models)]})
    table["references"] = len(models) - np.bincount(design.group_M)[design.group_M]
    table["auc"] = points.auc_T
    for f, fpr in enumerate(c.fprs):
        table[f"tpr_at_{fpr:g}"] = points.tpr_TxF[:, f]
    table["members"], table["nonmembers"] = points.members_T, points.nonmembers_T
    write(TABLE, table.assign(left_out=points.left_out_T))


def _members(inputs: AttackInputs) -> Iterator[np.ndarray]:
    """Yields member_N2 of each reference, so that not all of them are in memory."""
    for model in inputs.references:
        [(_, value)] = inputs.store.canary_blocks({"member": ("member", [model])}, sys.maxsize)
        yield value["member"][0]


def _write_scores(
    inputs: AttackInputs,
    c: config.Attack,
    design: stats.Design,
    file: MembershipScoreFile,
    pool: ThreadPoolExecutor,
) -> Iterator[pa.Table]:
    """Writes the scores of every sample under every reference to the file; yields rows of the posteriors of blocks.

    The rows are empty tables unless attack.leave_one_out is set.
    """
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
        scatter_Mx2x2 = sum(map_in_order(pool, scatter, parts), np.zeros((file.num_targets, 2, 2)))

    def score(part: Block) -> pa.Table:
        score_MxC = stats.lira_leave_one_out(
            part.reference_loss_RxC,
            part.reference_member_RxC,
            variance=c.variance,
            sampled_share=0.5 if c.finite_population else 0.0,
            design=design,
            id_N=inputs.ids(part.at),
            scatter_Mx2x2=scatter_Mx2x2,
        )
        file.write(0, part.at, score_MxC)
        if not c.leave_one_out:
            return pa.table({})
        return _probability_rows(inputs.ids(part.at), part, score_MxC)

    for block in inputs.blocks():
        yield pa.concat_tables([*map_in_order(pool, score, block.split())])


def _probability_rows(id_C: np.ndarray, part: Block, score_MxC: np.ndarray) -> pa.Table:
    """Returns rows of true_positive_probability.parquet: id; mean, std (ddof 0) and share above 1/2 of the posteriors
    under the references that trained on the sample, and their number."""
    estimate = stats.true_positive_probability(
        stats.posterior(score_MxC), part.reference_member_RxC
    )
    return pa.table(
        {"id": id_C, "mean": estimate.mean_N}
        | {"std": estimate.std_N, "share_above_half": estimate.share_above_half_N}
        | {"targets": estimate.models_N}
    )
