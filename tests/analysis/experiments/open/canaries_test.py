"""The figure of canaries, drawn from scores of targets that are made by hand."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.experiments.open import canaries
from analysis.io import RecipeResults, Unavailable
from lm_mia import config, stats
from lm_mia.attacks.spec import Variant

TARGETS, CANARIES, RANDOM = 3, 160, 80
SHIFT = {"lira_online": (3.0, 1.0), "loss": (2.0, 0.2)}
"""Attack -> mean score of members minus that of non-members, on random tokens and on natural text."""


def scores_of(
    recipe: RecipeResults, variant: Variant, part: int | None = None
) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yields scores with unit variance in which natural canaries come first."""
    for target in range(TARGETS):
        member_N = np.random.default_rng(target).random(CANARIES) < 0.5
        rng = np.random.default_rng([target, part or 0, len(variant.attack)])
        shift_N = np.where(np.arange(CANARIES) >= CANARIES - RANDOM, *SHIFT[variant.attack])
        yield None, member_N, rng.normal(size=CANARIES) + shift_N * member_N


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipeResults:
    monkeypatch.setattr(canaries.attacks, "read_sample_scores", scores_of)
    monkeypatch.setattr(canaries.attacks, "common_references", lambda recipes: 32)
    c = config.Config(
        population=config.Population(samples=1000, random_samples=RANDOM),
        train=config.Train(subset="bernoulli", canaries=CANARIES),
    )
    return RecipeResults(tmp_path, c, ("canaries",), tmp_path)


def test_kinds_are_the_first_and_the_last_canaries(recipe: RecipeResults):
    kinds = canaries.read_kinds(recipe, "lira_online")
    [(_, member_N, score_N), *_] = scores_of(recipe, Variant("lira_online", 32))
    assert kinds["natural"].score_R1xTxN.shape == (15, TARGETS, 80)
    np.testing.assert_array_equal(kinds["natural"].score_R1xTxN[0, 0], score_N[:80])
    np.testing.assert_array_equal(kinds["random"].score_R1xTxN[0, 0], score_N[80:])
    np.testing.assert_array_equal(kinds["random"].member_TxN[0], member_N[80:])
    assert canaries.read_kinds(recipe, "loss")["random"].score_R1xTxN.shape == (1, TARGETS, 80)
    auc = canaries.over_targets(kinds["random"], canaries.auc)
    expected = [
        stats.auc(score_N[80:], member_N[80:]).auc_T[0]
        for _, member_N, score_N in scores_of(recipe, Variant("lira_online", 32))
    ]
    assert auc.value == pytest.approx(np.mean(expected))
    assert auc.over.startswith("3 targets")
    assert "canaries" in auc.over
    assert auc.not_covered == ()


def test_claims_of_easier_random_canaries_are_seen(recipe: RecipeResults):
    recipes: Any = {"canaries": recipe}
    result = canaries.draw_fig01(recipes)
    assert [claim.statement for claim in result.claims] == [*canaries.FIG01_STATEMENTS]
    # Halves of 80 canaries have fewer than the 20 non-members that a rate of 5% needs.
    verdicts = ["supported", "supported", "not tested", "supported for these models only"]
    assert [claim.verdict for claim in result.claims] == verdicts
    epsilon = result.data.query("panel == 'd'").groupby("series")["y"].mean()
    assert epsilon["lira_online, random"] > epsilon["lira_online, natural"] + 0.5


def test_the_difference_has_a_sign(recipe: RecipeResults, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SHIFT, "lira_online", (0.5, 3.0))
    kinds = canaries.read_kinds(recipe, "lira_online")
    random, natural = (canaries.over_targets(kinds[k], canaries.auc) for k in canaries.KINDS)
    assert (random - natural).estimate().high < 0


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("population", {"random_samples": 0}, "of one kind"),
        ("population", {"random_samples": 200}, "of one kind"),
        ("train", {"subset": "exact"}, "train.subset=bernoulli"),
    ],
)
def test_other_recipes_are_refused(
    recipe: RecipeResults, section: str, changes: dict[str, Any], message: str
):
    changed = dataclasses.replace(getattr(recipe.config, section), **changes)
    c = dataclasses.replace(recipe.config, **{section: changed})
    recipes: Any = {"canaries": dataclasses.replace(recipe, config=c)}
    with pytest.raises(Unavailable, match=message):
        canaries.draw_fig01(recipes)
