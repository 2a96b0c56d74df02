"""Compares recipes by model size, training samples, epochs and tokens a parameter: AUC, TPR and coin-flip shares.

    python -m analysis.scaling runs/paper [--recipe=NAME ...] [--x=parameters|samples|epochs|tokens_per_parameter]

Recipes of several workdirs may be compared. Writes tables/scaling.csv and figures/scaling.png and .pdf in the first
workdir, or in --out. The numbers come from the tables of the recipes. They are of attacks with equal numbers of
references, which `lm-mia attack` makes for the figure "scaling".
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

from analysis import attacks, io, plotting
from analysis.attacks import AttackResult
from analysis.formatting import plural
from analysis.io import MissingModelsError, RecipeResults, Record, SweepResults, WorkdirError
from analysis.paper_figure import FigureResult, PaperFigure, write
from lm_mia import config
from lm_mia.config.needs import MIN_REFERENCES, Need
from lm_mia.config.recipe import differences
from lm_mia.errors import UserError
from lm_mia.model import flops

QUANTITIES = {
    "parameters": "Parameters without embeddings",
    "samples": "Training samples",
    "epochs": "Epochs",
    "tokens_per_parameter": "Tokens trained on per parameter",
}
LINES: dict[str, tuple[str, plotting.Dash]] = {
    "parameters": ("model size alone differs", "-"),
    "samples": ("samples alone differ", "--"),
    "epochs": ("epochs alone differ", ":"),
}
"""What joined recipes differ in."""
_FIELDS = {
    "parameters": ("model.size", "model.layers", "model.width", "model.heads"),
    "samples": ("population.samples", "optimizer.warmup_steps"),  # a warm-up is cut to few steps
    "epochs": ("train.epochs", "score."),
}
_APART = 0.2
"""Of the length of an axis, between two labels of it."""
SHARES = {"coin_flip_members": ("coin flips, members", "D")}
SHARES |= {"coin_flip_nonmembers": ("coin flips, non-members", "v")}

Colors = Mapping[int, tuple[float, float, float, float]]
"""Of models, by their parameters."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One recipe, attacked."""

    recipe: RecipeResults
    found: AttackResult
    replicas: bool
    """Whether replicas were attacked, where targets of different subsets are not asked for."""
    shares: list[Record]
    """Coin-flip shares of its tables: references, target, metric, fpr and value."""

    @property
    def x(self) -> dict[str, float]:
        """Every one of `QUANTITIES`."""
        r = self.recipe
        of = r.parameters, r.samples, r.config.train.epochs, r.tokens_per_parameter
        return dict(zip(QUANTITIES, of, strict=True))

    def values(self, metric: str, fpr: float) -> np.ndarray:
        """Of every target, of a coin-flip share one; none where it has none."""
        if metric in SHARES:
            rows = (r for r in self.shares if r["metric"] == metric)
            return np.array([r["value"] for r in rows if math.isclose(r["fpr"], fpr)])
        value_T = self.found.auc_T if metric == "auc" else self.found.tpr_T(fpr)
        return value_T[~np.isnan(value_T)]

    def data(self) -> pd.DataFrame:
        """Tidy rows: what the recipe is, then references, target, metric, fpr and value."""
        m = self.recipe.config.model
        about = {"recipe": label(self.recipe), "layers": m.layers, "width": m.width, **self.x}
        about |= {"flops_a_row": flops_a_row(self.recipe)}
        attacks = plotting.by_target(self.found, **about, references=self.found.references)
        return pd.concat([attacks, pd.DataFrame({**about, **row} for row in self.shares)])


def draw(recipes: SweepResults, x: str = "") -> FigureResult:
    """All recipes whose targets or replicas are there, against one quantity or against all."""
    by_workdir: dict[Path, list[RecipeResults]] = {}
    for recipe in (r for r in recipes.all if r.config.attack.targets):
        by_workdir.setdefault(io.workdir_of(recipe.folder), []).append(recipe)
    same = [
        recipe for family in by_workdir.values() for recipe in attacks.with_equal_models(family)
    ]
    all_recipes = [*same, *(r for r in recipes.all if not r.config.attack.targets)]
    usable = [recipe for recipe in all_recipes if _usable(recipe)]
    if not usable:
        raise MissingModelsError(
            "no recipe was attacked with a target and two references yet; run lm-mia run first"
        )
    counts = [attacks.counts(r, replicas=not r.config.attack.targets) for r in usable]
    references = max(set.intersection(*counts), default=0)
    if not references:
        raise MissingModelsError(
            "the tables of these recipes have no attacks with equal numbers of references; run lm-mia attack with "
            "the figure scaling, in each workdir with the same --config.attack.references"
        )
    points = [_point(recipe, references) for recipe in usable]
    said = f"{plural(len(points), 'recipe')} attacked with {references} references each"
    over = sorted({"replicas of one target" if p.replicas else "targets" for p in points})
    notes = [
        f"{said}. Bars are one standard deviation over {' or '.join(over)}; a line joins recipes that differ in one "
        "thing alone."
    ]
    if of := [label(point.recipe) for point in points if point.replicas]:
        notes.append(f"Replicas of one target are attacked in {', '.join(of)}.")
    if of := sorted({row["references"] for point in points for row in point.shares}):
        counts = " or ".join(map(str, of))
        notes.append(f"Coin-flip shares are of tables of attacks with {counts} references.")
    if of := [label(recipe) for recipe in all_recipes if recipe not in usable]:
        notes.append(
            f"Left out, since their models are missing or not attacked yet: {', '.join(of)}."
        )
    fpr = usable[0].config.attack.focus_fpr
    return FigureResult(
        data=pd.concat([point.data() for point in points]),
        figure=_figure(points, [x] if x else list(QUANTITIES), fpr),
        notes=tuple(notes),
    )


def label(recipe: RecipeResults) -> str:
    """All its names."""
    return ", ".join(recipe.names)


def families(points: Sequence[Point], quantity: str) -> list[list[Point]]:
    """Points that differ in one of `LINES` and in nothing else that makes a row, in its order."""
    found: list[list[Point]] = []
    for point in sorted(points, key=lambda p: p.x[quantity]):
        family = next((f for f in found if _alike(f[0], point, quantity)), None)
        found += [] if family else [[]]
        (family or found[-1]).append(point)
    return [family for family in found if len({p.x[quantity] for p in family}) > 1]


def _alike(one: Point, other: Point, quantity: str) -> bool:
    told = differences(config.to_dict(one.recipe.config), other.recipe.config)
    return one.replicas == other.replicas and all(t.startswith(_FIELDS[quantity]) for t in told)


def main(argv: Sequence[str]) -> int:
    """Entry point: 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.scaling",
        description="Compares recipes by size, samples and epochs.",
    )
    parser.add_argument("workdir", type=Path, nargs="+", help="whose recipes are compared")
    recipe = "name of a recipe; repeatable (default: all of the workdirs)"
    parser.add_argument("--recipe", action="append", metavar="NAME", help=recipe)
    parser.add_argument("--x", default="", help=f"one of {', '.join(QUANTITIES)}; all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: the first workdir")
    known = parser.parse_args(argv)
    try:
        if known.x not in ("", *QUANTITIES):
            raise WorkdirError(f"--x={known.x}: must be one of {', '.join(QUANTITIES)}")
        drawn = draw(_recipes(known.workdir, known.recipe), known.x)
        out = known.out or known.workdir[0]
        png = write(out, "scaling", drawn)
    except (MissingModelsError, UserError, WorkdirError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(out / "tables" / "scaling.csv", png, *drawn.notes, sep="\n")
    return 0


def _recipes(workdirs: Sequence[Path], names: Sequence[str] | None) -> SweepResults:
    """The recipes of one workdir, or of several, where a name says also which workdir it is of."""
    different = {workdir.resolve(): workdir for workdir in workdirs}
    if len(different) == 1:
        return io.read_recipes(workdirs[0], names)
    found = []
    for path, workdir in different.items():
        for recipe in io.read_recipes(workdir, names).all:
            both = tuple(f"{path.name}/{name}" for name in recipe.names)
            found.append(dataclasses.replace(recipe, names=both))
    return SweepResults(found)


def _usable(recipe: RecipeResults) -> bool:
    try:
        references, targets, replicas = recipe.divided
    except MissingModelsError:
        return False
    enough = len(references) >= MIN_REFERENCES
    return enough and bool(targets if recipe.config.attack.targets else replicas)


def _point(recipe: RecipeResults, references: int) -> Point:
    replicas = not recipe.config.attack.targets
    found = attacks.read_attack(recipe, references=references, replicas=replicas)
    return Point(recipe, found, replicas, _shares(recipe))


def _shares(recipe: RecipeResults) -> list[Record]:
    """As of `Point.shares`; none where replicas are too few to tell a decision from a coin flip."""
    if not io.has(recipe.folder, "flip_shares.csv"):
        return []
    facts = io.flip_facts(recipe.folder)
    columns = ("fpr", "bin", "member_fraction", "nonmember_fraction")
    table = io.table(recipe.folder, "flip_shares.csv", columns)
    return [
        {"references": facts["references"], "target": "all replicas"}
        | {"metric": metric, "fpr": row["fpr"]}
        | {"value": row[f"{metric.removeprefix('coin_flip_').removesuffix('s')}_fraction"]}
        for row in table
        if row["bin"] == "coin flip" and io.decides(facts)
        for metric in SHARES
    ]


def _figure(points: Sequence[Point], quantities: Sequence[str], fpr: float) -> Figure:
    """A row a metric and a column a quantity."""
    at = f"at {io.percent(fpr)} FPR"
    rows: dict[str, tuple[str, ...]] = {"AUC": ("auc",), f"TPR {at}": ("tpr",)}
    if any(point.shares for point in points):
        rows[f"Coin flips {at}"] = tuple(SHARES)
    figure = plotting.new_figure(1.4 + 3.0 * max(len(quantities), 2), 1.6 + 2.4 * len(rows))
    grid = figure.subplots(len(rows), len(quantities), sharex="col", sharey="row", squeeze=False)
    parameters = sorted({point.recipe.parameters for point in points})
    colors = dict(zip(parameters, plotting.shades(len(parameters)), strict=True))
    joined = {of: families(points, of) for of in LINES}
    for (title, metrics), line in zip(rows.items(), grid, strict=True):
        for quantity, axes in zip(quantities, line, strict=True):
            axes.set_xscale("log")
            shown = {of: f for of, f in joined.items() if quantity in (of, "tokens_per_parameter")}
            for metric in metrics:
                _panel(axes, points, shown, quantity, metric, fpr, colors)
        line[0].set_ylabel(title)
        if title != "AUC":
            plotting.percent_axis(line[0])
    for quantity, axes in zip(quantities, grid[-1], strict=True):
        axes.set_xlabel(QUANTITIES[quantity])
        labels = plotting.labelled(sorted({point.x[quantity] for point in points}), _APART)
        plotting.only(axes, [(x, _short(x)) for x in labels])
    _legend(figure, points, colors, [of for of in joined if joined[of]])
    return figure


def _panel(
    axes: Axes,
    points: Sequence[Point],
    joined: Mapping[str, list[list[Point]]],
    quantity: str,
    metric: str,
    fpr: float,
    colors: Colors,
) -> None:
    for family, dash in ((f, LINES[of][1]) for of, found in joined.items() for f in found):
        there = [(p.x[quantity], v.mean()) for p in family if len(v := p.values(metric, fpr))]
        axes.plot(*np.reshape(there, (-1, 2)).T, color=plotting.GREY, linestyle=dash, linewidth=1)
    for point in points:
        if len(value_T := point.values(metric, fpr)):
            at = point.x[quantity], value_T.mean(), value_T.std()
            color, marker = colors[point.recipe.parameters], _marker(point, metric)
            axes.errorbar(*at, color=color, marker=marker, markersize=5, capsize=2, linewidth=1)


def _short(number: float) -> str:
    """1,536 -> 1.54k, 7,000,000 -> 7M."""
    unit, letter = next(((u, a) for u, a in ((1e6, "M"), (1e3, "k")) if number >= u), (1, ""))
    return f"{number / unit:.3g}{letter}"


def _marker(point: Point, metric: str) -> str:
    return SHARES[metric][1] if metric in SHARES else "s" if point.replicas else "o"


def _legend(figure: Figure, points: Sequence[Point], colors: Colors, of: Sequence[str]) -> None:
    sizes = {point.recipe.parameters: io.size_of(point.recipe) for point in points}
    told = [("o", colors[n], f"{sizes[n]} parameters") for n in sorted(sizes)]
    told += [("o", plotting.BLACK, "targets")] if any(not p.replicas for p in points) else []
    told += [("s", plotting.BLACK, "replicas")] if any(p.replicas for p in points) else []
    if any(point.shares for point in points):
        told += [(marker, plotting.BLACK, said) for said, marker in SHARES.values()]
    handles = [Line2D([], [], color=c, marker=m, linestyle="", label=said) for m, c, said in told]
    for said, dash in (LINES[name] for name in of):
        handles.append(
            Line2D([], [], color=plotting.GREY, linestyle=dash, label=said, linewidth=1.2)
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False)


def flops_a_row(recipe: RecipeResults) -> float:
    """Of training; useful ones."""
    m, lengths_N = recipe.config.model, np.diff(recipe.population.offsets_N1).astype(float)
    per_sample = flops.training(
        m.layers,
        m.width,
        recipe.config.tokenizer.vocab_size,
        lengths_N.mean(),
        (lengths_N**2).mean(),
    )
    return recipe.samples * recipe.config.train.epochs * per_sample


FIGURES = {
    "scaling": PaperFigure(
        title="Scaling: attacks by model size, training samples and epochs",
        paper=(
            "On compute-optimal data, vulnerability does not rise steadily with the size of the model; on the same "
            "data it does. It is highest for moderately many samples, about a million for 140M, and grows with every "
            "epoch."
        ),
        expect=(
            "At cpu vulnerability does not rise with the size of the model on compute-optimal data, where it falls. "
            "On the same data it rises from the smallest to the largest size. It is highest for the fewest samples, "
            "without the paper's fall at the small end, and grows with every epoch."
        ),
        statements=(),
        draw=draw,
        needs=(Need(("*",), targets="either", most_references=None),),
    ),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
