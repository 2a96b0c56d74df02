import numpy as np
import pytest

from lm_mia import stats
from lm_mia.stats import causal_roc


def test_few_thresholds_and_groups_change_little(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    member_N = np.arange(1800) < 900
    x_N = rng.normal(size=1800) + member_N - 0.5
    score_N = x_N + rng.normal(size=1800) + 0.5 * member_N
    outcome = stats.OutcomeModel(0.8 * x_N, rng.normal(size=300))

    def estimate() -> list[stats.CausalEstimate]:
        return [
            stats.g_formula_estimate(score_N, member_N, outcome, [0.05, 0.2]),
            stats.aipw_estimate(score_N, member_N, x_N, outcome, [0.05, 0.2]),
        ]

    exact = estimate()
    monkeypatch.setattr(causal_roc, "MAX_DISTINCT_SCORES", 200)
    monkeypatch.setattr(causal_roc, "MAX_PREDICTIONS", 100)
    for thinned, full in zip(estimate(), exact, strict=True):
        assert full.curve.threshold_K.size == 2 * 1800 + 2
        assert thinned.curve.threshold_K.size == 2 * 200 + 2
        assert thinned.ate == pytest.approx(full.ate)
        assert thinned.auc == pytest.approx(full.auc, abs=1e-3)
        assert thinned.youden == pytest.approx(full.youden, abs=5e-3)
        # Within the true positive rate of two neighboring thresholds.
        np.testing.assert_allclose(thinned.tpr_F, full.tpr_F, atol=6e-3)
        # The largest scores remain thresholds.
        np.testing.assert_array_equal(thinned.curve.threshold_K[:201], full.curve.threshold_K[:201])
