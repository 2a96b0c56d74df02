"""ROC curves on log-log axes: LiRA per number of references, and attacks compared (StrongMIA Figures 1, 9 and 11)."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import style
import workdir
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from workdir import Record

COLUMNS = ("attack", "references", "fpr", "tpr_mean", "tpr_std")
Key = tuple[str, int]
"""An attack and its number of references."""


def draw_references(
    roc: Mapping[Key, list[Record]], attacks: Sequence[Record], attack: str = "lira_online"
) -> Figure:
    """Curves of ``attack`` per number of references and of the loss: mean over targets, band of one deviation.

    Args:
      roc: of ``by_curve``.
      attacks: rows of tables/attacks.csv, for the AUC in the legend.
      attack: which attack has a curve per number of references.
    """
    counts = _spread(sorted({count for name, count in roc if name == attack}), 6)
    figure = style.new_figure(6.2, 4.9)
    axes = figure.subplots()
    shades = dict(zip(counts, style.shades(len(counts)), strict=True))
    lowest = [
        _curve(axes, roc[attack, count], shades[count], "-", _label(attack, count, attacks), True)
        for count in reversed(counts)
    ]
    if ("loss", 0) in roc:
        color, dash, _ = style.ATTACKS["loss"]
        lowest.append(
            _curve(axes, roc["loss", 0], color, dash, _label("loss", 0, attacks), band=True)
        )
    finish(axes, lowest)
    axes.legend(loc="lower right")
    return figure


def draw_attacks(roc: Mapping[Key, list[Record]], attacks: Sequence[Record]) -> Figure:
    """One mean curve for each of the main attacks, with the most references that it has."""
    most = {name: max(count for n, count in roc if n == name) for name, _ in roc}
    figure = style.new_figure(6.2, 5.3)
    axes, lowest = figure.subplots(), []
    for name, (color, dash, _) in style.ATTACKS.items():
        if name in most:
            key = name, most[name]
            label = workdir.attack_name(name) + _auc(*key, attacks)
            lowest.append(_curve(axes, roc[key], color, dash, label, band=False))
    finish(axes, lowest)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def by_curve(rows: Sequence[Record]) -> dict[Key, list[Record]]:
    """The rows of tables/roc.csv, taken apart."""
    found: dict[Key, list[Record]] = {}
    for row in rows:
        found.setdefault((row["attack"], row["references"]), []).append(row)
    return found


def finish(axes: Axes, lowest: Sequence[float]) -> None:
    """Log axes in percent from the lowest FPR on, and the line of chance."""
    low = min([x for x in lowest if x > 0], default=1e-3)
    axes.plot([low, 1], [low, 1], color=style.GREY, linestyle=":", label="Chance (AUC 0.5)")
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
    axes.set(xlabel="False positive rate", ylabel="True positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda share, _: workdir.percent(share)))


def figures(folder: Path) -> dict[str, Figure]:
    """Both ROC figures of a workdir."""
    attacks = workdir.table(folder, "attacks.csv", ("attack", "references", "auc_mean", "auc_std"))
    roc = by_curve(workdir.table(folder, "roc.csv", COLUMNS))
    return {"roc": draw_references(roc, attacks), "roc_attacks": draw_attacks(roc, attacks)}


def _curve(
    axes: Axes,
    curve: Sequence[Record],
    color: str | tuple[float, ...],
    dash: style.Dash,
    label: str,
    band: bool,
) -> float:
    """Draws what log axes can show of a curve; returns its lowest FPR there, 0 if it has none."""
    fpr, mean, std = (np.array([r[c] for r in curve], float) for c in COLUMNS[2:])
    shown = (fpr > 0) & (mean > 0)
    if not shown.any():
        return 0.0
    axes.plot(fpr[shown], mean[shown], color=color, linestyle=dash, label=label)
    if band:
        low, high = np.maximum(mean - std, 1e-12)[shown], np.minimum(mean + std, 1)[shown]
        axes.fill_between(fpr[shown], low, high, color=color, alpha=0.18, linewidth=0)
    return float(fpr[shown].min())


def _label(attack: str, references: int, attacks: Sequence[Record]) -> str:
    name = workdir.attack_name(attack) + (f", {references} references" if references else " attack")
    return name + _auc(attack, references, attacks)


def _auc(attack: str, references: int, attacks: Sequence[Record]) -> str:
    auc = {(r["attack"], r["references"]): (r["auc_mean"], r["auc_std"]) for r in attacks}
    mean, std = auc.get((attack, references), (math.nan, math.nan))
    return "" if math.isnan(mean) else f" (AUC {mean:.3f} ± {0 if math.isnan(std) else std:.3f})"


def _spread(values: list[int], most: int) -> list[int]:
    """At most ``most`` of the values, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[i] for i in sorted({round(p) for p in np.linspace(0, len(values) - 1, most)})]


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
