"""Figures 2, 4 and 16: LiRA by model size and data size, and without samples that share a prefix."""

import itertools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from analysis import attacks, plotting
from analysis.attacks import JackknifedAttack, read_attack, read_jackknife, recipe_difference
from analysis.claims.compare import (
    Claim,
    claim_all,
    claim_any,
    claim_below,
    claim_equivalent,
    claim_greater,
    claim_untested,
    claim_up_and_down,
)
from analysis.claims.jackknife import log_relative_std, log_std
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent, size_label
from analysis.io import RecipeResults, SweepResults
from lm_mia.attacks.spec import Need, Variant

# Figure 2: LiRA on models of several sizes, each on its compute-optimal data.
FIG02_STATEMENTS = (
    "On compute-optimal data, LiRA is better than chance at every size.",
    "The AUC stays below 0.7 at every size.",
    "The AUC is not monotone in the model size.",
    "From 10M to 302M the TPR at fixed false positive rates rises with the model size.",
    "At 489M the TPR at fixed false positive rates is lower than at 302M.",
)
_RISING, _DROP = ("10M", "85M", "302M"), "489M"
"""The sizes of Figure 2(b) up to the drop; the paper leaves out 44M and 140M there."""


def draw_fig02(recipes: SweepResults) -> Drawing:
    """Draws (a) ROC curves per size and (b) the TPR at fixed FPRs by size."""
    family = recipes.family("chinchilla")
    sizes = attacks.with_equal_models([recipe for _, recipe in family])
    count = attacks.common_references(sizes)
    on_recipe = [(recipe, read_jackknife(recipe, Variant(references=count))) for recipe in sizes]
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
    return Drawing(
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
            claim_below(
                FIG02_STATEMENTS[1],
                "AUC",
                attacks.NEVER_REACHED_AUC,
                {
                    f"at {size}": x.scaled(-1, attacks.NEVER_REACHED_AUC).estimate()
                    for size, x in auc.items()
                },
            ),
            claim_up_and_down(FIG02_STATEMENTS[2], steps),
            *_tpr_claims({name: r for (name, _), r in zip(family, sizes, strict=True)}, count),
        ),
        ours={
            name: plotting.auc_mean_std(result)
            for (name, _), (_, result) in zip(family, results, strict=True)
        },
        notes=(f"Attacks use {count} references.", plotting.curves_note(curves)),
    )


def _tpr_claims(sizes: Mapping[str, RecipeResults], count: int) -> tuple[Claim, Claim]:
    """Compares the sizes of Figure 2(b) that this run has, by their names, at each FPR."""

    def claim_steps(statement: str, steps: Sequence[tuple[str, str]], sign: int) -> Claim:
        lacking = [name for step in steps for name in step if name not in sizes]
        if lacking or not steps:
            lacked = " and ".join(dict.fromkeys(lacking)) or "a second size"
            return claim_untested(statement, f"this run does not have {lacked}")
        return claim_all(
            statement,
            [
                _claim_tpr(sizes[new], sizes[old], fpr, count, sign)
                for old, new in steps
                for fpr in attacks.resolved_fprs([sizes[new], sizes[old]])
            ],
        )

    rising = [name for name in _RISING if name in sizes]
    return (
        claim_steps(FIG02_STATEMENTS[3], [*itertools.pairwise(rising)], 1),
        claim_steps(FIG02_STATEMENTS[4], [(_RISING[-1], _DROP)], -1),
    )


def _claim_tpr(
    new: RecipeResults, old: RecipeResults, fpr: float, count: int, sign: int = 1
) -> Claim:
    """Claims that the TPR of LiRA under one recipe is higher than under another, or lower if the sign is -1."""
    names = [size_label(new), size_label(old)]
    gap = recipe_difference(new, old, count, lambda attack: attack.tpr(fpr))
    what = f"TPR at an FPR of {percent(fpr)}, {' minus '.join(names[::sign])}"
    return claim_greater("", what, gap if sign == 1 else -gap)


# Figure 4: LiRA by data size, and by model size on the same data.
FIG04_STATEMENTS = (
    "The AUC is not monotone in the number of training samples.",
    "The AUC is highest for a moderate number of training samples, about a million in the paper.",
    "The AUC is below 0.7 for both the smallest and the largest number of training samples.",
    "On the same data the largest model has a higher AUC than the smallest.",
    "On the same data the largest model has a higher TPR than the smallest at fixed false positive rates.",
    "On the same data every step up in size raises the AUC.",
    "On the same data every step up in size raises the TPR at fixed false positive rates.",
    "On the same data the TPR at fixed false positive rates varies more between targets of the largest model than of "
    "the smallest.",
    "On the same data the TPR varies more between targets, in relation to its mean, at a low false positive rate than "
    "at a high one.",
)
_HIGHEST_AT = 1_000_000
"""The number of training samples at which the AUC is highest in the paper."""


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws (a) ROC curves per number of samples and (b) the TPR at fixed FPRs by model size."""
    families = [recipes.family("data"), recipes.family("fixed")]
    all_recipes = attacks.with_equal_models([recipe for family in families for _, recipe in family])
    by_data, by_size = all_recipes[: len(families[0])], all_recipes[len(families[0]) :]
    count = attacks.common_references(all_recipes)
    data = [(recipe, read_attack(recipe, Variant(references=count))) for recipe in by_data]
    on_size = [(recipe, read_jackknife(recipe, Variant(references=count))) for recipe in by_size]
    size = [(recipe, attack.result) for recipe, attack in on_size]
    spread = _spread_by_size(on_size)
    data_curves = [
        plotting.RocCurve(f"{recipe.samples:,} samples", result) for recipe, result in data
    ]
    size_curves = [plotting.RocCurve(size_label(recipe), result) for recipe, result in size]
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.draw_roc(left, data_curves, f"(a) {size_label(by_data[0])} on different data")
    plotting.draw_tpr_by_size(
        right,
        size,
        f"(b) Models on the same {by_size[0].samples:,} samples",
        {
            fpr: spread.loc[spread["fpr"] == fpr, "tpr_std_own_references"].to_list()
            for fpr in plotting.rates_by_size(by_size)
        },
    )
    steps = [
        (
            f"AUC, {new.samples:,} minus {old.samples:,} samples",
            recipe_difference(new, old, count),
        )
        for (old, _), (new, _) in itertools.pairwise(data)
    ]
    return Drawing(
        data=pd.concat(
            [
                curve.to_frame().assign(panel=panel)
                for panel, group in (("a", data_curves), ("b", size_curves))
                for curve in group
            ]
            + [spread]
        ),
        figure=figure,
        claims=(
            claim_up_and_down(FIG04_STATEMENTS[0], steps),
            _claim_highest_between(by_data, count),
            claim_below(
                FIG04_STATEMENTS[2],
                "AUC",
                attacks.NEVER_REACHED_AUC,
                {
                    f"with {recipe.samples:,} samples": read_jackknife(
                        recipe, Variant(references=count)
                    )
                    .auc.scaled(-1, attacks.NEVER_REACHED_AUC)
                    .estimate()
                    for recipe in (by_data[0], by_data[-1])
                },
            ),
            *_size_claims(by_size, count),
        ),
        ours={"highest": max(plotting.auc_mean_std(result) for _, result in data)},
        notes=(
            f"Attacks use {count} references.",
            "Bands of (b) are standard deviations over targets, all attacked with the same references. Error bars add "
            "the variance that is due to the choice of these references, estimated from halves of them, so they show "
            "how much attacks vary that have a target and references of their own.",
            plotting.curves_note([*data_curves, *size_curves]),
        ),
        paper_notes=(
            "Sizes are compared by the standard deviation of the TPR over targets, and FPRs by its ratio to the mean "
            "TPR, since by Tables 1 and 2 the standard deviation itself is smaller at lower FPRs.",
            f"That the AUC is highest for a moderate number of samples is tested as it is printed if there are models "
            f"on {_HIGHEST_AT:,} samples: the AUC is higher there than with each other number. Otherwise it must be "
            "higher with some number in between than with the smallest and the largest, after Bonferroni's correction "
            "for the numbers in between.",
        ),
    )


def _spread_by_size(on_size: Sequence[tuple[RecipeResults, JackknifedAttack]]) -> pd.DataFrame:
    """Returns the TPR of Figure 4(b) at each size and FPR, with its standard deviation over targets.

    In the column tpr_std_own_references, each target has references of its own, too.
    """
    rates = plotting.rates_by_size([recipe for recipe, _ in on_size])
    rows = []
    for recipe, attack in on_size:
        for fpr in rates:
            tpr_T = attack.result.tpr_T(fpr)
            own = math.sqrt(tpr_T.var() + attack.shared_tpr_variance(fpr))
            std = {"tpr_mean": tpr_T.mean(), "tpr_std": tpr_T.std(), "tpr_std_own_references": own}
            rows.append({"panel": "b, TPR", "series": size_label(recipe), "fpr": fpr, **std})
    columns = ["panel", "series", "fpr", "tpr_mean", "tpr_std", "tpr_std_own_references"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _claim_highest_between(by_data: Sequence[RecipeResults], count: int) -> Claim:
    """Returns the claim that the AUC is highest for a moderate number of samples.

    With the paper's million samples, the AUC there must be above that with each other number. Otherwise, the AUC with
    some number in between must be above that with the smallest and with the largest number. Which one is not known in
    advance, so `claim_any` corrects for their number.
    """

    def claim_above(best: RecipeResults, others: Sequence[RecipeResults]) -> Claim:
        gaps = [
            (
                f"AUC, {best.samples:,} minus {other.samples:,} samples",
                recipe_difference(best, other, count),
            )
            for other in others
        ]
        return claim_all(FIG04_STATEMENTS[1], [claim_greater("", what, gap) for what, gap in gaps])

    between = by_data[1:-1]
    if not between:
        return claim_untested(FIG04_STATEMENTS[1], "there are fewer than three numbers of samples")
    for recipe in between:
        if recipe.samples == _HIGHEST_AT:
            return claim_above(recipe, [other for other in by_data if other is not recipe])
    parts = [claim_above(recipe, (by_data[0], by_data[-1])) for recipe in between]
    return claim_any(FIG04_STATEMENTS[1], parts)


def _size_claims(by_size: Sequence[RecipeResults], count: int) -> tuple[Claim, ...]:
    small, large = by_size[0], by_size[-1]
    ends = f"{size_label(large)} minus {size_label(small)}"
    rates = attacks.resolved_fprs(by_size)
    on_size = {
        size_label(recipe): read_jackknife(recipe, Variant(references=count)) for recipe in by_size
    }
    return (
        claim_greater(FIG04_STATEMENTS[3], f"AUC, {ends}", recipe_difference(large, small, count)),
        claim_all(FIG04_STATEMENTS[4], [_claim_tpr(large, small, rate, count) for rate in rates]),
        claim_all(
            FIG04_STATEMENTS[5],
            [
                claim_greater(
                    "",
                    f"AUC, {size_label(new)} minus {size_label(old)}",
                    recipe_difference(new, old, count),
                )
                for old, new in itertools.pairwise(by_size)
            ],
        ),
        claim_all(
            FIG04_STATEMENTS[6],
            [
                _claim_tpr(new, old, rate, count)
                for old, new in itertools.pairwise(by_size)
                for rate in rates
            ],
        ),
        claim_all(
            FIG04_STATEMENTS[7],
            [
                claim_greater(
                    "",
                    f"Logarithm of the standard deviation of the TPR at an FPR of {percent(rate)}, {ends}",
                    recipe_difference(
                        large, small, count, lambda attack, r=rate: attack.tpr(r, log_std)
                    ),
                )
                for rate in rates
            ],
        ),
        claim_all(
            FIG04_STATEMENTS[8],
            [
                claim_greater(
                    "",
                    f"Logarithm of the relative standard deviation of the TPR at {size}, FPR {percent(rates[0])} "
                    f"minus {percent(rates[-1])}",
                    (
                        attack.tpr(rates[0], log_relative_std)
                        - attack.tpr(rates[-1], log_relative_std)
                    ).estimate(),
                )
                for size, attack in on_size.items()
            ]
            if len(rates) > 1
            else [],
        ),
    )


# Figure 16: LiRA with all samples, and without samples that share a prefix.
FIG16_STATEMENTS = ("Samples that share a prefix hardly change the AUC.",)
MARGIN = 0.02


def draw_fig16(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of the two populations."""
    main, distinct = attacks.with_equal_models([recipes["main"], recipes["distinct"]])
    count = attacks.common_references([main, distinct])
    with_all, without = (
        read_attack(recipe, Variant(references=count)) for recipe in (main, distinct)
    )
    tokens = distinct.config.population.distinct_prefix_tokens
    curves = [
        plotting.RocCurve("All samples", with_all, plotting.BLUE),
        plotting.RocCurve(f"Distinct first {tokens} tokens", without, plotting.VERMILLION, "--"),
    ]
    gain = recipe_difference(main, distinct, count)
    what = "AUC with all samples minus AUC without shared prefixes"
    return Drawing(
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


EXPERIMENTS = {
    "strongmia_fig02_compute_optimal": Experiment(
        statements=FIG02_STATEMENTS,
        draw=draw_fig02,
        reads=(Need(("chinchilla-*",), jackknife=True),),
    ),
    "strongmia_fig04_data_and_size": Experiment(
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
        reads=(Need(("data-*", "fixed-*"), jackknife=True),),
    ),
    "strongmia_fig16_duplicates": Experiment(
        statements=FIG16_STATEMENTS,
        draw=draw_fig16,
        reads=(Need(("main", "distinct"), jackknife=True),),
    ),
}
