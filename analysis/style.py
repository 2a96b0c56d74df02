"""One look for every figure: colour-blind safe (Okabe-Ito), readable in print, reproducible."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from lm_mia.workdir import replacing

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
    without_dates = {
        "png": {"Software": None},
        "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    }
    for suffix, metadata in without_dates.items():
        with replacing(figures_dir / f"{name}.{suffix}") as part:
            figure.savefig(part, format=suffix, metadata=metadata)
    return figures_dir / f"{name}.png"


def remove(figures_dir: Path, name: str) -> None:
    """Takes away NAME.png and NAME.pdf if they are there."""
    for suffix in ("png", "pdf"):
        (figures_dir / f"{name}.{suffix}").unlink(missing_ok=True)
