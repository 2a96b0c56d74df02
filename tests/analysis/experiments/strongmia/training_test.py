"""What the training figure reads from the log, and what it ignores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from synthetic_workdir import OTHER_RECIPE, RECIPE, copy_workdir, with_tables, write_workdir

from analysis import io
from analysis.experiments.strongmia import training
from analysis.io import RecipeResults
from lm_mia import events


def test_training_curves_show_the_last_training() -> None:
    def curve(*steps: int) -> dict[int, float]:
        common = {"model": "a", "role": "replica"}
        lines = [common | {"step": step, "loss_nats": float(i)} for i, step in enumerate(steps)]
        return training.curves([*lines, {"model": "a"}])["a"][1]

    assert curve(0, 5, 10, 0, 5) == {0: 3.0, 5: 4.0}
    assert curve(0, 5, 10, 5, 10, 15) == {0: 0.0, 5: 3.0, 10: 4.0, 15: 5.0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=100, attacks=("lira_online", "loss"), bootstraps=0)


@pytest.fixture
def copied(finished: RecipeResults, tmp_path: Path) -> RecipeResults:
    """A separate copy, whose log can be extended."""
    return copy_workdir(finished, tmp_path / "demo")


def log(recipe: RecipeResults, *added: dict[str, Any]) -> None:
    for event in added:
        events.append(recipe.recipe_dir.parents[1], event)


def validation(model: str, step: int, value: float, recipe: str = RECIPE) -> dict[str, Any]:
    event = {
        "event": "validation",
        "model": model,
        "role": model.partition("-")[0],
        "recipe": recipe,
    }
    return event | {"step": step, "steps": 16, "validation_loss_nats": value}


def thin_lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """Returns (steps, losses) of the line of each model, without the dotted lines at the ends of epochs."""
    lines = [line for line in axes.get_lines() if line.get_linestyle() != ":"]
    return [([*map(float, x.get_xdata())], [*map(float, x.get_ydata())]) for x in lines]  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_figure_without_validation_has_one_panel(finished: RecipeResults) -> None:
    figure = training.recipe_figures(finished)["training"]
    assert figure is not None
    [axes] = figure.axes
    assert axes.get_ylabel().startswith("Training loss")
    assert len(thin_lines(axes)) == 32
    assert training.read_log(finished).validation == {}


def test_validation_losses_have_a_second_panel(copied: RecipeResults) -> None:
    first, second, replica = "reference-00", "reference-01", "replica-15"
    log(
        copied,
        *(validation(first, step, 9.0) for step in (4, 8, 12)),
        validation(first, 8, 4.5),
        validation(first, 16, 3.5),  # resumed from step 4
        validation(second, 8, 4.25),
        validation(second, 16, 3.25),
        validation(replica, 16, 3.0),
        validation("reference-99", 16, 77.0),  # not a model of the tables
        validation(second, 12, 77.0, OTHER_RECIPE),
        {"event": "validation", "model": second, "recipe": RECIPE, "step": 16},  # incomplete
    )
    read = training.read_log(copied)
    assert read.validation == {
        first: ("reference", {4: 9.0, 8: 4.5, 16: 3.5}),
        second: ("reference", {8: 4.25, 16: 3.25}),
        replica: ("replica", {16: 3.0}),
    }
    figure = training.recipe_figures(copied)["training"]
    assert figure is not None
    train_axes, axes = figure.axes
    labels = [shown.get_ylabel() for shown in (train_axes, axes)]
    assert [label.partition(" ")[0] for label in labels] == ["Training", "Validation"]
    assert len(thin_lines(train_axes)) == 32
    assert thin_lines(axes) == [
        ([4, 8, 16], [9.0, 4.5, 3.5]),
        ([8, 16], [4.25, 3.25]),
        ([16], [3.0]),
    ]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "References (2)",
        "Replicas (1)",
    ]
    assert axes.get_ylim() == train_axes.get_ylim()  # same scale
    assert axes.get_xlim() == train_axes.get_xlim()


def test_targets_have_curves_without_replicas(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"replicas": 0, "targets": 1, "attacks": ("lira_online", "loss")}
    recipe = write_workdir(tmp_path / "demo", samples=100, bootstraps=0, **settings)
    role_of = {name: role for name, (role, _) in training.read_log(recipe).curves.items()}
    assert role_of.pop("reference-00") == "target"
    assert role_of
    assert {*role_of.values()} == {"reference"}
    figure = training.recipe_figures(recipe)["training"]
    assert figure is not None
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert "Targets (1)" in [text.get_text() for text in legend.get_texts()]
    assert {"first_loss", "member_loss"} <= {*training.medians(recipe)}


def test_medians_leave_out_models_without_scores_at_the_end(finished: RecipeResults) -> None:
    changed = with_tables(finished, models=lambda table: table[table["model"] != "reference-00"])
    means = io.read_mean_losses(changed)
    names = [f"reference-{i:02}" for i in range(1, 16)] + [f"replica-{i:02}" for i in range(16)]
    expected = means.loc[names, "member_loss_nats"].median()
    assert training.medians(changed)["member_loss"] == pytest.approx(expected)


def test_distance_of_in_and_out_losses_by_hand() -> None:
    member_Mx3 = np.array([[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]], bool)
    loss_M = np.array([1.0, 3.0, 5.0, 7.0])
    # The class means are 2 and 6; the pooled variance is (2 + 2) / 2.
    loss_Mx3 = np.stack([loss_M, 2 * loss_M + 1, -loss_M], axis=1)
    by_hand = 4 / np.sqrt(2)
    found = training.in_out_distance(loss_Mx3, member_Mx3)
    assert found == pytest.approx((by_hand + by_hand - by_hand) / 3)
    assert np.isnan(training.in_out_distance(loss_Mx3[1:], member_Mx3[1:]))
    assert np.isnan(training.in_out_distance(np.ones((4, 3)), member_Mx3))


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "supported"), (2.0, "contradicted"), (0.5, "undecided")]
)
def test_shift_of_the_distance_with_the_size(shift: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    member_Rx3 = np.arange(401)[:, None] % 2 == np.zeros((1, 3))
    sizes = []
    for name, distance in (("10M", 1.0), ("302M", 1.0 + shift)):
        loss_Rx3 = rng.normal(size=(401, 3)) - distance * member_Rx3
        sizes.append(training.Losses(name, loss_Rx3, member_Rx3, np.zeros((401, 15))))
    assert training._claim_distance(sizes).verdict == verdict
    assert training._claim_distance(sizes[:1]).verdict == "not tested"
