"""Empirical epsilons compared with loops over thresholds, and their bootstrap with explicit resamples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import resamples


def slow_epsilons(score_N, member_N, delta: float, rate: float) -> list[float]:
    """Computes the four estimates from the vertices of the ROC curve, one threshold after another."""
    thresholds = [np.inf, *sorted(set(score_N), reverse=True)]
    vertices = []
    for threshold in thresholds:
        called = score_N >= threshold
        tp, fp = int(called[member_N].sum()), int(called[~member_N].sum())
        vertices.append((tp, fp))
    m, n = int(member_N.sum()), int((~member_N).sum())
    first_tpr = next(v for v in vertices if v[0] / m >= rate)
    last_fpr = next(v for v in reversed(vertices) if v[1] / n <= rate)
    last_tnr = next(v for v in reversed(vertices) if (n - v[1]) / n >= rate)
    first_fnr = next(v for v in vertices if (m - v[0]) / m <= rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [np.log(tp / m - delta) - np.log(fp / n) for tp, fp in (first_tpr, last_fpr)]
        values += [
            np.log((n - fp) / n - delta) - np.log((m - tp) / m) for tp, fp in (last_tnr, first_fnr)
        ]
    return [float(v) if v != -np.inf else np.nan for v in values]


def fields(result: stats.EmpiricalEpsilons) -> np.ndarray:
    return np.array([result.tpr_G, result.fpr_G, result.tnr_G, result.fnr_G])


def test_by_hand():
    # Thresholds 5, 4, 3, 2, 1, 0 with (TPR, FPR) (1/4, 0), (1/2, 0), (3/4, 1/4), (3/4, 1/2), (1, 3/4), (1, 1).
    member_N = np.arange(8) < 4
    score_N = [5, 4, 3, 1, 3, 2, 1, 0]
    actual = stats.empirical_epsilons(score_N, member_N, delta=0.0, rates_G=[0.5, 0.75])
    np.testing.assert_allclose(actual.tpr_G, [np.inf, np.log(3)])
    np.testing.assert_allclose(actual.fpr_G, np.log([1.5, 4 / 3]))
    np.testing.assert_allclose(actual.tnr_G, np.log([2, 3]))
    np.testing.assert_allclose(actual.fnr_G, np.log([2, 4 / 3 / (1 / 1)]) * [1, 1])
    with_delta = stats.empirical_epsilons(score_N, member_N, delta=0.25, rates_G=0.75)
    assert with_delta.tpr_G[0] == pytest.approx(np.log(2))


@given(
    seed=st.integers(0, 999),
    samples=st.integers(2, 80),
    digits=st.sampled_from([0, 6]),
    delta=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=40, deadline=None)
def test_equals_a_loop_over_thresholds(seed: int, samples: int, digits: int, delta: float):
    rng = np.random.default_rng(seed)
    member_N = rng.random(samples) < 0.5
    member_N[:2] = True, False
    score_N = np.round(rng.normal(size=samples) + member_N, digits)
    rates = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]
    actual = stats.empirical_epsilons(score_N, member_N, delta=delta, rates_G=rates)
    slow = np.transpose([slow_epsilons(score_N, member_N, delta, rate) for rate in rates])
    np.testing.assert_allclose(fields(actual), slow, rtol=1e-9, atol=1e-12)


def test_missing_scores_and_classes():
    score_N, member_N = np.array([np.nan, 3, 1, np.nan]), np.array([True, True, False, False])
    result = stats.empirical_epsilons(score_N, member_N, delta=0.0)
    assert result.left_out == 2
    assert result.rates_G.size == 99
    assert np.all(result.tpr_G == np.inf)
    without = stats.empirical_epsilons(score_N, np.ones(4, bool), delta=0.0)
    assert np.isnan(fields(without)).all()
    intervals = stats.epsilon_intervals(score_N, np.ones(4, bool), delta=0.0, replicates=2)
    assert np.isnan(intervals.largest_T[0])
    assert intervals.left_out_T[0] == 2
    for bad in ({"delta": 1.0}, {"delta": -0.1}, {"delta": 0.0, "rates_G": 1.5}):
        with pytest.raises(ValueError, match=r"delta|rates"):
            stats.empirical_epsilons(score_N, member_N, **bad)


def test_cap():
    capped = stats.capped_epsilon([np.inf, 1.0, np.nan, -2.0], 100)
    np.testing.assert_array_equal(capped, [np.log(100), 1.0, np.nan, -2.0])
    with pytest.raises(ValueError, match="members=0"):
        stats.capped_epsilon(1.0, 0)


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("digits", [0, 6])
def test_replicates_equal_explicit_resamples(
    digits: int, clusters: bool, monkeypatch: pytest.MonkeyPatch
):
    rng = np.random.default_rng(3)
    member_N = np.arange(150) < 70
    score_N = np.round(rng.normal(size=150) + member_N, digits)
    cluster_N = np.arange(150) % 75 if clusters else None
    monkeypatch.setattr(resamples, "_BLOCK", 300)

    def interval(replicate: int) -> np.ndarray:
        # The interval of one replicate is its value.
        r = stats.epsilon_intervals(
            score_N,
            member_N,
            delta=0.01,
            at_tpr=0.3,
            replicates=1,
            seed=replicate,
            cluster_N=cluster_N,
        )
        assert r.largest_low_T[0] == r.largest_high_T[0]
        return np.array([r.at_tpr_low_T[0], r.largest_low_T[0], r.balanced_accuracy_low_T[0]])

    for seed in range(4):
        if clusters:
            drawn = np.random.default_rng(seed).integers(75, size=(1, 75))[0]
            index = np.concatenate([np.flatnonzero(cluster_N == c) for c in drawn])
        else:
            streams = np.random.SeedSequence(seed).spawn(2)
            order = [
                np.flatnonzero(c)[np.argsort(score_N[c], kind="stable")]
                for c in (~member_N, member_N)
            ]
            index = np.concatenate(
                [
                    o[np.random.default_rng(s).integers(o.size, size=o.size)]
                    for o, s in zip(order, streams, strict=True)
                ]
            )
        score, member = score_N[index], member_N[index]
        rates = np.arange(1, 100) / 100
        largest = np.nanmax([slow_epsilons(score, member, 0.01, rate) for rate in rates])
        at = slow_epsilons(score, member, 0.01, 0.3)[0]
        accuracy = stats.max_balanced_accuracy(score, member).balanced_accuracy_T[0]
        expected = [*np.minimum([at, largest], np.log(70)), accuracy]
        np.testing.assert_allclose(interval(seed), expected, rtol=1e-9)


def test_intervals_of_several_targets_and_order_of_ends():
    rng = np.random.default_rng(0)
    member_TxN = rng.random((2, 2000)) < 0.5
    score_TxN = rng.normal(size=(2, 2000)) + 2 * member_TxN
    both = stats.epsilon_intervals(score_TxN, member_TxN, delta=1e-5, at_tpr=0.5, replicates=50)
    second = stats.epsilon_intervals(
        score_TxN[1], member_TxN[1], delta=1e-5, at_tpr=0.5, replicates=50
    )
    assert both.largest_high_T[1] == second.largest_high_T[0]
    assert np.all(both.at_tpr_low_T < both.at_tpr_T)
    assert np.all(both.at_tpr_T < both.at_tpr_high_T)
    assert np.all(both.balanced_accuracy_low_T < both.balanced_accuracy_T)
    estimates = stats.empirical_epsilons(score_TxN[0], member_TxN[0], delta=1e-5)
    assert both.at_tpr_T[0] == estimates.tpr_G[49]
    largest = stats.capped_epsilon(np.nanmax(fields(estimates)), int(member_TxN[0].sum()))
    assert both.largest_T[0] == largest


def test_known_rates():
    # N(1, 1) against N(0, 1) at TPR 0.5: FPR = Phi(-1).
    member_N = np.arange(40_000) % 2 == 0
    score_N = np.random.default_rng(1).normal(size=40_000) + member_N
    result = stats.epsilon_intervals(score_N, member_N, delta=0.0, at_tpr=0.5, replicates=100)
    truth = np.log(0.5 / 0.158655)
    assert result.at_tpr_low_T[0] < truth < result.at_tpr_high_T[0]
    assert result.balanced_accuracy_T[0] == pytest.approx(0.69146, abs=0.01)
