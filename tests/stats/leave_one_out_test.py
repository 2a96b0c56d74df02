"""Moments and scores without each model, or without each pair, against refits and `lira`."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_moments import assert_same_moments, difficult_losses, exact_moments, random_losses

from lm_mia import stats
from lm_mia.stats.leave_one_out import leave_one_out_moments

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


def is_reference(models: int, m: int, pairs: bool) -> np.ndarray:
    """Returns which models are the references of model m: all others, or those of all other pairs."""
    index_M = np.arange(models)
    return index_M // 2 != m // 2 if pairs else index_M != m


def lira_by_loop(
    loss_MxN: np.ndarray, member_MxN: np.ndarray, pairs: bool = False, **mode: Any
) -> np.ndarray:
    """Scores each model against the others by `lira`."""
    scores = []
    for m, loss_N in enumerate(loss_MxN):
        is_reference_M = is_reference(len(loss_MxN), m, pairs)
        scores.append(
            stats.lira(loss_N, loss_MxN[is_reference_M], member_MxN[is_reference_M], **mode)[0]
        )
    return np.array(scores)


def in_pairs(member_MxN: np.ndarray) -> np.ndarray:
    """Returns membership in which each odd model is the complement of the one before; without the last of an odd
    number."""
    return np.concatenate([[m, ~m] for m in member_MxN[: len(member_MxN) // 2 * 2 : 2]])


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_leave_one_out_moments_equal_refits(offset: float, pairs: bool):
    cases = [random_losses(1, 8, 30, 0.3), random_losses(2, 2, 8, 0), random_losses(3, 16, 40, 0)]
    cases[2][0][:, :10] = 0.1  # equal losses
    cases[2][0][1:, 10:20] = 0.1  # equal losses but one
    # Without the columns of two outliers: in one class, these cancel, and the mean loses its precision.
    loss_MxN, member_MxN = difficult_losses(np.float32)
    cases.append((np.delete(loss_MxN, slice(30, 40), 1), np.delete(member_MxN, slice(30, 40), 1)))
    for loss_MxC, member_MxC in cases:
        if pairs:
            member_MxC = in_pairs(member_MxC)
            loss_MxC = loss_MxC[: len(member_MxC)]
        loss_MxC = loss_MxC + offset
        complement_M = np.arange(len(loss_MxC)) ^ 1 if pairs else None
        classes = leave_one_out_moments(loss_MxC, member_MxC, complement_M)
        for is_in, actual in zip((True, False), classes, strict=True):
            assert actual.mean.shape == loss_MxC.shape
            for m in range(len(loss_MxC)):
                rest_M = is_reference(len(loss_MxC), m, pairs)
                for c in range(loss_MxC.shape[1]):
                    values = loss_MxC[rest_M, c][member_MxC[rest_M, c] == is_in]
                    expected = exact_moments(values)
                    assert_same_moments(actual, (m, c), expected, rtol=1e-10)


def test_pairs_must_be_complements():
    loss_4xN, member_4xN = random_losses(5, 4, 6, 0)
    paired_4xN = in_pairs(member_4xN)
    stats.lira_leave_one_out(loss_4xN, paired_4xN, pairs=True)
    almost_4xN = paired_4xN.copy()
    almost_4xN[3, 5] ^= True
    shifted_4xN = paired_4xN[
        [1, 2, 3, 0]
    ]  # 0 and 3 are neighbors of their complements only as 2i + 1 and 2i + 2
    for loss_MxN, member_MxN in (
        (loss_4xN, almost_4xN),
        (loss_4xN, shifted_4xN),
        (loss_4xN[:3], paired_4xN[:3]),
    ):
        for call in (stats.lira_leave_one_out, stats.leave_one_out_scatter):
            with pytest.raises(
                ValueError, match=r"^pairs=True: .* complements .*; use pairs=False"
            ):
                call(loss_MxN, member_MxN, pairs=True)


@pytest.mark.parametrize("mode", MODES)
def test_leaving_pairs_out_equals_lira_of_each_model(mode: Any):
    for loss_MxN, member_MxN in (
        (difficult_losses(np.float32)[0][:8], in_pairs(difficult_losses(np.float32)[1])),
        (random_losses(7, 8, 30, 0.1)[0], in_pairs(random_losses(7, 8, 30, 0.1)[1])),
    ):
        actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, pairs=True)
        expected = lira_by_loop(loss_MxN, member_MxN, **mode, pairs=True)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)
        assert not np.isnan(actual[:, :10]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_leave_one_out_equals_lira_of_each_model(mode: Any, kind: type):
    # Around 1e6, means have rounding errors of 1e-10 at spreads of 1e-3.
    for (loss_MxN, member_MxN), tolerance in (
        (difficult_losses(kind), 1e-5),
        (random_losses(7, 8, 30, 0.1), 1e-8),
        (random_losses(9, 4, 60, 0.2), 1e-8),
    ):
        actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
        expected = lira_by_loop(loss_MxN, member_MxN, **mode)
        assert actual.dtype == np.float64
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    loss_MxN, member_MxN = difficult_losses(kind)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    assert np.isnan(actual[4]).all()
    if mode["variance"] == "per_sample":
        assert np.isnan(actual[0, 40:50]).all()  # without model 0 all losses of its class are equal
        assert np.isnan(actual[:, 50:]).all()
        assert not np.isnan(actual[:3, :10]).all()


@pytest.mark.parametrize("mode", MODES)
def test_leave_one_out_equals_lira_with_sampled_share(mode: Any):
    loss_MxN, member_MxN = random_losses(4, 8, 20, 0.1)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    expected = lira_by_loop(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3))
def test_leave_one_out_is_invariant_to_order_and_shift(mode: Any, seed: int, shift: float):
    loss_MxN, member_MxN = random_losses(seed, 8, 20, 0.1)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    order = np.random.default_rng(seed).permutation(8)
    by_rows = stats.lira_leave_one_out(loss_MxN[order], member_MxN[order], **mode)
    np.testing.assert_allclose(by_rows, actual[order], rtol=1e-8, atol=1e-9)
    well_conditioned = np.abs(actual) < 1e4  # nearly equal references amplify rounding errors
    shifted = stats.lira_leave_one_out(loss_MxN + shift, member_MxN, **mode)
    np.testing.assert_allclose(
        shifted[well_conditioned], actual[well_conditioned], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch, pairs: bool):
    loss_MxN, member_MxN = random_losses(6, 6, 41, 0.2)
    member_MxN = in_pairs(member_MxN) if pairs else member_MxN
    leave_one_out = functools.partial(stats.lira_leave_one_out, pairs=pairs)
    blocks = [slice(0, 7), slice(7, 8), slice(8, 41)]
    variances: list[Any] = ["per_sample", "pooled"]
    left = {v: leave_one_out(loss_MxN, member_MxN, variance=v) for v in variances}
    parts = [(loss_MxN[:, b], member_MxN[:, b]) for b in blocks]
    total = np.sum([stats.leave_one_out_scatter(*part, pairs=pairs) for part in parts], axis=0)
    whole_Mx2x2 = stats.leave_one_out_scatter(loss_MxN, member_MxN, pairs=pairs)
    np.testing.assert_allclose(whole_Mx2x2, total, rtol=1e-12)
    for m in range(6):
        is_reference_M = is_reference(6, m, pairs)
        others = stats.within_sample_scatter(
            stats.fit_gaussians(loss_MxN[is_reference_M], member_MxN[is_reference_M])
        )
        np.testing.assert_allclose(total[m], others, rtol=1e-9)
    for b, part in zip(blocks, parts, strict=True):
        actual = leave_one_out(*part, variance="pooled", scatter_Mx2x2=total)
        np.testing.assert_allclose(actual, left["pooled"][:, b], rtol=1e-10)
    monkeypatch.setattr("lm_mia.stats.likelihood_ratio._CHUNK", 7)
    for variance, whole in left.items():
        actual = leave_one_out(loss_MxN, member_MxN, variance=variance)
        np.testing.assert_allclose(actual, whole, rtol=1e-12)
