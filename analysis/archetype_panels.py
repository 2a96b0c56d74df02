"""Samples whose decision is clear or ambiguous, stable or not, under references and replicas (StrongMIA Figure 22)."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from analysis import io, plotting
from analysis.io import Record

COLUMNS = (
    "kind",
    "rule",
    "candidates",
    "fpr",
    "id",
    "member",
    "votes",
    "flip_rate",
    "separation",
    "text_preview",
)
LOSS_COLUMNS = ("kind", "role", "member", "loss_nats")


@dataclasses.dataclass(frozen=True)
class Archetype:
    """One sample with everything that its panel shows; losses in nats a token."""

    kind: str
    rule: str
    """What the sample satisfies, the first of so many candidates."""
    candidates: int
    sample: int
    member: bool
    fpr: float
    votes: int
    flip_rate: float
    separation: float
    text: str
    loss_in: np.ndarray
    loss_out: np.ndarray
    loss_replicas: np.ndarray

    @property
    def label(self) -> str:
        """What the sample is, whatever the attack says."""
        return "member" if self.member else "non-member"


def read(folder: Path) -> list[Archetype]:
    """The samples of tables/archetypes.csv with their losses, from tables/archetype_losses.csv."""
    losses = pd.DataFrame(io.table(folder, "archetype_losses.csv", LOSS_COLUMNS))
    found = []
    for row in (row for row in _table(folder) if not _none(row)):
        lines = losses[losses["kind"] == row["kind"]]
        loss, is_reference = lines["loss_nats"].to_numpy(float), lines["role"] == "reference"
        is_member = lines["member"].astype(bool)
        found.append(
            Archetype(
                kind=str(row["kind"]),
                rule=str(row["rule"]),
                candidates=int(row["candidates"]),
                sample=int(row["id"]),
                member=str(row["member"]) == "True",
                fpr=float(row["fpr"]),
                votes=int(row["votes"]),
                flip_rate=float(row["flip_rate"]),
                separation=float(row["separation"]),
                text=row["text_preview"] if isinstance(row["text_preview"], str) else "",
                loss_in=loss[is_reference & is_member],
                loss_out=loss[is_reference & ~is_member],
                loss_replicas=loss[~is_reference],
            )
        )
    return found


def none_found(folder: Path) -> list[Record]:
    """The kinds of tables/archetypes.csv whose rule no sample satisfies."""
    return [row for row in _table(folder) if _none(row)]


def draw(archetypes: Sequence[Archetype]) -> Figure:
    """A panel a sample, one above the other."""
    figure = plotting.new_figure(6.2, 0.7 + 2.35 * len(archetypes))
    grid = figure.subplots(len(archetypes), 1, squeeze=False)
    for axes, archetype in zip(grid.flat, archetypes, strict=True):
        panel(axes, archetype)
    grid[-1, 0].set_xlabel("Loss of the sample (nats a token)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def run_figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None if no sample qualified."""
    found = read(folder)
    return {"archetypes": draw(found) if found else None}


def _table(folder: Path) -> list[Record]:
    return io.table(folder, "archetypes.csv", COLUMNS)


def _none(row: Record) -> bool:
    return math.isnan(row["id"])


def panel(axes: Axes, archetype: Archetype) -> None:
    """Losses of a sample: of references with and without it, with fitted normals, and of replicas."""
    everything = np.concatenate([archetype.loss_in, archetype.loss_out, archetype.loss_replicas])
    low, high = (
        (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 1.0)
    )
    margin = 0.15 * (high - low) or 0.1
    grid = np.linspace(low - margin, high + margin, 300)
    bins = np.linspace(low, high, 16) if high > low else np.array([low - margin, high + margin])
    sides: tuple[tuple[str, np.ndarray, str, plotting.Dash, float], ...] = (
        ("IN references (trained on it)", archetype.loss_in, plotting.MEMBER, "-", 0.135),
        ("OUT references (not trained on it)", archetype.loss_out, plotting.NONMEMBER, "--", 0.085),
    )
    for label, loss, color, dash, rug in sides:
        if not len(loss):
            continue
        axes.hist(loss, bins=bins.tolist(), density=True, color=color, alpha=0.22)
        if np.ptp(loss) > 0:
            density = stats.norm.pdf(grid, loss.mean(), loss.std(ddof=1))
            axes.plot(grid, density, color=color, linestyle=dash, label=label)
        _rug(axes, loss, rug, color)
    if len(archetype.loss_replicas):
        quarter, median, three = np.quantile(archetype.loss_replicas, [0.25, 0.5, 0.75])
        axes.axvspan(
            quarter,
            three,
            color=plotting.GREY,
            alpha=0.25,
            linewidth=0,
            label="Replicas: middle half",
        )
        axes.axvline(median, color=plotting.BLACK, linewidth=1.4, label="Replicas: median")
        _rug(axes, archetype.loss_replicas, 0.035, plotting.BLACK)
    top = axes.get_ylim()[1]
    axes.set(xlim=(grid[0], grid[-1]), ylim=(-0.2 * top, top), ylabel="Density")
    axes.set_yticks([])
    axes.axhline(0, color=plotting.GREY, linewidth=0.8)
    count = len(archetype.loss_replicas)
    kind = archetype.kind[:1].upper() + archetype.kind[1:]
    label = "" if archetype.kind.endswith("member") else f", a {archetype.label}"
    axes.set_title(
        f"{kind} (sample {archetype.sample}{label}): flip rate {archetype.flip_rate:.2f},\n"
        f"{archetype.votes} of {count} replicas say “member” at FPR {io.percent(archetype.fpr)}"
    )


def _rug(axes: Axes, loss: np.ndarray, height: float, color: str) -> None:
    """Ticks below the zero line, which is at a sixth of the panel; height in parts of the panel."""
    where = axes.get_xaxis_transform()
    axes.plot(loss, np.full(len(loss), height), "|", color=color, ms=7, mew=1.1, transform=where)
