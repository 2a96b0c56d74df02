"""Compares recipes by model size, training samples, epochs and tokens per parameter: AUC, TPR and coin-flip shares.

    python -m analysis.scaling runs/paper [--recipe=NAME ...] [--x=parameters|samples|epochs|tokens_per_parameter]

Recipes of several workdirs can be compared. Writes tables/scaling.csv and figures/scaling.png and .pdf in the first
workdir, or in --out. The numbers come from the tables of the recipes: from attacks with equal numbers of references,
which `lm-mia attack` makes for the figure "scaling".
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import attacks, io, opening, plotting
from analysis.attacks import AttackResult
from analysis.experiment import Drawing, Experiment, write
from analysis.formatting import MIN_HEADLINE_REPLICAS, percent, size_label
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import config
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.spec import MIN_REFERENCES, Need, Variant
from lm_mia.config.recipe import differences
from lm_mia.errors import Unavailable, UserError
from lm_mia.model import flops
from lm_mia.printing import plural

QUANTITIES = {
    "parameters": "Parameters without embeddings",
    "samples": "Training samples",
    "epochs": "Epochs",
    "tokens_per_parameter": "Training tokens per parameter",
}
"""The x axes and their labels."""
LINES: dict[str, tuple[str, plotting.LineStyle]] = {
    "parameters": ("only the model size differs", "-"),
    "samples": ("only the samples differ", "--"),
    "epochs": ("only the epochs differ", ":"),
}
"""Lines join recipes that differ in one of these quantities only; label and line style."""
_FIELDS = {
    "parameters": ("model.size", "model.layers", "model.width", "model.heads"),
    "samples": ("population.samples", "optimizer.warmup_steps"),  # warm-up is limited by the steps
    "epochs": ("train.epochs", "score."),
}
_TICK_GAP = 0.2
"""The smallest gap between two tick labels, as a fraction of the axis."""
SHARES = {"coin_flip_members": ("coin flips, members", "D")}
SHARES |= {"coin_flip_nonmembers": ("coin flips, non-members", "v")}
"""Metrics that are shares of coin flips; label and marker."""

Colors = Mapping[int, plotting.Color]
"""Colors of the models by their number of parameters."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One recipe with the results of its attack."""

    recipe: RecipeResults
    result: AttackResult
    replicas: bool
    """Whether replicas were attacked, which is so if the recipe has no targets."""
    shares: list[Record]
    """Coin-flip shares from the tables of decisions: references, replicas, target, metric, fpr and value."""

    @property
    def x(self) -> dict[str, float]:
        """The value of each of `QUANTITIES`."""
        recipe = self.recipe
        return {
            "parameters": recipe.parameters,
            "samples": recipe.samples,
            "epochs": recipe.config.train.epochs,
            "tokens_per_parameter": recipe.tokens_per_parameter,
        }

    def values(self, metric: str, fpr: float) -> np.ndarray:
        """Returns the metric of each target; a single value for coin-flip shares, none where they are unknown."""
        if metric in SHARES:
            rows = (r for r in self.shares if r["metric"] == metric)
            return np.array([r["value"] for r in rows if math.isclose(r["fpr"], fpr)])
        value_T = self.result.auc_T if metric == "auc" else self.result.tpr_T(fpr)
        return value_T[~np.isnan(value_T)]

    def to_frame(self) -> pd.DataFrame:
        """Returns tidy rows: columns that describe the recipe, then references, target, metric, fpr and value."""
        model = self.recipe.config.model
        columns = {
            "recipe": recipe_label(self.recipe),
            "layers": model.layers,
            "width": model.width,
            **self.x,
            "flops_per_model": flops_per_model(self.recipe),
        }
        rows = plotting.per_target_frame(self.result, **columns, references=self.result.references)
        return pd.concat([rows, pd.DataFrame({**columns, **row} for row in self.shares)])


SCALING_TABLE = Table(
    "scaling.csv",
    (
        "Written by `python -m analysis.scaling`, and with the page if its figures include `scaling`. Each row is a "
        "recipe, an attacked model, a metric and an FPR. Attacks are online LiRA, with the same number of references "
        "for every recipe."
    ),
    {
        "recipe": Column(
            "none",
            (
                "all names of the recipe, separated by commas; with several workdirs, each begins with the name of its "
                "workdir"
            ),
        ),
        "layers, width": Column("count", "layers and width of a model"),
        "parameters, samples, epochs": Column("count", "as in `comparison.csv`"),
        "tokens_per_parameter": Column(
            "tokens per parameter", "`samples` x `epochs` x mean length of a sample / `parameters`"
        ),
        "flops_per_model": Column("FLOPs", "useful operations of training one model"),
        "references": Column(
            "count",
            "references of the attack; of coin flips, those of the tables of decisions, which may be more",
        ),
        "target": Column("none", "name of the attacked model; of coin flips `all replicas`"),
        "metric": Column(
            "none",
            (
                "`auc`, `tpr`, `coin_flip_members` or `coin_flip_nonmembers` (samples of the class in the bin `coin "
                "flip`)"
            ),
        ),
        "fpr": Column("fraction", "one of `attack.fprs`"),
        "value": Column("fraction", "the metric"),
    },
    key=("recipe", "target", "fpr", "metric"),
)


def draw(sweep: SweepResults, x: str = "") -> Drawing:
    """Draws all recipes that have attacked targets or replicas, against one quantity or, if empty, against all.

    Raises:
      Unavailable: models are missing, or there are no equal numbers of references.
    """
    recipes = _with_equal_models_per_workdir(sweep)
    usable = [recipe for recipe in recipes if _is_usable(recipe)]
    if not usable:
        raise Unavailable("no recipe has a target and two references yet; run lm-mia run first")
    references = _common_reference_count(usable)
    points = [_read_point(recipe, references) for recipe in usable]
    left_out = [recipe for recipe in recipes if recipe not in usable]
    focus_fpr = usable[0].config.attack.focus
    shown = points
    if len({row["replicas"] for point in points for row in point.shares}) > 1:
        shown = [dataclasses.replace(point, shares=[]) for point in points]
    return Drawing(
        data=pd.concat([point.to_frame() for point in points]),
        figure=_draw_figure(shown, [x] if x else list(QUANTITIES), focus_fpr),
        notes=_notes(points, references, left_out),
    )


def _with_equal_models_per_workdir(sweep: SweepResults) -> list[RecipeResults]:
    """Returns the recipes with targets, with equally many models within each workdir, then those with replicas only."""
    by_workdir: dict[Path, list[RecipeResults]] = {}
    for recipe in (r for r in sweep.recipes if r.config.attack.targets):
        by_workdir.setdefault(io.parent_workdir(recipe.recipe_dir), []).append(recipe)
    with_targets = [r for family in by_workdir.values() for r in attacks.with_equal_models(family)]
    return [*with_targets, *(r for r in sweep.recipes if not r.config.attack.targets)]


def _common_reference_count(recipes: Sequence[RecipeResults]) -> int:
    """Returns the largest number of references with which all recipes were attacked."""
    counts = [
        attacks.lira_reference_counts(r, replicas=not r.config.attack.targets) for r in recipes
    ]
    common = set.intersection(*counts)
    if not common:
        raise Unavailable(
            "the tables of these recipes have no attacks with equal numbers of references; run lm-mia attack with "
            "the figure scaling, in each workdir with the same --config.attack.references"
        )
    return max(common)


def _notes(
    points: Sequence[Point], references: int, left_out: Sequence[RecipeResults]
) -> tuple[str, ...]:
    kinds = sorted({"replicas of one target" if p.replicas else "targets" for p in points})
    notes = [
        f"{plural(len(points), 'recipe')} attacked with {references} references each. Bars are one standard deviation "
        f"over {' or '.join(kinds)}; a line joins recipes that differ in one quantity only."
    ]
    if on_replicas := [recipe_label(point.recipe) for point in points if point.replicas]:
        notes.append(f"Replicas of one target are attacked in {', '.join(on_replicas)}.")
    if counts := sorted({row["references"] for point in points for row in point.shares}):
        replicas = sorted({row["replicas"] for point in points for row in point.shares})
        notes.append(
            f"Coin-flip shares are from attacks with {' or '.join(map(str, counts))} references on "
            f"{' or '.join(map(str, replicas))} replicas."
            + (
                " They depend on the number of replicas, so they are not drawn."
                if replicas[1:]
                else ""
            )
        )
    if left_out:
        names = ", ".join(map(recipe_label, left_out))
        notes.append(f"Left out because models are missing: {names}.")
    return tuple(notes)


def recipe_label(recipe: RecipeResults) -> str:
    """Returns the names of a recipe, separated by commas."""
    return ", ".join(recipe.shown_names)


def families(points: Sequence[Point], quantity: str) -> list[list[Point]]:
    """Returns groups of two or more points that differ in one quantity of `LINES` only, in its order."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda p: p.x[quantity]):
        group = next((g for g in groups if _differ_only_in(g[0], point, quantity)), None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return [group for group in groups if len({p.x[quantity] for p in group}) > 1]


def _differ_only_in(one: Point, other: Point, quantity: str) -> bool:
    fields = differences(config.to_dict(one.recipe.config), other.recipe.config)
    return one.replicas == other.replicas and all(f.startswith(_FIELDS[quantity]) for f in fields)


def main(argv: Sequence[str]) -> int:
    """Runs `python -m analysis.scaling`; returns 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.scaling",
        description="Compares recipes by model size, training samples and epochs.",
    )
    parser.add_argument(
        "workdir", type=Path, nargs="+", help="one or more workdirs whose recipes are compared"
    )
    recipe = "name of a recipe; repeatable (default: all recipes of the workdirs)"
    parser.add_argument("--recipe", action="append", metavar="NAME", help=recipe)
    x = f"the quantity on the x axis: {', '.join(QUANTITIES)} (default: a column for each)"
    parser.add_argument("--x", default="", help=x)
    out = "the folder in which tables/ and figures/ are written (default: the first workdir)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    options = parser.parse_args(argv)
    try:
        if options.x not in ("", *QUANTITIES):
            raise UserError(f"--x={options.x}: must be one of {', '.join(QUANTITIES)}")
        out = options.out or options.workdir[0]
        with plotting.style():
            result = draw(_read_recipes(options.workdir, options.recipe), options.x)
            png = write(out, "scaling", result)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(out / "tables" / "scaling.csv", png, *result.notes, sep="\n")
    return 0


def _read_recipes(workdirs: Sequence[Path], names: Sequence[str] | None) -> SweepResults:
    """Reads the recipes of one workdir, or of several, where WORKDIR/ is put before each name."""
    distinct = {workdir.resolve(): workdir for workdir in workdirs}
    if len(distinct) == 1:
        return opening.read_recipes(workdirs[0], names)
    recipes = []
    for path, workdir in distinct.items():
        for recipe in opening.read_recipes(workdir, names).recipes:
            full_names = tuple(f"{path.name}/{name}" for name in recipe.names)
            recipes.append(dataclasses.replace(recipe, names=full_names))
    return SweepResults(recipes)


def _is_usable(recipe: RecipeResults) -> bool:
    try:
        targets = recipe.targets if recipe.config.attack.targets else recipe.replicas
        return len(recipe.references) >= MIN_REFERENCES and bool(targets)
    except UserError:  # damaged scores
        return False


def _read_point(recipe: RecipeResults, references: int) -> Point:
    replicas = not recipe.config.attack.targets
    result = attacks.read_attack(recipe, Variant(references=references, replicas=replicas))
    return Point(recipe, result, replicas, _read_shares(recipe))


def _read_shares(recipe: RecipeResults) -> list[Record]:
    """Returns `Point.shares`; empty if there are too few replicas for a share of coin flips."""
    if not recipe.view.has("flip_shares.csv"):
        return []
    facts = recipe.view.facts("flips")
    if facts["replicas"] < MIN_HEADLINE_REPLICAS:
        return []
    return [
        {
            "references": facts["references"],
            "replicas": facts["replicas"],
            "target": "all replicas",
            "metric": metric,
            "fpr": row["fpr"],
            "value": row[f"{metric.removeprefix('coin_flip_').removesuffix('s')}_fraction"],
        }
        for row in io.read_table(recipe, "flip_shares.csv")
        if row["bin"] == "coin flip"
        for metric in SHARES
    ]


def _draw_figure(points: Sequence[Point], quantities: Sequence[str], fpr: float) -> Figure:
    at = f"at {percent(fpr)} FPR"
    rows: dict[str, tuple[str, ...]] = {"AUC": ("auc",), f"TPR {at}": ("tpr",)}
    if any(point.shares for point in points):
        rows[f"Coin flips {at}"] = tuple(SHARES)
    figure = plotting.new_figure(1.4 + 3.0 * max(len(quantities), 2), 1.6 + 2.4 * len(rows))
    grid = figure.subplots(len(rows), len(quantities), sharex="col", sharey="row", squeeze=False)
    parameters = sorted({point.recipe.parameters for point in points})
    colors = dict(zip(parameters, plotting.shades(len(parameters)), strict=True))
    joined = {varied: families(points, varied) for varied in LINES}
    for (title, metrics), row in zip(rows.items(), grid, strict=True):
        for quantity, axes in zip(quantities, row, strict=True):
            axes.set_xscale("log")
            shown = {
                varied: groups
                for varied, groups in joined.items()
                if quantity in (varied, "tokens_per_parameter")
            }
            for metric in metrics:
                _draw_panel(axes, points, shown, quantity, metric, fpr, colors)
        row[0].set_ylabel(title)
        if title != "AUC":
            plotting.use_percent_axis(row[0])
    for quantity, axes in zip(quantities, grid[-1], strict=True):
        axes.set_xlabel(QUANTITIES[quantity])
        values = sorted({point.x[quantity] for point in points})
        ticks = plotting.separated_ticks(values, _TICK_GAP)
        plotting.set_x_ticks(axes, [(tick, _short(tick)) for tick in ticks])
    _draw_legend(figure, points, colors, [varied for varied in joined if joined[varied]])
    return figure


def _draw_panel(
    axes: Axes,
    points: Sequence[Point],
    joined: Mapping[str, list[list[Point]]],
    quantity: str,
    metric: str,
    fpr: float,
    colors: Colors,
) -> None:
    for varied, groups in joined.items():
        for group in groups:
            means = [(p.x[quantity], v.mean()) for p in group if len(v := p.values(metric, fpr))]
            x_K, y_K = np.reshape(means, (-1, 2)).T
            axes.plot(x_K, y_K, color=plotting.GREY, linestyle=LINES[varied][1], linewidth=1)
    for point in points:
        if len(value_T := point.values(metric, fpr)):
            axes.errorbar(
                point.x[quantity],
                value_T.mean(),
                value_T.std(),
                color=colors[point.recipe.parameters],
                marker=_marker(point, metric),
                markersize=5,
                capsize=2,
                linewidth=1,
            )


def _short(number: float) -> str:
    """Formats a number with a unit: 1,536 -> 1.54k, 7,000,000 -> 7M."""
    unit, letter = next(((u, a) for u, a in ((1e6, "M"), (1e3, "k")) if number >= u), (1, ""))
    return f"{number / unit:.3g}{letter}"


def _marker(point: Point, metric: str) -> str:
    return SHARES[metric][1] if metric in SHARES else "s" if point.replicas else "o"


def _draw_legend(
    figure: Figure, points: Sequence[Point], colors: Colors, varied: Sequence[str]
) -> None:
    sizes = {point.recipe.parameters: size_label(point.recipe) for point in points}
    markers = [("o", colors[n], f"{sizes[n]} parameters") for n in sorted(sizes)]
    markers += [("o", plotting.BLACK, "targets")] if any(not p.replicas for p in points) else []
    markers += [("s", plotting.BLACK, "replicas")] if any(p.replicas for p in points) else []
    if any(point.shares for point in points):
        markers += [(marker, plotting.BLACK, label) for label, marker in SHARES.values()]
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=label)
        for marker, color, label in markers
    ]
    for label, linestyle in (LINES[name] for name in varied):
        handles.append(
            Line2D([], [], color=plotting.GREY, linestyle=linestyle, label=label, linewidth=1.2)
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False)


def flops_per_model(recipe: RecipeResults) -> float:
    """Returns the useful FLOPs of training one model."""
    lengths_N = np.diff(recipe.population.offsets_N1).astype(float)
    per_sample = flops.training(recipe.model_size, lengths_N.mean(), (lengths_N**2).mean())
    return recipe.samples * recipe.config.train.epochs * per_sample


EXPERIMENTS = {
    "scaling": Experiment(
        title="Scaling: attacks by model size, training samples and epochs",
        about=(
            "On compute-optimal data, vulnerability does not rise steadily with model size; on the same data it does. "
            "It is highest for a moderate number of samples, about a million at 140M, and grows with every epoch."
        ),
        statements=(),
        draw=draw,
        reads=(Need(("*",), targets="either", most_references=None),),
    ),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
