"""Figure 7: whether the samples with the highest scores can be extracted from the first replica."""

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
from analysis.compare import Estimate, Trend, near, untested
from analysis.io import Absent, Recipes, Record, percent
from analysis.paper_figure import Drawn, PaperFigure
from analysis.plotting import CLASSES
from analysis.sentences import plural

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
OLD = (
    "The tables of extraction in this folder are of the scores of another attack and are not shown; "
    "run lm-mia extract again."
)
_LIKELY = 1e-3
_HEAVY = 20
"""How many times the median score the largest may be before the axis becomes logarithmic."""
_PROBABILITIES: tuple[tuple[float, plotting.Dash], ...] = ((0.5, "-"), (0.999, "--"))
_QUERIES = 10**6
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """The samples that were asked for and, at the points of the curves, how many of them can be extracted."""

    samples: list[Record]
    """The rows of tables/extraction.csv, the highest score first."""
    curves: list[Record]
    """The rows of tables/extraction_curves.csv of plain sampling."""
    facts: Record
    """tables/extraction.json: what they are about."""

    def column(self, name: str) -> np.ndarray:
        """One number a sample."""
        return np.array([row[name] for row in self.samples], float)

    @property
    def member_N(self) -> np.ndarray:
        """Whether the first replica was trained on it."""
        return np.array([str(row["member"]) == "True" for row in self.samples])

    @property
    def extractable(self) -> bool:
        """Whether any curve that is drawn leaves 0."""
        return any(row["share"] > 0 for row in self.curves)

    def sentences(self) -> list[str]:
        """What the tables say, from whom was asked to what the score has to do with it."""
        parts = (self._asked, self._likely, self._written, self._queries, self._relation)
        return [said for part in parts if (said := part())]

    def _asked(self) -> str:
        members, c = int(self.member_N.sum()), self.facts["config"]
        which = f"{plural(len(self.samples), 'sample')} with the highest LiRA scores (among those that are long enough)"
        if len(self.samples) < c["samples"]:
            which = (
                f"{plural(len(self.samples), 'sample')} that have a LiRA score and are long enough (fewer than the "
                f"{c['samples']:,} asked for, so whatever their score)"
            )
        return (
            f"The first replica was given the first {plural(c['prefix_tokens'], 'token')} of each of the {which}, "
            f"{plural(members, 'member')} and {plural(len(self.samples) - members, 'non-member')}, and asked for the "
            f"next {c['suffix_tokens']}."
        )

    def _likely(self) -> str:
        log_p_N = self.column("log_p_sampled")
        best = int(np.argmax(log_p_N))
        over = int((log_p_N > math.log(_LIKELY)).sum())
        whose = "a member" if self.member_N[best] else "a non-member"
        said = (
            f"The likeliest suffix, of {whose}, has probability {power(log_p_N[best])}; the median is "
            f"{power(float(np.median(log_p_N)))}. {_count(over, len(log_p_N))} above {_LIKELY:g}."
        )
        for name, scheme in self._schemes.items():
            if never := int(np.isneginf(self.column(f"log_p_{name}")).sum()):
                said += f" {_count(never, len(log_p_N))} impossible under {scheme}."
        return said

    @property
    def _schemes(self) -> dict[str, str]:
        named = {"greedy": "greedy decoding", "sampled": "plain sampling (temperature 1)"}
        return {**named, "chosen": f"the chosen sampling ({self.facts['schemes']['chosen']})"}

    def _written(self) -> str:
        counts = {
            name: [
                int(self.column(f"exact_{name}").sum()),
                int(self.column(f"contained_{name}").sum()),
                int((self.column(f"overlap_{name}") > 0.5).sum()),
            ]
            for name in self._schemes
            if f"exact_{name}" in self.samples[0]
        }
        if not any(any(found) for found in counts.values()):
            *others, last = (self._schemes[name] for name in counts)
            ways = f"{', '.join(others)} or {last}" if others else last
            return (
                "Continuing the prefixes, the model writes none of the suffixes, and of none more than half of the "
                f"tokens in order, under {ways}."
            )
        exact, anywhere, half = (f"{count:,}" for count in counts.pop("greedy"))
        said = (
            f"Continuing the prefixes greedily, the model writes {exact} suffixes exactly where they stand and "
            f"{anywhere} anywhere, and more than half of the tokens, in order, of {half}"
        )
        for name, found in counts.items():
            exact, anywhere, half = (f"{count:,}" for count in found)
            said += f"; under {self._schemes[name]} {exact}, {anywhere} and {half}"
        return said + "."

    def _queries(self) -> str:
        rows = [r for r in self.curves if r["probability"] == _PROBABILITIES[0][0]]
        if not rows:
            return ""
        likely = percent(_PROBABILITIES[0][0])
        enough = [int(r["queries"]) for r in rows if r["share"] > 0]
        if not enough:
            most = power(math.log(max(r["queries"] for r in rows)))
            return f"Not even {most} queries would yield one of these suffixes with a probability of {likely}."
        at = {r["class"]: r["share"] for r in rows if r["queries"] == _QUERIES}
        names = {"members": "members", "nonmembers": "non-members"}
        shares = " and ".join(f"{percent(at[c])} of {name}" for c, name in names.items() if c in at)
        first = power(math.log(min(enough)))
        within = "1 query" if first == "1" else f"{first} queries or fewer"
        return (
            f"In {within}, the likeliest suffix is drawn with a probability of {likely} or more; "
            f"in {power(math.log(_QUERIES))}, those of {shares} are."
        )

    def _relation(self) -> str:
        trend = Trend.of(self.column("score"), -self.column("log_p_sampled"))
        if trend is None:
            return "All scores or all probabilities are equal, so neither goes with the other."
        if not trend.sign:
            return f"Among these samples, score and −log p show no clear relation ({trend})."
        which = "less" if trend.sign > 0 else "more"
        return f"Among these samples, higher scores go with {which} likely suffixes ({trend} of score and −log p)."


def power(log: float) -> str:
    """A number from its natural logarithm: 0.0067, 20, 1.3 × 10⁻⁴⁹; 0 for -inf."""
    if math.isinf(log):
        return "0"
    if math.log(_LIKELY) <= log < math.log(9_999):
        return f"{math.exp(log):.2g}" if log < 0 else f"{math.exp(log):,.0f}"
    exponent = math.floor(log / math.log(10) + 1e-9)
    digits = f"{math.exp(log - exponent * math.log(10)):.1f}"
    if digits == "10.0":
        digits, exponent = "1.0", exponent + 1
    ten = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return ten if log > 0 and digits == "1.0" else f"{digits} × {ten}"


def there(folder: Path) -> bool:
    """Whether extract.samples asked for the tables."""
    return all(io.has(folder, name) for name in (TABLE, CURVES, FACTS))


def read(folder: Path) -> Extraction | None:
    """The tables; None if there are none, or if they are of another replica or of other scores than the attack's."""
    if not there(folder):
        return None
    samples = io.table(folder, TABLE, COLUMNS, "extract")
    curves = io.table(folder, CURVES, CURVE_COLUMNS, "extract")
    score_N = io.samples(folder, ["score"])["score"]
    known = samples and all(0 <= row["id"] < len(score_N) for row in samples)
    if not known or any(row["score"] != score_N[int(row["id"])] for row in samples):
        return None
    facts = io.read_json(folder, f"tables/{FACTS}", ("row", "config", "schemes"), "extract")
    if facts["row"] != io.flip_facts(folder)["first_target"]:
        return None
    asked = [p for p, _ in _PROBABILITIES]
    of = [r for r in curves if r["scheme"] == "sampled" and r["probability"] in asked]
    return Extraction(samples, of, facts)


def draw(found: Extraction) -> Figure:
    """−log p of every suffix against the score; beside it, if anything can be extracted, shares against queries."""
    panels = 1 + found.extractable
    figure = plotting.new_figure(6.2 if panels == 1 else 9.6, 4.0)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _scatter(axes[0], found)
    if found.extractable:
        _curves(axes[1], found.curves)
    return figure


def _scatter(axes: Axes, found: Extraction) -> None:
    score_N, nats_N = found.column("score"), -found.column("log_p_sampled")
    finite_N = np.isfinite(nats_N)
    for label, is_member, color, _ in CLASSES:
        shown_N = finite_N & (found.member_N == is_member)
        axes.scatter(
            score_N[shown_N],
            nats_N[shown_N],
            s=13,
            marker="o" if is_member else "s",
            color=color,
            alpha=0.45,
            linewidth=0,
            label=f"{label} ({shown_N.sum():,})",
            rasterized=True,  # a dot each would make the PDF large
        )
    if score_N.max() > _HEAVY * np.median(np.abs(score_N)):
        axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="LiRA score", ylabel="−log probability of the suffix (nats)")
    legend = axes.legend(loc="best")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _curves(axes: Axes, curves: Sequence[Record]) -> None:
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


def _count(count: int, whole: int) -> str:
    """None is, 1 of 1,000 is, 12 of 1,000 are, all 1,000 are."""
    if count in (0, whole):
        return f"All {whole:,} are" if count else "None is"
    return f"{count:,} of {whole:,} {'is' if count == 1 else 'are'}"


def run_figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None without tables of its attack."""
    found = read(folder)
    return {"extraction": draw(found) if found else None}


# Figure 7: the log probability of the suffixes of the samples with the highest scores.
FIG07_STATEMENTS = ("How vulnerable a sample is says little about how well it can be extracted.",)
_MARGIN, _SUFFIX_TOKENS = 0.2, 50
_COLUMNS = ["id", "member", "score", "log_p_sampled"]


def draw_fig07(recipes: Recipes) -> Drawn:
    """The negative log probability of every suffix against the score."""
    main = recipes["main"]
    found = read(main.folder)
    if found is None:
        raise Absent(f"{main.name}: no tables of extraction for its attack")
    score_N, nats_N = found.column("score"), -found.column("log_p_sampled")
    trend = Trend.of(score_N, nats_N)
    said = "rank correlation of the score and -log p of the suffix"
    claim = untested(FIG07_STATEMENTS[0], f"{said}: all scores or all probabilities are equal")
    if trend:
        over = f"{len(score_N):,} samples"
        estimate = Estimate(trend.r, trend.low, trend.high, over)
        claim = near(FIG07_STATEMENTS[0], said, estimate, _MARGIN)
    ours = {"members_of_1000": (1000 * float(found.member_N.mean()), math.nan)}
    if main.config.extract.suffix_tokens == _SUFFIX_TOKENS:
        ours["largest_probability"] = (math.exp(-nats_N.min()), math.nan)
        ours["smallest_nats"] = (float(nats_N.min()), math.nan)
    return Drawn(
        data=pd.DataFrame(found.samples)[_COLUMNS],
        figure=draw(dataclasses.replace(found, curves=[])),
        claims=(claim,),
        ours=ours,
        notes=(
            *found.sentences(),
            f"These are {len(score_N) / len(main.population):.2g} of all samples (the paper's: 0.00007).",
            f"Little is a rank correlation within {_MARGIN:g} of 0, which is our choice.",
        ),
    )


FIGURES = {
    "fig07_extraction": PaperFigure(
        title="Figure 7: Extraction of the samples with the highest scores",
        paper=(
            "Of the 1,000 samples with the highest LiRA scores under a 140M model of 7M samples, 713 are members. "
            "Given 50 tokens, the next 50 have a probability of 0.0067 at most (a member), and of the order of 1e-44 "
            "or less for most, members or not. Vulnerable samples are no easier to extract (Section 6.2)."
        ),
        expect=(
            "At cpu about as many of the 1,000 samples, which are a third of all, are members. No suffix can be "
            "extracted: the likeliest suffix of 32 tokens has a probability of 1e-53."
        ),
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
