import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.attacks import resampling


def alone(references: int) -> list[np.ndarray]:
    """Returns units of one reference each."""
    return [*np.arange(references)[:, None]]


def test_disjoint_sets_by_hand():
    np.testing.assert_array_equal(resampling.disjoint_sets(alone(7), 3), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(resampling.disjoint_sets(alone(3), 3), [[0, 1, 2]])
    assert resampling.disjoint_sets(alone(128), 16).shape == (8, 16)


def test_units_are_in_one_set_and_cut_at_its_end():
    units = [np.array(unit) for unit in ([0, 1], [2, 3, 4, 5], [6, 7], [8, 9, 10, 11], [12, 13])]
    expected = [[0, 1, 2, 3], [6, 7, 8, 9]]
    np.testing.assert_array_equal(resampling.disjoint_sets(units, 4), expected)
    index_SxR = resampling.subsampled_sets(units, 6, 200, np.random.default_rng(0))
    assert index_SxR.shape == (200, 6)
    unit_R = np.repeat(range(5), [2, 4, 2, 4, 2])
    for index_R in index_SxR:
        counts = np.bincount(unit_R[index_R], minlength=5)
        # All but one of the units are complete.
        assert ((counts > 0) & (counts < [2, 4, 2, 4, 2])).sum() <= 1
    assert set(index_SxR.ravel().tolist()) == {*range(14)}


@given(st.integers(1, 60), st.integers(1, 60))
def test_disjoint_sets_share_nothing(references, size):
    if size > references:
        with pytest.raises(ValueError, match="size"):
            resampling.disjoint_sets(alone(references), size)
        return
    index_SxR = resampling.disjoint_sets(alone(references), size)
    assert index_SxR.shape == (references // size, size)
    assert len(set(index_SxR.ravel().tolist())) == index_SxR.size
    assert 0 <= index_SxR.min() <= index_SxR.max() < references
    assert references - index_SxR.size < size


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_subsampled_sets_have_no_duplicates(references, size, sets, seed):
    size = min(size, references)
    index_SxR = resampling.subsampled_sets(
        alone(references), size, sets, np.random.default_rng(seed)
    )
    assert index_SxR.shape == (sets, size)
    assert np.all(np.diff(index_SxR, axis=1) > 0)
    assert 0 <= index_SxR.min() <= index_SxR.max() < references
    again = resampling.subsampled_sets(alone(references), size, sets, np.random.default_rng(seed))
    np.testing.assert_array_equal(again, index_SxR)


@pytest.mark.montecarlo
def test_subsampled_sets_draw_every_reference_equally():
    index_SxR = resampling.subsampled_sets(alone(10), 4, 5000, np.random.default_rng(0))
    # 2,000 times each, give or take 35; every pair of sets shares 1.6 on average.
    np.testing.assert_allclose(np.bincount(index_SxR.ravel()), 2000, atol=140)
    shared = [np.intersect1d(a, b).size for a, b in itertools.pairwise(index_SxR)]
    np.testing.assert_allclose(np.mean(shared), 1.6, atol=0.05)


def test_invalid_set_sizes_raise():
    rng = np.random.default_rng(0)
    for size in (0, 5):
        with pytest.raises(ValueError, match="from 1 to"):
            resampling.subsampled_sets(alone(4), size, 1, rng)
        with pytest.raises(ValueError, match="from 1 to"):
            resampling.disjoint_sets(alone(4), size)
    with pytest.raises(ValueError, match="1 or more"):
        resampling.subsampled_sets(alone(4), 2, 0, rng)


def test_overlapping_sets_agree_more_than_disjoint_ones():
    # On noise, decisions depend only on the references. Disjoint sets therefore behave as coins with the requested
    # rate, and overlapping sets agree with each other more often.
    rng = np.random.default_rng(0)
    references, samples = 64, 4000
    loss_MxN = rng.normal(size=(references, samples))
    reference_member_MxN = rng.random((references, samples)) < 0.5
    target_N, member_N = rng.normal(size=samples), rng.random(samples) < 0.5

    def flip_rate(index_SxR):
        score_SxN = np.concatenate(
            [
                stats.lira(target_N[None], loss_MxN[i], reference_member_MxN[i], variance="pooled")
                for i in index_SxR
            ]
        )
        points = stats.tpr_at_fpr(score_SxN, member_N, [0.5])
        votes = stats.count_votes(score_SxN, points.threshold_TxF)
        assert votes.replicas == len(index_SxR)
        return np.nanmean(stats.flip_rate(votes.votes_FxN, votes.replicas))

    apart = flip_rate(resampling.disjoint_sets(alone(references), 8))
    together = flip_rate(resampling.subsampled_sets(alone(references), 48, 8, rng))
    assert 0.4 < apart < 0.52
    assert together < apart - 0.1
