"""Scores and membership of groups, compared with loops over groups."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import gmean

from lm_mia import stats

SLOW = {
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "logsumexp": logsumexp,
    "gmean": lambda s: gmean(s) if min(s) > 0 else np.nan,
    "abs_max": lambda s: max(s, key=lambda x: (abs(x), x)),
}


@pytest.mark.parametrize("how", SLOW)
@given(seed=st.integers(0, 999), samples=st.integers(0, 40), as_text=st.booleans())
@settings(max_examples=25, deadline=None)
def test_equals_a_loop_over_groups(how, seed: int, samples: int, as_text: bool):
    rng = np.random.default_rng(seed)
    group_N = rng.integers(-3, 5, size=samples)
    score_N = np.round(rng.normal(size=samples), 1) + (2 if how == "gmean" else 0)
    score_N[rng.random(samples) < 0.2] = np.nan
    names_N = np.array([f"user {g}" for g in group_N], dtype=object) if as_text else group_N
    result = stats.aggregate_by_group(score_N, names_N, how)
    assert result.group_G.tolist() == list(dict.fromkeys(names_N.tolist()))
    left_out = int(np.isnan(score_N).sum())
    for name, score, count in zip(result.group_G, result.score_G, result.count_G, strict=True):
        scores = [s for s, g in zip(score_N, names_N, strict=True) if g == name and not np.isnan(s)]
        assert count == len(scores)
        expected = SLOW[how](scores) if scores else np.nan
        assert score == pytest.approx(expected, nan_ok=True)
        left_out += len(scores) if scores and np.isnan(expected) else 0
    assert result.left_out == left_out


def test_by_hand():
    score_N, group_N = [-5.0, 3.0, 0.0, 2.0, 8.0], ["b", "b", "a", "c", "c"]
    cases: list[tuple[Any, list[float]]] = [
        ("mean", [-1, 0, 5]),
        ("max", [3, 0, 8]),
        ("min", [-5, 0, 2]),
        ("abs_max", [-5, 0, 8]),
        ("gmean", [np.nan, np.nan, 4]),
    ]
    for how, expected in cases:
        result = stats.aggregate_by_group(score_N, group_N, how)
        np.testing.assert_allclose(result.score_G, expected)
        assert result.left_out == (3 if how == "gmean" else 0)
    large = stats.aggregate_by_group([1000.0, 1000.0, -np.inf], [0, 0, 1], "logsumexp")
    np.testing.assert_allclose(large.score_G, [1000 + np.log(2), -np.inf])


def test_membership_of_groups():
    group_N = np.array(["b", "a", "b", "c"])
    member_N = np.array([True, False, True, False])
    assert stats.member_by_group(member_N, group_N).tolist() == [True, False, False]
    member_N[2] = False
    with pytest.raises(ValueError, match=r"group b: .*members"):
        stats.member_by_group(member_N, group_N)


def test_bad_groups_are_named():
    with pytest.raises(ValueError, match="how='median'"):
        stats.aggregate_by_group([1.0], [0], cast("Any", "median"))
    with pytest.raises(ValueError, match="do not match"):
        stats.aggregate_by_group([1.0], [0, 1], "mean")
    with pytest.raises(ValueError, match="missing"):
        stats.aggregate_by_group([1.0], [np.nan], "mean")
    with pytest.raises(ValueError, match="missing"):
        stats.aggregate_by_group([1.0, 2.0], np.array(["a", None], dtype=object), "mean")
    with pytest.raises(ValueError, match="numbers or all texts"):
        stats.aggregate_by_group([1.0, 2.0], np.array(["a", 1], dtype=object), "mean")
