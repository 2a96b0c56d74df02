"""Figures 2, 4 and 16: LiRA by model size and data size, and without samples that share a prefix."""

import itertools
from collections.abc import Sequence

import pandas as pd

from analysis import attacks, plotting
from analysis.attacks import read_attack, read_jackknife, recipe_difference
from analysis.claims.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_up_and_down,
)
from analysis.formatting import percent, size_label
from analysis.io import RecipeResults, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure
from lm_mia.config.needs import Need

# Figure 2: LiRA on models of several sizes, each on its compute-optimal data.
FIG02_STATEMENTS = (
    "On compute-optimal data, LiRA is better than chance at every size.",
    "The AUC stays below 0.7 at every size.",
    "The AUC is not monotone in the model size.",
)


def draw_fig02(recipes: SweepResults) -> FigureResult:
    """Draws (a) ROC curves per size and (b) the TPR at fixed FPRs by size."""
    family = recipes.family("chinchilla")
    sizes = attacks.with_equal_models([recipe for _, recipe in family])
    count = attacks.common_references(sizes)
    on_recipe = [(recipe, read_jackknife(recipe, references=count)) for recipe in sizes]
    results = [(recipe, attack.result) for recipe, attack in on_recipe]
    curves = [
        plotting.RocCurve(f"{size_label(recipe)}, {recipe.samples:,} samples", result)
        for recipe, result in results
    ]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.draw_roc(left, curves, "(a) ROC")
    plotting.draw_tpr_by_size(right, results, "(b) TPR at fixed FPR")
    auc = {size_label(recipe): attack.auc for recipe, attack in on_recipe}
    steps = [
        (f"AUC, {size_label(b)} minus {size_label(a)}", recipe_difference(b, a, count))
        for a, b in itertools.pairwise(sizes)
    ]
    return FigureResult(
        data=plotting.panels_frame([("", curves)]),
        figure=figure,
        claims=(
            claim_all(
                FIG02_STATEMENTS[0],
                [
                    claim_greater("", f"AUC at {s} minus 0.5", x.scaled(1, -0.5).estimate())
                    for s, x in auc.items()
                ],
            ),
            claim_all(
                FIG02_STATEMENTS[1],
                [
                    claim_greater("", f"0.7 minus AUC at {s}", x.scaled(-1, 0.7).estimate())
                    for s, x in auc.items()
                ],
            ),
            claim_up_and_down(FIG02_STATEMENTS[2], steps),
        ),
        ours={
            name: plotting.auc_mean_std(result)
            for (name, _), (_, result) in zip(family, results, strict=True)
        },
        notes=(f"Attacks use {count} references.", plotting.curves_note(curves)),
    )


# Figure 4: LiRA by data size, and by model size on the same data.
FIG04_STATEMENTS = (
    "The AUC is not monotone in the number of training samples.",
    "On the same data the largest model has a higher AUC than the smallest.",
    "On the same data the largest model has a higher TPR than the smallest at fixed false positive rates.",
    "On the same data every step up in size raises the AUC.",
)


def draw_fig04(recipes: SweepResults) -> FigureResult:
    """Draws (a) ROC curves per number of samples and (b) the TPR at fixed FPRs by model size."""
    families = [recipes.family("data"), recipes.family("fixed")]
    all_recipes = attacks.with_equal_models([recipe for family in families for _, recipe in family])
    by_data, by_size = all_recipes[: len(families[0])], all_recipes[len(families[0]) :]
    count = attacks.common_references(all_recipes)
    data = [(recipe, read_attack(recipe, references=count)) for recipe in by_data]
    size = [(recipe, read_attack(recipe, references=count)) for recipe in by_size]
    data_curves = [
        plotting.RocCurve(f"{recipe.samples:,} samples", result) for recipe, result in data
    ]
    size_curves = [plotting.RocCurve(size_label(recipe), result) for recipe, result in size]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.draw_roc(left, data_curves, f"(a) {size_label(by_data[0])} on different data")
    plotting.draw_tpr_by_size(right, size, f"(b) Models on the same {by_size[0].samples:,} samples")
    steps = [
        (
            f"AUC, {new.samples:,} minus {old.samples:,} samples",
            recipe_difference(new, old, count),
        )
        for (old, _), (new, _) in itertools.pairwise(data)
    ]
    return FigureResult(
        data=pd.concat(
            [
                curve.to_frame().assign(panel=panel)
                for panel, group in (("a", data_curves), ("b", size_curves))
                for curve in group
            ]
        ),
        figure=figure,
        claims=(
            claim_up_and_down(FIG04_STATEMENTS[0], steps),
            *_size_claims(by_size, count),
        ),
        ours={"highest": max(plotting.auc_mean_std(result) for _, result in data)},
        notes=(
            f"Attacks use {count} references.",
            plotting.curves_note([*data_curves, *size_curves]),
        ),
    )


def _size_claims(by_size: Sequence[RecipeResults], count: int) -> tuple[Claim, ...]:
    small, large = by_size[0], by_size[-1]
    ends = f"{size_label(large)} minus {size_label(small)}"
    fewest = min(recipe.nonmembers for recipe in by_size)
    rates = [f for f in small.config.attack.fprs if 10 / fewest <= f <= 0.2]
    return (
        claim_greater(FIG04_STATEMENTS[1], f"AUC, {ends}", recipe_difference(large, small, count)),
        claim_all(
            FIG04_STATEMENTS[2],
            [
                claim_greater(
                    "",
                    f"TPR at an FPR of {percent(rate)}, {ends}",
                    recipe_difference(large, small, count, lambda attack, r=rate: attack.tpr(r)),
                )
                for rate in rates
            ],
        ),
        claim_all(
            FIG04_STATEMENTS[3],
            [
                claim_greater(
                    "",
                    f"AUC, {size_label(new)} minus {size_label(old)}",
                    recipe_difference(new, old, count),
                )
                for old, new in itertools.pairwise(by_size)
            ],
        ),
    )


# Figure 16: LiRA with all samples, and without samples that share a prefix.
FIG16_STATEMENTS = ("Samples that share a prefix hardly change the AUC.",)
MARGIN = 0.02


def draw_fig16(recipes: SweepResults) -> FigureResult:
    """Draws the ROC curves of the two populations."""
    main, distinct = attacks.with_equal_models([recipes["main"], recipes["distinct"]])
    count = attacks.common_references([main, distinct])
    with_all, without = (read_attack(recipe, references=count) for recipe in (main, distinct))
    tokens = distinct.config.population.distinct_prefix_tokens
    curves = [
        plotting.RocCurve("All samples", with_all, plotting.BLUE),
        plotting.RocCurve(f"Distinct first {tokens} tokens", without, plotting.VERMILLION, "--"),
    ]
    gain = recipe_difference(main, distinct, count)
    what = "AUC with all samples minus AUC without shared prefixes"
    return FigureResult(
        data=plotting.panels_frame([("", curves)]),
        figure=plotting.roc_figure(curves),
        claims=(claim_equivalent(FIG16_STATEMENTS[0], what, gain, MARGIN),),
        ours={"all": plotting.auc_mean_std(with_all), "distinct": plotting.auc_mean_std(without)},
        notes=(
            f"Attacks use {count} references. The two populations are drawn from the same corpus but contain "
            "different samples.",
            plotting.curves_note(curves),
        ),
    )


FIGURES = {
    "strongmia_fig02_compute_optimal": PaperFigure(
        title="Figure 2: LiRA on compute-optimally trained models",
        paper=(
            "With 128 references the AUC is 0.592 at 10M, 0.699 at 85M, 0.678 at 140M (Figure 1), 0.689 at 302M, "
            "0.547 at 489M, 0.654 at 604M and 0.553 at 1018M, all below 0.7. Where the data grow with the model, "
            "neither AUC nor TPR is monotone in size (Section 3.2)."
        ),
        expect=(
            "At cpu the AUC falls as the size grows and does not rise again. The smallest model, which has the least "
            "data, is the most exposed, with an AUC of about 0.7. The differences between neighboring sizes are too "
            "small to be significant."
        ),
        statements=FIG02_STATEMENTS,
        draw=draw_fig02,
        needs=(Need(("chinchilla-*",), jackknife=True),),
    ),
    "strongmia_fig04_data_and_size": PaperFigure(
        title="Figure 4: LiRA by data size and model size",
        paper=(
            "For 140M models on 50K to 10M samples, the AUC is highest, 0.753, at about 1M samples, and below 0.7 at "
            "both ends. On the same 2^23 samples larger models, from 10M to 1018M, are attacked with a higher TPR at "
            "each FPR; the TPRs of large models vary more (Section 4.2)."
        ),
        expect=(
            "At cpu the AUC falls as the number of samples grows, without the paper's fall at the small end: even "
            "192 samples give this model enough updates. On the same data the largest model has a higher TPR than "
            "the smallest at FPRs of 1% and more, while single steps in size go in both directions."
        ),
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
        needs=(Need(("data-*", "fixed-*"), jackknife=True),),
    ),
    "strongmia_fig16_duplicates": PaperFigure(
        title="Figure 16: LiRA with and without samples that share a prefix",
        paper=(
            "For a 140M model trained on 7M samples, the AUC is 0.683 on C4 and 0.680 without the samples that share a "
            "prefix, 4% of C4: duplicates hardly matter (Appendix D)."
        ),
        expect=(
            "The difference is small at cpu too. Its interval, over few targets of two populations, is about as wide "
            "as the margin of the claim, so the claim may come out either way."
        ),
        statements=FIG16_STATEMENTS,
        draw=draw_fig16,
        needs=(Need(("main", "distinct"), jackknife=True),),
    ),
}
