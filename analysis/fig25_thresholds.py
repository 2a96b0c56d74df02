"""Figure 25: TPR and decision thresholds of replicas at fixed false positive rates, for two sizes."""

import math
import sys
from pathlib import Path

import figures
import pandas as pd
import series
import sheets
import style
import workdir
from claims import Claim, above, difference, every, untested
from drawn import Drawn
from fig24_mean_roc import SIZES, titled
from findings import spread
from matplotlib.axes import Axes
from measured import Recipes
from workdir import percent

from lm_mia.stats import lira

TITLE = "Figure 25: TPR and decision thresholds at fixed FPR"
PAPER = (
    "The TPR at a fixed FPR hardly varies between replicas. The threshold is very high and varies little at very low "
    "FPRs; as the FPR grows, thresholds of replicas that are equally good differ considerably."
)
STATEMENTS = ("At higher FPRs the thresholds of replicas vary more.",)
_HIGH = 0.1


def draw(recipes: Recipes) -> Drawn:
    """A row a size: mean TPR ± STD, and range and middle half of the thresholds, as posteriors."""
    figure = style.new_figure(9.6, 6.8)
    grid = figure.subplots(2, 2, sharex=True, sharey="col")
    data, parts, replicas = [], [], []
    for (left, right), size in zip(grid, SIZES, strict=True):
        recipe = recipes[f"flip-{size}"]
        threshold_TxF = _thresholds(recipe.folder)
        rates = pd.DataFrame(sheets.error_rates(recipe.folder)).set_index("fpr")
        rows = rates[["tpr_mean", "tpr_std"]].join(_summary(threshold_TxF), how="inner")
        _panels(left, right, rows)
        left.set_title(titled(size, recipe))
        data.append(rows.reset_index().assign(size=size))
        parts.append(_varies(size, threshold_TxF, series.lowest_rate(recipe)))
        replicas.append(len(threshold_TxF))
    for axes in grid[-1]:
        axes.set_xlabel("False positive rate")
    for axes in grid[0]:
        axes.legend(loc="upper left" if axes is grid[0, 0] else "lower left")
    return Drawn(
        data=pd.concat(data),
        figure=figure,
        claims=(every(STATEMENTS[0], parts),),
        notes=(
            *dict.fromkeys(map(spread, replicas)),
            "A threshold is drawn as the posterior of a sample whose score is the threshold.",
        ),
    )


def _thresholds(folder: Path) -> pd.DataFrame:
    """Posterior at the threshold: a row a replica, a column an FPR; without FPR 1, where all are called members."""
    rows = pd.DataFrame(workdir.table(folder, "thresholds.csv", ("order_seed", "fpr", "threshold")))
    rows["threshold"] = lira.posterior(rows["threshold"].to_numpy(float))
    return rows[rows["fpr"] < 1].pivot(index="order_seed", columns="fpr", values="threshold")


def _summary(threshold_TxF: pd.DataFrame) -> pd.DataFrame:
    quantiles = threshold_TxF.quantile([0, 0.25, 0.5, 0.75, 1]).T
    return quantiles.set_axis([f"threshold_{q}" for q in ("min", "25", "50", "75", "max")], axis=1)


def _panels(left: Axes, right: Axes, rows: pd.DataFrame) -> None:
    fpr = rows.index.to_numpy(float)
    left.errorbar(
        fpr,
        rows["tpr_mean"],
        rows["tpr_std"],
        color=style.BLUE,
        marker="o",
        markersize=4,
        capsize=3,
        label="Mean ± STD",
    )
    low, high = rows["threshold_min"], rows["threshold_max"]
    right.vlines(fpr, low, high, color=style.GREY, linewidth=1.4, label="Range")
    low, high = rows["threshold_25"], rows["threshold_75"]
    right.vlines(fpr, low, high, color=style.SKY, linewidth=7, label="Middle half")
    right.plot(fpr, rows["threshold_50"], "_", color=style.BLACK, ms=9, mew=1.6, label="Median")
    shown = style.labelled(fpr.tolist())
    for axes in (left, right):
        axes.set(xscale="log", ylim=(0, 1.02))
        axes.set_xticks(shown, [percent(f) for f in shown])
        axes.tick_params(axis="x", labelsize=10)
        axes.minorticks_off()
    left.set_ylabel("True positive rate")
    right.set_ylabel("Posterior at the threshold")


def _varies(size: str, threshold_TxF: pd.DataFrame, lowest: float) -> Claim:
    """By distances from the median, as the test of Brown and Forsythe; those of a replica are paired."""
    fprs = [f for f in map(float, threshold_TxF.columns) if f >= lowest]
    high = next((f for f in fprs if math.isclose(f, _HIGH)), None)
    if high is None or high == min(fprs):
        return untested(
            "", f"{size}: the run lacks an FPR of {percent(_HIGH)} or one below that takes ten"
        )
    low = min(fprs)
    far_TxF = (threshold_TxF - threshold_TxF.median()).abs()
    what = f"{size}, distance from the median threshold at an FPR of {percent(high)} less at {percent(low)}"
    new_T, old_T = (far_TxF[fpr].to_numpy() for fpr in (high, low))
    return above("", what, difference(new_T, old_T, paired=True, over="replicas of one target"))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
