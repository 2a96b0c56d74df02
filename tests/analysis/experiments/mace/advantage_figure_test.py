"""The figure of the membership advantage."""

import math

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from synthetic_workdir import with_tables, write_workdir

from analysis.experiments.mace import advantage
from analysis.io import RecipeResults, Record


def row(
    attack: str = "lira_online", prior: float = 0.5, held_out: float = 0.4, **changes: float
) -> Record:
    result: Record = {
        "attack": attack,
        "references": 8,
        "prior": prior,
        "baseline": abs(1 - 2 * prior),
    }
    result |= {
        "held_out": held_out,
        "held_out_low": held_out - 0.1,
        "held_out_high": held_out + 0.1,
    }
    result |= {"plug_in": held_out + 0.05, "pointwise_low": 0.1, "pointwise_high": 0.8}
    result |= {"held_out_mean": held_out, "held_out_std": 0.01, "plug_in_mean": held_out}
    result |= {"plug_in_std": 0.01, "shuffled_held_out": -0.0001, "shuffled_plug_in": 0.1}
    return result | {"bins": 9, "targets": 4, "left_out": 0} | changes


def test_figure_has_a_panel_per_prior_and_two_bars_per_attack() -> None:
    by_prior = {
        prior: [row(prior=prior), row("loss", prior, 0.05, held_out_low=math.nan)]
        for prior in (0.5, 0.1, 0.2)
    }
    figure = advantage.draw(by_prior)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "Prior 50%",
        "Prior 10%",
        "Prior 20%",
    ]
    for axes, prior in zip(panels, by_prior, strict=True):
        widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert widths == pytest.approx([0.4, 0.45, 0.05, 0.1])
        lines = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert [np.asarray(line.get_xdata())[0] for line in lines] == [abs(1 - 2 * prior)]
        assert len(axes.collections) == 1  # One interval; the other is missing.
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["LiRA", "Loss"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    settings = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    return write_workdir(tmp_path_factory.mktemp("w"), samples=120, **settings)


@pytest.mark.slow
def test_a_recipe_without_numbers_has_no_figure(recipe: RecipeResults) -> None:
    assert advantage.recipe_figures(recipe)["advantage"] is not None
    changed = with_tables(recipe, advantage=lambda table: table.assign(held_out=math.nan))
    assert advantage.read(changed) == {}
    assert advantage.recipe_figures(changed) == {"advantage": None}
