"""MACE Figures 2, 4, 5 and 8 on queries whose distribution is known."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.experiments.mace import adversaries
from analysis.experiments.mace.adversaries import (
    Query,
    groups,
    held_out,
    kernel_ratio,
    over_targets,
    plug_in,
)


def query(distance: float, samples: int = 4_000, seed: int = 0, dimensions: int = 1) -> Query:
    """Returns queries of N(distance, 1) for members and N(0, 1) for others in each dimension."""
    generator = np.random.default_rng(seed)
    member_N2 = generator.permutation(samples) % 2 == 0
    value_N2xD = generator.normal(size=(samples, dimensions)) + distance * member_N2[:, None]
    return Query(value_N2xD, member_N2, np.arange(samples))


def test_held_out_advantage_of_normal_queries():
    # 2 Phi(1/2) - 1, and 2 Phi(1/sqrt(2)) - 1 with two independent numbers
    assert held_out(query(1.0)) == pytest.approx(0.383, abs=0.04)
    two = [held_out(query(1.0, seed=seed, dimensions=2), kernel_ratio) for seed in range(3)]
    assert np.mean(two) == pytest.approx(0.520, abs=0.03)


def test_plug_in_is_biased_without_leakage_and_held_out_is_not():
    queries = [query(0.0, 800, seed) for seed in range(20)]
    values = over_targets(queries, held_out)
    assert abs(values.value) < 0.04
    assert values.estimate().low < 0 < values.estimate().high
    assert np.mean([plug_in(q) for q in queries]) > 0.08
    same = np.mean([adversaries.same_sample_estimates(q)["bins"] for q in queries], axis=0)
    assert same[0] > 0.2
    assert same[1] < same[0] < same[2]


def test_too_few_samples_give_no_estimate():
    assert math.isnan(held_out(query(1.0, 60)))
    few = [query(1.0, 60, seed) for seed in range(3)]
    sides = [over_targets(few, held_out)] * 2
    assert adversaries._claim_of_group("S", "W", sides, 60).verdict == "not tested"


def test_rules_of_both_metrics():
    separated = query(20.0)
    for prior in (0.5, 0.1):
        rules = adversaries.optimal_and_heuristic(separated, "accuracy", prior)
        assert rules == pytest.approx((1, 1), abs=0.01)
    optimal, heuristic = adversaries.optimal_and_heuristic(query(1.0), "balanced_accuracy", 0.1)
    # With x = 1/2, TPR and TNR are 0.691. The highest tenth begins at 1.41, with a TPR of 0.34 and a TNR of 0.92.
    assert optimal == pytest.approx(0.691, abs=0.02)
    assert heuristic == pytest.approx(0.63, abs=0.02)


def test_missing_queries_are_left_out():
    q = query(1.0)
    q.query_N2xD[::7] = np.nan
    assert held_out(q) == pytest.approx(0.383, abs=0.05)
    assert adversaries.optimal_and_heuristic(q, "accuracy", 0.5)[1] == pytest.approx(0.69, abs=0.03)


def test_groups_are_fitted_to_equally_many_samples():
    fit_N2, small_N2 = np.arange(12) % 4 < 2, np.arange(12) >= 8
    rest_N2 = adversaries.with_equal_fit(fit_N2, small_N2)
    assert np.flatnonzero(rest_N2).tolist() == [0, 1, 2, 3, 6, 7]


def test_small_groups():
    columns = {
        "tfidf": np.append(np.arange(19.0), np.nan),
        "tokens": np.arange(20),
        "unk": np.repeat([0, 3], [5, 15]),
        "prefix_group": np.array([0, 0, *range(2, 20)]),
    }
    recipe: Any = SimpleNamespace(attacked=SimpleNamespace(column=columns.__getitem__))
    found = {name: (g.small, np.flatnonzero(g.small_N2).tolist()) for name, g in groups(recipe).items()}  # fmt: skip
    assert found == {
        "tfidf": ("rare tokens", [17, 18]),
        "tokens": ("short", [0, 1]),
        "unk": ("none", [0, 1, 2, 3, 4]),
        "prefix_group": ("shared prefix", [0, 1]),
    }
