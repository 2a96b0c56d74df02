"""What studies read: the models of a recipe, and their membership scores with parts of the references.

B: replicas, T: attacked models, R: references, S: sets of references, N: the samples that are used, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import registry, score_matrix, spec
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.inputs import AttackInputs, Block, FitInputs, open_inputs
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

if TYPE_CHECKING:  # it imports this module
    from lm_mia.attacks.studies import StudyView

FIRST_SAMPLES = 2**15
"""The number of samples that are used, which bounds time and memory. The first samples are a random choice, since the
population is in random order."""
FEWEST_REPLICAS = 9
"""Studies need this many replicas. With fewer, too few would remain without a group of them."""
PARTS = ("replicas", "references", "samples")
"""Columns of the tables for intervals: which models, references and samples a row uses. 0 stands for all; k > 0 for
all replicas but those of group k - 1, for half k - 1 of the references, and for half k - 1 of the samples."""

Out = TypeVar("Out")


def replicas(view: "StudyView", fewest_references: int = 4) -> AttackInputs:
    """Returns the replicas and references that are present; raises Unavailable if there are fewer than required."""
    targets, references = view.replicas, view.references
    if len(targets) < FEWEST_REPLICAS or len(references) < fewest_references:
        raise Unavailable(
            f"{len(targets)} replicas and {len(references)} references are present, but at least "
            f"{FEWEST_REPLICAS} and {fewest_references} are needed; run lm-mia run with larger "
            "--config.attack.replicas and --config.attack.references"
        )
    design = model_design(view.store, view.present)
    return open_inputs(view.store, view.attacked, targets, references, (), design=design)


def reference_halves(references: Sequence[ModelSeeds]) -> list[np.ndarray]:
    """Returns index_R of all references and, if there are at least 16, of each half (`spec.half_groups`)."""
    group_R = spec.reference_groups(model.subset_seed for model in references)
    halves = range(spec.num_reference_parts(len(references), 0))
    return [
        np.flatnonzero(np.isin(group_R, [*groups]))
        for groups in (range(spec.JACKKNIFE_GROUPS), *map(spec.half_groups, halves))
    ]


def map_reference_sets(
    inputs: AttackInputs,
    index_SxR: Sequence[np.ndarray],
    lira: Mapping[str, Any],
    pool: ThreadPoolExecutor,
    evaluate: Callable[[int, np.ndarray], Out],
    max_samples: int = FIRST_SAMPLES,
) -> list[Out]:
    """Attacks the first samples with several sets of references by online LiRA, and evaluates the scores of each set.

    Args:
      inputs: the models.
      index_SxR: the positions of the references of each set.
      lira: the settings that `lira_online` reads.
      pool: threads, each of which evaluates one set.
      evaluate: called with the number of a set and score_TxN, in threads.
      max_samples: the number of samples that are used, if there are as many.

    Returns:
      The results in the order of the sets.
    """
    attack, every = registry.find("lira_online"), FitInputs(inputs)
    fits = registry.fit_attacks(
        [registry.Task(attack, every.select(index_R), lira) for index_R in index_SxR]
    )
    parts = first_parts(inputs, max_samples)

    def work(s: int) -> Out:
        scores = [fits[s](part.with_references(index_SxR[s])) for part in parts]
        return evaluate(s, np.concatenate(scores, axis=1))

    return list(score_matrix.map_in_order(pool, work, range(len(fits))))


def first_parts(inputs: AttackInputs, max_samples: int = FIRST_SAMPLES) -> list[Block]:
    """Returns the first samples as blocks, one for each task of a thread; raises UserError for corrupt shards."""
    blocks = (part for block in inputs.blocks() for part in block.split())
    parts: list[Block] = []
    samples = 0
    while samples < min(max_samples, inputs.num_samples):
        parts.append(next(blocks))
        samples = parts[-1].at.stop
    return parts


def has_threshold(nonmember_score_BxN: np.ndarray, fpr: float) -> bool:
    """Returns whether there are enough non-members for a false positive rate; else nothing is known at this rate."""
    return nonmember_score_BxN.shape[1] >= stats.nonmembers_needed(fpr)


def thresholds_at_fpr(nonmember_score_BxN: np.ndarray, fpr: float) -> np.ndarray:
    """Returns threshold_B: the threshold of each replica at a false positive rate."""
    return np.array([stats.threshold_at_fpr(score_N, fpr) for score_N in nonmember_score_BxN])


def without_replicas(replicas: int) -> list[np.ndarray]:
    """Returns booleans kept_B: all replicas, and then all but each of up to 8 groups of them."""
    groups = min(spec.JACKKNIFE_GROUPS, replicas)
    group_B = np.arange(replicas) % groups
    return [group_B >= 0, *(group_B != group for group in range(groups))]


def parts_table(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    """Returns a table for intervals: a row for each choice of replicas, references and samples (`PARTS`).

    Args:
      columns: name -> value_A1xR1xH1.
    """
    shape = next(iter(columns.values())).shape
    index = dict(zip(PARTS, (axis.ravel() for axis in np.indices(shape)), strict=True))
    return pd.DataFrame(index | {name: value.ravel() for name, value in columns.items()})


def sample_parts(group_N: np.ndarray) -> np.ndarray:
    """Returns used_H1xN: all samples, and then each half (`stats.HALVES_HxG`).

    Args:
      group_N: the result of `stats.sample_groups`.
    """
    return np.concatenate([np.ones((1, len(group_N)), np.bool_), stats.HALVES_HxG[:, group_N]])
