import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats

TIED = st.lists(st.integers(-3, 3), min_size=1, max_size=40).map(lambda x: np.array(x, float))
RATES = st.one_of(
    st.floats(0, 1), st.integers(0, 100).map(lambda i: i / 100), st.just(1.0), st.just(0.0)
)


def slow_threshold(scores, fpr):
    """Computes the definition in rational numbers, with the rate as its shortest decimal representation."""
    n, ranked = len(scores), sorted(scores)
    k = -((Fraction(repr(fpr)) - 1) * n // 1)  # ceil((1 - fpr) n)
    return min((s for s in ranked if s > ranked[k - 1]), default=np.inf) if k else -np.inf


def slow_tpr_of_vertex(out, ins, fpr):
    """Returns the highest TPR of all points of the ROC curve whose FPR is at most fpr, over all thresholds."""
    thresholds = [-np.inf, *out, *ins, np.inf]
    allowed = [t for t in thresholds if np.mean(out >= t) <= fpr]
    return max(np.mean(ins >= t) for t in allowed)


def slow_auc(out, ins):
    return np.mean([(i > o) + 0.5 * (i == o) for i in ins for o in out])


def random_scores(seed, T=3, N=200, ties=False, missing=0.1):
    rng = np.random.default_rng(seed)
    member_N = rng.random(N) < 0.5
    score_TxN = rng.normal(size=(T, N)) + member_N
    score_TxN = np.round(score_TxN) if ties else score_TxN
    score_TxN[rng.random((T, N)) < missing] = np.nan
    return score_TxN, member_N


def test_threshold_by_hand():
    scores = [4.0, 1.0, 3.0, 2.0]
    # k = 4, 3, 2, 1, 0: the next score above the k-th.
    assert stats.threshold_at_fpr(scores, 0.0) == np.inf
    assert stats.threshold_at_fpr(scores, 0.24) == np.inf
    assert stats.threshold_at_fpr(scores, 0.25) == 4
    assert stats.threshold_at_fpr(scores, 0.5) == 3
    assert stats.threshold_at_fpr(scores, 0.75) == 2
    assert stats.threshold_at_fpr(scores, 1.0) == -np.inf
    # Ties: a threshold of 2 would have three false positives of four, so there are none.
    assert stats.threshold_at_fpr([1, 2, 2, 2], 0.5) == np.inf
    assert stats.threshold_at_fpr([1, 2, 2, 2], 0.75) == 2
    assert stats.threshold_at_fpr([1, 2, 2, 5], 0.5) == 5
    assert stats.threshold_at_fpr([5, 5, 5, 5], 0.99) == np.inf
    assert stats.threshold_at_fpr([5, 5, 5, 5], 1) == -np.inf


def test_vertex_is_the_next_number_above_the_score():
    scores = [4.0, 1.0, 3.0, 2.0]
    above = {score: math.nextafter(score, math.inf) for score in (1, 2, 3, 4)}
    actual = [stats.threshold_at_fpr(scores, f, at="vertex") for f in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert actual == [above[4], above[3], above[2], above[1], -np.inf]
    assert stats.threshold_at_fpr([1, 2, 2, 2], 0.5, at="vertex") == above[2]
    points = stats.tpr_at_fpr(scores, np.zeros(4, bool), [0.25, 0.25], at=["vertex", "paper"])
    np.testing.assert_array_equal(points.threshold_TxF, [[above[3], 4]])


def test_members_between_two_nonmembers_are_not_detected():
    # At FPR 1/4 one non-member may be called a member: 6. Members between it and the next one, 2, are not.
    score, member = [5.0, 7, 3, 6, 2, 1, 0], np.arange(7) < 3
    points = stats.tpr_at_fpr(score, member, [0.0, 0.25, 0.5, 1.0])
    np.testing.assert_array_equal(points.tpr_TxF, [[0, 1 / 3, 1, 1]])
    np.testing.assert_array_equal(points.realized_fpr_TxF, [[0, 0.25, 0.5, 1]])
    vertex = stats.tpr_at_fpr(score, member, [0.0, 0.25, 0.5, 1.0], at="vertex")
    np.testing.assert_array_equal(vertex.tpr_TxF, [[1 / 3, 1, 1, 1]])
    np.testing.assert_array_equal(vertex.realized_fpr_TxF, points.realized_fpr_TxF)
    intervals = stats.bootstrap_intervals(score, member, [0.0, 0.25, 0.5], replicates=9)
    np.testing.assert_array_equal(intervals.tpr_TxF, points.tpr_TxF[:, :3])


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("fpr", [0.05, 0.1, 0.5])
def test_exactly_j_of_n_plus_1_exchangeable_scores_are_called(n, fpr):
    """Each of n + 1 scores in turn is the new non-member, and the others calibrate its threshold."""

    def called(scores, at="paper"):
        return sum(
            scores[i] >= stats.threshold_at_fpr(np.delete(scores, i), fpr, at=at)
            for i in range(n + 1)
        )

    j, scores = int(np.floor(fpr * n + 1e-9)), np.random.default_rng(n).normal(size=n + 1)
    assert called(scores) == j
    assert called(scores, "vertex") == j + 1
    scores[0] = np.inf  # reaches every threshold
    assert called(scores) == j
    for tied in (np.round(scores), np.arange(n + 1) // 2, np.r_[np.zeros(n), 1]):
        assert called(tied) <= j + 1


@pytest.mark.parametrize("digits", [6, 1, 0])
def test_order_of_samples_and_targets_leaves_decisions_equal(digits: int):
    """So do blocks of samples; with few digits, many scores are tied."""
    rng = np.random.default_rng(digits)
    score_TxN, member_TxN = rng.normal(size=(5, 300)).round(digits), rng.random((5, 300)) < 0.5
    fprs = [0.01, 0.05, 0.5]
    points = stats.tpr_at_fpr(score_TxN, member_TxN, fprs)
    votes = stats.count_votes(score_TxN, points.threshold_TxF)
    order_N, order_T = rng.permutation(300), rng.permutation(5)
    moved = np.ix_(order_T, order_N)
    other = stats.tpr_at_fpr(score_TxN[moved], member_TxN[moved], fprs)
    np.testing.assert_array_equal(other.threshold_TxF, points.threshold_TxF[order_T])
    np.testing.assert_array_equal(other.tpr_TxF, points.tpr_TxF[order_T])
    for block in np.split(order_N, [1, 100]):
        in_block = stats.count_votes(score_TxN[order_T][:, block], other.threshold_TxF)
        np.testing.assert_array_equal(in_block.votes_FxN, votes.votes_FxN[:, block])


@pytest.mark.montecarlo
def test_mean_tpr_of_noise_is_j_of_n_plus_1():
    rng = np.random.default_rng(0)
    for n, fpr, j, rounds in ((30, 0.05, 1, 3000), (100, 0.01, 1, 3000), (1000, 0.01, 10, 300)):
        score_TxN, member_N = rng.normal(size=(rounds, 2 * n)), np.arange(2 * n) < n
        for at, expected in (("paper", j / (n + 1)), ("vertex", (j + 1) / (n + 1))):
            tpr_T = stats.tpr_at_fpr(score_TxN, member_N, fpr, at=at).tpr_TxF[:, 0]
            assert abs(tpr_T.mean() - expected) < 4 * tpr_T.std() / np.sqrt(rounds)
        rounded = stats.tpr_at_fpr(np.round(4 * score_TxN) / 4, member_N, fpr).tpr_TxF[:, 0]
        assert rounded.mean() < j / (n + 1)


@settings(deadline=None)
@given(TIED, TIED, RATES)
def test_vertex_has_the_tpr_of_the_curve_of_scikit_learn(out, ins, fpr):
    score, member = np.r_[out, ins], np.r_[out * 0, ins * 0 + 1] == 1
    points = stats.tpr_at_fpr(score, member, fpr, at="vertex")
    fpr_K, tpr_K, _ = sklearn.metrics.roc_curve(member, score, drop_intermediate=False)
    assert points.tpr_TxF[0, 0] == tpr_K[fpr_K <= fpr][-1]
    assert points.realized_fpr_TxF[0, 0] == fpr_K[fpr_K <= fpr][-1]


def test_rate_that_needs_more_nonmembers_has_no_tpr():
    score_N, member_N = np.arange(30.0), np.arange(30) >= 20
    points = stats.tpr_at_fpr(score_N, member_N, [0.0, 0.049, 0.05])
    np.testing.assert_array_equal(points.threshold_TxF, [[np.inf, np.inf, 19]])
    np.testing.assert_array_equal(points.realized_fpr_TxF, [[0, 0, 0.05]])
    for value_TxF in (points.tpr_TxF, points.accuracy_TxF, points.balanced_accuracy_TxF):
        np.testing.assert_array_equal(np.isnan(value_TxF), [[False, True, False]])
    assert points.tpr_TxF[0, 0] == 0
    assert stats.tpr_at_fpr(score_N, member_N, 0.049, at="vertex").tpr_TxF[0, 0] == 1
    intervals = stats.bootstrap_intervals(score_N, member_N, [0.049, 0.05], replicates=9)
    np.testing.assert_array_equal(intervals.tpr_TxF, [[np.nan, 1]])
    _, tpr_TxHxF = stats.rates_of_halves(score_N, member_N, np.arange(30) % 8, [0.05, 0.2])
    assert np.isnan(tpr_TxHxF[..., 0]).all()
    assert not np.isnan(tpr_TxHxF[..., 1]).any()


def test_nonmembers_needed_is_the_smallest_number_that_shows_a_rate():
    assert [stats.nonmembers_needed(f) for f in (1.0, 0.3, 0.1, 1e-3, 1e-5)] == [
        1,
        4,
        10,
        1000,
        10**5,
    ]
    rates = [1 / n for n in range(1, 3000)] + [j / 1000 for j in range(1, 1001)]
    for fpr in (*rates, *np.nextafter(rates, 0), *np.nextafter(rates[1:], 1), 1 - 0.9, 1e-300):
        n = stats.nonmembers_needed(float(fpr))
        assert 1 / n <= fpr
        assert n == 1 or 1 / (n - 1) > fpr or n > 2**53
    for bad in (0.0, -0.1, 1.1, np.nan, 1e-320):
        with pytest.raises(ValueError, match="fpr="):
            stats.nonmembers_needed(bad)


@settings(deadline=None)
@given(TIED, TIED, RATES)
def test_tpr_is_that_of_the_vertex_of_the_roc_curve(out, ins, fpr):
    score, member = np.r_[out, ins], np.r_[out * 0, ins * 0 + 1] == 1
    points = stats.tpr_at_fpr(score, member, fpr, at="vertex")
    assert points.tpr_TxF[0, 0] == slow_tpr_of_vertex(out, ins, fpr)
    curve = stats.roc_curve(score, member)
    assert points.tpr_TxF[0, 0] == curve.tpr_K[curve.fpr_K <= fpr].max()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_of_zero_are_below_the_subnormal_vertex(dtype):
    """Half of the scores are 0, as are those of RMIA; the smallest positive number is above the threshold."""
    smallest = np.nextafter(dtype(0), dtype(1))
    score_N = np.array([0, 0, 0, smallest, 0, 0, smallest, 1], dtype)
    member_N = np.arange(8) >= 4
    points = stats.tpr_at_fpr(score_N, member_N, [0.25], at="vertex")
    assert points.threshold_TxF[0, 0] == smallest > 0
    assert (points.realized_fpr_TxF[0, 0], points.tpr_TxF[0, 0]) == (0.25, 0.5)
    votes = stats.count_votes(score_N[None], points.threshold_TxF)
    assert votes.votes_FxN.tolist() == [[0, 0, 0, 1, 0, 0, 1, 1]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_threshold_is_the_next_number_of_the_type_of_the_scores(dtype):
    for scores in (
        np.random.default_rng(0).normal(3, 1, 50).astype(dtype),
        np.array([0, -0.0, 0, 1], dtype),  # shares of RMIA: many are 0
        np.array([np.finfo(dtype).max, -np.inf, 1, 2], dtype),
        np.full(4, 1.1, dtype),
    ):
        for fpr in (0.0, 0.25, 0.5, 0.75):
            tau = stats.threshold_at_fpr(scores, fpr, at="vertex")
            k = math.ceil((1 - fpr) * len(scores))
            with np.errstate(over="ignore"):
                assert dtype(tau) == tau == np.nextafter(np.sort(scores)[k - 1], dtype(np.inf))
            # A Python float is rounded to the type of the scores, an array of float64 is not.
            assert np.mean(scores >= tau) <= fpr
            assert np.mean(scores >= np.array([tau])) <= fpr
            [[threshold]] = stats.tpr_at_fpr(
                scores, scores < -np.inf, fpr, at="vertex"
            ).threshold_TxF
            assert threshold == tau
            [[paper]] = stats.tpr_at_fpr(scores, scores < -np.inf, fpr).threshold_TxF
            assert paper == stats.threshold_at_fpr(scores, fpr) == slow_threshold(scores, fpr)
            assert paper in {*scores.tolist(), np.inf}


def test_k_is_55_of_100_at_fpr_45_percent():
    assert np.ceil((1 - 0.45) * 100) == 56  # the naive formula is wrong
    assert stats.threshold_at_fpr(np.arange(1, 101), 0.45) == 56


@pytest.mark.parametrize("n", [1, 3, 7, 10, 29, 100, 1000])
def test_threshold_equals_slow_reference_at_every_percent(n):
    scores = np.random.default_rng(n).permutation(n).astype(float)
    for percent in range(101):
        fpr = percent / 100
        assert stats.threshold_at_fpr(scores, fpr) == slow_threshold(scores, fpr), (n, fpr)


def test_rate_one_bit_lower_allows_one_less():
    # fpr * n is rounded up to an integer here, which must not allow one more false positive.
    for n in (1, 3, 7, 10, 49, 100):
        scores = np.arange(float(n))
        for j in range(1, n + 1):
            assert np.mean(scores >= stats.threshold_at_fpr(scores, j / n)) == j / n
            fpr = float(np.nextafter(j / n, 0))
            assert np.mean(scores >= stats.threshold_at_fpr(scores, fpr)) == (j - 1) / n


@settings(deadline=None)
@given(TIED, RATES)
def test_realized_fpr_is_the_largest_possible(scores, fpr):
    tau = stats.threshold_at_fpr(scores, fpr)
    assert np.mean(scores >= tau) <= fpr
    lower = scores[scores < tau]
    if lower.size:
        assert np.mean(scores >= lower.max()) > fpr


def test_threshold_limits_and_invalid_arguments():
    assert np.isnan(stats.threshold_at_fpr([], 0.5))
    assert stats.threshold_at_fpr([-np.inf, 0.0], 0.5) == 0
    assert stats.threshold_at_fpr([-np.inf, 0.0], 0.5, at="vertex") == -np.finfo(float).max
    # One score of +inf of two reaches a threshold of +inf, and may.
    assert stats.threshold_at_fpr([0.0, np.inf], 0.5) == np.inf
    assert stats.threshold_at_fpr([0.0, np.inf], 0.5, at="vertex") == np.nextafter(0, 1)
    largest = np.finfo(float).max
    assert stats.threshold_at_fpr([0.0, largest], 0.2, at="vertex") == np.inf  # without a warning
    assert stats.threshold_at_fpr([np.inf, np.inf], 1.0) == -np.inf
    for at in ("paper", "vertex"):
        with pytest.raises(ValueError, match="inf"):
            stats.threshold_at_fpr([0.0, np.inf], 0.2, at=at)
    for at in ("last", ["paper"] * 2):
        with pytest.raises(ValueError, match="at="):
            stats.tpr_at_fpr([0.0, 1.0], [True, False], 0.2, at=at)
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="rates"):
            stats.threshold_at_fpr([1.0], bad)
    with pytest.raises(ValueError, match="NaN"):
        stats.threshold_at_fpr([1.0, np.nan], 0.5)
    with pytest.raises(ValueError, match="one dimension"):
        stats.threshold_at_fpr([[1.0]], 0.5)


@pytest.mark.parametrize("ties", [False, True])
def test_operating_points_equal_direct_counts(ties):
    score_TxN, member_N = random_scores(0, ties=ties)
    fprs = [0.0, 0.01, 0.1, 0.5, 1.0]
    points = stats.tpr_at_fpr(score_TxN, member_N, fprs)
    for t, score_N in enumerate(score_TxN):
        present = ~np.isnan(score_N)
        out, ins = score_N[present & ~member_N], score_N[present & member_N]
        assert points.left_out_T[t] == np.sum(~present)
        assert (points.members_T[t], points.nonmembers_T[t]) == (len(ins), len(out))
        for f, fpr in enumerate(fprs):
            tau = stats.threshold_at_fpr(out, fpr)
            assert points.threshold_TxF[t, f] == tau
            assert points.realized_fpr_TxF[t, f] == np.mean(out >= tau)
            if 0 < fpr < 1 / len(out):
                assert np.isnan(points.tpr_TxF[t, f])
                continue
            assert points.tpr_TxF[t, f] == np.mean(ins >= tau)
            right = np.sum(ins >= tau) + np.sum(out < tau)
            assert points.accuracy_TxF[t, f] == right / (len(ins) + len(out))
            balanced = (np.mean(ins >= tau) + np.mean(out < tau)) / 2
            np.testing.assert_allclose(points.balanced_accuracy_TxF[t, f], balanced, rtol=1e-15)
        np.testing.assert_allclose(points.auc_T[t], slow_auc(out, ins), rtol=1e-12)
    assert np.all(points.realized_fpr_TxF <= fprs)


def test_member_TxN_and_float32_scores():
    score_TxN, _ = random_scores(3, T=4)
    member_TxN = np.random.default_rng(0).random(score_TxN.shape) < 0.4
    together = stats.tpr_at_fpr(score_TxN, member_TxN, 0.1)
    for t in range(4):
        alone = stats.tpr_at_fpr(score_TxN[t], member_TxN[t], 0.1)
        np.testing.assert_array_equal(together.tpr_TxF[t], alone.tpr_TxF[0])
    single = score_TxN.astype(np.float32)
    points = stats.tpr_at_fpr(single, member_TxN, [0.1, 0.5])
    double = stats.tpr_at_fpr(single.astype(np.float64), member_TxN, [0.1, 0.5])
    for name, value in vars(double).items():
        np.testing.assert_array_equal(getattr(points, name), value, err_msg=name)
        assert getattr(points, name).dtype == value.dtype
    detected = single.astype(np.float64) >= points.threshold_TxF[:, :1]
    assert np.all((detected & ~member_TxN).sum(axis=1) <= 0.1 * (~member_TxN).sum(axis=1))
    curve = stats.roc_curve(single[0, :50], member_TxN[0, :50])
    assert curve.threshold_K.dtype == np.float64


def test_rates_of_an_empty_class_are_nan():
    points = stats.tpr_at_fpr([[1.0, 2.0, np.nan]], np.array([True, True, False]), 0.5)
    assert np.isnan(points.threshold_TxF).all()
    assert np.isnan(points.tpr_TxF).all()
    assert points.left_out_T[0] == 1
    points = stats.tpr_at_fpr([[1.0, 2.0]], np.array([False, False]), 0.5)
    assert points.threshold_TxF[0, 0] == 2
    assert points.realized_fpr_TxF[0, 0] == 0.5
    for value in (points.tpr_TxF, points.accuracy_TxF, points.balanced_accuracy_TxF, points.auc_T):
        assert np.isnan(value).all()
    no_samples = np.zeros(0, bool)
    assert np.isnan(stats.auc(np.empty((2, 0)), no_samples).auc_T).all()
    assert stats.auc(np.empty((0, 3)), np.ones(3, bool)).auc_T.shape == (0,)
    assert np.isnan(points.auc_T).all()
    assert stats.tpr_at_fpr(np.empty((0, 3)), np.ones(3, bool), [0.1, 0.2]).tpr_TxF.shape == (0, 2)


def test_mean_roc_curve_counts_targets_left_out():
    score_TxN, member_N = random_scores(1)
    lost = np.vstack([score_TxN, np.full(score_TxN.shape[1], np.nan)])
    fprs = [0.01, 0.1, 0.5]
    actual = stats.mean_roc_curve(stats.tpr_at_fpr(lost, member_N, fprs))
    tpr_TxF = stats.tpr_at_fpr(score_TxN, member_N, fprs).tpr_TxF
    np.testing.assert_allclose(actual.tpr.mean_F, tpr_TxF.mean(axis=0))
    np.testing.assert_allclose(
        actual.tpr.std_F, np.sqrt(((tpr_TxF - tpr_TxF.mean(0)) ** 2).mean(0))
    )
    assert actual.targets_left_out == 1
    assert actual.left_out_T[-1] == score_TxN.shape[1]
    nothing = stats.mean_roc_curve(stats.tpr_at_fpr(lost[-1], member_N, fprs))
    assert np.isnan([nothing.tpr.mean_F, nothing.tpr.std_F]).all()
    for one_class in (np.ones_like(member_N), np.zeros_like(member_N)):
        assert (
            stats.mean_roc_curve(stats.tpr_at_fpr(score_TxN, one_class, fprs)).targets_left_out == 3
        )


def test_concatenated_operating_points_equal_joint_ones():
    score_TxN, member_N = random_scores(5, T=4)
    score_TxN[2] = np.nan
    fprs = [0.01, 0.1, 0.5]
    joint = stats.tpr_at_fpr(score_TxN, member_N, fprs)
    concatenated = stats.concatenate_operating_points(
        [stats.tpr_at_fpr(row, member_N, fprs) for row in score_TxN]
    )
    for name, value in vars(joint).items():
        np.testing.assert_array_equal(getattr(concatenated, name), value, err_msg=name)
        assert getattr(concatenated, name).dtype == value.dtype
    with pytest.raises(ValueError, match="rates"):
        stats.concatenate_operating_points([])
    with pytest.raises(ValueError, match="rates"):
        stats.concatenate_operating_points(
            [joint, stats.tpr_at_fpr(score_TxN, member_N, [0.01, 0.1, 0.4])]
        )


def test_roc_curve_by_hand():
    member = np.array([False, False, True, True, True])
    curve = stats.roc_curve([1.0, 2.0, 2.0, 3.0, np.nan], member)
    np.testing.assert_array_equal(curve.threshold_K, [np.inf, 3, 2, 1])
    np.testing.assert_array_equal(curve.fpr_K, [0, 0, 0.5, 1])
    np.testing.assert_array_equal(curve.tpr_K, [0, 0.5, 1, 1])
    assert curve.left_out == 1
    flat = stats.roc_curve([7.0, 7.0, 7.0], np.array([True, False, False]))
    np.testing.assert_array_equal([flat.fpr_K, flat.tpr_K], [[0, 1], [0, 1]])
    assert np.isnan(stats.roc_curve([1.0], np.array([True])).fpr_K).all()


def test_auc_by_hand():
    assert stats.auc([1.0, 2.0, 2.0, 3.0], np.array([False, False, True, True])).auc_T[0] == 3.5 / 4
    assert stats.auc([1.0, 1.0], np.array([True, False])).auc_T[0] == 0.5
    ends = stats.auc([[1.0, 2.0], [2.0, 1.0], [np.inf, -np.inf]], np.array([True, False])).auc_T
    np.testing.assert_array_equal(ends, [0, 1, 1])


@settings(max_examples=60, deadline=None)
@given(TIED, TIED)
def test_auc_equals_all_pairs_and_the_curve_area(out, ins):
    score, member = np.r_[out, ins], np.r_[out * 0, ins * 0 + 1] == 1
    area = stats.auc(score, member).auc_T[0]
    np.testing.assert_allclose(area, slow_auc(out, ins), rtol=1e-12)
    curve = stats.roc_curve(score, member)
    np.testing.assert_allclose(area, np.trapezoid(curve.tpr_K, curve.fpr_K), rtol=1e-12)
    assert np.all(np.diff(curve.fpr_K) >= 0)
    assert (curve.fpr_K[-1], curve.tpr_K[-1]) == (1, 1)
    order = np.random.default_rng(0).permutation(score.size)
    assert stats.auc(score[order], member[order]).auc_T[0] == area
    for monotone in (np.arctan, np.exp, lambda x: 3 * x - 1e6):
        assert stats.auc(monotone(score), member).auc_T[0] == area
    np.testing.assert_allclose(stats.auc(-score, member).auc_T[0], 1 - area, atol=1e-12)
    for fpr in (0.0, 0.1, 0.5):
        actual = stats.tpr_at_fpr(score, member, fpr, at="vertex")
        assert actual.tpr_TxF[0, 0] == curve.tpr_K[curve.fpr_K <= fpr].max()
        assert actual.tpr_TxF[0, 0] == np.mean(ins >= actual.threshold_TxF[0, 0])


@settings(max_examples=60, deadline=None)
@given(TIED, TIED, st.lists(RATES, min_size=1, max_size=4))
def test_rates_are_invariant_to_monotone_transforms(out, ins, fprs):
    score, member = np.r_[out, ins], np.r_[out * 0, ins * 0 + 1] == 1
    points = stats.tpr_at_fpr(score, member, fprs)
    assert np.all(points.realized_fpr_TxF <= fprs)
    for monotone in (np.arctan, np.exp, lambda x: 3 * x - 1e6, lambda x: 1e6 + 1e-3 * x):
        other = stats.tpr_at_fpr(monotone(score), member, fprs)
        for name in ("tpr_TxF", "realized_fpr_TxF", "accuracy_TxF", "auc_T"):
            np.testing.assert_array_equal(getattr(other, name), getattr(points, name))
        finite = np.isfinite(points.threshold_TxF)
        np.testing.assert_array_equal(
            other.threshold_TxF[finite], monotone(points.threshold_TxF[finite])
        )
    # Exchanging the classes reverses all pairs.
    swapped = stats.tpr_at_fpr(score, ~member, fprs)
    np.testing.assert_allclose(swapped.auc_T, 1 - points.auc_T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("gap", [0.0, 0.5, 1.3])
def test_metrics_of_gaussians_in_closed_form(gap):
    n = 100_000
    # Scores at the midpoints of n equal probabilities have no sampling error.
    noise = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    score, member = np.r_[noise, noise + gap], np.arange(2 * n) >= n
    fprs = np.array([1e-3, 0.01, 0.1, 0.5, 0.9])
    expected_tpr = scipy.stats.norm.cdf(gap + scipy.stats.norm.ppf(fprs))
    exact = stats.tpr_at_fpr(score, member, fprs)
    np.testing.assert_allclose(exact.auc_T, scipy.stats.norm.cdf(gap / np.sqrt(2)), atol=1e-6)
    np.testing.assert_allclose(exact.tpr_TxF[0], expected_tpr, atol=3e-4)
    np.testing.assert_allclose(
        exact.balanced_accuracy_TxF[0], (expected_tpr + 1 - fprs) / 2, atol=2e-4
    )
    rng = np.random.default_rng(4)
    drawn = rng.normal(size=2 * n) + gap * member
    points = stats.tpr_at_fpr(drawn, member, fprs)
    np.testing.assert_allclose(points.auc_T, scipy.stats.norm.cdf(gap / np.sqrt(2)), atol=0.005)
    np.testing.assert_allclose(points.tpr_TxF[0], expected_tpr, atol=0.01)
    far = stats.tpr_at_fpr(1e6 + 1e-3 * drawn, member, fprs)
    np.testing.assert_allclose(far.auc_T, points.auc_T, atol=1e-7)


def test_invalid_arguments_raise():
    two = np.array([True, False])
    for score, member, message in [
        ([[1.0, 2.0]], np.array([True]), "shape"),
        ([[1.0, 2.0]], np.array([1, 0]), "booleans"),
        (np.zeros((1, 1, 2)), two, "shape"),
    ]:
        for metric in (stats.auc, lambda s, m: stats.tpr_at_fpr(s, m, 0.1)):
            with pytest.raises(ValueError, match=message):
                metric(score, member)
    with pytest.raises(ValueError, match="one target"):
        stats.roc_curve([[1.0, 2.0]], two)


@pytest.mark.parametrize("digits", [0, 9])
def test_max_balanced_accuracy_is_the_largest_over_all_thresholds(digits: int):
    rng = np.random.default_rng(8)
    for samples in (2, 5, 40):
        member_N = np.arange(samples) % 2 == 0
        score_N = np.round(rng.normal(size=samples) + member_N, digits)
        curve = stats.roc_curve(score_N, member_N)
        expected = np.max((curve.tpr_K + 1 - curve.fpr_K) / 2)
        actual = stats.max_balanced_accuracy(score_N, member_N).balanced_accuracy_T
        assert actual == pytest.approx([expected], rel=1e-12)


def test_max_balanced_accuracy_of_targets_and_edges():
    member_N = np.array([True, True, False, False])
    score_TxN = [
        [3, 2, 1, 0],
        [0, 1, 2, 3],
        [1, 1, 1, 1],
        [np.nan, np.nan, 0, 1],
        [2, np.nan, 1, 3],
    ]
    result = stats.max_balanced_accuracy(score_TxN, member_N)
    np.testing.assert_array_equal(result.balanced_accuracy_T, [1, 0.5, 0.5, np.nan, 0.75])
    assert result.left_out_T.tolist() == [0, 0, 0, 2, 1]
