"""Members and non-members from different sources: the error of each estimator over the runs of a recipe.

Each reference in turn is the model under evaluation, the run, so errors have a mean and an interval.
`lm_mia.attacks.zero_run` describes the tables.

R: runs, or pairs of complementary runs.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from analysis import io, plotting
from analysis.io import RecipeResults, Record
from lm_mia.attacks.registry import attack_name

TABLE, INTERFERENCE = "zero_run.csv", "interference.csv"
METRICS = {"auc": "AUC", "tpr_0.05": "TPR at 5% FPR", "ate": "Mean effect"}
"""Column of zero_run.csv -> its name."""
ESTIMATORS = {
    "iid": "Same source",
    "naive": "Unadjusted",
    "oracle": "True weights",
    "ipw": "Learned weights (IPW)",
    "g_formula": "Regression (G-formula)",
    "aipw": "Both (AIPW)",
}
"""Estimator -> its name in figures and tables, in the order in which they are shown."""
STYLES: dict[str, tuple[str, str]] = {
    "iid": (plotting.GREY, "o"),
    "naive": (plotting.VERMILLION, "X"),
    "oracle": (plotting.BLACK, "D"),
    "ipw": (plotting.BLUE, "s"),
    "g_formula": (plotting.ORANGE, "^"),
    "aipw": (plotting.GREEN, "P"),
}
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class MeanError:
    """The mean over runs of an estimate minus the truth, with a t interval."""

    mean: float
    low: float
    high: float
    """The ends are NaN for a single run."""


@dataclasses.dataclass(frozen=True)
class Estimator:
    """One estimator of one attack with one shift, over all runs."""

    name: str
    """A key of `ESTIMATORS`."""
    errors: Mapping[str, MeanError]
    """A key of `METRICS` -> its error; without estimates, NaN."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One attack with one shift."""

    shift: str
    strength: float
    attack: str
    estimators: Sequence[Estimator]

    @property
    def title(self) -> str:
        """The shift in a few words."""
        return shift_title(self.shift, self.strength)

    def find(self, name: str) -> Estimator | None:
        """Returns an estimator by name."""
        return next((e for e in self.estimators if e.name == name), None)


@dataclasses.dataclass(frozen=True)
class OneRun:
    """One-run estimates of every model beside those of all models together."""

    attack: str
    mean: float
    """Mean AUC over the models."""
    sd: float
    """Standard deviation of the AUC over the models."""
    independent_sd: float
    """Standard deviation if the scores of different samples were independent."""
    multi_run: float
    """AUC of all models together."""

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        return (
            f"{attack_name(self.attack)}: over models, the AUC of one model on all samples has a mean of "
            f"{self.mean:.3f} and a standard deviation of {self.sd:.4f}, which would be {self.independent_sd:.4f} if "
            "the scores of different samples were independent. All models together have an AUC of "
            f"{self.multi_run:.3f}."
        )


@dataclasses.dataclass(frozen=True)
class ZeroRun:
    """The zero-run evaluation of a recipe, as the report shows it."""

    reason: str
    """Why there are no numbers; empty if there are."""
    shift_reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Shift -> why it is not possible."""
    runs: int = 0
    pairs: bool = False
    settings: Sequence[Setting] = ()
    one_run: Sequence[OneRun] = ()

    @property
    def verdict(self) -> str:
        """The errors of the AUC of the loss, in a sentence per shift; of graded, with the largest strength."""
        last = {s.shift: s for s in sorted(self.settings, key=lambda s: s.strength)}
        sentences = []
        for shift in dict.fromkeys(s.shift for s in self.settings):
            strength = last[shift].strength
            [setting] = [
                s
                for s in self.settings
                if (s.shift, s.strength, s.attack) == (shift, strength, "loss")
            ]
            errors = {e.name: e.errors["auc"].mean for e in setting.estimators}
            sentence = (
                f"With the shift {setting.title}, the AUC of the loss is off by "
                f"{signed(errors['naive'])} without adjustment"
            )
            if not math.isnan(errors["oracle"]):
                sentence += f", by {signed(errors['oracle'])} with true weights"
            if "aipw" in errors:
                sentence += f" and by {signed(errors['aipw'])} with AIPW"
            if math.isnan(errors["oracle"]):
                sentence += "; there are no true weights, since no non-member resembles a member"
            sentences.append(sentence + ".")
        return " ".join(sentences)


def signed(value: float) -> str:
    """Formats an error with its sign and three digits: "+0.012", "-0.004", "0.000"."""
    text = f"{value:+.3f}"
    return text[1:] if float(text) == 0 else text


def shift_title(shift: str, strength: float) -> str:
    """Returns a shift in a few words, such as "graded, strength 2"."""
    return f"graded, strength {strength:g}" if shift == "graded" else shift


def read(recipe: RecipeResults) -> ZeroRun | None:
    """Reads the tables; None if attack.zero_run did not request them."""
    if not recipe.view.has("zero_run.json"):
        return None
    facts = recipe.view.facts("zero_run")
    if facts["reason"]:
        return ZeroRun(facts["reason"])
    rows = io.read_table(recipe, TABLE)
    grouped: dict[tuple[str, float, str], list[Record]] = {}
    for row in rows:
        grouped.setdefault((row["shift"], row["strength"], row["attack"]), []).append(row)
    interference = io.read_table(recipe, INTERFERENCE)
    return ZeroRun(
        "",
        facts["shift_reasons"],
        facts["models"],
        facts["pairs"],
        [_setting(*key, of_key, facts["pairs"]) for key, of_key in grouped.items()],
        [_one_run(name, interference) for name in dict.fromkeys(r["attack"] for r in interference)],
    )


def mean_error(error_R: Sequence[float]) -> MeanError:
    """Returns the mean of errors with its t interval; estimates that do not exist (NaN) are left out."""
    known_R = np.array([error for error in error_R if not math.isnan(error)])
    if not known_R.size:
        return MeanError(math.nan, math.nan, math.nan)
    mean = float(known_R.mean())
    if known_R.size == 1:
        return MeanError(mean, math.nan, math.nan)
    quantile = scipy.stats.t.ppf(0.5 + _CONFIDENCE / 2, known_R.size - 1)
    margin = float(quantile * known_R.std(ddof=1) / math.sqrt(known_R.size))
    return MeanError(mean, mean - margin, mean + margin)


def _setting(
    shift: str, strength: float, attack: str, rows: Sequence[Record], pairs: bool
) -> Setting:
    by_estimator: dict[str, list[Record]] = {}
    for row in rows:
        by_estimator.setdefault(row["estimator"], []).append(row)
    truths = by_estimator["truth"]

    def errors(of_runs: Sequence[Record], metric: str) -> list[float]:
        error_R = np.array(
            [row[metric] - truth[metric] for row, truth in zip(of_runs, truths, strict=True)]
        )
        # A model and its complement share every draw, so they count once.
        return (error_R.reshape(-1, 2).mean(axis=1) if pairs else error_R).tolist()

    return Setting(
        shift,
        strength,
        attack,
        [
            Estimator(
                name,
                {metric: mean_error(errors(by_estimator[name], metric)) for metric in METRICS},
            )
            for name in ESTIMATORS
            if name in by_estimator
        ],
    )


def _one_run(attack: str, rows: Sequence[Record]) -> OneRun:
    """Returns the comparison of one attack."""
    of_attack = {row["model"]: row for row in rows if row["attack"] == attack}
    of_models = [row for name, row in of_attack.items() if name not in ("multi_run", "trials")]

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in of_models])

    return OneRun(
        attack,
        float(column("auc").mean()),
        float(column("auc").std(ddof=1)),
        float(np.sqrt(np.mean(column("sd_auc") ** 2))),
        of_attack["multi_run"]["auc"],
    )


def draw(zero_run: ZeroRun) -> Figure:
    """Draws the error of the AUC of every estimator with its interval, by shift, a panel per attack."""
    attacks = [*dict.fromkeys(setting.attack for setting in zero_run.settings)]
    titles = [*dict.fromkeys(setting.title for setting in zero_run.settings)]
    figure = plotting.new_figure(7.2, 1.3 + 0.62 * len(titles))
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    offsets = np.linspace(0.34, -0.34, len(ESTIMATORS))
    for axes, attack in zip(panels, attacks, strict=True):
        settings = [s for s in zero_run.settings if s.attack == attack]
        for (name, label), offset in zip(ESTIMATORS.items(), offsets, strict=True):
            color, marker = STYLES[name]
            shown = [
                (offset - titles.index(s.title), e.errors["auc"])
                for s in settings
                if (e := s.find(name)) and not math.isnan(e.errors["auc"].mean)
            ]
            if not shown:
                continue
            axes.errorbar(
                [error.mean for _, error in shown],
                [y for y, _ in shown],
                xerr=np.nan_to_num([[e.mean - e.low, e.high - e.mean] for _, e in shown]).T,
                color=color,
                marker=marker,
                markersize=4.5,
                linestyle="",
                linewidth=1.2,
                label=label,
            )
        axes.axvline(0, color=plotting.BLACK, linewidth=1)
        axes.set(title=attack_name(attack), xlabel="AUC minus the truth")
        axes.locator_params(axis="x", nbins=5)
    panels[0].set_yticks([-float(i) for i in range(len(titles))], titles)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None without numbers."""
    zero_run = read(recipe)
    return {"zero_run": draw(zero_run) if zero_run and zero_run.settings else None}
