"""Rank correlations, gaps and means in bins: hand-worked cases, slow references, and coverage with pieces."""

import math

import numpy as np
import pytest
import scipy.stats

from analysis.claims.trends import BinnedMeans, RankCorrelation, gap_at_equal, rank_correlation

INF, NAN = float("inf"), float("nan")


def correlation(x_N, y_N, document_N=None) -> RankCorrelation:
    x_N = np.asarray(x_N, float)
    document_N = np.arange(len(x_N)) if document_N is None else document_N
    result = RankCorrelation.from_samples(x_N, np.asarray(y_N, float), document_N)
    assert result is not None
    return result


def pieces(rng: np.random.Generator, documents: int, size: int, r: float, kind: str = "normal"):
    """Draws two related properties, half of whose variance is shared by the pieces of a document."""
    shared_2xDx1 = rng.normal(size=(2, documents, 1))
    own_2xDxS = rng.normal(size=(2, documents, size))
    x_N, noise_N = ((shared_2xDx1 + own_2xDxS) / math.sqrt(2)).reshape(2, -1)
    y_N = r * x_N + math.sqrt(1 - r**2) * noise_N
    if kind == "binary":
        y_N = (y_N > 1).astype(float)
    return x_N, y_N, np.repeat(np.arange(documents), size)


def test_rank_correlation_by_hand() -> None:
    x_N, y_N = np.array([1, 2, 3, 4, 5.0]), np.array([2, 1, 4, 3, 5.0])
    # The formula with squared differences of ranks.
    assert rank_correlation(x_N, y_N) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert correlation(x_N, y_N).r == pytest.approx(0.8)


def test_standard_error_against_leaving_out_each_document() -> None:
    """The jackknife and the influences agree up to terms of the order of 1 / D."""
    x_N, y_N, document_N = pieces(np.random.default_rng(0), 200, 5, 0.6)
    y_N = np.round(2 * y_N)  # with ties
    without_D = [rank_correlation(x_N[document_N != d], y_N[document_N != d]) for d in range(200)]
    expected = math.sqrt(199**2 / 200 * np.var(without_D, ddof=1))
    result = correlation(x_N, y_N, document_N)
    assert result.standard_error == pytest.approx(expected, rel=0.02)
    assert (result.samples, result.documents) == (1000, 200)
    # Documents are names: their numbers and the order of the samples do not matter.
    order = np.random.default_rng(1).permutation(1000)
    other = correlation(x_N[order], y_N[order], 7 - 3 * document_N[order])
    assert other.standard_error == pytest.approx(result.standard_error, rel=1e-9)


def test_standard_error_of_independent_samples_is_bonett_and_wrights() -> None:
    for r in (0.0, 0.7):
        x_N, y_N, _ = pieces(np.random.default_rng(2), 20_000, 1, r)
        result = correlation(x_N, y_N)
        expected = (1 - result.r**2) * math.sqrt((1 + result.r**2 / 2) / 20_000)
        assert result.standard_error == pytest.approx(expected, rel=0.03)


def test_copies_of_a_sample_do_not_narrow_the_interval() -> None:
    x_N, y_N, _ = pieces(np.random.default_rng(3), 400, 1, 0.3)
    once, copied = (
        correlation(np.tile(x_N, n), np.tile(y_N, n), np.tile(np.arange(400), n)) for n in (1, 10)
    )
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high), abs=2e-3)
    assert copied.documents == 400


def test_interval_for_claims() -> None:
    x_N, y_N, document_N = pieces(np.random.default_rng(4), 1000, 1, 0.5)
    result = correlation(x_N, y_N)
    estimate = result.estimate(("the model",))
    assert estimate.value == result.r
    assert (estimate.low, estimate.high) == pytest.approx((result.low, result.high), abs=3e-3)
    assert (estimate.over, estimate.not_covered) == ("1,000 samples", ("the model",))
    paired = correlation(x_N, y_N, document_N // 2).estimate(())
    assert (paired.over, paired.degrees_of_freedom) == ("1,000 samples of 500 documents", 499)


def test_a_perfect_correlation_of_few_samples_decides_no_claim() -> None:
    ranks_N = np.arange(5)
    correlation = RankCorrelation.from_samples(ranks_N, ranks_N, ranks_N)
    assert correlation is not None
    assert (correlation.r, correlation.standard_error) == pytest.approx((1, 0))
    assert not correlation.estimate(()).has_interval


def test_infinity_and_nan() -> None:
    x_N = np.array([-INF, 1, 2, INF, NAN, 3])
    y_N = np.array([0, 1, 2, 5, -77, NAN])
    result = correlation(x_N, y_N)
    assert (result.r, result.low, result.high, result.samples) == (1, 1, 1, 4)
    assert str(correlation(-x_N, y_N)) == "−1.00 [−1.00, −1.00]"


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), ([1, 2, 3, 4, 5], [INF] * 5), ([1, 2, 3], [1, 2, 3])],
)
def test_no_correlation_without_variation(x: list[float], y: list[float]) -> None:
    x_N, y_N = np.array(x, float), np.array(y, float)
    assert RankCorrelation.from_samples(x_N, y_N, np.arange(len(x))) is None
    assert math.isnan(rank_correlation(x_N, y_N))
    assert math.isnan(rank_correlation(x_N[:0], y_N[:0]))


def test_three_documents_are_too_few() -> None:
    x_N, y_N, document_N = pieces(np.random.default_rng(5), 3, 10, 0.5)
    assert RankCorrelation.from_samples(x_N, y_N, document_N) is None


@pytest.mark.montecarlo
@pytest.mark.parametrize("kind", ["normal", "binary"])
def test_coverage_with_documents_in_pieces(kind: str) -> None:
    """Of 600 intervals 95% should cover 0, and the standard error of the share is 0.9 points; see also trends.py."""
    rng = np.random.default_rng(6)
    over_documents = over_samples = 0
    for _ in range(600):
        x_N, y_N, document_N = pieces(rng, 60, 8, 0.0, kind)
        by_document, by_sample = correlation(x_N, y_N, document_N), correlation(x_N, y_N)
        over_documents += by_document.low <= 0 <= by_document.high
        over_samples += by_sample.low <= 0 <= by_sample.high
    assert 0.92 < over_documents / 600 < 0.98
    assert over_samples / 600 < 0.88


def test_bands_are_exact_for_decisions_and_t_intervals_for_shares() -> None:
    x_N, document_N = np.arange(40.0), np.arange(40)
    result = BinnedMeans.from_samples(x_N, (x_N >= 20).astype(float), document_N, 2)
    assert result.x_K.tolist() == [9.5, 29.5]
    assert (result.y_K.tolist(), result.count_K.tolist()) == ([0, 1], [20, 20])
    assert (result.low_K[0], result.high_K[1]) == (0, 1)
    assert result.high_K[0] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert result.low_K[1] == pytest.approx(0.025 ** (1 / 20))
    is_third_N = (np.arange(40) % 20 < 5).astype(float)
    result = BinnedMeans.from_samples(x_N, is_third_N, document_N, 2)
    exact = scipy.stats.binomtest(5, 20).proportion_ci(0.95)
    np.testing.assert_allclose(result.low_K, exact.low)
    np.testing.assert_allclose(result.high_K, exact.high)
    share_N = np.tile([0.25, 0.75], 20)
    result = BinnedMeans.from_samples(x_N, share_N, document_N, 2)
    half_width = scipy.stats.t.ppf(0.975, 19) * share_N[:20].std(ddof=1) / math.sqrt(20)
    assert result.low_K == pytest.approx([0.5 - half_width] * 2)
    assert result.high_K == pytest.approx([0.5 + half_width] * 2)


def test_bands_of_copied_samples_are_those_of_the_documents() -> None:
    x_N, y_N, _ = pieces(np.random.default_rng(7), 300, 1, 0.5)
    for values_N in ((y_N > 0).astype(float), 1 / (1 + np.exp(-y_N))):
        once, copied = (
            BinnedMeans.from_samples(
                np.tile(x_N, n), np.tile(values_N, n), np.tile(np.arange(300), n), 3
            )
            for n in (1, 5)
        )
        assert (copied.count_K == 5 * once.count_K).all()
        np.testing.assert_allclose(copied.low_K, once.low_K, atol=2e-3)
        np.testing.assert_allclose(copied.high_K, once.high_K, atol=2e-3)


def test_equal_decisions_count_documents() -> None:
    result = BinnedMeans.from_samples(np.arange(40.0), np.zeros(40), np.arange(40) // 4, 1)
    assert result.high_K[0] == pytest.approx(1 - 0.025 ** (1 / 10))


@pytest.mark.montecarlo
@pytest.mark.parametrize("kind", ["normal", "binary"])
def test_coverage_of_bands_with_documents_in_pieces(kind: str) -> None:
    """The upper of two bins of x; the mean of y there is known by symmetry or from the normal distribution."""
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(600):
        x_N, y_N, document_N = pieces(rng, 60, 8, 0.0, kind)
        y_N = y_N if kind == "binary" else scipy.stats.norm.cdf(y_N)
        bands = BinnedMeans.from_samples(x_N, y_N, document_N, 2)
        truth = scipy.stats.norm.sf(1) if kind == "binary" else 0.5
        hits += bands.low_K[1] <= truth <= bands.high_K[1]
    assert 0.92 < hits / 600 < 0.985


def test_bins_of_one_sample_have_no_band() -> None:
    two_N, document_N = np.array([1.0, 2.0]), np.arange(2)
    result = BinnedMeans.from_samples(two_N, np.array([0.5, 0.25]), document_N, 2)
    assert np.isnan(result.low_K).all()
    empty = BinnedMeans.from_samples(np.full(3, NAN), np.ones(3), np.arange(3), 2)
    assert len(empty.x_K) == 0


def test_gap_at_equal_x_by_hand() -> None:
    # Both groups have the same x, so the gap is the difference of the means, (1 + 5) / 2 - (0 + 2) / 2.
    x_N, y_N = np.array([0.0, 0, 1, 1]), np.array([0.0, 1, 2, 5])
    is_first_N = np.array([False, True, False, True])
    found = gap_at_equal(x_N, y_N, is_first_N, np.arange(4), ("the model",))
    assert found.value == pytest.approx(2)
    # The errors of y are 0.5, -0.5, -0.5, 0.5, those of membership 0.5 in size. Influences are 0.25 in size; there are
    # 4 samples and 3 parameters.
    assert found.standard_error**2 == pytest.approx(4 * 0.25**2 * 4 / 3 * 4)
    assert (found.degrees_of_freedom, found.not_covered) == (1, ("the model",))


def test_gap_at_equal_x_is_a_coefficient_of_least_squares() -> None:
    rng = np.random.default_rng(9)
    x_N, is_first_N = rng.random(100), rng.random(100) < 0.4
    y_N = x_N**2 + 0.3 * is_first_N + 0.1 * rng.normal(size=100)
    bin_N = np.argsort(np.argsort(x_N)) // 20  # 5 bins of 20
    of_bin = np.eye(5)[bin_N]
    design = np.column_stack([is_first_N, of_bin, of_bin * x_N[:, None]])
    expected = np.linalg.lstsq(design, y_N)[0][0]
    # Samples with a NaN are left out.
    found = gap_at_equal(
        np.append(x_N, NAN), np.append(y_N, 1), np.append(is_first_N, True), np.arange(101)
    )
    assert found.value == pytest.approx(expected)
    assert found.over == "100 samples"
    document_N = np.arange(100) // 4
    assert gap_at_equal(x_N, y_N, is_first_N, document_N).over == "100 samples of 25 documents"


def test_gap_without_overlap_or_variation() -> None:
    x_N, is_first_N = np.arange(60.0), np.arange(60) % 2 == 0
    nobody = np.zeros(60, bool)
    assert math.isnan(gap_at_equal(x_N, x_N, nobody, np.arange(60)).value)
    assert math.isnan(gap_at_equal(x_N[:0], x_N[:0], nobody[:0], np.arange(0)).value)
    assert not gap_at_equal(x_N, x_N % 3, is_first_N, np.zeros(60, int)).has_interval
    assert not gap_at_equal(x_N[:3], x_N[:3] % 2, is_first_N[:3], np.arange(3)).has_interval
    constant = gap_at_equal(x_N, np.full(60, 0.1), is_first_N, np.arange(60))
    assert (constant.value, constant.standard_error) == (0, 0)
    # A gap without any noise is a coincidence.
    exact = gap_at_equal(x_N, 0.1 * is_first_N, is_first_N, np.arange(60))
    assert exact.value == pytest.approx(0.1)
    assert not exact.has_interval


def flips(
    rng: np.random.Generator, documents: int, pieces: int, gap: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (distance, flip rate over 127 votes, member, document); members are nearer to the threshold."""
    document_N = np.repeat(np.arange(documents), pieces)
    member_N = (rng.random(documents) < 0.5)[document_N]
    near_N, often_N = (rng.normal(size=documents)[document_N] for _ in range(2))
    distance_N = np.exp(0.6 * near_N + 0.5 * rng.normal(size=len(document_N)) - 0.7 * member_N)
    share_N = 0.5 * np.exp(-1.5 * distance_N**1.5) + gap * member_N
    if pieces > 1:
        share_N = share_N * np.exp(0.5 * often_N)
    votes_N = rng.binomial(127, np.clip(share_N, 0, 0.5))
    return distance_N, 2 * votes_N * (127 - votes_N) / (127 * 126), member_N, document_N


def test_members_near_the_threshold_have_no_gap_at_equal_distance() -> None:
    distance_N, flip_N, member_N, document_N = flips(np.random.default_rng(10), 4000, 1, 0.0)
    assert flip_N[member_N].mean() - flip_N[~member_N].mean() > 0.05
    found = gap_at_equal(distance_N, flip_N, member_N, document_N)
    assert found.low < 0 < found.high
    found = gap_at_equal(*flips(np.random.default_rng(11), 4000, 1, 0.05))
    assert found.low > 0.02


@pytest.mark.montecarlo
@pytest.mark.parametrize(("documents", "pieces"), [(250, 1), (2000, 1), (200, 8)])
def test_gap_of_equal_groups_is_rarely_decided(documents: int, pieces: int) -> None:
    """Each side should be decided with 2.5%; the standard error of 800 draws is 0.55 points."""
    rng = np.random.default_rng(12)
    found = [gap_at_equal(*flips(rng, documents, pieces, 0.0)) for _ in range(800)]
    assert np.mean([x.low > 0 for x in found]) < 0.045
    assert np.mean([x.high < 0 for x in found]) < 0.045
    values = np.array([x.value for x in found])
    assert np.mean([x.standard_error for x in found]) == pytest.approx(values.std(), rel=0.1)
