"""Whether memberships were drawn one by one and by fair coins."""

import itertools

import numpy as np
import pytest

from lm_mia import stats


def test_numbers_of_members_by_hand():
    # 5 standard deviations of 10,000 coins are 250.
    for members, unlike in ((5250, False), (5251, True), (4750, False), (4749, True)):
        assert stats.unlike_fair_coins(np.arange(10_000) < members) == unlike
    # All of 25 coins are heads with a probability of 3e-8, which is 5 standard deviations.
    assert not stats.unlike_fair_coins(np.ones(25, bool))
    assert stats.unlike_fair_coins(np.ones(26, bool))
    assert not stats.unlike_fair_coins(np.zeros(0, bool))


@pytest.mark.parametrize(("clusters", "size"), [(200, 10), (1000, 2), (12, 10), (40, 2)])
def test_clusters_drawn_as_a_whole_are_found(clusters: int, size: int):
    rng = np.random.default_rng(0)
    cluster_N = rng.permutation(np.repeat(np.arange(clusters), size)) - 7
    single_N = np.arange(cluster_N.size)
    for share in (0.5, 0.8):
        for _ in range(20):
            whole_N = (rng.random(clusters) < share)[cluster_N + 7]
            member_N = rng.random(cluster_N.size) < share
            fixed_N = rng.permutation(cluster_N.size) < share * cluster_N.size
            if 0.2 <= whole_N.mean() <= 0.8:
                assert stats.drawn_by_cluster(whole_N, cluster_N) or clusters * size < 100
            assert not stats.drawn_by_cluster(member_N, cluster_N)
            assert not stats.drawn_by_cluster(fixed_N, cluster_N)
            assert not stats.drawn_by_cluster(whole_N, single_N)


def test_a_few_large_clusters_give_no_false_alarm():
    # One cluster of 6 is whole with a probability of 1/32, although that is more than 5 standard deviations.
    for size in (2, 6, 12):
        for is_member in (True, False):
            member_N = np.append(np.full(size, is_member), np.arange(100) % 2 == 0)
            cluster_N = np.append(np.zeros(size, int), np.arange(1, 101))
            assert not stats.drawn_by_cluster(member_N, cluster_N)


def test_probability_of_false_alarms_by_enumeration():
    # All subsets of 8 of 16 samples in 8 pairs: whole pairs are common, so no subset is refused.
    cluster_N = np.repeat(np.arange(8), 2)
    alarms = 0
    for members in itertools.combinations(range(16), 8):
        member_N = np.isin(np.arange(16), members)
        alarms += stats.drawn_by_cluster(member_N, cluster_N)
    assert alarms == 0


def test_clusters_are_checked():
    for cluster_N in ([0, 1], [0.0, 1.0, 2.0], [[0, 1, 2]]):
        with pytest.raises(ValueError, match="cluster_N"):
            stats.drawn_by_cluster([True, False, True], cluster_N)


@pytest.mark.parametrize("membership", ["coins", "half"])
def test_bound_refuses_clusters_that_were_drawn_as_a_whole(membership):
    rng = np.random.default_rng(0)
    cluster_N = np.repeat(np.arange(200), 10)
    member_N = (rng.permutation(200) < 100)[cluster_N]
    score_N = rng.normal(size=2000)
    arguments = {"membership": membership, "delta": 1e-5}
    with pytest.raises(ValueError, match=r"cluster_N: .*one canary"):
        stats.one_run_bound(score_N, member_N, cluster_N=cluster_N, **arguments)
    one_by_one_N = rng.permutation(2000) < 1000
    expected = stats.one_run_bound(score_N, one_by_one_N, **arguments)
    bound = stats.one_run_bound(score_N, one_by_one_N, cluster_N=cluster_N, **arguments)
    assert bound.epsilon == expected.epsilon


def test_bound_for_coins_refuses_an_unlikely_number_of_members():
    rng = np.random.default_rng(0)
    score_N = rng.normal(size=2000)
    for share in (0.3, 0.7, 1.0):
        member_N = rng.random(2000) < share
        with pytest.raises(ValueError, match=r"membership='coins': .* membership='half'"):
            stats.one_run_bound(score_N, member_N, membership="coins", delta=1e-5)
        if share < 1:
            half = stats.one_run_bound(score_N, member_N, membership="half", delta=1e-5)
            assert half.epsilon == 0
