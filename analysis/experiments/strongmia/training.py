"""Figures 15 and 32: losses during training, by optimizer settings and by model size.

Also a figure of a recipe: the training loss of every attacked model against the step, from the log of the workdir,
and, if models were validated, the loss of held-out samples beside it. R: models.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.stats import norm

from analysis import attacks, formatting, io, plotting
from analysis.attacks import read_attack, recipe_difference
from analysis.claims.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
    independent_difference,
)
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.formatting import size_label
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import config, stats
from lm_mia.attacks.spec import LossNeed, Need, Variant
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

_STYLES: dict[str, tuple[str, str, Literal["-", "--"]]] = {
    "reference": ("References", plotting.BLUE, "-"),
    "replica": ("Replicas", plotting.ORANGE, "--"),
    "target": ("Targets", plotting.ORANGE, "--"),
}
Curve = dict[int, float]
"""A loss in nats per token by training step."""


@dataclasses.dataclass(frozen=True)
class Log:
    """The training of the attacked models of a recipe, from the log of the workdir."""

    curves: dict[str, tuple[str, Curve]]
    """Role and training loss of each model, by its name."""
    steps: int
    """The number of training steps of a model; 0 if unknown."""
    trained: list[Record]
    """Events model_trained, in order."""
    validation: dict[str, tuple[str, Curve]]
    """As `curves`, for the held-out samples; empty without validation."""


def read_log(recipe: RecipeResults) -> Log:
    """Reads the log of a recipe."""
    role = _roles(recipe)
    train, trained, validated = (
        [
            Record({**e, "role": role[e["model"]]})
            for e in io.read_events(recipe, kind)
            if e.get("model") in role
        ]
        for kind in ("train", "model_trained", "validation")
    )
    steps = [e["steps"] for e in train if isinstance(e.get("steps"), int)]
    # In the order of the models: that of the log depends on the speed of the workers.
    losses, validation = (
        {name: by_model[name] for name in role if name in by_model}
        for by_model in (curves(train), curves(validated, "validation_loss_nats"))
    )
    return Log(losses, steps[-1] if steps else 0, trained, validation)


def _roles(recipe: RecipeResults) -> dict[str, str]:
    """Returns the role of each model that takes part in the attacks, by its name, in their order.

    With replicas, targets are references too.
    """
    if recipe.view.has("flips.json"):
        facts = recipe.view.facts("flips")
        kinds = {role: facts[f"{role}_models"] for role in ("reference", "replica")}
    else:
        kinds = {"reference": recipe.references, "target": recipe.targets}
    return {str(model): role for role, models in kinds.items() for model in models}


def curves(events: Iterable[Record], value: str = "loss_nats") -> dict[str, tuple[str, Curve]]:
    """Returns the role and the values by step of the last training of each model.

    A step that does not follow the steps before it comes from a later training, restarted or resumed. It replaces what
    the earlier training logged at this step and after it.
    """
    by_model: dict[str, tuple[str, Curve]] = {}
    for event in events:
        try:
            model, step, loss = str(event["model"]), int(event["step"]), float(event[value])
        except (KeyError, TypeError, ValueError):
            continue
        role, earlier = by_model.get(model, (str(event.get("role", "")), {}))
        by_model[model] = (
            role,
            {s: value for s, value in earlier.items() if s < step} | {step: loss},
        )
    return by_model


def medians(recipe: RecipeResults) -> dict[str, float]:
    """Returns medians over the attacked models of a recipe; values that its log lacks are left out.

    Returns:
      "first_loss" and "last_loss", the training loss at the first and the last logged step; "seconds" of training;
      "member_loss" and "nonmember_loss", the mean losses on members and on non-members after training. Losses are in
      nats per token.
    """
    log = read_log(recipe)
    curves = [curve for _, curve in log.curves.values()]
    # Models that were scored at the attacked step may lack their scores at the end of training.
    losses = io.read_mean_losses(recipe).reindex([*_roles(recipe)]).dropna()
    # Resumed ones are partly timed.
    uninterrupted = [e for e in log.trained if not e.get("resumed_at")]
    values = {
        "first_loss": [curve[min(curve)] for curve in curves],
        "last_loss": [curve[max(curve)] for curve in curves],
        "seconds": _last_values(uninterrupted, "seconds"),
        "member_loss": losses["member_loss_nats"],
        "nonmember_loss": losses["nonmember_loss_nats"],
    }
    return {name: float(np.median(numbers)) for name, numbers in values.items() if len(numbers)}


def _last_values(events: Sequence[Record], field: str) -> list[float]:
    """Returns the last value that each model reported."""
    values = {
        str(e.get("model")): e[field] for e in events if isinstance(e.get(field), int | float)
    }
    return list(values.values())


def draw_losses(
    lines: Mapping[str, tuple[str, Curve]],
    epoch_steps: float = 0,
    validation: Mapping[str, tuple[str, Curve]] | None = None,
) -> Figure:
    """Draws a thin line per model, with dotted lines at the ends of epochs.

    Args:
      lines: role and training loss of each model, by its name.
      epoch_steps: the number of steps per epoch; 0 if unknown.
      validation: as lines, for the validation losses; they get a second panel with the same scale.
    """
    panels = [("Training loss (nats per token)", lines)]
    if validation:
        panels.append(("Validation loss (nats per token)", validation))
    figure = plotting.new_figure(6.2 if len(panels) == 1 else 9.6, 3.8)
    grid = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    for axes, (label, panel_lines) in zip(grid, panels, strict=True):
        _draw_lines(axes, panel_lines, epoch_steps)
        axes.set(xlabel="Step", ylabel=label)
        axes.yaxis.set_tick_params(labelleft=True)
    return figure


def _draw_lines(axes: Axes, lines: Mapping[str, tuple[str, Curve]], epoch_steps: float) -> None:
    counts: dict[str, int] = {}
    last = max(max(curve) for _, curve in lines.values())
    for model in sorted(lines):
        role, curve = lines[model]
        _, color, dash = _STYLES.get(role, (role, plotting.GREY, "-"))
        steps = sorted(curve)
        axes.plot(
            steps,
            [curve[s] for s in steps],
            color=color,
            linestyle=dash,
            linewidth=0.8,
            marker="." if len(steps) == 1 else "",  # a line with a single point would be invisible
            alpha=0.55,
        )
        counts[role] = counts.get(role, 0) + 1
    if epoch_steps > 0 and last / epoch_steps <= 40:
        for epoch in range(1, int(last / epoch_steps + 1e-9) + 1):
            axes.axvline(epoch * epoch_steps, color=plotting.GREY, linestyle=":", linewidth=0.8)
    handles = []
    for role in counts:
        label, color, dash = _STYLES.get(role, (role or "Models", plotting.GREY, "-"))
        handles.append(
            Line2D([], [], color=color, linestyle=dash, label=f"{label} ({counts[role]})")
        )
    axes.legend(handles=handles, loc="upper right")


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if the log has no training events of its models."""
    log = read_log(recipe)
    if not log.curves:
        return {"training": None}
    epochs = recipe.config.train.epochs
    return {"training": draw_losses(log.curves, log.steps / epochs, log.validation)}


# Figure 15: validation loss of each size during training, and LiRA by optimizer settings.
FIG15_STATEMENTS = (
    "Every step up in size ends with a lower validation loss.",
    "The AUC hardly depends on these optimizer settings.",
)
SCHEDULES: dict[str, tuple[str, str, plotting.LineStyle]] = {
    "main": ("Cosine", plotting.BLUE, "-"),
    "schedule-linear": ("Linear", plotting.ORANGE, "--"),
    "schedule-nodecay": ("Cosine, no weight decay", plotting.GREEN, "-."),
    "schedule-noclip": ("Cosine, no clipping", plotting.VERMILLION, "--"),
}
MARGIN = 0.03


def draw_fig15(recipes: SweepResults) -> Drawing:
    """Draws (a) the mean validation loss over models per size and (b) ROC curves per optimizer setting."""
    sizes = attacks.with_equal_models([recipe for _, recipe in recipes.family("chinchilla")])
    losses = {recipe: read_validation(recipe) for recipe in sizes}
    losses = {recipe: loss for recipe, loss in losses.items() if len(loss)}
    recipes_by_schedule = attacks.with_equal_models([recipes[name] for name in SCHEDULES])
    count = attacks.common_references(recipes_by_schedule)
    results = [read_attack(recipe, Variant(references=count)) for recipe in recipes_by_schedule]
    curves = [
        plotting.RocCurve(label, result, color, dash)
        for (label, color, dash), result in zip(SCHEDULES.values(), results, strict=True)
    ]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    for (recipe, loss), shade in zip(losses.items(), plotting.shades(len(losses)), strict=True):
        _draw_loss(left, loss, f"{size_label(recipe)}, {recipe.samples:,} samples", shade)
    left.set(xlabel="Share of training", ylabel="Validation loss (nats per token)")
    left.set_title("(a) Compute-optimal training")
    if losses:
        left.legend(fontsize=8.5)
    plotting.draw_roc(right, curves, f"(b) LiRA at {size_label(recipes_by_schedule[0])}")
    table = [frame.assign(panel="a", series=size_label(recipe)) for recipe, frame in losses.items()]
    return Drawing(
        data=pd.concat([*table, *(curve.to_frame().assign(panel="b") for curve in curves)]),
        figure=figure,
        claims=(_claim_lower(losses), _claim_same(recipes_by_schedule, count)),
        ours={
            name: plotting.auc_mean_std(result)
            for name, result in zip(SCHEDULES, results, strict=True)
        },
        notes=(
            f"Attacks use {count} references. Bands of (a) are one standard deviation over models; each size is "
            "validated on its own samples. "
            f"Sizes with validation losses: {len(losses)} of {len(sizes)}.",
            plotting.curves_note(curves),
        ),
    )


def read_validation(recipe: RecipeResults) -> pd.DataFrame:
    """Returns rows (model, share, loss_nats): validation losses of references and targets during training, if any."""
    names = {str(model) for model in (*recipe.references, *recipe.targets)}
    events = [e for e in io.read_events(recipe, "validation") if e.get("model") in names]
    total = config.total_steps(recipe.config)
    rows = [
        {"model": model, "share": step / total, "loss_nats": loss}
        for model, (_, curve) in curves(events, "validation_loss_nats").items()
        for step, loss in sorted(curve.items())
    ]
    return pd.DataFrame(rows, columns=["model", "share", "loss_nats"])


def _draw_loss(axes: Axes, loss: pd.DataFrame, label: str, color: str | tuple[float, ...]) -> None:
    by_share = loss.groupby("share")["loss_nats"]
    mean_K, std_K = by_share.mean(), by_share.std(ddof=0)
    axes.plot(mean_K.index, mean_K, color=color, label=label, marker="o", markersize=3)
    axes.fill_between(
        mean_K.index, mean_K - std_K, mean_K + std_K, color=color, alpha=0.2, linewidth=0
    )


def _claim_lower(losses: Mapping[RecipeResults, pd.DataFrame]) -> Claim:
    """Compares each size with the next; models have different data, so they are not paired."""
    if len(losses) < 2:
        return claim_untested(FIG15_STATEMENTS[0], f"{len(losses)} sizes have validation losses")
    ends = [
        (size_label(recipe), loss.loc[loss["share"] == 1, "loss_nats"].to_numpy())
        for recipe, loss in losses.items()
    ]
    steps = [
        claim_greater(
            "",
            f"Validation loss at {small} minus at {large}",
            independent_difference(x_R, y_R, "models", ("the validation samples",)),
        )
        for (small, x_R), (large, y_R) in pairwise(ends)
    ]
    return claim_all(FIG15_STATEMENTS[0], steps)


def _claim_same(recipes: Sequence[RecipeResults], count: int) -> Claim:
    _, *labels = (label for label, *_ in SCHEDULES.values())
    parts = [
        claim_equivalent(
            "",
            f"AUC, {label.lower()} minus cosine",
            recipe_difference(recipe, recipes[0], count),
            MARGIN,
        )
        for label, recipe in zip(labels, recipes[1:], strict=True)
    ]
    return claim_all(FIG15_STATEMENTS[1], parts)


# Figure 32: losses of three samples under IN and OUT references and one target, by model size.
FIG32_STATEMENTS = (
    "The mean loss of the same samples falls with every step up in size.",
    "For these samples the distance between the IN and OUT losses does not shift with the size.",
)
SHIFT_MARGIN = 0.5
"""What "does not shift" means: by less than half a standard deviation of the losses, on average over the samples."""
_SIZES = ("10M", "44M", "85M", "140M", "302M")
MEAN_COLUMNS = (
    "mean_loss_nats",
    *(f"mean_loss_nats_half_{h}" for h in range(len(stats.HALVES_HxG))),
)
LOSS_COLUMNS = ("sample", "model", "loss_nats", "member", *MEAN_COLUMNS)
_FROM_END = (5, 4, 3)
"""The paper's samples: 16,777,211 to 16,777,213 of 2^24."""
_BINS = 10
_CLASSES = (("IN", True, plotting.MEMBER), ("OUT", False, plotting.NONMEMBER))


@dataclasses.dataclass(frozen=True)
class Losses:
    """The losses of three samples under the models of one size; R: the references, then the target."""

    size: str
    loss_Rx3: np.ndarray
    """Nats a token."""
    member_Rx3: np.ndarray
    mean_RxH1: np.ndarray
    """The mean loss over all samples of the population, and over each half of the samples."""

    @property
    def mean_loss(self) -> Jackknife:
        """The mean loss over all samples and references."""
        mean_Mx1xH1 = self.mean_RxH1[:-1, None]
        return Jackknife.from_targets(mean_Mx1xH1, f"{len(mean_Mx1xH1)} references and the samples")

    @property
    def distance(self) -> Jackknife:
        """The mean over the three samples of `in_out_distance`.

        The interval is over the references. It need not cover the samples, since the paper's statement is about these.
        """
        loss_Mx3, member_Mx3 = self.loss_Rx3[:-1], self.member_Rx3[:-1]
        without = [np.arange(len(loss_Mx3)) != r for r in range(len(loss_Mx3))]
        values = [in_out_distance(loss_Mx3, member_Mx3)]
        values += [in_out_distance(loss_Mx3[kept_M], member_Mx3[kept_M]) for kept_M in without]
        return Jackknife(np.array(values)[:, None, None], f"{len(loss_Mx3)} references")


def draw_fig32(recipes: SweepResults) -> Drawing:
    """Draws a row per size and a column per sample: reference losses with fitted normals, and the target's loss."""
    family = attacks.with_equal_models([r for size, r in recipes.family("fixed") if size in _SIZES])
    references, target = _shared_models(family)
    models, ids_3 = [*references, target], len(family[0].population) - np.array(_FROM_END)
    losses_by_size = [_read_losses(recipe, models, ids_3) for recipe in family]
    data = [
        pd.DataFrame(
            {"size": losses.size, "sample": sample, "model": list(map(str, models))}
            | {"loss": losses.loss_Rx3[:, k], "member": losses.member_Rx3[:, k]}
            | {"mean_loss": losses.mean_RxH1[:, 0]}
        )
        for losses in losses_by_size
        for k, sample in enumerate(ids_3)
    ]
    falls = [
        claim_greater(
            "",
            f"Mean loss of all samples in nats per token, {a.size} minus {b.size}",
            (a.mean_loss - b.mean_loss).estimate(),
        )
        for a, b in pairwise(losses_by_size)
    ]
    return Drawing(
        data=pd.concat(data),
        figure=_fig32_figure(losses_by_size, ids_3),
        claims=(claim_all(FIG32_STATEMENTS[0], falls), _claim_distance(losses_by_size)),
        notes=(
            f"Histograms and normals show the losses under {len(references)} references, trained on the sample (IN) or "
            f"not (OUT); the dashed line is the loss under the target {target}.",
            "References of two sizes with the same training subset are paired.",
            "A distance is the OUT mean minus the IN mean, divided by their pooled standard deviation. "
            f"“Does not shift” means by less than {SHIFT_MARGIN:g} from the smallest to the largest size, on average "
            "over the three samples; this margin is our choice.",
        ),
    )


def _claim_distance(losses_by_size: Sequence[Losses]) -> Claim:
    """Compares the distance between the IN and OUT losses at the largest and at the smallest size."""
    small, large = losses_by_size[0], losses_by_size[-1]
    if small is large:
        return claim_untested(FIG32_STATEMENTS[1], "there is only one size")
    shift = large.distance - small.distance
    return claim_equivalent(
        FIG32_STATEMENTS[1],
        f"Distance between the IN and OUT losses in standard deviations, {large.size} minus {small.size}",
        shift.estimate(),
        SHIFT_MARGIN,
    )


def in_out_distance(loss_Mx3: np.ndarray, member_Mx3: np.ndarray) -> float:
    """Returns the OUT mean minus the IN mean, divided by their pooled standard deviation, averaged over samples.

    NaN if a sample has fewer than two IN or OUT references, or all its losses are equal.
    """
    distances = []
    for loss_M, member_M in zip(loss_Mx3.T, member_Mx3.T, strict=True):
        classes = loss_M[member_M], loss_M[~member_M]
        if min(map(len, classes)) < 2:
            return float("nan")
        squares = sum(float(((x - x.mean()) ** 2).sum()) for x in classes)
        if not squares:
            return float("nan")
        distances.append(
            (classes[1].mean() - classes[0].mean()) / np.sqrt(squares / (len(loss_M) - 2))
        )
    return float(np.mean(distances))


def _shared_models(family: Sequence[RecipeResults]) -> tuple[list[ModelSeeds], ModelSeeds]:
    """Returns the references and one target that all sizes have; raises Unavailable if there are none."""
    if lacking := [r.name for r in family if len(r.references) < 4 or not r.targets]:
        raise Unavailable(
            f"too few references or no target of {', '.join(lacking)}; run lm-mia run"
        )
    references = family[0].references[: io.fewest_references(family)]
    target = family[0].targets[0]
    if any(not {*references, target} <= {*r.references, *r.targets} for r in family):
        raise Unavailable(
            "fixed-...: models of some sizes are missing or have other training subsets; run lm-mia run"
        )
    return references, target


def _read_losses(recipe: RecipeResults, models: Sequence[ModelSeeds], ids_3: np.ndarray) -> Losses:
    """Reads tables/sample_losses.csv; raises Unavailable if models or samples are missing."""
    if not recipe.view.has("sample_losses.csv"):
        raise Unavailable(
            f"{recipe.name}: there are no losses of samples; run lm-mia attack with this figure"
        )
    rows = io.read_frame(recipe, "sample_losses.csv")
    by_model = rows.pivot(index="model", columns="sample")
    try:
        loss, member = (by_model[n].loc[[*map(str, models)], ids_3] for n in LOSS_COLUMNS[2:4])
        means = [by_model[n].loc[[*map(str, models)], ids_3[0]] for n in MEAN_COLUMNS]
    except KeyError:
        raise Unavailable(
            f"{recipe.name}: losses of some models or samples are missing; run lm-mia attack with this figure"
        ) from None
    return Losses(
        formatting.size_label(recipe),
        loss.to_numpy(float),
        member.to_numpy(bool),
        np.stack([mean.to_numpy(float) for mean in means], axis=1),
    )


def _fig32_figure(losses_by_size: Sequence[Losses], ids_3: np.ndarray) -> Figure:
    figure = plotting.new_figure(9.6, 0.9 + 1.65 * len(losses_by_size))
    grid = figure.subplots(len(losses_by_size), 3, squeeze=False)
    for losses, row in zip(losses_by_size, grid, strict=True):
        for k, axes in enumerate(row):
            _panel(axes, losses.loss_Rx3[:, k], losses.member_Rx3[:, k])
        row[0].set_ylabel(losses.size)
    for k, (axes, sample) in enumerate(zip(grid[0], ids_3, strict=True)):
        label = "member" if losses_by_size[0].member_Rx3[-1, k] else "non-member"
        axes.set_title(f"Sample {sample:,}, {label}")
    figure.supxlabel("Loss (nats per token)", fontsize="medium")
    figure.supylabel("Density of reference losses", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, loss_R: np.ndarray, member_R: np.ndarray) -> None:
    *_, target = loss_R
    loss_M, member_M = loss_R[:-1], member_R[:-1]
    margin = 0.15 * (np.ptp(loss_R) or 1)
    x_G = np.linspace(loss_R.min() - margin, loss_R.max() + margin, 200)
    edges = np.linspace(loss_M.min(), loss_M.max(), _BINS + 1)
    for label, is_member, color in _CLASSES:
        class_loss = loss_M[member_M == is_member]
        axes.hist(
            class_loss, edges, density=True, color=color, alpha=0.35, label=f"{label} references"
        )
        if len(class_loss) > 1 and class_loss.std():
            axes.plot(x_G, norm.pdf(x_G, class_loss.mean(), class_loss.std(ddof=1)), color=color)
    axes.axvline(target, color=plotting.BLACK, linestyle="--", linewidth=1.5, label="target")
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5))


EXPERIMENTS = {
    "strongmia_fig15_schedules": Experiment(
        statements=FIG15_STATEMENTS,
        draw=draw_fig15,
        reads=(Need(tuple(SCHEDULES), jackknife=True),),
    ),
    "strongmia_fig32_losses_by_size": Experiment(
        statements=FIG32_STATEMENTS,
        draw=draw_fig32,
        reads=(LossNeed(tuple(f"fixed-{size}" for size in _SIZES), _FROM_END),),
    ),
}
