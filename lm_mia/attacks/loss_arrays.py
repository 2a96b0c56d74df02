"""Attacks on losses that are in arrays instead of a score store, for `lm-mia audit`.

T: targets, M: references, N: samples, C: samples of a block, K: covariates of a sample.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lm_mia import config
from lm_mia.attacks import signals
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.config import AttackName
from lm_mia.data.score_arrays import SAMPLE_COLUMNS, Losses

ATTACKS: tuple[AttackName, ...] = (
    "lira_online",
    "lira_offline",
    "rmia",
    "rmia_offline",
    "rmia_simple",
    "reference_calibrated",
    "shrunk",
    "stacked",
    "loss",
)
"""The attacks that need nothing but losses."""


@dataclasses.dataclass(frozen=True)
class LossBlocks:
    """The losses of an npz file, a block of samples at a time."""

    losses: Losses

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.losses.target_loss_TxN.shape[1]

    def blocks(self) -> Iterator[signals.SampleBlock]:
        """Yields all samples in order."""
        losses = self.losses
        columns = losses.columns_N
        covariate_NxK = np.empty((self.num_samples, 0), np.float32)
        if len(columns) == len(SAMPLE_COLUMNS):
            covariate_NxK = signals.sample_covariates(columns.__getitem__)
        for low in range(0, self.num_samples, signals.BLOCK_SAMPLES):
            at = slice(low, min(low + signals.BLOCK_SAMPLES, self.num_samples))
            yield signals.SampleBlock(
                at,
                np.ascontiguousarray(losses.target_loss_TxN[:, at]),
                np.ascontiguousarray(losses.reference_loss_MxN[:, at]),
                np.ascontiguousarray(losses.reference_member_MxN[:, at]),
                {},
                np.zeros(at.stop - at.start),  # used only by attacks on texts
                covariate_NxK[at],
            )


def score_attack(losses: Losses, attack: AttackName, pool: ThreadPoolExecutor) -> np.ndarray:
    """Returns score_TxN of an attack, with the default settings of `lm_mia.config.Attack`.

    Args:
      losses: the losses of targets and references.
      attack: one of `ATTACKS`.
      pool: threads that compute parts of the samples.
    """
    inputs = LossBlocks(losses)
    group = signals.AttackGroup((attack,), config.Attack())
    [fit] = signals.fit_attacks(inputs, [group])
    score_TxN = np.empty(losses.target_loss_TxN.shape)

    def score(part: signals.SampleBlock) -> None:
        score_TxN[:, part.sample_slice] = signals.membership_scores(group, part, fit)[attack]

    for block in inputs.blocks():
        for _ in map_in_order(pool, score, block.split()):
            pass
    return score_TxN
