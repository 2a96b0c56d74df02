"""True positive rates averaged over models and samples, by strategy for the threshold, and how samples differ.

All numbers are at attack.focus_fpr, from pooling.csv and vulnerability.parquet of a recipe.
"""

import dataclasses
import math

import numpy as np
from matplotlib.figure import Figure

from analysis import io, plotting
from analysis.formatting import percent
from analysis.io import RecipeResults, Record

TABLE = "pooling.csv"
JACKKNIFE = "pooling_jackknife.parquet"
VULNERABILITY = "vulnerability.parquet"
STRATEGIES = {
    "naive": "LiRA scores, one threshold",
    "standardized": "Standardized losses, one threshold",
    "standardized_normal": "Standardized losses, normal quantile",
    "standardized_student_t": "Standardized losses, fitted t quantile",
    "standardized_predictive": "Standardized losses, predictive t quantile",
    "per_sample": "Threshold per sample",
    "per_sample_normal": "Normal quantile, mean over samples",
    "per_model": "Threshold per model",
}
"""Strategy -> its name in figures and tables."""


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The strategies of a recipe at one FPR, with all models."""

    reason: str
    """Why there are no numbers; empty if there are."""
    models: int = 0
    fpr: float = math.nan
    rows: tuple[Record, ...] = ()
    """A row of pooling.csv per strategy, in the order of `STRATEGIES`."""

    @property
    def by_strategy(self) -> dict[str, Record]:
        """Strategy -> its row."""
        return {row["strategy"]: row for row in self.rows}

    @property
    def verdict(self) -> str:
        """The requested and the realized FPRs, and the TPRs, in one or two sentences."""
        rows, chosen = self.by_strategy, percent(self.fpr)
        normal, predictive = rows["standardized_normal"], rows["standardized_predictive"]
        naive, standardized = rows["naive"], rows["standardized"]
        difference = naive["tpr"] - standardized["tpr"]
        sentences = [
            f"For a requested FPR of {chosen}, the normal quantile has a realized FPR of "
            f"{percent(normal['realized_fpr'])}, and the predictive t quantile {percent(predictive['realized_fpr'])}."
        ]
        if not math.isnan(difference):
            sentences.append(
                f"One threshold for the LiRA scores of all samples finds {percent(naive['tpr'])} of the members, and "
                f"one for standardized losses {percent(standardized['tpr'])}."
            )
        return " ".join(sentences)


def read(recipe: RecipeResults) -> Pooling | None:
    """Reads the strategies at attack.focus_fpr; None if attack.leave_one_out did not request them."""
    if not recipe.view.has("pooling.json"):
        return None
    facts = recipe.view.facts("pooling")
    if facts["reason"]:
        return Pooling(facts["reason"])
    focus = facts["settings"]["focus_fpr"]
    rows = {
        row["strategy"]: row
        for row in io.read_table(recipe, TABLE)
        if math.isclose(row["fpr"], focus)
        and row["models"] == facts["models"]
        and not row["oracle"]
    }
    ordered = tuple(rows[name] for name in STRATEGIES if name in rows)
    if len(ordered) < len(STRATEGIES):
        return Pooling(f"there is no threshold for an FPR of {percent(focus)}")
    if any(row["realized_fpr"] != row["realized_fpr"] for row in ordered):
        return Pooling("no non-member has enough OUT references with different losses")
    return Pooling(
        "",
        facts["models"],
        focus,
        ordered,
    )


def draw(pooling: Pooling) -> Figure:
    """Draws the TPR and the realized FPR of every strategy as bars, with intervals of the TPR."""
    figure = plotting.new_figure(6.6, 4.2)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    at = np.arange(len(pooling.rows))[::-1]
    tpr = np.array([row["tpr"] for row in pooling.rows])
    ends = np.array([(row["tpr_low"], row["tpr_high"]) for row in pooling.rows])
    left.barh(at, tpr, color=plotting.BLUE, height=0.62)
    known = ~np.isnan(ends).any(axis=1)
    margins = np.abs(ends[known] - tpr[known, None]).T
    left.errorbar(
        tpr[known],
        at[known],
        xerr=margins,
        color=plotting.BLACK,
        linestyle="",
        linewidth=1.2,
        capsize=2.5,
    )
    right.barh(
        at, [row["realized_fpr"] for row in pooling.rows], color=plotting.VERMILLION, height=0.62
    )
    right.axvline(pooling.fpr, color=plotting.BLACK, linestyle="--", linewidth=1.2)
    names = [STRATEGIES[row["strategy"]].replace(", ", ",\n") for row in pooling.rows]
    left.set_yticks(at, names, fontsize=9.5)
    left.set(xlabel="True positive rate", xlim=(0, None))
    right.set(xlabel="Realized FPR", xlim=(0, None))
    for axes in (left, right):
        axes.grid(False, axis="y")
        axes.locator_params(axis="x", nbins=4)
    return figure


def draw_gaussian(recipe: RecipeResults, fpr: float) -> Figure:
    """Draws histograms of the TPRs that Gaussians predict for each sample, with and without population correction."""
    names = ("tpr_gaussian", "tpr_gaussian_population")
    columns = io.read_samples(recipe, names, VULNERABILITY)
    figure = plotting.new_figure(6.2, 3.9)
    axes = figure.subplots()
    edges = np.linspace(0, 1, 41)
    labels = ("adversary who knows this population", "adversary who knows only its distribution")
    for name, label, color, dash in zip(
        names, labels, (plotting.BLUE, plotting.ORANGE), ("-", "--"), strict=True
    ):
        value_N = columns[name].astype(float)
        value_N = value_N[~np.isnan(value_N)]
        share = np.histogram(value_N, edges)[0] / max(len(value_N), 1)
        mean = f"mean {value_N.mean():.3f}" if len(value_N) else "no sample"
        if len(value_N):
            axes.set_yscale("log")
        axes.stairs(
            share,
            edges,
            color=color,
            linestyle=dash,
            linewidth=1.8,
            label=f"{label} ({mean})",
        )
    axes.axvline(fpr, color=plotting.GREY, linestyle=":", linewidth=1.2, label="TPR = FPR")
    axes.set(
        xlabel=f"TPR of a sample at an FPR of {percent(fpr)}",
        ylabel="Share of samples",
        xlim=(0, 1),
    )
    figure.legend(loc="outside upper left", frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figures of a recipe; None without numbers."""
    pooling = read(recipe)
    if not pooling or pooling.reason:
        return {"pooling": None, "gaussian_tpr": None}
    return {"pooling": draw(pooling), "gaussian_tpr": draw_gaussian(recipe, pooling.fpr)}
