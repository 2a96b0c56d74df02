"""How surely each sample is found by the models that were trained on it (StrongMIA Figure 21)."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import style
import workdir
from matplotlib.figure import Figure

TABLE = "true_positive_probability.parquet"
COLUMNS = ("mean", "std", "share_above_half", "targets")
_POINTS = 400  # of the sorted curve


@dataclasses.dataclass(frozen=True)
class Probabilities:
    """Posterior of membership over the targets that have a sample; one number a sample, samples without left out."""

    mean_N: np.ndarray
    std_N: np.ndarray
    share_above_half_N: np.ndarray
    targets_N: np.ndarray
    left_out: int

    def sentence(self) -> str:
        """What the table says on average."""
        if not len(self.mean_N):
            return "No sample has a reference that was trained on it and a score under it."
        few, most = int(self.targets_N.min()), int(self.targets_N.max())
        targets = f"{few}" if few == most else f"{few} to {most}"
        rest = f" {self.left_out:,} samples have none and are left out." if self.left_out else ""
        return (
            f"Each reference is attacked with all the others. Over the {targets} references that were trained "
            f"on a sample, its posterior of membership is {self.mean_N.mean():.3f} on average; it varies from "
            f"reference to reference with a standard deviation of {self.std_N.mean():.3f} (mean over "
            f"{len(self.mean_N):,} samples), and {workdir.percent(float(self.share_above_half_N.mean()))} of "
            f"these posteriors are above 1/2.{rest}"
        )


def read(folder: Path) -> Probabilities | None:
    """The table, or None if attack.leave_one_out did not ask for it."""
    if not workdir.has(folder, TABLE):
        return None
    found = workdir.samples(folder, COLUMNS, TABLE)
    has_N = found["targets"] > 0
    columns = (found[name][has_N] for name in COLUMNS)
    return Probabilities(*columns, left_out=int((~has_N).sum()))


def draw(found: Probabilities) -> Figure:
    """Means in ascending order with a band of one deviation, and histograms of means and of deviations."""
    figure = style.new_figure(6.2, 5.6)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1))
    axes = figure.add_subplot(grid[0, :])
    order = np.argsort(found.mean_N, kind="stable")
    parts = np.array_split(order, min(_POINTS, len(order)))
    mean, std = (np.array([v[part].mean() for part in parts]) for v in (found.mean_N, found.std_N))
    x = (np.arange(len(parts)) + 0.5) / len(parts)
    low, high = np.clip(mean - std, 0, 1), np.clip(mean + std, 0, 1)
    axes.fill_between(
        x, low, high, color=style.SKY, alpha=0.4, linewidth=0, label="± one deviation"
    )
    axes.plot(x, mean, color=style.BLUE, label="Mean over references")
    axes.axhline(0.5, color=style.GREY, linestyle=":", linewidth=1.2)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="Posterior of\nmembership")
    axes.set_xlabel("Samples in the order of their mean (share of all)")
    axes.legend(loc="lower right")
    for column, (values, label) in enumerate(
        ((found.mean_N, "Mean"), (found.std_N, "Standard deviation"))
    ):
        axes = figure.add_subplot(grid[1, column])
        span = (0.0, 1.0 - 0.5 * column)  # numbers in [0, 1] deviate by 1/2 at most
        axes.hist(values, bins=40, range=span, color=style.BLUE)
        axes.axvline(float(values.mean()), color=style.BLACK, linestyle="--", linewidth=1.2)
        axes.set(xlabel=label, ylabel="Samples" if column == 0 else "", xlim=span)
    return figure


def figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None without the table."""
    found = read(folder)
    return {"probability": draw(found) if found and len(found.mean_N) else None}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
