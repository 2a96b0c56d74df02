import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats


def slow_true_positives(score_TxN, threshold_TxF, bin_FxN, member_N):
    replicas = [t for t in range(len(score_TxN)) if not np.isnan(threshold_TxF[t]).any()]
    tp_RxFx5 = np.zeros((len(replicas), threshold_TxF.shape[1], 5), dtype=int)
    for r, t in enumerate(replicas):
        for f, n in np.ndindex(*bin_FxN.shape):
            if member_N[n] and not np.isnan(bin_FxN[f, n]):
                tp_RxFx5[r, f, int(bin_FxN[f, n])] += score_TxN[t, n] >= threshold_TxF[t, f]
    return tp_RxFx5


def random_scores(seed, targets=9, samples=150, dtype=np.float64):
    """Returns scores, thresholds and members, with ties, missing scores and a target without scores."""
    rng = np.random.default_rng(seed)
    member_N = rng.random(samples) < 0.5
    sample_N = rng.normal(size=samples) + member_N
    score_TxN = (sample_N + rng.normal(size=(targets, samples))).round(1).astype(dtype)
    score_TxN[rng.integers(targets)] = np.nan
    score_TxN[rng.random(score_TxN.shape) < 0.01] = np.nan
    return (
        score_TxN,
        stats.tpr_at_fpr(score_TxN, member_N, [0.02, 0.2, 0.6, 1]).threshold_TxF,
        member_N,
    )


def test_contributions_by_hand():
    # Two replicas and three members in the bins 4, 3 and 0; the non-member is not counted.
    score_TxN = np.array([[1.0, 2, 3, 9], [0, 5, 0, 9]])
    bin_FxN = np.array([[4.0, 3, 0, 0], [4, 4, np.nan, 0]])
    member_N = np.array([True, True, True, False])
    tp_RxFx5 = stats.count_true_positives(score_TxN, [[2.0, 1.0], [5.0, 0.0]], bin_FxN, member_N)
    np.testing.assert_array_equal(
        tp_RxFx5, [[[1, 0, 0, 1, 0], [0, 0, 0, 0, 2]], [[0, 0, 0, 1, 0], [0, 0, 0, 0, 2]]]
    )
    assert tp_RxFx5.dtype == np.int64
    actual = stats.tpr_contributions(tp_RxFx5, [3, 2])
    np.testing.assert_allclose(actual.tp.mean_F, [1.5, 2])
    np.testing.assert_allclose(actual.tp.std_F, [0.5, 0])
    np.testing.assert_allclose(actual.tpr.mean_F, [0.5, 1])
    np.testing.assert_allclose(actual.tpr.std_F, [1 / 6, 0])
    np.testing.assert_allclose(actual.very_unstable.tp.mean_F, [1, 0])
    # The mean of ratios is (1/2 + 1) / 2, whereas the ratio of means is 2/3.
    np.testing.assert_allclose(actual.very_unstable.share.mean_F, [0.75, 0])
    np.testing.assert_allclose(actual.very_unstable.ratio_of_means_F, [2 / 3, 0])
    np.testing.assert_allclose(actual.very_unstable.share.std_F, [0.25, 0])
    np.testing.assert_allclose(actual.coin_flip.tp.mean_F, [0, 2])
    np.testing.assert_allclose(actual.coin_flip.share.mean_F, [0, 1])
    np.testing.assert_allclose(actual.union.tp.mean_F, [1, 2])
    np.testing.assert_allclose(actual.union.share.mean_F, [0.75, 1])
    np.testing.assert_array_equal(actual.members_F, [3, 2])
    assert actual.replicas == 2


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_true_positives_equal_slow_reference_in_any_order_and_blocks(seed, dtype):
    score_TxN, threshold_TxF, member_N = random_scores(seed, dtype=dtype)
    votes = stats.count_votes(score_TxN, threshold_TxF)
    assert votes.replicas == 8
    bin_FxN = stats.flip_bins(votes.votes_FxN, votes.replicas)
    full = stats.count_true_positives(score_TxN, threshold_TxF, bin_FxN, member_N)
    np.testing.assert_array_equal(
        full, slow_true_positives(score_TxN, threshold_TxF, bin_FxN, member_N)
    )
    cut = seed % 151
    parts = [
        stats.count_true_positives(
            score_TxN[:, block], threshold_TxF, bin_FxN[:, block], member_N[block]
        )
        for block in (slice(cut), slice(cut, None))
    ]
    np.testing.assert_array_equal(sum(parts), full)
    order = np.random.default_rng(seed).permutation(9)
    permuted = stats.count_true_positives(score_TxN[order], threshold_TxF[order], bin_FxN, member_N)
    np.testing.assert_array_equal(permuted.sum(axis=0), full.sum(axis=0))
    # Every vote for a member with votes is a true positive of one bin.
    votes_for_members = np.nansum(votes.votes_FxN[:, member_N], axis=1)
    np.testing.assert_array_equal(full.sum(axis=(0, 2)), votes_for_members)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_contributions_equal_direct_means_and_stds(seed):
    rng = np.random.default_rng(seed)
    tp_RxFx5 = rng.integers(0, 30, (6, 3, 5))
    actual = stats.tpr_contributions(tp_RxFx5, [150] * 3)
    total_RxF = tp_RxFx5.sum(axis=2)
    for part, bins in (
        (actual.very_unstable, [3]),
        (actual.coin_flip, [4]),
        (actual.union, [3, 4]),
    ):
        tp_of_bins_RxF = tp_RxFx5[:, :, bins].sum(axis=2)
        np.testing.assert_allclose(part.tp.mean_F, tp_of_bins_RxF.mean(axis=0))
        np.testing.assert_allclose(part.tp.std_F, tp_of_bins_RxF.std(axis=0))
        np.testing.assert_allclose(part.share.mean_F, (tp_of_bins_RxF / total_RxF).mean(axis=0))
        np.testing.assert_allclose(part.share.std_F, (tp_of_bins_RxF / total_RxF).std(axis=0))
    np.testing.assert_allclose(actual.tp.mean_F, 150 * actual.tpr.mean_F)
    np.testing.assert_allclose(actual.tp.std_F, 150 * actual.tpr.std_F)
    np.testing.assert_allclose(
        actual.union.share.mean_F, actual.very_unstable.share.mean_F + actual.coin_flip.share.mean_F
    )
    permuted = stats.tpr_contributions(tp_RxFx5[rng.permutation(6)], [150] * 3)
    np.testing.assert_allclose(permuted.union.share.std_F, actual.union.share.std_F)


def test_shares_without_true_positives_are_zero_or_nan():
    # True positives exist in one replica at the first rate, in none at the second, and in both at the third.
    tp_RxFx5 = np.zeros((2, 3, 5), dtype=int)
    tp_RxFx5[1, 0] = [0, 0, 0, 1, 3]
    tp_RxFx5[:, 2, 4] = 5
    actual = stats.tpr_contributions(tp_RxFx5, [10, 10, 5])
    np.testing.assert_allclose(actual.tpr.mean_F, [0.2, 0, 1])
    np.testing.assert_allclose(actual.coin_flip.share.mean_F, [(0 + 0.75) / 2, np.nan, 1])
    np.testing.assert_allclose(actual.coin_flip.share.std_F, [0.375, np.nan, 0])
    np.testing.assert_allclose(actual.union.share.mean_F, [0.5, np.nan, 1])
    np.testing.assert_allclose(actual.union.ratio_of_means_F, [1, np.nan, 1])
    np.testing.assert_allclose(actual.very_unstable.tp.mean_F, [0.5, 0, 0])


def test_no_members_or_replicas():
    actual = stats.tpr_contributions(np.zeros((2, 1, 5), int), [0])
    assert np.isnan([actual.tpr.mean_F, actual.union.share.mean_F]).all()
    np.testing.assert_array_equal(actual.tp.mean_F, [0])
    no_replicas = stats.tpr_contributions(np.zeros((0, 2, 5), int), [4, 4])
    assert np.isnan(
        [no_replicas.tp.mean_F, no_replicas.tpr.std_F, no_replicas.coin_flip.share.mean_F]
    ).all()
    assert no_replicas.replicas == 0
    none = np.zeros(0, bool)
    empty = stats.count_true_positives(np.empty((3, 0)), np.zeros((3, 2)), np.empty((2, 0)), none)
    np.testing.assert_array_equal(empty, np.zeros((3, 2, 5)))


def test_more_members_than_bits_in_a_word():
    # The members fill more than one 64-bit word, but not a whole number of words.
    member_N = np.arange(1001) % 2 == 0
    bin_FxN = np.full((1, 1001), 4.0)
    bin_FxN[0, 1000] = 2
    tp = stats.count_true_positives(np.zeros((2, 1001)), [[0.0], [1.0]], bin_FxN, member_N)
    np.testing.assert_array_equal(tp, [[[0, 0, 1, 0, 500]], [[0, 0, 0, 0, 0]]])


def test_member_votes_by_hand():
    # With B = 6, samples with 1 to 5 votes are in the coin-flip bin.
    votes_KxN = [[0, 1, 5, 6, 3, np.nan], [6, 6, 6, 6, 6, 6]]
    member_N = np.array([True, True, True, True, False, True])
    counts = stats.count_member_votes(votes_KxN, member_N, 6)
    np.testing.assert_array_equal(counts.true_positives_K, [12, 30])
    np.testing.assert_array_equal(counts.coin_flip_true_positives_K, [6, 0])
    np.testing.assert_array_equal(counts.unstable_true_positives_K, [6, 0])
    np.testing.assert_array_equal(counts.members_K, [4, 5])
    raw_K, free_K, stable_K = stats.coin_flip_free_roc(counts, 6)
    np.testing.assert_array_equal(stable_K, free_K)  # there is no other bin above 0.4
    np.testing.assert_allclose(raw_K, [12 / 24, 1])
    np.testing.assert_allclose(free_K, [6 / 24, 1])


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.05, 0.5]))
def test_coin_flip_free_roc_agrees_with_true_positives(seed, alpha):
    score_TxN, threshold_TxF, member_N = random_scores(seed)
    votes = stats.count_votes(score_TxN, threshold_TxF)
    bin_FxN = stats.flip_bins(votes.votes_FxN, votes.replicas, alpha)
    tp_RxFx5 = stats.count_true_positives(score_TxN, threshold_TxF, bin_FxN, member_N)
    parts = [
        stats.count_member_votes(votes.votes_FxN[:, block], member_N[block], votes.replicas, alpha)
        for block in (slice(60), slice(60, None))
    ]
    counts = parts[0] + parts[1]
    members_F = np.count_nonzero(~np.isnan(votes.votes_FxN) & member_N, axis=1)
    np.testing.assert_array_equal(counts.members_K, members_F)
    np.testing.assert_array_equal(counts.true_positives_K, tp_RxFx5.sum(axis=(0, 2)))
    np.testing.assert_array_equal(counts.coin_flip_true_positives_K, tp_RxFx5[:, :, 4].sum(axis=0))
    unstable_K = tp_RxFx5[:, :, 3:].sum(axis=(0, 2))
    np.testing.assert_array_equal(counts.unstable_true_positives_K, unstable_K)
    actual = stats.tpr_contributions(tp_RxFx5, members_F)
    raw_K, free_K, stable_K = stats.coin_flip_free_roc(counts, votes.replicas)
    np.testing.assert_allclose(stable_K, raw_K - actual.union.tp.mean_F / members_F, atol=1e-12)
    np.testing.assert_allclose(raw_K, actual.tpr.mean_F)
    np.testing.assert_allclose(free_K, raw_K - actual.coin_flip.tp.mean_F / members_F, atol=1e-12)


def test_coin_flip_free_roc_is_clipped_and_nan_without_members():
    counts = stats.MemberVoteCounts(*np.array([[3, 0], [4, 0], [1, 0], [5, 0]]))
    raw_K, free_K, stable_K = stats.coin_flip_free_roc(counts, 2)
    np.testing.assert_allclose(raw_K, [0.3, np.nan])
    np.testing.assert_allclose(stable_K, [0.2, np.nan])
    np.testing.assert_allclose(free_K, [0, np.nan])


def test_invalid_arguments_raise():
    one, member_N = np.zeros((1, 3)), np.ones(3, bool)
    with pytest.raises(ValueError, match="do not match"):
        stats.count_true_positives(one, [[0.0]], np.zeros((2, 3)), member_N)
    with pytest.raises(ValueError, match="shape"):
        stats.count_true_positives(one, [[0.0], [0.0]], np.zeros((1, 3)), member_N)
    for bad in (5, -1, 0.5, np.inf):
        with pytest.raises(ValueError, match="0 to 4"):
            stats.count_true_positives(one, [[0.0]], [[0, bad, 1]], member_N)
    for members in (np.ones(2, bool), np.ones(3)):
        with pytest.raises(ValueError, match=r"booleans|shape"):
            stats.count_true_positives(one, [[0.0]], np.zeros((1, 3)), members)
        with pytest.raises(ValueError, match=r"booleans|shape"):
            stats.count_member_votes(np.zeros((1, 3)), members, 6)
    with pytest.raises(ValueError, match="two-dimensional"):
        stats.count_member_votes(np.zeros(3), member_N, 6)
    with pytest.raises(ValueError, match="integers"):
        stats.count_member_votes([[7, 0, 0]], member_N, 6)
    with pytest.raises(ValueError, match="shape"):
        stats.tpr_contributions(np.zeros((2, 1, 5), int), [1, 1])
    for tp, members in ((1, 0), (-1, 9)):
        with pytest.raises(ValueError, match=r"between 0|0 or larger"):
            stats.tpr_contributions(np.full((1, 1, 5), tp), [members])
    counts = stats.MemberVoteCounts(*np.zeros((4, 2), int))
    with pytest.raises(ValueError, match="at least 1"):
        stats.coin_flip_free_roc(counts, 0)
    with pytest.raises(ValueError, match="same"):
        _ = counts + stats.MemberVoteCounts(*np.zeros((4, 1), int))
