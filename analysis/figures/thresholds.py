"""Reliability Figures 1, A1 and A2: one threshold for all models and samples, or one per sample or per model.

The attacks stage computes the rates if attack.leave_one_out is set: pooling.csv has the true positive rates of every
strategy with their intervals, and sample_fpr.csv the false positive rates of single samples.

M: numbers of models, K: kinds of samples, by their numbers of models and of positive decisions.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import io, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife, independent_difference
from analysis.experiment import Drawing, Experiment, not_seen_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from analysis.pooling import STRATEGIES
from lm_mia import stats
from lm_mia.errors import Unavailable

FPRS = (0.01, 0.05, 0.1)
"""The false positive rates of the panels: those of the paper that are measurable with a thousand non-members."""
_STYLES: dict[str, tuple[str, plotting.LineStyle, str]] = {
    "naive": (plotting.VERMILLION, "-", "s"),
    "standardized": (plotting.BLUE, "-", "o"),
    "standardized_normal": (plotting.SKY, "--", "^"),
    "standardized_student_t": (plotting.GREEN, "--", "v"),
    "standardized_predictive": (plotting.BLACK, ":", "D"),
    "per_sample": (plotting.ORANGE, "-", "P"),
    "per_sample_normal": (plotting.PURPLE, "-.", "X"),
    "per_model": (plotting.GREY, "-.", "*"),
}
"""Strategy -> its color, line style and marker."""
_MARGIN = 0.01
_ALPHA = 0.05
"""The level of the exact binomial test of each sample, and the share of samples that it rejects by chance."""

FIG01_STATEMENTS = (
    "With the most models, one threshold for LiRA scores has a higher TPR than one for standardized losses.",
    "With the fewest models, the normal quantile gives a higher TPR than the quantile of the pooled scores.",
    "With the most models, the fitted t quantile and the quantile of the pooled scores have the same TPR.",
    "As models are added, the TPR with a threshold per sample approaches that with one for standardized losses.",
)
A1_STATEMENTS = (FIG01_STATEMENTS[0], FIG01_STATEMENTS[3])
A2_STATEMENTS = (
    "The FPR varies more between samples with one threshold for LiRA scores than for standardized losses.",
    "With one threshold for LiRA scores, more than 5% of samples have a significantly larger FPR than requested.",
)


@dataclasses.dataclass(frozen=True)
class Strategies:
    """TPRs of a recipe by strategy and number of models, from pooling.csv and pooling_jackknife.parquet."""

    rates: pd.DataFrame
    parts: pd.DataFrame
    """TPRs without groups of models, and on halves of the samples."""

    @classmethod
    def read(cls, recipe: RecipeResults, *, oracle: bool) -> "Strategies":
        """Reads the rates at `FPRS`.

        Args:
          recipe: the recipe.
          oracle: whether moments are over the losses of all models but the target, for every number of models.

        Raises:
          Unavailable: the recipe has no such tables, or none of the rates.
        """
        rates = _read_table(recipe, "pooling.csv", _RATES)
        parts = io.read_frame(recipe, _JACKKNIFE, _PARTS)
        rates, parts = (
            frame[(frame["oracle"].astype(bool) == oracle) & _is_at(frame["fpr"], FPRS)]
            for frame in (rates, parts)
        )
        if rates.empty:
            wanted = ", ".join(map(percent, FPRS))
            raise Unavailable(
                f"{recipe.name}: pooling.csv has none of the FPRs {wanted}; add one to attack.fprs"
            )
        return cls(rates.reset_index(drop=True), parts)

    @property
    def fprs(self) -> list[float]:
        """The false positive rates."""
        return sorted(self.rates["fpr"].unique())

    @property
    def models(self) -> list[int]:
        """The numbers of models, ascending."""
        return sorted(int(count) for count in self.rates["models"].unique())

    def tpr(self, strategy: str, models: int, fpr: float) -> Jackknife:
        """Returns a TPR with what its interval over models and samples needs."""
        parts = self.parts[
            (self.parts["strategy"] == strategy)
            & (self.parts["models"] == models)
            & _is_at(self.parts["fpr"], [fpr])
        ]
        value_A1xH1 = parts.pivot(index="part", columns="half", values="tpr").to_numpy(float)
        return Jackknife(value_A1xH1[:, None, :], f"{models} models and the samples")

    def difference(self, strategy: str, other: str, models: int, fpr: float) -> Jackknife:
        """Returns the TPR of one strategy minus that of another, with the same models and samples."""
        return self.tpr(strategy, models, fpr) - self.tpr(other, models, fpr)


_RATES = ("fpr", "strategy", "oracle", "models", "tpr", "tpr_low", "tpr_high", "realized_fpr")
_JACKKNIFE = "pooling_jackknife.parquet"
_PARTS = ("fpr", "strategy", "oracle", "models", "part", "half", "tpr")


def _read_table(recipe: RecipeResults, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Reads a table of `lm-mia attack` with attack.leave_one_out; raises Unavailable without it."""
    if recipe.view.has(name):
        return io.read_frame(recipe, name)
    reason = "attack.leave_one_out must be set; run lm-mia attack"
    if recipe.view.has("pooling.json"):
        facts = recipe.view.facts("pooling")
        reason = (
            facts["reason"]
            or f"there is no {name}; at least two targets are needed; run lm-mia run"
        )
    raise Unavailable(f"{recipe.name}: {reason}")


def _is_at(fpr_K: pd.Series, fprs: Sequence[float]) -> np.ndarray:
    """Returns which rates are among ``fprs``."""
    return np.isin(fpr_K.to_numpy(float), fprs)


def draw_fig01(recipes: SweepResults) -> Drawing:
    """Draws the TPR and the realized FPR of every strategy by the number of models, a column per FPR."""
    strategies = Strategies.read(recipes["main"], oracle=False)
    fewest, most = strategies.models[0], strategies.models[-1]
    claims = (
        _claim_greater(FIG01_STATEMENTS[0], strategies, "naive", "standardized", most),
        _claim_greater(
            FIG01_STATEMENTS[1], strategies, "standardized_normal", "standardized", fewest
        ),
        _claim_equal(FIG01_STATEMENTS[2], strategies, most),
        _claim_approach(FIG01_STATEMENTS[3], strategies),
    )
    moments = "The mean and the SD of a target are those over the other models that are evaluated."
    return _result(recipes["main"], strategies, claims, moments)


def draw_a1(recipes: SweepResults) -> Drawing:
    """Draws the same as `draw_fig01`, with moments over all models but the target."""
    strategies = Strategies.read(recipes["main"], oracle=True)
    claims = (
        _claim_greater(
            A1_STATEMENTS[0], strategies, "naive", "standardized", strategies.models[-1]
        ),
        _claim_approach(A1_STATEMENTS[1], strategies),
    )
    moments = f"Means and SDs are over all other {strategies.models[-1] - 1} models, however many are evaluated."
    return _result(recipes["main"], strategies, claims, moments)


def _result(
    recipe: RecipeResults, strategies: Strategies, claims: tuple[Claim, ...], moments: str
) -> Drawing:
    variance = {
        "pooled": "one variance for all samples",
        "per_sample": "a variance for each sample",
    }
    notes = (
        f"{moments} Claims must hold at each of the FPRs {', '.join(map(percent, strategies.fprs))}.",
        "Bands are 95% intervals over models and samples, for the two strategies with one quantile of the pooled "
        "scores. The lower row shows how many non-members each strategy calls members: a higher TPR at the same "
        "realized FPR is a stronger attack, but with a higher realized FPR it may only mean that the threshold is too "
        "low.",
        f"LiRA scores use {variance[recipe.config.attack.variance]} in each class (attack.variance); standardized "
        "losses always use a variance for each sample.",
        not_seen_note(claims),
    )
    return Drawing(strategies.rates, _draw_rates(strategies), claims=claims, notes=notes)


def _claim_greater(
    statement: str, strategies: Strategies, strategy: str, other: str, models: int
) -> Claim:
    parts = [
        claim_greater(
            "",
            f"TPR at an FPR of {percent(fpr)} with {models} models, {strategy} minus {other}",
            strategies.difference(strategy, other, models, fpr).estimate(),
        )
        for fpr in strategies.fprs
    ]
    return claim_all(statement, parts)


def _claim_equal(statement: str, strategies: Strategies, models: int) -> Claim:
    first, other = "standardized_student_t", "standardized"
    parts = [
        claim_equivalent(
            "",
            f"TPR at an FPR of {percent(fpr)} with {models} models, {first} minus {other}",
            strategies.difference(first, other, models, fpr).estimate(),
            _MARGIN,
        )
        for fpr in strategies.fprs
    ]
    return claim_all(statement, parts)


def _claim_approach(statement: str, strategies: Strategies) -> Claim:
    """Returns the claim that the absolute difference of per_sample and standardized shrinks as models are added."""
    fewest, most = strategies.models[0], strategies.models[-1]
    if fewest == most:
        return claim_untested(statement, f"there are only {most} models")
    parts = []
    for fpr in strategies.fprs:
        ends = [
            strategies.difference("per_sample", "standardized", count, fpr)
            for count in (fewest, most)
        ]
        few, many = (end.scaled(math.copysign(1, end.value)) for end in ends)
        # The fewest models are a small part of all, and their shared part makes this interval too wide, if anything.
        shrinks = independent_difference(few, many)
        what = f"|per_sample minus standardized| in TPR at {percent(fpr)}, {fewest} minus {most} models"
        parts.append(claim_greater("", what, shrinks))
    return claim_all(statement, parts)


def _draw_rates(strategies: Strategies) -> Figure:
    figure = plotting.new_figure(4.1 * len(strategies.fprs), 7.2)
    grid = figure.subplots(
        2, len(strategies.fprs), squeeze=False, sharex=True, height_ratios=(3, 2)
    )
    for (tpr_axes, fpr_axes), fpr in zip(grid.T, strategies.fprs, strict=True):
        rates = strategies.rates[_is_at(strategies.rates["fpr"], [fpr])]
        for name, (color, dash, marker) in _STYLES.items():
            rows = rates[rates["strategy"] == name].sort_values("models")
            if rows.empty:
                continue
            style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4}
            tpr_axes.plot(
                rows["models"], rows["tpr"], label=STRATEGIES[name], linewidth=1.4, **style
            )
            fpr_axes.plot(rows["models"], rows["realized_fpr"], linewidth=1.4, **style)
            if name in ("naive", "standardized"):
                ends = rows["tpr_low"].to_numpy(float), rows["tpr_high"].to_numpy(float)
                tpr_axes.fill_between(rows["models"], *ends, color=color, alpha=0.15, linewidth=0)
        tpr_axes.set(title=f"FPR {percent(fpr)}", ylim=(0, None))
        fpr_axes.axhline(fpr, color=plotting.GREY, linewidth=1)
        fpr_axes.set(xscale="log", ylim=(0, None), xlabel="Models")
        ticks = plotting.separated_ticks(strategies.models)
        plotting.set_x_ticks(fpr_axes, [(count, str(count)) for count in ticks])
        for axes in (tpr_axes, fpr_axes):
            plotting.use_percent_axis(axes)
    grid[0, 0].set_ylabel("True positive rate")
    grid[1, 0].set_ylabel("Realized FPR")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def draw_a2(recipes: SweepResults) -> Drawing:
    """Draws the distribution over samples of their false positive rates, beside that of equal rates."""
    recipe = recipes["small"]
    table = _read_table(recipe, "sample_fpr.csv", _SAMPLE_FPR)
    table = table[_is_at(table["fpr"], FPRS)]
    fprs = sorted(table["fpr"].unique())
    targets = int(table["nonmember_models"].max())
    if not fprs:
        raise Unavailable(
            f"{recipe.name}: sample_fpr.csv has none of the rates of the figure; add one to attack.fprs"
        )
    figure = plotting.new_figure(4.1 * len(fprs), 4.6)
    grid = figure.subplots(1, len(fprs), squeeze=False)[0]
    frames, excess_parts, rejected_parts = [], [], []
    for axes, fpr in zip(grid, fprs, strict=True):
        kinds = {
            name: _SampleRates.of(table[(table["strategy"] == name) & _is_at(table["fpr"], [fpr])])
            for name in ("naive", "standardized", "standardized_predictive")
        }
        frames.append(_draw_sample_fprs(axes, kinds, fpr, targets))
        naive, standardized = (kinds[name].excess_variance() for name in ("naive", "standardized"))
        excess = dataclasses.replace(
            naive,
            value=naive.value - standardized.value,
            standard_error=math.hypot(naive.standard_error, standardized.standard_error),
        )
        what = f"Excess variance of the FPR at {percent(fpr)} times 1,000, naive minus standardized"
        excess_parts.append(claim_greater("", what, excess))
        what = f"Share of samples with a significantly larger FPR than {percent(fpr)}"
        rejected_parts.append(claim_greater("", what, kinds["naive"].rejected(fpr), _ALPHA))
    grid[0].set_ylabel("Share of samples")
    figure.legend(
        *grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    claims = (
        claim_all(A2_STATEMENTS[0], excess_parts),
        claim_all(A2_STATEMENTS[1], rejected_parts),
    )
    notes = (
        f"Each sample is attacked in up to {targets} targets that were not trained on it and are not among the "
        "references. The gray area is the distribution if all samples had the requested rate. If models were attacked "
        "with each other, as in the paper, rates of samples would vary less than by chance, since the losses of a "
        "sample would be standardized by each other.",
        "Excess variance is the estimated variance of the true rates, without binomial noise. The exact binomial test "
        f"is one-sided, at {percent(_ALPHA)}. Claims must hold at each FPR; the intervals are over samples.",
        not_seen_note(claims),
    )
    return Drawing(pd.concat(frames), figure, claims=claims, notes=notes)


_SAMPLE_FPR = ("strategy", "fpr", "nonmember_models", "called", "samples")


@dataclasses.dataclass(frozen=True)
class _SampleRates:
    """Numbers of samples by how many targets were not trained on them, and how many of these call them members."""

    trials_K: np.ndarray
    called_K: np.ndarray
    samples_K: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_SampleRates":
        return cls(*(rows[name].to_numpy(np.int64) for name in _SAMPLE_FPR[2:]))

    def excess_variance(self) -> Estimate:
        """Returns 1,000 times the variance of the samples' true rates, with an interval over samples.

        The estimate of `stats.rate_spread` is A - m^2, where A is the sum of k (k - 1) over that of n (n - 1), and m
        the mean rate. Its standard error follows from the influence of each sample on A and m.
        """
        n_K, k_K, samples_K = self.trials_K, self.called_K, self.samples_K
        spread = stats.rate_spread(np.repeat(k_K, samples_K), np.repeat(n_K, samples_K))
        num_samples = samples_K.sum()
        pairs, trials = samples_K @ (n_K * (n_K - 1)), samples_K @ n_K
        square = (samples_K @ (k_K * (k_K - 1))) / pairs
        influence_K = (k_K * (k_K - 1) - square * n_K * (n_K - 1)) * num_samples / pairs
        influence_K -= 2 * spread.mean * (k_K - spread.mean * n_K) * num_samples / trials
        error = math.sqrt(samples_K @ influence_K**2) / num_samples
        return self._estimate(1_000 * spread.variance, 1_000 * error)

    def rejected(self, fpr: float) -> Estimate:
        """Returns the share of samples for which an exact binomial test rejects that their rate is at most ``fpr``."""
        p_K = scipy.stats.binom.sf(self.called_K - 1, self.trials_K, fpr)
        share = float(self.samples_K[p_K <= _ALPHA].sum() / self.samples_K.sum())
        return self._estimate(share, math.sqrt(share * (1 - share) / self.samples_K.sum()))

    def _estimate(self, value: float, standard_error: float) -> Estimate:
        samples = int(self.samples_K.sum())
        return Estimate(value, standard_error, samples - 1, f"{samples:,} samples", ("the models",))

    def shares(self, edges_J1: np.ndarray) -> np.ndarray:
        """Returns the share of samples in each bin of the rate."""
        counts_J, _ = np.histogram(self.called_K / self.trials_K, edges_J1, weights=self.samples_K)
        return counts_J / self.samples_K.sum()

    def expected_shares(self, edges_J1: np.ndarray, fpr: float) -> np.ndarray:
        """Returns the expected shares if every sample has the rate ``fpr``."""
        shares_J = np.zeros(len(edges_J1) - 1)
        for n in np.unique(self.trials_K):
            k = np.arange(n + 1)
            share = self.samples_K[self.trials_K == n].sum() / self.samples_K.sum()
            weights = share * scipy.stats.binom.pmf(k, n, fpr)
            shares_J += np.histogram(k / n, edges_J1, weights=weights)[0]
        return shares_J


def _draw_sample_fprs(
    axes: Axes, kinds: dict[str, _SampleRates], fpr: float, targets: int
) -> pd.DataFrame:
    """Draws the histograms of one FPR; returns rows (fpr, series, low, high, share)."""
    width = 1 / max(targets // 2, 1)
    edges_J1 = (np.arange(targets // 2 + 2) - 0.5) * width
    expected_J = kinds["naive"].expected_shares(edges_J1, fpr)
    series = {"binomial": expected_J} | {
        name: kind.shares(edges_J1) for name, kind in kinds.items()
    }
    axes.stairs(expected_J, edges_J1, fill=True, color="#CCCCCC", label="Equal rates (binomial)")
    for name, kind in kinds.items():
        label, (color, dash, _) = STRATEGIES[name], _STYLES[name]
        axes.stairs(
            kind.shares(edges_J1), edges_J1, color=color, linestyle=dash, linewidth=1.6, label=label
        )
    shown_J = np.max([share_J for share_J in series.values()], axis=0) > 0.2 / sum(
        kinds["naive"].samples_K
    )
    highest = float(edges_J1[1:][shown_J].max())
    axes.axvline(fpr, color=plotting.GREY, linestyle=":", linewidth=1.2)
    axes.set(title=f"FPR {percent(fpr)}", xlabel="FPR of the sample", xlim=(-width / 2, highest))
    axes.set(yscale="log", ylim=(0.5 / sum(kinds["naive"].samples_K), 1.2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: percent(share))
    return pd.concat(
        pd.DataFrame(
            {"fpr": fpr, "series": name, "low": edges_J1[:-1], "high": edges_J1[1:], "share": s_J}
        )
        for name, s_J in series.items()
    )


FIGURES = {
    "reliability_fig01_strategies": Experiment(
        title="Reliability Figure 1: TPR by strategy for the threshold",
        paper=(
            "Every model is attacked with the others, for 8 to 4,096 models of tabular data. One threshold for the "
            "LiRA scores of all samples gives higher TPRs than one for losses that are standardized by the mean and "
            "the SD of each sample over models not trained on it. The TPR with a threshold per sample approaches the "
            "latter as models are added. The normal quantile gives TPRs that are too high with up to 512 models; the "
            "quantile of a fitted t distribution is accurate from 256 models (Section 6.1)."
        ),
        expect=(
            "At cpu, with 8 to 136 models, the normal quantile is too low with few models, so that its TPR and its "
            "realized FPR are too high, and the TPR with a threshold per sample approaches that with one threshold for "
            "standardized losses. Unlike in the paper, one threshold for LiRA scores gives lower TPRs than one for "
            "standardized losses. Most of the difference is due to LiRA's one variance for all samples: with a "
            "variance for each sample (attack.variance=per_sample), the TPR at 1% with 136 models is 0.058 instead of "
            "0.032, against 0.062 for standardized losses. The fitted t quantile is somewhat too high."
        ),
        statements=FIG01_STATEMENTS,
        draw=draw_fig01,
    ),
    "reliability_figA1_oracle": Experiment(
        title="Reliability Figure A1: TPR by strategy for the threshold, with moments over all models",
        paper=(
            "As in Figure 1, but means and variances of a sample are over the losses of all models except the target. "
            "One threshold for LiRA scores still gives the highest TPRs, and the TPR with a threshold per sample still "
            "approaches that with one threshold for standardized losses (Appendix A.1)."
        ),
        expect=(
            "At cpu the TPR hardly depends on the number of models, except with a threshold per sample. One "
            "threshold for LiRA scores gives lower TPRs than one for standardized losses, as in Figure 1."
        ),
        statements=A1_STATEMENTS,
        draw=draw_a1,
    ),
    "reliability_figA2_sample_fpr": Experiment(
        title="Reliability Figure A2: False positive rates of single samples",
        paper=(
            "With one threshold for LiRA scores, the false positive rates of samples have heavy tails: many samples "
            "have a higher rate than requested. Standardized losses bring the rates of samples closer together "
            "(Section 6.1 and Figure A2)."
        ),
        expect=(
            "At cpu both claims are seen in these models: with one threshold for LiRA scores, some samples are called "
            "members by half of the targets that were not trained on them. Rates with standardized losses are close "
            "to equal, but not exactly equal, since moments are estimated from about 32 models of each class."
        ),
        statements=A2_STATEMENTS,
        draw=draw_a2,
    ),
}
