"""Attacks drawn together: ROC curves on log-log axes, AUC and TPR against a quantity, with bands over targets."""

import dataclasses
import math
import string
from collections.abc import Sequence

import numpy as np
import pandas as pd
import roc as roc_figure
import style
import workdir
from claims import Claim, Estimate, untested
from drawn import Drawn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator
from measured import Absent, Attacked, Recipe, attacked, fewest_references, size_of

MOST_REFERENCES = 128
"""With which the paper attacks where it does not count references."""


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
    width = min(4.8 * columns, 12.4)
    figure = style.new_figure(width, 0.9 * width / columns * rows)
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
        label = f"{line.label} (AUC {auc_text(line.found)})"
        axes.plot(fpr_G[at], mean_G[at], color=color, linestyle=line.dash, label=label)
        low_G, high_G = np.maximum(mean_G - std_G, 1e-12), np.minimum(mean_G + std_G, 1)
        axes.fill_between(fpr_G[at], low_G[at], high_G[at], color=color, alpha=0.15, linewidth=0)
    roc_figure.finish(axes, lowest)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=8, handlelength=2, borderpad=0.3, labelspacing=0.3)


def draw_targets(axes: Axes, lines: Sequence[Line], title: str = "", low: float = 0.0) -> None:
    """A thin line a target, on given axes, from the lowest rate or ``low`` on, with the mean AUC."""
    [line] = lines
    fpr_G, tpr_TxG = line.found.curve
    lowest = [low]
    for tpr_G, shade in zip(tpr_TxG, style.shades(len(tpr_TxG)), strict=True):
        at = (fpr_G > 0) & (tpr_G > 0)
        if at.any():
            lowest.append(float(fpr_G[at].min()))
            axes.plot(fpr_G[at], tpr_G[at], color=shade, linewidth=1)
    roc_figure.finish(axes, lowest)
    axes.set_title(title)
    said, corner = f"AUC\n{auc_text(line.found)}", (0.97, 0.04)
    axes.text(*corner, said, size=8, ha="right", va="bottom", transform=axes.transAxes)


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
    axes.set_xscale("log")


def only(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """These ticks on the x axis, and no others."""
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in ticks])


def at_rates(axes: Axes, found: Sequence[tuple[Recipe, Attacked]], title: str = "") -> None:
    """TPR at fixed FPRs by the size of the model, a line a rate: those that a target of fewest samples can have."""
    fewest = min(recipe.samples for recipe, _ in found)
    rates = [f for f in found[0][0].config.attack.fprs if 1 / fewest <= f <= 0.2]
    x_K = [recipe.parameters for recipe, _ in found]
    lowest = 1.0
    for rate, color in zip(reversed(rates), reversed(style.shades(len(rates))), strict=True):
        tpr_KxT = [one.tpr_T(rate) for _, one in found]
        against(axes, x_K, tpr_KxT, f"FPR {workdir.percent(rate)}", color)
        lowest = min([lowest, *(float(t.mean()) for t in tpr_KxT if t.mean() > 0)])
    axes.set(yscale="log", ylim=(0.6 * lowest, 1), title=title)
    axes.set(xlabel="Parameters, without embeddings", ylabel="True positive rate")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if lowest > 0.01 else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    percent_axis(axes)
    labels = style.labelled(x_K)
    only(axes, [(r.parameters, size_of(r)) for r, _ in found if r.parameters in labels])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8.5, frameon=False)


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


def data(titled: Sequence[tuple[str, Sequence[Line]]]) -> pd.DataFrame:
    """The curves of panels: rows as of `Line.data`, with the panel."""
    return pd.concat([line.data().assign(panel=title) for title, lines in titled for line in lines])


def every_target(recipes: Sequence[Recipe]) -> Drawn:
    """A panel a recipe, by its size, a line a target."""
    some = alike(recipes)
    count = references(some)
    titled = [
        (
            f"({letter}) {size_of(recipe)}, {recipe.samples:,} samples",
            [Line(size_of(recipe), attacked(recipe, references=count))],
        )
        for letter, recipe in zip(string.ascii_lowercase, some, strict=False)
    ]
    frames = [by_target(line.found, size=line.label, references=count) for _, [line] in titled]
    return Drawn(
        data=pd.concat(frames, ignore_index=True),
        figure=panels(titled, columns=2 if len(titled) in (2, 4) else 3, every=True),
        notes=(f"A line is a target. Attacks use {count} references.",),
    )


def alike(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with the rows of the one that asks for fewest: as many references, and targets of the same seeds."""
    attacks = [recipe.config.attack for recipe in recipes]
    fewest = {
        "references": min(a.references for a in attacks),
        "targets": min(a.targets for a in attacks),
    }
    return [
        dataclasses.replace(
            recipe,
            config=dataclasses.replace(
                recipe.config, attack=dataclasses.replace(recipe.config.attack, **fewest)
            ),
        )
        for recipe in recipes
    ]


def paired(new: Recipe, old: Recipe) -> bool:
    """Whether the targets of two recipes are trained on the same subsets of one population."""
    subsets = [[target.subset_seed for target in recipe.rows[1]] for recipe in (new, old)]
    return new.population.sha256 == old.population.sha256 and subsets[0] == subsets[1]


def powers(recipe: Recipe) -> list[int]:
    """Numbers of references of a study: powers of two, and all that are there.

    From 2 on where variances are pooled (a sample needs one IN and one OUT reference), else from 4.
    """
    most, least = len(recipe.rows[0]), 2 if recipe.config.attack.variance == "pooled" else 4
    counts = sorted({least * 2**i for i in range(12) if least * 2**i <= most} | {most})
    if len(counts) < 2:
        raise Absent(
            f"{recipe.config.name}: {most} references are there, too few to study their number"
        )
    return counts


def references(recipes: Sequence[Recipe]) -> int:
    """How many references all recipes have, at most those of the paper."""
    return min(MOST_REFERENCES, fewest_references(recipes))


def auc_of(found: Attacked) -> tuple[float, float]:
    """Mean and deviation of the AUC over targets; NaN for the deviation of one."""
    several = len(found.auc_T) > 1
    return float(found.auc_T.mean()), float(found.auc_T.std()) if several else math.nan


def lowest_rate(recipe: Recipe) -> float:
    """The lowest FPR of the config at which ten non-members of a target are taken for members."""
    fprs = recipe.config.attack.fprs
    return min((f for f in fprs if f * recipe.samples >= 10), default=max(fprs))


def by_epoch(recipe: Recipe, needed: Sequence[float] = (1,)) -> dict[float, Attacked]:
    """LiRA after every epoch at which the rows were scored, with the references of the paper; Absent without some."""
    epochs = sorted({*recipe.config.score.at_epochs, float(recipe.config.train.epochs)})
    if lacking := [f"{epoch:g}" for epoch in needed if epoch not in epochs]:
        raise Absent(f"{recipe.config.name}: not scored after epoch {', '.join(lacking)}")
    count = references([recipe])
    return {e: attacked(recipe, references=count, step=recipe.step(e)) for e in epochs}


def both_ways(statement: str, steps: Sequence[tuple[str, Estimate]]) -> Claim:
    """Seen if one step is up and one is down, each with its whole interval."""
    said = "; ".join(f"{what}: {step}" for what, step in steps)
    if len(steps) < 2 or any(math.isnan(step.low) for _, step in steps):
        return untested(statement, said or "one recipe")
    up, down = any(s.low > 0 for _, s in steps), any(s.high < 0 for _, s in steps)
    return Claim(statement, "seen" if up and down else "not seen", said)


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


def auc_text(found: Attacked) -> str:
    """The mean over targets and its deviation, as text."""
    std = f" ± {found.auc_T.std():.3f}" if len(found.auc_T) > 1 else ""
    return f"{found.auc_T.mean():.3f}{std}"


def percent_axis(axes: Axes) -> None:
    """The y axis in percent."""
    axes.yaxis.set_major_formatter(lambda share, _: workdir.percent(share))
