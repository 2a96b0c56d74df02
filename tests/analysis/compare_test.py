"""Intervals, verdicts and rank correlations, by hand and by how often they hold; differences between recipes."""

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


def test_the_mean_has_students_interval():
    values = np.array([0.1, 0.2, 0.4, 0.3])
    found = compare.mean_estimate(values)
    low, high = scipy.stats.t.interval(0.95, 3, values.mean(), scipy.stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert found.over == "4 targets"


def test_one_value_has_no_interval_and_nan_is_no_value():
    assert math.isnan(compare.mean_estimate(np.array([0.5, np.nan])).low)
    assert compare.mean_estimate(np.array([0.5, np.nan])).value == 0.5
    assert math.isnan(compare.mean_estimate(np.array([])).value)


def test_a_difference_is_paired_or_welchs():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 2, 5)
    va, vb = a.var(ddof=1) / 8, b.var(ddof=1) / 5
    far = scipy.stats.t.ppf(0.975, (va + vb) ** 2 / (va**2 / 7 + vb**2 / 4)) * math.sqrt(va + vb)
    gap = a.mean() - b.mean()
    found = compare.difference(np.append(a, np.nan), b, paired=False)
    assert (found.low, found.high) == pytest.approx((gap - far, gap + far))
    paired = scipy.stats.ttest_rel(a[:5], b).confidence_interval()
    found = compare.difference(a[:5], b, paired=True)
    assert (found.low, found.high) == pytest.approx((paired.low, paired.high))
    assert math.isnan(compare.difference(a, b[:1], paired=False).low)
    same = compare.difference(np.ones(3), np.zeros(2), paired=False)
    assert math.isnan(same.low)


@pytest.mark.montecarlo
def test_intervals_of_differences_cover_what_they_should():
    rng, misses = np.random.default_rng(1), 0
    for _ in range(2000):
        found = compare.difference(rng.normal(0.3, 1, 5), rng.normal(0, 2, 9), paired=False)
        misses += not found.low <= 0.3 <= found.high
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
def test_above(low: float, high: float, verdict: str):
    found = compare.claim_greater("It grows.", "gain", estimate(low, high))
    assert (found.statement, found.verdict) == ("It grows.", verdict)
    assert ("the opposite" in found.finding) == (high < 0)


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
def test_near(low: float, high: float, verdict: str):
    assert compare.claim_equivalent("", "", estimate(low, high), 0.2).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("seen", "seen"), "seen"),
        (("seen", "not seen"), "not seen"),
        (("not tested", "not seen"), "not seen"),
        (("seen", "not tested"), "not tested"),
        ((), "not tested"),
    ],
)
def test_every(verdicts: tuple[compare.Verdict, ...], whole: str):
    parts = [compare.Claim("", v, v) for v in verdicts]
    assert compare.claim_all("All.", parts).verdict == whole


def test_ties_of_a_few_targets_are_no_interval():
    tied = compare.difference(np.array([0.013, 0.013]), np.zeros(2), paired=True)
    assert compare.claim_greater("", "x", tied).verdict == "not tested"
    equal = compare.difference(np.ones(2), np.ones(2), paired=True)
    assert compare.claim_equivalent("", "x", equal, 0.01).verdict == "seen"


def test_the_jackknife_of_a_mean_is_its_variance_by_groups():
    effect_G = np.random.default_rng(0).normal(size=JACKKNIFE_GROUPS)
    variance, df = compare.jackknife_variance(16, lambda g: float(np.delete(effect_G, g).mean()))
    assert variance == pytest.approx(effect_G.var(ddof=1) / JACKKNIFE_GROUPS)
    assert df == JACKKNIFE_GROUPS - 1


def test_a_difference_has_the_variance_of_targets_and_of_references(recipes: SweepResults):
    small, large = (recipes[f"chinchilla-{size}"] for size in ("10M", "302M"))
    found = compare.recipe_difference(large, small, 16)
    a, b = (attacks.read_attack(r, references=16).auc_T for r in (large, small))
    assert found.value == pytest.approx(float(a.mean() - b.mean()))
    assert found.over == "4 and 4 targets and their references"
    gap_G = [
        attacks.read_attack(large, references=16, group_left_out=g).auc_T.mean()
        - attacks.read_attack(small, references=16, group_left_out=g).auc_T.mean()
        for g in range(JACKKNIFE_GROUPS)
    ]
    parts = (a.var(ddof=1) / 4, 3), (b.var(ddof=1) / 4, 3), (7 * np.var(gap_G), 7)
    assert parts[2][0] > 0
    variance = sum(v for v, _ in parts)
    far = scipy.stats.t.ppf(0.975, variance**2 / sum(v**2 / n for v, n in parts)) * math.sqrt(
        variance
    )
    assert (found.high - found.low) / 2 == pytest.approx(far)


def test_groups_are_whole_pairs_and_take_turns(recipes: SweepResults):
    main, _ = attacks.with_equal_models([recipes["main"], recipes["distinct"]])
    whole = attacks.read_attack(main, references=16)
    parts = [
        attacks.read_attack(main, references=16, group_left_out=g) for g in range(JACKKNIFE_GROUPS)
    ]
    assert len({round(float(p.auc_T.mean()), 12) for p in parts}) == JACKKNIFE_GROUPS
    assert all(p.targets == whole.targets for p in parts)
    assert np.mean([p.auc_T.mean() for p in parts]) == pytest.approx(whole.auc_T.mean(), abs=0.05)
    with pytest.raises(io.MissingModelsError, match="too few for this attack"):
        attacks.read_attack(main, references=15, group_left_out=0)
    assert math.isnan(compare.jackknife_variance(15, lambda g: 0.5)[0])
    assert math.isnan(compare.jackknife_variance(16, lambda g: math.nan)[0])


def test_tables_without_the_jackknife_are_not_taken_for_too_few_references(recipes: SweepResults):
    # no figure needs the jackknife of these two recipes after three epochs
    main, epochs = recipes["main"], recipes["epochs-140M"]
    with pytest.raises(
        io.MissingModelsError,
        match=r"the tables do not contain lira_online with 14 references .* at step",
    ):
        compare.recipe_difference(epochs, main, 16, steps=(epochs.step_after(3), 0))


class Drawn:
    """A recipe of drawn losses: training lowers those of members, and nothing else differs."""

    def __init__(self, rng: np.random.Generator, references: int, first_seed: int):
        rows = range(first_seed, first_seed + references + 4)  # 4 targets
        self.member_MxN = np.array([subsets.member(row, 128, "balanced") for row in rows])
        self.loss_MxN = rng.normal(size=self.member_MxN.shape) - 0.5 * self.member_MxN
        self.references = references

    def attacked(self, references: int, step: int, group_left_out: int | None) -> Any:
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
def test_an_interval_of_recipes_that_are_alike_has_0_in_it(
    paired: bool, monkeypatch: pytest.MonkeyPatch
):
    """Of 100 draws a good interval misses 5, and 12 or more in 1 of 230."""
    monkeypatch.setattr(compare, "read_attack", lambda recipe, **how: recipe.attacked(**how))
    monkeypatch.setattr(compare, "same_targets", lambda new, old: paired)
    rng, missed = np.random.default_rng(0), 0
    for draw in range(100):
        new: Any = Drawn(rng, 16, 1_000 * draw)
        old: Any = Drawn(rng, 16, 1_000 * draw + (0 if paired else 500))
        found = compare.recipe_difference(new, old, 16)
        missed += not found.low <= 0 <= found.high
    assert missed < 12


def test_the_interval_is_fishers_with_the_deviation_for_ranks() -> None:
    x_N, y_N = np.array([1, 2, 3, 4, 5.0]), np.array([2, 1, 4, 3, 5.0])
    found = compare.RankCorrelation.from_samples(x_N, y_N)
    assert found is not None
    assert found.r == pytest.approx(1 - 6 * 4 / (5 * 24))  # by the squares of differences of ranks
    far = scipy.stats.norm.ppf(0.975) * math.sqrt((1 + 0.8**2 / 2) / 2)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.8) - far))
    assert found.high == pytest.approx(math.tanh(math.atanh(0.8) + far))
    assert str(found) == "0.80 [−0.46, 0.99]"


def test_infinite_numbers_have_ranks_and_missing_ones_are_left_out() -> None:
    x_N = np.array([-INF, 1, 2, INF, NAN, 3])
    y_N = np.array([0, 1, 2, 5, -77, NAN])
    found = compare.RankCorrelation.from_samples(x_N, y_N)
    assert found is not None
    assert (found.r, found.low, found.high) == (1, 1, 1)
    falling = compare.RankCorrelation.from_samples(-x_N, y_N)
    assert falling is not None
    assert falling.high == -1


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), ([1, 2, 3, 4, 5], [INF] * 5), ([1, 2, 3], [1, 2, 3])],
)
def test_without_variation_there_is_no_trend(x: list[float], y: list[float]) -> None:
    assert compare.RankCorrelation.from_samples(np.array(x, float), np.array(y, float)) is None


@pytest.mark.montecarlo
def test_noise_has_no_trend_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    found = [compare.RankCorrelation.from_samples(*rng.normal(size=(2, 50))) for _ in range(1000)]
    assert 25 <= sum(trend is None or not trend.low <= 0 <= trend.high for trend in found) <= 75


def test_bands_of_decisions_are_exact_and_of_shares_normal() -> None:
    x_N = np.arange(40.0)
    found = compare.BinnedMeans.from_samples(x_N, (x_N >= 20).astype(float), 2)
    assert found.x_K.tolist() == [9.5, 29.5]
    assert (found.y_K.tolist(), found.count_K.tolist()) == ([0, 1], [20, 20])
    assert found.high_K[0] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert found.low_K[1] == pytest.approx(0.025 ** (1 / 20))
    share_N = np.tile([0.25, 0.75], 20)
    found = compare.BinnedMeans.from_samples(x_N, share_N, 2)
    far = scipy.stats.norm.ppf(0.975) * share_N[:20].std(ddof=1) / math.sqrt(20)
    assert found.low_K == pytest.approx([0.5 - far] * 2)
    assert found.high_K == pytest.approx([0.5 + far] * 2)


def test_a_band_of_one_sample_is_not_known() -> None:
    found = compare.BinnedMeans.from_samples(np.array([1.0, 2.0]), np.array([0.5, 0.25]), 2)
    assert np.isnan(found.low_K).all()
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
def test_up_and_down_takes_a_step_of_each(steps: list[Any], verdict: str):
    claim = compare.claim_up_and_down(
        "It rises and falls.", [(f"step {i}", s) for i, s in enumerate(steps)]
    )
    assert claim.verdict == verdict
    assert all(f"step {i}" in claim.finding for i in range(len(steps)))
