"""Figure 26: flip rates of 140M replicas in detail: their distribution, and against distance and posterior."""

import sys

import figures
import flip_curves
import flips
import numpy as np
import pandas as pd
import stability
import style
import workdir
from claims import Claim, Estimate, above, untested
from drawn import Drawn
from matplotlib.figure import Figure
from measured import Absent, Recipe, Recipes
from trend import Trend
from workdir import Record, percent

TITLE = "Figure 26: Flip rates in detail, 140M"
PAPER = (
    "Flip rates rise with the FPR, more for members: at an FPR of 10%, 49% of members and 8% of non-members have one "
    "of 0.4 or more. They fall with the distance of a sample's scores to the threshold."
)
STATEMENTS = ("The flip rate of members falls with the distance to the threshold.",)
FPRS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Those of the paper's rows."""


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR; columns as of the paper."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The figure of one recipe, with the claim that Figures 26 and 27 share."""
    facts = flips.decisive(recipe.folder)
    fprs = flips.shown_fprs(facts, FPRS)
    if not fprs:
        raise Absent(f"{recipe.config.name}: attack.fprs has none of {', '.join(map(str, FPRS))}")
    columns = workdir.samples(recipe.folder, ["member", *(f"flip_{f:g}" for f in fprs)])
    member_N = columns["member"].astype(bool)
    flip = {f: columns[f"flip_{f:g}"].astype(float) for f in fprs}
    curves = workdir.table(recipe.folder, "flip_curves.csv", flip_curves.COLUMNS)
    curves = {f: flip_curves.at(curves, f) for f in fprs}
    fewest, most = flip_curves.bin_sizes([row for rows in curves.values() for row in rows])
    return Drawn(
        data=_data(flip, member_N, curves),
        figure=_figure(flip, member_N, curves, facts),
        claims=(_falls(recipe, facts),),
        ours={
            f"fpr={f:g} from_0.4 {name}": (100 * share, np.nan)
            for f, flip_N in flip.items()
            for name, of_N in (("members", member_N), ("nonmembers", ~member_N))
            for share in [float(np.mean(flip_N[of_N & ~np.isnan(flip_N)] >= 0.4))]
        },
        notes=(
            f"Points in the middle and on the right are means of {fewest:,} to {most:,} samples.",
            *stability.notes(facts),
        ),
    )


def _figure(
    flip: dict[float, np.ndarray],
    member_N: np.ndarray,
    curves: dict[float, list[Record]],
    facts: Record,
) -> Figure:
    figure = style.new_figure(11, 0.9 + 2.6 * len(flip))
    grid = figure.subplots(len(flip), 3, squeeze=False, sharex="col")
    for (first, *others), (fpr, flip_N) in zip(grid, flip.items(), strict=True):
        flips.ccdf_panel(first, flip_N, member_N, facts)
        first.set_ylabel(f"FPR {percent(fpr)}\nShare of samples")
        for axes, (against, _) in zip(others, flip_curves.PANELS, strict=True):
            flip_curves.panel(axes, curves[fpr], against, facts)
            axes.set_ylabel("Mean flip rate")
    grid[-1, 0].set_xlabel("Flip rate, at least")
    for axes, (_, title) in zip(grid[-1, 1:], flip_curves.PANELS, strict=True):
        axes.set_xlabel(title + "\n(mean over replicas)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _data(
    flip: dict[float, np.ndarray], member_N: np.ndarray, curves: dict[float, list[Record]]
) -> pd.DataFrame:
    """Rows (fpr, against, class, x, y, samples): of a CCDF, y is the share of the class from a flip rate x on."""
    rows = []
    for fpr, flip_N in flip.items():
        for name, of_N in (("members", member_N), ("nonmembers", ~member_N)):
            x, y = flips.ccdf(flip_N[of_N])
            about = {"fpr": fpr, "against": "ccdf", "class": name, "samples": int(of_N.sum())}
            rows += [about | {"x": a, "y": b} for a, b in zip(x, y, strict=True)]
        rows += [
            {name: r[name] for name in ("fpr", "against", "class", "samples")}
            | {"x": r["x_mean"], "y": r["flip_mean"]}
            for r in curves[fpr]
        ]
    return pd.DataFrame(rows)


def _falls(recipe: Recipe, facts: Record) -> Claim:
    fpr = facts["config"]["focus_fpr"]
    found = workdir.samples(recipe.folder, ["member", f"distance_{fpr:g}", f"flip_{fpr:g}"])
    member_N = found["member"].astype(bool)
    x, y = (found[f"{name}_{fpr:g}"][member_N].astype(float) for name in ("distance", "flip"))
    trend = Trend.of(x, y)
    if trend is None:
        return untested(STATEMENTS[0], f"all members are alike at an FPR of {percent(fpr)}")
    over = f"{int((~np.isnan(x + y)).sum())} members of these models"
    return above(
        STATEMENTS[0],
        f"Rank correlation of flip rate and nearness to the threshold at an FPR of {percent(fpr)}",
        Estimate(-trend.r, -trend.high, -trend.low, over),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
