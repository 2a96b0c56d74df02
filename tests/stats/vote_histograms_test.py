"""Histograms of votes against slow counting; the variance over replicas against a slow jackknife and simulations."""

import numpy as np
import pytest
import scipy.special

from lm_mia import stats


def test_histograms_by_hand():
    score_TxN = [[0.9, 0.1, 0.6], [0.8, 0.7, 0.2]]
    histograms = stats.count_vote_histograms(score_TxN, [[0.5, 0.65], [0.5, 0.65]])
    # At the first threshold the votes are 2, 1 and 1; at the second 2, 1 and 0.
    assert histograms.samples_FxK.tolist() == [[0, 2, 1], [1, 1, 1]]
    assert histograms.called_FxRxK.tolist() == [[[0, 1, 1], [0, 1, 1]], [[0, 0, 1], [0, 1, 1]]]
    assert histograms.replicas == 2


def test_histograms_against_slow_counting():
    rng = np.random.default_rng(1)
    score_TxN = rng.normal(size=(9, 500))
    score_TxN[2, :20] = np.nan
    threshold_TxF = rng.normal(size=(9, 3))
    threshold_TxF[4] = np.nan  # a lost run
    histograms = stats.count_vote_histograms(score_TxN, threshold_TxF)
    replica_R = [t for t in range(9) if t != 4]
    for f in range(3):
        decision_RxN = score_TxN[replica_R, 20:] >= threshold_TxF[replica_R, f][:, None]
        votes_N = decision_RxN.sum(axis=0)
        for k in range(9):
            assert histograms.samples_FxK[f, k] == (votes_N == k).sum()
            np.testing.assert_array_equal(
                histograms.called_FxRxK[f, :, k], decision_RxN[:, votes_N == k].sum(axis=1)
            )


def test_histograms_of_blocks_add_up():
    rng = np.random.default_rng(2)
    score_TxN, threshold_TxF = rng.normal(size=(5, 100)), np.zeros((5, 2))
    whole = stats.count_vote_histograms(score_TxN, threshold_TxF)
    parts = (score_TxN[:, :30], score_TxN[:, 30:30], score_TxN[:, 30:])
    first, empty, last = (stats.count_vote_histograms(part, threshold_TxF) for part in parts)
    total = first + empty + last
    np.testing.assert_array_equal(total.samples_FxK, whole.samples_FxK)
    np.testing.assert_array_equal(total.called_FxRxK, whole.called_FxRxK)
    with pytest.raises(ValueError, match="rates, groups and replicas"):
        _ = whole + stats.count_vote_histograms(score_TxN[:4], threshold_TxF[:4])


@pytest.mark.parametrize("replicas", [2, 5, 12])
def test_variance_against_leaving_out_each_replica(replicas):
    rng = np.random.default_rng(replicas)
    for _ in range(5):
        vote_RxN = rng.random((replicas, 60)) < rng.random(60) + rng.normal(0, 0.3, (replicas, 1))
        value_K = rng.normal(size=replicas + 1)
        counts = count(vote_RxN)
        expected = leave_out_each(vote_RxN, value_K)
        assert stats.variance_over_replicas(*counts, value_K) == pytest.approx(expected)


def test_linear_values_give_the_usual_jackknife():
    rng = np.random.default_rng(3)
    vote_RxN = rng.random((10, 5000)) < 0.4 + rng.normal(0, 0.2, (10, 1))
    share_R = vote_RxN.mean(axis=1)
    jackknife = share_R.var(ddof=1) / 10
    variance = stats.variance_over_replicas(*count(vote_RxN), np.arange(11) / 10)
    own = np.sum((vote_RxN - vote_RxN.mean(axis=0)) ** 2) / (10 * 9 * 5000**2)
    assert variance == pytest.approx(jackknife - own)
    assert own < 0.01 * jackknife


def test_independent_votes_share_no_variance():
    rng = np.random.default_rng(4)
    value_K = (np.arange(17) >= 4) & (np.arange(17) <= 12)
    estimates = []
    for _ in range(100):
        counts = count(rng.random((16, 1000)) < rng.random(1000))
        estimates.append(stats.variance_over_replicas(*counts, value_K))
    # Far below the variance of independent samples, 0.2 / 1000.
    assert np.mean(estimates) < 4e-5


@pytest.mark.parametrize("replicas", [8, 32])
def test_standard_error_of_the_observed_share_of_coin_flips(replicas):
    """Scores with a shock that is common to all samples of a replica: the error is close to the SD over simulations."""
    rng = np.random.default_rng(replicas)
    k_low, _ = stats.coin_flip_cutoff(replicas)
    k_K = np.arange(replicas + 1)
    is_coin_flip_K = (k_K >= k_low) & (k_K <= replicas - k_low)
    shares, errors = [], []
    for _ in range(300):
        shock_Rx1 = rng.normal(0, 0.5, (replicas, 1))
        score_RxN = rng.normal(-2, 1, 1000) + shock_Rx1 + rng.normal(size=(replicas, 1000))
        samples_K, called_RxK = count(score_RxN > 0)
        shares.append(samples_K @ is_coin_flip_K / 1000)
        errors.append(stats.mean_std_error(samples_K, called_RxK, is_coin_flip_K))
    assert 0.85 < np.sqrt(np.mean(np.square(errors))) / np.std(shares) < 1.4


def test_without_samples():
    assert stats.variance_over_replicas(np.zeros(4), np.zeros((3, 4)), np.ones(4)) == 0
    assert np.isnan(stats.mean_std_error(np.zeros(4), np.zeros((3, 4)), np.ones(4)))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="shapes must be"):
        stats.variance_over_replicas(np.ones(4), np.ones((4, 3)), np.ones(4))
    with pytest.raises(ValueError, match=r"votes, 0 to 2"):
        stats.variance_over_replicas([1, 2, 1], [[0, 1, 1], [0, 1, 1]], np.ones(2))
    with pytest.raises(ValueError, match=r"called_RxK .*samples_K"):
        stats.variance_over_replicas([1, 2, 1], [[0, -1, 1], [0, 3, 1]], np.ones(3))
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match=r"values .*1e\+100"):
            stats.variance_over_replicas([1, 2, 1], [[0, 1, 1], [0, 1, 1]], [0, bad, 1])
        with pytest.raises(ValueError, match=r"samples_K .*finite"):
            stats.variance_over_replicas([1, bad, 1], [[0, 1, 1], [0, 1, 1]], np.ones(3))
    with pytest.raises(ValueError, match="sum over replicas"):
        stats.variance_over_replicas([1, 2, 1], [[0, 1, 1], [0, 2, 1]], np.ones(3))
    with pytest.raises(ValueError, match=r"samples_K .*finite"):
        stats.variance_over_replicas([-1, 2, 1], [[0, 1, 1], [0, 1, 1]], np.ones(3))
    with pytest.raises(ValueError, match="replicas=1: "):
        stats.variance_over_replicas(np.ones(2), np.ones((1, 2)), np.ones(2))


def count(vote_RxN):
    votes = stats.count_vote_histograms(vote_RxN.astype(float), np.full((len(vote_RxN), 1), 0.5))
    return votes.samples_FxK[0], votes.called_FxRxK[0]


def leave_out_each(vote_RxN, value_K):
    """The definition, one replica and one sample at a time."""
    replicas, samples = vote_RxN.shape
    change_RxN = np.empty(vote_RxN.shape)
    for r in range(replicas):
        for n in range(samples):
            others = vote_RxN[:, n].sum() - vote_RxN[r, n]
            p = others / (replicas - 1)
            expected = p * value_K[min(others + 1, replicas)] + (1 - p) * value_K[others]
            change_RxN[r, n] = value_K[vote_RxN[:, n].sum()] - expected
    centered_RxN = change_RxN - change_RxN.mean(axis=0)
    shared = np.sum(centered_RxN.mean(axis=1) ** 2) - np.sum(centered_RxN**2) / samples**2
    return max(0, shared * (replicas - 1) / replicas)


def pieces(seed: int, documents: int, size: int, shared: float) -> tuple[np.ndarray, np.ndarray]:
    """Draws votes of 8 independent replicas on pieces of documents, which share a part of the probability."""
    rng = np.random.default_rng(seed)
    effect_N = np.repeat(shared * rng.normal(size=documents), size)
    p_N = scipy.special.ndtr(effect_N + (1 - shared) * rng.normal(size=effect_N.size))
    return rng.random((8, effect_N.size)) < p_N, np.repeat(np.arange(documents), size)


def test_samples_are_counted_by_group_of_documents():
    vote_RxN, document_N = pieces(0, 150, 3, 0.5)
    by_group = stats.count_vote_histograms(1.0 * vote_RxN, np.full((8, 2), 0.5), document_N)
    whole = stats.count_vote_histograms(1.0 * vote_RxN, np.full((8, 2), 0.5))
    assert by_group.samples_FxGxK.shape == (2, 64, 9)
    assert whole.samples_FxGxK.shape == (2, 1, 9)
    np.testing.assert_array_equal(by_group.samples_FxK, whole.samples_FxK)
    np.testing.assert_array_equal(by_group.called_FxRxK, whole.called_FxRxK)
    votes_N = vote_RxN.sum(axis=0)
    for g in (0, 21, 63):  # 3 documents in group 21, 2 in group 63
        expected_K = np.bincount(votes_N[document_N % 64 == g], minlength=9)
        assert by_group.samples_FxGxK[1, g].tolist() == expected_K.tolist()


def test_histograms_by_document_add_up_only_with_their_kind():
    vote_RxN, document_N = pieces(1, 30, 4, 0.5)
    threshold = np.full((8, 1), 0.5)
    whole = stats.count_vote_histograms(1.0 * vote_RxN, threshold, document_N)
    parts = [
        stats.count_vote_histograms(1.0 * vote_RxN[:, at], threshold, document_N[at])
        for at in (slice(50), slice(50, None))
    ]
    np.testing.assert_array_equal((parts[0] + parts[1]).samples_FxGxK, whole.samples_FxGxK)
    with pytest.raises(ValueError, match="rates, groups and replicas"):
        _ = whole + stats.count_vote_histograms(1.0 * vote_RxN, threshold)


@pytest.mark.parametrize("documents", [[0, 1], [0.0, 1.0, 2.0], [0, 1, -1], "abc"])
def test_documents_must_be_numbers_of_samples(documents):
    with pytest.raises(ValueError, match="of 3 samples"):
        stats.count_vote_histograms(np.zeros((2, 3)), np.zeros((2, 1)), documents)


def test_standard_error_over_documents():
    """Copies of samples have the standard error of the originals, up to the noise of 64 groups."""
    is_coin_flip_K = np.arange(9) == 4
    vote_RxN, document_N = pieces(2, 2000, 1, 0.0)
    single = stats.mean_std_error(*count(vote_RxN), is_coin_flip_K)
    copied = stats.count_vote_histograms(
        np.tile(1.0 * vote_RxN, 5), np.full((8, 1), 0.5), np.tile(document_N, 5)
    )
    counts = copied.samples_FxGxK[0], copied.called_FxRxK[0]
    assert stats.mean_std_error(*counts, is_coin_flip_K) == pytest.approx(single, rel=0.25)
    as_samples = stats.mean_std_error(counts[0].sum(axis=0), counts[1], is_coin_flip_K)
    assert as_samples < 0.8 * single


def test_standard_error_over_one_group_of_documents_is_unknown():
    vote_RxN = np.eye(8, 20)
    one = stats.count_vote_histograms(vote_RxN, np.full((8, 1), 0.5), np.zeros(20, int))
    counts = one.samples_FxGxK[0], one.called_FxRxK[0]
    assert np.isnan(stats.mean_std_error(*counts, np.arange(9) == 1))
    limits = stats.coin_flip_range(*counts)
    assert np.isnan([limits.low, limits.high]).all()


@pytest.mark.montecarlo
def test_standard_error_over_documents_is_that_of_simulations():
    is_coin_flip_K = (np.arange(9) >= 1) & (np.arange(9) <= 7)
    shares, errors, as_samples = [], [], []
    for seed in range(300):
        vote_RxN, document_N = pieces(100 + seed, 150, 10, 0.9)
        votes = stats.count_vote_histograms(1.0 * vote_RxN, np.full((8, 1), 0.5), document_N)
        counts = votes.samples_FxGxK[0], votes.called_FxRxK[0]
        shares.append(votes.samples_FxK[0] @ is_coin_flip_K / 1500)
        errors.append(stats.mean_std_error(*counts, is_coin_flip_K))
        as_samples.append(stats.mean_std_error(*count(vote_RxN), is_coin_flip_K))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(shares), rel=0.12)
    assert np.mean(as_samples) < 0.8 * np.std(shares)
