"""Open question 5: does a membership score mean the same for all texts?"""

from typing import Final

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import claim_all, claim_equivalent, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.formatting import percent
from analysis.io import SweepResults
from analysis.paper_figure import FigureResult, PaperFigure, not_seen_note
from lm_mia.config.needs import StudyNeed

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
_LABELS = {
    "tokens": ("shortest", "2", "3", "longest"),
    "tfidf": ("lowest\nTF-IDF", "2", "3", "highest\nTF-IDF"),
    "prefix": ("own\nprefix", "shared\nprefix"),
}
_NAMES = {
    "tokens": (
        "the shortest quarter",
        "the second quarter by length",
        "the third quarter by length",
        "the longest quarter",
    ),
    "tfidf": (
        "the quarter with the lowest TF-IDF",
        "the second quarter by TF-IDF",
        "the third quarter by TF-IDF",
        "the quarter with the highest TF-IDF",
    ),
    "prefix": ("texts with a prefix of their own", "texts with a shared prefix"),
}
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
    columns = ["division", "group", "samples_in_group", "focus_fpr"]
    sizes = pd.DataFrame(io.read_samples(recipe.recipe_dir, columns, TABLE)).drop_duplicates()
    focus = float(sizes["focus_fpr"].iloc[0])
    groups = sizes[sizes["group"] != ALL]

    def read(metric: str, division: str, group: int, thresholds: str) -> Jackknife:
        where = {"division": division, "group": group, "thresholds": thresholds}
        return studies.read_parts(recipe, TABLE, metric, where)

    rows = []
    for facts in sizes.to_dict("records"):
        for thresholds in _THRESHOLDS:
            for metric in ("fpr", "tpr", *[m for m in _METRICS if m != "fpr"]):
                estimate = read(metric, facts["division"], facts["group"], thresholds).estimate()
                rows.append(
                    {
                        "division": facts["division"],
                        "group": facts["group"],
                        "thresholds": thresholds,
                    }
                    | {"samples": facts["samples_in_group"], "metric": metric}
                    | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
                )
    data = pd.DataFrame(rows)
    at = f"at an FPR of {percent(focus)}"

    def differences(metric: str) -> list[tuple[str, Jackknife]]:
        """Returns the metric of each group minus that of all samples, with one threshold."""
        return [
            (
                f"of {_NAMES[division][group]}",
                read(metric, division, group, "one") - read(metric, division, ALL, "one"),
            )
            for division, group in zip(groups["division"], groups["group"], strict=True)
        ]

    claims = (
        claim_all(
            STATEMENTS[0],
            [
                claim_equivalent(
                    "",
                    f"False positive rate {name} minus that of all",
                    d.estimate(),
                    FPR_MARGIN * focus,
                )
                for name, d in differences("fpr")
            ],
        ),
        claim_all(
            STATEMENTS[1],
            [
                claim_equivalent(
                    "", f"Precision {at} {name} minus that of all", d.estimate(), PRECISION_MARGIN
                )
                for name, d in differences("precision")
            ],
        ),
        claim_all(
            STATEMENTS[2],
            [
                claim_greater(
                    "",
                    f"TPR {at} with thresholds by {name} minus with one",
                    (
                        read("tpr", division, ALL, "by_group") - read("tpr", division, ALL, "one")
                    ).estimate(),
                )
                for division, name in _DIVISIONS.items()
            ],
        ),
    )
    return FigureResult(
        data,
        _figure(data),
        claims=claims,
        notes=(
            "The samples are divided into quarters by length and by mean TF-IDF, and into those that share their "
            f"prefix with another sample and the others. The same {len(recipe.replicas)} replicas are attacked. "
            f"Thresholds are at an FPR of {percent(focus)}, of all non-members or of those of each group, and are "
            "calibrated on other samples than those that are decided. Precision is the share of members among the "
            "samples that are called members, where half of all samples are members. Bars are 95% intervals over "
            "replicas, references and samples.",
            _overall(data),
            not_seen_note(claims),
        ),
    )


def _overall(data: pd.DataFrame) -> str:
    """Returns a note on the rates of all samples."""
    every = data[data["group"] == ALL].set_index(["division", "thresholds", "metric"])["value"]

    def rates(division: str, thresholds: str) -> str:
        fpr, tpr = (
            percent(float(every[division, thresholds, metric])) for metric in ("fpr", "tpr")
        )
        return f"an FPR of {fpr} and a TPR of {tpr}"

    own = ", ".join(
        f"{rates(d, 'by_group')} with thresholds by {name}" for d, name in _DIVISIONS.items()
    )
    return f"Over all samples, one threshold gives {rates('tokens', 'one')}; it is {own}."


def _figure(data: pd.DataFrame) -> Figure:
    figure = plotting.new_figure(14, 4.6)
    axes_M = figure.subplots(1, len(_METRICS))
    for axes, (metric, title), letter in zip(axes_M, _METRICS.items(), "abc", strict=True):
        ticks, labels, start = [], [], 0
        for division in _DIVISIONS:
            of_division = data[
                (data["division"] == division) & (data["metric"] == metric) & (data["group"] != ALL)
            ]
            groups = sorted(set(of_division["group"]))
            for offset, (thresholds, (label, color)) in zip(
                (-0.12, 0.12), _THRESHOLDS.items(), strict=True
            ):
                rows = of_division[of_division["thresholds"] == thresholds].sort_values("group")
                x = [start + k + offset for k in range(len(rows))]
                name = label if division == "tokens" else None
                plotting.errorbars(axes, x, [*rows["value"]], [*rows["high"]], color, name)
            ticks += [start + k for k in range(len(groups))]
            labels += [_LABELS[division][group] for group in groups]
            start += len(groups) + 1
        axes.set_xticks(ticks, labels, fontsize=7)
        axes.set(title=f"({letter}) {title}")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
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
        expect="",
    )
}
