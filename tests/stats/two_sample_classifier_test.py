"""The AUC of a classifier of features: its interval, and that it is 0.5 if membership is random."""

import numpy as np
import pytest
from scipy import sparse

from lm_mia import stats

N, K = 150, 300


def features(rng: np.random.Generator, samples: int = N) -> np.ndarray:
    """Returns rows of length 1 in which 20 of the features, usually the same ones, are not 0."""
    feature_NxK = np.zeros((samples, K))
    for feature_K in feature_NxK:
        feature_K[rng.geometric(0.02, 20) % K] += 1
    return feature_NxK / np.linalg.norm(feature_NxK, axis=1, keepdims=True)


def two_sample_auc(
    feature_NxK: np.ndarray, member_N: np.ndarray, group_N: np.ndarray | None = None
) -> stats.TwoSampleAuc:
    result = stats.two_sample_auc(sparse.csr_array(feature_NxK), member_N, group_N)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("draws", "coverage"),
    [(40, (0.82, 1.0)), pytest.param(150, (0.91, 0.985), marks=pytest.mark.montecarlo)],
)
@pytest.mark.parametrize("groups", ["samples", "documents", "users"])
def test_noise_has_an_auc_of_one_half_and_its_interval_covers_it(
    groups: str, draws: int, coverage: tuple[float, float]
):
    rng = np.random.default_rng(1)
    aucs, covered = [], []
    for _ in range(draws):
        feature_NxK, member_N, group_N = features(rng), rng.random(N) < 0.5, None
        if groups == "documents":  # with words of their own, and some pieces of each are members
            group_N = np.arange(N) % 75
            feature_NxK[np.arange(N), group_N] += 0.5
        elif groups == "users":  # whose texts are all members, or none is
            group_N = np.arange(N) % 75
            feature_NxK[np.arange(N), group_N % 20] += 0.5
            member_N = (rng.permutation(75) < 37)[group_N]
        result = two_sample_auc(feature_NxK, member_N, group_N)
        aucs.append(result.auc)
        covered.append(result.low <= 0.5 <= result.high)
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / np.sqrt(len(aucs))
    assert coverage[0] < np.mean(covered) <= coverage[1]


def test_a_difference_has_an_interval_around_the_auc_of_new_samples():
    rng = np.random.default_rng(0)

    def draw(samples: int) -> tuple[np.ndarray, np.ndarray]:
        feature_NxK, member_N = features(rng, samples), rng.random(samples) < 0.5
        feature_NxK[member_N, 250] += 0.3 * (rng.random(member_N.sum()) < 0.5)
        return feature_NxK, member_N

    result = two_sample_auc(*draw(600))
    assert result.is_above_chance
    large = two_sample_auc(*draw(6000))
    assert result.low < large.auc < result.high
    assert large.high - large.low < 0.4 * (result.high - result.low)


def test_groups_are_never_split_between_training_and_test():
    """Each user has a word that no other user has, which tells nothing of other users."""
    rng = np.random.default_rng(0)
    user_N = np.arange(600) % 60
    feature_NxK = np.eye(60)[user_N]
    member_N = (rng.random(60) < 0.5)[user_N]
    assert two_sample_auc(feature_NxK, member_N).low > 0.9
    result = two_sample_auc(feature_NxK, member_N, user_N)
    assert not result.is_above_chance
    assert result.auc == pytest.approx(0.5, abs=0.05)


def test_too_few_groups_have_no_auc_and_wrong_values_are_refused():
    rng = np.random.default_rng(0)
    feature_NxK, member_N = sparse.csr_array(features(rng)), np.arange(N) < 20
    assert stats.two_sample_auc(feature_NxK, member_N) is None
    member_N = np.arange(N) % 2 == 0
    assert stats.two_sample_auc(feature_NxK, member_N, np.arange(N) // 8) is None
    with pytest.raises(ValueError, match="lengths"):
        stats.two_sample_auc(feature_NxK, member_N[1:])
    feature_NxK.data[0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        stats.two_sample_auc(feature_NxK, member_N)
