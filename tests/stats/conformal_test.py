"""Conformal p-values: by hand, their exact distribution, and that ties do not change it."""

import numpy as np
import pytest

from lm_mia.stats import conformal_p_value


def test_p_values_by_hand():
    assert conformal_p_value([5.0, 0.0, 2.5, np.nan], [1.0, 2.0, 3.0, np.nan])[:3].tolist() == [
        1 / 4,
        1,
        1 / 2,
    ]
    assert np.isnan(conformal_p_value([np.nan], [1.0])).all()
    assert conformal_p_value([1.0, np.inf, -np.inf], []).tolist() == [1, 1, 1]
    assert conformal_p_value([], [1.0]).size == 0


@pytest.mark.parametrize("digits", [6, 1, 0, -1])
@pytest.mark.parametrize("n", [30, 100])
def test_distribution_is_exact_by_enumeration(n: int, digits: int):
    # Each of n + 1 samples in turn is the new one, which is what exchangeable samples are. At -1 digits all are tied.
    score = np.random.default_rng(n).normal(size=n + 1).round(digits)
    ids = np.random.default_rng(1).permutation(10**4)[: n + 1]
    p = [
        conformal_p_value(
            score[[i]],
            np.delete(score, i),
            id_N=ids[[i]],
            nonmember_id_K=np.delete(ids, i),
        )[0]
        for i in range(n + 1)
    ]
    np.testing.assert_allclose(np.sort(p), np.arange(1, n + 2) / (n + 1), rtol=1e-15)
    for a in (0.05, 0.1, 0.5):
        assert np.sum(np.array(p) <= a) == np.floor(a * (n + 1))


def test_order_of_samples_does_not_matter():
    rng = np.random.default_rng(0)
    score_N, score_K = rng.normal(size=50).round(), rng.normal(size=80).round()
    ids = rng.permutation(1000)
    id_N, id_K = ids[:50], ids[50:130]
    p_N = conformal_p_value(score_N, score_K, id_N=id_N, nonmember_id_K=id_K)
    order_N, order_K = rng.permutation(50), rng.permutation(80)
    again = conformal_p_value(
        score_N[order_N], score_K[order_K], id_N=id_N[order_N], nonmember_id_K=id_K[order_K]
    )
    np.testing.assert_array_equal(again, p_N[order_N])
    # One sample at a time gives the same.
    single = conformal_p_value(score_N[:1], score_K, id_N=id_N[:1], nonmember_id_K=id_K)
    assert single == p_N[0]


def test_samples_among_the_calibrating_ones_are_refused():
    with pytest.raises(ValueError, match="may be equal"):
        conformal_p_value([1.0], [1.0, 2.0], id_N=[1])
    with pytest.raises(ValueError, match="per sample"):
        conformal_p_value([[1.0]], [1.0, 2.0])
