"""Writes audit.html, the self-contained page of `lm-mia audit`: ROC curves, histograms, and epsilon against guesses.

Numbers are those of the tables that the audit wrote, which are data frames here.
"""

import datetime
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import audit_causal, markup, plotting, provenance
from analysis.formatting import found_card, percent
from analysis.report import audited
from lm_mia.atomic import write_atomically
from lm_mia.attacks.registry import attack_name

PAGE = "audit.html"
_MAX_CURVES = 10
_MAX_HISTOGRAMS = 4
METHODS = {
    "estimate_tpr": "Estimate at 1% TPR",
    "estimate_max": "Largest estimate",
    "one_run": "Lower bound, one run",
    "independent_trials": "Lower bound, independent trials",
    "one_run_gaussian": "One run, if the mechanism is Gaussian",
}
_DESIGNS = {
    "given": "unknown, so there is no bound on epsilon",
    "coins": "each by its own fair coin, all in one training run",
    "half": "a random subset of fixed size, all in one training run",
    "independent": "each row is a training run of its own",
}


def write(
    folder: Path,
    source: str,
    membership: str,
    tables: Mapping[str, pd.DataFrame],
    notes: Sequence[str],
) -> Path:
    """Writes the page.

    Args:
      folder: where to write audit.html.
      source: name of the audited file.
      membership: how the members were drawn.
      tables: data frames by the names of their files: summary, tpr_at_fpr, audit, audit_curve, roc and histogram; and
        those of an adjustment for covariates, if there was one.
      notes: sentences for the reader.

    Returns:
      The path of the page.
    """
    figures = {"roc": draw_roc(tables), "histograms": draw_histograms(tables)}
    if len(tables["audit_curve"]):
        figures["guesses"] = draw_guesses(tables)
    causal = None
    if "causal" in tables:
        labeled = dict(tables) | {"causal": pd.DataFrame(_records(tables["causal"]))}
        causal = audit_causal.context(labeled)
        figures |= audit_causal.figures(tables)
    images = {name: markup.data_uri(plotting.to_png(figure)) for name, figure in figures.items()}
    summary = tables["summary"]
    epsilon = tables["audit"].assign(method=tables["audit"]["method"].map(METHODS))
    html = (
        markup.environment()
        .get_template("audit_page.html.j2")
        .render(
            source=Path(source).name,
            answer="" if causal else audited.sentences(tables),
            design=_DESIGNS[membership],
            cards=audit_causal.cards(tables) if causal else _cards(tables),
            notes=[note[0].upper() + note[1:] for note in notes],
            images=images,
            causal=causal,
            at="",
            file="",
            summary=_records(summary),
            tpr=_by_scores(tables["tpr_at_fpr"]),
            fprs=[*tables["tpr_at_fpr"]["fpr"].unique()],
            epsilon=_records(epsilon),
            shown=len(_first(tables["roc"], _MAX_CURVES)),
            unit=f"{summary['unit'].iloc[0]}s",
            percent=percent,
            number=_number,
            delta=f"{epsilon['delta'].iloc[0]:g}",
            confidence=percent(float(epsilon["confidence"].iloc[0])),
            time=datetime.datetime.now(datetime.UTC),
            version=provenance.version(),
        )
    )
    write_atomically(folder / PAGE, html)
    return folder / PAGE


def draw_roc(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws the ROC curves of the first attacks and models on log axes."""
    figure = plotting.new_figure(6.2, 4.9)
    axes = figure.subplots()
    curves, lowest = _first(tables["roc"], _MAX_CURVES), []
    auc = tables["summary"].set_index(["attack", "model"])["auc"]
    for (key, curve), color in zip(curves, _colors(len(curves)), strict=True):
        visible = curve[(curve["fpr"] > 0) & (curve["tpr"] > 0)]
        lowest.append(float(visible["fpr"].min()))
        label = f"{_label(*key) or 'Score'} (AUC {auc[key]:.3f})"
        axes.plot(visible["fpr"], visible["tpr"], color=color, label=label)
    plotting.finish_roc_axes(axes, lowest)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def draw_histograms(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws histograms of the scores of members and of non-members, for the first attacks and models."""
    shown = _first(tables["histogram"], _MAX_HISTOGRAMS)
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure = plotting.new_figure(6.2 if columns == 1 else 9.0, 3.2 * lines)
    panels = [*figure.subplots(lines, columns, squeeze=False).flat]
    for axes, (key, bins) in zip(panels, shown, strict=False):
        edges = [*bins["low"], bins["high"].iloc[-1]]
        for label, is_member, color, style in plotting.CLASSES:
            counts = bins["members" if is_member else "nonmembers"]
            density = counts / max(counts.sum(), 1) / np.maximum(bins["high"] - bins["low"], 1e-300)
            axes.stairs(density, edges, color=color, linestyle=style, label=label, linewidth=1.6)
        axes.set(xlabel="Score", ylabel="Density", title=_label(*key))
        axes.legend(fontsize=9)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    return figure


def draw_guesses(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws the lower bound on epsilon against the number of guesses, for the first attacks and models.

    A single curve has a second line, for guesses of members only.
    """
    figure = plotting.new_figure(7.6, 4.2)
    axes = figure.subplots()
    curves = _first(tables["audit_curve"], _MAX_CURVES)
    for (key, curve), color in zip(curves, _colors(len(curves)), strict=True):
        for sides, points in curve.groupby("sides", sort=False):
            kind = ""
            if curve["sides"].nunique() > 1:
                kind = "members only" if sides == "members" else "both classes"
                if len(curves) > 1 and sides == "members":
                    continue  # too many lines; audit_curve.csv has them
            label = ", ".join(filter(None, [_label(*key), kind if len(curves) == 1 else ""]))
            style = "-" if sides == curve["sides"].iloc[0] else "--"
            axes.plot(
                points["guesses"],
                points["epsilon"],
                style,
                color=color,
                marker="o",
                markersize=4,
                label=label or "Score",
            )
    bound = tables["audit"].query("method == 'one_run'")
    ceiling = float(bound["ceiling"].max())
    axes.axhline(
        ceiling, color=plotting.GREY, linestyle=":", label=f"Perfect attack: {ceiling:.2f}"
    )
    axes.set_xscale("log", base=2)
    axes.set(xlabel="Number of guesses", ylabel="Lower bound on epsilon")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _first(table: pd.DataFrame, count: int) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Returns (attack, model) and rows of what a figure shows: the first models, or of each attack the first model."""
    groups = {
        (str(key[0]), str(key[1])): rows
        for key, rows in table.groupby(["attack", "model"], sort=False)
    }
    if len({attack for attack, _ in groups}) > 1:
        first = next(iter(groups))[1]
        groups = {key: rows for key, rows in groups.items() if key[1] == first}
    return [*groups.items()][:count]


def _colors(count: int) -> list[plotting.Color]:
    return [plotting.BLUE] if count == 1 else plotting.shades(count)


def _label(attack: str, model: str) -> str:
    name = "" if attack == "score" else attack_name(attack)
    return " ".join(filter(None, [name, model and f"model {model}"]))


def _records(table: pd.DataFrame) -> list[dict[Hashable, Any]]:
    label = [_label(*key) or "Score" for key in zip(table["attack"], table["model"], strict=True)]
    return table.assign(label=label).to_dict("records")


def _by_scores(points: pd.DataFrame) -> dict[str, list[dict[Hashable, Any]]]:
    """Returns the rows of tpr_at_fpr by the label of the attack and model."""
    rows: dict[str, list[dict[Hashable, Any]]] = {}
    for row in _records(points):
        rows.setdefault(row["label"], []).append(row)
    return rows


def _cards(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """Returns the main numbers: those of the only model, or the ranges over attacks and models."""
    summary, epsilon = tables["summary"], tables["audit"]
    cards = [(_range(summary["auc"], 3), "AUC; 0.5 is chance")]
    points = tables["tpr_at_fpr"]
    rates = sorted(points["fpr"].unique())
    fpr = rates[len(rates) // 2]
    tpr = points.loc[points["fpr"] == fpr, "tpr"]
    text = f"of members found at an FPR of {percent(fpr)}"
    cards.append(
        found_card(math.nan, fpr) if tpr.isna().all() else (_range(100 * tpr, 1) + "%", text)
    )
    bounds = epsilon.loc[epsilon["is_bound"], "epsilon"]
    if len(bounds):
        text = "lower bound on epsilon"
    else:
        bounds = epsilon.loc[epsilon["method"] == "estimate_tpr", "epsilon"]
        text = "epsilon at 1% TPR: an estimate, not a bound"
    cards.append((_range(bounds, 2), text))
    return cards


def _range(values: pd.Series, digits: int) -> str:
    low, high = values.min(), values.max()
    text = f"{low:.{digits}f}"
    return text if f"{high:.{digits}f}" == text else f"{text} to {high:.{digits}f}"


def _number(value: object, digits: int = 3) -> str:
    """Formats a number; a dash if it is missing."""
    if not isinstance(value, float | int) or math.isnan(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"
