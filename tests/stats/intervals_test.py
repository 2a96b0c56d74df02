import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import intervals, resamples

TIED = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(lambda x: np.array(x, float))
RATES = st.one_of(st.floats(0, 1), st.integers(0, 20).map(lambda i: i / 20))


@given(st.floats(1e-9, 1 - 1e-9), st.integers(1, 3000), st.lists(RATES, min_size=1, max_size=5))
def test_binomial_quantiles_equal_those_of_scipy(q, n, rates):
    expected_F = scipy.stats.binom.ppf(q, n, rates)
    np.testing.assert_array_equal(intervals._binomial_quantile(q, n, np.array(rates)), expected_F)


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (2, 0.5), (8, 0.5), (20, 0.25), (1024, 0.01)])
def test_binomial_quantiles_at_whole_numbers(n, p):
    for k in range(min(n, 30)):
        q = float(scipy.stats.binom.cdf(k, n, p)) * (1 + 1e-9)
        if q < 1:
            got = intervals._binomial_quantile(q, n, np.array([p]))
            assert got == scipy.stats.binom.ppf(q, n, p) == k + 1


@pytest.fixture
def _intervals_of_any_count():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MIN_COUNT", 0)
        yield


def random_scores(seed, T=3, N=200, digits=9, missing=0.1):
    rng = np.random.default_rng(seed)
    member_N = rng.random(N) < 0.4
    score_TxN = np.round(rng.normal(size=(T, N)) + member_N, digits)
    score_TxN[rng.random((T, N)) < missing] = np.nan
    return score_TxN, member_N


def slow_replicates(score_N, member_N, fprs, replicates, seed):
    """Computes AUC and TPRs of each replicate from an explicit resample."""
    present = ~np.isnan(score_N)
    classes = [np.sort(score_N[present & ~member_N]), np.sort(score_N[present & member_N])]
    rngs = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2)]
    rows = []
    for _ in range(replicates):
        out, ins = (c[r.integers(c.size, size=c.size)] for c, r in zip(classes, rngs, strict=True))
        score, member = np.r_[out, ins], np.arange(out.size + ins.size) >= out.size
        tprs = []
        for fpr in fprs:
            try:
                tprs.append(np.mean(ins >= stats.threshold_at_fpr(out, fpr)))
            except ValueError:  # too many drawn scores are +inf
                tprs.append(0.0)
        rows.append([stats.auc(score, member).auc_T[0], *tprs])
    return np.array(rows)


def interval_ends(actual, t=0):
    """Returns the lower ends of AUC and TPRs in the first row and the upper ends in the second."""
    low = [actual.auc_low_T[t], *actual.tpr_low_TxF[t]]
    return np.array([low, [actual.auc_high_T[t], *actual.tpr_high_TxF[t]]])


def assert_ends_are_quantiles(actual, rows, t=0, confidence=0.95):
    """Checks the ends against quantiles of the replicates; np.quantile depends slightly on the memory layout."""
    expected = np.quantile(rows, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    np.testing.assert_allclose(interval_ends(actual, t), expected, rtol=1e-14)


@pytest.mark.usefixtures("_intervals_of_any_count")
def test_bootstrap_intervals_by_hand():
    # With one score per class, every resample equals the sample.
    actual = stats.bootstrap_intervals(
        [0.0, 1.0], np.array([False, True]), [0.0, 0.5, 1.0], replicates=3
    )
    np.testing.assert_array_equal(actual.auc_low_T, 1)
    np.testing.assert_array_equal(actual.tpr_low_TxF, [[0, 0, 1]])
    np.testing.assert_array_equal(actual.tpr_TxF, [[0, np.nan, 1]])  # 1/2 needs two non-members
    # Non-members 0 and 2, member 1: the AUC is 1, 1/2 or 0 if 0 is drawn twice, once or never. At FPR 1/2 the threshold
    # is the 2 if both are drawn, and none if only one of them is, so the member is never detected.
    score, member = [0.0, 2.0, 1.0], np.array([False, False, True])
    one = [stats.bootstrap_intervals(score, member, 0.5, replicates=1, seed=s) for s in range(200)]
    drawn = np.array([o.auc_low_T[0] for o in one])
    np.testing.assert_array_equal(np.unique(drawn), [0, 0.5, 1])
    assert 80 <= np.sum(drawn == 0.5) <= 120
    assert all(o.tpr_high_TxF[0, 0] == 0 for o in one)
    # With members 1 and 3: the 3 is above the threshold if both non-members are drawn.
    score, member = [0.0, 2.0, 1.0, 3.0], np.array([False, False, True, True])
    one = [stats.bootstrap_intervals(score, member, 0.5, replicates=1, seed=s) for s in range(400)]
    drawn = np.array([o.tpr_low_TxF[0, 0] for o in one])
    # Both are drawn with probability 1/2; then no, one or two 3 with probability 1/4, 1/2 and 1/4.
    np.testing.assert_allclose(
        [np.mean(drawn == 1), np.mean(drawn == 0.5)], [1 / 8, 1 / 4], atol=0.06
    )
    assert set(drawn) == {0, 0.5, 1}


@pytest.mark.usefixtures("_intervals_of_any_count")
@settings(max_examples=150, deadline=None)
@given(TIED, TIED, st.lists(RATES, max_size=4), st.integers(0, 99), st.integers(1, 6))
def test_replicates_equal_metrics_of_explicit_resamples(out, ins, fprs, seed, replicates):
    score, member = np.r_[out, ins], np.r_[out * 0, ins * 0 + 1] == 1
    rows = slow_replicates(score, member, fprs, replicates, seed)
    first = stats.bootstrap_intervals(score, member, fprs, replicates=1, seed=seed)
    np.testing.assert_array_equal(interval_ends(first), [rows[0], rows[0]])
    actual = stats.bootstrap_intervals(
        score, member, fprs, replicates=replicates, confidence=0.8, seed=seed
    )
    assert_ends_are_quantiles(actual, rows, confidence=0.8)
    assert actual.fpr_F.shape == (len(fprs),)


@pytest.mark.usefixtures("_intervals_of_any_count")
@pytest.mark.parametrize("digits", [0, 1, 9])
@pytest.mark.parametrize("block", [7, 1000, 2**16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_result_does_not_depend_on_block_size(digits, block, dtype, monkeypatch):
    monkeypatch.setattr(resamples, "_BLOCK", block)
    score_TxN, member_N = random_scores(digits, T=2, N=150, digits=digits)
    score_TxN = score_TxN.astype(dtype)
    fprs = [0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0]
    actual = stats.bootstrap_intervals(score_TxN, member_N, fprs, replicates=33, seed=5)
    for t, score_N in enumerate(score_TxN):
        rows = slow_replicates(score_N, member_N, fprs, 33, 5)
        assert_ends_are_quantiles(actual, rows, t)
    points = stats.tpr_at_fpr(score_TxN, member_N, fprs)
    np.testing.assert_array_equal(actual.tpr_TxF, points.tpr_TxF)
    np.testing.assert_array_equal(actual.auc_T, points.auc_T)
    np.testing.assert_array_equal(actual.left_out_T, points.left_out_T)
    np.testing.assert_array_equal(actual.fpr_F, fprs)


@pytest.mark.montecarlo
@pytest.mark.usefixtures("_intervals_of_any_count")
def test_agrees_with_resampling_by_another_generator():
    score_TxN, member_N = random_scores(6, T=1, N=80, digits=1)
    actual = stats.bootstrap_intervals(score_TxN, member_N, [0.2], replicates=3000, confidence=0.9)
    present = ~np.isnan(score_TxN[0])
    out, ins = score_TxN[0, present & ~member_N], score_TxN[0, present & member_N]
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(3000):
        o, i = rng.choice(out, out.size), rng.choice(ins, ins.size)
        auc = np.mean((i[:, None] > o) + 0.5 * (i[:, None] == o))
        drawn.append((auc, np.mean(i >= stats.threshold_at_fpr(o, 0.2))))
    expected = np.quantile(drawn, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(interval_ends(actual)[:, 0], expected[:, 0], atol=0.01)
    np.testing.assert_allclose(interval_ends(actual)[:, 1], expected[:, 1], atol=0.04)


@pytest.mark.usefixtures("_intervals_of_any_count")
def test_infinite_scores():
    # Two of 20 non-members are +inf: FPR 0.1 can be reached, unless three or more of them are drawn.
    out, ins = [*range(18), np.inf, np.inf], [*range(9, 19), np.inf, -np.inf]
    score, member = np.array([*out, *ins]), np.arange(32) >= 20
    fprs = [0.1, 0.2, 0.5, 1.0]
    rows = [slow_replicates(score, member, fprs, 1, seed)[0] for seed in range(60)]
    assert {0.0, 1 / 12} <= {row[1] for row in rows}
    for seed, row in enumerate(rows):
        actual = stats.bootstrap_intervals(score, member, fprs, replicates=1, seed=seed)
        np.testing.assert_array_equal(interval_ends(actual), [row, row])
    every = stats.bootstrap_intervals([np.inf, np.inf, 0.0], np.arange(3) == 2, 1.0, replicates=5)
    np.testing.assert_array_equal(interval_ends(every), [[0, 1]] * 2)
    with pytest.raises(ValueError, match="inf"):  # the sample itself cannot reach the rate
        stats.bootstrap_intervals(score, member, 0.05)


@pytest.mark.usefixtures("_intervals_of_any_count")
def test_result_depends_on_seed_and_own_target_only():
    score_TxN, member_N = random_scores(2, missing=0)
    one = stats.bootstrap_intervals(score_TxN, member_N, 0.1, replicates=50, seed=3)
    repeated = stats.bootstrap_intervals(score_TxN[1], member_N, 0.1, replicates=50, seed=3)
    other = stats.bootstrap_intervals(score_TxN, member_N, 0.1, replicates=50, seed=4)
    np.testing.assert_array_equal(interval_ends(one, 1), interval_ends(repeated))
    assert np.any(interval_ends(one, 1) != interval_ends(other, 1))
    assert np.all((one.auc_low_T < one.auc_T) & (one.auc_T < one.auc_high_T))
    wider = stats.bootstrap_intervals(
        score_TxN, member_N, 0.1, replicates=50, seed=3, confidence=0.99
    )
    assert np.all(wider.auc_low_T < one.auc_low_T)
    assert np.all(wider.auc_high_T > one.auc_high_T)
    # member_TxN gives the same result, and so do monotone transforms, which keep the ranks.
    own = np.broadcast_to(member_N, score_TxN.shape)
    for score in (score_TxN, np.exp(score_TxN), 1e6 + 1e-3 * np.round(score_TxN, 3)):
        transformed = stats.bootstrap_intervals(score, own, 0.1, replicates=50, seed=3)
        np.testing.assert_allclose(transformed.auc_high_T, one.auc_high_T, atol=1e-3)
    flat = stats.bootstrap_intervals(np.zeros(9), np.arange(9) < 4, [0.5, 1.0], replicates=5)
    np.testing.assert_array_equal(interval_ends(flat), [[0.5, 0, 1]] * 2)


def test_tpr_from_fewer_than_10_samples_has_an_exact_interval():
    # Non-members 0 to 99; members just above some of them, so that j of 100 false positives detect known numbers.
    out = np.arange(100.0)
    ins = np.r_[np.full(9, 95.5), 91.5, np.full(30, 81.5), np.full(9, -1), -2]
    score, member = np.r_[out, ins], np.arange(150) >= 100
    fprs = [0.05, 0.09, 0.1, 0.19, 0.2, 0.995, 1.0]
    actual = stats.bootstrap_intervals(score, member, fprs, replicates=50)
    np.testing.assert_allclose(actual.tpr_TxF * 50, [[9, 10, 10, 40, 40, 40, 50]])
    # Too few are allowed, too few are allowed, enough, ..., 10 are missed, none is missed.
    is_exact_F = np.array([True, True, False, False, False, False, True])
    np.testing.assert_array_equal(actual.exact_TxF, [is_exact_F])
    low_TxF, high_TxF = stats.tpr_interval(score, member, fprs)
    for ends_TxF, exact_TxF in ((actual.tpr_low_TxF, low_TxF), (actual.tpr_high_TxF, high_TxF)):
        np.testing.assert_array_equal(ends_TxF == exact_TxF, [is_exact_F])
    fewer = stats.bootstrap_intervals(score[:-1], member[:-1], fprs, replicates=50)
    np.testing.assert_array_equal(fewer.exact_TxF[0], [1, 1, 0, 1, 1, 1, 1])  # 9 are missed
    few_found = stats.bootstrap_intervals(
        np.r_[out, ins[1:]], np.arange(149) >= 100, 0.1, replicates=9
    )
    assert few_found.exact_TxF[0, 0]  # 9 are found
    assert not np.isnan([*actual.auc_low_T, *fewer.auc_high_T, *few_found.auc_low_T]).any()


def test_exact_interval_by_hand():
    # Of 4 non-members, 1 to 3 reach the median with errors of 1/16 on each side, which is less than 1/8. Hence the
    # largest and the smallest score are the limits of the threshold; 2 and 3 of the members lie above them.
    score_N = np.array([1.0, 2, 3, 4, 0.5, 2, 5, 6])
    low, high = stats.tpr_interval(score_N, np.arange(8) >= 4, 0.5, confidence=0.5)
    assert low == stats.clopper_pearson(2, 4, confidence=0.75)[0]
    assert high == stats.clopper_pearson(3, 4, confidence=0.75)[1]


@given(out=TIED, ins=TIED, fpr=RATES)
@settings(max_examples=60, deadline=None)
def test_exact_interval_equals_a_slow_reference(out, ins, fpr):
    n, m = out.size, ins.size
    probability_K = scipy.stats.binom.pmf(np.arange(n + 1), n, fpr)
    largest_first = -np.sort(-out)
    fewest = min(k for k in range(n + 1) if probability_K[: k + 1].sum() >= 0.0125 - 1e-12)
    most = min(k for k in range(n + 1) if probability_K[: k + 1].sum() >= 0.9875 - 1e-12)
    hits_low = np.sum(ins > largest_first[fewest - 1]) if fewest else 0
    hits_high = np.sum(ins > largest_first[most]) if most < n else m
    low, high = stats.tpr_interval(np.r_[out, ins], np.arange(n + m) >= n, fpr)
    np.testing.assert_allclose(low, stats.clopper_pearson(hits_low, m, confidence=0.975)[0])
    np.testing.assert_allclose(high, stats.clopper_pearson(hits_high, m, confidence=0.975)[1])


def test_exact_interval_without_scores_is_nan():
    low, high = stats.tpr_interval([[np.nan, 1.0], [1.0, 2.0]], np.array([True, False]), [0.1, 0.5])
    np.testing.assert_array_equal(np.isnan(low), [[True, True], [False, False]])
    np.testing.assert_array_equal(low[1], [0, 0])
    assert high[1, 0] == 1
    with pytest.raises(ValueError, match="confidence"):
        stats.tpr_interval([1.0, 2.0], np.array([True, False]), 0.1, confidence=1)


@pytest.mark.montecarlo
@pytest.mark.parametrize(
    ("samples", "fpr", "levels"),
    [(200, 0.001, 0), (200, 0.01, 0), (1000, 0.01, 0), (200, 0.1, 4), (1000, 0.01, 4)],
)
def test_exact_interval_covers_for_small_counts_and_ties(samples, fpr, levels):
    # Scores are rounded down to multiples of 1 / levels, unless levels is 0. The true threshold is the smallest value
    # that at most the share fpr of the non-members reaches.
    rng, gap, rounds = np.random.default_rng([samples, levels]), 1.5, 400
    normal, threshold = scipy.stats.norm, scipy.stats.norm.isf(fpr)
    if levels:
        threshold = np.ceil(threshold * levels) / levels
    member_N = np.arange(2 * samples) >= samples
    score_TxN = rng.normal(size=(rounds, 2 * samples)) + gap * member_N
    if levels:
        score_TxN = np.floor(score_TxN * levels) / levels
    low_TxF, high_TxF = stats.tpr_interval(score_TxN, member_N, fpr)
    truth = normal.sf(threshold - gap)
    assert np.mean((low_TxF <= truth) & (truth <= high_TxF)) >= 0.96


def test_intervals_of_an_empty_class_are_nan():
    for score, member in [
        ([[1.0, 2.0, np.nan]], np.array([True, True, False])),
        ([[1.0, 2.0, np.nan]], np.array([False, False, True])),
        ([[np.nan] * 3], np.array([False, True, True])),
    ]:
        actual = stats.bootstrap_intervals(score, member, [0.1, 0.5], replicates=4)
        assert np.isnan(interval_ends(actual)).all()
        assert np.isnan([actual.auc_T[0], *actual.tpr_TxF[0]]).all()
        assert actual.left_out_T[0] == np.isnan(score).sum()
    none = stats.bootstrap_intervals(np.empty((0, 3)), np.ones(3, bool), [0.1, 0.2])
    assert none.auc_low_T.shape == none.left_out_T.shape == (0,)
    assert none.tpr_low_TxF.shape == (0, 2)
    alone = stats.bootstrap_intervals(*random_scores(0), replicates=9)
    assert alone.tpr_high_TxF.shape == (3, 0)


def test_invalid_arguments_raise():
    two, score = np.array([True, False]), [[1.0, 2.0]]
    for arguments, message in [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"replicates": 0}, "replicates"),
        ({"fprs": 1.5}, "rates"),
    ]:
        with pytest.raises(ValueError, match=message):
            stats.bootstrap_intervals(score, two, **arguments)
    with pytest.raises(ValueError, match="booleans"):
        stats.bootstrap_intervals(score, np.array([1, 0]))
    with pytest.raises(ValueError, match="shape"):
        stats.bootstrap_intervals(score, np.array([True]))


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson_is_scipys(confidence):
    hits = np.array([0, 1, 7, 19, 20])
    low, high = stats.clopper_pearson(hits, 20, confidence=confidence)
    for i, k in enumerate(hits):
        expected = scipy.stats.binomtest(int(k), 20).proportion_ci(confidence, method="exact")
        np.testing.assert_allclose([low[i], high[i]], [expected.low, expected.high], rtol=1e-6)


def test_clopper_pearson_edges():
    # Without successes, the upper end solves (1 - p)^n = 0.025.
    low, high = stats.clopper_pearson([0, 10, 0], [10, 10, 0])
    np.testing.assert_allclose(low, [0, 0.025**0.1, 0])
    np.testing.assert_allclose(high, [1 - 0.025**0.1, 1, 1])
    for hits, n, confidence in [(3, 2, 0.9), (-1, 2, 0.9), (np.nan, 2, 0.9), (1, 2, 1.0)]:
        with pytest.raises(ValueError, match="must"):
            stats.clopper_pearson(hits, n, confidence=confidence)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5])
def test_clopper_pearson_covers_exactly_summed(rate):
    hits = np.arange(41)
    low, high = stats.clopper_pearson(hits, 40, confidence=0.9)
    covered = scipy.stats.binom.pmf(hits, 40, rate)[(low <= rate) & (rate <= high)].sum()
    assert covered >= 0.9
