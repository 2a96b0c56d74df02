"""Table 4 and Figure 8: whether random samples can be extracted from the first replica, by several criteria.

N: samples.
"""

import dataclasses
import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis import extraction, papers, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_greater,
    claim_untested,
)
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.extraction import CRITERIA, Extraction
from analysis.io import SweepResults

RECIPE = "memorized"
"""The recipe of PrivacyGuard's figures, whose models are trained until they reproduce some of their members."""


# PrivacyGuard Table 4: the shares of samples that are extracted, by four criteria.
TAB04_STATEMENTS = (
    "More samples are extracted by the criterion LCS > 0.8 than by inclusion.",
    "With top-k sampling, more samples have p_z > 0.01 than p_z > 0.5.",
)
_SCHEMES = {"greedy": "Greedy", "chosen": "Top-k"}
"""Name of a scheme in the tables -> in the paper. "chosen" is top-k sampling with the default ``extract.top_k=40``."""


def draw_tab04(recipes: SweepResults) -> Drawing:
    """Draws a table with a row per decoding scheme and class, above those of the paper."""
    recipe = recipes[RECIPE]
    result = extraction.read_chosen(recipe, "random")
    title_by_scheme = result.facts["schemes"]
    rows = [row for row in result.rates if row["scheme"] in _SCHEMES]
    cells = {
        f"{title_by_scheme[row['scheme']].capitalize()}, "
        f"{'members' if row['class'] == 'members' else 'non-members'}": [
            f"{int(row['samples']):,}",
            *(extraction.format_rate(row, criterion) for criterion in CRITERIA),
        ]
        for row in rows
    }
    numbers = papers.item("privacyguard_tab04_extraction").numbers
    for scheme, title in _SCHEMES.items():
        shares = [numbers[f"{scheme} {criterion}"].value for criterion in CRITERIA]
        cells[f"{title}, Enron and Pythia-12B (published)"] = [
            "10,000",
            *map("{:.2%}".format, shares),
        ]
    table = pd.DataFrame.from_dict(cells, orient="index", columns=["Samples", *CRITERIA.values()])
    table.index.name = "Decoding"
    ours = {
        f"{row['scheme']} {criterion}": (float(row[criterion]), math.nan)
        for row in rows
        if row["class"] == "members"
        for criterion in CRITERIA
    }
    claims = (
        claim_all(
            TAB04_STATEMENTS[0],
            [
                _claim_more(result, scheme, "overlap_above_0.8", "inclusion")
                for scheme in _SCHEMES
                if f"included_{scheme}" in result.samples[0]
            ],
        ),
        dataclasses.replace(
            _claim_more(result, "chosen", "p_above_0.01", "p_above_0.5"),
            statement=TAB04_STATEMENTS[1],
        ),
    )
    notes = (
        result.request_text(),
        result.left_out_text(),
        "Shares have 95% intervals over samples.",
        unsupported_note(claims),
    )
    return Drawing(
        pd.DataFrame(rows),
        table=table,
        claims=claims,
        ours=ours,
        not_comparable=frozenset(ours),
        notes=tuple(filter(None, notes)),
    )


def _claim_more(result: Extraction, scheme: str, more: str, fewer: str) -> Claim:
    """Returns the claim that more members are extracted by one criterion than by another; both on the same members."""
    is_more_N, is_fewer_N = (_extracted(result, scheme, criterion) for criterion in (more, fewer))
    difference_N = (is_more_N - is_fewer_N)[~np.isnan(is_fewer_N)]
    what = f"{_SCHEMES[scheme]}: share of members with {CRITERIA[more]} minus {CRITERIA[fewer].lower()}"
    if len(difference_N) < 2:
        return claim_untested("", f"{what}: too few members")
    variance = VarianceTerm(
        float(difference_N.var(ddof=1)) / len(difference_N), len(difference_N) - 1
    )
    estimate = Estimate.from_variance(
        float(difference_N.mean()), [variance], f"{len(difference_N):,} members", ("the model",)
    )
    return claim_greater("", what, estimate)


def _extracted(result: Extraction, scheme: str, criterion: str) -> np.ndarray:
    """Returns whether each member is extracted, 1 or 0; NaN for those that rates leave out."""
    column, level = {
        "inclusion": (f"included_{scheme}", 0.5),
        "overlap_above_0.8": (f"overlap_{scheme}", 0.8),
        "p_above_0.5": (f"log_p_{scheme}", math.log(0.5)),
        "p_above_0.01": (f"log_p_{scheme}", math.log(0.01)),
    }[criterion]
    is_used_N = (result.column("in_prompt") == 0) & ~np.isnan(result.column(f"log_p_{scheme}"))
    extracted_N = np.where(is_used_N, result.column(column) > level, np.nan)
    return extracted_N[result.member_N]


# PrivacyGuard Figure 8: the share of samples that are (n, p)-discoverably extractable, by the number of queries.
_QUERY_PROBABILITIES = ((0.1, plotting.SKY), (0.5, plotting.BLUE), (0.9, plotting.GREEN))
_QUERY_PROBABILITIES += ((0.99, plotting.ORANGE), (0.999, plotting.VERMILLION))

_CLASS_STYLES: tuple[tuple[str, str, plotting.LineStyle], ...] = (
    ("members", "Members", "-"),
    ("nonmembers", "Non-members", ":"),
)


def draw_fig08(recipes: SweepResults) -> Drawing:
    """Draws the share of random members, and of non-members, against the number of queries, for several p."""
    recipe = recipes[RECIPE]
    result = extraction.read_chosen(recipe, "random")
    schemes = ("chosen", "sampled")
    curves = pd.DataFrame(result.curves)
    curves = curves[curves["scheme"].isin(schemes)]
    figure = plotting.new_figure(9.6, 4.2)
    for axes, scheme in zip(figure.subplots(1, 2, sharey=True), schemes, strict=True):
        _draw_queries(axes, curves[curves["scheme"] == scheme])
        axes.set(title=result.facts["schemes"][scheme].capitalize(), xlabel="Queries (n)")
    figure.axes[0].set_ylabel("Samples extractable")
    handles = [Line2D([], [], color=color, label=f"p = {p:g}") for p, color in _QUERY_PROBABILITIES]
    handles += [
        Line2D([], [], color=plotting.GREY, linestyle=dash, label=label)
        for _, label, dash in _CLASS_STYLES
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False)
    top_k = result.facts["config"]["top_k"]
    notes = (
        result.request_text(),
        "A sample is extractable with n queries and probability p if 1 − (1 − p_z)ⁿ ≥ p, where p_z is the probability "
        "of its suffix.",
        f"Suffixes with a token that is not among the {top_k} most likely are never sampled with top-k sampling."
        if top_k != "all"
        else "",
    )
    return Drawing(curves, figure, notes=notes)


def _draw_queries(axes: Axes, curves: pd.DataFrame) -> None:
    for p, color in _QUERY_PROBABILITIES:
        for name, _, dash in _CLASS_STYLES:
            rows = curves[(curves["class"] == name) & np.isclose(curves["probability"], p)]
            axes.plot(rows["queries"], rows["share"], color=color, linestyle=dash)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


EXPERIMENTS = {
    "privacyguard_tab04_extraction": Experiment(
        statements=TAB04_STATEMENTS,
        draw=draw_tab04,
    ),
    "privacyguard_fig08_queries": Experiment(
        statements=(),
        draw=draw_fig08,
    ),
}
