import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_batches import token_losses
from unoptimized import without_optimizations

from lm_mia import stats
from lm_mia.model import losses

STATISTIC_NAMES = ("min_k", "min_k_plus_plus")
TOKEN_LOSSES = jax.jit(token_losses)
pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture


@jax.jit
def Z_SCORES(logits_BxLxV: jax.Array, x_BxL: jax.Array) -> jax.Array:
    """Returns z_BxL1 of all predicted tokens."""
    log_p_BxL1xV = jax.nn.log_softmax(logits_BxLxV[:, :-1])
    z_T = losses.z_scores(log_p_BxL1xV.reshape(-1, log_p_BxL1xV.shape[-1]), x_BxL[:, 1:].ravel())
    return z_T.reshape(len(x_BxL), -1)


def MIN_K(value_BxL1: Any, length_B: Any) -> np.ndarray:
    """Returns mean_B; NaN for samples without a predicted token, which no population has."""
    value_BxL1, length_B = np.asarray(value_BxL1), np.asarray(length_B)
    has_B = length_B > 1
    real_BxL1 = np.arange(value_BxL1.shape[1]) < (length_B - 1)[:, None]
    mean_B = np.full(len(length_B), np.nan)
    mean_B[has_B] = stats.min_k(value_BxL1[real_BxL1], length_B[has_B] - 1)
    return mean_B


def STATISTICS(logits_BxLxV: Any, x_BxL: Any, length_B: Any) -> dict[str, np.ndarray]:
    """Returns both statistics, computed as the scorer does."""
    nats_BxL1 = np.asarray(TOKEN_LOSSES(logits_BxLxV, x_BxL, length_B))
    z_BxL1 = np.asarray(Z_SCORES(logits_BxLxV, x_BxL))
    return {
        name: MIN_K(value_BxL1, length_B).astype(np.float32)
        for name, value_BxL1 in zip(STATISTIC_NAMES, (-nats_BxL1, z_BxL1), strict=True)
    }


def case(
    seed: int, B: int = 6, L: int = 18, V: int = 7
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits_BxLxV = rng.normal(0, 3, (B, L, V)).astype(np.float32)
    x_BxL = rng.integers(0, V, (B, L)).astype(np.int32)
    return logits_BxLxV, x_BxL, rng.integers(2, L + 1, B).astype(np.int32)


def log_probs(logits_V: np.ndarray) -> list[float]:
    z = [float(v) for v in logits_V]
    log_z = max(z) + math.log(math.fsum(math.exp(v - max(z)) for v in z))
    return [v - log_z for v in z]


def slow(logits_BxLxV: np.ndarray, x_BxL: np.ndarray, length_B: np.ndarray) -> dict[str, list]:
    """Computes both statistics token by token in double precision."""
    statistics: dict[str, list] = {name: [] for name in STATISTIC_NAMES}
    for logits_LxV, x_L, length in zip(logits_BxLxV, x_BxL, length_B, strict=True):
        token_log_p, z = [], []
        for i in range(1, length):
            log_p = log_probs(logits_LxV[i - 1])
            mu = math.fsum(math.exp(v) * v for v in log_p)
            sigma = math.sqrt(math.fsum(math.exp(v) * (v - mu) ** 2 for v in log_p))
            token_log_p.append(log_p[x_L[i]])
            z.append((log_p[x_L[i]] - mu) / sigma)
        k = max(1, (length - 1) // 5)
        for name, values in (("min_k", token_log_p), ("min_k_plus_plus", z)):
            statistics[name].append(math.fsum(sorted(values)[:k]) / k)
    return statistics


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_statistics_equal_slow_reference(seed: int):
    arguments = case(seed)
    statistics, expected = STATISTICS(*arguments), slow(*arguments)
    assert set(statistics) == set(STATISTIC_NAMES)
    for name in STATISTIC_NAMES:
        assert statistics[name].dtype == np.float32
        np.testing.assert_allclose(statistics[name], expected[name], rtol=2e-5, atol=1e-5)


def test_example_worked_by_hand():
    """Probabilities 3/4 and 1/4: mu = -0.5623, sigma = (3 ** 0.5 / 4) ln 3, z of the rarer token -3 ** 0.5."""
    logits_BxLxV = np.log([[[3.0, 1.0]] * 3]).astype(np.float32)
    for rarer_at, first_z in ((1, -math.sqrt(3)), (2, -math.sqrt(3)), (None, 1 / math.sqrt(3))):
        x_BxL = np.zeros((1, 3), np.int32)
        if rarer_at is not None:
            x_BxL[0, rarer_at] = 1
        statistics = STATISTICS(logits_BxLxV, x_BxL, np.array([3]))
        lowest = 3 / 4 if rarer_at is None else 1 / 4
        assert float(statistics["min_k"][0]) == pytest.approx(math.log(lowest), rel=1e-6)
        assert float(statistics["min_k_plus_plus"][0]) == pytest.approx(first_z, rel=1e-6)


@pytest.mark.parametrize("values", range(1, 32))
def test_a_fifth_of_the_tokens_is_rounded_down_but_at_least_one(values: int):
    """The lowest k of 0, 1, ..., shuffled, have the mean (k - 1) / 2."""
    k = max(1, sum(5 * i <= values for i in range(1, 10)))
    # Values after the end of the sample are lower than all others, but never counted.
    value_L1 = np.full(31, -50.0, np.float32)
    value_L1[:values] = np.random.default_rng(values).permutation(values)
    [mean] = MIN_K(value_L1[None], np.array([values + 1]))
    assert float(mean) == (k - 1) / 2


def test_samples_of_fewer_than_two_tokens_are_nan():
    logits_BxLxV, x_BxL, _ = case(1)
    length_B = np.array([0, 1, 2, 2, 0, 1], np.int32)
    statistics = STATISTICS(logits_BxLxV, x_BxL, length_B)
    for name in STATISTIC_NAMES:
        assert np.isnan(statistics[name]).tolist() == [True, True, False, False, True, True]
    nats_BxL1 = TOKEN_LOSSES(logits_BxLxV, x_BxL, length_B)
    assert float(statistics["min_k"][2]) == -float(nats_BxL1[2, 0])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_padding_and_other_samples_change_no_bit(seed: int):
    logits_BxLxV, x_BxL, length_B = case(seed)
    statistics = STATISTICS(logits_BxLxV, x_BxL, length_B)
    rng = np.random.default_rng(seed)
    padding_BxL = np.arange(18) >= length_B[:, None]
    other_BxLxV, other_BxL = logits_BxLxV.copy(), x_BxL.copy()
    other_BxL[padding_BxL] = rng.integers(0, 7, padding_BxL.sum())
    # The logits of a sample's last token predict nothing either.
    unused_BxL = np.arange(1, 19) >= length_B[:, None]
    other_BxLxV[unused_BxL] = rng.normal(0, 30, (unused_BxL.sum(), 7))
    order_B = rng.permutation(6)
    moved = STATISTICS(other_BxLxV[order_B], other_BxL[order_B], length_B[order_B])
    alone_BxLxV, alone_BxL = np.zeros_like(logits_BxLxV), np.zeros_like(x_BxL)
    alone_BxLxV[0], alone_BxL[0] = logits_BxLxV[4], x_BxL[4]
    alone = STATISTICS(alone_BxLxV, alone_BxL, np.array([length_B[4], 0, 0, 0, 0, 0], np.int32))
    for name in STATISTIC_NAMES:
        np.testing.assert_array_equal(moved[name], statistics[name][order_B])
        assert alone[name][0] == statistics[name][4]


@pytest.mark.parametrize("V", [2, 5, 1000])
@pytest.mark.parametrize("level", [0.0, -7.5, 1e4])
def test_z_is_0_if_all_tokens_are_equally_likely(V: int, level: float):
    logits_BxLxV, x_BxL = np.full((4, 6, V), level, np.float32), case(0)[1][:4, :6] % V
    assert not np.asarray(Z_SCORES(logits_BxLxV, x_BxL)).any()


def test_small_spread_of_z_is_not_rounded_to_0():
    """Two almost equally likely tokens lie one sigma below and above the mean."""
    logits_BxLxV = np.tile(np.array([0.0, 2e-3], np.float32), (1, 2, 1))
    for token, z in ((0, -1), (1, 1)):
        assert float(Z_SCORES(logits_BxLxV, np.array([[0, token]]))[0, 0]) == pytest.approx(
            z, rel=5e-3
        )


def test_z_of_certain_and_impossible_tokens():
    """float32 cannot distinguish e ** -200 from 0, nor e ** -30 squared."""
    logits_BxLxV = np.zeros((1, 2, 5), np.float32)
    logits_BxLxV[0, 0, 2] = 200
    for token in range(5):
        [[z]] = Z_SCORES(logits_BxLxV, np.array([[0, token]])).tolist()
        assert z == (0.0 if token == 2 else pytest.approx(-math.exp(80), rel=1e-4))
    statistics = STATISTICS(
        np.repeat(logits_BxLxV, 999, 1), np.ones((1, 1998), np.int32), np.array([1998])
    )
    assert -math.inf < float(statistics["min_k_plus_plus"][0]) < -1e34
    # The probability is e ** -95, so sigma underflows.
    almost = Z_SCORES(logits_BxLxV * np.float32(0.475), np.array([[0, 0]]))
    assert float(almost[0, 0]) == pytest.approx(-math.exp(47.5), rel=1e-3)
    nearly = np.where(logits_BxLxV > 0, np.float32(30), logits_BxLxV)
    z_rare, z_certain = (float(Z_SCORES(nearly, np.array([[0, token]]))[0, 0]) for token in (0, 2))
    assert z_rare == pytest.approx(-math.exp(15) / 2, rel=1e-4)  # p = e ** -30 each, of four
    assert 0 <= z_certain < 1e-5


def test_offset_of_all_logits_changes_little():
    logits_BxLxV, x_BxL, length_B = case(5)
    one, other = (STATISTICS(logits_BxLxV + at, x_BxL, length_B) for at in (0, 1000))
    for name in STATISTIC_NAMES:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3)
