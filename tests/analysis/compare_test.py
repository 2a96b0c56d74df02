"""Intervals, verdicts, rank correlations and differences between recipes: exact values and coverage."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from analysis import attacks, compare, io
from analysis.compare import Estimate
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.config.needs import JACKKNIFE_GROUPS
from lm_mia.data import subsets

INF = float("inf")
NAN = float("nan")


def test_mean_has_students_t_interval():
    values = np.array([0.1, 0.2, 0.4, 0.3])
    result = compare.mean_estimate(values)
    low, high = scipy.stats.t.interval(0.95, 3, values.mean(), scipy.stats.sem(values))
    assert (result.value, result.low, result.high) == pytest.approx((values.mean(), low, high))
    assert result.over == "4 targets"


def test_nan_is_left_out_and_one_value_has_no_interval():
    assert math.isnan(compare.mean_estimate(np.array([0.5, np.nan])).low)
    assert compare.mean_estimate(np.array([0.5, np.nan])).value == 0.5
    assert math.isnan(compare.mean_estimate(np.array([])).value)


def test_difference_uses_paired_or_welch_interval():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 2, 5)
    va, vb = a.var(ddof=1) / 8, b.var(ddof=1) / 5
    half_width = scipy.stats.t.ppf(0.975, (va + vb) ** 2 / (va**2 / 7 + vb**2 / 4)) * math.sqrt(
        va + vb
    )
    gap = a.mean() - b.mean()
    result = compare.difference(np.append(a, np.nan), b, paired=False)
    assert (result.low, result.high) == pytest.approx((gap - half_width, gap + half_width))
    paired = scipy.stats.ttest_rel(a[:5], b).confidence_interval()
    result = compare.difference(a[:5], b, paired=True)
    assert (result.low, result.high) == pytest.approx((paired.low, paired.high))
    assert math.isnan(compare.difference(a, b[:1], paired=False).low)
    same = compare.difference(np.ones(3), np.zeros(2), paired=False)
    assert math.isnan(same.low)


@pytest.mark.montecarlo
def test_intervals_of_differences_have_nominal_coverage():
    rng, misses = np.random.default_rng(1), 0
    for _ in range(2000):
        result = compare.difference(rng.normal(0.3, 1, 5), rng.normal(0, 2, 9), paired=False)
        misses += not result.low <= 0.3 <= result.high
    assert abs(misses / 2000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)


def estimate(low: float, high: float) -> Any:
    return compare.Estimate((low + high) / 2, low, high, "9 targets")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.2, "seen"),
        (0.0, 0.2, "not seen"),
        (-0.1, 0.2, "not seen"),
        (-0.2, -0.1, "not seen"),
        (math.nan, math.nan, "not tested"),
    ],
)
def test_claim_greater(low: float, high: float, verdict: str):
    result = compare.claim_greater("It grows.", "gain", estimate(low, high))
    assert (result.statement, result.verdict) == ("It grows.", verdict)
    assert ("lies below 0" in result.finding) == (high < 0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.1, 0.1, "seen"),
        (-0.2, 0.1, "not seen"),
        (0.3, 0.4, "not seen"),
        (0.05, 0.19, "seen"),
        (math.nan, math.nan, "not tested"),
    ],
)
def test_claim_equivalent(low: float, high: float, verdict: str):
    assert compare.claim_equivalent("", "", estimate(low, high), 0.2).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("seen", "seen"), "seen"),
        (("seen", "not seen"), "not seen"),
        (("not tested", "not seen"), "not seen"),
        (("seen", "not tested"), "not tested"),
        ((), "not tested"),
    ],
)
def test_claim_all(verdicts: tuple[compare.Verdict, ...], expected: str):
    parts = [compare.Claim("", v, v) for v in verdicts]
    assert compare.claim_all("All.", parts).verdict == expected


def test_tied_values_have_no_interval():
    tied = compare.difference(np.array([0.013, 0.013]), np.zeros(2), paired=True)
    assert compare.claim_greater("", "x", tied).verdict == "not tested"
    equal = compare.difference(np.ones(2), np.ones(2), paired=True)
    assert compare.claim_equivalent("", "x", equal, 0.01).verdict == "seen"


def test_jackknife_variance_of_a_mean():
    effect_G = np.random.default_rng(0).normal(size=JACKKNIFE_GROUPS)
    variance, df = compare.jackknife_variance(16, lambda g: float(np.delete(effect_G, g).mean()))
    assert variance == pytest.approx(effect_G.var(ddof=1) / JACKKNIFE_GROUPS)
    assert df == JACKKNIFE_GROUPS - 1


def test_recipe_difference_covers_targets_and_references(recipes: SweepResults):
    small, large = (recipes[f"chinchilla-{size}"] for size in ("10M", "302M"))
    result = compare.recipe_difference(large, small, 16)
    a, b = (attacks.read_attack(r, references=16).auc_T for r in (large, small))
    assert result.value == pytest.approx(float(a.mean() - b.mean()))
    assert result.over == "4 and 4 targets and their references"
    gap_G = [
        attacks.read_attack(large, references=16, group_left_out=g).auc_T.mean()
        - attacks.read_attack(small, references=16, group_left_out=g).auc_T.mean()
        for g in range(JACKKNIFE_GROUPS)
    ]
    parts = (a.var(ddof=1) / 4, 3), (b.var(ddof=1) / 4, 3), (7 * np.var(gap_G), 7)
    assert parts[2][0] > 0
    variance = sum(v for v, _ in parts)
    half_width = scipy.stats.t.ppf(
        0.975, variance**2 / sum(v**2 / n for v, n in parts)
    ) * math.sqrt(variance)
    assert (result.high - result.low) / 2 == pytest.approx(half_width)


def test_jackknife_leaves_out_whole_pairs(recipes: SweepResults):
    main, _ = attacks.with_equal_models([recipes["main"], recipes["distinct"]])
    full = attacks.read_attack(main, references=16)
    parts = [
        attacks.read_attack(main, references=16, group_left_out=g) for g in range(JACKKNIFE_GROUPS)
    ]
    assert len({round(float(p.auc_T.mean()), 12) for p in parts}) == JACKKNIFE_GROUPS
    assert all(p.targets == full.targets for p in parts)
    assert np.mean([p.auc_T.mean() for p in parts]) == pytest.approx(full.auc_T.mean(), abs=0.05)
    with pytest.raises(io.MissingModelsError, match="too few for this attack"):
        attacks.read_attack(main, references=15, group_left_out=0)
    assert math.isnan(compare.jackknife_variance(15, lambda g: 0.5)[0])
    assert math.isnan(compare.jackknife_variance(16, lambda g: math.nan)[0])


def test_missing_jackknife_attacks_are_reported_as_missing(recipes: SweepResults):
    # no figure needs the jackknife of these two recipes after three epochs
    main, epochs = recipes["main"], recipes["epochs-140M"]
    with pytest.raises(
        io.MissingModelsError,
        match=r"the tables do not contain lira_online with 14 references .* at step",
    ):
        compare.recipe_difference(epochs, main, 16, steps=(epochs.step_after(3), 0))


class RandomRecipe:
    """A recipe with random losses, which differ between members and non-members only in their mean."""

    def __init__(self, rng: np.random.Generator, references: int, first_seed: int):
        seeds = range(first_seed, first_seed + references + 4)  # 4 targets
        self.member_MxN = np.array([subsets.member(seed, 128, "balanced") for seed in seeds])
        self.loss_MxN = rng.normal(size=self.member_MxN.shape) - 0.5 * self.member_MxN
        self.references = references

    def read_attack(self, references: int, step: int, group_left_out: int | None) -> Any:
        kept = [
            i for i in range(references) if group_left_out is None or i // 2 % 8 != group_left_out
        ]
        score_TxN = stats.lira(
            self.loss_MxN[references:],
            self.loss_MxN[kept],
            self.member_MxN[kept],
            variance="pooled",
        )
        pairs = zip(score_TxN, self.member_MxN[references:], strict=True)
        return SimpleNamespace(auc_T=np.array([stats.auc(s[None], m).auc_T[0] for s, m in pairs]))


@pytest.mark.montecarlo
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_equal_recipes_contain_0(paired: bool, monkeypatch: pytest.MonkeyPatch):
    """A correct interval misses 5 of 100 draws on average, and 12 or more with probability 1/230."""
    monkeypatch.setattr(
        compare, "read_attack", lambda recipe, **settings: recipe.read_attack(**settings)
    )
    monkeypatch.setattr(compare, "same_targets", lambda new, old: paired)
    rng, missed = np.random.default_rng(0), 0
    for draw in range(100):
        new: Any = RandomRecipe(rng, 16, 1_000 * draw)
        old: Any = RandomRecipe(rng, 16, 1_000 * draw + (0 if paired else 500))
        result = compare.recipe_difference(new, old, 16)
        missed += not result.low <= 0 <= result.high
    assert missed < 12


def test_rank_correlation_has_fishers_interval_for_ranks() -> None:
    x_N, y_N = np.array([1, 2, 3, 4, 5.0]), np.array([2, 1, 4, 3, 5.0])
    result = compare.RankCorrelation.from_samples(x_N, y_N)
    assert result is not None
    assert result.r == pytest.approx(1 - 6 * 4 / (5 * 24))  # formula with squared rank differences
    half_width = scipy.stats.norm.ppf(0.975) * math.sqrt((1 + 0.8**2 / 2) / 2)
    assert result.low == pytest.approx(math.tanh(math.atanh(0.8) - half_width))
    assert result.high == pytest.approx(math.tanh(math.atanh(0.8) + half_width))
    assert str(result) == "0.80 [−0.46, 0.99]"


def test_rank_correlation_handles_infinity_and_nan() -> None:
    x_N = np.array([-INF, 1, 2, INF, NAN, 3])
    y_N = np.array([0, 1, 2, 5, -77, NAN])
    result = compare.RankCorrelation.from_samples(x_N, y_N)
    assert result is not None
    assert (result.r, result.low, result.high) == (1, 1, 1)
    falling = compare.RankCorrelation.from_samples(-x_N, y_N)
    assert falling is not None
    assert falling.high == -1


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), ([1, 2, 3, 4, 5], [INF] * 5), ([1, 2, 3], [1, 2, 3])],
)
def test_rank_correlation_without_variation_is_none(x: list[float], y: list[float]) -> None:
    assert compare.RankCorrelation.from_samples(np.array(x, float), np.array(y, float)) is None


@pytest.mark.montecarlo
def test_rank_correlation_intervals_have_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    result = [compare.RankCorrelation.from_samples(*rng.normal(size=(2, 50))) for _ in range(1000)]
    assert 25 <= sum(trend is None or not trend.low <= 0 <= trend.high for trend in result) <= 75


def test_bands_are_exact_for_decisions_and_normal_for_shares() -> None:
    x_N = np.arange(40.0)
    result = compare.BinnedMeans.from_samples(x_N, (x_N >= 20).astype(float), 2)
    assert result.x_K.tolist() == [9.5, 29.5]
    assert (result.y_K.tolist(), result.count_K.tolist()) == ([0, 1], [20, 20])
    assert result.high_K[0] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert result.low_K[1] == pytest.approx(0.025 ** (1 / 20))
    share_N = np.tile([0.25, 0.75], 20)
    result = compare.BinnedMeans.from_samples(x_N, share_N, 2)
    half_width = scipy.stats.norm.ppf(0.975) * share_N[:20].std(ddof=1) / math.sqrt(20)
    assert result.low_K == pytest.approx([0.5 - half_width] * 2)
    assert result.high_K == pytest.approx([0.5 + half_width] * 2)


def test_bins_of_one_sample_have_no_band() -> None:
    result = compare.BinnedMeans.from_samples(np.array([1.0, 2.0]), np.array([0.5, 0.25]), 2)
    assert np.isnan(result.low_K).all()
    assert len(compare.BinnedMeans.from_samples(np.full(3, NAN), np.ones(3), 2).x_K) == 0


UP, DOWN, FLAT, NONE = (
    Estimate(sum(ends) / 2, *ends, "8 targets")
    for ends in ((0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1), (math.nan, math.nan))
)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([UP, DOWN], "seen"),
        ([DOWN, FLAT, UP], "seen"),
        ([UP, UP], "not seen"),
        ([UP, FLAT], "not seen"),
        ([DOWN, DOWN], "not seen"),
        ([UP], "not tested"),
        ([], "not tested"),
        ([UP, DOWN, NONE], "not tested"),
    ],
)
def test_claim_up_and_down(steps: list[Any], verdict: str):
    claim = compare.claim_up_and_down(
        "It rises and falls.", [(f"step {i}", s) for i, s in enumerate(steps)]
    )
    assert claim.verdict == verdict
    assert all(f"step {i}" in claim.finding for i in range(len(steps)))
