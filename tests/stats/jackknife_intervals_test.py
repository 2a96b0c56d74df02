"""Intervals of shares and of paired differences over trainings and samples."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from scipy.special import expit, logit

from lm_mia import stats

HALVES = len(stats.HALVES_HxG)


def values(trainings: int, seed: int = 0) -> np.ndarray:
    """Returns value_A1xH1 of random rates around 0.3."""
    rng = np.random.default_rng(seed)
    rate_TxH1 = 0.3 + 0.05 * rng.normal(size=(trainings, 1 + HALVES))
    return stats.rates_without_groups(rate_TxH1[:, :1], rate_TxH1[:, 1:, None])[..., 0]


def test_one_training_by_hand():
    """Each difference of halves is 0.1, so the variance is (0.1 / 2)^2, with 7 degrees of freedom."""
    value_1xH1 = [[0.25, *[0.3, 0.2] * 7]]
    margin = scipy.stats.t.ppf(0.975, 7) * 0.05 / (0.25 * 0.75)
    expected = expit(math.log(1 / 3) - margin), expit(math.log(1 / 3) + margin)
    assert stats.share_interval(value_1xH1, count=100) == pytest.approx(expected)
    # The number of samples matters only for a share that does not vary.
    assert stats.share_interval(value_1xH1, count=7) == pytest.approx(expected)
    margin = scipy.stats.t.ppf(0.95, 7) * 0.05
    zero_1xH1 = np.zeros((1, 15))
    assert stats.difference_interval(value_1xH1, zero_1xH1, confidence=0.9) == pytest.approx(
        (0.25 - margin, 0.25 + margin)
    )


def slow_variance(rate_TxH1: np.ndarray) -> tuple[float, float]:
    """Returns the variance and degrees of freedom of a mean over up to 8 trainings, from sums of squares."""
    trainings = len(rate_TxH1)
    over_trainings = rate_TxH1[:, 0].var(ddof=1) / trainings
    contrast_TxS = (rate_TxH1[:, 1::2] - rate_TxH1[:, 2::2]) / 2
    over_samples = np.mean(contrast_TxS.mean(axis=0) ** 2)
    of_both = np.mean(contrast_TxS.var(axis=0, ddof=1)) / trainings
    df_samples = contrast_TxS.shape[1]
    total = over_trainings + over_samples - of_both
    parts = [(over_trainings, trainings - 1), (over_samples, df_samples)]
    variance, df = max(parts)
    if total > variance:
        variance, df = total, total**2 / sum(v**2 / d for v, d in parts)
    return variance, min(df, 3 * (trainings - 1))


@pytest.mark.parametrize("trainings", [2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_several_trainings_against_a_slow_computation(trainings: int, seed: int):
    rng = np.random.default_rng(seed)
    member_TxN = rng.permuted(np.tile(np.arange(240) < 120, (trainings, 1)), axis=1)
    score_TxN = rng.normal(size=240) + rng.normal(size=(trainings, 240)) + member_TxN
    group_N = stats.sample_groups(np.arange(240))
    points = stats.tpr_at_fpr(score_TxN, member_TxN, [0.1])
    auc_TxH, tpr_TxHx1 = stats.rates_of_halves(score_TxN, member_TxN, group_N, [0.1])
    value_A1xH1x2 = stats.rates_without_groups(
        np.column_stack([points.auc_T, points.tpr_TxF]),
        np.concatenate([auc_TxH[..., None], tpr_TxHx1], axis=2),
    )
    assert value_A1xH1x2.shape == (1 + trainings, 15, 2)
    for s in range(2):
        rate_T = (points.auc_T, points.tpr_TxF[:, 0])[s]
        rate_TxH = (auc_TxH, tpr_TxHx1[..., 0])[s]
        variance, df = slow_variance(np.column_stack([rate_T, rate_TxH]))
        share = rate_T.mean()
        margin = scipy.stats.t.ppf(0.975, df) * math.sqrt(variance) / (share * (1 - share))
        assert stats.share_interval(value_A1xH1x2[..., s], count=120) == pytest.approx(
            (expit(logit(share) - margin), expit(logit(share) + margin))
        )


def test_trainings_are_left_out_in_groups():
    rate_T = np.random.default_rng(0).random(19)
    value_A1 = stats.rates_without_groups(rate_T[:, None], np.zeros((19, HALVES, 1)))[:, 0, 0]
    kept = [np.arange(19) >= 0, *(np.arange(19) % 8 != a for a in range(8))]
    np.testing.assert_allclose(value_A1, [rate_T[kept_T].mean() for kept_T in kept])
    one_1xH1x1 = stats.rates_without_groups([[0.4]], np.full((1, HALVES, 1), 0.3))
    np.testing.assert_array_equal(one_1xH1x1[..., 0], [[0.4] + [0.3] * HALVES])


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_missed_share_is_that_of_ordered_pairs(replicas: int):
    rng = np.random.default_rng(replicas)
    member_N = np.arange(200) < 100
    score_BxN = rng.normal(size=200) + rng.normal(size=(replicas, 200)) + member_N
    group_N = stats.sample_groups(rng.permutation(200))
    metrics = stats.decision_metrics(score_BxN, member_N, group_N, [0.1], 0)
    _, tpr_BxHx1 = stats.rates_of_halves(score_BxN, member_N, group_N, [0.1])
    points = stats.tpr_at_fpr(score_BxN, member_N, [0.1])
    tpr_A1xH1 = stats.rates_without_groups(points.tpr_TxF, tpr_BxHx1)[..., 0]
    share_A1xH1 = stats.missed_share(metrics.member_flip_rate_A1xH1xF[..., 0], tpr_A1xH1)

    found_BxM = (score_BxN >= points.threshold_TxF)[:, member_N]

    def share(pairs: list[tuple[int, int]]) -> float:
        found = sum(found_BxM[a].sum() for a, _ in pairs)
        return 1 - sum((found_BxM[a] & found_BxM[b]).sum() for a, b in pairs) / found

    pairs = list(itertools.permutations(range(replicas), 2))
    assert share_A1xH1[0, 0] == pytest.approx(share(pairs))
    for b in range(replicas):
        if replicas == 2:  # half way to the pair of the other one, whose hits b misses
            expected = (share(pairs) + share([(1 - b, b)])) / 2
        else:
            expected = share([pair for pair in pairs if b not in pair])
        assert share_A1xH1[1 + b, 0] == pytest.approx(expected)
    low, high = stats.share_interval(share_A1xH1, count=found_BxM.sum(axis=1).mean())
    assert 0 < low < share_A1xH1[0, 0] < high < 1


def test_no_share_is_missed_if_no_member_is_found():
    share_A1xH1 = stats.missed_share([[0.0, 0.0], [np.nan, np.nan]], [[0.0, 0.2], [0.0, np.nan]])
    np.testing.assert_array_equal(share_A1xH1, [[np.nan, 0.0], [np.nan, np.nan]])
    with pytest.raises(ValueError, match=r"the same shape"):
        stats.missed_share([[0.1]], [[0.1, 0.2]])
    with pytest.raises(ValueError, match="flip rates must"):
        stats.missed_share([[1e308]], [[0.5]])
    with pytest.raises(ValueError, match="TPRs must"):
        stats.missed_share([[0.1]], [[-0.5]])


@pytest.mark.parametrize("trainings", [1, 2, 5])
def test_a_share_of_0_or_1_has_an_interval_that_contains_it(trainings: int):
    shape = (1 if trainings == 1 else 1 + trainings, 15)
    low, high = stats.share_interval(np.ones(shape), count=100)
    assert 0.8 < low < 0.95
    assert high == 1
    # Missed shares are the complements of shares that are found again.
    mirrored = stats.share_interval(np.zeros(shape), count=100)
    assert mirrored == pytest.approx((0, 1 - low))
    assert stats.share_interval(np.ones(shape), count=1000)[0] > low
    # Halves in which some samples are missed show more variation than the binomial variance.
    value_A1xH1 = np.ones(shape)
    value_A1xH1[:, 2::2] = 0.7
    assert stats.share_interval(value_A1xH1, count=100)[0] < low
    # The same share in all parts is a coincidence: the interval is not a point.
    low, high = stats.share_interval(np.full(shape, 0.5), count=100)
    assert low < 0.4
    assert high == pytest.approx(1 - low)


@pytest.mark.parametrize("trainings", [1, 2, 5])
def test_complementary_shares_have_complementary_intervals(trainings: int):
    value_A1xH1 = values(trainings)
    low, high = stats.share_interval(value_A1xH1, count=100)
    assert stats.share_interval(1 - value_A1xH1, count=100) == pytest.approx((1 - high, 1 - low))
    narrow_low, narrow_high = stats.share_interval(value_A1xH1, count=100, confidence=0.5)
    assert low < narrow_low < value_A1xH1[0, 0] < narrow_high < high


def test_two_equal_trainings_do_not_show_that_trainings_are_equal():
    one_1xH1 = values(1)
    two_A1xH1 = np.repeat(one_1xH1, 3, axis=0)
    low, high = stats.share_interval(one_1xH1, count=100)
    of_two = stats.share_interval(two_A1xH1, count=100)
    ratio = scipy.stats.t.ppf(0.975, 3) / scipy.stats.t.ppf(0.975, 7)
    assert np.ptp(logit(of_two)) == pytest.approx(ratio * (logit(high) - logit(low)))


def test_a_missing_part_leaves_no_interval():
    value_A1xH1 = values(3)
    value_A1xH1[2, 5] = np.nan
    assert np.isnan(stats.share_interval(value_A1xH1, count=100)).all()
    assert np.isnan(stats.difference_interval(values(3), value_A1xH1)).all()


def test_differences_of_equal_numbers():
    value_A1xH1, other_A1xH1 = values(4), values(4, seed=1)
    assert stats.difference_interval(value_A1xH1, value_A1xH1) == (0, 0)
    low, high = stats.difference_interval(value_A1xH1, other_A1xH1)
    assert stats.difference_interval(other_A1xH1, value_A1xH1) == pytest.approx((-high, -low))
    # A difference that does not vary at all is a coincidence.
    half_A1xH1 = np.full(value_A1xH1.shape, 0.5)
    assert np.isnan(stats.difference_interval(half_A1xH1, half_A1xH1 / 2)).all()


def test_what_the_numbers_have_in_common_cancels():
    value_A1xH1, other_A1xH1 = values(4), values(4, seed=1) / 10
    low, high = stats.difference_interval(value_A1xH1 + other_A1xH1, value_A1xH1)
    expected = stats.difference_interval(other_A1xH1, np.zeros_like(other_A1xH1))
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(15,), (0, 15), (2, 15), (1, 1), (1, 14)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"be A1 x H1"):
        stats.share_interval(np.full(shape, 0.5), count=10)
    with pytest.raises(ValueError, match=r"be A1 x H1"):
        stats.difference_interval(np.full(shape, 0.5), np.full(shape, 0.5))


def test_wrong_arguments_are_refused():
    value_1xH1 = values(1)
    with pytest.raises(ValueError, match=r"^count=0: "):
        stats.share_interval(value_1xH1, count=0)
    with pytest.raises(ValueError, match=r"from 0 to 1"):
        stats.share_interval(value_1xH1 + 1, count=10)
    with pytest.raises(ValueError, match=r"^confidence=1: "):
        stats.share_interval(value_1xH1, count=10, confidence=1)
    with pytest.raises(ValueError, match=r"^confidence=0: "):
        stats.difference_interval(value_1xH1, value_1xH1, confidence=0)
    with pytest.raises(ValueError, match=r"the same parts"):
        stats.difference_interval(value_1xH1, values(3))
    with pytest.raises(ValueError, match=r"one training"):
        stats.rates_without_groups(np.empty((0, 1)), np.empty((0, HALVES, 1)))
    with pytest.raises(ValueError, match=r"x 14 x"):
        stats.rates_without_groups([[0.5]], np.full((1, 3, 1), 0.5))


@pytest.mark.montecarlo
@pytest.mark.parametrize("trainings", [1, 2, 5])
def test_intervals_cover_the_expectation(trainings: int):
    """Replicas share half of the variance of their scores, and a training shifts the scores of all members."""
    rng, samples, rounds, fpr, gap = np.random.default_rng(trainings), 400, 250, 0.1, 1.5
    shift = 0.1 if trainings > 1 else 0  # one training does not show it
    member_N = np.arange(samples) < samples // 2
    n = samples // 2
    # The threshold is the (fpr n)-th highest score of n non-members, of which a share u is below, as Beta.
    share_below = scipy.stats.beta(n + 1 - fpr * n, fpr * n).ppf((np.arange(2000) + 0.5) / 2000)
    spread = math.sqrt(1 + shift**2)
    truth_2 = np.array(
        [
            scipy.stats.norm.cdf(gap / math.hypot(spread, 1)),
            scipy.stats.norm.sf((scipy.stats.norm.ppf(share_below) - gap) / spread).mean(),
        ]
    )
    covered_2, not_equal_2 = np.zeros(2), np.zeros(2)
    for _ in range(rounds):
        group_N = stats.sample_groups(rng.permutation(samples))
        shift_Tx1 = shift * rng.normal(size=(trainings, 1))
        values_2 = []
        for _ in range(2):
            noise_TxN = rng.normal(size=samples) + rng.normal(size=(trainings, samples))
            score_TxN = noise_TxN / math.sqrt(2) + member_N * (gap + shift_Tx1)
            points = stats.tpr_at_fpr(score_TxN, member_N, [fpr])
            auc_TxH, tpr_TxHx1 = stats.rates_of_halves(score_TxN, member_N, group_N, [fpr])
            values_2.append(
                stats.rates_without_groups(
                    np.column_stack([points.auc_T, points.tpr_TxF]),
                    np.concatenate([auc_TxH[..., None], tpr_TxHx1], axis=2),
                )
            )
        for s in range(2):
            low, high = stats.share_interval(values_2[0][..., s], count=n)
            covered_2[s] += low <= truth_2[s] <= high
            low, high = stats.difference_interval(values_2[0][..., s], values_2[1][..., s])
            not_equal_2[s] += not low <= 0 <= high
    assert (covered_2 / rounds > 0.92).all()
    assert (not_equal_2 / rounds < 0.08).all()
