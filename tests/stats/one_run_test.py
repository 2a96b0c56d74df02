"""Audits of a single run: by hand, from loops, and their validity in simulations."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from lm_mia import seeds, stats


def slow_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Sums binomial probabilities one after another."""
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    probability = [float(binom.pmf(k, guesses, q)) for k in range(guesses + 1)]
    beta = sum(probability[correct:])
    largest, below = 0.0, 0.0
    for i in range(1, correct + 1):
        below += probability[correct - i]
        largest = max(largest, below / i)
    return min(1.0, beta + 2 * canaries * delta * largest)


def slow_rejected(mu: float, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Walks the recursion from the number of correct guesses to 0 without stopping."""
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        more = max(wrong, float(norm.cdf(norm.ppf(min(right, 1)) - mu)))
        right, wrong = min(1.0, right + i / (guesses - i) * (more - wrong)), more
    return right + wrong > guesses / canaries


def slow_guesses(score_N, member_N, guesses: int, sides: str) -> tuple[int, int]:
    """Sorts the samples by (score, key), and guesses them one after another."""
    key_N = seeds.keys(0, "ties", np.arange(len(score_N))).tolist()
    scored = [
        (score, key, bool(m))
        for score, key, m in zip(score_N.tolist(), key_N, member_N, strict=True)
        if not np.isnan(score)
    ]
    labels = [m for _, _, m in sorted(scored)]
    guesses = min(guesses, len(labels))
    low = guesses // 2 if sides == "both" else 0
    high = labels[len(labels) - (guesses - low) :] if guesses > low else []
    return guesses, sum(high) + sum(not m for m in labels[:low])


def test_epsilon_by_hand():
    # q^r = 0.05: epsilon = ln(q / (1 - q)).
    assert stats.one_run_epsilon(10, 10, 10) == pytest.approx(1.0519, abs=5e-5)
    assert stats.one_run_epsilon(100, 100, 100) == pytest.approx(3.4930, abs=5e-5)
    # Abstaining costs nothing if delta is 0.
    assert stats.one_run_epsilon(10**6, 100, 100) == stats.one_run_epsilon(100, 100, 100)
    assert stats.one_run_p_value(10, 4, 3, 0.0, 0.0) == pytest.approx(5 / 16)


@given(
    guesses=st.integers(1, 60),
    more=st.integers(0, 2000),
    share=st.floats(0, 1),
    epsilon=st.floats(0, 6),
    delta=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]),
)
@settings(max_examples=80, deadline=None)
def test_p_value_equals_a_sum(guesses: int, more: int, share: float, epsilon: float, delta: float):
    correct = round(share * guesses)
    arguments = guesses + more, guesses, correct, epsilon, delta
    actual = stats.one_run_p_value(*arguments)
    assert actual == pytest.approx(slow_p_value(*arguments), rel=1e-7, abs=1e-300)


def test_p_value_rises_with_epsilon_up_to_the_level():
    # So the largest epsilon that is rejected bounds an interval of rejected ones.
    grid = np.linspace(0, 8, 60)
    for canaries, guesses, correct, delta in (
        (1000, 1000, 700, 1e-5),
        (1000, 100, 97, 1e-4),
        (10**5, 30, 30, 1e-5),
        (10**5, 20_000, 15_000, 1e-5),
        (2000, 16, 16, 1e-3),
    ):
        p = np.array([stats.one_run_p_value(canaries, guesses, correct, e, delta) for e in grid])
        below = p[: np.argmax(p >= 0.5)]
        assert np.all(np.diff(below) >= -1e-12)


@pytest.mark.parametrize("canaries", [30, 200])
@pytest.mark.parametrize("mu", [0.0, 0.2, 0.7, 1.5, 4.0])
def test_gaussian_rejection_equals_the_full_recursion(canaries: int, mu: float):
    for guesses in (1, 7, 30):
        for correct in range(guesses + 1):
            for level in (0.05, 0.001):
                arguments = mu, canaries, guesses, correct, level
                assert stats.gaussian_rejected(*arguments) == slow_rejected(*arguments)


def test_mu_is_the_boundary():
    mu = stats.one_run_mu(2000, 252, 249)
    assert mu == pytest.approx(1.2022, abs=1e-4)
    assert stats.gaussian_rejected(mu, 2000, 252, 249, 0.05)
    assert not stats.gaussian_rejected(mu * (1 + 1e-8), 2000, 252, 249, 0.05)
    assert stats.one_run_mu(2000, 252, 126) == 0
    assert stats.one_run_mu(10, 10, 0) == 0


def test_more_evidence_shows_more():
    correct = range(0, 101, 4)
    for function in (stats.one_run_mu, stats.one_run_epsilon):
        values = [function(300, 100, v) for v in correct]
        assert np.all(np.diff(values) >= 0)
        assert values[-1] > 0
        assert function(300, 100, 90, level=0.01) < function(300, 100, 90, level=0.05)
    epsilons = [stats.one_run_epsilon(300, 100, 90, delta=d) for d in (0.0, 1e-6, 1e-4, 1e-2)]
    assert np.all(np.diff(epsilons) < 0)


def test_counts_and_levels_are_checked():
    for counts in ((10, 11, 1), (10, 5, 6), (10, 5, -1)):
        with pytest.raises(ValueError, match="0 <= correct <= guesses <= canaries"):
            stats.one_run_mu(*counts)
    with pytest.raises(ValueError, match="level"):
        stats.one_run_epsilon(10, 5, 5, level=0)
    with pytest.raises(ValueError, match="delta"):
        stats.one_run_epsilon(10, 5, 5, delta=1)
    with pytest.raises(ValueError, match="epsilon"):
        stats.one_run_p_value(10, 5, 5, -1, 0)
    with pytest.raises(ValueError, match="mu"):
        stats.gaussian_rejected(-1, 10, 5, 5, 0.05)


@pytest.mark.parametrize("sides", ["both", "members"])
@given(seed=st.integers(0, 999), samples=st.integers(0, 25), digits=st.sampled_from([0, 6]))
@settings(max_examples=40, deadline=None)
def test_guesses_equal_a_loop_over_sorted_samples(sides, seed: int, samples: int, digits: int):
    rng = np.random.default_rng(seed)
    member_N = rng.random(samples) < 0.5
    score_N = np.round(rng.normal(size=samples) + member_N, digits)
    score_N[rng.random(samples) < 0.1] = np.nan
    guesses_G = [*range(27)]
    actual = stats.count_guesses(score_N, member_N, guesses_G, sides)
    slow = [slow_guesses(score_N, member_N, g, sides) for g in guesses_G]
    np.testing.assert_array_equal(np.transpose([actual.made_G, actual.correct_G]), slow)


def test_pairs():
    rng = np.random.default_rng(0)
    member_N = rng.permutation(100) < 40
    score_N = rng.normal(size=100) + 5 * member_N
    score_N[np.flatnonzero(member_N)[:3]] = np.nan
    pairs = stats.paired_canaries(score_N, member_N, seed=1)
    assert pairs.difference_P.size == 40
    assert np.isnan(pairs.difference_P).sum() == 3
    assert pairs.correct_P.sum() >= 36
    again = stats.paired_canaries(score_N, member_N, seed=1)
    np.testing.assert_array_equal(again.difference_P, pairs.difference_P)
    other = stats.paired_canaries(score_N, member_N, seed=2)
    assert not np.array_equal(other.difference_P, pairs.difference_P)
    # The other membership of a pair reverses which of its guesses is correct.
    swapped = stats.paired_canaries(-score_N, member_N, seed=1)
    np.testing.assert_array_equal(swapped.difference_P, pairs.difference_P)
    assert not np.any(swapped.correct_P & pairs.correct_P)


def test_bound_of_one_run():
    rng = np.random.default_rng(0)
    member_N = rng.random(3000) < 0.5
    score_N = rng.normal(size=3000) + 2 * member_N
    score_N[:10] = np.nan
    bound = stats.one_run_bound(score_N, member_N, delta=1e-5)
    assert (bound.canaries, bound.left_out, bound.adjacency) == (3000, 10, "add_remove")
    assert bound.hypotheses == 2 * 8  # 16, ..., 2048, on both sides or one
    assert bound.curve.guesses_C.tolist() == [2**i for i in range(4, 12)] * 2
    level = bound.level / bound.hypotheses
    assert bound.epsilon == max(bound.curve.epsilon_C)
    assert bound.epsilon == stats.one_run_epsilon(
        3000, bound.guesses, bound.correct, delta=1e-5, level=level
    )
    gaussian = 3000, bound.guesses_gaussian, bound.correct_gaussian
    assert bound.mu == stats.one_run_mu(*gaussian, level=level)
    assert 0 < bound.epsilon < bound.epsilon_if_gaussian < stats.gaussian_dp_epsilon(2.0, 1e-5)
    assert bound.epsilon < bound.ceiling < bound.ceiling_if_gaussian
    of_pairs = stats.one_run_bound(score_N, member_N, membership="half", delta=1e-5)
    assert of_pairs.adjacency == "replace_one"
    assert of_pairs.canaries == min(member_N.sum(), (~member_N).sum())
    assert of_pairs.hypotheses == 7
    assert set(of_pairs.curve.sides_C) == {"members"}
    # Neither the order of equal scores nor an increasing map matters.
    same = stats.one_run_bound(8 * score_N - 3, member_N, delta=1e-5)
    np.testing.assert_array_equal(same.curve.correct_C, bound.curve.correct_C)


def test_edges_of_the_bound():
    member_N = np.arange(40) % 2 == 0
    for membership in ("coins", "half"):
        bound = stats.one_run_bound(np.full(40, np.nan), member_N, membership=membership, delta=0.0)
        assert (bound.epsilon, bound.mu, bound.correct) == (0, 0, 0)
    perfect = stats.one_run_bound(1.0 * member_N, member_N, delta=0.0, guesses_G=40)
    assert perfect.epsilon == perfect.ceiling > 0
    few = stats.one_run_bound(1.0 * member_N[:5], member_N[:5], delta=0.0)
    assert few.curve.guesses_C.tolist() == [5, 5]
    # Scores that are tied are guessed in the order of their keys; those that are missing count as wrong.
    tied = stats.one_run_bound(1.0 * member_N, member_N, delta=0.0, guesses_G=16)
    assert tied.epsilon == tied.ceiling > 0
    for bad, match in (
        ({"membership": "given"}, "membership"),
        ({"guesses_G": [41]}, "guesses_G"),
        ({"delta": 2.0}, "delta"),
        ({"confidence": 0.0}, "confidence"),
        ({"score_N": np.zeros(3)}, "match"),
    ):
        arguments: dict[str, Any] = {
            "score_N": np.zeros(40),
            "member_N": member_N,
            "delta": 0.0,
        } | bad
        with pytest.raises(ValueError, match=match):
            stats.one_run_bound(**arguments)
    with pytest.raises(ValueError, match="canaries"):
        stats.one_run_bound(np.zeros(3), np.ones(3, bool), membership="half", delta=0.0)


@pytest.mark.parametrize("membership", ["coins", "half"])
def test_valid_for_the_gaussian_mechanism(membership):
    # benchmarks/audit.py has more runs and cases.
    rng = np.random.default_rng(1)
    runs, samples, sigma = 60, 1000, 1.0
    guesses: dict[str, Any] = {"delta": 1e-5, "guesses_G": [64, 128, 256]}
    # Two canaries of a pair differ by the noise of both, and replacing one moves their difference by 2.
    mu = 1 / sigma if membership == "coins" else np.sqrt(2) / sigma
    truth = float(stats.gaussian_dp_epsilon(mu, 1e-5))
    bounds = []
    for _ in range(runs):
        member_N = (
            rng.random(samples) < 0.5 if membership == "coins" else rng.permutation(samples) < 500
        )
        score_N = rng.normal(scale=sigma, size=samples) + member_N
        bounds.append(stats.one_run_bound(score_N, member_N, membership=membership, **guesses))
    assert np.mean([b.mu > mu for b in bounds]) <= 0.05
    assert np.mean([b.epsilon > truth for b in bounds]) <= 0.05
    assert np.median([b.mu for b in bounds]) >= 0.4 * mu


def test_randomized_response():
    rng = np.random.default_rng(4)
    epsilon, canaries = 1.5, 500
    values = [
        stats.one_run_epsilon(canaries, canaries, int(correct))
        for correct in rng.binomial(canaries, 1 / (1 + np.exp(-epsilon)), size=200)
    ]
    assert np.mean(np.array(values) > epsilon) <= 0.08
    assert np.median(values) > 0.8 * epsilon


def test_pooled_leave_one_out_scores_are_not_valid():
    # Without any leakage the number of correct guesses is binomial if other models are the references. If the models
    # are each other's references, it varies more, since the membership in one changes the scores of the others.
    rng = np.random.default_rng(6)
    deviations: dict[str, list[float]] = {"references": [], "leave one out": []}
    for _ in range(150):
        log_p_16xN, member_16xN = rng.normal(size=(16, 150)), rng.random((16, 150)) < 0.5
        ours, others = slice(8), slice(8, None)
        scores = {
            "references": stats.lira(log_p_16xN[ours], log_p_16xN[others], member_16xN[others]),
            "leave one out": stats.lira_leave_one_out(log_p_16xN[ours], member_16xN[ours]),
        }
        for name, score_8xN in scores.items():
            counts = stats.count_guesses(score_8xN.ravel(), member_16xN[ours].ravel(), 300)
            made, correct = int(counts.made_G[0]), int(counts.correct_G[0])
            deviations[name].append((correct - made / 2) / np.sqrt(made / 4))
    assert 0.85 < np.std(deviations["references"]) < 1.15
    assert np.std(deviations["leave one out"]) > 1.25


def test_fields_are_plain_numbers():
    bound = stats.one_run_bound(np.arange(50.0), np.arange(50) > 20, delta=1e-5)
    for field in dataclasses.fields(bound):
        if field.name != "curve":
            assert type(getattr(bound, field.name)) in (int, float, str), field.name
