"""Figures of single tokens, drawn from the tables of a store in which training raises each token by 0.5 nats."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic_tokens import REFERENCES, write_token_tables
from views import recipe_of_files

from analysis.experiments.open import tokens
from analysis.io import SweepResults, Unavailable


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    folder = tmp_path_factory.mktemp("recipe")
    write_token_tables(folder / "tables")
    return SweepResults([recipe_of_files(folder, tokens.RECIPE)])


def test_extraction_of_random_samples(recipes: SweepResults):
    drawn = tokens.draw_fig06(recipes)
    assert tuple(claim.statement for claim in drawn.claims) == tokens.FIG06_STATEMENTS
    table = pd.read_csv(recipes[tokens.RECIPE].recipe_dir / "tables" / tokens.CORRELATIONS)
    rows = table[(table["models"] == 0) & (table["samples"] == 0)]
    value = rows.set_index(["statistic", "class"])["value"]
    level, gain, difference = (claim.estimate for claim in drawn.claims)
    assert level
    assert gain
    assert difference
    assert level.value == pytest.approx(value["score and log_p", "all"])
    assert gain.value == pytest.approx(value["score and gain", "members"])
    expected = value["score and gain", "members"] - value["score and gain", "nonmembers"]
    assert difference.value == pytest.approx(expected)
    assert gain.not_covered == ()
    # Training on a sample raises the four tokens of its suffix by 0.5 nats each.
    assert 1.5 < value["gain_nats", "members"] < 2.5
    assert drawn.claims[1].verdict == "supported"
    assert drawn.data["model"].nunique() == 4


def test_tokens_that_carry_membership(recipes: SweepResults):
    drawn = tokens.draw_fig07(recipes)
    assert tuple(claim.statement for claim in drawn.claims) == tokens.FIG07_STATEMENTS
    gap = drawn.data[(drawn.data["statistic"] == "gap_nats") & (drawn.data["kind"] == "position")]
    assert gap["y"].between(0.3, 0.7).all()
    table = pd.read_csv(recipes[tokens.RECIPE].recipe_dir / "tables" / tokens.MEMBERSHIP)
    rows = table[(table["models"] == 0) & (table["samples"] == 0) & (table["kind"] == "frequency")]
    of_bin = rows.set_index("bin")["auc"]
    [rarity, *_] = drawn.claims
    expected = of_bin[of_bin.index < 4].mean() - of_bin[of_bin.index >= 4].mean()
    assert rarity.estimate is not None
    assert rarity.estimate.value == pytest.approx(expected)
    assert str(REFERENCES) in drawn.notes[0]


def test_missing_tables(recipes: SweepResults, tmp_path: Path):
    del recipes
    made = SweepResults([recipe_of_files(tmp_path, tokens.RECIPE)])
    for draw in (tokens.draw_fig06, tokens.draw_fig07):
        with pytest.raises(Unavailable, match=r"score\.token_samples is empty"):
            draw(made)
