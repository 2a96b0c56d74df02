"""Our CausalMIA Figures 5 and 6: one-run evaluations with the multi-run truth, and effects of training on samples.

Every reference is evaluated on all samples, as if it were the only model (one-run). The truth compares the losses of
each sample under the models that were trained on it with those under the others (multi-run). If the membership of one
sample did not affect the losses of others, the spread of one-run evaluations would be that of independent samples.

M: models, N: samples, K: groups of samples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import io, plotting
from analysis.claims.compare import Estimate, VarianceTerm, claim_equivalent
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable

RECIPE = "epochs-140M"
INTERFERENCE = "interference.csv"
MARGIN = 0.01
"""AUCs that differ by less than this agree."""
NOT_COVERED = ("the samples",)
FIG05_STATEMENTS = (
    "On average, the one-run AUC agrees with the multi-run AUC.",
    "With calibrated losses, the one-run AUC agrees with the multi-run AUC on average.",
    "One-run AUCs vary between models as much as if the samples were independent.",
)
_METRICS = {"auc": "AUC", "ate": "Mean effect in nats per token"}
_SD_MARGIN = 0.25
_BINS = 10


@dataclasses.dataclass(frozen=True)
class Runs:
    """The evaluations of one attack; keys are "auc" and "ate"."""

    name: str
    """Name of the attack for readers."""
    models: Sequence[str]
    value_M: Mapping[str, np.ndarray]
    """One-run evaluations of all models."""
    independent_sd_M: Mapping[str, np.ndarray]
    """Their standard deviations if the scores of samples were independent."""
    multi_run: Mapping[str, float]
    trials: Mapping[str, float]
    """AUC and its standard deviation ("sd_auc") from a different sample for every model; empty if there is none."""

    @classmethod
    def read(cls, recipe: RecipeResults, attack: str) -> "Runs":
        """Reads the rows of an attack in interference.csv.

        Raises:
          Unavailable: the recipe has no such evaluation.
        """
        if not recipe.view.has(INTERFERENCE):
            raise Unavailable(
                f"{recipe.name}: there is no comparison of runs; run lm-mia attack with "
                "--config.attack.zero_run=groups,graded,disjoint"
            )
        table = io.read_table(recipe, INTERFERENCE)
        rows = {row["model"]: row for row in table if row["attack"] == attack}
        multi_run, trials = rows.pop("multi_run"), rows.pop("trials", {})
        return cls(
            attack_name(attack),
            [*rows],
            {name: np.array([row[name] for row in rows.values()]) for name in _METRICS},
            {name: np.array([row[f"sd_{name}"] for row in rows.values()]) for name in _METRICS},
            multi_run,
            trials,
        )

    def mean_difference(self) -> Estimate:
        """Returns the mean over models of the one-run AUC minus the multi-run AUC."""
        difference_M = self.value_M["auc"] - self.multi_run["auc"]
        count = len(difference_M)
        term = VarianceTerm(float(difference_M.var(ddof=1)) / count, count - 1)
        over = f"{count} models"
        return Estimate.from_variance(float(difference_M.mean()), [term], over, NOT_COVERED)

    def independent_sd(self, name: str) -> float:
        """Returns the standard deviation of one-run evaluations if the scores of samples were independent."""
        return float(np.sqrt(np.mean(self.independent_sd_M[name] ** 2)))

    def sd_ratio(self, name: str) -> Estimate:
        """Returns the SD over models divided by that of independent samples, minus 1.

        The estimated SD of normal values has a relative standard error of 1/sqrt(2 (M - 1)).
        """
        count = len(self.models)
        ratio = float(self.value_M[name].std(ddof=1)) / self.independent_sd(name)
        se = ratio / np.sqrt(2 * (count - 1))
        return Estimate(ratio - 1, se, count - 1, f"{count} models", NOT_COVERED)

    @property
    def sentence(self) -> str:
        """The multi-run values, and the spread over models relative to that of independent samples."""
        auc, ate = (self.sd_ratio(name) for name in _METRICS)
        return (
            f"{self.name}: the multi-run AUC is {self.multi_run['auc']:.4f} and the mean effect (ATE) is "
            f"{self.multi_run['ate']:.4f} nats per token. The standard deviation of one-run AUCs over models is "
            f"{1 + auc.value:.2f} times that of independent samples (95% interval {1 + auc.low:.2f} to "
            f"{1 + auc.high:.2f}), and that of one-run mean effects {1 + ate.value:.2f} times "
            f"({1 + ate.low:.2f} to {1 + ate.high:.2f})."
        )


def draw_fig05(recipes: SweepResults) -> Drawing:
    """Draws the AUC and the mean effect of every one-run evaluation with the multi-run truth, for both attacks."""
    recipe = recipes[RECIPE]
    loss, calibrated = (Runs.read(recipe, name) for name in ("loss", "reference_calibrated"))
    figure = plotting.new_figure(10.6, 8.0)
    grid = figure.subplots(2, 2)
    frames = [
        _draw_runs(axes, runs, name)
        for line, runs in zip(grid, (loss, calibrated), strict=True)
        for axes, name in zip(line, _METRICS, strict=True)
    ]
    grid[0, 0].legend(fontsize=9)
    claims = (
        *(
            claim_equivalent(
                statement,
                f"{runs.name}: mean of one-run AUCs minus the multi-run AUC",
                runs.mean_difference(),
                MARGIN,
            )
            for statement, runs in zip(FIG05_STATEMENTS, (loss, calibrated), strict=False)
        ),
        claim_equivalent(
            FIG05_STATEMENTS[2],
            "Loss: standard deviation of one-run AUCs divided by that of independent samples, minus 1",
            loss.sd_ratio("auc"),
            _SD_MARGIN,
        ),
    )
    trials = ""
    if loss.trials:
        trials = (
            "Algorithm 1 of the paper uses one sample for each model. With these models, its AUC for the loss is "
            f"{loss.trials['auc']:.3f} with a standard deviation of {loss.trials['sd_auc']:.3f}, which is far less "
            "precise than a one-run evaluation on all samples."
        )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            f"Points: one-run evaluations of each of {len(loss.models)} models on all samples. Line: the multi-run "
            "truth, from every sample under all models. Shaded: the truth plus or minus two standard deviations that "
            "one-run evaluations would have if the scores of samples were independent.",
            f"{loss.sentence} {calibrated.sentence}",
            trials,
            "Some models are slightly better than others on all samples at once. A one-run AUC compares only scores of "
            "the same model, but the multi-run AUC also compares scores of different models, so it is lower where the "
            "differences between models are large relative to those between samples.",
            unsupported_note(claims),
        ),
    )


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws the mean effect of training on a sample by its length, its TF-IDF and its source."""
    recipe = recipes[RECIPE]
    Runs.read(recipe, "loss")
    columns = ["sample", "effect", "effect_se"]
    effects = io.read_frame(recipe, "effects.parquet", columns)
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
    frames.append(_draw_sources(source_axes, effect_N, column("source")[ids_N].astype(str)))
    z_N = effects["effect"] / effects["effect_se"]
    noise, total = float((effects["effect_se"] ** 2).mean()), float(effects["effect"].var())
    return Drawing(
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


def _draw_runs(axes: Axes, runs: Runs, name: str) -> pd.DataFrame:
    """Draws the evaluation of each model, in ascending order; returns rows of the data."""
    truth, spread = runs.multi_run[name], runs.independent_sd(name)
    order_M = np.argsort(runs.value_M[name])
    at_M = np.arange(1, len(order_M) + 1)
    axes.axhline(truth, color=plotting.BLACK, label="Multi-run")
    label = "± 2 SD if samples were independent"
    axes.axhspan(
        truth - 2 * spread, truth + 2 * spread, color=plotting.SKY, alpha=0.25, label=label
    )
    value_M = runs.value_M[name][order_M]
    axes.plot(at_M, value_M, "o", color=plotting.BLUE, markersize=4, label="One-run")
    axes.set(xlabel="Model, in ascending order", title=f"{runs.name}: {_METRICS[name]}")
    rows = {"series": [runs.models[m] for m in order_M], "x": at_M, "y": value_M}
    return pd.DataFrame(rows).assign(panel=f"{runs.name}, {name}")


def _draw_deciles(
    axes: Axes, effect_N: np.ndarray, value_N: np.ndarray, label: str, panel: str
) -> pd.DataFrame:
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
        axes.text(0.5, 0.5, "No source has 20 samples", ha="center", transform=axes.transAxes)
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


EXPERIMENTS = {
    "causal_fig05_interference": Experiment(
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
    ),
    "causal_fig06_effects": Experiment(
        statements=(),
        draw=draw_fig06,
    ),
}
