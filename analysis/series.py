"""Attacks drawn together: ROC curves on log-log axes, AUC and TPR against a quantity, with bands over targets."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
import roc as roc_figure
import style
import workdir
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measured import Attacked


@dataclasses.dataclass(frozen=True)
class Line:
    """One attack in a figure."""

    label: str
    found: Attacked
    color: str | tuple[float, ...] | None = None
    """None: a shade of its place in the order."""
    dash: style.Dash = "-"

    def data(self) -> pd.DataFrame:
        """Rows (series, references, fpr, tpr_mean, tpr_std, auc_mean, auc_std, targets, left_out)."""
        fpr_G, tpr_TxG = self.found.curve
        return pd.DataFrame(
            {"series": self.label, "references": self.found.references, "fpr": fpr_G}
            | {"tpr_mean": tpr_TxG.mean(axis=0), "tpr_std": tpr_TxG.std(axis=0)}
            | {"auc_mean": self.found.auc_T.mean(), "auc_std": self.found.auc_T.std()}
            | {"targets": len(self.found.auc_T), "left_out": self.found.left_out}
        )


def roc(lines: Sequence[Line], title: str = "", *, figure: Figure | None = None) -> Figure:
    """ROC curves, means over targets with bands of one deviation, AUCs in the legend."""
    figure = figure or style.new_figure(6.2, 4.9)
    draw_roc(figure.subplots(), lines, title)
    return figure


def panels(
    titled: Sequence[tuple[str, Sequence[Line]]], columns: int = 2, every: bool = False
) -> Figure:
    """A panel of ROC curves for each title; ``every``: each target has a line, as in Figures 18 to 20."""
    columns = min(columns, len(titled))
    rows = -(-len(titled) // columns)
    figure = style.new_figure(min(4.6 * columns, 12.4), 3.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, lines) in zip(grid.flat, titled, strict=False):
        (draw_targets if every else draw_roc)(axes, lines, title)
    for axes in list(grid.flat)[len(titled) :]:
        axes.set_visible(False)
    return figure


def draw_roc(axes: Axes, lines: Sequence[Line], title: str = "") -> None:
    """Mean curves with bands on given axes."""
    shades, lowest = style.shades(len(lines)), []
    for line, shade in zip(lines, shades, strict=True):
        fpr_G, tpr_TxG = line.found.curve
        color = line.color or shade
        mean_G, std_G = tpr_TxG.mean(axis=0), tpr_TxG.std(axis=0)
        at = (fpr_G > 0) & (mean_G > 0)
        if not at.any():
            continue
        lowest.append(float(fpr_G[at].min()))
        label = f"{line.label} (AUC {_auc(line.found)})"
        axes.plot(fpr_G[at], mean_G[at], color=color, linestyle=line.dash, label=label)
        low_G, high_G = np.maximum(mean_G - std_G, 1e-12), np.minimum(mean_G + std_G, 1)
        axes.fill_between(fpr_G[at], low_G[at], high_G[at], color=color, alpha=0.15, linewidth=0)
    roc_figure.finish(axes, lowest)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=8.5)


def draw_targets(axes: Axes, lines: Sequence[Line], title: str = "") -> None:
    """A thin line a target, on given axes; the mean AUC in the title."""
    [line] = lines
    fpr_G, tpr_TxG = line.found.curve
    lowest = []
    for tpr_G, shade in zip(tpr_TxG, style.shades(len(tpr_TxG)), strict=True):
        at = (fpr_G > 0) & (tpr_G > 0)
        if at.any():
            lowest.append(float(fpr_G[at].min()))
            axes.plot(fpr_G[at], tpr_G[at], color=shade, linewidth=1)
    roc_figure.finish(axes, lowest)
    axes.set_title(f"{title} AUC {_auc(line.found)}".strip())


def against(
    axes: Axes,
    x_K: Sequence[float],
    values_KxT: Sequence[np.ndarray],
    label: str,
    color: str | tuple[float, ...],
    dash: style.Dash = "-",
    marker: str = "o",
) -> None:
    """Mean over targets against a quantity on a log axis, with a band of one deviation."""
    mean_K = np.array([np.mean(v) for v in values_KxT])
    std_K = np.array([np.std(v) for v in values_KxT])
    axes.plot(x_K, mean_K, color=color, linestyle=dash, marker=marker, label=label, markersize=4)
    axes.fill_between(x_K, mean_K - std_K, mean_K + std_K, color=color, alpha=0.15, linewidth=0)


def by_target(found: Attacked, **about: object) -> pd.DataFrame:
    """A tidy row a target and metric: (..., target, metric, fpr, value)."""
    rows = []
    for t, row in enumerate(found.targets):
        rows.append(
            {**about, "target": str(row), "metric": "auc", "fpr": np.nan, "value": found.auc_T[t]}
        )
        for f in range(found.rates):
            tpr = found.points.tpr_TxF[t, f]
            rows.append(
                {
                    **about,
                    "target": str(row),
                    "metric": "tpr",
                    "fpr": found.points.fpr_F[f],
                    "value": tpr,
                }
            )
    return pd.DataFrame(rows)


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


def _auc(found: Attacked) -> str:
    std = f" ± {found.auc_T.std():.3f}" if len(found.auc_T) > 1 else ""
    return f"{found.auc_T.mean():.3f}{std}"


def percent_axis(axes: Axes) -> None:
    """The y axis in percent."""
    axes.yaxis.set_major_formatter(lambda share, _: workdir.percent(share))
