"""Bounds and estimates of epsilon of differential privacy from the scores of one target.

N2: samples that training subsets are drawn from.
"""

from collections.abc import Callable

import numpy as np

from lm_mia import stats
from lm_mia.attacks.evaluations import Scores
from lm_mia.data.subsets import Design

AT_TPR = 0.01
"""The true positive rate of the first estimate, as in PrivacyGuard."""
CONFIDENCE = 0.95
"""Of the intervals of estimates, as in intervals.csv."""


def epsilon_intervals(scores: Scores, bootstraps: int, delta: float) -> stats.EpsilonIntervals:
    """Returns estimates with their intervals for the first target, whose confidence is that of intervals.csv."""
    return stats.epsilon_intervals(
        scores.file.read_target(0),
        scores.member_TxN[0],
        delta=delta,
        at_tpr=AT_TPR,
        confidence=CONFIDENCE,
        replicates=bootstraps,
        cluster_N=scores.cluster_N,
    )


def one_run_bound(
    score_N2: np.ndarray, member_N2: np.ndarray, design: Design, alpha: float, delta: float
) -> stats.OneRunBound | None:
    """Returns the bound of one target; None if it is not known how the membership was drawn."""
    if design == "given":
        return None
    return stats.one_run_bound(
        score_N2,
        member_N2,
        membership="coins" if design == "bernoulli" else "half",
        delta=delta,
        confidence=1 - alpha,
    )


def say_if_delta_is_large(
    delta: float, canaries: int, design: Design, say: Callable[[str], None]
) -> None:
    """Tells the user if delta is so large that the audit can hardly show anything."""
    if design != "bernoulli":
        canaries //= 2  # pairs
    if design != "given" and delta * canaries > 1:
        say(
            f"attack.delta={delta:g}: above 1/{canaries:,}, one over the number of canaries, so a mechanism may "
            f"reveal a whole canary, and the bounds of audit.csv can hardly show anything; try "
            f"--config.attack.delta={0.1 / canaries:.0e}"
        )
