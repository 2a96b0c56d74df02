"""Models of membership and of scores given covariates: known truth, optimality, cross-fitting and the edges."""

import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression

from lm_mia import stats
from lm_mia.attacks import propensity


def simulate(
    samples: int, coefficient_K: np.ndarray, intercept: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns features, true log odds and membership."""
    rng = np.random.default_rng(0)
    feature_NxK = rng.normal(size=(samples, coefficient_K.size))
    log_odds_N = feature_NxK @ coefficient_K + intercept
    return feature_NxK, log_odds_N, rng.random(samples) < special.expit(log_odds_N)


def auc(score_N: np.ndarray, member_N: np.ndarray) -> float:
    return float(stats.auc(score_N, member_N).auc_T[0])


def test_log_odds_are_calibrated() -> None:
    coefficient_K = np.array([1.0, -0.5, 0, 0, 0.7])
    feature_NxK, true_N, member_N = simulate(8000, coefficient_K, -1.5)
    # The scale and the offset of a feature do not matter.
    feature_NxK = feature_NxK * [1, 100, 1e-6, 1, 1e3] + [0, 1e4, 0, -5, 1e6]
    log_odds_N = propensity.cross_fitted_log_odds(feature_NxK, member_N, np.arange(member_N.size))
    slope, intercept = np.polyfit(true_N, log_odds_N, 1)
    assert slope == pytest.approx(1, abs=0.1)
    assert intercept == pytest.approx(0, abs=0.1)
    # Odds of the class sizes at hand: the weights of non-members add up to the number of members.
    assert np.exp(log_odds_N[~member_N]).sum() == pytest.approx(member_N.sum(), rel=0.1)


def test_log_odds_of_noise_are_the_class_sizes() -> None:
    feature_NxK, _, member_N = simulate(1000, np.zeros(10), -2)
    log_odds_N = propensity.cross_fitted_log_odds(feature_NxK, member_N, np.arange(member_N.size))
    assert log_odds_N.std() < 0.2
    assert log_odds_N.mean() == pytest.approx(special.logit(member_N.mean()), abs=0.02)


def test_cross_fitting_by_group_shows_no_signal_in_noise() -> None:
    """A model that has seen a sample, or its duplicate, seems to know its membership."""
    feature_NxK, _, member_N = simulate(150, np.zeros(100), 0)
    in_sample_N = LogisticRegression().fit(feature_NxK, member_N).decision_function(feature_NxK)
    assert auc(in_sample_N, member_N) > 0.9
    twice_NxK, twice_N, group_N = (
        np.vstack([feature_NxK] * 2),
        np.tile(member_N, 2),
        np.tile(np.arange(150), 2),
    )
    log_odds_N = propensity.cross_fitted_log_odds(twice_NxK, twice_N, group_N)
    assert abs(auc(log_odds_N, twice_N) - 0.5) < 0.15
    without_groups_N = propensity.cross_fitted_log_odds(twice_NxK, twice_N, np.arange(300))
    assert auc(without_groups_N, twice_N) > 0.65


@pytest.mark.parametrize("members", [10, 200])
def test_perfect_separation_gives_large_finite_log_odds(members: int) -> None:
    member_N = np.arange(400) < members
    feature_NxK = np.column_stack([member_N * 1.0, np.random.default_rng(0).normal(size=400)])
    log_odds_N = propensity.cross_fitted_log_odds(feature_NxK, member_N, np.arange(400))
    assert np.isfinite(log_odds_N).all()
    assert log_odds_N[member_N].min() > 3
    assert log_odds_N[~member_N].max() < -3
    assert propensity.share_beyond_nonmembers(log_odds_N, member_N) == 1


def test_share_beyond_nonmembers_is_small_with_overlap() -> None:
    _, log_odds_N, member_N = simulate(1000, np.array([1.0]), 0)
    assert propensity.share_beyond_nonmembers(log_odds_N, member_N) < 0.02


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [50, 1, 3, 3], [5, 5, 1, 1, 1, 1, 1]])
def test_folds_of_few_groups_never_lack_a_class(sizes: list[int]) -> None:
    """Two groups of each class are enough, whatever their sizes; the first group has both classes."""
    group_N = np.repeat(np.arange(len(sizes)) * 7 - 3, sizes)
    member_N = group_N % 2 == 0
    member_N[: sizes[0] // 2] = ~member_N[0]
    feature_NxK = np.random.default_rng(0).normal(size=(group_N.size, 2))
    for seed in range(4):
        log_odds_N = propensity.cross_fitted_log_odds(feature_NxK, member_N, group_N, seed=seed)
        assert np.isfinite(log_odds_N).all()
        outcome = propensity.cross_fitted_outcome(
            feature_NxK, feature_NxK[:, 0], member_N, group_N, seed=seed
        )
        assert np.isfinite(np.asarray(outcome.mean_N)).all()


def test_outcome_is_the_conditional_mean_of_nonmembers() -> None:
    feature_NxK, _, member_N = simulate(5000, np.array([1.0, 0, 0]), 0)
    rng = np.random.default_rng(1)
    mean_N = 1e6 + 2 * feature_NxK[:, 0] - feature_NxK[:, 1]
    score_N = mean_N + rng.normal(size=5000) + 3 * member_N
    score_N[:50] = np.nan
    outcome = propensity.cross_fitted_outcome(feature_NxK, score_N, member_N, np.arange(5000))
    assert np.asarray(outcome.mean_N) == pytest.approx(mean_N, abs=0.3)
    scored_N = ~member_N & ~np.isnan(score_N)
    np.testing.assert_array_equal(
        outcome.residual_J, (score_N - np.asarray(outcome.mean_N))[scored_N]
    )
    assert np.std(outcome.residual_J) == pytest.approx(1, abs=0.05)


def test_outcome_residuals_of_noise_are_not_overfitted() -> None:
    """In the sample, 60 features of 100 non-members would explain most of the variance of pure noise."""
    feature_NxK, _, member_N = simulate(200, np.zeros(60), 0)
    score_N = np.random.default_rng(1).normal(size=200)
    outcome = propensity.cross_fitted_outcome(feature_NxK, score_N, member_N, np.arange(200))
    score_J = score_N[~member_N]
    assert np.std(outcome.residual_J) > 0.95 * score_J.std()
    design_JxD = np.column_stack([feature_NxK, np.ones(200)])[~member_N]
    in_sample_J = score_J - design_JxD @ np.linalg.lstsq(design_JxD, score_J)[0]
    assert in_sample_J.std() < 0.75 * score_J.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member_N": np.arange(10) < 1}, r"1 groups of members\b.*\b2"),
        ({"group_N": np.repeat([0, 1, 2], [5, 4, 1]), "member_N": np.arange(10) < 5}, "1 groups of members"),
        ({"member_N": np.ones(10, bool)}, "0 groups of non-members"),
        ({"group_N": np.arange(9)}, "for each sample"),
        ({"feature_NxK": np.full((10, 1), np.nan)}, "NaN or infinite"),
        ({"feature_NxK": np.zeros((10, 4097))}, "at most 4,096"),
    ],
)  # fmt: skip
def test_bad_input(changes: dict[str, np.ndarray], message: str) -> None:
    arguments = {"feature_NxK": np.zeros((10, 2)), "member_N": np.arange(10) < 5}
    arguments |= {"group_N": np.arange(10)} | changes
    with pytest.raises(ValueError, match=message):
        propensity.cross_fitted_log_odds(**arguments)


def test_text_features_tell_topics_apart() -> None:
    texts = [
        f"{'the parser reads tokens' if i % 2 else 'cats chase small mice'} number {i} again"
        for i in range(60)
    ]
    feature_NxK = propensity.text_features(texts)
    assert len(feature_NxK) == 60
    member_N = np.arange(60) % 2 == 0
    log_odds_N = propensity.cross_fitted_log_odds(feature_NxK, member_N, np.arange(60))
    assert auc(log_odds_N, member_N) == 1
    np.testing.assert_array_equal(propensity.text_features(texts), feature_NxK)


@pytest.mark.parametrize(
    "texts", [["", "", ""], ["one", "two", "three"], ["a \ud800", "b", "a"], ["!"] * 5]
)
def test_text_features_without_common_words(texts: list[str]) -> None:
    feature_NxK = propensity.text_features(texts)
    assert len(feature_NxK) == len(texts)
    assert np.isfinite(feature_NxK).all()
    assert feature_NxK[0, 0] == np.float32(np.log1p(len(texts[0])))


@pytest.mark.filterwarnings("error")
def test_a_feature_without_information_gives_equal_odds():
    feature_Nx1 = np.zeros((200, 1))
    feature_Nx1[0] = 1
    member_N = np.arange(200) % 2 == 0
    log_odds_N = propensity.cross_fitted_log_odds(feature_Nx1, member_N, np.arange(200))
    assert np.abs(log_odds_N).max() < 0.2
