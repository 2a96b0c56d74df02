"""The common style of all figures, and plots of attacks: ROC curves, and AUC and TPR against a quantity.

Figures are color-blind safe (Okabe-Ito), readable in print and reproducible; bands are over targets.

T: targets, G: points of a ROC curve, K: points of a plotted curve.

matplotlib is imported in functions, since modules of tables that every command reads import this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from analysis.attacks import AttackResult
from analysis.formatting import percent, size_label
from analysis.io import RecipeResults
from lm_mia.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#666666"
MEMBER, NONMEMBER = BLUE, VERMILLION

Color = str | tuple[float, float, float, float]
"""A name, or red, green, blue and opacity."""
LineStyle = Literal["-", "--", "-.", ":"]
ATTACKS: dict[str, tuple[str, LineStyle, str]] = {
    "lira_online": (BLUE, "-", "o"),
    "lira_offline": (SKY, "--", "o"),
    "rmia": (GREEN, "-", "s"),
    "rmia_offline": (ORANGE, "--", "s"),
    "reference_calibrated": (PURPLE, "-.", "D"),
    "shrunk": (GREY, "-", "^"),
    "stacked": (BLACK, "-", "P"),
    "loss": (VERMILLION, "--", "v"),
}
"""Color, line style and marker of the attacks that figures compare; the other attacks are in the tables only."""

STYLE: dict[Any, Any] = {
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
"""Settings of matplotlib for all figures; see `style`."""


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Sets the style of all figures, in which they must be drawn and saved; the settings of matplotlib are restored."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        yield


def new_figure(width_in: float = 6.2, height_in: float = 4.2) -> Figure:
    """Returns an empty figure of this size in inches, outside pyplot's registry, so that it need not be closed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in))


def shades(count: int) -> list[Color]:
    """Returns colors for an ordered quantity, from light to dark."""
    import matplotlib as mpl

    ramp = mpl.colormaps["viridis"]
    return [ramp(0.85 * (1 - i / max(count - 1, 1))) for i in range(count)]


def spread_labels(wanted: Sequence[float], spacing: float, low: float, high: float) -> list[float]:
    """Returns positions for labels that are at least ``spacing`` apart, as near as possible to the wanted ones.

    The positions lie in [low, high] if the labels fit.
    """
    from scipy.optimize import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    offsets = spacing * np.arange(len(order))
    shifted = isotonic_regression(np.asarray(wanted, float)[order] - offsets).x
    positions = np.empty(len(order))
    highest = max(high - spacing * (len(order) - 1), low)
    positions[order] = np.clip(shifted, low, highest) + offsets
    return positions.tolist()


def separated_ticks(values: Sequence[float], min_gap: float = 0.08) -> list[float]:
    """Returns those of the ascending values whose labels do not overlap on a log axis, always including the last.

    Args:
      values: the candidates, ascending.
      min_gap: the smallest gap between two labels, as a fraction of the axis.
    """
    kept = list(values[-1:])
    length = np.log(values[-1] / values[0]) if values else 0
    for value in reversed(values[:-1]):
        if np.log(kept[0] / value) >= min_gap * length:
            kept.insert(0, value)
    return kept


def _write_png(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def _write_pdf(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    omitted = {"Creator": None, "Producer": None, "CreationDate": None}
    FigureCanvasPdf(figure).print_pdf(path, metadata=omitted)


FORMATS = {"png": _write_png, "pdf": _write_pdf}
"""File formats of a figure, and functions that write it without metadata, so that the files are reproducible."""


def save(figure: Figure, figures_dir: Path, name: str) -> Path:
    """Writes NAME.png and NAME.pdf atomically; returns the path of the PNG.

    `Figure.savefig` would draw the figure twice for each file: the first time only to compute the layout, which both
    files share.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figures_dir.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(mpl.rcParams["savefig.dpi"])  # of the PNG; the layout depends on it
    FigureCanvasAgg(figure)
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    figure.set_layout_engine("none")
    for suffix, write in FORMATS.items():
        with replacing(figures_dir / f"{name}.{suffix}") as part:
            write(figure, part)
    return figures_dir / f"{name}.png"


def remove(figures_dir: Path, name: str) -> None:
    """Deletes NAME.png and NAME.pdf if they exist."""
    for suffix in ("png", "pdf"):
        (figures_dir / f"{name}.{suffix}").unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class RocCurve:
    """One attack in a ROC figure."""

    label: str
    result: AttackResult
    color: Color | None = None
    """None uses a shade by the position among the curves."""
    linestyle: LineStyle = "-"

    def to_frame(self) -> pd.DataFrame:
        """Returns rows (series, references, fpr, tpr_mean, tpr_std, auc_mean, auc_std, targets, left_out)."""
        fpr_G, tpr_TxG = self.result.fpr_G, self.result.tpr_TxG
        return pd.DataFrame(
            {"series": self.label, "references": self.result.references, "fpr": fpr_G}
            | {"tpr_mean": tpr_TxG.mean(axis=0), "tpr_std": tpr_TxG.std(axis=0)}
            | {"auc_mean": self.result.auc_T.mean(), "auc_std": self.result.auc_T.std()}
            | {"targets": len(self.result.auc_T), "left_out": self.result.left_out}
        )


Panel = tuple[str, Sequence[RocCurve]]
"""The title of a panel and its curves."""


def roc_figure(curves: Sequence[RocCurve], title: str = "") -> Figure:
    """Returns a figure of ROC curves: means over targets with bands of one standard deviation, AUCs in the legend."""
    figure = new_figure(6.2, 4.9)
    draw_roc(figure.subplots(), curves, title)
    return figure


def roc_panels(panels: Sequence[Panel], columns: int = 2, per_target: bool = False) -> Figure:
    """Returns a figure with a panel of ROC curves per title.

    Args:
      panels: titles and curves; one curve each if ``per_target``.
      columns: the largest number of columns.
      per_target: draw a line per target, as in Figures 18 to 20, instead of the mean with a band.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width = min(4.8 * columns, 12.4)
    figure = new_figure(width, 0.9 * width / columns * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, curves) in zip(grid.flat, panels, strict=False):
        (draw_roc_per_target if per_target else draw_roc)(axes, curves, title)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    return figure


def draw_roc(axes: Axes, curves: Sequence[RocCurve], title: str = "") -> None:
    """Draws mean ROC curves over targets with bands of one standard deviation."""
    colors, lowest = shades(len(curves)), []
    for curve, shade in zip(curves, colors, strict=True):
        fpr_G, tpr_TxG = curve.result.fpr_G, curve.result.tpr_TxG
        color = curve.color or shade
        mean_G, std_G = tpr_TxG.mean(axis=0), tpr_TxG.std(axis=0)
        visible_G = (fpr_G > 0) & (mean_G > 0)  # on log axes
        if not visible_G.any():
            continue
        fpr_K, mean_K, std_K = fpr_G[visible_G], mean_G[visible_G], std_G[visible_G]
        lowest.append(float(fpr_K.min()))
        label = f"{curve.label} (AUC {format_auc(curve.result)})"
        axes.plot(fpr_K, mean_K, color=color, linestyle=curve.linestyle, label=label)
        low_K, high_K = np.maximum(mean_K - std_K, 1e-12), np.minimum(mean_K + std_K, 1)
        axes.fill_between(fpr_K, low_K, high_K, color=color, alpha=0.15, linewidth=0)
    finish_roc_axes(axes, lowest)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=8, handlelength=2, borderpad=0.3, labelspacing=0.3)


def draw_roc_per_target(
    axes: Axes, curves: Sequence[RocCurve], title: str = "", low: float = 0.0
) -> None:
    """Draws a thin ROC curve per target of a single attack, with its mean AUC.

    Args:
      axes: where to draw.
      curves: one attack.
      title: the title of the axes.
      low: the lowest FPR of the axes; 0 uses the lowest of the curves.
    """
    [curve] = curves
    fpr_G, tpr_TxG = curve.result.fpr_G, curve.result.tpr_TxG
    lowest = [low]
    for tpr_G, shade in zip(tpr_TxG, shades(len(tpr_TxG)), strict=True):
        visible_G = (fpr_G > 0) & (tpr_G > 0)
        if visible_G.any():
            lowest.append(float(fpr_G[visible_G].min()))
            axes.plot(fpr_G[visible_G], tpr_G[visible_G], color=shade, linewidth=1)
    finish_roc_axes(axes, lowest)
    axes.set_title(title)
    text, corner = f"AUC\n{format_auc(curve.result)}", (0.97, 0.04)
    axes.text(*corner, text, size=8, ha="right", va="bottom", transform=axes.transAxes)


def plot_mean_and_std(
    axes: Axes,
    x_K: Sequence[float],
    values_KxT: Sequence[np.ndarray],
    label: str,
    color: Color,
    linestyle: LineStyle = "-",
    marker: str = "o",
) -> None:
    """Plots the mean over targets against a quantity on a log axis, with a band of one standard deviation."""
    mean_K = np.array([np.mean(v) for v in values_KxT])
    std_K = np.array([np.std(v) for v in values_KxT])
    axes.plot(
        x_K, mean_K, color=color, linestyle=linestyle, marker=marker, label=label, markersize=4
    )
    axes.fill_between(x_K, mean_K - std_K, mean_K + std_K, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")


def errorbars(
    axes: Axes,
    x: Sequence[float],
    value: Sequence[float],
    high: Sequence[float],
    color: str,
    label: str | None = None,
    style: str = "o-",
) -> None:
    """Draws numbers with their symmetric intervals, each given by its upper end."""
    margin = [upper - v for v, upper in zip(value, high, strict=True)]
    axes.errorbar(x, value, yerr=margin, fmt=style, color=color, capsize=3, label=label)


def set_x_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """Sets the ticks of the x axis to these positions and labels, without minor ticks."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in ticks])


def draw_tpr_by_size(
    axes: Axes,
    results: Sequence[tuple[RecipeResults, AttackResult]],
    title: str = "",
    std_K_by_rate: Mapping[float, Sequence[float]] | None = None,
) -> None:
    """Draws the TPR against model size, a line for each of `rates_by_size`, with a band over targets.

    Args:
      axes: where to draw.
      results: the recipes and the attacks on their targets.
      title: title of the panel.
      std_K_by_rate: FPR -> the length of an error bar at each size; None: no error bars.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    rates = rates_by_size([recipe for recipe, _ in results])
    x_K = [recipe.parameters for recipe, _ in results]
    lowest = 1.0
    for rate, color in zip(reversed(rates), reversed(shades(len(rates))), strict=True):
        tpr_KxT = [result.tpr_T(rate) for _, result in results]
        plot_mean_and_std(axes, x_K, tpr_KxT, f"FPR {percent(rate)}", color)
        if std_K_by_rate:
            mean_K = [t.mean() for t in tpr_KxT]
            bars = {"fmt": "none", "ecolor": color, "elinewidth": 1.1, "capsize": 3}
            axes.errorbar(x_K, mean_K, yerr=std_K_by_rate[rate], **bars)
        lowest = min([lowest, *(float(t.mean()) for t in tpr_KxT if t.mean() > 0)])
    axes.set(yscale="log", ylim=(0.6 * lowest, 1), title=title)
    axes.set(xlabel="Parameters without embeddings", ylabel="True positive rate")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if lowest > 0.01 else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    use_percent_axis(axes)
    ticks = separated_ticks(x_K)
    set_x_ticks(axes, [(r.parameters, size_label(r)) for r, _ in results if r.parameters in ticks])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8.5, frameon=False)


def rates_by_size(recipes: Sequence[RecipeResults]) -> list[float]:
    """Returns the FPRs of the config up to 20 % at which the smallest recipe has at least one non-member."""
    fewest = min(recipe.nonmembers for recipe in recipes)
    return [f for f in recipes[0].config.attack.fprs if 1 / fewest <= f <= 0.2]


def per_target_frame(result: AttackResult, **columns: object) -> pd.DataFrame:
    """Returns tidy rows (columns..., target, metric, fpr, value): the AUC and the TPRs of each target."""
    rows = []
    for t, name in enumerate(result.targets):
        target = {**columns, "target": name}
        rows.append({**target, "metric": "auc", "fpr": np.nan, "value": result.auc_T[t]})
        rows += [
            {**target, "metric": "tpr", "fpr": fpr, "value": tpr}
            for fpr, tpr in zip(result.fpr_F, result.tpr_TxF[t], strict=True)
        ]
    return pd.DataFrame(rows)


def panels_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """Returns the curves of panels: the rows of `RocCurve.to_frame` with a column "panel"."""
    return pd.concat([c.to_frame().assign(panel=title) for title, curves in panels for c in curves])


def auc_mean_std(result: AttackResult) -> tuple[float, float]:
    """Returns the mean and the standard deviation of the AUC over targets; NaN deviation for a single target."""
    several = len(result.auc_T) > 1
    return float(result.auc_T.mean()), float(result.auc_T.std()) if several else math.nan


def curves_note(curves: Sequence[RocCurve]) -> str:
    """Returns a note with the number of targets and the numbers of samples without a membership score."""
    targets = sorted({len(curve.result.auc_T) for curve in curves})
    note = f"Curves are means over {' or '.join(map(str, targets))} targets; bands are one standard deviation."
    left_out = {curve.label: curve.result.left_out for curve in curves if curve.result.left_out}
    if left_out:
        counts = "; ".join(f"{label}: {count:,}" for label, count in left_out.items())
        note += (
            " Samples without an IN and an OUT reference have no membership score and are left out "
            f"({counts})."
        )
    return note


def format_auc(result: AttackResult) -> str:
    """Formats the AUC as mean and standard deviation over targets; without the latter for a single target."""
    std = f" ± {result.auc_T.std():.3f}" if len(result.auc_T) > 1 else ""
    return f"{result.auc_T.mean():.3f}{std}"


def use_percent_axis(axes: Axes) -> None:
    """Formats the y axis in percent."""
    axes.yaxis.set_major_formatter(lambda share, _: percent(share))


def finish_roc_axes(axes: Axes, lowest_fprs: Sequence[float]) -> None:
    """Sets log axes in percent that begin at the lowest positive FPR, and draws the chance line."""
    from matplotlib.ticker import FuncFormatter

    low = min([fpr for fpr in lowest_fprs if fpr > 0], default=1e-3)
    axes.plot([low, 1], [low, 1], color=GREY, linestyle=":", label="Chance (AUC 0.5)")
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
    axes.set(xlabel="False positive rate", ylabel="True positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))


CLASSES = (("Members", True, MEMBER, "-"), ("Non-members", False, NONMEMBER, "--"))
"""Label, membership, color and line style of the two classes of samples."""
