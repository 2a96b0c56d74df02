"""Our CausalMIA Figures 5 and 6: one-run evaluations against the multi-run truth, and effects of single samples.

Every reference is evaluated on all samples, as if it were the only run (one-run). The truth takes each sample's losses
under all models that were trained on it, and under all that were not (multi-run). If one sample's membership had no
influence on the losses of others, the spread of one-run evaluations would be that of independent samples.

M: models, N: samples, K: groups of samples.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import io, plotting
from analysis.claims.compare import Estimate, VarianceTerm, claim_equivalent
from analysis.formatting import percent
from analysis.io import MissingModelsError, RecipeResults, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note

RECIPE = "epochs-140M"
MARGIN = 0.01
"""AUCs that are nearer than this to each other agree."""
NOT_COVERED = ("the samples",)
FIG05_STATEMENTS = (
    "The AUC of one run agrees with that of many runs, on average.",
    "One-run AUCs vary as those of independent samples do.",
)
_SD_MARGIN = 0.5
_BINS = 10


def draw_fig05(recipes: SweepResults) -> FigureResult:
    """Draws the AUC and the ATE of every one-run evaluation beside the multi-run truth."""
    recipe = recipes[RECIPE]
    table = _read(recipe)
    figure = plotting.new_figure(10.6, 4.4)
    auc_axes, ate_axes = figure.subplots(1, 2)
    frames = [
        _draw_runs(auc_axes, table, "auc", "(a) AUC of the loss attack"),
        _draw_runs(ate_axes, table, "ate", "(b) ATE in nats per token"),
    ]
    auc_axes.legend(fontsize=9)
    runs = _runs(table)
    truth = table.loc["multi_run"]
    ratio = {name: _sd_ratio(runs[name], runs[f"sd_{name}"]) for name in ("auc", "ate")}
    claims = (
        claim_equivalent(
            FIG05_STATEMENTS[0],
            "Mean of one-run AUCs minus the multi-run AUC",
            _mean(runs["auc"] - truth["auc"]),
            MARGIN,
        ),
        claim_equivalent(
            FIG05_STATEMENTS[1],
            "SD of one-run AUCs divided by that of independent samples, minus 1",
            ratio["auc"],
            _SD_MARGIN,
        ),
    )
    trials = table.loc["trials"]
    return FigureResult(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            f"Multi-run: AUC {truth['auc']:.4f}, ATE {truth['ate']:.4f} nats, from {len(runs)} models. Shaded: two SDs "
            "of independent samples around it.",
            f"The SD of the ATE over runs is {1 + ratio['ate'].value:.2f} times (95% interval "
            f"{1 + ratio['ate'].low:.2f} to {1 + ratio['ate'].high:.2f}) that of independent samples, that of the AUC "
            f"{1 + ratio['auc'].value:.2f} times ({1 + ratio['auc'].low:.2f} to {1 + ratio['auc'].high:.2f}).",
            f"Algorithm 1 of the paper uses a different sample for every model: with these {len(runs)} models, its AUC "
            f"is {trials['auc']:.3f} with an SD of {trials['sd_auc']:.3f}, far less precise than a single run with all "
            "samples.",
            not_seen_note(claims),
        ),
    )


def draw_fig06(recipes: SweepResults) -> FigureResult:
    """Draws the mean effect of training on a sample by its length, its TF-IDF and its source."""
    recipe = recipes[RECIPE]
    _read(recipe)
    columns = ["sample", "effect", "effect_se"]
    effects = pd.DataFrame(io.read_samples(recipe.recipe_dir, columns, "effects.parquet"))
    effects = effects.set_index("sample").sort_index()
    column: Callable[[str], np.ndarray] = recipe.population.column
    ids_N = effects.index.to_numpy()
    figure = plotting.new_figure(13.2, 4.6)
    length_axes, tfidf_axes, source_axes = figure.subplots(
        1, 3, gridspec_kw={"width_ratios": [1, 1, 1.15]}
    )
    effect_N = effects["effect"].to_numpy()
    frames = [
        _draw_deciles(length_axes, effect_N, column("tokens")[ids_N], "Length in tokens", "a"),
        _draw_deciles(tfidf_axes, effect_N, column("tfidf")[ids_N], "Mean TF-IDF", "b"),
    ]
    length_axes.set(title="(a) By length")
    tfidf_axes.set(title="(b) By TF-IDF")
    source_N = pd.Series(column("source_record")[ids_N]).str.split("/").str[0].to_numpy()
    frames.append(_draw_sources(source_axes, effect_N, source_N))
    z_N = effects["effect"] / effects["effect_se"]
    noise, total = float((effects["effect_se"] ** 2).mean()), float(effects["effect"].var())
    return FigureResult(
        pd.concat(frames, ignore_index=True),
        figure,
        notes=(
            "The effect of a sample is its mean loss under models that were not trained on it, minus that under models "
            f"that were, in nats per token; its mean is {effect_N.mean():.3f}. Bars are 95% intervals of means over "
            "the samples of a group.",
            f"{percent(float((z_N > 1.645).mean()))} of the samples have an effect above 0 at a one-sided level of 5%. "
            f"Of the variance of the effects over samples, {percent(max(1 - noise / total, 0))} is not explained by "
            "the limited number of models.",
        ),
    )


def _read(recipe: RecipeResults) -> pd.DataFrame:
    """Reads the rows of the loss attack in interference.csv, by model; raises MissingModelsError if there are none."""
    if not io.has_table(recipe.recipe_dir, "interference.csv"):
        raise MissingModelsError(
            f"{recipe.name}: there is no comparison of runs; run lm-mia attack with "
            "--config.attack.zero_run=groups,graded,disjoint"
        )
    table = pd.DataFrame(io.read_table(recipe.recipe_dir, "interference.csv"))
    return table[table["attack"] == "loss"].set_index("model")


def _runs(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of single models."""
    return table.drop(index=["multi_run", "trials"])


def _mean(value_M: pd.Series) -> Estimate:
    count = len(value_M)
    term = VarianceTerm(float(value_M.var(ddof=1)) / count, count - 1)
    return Estimate.from_variance(float(value_M.mean()), [term], f"{count} models", NOT_COVERED)


def _sd_ratio(value_M: pd.Series, sd_M: pd.Series) -> Estimate:
    """Returns SD over models / SD of independent samples - 1; normal values have a relative SE of 1/sqrt(2(M - 1))."""
    count = len(value_M)
    ratio = float(value_M.std(ddof=1) / np.sqrt((sd_M**2).mean()))
    se = ratio / np.sqrt(2 * (count - 1))
    return Estimate(ratio - 1, se, count - 1, f"{count} models", NOT_COVERED)


def _draw_runs(axes: Axes, table: pd.DataFrame, name: str, title: str) -> pd.DataFrame:
    """Draws the evaluation of each model, in ascending order; returns rows of the data."""
    runs = _runs(table).sort_values(name)
    truth, spread = table.loc["multi_run", name], np.sqrt((runs[f"sd_{name}"] ** 2).mean())
    at_M = np.arange(1, len(runs) + 1)
    axes.axhspan(truth - 2 * spread, truth + 2 * spread, color=plotting.SKY, alpha=0.25)
    axes.axhline(truth, color=plotting.BLACK, label="Multi-run")
    axes.errorbar(
        at_M, runs[name], 2 * runs[f"sd_{name}"], fmt="o", color=plotting.BLUE, markersize=4,
        linewidth=0.8, label="One run, ±2 SD",
    )  # fmt: skip
    axes.set(xlabel="Model, in ascending order", title=title)
    return pd.DataFrame({"series": runs.index, "x": at_M, "y": runs[name], "panel": name})


def _draw_deciles(
    axes: Axes, effect_N: np.ndarray, value_N: np.ndarray, label: str, panel: str
) -> pd.DataFrame:
    """Draws the mean effect in each of ten equally large groups of a property; returns rows of the data."""
    known_N = ~np.isnan(value_N.astype(float))
    groups = pd.qcut(value_N[known_N].astype(float), _BINS, duplicates="drop")
    rows = _group_means(effect_N[known_N], np.asarray(groups.codes))
    middle = [float(np.median(value_N[known_N][groups.codes == k])) for k in rows.index]
    axes.errorbar(middle, rows["mean"], rows["margin"], fmt="o-", color=plotting.BLUE, markersize=5)
    axes.axhline(0, color=plotting.GREY, linewidth=0.8)
    axes.set(xlabel=label, ylabel="Effect in nats per token")
    return pd.DataFrame({"series": label, "x": middle, "y": rows["mean"], "panel": panel})


def _draw_sources(axes: Axes, effect_N: np.ndarray, source_N: np.ndarray) -> pd.DataFrame:
    """Draws the mean effect by package, for the largest ones; returns rows of the data."""
    rows = _group_means(effect_N, source_N)
    rows = rows[rows["count"] >= 20].nlargest(12, "count").sort_values("mean")
    if rows.empty:
        axes.text(0.5, 0.5, "no source has 20 samples", ha="center", transform=axes.transAxes)
    at_K = np.arange(len(rows))
    axes.barh(at_K, rows["mean"], xerr=rows["margin"], color=plotting.SKY, ecolor=plotting.BLACK)
    axes.set_yticks(
        at_K, [f"{name} ({count})" for name, count in rows["count"].items()], fontsize=9
    )
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="Effect in nats per token", title="(c) By source (samples)")
    return pd.DataFrame({"series": rows.index, "x": at_K, "y": rows["mean"], "panel": "c"})


def _group_means(effect_N: np.ndarray, group_N: np.ndarray) -> pd.DataFrame:
    """Returns count, mean and half the width of the 95% interval of the mean, by group."""
    grouped = pd.Series(effect_N).groupby(group_N)
    rows = pd.DataFrame({"count": grouped.size(), "mean": grouped.mean()})
    return rows.assign(margin=1.96 * grouped.std(ddof=1) / np.sqrt(rows["count"]))


FIGURES = {
    "causal_fig05_interference": PaperFigure(
        title="CausalMIA Figure 5 (ours): One run against many",
        paper=(
            "Multi-run and one-run evaluations nearly coincide on linear regression (Section 7); for other models, "
            "the paper has bounds with unknown constants (Theorem 5.4)."
        ),
        expect="EXPECT",
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
    ),
    "causal_fig06_effects": PaperFigure(
        title="CausalMIA Figure 6 (ours): Effects of training on a sample",
        paper="Effects that differ between groups of samples are future work of the paper (Section 9).",
        expect="EXPECT",
        statements=(),
        draw=draw_fig06,
    ),
}
