"""Open question 5: does a membership score mean the same for all texts?"""

import itertools
from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import Claim, claim_all, claim_equivalent, claim_greater
from analysis.formatting import percent
from analysis.io import SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note
from lm_mia.attacks.spec import StudyNeed

RECIPE = "flip-140M"
STUDY, TABLE = "text_groups", "text_groups.parquet"
ALL = -1
STATEMENTS = (
    "With one threshold for all texts, the false positive rate of each group of texts is nearly the overall one.",
    "With one threshold, a text that is called a member is about as likely to be one in each group.",
    "Thresholds for each group find more members at the same false positive rate.",
)
FPR_MARGIN: Final = 0.5
"""A false positive rate is nearly the overall one if it differs by less than this fraction of the requested rate."""
PRECISION_MARGIN: Final = 0.1
_DIVISIONS = {"tokens": "length", "tfidf": "TF-IDF", "prefix": "prefix"}
_THRESHOLDS = {
    "one": ("One threshold", plotting.BLUE),
    "by_group": ("A threshold for each group", plotting.ORANGE),
}
_METRICS = {
    "fpr": "False positive rate",
    "precision": "Precision",
    "flip_rate": "Flip rate of members",
}


def draw(recipes: SweepResults) -> FigureResult:
    """Draws false positive rate, precision and flip rate of groups of texts, with one threshold and with several."""
    recipe = recipes[RECIPE]
    studies.read_facts(recipe, STUDY)
    columns = ["division", "group", "lowest", "highest", "samples_in_group", "focus_fpr"]
    groups = io.read_frame(recipe, TABLE, columns).drop_duplicates()
    focus = float(groups["focus_fpr"].iloc[0])
    at = f"at an FPR of {percent(focus)}"
    number = {
        (metric, division, group, thresholds): studies.read_parts(
            recipe, TABLE, metric, {"division": division, "group": group, "thresholds": thresholds}
        )
        for division, group in zip(groups["division"], groups["group"], strict=True)
        for thresholds in _THRESHOLDS
        for metric in ("tpr", *_METRICS)
    }
    rows = []
    for facts in groups.to_dict("records"):
        division, group = facts["division"], facts["group"]
        for metric, thresholds in itertools.product(("tpr", *_METRICS), _THRESHOLDS):
            estimate = number[metric, division, group, thresholds].estimate()
            rows.append(
                {name: facts[name] for name in columns[:-1]}
                | {"label": _label(facts), "thresholds": thresholds, "metric": metric}
                | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            )
    data = pd.DataFrame(rows)

    def equal(statement: str, metric: str, what: str, margin: float) -> Claim:
        """Returns the claim that a metric of each group is within a margin of that of all samples."""
        parts = []
        for facts in groups[groups["group"] != ALL].to_dict("records"):
            division = facts["division"]
            of_group = number[metric, division, facts["group"], "one"]
            of_all = number[metric, division, ALL, "one"]
            name = f"{_DIVISIONS[division]} {_label(facts)}"
            difference = (of_group - of_all).estimate()
            parts.append(claim_equivalent("", f"{what}, {name} minus all", difference, margin))
        return claim_all(statement, parts)

    divisions = {name: text for name, text in _DIVISIONS.items() if name in set(groups["division"])}
    gains = {
        text: number["tpr", name, ALL, "by_group"] - number["tpr", name, ALL, "one"]
        for name, text in divisions.items()
    }
    claims = (
        equal(STATEMENTS[0], "fpr", "False positive rate", FPR_MARGIN * focus),
        equal(STATEMENTS[1], "precision", f"Precision {at}", PRECISION_MARGIN),
        claim_all(
            STATEMENTS[2],
            [
                claim_greater("", f"TPR {at}, thresholds by {text} minus one", gain.estimate())
                for text, gain in gains.items()
            ],
        ),
    )
    absent = [text for name, text in _DIVISIONS.items() if name not in divisions]
    return FigureResult(
        data,
        _figure(data, divisions),
        claims=claims,
        notes=(
            "The samples are divided into quarters by length and by mean TF-IDF, where equal values stay together, and "
            f"into those that share their prefix with another sample and the others. The same {len(recipe.replicas)} "
            f"replicas are attacked with thresholds {at} of all non-members, or of those of each group. Samples are "
            "decided with thresholds that were calibrated on others, to the same expected FPR whatever the number of "
            "these. Precision is the share of members among the "
            "samples that are called members; half of all samples are members. Bars are 95% intervals over replicas, "
            "references and samples.",
            _overall(data, divisions),
            f"There is no division by {' or '.join(absent)}, since a group would have too few non-members."
            if absent
            else "",
            not_seen_note(claims),
        ),
    )


def _label(facts: Mapping[Any, Any]) -> str:
    """Returns the name of a group: its values, or what is special about its prefixes."""
    if facts["division"] == "prefix":
        return "shared" if facts["highest"] > 1 else "own"
    low, high = (
        f"{facts[end]:.0f}" if facts["division"] == "tokens" else f"{facts[end]:.1f}"
        for end in ("lowest", "highest")
    )
    return low if low == high else f"{low} to {high}"


def _overall(data: pd.DataFrame, divisions: Mapping[str, str]) -> str:
    """Returns a note on the rates of all samples."""
    every = data[data["group"] == ALL].set_index(["division", "thresholds", "metric"])["value"]

    def rates(division: str, thresholds: str) -> str:
        fpr, tpr = (
            float(every.to_dict()[division, thresholds, metric]) for metric in ("fpr", "tpr")
        )
        return f"{percent(fpr)} of the non-members and {percent(tpr)} of the members are called members"

    one = f"With one threshold {rates(next(iter(divisions)), 'one')}"
    return "; ".join(
        [
            one,
            *(f"with thresholds by {text} {rates(d, 'by_group')}" for d, text in divisions.items()),
        ]
    )


def _figure(data: pd.DataFrame, divisions: Mapping[str, str]) -> Figure:
    figure = plotting.new_figure(14, 4.6)
    axes_M = figure.subplots(1, len(_METRICS))
    for axes, (metric, title), letter in zip(axes_M, _METRICS.items(), "abc", strict=True):
        ticks: list[float] = []
        labels: list[str] = []
        for division, text in divisions.items():
            start = ticks[-1] + 1.6 if ticks else 0
            chosen = data["metric"].eq(metric) & data["division"].eq(division)
            of_division = data[chosen & data["group"].ne(ALL)]
            for shift, (thresholds, (label, color)) in zip(
                (-0.12, 0.12), _THRESHOLDS.items(), strict=True
            ):
                rows = of_division[of_division["thresholds"] == thresholds]
                x = [start + k + shift for k in range(len(rows))]
                plotting.errorbars(
                    axes, x, [*rows["value"]], [*rows["high"]], color, None if ticks else label
                )
            names = of_division[of_division["thresholds"] == "one"]["label"]
            labels += [f"{name}\n{text}" if k == 0 else name for k, name in enumerate(names)]
            ticks += [start + k for k in range(len(names))]
        axes.set_xticks(ticks, labels, fontsize=7)
        axes.set(title=f"({letter}) {title}", xlabel=f"Texts by {' or '.join(divisions.values())}")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes_M[0].legend(fontsize=8)
    return figure


FIGURES = {
    "open_fig05_groups": PaperFigure(
        title="Open question 5: Scores of different texts",
        paper=(
            "The paper decides about all samples with one threshold, and shows which members are vulnerable (Figures 6 "
            "and 31). It does not ask whether the false positive rate and the precision are the same for all texts."
        ),
        statements=STATEMENTS,
        draw=draw,
        needs=(StudyNeed((RECIPE,), STUDY),),
        expect=(
            "At cpu, one threshold at an FPR of 5% calls 10% of the non-members of up to 30 tokens members, and 2% of "
            "those of 90 tokens or more; precision rises from 63% to 85%. Thresholds for each length find 16% instead "
            "of 13% of the members at the same FPR. Too few samples share a prefix."
        ),
    )
}
