import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm_mia.stats.lira import Gaussians, fit, lira, lira_leave_one_out, posterior, score
from lm_mia.stats.roc import auc

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


def slow(target_TxN, loss_MxN, member_MxN, variance="per_sample", offline=False):
    """The definition, one sample at a time, in the words of scipy."""
    T, N = target_TxN.shape
    out = np.full((T, N), np.nan)
    ins = [loss_MxN[member_MxN[:, n] & ~np.isnan(loss_MxN[:, n]), n] for n in range(N)]
    outs = [loss_MxN[~member_MxN[:, n] & ~np.isnan(loss_MxN[:, n]), n] for n in range(N)]

    def pooled(groups):
        df = sum(len(g) - 1 for g in groups if len(g))
        return sum(((g - g.mean()) ** 2).sum() for g in groups if len(g)) / df if df else np.nan

    for t, n in itertools.product(range(T), range(N)):
        sides = []
        for group, groups in ((ins[n], ins), (outs[n], outs)):
            if variance == "pooled":
                var = pooled(groups) if len(group) else np.nan
            else:
                var = group.var(ddof=1) if len(group) >= 2 else np.nan
            mean = group.mean() if len(group) else np.nan
            sides.append(stats.norm(mean, np.sqrt(var if var > 0 else np.nan)))
        if offline:
            out[t, n] = -sides[1].logcdf(target_TxN[t, n])
        else:
            out[t, n] = sides[0].logpdf(target_TxN[t, n]) - sides[1].logpdf(target_TxN[t, n])
    return out


def noisy(seed, M=10, N=30, T=4, missing=0.1):
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.normal(3, 0.5, (M, N)) - 0.4 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = np.nan
    return rng.normal(3, 0.5, (T, N)), loss_MxN, member_MxN


def test_by_hand():
    # IN 1, 3: mean 2, variance 2. OUT 4, 6, 8: mean 6, variance 4.
    loss_MxN = np.array([[1.0], [3.0], [4.0], [6.0], [8.0]])
    member_MxN = np.array([[True], [True], [False], [False], [False]])
    want = np.log(np.sqrt(4 / 2)) - (3 - 2) ** 2 / (2 * 2) + (3 - 6) ** 2 / (2 * 4)
    np.testing.assert_allclose(lira([[3.0]], loss_MxN, member_MxN), [[want]], rtol=1e-14)
    offline = lira([[3.0]], loss_MxN, member_MxN, offline=True)
    np.testing.assert_allclose(offline, [[-np.log(stats.norm.cdf(-1.5))]], rtol=1e-14)
    g = fit(loss_MxN, member_MxN)
    assert (g.mean_in_N[0], g.var_in_N[0], g.count_in_N[0]) == (2, 2, 2)
    assert (g.mean_out_N[0], g.var_out_N[0], g.count_out_N[0]) == (6, 4, 3)


def test_pooled_by_hand():
    # OUT squares about own means: 2 (from 1, 3) and 0 (from 5 alone); degrees of freedom 1 and 0.
    loss_MxN = np.array([[1.0, 5.0], [3.0, np.nan], [0.0, 0.0], [4.0, 2.0]])
    member_MxN = np.array([[False] * 2] * 2 + [[True] * 2] * 2)
    g = fit(loss_MxN, member_MxN, variance="pooled")
    np.testing.assert_array_equal(g.var_out_N, [2, 2])
    np.testing.assert_array_equal(g.var_in_N, [(8 + 2) / 2] * 2)
    np.testing.assert_array_equal(g.count_out_N, [2, 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_against_the_definition(mode, seed):
    target_TxN, loss_MxN, member_MxN = noisy(seed, M=6, missing=0.3)
    got = lira(target_TxN, loss_MxN, member_MxN, **mode)
    np.testing.assert_allclose(got, slow(target_TxN, loss_MxN, member_MxN, **mode), rtol=1e-9)
    if mode["variance"] == "per_sample":
        assert np.isnan(got).any()  # else the edges were not met
    assert not np.isnan(got).all()


@pytest.mark.parametrize("mode", MODES)
def test_leave_one_out_is_each_row_against_the_others(mode):
    _, loss_MxN, member_MxN = noisy(7, M=8, missing=0.1)
    got = lira_leave_one_out(loss_MxN, member_MxN, **mode)
    for m in range(8):
        rest = np.arange(8) != m
        want = lira(loss_MxN[m], loss_MxN[rest], member_MxN[rest], **mode)[0]
        np.testing.assert_allclose(got[m], want, rtol=1e-8, atol=1e-10)


def test_leave_one_out_crosses_chunks(monkeypatch):
    _, loss_MxN, member_MxN = noisy(1)
    for variance in ("per_sample", "pooled"):
        whole = lira_leave_one_out(loss_MxN, member_MxN, variance=variance)
        with monkeypatch.context() as patch:
            patch.setattr("lm_mia.stats.lira._CHUNK", 7)
            parts = lira_leave_one_out(loss_MxN, member_MxN, variance=variance)
        np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_leave_one_out_of_an_outlier():
    # The other IN losses are equal, so without the outlier the variance is zero, not rounding.
    loss_MxN = np.array([[0.1], [0.1], [0.1], [1e6], [1.0], [2.0], [3.0]])
    member_MxN = np.array([[True]] * 4 + [[False]] * 3)
    got = lira_leave_one_out(loss_MxN, member_MxN)
    assert np.isnan(got[3, 0])
    assert not np.isnan(got[[0, 1, 2, 4, 5, 6], 0]).any()


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_order_of_models_and_samples_is_of_no_consequence(mode, seed):
    target_TxN, loss_MxN, member_MxN = noisy(seed)
    rng = np.random.default_rng(seed)
    got = lira(target_TxN, loss_MxN, member_MxN, **mode)
    rows, cols = rng.permutation(loss_MxN.shape[0]), rng.permutation(loss_MxN.shape[1])
    by_rows = lira(target_TxN, loss_MxN[rows], member_MxN[rows], **mode)
    by_cols = lira(target_TxN[:, cols], loss_MxN[:, cols], member_MxN[:, cols], **mode)
    np.testing.assert_allclose(by_rows, got, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(by_cols, got[:, cols], rtol=1e-9, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_units_of_the_loss_are_of_no_consequence(seed, scale, shift):
    target_TxN, loss_MxN, member_MxN = noisy(seed)
    got = lira(target_TxN, loss_MxN, member_MxN)
    moved = lira(target_TxN * scale + shift, loss_MxN * scale + shift, member_MxN)
    fine = np.abs(got) < 1e4  # two near-equal references make scores that amplify any rounding
    np.testing.assert_allclose(moved[fine], got[fine], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.isnan(moved), np.isnan(got))


@pytest.mark.parametrize("mode", MODES)
def test_large_offset_with_small_spread(mode):
    rng = np.random.default_rng(3)
    member_MxN = rng.random((64, 50)) < 0.5
    loss_MxN = 1e-3 * (rng.normal(size=(64, 50)) - member_MxN)
    target_TxN = 1e-3 * rng.normal(size=(5, 50))
    near = lira(target_TxN, loss_MxN, member_MxN, **mode)
    far = lira(target_TxN + 1e6, loss_MxN + 1e6, member_MxN, **mode)
    np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-4)
    near = lira_leave_one_out(loss_MxN, member_MxN, **mode)
    far = lira_leave_one_out(loss_MxN + 1e6, member_MxN, **mode)
    np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-4)


def test_float32_is_computed_in_float64():
    target_TxN, loss_MxN, member_MxN = noisy(5)
    target32, loss32 = target_TxN.astype(np.float32), loss_MxN.astype(np.float32)
    got = lira(target32, loss32, member_MxN)
    assert got.dtype == np.float64
    want = lira(target32.astype(np.float64), loss32.astype(np.float64), member_MxN)
    np.testing.assert_array_equal(got, want)


def test_scores_far_out_stay_finite():
    loss_MxN = np.array([[0.0], [2.0], [10.0], [12.0]])
    member_MxN = np.array([[True], [True], [False], [False]])
    assert np.isfinite(lira([[-1e6], [1e6]], loss_MxN, member_MxN)).all()
    far = lira([[-1e6]], loss_MxN, member_MxN, offline=True)
    np.testing.assert_allclose(far, [[(1e6 + 11) ** 2 / (2 * 2)]], rtol=1e-6)


def test_edges_are_nan():
    target = np.zeros((1, 5))
    t, f = True, False
    # fine | one IN | no OUT | equal IN losses | a lost model leaves one OUT
    member_MxN = np.array([[t, t, t, t, t], [t, f, t, t, t], [f, f, t, f, f], [f, f, t, f, f]])
    loss_MxN = np.array(
        [[1.0, 1, 1, 0.1, 1], [2, 2, 2, 0.1, 2], [3, 3, 3, 3, 3], [4, 4, 4, 4, np.nan]]
    )
    got = np.isnan(lira(target, loss_MxN, member_MxN))
    np.testing.assert_array_equal(got, [[f, t, t, t, t]])
    got = np.isnan(lira(target, loss_MxN, member_MxN, offline=True))
    np.testing.assert_array_equal(got, [[f, f, t, f, t]])
    got = np.isnan(lira(target, loss_MxN, member_MxN, variance="pooled"))
    np.testing.assert_array_equal(got, [[f, f, t, f, f]])
    # OUT references alone will do offline, and nothing will online.
    out = np.zeros((4, 5), dtype=bool)
    assert not np.isnan(lira(target, loss_MxN, out, offline=True)).any()
    assert np.isnan(lira(target, loss_MxN, out)).all()
    # A NaN target loss is a NaN score, of that target alone.
    got = np.isnan(lira([[np.nan], [1.0]], loss_MxN[:, :1], member_MxN[:, :1]))
    np.testing.assert_array_equal(got, [[True], [False]])


def test_pooled_with_nothing_to_pool_is_nan():
    one_each = np.array([[True], [False]])
    assert np.isnan(lira([[1.0]], [[1.0], [2.0]], one_each, variance="pooled")).all()
    flat = np.ones((4, 2))
    halves = np.array([[True, True]] * 2 + [[False, False]] * 2)
    assert np.isnan(lira([[1.0, 1.0]], flat, halves, variance="pooled")).all()


def test_empty():
    none = np.zeros((4, 0), dtype=bool)
    assert lira(np.empty((3, 0)), np.empty((4, 0)), none).shape == (3, 0)
    assert lira(np.empty((0, 2)), np.empty((4, 2)), np.zeros((4, 2), bool)).shape == (0, 2)
    assert np.isnan(lira([[1.0]], np.empty((0, 1)), np.zeros((0, 1), bool))).all()
    assert lira_leave_one_out(np.empty((4, 0)), none).shape == (4, 0)


def test_bad_arguments():
    member = np.array([[True], [False]])
    for target, loss, who, kwargs, said in [
        ([[1.0]], [[1.0]], member, {}, "shape"),
        ([[1.0, 2.0]], [[1.0], [2.0]], member, {}, "shape"),
        ([[1.0]], [[1.0], [2.0]], member.astype(int), {}, "booleans"),
        ([[1.0]], [[1.0], [np.inf]], member, {}, "finite"),
        ([[np.inf]], [[1.0], [2.0]], member, {}, "finite"),
        ([[1.0]], [[1.0], [2.0]], member, {"variance": "global"}, "variance"),
    ]:
        with pytest.raises(ValueError, match=said):
            lira(target, loss, who, **kwargs)


def test_posterior():
    np.testing.assert_allclose(posterior([0.0, np.log(3), -np.log(3)]), [0.5, 0.75, 0.25])
    np.testing.assert_array_equal(posterior([1e4, -1e4, np.nan]), [1.0, 0.0, np.nan])


def test_score_of_known_gaussians():
    one, n = np.ones(1), np.ones(1, dtype=np.int64)
    g = Gaussians(0 * one, one, n, 2 * one, one, n)
    # Equal unit variances: the log ratio is linear, 2 - 2 t, and zero half-way.
    np.testing.assert_allclose(score([[0.0], [1.0], [3.0]], g), [[2.0], [0.0], [-4.0]], atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_noise_gives_no_advantage(mode):
    rng = np.random.default_rng(11)
    N, M, T = 20_000, 16, 4
    member_MxN, member_TxN = rng.random((M, N)) < 0.5, rng.random((T, N)) < 0.5
    loss_MxN, loss_TxN = rng.normal(3, 1, (M, N)), rng.normal(3, 1, (T, N))
    found = auc(lira(loss_TxN, loss_MxN, member_MxN, **mode), member_TxN).auc_T
    np.testing.assert_allclose(found, 0.5, atol=4 * np.sqrt(1 / (6 * N)) * np.sqrt(2))
    found = auc(lira_leave_one_out(loss_MxN, member_MxN, **mode), member_MxN).auc_T
    np.testing.assert_allclose(found, 0.5, atol=4 * np.sqrt(1 / (6 * N)) * np.sqrt(2))


def test_leave_one_out_of_a_balanced_block_leaks():
    # Why the docstring warns: each sample is in just half of the rows, so a member's row leaves one
    # IN reference fewer behind, and noise is told apart.
    rng = np.random.default_rng(13)
    first_MxN = rng.random((3, 20_000)) < 0.5
    member_MxN = np.vstack([first_MxN, ~first_MxN])
    found = auc(lira_leave_one_out(rng.normal(3, 1, (6, 20_000)), member_MxN), member_MxN).auc_T
    assert np.all(np.abs(found - 0.5) > 0.05)


def test_known_signal_is_found():
    # With many references the score is monotone in the loss: AUC = Phi(gap / sqrt 2).
    rng = np.random.default_rng(12)
    N, M = 20_000, 400
    member_MxN, member_N = rng.random((M, N)) < 0.5, rng.random(N) < 0.5
    mean_N = rng.normal(3, 5, N)
    loss_MxN = rng.normal(mean_N, 1, (M, N)) - member_MxN
    loss_N = rng.normal(mean_N, 1) - member_N
    want = stats.norm.cdf(1 / np.sqrt(2))
    for mode in MODES:
        found = auc(lira(loss_N, loss_MxN, member_MxN, **mode), member_N).auc_T
        np.testing.assert_allclose(found, want, atol=0.012)
    assert auc(-loss_N, member_N).auc_T[0] < 0.6  # the loss alone drowns in the sample's own mean
