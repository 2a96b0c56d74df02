"""The section of an audit's page on members and non-members from different sources.

Numbers are those of causal.csv, causal_roc.csv, causal_weights.csv and covariate_balance.csv, data frames here. Figures
show the first model.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plotting
from analysis.formatting import percent

RECOMMENDED = "aipw"
ESTIMATORS = {
    "unadjusted": "Unadjusted",
    "ipw": "Weighted (IPW)",
    "g_formula": "Regression (G-formula)",
    "aipw": "Both (AIPW)",
}
_MAX_COVARIATES = 25
_STYLES = {
    "unadjusted": (plotting.GREY, "--"),
    "ipw": (plotting.VERMILLION, "-."),
    "g_formula": (plotting.GREEN, ":"),
    "aipw": (plotting.BLUE, "-"),
}


def context(tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Returns what the template shows: the metrics, a row for each model and estimator, and the overlap."""
    causal = tables["causal"]
    columns = map(str, causal.columns)
    rates = [name for name in columns if name.startswith("tpr_") and name.count("_") == 1]
    metrics = {"auc": "AUC"}
    metrics |= {name: f"TPR at {percent(float(name[4:]))} FPR" for name in rates}
    metrics["ate"] = "Mean effect"
    rows = causal.assign(
        name=causal["estimator"].map(ESTIMATORS), is_recommended=causal["estimator"].eq(RECOMMENDED)
    )
    return {
        "metrics": metrics,
        "rows": rows.to_dict("records"),
        "overlap": rows[rows["is_recommended"]].to_dict("records"),
        "has_overlap": bool(causal["has_overlap"].all()),
        "models": int(rows["is_recommended"].sum()),
        "balanced": min(len(_first(tables["covariate_balance"])), _MAX_COVARIATES),
        "covariates": len(_first(tables["covariate_balance"])),
    }


def cards(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """Returns the main numbers: those of the only model, or the ranges over attacks and models."""
    causal = tables["causal"]
    before = causal[causal["estimator"] == "unadjusted"]
    after = causal[causal["estimator"] == RECOMMENDED]
    rates = [name for name in context(tables)["metrics"] if name.startswith("tpr_")]
    rate = rates[len(rates) // 2]
    warning = "" if after["has_overlap"].all() else "; unreliable, see below"
    return [
        (
            _range(after["auc"], "{:.3f}"),
            f"AUC, adjusted for the covariates; 0.5 is chance{warning}",
        ),
        (_range(before["auc"], "{:.3f}"), "AUC without adjustment"),
        (
            "–" if after[rate].isna().all() else _range(100 * after[rate], "{:.1f}") + "%",
            f"of members found at an FPR of {percent(float(rate[4:]))}, adjusted{warning}",
        ),
        (
            _range(after["effective_nonmembers"], "{:,.0f}"),
            f"effective non-members of {_range(after['nonmembers'], '{:,.0f}')}, with their weights",
        ),
    ]


def figures(tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """Returns the figures of the section by name."""
    return {
        "causal_roc": draw_roc(tables),
        "weights": draw_weights(tables),
        "balance": draw_balance(tables),
    }


def draw_roc(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws the ROC curve of each estimator on log axes."""
    figure = plotting.new_figure(6.2, 4.9)
    axes = figure.subplots()
    auc = _first(tables["causal"]).set_index("estimator")["auc"]
    lowest = []
    for name, curve in _first(tables["causal_roc"]).groupby("estimator", sort=False):
        visible = curve[(curve["fpr"] > 0) & (curve["tpr"] > 0)]
        lowest.append(float(visible["fpr"].min()))
        color, style = _STYLES[str(name)]
        label = f"{ESTIMATORS[str(name)]} (AUC {auc[name]:.3f})"
        axes.plot(visible["fpr"], visible["tpr"], linestyle=style, color=color, label=label)
    # The largest of the lowest rates: below it, some curves rest on single samples with small weights.
    plotting.finish_roc_axes(axes, [max(lowest)])
    axes.legend(loc="lower right", fontsize=8)
    return figure


def draw_weights(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws histograms of the log odds of membership: members, non-members, and weighted non-members."""
    figure = plotting.new_figure(6.2, 3.6)
    axes = figure.subplots()
    bins = _first(tables["causal_weights"])
    edges = np.array([*bins["low"], bins["high"].iloc[-1]])
    lines = (
        ("Members", "members", plotting.MEMBER, "-"),
        ("Non-members", "nonmembers", plotting.NONMEMBER, "--"),
        ("Non-members, weighted", "nonmembers_weighted", plotting.BLACK, ":"),
    )
    for label, column, color, style in lines:
        share = bins[column] / max(bins[column].sum(), 1e-300)
        density = share / np.diff(edges)
        axes.stairs(density, edges, color=color, linestyle=style, label=label, linewidth=1.6)
    axes.set(xlabel="Log odds of membership given the covariates", ylabel="Density")
    axes.legend(fontsize=9)
    return figure


def draw_balance(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws the standardized differences of the covariates before and after weighting, largest first."""
    balance = _first(tables["covariate_balance"]).copy()
    sizes = balance[["difference", "weighted_difference"]].abs()
    balance[["before", "after"]] = sizes.replace(math.inf, math.nan)
    shown = balance.loc[sizes["difference"].sort_values(ascending=False).index][:_MAX_COVARIATES]
    figure = plotting.new_figure(6.2, 1.5 + 0.24 * len(shown))
    axes = figure.subplots()
    at = np.arange(len(shown))[::-1]
    axes.plot(shown["before"], at, "o", color=plotting.GREY, markerfacecolor="none", label="Before")
    axes.plot(shown["after"], at, "o", color=plotting.BLUE, label="After weighting")
    axes.axvline(0.1, color=plotting.GREY, linestyle=":")
    names = [name if len(name) <= 32 else f"{name[:31]}…" for name in shown["covariate"]]
    axes.set_yticks(at, [name.replace("$", r"\$") for name in names])
    axes.set(xlabel="Difference of means, in standard deviations", xlim=(0, None))
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.legend(fontsize=9, loc="lower right")
    return figure


def _range(values: pd.Series, form: str) -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low} to {high}"


def _first(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the first attack and model."""
    first = table.iloc[0]
    return table[table["attack"].eq(first["attack"]) & table["model"].eq(first["model"])]
