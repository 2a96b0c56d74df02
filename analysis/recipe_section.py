"""The section of the report page about one recipe: its training, attacks, decisions and samples, from its tables."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import (
    advantage,
    archetype_panels,
    attack_flips,
    audit,
    extraction,
    flip_panels,
    io,
    markup,
    more_references,
    notes,
    plotting,
    pooling,
    subset_panels,
    tables,
    vulnerability,
    zero_run,
)
from analysis.figures import references, samples, training
from analysis.formatting import (
    MIN_HEADLINE_REPLICAS,
    found_card,
    percent,
    plural,
    plus_minus,
    share_range,
)
from analysis.io import RecipeResults, Record
from lm_mia import stats
from lm_mia.attacks.registry import attack_name
from lm_mia.data.population import describe_text_use, has_split_documents, text_use

TABLES = {
    "attacks.csv": "all attacks with all numbers of references",
    "roc.csv": "ROC curves",
    "error_rates.csv": "error rates at each FPR",
    "thresholds.csv": "thresholds of the replicas at each FPR",
    "flip_shares.csv": "shares of samples by flip rate at each FPR, and ranges of the share of coin flips",
    "flip_shares_by_replicas.csv": "shares of coin flips with fewer replicas",
    "attack_flips.csv": "flip rates and coin flips under each attack, compared with LiRA",
    "advantage.csv": "membership advantage of each attack",
    "audit.csv": "bounds and estimates of epsilon of each attack",
    "audit_curve.csv": "bounds on epsilon by number of guesses",
    "true_positives.csv": "true positives by flip rate",
    "coin_free_roc.csv": "the mean ROC curve with and without unstable decisions",
    "partial_auc.csv": "partial areas and lifts of these curves",
    "flip_curves.csv": "flip rate against distance and posterior",
    "samples.parquet": "one row per sample: membership scores, votes, flip rates, distances",
    "shown_samples.parquet": "samples of the page of single samples: losses and decisions of each model, and text",
    "reference_targets.csv": "LiRA on every reference, attacked with the others",
    "archetypes.csv": "individual samples and the rules that they satisfy",
    "archetype_losses.csv": "losses of these samples under every reference and replica",
    "flips.json": "recipe, models and settings of the attack, coin-flip cutoff",
}
MORE_TABLES = {
    "more_references.csv": "AUC and TPRs with fewer references, and predicted for more",
    "more_references.json": "models and settings of these predictions, or why there are none",
    "pooling.csv": "TPRs averaged over models and samples, by how the threshold is found",
    "pooling.json": "models and settings of these TPRs, or why there are none",
    "vulnerability.parquet": "every sample: distance of its IN and OUT losses, observed and Gaussian TPRs",
    "zero_run.csv": "members and non-members from different sources: every estimate and the truth, for each run",
    "zero_run.json": "models and settings of this evaluation, and shifts that are not possible",
    "interference.csv": "one-run estimates of each reference, and the estimates of all references together",
    "shuffled.csv": "control with shuffled labels",
    "intervals.csv": "AUC and TPRs of the first replica, of all replicas and of the references, with 95% intervals",
    "resampled_references.csv": "flip rates over sets of references, for one target",
    "true_positive_probability.parquet": "every reference as a target, one row per sample",
    "extraction.csv": "samples to extract: suffix probabilities, and similarity of generated texts",
    "extraction_curves.csv": "shares of these samples that can be extracted, by number of queries",
    "extraction_rates.csv": "shares of these samples that are extracted, by four criteria",
    "extraction_reference.csv": "samples extracted from the first replica, the first reference, or both",
    "extraction.json": "models and settings of the extraction",
}
"""Tables that are written only if settings such as attack.bootstraps and extract.samples request them."""
OTHER_TABLES = {
    "membership_scores.parquet": "membership scores of every sample from every attack under every replica",
    "models.csv": "all models that are present, with their seeds and mean losses",
    "membership_scores.json": "warnings about the targets, if there are no replicas",
    "targets.csv": "AUC of every attack on every target or replica",
    "target_roc.parquet": "ROC curves of these attacks",
    "shown_tokens.parquet": "losses of the single tokens of some of these samples",
    "zero_run_curves.csv": "ROC curves of the first run of this evaluation",
    "zero_run_samples.parquet": "the selected samples of its first run, with scores and log odds",
    "effects.parquet": "the effect of training on each sample, from all references",
    "pooling_jackknife.parquet": "pooled TPRs with parts of the models and samples, for intervals",
    "sample_fpr.csv": "how many targets call a sample a member that were not trained on it",
    "replica_true_positives.csv": "true positives of each replica by flip rate",
    "decision_jackknife.parquet": "numbers about decisions with parts of the models and samples, for intervals",
    "target_jackknife.parquet": "their AUCs and TPRs on halves of the samples, for intervals of differences",
    "sample_losses.csv": "losses of the individual samples that a figure needs, under every reference",
}
"""Tables that this section does not read: for figures of the paper, comparisons of recipes, and own analyses."""
FIGURES = (
    training,
    references,
    more_references,
    subset_panels,
    advantage,
    audit,
    pooling,
    zero_run,
    flip_panels,
    attack_flips,
    samples,
    archetype_panels,
    vulnerability,
    extraction,
)
"""Modules whose `recipe_figures` draw the figures of a recipe."""


@dataclasses.dataclass(frozen=True)
class RecipeSection:
    """The section of a recipe on the page."""

    name: str
    html: str
    facts: Mapping[str, Any]
    """As returned by `facts`."""


def draw(recipe: RecipeResults, *, alone: bool) -> RecipeSection:
    """Draws and writes the figures of a recipe, WORKDIR/figures/NAME-FIGURE.png and .pdf, and renders its section.

    Args:
      recipe: the recipe.
      alone: whether the page has no other recipe.

    Raises:
      Unavailable: the recipe has no tables of decisions; nothing is written.
    """
    contents = facts(recipe)
    figures: dict[str, Figure | None] = {}
    for module in FIGURES:
        figures |= module.recipe_figures(recipe)
    images = {name: markup.data_uri(png) for name, png in save(recipe, figures).items()}
    return RecipeSection(contents["name"], render(contents, images, alone=alone), contents)


def render(contents: Mapping[str, Any], images: Mapping[str, str], *, alone: bool = True) -> str:
    """Returns the section as HTML: recipe.html.j2 filled with `facts` and with the figures as data URIs."""
    at, file = markup.anchor(contents["name"]), f"{contents['name']}-"
    template = markup.environment().get_template("recipe.html.j2")
    return template.render(images=images, at=at, file=file, alone=alone, **contents)


def facts(recipe: RecipeResults) -> dict[str, Any]:
    """Returns everything that the templates show except the images."""
    record, flip_facts = io.read_run_record(recipe), recipe.view.facts("flips")
    attack, config = flip_facts["config"], record["config"]
    samples = io.read_samples(recipe, ["member", "tokens"])
    member_N, tokens_N = samples["member"].astype(bool), samples["tokens"].astype(float)
    extracted = extraction.read(recipe)
    page = {
        "name": recipe.name,
        "imported": config["corpus"]["source"] == "imported",
        "focus": attack["focus_fpr"],
        "fprs": attack["fprs"],
        "flips": flip_facts,
        "attack": attack,
        "replicas_note": notes.replicas_note(
            flip_facts["replicas"], imported=config["corpus"]["source"] == "imported"
        ),
        "missing_models": notes.missing_models_note(flip_facts),
        "warnings": io.read_warnings(recipe),
        "coin_flip_note": notes.coin_flip_note(flip_facts),
        "coin_flip_power_note": notes.coin_flip_power_note(flip_facts),
        "medians": training.medians(recipe),
        "properties": [prop.table_row() for prop in vulnerability.read(recipe)],
        "min_group_members": vulnerability.MIN_GROUP_MEMBERS,
        "extraction": extracted,
        "extraction_is_missing": bool(recipe.config.extract.samples) and not extracted,
        "likely": extraction.LIKELY,
        "criteria": extraction.CRITERIA,
        "population": _population(recipe, config, tokens_N, member_N),
        "model": config["model"],
        "block_parameters": 12 * config["model"]["layers"] * config["model"]["width"] ** 2,
        "train": config["train"],
        "nan": math.nan,
        "attack_name": attack_name,
        "percent": percent,
        "plus_minus": plus_minus,
        "plural": plural,
        "share_range": share_range,
        "rate": tables.format_rate,
        "count": tables.format_count,
        "percentage": tables.format_percentage,
        "share": tables.format_share,
    }
    page |= _attacks(recipe, flip_facts) | _decisions(recipe, flip_facts, member_N)
    return page | {"cards": _cards(page), "sections": _sections(page)}


def table_files(recipe: RecipeResults) -> dict[str, str]:
    """Returns file name -> description of the exported tables of a recipe with replicas."""
    if not recipe.view.has("flips.json"):
        return {}
    folder = recipe.recipe_dir / "tables"
    return {
        name: description
        for name, description in {**TABLES, **MORE_TABLES, **OTHER_TABLES}.items()
        if (folder / name).is_file()
    }


def _cards(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the main numbers, each with its description."""
    lira, loss, focus, cards = page["lira"], page["loss"], percent(page["focus"]), []
    if lira:
        with_references = plural(lira["references"], "reference")
        cards += [
            (f"{lira['auc_mean']:.3f}", f"AUC of LiRA with {with_references}; 0.5 is chance"),
            found_card(
                lira[f"tpr_at_{page['focus']:g}_mean"],
                page["focus"],
                page["mean_intervals"].get(("lira_online", f"tpr_at_{page['focus']:g}")),
            ),
        ]
    subsets = page["reference_targets"]
    if lira and subsets["targets"] > 1:
        auc = plus_minus(subsets["auc_mean"], subsets["auc_std"])
        cards.append(
            (auc, f"AUC of LiRA over {subsets['targets']} targets of different training subsets")
        )
    if stacked := page["stacked"]:
        references = plural(stacked["references"], "reference")
        cards.append((f"{stacked['auc_mean']:.3f}", f"AUC of stacked LiRA with {references}"))
    if loss:
        cards.append((f"{loss['auc_mean']:.3f}", "AUC of the loss alone, without references"))
    if page["enough_replicas"] and (row := page["focus_row"]):
        replicas = plural(page["flips"]["replicas"], "replica")
        limits = share_range(row["member_fraction_127_low"], row["member_fraction_127_high"])
        description = (
            f"of members get a coin-flip decision from {replicas} (flip rate {row['cutoff']:.3f} or more) at an FPR of "
            f"{focus}; {stats.STRONGMIA_REPLICAS} replicas would show {limits}"
        )
        cards.append((f"{100 * row['member_fraction']:.1f}%", description))
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
        "trained": "Models" if page["imported"] else "Training",
        "decides": "Attack",
        "flips": "Coin flips",
        "which": "Which members",
        **({"extracted": "Extraction"} if page["extraction"] else {}),
    }
    return [(markup.anchor(page["name"], name), title) for name, title in titles.items()]


def _attacks(recipe: RecipeResults, facts: Record) -> dict[str, Any]:
    """Returns the numbers of the section on attacks."""
    fprs = facts["config"]["fprs"]
    attacks = io.read_table(recipe, "attacks.csv")
    shuffled: list[Record] = []
    if recipe.view.has("shuffled.csv"):
        shuffled = io.read_table(recipe, "shuffled.csv")
    rates = tables.read_error_rates(recipe)
    intervals = tables.read_intervals(recipe, facts["config"]["bootstraps"])
    mean_intervals = tables.mean_intervals(intervals, "replica")
    subset_intervals = tables.mean_intervals(intervals, "reference")
    strongest = tables.best_per_attack(attacks)
    order = {r["attack"]: i for i, r in enumerate(strongest)}
    advantages, audits = advantage.read(recipe), audit.read(recipe)
    not_drawn = [attack_name(n) for n in order if n not in plotting.ATTACKS]
    drawn = [r for r in attacks if r["attack"] in plotting.ATTACKS]
    return {
        "lira": tables.find_attack(strongest, "lira_online"),
        "reference_targets": tables.read_reference_targets(recipe, fprs),
        "loss": tables.find_attack(strongest, "loss"),
        "stacked": tables.find_attack(strongest, "stacked"),
        "more_references": more_references.read(recipe),
        "pooling": pooling.read(recipe),
        "strategy_names": pooling.STRATEGIES,
        "zero_run": zero_run.read(recipe),
        "zero_run_estimators": zero_run.ESTIMATORS,
        "zero_run_metrics": zero_run.METRICS,
        "signed": zero_run.signed,
        "lira_by_references": sorted(
            (r for r in attacks if r["attack"] == "lira_online"), key=lambda r: r["references"]
        ),
        "scores_same_samples": tables.scores_same_samples,
        "other_samples": {
            "roc": tables.name_other_samples(
                [r for r in attacks if r["attack"] in ("lira_online", "loss")]
            ),
            "auc_references": tables.name_other_samples(drawn),
            "roc_attacks": tables.name_other_samples(tables.best_per_attack(drawn)),
            "growth": tables.name_other_samples(
                [r for r in attacks if r["attack"] == "lira_online"]
            ),
            "attacks": tables.name_other_samples(strongest),
        },
        "max_not_shared": tables.MAX_NOT_SHARED,
        "errors_left_out": max((int(r["left_out"]) for r in rates), default=0),
        "attacks": strongest,
        "not_drawn": not_drawn,
        "intervals": bool(intervals),
        "mean_intervals": mean_intervals,
        "means_do_not_cover": tables.not_covered(mean_intervals),
        "subset_intervals": subset_intervals,
        "subsets_do_not_cover": tables.not_covered(subset_intervals),
        "tpr_intervals": {
            f: row
            for f in fprs
            for row in intervals
            if (row["attack"], row["role"], row["models"]) == ("lira_online", "replica", 1)
            and row["metric"] == f"tpr_at_{f:g}"
        },
        "advantages": advantages,
        "attacked": "replica",
        "advantage_headline": advantage.headline(advantages),
        "audits": audits,
        "audit_headline": audit.headline(audits),
        "error_rates": rates,
        "unequal": any(round(r["acc_mean"] - r["balanced_acc_mean"], 3) for r in rates),
        "shuffled": sorted(
            tables.best_per_attack(shuffled), key=lambda r: order.get(r["attack"], 99)
        ),
        "control": tables.shuffled_control(shuffled) if shuffled else None,
        "margin": tables.CHANCE_MARGIN,
    }


def _decisions(recipe: RecipeResults, facts: Record, member_N: np.ndarray) -> dict[str, Any]:
    """Returns the numbers of the section on decisions and their stability."""
    attack, has_power = facts["config"], io.coin_flip_test_has_power(facts)
    focus = attack["focus_fpr"]
    shares = tables.read_flip_shares(recipe)
    curves = io.read_table(recipe, "flip_curves.csv")
    bins = tables.flip_bins(shares)
    coin_flips = tables.coin_flip_rows(shares)
    focus_rows = (r for r in coin_flips if math.isclose(r["fpr"], focus))
    enough_replicas = facts["replicas"] >= MIN_HEADLINE_REPLICAS
    by_attack = attack_flips.read(recipe)
    return {
        "has_power": has_power,
        "enough_replicas": enough_replicas,
        "coin_flips": sorted(coin_flips, key=lambda r: r["fpr"]),
        "by_replicas": tables.read_coin_flips_by_replicas(recipe),
        "disagreements": {} if enough_replicas else _disagreements(recipe, focus, member_N),
        "focus_row": next(focus_rows, None),
        "attack_flips": by_attack,
        "attack_flips_verdict": attack_flips.verdict(by_attack),
        "attack_flips_summary": attack_flips.summary(by_attack),
        "attack_flips_not_drawn": tables.name_other_samples(by_attack),
        "shares": tables.shares_by_fpr(shares),
        "bins": bins,
        "parts": tables.unstable_groups(bins),
        "positives": tables.read_true_positives(recipe),
        "areas": tables.read_partial_aucs(recipe),
        "bin_sizes": flip_panels.bin_sizes(flip_panels.rows_at_fpr(curves, focus)),
        "resampled": tables.read_resampled(recipe),
        "min_sets": notes.min_replicas_for_test(attack["alpha"]),
        "probabilities": samples.read_probabilities(recipe),
        "archetypes": archetype_panels.read_archetypes(recipe),
        "unmatched_kinds": archetype_panels.read_unmatched_kinds(recipe),
    }


def _disagreements(recipe: RecipeResults, fpr: float, member_N: np.ndarray) -> dict[str, float]:
    """Returns the shares of members and of non-members with a score on which the replicas disagree."""
    flip_N = io.read_samples(recipe, [f"flip_rate_{fpr:g}"])[f"flip_rate_{fpr:g}"].astype(float)
    scored_N = ~np.isnan(flip_N)
    classes = {"members": member_N & scored_N, "non-members": ~member_N & scored_N}
    return {
        kind: float((flip_N[class_N] > 0).mean())
        for kind, class_N in classes.items()
        if class_N.any()
    }


def _population(
    recipe: RecipeResults, config: Record, tokens_N: np.ndarray, member_N: np.ndarray
) -> Record:
    manifest = io.read_manifest(recipe)
    used = text_use(manifest)
    return {
        "samples": len(member_N),
        "always_in": config["population"]["samples"] - len(member_N),
        "random": min(config["population"].get("random_samples", 0), len(member_N)),
        "members": int(member_N.sum()),
        "source": config["corpus"]["source"],
        "path": config["corpus"]["path"],
        "length_tokens": config["population"]["length_tokens"],
        "documents": used.documents if used and has_split_documents(manifest) else 0,
        "text_use": describe_text_use(manifest),
        "vocabulary": manifest.get("vocab_size") or config["tokenizer"]["vocab_size"],
        "file": manifest.get("provenance", {}).get("file", ""),
        "tokens": 0 if np.isnan(tokens_N).any() else int(tokens_N.sum()),
        "median_tokens": float(np.median(tokens_N)) if len(tokens_N) else 0.0,
    }


def save(recipe: RecipeResults, figures: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Writes the figures of a recipe and returns the paths of the PNGs; deletes the files of figures that are None."""
    figures_dir = io.parent_workdir(recipe.recipe_dir) / "figures"
    name, written = recipe.name, {}
    for figure_name, figure in figures.items():
        if figure is None:
            plotting.remove(figures_dir, f"{name}-{figure_name}")
        else:
            path = plotting.save(figure, figures_dir, f"{name}-{figure_name}")
            written[figure_name] = path
    return written
