"""Empirical epsilon and balanced accuracy of attacks on targets, and bounds on epsilon from the run of each target.

T: targets, N2: samples of the population (2N), H: halves of the samples, H1: all samples, and then each half of them,
K: estimates and bounds.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.spec import EPSILON_TPRS

_ESTIMATES = (*(f"epsilon_at_tpr_{tpr:g}" for tpr in EPSILON_TPRS), "balanced_accuracy")
_BOUNDS = ("canaries", "guesses", "correct", "epsilon", "epsilon_if_gaussian", "mu", "ceiling")
COLUMNS = ("target", "half", *_ESTIMATES, *(f"bound_{name}" for name in _BOUNDS))
"""The columns of the table, apart from the attack."""


def epsilons(
    file: MembershipScoreFile,
    targets: Sequence[str],
    member_TxN2: np.ndarray,
    group_N2: np.ndarray,
    c: config.Attack,
    has_bounds: bool,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns the estimates and bounds of every target, with the estimates on halves of the samples.

    Args:
      file: the membership scores of an attack.
      targets: the names of the targets.
      member_TxN2: membership of the samples in the training subset of each target.
      group_N2: the result of `stats.sample_groups`.
      c: settings of the recipe, among them attack.delta and the level of the bounds, attack.alpha.
      has_bounds: whether bounds are computed; otherwise their columns are NaN.
      pool: threads, one target at a time each.

    Returns:
      Rows of `COLUMNS`, where half 0 is all samples and half h is ``stats.HALVES_HxG[h - 1]``. Estimates of epsilon
      are at most the logarithm of the number of members with a score. Bounds are in the rows of all samples.
    """
    half_HxN2 = stats.HALVES_HxG[:, group_N2]

    def evaluate_target(t: int) -> list[list[float]]:
        score_N2, member_N2 = file.read_target(t), member_TxN2[t]
        members = max(int((member_N2 & ~np.isnan(score_N2)).sum()), 1)
        rows = [_estimates(score_N2, member_N2, members, c.delta)]
        rows[0] += _bound(score_N2, member_N2, c) if has_bounds else [np.nan] * len(_BOUNDS)
        for half_N2 in half_HxN2:
            estimates = _estimates(score_N2[half_N2], member_N2[half_N2], members, c.delta)
            rows.append(estimates + [np.nan] * len(_BOUNDS))
        return rows

    value_TxH1xK = np.array([*map_in_order(pool, evaluate_target, range(len(targets)))])
    table = pd.DataFrame(value_TxH1xK.reshape(-1, len(COLUMNS) - 2), columns=[*COLUMNS[2:]])
    halves = len(half_HxN2) + 1
    table.insert(0, "target", np.repeat(targets, halves))
    table.insert(1, "half", np.tile(np.arange(halves), len(targets)))
    return table


def _estimates(
    score_N: np.ndarray, member_N: np.ndarray, members: int, delta: float
) -> list[float]:
    """Returns the values of `_ESTIMATES`; epsilons are at most ln(members)."""
    epsilons = stats.empirical_epsilons(score_N, member_N, delta=delta, rates_G=EPSILON_TPRS)
    accuracy = stats.max_balanced_accuracy(score_N, member_N).balanced_accuracy_T
    return [*map(float, stats.capped_epsilon(epsilons.tpr_G, members)), *map(float, accuracy)]


def _bound(score_N: np.ndarray, member_N: np.ndarray, c: config.Attack) -> list[float]:
    """Returns the values of `_BOUNDS`: pairs of a member and a non-member are valid for every design of the subsets."""
    bound = stats.one_run_bound(
        score_N, member_N, membership="half", delta=c.delta, confidence=1 - c.alpha
    )
    return [float(getattr(bound, name)) for name in _BOUNDS]
