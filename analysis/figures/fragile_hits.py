"""Open question 2: can an attacker with one target tell which of its true positives are stable?"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import claim_greater
from analysis.formatting import percent
from analysis.io import SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note
from lm_mia.attacks.spec import StudyNeed

RECIPE = "flip-140M"
TABLE, BINS = "fragile_hits.parquet", "fragile_hit_bins.csv"
STATEMENTS = (
    "True positives with a larger margin have a lower flip rate.",
    "Most true positives in the quarter with the largest margins are stable.",
)


def draw(recipes: SweepResults) -> FigureResult:
    """Draws stability and flip rate of the true positives of one target, by their margin."""
    recipe = recipes[RECIPE]
    studies.read_facts(recipe, "fragile_hits")
    bins = io.read_frame(recipe, BINS)
    at = f"at an FPR of {percent(float(bins['fpr'].iloc[0]))}"
    correlation, auc, stable, lowest, highest, hits = (
        studies.read_parts(recipe, TABLE, name)
        for name in (
            "flip_correlation",
            "stable_auc",
            "stable",
            "lowest_stable",
            "highest_stable",
            "hits",
        )
    )
    claims = (
        claim_greater(
            STATEMENTS[0],
            f"Minus the rank correlation of margin and flip rate {at}",
            -correlation.estimate(),
        ),
        claim_greater(
            STATEMENTS[1],
            f"Share of stable true positives in the quarter with the largest margins {at}",
            highest.estimate(),
            level=0.5,
        ),
    )
    return FigureResult(
        bins,
        _figure(bins, stable.value),
        claims=claims,
        notes=(
            f"Each of the {len(recipe.replicas)} replicas in turn is the only target of the attacker; it has "
            f"{hits.value:.0f} true positives on average {at}. The margin of a true positive is its LiRA score minus "
            "the threshold, both of which the attacker knows. Flip rates and stability are those under the other "
            "replicas: a true positive is stable if significantly more than half of them also call the sample a "
            "member.",
            f"{percent(stable.value)} of the true positives are stable: {percent(lowest.value)} in the quarter with "
            f"the smallest margins and {percent(highest.value)} in the quarter with the largest. The margin ranks a "
            f"stable true positive above another one with a probability (AUC) of {auc.estimate()}.",
            not_seen_note(claims),
        ),
    )


def _figure(bins: pd.DataFrame, stable: float) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    x = bins["margin_mean"]
    left.plot(x, bins["stable"], "o-", color=plotting.BLUE, label="Stable true positives")
    left.plot(
        x,
        bins["agreement"],
        "s--",
        color=plotting.SKY,
        label="Other replicas that also decide member",
    )
    left.axhline(stable, color=plotting.GREY, linestyle=":", label="All true positives: stable")
    left.set(ylabel="Share", ylim=(0, 1.02), title="(a) Stability")
    right.plot(x, bins["flip_rate"], "o-", color=plotting.VERMILLION, label="Flip rate")
    right.set(ylabel="Flip rate under the other replicas", title="(b) Flip rate")
    right.set_ylim(0, 1.1 * bins["flip_rate"].max())
    left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in (left, right):
        axes.set_xlabel("Margin: score minus threshold (nats)")
    left.legend(fontsize=9, loc="lower right")
    return figure


FIGURES = {
    "open_fig02_fragile_hits": PaperFigure(
        title="Open question 2: Fragile true positives",
        paper=(
            "“An attacker facing a single target cannot know which of its true positives are indistinguishable from a "
            "coin flip” (Appendix E.2.6). The paper does not compare scores with flip rates of true positives."
        ),
        statements=STATEMENTS,
        draw=draw,
        needs=(StudyNeed((RECIPE,), "fragile_hits"),),
        expect=(
            "At cpu 23% of the true positives at an FPR of 5% are stable: 7% in the quarter with the smallest margins "
            "and 48% in the quarter with the largest, so both claims are undecided. The flip rate is highest at medium "
            "margins, since most other replicas decide non-member just above the threshold."
        ),
    )
}
