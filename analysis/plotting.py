"""One look for every figure, and attacks drawn together: ROC curves, and AUC and TPR against a quantity.

Figures are colour-blind safe (Okabe-Ito), readable in print and reproducible; bands are over targets.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from scipy.optimize import isotonic_regression

from analysis import io
from analysis.attacks import AttackResult
from analysis.io import RecipeResults, size_of
from lm_mia.atomic import replacing

mpl.use("Agg")

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#666666"
MEMBER, NONMEMBER = BLUE, VERMILLION

Dash = Literal["-", "--", "-.", ":"]
ATTACKS: dict[str, tuple[str, Dash, str]] = {
    "lira_online": (BLUE, "-", "o"),
    "lira_offline": (SKY, "--", "o"),
    "rmia": (GREEN, "-", "s"),
    "rmia_offline": (ORANGE, "--", "s"),
    "reference_calibrated": (PURPLE, "-.", "D"),
    "loss": (VERMILLION, "--", "v"),
}
"""Colour, line and marker of the attacks that figures compare; the others are in the tables only."""

mpl.rcParams.update(
    {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11.5,
        "figure.constrained_layout.use": True,
        "figure.dpi": 160,
        "font.size": 12,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "legend.fontsize": 10.5,
        "legend.framealpha": 0.9,
        "lines.linewidth": 1.8,
        "pdf.fonttype": 42,
        "savefig.dpi": 160,
    }
)


FORMATS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""What a figure is saved as, and what its files do not say, so that they are the same at any date."""


def new_figure(width_in: float = 6.2, height_in: float = 4.2) -> Figure:
    """An empty figure outside of pyplot's registry, so nothing needs closing."""
    return Figure(figsize=(width_in, height_in))


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Ordered colours, light to dark, for an ordered quantity."""
    ramp = mpl.colormaps["viridis"]
    return [ramp(0.85 * (1 - i / max(count - 1, 1))) for i in range(count)]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Heights for labels, as near to the wanted ones as keeps them apart and, if they fit, in [low, high]."""
    order = np.argsort(wanted, kind="stable")
    step = apart * np.arange(len(order))
    moved = isotonic_regression(np.asarray(wanted, float)[order] - step).x
    heights = np.empty(len(order))
    heights[order] = np.clip(moved, low, max(high - apart * (len(order) - 1), low)) + step
    return heights.tolist()


def labelled(values: Sequence[float], share: float = 0.08) -> list[float]:
    """Those of ascending values whose labels do not touch on a log axis of their length, the last among them."""
    kept = list(values[-1:])
    length = np.log(values[-1] / values[0]) if values else 0
    for value in reversed(values[:-1]):
        if np.log(kept[0] / value) >= share * length:
            kept.insert(0, value)
    return kept


def save(figure: Figure, figures_dir: Path, name: str) -> Path:
    """Writes NAME.png and NAME.pdf, each whole or not at all; returns the path of the PNG."""
    figures_dir.mkdir(parents=True, exist_ok=True)
    for suffix, metadata in FORMATS.items():
        with replacing(figures_dir / f"{name}.{suffix}") as part:
            figure.savefig(part, format=suffix, metadata=metadata)
    return figures_dir / f"{name}.png"


def remove(figures_dir: Path, name: str) -> None:
    """Takes away NAME.png and NAME.pdf if they are there."""
    for suffix in ("png", "pdf"):
        (figures_dir / f"{name}.{suffix}").unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Line:
    """One attack in a figure."""

    label: str
    found: AttackResult
    color: str | tuple[float, ...] | None = None
    """None: a shade of its place in the order."""
    dash: Dash = "-"

    def data(self) -> pd.DataFrame:
        """Rows (series, references, fpr, tpr_mean, tpr_std, auc_mean, auc_std, targets, left_out)."""
        fpr_G, tpr_TxG = self.found.fpr_G, self.found.tpr_TxG
        return pd.DataFrame(
            {"series": self.label, "references": self.found.references, "fpr": fpr_G}
            | {"tpr_mean": tpr_TxG.mean(axis=0), "tpr_std": tpr_TxG.std(axis=0)}
            | {"auc_mean": self.found.auc_T.mean(), "auc_std": self.found.auc_T.std()}
            | {"targets": len(self.found.auc_T), "left_out": self.found.left_out}
        )


def roc(lines: Sequence[Line], title: str = "", *, figure: Figure | None = None) -> Figure:
    """ROC curves, means over targets with bands of one deviation, AUCs in the legend."""
    figure = figure or new_figure(6.2, 4.9)
    draw_roc(figure.subplots(), lines, title)
    return figure


def panels(
    titled: Sequence[tuple[str, Sequence[Line]]], columns: int = 2, every: bool = False
) -> Figure:
    """A panel of ROC curves for each title; ``every``: each target has a line, as in Figures 18 to 20."""
    columns = min(columns, len(titled))
    rows = -(-len(titled) // columns)
    width = min(4.8 * columns, 12.4)
    figure = new_figure(width, 0.9 * width / columns * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, lines) in zip(grid.flat, titled, strict=False):
        (draw_targets if every else draw_roc)(axes, lines, title)
    for axes in list(grid.flat)[len(titled) :]:
        axes.set_visible(False)
    return figure


def draw_roc(axes: Axes, lines: Sequence[Line], title: str = "") -> None:
    """Mean curves with bands on given axes."""
    colors, lowest = shades(len(lines)), []
    for line, shade in zip(lines, colors, strict=True):
        fpr_G, tpr_TxG = line.found.fpr_G, line.found.tpr_TxG
        color = line.color or shade
        mean_G, std_G = tpr_TxG.mean(axis=0), tpr_TxG.std(axis=0)
        at = (fpr_G > 0) & (mean_G > 0)
        if not at.any():
            continue
        lowest.append(float(fpr_G[at].min()))
        label = f"{line.label} (AUC {auc_text(line.found)})"
        axes.plot(fpr_G[at], mean_G[at], color=color, linestyle=line.dash, label=label)
        low_G, high_G = np.maximum(mean_G - std_G, 1e-12), np.minimum(mean_G + std_G, 1)
        axes.fill_between(fpr_G[at], low_G[at], high_G[at], color=color, alpha=0.15, linewidth=0)
    finish(axes, lowest)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=8, handlelength=2, borderpad=0.3, labelspacing=0.3)


def draw_targets(axes: Axes, lines: Sequence[Line], title: str = "", low: float = 0.0) -> None:
    """A thin line a target, on given axes, from the lowest rate or ``low`` on, with the mean AUC."""
    [line] = lines
    fpr_G, tpr_TxG = line.found.fpr_G, line.found.tpr_TxG
    lowest = [low]
    for tpr_G, shade in zip(tpr_TxG, shades(len(tpr_TxG)), strict=True):
        at = (fpr_G > 0) & (tpr_G > 0)
        if at.any():
            lowest.append(float(fpr_G[at].min()))
            axes.plot(fpr_G[at], tpr_G[at], color=shade, linewidth=1)
    finish(axes, lowest)
    axes.set_title(title)
    said, corner = f"AUC\n{auc_text(line.found)}", (0.97, 0.04)
    axes.text(*corner, said, size=8, ha="right", va="bottom", transform=axes.transAxes)


def against(
    axes: Axes,
    x_K: Sequence[float],
    values_KxT: Sequence[np.ndarray],
    label: str,
    color: str | tuple[float, ...],
    dash: Dash = "-",
    marker: str = "o",
) -> None:
    """Mean over targets against a quantity on a log axis, with a band of one deviation."""
    mean_K = np.array([np.mean(v) for v in values_KxT])
    std_K = np.array([np.std(v) for v in values_KxT])
    axes.plot(x_K, mean_K, color=color, linestyle=dash, marker=marker, label=label, markersize=4)
    axes.fill_between(x_K, mean_K - std_K, mean_K + std_K, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")


def only(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """These ticks on the x axis, and no others."""
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in ticks])


def at_rates(
    axes: Axes, found: Sequence[tuple[RecipeResults, AttackResult]], title: str = ""
) -> None:
    """TPR at fixed FPRs by the size of the model, a line a rate: those that a target of fewest samples can have."""
    fewest = min(recipe.samples for recipe, _ in found)
    rates = [f for f in found[0][0].config.attack.fprs if 1 / fewest <= f <= 0.2]
    x_K = [recipe.parameters for recipe, _ in found]
    lowest = 1.0
    for rate, color in zip(reversed(rates), reversed(shades(len(rates))), strict=True):
        tpr_KxT = [one.tpr_T(rate) for _, one in found]
        against(axes, x_K, tpr_KxT, f"FPR {io.percent(rate)}", color)
        lowest = min([lowest, *(float(t.mean()) for t in tpr_KxT if t.mean() > 0)])
    axes.set(yscale="log", ylim=(0.6 * lowest, 1), title=title)
    axes.set(xlabel="Parameters, without embeddings", ylabel="True positive rate")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if lowest > 0.01 else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    percent_axis(axes)
    labels = labelled(x_K)
    only(axes, [(r.parameters, size_of(r)) for r, _ in found if r.parameters in labels])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8.5, frameon=False)


def by_target(found: AttackResult, **about: object) -> pd.DataFrame:
    """A tidy row a target and metric: (..., target, metric, fpr, value)."""
    rows = []
    for t, name in enumerate(found.targets):
        target = {**about, "target": name}
        rows.append({**target, "metric": "auc", "fpr": np.nan, "value": found.auc_T[t]})
        rows += [
            {**target, "metric": "tpr", "fpr": fpr, "value": tpr}
            for fpr, tpr in zip(found.fpr_F, found.tpr_TxF[t], strict=True)
        ]
    return pd.DataFrame(rows)


def data(titled: Sequence[tuple[str, Sequence[Line]]]) -> pd.DataFrame:
    """The curves of panels: rows as of `Line.data`, with the panel."""
    return pd.concat([line.data().assign(panel=title) for title, lines in titled for line in lines])


def auc_of(found: AttackResult) -> tuple[float, float]:
    """Mean and deviation of the AUC over targets; NaN for the deviation of one."""
    several = len(found.auc_T) > 1
    return float(found.auc_T.mean()), float(found.auc_T.std()) if several else math.nan


def left_out(lines: Sequence[Line]) -> str:
    """How many samples have no score, and how many targets the bands are over."""
    n = sorted({len(line.found.auc_T) for line in lines})
    said = (
        f"Curves are means over {' or '.join(map(str, n))} targets, bands one standard deviation."
    )
    lost = {line.label: line.found.left_out for line in lines if line.found.left_out}
    if lost:
        told = "; ".join(f"{label}: {count:,}" for label, count in lost.items())
        said += (
            f" Samples without an IN and an OUT reference have no score and are left out ({told})."
        )
    return said


def auc_text(found: AttackResult) -> str:
    """The mean over targets and its deviation, as text."""
    std = f" ± {found.auc_T.std():.3f}" if len(found.auc_T) > 1 else ""
    return f"{found.auc_T.mean():.3f}{std}"


def percent_axis(axes: Axes) -> None:
    """The y axis in percent."""
    axes.yaxis.set_major_formatter(lambda share, _: io.percent(share))


def finish(axes: Axes, lowest: Sequence[float]) -> None:
    """Log axes in percent from the lowest FPR on, and the line of chance."""
    low = min([x for x in lowest if x > 0], default=1e-3)
    axes.plot([low, 1], [low, 1], color=GREY, linestyle=":", label="Chance (AUC 0.5)")
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
    axes.set(xlabel="False positive rate", ylabel="True positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda share, _: io.percent(share)))


CLASSES = (("Members", True, MEMBER, "-"), ("Non-members", False, NONMEMBER, "--"))
