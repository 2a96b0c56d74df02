"""Figure 7: whether the samples with the highest membership scores can be extracted from the first replica."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting
from analysis.claims.compare import claim_equivalent, claim_untested
from analysis.claims.trends import RankCorrelation
from analysis.formatting import plural
from analysis.io import MissingModelsError, Record, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure
from analysis.plotting import CLASSES

TABLE, CURVES, FACTS = "extraction.csv", "extraction_curves.csv", "extraction.json"
COLUMNS = (
    "id",
    "member",
    "score",
    "log_p_greedy",
    "log_p_sampled",
    "log_p_chosen",
    "exact_greedy",
    "contained_greedy",
    "overlap_greedy",
)
CURVE_COLUMNS = ("scheme", "class", "queries", "probability", "share")
LIKELY = 1e-3
"""The table counts suffixes with a higher probability than this."""
_HEAVY = 20
"""The ratio of the largest to the median score above which the axis is logarithmic."""
_PROBABILITIES: tuple[tuple[float, plotting.LineStyle], ...] = ((0.5, "-"), (0.999, "--"))
QUERIES = tuple(10**k for k in (0, 3, 6, 9, 12, 18))
"""Numbers of queries in the table; the curves have more."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """The samples with the highest membership scores, and how many of them can be extracted."""

    samples: list[Record]
    """Rows of tables/extraction.csv, the highest score first."""
    curves: list[Record]
    """Rows of tables/extraction_curves.csv for plain sampling at temperature 1."""
    facts: Record
    """tables/extraction.json: the model and the settings."""
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
    def is_extractable(self) -> bool:
        """Whether any sample can be extracted with some number of queries."""
        return any(row["share"] > 0 for row in self.curves)

    def request_text(self) -> str:
        """Returns a text on the selected samples and the task of the model."""
        c, members = self.facts["config"], int(self.member_N.sum())
        prefix, suffix = (plural(c[f"{name}_tokens"], "token") for name in ("prefix", "suffix"))
        return (
            f"The first replica was given the first {prefix} of each of {plural(len(self.samples), 'sample')} "
            f"({plural(members, 'member')} and {plural(len(self.samples) - members, 'non-member')}) and asked for the "
            f"next {suffix}. These are the samples with the highest LiRA scores among those that are long enough; "
            f"{c['samples']:,} were requested."
        )

    def scheme_rows(self) -> list[Record]:
        """Returns a table row per decoding scheme: suffix probabilities, and how many suffixes were generated."""
        rows = []
        for name, title in self.facts["schemes"].items():
            log_p_N = self.column(f"log_p_{name}")
            row = {
                "scheme": title.capitalize(),
                "highest": format_exponent(float(log_p_N.max())),
                "median": format_exponent(float(np.median(log_p_N))),
                "likely": int((log_p_N > math.log(LIKELY)).sum()),
                "impossible": int(np.isneginf(log_p_N).sum()),
            }
            if f"exact_{name}" in self.samples[0]:
                row |= {
                    "exact": int(self.column(f"exact_{name}").sum()),
                    "anywhere": int(self.column(f"contained_{name}").sum()),
                    "half": int((self.column(f"overlap_{name}") > 0.5).sum()),
                }
            rows.append(row)
        return rows

    def query_rows(self) -> list[Record]:
        """Returns a table row per number of queries: shares of members and of non-members, for plain sampling."""
        rows: dict[int, Record] = {}
        for row in self.curves:
            if row["probability"] == _PROBABILITIES[0][0] and row["queries"] in QUERIES:
                rows.setdefault(int(row["queries"]), {})[row["class"]] = (
                    f"{100 * row['share']:.1f}%"
                )
        return [{"queries": format_exponent(math.log(n))} | shares for n, shares in rows.items()]

    def rank_correlation(self) -> RankCorrelation | None:
        """Returns the rank correlation of score and -log p of the suffix; None if one is constant."""
        return RankCorrelation.from_samples(
            self.column("score"), -self.column("log_p_sampled"), self.document_N
        )


def format_exponent(log: float) -> str:
    """Formats exp(log): 0.0067, 20, 1.3 × 10⁻⁴⁹; 0 for -inf."""
    if math.isinf(log):
        return "0"
    if math.log(LIKELY) <= log < math.log(9_999):
        return f"{math.exp(log):.2g}" if log < 0 else f"{math.exp(log):,.0f}"
    exponent = math.floor(log / math.log(10) + 1e-9)
    digits = f"{math.exp(log - exponent * math.log(10)):.1f}"
    if digits == "10.0":
        digits, exponent = "1.0", exponent + 1
    ten = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return ten if log > 0 and digits == "1.0" else f"{digits} × {ten}"


def has_tables(recipe_dir: Path) -> bool:
    """Returns whether all tables of the extraction exist."""
    return all(io.has_table(recipe_dir, name) for name in (TABLE, CURVES, FACTS))


def read(recipe_dir: Path) -> Extraction | None:
    """Reads the tables; None if they are missing or do not match the scores or the first replica of the attack."""
    if not has_tables(recipe_dir):
        return None
    samples = io.read_table(recipe_dir, TABLE, COLUMNS, "extract")
    curves = io.read_table(recipe_dir, CURVES, CURVE_COLUMNS, "extract")
    score_N = io.read_samples(recipe_dir, ["score"])["score"]
    ids_exist = samples and all(0 <= row["id"] < len(score_N) for row in samples)
    if not ids_exist or any(row["score"] != score_N[int(row["id"])] for row in samples):
        return None
    facts = io.read_json(recipe_dir, f"tables/{FACTS}", ("model", "config", "schemes"), "extract")
    if facts["model"] != io.read_flip_facts(recipe_dir)["first_target"]:
        return None
    probabilities = [p for p, _ in _PROBABILITIES]
    sampled = [r for r in curves if r["scheme"] == "sampled" and r["probability"] in probabilities]
    ids_N = [int(row["id"]) for row in samples]
    return Extraction(samples, sampled, facts, io.read_documents(recipe_dir)[ids_N])


def draw(extraction: Extraction) -> Figure:
    """Draws −log p of each suffix against the score and, if anything can be extracted, shares against queries."""
    panels = 1 + extraction.is_extractable
    figure = plotting.new_figure(6.2 if panels == 1 else 9.6, 4.0)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_scatter(axes[0], extraction)
    if extraction.is_extractable:
        _draw_curves(axes[1], extraction.curves)
    return figure


def _draw_scatter(axes: Axes, extraction: Extraction) -> None:
    score_N, nats_N = extraction.column("score"), -extraction.column("log_p_sampled")
    finite_N = np.isfinite(nats_N)
    for label, is_member, color, _ in CLASSES:
        shown_N = finite_N & (extraction.member_N == is_member)
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
    if score_N.max() > _HEAVY * np.median(np.abs(score_N)):
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


def recipe_figures(recipe_dir: Path) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None without tables of its attack."""
    extraction = read(recipe_dir)
    return {"extraction": draw(extraction) if extraction else None}


# Figure 7: log probabilities of the suffixes of the samples with the highest membership scores.
FIG07_STATEMENTS = (
    "The vulnerability of a sample says little about how easily it can be extracted.",
)
_MARGIN, _SUFFIX_TOKENS = 0.2, 50
_COLUMNS = ["id", "member", "score", "log_p_sampled"]


def draw_fig07(recipes: SweepResults) -> FigureResult:
    """Draws the negative log probability of each suffix against the membership score."""
    main = recipes["main"]
    extraction = read(main.recipe_dir)
    if extraction is None:
        raise MissingModelsError(f"{main.name}: there are no tables of extraction for its attack")
    score_N, nats_N = extraction.column("score"), -extraction.column("log_p_sampled")
    correlation = extraction.rank_correlation()
    what = "Rank correlation of the score and -log p of the suffix"
    claim = claim_untested(
        FIG07_STATEMENTS[0], f"{what}: all scores or all probabilities are equal"
    )
    if correlation:
        estimate = correlation.estimate(("the model", "its references"))
        claim = claim_equivalent(FIG07_STATEMENTS[0], what, estimate, _MARGIN)
    ours = {"members_of_1000": (1000 * float(extraction.member_N.mean()), math.nan)}
    if main.config.extract.suffix_tokens == _SUFFIX_TOKENS:
        ours["largest_probability"] = (math.exp(-nats_N.min()), math.nan)
        ours["smallest_nats"] = (float(nats_N.min()), math.nan)
    return FigureResult(
        data=pd.DataFrame(extraction.samples)[_COLUMNS],
        figure=draw(dataclasses.replace(extraction, curves=[])),
        claims=(claim,),
        ours=ours,
        notes=(
            extraction.request_text(),
            f"These are a fraction {len(score_N) / len(main.population):.2g} of all samples (in the paper: 0.00007).",
            f"“Little” means a rank correlation within ±{_MARGIN:g}; this margin is our choice.",
        ),
    )


FIGURES = {
    "strongmia_fig07_extraction": PaperFigure(
        title="Figure 7: Extraction of the samples with the highest scores",
        paper=(
            "Of the 1,000 samples with the highest LiRA scores under a 140M model of 7M samples, 713 are members. "
            "Given 50 tokens, the next 50 have a probability of 0.0067 at most (a member), and of the order of 1e-44 "
            "or less for most, members or not. Vulnerable samples are no easier to extract (Section 6.2)."
        ),
        expect=(
            "At cpu a similar share of the 1,000 samples, which are a third of all, are members. No suffix can be "
            "extracted: the most likely suffix of 32 tokens has a probability of 1e-53."
        ),
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
