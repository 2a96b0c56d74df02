"""Figure 15: validation loss of each size over its training, and LiRA by the settings of the optimizer."""

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise

import figures
import pandas as pd
import series
import style
import training
import workdir
from claims import Claim, above, difference, every, near, untested
from comparisons import compared
from drawn import Drawn
from matplotlib.axes import Axes
from measured import Recipe, Recipes, attacked, size_of

from lm_mia import points

TITLE = "Figure 15: Validation loss, and LiRA by optimizer settings"
PAPER = (
    "Larger models on their compute-optimal data have lower validation losses. Of 140M models of 7M samples the AUC "
    "is 0.675 with the cosine schedule, 0.676 with a linear one, 0.673 without weight decay and 0.660 without "
    "clipping: the differences are small."
)
STATEMENTS = (
    "Every step up in size ends with a lower validation loss.",
    "The AUC hardly depends on these settings of the optimizer.",
)
SCHEDULES: dict[str, tuple[str, str, style.Dash]] = {
    "main": ("Cosine", style.BLUE, "-"),
    "schedule-linear": ("Linear", style.ORANGE, "--"),
    "schedule-nodecay": ("Cosine, no weight decay", style.GREEN, "-."),
    "schedule-noclip": ("Cosine, no clipping", style.VERMILLION, "--"),
}
MARGIN = 0.03


def draw(recipes: Recipes) -> Drawn:
    """(a) Mean loss over rows with a band, a line a size. (b) Curves."""
    sizes = series.alike([recipe for _, recipe in recipes.family("chinchilla")])
    losses = {recipe: validation(recipe) for recipe in sizes}
    losses = {recipe: loss for recipe, loss in losses.items() if len(loss)}
    some = series.alike([recipes[name] for name in SCHEDULES])
    count = series.references(some)
    found = [attacked(recipe, references=count) for recipe in some]
    lines = [
        series.Line(label, one, color, dash)
        for (label, color, dash), one in zip(SCHEDULES.values(), found, strict=True)
    ]
    figure = style.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    for (recipe, loss), shade in zip(losses.items(), style.shades(len(losses)), strict=True):
        _draw_loss(left, loss, f"{size_of(recipe)}, {recipe.samples:,} samples", shade)
    left.set(xlabel="Share of training", ylabel="Validation loss (nats a token)")
    left.set_title("(a) Compute-optimal training")
    left.legend(fontsize=8.5)
    series.draw_roc(right, lines, f"(b) LiRA at {size_of(some[0])}")
    table = [frame.assign(panel="a", series=size_of(recipe)) for recipe, frame in losses.items()]
    return Drawn(
        data=pd.concat([*table, *(line.data().assign(panel="b") for line in lines)]),
        figure=figure,
        claims=(_lower(losses), _same(some, count)),
        ours={name: series.auc_of(one) for name, one in zip(SCHEDULES, found, strict=True)},
        notes=(
            f"Attacks use {count} references. Bands of (a) are one standard deviation over rows; each size is "
            "validated on samples of its own, whose choice is not in the interval. "
            f"Sizes with validation losses: {len(losses)} of {len(sizes)}.",
            series.left_out(lines),
        ),
    )


def validation(recipe: Recipe) -> pd.DataFrame:
    """Rows (row, share, loss_nats): the validation losses of references and targets over their training, if any."""
    references, targets, _ = recipe.rows
    names = {str(row) for row in (*references, *targets)}
    events = [
        e
        for e in workdir.events(recipe.folder, "validation")
        if e.get("recipe") == recipe.path.name and e.get("row") in names
    ]
    total = points.total_steps(recipe.config)
    found = [
        {"row": row, "share": step / total, "loss_nats": loss}
        for row, (_, curve) in training.curves(events, "validation_loss_nats").items()
        for step, loss in sorted(curve.items())
    ]
    return pd.DataFrame(found, columns=["row", "share", "loss_nats"])


def _draw_loss(axes: Axes, loss: pd.DataFrame, label: str, color: str | tuple[float, ...]) -> None:
    by_share = loss.groupby("share")["loss_nats"]
    mean_K, std_K = by_share.mean(), by_share.std(ddof=0)
    axes.plot(mean_K.index, mean_K, color=color, label=label, marker="o", markersize=3)
    axes.fill_between(
        mean_K.index, mean_K - std_K, mean_K + std_K, color=color, alpha=0.2, linewidth=0
    )


def _lower(losses: Mapping[Recipe, pd.DataFrame]) -> Claim:
    """Every size against the next; rows are of different data, so that they are not paired."""
    if len(losses) < 2:
        return untested(STATEMENTS[0], f"{len(losses)} sizes have validation losses")
    ends = [
        (size_of(recipe), loss.loc[loss["share"] == 1, "loss_nats"].to_numpy())
        for recipe, loss in losses.items()
    ]
    steps = [
        above(
            "",
            f"validation loss at {small} less at {large}",
            difference(x_R, y_R, paired=False, over="rows"),
        )
        for (small, x_R), (large, y_R) in pairwise(ends)
    ]
    return every(STATEMENTS[0], steps)


def _same(some: Sequence[Recipe], count: int) -> Claim:
    _, *labels = (label for label, *_ in SCHEDULES.values())
    parts = [
        near("", f"AUC, {label.lower()}, less cosine", compared(recipe, some[0], count), MARGIN)
        for label, recipe in zip(labels, some[1:], strict=True)
    ]
    return every(STATEMENTS[1], parts)


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
