import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import flips


def slow_votes(score_TxN, threshold_TxF):
    """Counts one decision at a time."""
    replicas = [t for t in range(len(score_TxN)) if not np.isnan(threshold_TxF[t]).any()]
    out = np.zeros((threshold_TxF.shape[1], score_TxN.shape[1]))
    for f, n in np.ndindex(*out.shape):
        scores = [float(score_TxN[t, n]) for t in replicas]
        for t, score in zip(replicas, scores, strict=True):
            out[f, n] += score >= threshold_TxF[t, f]
        if any(np.isnan(scores)):
            out[f, n] = np.nan
    return out


def test_votes_by_hand():
    score_TxN = [[1.0, 2.0, 3.0, np.nan], [1.0, 0.0, 3.0, 4.0], [0.0, 0.0, np.inf, 4.0]]
    actual = stats.count_votes(score_TxN, [[2.0, np.inf], [1.0, -np.inf], [np.inf, np.inf]])
    np.testing.assert_array_equal(actual.votes_FxN, [[1, 1, 3, np.nan], [1, 1, 2, np.nan]])
    assert (actual.replicas, actual.left_out) == (3, 1)


def test_target_without_thresholds_is_not_a_replica():
    score_TxN = np.array([[1.0, 2.0], [np.nan, np.nan], [3.0, 0.0]])
    actual = stats.count_votes(score_TxN, [[1.5, 9], [np.nan, np.nan], [1.5, 0]])
    np.testing.assert_array_equal(actual.votes_FxN, [[1, 1], [1, 1]])
    assert (actual.replicas, actual.left_out) == (2, 0)
    no_replicas = stats.count_votes(score_TxN, np.full((3, 1), np.nan))
    np.testing.assert_array_equal(no_replicas.votes_FxN, [[0, 0]])
    assert no_replicas.replicas == 0
    with pytest.raises(ValueError, match="all rates"):
        stats.count_votes(score_TxN, [[1.5, 9], [np.nan, 1], [1.5, 0]])


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.sampled_from([np.float32, np.float64]))
def test_votes_equal_slow_reference(seed, cells, dtype):
    rng = np.random.default_rng(seed)
    score_TxN = rng.normal(size=(5, 30)).round(1).astype(dtype)
    score_TxN[rng.random(score_TxN.shape) < 0.03] = np.nan
    score_TxN[rng.random(score_TxN.shape) < 0.05] = np.inf
    # Thresholds are unsorted, tied with scores and with each other, or infinite; one target has none.
    threshold_TxF = score_TxN[:, rng.integers(0, 30, 7)].astype(float)
    threshold_TxF[np.isnan(threshold_TxF)] = -np.inf
    threshold_TxF[rng.integers(5)] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flips, "_VOTE_CELLS", cells)
        actual = stats.count_votes(score_TxN, threshold_TxF)
    expected_FxN = slow_votes(score_TxN, threshold_TxF)
    np.testing.assert_array_equal(actual.votes_FxN, expected_FxN)
    assert actual.replicas == 4
    assert actual.left_out == np.isnan(expected_FxN[0]).sum()


@pytest.mark.parametrize("replicas", [255, 256, 300])
def test_votes_do_not_overflow(replicas):
    votes = stats.count_votes(np.zeros((replicas, 3)), np.zeros((replicas, 2)))
    np.testing.assert_array_equal(votes.votes_FxN, np.full((2, 3), replicas))


def test_float32_votes_agree_with_thresholds():
    rng = np.random.default_rng(0)
    score_TxN = rng.normal(size=(5, 1000)).astype(np.float32)
    member_N = rng.random(1000) < 0.5
    points = stats.tpr_at_fpr(score_TxN, member_N, [0.1, 1.0])
    votes_FxN = stats.count_votes(score_TxN, points.threshold_TxF).votes_FxN
    assert votes_FxN[0, ~member_N].sum() == 5 * np.floor(0.1 * np.sum(~member_N))
    assert np.all(votes_FxN[1] == 5)


def test_votes_of_large_scores_with_small_differences():
    rng = np.random.default_rng(0)
    small_TxN = rng.integers(-500, 500, (4, 200)) * 2.0**-19  # exactly representable next to 1e6
    threshold_TxF = small_TxN[:, :3]
    np.testing.assert_array_equal(
        stats.count_votes(small_TxN + 1e6, threshold_TxF + 1e6).votes_FxN,
        stats.count_votes(small_TxN, threshold_TxF).votes_FxN,
    )


@settings(max_examples=50)
@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_flip_rate_is_the_share_of_disagreeing_pairs(replicas, seed):
    rng = np.random.default_rng(seed)
    score_TxN = rng.integers(0, 3, (replicas, 20)).astype(float)
    threshold_TxF = rng.integers(0, 4, (replicas, 3)).astype(float)
    decision_TxFxN = score_TxN[:, None] >= threshold_TxF[:, :, None]
    pairs = [
        decision_TxFxN[i] != decision_TxFxN[j]
        for i, j in itertools.combinations(range(replicas), 2)
    ]
    votes = stats.count_votes(score_TxN, threshold_TxF)
    rate_FxN = stats.flip_rate(votes.votes_FxN, votes.replicas)
    np.testing.assert_allclose(rate_FxN, np.mean(pairs, axis=0), atol=1e-15)
    assert rate_FxN.max() <= stats.max_flip_rate(replicas)
    order, cols = rng.permutation(replicas), rng.permutation(20)
    permuted_FxN = stats.count_votes(score_TxN[order][:, cols], threshold_TxF[order]).votes_FxN
    np.testing.assert_array_equal(permuted_FxN, votes.votes_FxN[:, cols])


def test_flip_rate_by_hand():
    np.testing.assert_allclose(stats.flip_rate([0, 1, 2, 4, np.nan], 4), [0, 0.5, 4 / 6, 0, np.nan])
    assert stats.flip_rate([], 4).shape == (0,)
    assert stats.flip_rate(63, 127) == stats.max_flip_rate(127)


@pytest.mark.parametrize("replicas", [*range(2, 60), 125, 126, 127, 128])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
def test_flip_bins_equal_rational_arithmetic(replicas, alpha):
    k_low, cutoff = stats.coin_flip_cutoff(replicas, alpha)
    edges = stats.flip_bin_edges(replicas, alpha)
    assert np.all(np.diff(edges) >= 0)
    assert edges[4] == cutoff
    votes = np.arange(replicas + 1)
    actual = stats.flip_bins(votes, replicas, alpha)
    np.testing.assert_array_equal(actual, actual[::-1])
    np.testing.assert_array_equal(actual == 4, stats.p_value(votes, replicas) >= alpha)
    t = Fraction(2 * k_low * (replicas - k_low), replicas * (replicas - 1))
    for k in range(replicas + 1):
        rate = Fraction(2 * k * (replicas - k), replicas * (replicas - 1))
        inner = [e for e in (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5)) if rate >= e]
        assert actual[k] == (4 if rate >= t else len(inner))


def test_flip_bin_contains_its_lower_edge():
    # Flip rates: 2 * 20 / 420 = 2/21, 2 * 19 / 380 = 1/10, 4 * 14 / 240 = 7/30, and 2 * 4 / 20 = 2/5.
    assert stats.flip_bins(1, 21) == 0
    assert stats.flip_bins(1, 20) == 1
    assert stats.flip_bins(2, 16) == 1
    assert stats.flip_bins(2, 5, alpha=0.5) == 4
    assert stats.flip_bins(1, 5, alpha=0.5) == 3


def test_flip_bins_of_few_replicas():
    np.testing.assert_array_equal(stats.flip_bin_edges(2), [0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(stats.flip_bins([0, 1, 2], 2), [4, 4, 4])
    np.testing.assert_allclose(stats.flip_bin_edges(6), [0, 0.1, 0.25, 1 / 3, 1 / 3, 0.6])
    np.testing.assert_array_equal(stats.flip_bins([0, 1, 3, 6], 6), [0, 4, 4, 0])


def test_flip_bin_counts_and_shares_by_hand():
    # B = 127: 0 -> bin 0, 10 -> .146, 25 -> .319, 51 and 76 -> .484, 52 and 75 -> coin flip.
    votes_N = np.array([0, 10, 25, 51, 52, 75, 76, np.nan, 127, 0])
    member_N = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0], dtype=bool)
    counts = stats.count_flip_bins(votes_N, member_N, 127)
    np.testing.assert_array_equal(counts.member_Fx5, [[1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(counts.nonmember_Fx5, [[2, 0, 0, 1, 1]])
    np.testing.assert_array_equal(counts.left_out_F, [1])
    actual = stats.flip_bin_shares(counts, 127)
    np.testing.assert_allclose(actual.member_Fx5, [[0.2] * 5])
    np.testing.assert_allclose(actual.nonmember_Fx5, [[0.5, 0, 0, 0.25, 0.25]])
    assert (actual.members_F[0], actual.nonmembers_F[0], actual.left_out_F[0]) == (5, 4, 1)
    np.testing.assert_array_equal(actual.edges_6, stats.flip_bin_edges(127))
    assert len(stats.FLIP_BIN_NAMES) == actual.member_Fx5.shape[1]
    assert stats.FLIP_BIN_NAMES[stats.VERY_UNSTABLE_BIN] == "very unstable"
    assert stats.FLIP_BIN_NAMES[stats.COIN_FLIP_BIN] == "coin flip"


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_flip_bin_counts_of_blocks_add_up(seed, replicas):
    rng = np.random.default_rng(seed)
    votes_FxN = rng.integers(0, replicas + 1, (3, 50)).astype(float)
    votes_FxN[rng.random(votes_FxN.shape) < 0.1] = np.nan
    member_N = rng.random(50) < 0.3
    full = stats.count_flip_bins(votes_FxN, member_N, replicas, 0.1)
    bin_FxN = stats.flip_bins(votes_FxN, replicas, 0.1)
    for f, b in itertools.product(range(3), range(5)):
        assert full.member_Fx5[f, b] == sum(bin_FxN[f, member_N] == b)
        assert full.nonmember_Fx5[f, b] == sum(bin_FxN[f, ~member_N] == b)
    np.testing.assert_array_equal(full.left_out_F, np.isnan(votes_FxN).sum(axis=1))
    cut = int(rng.integers(0, 51))  # a block may be empty
    parts = [
        stats.count_flip_bins(votes_FxN[:, block], member_N[block], replicas, 0.1)
        for block in (slice(cut), slice(cut, None))
    ]
    added = parts[0] + parts[1]
    for name in ("member_Fx5", "nonmember_Fx5", "left_out_F"):
        np.testing.assert_array_equal(getattr(added, name), getattr(full, name))
        assert getattr(added, name).dtype == np.int64


def test_counts_at_different_rates_cannot_be_added():
    member_N = np.array([True, False])
    one, two = (stats.count_flip_bins(np.zeros((f, 2)), member_N, 4) for f in (1, 2))
    with pytest.raises(ValueError, match="same"):
        _ = one + two


def test_flip_bin_shares_sum_to_one_at_each_rate():
    rng = np.random.default_rng(0)
    votes_FxN = rng.integers(0, 21, (3, 500)).astype(float)
    votes_FxN[0, :7] = np.nan
    member_N = rng.random(500) < 0.3
    actual = flip_shares(votes_FxN, member_N, 20)
    np.testing.assert_allclose(actual.member_Fx5.sum(axis=1), 1)
    np.testing.assert_allclose(actual.nonmember_Fx5.sum(axis=1), 1)
    np.testing.assert_array_equal(actual.left_out_F, [7, 0, 0])
    cols = rng.permutation(500)
    permuted = flip_shares(votes_FxN[:, cols], member_N[cols], 20)
    np.testing.assert_array_equal(permuted.member_Fx5, actual.member_Fx5)
    for f in range(3):
        alone = flip_shares(votes_FxN[f], member_N, 20)
        np.testing.assert_array_equal(alone.nonmember_Fx5[0], actual.nonmember_Fx5[f])


def test_flip_bin_shares_of_an_empty_class_are_nan():
    actual = flip_shares([1, 2], np.array([True, True]), 20)
    assert np.isnan(actual.nonmember_Fx5).all()
    assert not np.isnan(actual.member_Fx5).any()
    assert np.isnan(flip_shares(np.empty((2, 0)), np.zeros(0, bool), 20).member_Fx5).all()
    all_lost = flip_shares([np.nan, np.nan], np.array([True, False]), 20)
    assert np.isnan([all_lost.member_Fx5, all_lost.nonmember_Fx5]).all()
    assert all_lost.left_out_F[0] == 2
    assert flip_shares(np.empty((0, 3)), np.zeros(3, bool), 20).member_Fx5.shape == (0, 5)


def flip_shares(votes, member_N, replicas):
    return stats.flip_bin_shares(stats.count_flip_bins(votes, member_N, replicas), replicas)


def test_error_rates_by_hand():
    member_N = np.array([0, 0, 0, 0, 1, 1], dtype=bool)
    score_TxN = np.array([[1.0, 2, 3, 4, 2.5, 5], [1, 2, 3, 4, 0, 0], [np.nan] * 6])
    actual = stats.error_rates(stats.tpr_at_fpr(score_TxN, member_N, [0.25, 1.0]))
    # At 1/4 both thresholds are just above 3: the first target detects one of two members, the second none.
    np.testing.assert_allclose(actual.tpr.mean_F, [0.25, 1])
    np.testing.assert_allclose(actual.tpr.std_F, [0.25, 0])
    np.testing.assert_allclose(actual.fnr.mean_F, [0.75, 0])
    np.testing.assert_allclose(actual.fnr.std_F, [0.25, 0])
    np.testing.assert_allclose(actual.fpr.mean_F, [0.25, 1])
    np.testing.assert_allclose(actual.tnr.mean_F, [0.75, 0])
    np.testing.assert_allclose(actual.fpr.std_F, [0, 0])
    np.testing.assert_allclose(actual.accuracy.mean_F, [(4 + 3) / 12, 2 / 6])
    np.testing.assert_allclose(actual.accuracy.std_F, [1 / 12, 0], atol=1e-15)
    # Balanced accuracy: (1/2 + 3/4) / 2 and (0 + 3/4) / 2.
    np.testing.assert_allclose(actual.balanced_accuracy.mean_F, [1 / 2, 1 / 2])
    np.testing.assert_allclose(actual.balanced_accuracy.std_F, [1 / 8, 0], atol=1e-15)
    np.testing.assert_array_equal(actual.nominal_fpr_F, [0.25, 1])
    np.testing.assert_array_equal(actual.left_out_T, [0, 0, 6])
    assert actual.targets_left_out == 1


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_error_rates_are_consistent(seed, ties):
    rng = np.random.default_rng(seed)
    member_N = np.arange(60) < 30
    score_TxN = rng.normal(size=(4, 60)) + member_N
    score_TxN = np.round(score_TxN) if ties else score_TxN
    fprs = np.array([0, 0.1, 0.45, 1.0])
    actual = stats.error_rates(stats.tpr_at_fpr(score_TxN, member_N, fprs))
    assert np.all(actual.fpr.mean_F <= fprs + 1e-15)
    np.testing.assert_allclose(
        actual.accuracy.mean_F, (actual.tpr.mean_F + actual.tnr.mean_F) / 2, atol=1e-12
    )
    np.testing.assert_allclose(actual.balanced_accuracy.mean_F, actual.accuracy.mean_F, atol=1e-12)
    np.testing.assert_allclose(actual.tpr.mean_F + actual.fnr.mean_F, 1)
    np.testing.assert_allclose(actual.tpr.std_F, actual.fnr.std_F, atol=1e-12)
    if not ties:
        np.testing.assert_allclose(actual.fpr.mean_F, np.floor(fprs * 30 + 1e-9) / 30)
        assert np.all(actual.fpr.std_F < 1e-12)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="shape"):
        stats.count_votes([[1.0, 2.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="shape"):
        stats.count_votes([[1.0, 2.0]], [1.0])
    with pytest.raises(ValueError, match="shape"):
        stats.count_votes([1.0, 2.0], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="integers"):
        stats.flip_rate([5], 4)
    for function in (stats.max_flip_rate, stats.flip_bin_edges, lambda b: stats.flip_rate([0], b)):
        with pytest.raises(ValueError, match="at least 2"):
            function(1)
    with pytest.raises(ValueError, match="alpha"):
        stats.flip_bins([1], 4, alpha=0)
    with pytest.raises(ValueError, match="shape"):
        stats.count_flip_bins([1, 2], np.array([True]), 4)
    with pytest.raises(ValueError, match="booleans"):
        stats.count_flip_bins([1, 2], np.array([1, 0]), 4)


def test_distance_by_hand():
    posterior_TxN = [[0.2, 0.9, np.nan], [0.5, 0.6, 0.5], [np.nan, np.nan, np.nan]]
    threshold_TxF = [[0.5, 1.0], [0.6, 0.0], [np.nan, np.nan]]  # the third target has no thresholds
    actual = stats.mean_distance_to_threshold(posterior_TxN, threshold_TxF)
    # Distances above and below do not cancel: (|.2 - .5| + |.5 - .6|) / 2 and so on.
    np.testing.assert_allclose(actual, [[0.2, 0.2, np.nan], [0.65, 0.35, np.nan]])


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([np.float32, np.float64]))
def test_distance_equals_slow_reference(seed, cells, dtype):
    rng = np.random.default_rng(seed)
    posterior_TxN = rng.random((4, 23)).astype(dtype)
    posterior_TxN[0, 0], posterior_TxN[1, 1] = np.nan, 1
    threshold_TxF = rng.random((4, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flips, "_DISTANCE_CELLS", cells)
        actual = stats.mean_distance_to_threshold(posterior_TxN, threshold_TxF)
    expected = [
        [
            np.mean([abs(float(p) - t) for p, t in zip(p_T, t_T, strict=True)])
            for p_T in posterior_TxN.T
        ]
        for t_T in threshold_TxF.T
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    order = rng.permutation(4)
    permuted = stats.mean_distance_to_threshold(posterior_TxN[order], threshold_TxF[order])
    np.testing.assert_allclose(permuted, actual, rtol=1e-12)


def test_distance_without_replicas_or_samples():
    assert np.isnan(
        stats.mean_distance_to_threshold(np.zeros((2, 3)), np.full((2, 1), np.nan))
    ).all()
    assert stats.mean_distance_to_threshold(np.empty((2, 0)), np.zeros((2, 4))).shape == (4, 0)


def test_distance_of_scores_outside_0_to_1_raises():
    with pytest.raises(ValueError, match="posterior"):
        stats.mean_distance_to_threshold([[0.2, 1.5]], [[0.5]])
    with pytest.raises(ValueError, match="posterior"):
        stats.mean_distance_to_threshold([[0.2, 0.5]], [[-np.inf]])
    with pytest.raises(ValueError, match="shape"):
        stats.mean_distance_to_threshold([[0.2, 0.5]], [0.5])
