"""Figure 21: mean and deviation, over the models that saw a sample, of how surely it is found."""

import math
import sys

import figures
import numpy as np
import pandas as pd
import style
import workdir
from drawn import Drawn
from matplotlib.axes import Axes
from measured import Recipes

TITLE = "Figure 21: True-positive probability of every sample"
PAPER = (
    "Over the models of 140M parameters that saw a sample, about 64, the probability with which it is called a member "
    "has a mean of 0.543 and a standard deviation of 0.143, averaged over 2^24 samples; many means are above 0.6 and "
    "many deviations above 0.2."
)
STATEMENTS = ()
_TABLE, _COLUMNS = "true_positive_probability.parquet", ("mean", "std", "targets")
_CURVE_BINS, _BINS = 400, 40


def draw(recipes: Recipes) -> Drawn:
    """Sorted means with a band of one deviation, and histograms of both."""
    columns = workdir.samples(recipes["fixed-140M"].folder, _COLUMNS, _TABLE)
    known_N = columns["targets"] > 1
    mean_S, std_S = columns["mean"][known_N], columns["std"][known_N]
    order_S = np.argsort(mean_S, kind="stable")
    parts = np.array_split(order_S, min(_CURVE_BINS, len(order_S)))
    at = np.cumsum([len(part) for part in parts]) - [len(part) / 2 for part in parts]
    curve = pd.DataFrame(
        {"panel": "a", "x": at}
        | {"y": [mean_S[p].mean() for p in parts], "std": [std_S[p].mean() for p in parts]}
    )
    histograms = [
        pd.DataFrame({"panel": panel, "x": edges[:-1], "y": count})
        for panel, x_S in (("b", mean_S), ("c", std_S))
        for count, edges in [np.histogram(x_S, _BINS)]
    ]
    figure = style.new_figure(12.4, 3.9)
    left, middle, right = figure.subplots(1, 3)
    _draw_curve(left, curve)
    _draw_histogram(middle, mean_S, "Mean over the models that saw the sample", "(b) Means")
    _draw_histogram(right, std_S, "Deviation over the models that saw it", "(c) Deviations")
    models = columns["targets"][known_N]
    return Drawn(
        data=pd.concat([curve, *histograms]),
        figure=figure,
        ours={
            "mean": (float(mean_S.mean()), math.nan),
            "std": (float(std_S.mean()), math.nan),
        },
        notes=(
            f"Each of the references is attacked with all others; a sample is in {models.min()} to {models.max()} of "
            f"them. {int((~known_N).sum()):,} samples are left out, which are in fewer than two.",
            "All samples share their models, so that these averages have no interval here, and no verdict.",
            f"(a) has a point for every {len(mean_S) / len(parts):.3g} samples, with the mean of their deviations.",
        ),
    )


def _draw_curve(axes: Axes, curve: pd.DataFrame) -> None:
    low, high = (np.clip(curve["y"] + sign * curve["std"], 0, 1) for sign in (-1, 1))
    axes.fill_between(
        curve["x"], low, high, color=style.SKY, alpha=0.5, linewidth=0, label="± 1 STD"
    )
    axes.plot(curve["x"], curve["y"], color=style.BLUE, label="mean")
    axes.axhline(0.5, color=style.GREY, linestyle="--", linewidth=1)
    axes.set(
        xlabel="Samples, sorted by their means",
        ylabel="Probability of membership",
        title="(a) Each sample",
        ylim=(0, 1),
    )
    axes.legend(loc="upper left")


def _draw_histogram(axes: Axes, x_S: np.ndarray, label: str, title: str) -> None:
    axes.hist(x_S, _BINS, color=style.BLUE, alpha=0.8)
    average = float(x_S.mean())
    axes.axvline(average, color=style.VERMILLION, linestyle="--", label=f"average {average:.3f}")
    axes.set(xlabel=label, ylabel="Samples", title=title)
    axes.legend(loc="upper right")


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
