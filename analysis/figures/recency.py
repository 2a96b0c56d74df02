"""Open question 3: does recency, the step at which a replica last saw a sample, explain why its decisions flip?

K: bins of the last step.
"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import Estimate, claim_greater
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note
from lm_mia.attacks.spec import StudyNeed

RECIPE = "flip-140M"
TABLE, RATES, SHUFFLED = "recency.parquet", "recency_rates.parquet", "recency_shuffled.csv"
_QUANTITIES = {"loss": "Loss", "score": "Score", "decision": "Decision"}
_SHARES = {
    "share": ("One curve for all samples", plotting.BLUE),
    "own_share": ("A factor for each sample", plotting.SKY),
    "own_curve_share": ("A curve for each sample", plotting.ORANGE),
}
STATEMENTS = (
    "A member that was seen later in training is more often called a member.",
    "Recency explains most of the variance of decisions between replicas.",
)


def draw(recipes: SweepResults) -> FigureResult:
    """Draws the decision rate of members by their last step, and how much of the variance this step explains."""
    recipe = recipes[RECIPE]
    studies.read_facts(recipe, "recency")
    columns = io.read_samples(recipe, ["bin", "last_seen", "fpr"], RATES)
    bins = pd.DataFrame(columns).drop_duplicates()
    at = f"at an FPR of {percent(float(bins['fpr'].iloc[0]))}"
    rate_K = [studies.read_parts(recipe, RATES, "decision_rate", {"bin": k}) for k in bins["bin"]]
    rates = pd.DataFrame(
        _row(rate.estimate(), statistic="decision_rate", last_seen=x)
        for rate, x in zip(rate_K, bins["last_seen"], strict=True)
    )
    shares = _explained(recipe)
    of_decision = studies.read_parts(recipe, TABLE, "share", {"quantity": "decision"})
    later = rate_K[-1] - rate_K[0]
    claims = (
        claim_greater(
            STATEMENTS[0],
            f"Members called members {at}, last minus first eighth of the steps",
            later.estimate(),
        ),
        claim_greater(
            STATEMENTS[1],
            f"Share of the variance of decisions between replicas {at} that recency explains",
            of_decision.estimate(),
            level=0.5,
        ),
    )
    by_name = shares.set_index(["quantity", "statistic"])["value"]
    explained = {
        statistic: ", ".join(
            f"{percent(by_name[quantity, statistic])} of that of the {quantity}"
            for quantity in _QUANTITIES
        )
        for statistic in _SHARES
    }
    return FigureResult(
        pd.concat([rates, shares], ignore_index=True),
        _figure(rates, shares, at),
        claims=claims,
        notes=(
            f"The {len(recipe.replicas)} replicas differ in the order of their batches only, so that each of them last "
            "saw a member at another step. The variance is that between replicas, around the mean of each sample. "
            "Shares are adjusted for the number of parameters. Bars are 95% intervals over replicas, references and "
            "samples.",
            f"A curve over {len(bins)} bins of the last step, the same for all samples, explains "
            f"{explained['share']}. If each sample multiplies this curve by a factor of its own, it explains "
            f"{explained['own_share']}; and if each sample has a curve of its own, {explained['own_curve_share']}.",
            "Grey lines are the range of these shares where the last steps of each replica are replaced by those of "
            "another one.",
            not_seen_note(claims),
        ),
    )


def _row(estimate: Estimate, **columns: object) -> dict[str, object]:
    return {**columns, "value": estimate.value, "low": estimate.low, "high": estimate.high}


def _explained(recipe: RecipeResults) -> pd.DataFrame:
    """Returns rows (quantity, statistic, value, low, high, shuffled_low, shuffled_high) of the explained shares."""
    shuffled = io.read_frame(recipe, SHUFFLED)
    rows = []
    for quantity in _QUANTITIES:
        of_quantity = shuffled[shuffled["quantity"] == quantity]
        for statistic in _SHARES:
            number = studies.read_parts(recipe, TABLE, statistic, {"quantity": quantity})
            chance = of_quantity[statistic]
            rows.append(
                _row(number.estimate(), quantity=quantity, statistic=statistic)
                | {"shuffled_low": chance.min(), "shuffled_high": chance.max()}
            )
    return pd.DataFrame(rows)


def _figure(rates: pd.DataFrame, shares: pd.DataFrame, at: str) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.errorbars(
        left, [*rates["last_seen"]], [*rates["value"]], [*rates["high"]], plotting.BLUE
    )
    left.set(
        xlabel="Last seen (fraction of the steps)",
        ylabel="Members called members",
        title=f"(a) Decisions {at}",
    )
    left.set_xlim(0, 1)
    left.set_ylim(bottom=0)
    for offset, (statistic, (label, color)) in zip((-0.24, 0, 0.24), _SHARES.items(), strict=True):
        rows = shares[shares["statistic"] == statistic]
        x = [k + offset for k in range(len(rows))]
        plotting.errorbars(right, x, [*rows["value"]], [*rows["high"]], color, label, "o")
        right.vlines(
            [position + 0.07 for position in x],
            rows["shuffled_low"],
            rows["shuffled_high"],
            color=plotting.GREY,
            linewidth=4,
        )
    right.axhline(0, color=plotting.GREY, linewidth=1)
    right.set_xticks(range(len(_QUANTITIES)), [*_QUANTITIES.values()])
    right.set_xlim(-0.5, len(_QUANTITIES) - 0.5)
    right.set(ylabel="Explained share of the variance", title="(b) Variance between replicas")
    right.set_ylim(top=1.3 * shares["high"].max())
    right.legend(fontsize=9, loc="upper right")
    for axes in (left, right):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


FIGURES = {
    "open_fig03_recency": PaperFigure(
        title="Open question 3: Recency and flips",
        paper=(
            "Members that were last seen near the end of training are more vulnerable (Section 6.1, Figure 6a). The "
            "paper does not ask whether this explains why decisions differ between replicas, which last saw the same "
            "members at other steps."
        ),
        statements=STATEMENTS,
        draw=draw,
        needs=(StudyNeed((RECIPE,), "recency"),),
        expect=(
            "At cpu 7% of the members that were seen in the first quarter of the steps are called members at an FPR of "
            "5%, 22% of those after two thirds, and 11% in the last eighth, where the learning rate is low. "
            "Nevertheless, recency explains 12% of the variance of losses between replicas and 4% of that of "
            "decisions, or 11% with a curve for each sample."
        ),
    )
}
