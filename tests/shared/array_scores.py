"""Membership scores from arrays, as evaluations see them."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from synthetic_scores import FakePopulation

from lm_mia import stats
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.attacks.spec import AttackSpec
from lm_mia.data import subsets


@contextlib.contextmanager
def array_scores(
    score_TxN: np.ndarray,
    member_TxN: np.ndarray,
    folder: Path,
    *,
    replicas: bool = True,
    document_N: np.ndarray | None = None,
) -> Iterator[Scores]:
    """Context manager that yields the scores of an attack without references.

    Args:
      score_TxN: membership scores.
      member_TxN: members of each model.
      folder: folder for a temporary file.
      replicas: whether the models are replicas.
      document_N: the document of each sample, if documents are split.
    """
    targets, samples = score_TxN.shape
    population: Any = FakePopulation(samples)
    if document_N is not None:
        population.document_N, population.has_split_documents = document_N, True
    name = subsets.replica if replicas else subsets.reference
    inputs = AttackInputs(
        cast(Any, None),
        [*map(name, range(targets))],
        [],
        member_TxN,
        population.column("zlib_bytes"),
        np.zeros((samples, 0), np.float32),
    )
    spec = AttackSpec("loss", replicas, tuple(range(targets)), ())
    with MembershipScoreFile(folder, targets, samples) as file, ThreadPoolExecutor(2) as pool:
        file.write(0, slice(0, samples), score_TxN)
        group_N = stats.sample_groups(population.document_N)
        yield Scores(spec, file, None, inputs, population, group_N, pool)
