"""The part of the report page about one recipe: its training, attacks, decisions and samples, from its tables."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import (
    archetype_panels,
    flip_panels,
    io,
    markup,
    notes,
    plotting,
    tables,
    vulnerability,
)
from analysis.figures import extraction, references, samples, training
from analysis.formatting import plural, plus_minus
from analysis.io import Record, percent

TABLES = {
    "attacks.csv": "every attack at every number of references",
    "roc.csv": "ROC curves",
    "error_rates.csv": "error rates at each FPR",
    "thresholds.csv": "every replica's threshold at each FPR",
    "flip_shares.csv": "shares of flip rates at each FPR",
    "true_positives.csv": "true positives by flip rate",
    "coin_free_roc.csv": "the mean ROC curve with and without coin flips",
    "partial_auc.csv": "partial areas and lifts of both",
    "flip_curves.csv": "flip rate against distance and posterior",
    "samples.parquet": "one line per sample: scores, votes, flip rates, distances",
    "archetypes.csv": "the samples of the archetype figure and their rules",
    "archetype_losses.csv": "losses of these samples under every reference and replica of the attack",
    "flips.json": "recipe, models and settings of the attack, coin-flip cutoff",
}
MORE_TABLES = {
    "shuffled.csv": "the control with shuffled labels",
    "intervals.csv": "95% intervals of the first replica, bootstrap and Clopper-Pearson",
    "resampled_references.csv": "flip rates over sets of references, for one target",
    "true_positive_probability.parquet": "every reference as a target: one line per sample",
    "extraction.csv": "the highest scores: probabilities of suffixes, and what was written",
    "extraction_curves.csv": "shares of these samples that can be extracted, by queries",
    "extraction.json": "the model and settings of the extraction",
}
"""Tables that are made only if settings such as attack.bootstraps and extract.samples request them."""
TABLES_OF_MODELS = {
    "models.csv": "every model that is present, with its seeds",
    "targets.csv": "AUC of every attack on every target or replica",
    "target_roc.parquet": "ROC curves of these attacks",
    "targets.json": "settings of these attacks",
    "sample_losses.csv": "losses of single samples that a figure needs, under every reference",
}
"""Tables that only figures of the paper and comparisons of recipes read."""
FIGURES = (
    training,
    references,
    flip_panels,
    samples,
    archetype_panels,
    vulnerability,
    extraction,
)
"""Modules with figures of a recipe."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a recipe on the page."""

    name: str
    html: str
    facts: Mapping[str, Any]
    """As returned by `facts`."""


def draw(folder: Path, *, alone: bool) -> Part:
    """Draws and writes the figures of a recipe, WORKDIR/figures/NAME-FIGURE.png and .pdf, and fills its part.

    Args:
      folder: of a recipe, WORKDIR/recipes/NAME.
      alone: whether the page has no other recipe.

    Raises:
      io.WorkdirError: a table or the store is missing or unreadable; nothing is written.
    """
    found = facts(folder)
    drawn: dict[str, Figure | None] = {}
    for module in FIGURES:
        drawn |= module.run_figures(folder)
    images = {name: markup.data_uri(png) for name, png in save(folder, drawn).items()}
    return Part(found["name"], render(found, images, alone=alone), found)


def render(found: Mapping[str, Any], images: Mapping[str, str], *, alone: bool = True) -> str:
    """Returns the part as HTML: recipe.html.j2 filled with `facts` and with the figures as data URIs."""
    at, file = markup.anchor(found["name"]), f"{found['name']}-"
    template = markup.environment().get_template("recipe.html.j2")
    return template.render(images=images, at=at, file=file, alone=alone, **found)


def facts(folder: Path) -> dict[str, Any]:
    """Returns everything that the templates show, apart from the images."""
    run, flip_facts = io.run(folder), io.flip_facts(folder)
    io.require(folder, TABLES)
    attack, config = flip_facts["config"], run["config"]
    samples = io.samples(folder, ["member", "tokens"])
    member_N = samples["member"].astype(bool)
    page = {
        "name": folder.resolve().name,
        "focus": attack["focus_fpr"],
        "fprs": attack["fprs"],
        "flips": flip_facts,
        "attack": attack,
        "spread": notes.spread(flip_facts["replicas"]),
        "missing_models": notes.missing_models(flip_facts),
        "cutoff": notes.cutoff(flip_facts),
        "medians": training.medians(training.read_log(folder)),
        "properties": [found.row() for found in vulnerability.read(folder)],
        "fewest_members": vulnerability.FEWEST,
        "extraction": extraction.read(folder),
        "extraction_exists": extraction.there(folder),
        "likely": extraction.LIKELY,
        "population": _population(folder, config, samples["tokens"], member_N),
        "model": config["model"],
        "block_parameters": 12 * config["model"]["layers"] * config["model"]["width"] ** 2,
        "train": config["train"],
        "nan": math.nan,
        "attack_name": io.attack_name,
        "percent": percent,
        "plus_minus": plus_minus,
        "plural": plural,
        "rate": tables.rate,
        "count": tables.count,
        "percentage": tables.percentage,
        "share": tables.share,
    }
    page |= _attacks(folder, flip_facts) | _decisions(folder, flip_facts, member_N)
    return page | {"cards": _cards(page), "sections": _sections(page)}


def table_files(folder: Path) -> dict[str, str]:
    """Returns file name -> description of the recipe's tables that the page uses; empty if it has no tables."""
    if not io.has(folder, "flips.json"):
        return {}
    extracted = extraction.read(folder)
    hidden = () if extracted else (extraction.TABLE, extraction.CURVES, extraction.FACTS)
    return {
        name: what
        for name, what in {**TABLES, **MORE_TABLES, **TABLES_OF_MODELS}.items()
        if io.has(folder, name) and name not in hidden
    }


def _cards(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the main numbers, each with its description."""
    lira, loss, focus, cards = page["lira"], page["loss"], percent(page["focus"]), []
    if lira:
        with_references = plural(lira["references"], "reference")
        tpr = percent(lira[f"tpr_at_{page['focus']:g}_mean"])
        cards += [
            (f"{lira['auc_mean']:.3f}", f"AUC of LiRA with {with_references}; 0.5 is chance"),
            (tpr, f"of members found at an FPR of {focus}"),
        ]
    if loss:
        cards.append((f"{loss['auc_mean']:.3f}", "AUC of the loss alone, without references"))
    if page["decides"] and page["focus_row"]:
        share = f"{100 * page['focus_row']['member_fraction']:.1f}%"
        cards.append((share, f"of members get a coin-flip decision at an FPR of {focus}"))
    cards += [
        (
            f"{100 * share:.1f}%",
            f"of {kind} get different decisions from the replicas at an FPR of {focus}",
        )
        for kind, share in page["disagreements"].items()
    ]
    return cards


def _sections(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (id, title) of each section, for the table of contents."""
    titles = {
        "trained": "Training",
        "decides": "Attack",
        "flips": "Coin flips",
        "which": "Which members",
        **({"extracted": "Extraction"} if page["extraction"] else {}),
    }
    return [(markup.anchor(page["name"], name), title) for name, title in titles.items()]


def _attacks(folder: Path, facts: Record) -> dict[str, Any]:
    """Returns the numbers of attacks and their error rates."""
    fprs = facts["config"]["fprs"]
    at_fprs = [f"tpr_at_{f:g}_{what}" for f in fprs for what in ("mean", "std")]
    needed = (*references.AUC_COLUMNS, "targets", *at_fprs, "left_out")
    attacks = io.table(folder, "attacks.csv", needed)
    columns = ("shuffles", "auc_mean", "auc_min", "auc_max", "left_out")
    shuffled: list[Record] = []
    if io.has(folder, "shuffled.csv"):
        shuffled = io.table(folder, "shuffled.csv", ("attack", "references", *columns))
    rates = tables.error_rates(folder)
    intervals = tables.intervals(folder, facts)
    of_lira = [r for r in intervals if r["attack"] == "lira_online"]
    strongest = tables.with_most_references(attacks)
    order = {r["attack"]: i for i, r in enumerate(strongest)}
    names = [io.attack_name(n) for n in order if n not in plotting.ATTACKS]
    return {
        "lira": tables.of_attack(strongest, "lira_online"),
        "loss": tables.of_attack(strongest, "loss"),
        "lira_by_references": sorted(
            (r for r in attacks if r["attack"] == "lira_online"), key=lambda r: r["references"]
        ),
        "few": any(r["left_out"] for r in attacks if r["attack"] in ("lira_online", "loss")),
        "few_points": any(r["left_out"] for r in attacks),
        "errors_left_out": max((int(r["left_out"]) for r in rates), default=0),
        "attacks": strongest,
        "not_drawn": names,
        "intervals": bool(intervals),
        "auc_intervals": tables.of_metric(intervals, "auc"),
        "tpr_intervals": {f: r for f in fprs for r in of_lira if r["metric"] == f"tpr_at_{f:g}"},
        "error_rates": rates,
        "unequal": any(round(r["acc_mean"] - r["balanced_acc_mean"], 3) for r in rates),
        "shuffled": sorted(
            tables.with_most_references(shuffled), key=lambda r: order.get(r["attack"], 99)
        ),
        "control": tables.control(shuffled) if shuffled else None,
        "margin": tables.CHANCE_MARGIN,
    }


def _decisions(folder: Path, facts: Record, member_N: np.ndarray) -> dict[str, Any]:
    """Returns the numbers of decisions and their stability."""
    attack, decides = facts["config"], io.decides(facts)
    focus = attack["focus_fpr"]
    shares = io.table(folder, "flip_shares.csv", tables.SHARE_COLUMNS)
    curves = io.table(folder, "flip_curves.csv", flip_panels.CURVE_COLUMNS)
    bins = tables.bins(shares)
    coins = (r for r in shares if r["bin"] == "coin flip" and math.isclose(r["fpr"], focus))
    return {
        "decides": decides,
        "disagreements": {} if decides else _disagreements(folder, focus, member_N),
        "focus_row": next(coins, None),
        "shares": tables.by_fpr(shares),
        "bins": bins,
        "parts": tables.parts(bins),
        "positives": tables.true_positives(folder),
        "areas": tables.areas(folder),
        "bin_sizes": flip_panels.bin_sizes(flip_panels.curves_at(curves, focus)),
        "resampled": tables.resampled(folder),
        "fewest_sets": notes.fewest_replicas(attack["alpha"]),
        "probabilities": samples.read_probabilities(folder),
        "archetypes": archetype_panels.read(folder),
        "none_found": archetype_panels.none_found(folder),
    }


def _disagreements(folder: Path, fpr: float, member_N: np.ndarray) -> dict[str, float]:
    """Returns which shares of the scored members and non-members the replicas do not agree about."""
    flip_N = io.samples(folder, [f"flip_rate_{fpr:g}"])[f"flip_rate_{fpr:g}"].astype(float)
    scored_N = ~np.isnan(flip_N)
    sides = {"members": member_N & scored_N, "non-members": ~member_N & scored_N}
    return {
        kind: float((flip_N[side_N] > 0).mean()) for kind, side_N in sides.items() if side_N.any()
    }


def _population(folder: Path, config: Record, tokens_N: np.ndarray, member_N: np.ndarray) -> Record:
    return {
        "samples": len(member_N),
        "members": int(member_N.sum()),
        "source": config["corpus"]["source"],
        "path": config["corpus"]["path"],
        "length_tokens": config["population"]["length_tokens"],
        "vocabulary": io.manifest(folder).get("vocab_size") or config["tokenizer"]["vocab_size"],
        "tokens": int(tokens_N.sum()),
        "median_tokens": float(np.median(tokens_N)) if len(tokens_N) else 0.0,
    }


def save(folder: Path, drawn: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Writes the figures of a recipe and returns the PNGs; removes older files of a figure that is None."""
    figures, name = io.workdir_of(folder) / "figures", folder.resolve().name
    written = {}
    for figure_name, figure in drawn.items():
        if figure is None:
            plotting.remove(figures, f"{name}-{figure_name}")
        else:
            written[figure_name] = plotting.save(figure, figures, f"{name}-{figure_name}")
    return written
