import itertools
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


def slow_lira(
    target_TxN, loss_MxN, member_MxN, variance="per_sample", offline=False, sampled_share=0.0
):
    """Computes the definition with scipy, one sample at a time."""
    T, N = target_TxN.shape
    out = np.full((T, N), np.nan)
    ins = [loss_MxN[member_MxN[:, n] & ~np.isnan(loss_MxN[:, n]), n] for n in range(N)]
    outs = [loss_MxN[~member_MxN[:, n] & ~np.isnan(loss_MxN[:, n]), n] for n in range(N)]

    def one_variance(groups):
        df = sum(len(g) - 1 for g in groups if len(g))
        return sum(((g - g.mean()) ** 2).sum() for g in groups if len(g)) / df if df else np.nan

    for t, n in itertools.product(range(T), range(N)):
        sides = []
        for group, groups in ((ins[n], ins), (outs[n], outs)):
            if variance == "pooled":
                var = one_variance(groups) if len(group) else np.nan
            else:
                var = group.var(ddof=1) if len(group) >= 2 else np.nan
            var /= 1 - sampled_share
            mean = group.mean() if len(group) else np.nan
            sides.append((mean, np.sqrt(var if var > 0 else np.nan)))
        target, (in_side, out_side) = target_TxN[t, n], sides
        if offline:
            out[t, n] = -scipy.stats.norm.logcdf(target, *out_side)
        else:
            out[t, n] = scipy.stats.norm.logpdf(target, *in_side)
            out[t, n] -= scipy.stats.norm.logpdf(target, *out_side)
    return out


def random_losses(seed, M=10, N=30, T=4, missing=0.1):
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.normal(3, 0.5, (M, N)) - 0.4 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = np.nan
    return rng.normal(3, 0.5, (T, N)), loss_MxN, member_MxN


def test_lira_by_hand():
    # IN 1, 3: mean 2, variance 2. OUT 4, 6, 8: mean 6, variance 4.
    loss_MxN = np.array([[1.0], [3.0], [4.0], [6.0], [8.0]])
    member_MxN = np.array([[True], [True], [False], [False], [False]])
    expected = np.log(np.sqrt(4 / 2)) - (3 - 2) ** 2 / (2 * 2) + (3 - 6) ** 2 / (2 * 4)
    np.testing.assert_allclose(stats.lira([[3.0]], loss_MxN, member_MxN), [[expected]], rtol=1e-14)
    offline = stats.lira([[3.0]], loss_MxN, member_MxN, offline=True)
    np.testing.assert_allclose(offline, [[-np.log(scipy.stats.norm.cdf(-1.5))]], rtol=1e-14)
    g = stats.fit_gaussians(loss_MxN, member_MxN)
    assert (g.mean_in_N[0], g.var_in_N[0], g.count_in_N[0]) == (2, 2, 2)
    assert (g.mean_out_N[0], g.var_out_N[0], g.count_out_N[0]) == (6, 4, 3)


def test_pooled_variance_by_hand():
    # OUT squares about each sample's mean: 2 (from 1, 3) and 0 (from 5 alone), with 1 and 0 degrees of freedom.
    loss_MxN = np.array([[1.0, 5.0], [3.0, np.nan], [0.0, 0.0], [4.0, 2.0]])
    member_MxN = np.array([[False] * 2] * 2 + [[True] * 2] * 2)
    g = stats.fit_gaussians(loss_MxN, member_MxN, variance="pooled")
    np.testing.assert_array_equal(g.var_out_N, [2, 2])
    np.testing.assert_array_equal(g.var_in_N, [(8 + 2) / 2] * 2)
    np.testing.assert_array_equal(g.count_out_N, [2, 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_lira_equals_slow_reference(mode, seed):
    target_TxN, loss_MxN, member_MxN = random_losses(seed, M=6, N=20, T=2, missing=0.3)
    actual = stats.lira(target_TxN, loss_MxN, member_MxN, **mode)
    np.testing.assert_allclose(
        actual, slow_lira(target_TxN, loss_MxN, member_MxN, **mode), rtol=1e-9
    )
    if mode["variance"] == "per_sample":
        assert np.isnan(actual).any()  # the undefined cases occur
    assert not np.isnan(actual).all()


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("mode", MODES)
def test_sampled_share_enlarges_variances(mode, share):
    target_TxN, loss_MxN, member_MxN = random_losses(4, N=20, T=2)
    actual = stats.lira(target_TxN, loss_MxN, member_MxN, **mode, sampled_share=share)
    expected = slow_lira(target_TxN, loss_MxN, member_MxN, **mode, sampled_share=share)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    plain, enlarged = (
        stats.fit_gaussians(loss_MxN, member_MxN, sampled_share=f) for f in (0.0, share)
    )
    np.testing.assert_allclose(enlarged.var_in_N * (1 - share), plain.var_in_N)
    np.testing.assert_allclose(enlarged.var_out_N * (1 - share), plain.var_out_N)
    np.testing.assert_array_equal(enlarged.mean_in_N, plain.mean_in_N)


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, np.nan])
def test_invalid_sampled_share_raises(share):
    _, loss_MxN, member_MxN = random_losses(4)
    for call in (stats.fit_gaussians, stats.lira_leave_one_out):
        with pytest.raises(ValueError, match=r"sampled_share=.*must be in \[0, 1\)"):
            call(loss_MxN, member_MxN, sampled_share=share)


def test_blocks_of_samples_add_up():
    """Sums the scatter of blocks and then scores each block with the common variances, as `lm-mia attack` does."""
    target_TxN, loss_MxN, member_MxN = random_losses(6, M=5, N=41, missing=0.2)
    blocks = [slice(0, 7), slice(7, 8), slice(8, 41)]
    for share in (0.0, 0.5):
        full = stats.lira(target_TxN, loss_MxN, member_MxN, variance="pooled", sampled_share=share)
        parts = [
            stats.fit_gaussians(loss_MxN[:, b], member_MxN[:, b], sampled_share=share)
            for b in blocks
        ]
        total_2x2 = np.sum([stats.within_sample_scatter(part) for part in parts], axis=0)
        actual = [
            stats.lira_from_gaussians(target_TxN[:, b], stats.with_pooled_variance(part, total_2x2))
            for b, part in zip(blocks, parts, strict=True)
        ]
        np.testing.assert_allclose(np.concatenate(actual, axis=1), full, rtol=1e-12)


def test_within_sample_scatter_by_hand():
    # First sample: IN 1, 3, OUT 4, 6, 8. Second sample: IN 5, no OUT. Squares 2 and 8, degrees of freedom 1 and 2.
    nan = np.nan
    loss_MxN = np.array([[1.0, 5.0], [3.0, nan], [4.0, nan], [6.0, nan], [8.0, nan]])
    member_MxN = np.array([[True] * 2] * 2 + [[False] * 2] * 3)
    gaussians = stats.fit_gaussians(loss_MxN, member_MxN)
    np.testing.assert_array_equal(stats.within_sample_scatter(gaussians), [[2, 1], [8, 2]])
    common = stats.with_pooled_variance(gaussians, np.array([[6.0, 2.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(common.var_in_N, [3, 3])
    assert np.isnan(common.var_out_N).all()
    np.testing.assert_array_equal(common.mean_in_N, gaussians.mean_in_N)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_lira_is_invariant_to_order(mode, seed):
    target_TxN, loss_MxN, member_MxN = random_losses(seed)
    rng = np.random.default_rng(seed)
    actual = stats.lira(target_TxN, loss_MxN, member_MxN, **mode)
    rows, cols = rng.permutation(loss_MxN.shape[0]), rng.permutation(loss_MxN.shape[1])
    by_models = stats.lira(target_TxN, loss_MxN[rows], member_MxN[rows], **mode)
    by_samples = stats.lira(target_TxN[:, cols], loss_MxN[:, cols], member_MxN[:, cols], **mode)
    np.testing.assert_allclose(by_models, actual, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(by_samples, actual[:, cols], rtol=1e-9, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_lira_is_invariant_to_shift_and_scale(seed, scale, shift):
    target_TxN, loss_MxN, member_MxN = random_losses(seed)
    actual = stats.lira(target_TxN, loss_MxN, member_MxN)
    transformed = stats.lira(target_TxN * scale + shift, loss_MxN * scale + shift, member_MxN)
    well_conditioned = np.abs(actual) < 1e4  # nearly equal references amplify rounding errors
    np.testing.assert_allclose(
        transformed[well_conditioned], actual[well_conditioned], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_array_equal(np.isnan(transformed), np.isnan(actual))


@pytest.mark.parametrize("mode", MODES)
def test_large_losses_with_small_spread(mode):
    rng = np.random.default_rng(3)
    member_MxN = rng.random((64, 50)) < 0.5
    loss_MxN = 1e-3 * (rng.normal(size=(64, 50)) - member_MxN)
    target_TxN = 1e-3 * rng.normal(size=(5, 50))
    near = stats.lira(target_TxN, loss_MxN, member_MxN, **mode)
    far = stats.lira(target_TxN + 1e6, loss_MxN + 1e6, member_MxN, **mode)
    np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-4)
    near = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    far = stats.lira_leave_one_out(loss_MxN + 1e6, member_MxN, **mode)
    np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-4)


def test_float32_is_computed_in_float64():
    target_TxN, loss_MxN, member_MxN = random_losses(5)
    target32, loss32 = target_TxN.astype(np.float32), loss_MxN.astype(np.float32)
    actual = stats.lira(target32, loss32, member_MxN)
    assert actual.dtype == np.float64
    expected = stats.lira(target32.astype(np.float64), loss32.astype(np.float64), member_MxN)
    np.testing.assert_array_equal(actual, expected)


def test_extreme_scores_are_finite():
    loss_MxN = np.array([[0.0], [2.0], [10.0], [12.0]])
    member_MxN = np.array([[True], [True], [False], [False]])
    assert np.isfinite(stats.lira([[-1e6], [1e6]], loss_MxN, member_MxN)).all()
    far = stats.lira([[-1e6]], loss_MxN, member_MxN, offline=True)
    np.testing.assert_allclose(far, [[(1e6 + 11) ** 2 / (2 * 2)]], rtol=1e-6)


def test_undefined_scores_are_nan():
    target = np.zeros((1, 5))
    t, f = True, False
    # Samples: defined | one IN | no OUT | equal IN losses | a missing loss leaves one OUT
    member_MxN = np.array([[t, t, t, t, t], [t, f, t, t, t], [f, f, t, f, f], [f, f, t, f, f]])
    loss_MxN = np.array(
        [[1.0, 1, 1, 0.1, 1], [2, 2, 2, 0.1, 2], [3, 3, 3, 3, 3], [4, 4, 4, 4, np.nan]]
    )
    actual = np.isnan(stats.lira(target, loss_MxN, member_MxN))
    np.testing.assert_array_equal(actual, [[f, t, t, t, t]])
    actual = np.isnan(stats.lira(target, loss_MxN, member_MxN, offline=True))
    np.testing.assert_array_equal(actual, [[f, f, t, f, t]])
    actual = np.isnan(stats.lira(target, loss_MxN, member_MxN, variance="pooled"))
    np.testing.assert_array_equal(actual, [[f, f, t, f, f]])
    # OUT references alone are enough offline, but not online.
    out = np.zeros((4, 5), dtype=bool)
    assert not np.isnan(stats.lira(target, loss_MxN, out, offline=True)).any()
    assert np.isnan(stats.lira(target, loss_MxN, out)).all()
    # A NaN target loss gives a NaN score of that target only.
    actual = np.isnan(stats.lira([[np.nan], [1.0]], loss_MxN[:, :1], member_MxN[:, :1]))
    np.testing.assert_array_equal(actual, [[True], [False]])


def test_pooled_variance_without_data_gives_nan():
    one_each = np.array([[True], [False]])
    assert np.isnan(stats.lira([[1.0]], [[1.0], [2.0]], one_each, variance="pooled")).all()
    flat = np.ones((4, 2))
    halves = np.array([[True, True]] * 2 + [[False, False]] * 2)
    assert np.isnan(stats.lira([[1.0, 1.0]], flat, halves, variance="pooled")).all()


def test_empty_inputs():
    none = np.zeros((4, 0), dtype=bool)
    assert stats.lira(np.empty((3, 0)), np.empty((4, 0)), none).shape == (3, 0)
    assert stats.lira(np.empty((0, 2)), np.empty((4, 2)), np.zeros((4, 2), bool)).shape == (0, 2)
    assert np.isnan(stats.lira([[1.0]], np.empty((0, 1)), np.zeros((0, 1), bool))).all()
    assert stats.lira_leave_one_out(np.empty((4, 0)), none).shape == (4, 0)


def test_invalid_arguments_raise():
    member = np.array([[True], [False]])
    for target, loss, members, kwargs, message in [
        ([[1.0]], [[1.0]], member, {}, "shape"),
        ([[1.0, 2.0]], [[1.0], [2.0]], member, {}, "shape"),
        ([[1.0]], [[1.0], [2.0]], member.astype(int), {}, "booleans"),
        ([[1.0]], [[1.0], [np.inf]], member, {}, "finite"),
        ([[np.inf]], [[1.0], [2.0]], member, {}, "finite"),
        ([[1.0]], [[1.0], [2.0]], member, {"variance": "global"}, "variance"),
    ]:
        with pytest.raises(ValueError, match=message):
            stats.lira(target, loss, members, **kwargs)


def test_posterior_by_hand():
    np.testing.assert_allclose(stats.posterior([0.0, np.log(3), -np.log(3)]), [0.5, 0.75, 0.25])
    np.testing.assert_array_equal(stats.posterior([1e4, -1e4, np.nan]), [1.0, 0.0, np.nan])


def test_lira_of_known_gaussians():
    one, n = np.ones(1), np.ones(1, dtype=np.int64)
    g = stats.LiraGaussians(0 * one, one, n, 2 * one, one, n)
    # Equal unit variances: the log ratio is linear, 2 - 2 t, and zero halfway.
    np.testing.assert_allclose(
        stats.lira_from_gaussians([[0.0], [1.0], [3.0]], g), [[2.0], [0.0], [-4.0]], atol=1e-14
    )


@pytest.mark.montecarlo
def test_known_signal_has_expected_auc():
    # With many references the score is monotone in the loss, so AUC = Phi(gap / sqrt 2).
    rng = np.random.default_rng(12)
    N, M = 20_000, 400
    member_MxN, member_N = rng.random((M, N)) < 0.5, rng.random(N) < 0.5
    mean_N = rng.normal(3, 5, N)
    loss_MxN = rng.normal(mean_N, 1, (M, N)) - member_MxN
    loss_N = rng.normal(mean_N, 1) - member_N
    expected = scipy.stats.norm.cdf(1 / np.sqrt(2))
    for mode in MODES:
        actual = stats.auc(stats.lira(loss_N, loss_MxN, member_MxN, **mode), member_N).auc_T
        np.testing.assert_allclose(actual, expected, atol=0.012)
    # The differences between sample means hide the signal in the loss.
    assert stats.auc(-loss_N, member_N).auc_T[0] < 0.6
