"""The first sentences of an audit of a file, from the tables that it writes."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis.report import answer
from analysis.report.numbers import Estimate

_LOWEST_RATE, _FEWEST_FALSE_POSITIVES = 0.01, 10


def sentences(tables: Mapping[str, pd.DataFrame]) -> str:
    """Returns the first sentences in plain text; empty if several models, or groups of samples, are audited.

    They are about the attack that was chosen before the results, at the lowest rate from 1 % on that allows 10 false
    positives.
    """
    summary, points = tables["summary"], tables["tpr_at_fpr"]
    first = summary[summary["attack"] == summary["attack"].iloc[0]]
    row = first.iloc[0]
    if len(first) > 1 or row["unit"] != "sample":
        return ""
    nonmembers = int(row["nonmembers"])
    points = points[(points["attack"] == row["attack"]) & (points["fpr"] >= _LOWEST_RATE)]
    allowed = points[points["fpr"] * nonmembers >= _FEWEST_FALSE_POSITIVES]
    point = (allowed if len(allowed) else points).sort_values("fpr")
    if point.empty:
        return ""
    found = point.iloc[0] if len(allowed) else point.iloc[-1]
    return answer.answer(
        answer.Findings(
            fpr=float(found["fpr"]),
            found=Estimate(*(float(found[name]) for name in ("tpr", "low", "high"))),
            auc=Estimate(*(float(row[name]) for name in ("auc", "auc_low", "auc_high"))),
            missed=Estimate(math.nan),
            members=int(row["members"]),
            nonmembers=nonmembers,
            trainings=1,
            has_replicas=False,
        )
    ).text
