"""StrongMIA Figure 7, PrivacyGuard Table 4 and Figure 8: whether samples can be extracted from the first replica.

Each reads the tables of `lm-mia extract`. StrongMIA chooses the samples with the highest membership scores,
PrivacyGuard random ones (``extract.choose="random"``).

N: samples.
"""

import dataclasses
import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis import extraction, plotting, published
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.experiment import Drawing, Experiment, not_seen_note
from analysis.extraction import CRITERIA, Extraction
from analysis.io import RecipeResults, SweepResults
from lm_mia.errors import Unavailable

RECIPE = "memorized"
"""The recipe of PrivacyGuard's figures, whose models are trained until they reproduce some of their members."""


def _read(recipe: RecipeResults, choose: str) -> Extraction:
    """Reads the extraction of a recipe, whose samples must have been chosen as the figure requires."""
    result = extraction.read(recipe)
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


# Figure 7: log probabilities of the suffixes of the samples with the highest membership scores.
FIG07_STATEMENTS = (
    "The vulnerability of a sample says little about how easily it can be extracted.",
)
_MARGIN, _SUFFIX_TOKENS = 0.2, 50
_COLUMNS = ["id", "member", "score", "log_p_sampled"]


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the negative log probability of each suffix against the membership score."""
    main = recipes["main"]
    result = _read(main, "scores")
    score_N, nats_N = result.column("score"), -result.column("log_p_sampled")
    correlation = result.rank_correlation()
    what = "Rank correlation of the score and -log p of the suffix"
    claim = claim_untested(
        FIG07_STATEMENTS[0], f"{what}: all scores or all probabilities are equal"
    )
    if correlation:
        estimate = correlation.estimate(("the model", "its references"))
        claim = claim_equivalent(FIG07_STATEMENTS[0], what, estimate, _MARGIN)
    ours = {"members_of_1000": (1000 * float(result.member_N.mean()), math.nan)}
    if main.config.extract.suffix_tokens == _SUFFIX_TOKENS:
        ours["largest_probability"] = (math.exp(-nats_N.min()), math.nan)
        ours["smallest_nats"] = (float(nats_N.min()), math.nan)
    return Drawing(
        data=pd.DataFrame(result.samples)[_COLUMNS],
        figure=extraction.draw(dataclasses.replace(result, curves=[])),
        claims=(claim,),
        ours=ours,
        notes=(
            result.request_text(),
            f"These are a fraction {len(score_N) / len(main.attacked):.2g} of all samples.",
        ),
        paper_notes=(
            "In the paper, the samples are a fraction 0.00007 of all.",
            f"“Little” means a rank correlation within ±{_MARGIN:g}; this margin is our choice.",
        ),
    )


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
    result = _read(recipe, "random")
    title_by_scheme, config = result.facts["schemes"], result.facts["config"]
    rows = [row for row in result.rates if row["scheme"] in _SCHEMES]
    cells = {
        f"{title_by_scheme[row['scheme']].capitalize()}, "
        f"{'members' if row['class'] == 'members' else 'non-members'}": [
            f"{int(row['samples']):,}",
            *(extraction.format_rate(row, criterion) for criterion in CRITERIA),
        ]
        for row in rows
    }
    numbers = published.published_numbers("privacyguard_tab04_extraction")
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
        "The paper prompts Pythia-12B with 50 tokens of random Enron emails and asks for the next 50, so its shares "
        f"are not comparable with ours of {config['suffix_tokens']} tokens. It has no non-members. Ours have 95% "
        "intervals over samples.",
        not_seen_note(claims),
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
    result = _read(recipe, "random")
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
        if top_k
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


FIGURES = {
    "strongmia_fig07_extraction": Experiment(
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
    "privacyguard_tab04_extraction": Experiment(
        title="PrivacyGuard Table 4: Extraction rates of random samples",
        paper=(
            "Of 10,000 random Enron emails, 4.9% are included in what Pythia-12B generates greedily from the first 50 "
            "tokens, and 6.45% share a subsequence of more than 80% of the next 50 tokens; with top-40 sampling, 2% "
            "and 3%. The probability of the next 50 tokens is above 0.5 for 1.4% and above 0.01 for 6.8% of them with "
            "top-40 sampling, and for 4.5% with greedy decoding (Section 3.3.1)."
        ),
        expect=(
            "At cpu, models that saw 128 samples 28 times greedily reproduce the next 32 tokens of 69 of 72 members, "
            "and of no non-member; nor does a model that was not trained on a member. With top-40 sampling, 17% of "
            "members are included in one generated text and 26% have an LCS above 0.8. No probability is above 0.5, "
            "but those of 70 members are above 0.01."
        ),
        statements=TAB04_STATEMENTS,
        draw=draw_tab04,
    ),
    "privacyguard_fig08_queries": Experiment(
        title="PrivacyGuard Figure 8: Extraction of random members by the number of queries",
        paper=(
            "The share of (n, p)-discoverably extractable emails rises with the number of queries n and falls with the "
            "required probability p (Section 3.3.1)."
        ),
        expect=(
            "At cpu, on models that memorize, 100 queries with top-40 sampling extract 93% of the members with a "
            "probability of 0.999, and 10^18 queries no non-member with a probability of 0.1."
        ),
        statements=(),
        draw=draw_fig08,
    ),
}
