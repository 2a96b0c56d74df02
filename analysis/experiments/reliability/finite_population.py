"""Reliability Figures 2 and A3: models whose training subsets are drawn from one population, simulated.

Models are means of normal vectors; `lm_mia.stats.simulate_finite_population` describes them. The statistic of a sample
has two standard deviations (SD): over the subsets of the population of the experiment, and over training sets that are
drawn anew from the distribution of the population.

N: samples, F: false positive rates, B: simulations.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_equivalent,
    claim_greater,
)
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent
from analysis.io import SweepResults
from lm_mia import stats

SIZES = {"models": 2_048, "population": 1_000, "dimensions": 500}
"""The sizes of the paper's simulation."""
SIMULATIONS = 8
"""Number of simulations, each with its own seed; the intervals of claims are over them."""
SHARES = (0.125, 0.25, 0.5, 0.75)
"""Training samples as shares of the population, in Figure A3; Figure 2 has 0.5."""
_FPRS = np.logspace(-3, 0, 61)
_CLAIM_FPR = 0.01
_MARGIN = 0.01
_RECIPES = ("flip-140M", "main")


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A simulation with one share of training samples."""

    share: float
    """Training samples divided by samples of the population."""
    training_samples: int
    sd: stats.FinitePopulationSimulation

    @property
    def ratio_out_N(self) -> np.ndarray:
        """Empirical SD over models without the sample, divided by the SD over new training sets."""
        return self.sd.empirical_sd_out_N / self.sd.analytical_sd_out_N

    @property
    def ratio_in_N(self) -> np.ndarray:
        """The same over models with the sample."""
        return self.sd.empirical_sd_in_N / self.sd.analytical_sd_in_N

    @property
    def correction(self) -> float:
        """The factor by which SDs over subsets are smaller, sqrt(1 - share) (Eq. 28)."""
        return float(np.sqrt(1 - self.share))

    def mean_tpr_F(self, fprs: Sequence[float] | np.ndarray, variances: str) -> np.ndarray:
        """Returns the mean TPR over samples, if thresholds and variances are those of one of three adversaries.

        Args:
          fprs: false positive rates.
          variances: "uncorrected", those over subsets of the population; "corrected", these with the finite-population
            correction; "distribution", those over new training sets.
        """
        is_true = variances == "distribution"
        sd_in_N, sd_out_N = (
            (self.sd.analytical_sd_in_N, self.sd.analytical_sd_out_N)
            if is_true
            else (self.sd.empirical_sd_in_N, self.sd.empirical_sd_out_N)
        )
        # The statistic of members is larger by |x|^2 / n on average; a loss would be lower.
        gap_N, count_N = self.sd.norm_N**2 / self.training_samples, np.full(len(sd_in_N), np.inf)
        gaussians = stats.LiraGaussians(
            -gap_N, sd_in_N**2, count_N, np.zeros(len(gap_N)), sd_out_N**2, count_N
        )
        corrected_share = self.share if variances == "corrected" else 0.0
        return stats.gaussian_tpr(gaussians, fprs, sampled_share=corrected_share).mean(axis=1)


def simulate(share: float, seed: int) -> Simulation:
    """Returns the simulation with one share of training samples; the seed is that of the population and the subsets."""
    return _simulate(share, seed, *SIZES.values())


@functools.lru_cache(maxsize=64)
def _simulate(share: float, seed: int, models: int, population: int, dimensions: int) -> Simulation:
    training_samples = round(share * population)
    sd = stats.simulate_finite_population(
        models, population, training_samples, dimensions, seed=seed
    )
    return Simulation(training_samples / population, training_samples, sd)


def draw_fig02(recipes: SweepResults) -> Drawing:
    """Draws SDs by norm, their ratios, the factor of the variance by the share of training samples, and TPRs."""
    first = simulate(0.5, seed=0)
    measured, order_share = _order_share(recipes)
    figure = plotting.new_figure(10.4, 8.0)
    (sd_axes, ratio_axes), (factor_axes, tpr_axes) = figure.subplots(2, 2)
    frames = [_draw_sd(sd_axes, first, "(a) Standard deviation by norm")]
    frames.append(_draw_ratios(ratio_axes, first, "(b) Ratio to new training sets"))
    frames.append(_draw_factor(factor_axes, order_share, "(c) Correction of the variance"))
    frames.append(_draw_tpr(tpr_axes, first, "(d) Mean TPR over samples"))
    note = (
        "In language models, losses also vary with the order of the training data, and the correction leaves this "
        f"part unchanged. It accounts for {percent(order_share)} of the variance of the losses of {measured}, so at "
        f"half of the population the factor is {_factor(0.5, order_share):.2f} instead of 2."
        if order_share is not None
        else "Panel (c) lacks the curve of language models, since the workdir has no replicas that show which share of "
        f"the variance is due to the order of the training data: {' or '.join(_RECIPES)} with attack.leave_one_out; "
        "run lm-mia run --config=reliability:fig01,cpu."
    )
    return Drawing(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=_fig02_claims(),
        notes=(_simulation_note(first), note, CORRECTION_NOTE),
    )


CORRECTION_NOTE = (
    "The correction is for an adversary who knows only the distribution of the population. Targets of an experiment "
    "are trained on subsets of the same population, for which uncorrected variances are right; with the correction, a "
    "threshold for an FPR of 1% would have a realized FPR of 0.05%."
)
FIG02_STATEMENTS = (
    "Training on subsets of one population makes the standard deviation smaller by sqrt(1 - N/N+), on average.",
    "With the finite-population correction, it equals that over new training sets, on average.",
    "Without the correction, the TPR is higher than over new training sets.",
)
A3_STATEMENTS = ("The bias grows with the share of the population that a model is trained on.",)


def _fig02_claims() -> tuple[Claim, ...]:
    expected, ratio_parts, corrected_parts = float(np.sqrt(0.5)), [], []
    for members, name in ((True, "IN"), (False, "OUT")):
        excess = _estimate(lambda seed, m=members: mean_ratio(0.5, seed, members=m) - expected)
        ratio_parts.append(
            claim_equivalent("", f"Mean {name} ratio minus sqrt(1/2)", excess, _MARGIN)
        )
        excess = _estimate(lambda seed, m=members: mean_ratio(0.5, seed, members=m) / expected - 1)
        corrected_parts.append(
            claim_equivalent("", f"Mean corrected {name} ratio minus 1", excess, _MARGIN)
        )
    tpr = _estimate(lambda seed: _tpr_excess(simulate(0.5, seed)))
    what = f"Mean TPR at an FPR of {percent(_CLAIM_FPR)}, uncorrected minus over new training sets"
    return (
        claim_all(FIG02_STATEMENTS[0], ratio_parts),
        claim_all(FIG02_STATEMENTS[1], corrected_parts),
        claim_greater(FIG02_STATEMENTS[2], what, tpr),
    )


def _tpr_excess(simulation: Simulation) -> float:
    uncorrected, true = (
        simulation.mean_tpr_F([_CLAIM_FPR], variances)[0]
        for variances in ("uncorrected", "distribution")
    )
    return float(uncorrected - true)


def _estimate(value: Callable[[int], float]) -> Estimate:
    """Returns the mean over the simulations of a number that is computed from a seed."""
    value_B = np.array([float(value(seed)) for seed in range(SIMULATIONS)])
    term = VarianceTerm(float(value_B.var(ddof=1)) / SIMULATIONS, SIMULATIONS - 1)
    return Estimate.from_variance(float(value_B.mean()), [term], f"{SIMULATIONS} simulations")


def mean_ratio(share: float, seed: int, *, members: bool = False) -> float:
    """Returns the mean over samples of the SD over subsets divided by that over new training sets."""
    simulation = simulate(share, seed)
    return float((simulation.ratio_in_N if members else simulation.ratio_out_N).mean())


def _draw_sd(axes: Axes, simulation: Simulation, title: str) -> pd.DataFrame:
    """Draws the SD of each sample over models without it, with and without the correction, and over new sets."""
    sd, order_N = simulation.sd, np.argsort(simulation.sd.norm_N)
    norm_N, empirical_N = sd.norm_N[order_N], sd.empirical_sd_out_N[order_N]
    series = {
        "Subsets of the population": (empirical_N, plotting.BLUE),
        "Corrected": (empirical_N / simulation.correction, plotting.ORANGE),
    }
    for label, (sd_N, color) in series.items():
        axes.scatter(norm_N, sd_N, color=color, s=7, linewidth=0, alpha=0.6, label=label)
    true_N = sd.analytical_sd_out_N[order_N]
    axes.plot(norm_N, true_N, color=plotting.BLACK, label="New training sets")
    axes.set(xlabel="Norm of the sample", ylabel="SD over models without the sample", title=title)
    axes.legend(loc="best", fontsize=8.5, markerscale=2)
    columns = {"uncorrected": empirical_N, "corrected": empirical_N / simulation.correction}
    return _frame(title, simulation.share, norm_N, columns | {"distribution": true_N})


def _draw_ratios(axes: Axes, simulation: Simulation, title: str) -> pd.DataFrame:
    ratios = {"IN": simulation.ratio_in_N, "OUT": simulation.ratio_out_N}
    colors = {"IN": plotting.MEMBER, "OUT": plotting.NONMEMBER}
    edges = np.linspace(0.6, 1.15, 56)
    for label, ratio_N in ratios.items():
        for corrected, dash in ((False, "-"), (True, "--")):
            shown_N = ratio_N / simulation.correction if corrected else ratio_N
            axes.stairs(
                np.histogram(shown_N, edges)[0] / len(shown_N),
                edges,
                color=colors[label],
                linestyle=dash,
                linewidth=1.6,
                label=f"{label}, corrected" if corrected else label,
            )
    for at, text in ((simulation.correction, r"$\sqrt{1-N/N_+}$"), (1.0, "1")):
        axes.axvline(at, color=plotting.BLACK, linestyle=":", linewidth=1.2)
        axes.annotate(text, (at, 1), (3, -2), xycoords=("data", "axes fraction"), va="top",
                      textcoords="offset points", fontsize=9)  # fmt: skip
    axes.set(xlabel="SD over subsets / SD over new training sets", title=title)
    axes.set(ylabel="Share of samples", ylim=(0, None))
    axes.margins(y=0.15)
    plotting.use_percent_axis(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.9), fontsize=8.5)
    return _frame(title, simulation.share, np.arange(len(ratios["IN"])), ratios)


def _factor(share: float | np.ndarray, order_share: float) -> np.ndarray:
    return order_share + (1 - order_share) / (1 - np.asarray(share))


def _draw_factor(axes: Axes, order_share: float | None, title: str) -> pd.DataFrame:
    """Draws the factor by which the variance over new training sets is larger, by the share of training samples."""
    share_K = np.linspace(0, 0.9, 91)
    columns = {"only subsets vary": _factor(share_K, 0.0)}
    axes.plot(share_K, columns["only subsets vary"], color=plotting.BLACK, label="Eq. 28")
    if order_share is not None:
        columns["order of the training data"] = _factor(share_K, order_share)
        label = f"Order is {percent(order_share)} of the variance"
        measured_K = columns["order of the training data"]
        axes.plot(share_K, measured_K, "--", color=plotting.VERMILLION, label=label)
    axes.axvline(0.5, color=plotting.GREY, linestyle=":", linewidth=1.2)
    axes.set(xlabel="Training samples / population", ylabel="Factor of the variance", title=title)
    axes.legend(loc="upper left", fontsize=9)
    return _frame(title, np.nan, share_K, columns)


def _draw_tpr(axes: Axes, simulation: Simulation, title: str) -> pd.DataFrame:
    """Draws the mean TPR over samples by the FPR, for the variances of three adversaries."""
    series: dict[str, tuple[str, str, plotting.LineStyle]] = {
        "uncorrected": ("Subsets of the population", plotting.BLUE, "-"),
        "corrected": ("Corrected", plotting.ORANGE, "--"),
        "distribution": ("New training sets", plotting.BLACK, ":"),
    }
    columns = {name: simulation.mean_tpr_F(_FPRS, name) for name in series}
    for name, (label, color, dash) in series.items():
        axes.plot(_FPRS, columns[name], color=color, linestyle=dash, label=label)
    plotting.finish_roc_axes(axes, [float(_FPRS[0])])
    axes.set(title=title)
    axes.legend(loc="lower right", fontsize=8.5)
    return _frame(title, simulation.share, _FPRS, columns)


def _frame(
    panel: str, share: float, x_K: np.ndarray, columns: dict[str, np.ndarray]
) -> pd.DataFrame:
    """Returns rows (panel, share, x, series, value)."""
    return pd.concat(
        pd.DataFrame({"panel": panel, "share": share, "x": x_K, "series": name, "value": value_K})
        for name, value_K in columns.items()
    )


def _order_share(recipes: SweepResults) -> tuple[str, float | None]:
    """Returns the name of a recipe, and the share of the variance of its losses that is due to the training order.

    The share is None if no recipe shows it.
    """
    for name in _RECIPES:
        recipe = recipes.get(name)
        if recipe is not None and recipe.view.has("pooling.json"):
            facts = recipe.view.facts("pooling")
            if not facts["reason"] and facts["replicas"] >= 2:
                return name, float(facts["order_share"])
    return "", None


def _simulation_note(simulation: Simulation) -> str:
    sizes = f"{SIZES['models']:,} models, {SIZES['population']:,} samples in {SIZES['dimensions']} dimensions"
    return (
        f"A simulation without language models: {sizes}, of which each model is trained on "
        f"{simulation.training_samples:,}. Points and curves are of one simulation; the intervals of claims are over "
        f"{SIMULATIONS}."
    )


def draw_a3(recipes: SweepResults) -> Drawing:
    """Draws the SDs by norm for several shares of training samples, with and without the correction."""
    del recipes  # nothing is read
    figure = plotting.new_figure(10.4, 8.0)
    frames = []
    for axes, share in zip(figure.subplots(2, 2).flat, SHARES, strict=True):
        simulation = simulate(share, seed=0)
        title = f"N/N+ = {simulation.share:g}, mean ratio {simulation.ratio_out_N.mean():.2f}"
        frames.append(_draw_sd(axes, simulation, title))
    steps = [
        claim_greater(
            "",
            f"Mean ratio at {low:g} minus at {high:g}",
            _estimate(lambda seed, a=low, b=high: mean_ratio(a, seed) - mean_ratio(b, seed)),
        )
        for low, high in itertools.pairwise(SHARES)
    ]
    note = (
        f"A simulation without language models: {SIZES['models']:,} models, {SIZES['population']:,} samples in "
        f"{SIZES['dimensions']} dimensions. Points are of one simulation; the intervals are over {SIMULATIONS}."
    )
    return Drawing(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=(claim_all(A3_STATEMENTS[0], steps),),
        notes=(note,),
    )


EXPERIMENTS = {
    "reliability_fig02_finite_population": Experiment(
        statements=FIG02_STATEMENTS,
        draw=draw_fig02,
    ),
    "reliability_figA3_sampling_ratio": Experiment(
        statements=A3_STATEMENTS,
        draw=draw_a3,
    ),
}
