"""Moments of both classes and of all rows but one; the scores that leave-one-out moments make, against `lira`."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import likelihood_ratio
from lm_mia.stats.likelihood_ratio import (
    Moments,
    as_bit_mask,
    as_finite_float64,
    class_moments,
    leave_one_out_moments,
    select_by_mask,
)

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


def exact(values: Any) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations, rounded once at the end; a mean of 0 without values."""
    there = [Fraction(float(v)) for v in values if not math.isnan(v)]
    if not there:
        return 0, 0.0, 0.0
    mean = sum(there) / len(there)
    return len(there), float(mean), float(sum((v - mean) ** 2 for v in there))


def same(got: Moments, place: Any, want: tuple[int, float, float], rtol: float = 1e-9):
    count, mean, squares = (a[place] for a in (got.count, got.mean, got.squares))
    assert count == want[0]
    assert np.isfinite([mean, squares]).all()
    if count:
        assert mean == pytest.approx(want[1], rel=1e-12)
        assert squares == pytest.approx(want[2], rel=rtol, abs=1e-300)
        assert (squares == 0) == (want[2] == 0)


def noisy(seed: int, M: int, N: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.normal(3, 0.5, (M, N)) - 0.4 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = np.nan
    return loss_MxN, member_MxN


def left_out(loss_MxN: np.ndarray, member_MxN: np.ndarray, **mode: Any) -> np.ndarray:
    """Each row against the others, by `lira`."""
    scores = []
    for m, loss_N in enumerate(loss_MxN):
        rest = np.arange(len(loss_MxN)) != m
        scores.append(stats.lira(loss_N, loss_MxN[rest], member_MxN[rest], **mode)[0])
    return np.array(scores)


def hard(kind: type) -> tuple[np.ndarray, np.ndarray]:
    """By tens of columns: narrow, narrow and far, one row far off, two rows, rows equal but one, all equal."""
    rng = np.random.default_rng(8)
    loss_MxN = 1e-3 * rng.normal(size=(9, 60))
    member_MxN = rng.random((9, 60)) < 0.5
    member_MxN[:3, :50] = [[True], [True], [False]]
    loss_MxN[:, 10:20] += 1e6
    loss_MxN[0, 20:25] += 1e6
    loss_MxN[0, 25:30] += 100.0
    loss_MxN[[1, 2], 30:40] += [[1e6], [-1e6]]
    loss_MxN[1:, 40:50] = 0.1
    loss_MxN[:, 50:] = 0.3
    loss_MxN[4] = np.nan
    return loss_MxN.astype(kind), member_MxN


def test_by_hand():
    t, f, nan = True, False, np.nan
    # IN 1, 3: mean 2, squares 2. OUT 4, 6, 8: mean 6, squares 8. | IN 5 alone. OUT none.
    loss_MxC = np.array([[1.0, 5], [3, nan], [4, nan], [6, nan], [8, nan]])
    member_MxC = np.array([[t, t], [t, f], [f, f], [f, f], [f, f]])
    inside, outside, deviation_MxC = class_moments(loss_MxC, member_MxC)
    np.testing.assert_array_equal(inside.count, [2, 1])
    np.testing.assert_array_equal(inside.mean, [2, 5])
    np.testing.assert_array_equal(inside.squares, [2, 0])
    np.testing.assert_array_equal(outside.count, [3, 0])
    assert (outside.mean[0], outside.squares[0], outside.squares[1]) == (6, 8, 0)
    np.testing.assert_array_equal(deviation_MxC[:, 0], [-1, 1, -2, 0, 2])
    np.testing.assert_array_equal(deviation_MxC[:, 1], 0)
    own, all_in, all_out = leave_one_out_moments(loss_MxC, member_MxC)
    np.testing.assert_array_equal(own.count[:, 0], [1, 1, 2, 2, 2])
    np.testing.assert_allclose(own.mean[:, 0], [3, 1, 7, 6, 5], rtol=1e-15)
    np.testing.assert_allclose(own.squares[:, 0], [0, 0, 2, 8, 2], rtol=1e-15)
    assert own.count[0, 1] == 0
    np.testing.assert_array_equal(own.count[1:, 1], 0)  # a missing row leaves its class as it was
    np.testing.assert_array_equal(all_in.squares, inside.squares)
    np.testing.assert_array_equal(all_out.mean, outside.mean)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_against_fractions(kind: type):
    late_MxN, of_late_MxN = noisy(4, 20, 12, 0.1)  # members are among the last rows, and equal
    of_late_MxN[:18], of_late_MxN[18:] = False, True
    late_MxN[18:] = 0.1
    late_MxN[0] = 1e6
    cases = [hard(kind), noisy(1, 7, 30, 0.3), noisy(2, 2, 8, 0), noisy(3, 1, 4, 0)]
    cases.append((late_MxN.astype(kind), of_late_MxN))
    for loss_MxC, member_MxC in cases:
        inside, outside, deviation_MxC = class_moments(loss_MxC, member_MxC)
        own, *both = leave_one_out_moments(loss_MxC, member_MxC)
        assert both[0].mean.dtype == np.float64
        for c in range(loss_MxC.shape[1]):
            classes = {}
            for of, got, again in ((True, inside, both[0]), (False, outside, both[1])):
                values = np.where(member_MxC[:, c] == of, loss_MxC[:, c], np.nan)
                classes[of] = values, exact(values)
                same(got, c, classes[of][1])
                same(again, c, classes[of][1])
            for m in range(len(loss_MxC)):
                values, (_, mean, squares) = classes[bool(member_MxC[m, c])]
                rest = values.copy()
                rest[m] = np.nan
                same(own, (m, c), exact(rest))
                wanted = 0.0 if np.isnan(loss_MxC[m, c]) else float(loss_MxC[m, c]) - mean
                near = 1e-9 * (abs(wanted) + math.sqrt(squares)) + 2e-10
                assert abs(deviation_MxC[m, c] - wanted) <= near


def test_an_outlier_among_equals_leaves_exactly_nothing():
    # Without it the variance is zero, not rounding; with it the others keep theirs.
    loss_MxN = np.array([[0.1], [0.1], [0.1], [1e6], [1.0], [2.0], [3.0]])
    member_MxN = np.array([[True]] * 4 + [[False]] * 3)
    own, _, _ = leave_one_out_moments(loss_MxN, member_MxN)
    assert own.squares[3, 0] == 0
    assert (own.squares[:3, 0] > 1e11).all()
    got = stats.lira_leave_one_out(loss_MxN, member_MxN)
    assert np.isnan(got[3, 0])
    assert not np.isnan(got[[0, 1, 2, 4, 5, 6], 0]).any()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_leaving_a_row_out_is_not_having_it(data: st.DataObject):
    """For every row: as if its loss were missing, whatever scales meet in a sample."""
    M = data.draw(st.integers(1, 8))
    scale = st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e6])
    unit = st.integers(-1000, 1000).map(lambda i: i / 1000) | st.just(np.nan)
    value = st.builds(lambda s, x: s * x, scale, unit)
    loss_Mx1 = np.array(data.draw(st.lists(value, min_size=M, max_size=M)))[:, None]
    member_Mx1 = np.array(data.draw(st.lists(st.booleans(), min_size=M, max_size=M)))[:, None]
    own, inside, outside = leave_one_out_moments(loss_Mx1, member_Mx1)
    for m in range(M):
        without = loss_Mx1.copy()
        without[m] = np.nan
        kept = class_moments(without, member_Mx1)
        mine, whole = (kept[0], inside) if member_Mx1[m, 0] else (kept[1], outside)
        assert own.count[m, 0] == mine.count[0]
        if mine.count[0]:
            spread = 1e-9 * math.sqrt(whole.squares[0])
            assert own.mean[m, 0] == pytest.approx(mine.mean[0], rel=1e-12, abs=spread)
        assert own.squares[m, 0] == pytest.approx(mine.squares[0], rel=1e-7, abs=1e-300)
        assert (own.squares[m, 0] == 0) == (mine.squares[0] == 0)


def test_pick_is_a_choice_bit_for_bit():
    value = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, np.nan, 5e-324, -1e308])
    inside, outside = (v.ravel() for v in np.meshgrid(value, value))
    member_Mx64 = np.random.default_rng(0).random((9, 64)) < 0.5
    got = select_by_mask(as_bit_mask(member_Mx64), inside, outside)
    want = np.where(member_Mx64, inside, outside)
    np.testing.assert_array_equal(got.view(np.int64), want.view(np.int64))
    both = select_by_mask(as_bit_mask(member_Mx64), np.broadcast_to(inside, (9, 64)), want)
    np.testing.assert_array_equal(both, want)


def test_finite_copies():
    loss_N = np.array([1.0, np.nan])
    assert as_finite_float64(loss_N) is not loss_N
    assert as_finite_float64(loss_N.astype(np.float32)).dtype == np.float64
    for bad in (np.inf, -np.inf):
        with pytest.raises(ValueError, match="must be finite"):
            as_finite_float64(np.array([1.0, bad]))
        with pytest.raises(ValueError, match="must be finite"):
            stats.lira_leave_one_out([[1.0], [bad]], [[True], [False]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_scores_are_those_of_each_row_against_the_others(mode: Any, kind: type):
    # Far out, means are rounded to 1e-10, and spreads are 1e-3.
    for (loss_MxN, member_MxN), near in (
        (hard(kind), 1e-5),
        (noisy(7, 8, 30, 0.1), 1e-8),
        (noisy(9, 4, 60, 0.2), 1e-8),
    ):
        got = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
        want = left_out(loss_MxN, member_MxN, **mode)
        assert got.dtype == np.float64
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=near, atol=near)
    loss_MxN, member_MxN = hard(kind)
    got = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    assert np.isnan(got[4]).all()
    if mode["variance"] == "per_sample":
        assert np.isnan(got[0, 40:50]).all()  # without row 0 all others of its class are equal
        assert np.isnan(got[:, 50:]).all()
        assert not np.isnan(got[:3, :10]).all()


@pytest.mark.parametrize("mode", MODES)
def test_scores_of_a_finite_population(mode: Any):
    loss_MxN, member_MxN = noisy(4, 8, 20, 0.1)
    got = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    want = left_out(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3))
def test_order_of_rows_and_a_constant_are_of_no_consequence(mode: Any, seed: int, shift: float):
    loss_MxN, member_MxN = noisy(seed, 8, 20, 0.1)
    got = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    order = np.random.default_rng(seed).permutation(8)
    by_rows = stats.lira_leave_one_out(loss_MxN[order], member_MxN[order], **mode)
    np.testing.assert_allclose(by_rows, got[order], rtol=1e-8, atol=1e-9)
    fine = np.abs(got) < 1e4  # near-equal references make scores that amplify the sum's rounding
    moved = stats.lira_leave_one_out(loss_MxN + shift, member_MxN, **mode)
    np.testing.assert_allclose(moved[fine], got[fine], rtol=1e-4, atol=1e-4)


def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch):
    loss_MxN, member_MxN = noisy(6, 5, 41, 0.2)
    blocks = [slice(0, 7), slice(7, 8), slice(8, 41)]
    variances: list[Any] = ["per_sample", "pooled"]
    left = {v: stats.lira_leave_one_out(loss_MxN, member_MxN, variance=v) for v in variances}
    parts = [(loss_MxN[:, b], member_MxN[:, b]) for b in blocks]
    total = np.sum([stats.leave_one_out_scatter(*part) for part in parts], axis=0)
    np.testing.assert_allclose(stats.leave_one_out_scatter(loss_MxN, member_MxN), total, rtol=1e-12)
    for m in range(5):
        rest = np.arange(5) != m
        others = stats.within_sample_scatter(stats.fit_gaussians(loss_MxN[rest], member_MxN[rest]))
        np.testing.assert_allclose(total[m], others, rtol=1e-9)
    for b, part in zip(blocks, parts, strict=True):
        got = stats.lira_leave_one_out(*part, variance="pooled", scatter_Mx2x2=total)
        np.testing.assert_allclose(got, left["pooled"][:, b], rtol=1e-10)
    monkeypatch.setattr("lm_mia.stats.likelihood_ratio._CHUNK", 7)
    for variance, whole in left.items():
        got = stats.lira_leave_one_out(loss_MxN, member_MxN, variance=variance)
        np.testing.assert_allclose(got, whole, rtol=1e-12)


def test_what_is_computed_anew_is_what_rounding_would_spoil(monkeypatch: pytest.MonkeyPatch):
    loss_MxN, member_MxN = hard(np.float64)
    anew = leave_one_out_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    monkeypatch.setattr(likelihood_ratio, "_CANCELLATION", -1.0)
    spoiled = leave_one_out_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    assert (np.abs(spoiled - anew) > 0.1 * anew).any()
