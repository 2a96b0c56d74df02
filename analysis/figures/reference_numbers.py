"""Open question 1: do more references make the decisions about members more stable?"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.formatting import percent
from analysis.io import SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note
from lm_mia.attacks.spec import StudyNeed

RECIPE = "flip-140M"
STUDY, TABLE = "reference_numbers", "reference_numbers.parquet"
STATEMENTS = (
    "With more references, decisions about members are more stable at the same false positive rate.",
    "With more references, decisions about members are more stable at the same true positive rate.",
)
_COLORS = {"fpr": plotting.BLUE, "tpr": plotting.ORANGE}


def draw(recipes: SweepResults) -> FigureResult:
    """Draws flip rates and coin flips of members by the number of references, at an equal FPR and at an equal TPR."""
    recipe = recipes[RECIPE]
    studies.read_facts(recipe, STUDY)
    columns = ["reference_count", "sets", "at_equal", "fpr", *studies.AXES, "coin_flips", "tpr"]
    table = io.read_frame(recipe, TABLE, columns)
    is_whole = (table[[*studies.AXES]] == 0).all(axis=1)
    whole: dict[Any, Any] = (
        table[is_whole].set_index(["at_equal", "reference_count"]).to_dict("index")
    )
    counts = sorted(set(table["reference_count"]))
    rate: dict[tuple[str, int], Jackknife] = {
        (point, count): studies.read_parts(
            recipe, TABLE, "flip_rate", {"at_equal": point, "reference_count": count}
        )
        for point in _COLORS
        for count in counts
    }
    rows = []
    for (point, count), flip_rate in rate.items():
        facts, estimate = whole[point, count], flip_rate.estimate()
        rows.append(
            {
                "at_equal": point,
                "references": count,
                "sets": int(facts["sets"]),
                "tpr": facts["tpr"],
            }
            | {"flip_rate": estimate.value, "low": estimate.low, "high": estimate.high}
            | {"coin_flips": facts["coin_flips"]}
        )
    data = pd.DataFrame(rows)
    fpr = percent(float(table["fpr"].iloc[0]))
    tpr = percent(whole["tpr", counts[0]]["tpr"])
    at = {"fpr": f"at an FPR of {fpr}", "tpr": f"at a TPR of {tpr}"}
    claims = tuple(
        claim_greater(
            statement,
            f"Flip rate of members {at[point]}, {counts[0]} minus {counts[-1]} references",
            (rate[point, counts[0]] - rate[point, counts[-1]]).estimate(),
        )
        for statement, point in zip(STATEMENTS, _COLORS, strict=True)
    )
    found = ", ".join(percent(whole["fpr", count]["tpr"]) for count in counts)
    sets = [int(whole["fpr", count]["sets"]) for count in counts]
    return FigureResult(
        data,
        _figure(data, at),
        claims=claims,
        notes=(
            f"The same {len(recipe.replicas)} replicas are attacked by LiRA with {_listed(counts)} references, with "
            "pooled variances. A flip is a disagreement of two replicas that are attacked with the same references. "
            f"Each number is the mean over {_listed(sets)} disjoint sets of references, on the samples that have "
            "scores with all of these sets. Bars are 95% intervals over replicas, references and samples.",
            f"At an FPR of {fpr}, these references find {found} of the members. Samples that no replica calls a member "
            "are stable, so that a stronger attack may flip more only because it finds more. At an equal TPR the "
            f"thresholds let each replica find {tpr} of the members, as with {counts[0]} references.",
            not_seen_note(claims),
        ),
    )


def _listed(counts: list[int]) -> str:
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"


def _figure(data: pd.DataFrame, at: dict[str, str]) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    for point, color in _COLORS.items():
        rows = data[data["at_equal"] == point]
        label = at[point].removeprefix("at a ").removeprefix("at an ")
        plotting.errorbars(
            left, [*rows["references"]], [*rows["flip_rate"]], [*rows["high"]], color, label
        )
        right.plot(rows["references"], rows["coin_flips"], "o-", color=color)
    left.set(ylabel="Mean flip rate of members", title="(a) Flip rate")
    right.set(ylabel="Members whose decisions are coin flips", title="(b) Coin flips")
    left.legend(fontsize=9)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted(set(data["references"])), [*map(str, sorted(set(data["references"])))]
        )
        axes.set_xlabel("References")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


FIGURES = {
    "open_fig01_references": PaperFigure(
        title="Open question 1: References and flips",
        paper=(
            "The paper varies the number of references for the AUC (Figure 1) and finds that decisions flip between "
            "replicas with 128 references (Figure 5). It does not ask whether more references make them more stable."
        ),
        statements=STATEMENTS,
        draw=draw,
        needs=(StudyNeed((RECIPE,), STUDY),),
        expect=(
            "At cpu, decisions are less stable with more references: the flip rate of members rises from 8% to 16% "
            "with 4 to 32 references at an FPR of 5%, and from 8% to 10% where all find the same number of members."
        ),
    )
}
