"""The selection of members and non-members: shares, true density ratios, and shifts that are not possible."""

import math

import numpy as np
import pytest

from lm_mia.attacks import shift

SAMPLES = 4000
RNG = np.random.default_rng(0)
MEMBER_N = RNG.permuted(np.arange(SAMPLES) < SAMPLES // 2)
IN_A_N = RNG.random(SAMPLES) < 0.45
TFIDF_N = np.where(np.arange(SAMPLES) == 5, math.nan, RNG.normal(3, 2, SAMPLES))


def check_classes(s: shift.Shift) -> None:
    assert MEMBER_N[s.member_ids].all()
    assert not MEMBER_N[s.nonmember_ids].any()
    assert not MEMBER_N[s.iid_nonmember_ids].any()
    assert not {*s.nonmember_ids} & {*s.iid_nonmember_ids}
    for ids in (s.member_ids, s.nonmember_ids, s.iid_nonmember_ids):
        assert (np.diff(ids) > 0).all()


def test_groups_have_nine_of_ten_members_in_a():
    s = shift.groups(IN_A_N, MEMBER_N, 3)
    check_classes(s)
    count = len(s.member_ids)
    assert len(s.nonmember_ids) == len(s.iid_nonmember_ids) == count
    # As many as possible: 9 tenths of them are members in A.
    assert count == 10 * min((MEMBER_N & IN_A_N).sum() // 9, (~MEMBER_N & IN_A_N).sum() // 10)
    shares = [IN_A_N[ids].mean() for ids in (s.member_ids, s.nonmember_ids, s.iid_nonmember_ids)]
    assert shares == pytest.approx([0.9, 0.1, 0.9])
    np.testing.assert_allclose(np.exp(s.log_odds_N), np.where(IN_A_N, 9, 1 / 9))
    again, other = shift.groups(IN_A_N, MEMBER_N, 3), shift.groups(IN_A_N, MEMBER_N, 4)
    np.testing.assert_array_equal(again.member_ids, s.member_ids)
    assert not np.array_equal(other.member_ids, s.member_ids)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
def test_graded_weights_make_non_members_resemble_members(strength: float):
    s = shift.graded(TFIDF_N, MEMBER_N, strength, 0)
    check_classes(s)
    # The rest of the non-members are selected as members are.
    assert len(s.nonmember_ids) + len(s.iid_nonmember_ids) == (~MEMBER_N).sum()
    z_N = (TFIDF_N - np.nanmean(TFIDF_N)) / np.nanstd(TFIDF_N)
    z_N[5] = 0
    np.testing.assert_allclose(s.log_odds_N, strength * z_N)
    weight = np.exp(s.log_odds_N[s.nonmember_ids])
    for moment in (z_N, z_N**2):
        member, naive, iid = (
            moment[ids].mean() for ids in (s.member_ids, s.nonmember_ids, s.iid_nonmember_ids)
        )
        weighted = np.average(moment[s.nonmember_ids], weights=weight)
        assert iid == pytest.approx(member, abs=0.1)
        assert weighted == pytest.approx(member, abs=0.1 * (1 + strength))
        if strength and moment is z_N:
            assert member - naive > 0.7


def test_disjoint_has_no_overlap():
    s = shift.disjoint(IN_A_N, MEMBER_N, 0)
    check_classes(s)
    assert len(s.member_ids) == len(s.nonmember_ids) == len(s.iid_nonmember_ids) > 800
    assert IN_A_N[s.member_ids].all()
    assert IN_A_N[s.iid_nonmember_ids].all()
    assert not IN_A_N[s.nonmember_ids].any()
    assert (s.log_odds_N[s.nonmember_ids] == -math.inf).all()
    assert (s.log_odds_N[s.member_ids] == math.inf).all()


def test_a_has_the_groups_with_the_lowest_loss_up_to_half():
    group_N = np.repeat([0, 1, 2, 3], [3, 2, 4, 1])
    loss_N = np.array([5, 5, 5, 2, math.nan, 4, 4, 4, 4, 1.0])
    assert {*group_N[shift.lowest_loss_groups(group_N, loss_N)]} == {1, 3}
    # The next group would make A larger than half; a single group may be larger.
    large_N = np.repeat([0, 1], [7, 3])
    assert {*large_N[shift.lowest_loss_groups(large_N, np.repeat([1.0, 2.0], [7, 3]))]} == {0}


def test_groups_are_sources():
    sources = np.array(["scipy", "numpy", "scipy", ""], object)
    assert shift.source_groups(sources).tolist() == [2, 1, 2, 0]
    for sources, where in ((["", ""], "of unknown source"), (["x", "x"], "from 'x'")):
        with pytest.raises(shift.ShiftError, match=where):
            shift.source_groups(np.array(sources, object))


def test_shifts_that_are_not_possible():
    with pytest.raises(shift.ShiftError, match="all the same"):
        shift.graded(np.ones(SAMPLES), MEMBER_N, 1.0, 0)
    with pytest.raises(shift.ShiftError, match="all the same"):
        shift.graded(np.full(SAMPLES, math.nan), MEMBER_N, 1.0, 0)
    few_N = np.arange(SAMPLES) < 15
    for select in (shift.groups, shift.disjoint):
        with pytest.raises(shift.ShiftError, match=r"\b10 of each"):
            select(few_N, MEMBER_N, 0)
