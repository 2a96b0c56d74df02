"""Samples whose decision is clear or ambiguous, stable or unstable, with their losses (StrongMIA Figure 22)."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from analysis import io, plotting
from analysis.formatting import percent
from analysis.io import RecipeResults, Record


@dataclasses.dataclass(frozen=True)
class Archetype:
    """One sample with everything that its panel shows; losses in nats per token."""

    kind: str
    """Such as "ambiguous unstable"."""
    rule: str
    """The rule that the sample satisfies, as the first of the candidates."""
    candidates: int
    """The number of samples that satisfy the rule."""
    sample: int
    """The sample id."""
    member: bool
    fpr: float
    votes: int
    """The number of replicas that call the sample a member."""
    flip_rate: float
    separation: float
    """Difference of the means of IN and OUT losses, in standard deviations."""
    text: str
    """The beginning of its text."""
    loss_in: np.ndarray
    loss_out: np.ndarray
    loss_replicas: np.ndarray

    @property
    def label(self) -> str:
        """The class of the sample: "member" or "non-member"."""
        return "member" if self.member else "non-member"


def read_archetypes(recipe: RecipeResults) -> list[Archetype]:
    """Reads the samples of tables/archetypes.csv with their losses from tables/archetype_losses.csv."""
    losses = io.read_frame(recipe, "archetype_losses.csv")
    archetypes = []
    for row in (row for row in _read_rows(recipe) if not _is_unmatched(row)):
        of_kind = losses[losses["kind"] == row["kind"]]
        loss, is_reference = of_kind["loss_nats"].to_numpy(float), of_kind["role"] == "reference"
        is_member = of_kind["member"].astype(bool)
        archetypes.append(
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
    return archetypes


def read_unmatched_kinds(recipe: RecipeResults) -> list[Record]:
    """Reads the rows of tables/archetypes.csv whose rule no sample satisfies."""
    return [row for row in _read_rows(recipe) if _is_unmatched(row)]


def draw_archetypes(archetypes: Sequence[Archetype]) -> Figure:
    """Draws a panel per sample, one above the other."""
    figure = plotting.new_figure(6.2, 0.7 + 2.35 * len(archetypes))
    grid = figure.subplots(len(archetypes), 1, squeeze=False)
    for axes, archetype in zip(grid.flat, archetypes, strict=True):
        draw_panel(axes, archetype)
    grid[-1, 0].set_xlabel("Loss of the sample (nats per token)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _read_rows(recipe: RecipeResults) -> list[Record]:
    return io.read_table(recipe, "archetypes.csv")


def _is_unmatched(row: Record) -> bool:
    return math.isnan(row["id"])


def draw_panel(axes: Axes, archetype: Archetype) -> None:
    """Draws the losses of a sample under IN and OUT references, with fitted normals, and under replicas."""
    everything = np.concatenate([archetype.loss_in, archetype.loss_out, archetype.loss_replicas])
    low, high = (
        (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 1.0)
    )
    margin = 0.15 * (high - low) or 0.1
    grid = np.linspace(low - margin, high + margin, 300)
    bins = np.linspace(low, high, 16) if high > low else np.array([low - margin, high + margin])
    sides: tuple[tuple[str, np.ndarray, str, plotting.LineStyle, float], ...] = (
        ("IN references (trained on it)", archetype.loss_in, plotting.MEMBER, "-", 0.135),
        ("OUT references (not trained on it)", archetype.loss_out, plotting.NONMEMBER, "--", 0.085),
    )
    for label, loss, color, linestyle, rug_height in sides:
        if not len(loss):
            continue
        axes.hist(loss, bins=bins.tolist(), density=True, color=color, alpha=0.22)
        if np.ptp(loss) > 0:
            density = stats.norm.pdf(grid, loss.mean(), loss.std(ddof=1))
            axes.plot(grid, density, color=color, linestyle=linestyle, label=label)
        _draw_rug(axes, loss, rug_height, color)
    if len(archetype.loss_replicas):
        quarter, median, three_quarters = np.quantile(archetype.loss_replicas, [0.25, 0.5, 0.75])
        axes.axvspan(
            quarter,
            three_quarters,
            color=plotting.GREY,
            alpha=0.25,
            linewidth=0,
            label="Replicas: middle half",
        )
        axes.axvline(median, color=plotting.BLACK, linewidth=1.4, label="Replicas: median")
        _draw_rug(axes, archetype.loss_replicas, 0.035, plotting.BLACK)
    top = axes.get_ylim()[1]
    axes.set(xlim=(grid[0], grid[-1]), ylim=(-0.2 * top, top), ylabel="Density")
    axes.set_yticks([])
    axes.axhline(0, color=plotting.GREY, linewidth=0.8)
    count = len(archetype.loss_replicas)
    kind = archetype.kind[:1].upper() + archetype.kind[1:]
    label = "" if archetype.kind.endswith("member") else f", a {archetype.label}"
    axes.set_title(
        f"{kind} (sample {archetype.sample}{label}): flip rate {archetype.flip_rate:.2f},\n"
        f"{archetype.votes} of {count} replicas say “member” at FPR {percent(archetype.fpr)}"
    )


def _draw_rug(axes: Axes, loss: np.ndarray, height: float, color: str) -> None:
    """Draws ticks below the zero line, at a height in fractions of the panel; the zero line is at one sixth."""
    transform = axes.get_xaxis_transform()
    axes.plot(
        loss, np.full(len(loss), height), "|", color=color, ms=7, mew=1.1, transform=transform
    )
