"""Whether samples can be extracted from the first replica: the tables of `lm-mia extract`, and a recipe's figure."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting
from analysis.claims.trends import RankCorrelation
from analysis.formatting import percent
from analysis.io import RecipeResults, Record
from analysis.plotting import CLASSES
from lm_mia.errors import Unavailable
from lm_mia.printing import plural

TABLE, CURVES, RATES = "extraction.csv", "extraction_curves.csv", "extraction_rates.csv"
FACTS = "extraction.json"
CRITERIA = {
    "inclusion": "Inclusion",
    "overlap_above_0.8": "LCS > 0.8",
    "p_above_0.5": "p_z > 0.5",
    "p_above_0.01": "p_z > 0.01",
}
"""Criterion of PrivacyGuard's Table 4 -> its name there; see `lm_mia.score.extraction.extracted`."""
_LEAST_DECIMAL = 1e-3
"""Smaller probabilities are formatted as powers of ten."""
_HEAVY = 20
"""The ratio of the largest to the median score above which the axis is logarithmic."""
_PROBABILITIES: tuple[tuple[float, plotting.LineStyle], ...] = ((0.5, "-"), (0.999, "--"))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """The samples that were to be extracted, and how many of them can be."""

    samples: list[Record]
    """Rows of tables/extraction.csv, the highest score first."""
    curves: list[Record]
    """Rows of tables/extraction_curves.csv."""
    rates: list[Record]
    """Rows of tables/extraction_rates.csv."""
    facts: Record
    """tables/extraction.json: the models and the settings."""
    document_N: np.ndarray
    """The document of each sample."""

    def column(self, name: str) -> np.ndarray:
        """Returns a numeric column, one value per sample."""
        return np.array([row[name] for row in self.samples], float)

    @property
    def member_N(self) -> np.ndarray:
        """Whether the first replica was trained on each sample."""
        return np.array([str(row["member"]) == "True" for row in self.samples])

    @property
    def is_random(self) -> bool:
        """Whether the samples are random members and non-members, not those with the highest scores."""
        return self.facts["config"]["choose"] == "random"

    def sampled_curves(self, probabilities: Sequence[float]) -> list[Record]:
        """Returns the rows of the curves for plain sampling at temperature 1 and these probabilities."""
        return [
            row
            for row in self.curves
            if row["scheme"] == "sampled" and row["probability"] in probabilities
        ]

    @property
    def is_extractable(self) -> bool:
        """Whether any sample can be extracted with some number of queries, by plain sampling."""
        return any(row["share"] > 0 for row in self.sampled_curves([p for p, _ in _PROBABILITIES]))

    def request_text(self) -> str:
        """Returns a text on the selected samples and the task of the model."""
        c, members = self.facts["config"], int(self.member_N.sum())
        prefix, suffix = (plural(c[f"{name}_tokens"], "token") for name in ("prefix", "suffix"))
        selection = (
            "They were drawn at random from the members and the non-members that are long enough"
            if self.is_random
            else "These are the samples with the highest LiRA scores among those that are long enough"
        )
        return (
            f"The first replica was given the first {prefix} of each of {plural(len(self.samples), 'sample')} "
            f"({plural(members, 'member')} and {plural(len(self.samples) - members, 'non-member')}) and asked for the "
            f"next {suffix}. {selection}; {c['samples']:,} were requested."
        )

    def left_out_text(self) -> str:
        """Returns a sentence on the samples that rates leave out; empty if there are none."""
        left_out = sum(row["left_out"] for row in self.rates if row["scheme"] == "sampled")
        return (
            f"Left out: {plural(int(left_out), 'sample')} whose suffix has no letters or digits, or a text that is "
            "also in the prefix."
            if left_out
            else ""
        )

    def rank_correlation(self) -> RankCorrelation | None:
        """Returns the rank correlation of score and -log p of the suffix; None if one is constant."""
        return RankCorrelation.from_samples(
            self.column("score"), -self.column("log_p_sampled"), self.document_N
        )


def format_exponent(log: float) -> str:
    """Formats exp(log): 0.0067, 20, 1.3 × 10⁻⁴⁹; 0 for -inf."""
    if math.isinf(log):
        return "0"
    if math.log(_LEAST_DECIMAL) <= log < math.log(9_999):
        return f"{math.exp(log):.2g}" if log < 0 else f"{math.exp(log):,.0f}"
    exponent = math.floor(log / math.log(10) + 1e-9)
    digits = f"{math.exp(log - exponent * math.log(10)):.1f}"
    if digits == "10.0":
        digits, exponent = "1.0", exponent + 1
    ten = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return ten if log > 0 and digits == "1.0" else f"{digits} × {ten}"


def format_rate(row: Record, criterion: str) -> str:
    """Formats a share with its interval, if it has one; a dash if there are no texts."""
    share, low, high = (row.get(f"{criterion}{end}", math.nan) for end in ("", "_low", "_high"))
    if math.isnan(share):
        return "–"
    interval = "" if math.isnan(low) else f" [{percent(low)}, {percent(high)}]"
    return f"{percent(share)}{interval}"


def read(recipe: RecipeResults) -> Extraction | None:
    """Reads the tables; None if no samples were extracted."""
    if not recipe.view.has(FACTS):
        return None
    facts = recipe.view.facts("extraction")
    samples = io.read_table(recipe, TABLE)
    curves = io.read_table(recipe, CURVES)
    rates = io.read_table(recipe, RATES)
    # The ids of canaries do not begin with 0.
    first_id = recipe.attacked.first_id
    positions = [int(row["id"]) - first_id for row in samples]
    document_N = io.read_documents(recipe)[positions]
    return Extraction(samples, curves, rates, facts, document_N)


def read_chosen(recipe: RecipeResults, choose: str) -> Extraction:
    """Reads the extraction of a recipe, whose samples must have been chosen as the figure requires."""
    result = read(recipe)
    if result is None:
        raise Unavailable(
            f"{recipe.name}: there are no tables of extraction for its attack; run lm-mia extract"
        )
    chosen = result.facts["config"]["choose"]
    if chosen != choose:
        raise Unavailable(
            f"{recipe.name}: its tables of extraction have extract.choose={chosen}, but this figure needs "
            f"{choose}; run lm-mia extract with --config.extract.choose={choose}"
        )
    return result


def draw(extraction: Extraction) -> Figure:
    """Draws −log p of each suffix against the score and, if anything can be extracted, shares against queries."""
    panels = 1 + extraction.is_extractable
    figure = plotting.new_figure(6.2 if panels == 1 else 9.6, 4.0)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_scatter(axes[0], extraction)
    if extraction.is_extractable:
        _draw_curves(axes[1], extraction.sampled_curves([p for p, _ in _PROBABILITIES]))
    return figure


def _draw_scatter(axes: Axes, extraction: Extraction) -> None:
    score_N, nats_N = extraction.column("score"), -extraction.column("log_p_sampled")
    is_drawn_N = np.isfinite(nats_N) & ~np.isnan(score_N)
    for label, is_member, color, _ in CLASSES:
        shown_N = is_drawn_N & (extraction.member_N == is_member)
        axes.scatter(
            score_N[shown_N],
            nats_N[shown_N],
            s=13,
            marker="o" if is_member else "s",
            color=color,
            alpha=0.45,
            linewidth=0,
            label=f"{label} ({shown_N.sum():,})",
            rasterized=True,  # keeps the PDF small
        )
    if np.nanmax(score_N) > _HEAVY * np.nanmedian(np.abs(score_N)):
        axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="LiRA score", ylabel="−log probability of the suffix (nats)")
    legend = axes.legend(loc="best")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _draw_curves(axes: Axes, curves: Sequence[Record]) -> None:
    handles = []
    for p, dash in _PROBABILITIES:
        for label, is_member, color, _ in CLASSES:
            kind = "members" if is_member else "nonmembers"
            rows = [r for r in curves if r["class"] == kind and r["probability"] == p]
            if not rows:
                continue
            x, y = ([r[name] for r in rows] for name in ("queries", "share"))
            axes.plot(x, y, color=color, linestyle=dash)
            handles.append(Line2D([], [], color=color, linestyle=dash, label=f"{label}, p = {p:g}"))
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="Queries (n)", ylabel="Samples extractable")
    axes.legend(handles=handles, loc="best")


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None without tables of its attack."""
    extraction = read(recipe)
    return {"extraction": draw(extraction) if extraction else None}
