"""Variances over models, references and samples: exact values, crossed noise and coverage."""

import math
import re

import numpy as np
import pytest

from analysis import attacks
from analysis.claims import jackknife
from analysis.claims.jackknife import Jackknife
from analysis.io import SweepResults, Unavailable
from lm_mia import stats
from lm_mia.attacks import spec
from lm_mia.attacks.requests import reference_parts
from lm_mia.attacks.spec import Variant
from lm_mia.stats.jackknife import _variance_of

HALVES = [sorted(spec.half_groups(h)) for h in range(spec.NUM_HALVES)]


def mean_of_cells(value_TxRxG: np.ndarray) -> Jackknife:
    """Returns the mean over targets, 8 groups of references and 8 groups of samples."""
    axes = [[*range(8)], *HALVES]
    value_TxR1xH1 = np.array(
        [[[cell_RxG[np.ix_(r, g)].mean() for g in axes] for r in axes] for cell_RxG in value_TxRxG]
    )
    return Jackknife.from_targets(value_TxR1xH1, "cells")


def test_halves_of_samples_are_those_of_references():
    assert [np.flatnonzero(half_G).tolist() for half_G in stats.HALVES_HxG] == HALVES


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_factor_has_the_variance_of_a_mean(axis: int):
    effect = np.random.default_rng(axis).normal(size=8)
    value_TxRxG = np.zeros((8, 8, 8)) + np.moveaxis(effect[:, None, None], 0, axis)
    term = mean_of_cells(value_TxRxG).variance()
    assert term.variance == pytest.approx(effect.var(ddof=1) / 8)
    assert term.degrees_of_freedom == pytest.approx(7)
    result = mean_of_cells(value_TxRxG).estimate()
    assert result.value == pytest.approx(effect.mean())
    assert result.standard_error == pytest.approx(effect.std(ddof=1) / math.sqrt(8))


@pytest.mark.slow
def test_factors_and_their_interactions_count_once():
    rng, total, variances = np.random.default_rng(0), [], []
    for _ in range(300):
        value_TxRxG = rng.normal(size=(8, 8, 8)) + rng.normal(size=(8, 8, 1))
        value_TxRxG += 0.5 * rng.normal(size=(8, 1, 1)) + 0.3 * rng.normal(size=(1, 1, 8))
        result = mean_of_cells(value_TxRxG)
        total.append(result.value)
        signed = sum(
            (-1) ** (len(axes) + 1) * _variance_of(result.value_A1xR1xH1, axes)[0]
            for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
        )
        variances.append((signed, result.variance().variance))
    truth = 1 / 512 + 1 / 64 + 0.25 / 8 + 0.09 / 8
    signed, used = np.mean(variances, axis=0)
    assert signed == pytest.approx(truth, rel=0.06)
    assert truth * 0.97 < used < 1.25 * truth  # the largest term is a lower bound
    assert np.var(total) == pytest.approx(truth, rel=0.25)


def test_fixed_axes_are_not_covered():
    value = mean_of_cells(np.random.default_rng(0).normal(size=(4, 8, 8)))
    fixed = Jackknife(value.value_A1xR1xH1[:, :1], "x", ("the references",))
    gap = value - fixed
    assert gap.value_A1xR1xH1.shape == (5, 1, 15)
    assert (gap.value, gap.not_covered) == (0, ("the references",))
    assert (fixed - value).not_covered == ("the references",)
    assert gap.estimate().low == 0


def test_scaled_numbers_have_scaled_errors():
    value = mean_of_cells(np.random.default_rng(0).normal(size=(4, 8, 8)))
    result, scaled = value.estimate(), value.scaled(-2, 5).estimate()
    assert scaled.value == pytest.approx(5 - 2 * result.value)
    assert scaled.standard_error == pytest.approx(2 * result.standard_error)


def test_a_single_target_has_no_interval():
    single = mean_of_cells(np.random.default_rng(0).normal(size=(1, 8, 8)))
    assert not single.estimate().has_interval
    assert not math.isnan(single.value)


def test_spread_of_targets_by_hand():
    value_Tx1x1 = np.array([1.0, 2.0, 6.0]).reshape(3, 1, 1)
    spread = Jackknife.from_targets(value_Tx1x1, "targets", summary=jackknife.log_std)
    # Without one target, the standard deviation of the other two is their distance divided by sqrt(2).
    std_A1 = [math.sqrt(7), 4 / math.sqrt(2), 5 / math.sqrt(2), 1 / math.sqrt(2)]
    np.testing.assert_allclose(spread.value_A1xR1xH1.ravel(), np.log(std_A1))
    relative = Jackknife.from_targets(value_Tx1x1, "targets", summary=jackknife.log_relative_std)
    mean_A1 = [3, 4, 3.5, 1.5]
    np.testing.assert_allclose(relative.value_A1xR1xH1.ravel(), np.log(np.divide(std_A1, mean_A1)))


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [1.0]])
def test_spread_without_an_interval(values: list[float]):
    value_Tx1x1 = np.array(values).reshape(-1, 1, 1)
    spread = Jackknife.from_targets(value_Tx1x1, "targets", summary=jackknife.log_std)
    assert not spread.estimate().has_interval


def test_intervals_of_spreads_miss_as_often_as_they_should():
    rng, missed = np.random.default_rng(0), []
    for _ in range(1000):
        first, second = (
            Jackknife.from_targets(x_Tx1x1, "targets", summary=jackknife.log_std)
            for x_Tx1x1 in rng.normal(size=(2, 8, 1, 1))
        )
        gap = (first - second).estimate()
        missed.append(not gap.low < 0 < gap.high)
    assert 0.03 < np.mean(missed) < 0.08


def test_sums_and_ratios_are_computed_part_by_part():
    rng = np.random.default_rng(0)
    first, second = (mean_of_cells(2 + rng.random((4, 8, 8))) for _ in range(2))
    ratio = (first + second) / second
    expected = 1 + first.value_A1xR1xH1 / second.value_A1xR1xH1
    np.testing.assert_allclose(ratio.value_A1xR1xH1, expected)
    zero = Jackknife(np.zeros((5, 15, 15)), "cells")
    assert not (first / zero).estimate().has_interval


def test_independent_numbers_add_their_variances():
    rng = np.random.default_rng(0)
    new, old = (mean_of_cells(rng.normal(size=(targets, 8, 8))) for targets in (4, 6))
    result = jackknife.independent_difference(new, old)
    assert result.value == new.value - old.value
    variance = new.variance().variance + old.variance().variance
    assert result.standard_error == pytest.approx(math.sqrt(variance))
    assert result.over == f"{new.over} of each recipe"


def numbered(over: str) -> list[tuple[str, ...]]:
    """Returns each number of a description of what an interval covers, with what it counts."""
    return re.findall(r"(\d+) (\w+)", over)


def mean_aucs(attack: attacks.JackknifedAttack) -> np.ndarray:
    """Returns the mean AUC over targets with each part of the references, on all samples."""
    of_parts = attack.rates[(attack.rates["part"] > 0) & (attack.rates["half"] == 0)]
    return of_parts.groupby("part")["auc"].mean().to_numpy()


def test_recipe_difference_covers_targets_references_and_samples(recipes: SweepResults):
    small, large = (recipes[f"chinchilla-{size}"] for size in ("10M", "302M"))
    result = attacks.recipe_difference(large, small, 16)
    a, b = (attacks.read_attack(r, Variant(references=16)).auc_T for r in (large, small))
    assert result.value == pytest.approx(float(a.mean() - b.mean()))
    assert numbered(result.over) == [("4", "targets"), ("16", "references")]
    assert result.over.endswith("of each recipe")
    assert result.not_covered == ()
    half = [mean_aucs(attacks.read_jackknife(r, Variant(references=16))) for r in (large, small)]
    assert [len(auc_P) for auc_P in half] == [14, 14]
    references = [(((x[::2] - x[1::2]) / 2) ** 2).mean() for x in half]
    targets = [x.var(ddof=1) / 4 for x in (a, b)]
    least = sum(max(pair) for pair in zip(references, targets, strict=True))
    assert result.standard_error**2 >= least * (1 - 1e-9)
    paired = attacks.recipe_difference(recipes["fixed-302M"], recipes["fixed-10M"], 16)
    assert paired.over + " of each recipe" == result.over


def test_few_references_are_used_in_disjoint_sets(recipes: SweepResults):
    main = recipes["main"]  # 24 references, so that each of 8 sets has 2
    attack = attacks.read_jackknife(main, Variant(references=2, is_count_study=True))
    sets = reference_parts(main.attackable, Variant("lira_online", 2, is_count_study=True))
    assert sorted(n for s in sets for n in s.references) == [*range(4, 20)]
    assert attack.auc.value == pytest.approx(mean_aucs(attack).mean())
    assert numbered(attack.auc.over) == [("4", "targets"), ("8", "sets"), ("2", "references")]
    assert attack.not_covered == ()
    few = attacks.read_jackknife(main, Variant(references=8, is_count_study=True))
    assert (few.not_covered, few.num_parts) == (("the references",), 0)
    assert (few.auc - attack.auc).not_covered == ("the references",)
    assert reference_parts(main.attackable, Variant("lira_online", 8)) == ()


def test_missing_parts_are_reported(recipes: SweepResults):
    # no figure needs intervals of the offline attack on this recipe
    with pytest.raises(Unavailable, match="results of lira_offline"):
        attacks.read_jackknife(recipes["main"], Variant("lira_offline", 16))
    # Figure 24 draws the attack on replicas, but takes its interval from another table.
    with pytest.raises(Unavailable, match=r"lira_online\b.*\bhalves"):
        attacks.read_jackknife(recipes["flip-302M"], Variant(references=16, replicas=True))
