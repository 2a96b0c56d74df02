"""Figures 15 and 32: losses over training, by the settings of the optimizer and by model size.

Also the figure of a run's own page: the training loss of every row of its tables against the step, from metrics.jsonl,
and beside it, where rows were validated, the loss of held-out samples.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy import stats

from analysis import attacks, formatting, io, plotting
from analysis.attacks import read_attack
from analysis.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
    difference,
    mean_estimate,
    recipe_difference,
)
from analysis.formatting import size_label
from analysis.io import MissingModelsError, RecipeResults, Record, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure
from lm_mia import config
from lm_mia.config.needs import LossNeed, Need
from lm_mia.data.subsets import ModelSeeds

_LOOKS: dict[str, tuple[str, str, Literal["-", "--"]]] = {
    "reference": ("References", plotting.BLUE, "-"),
    "replica": ("Replicas", plotting.ORANGE, "--"),
}
Curve = dict[int, float]


@dataclasses.dataclass(frozen=True)
class Log:
    """What metrics.jsonl says of the rows of the tables; other rows and recipes are left out."""

    curves: dict[str, tuple[str, Curve]]
    steps: int
    """Of a row's training; 0 if the log does not say."""
    trained: list[Record]
    """Events model_trained, in order."""
    scored: list[Record]
    """Events model_scored of the ends of rows, in order."""
    validation: dict[str, tuple[str, Curve]]
    """As curves, of the held-out samples; no rows if none were validated."""


def read_log(folder: Path) -> Log:
    """The log of a recipe."""
    facts = io.read_flip_facts(folder)
    order = [*facts["reference_models"], *facts["replica_models"]]
    names = set(order)
    train, trained, scored, validated = (
        [e for e in io.read_events(folder, kind) if e.get("model") in names]
        for kind in ("train", "model_trained", "model_scored", "validation")
    )
    scored = [e for e in scored if e.get("last", True)]
    steps = [e["steps"] for e in train if isinstance(e.get("steps"), int)]
    # in the order of the models, since that of the log depends on which worker was faster
    losses, validation = (
        {name: found[name] for name in order if name in found}
        for found in (curves(train), curves(validated, "validation_loss_nats"))
    )
    return Log(losses, steps[-1] if steps else 0, trained, scored, validation)


def curves(events: Iterable[Record], value: str = "loss_nats") -> dict[str, tuple[str, Curve]]:
    """(role, a value by step) of every row's last training.

    A step that is not after all before it was logged by a later training, begun anew or resumed: what the earlier one
    said of this step and of those after it no longer counts.
    """
    found: dict[str, tuple[str, Curve]] = {}
    for event in events:
        try:
            row, step, loss = str(event["model"]), int(event["step"]), float(event[value])
        except (KeyError, TypeError, ValueError):
            continue
        role, before = found.get(row, (str(event.get("role", "")), {}))
        found[row] = role, {s: old for s, old in before.items() if s < step} | {step: loss}
    return found


def medians(log: Log) -> dict[str, float]:
    """Medians over models, of those that the log has.

    Returns:
      "first_loss" and "last_loss", the training loss of the first and the last logged step; "seconds" of a training;
      "member_loss" and "nonmember_loss", mean losses on members and on non-members after training. Losses are in nats
      per token.
    """
    curves = [curve for _, curve in log.curves.values()]
    whole = [e for e in log.trained if not e.get("resumed_at")]  # others time only what was left
    values = {
        "first_loss": [curve[min(curve)] for curve in curves],
        "last_loss": [curve[max(curve)] for curve in curves],
        "seconds": _last_values(whole, "seconds"),
        "member_loss": _last_values(log.scored, "member_loss_nats"),
        "nonmember_loss": _last_values(log.scored, "nonmember_loss_nats"),
    }
    return {name: float(np.median(found)) for name, found in values.items() if found}


def _last_values(events: Sequence[Record], field: str) -> list[float]:
    """The last value that each model reported."""
    values = {
        str(e.get("model")): e[field] for e in events if isinstance(e.get(field), int | float)
    }
    return list(values.values())


def draw_losses(
    lines: Mapping[str, tuple[str, Curve]],
    epoch_steps: float = 0,
    validation: Mapping[str, tuple[str, Curve]] | None = None,
) -> Figure:
    """Thin lines, one a row; dotted lines where an epoch ends, if its length in steps is given.

    With validation losses there are two panels of one scale, training on the left.
    """
    panels = [("Training loss (nats a token)", lines)]
    if validation:
        panels.append(("Validation loss (nats a token)", validation))
    figure = plotting.new_figure(6.2 if len(panels) == 1 else 9.6, 3.8)
    found = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    for axes, (label, rows_of) in zip(found, panels, strict=True):
        _lines(axes, rows_of, epoch_steps)
        axes.set(xlabel="Step", ylabel=label)
        axes.yaxis.set_tick_params(labelleft=True)
    return figure


def _lines(axes: Axes, lines: Mapping[str, tuple[str, Curve]], epoch_steps: float) -> None:
    """One panel."""
    counts: dict[str, int] = {}
    last = max(max(curve) for _, curve in lines.values())
    for row in sorted(lines):
        role, curve = lines[row]
        _, color, dash = _LOOKS.get(role, (role, plotting.GREY, "-"))
        steps = sorted(curve)
        axes.plot(
            steps,
            [curve[s] for s in steps],
            color=color,
            linestyle=dash,
            linewidth=0.8,
            marker="." if len(steps) == 1 else "",  # a line of one point would not be seen
            alpha=0.55,
        )
        counts[role] = counts.get(role, 0) + 1
    if epoch_steps > 0 and last / epoch_steps <= 40:
        for epoch in range(1, int(last / epoch_steps + 1e-9) + 1):
            axes.axvline(epoch * epoch_steps, color=plotting.GREY, linestyle=":", linewidth=0.8)
    handles = []
    for role in counts:
        label, color, dash = _LOOKS.get(role, (role or "Rows", plotting.GREY, "-"))
        handles.append(
            Line2D([], [], color=color, linestyle=dash, label=f"{label} ({counts[role]})")
        )
    axes.legend(handles=handles, loc="upper right")


def recipe_figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None if the log has no training events of its rows."""
    log = read_log(folder)
    if not log.curves:
        return {"training": None}
    epochs = io.read_run_record(folder)["config"]["train"]["epochs"]
    return {"training": draw_losses(log.curves, log.steps / epochs, log.validation)}


# Figure 15: validation loss of each size over its training, and LiRA by the settings of the optimizer.
FIG15_STATEMENTS = (
    "Every step up in size ends with a lower validation loss.",
    "The AUC hardly depends on these settings of the optimizer.",
)
SCHEDULES: dict[str, tuple[str, str, plotting.LineStyle]] = {
    "main": ("Cosine", plotting.BLUE, "-"),
    "schedule-linear": ("Linear", plotting.ORANGE, "--"),
    "schedule-nodecay": ("Cosine, no weight decay", plotting.GREEN, "-."),
    "schedule-noclip": ("Cosine, no clipping", plotting.VERMILLION, "--"),
}
MARGIN = 0.03


def draw_fig15(recipes: SweepResults) -> FigureResult:
    """(a) Mean loss over rows with a band, a line a size. (b) Curves."""
    sizes = attacks.with_equal_models([recipe for _, recipe in recipes.family("chinchilla")])
    losses = {recipe: validation(recipe) for recipe in sizes}
    losses = {recipe: loss for recipe, loss in losses.items() if len(loss)}
    some = attacks.with_equal_models([recipes[name] for name in SCHEDULES])
    count = attacks.common_references(some)
    found = [read_attack(recipe, references=count) for recipe in some]
    lines = [
        plotting.RocCurve(label, one, color, dash)
        for (label, color, dash), one in zip(SCHEDULES.values(), found, strict=True)
    ]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    for (recipe, loss), shade in zip(losses.items(), plotting.shades(len(losses)), strict=True):
        _draw_loss(left, loss, f"{size_label(recipe)}, {recipe.samples:,} samples", shade)
    left.set(xlabel="Share of training", ylabel="Validation loss (nats a token)")
    left.set_title("(a) Compute-optimal training")
    if losses:
        left.legend(fontsize=8.5)
    plotting.draw_roc(right, lines, f"(b) LiRA at {size_label(some[0])}")
    table = [frame.assign(panel="a", series=size_label(recipe)) for recipe, frame in losses.items()]
    return FigureResult(
        data=pd.concat([*table, *(line.to_frame().assign(panel="b") for line in lines)]),
        figure=figure,
        claims=(_lower(losses), _same(some, count)),
        ours={name: plotting.auc_mean_std(one) for name, one in zip(SCHEDULES, found, strict=True)},
        notes=(
            f"Attacks use {count} references. Bands of (a) are one standard deviation over rows; each size is "
            "validated on samples of its own, whose choice is not in the interval. "
            f"Sizes with validation losses: {len(losses)} of {len(sizes)}.",
            plotting.curves_note(lines),
        ),
    )


def validation(recipe: RecipeResults) -> pd.DataFrame:
    """Rows (row, share, loss_nats): the validation losses of references and targets over their training, if any."""
    names = {str(model) for model in (*recipe.references, *recipe.targets)}
    events = [e for e in io.read_events(recipe.recipe_dir, "validation") if e.get("model") in names]
    total = config.total_steps(recipe.config)
    found = [
        {"row": row, "share": step / total, "loss_nats": loss}
        for row, (_, curve) in curves(events, "validation_loss_nats").items()
        for step, loss in sorted(curve.items())
    ]
    return pd.DataFrame(found, columns=["row", "share", "loss_nats"])


def _draw_loss(axes: Axes, loss: pd.DataFrame, label: str, color: str | tuple[float, ...]) -> None:
    by_share = loss.groupby("share")["loss_nats"]
    mean_K, std_K = by_share.mean(), by_share.std(ddof=0)
    axes.plot(mean_K.index, mean_K, color=color, label=label, marker="o", markersize=3)
    axes.fill_between(
        mean_K.index, mean_K - std_K, mean_K + std_K, color=color, alpha=0.2, linewidth=0
    )


def _lower(losses: Mapping[RecipeResults, pd.DataFrame]) -> Claim:
    """Every size against the next; rows are of different data, so that they are not paired."""
    if len(losses) < 2:
        return claim_untested(FIG15_STATEMENTS[0], f"{len(losses)} sizes have validation losses")
    ends = [
        (size_label(recipe), loss.loc[loss["share"] == 1, "loss_nats"].to_numpy())
        for recipe, loss in losses.items()
    ]
    steps = [
        claim_greater(
            "",
            f"validation loss at {small} less at {large}",
            difference(x_R, y_R, paired=False, over="rows"),
        )
        for (small, x_R), (large, y_R) in pairwise(ends)
    ]
    return claim_all(FIG15_STATEMENTS[0], steps)


def _same(some: Sequence[RecipeResults], count: int) -> Claim:
    _, *labels = (label for label, *_ in SCHEDULES.values())
    parts = [
        claim_equivalent(
            "",
            f"AUC, {label.lower()}, less cosine",
            recipe_difference(recipe, some[0], count),
            MARGIN,
        )
        for label, recipe in zip(labels, some[1:], strict=True)
    ]
    return claim_all(FIG15_STATEMENTS[1], parts)


# Figure 32: losses of three samples under IN and OUT references and a target, by model size.
FIG32_STATEMENTS = ("The mean loss of the same samples falls with every step up in size.",)
_SIZES = ("10M", "44M", "85M", "140M", "302M")
LOSS_COLUMNS = ("sample", "model", "loss_nats", "member", "mean_loss_nats")
_FROM_END = (5, 4, 3)
"""The paper's samples: 16,777,211 to 16,777,213 of 2^24."""
_BINS = 10
_CLASSES = (("IN", True, plotting.MEMBER), ("OUT", False, plotting.NONMEMBER))


@dataclasses.dataclass(frozen=True)
class Losses:
    """What models of one size say of three samples; R: references, and last the target."""

    size: str
    loss_Rx3: np.ndarray
    """Nats a token."""
    member_Rx3: np.ndarray
    mean_R: np.ndarray
    """Over all samples of the population."""


def draw_fig32(recipes: SweepResults) -> FigureResult:
    """A row a size and a column a sample: histograms of reference losses with normals, and the target's loss."""
    family = attacks.with_equal_models([r for size, r in recipes.family("fixed") if size in _SIZES])
    references, target = _shared_rows(family)
    rows, ids_3 = [*references, target], len(family[0].population) - np.array(_FROM_END)
    found = [_losses(recipe, rows, ids_3) for recipe in family]
    data = [
        pd.DataFrame(
            {"size": of.size, "sample": sample, "row": list(map(str, rows))}
            | {"loss": of.loss_Rx3[:, k], "member": of.member_Rx3[:, k]}
            | {"mean_loss": of.mean_R}
        )
        for of in found
        for k, sample in enumerate(ids_3)
    ]
    falls = [
        claim_greater(
            "",
            f"mean loss of all samples under {a.size} less that under {b.size}, nats a token",
            mean_estimate(a.mean_R[:-1] - b.mean_R[:-1], "pairs of references"),
        )
        for a, b in pairwise(found)
    ]
    return FigureResult(
        data=pd.concat(data),
        figure=_fig32_figure(found, ids_3),
        claims=(claim_all(FIG32_STATEMENTS[0], falls),),
        notes=(
            f"Bars and normals are of the losses under {len(references)} references, trained on the sample (IN) or not "
            f"(OUT); the dashed line is the loss under {target}, which is none of them.",
            "References of two sizes with the same subset are a pair.",
        ),
    )


def _shared_rows(family: Sequence[RecipeResults]) -> tuple[list[ModelSeeds], ModelSeeds]:
    """(references, one target) that all sizes have; MissingModelsError without them."""
    if lacking := [r.name for r in family if len(r.references) < 4 or not r.targets]:
        raise MissingModelsError(f"too few references or no target of {', '.join(lacking)}")
    references = family[0].references[: io.fewest_references(family)]
    target = family[0].targets[0]
    if any(not {*references, target} <= {*r.references, *r.targets} for r in family):
        raise MissingModelsError("fixed-...: rows of some sizes are of other subsets, or absent")
    return references, target


def _losses(recipe: RecipeResults, rows: Sequence[ModelSeeds], ids_3: np.ndarray) -> Losses:
    """Reads tables/sample_losses.csv; MissingModelsError if it lacks some of the models or samples."""
    if not io.has_table(recipe.recipe_dir, "sample_losses.csv"):
        raise MissingModelsError(
            f"{recipe.name}: no losses of samples; run lm-mia attack with this figure"
        )
    lines = pd.DataFrame(io.read_table(recipe.recipe_dir, "sample_losses.csv", LOSS_COLUMNS))
    by_model = lines.pivot(index="model", columns="sample")
    try:
        loss, member, mean = (by_model[n].loc[[*map(str, rows)], ids_3] for n in LOSS_COLUMNS[2:])
    except KeyError:
        raise MissingModelsError(
            f"{recipe.name}: its tables lack losses of some models or samples; run lm-mia attack with this figure"
        ) from None
    return Losses(
        formatting.size_label(recipe),
        loss.to_numpy(float),
        member.to_numpy(bool),
        mean.to_numpy(float)[:, 0],
    )


def _fig32_figure(found: Sequence[Losses], ids_3: np.ndarray) -> Figure:
    figure = plotting.new_figure(9.6, 0.9 + 1.65 * len(found))
    grid = figure.subplots(len(found), 3, squeeze=False)
    for of, row in zip(found, grid, strict=True):
        for k, axes in enumerate(row):
            _panel(axes, of.loss_Rx3[:, k], of.member_Rx3[:, k])
        row[0].set_ylabel(of.size)
    for k, (axes, sample) in enumerate(zip(grid[0], ids_3, strict=True)):
        known = "member" if found[0].member_Rx3[-1, k] else "non-member"
        axes.set_title(f"Sample {sample:,}, {known}")
    figure.supxlabel("Loss (nats a token)", fontsize="medium")
    figure.supylabel("Reference models of a size (density)", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, loss_R: np.ndarray, member_R: np.ndarray) -> None:
    *_, target = loss_R
    loss_M, member_M = loss_R[:-1], member_R[:-1]
    margin = 0.15 * (np.ptp(loss_R) or 1)
    x_G = np.linspace(loss_R.min() - margin, loss_R.max() + margin, 200)
    edges = np.linspace(loss_M.min(), loss_M.max(), _BINS + 1)
    for label, kind, color in _CLASSES:
        some = loss_M[member_M == kind]
        axes.hist(some, edges, density=True, color=color, alpha=0.35, label=f"{label} references")
        if len(some) > 1 and some.std():
            axes.plot(x_G, stats.norm.pdf(x_G, some.mean(), some.std(ddof=1)), color=color)
    axes.axvline(target, color=plotting.BLACK, linestyle="--", linewidth=1.5, label="target")
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5))


FIGURES = {
    "fig15_schedules": PaperFigure(
        title="Figure 15: Validation loss, and LiRA by optimizer settings",
        paper=(
            "Larger models on their compute-optimal data have lower validation losses. Of 140M models of 7M samples "
            "the AUC is 0.675 with the cosine schedule, 0.676 with a linear one, 0.673 without weight decay and "
            "0.660 without clipping: the differences are small (Appendix C)."
        ),
        expect=(
            "The validation losses have the same order at cpu, and the schedules differ little. Training without "
            "clipping stands out, as in the paper."
        ),
        statements=FIG15_STATEMENTS,
        draw=draw_fig15,
        needs=(Need(tuple(SCHEDULES), jackknife=True),),
    ),
    "fig32_losses_by_size": PaperFigure(
        title="Figure 32: Losses of three samples by model size",
        paper=(
            "The loss of a sample falls as the model grows from 10M to 302M, on the same 2^23 training samples, "
            "while the IN and OUT distributions of these three samples stay about as far apart (Appendix F.2)."
        ),
        expect=(
            "At cpu the loss falls from the smallest to the largest model. It does not fall from 44M to 140M, which "
            "there are one and two layers of width 64 and are trained for 192 steps. With 16 IN and 16 OUT "
            "references the histograms are coarse."
        ),
        statements=FIG32_STATEMENTS,
        draw=draw_fig32,
        needs=(LossNeed(tuple(f"fixed-{size}" for size in _SIZES), _FROM_END),),
    ),
}
