"""Tied scores in bounds on epsilon: ordered by keys that know nothing of the membership and of the order of samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lm_mia import seeds, stats
from lm_mia.stats import ties

BOUNDS: dict[str, Callable[..., Any]] = {
    "coins": lambda *scores, **ids: stats.one_run_bound(*scores, delta=1e-5, **ids),
    "half": lambda *scores, **ids: stats.one_run_bound(
        *scores, membership="half", delta=1e-5, **ids
    ),
    "independent trials": lambda *scores, **ids: stats.independent_trials_bound(*scores, **ids),
}
EVERY_BOUND = pytest.mark.parametrize("name", BOUNDS)


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """Cuts numbers to the 8 bits of precision of bfloat16."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)


def gaussian_run(seed: int, samples: int = 1000, mu: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and members of a run; exactly half of the samples are members, which suits every bound."""
    rng = np.random.default_rng(seed)
    member_N = rng.permutation(samples) < samples // 2
    return rng.normal(size=samples) + mu * member_N, member_N


@EVERY_BOUND
@pytest.mark.parametrize("samples", [40, 128, 2000])
def test_constant_scores_with_the_members_first_show_nothing(name: str, samples: int):
    member_N = np.arange(samples) < samples // 2
    for value in (0.0, 3.25, np.inf, -np.inf):
        for first in (member_N, ~member_N):
            assert BOUNDS[name](np.full(samples, value), first).epsilon == 0


@EVERY_BOUND
def test_bound_of_permuted_samples_with_their_ids_is_equal(name: str):
    score_N, member_N = gaussian_run(0)
    id_N = np.random.default_rng(1).permutation(10**6)[:1000]
    order_N = np.random.default_rng(2).permutation(1000)
    for rounded_N in (score_N, score_N.round(1), score_N.round()):
        expected = BOUNDS[name](rounded_N, member_N, id_N=id_N)
        actual = BOUNDS[name](rounded_N[order_N], member_N[order_N], id_N=id_N[order_N])
        assert actual.epsilon == expected.epsilon > 0
        if name != "independent trials":
            np.testing.assert_array_equal(actual.curve.correct_C, expected.curve.correct_C)


@EVERY_BOUND
def test_coarse_scores_hardly_cost_the_bound(name: str):
    runs = [gaussian_run(seed) for seed in range(10)]
    exact = np.mean([BOUNDS[name](score_N, member_N).epsilon for score_N, member_N in runs])
    for coarse in (lambda x: as_bfloat16(0.1 * x + 3), lambda x: x.round(1)):
        bounds = [BOUNDS[name](coarse(score_N), member_N).epsilon for score_N, member_N in runs]
        assert np.mean(bounds) > 0.9 * exact


def test_without_ties_pairs_and_guesses_do_not_depend_on_keys():
    score_N, member_N = gaussian_run(3)
    rng = np.random.default_rng(5)
    in_P, out_P = (
        score_N[rng.permutation(np.flatnonzero(class_N))] for class_N in (member_N, ~member_N)
    )
    pairs = stats.paired_canaries(score_N, member_N, 5)
    np.testing.assert_array_equal(pairs.difference_P, np.abs(in_P - out_P))
    np.testing.assert_array_equal(pairs.correct_P, in_P > out_P)
    guesses = [stats.count_guesses(score_N, member_N, [7, 64], seed=seed) for seed in (0, 1)]
    np.testing.assert_array_equal(guesses[0].correct_G, guesses[1].correct_G)
    tied = [stats.count_guesses(score_N.round(), member_N, [7, 64], seed=seed) for seed in (0, 1)]
    assert not np.array_equal(tied[0].correct_G, tied[1].correct_G)


def test_equal_scores_of_a_pair_are_a_coin_of_the_keys():
    member_N = np.arange(2000) % 2 == 0
    pairs = stats.paired_canaries(np.zeros(2000), member_N, 0)
    assert not pairs.difference_P.any()
    assert abs(pairs.correct_P.mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)
    # With the other membership of each pair, the other half of the guesses is correct.
    swapped = stats.paired_canaries(np.zeros(2000), ~member_N, 0)
    assert swapped.correct_P.sum() + pairs.correct_P.sum() == pytest.approx(1000, abs=150)
    infinite = stats.paired_canaries([np.inf, np.inf], [True, False], 0)
    assert infinite.difference_P.tolist() == [0]


@pytest.mark.parametrize(
    "id_N", [[0, 1, 1], [0, 1], [-1, 0, 1], [0.0, 1.0, 2.0], [[0], [1], [2]], ["a", "b", "c"]]
)
def test_ids_must_be_different_integers(id_N: Any):
    scores = [0.0, 0.0, 1.0], [True, False, True]
    for call in (
        lambda: stats.count_guesses(*scores, [2], id_N=id_N),
        lambda: stats.paired_canaries(*scores, 0, id_N=id_N),
        lambda: stats.independent_trials_bound(*scores, id_N=id_N),
    ):
        with pytest.raises(ValueError, match="id_N"):
            call()
    largest = np.array([2**63, 2**64 - 1, 0], np.uint64)
    assert stats.count_guesses(*scores, [3], id_N=largest).made_G == 3


def exceedances(
    score: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    epsilon: float,
    runs: int,
    samples: int,
) -> dict[str, float]:
    """Returns how often each bound exceeds the true epsilon of a mechanism, if its scores are cut to bfloat16."""
    rng = np.random.default_rng(0)
    exceeded = dict.fromkeys(BOUNDS, 0)
    for _ in range(runs):
        coin_N, half_N = rng.random(samples) < 0.5, rng.permutation(samples) < samples // 2
        for name, bound in BOUNDS.items():
            member_N = coin_N if name == "coins" else half_N
            # To replace a sample is to remove one and to add another one.
            truth = 2 * epsilon if name == "half" else epsilon
            value = bound(as_bfloat16(score(rng, member_N)), member_N).epsilon
            exceeded[name] += value > truth + 1e-9
    return {name: count / runs for name, count in exceeded.items()}


def noise(rng: np.random.Generator, member_N: np.ndarray) -> np.ndarray:
    return rng.normal(size=member_N.size)


def randomized_response(rng: np.random.Generator, member_N: np.ndarray) -> np.ndarray:
    return np.where(rng.random(member_N.size) < 1 / (1 + np.exp(-1)), member_N, ~member_N) * 1.0


def laplace(rng: np.random.Generator, member_N: np.ndarray) -> np.ndarray:
    return rng.laplace(size=member_N.size) + member_N


MECHANISMS = pytest.mark.parametrize(
    ("mechanism", "epsilon"), [(noise, 0.0), (randomized_response, 1.0), (laplace, 1.0)]
)


@pytest.mark.montecarlo
@MECHANISMS
@pytest.mark.parametrize(("samples", "runs"), [(300, 200), (2000, 80)])
def test_bounds_with_ties_are_valid(mechanism: Any, epsilon: float, samples: int, runs: int):
    for name, share in exceedances(mechanism, epsilon, runs, samples).items():
        assert share <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs), name


def test_keys_are_those_of_the_ids():
    # The smallest of three tied samples by its key is guessed to be a non-member, the largest to be a member.
    key_3 = seeds.keys(0, "ties", np.array([4, 9, 2]))
    member_3 = key_3 == key_3.max()
    guesses = stats.count_guesses(np.zeros(3), member_3, [1, 2], id_N=[4, 9, 2])
    assert guesses.correct_G.tolist() == [1, 2]


@pytest.mark.parametrize("digits", [6, 1, 0, -3])
def test_order_is_that_of_pairs_of_score_and_key(digits: int):
    score_N = np.random.default_rng(0).normal(size=300).round(digits)
    score_N[::29], score_N[5:8], score_N[9] = np.nan, np.inf, -0.0
    key_N = ties.tie_keys(np.arange(300), 3)
    expected = np.lexsort((key_N, score_N))
    actual = ties.order_with_keys(score_N, np.arange(300), 3)
    present = int((~np.isnan(score_N)).sum())
    np.testing.assert_array_equal(actual[:present], expected[:present])
    assert ties.order_with_keys(np.zeros(0), np.arange(0), 0).size == 0
