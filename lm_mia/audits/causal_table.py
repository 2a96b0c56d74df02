"""Prints what an audit adjusted for members and non-members from different sources."""

import math

import pandas as pd
import rich.box
from rich.table import Table

from lm_mia import stats
from lm_mia.audits.causal import RECOMMENDED
from lm_mia.printing import plural

LABELS = {
    "unadjusted": "unadjusted",
    "ipw": "weighted (IPW)",
    "g_formula": "regression (G-formula)",
    "aipw": "both (AIPW)",
}


def causal_table(causal: pd.DataFrame) -> Table:
    """Returns the table of the estimates: all estimators of a single model, or one line per attack and model."""
    if causal.groupby(["attack", "model"]).ngroups == 1:
        return _full(causal)
    return _several(causal)


def overlap_line(causal: pd.DataFrame) -> str:
    """Returns how far the covariates tell the classes apart, and what the weights leave of the non-members."""
    row = causal.iloc[0]
    return (
        f"covariates alone distinguish members from non-members with an AUC of {row['covariate_auc']:.3f}; "
        f"{row['effective_nonmembers']:,.0f} of {row['nonmembers']:,} weighted non-members are effective, and none has "
        f"more than {row['largest_weight_share']:.1%} of the weight"
    )


def _full(causal: pd.DataFrame) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("adjusted for covariates")
    rows = causal.set_index("estimator").to_dict("index")
    for name in map(str, rows):
        label = LABELS[name] + (" *" if name == RECOMMENDED else "")
        table.add_column(label.replace(" (", "\n("), justify="right")
    for metric, label in metric_labels(causal).items():
        cells = [
            needs_nonmembers(float(metric[4:]))
            if metric.startswith("tpr_") and math.isnan(row[metric])
            else _cell(row[metric], row[f"{metric}_low"], row[f"{metric}_high"])
            for row in rows.values()
        ]
        table.add_row(label, *cells)
    return table


def _several(causal: pd.DataFrame) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    columns = ("attack", "model", "unadjusted AUC", "AUC (AIPW)", "weighted non-members", "overlap")
    for name in columns:
        table.add_column(
            name.replace(" (", "\n("), justify="left" if name in columns[:2] else "right"
        )
    unadjusted = causal[causal["estimator"] == "unadjusted"]
    adjusted = causal[causal["estimator"] == RECOMMENDED]
    for (_, before), (_, after) in zip(unadjusted.iterrows(), adjusted.iterrows(), strict=True):
        table.add_row(
            str(after["attack"]),
            str(after["model"]),
            f"{before['auc']:.3f}",
            f"{after['auc']:.3f}",
            f"{after['effective_nonmembers']:,.0f} of {after['nonmembers']:,}",
            "yes" if after["has_overlap"] else "no",
        )
    return table


def needs_nonmembers(fpr: float) -> str:
    """Returns what stands in the place of a TPR if the non-members are too few for the false positive rate."""
    return f"needs {plural(stats.nonmembers_needed(fpr), 'non-member')}"


def metric_labels(causal: pd.DataFrame) -> dict[str, str]:
    """Returns the labels of the metrics in the columns of causal.csv."""
    columns = map(str, causal.columns)
    rates = [name for name in columns if name.startswith("tpr_") and name.count("_") == 1]
    labels = {name: f"TPR at {100 * float(name[4:]):g}% FPR" for name in rates}
    return {"auc": "AUC"} | labels | {"ate": "mean effect on the score"}


def _cell(value: float, low: float, high: float) -> str:
    interval = "" if math.isnan(low) else f"\n{low:.3f} to {high:.3f}"
    return f"{value:.3f}{interval}"
