"""Figures 18, 19, 20, 24 and 25: ROC curves of single targets, means over replicas, and thresholds of replicas."""

import functools
import math
import operator
import string
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis import attacks, io, plotting, tables
from analysis.attacks import (
    JackknifedAttack,
    common_references,
    read_attack,
    read_jackknife,
    recipe_difference,
    with_equal_models,
)
from analysis.claims import decisions, jackknife
from analysis.claims.compare import (
    Claim,
    Estimate,
    claim_all,
    claim_any,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent, size_label, size_title
from analysis.io import REPLICA_SIZES, RecipeResults, SweepResults, fewest_references
from analysis.notes import replicas_note
from analysis.plotting import RocCurve, per_target_frame, roc_panels
from lm_mia import stats
from lm_mia.attacks.spec import Need, Variant

# Figures 18 and 19: ROC curves of every target, on compute-optimal data and on the same data.
FIG18_STATEMENTS = (
    "Some larger models have more variance in their ROC curves between targets than the smallest.",
)
FIG19_STATEMENTS = FIG18_STATEMENTS


def _every_target(recipes: SweepResults, family: str) -> Drawing:
    recipes_by_size = with_equal_models([recipe for _, recipe in recipes.family(family)])
    count = common_references(recipes_by_size)
    panels = [
        (
            f"({letter}) {size_label(recipe)}, {recipe.samples:,} samples",
            [RocCurve(size_label(recipe), read_attack(recipe, Variant(references=count)))],
        )
        for letter, recipe in zip(string.ascii_lowercase, recipes_by_size, strict=False)
    ]
    frames = [
        per_target_frame(curve.result, size=curve.label, references=count) for _, [curve] in panels
    ]
    return Drawing(
        data=pd.concat(frames, ignore_index=True),
        figure=roc_panels(panels, columns=2 if len(panels) in (2, 4) else 3, per_target=True),
        claims=(_claim_some_vary_more(recipes_by_size, count),),
        notes=(f"Each line is a target. Attacks use {count} references.",),
        paper_notes=(
            "The variance of ROC curves is tested by the standard deviation of the TPR over targets, as the mean of "
            "its logarithm over FPRs up to 20% at which ten non-members or more are called members. One larger size "
            "suffices, after Bonferroni's correction for the number of sizes. Targets that are attacked on fewer "
            "samples vary more for that reason alone.",
        ),
    )


def _claim_some_vary_more(by_size: Sequence[RecipeResults], count: int) -> Claim:
    """Returns the claim that the TPR varies more between targets at one of the larger sizes than at the smallest."""
    small, *larger = by_size
    rates = attacks.resolved_fprs(by_size)
    if not larger or not rates:
        lacked = "no second size" if not larger else "no FPR up to 20% with ten non-members"
        return claim_untested(FIG18_STATEMENTS[0], f"this run has {lacked}")

    def spread(attack: JackknifedAttack) -> Jackknife:
        of_rates = [attack.tpr(rate, jackknife.log_std) for rate in rates]
        return functools.reduce(operator.add, of_rates).scaled(1 / len(rates))

    shown = ", ".join(map(percent, rates))
    what = f"Logarithm of the standard deviation of the TPR, mean over FPRs of {shown}"
    return claim_any(
        FIG18_STATEMENTS[0],
        [
            claim_greater(
                "",
                f"{what}, {size_label(large)} minus {size_label(small)}",
                recipe_difference(large, small, count, spread),
            )
            for large in larger
        ],
    )


# Figure 20: ROC curves of targets of Figure 2, by size and by the number of references.
FIG20_STATEMENTS = ("At every size the AUC grows with the number of references.",)


def draw_fig20(recipes: SweepResults) -> Drawing:
    """Draws a grid with a row per size and a column per number of references, with a line per target."""
    recipes_by_size = attacks.with_equal_models(
        [recipe for _, recipe in recipes.family("chinchilla")]
    )
    most = attacks.common_references(recipes_by_size)
    counts = attacks.reference_counts(recipes_by_size[0], most)
    low = 1 / max(recipe.nonmembers for recipe in recipes_by_size)
    figure = plotting.new_figure(1.9 * len(counts) + 0.6, 1.8 * len(recipes_by_size) + 0.4)
    grid = figure.subplots(
        len(recipes_by_size), len(counts), squeeze=False, sharex=True, sharey=True
    )
    frames, grows = [], []
    for recipe, row in zip(recipes_by_size, grid, strict=True):
        name = size_label(recipe)
        on_size = [
            read_jackknife(recipe, Variant(references=n, is_count_study=True)) for n in counts
        ]
        results = [attack.result for attack in on_size]
        for axes, result in zip(row, results, strict=True):
            plotting.draw_roc_per_target(axes, [plotting.RocCurve("", result)], low=low)
            axes.set(xlabel="", ylabel="")
            frames.append(
                plotting.per_target_frame(result, size=name, references=result.references)
            )
        row[0].set_ylabel(name)
        gain = (on_size[-1].auc - on_size[0].auc).estimate()
        what = f"AUC at {name}, {counts[-1]} minus {counts[0]} references"
        grows.append(claim_greater("", what, gain))
    for axes, count in zip(grid[0], counts, strict=True):
        axes.set_title(f"{count} references", fontsize=10)
    figure.supxlabel("False positive rate", fontsize=11)
    figure.supylabel("True positive rate", fontsize=11)
    return Drawing(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=(claim_all(FIG20_STATEMENTS[0], grows),),
        notes=(
            "Rows are model sizes. References include IN and OUT references.",
            attacks.COUNT_STUDY_NOTE,
        ),
    )


# Figure 24: mean ROC curves over the replicas of a target, for two sizes on the same data.
FIG24_STATEMENTS = (
    "On the same data the larger model has the higher AUC.",
    "The AUC is higher than that of models of the same size on compute-optimal data, which have more samples.",
)


def draw_fig24(recipes: SweepResults) -> Drawing:
    """Draws a panel per size, with bands over replicas."""
    by_size = {size: recipes[f"flip-{size}"] for size in REPLICA_SIZES}
    count = fewest_references(list(by_size.values()))
    results = {
        size: read_attack(r, Variant(references=count, replicas=True))
        for size, r in by_size.items()
    }
    curves = [
        (size_title(by_size[size]), plotting.RocCurve("LiRA", results[size], plotting.BLUE))
        for size in REPLICA_SIZES
    ]
    rows = [curve.to_frame().assign(series=title) for title, curve in curves]
    replicas = {size: len(results[size].auc_T) for size in REPLICA_SIZES}
    replica_texts = {replicas_note(n): None for n in replicas.values()}
    return Drawing(
        data=pd.concat(rows),
        figure=plotting.roc_panels([(title, [curve]) for title, curve in curves]),
        claims=(
            claim_greater(
                FIG24_STATEMENTS[0],
                f"AUC of {size_label(by_size['302M'])} minus {size_label(by_size['140M'])}",
                _size_difference(by_size),
            ),
            _claim_above_optimal(by_size, recipes),
        ),
        ours={
            f"auc {size}": (float(f.auc_T.mean()), float(f.auc_T.std()))
            for size, f in results.items()
        },
        notes=(
            *replica_texts,
            f"Both sizes are attacked with {count} references.",
        ),
    )


def _size_difference(by_size: Mapping[str, RecipeResults]) -> Estimate:
    """Returns the difference over targets with their own training subsets or, if there are none, over replicas."""
    small, large = (by_size[size] for size in REPLICA_SIZES)
    if all(recipe.targets for recipe in by_size.values()):
        small, large = with_equal_models([small, large])
        return recipe_difference(large, small, common_references([small, large]))
    large_auc, small_auc = (decisions.read_jackknife(r, "auc") for r in (large, small))
    return (large_auc - small_auc).estimate()


def _claim_above_optimal(by_size: Mapping[str, RecipeResults], recipes: SweepResults) -> Claim:
    """Compares the replicas of each size with the targets of the same size on its compute-optimal data."""
    optimal = {size: recipes.get(f"chinchilla-{size}") for size in by_size}
    if lacking := [size_label(by_size[size]) for size, r in optimal.items() if r is None]:
        return claim_untested(
            FIG24_STATEMENTS[1],
            f"this run has no models of {' and '.join(lacking)} on compute-optimal data; Figure 2 needs them, so draw "
            "it in the same workdir",
        )
    found = with_equal_models([recipe for recipe in optimal.values() if recipe is not None])
    count = common_references(found)
    parts = [
        claim_greater(
            "",
            f"AUC of {size_label(replicas)}, {replicas.samples:,} minus {compared.samples:,} samples",
            jackknife.independent_difference(
                decisions.read_jackknife(replicas, "auc"),
                read_jackknife(compared, Variant(references=count)).auc,
            ),
        )
        for replicas, compared in zip(by_size.values(), found, strict=True)
    ]
    return claim_all(FIG24_STATEMENTS[1], parts)


# Figure 25: TPR and decision thresholds of replicas at fixed false positive rates, for two sizes.
FIG25_STATEMENTS = ("At higher FPRs the thresholds of replicas vary more.",)
_HIGH = 0.1


def draw_fig25(recipes: SweepResults) -> Drawing:
    """Draws a row per size: mean TPR ± STD, and range and middle half of the thresholds, as posteriors."""
    figure = plotting.new_figure(9.6, 6.8)
    grid = figure.subplots(2, 2, sharex=True, sharey="col")
    data, parts, replicas = [], [], []
    for (left, right), size in zip(grid, REPLICA_SIZES, strict=True):
        recipe = recipes[f"flip-{size}"]
        threshold_TxF = _read_thresholds(recipe)
        rates = pd.DataFrame(tables.read_error_rates(recipe)).set_index("fpr")
        rows = rates[["tpr_mean", "tpr_std"]].join(_summary(threshold_TxF), how="inner")
        _panels(left, right, rows)
        left.set_title(size_title(recipe))
        data.append(rows.reset_index().assign(size=size_label(recipe)))
        parts.append(_claim_varies(recipe))
        replicas.append(len(threshold_TxF))
    for axes in grid[-1]:
        axes.set_xlabel("False positive rate")
    for axes in grid[0]:
        axes.legend(loc="upper left" if axes is grid[0, 0] else "lower left")
    return Drawing(
        data=pd.concat(data),
        figure=figure,
        claims=(claim_all(FIG25_STATEMENTS[0], parts),),
        notes=(
            *dict.fromkeys(map(replicas_note, replicas)),
            "A threshold is drawn as the posterior of a sample whose membership score equals the threshold.",
        ),
    )


def _read_thresholds(recipe: RecipeResults) -> pd.DataFrame:
    """Returns the posterior at the threshold, with a row per replica and a column per FPR below 1."""
    rows = io.read_frame(recipe, "thresholds.csv")
    rows["threshold"] = stats.posterior(rows["threshold"].to_numpy(float))
    return rows[rows["fpr"] < 1].pivot(index="order_seed", columns="fpr", values="threshold")


def _summary(threshold_TxF: pd.DataFrame) -> pd.DataFrame:
    quantiles = threshold_TxF.quantile([0, 0.25, 0.5, 0.75, 1]).T
    return quantiles.set_axis([f"threshold_{q}" for q in ("min", "25", "50", "75", "max")], axis=1)


def _panels(left: Axes, right: Axes, rows: pd.DataFrame) -> None:
    fpr = rows.index.to_numpy(float)
    left.errorbar(
        fpr,
        rows["tpr_mean"],
        rows["tpr_std"],
        color=plotting.BLUE,
        marker="o",
        markersize=4,
        capsize=3,
        label="Mean ± STD",
    )
    low, high = rows["threshold_min"], rows["threshold_max"]
    right.vlines(fpr, low, high, color=plotting.GREY, linewidth=1.4, label="Range")
    low, high = rows["threshold_25"], rows["threshold_75"]
    right.vlines(fpr, low, high, color=plotting.SKY, linewidth=7, label="Middle half")
    right.plot(fpr, rows["threshold_50"], "_", color=plotting.BLACK, ms=9, mew=1.6, label="Median")
    shown = plotting.separated_ticks(fpr.tolist())
    for axes in (left, right):
        axes.set(xscale="log", ylim=(0, 1.02))
        axes.set_xticks(shown, [percent(f) for f in shown])
        axes.tick_params(axis="x", labelsize=10)
        axes.minorticks_off()
    left.set_ylabel("True positive rate")
    right.set_ylabel("Posterior at the threshold")


def _claim_varies(recipe: RecipeResults) -> Claim:
    """Returns the claim that thresholds vary more at a high FPR, by distances from the median (Brown and Forsythe)."""
    size, lowest = size_label(recipe), attacks.lowest_resolved_fpr(recipe)
    fprs = [f for f in recipe.config.attack.fprs if f >= lowest]
    high = next((f for f in fprs if math.isclose(f, _HIGH)), None)
    if high is None or high == min(fprs):
        return claim_untested(
            "", f"{size}: attack.fprs has no {percent(_HIGH)}, or no lower FPR with ten non-members"
        )
    low = min(fprs)
    what = f"{size}: distance from the median threshold at an FPR of {percent(high)} minus at {percent(low)}"
    far, near = (decisions.read_jackknife(recipe, "threshold_spread", f) for f in (high, low))
    return claim_greater("", what, (far - near).estimate())


EXPERIMENTS = {
    "strongmia_fig18_compute_optimal_targets": Experiment(
        statements=FIG18_STATEMENTS,
        draw=lambda recipes: _every_target(recipes, "chinchilla"),
        reads=(Need(("chinchilla-*",), jackknife=True),),
    ),
    "strongmia_fig19_fixed_data_targets": Experiment(
        statements=FIG19_STATEMENTS,
        draw=lambda recipes: _every_target(recipes, "fixed"),
        reads=(Need(("fixed-*",), jackknife=True),),
    ),
    "strongmia_fig20_targets_by_references": Experiment(
        statements=FIG20_STATEMENTS,
        draw=draw_fig20,
        reads=(Need(("chinchilla-*",), references="powers", jackknife=True),),
    ),
    "strongmia_fig24_mean_roc": Experiment(
        statements=FIG24_STATEMENTS,
        draw=draw_fig24,
        reads=(
            Need(("flip-140M", "flip-302M"), targets="replicas", most_references=None),
            Need(("flip-140M", "flip-302M"), jackknife=True),
            Need(("chinchilla-140M", "chinchilla-302M"), jackknife=True),
        ),
    ),
    "strongmia_fig25_thresholds": Experiment(
        statements=FIG25_STATEMENTS,
        draw=draw_fig25,
    ),
}
