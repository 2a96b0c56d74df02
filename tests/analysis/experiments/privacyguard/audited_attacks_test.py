"""Empirical epsilons of attacks with parts of their references."""

import numpy as np
import pandas as pd
import pytest

from analysis.experiments.privacyguard.audited_attacks import AttackEpsilons


def rows(value_TxH1: np.ndarray) -> pd.DataFrame:
    targets, halves = value_TxH1.shape
    return pd.DataFrame(
        {
            "target": np.repeat([f"reference-{t}" for t in range(targets)], halves),
            "half": np.tile(np.arange(halves), targets),
            "epsilon_at_tpr_0.01": value_TxH1.ravel(),
            "bound_epsilon": np.where(np.arange(halves) == 0, value_TxH1 - 1, np.nan).ravel(),
        }
    )


def test_sets_of_references_replace_the_first_references():
    rng = np.random.default_rng(0)
    level_8 = rng.normal(1, 0.2, 8)  # of the sets
    target_Tx1, noise_8xTxH1 = rng.normal(0, 0.1, (4, 1)), rng.normal(0, 0.05, (8, 4, 15))
    sets_8xTxH1 = level_8[:, None, None] + target_Tx1 + noise_8xTxH1
    few = AttackEpsilons(rows(sets_8xTxH1[0]), [], "4 targets", ("the references",))
    many = AttackEpsilons(
        rows(sets_8xTxH1[0]), [rows(value_TxH1) for value_TxH1 in sets_8xTxH1], "all", ()
    )
    estimates = [x.jackknife("epsilon_at_tpr_0.01").estimate() for x in (few, many)]
    assert estimates[0].value == pytest.approx(sets_8xTxH1[0, :, 0].mean())
    assert estimates[1].value == pytest.approx(sets_8xTxH1[:, :, 0].mean())
    assert estimates[0].not_covered == ("the references",)
    # The spread over sets of references is part of the second interval only.
    spread = level_8.std(ddof=1) / np.sqrt(8)
    assert estimates[1].standard_error > 0.5 * spread
    np.testing.assert_allclose(few.bound("bound_epsilon"), sets_8xTxH1[0, :, 0] - 1)
