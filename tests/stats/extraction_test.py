import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats

SCHEMES = [
    stats.SamplingScheme(),
    stats.SamplingScheme(temperature=0),
    *(
        stats.SamplingScheme(t, k, p)
        for t in (0.3, 1.0, 2.5)
        for k in (0, 1, 3, 7, 50)
        for p in (1.0, 0.9, 0.4, 1e-9)
    ),
]


def slow_probabilities(logits_V: list[float], scheme: stats.SamplingScheme) -> list[float]:
    """Computes the probabilities of all tokens from sorted lists."""
    V = len(logits_V)
    if scheme.temperature == 0:
        best = max(range(V), key=lambda v: (logits_V[v], -v))
        return [float(v == best) for v in range(V)]
    weight = [math.exp((z - max(logits_V)) / scheme.temperature) for z in logits_V]
    kept = set(range(V))
    if 0 < scheme.top_k < V:
        kth = sorted(logits_V, reverse=True)[scheme.top_k - 1]
        kept = {v for v in kept if logits_V[v] >= kth}
    if scheme.top_p < 1:
        total, so_far, nucleus = math.fsum(weight[v] for v in kept), 0.0, set()
        for v in sorted(kept, key=lambda v: (-logits_V[v], v)):
            if so_far >= scheme.top_p:
                break
            nucleus.add(v)
            so_far += weight[v] / total
        kept = nucleus
    total = math.fsum(weight[v] for v in kept)
    return [weight[v] / total if v in kept else 0.0 for v in range(V)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_token_log_probs_equal_slow_reference(scheme: stats.SamplingScheme):
    rng = np.random.default_rng(1)
    logits_SxV = rng.normal(0, 3, (12, 7))
    expected = np.array([slow_probabilities(row, scheme) for row in logits_SxV.tolist()])
    for v in range(7):
        actual_S = stats.token_log_probs(logits_SxV, np.full(12, v), scheme)
        np.testing.assert_allclose(np.exp(actual_S), expected[:, v], rtol=1e-12)
    np.testing.assert_allclose(expected.sum(1), 1)


def test_log_probabilities_are_accepted_as_logits():
    logits = np.random.default_rng(0).normal(0, 2, (2, 5, 9))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    token = np.arange(10).reshape(2, 5) % 9
    for scheme in SCHEMES:
        both = [stats.token_log_probs(a, token, scheme) for a in (logits, log_p)]
        assert both[0].shape == (2, 5)
        np.testing.assert_allclose(*both, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "scheme",
    [
        stats.SamplingScheme(),
        stats.SamplingScheme(0.7, 3),
        stats.SamplingScheme(1.3, 0, 0.7),
        stats.SamplingScheme(1, 4, 0.8),
    ],
    ids=repr,
)
def test_suffix_frequency_equals_p_z(scheme: stats.SamplingScheme):
    """Draws 40,000 suffixes of 3 tokens from the slow reference; frequencies agree within 5 standard deviations."""
    rng, V, S, n = np.random.default_rng(2), 5, 3, 40_000
    logits_SxV = rng.normal(0, 1.5, (S, V))
    p_SxV = [slow_probabilities(row, scheme) for row in logits_SxV.tolist()]
    drawn = np.stack([rng.choice(V, n, p=p_V) for p_V in p_SxV])
    total = 0.0
    for suffix in itertools.product(range(V), repeat=S):
        token_S = np.array(suffix)
        p_z = float(
            np.exp(stats.suffix_log_prob(stats.token_log_probs(logits_SxV, token_S, scheme)))
        )
        seen = (drawn == token_S[:, None]).all(0).mean()
        assert abs(seen - p_z) <= 5 * math.sqrt(p_z * (1 - p_z) / n)
        total += p_z
    assert total == pytest.approx(1)


def test_equally_likely_tokens():
    logits_SxV = np.zeros((1, 4))
    p = [
        np.exp(stats.token_log_probs(logits_SxV, [v], stats.SamplingScheme(0)))[0] for v in range(4)
    ]
    assert p == [1, 0, 0, 0]
    p = [
        np.exp(stats.token_log_probs(logits_SxV, [v], stats.SamplingScheme(1, 2)))[0]
        for v in range(4)
    ]
    np.testing.assert_allclose(p, 0.25)  # all are as likely as the second, so none is cut
    p = [
        np.exp(stats.token_log_probs(logits_SxV, [v], stats.SamplingScheme(1, 0, 0.6)))[0]
        for v in range(4)
    ]
    np.testing.assert_allclose(p, [1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize(
    "p_z", [Fraction(1, 10**18), Fraction(1, 10**6), Fraction(1, 3), Fraction(999, 1000)]
)
@pytest.mark.parametrize("n", [1, 7, 10**6])
def test_extraction_probability_equals_exact_arithmetic(p_z: Fraction, n: int):
    """The reference is the binomial series of 1 - (1 - p)^n if n p is small."""
    if n * p_z < Fraction(1, 10**6):
        exact = float(n * p_z - Fraction(n * (n - 1), 2) * p_z**2)
    else:
        exact = (
            -math.expm1(n * math.log1p(-float(p_z)))
            if p_z < Fraction(1, 2)
            else 1 - float(1 - p_z) ** n
        )
    actual = float(
        stats.extraction_probability(math.log(p_z.numerator) - math.log(p_z.denominator), n)
    )
    assert actual == pytest.approx(exact, rel=1e-12)


def test_required_queries_at_tiny_p_z():
    """The number of queries is log(2) / 1e-18; it would be infinite if 1 - 1e-18 were rounded to 1."""
    log_p = math.log(1e-18)
    n = float(stats.required_queries(log_p, 0.5))
    assert n == pytest.approx(math.log(2) * 1e18, rel=1e-12)
    assert float(stats.extraction_probability(log_p, n)) == pytest.approx(0.5, rel=1e-12)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 60), st.integers(2, 60), st.integers(1, 99))
def test_required_queries_is_the_smallest_sufficient_number(a: int, b: int, percent: int):
    p_z, p = Fraction(a, a + b), Fraction(percent, 100)
    n = int(stats.required_queries(math.log(a / (a + b)), float(p)))
    assert n >= 1
    # n queries reach the probability p, and n - 1 do not, up to the rounding of p to a float.
    assert 1 - (1 - p_z) ** n >= p - Fraction(1, 10**12)
    assert n == 1 or 1 - (1 - p_z) ** (n - 1) < p + Fraction(1, 10**12)


def test_limits_and_invalid_arguments():
    assert stats.required_queries([0.0, -math.inf, math.log(0.5)], 0.5).tolist() == [1, math.inf, 1]
    assert stats.required_queries([0.0, -1.0], 1.0).tolist() == [1, math.inf]
    assert stats.extraction_probability([0.0, -math.inf, -745.0], 10**6).tolist()[:2] == [1, 0]
    for p in (0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="must be in"):
            stats.required_queries(-1.0, p)
    with pytest.raises(ValueError, match="be above 0"):
        stats.extraction_probability(0.1, 1)
    assert stats.extraction_rate([0.0, -1.0, -50.0], 1, 0.3).share == pytest.approx(2 / 3)
    assert str(stats.SamplingScheme(0)) == "greedy"
    assert str(stats.SamplingScheme(0.5, 40, 0.9)) == "temperature 0.5, top 40, top p 0.9"


@pytest.mark.parametrize("shift", [0.0, 1.0, 0.1, -7.3, 1e3])
def test_ties_at_top_p_do_not_depend_on_a_shift(shift: float):
    """Of two equally likely tokens, the first one reaches top_p = 0.5, and the second is never sampled."""
    logits_SxV = np.full((2, 2), shift)
    actual = stats.token_log_probs(logits_SxV, [0, 1], stats.SamplingScheme(1, 0, 0.5))
    assert actual.tolist() == [0.0, -np.inf]
    four = stats.token_log_probs(np.full((4, 4), shift), range(4), stats.SamplingScheme(1, 0, 0.5))
    np.testing.assert_allclose(four, [-np.log(2), -np.log(2), -np.inf, -np.inf], atol=1e-15)
