"""Figures 2, 4 and 16: LiRA by the size of the model and of its data, and without samples that begin alike."""

import functools
import itertools
from collections.abc import Sequence

import pandas as pd

from analysis import attacks, compare, plotting
from analysis.attacks import AttackResult, read_attack
from analysis.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    mean_estimate,
    recipe_difference,
)
from analysis.formatting import percent, size_label
from analysis.io import RecipeResults, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure
from lm_mia.config.needs import Need

# Figure 2: LiRA on models of several sizes, each on its compute-optimal data.
FIG02_STATEMENTS = (
    "On its compute-optimal data, every size is attacked better than by chance.",
    "The AUC stays below 0.7 at every size.",
    "The AUC is not monotone in the size of the model.",
)


def draw_fig02(recipes: SweepResults) -> FigureResult:
    """(a) Curves, a size each. (b) TPR at fixed FPRs by size."""
    family = recipes.family("chinchilla")
    some = attacks.with_equal_models([recipe for _, recipe in family])
    count = attacks.common_references(some)
    found = [(recipe, read_attack(recipe, references=count)) for recipe in some]
    lines = [
        plotting.RocCurve(f"{size_label(recipe)}, {recipe.samples:,} samples", one)
        for recipe, one in found
    ]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.draw_roc(left, lines, "(a) ROC")
    plotting.draw_tpr_by_size(right, found, "(b) TPR at fixed FPR")
    auc = {size_label(recipe): one.auc_T for recipe, one in found}
    level = 1 - 0.05 / max(len(some) - 1, 1)  # any step may show it
    steps = [
        (
            f"AUC at {size_label(b)} less at {size_label(a)}",
            recipe_difference(b, a, count, level=level),
        )
        for a, b in itertools.pairwise(some)
    ]
    return FigureResult(
        data=plotting.panels_frame([("", lines)]),
        figure=figure,
        claims=(
            claim_all(
                FIG02_STATEMENTS[0],
                [
                    claim_greater("", f"AUC at {s} less 0.5", mean_estimate(x - 0.5))
                    for s, x in auc.items()
                ],
            ),
            claim_all(
                FIG02_STATEMENTS[1],
                [
                    claim_greater("", f"0.7 less AUC at {s}", mean_estimate(0.7 - x))
                    for s, x in auc.items()
                ],
            ),
            compare.claim_up_and_down(FIG02_STATEMENTS[2], steps),
        ),
        ours={
            name: plotting.auc_mean_std(one)
            for (name, _), (_, one) in zip(family, found, strict=True)
        },
        notes=(f"Attacks use {count} references.", plotting.curves_note(lines)),
    )


# Figure 4: LiRA by the size of the data, and by the size of the model on the same data.
FIG04_STATEMENTS = (
    "The AUC is not monotone in the number of training samples.",
    "On the same data the largest model has a higher AUC than the smallest.",
    "On the same data the largest model has a higher TPR than the smallest at fixed false positive rates.",
    "On the same data every step up in size raises the AUC.",
)


def draw_fig04(recipes: SweepResults) -> FigureResult:
    """(a) Curves, a number of samples each. (b) TPR at fixed FPRs by the size of the model."""
    families = [recipes.family("data"), recipes.family("fixed")]
    some = attacks.with_equal_models([recipe for family in families for _, recipe in family])
    by_data, by_size = some[: len(families[0])], some[len(families[0]) :]
    count = attacks.common_references(some)
    data = [(recipe, read_attack(recipe, references=count)) for recipe in by_data]
    size = [(recipe, read_attack(recipe, references=count)) for recipe in by_size]
    lines = [plotting.RocCurve(f"{recipe.samples:,} samples", one) for recipe, one in data]
    models = [plotting.RocCurve(size_label(recipe), one) for recipe, one in size]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.draw_roc(left, lines, f"(a) {size_label(by_data[0])} on different data")
    plotting.draw_tpr_by_size(right, size, f"(b) Models on the same {by_size[0].samples:,} samples")
    level = 1 - 0.05 / max(len(data) - 1, 1)  # any step may show it
    steps = [
        (
            f"AUC on {new.samples:,} less on {old.samples:,} samples",
            recipe_difference(new, old, count, level=level),
        )
        for (old, _), (new, _) in itertools.pairwise(data)
    ]
    return FigureResult(
        data=pd.concat(
            [
                line.to_frame().assign(panel=p)
                for p, of in (("a", lines), ("b", models))
                for line in of
            ]
        ),
        figure=figure,
        claims=(compare.claim_up_and_down(FIG04_STATEMENTS[0], steps), *_of_sizes(by_size, count)),
        ours={"highest": max(plotting.auc_mean_std(one) for _, one in data)},
        notes=(f"Attacks use {count} references.", plotting.curves_note([*lines, *models])),
    )


def _of_sizes(size: Sequence[RecipeResults], count: int) -> tuple[Claim, ...]:
    small, large = size[0], size[-1]
    ends = f"at {size_label(large)} less at {size_label(small)}"
    fewest = min(recipe.samples for recipe in size)
    rates = [f for f in small.config.attack.fprs if 10 / fewest <= f <= 0.2]
    return (
        claim_greater(FIG04_STATEMENTS[1], f"AUC {ends}", recipe_difference(large, small, count)),
        claim_all(
            FIG04_STATEMENTS[2],
            [
                claim_greater(
                    "",
                    f"TPR at an FPR of {percent(rate)} {ends}",
                    recipe_difference(
                        large, small, count, functools.partial(AttackResult.tpr_T, fpr=rate)
                    ),
                )
                for rate in rates
            ],
        ),
        claim_all(
            FIG04_STATEMENTS[3],
            [
                claim_greater(
                    "",
                    f"AUC at {size_label(new)} less at {size_label(old)}",
                    recipe_difference(new, old, count),
                )
                for old, new in itertools.pairwise(size)
            ],
        ),
    )


# Figure 16: LiRA with all samples, and without those that begin alike.
FIG16_STATEMENTS = ("Samples that begin alike hardly change the AUC.",)
MARGIN = 0.02


def draw_fig16(recipes: SweepResults) -> FigureResult:
    """Curves of both, of populations of their own."""
    main, distinct = attacks.with_equal_models([recipes["main"], recipes["distinct"]])
    count = attacks.common_references([main, distinct])
    with_all, without = (read_attack(recipe, references=count) for recipe in (main, distinct))
    tokens = distinct.config.population.distinct_prefix_tokens
    lines = [
        plotting.RocCurve("All samples", with_all, plotting.BLUE),
        plotting.RocCurve(
            f"No two of the same {tokens} first tokens", without, plotting.VERMILLION, "--"
        ),
    ]
    gain = recipe_difference(main, distinct, count)
    what = "AUC with all samples less without those that begin alike"
    return FigureResult(
        data=plotting.panels_frame([("", lines)]),
        figure=plotting.roc_figure(lines),
        claims=(claim_equivalent(FIG16_STATEMENTS[0], what, gain, MARGIN),),
        ours={"all": plotting.auc_mean_std(with_all), "distinct": plotting.auc_mean_std(without)},
        notes=(
            f"Attacks use {count} references. The two populations are drawn from one corpus and differ in their "
            "samples.",
            plotting.curves_note(lines),
        ),
    )


FIGURES = {
    "fig02_compute_optimal": PaperFigure(
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
    "fig04_data_and_size": PaperFigure(
        title="Figure 4: LiRA by the size of the data and of the model",
        paper=(
            "140M models on 50K to 10M samples: the AUC is highest, 0.753, at about 1M samples, and below 0.7 at "
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
    "fig16_duplicates": PaperFigure(
        title="Figure 16: LiRA with and without samples that begin alike",
        paper=(
            "A 140M model of 7M samples is attacked with an AUC of 0.683 on C4 and of 0.680 where samples that share "
            "a prefix are left out, 4% of C4: duplicates hardly matter (Appendix D)."
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
