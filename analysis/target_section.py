"""The section of the report page about a recipe without replicas: its attacks on targets, from its tables.

Each target has a training subset of its own, so standard deviations over targets include the variation between
subsets. There are no decisions of replicas, and hence no flip rates. A recipe without targets has only the studies that
attack each reference with the others.

T: targets, F: false positive rates, G: points of a ROC curve.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import advantage, attacks, audit, io, markup, plotting, pooling, tables, zero_run
from analysis.attacks import AttackResult
from analysis.formatting import found_card, percent, plural, plus_minus
from analysis.io import RecipeResults
from analysis.recipe_section import RecipeSection, save
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import Variant
from lm_mia.errors import Unavailable


def draw(recipe: RecipeResults) -> RecipeSection:
    """Draws and writes the figures of a recipe, WORKDIR/figures/NAME-FIGURE.png and .pdf, and renders its section.

    Raises:
      Unavailable: there are too few models.
    """
    contents = facts(recipe)
    figures: dict[str, Figure | None] = {}
    if recipe.config.attack.targets:
        figures["roc_targets"] = draw_roc(contents["results"])
        figures |= advantage.recipe_figures(recipe)
        figures |= audit.recipe_figures(recipe)
    figures |= pooling.recipe_figures(recipe)
    figures |= zero_run.recipe_figures(recipe)
    images = {name: markup.data_uri(png) for name, png in save(recipe, figures).items()}
    template = markup.environment().get_template("target.html.j2")
    name = recipe.name
    html = template.render(images=images, at=markup.anchor(name), file=f"{name}-", **contents)
    return RecipeSection(name, html, contents)


def facts(recipe: RecipeResults) -> dict[str, Any]:
    """Returns everything that the template shows except the images."""
    c = recipe.config
    manifest, has_targets = io.read_manifest(recipe), c.attack.targets > 0
    results = read(recipe) if has_targets else {}
    advantages = advantage.read(recipe) if has_targets else {}
    audits = audit.read(recipe) if has_targets else {}
    intervals = _read_intervals(recipe) if has_targets else {}
    page = {
        "name": recipe.name,
        "results": results,
        "rows": [_row(name, result) for name, result in results.items()],
        "intervals": intervals,
        "not_covered": tables.not_covered(intervals),
        "fprs": c.attack.fprs,
        "focus": c.attack.focus,
        "imported": recipe.is_imported,
        "subset": c.train.subset,
        "num_samples": c.population.samples,
        "imported_file": manifest.get("provenance", {}).get("file", ""),
        "references": len(recipe.references),
        "has_targets": has_targets,
        "targets": len(recipe.targets),
        "population": {"documents": c.corpus.split_documents},
        "advantages": advantages,
        "advantage_headline": advantage.headline(advantages),
        "audits": audits,
        "audit_headline": audit.headline(audits),
        "attacked": "target",
        "warnings": io.read_warnings(recipe),
        "pooling": pooling.read(recipe),
        "strategy_names": pooling.STRATEGIES,
        "zero_run": zero_run.read(recipe),
        "zero_run_estimators": zero_run.ESTIMATORS,
        "zero_run_metrics": zero_run.METRICS,
        "signed": zero_run.signed,
        "nan": math.nan,
        "attack_name": attack_name,
        "percent": percent,
        "plus_minus": plus_minus,
        "plural": plural,
    }
    at = markup.anchor(recipe.name, "decides")
    return page | {"cards": _cards(page), "sections": [(at, "Attack")]}


def read(recipe: RecipeResults) -> dict[str, AttackResult]:
    """Returns the attacks of the config on all targets with all references, best first: name -> result."""
    results = {}
    for name in recipe.config.attack.attacks:
        try:
            results[name] = attacks.read_attack(
                recipe, Variant(name, step=recipe.config.attack.step)
            )
        except Unavailable:
            if name == "lira_online":
                raise
    return dict(sorted(results.items(), key=lambda item: -_mean(item[1].auc_T)))


def _read_intervals(recipe: RecipeResults) -> Mapping[tuple[str, str], Any]:
    """Returns the intervals of the mean over the targets, or of the only target, by attack and metric."""
    rows = tables.read_intervals(recipe, recipe.config.attack.bootstraps)
    if len(recipe.targets) > 1:
        return tables.mean_intervals(rows, "target")
    return {(row["attack"], row["metric"]): row for row in rows}


def draw_roc(results: Mapping[str, AttackResult]) -> Figure:
    """Draws the mean ROC curve over the targets of each main attack."""
    figure = plotting.new_figure(6.5, 5.3)
    axes, lowest = figure.subplots(), []
    for name, (color, dash, _) in plotting.ATTACKS.items():
        result = results.get(name)
        if result is None or math.isnan(_mean(result.auc_T)):
            continue
        tpr_G = result.tpr_TxG.mean(axis=0)
        shown_G = (result.fpr_G > 0) & (tpr_G > 0)
        label = f"{attack_name(name)} (AUC {plus_minus(_mean(result.auc_T), _std(result.auc_T))})"
        axes.plot(result.fpr_G[shown_G], tpr_G[shown_G], color=color, linestyle=dash, label=label)
        lowest.append(float(result.fpr_G[shown_G].min()) if shown_G.any() else 0.0)
    plotting.finish_roc_axes(axes, lowest)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _row(name: str, result: AttackResult) -> dict[str, Any]:
    return {
        "attack": name,
        "references": result.references,
        "auc": (_mean(result.auc_T), _std(result.auc_T)),
        "tpr": [(_mean(tpr_T), _std(tpr_T)) for tpr_T in result.tpr_TxF.T],
        "left_out": result.left_out,
    }


def _cards(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the main numbers, each with its description."""
    cards = []
    by_name = {row["attack"]: row for row in page["rows"]}
    if lira := by_name.get("lira_online"):
        references = plural(lira["references"], "reference")
        cards.append(
            (
                plus_minus(*lira["auc"]),
                f"AUC of LiRA with {references} over {plural(page['targets'], 'target')}",
            )
        )
        tpr = lira["tpr"][[*page["fprs"]].index(page["focus"])][0]
        interval = page["intervals"].get(("lira_online", f"tpr_at_{page['focus']:g}"))
        cards.append(found_card(tpr, page["focus"], interval))
    for name, title in (("stacked", "stacked LiRA"), ("loss", "the loss alone")):
        if row := by_name.get(name):
            cards.append((plus_minus(*row["auc"]), f"AUC of {title}"))
    if not page["has_targets"] and page["pooling"] and not page["pooling"].reason:
        tpr = page["pooling"].by_strategy["standardized"]["tpr"]
        cards.append(
            (
                percent(tpr),
                f"of members found at an FPR of {percent(page['focus'])}, by one threshold for standardized losses",
            )
        )
    return cards


def _mean(value_T: np.ndarray) -> float:
    return float(np.mean(value_T)) if len(value_T) else math.nan


def _std(value_T: Sequence[float] | np.ndarray) -> float:
    return float(np.std(value_T)) if len(value_T) > 1 else math.nan
