"""Prints the result of an audit as a table."""

import math
from typing import Any

import pandas as pd
import rich.box
from rich.table import Table

from lm_mia.attacks.headline import headline_fpr
from lm_mia.attacks.privacy_bounds import is_capped, is_of_pairs
from lm_mia.audits.audit import Audit
from lm_mia.audits.causal_table import causal_table, needs_nonmembers, overlap_line
from lm_mia.printing import plural, print_table

_MAX_ROWS = 30
_CAPPED = "†"
METHODS = {
    "estimate_tpr": "epsilon at 1% TPR (estimate)",
    "estimate_max": "largest epsilon (estimate)",
    "one_run": "lower bound on epsilon",
    "independent_trials": "lower bound on epsilon",
    "one_run_gaussian": "epsilon if the mechanism is Gaussian",
}


def print_audit(result: Audit, source: str) -> None:
    """Prints the main numbers of an audit, and its notes.

    A single model is shown in full. Otherwise there is one line for each attack and model or, if there are more than
    30, one for each attack, with means over models, and the smallest of the bounds.
    """
    rows, first = result.summary, result.counts.iloc[0]
    counts = (
        f"{plural(int(first.members), 'member')}, {plural(int(first.nonmembers), 'non-member')}"
    )
    of = " of the first model" if len(result.counts) > 1 else ""
    print(f"{source}: {first.unit}s{of}: {counts}")
    for warning in result.warnings:
        print(f"texts: {warning}")
    confidence = f"{100 * result.epsilon['confidence'].iloc[0]:g}%"
    if rows["attack"].iloc[0] != "score":
        print(_headline(result, confidence))
    notes = [
        f"intervals: bootstrap over {first.unit}s; the report of a workdir has others, from halves of the samples",
        *(f"note: {note}" for note in result.notes),
    ]
    table = _full(result, confidence) if len(rows) == 1 else _several(result)
    legend = []
    if len(rows) > 1 and any(map(is_capped, result.epsilon.to_dict("records"))):
        legend = [
            f"{_CAPPED} capped, under one model or more: the largest that the members can show"
        ]
    if not len(result.causal):
        print_table(table, [*legend, *notes])
        return
    print_table(table, legend)
    first_lines = [f"* recommended; with {confidence} intervals"] if len(rows) == 1 else []
    if len(rows) == 1:
        first_lines.append(overlap_line(result.causal))
    print_table(causal_table(result.causal), [*first_lines, *notes])


def _headline(result: Audit, confidence: str) -> str:
    """Returns the AUC and a TPR of the first attack, which was chosen before the results, and the AUC of the loss."""
    first = result.summary["attack"].iloc[0]
    rows = result.summary[result.summary["attack"] == first]
    points = result.tpr_at_fpr[(result.tpr_at_fpr["attack"] == first)].dropna(subset="tpr")
    auc = f"AUC {rows['auc'].mean():.3f}"
    if len(rows) > 1:
        auc += f" on average over {len(rows)} models"
    elif not math.isnan(rows["auc_low"].iloc[0]):
        auc += f" ({confidence} interval {_interval(rows['auc_low'].iloc[0], rows['auc_high'].iloc[0])})"
    parts = [f"{first}: {auc}"]
    nonmembers = int(result.counts["nonmembers"].min())
    if len(points):
        fpr = headline_fpr(sorted(points["fpr"].unique()), nonmembers)
        point = points[points["fpr"] == fpr]
        tpr = f"TPR {point['tpr'].mean():.3f}"
        if len(point) == 1 and not math.isnan(point["low"].iloc[0]):
            tpr += f" ({_interval(point['low'].iloc[0], point['high'].iloc[0])})"
        parts.append(f"{tpr} at an FPR of {100 * fpr:g}%")
    loss = result.summary[result.summary["attack"] == "loss"]
    if first != "loss" and len(loss):
        parts.append(f"the loss alone: AUC {loss['auc'].mean():.3f}")
    return "; ".join(parts)


def _full(result: Audit, confidence: str) -> Table:
    """Returns the table of a single model."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column(f"{confidence} interval", justify="right")
    table.add_column("")
    row = result.summary.iloc[0]
    for name, label in (("auc", "AUC"), ("balanced_accuracy", "largest balanced accuracy")):
        interval = _interval(row[f"{name}_low"], row[f"{name}_high"])
        table.add_row(label, f"{row[name]:z.3f}", interval, "")
    for _, row in result.tpr_at_fpr.iterrows():
        label, interval = f"TPR at {100 * row['fpr']:g}% FPR", _interval(row["low"], row["high"])
        value, evidence = _number(row["tpr"]), needs_nonmembers(row["fpr"])
        if not math.isnan(row["tpr"]):
            value, evidence = (
                f"{row['tpr']:.4g}",
                plural(int(row["true_positives"]), "true positive"),
            )
        if row["interval"] == "exact":
            evidence += "; exact interval"
        table.add_row(label, value, interval, evidence)
    for _, row in result.epsilon.iterrows():
        label, interval = METHODS[row["method"]], _interval(row["low"], row["high"])
        evidence = _evidence(row, int(result.summary["members"].iloc[0]))
        table.add_row(label, _number(row["epsilon"]), interval, evidence)
    return table


def _evidence(row: Any, members: int) -> str:
    """Returns what an epsilon rests on, or whether it is as large as the number of members allows."""
    if str(row["method"]).startswith("estimate"):
        cap = f"the largest that {plural(members, 'member')} can show"
        if is_capped(row):
            return f"capped: {cap}"
        return f"upper end capped: {cap}" if is_capped(row, "high") else ""
    ceiling = f"ceiling {row['ceiling']:.3g}"
    if pd.isna(row["guesses"]):
        return f"{ceiling}, {row['canaries']:,} trials"
    pairs = f" about {plural(int(row['canaries']), 'pair')}" if is_of_pairs(row) else ""
    return f"{ceiling}, {row['correct']:,} of {row['guesses']:,} guesses{pairs} correct"


def _several(result: Audit) -> Table:
    """Returns a table with one line per attack and model, or per attack if these are too many."""
    by = ["attack", "model"]
    if len(result.summary) > _MAX_ROWS or result.summary["model"].nunique() == 1:
        by = ["attack"]
    fpr = sorted(result.tpr_at_fpr["fpr"].unique())
    fpr = fpr[len(fpr) // 2]
    lines = result.summary.groupby(by, sort=False).agg(models=("auc", "size"), auc=("auc", "mean"))
    points = result.tpr_at_fpr.query("fpr == @fpr")
    rate = f"TPR at {100 * fpr:g}% FPR"
    lines[rate] = points.groupby(by, sort=False)["tpr"].agg(lambda tpr: tpr.mean(skipna=False))
    for method, values in result.epsilon.groupby("method", sort=False):
        by_line = values.groupby(by, sort=False)["epsilon"]
        # The mean of several bounds is not a bound, but the smallest of them is.
        is_estimate = str(method).startswith("estimate")
        lines[METHODS[str(method)]] = by_line.mean() if is_estimate else by_line.min()
    lines = lines.rename(columns={"auc": "AUC"})
    if (lines["models"] == 1).all():
        lines = lines.drop(columns="models")
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in by:
        table.add_column(name, no_wrap=True)
    for name in lines.columns:
        table.add_column(str(name).replace(" (", "\n("), justify="right")
    capped = result.epsilon[[is_capped(row) for row in result.epsilon.to_dict("records")]]
    marked = {(*row[by], METHODS[row["method"]]) for _, row in capped.iterrows()}
    for key, line in lines.iterrows():
        names = key if isinstance(key, tuple) else (key,)
        cells = [
            f"{v:.0f}"
            if name == "models"
            else _number(v) + f" {_CAPPED}" * ((*names, name) in marked)
            for name, v in line.items()
        ]
        if math.isnan(line[rate]):
            cells[[*lines.columns].index(rate)] = needs_nonmembers(fpr)
        table.add_row(*map(str, names), *cells)
    return table


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:z.3f}"
