"""Figures 3 and 17: LiRA after increasing numbers of epochs."""

from analysis import attacks, plotting
from analysis.attacks import read_jackknife
from analysis.claims.compare import claim_all, claim_equivalent, claim_greater
from analysis.experiment import Drawing, Experiment
from analysis.io import SweepResults
from lm_mia.attacks.spec import Need, Variant

# Figure 3: LiRA after one and more epochs.
FIG03_STATEMENTS = (
    "Two epochs on half of the data give a higher AUC than one epoch on all of it.",
    "More epochs raise the AUC.",
    "At low false positive rates the attack is weaker after the second epoch than after the first.",
)


def draw_fig03(recipes: SweepResults) -> Drawing:
    """Draws (a) equally many seen samples from two data sizes, (b) each of many epochs."""
    whole, half = attacks.with_equal_models([recipes["chinchilla-44M"], recipes["epochs-44M"]])
    long = recipes["epochs-140M"]
    count = attacks.common_references([whole, half])
    on_whole = read_jackknife(whole, Variant(references=count))
    on_first = read_jackknife(half, Variant(references=count, step=half.step_after(1)))
    on_second = read_jackknife(half, Variant(references=count))
    first_whole, first, second = (a.result for a in (on_whole, on_first, on_second))
    on_long = attacks.lira_by_epoch(long, attacks.common_references([long]))
    epochs = {epoch: attack.result for epoch, attack in on_long.items()}
    panels = [
        (
            "(a) All or half of the data",
            [
                plotting.RocCurve(
                    f"{whole.samples:,} samples, epoch 1 of 1", first_whole, plotting.VERMILLION
                ),
                plotting.RocCurve(
                    f"{half.samples:,} samples, epoch 1 of 2", first, plotting.SKY, "--"
                ),
                plotting.RocCurve(f"{half.samples:,} samples, epoch 2 of 2", second, plotting.BLUE),
            ],
        ),
        (
            f"(b) {long.samples:,} samples, {long.config.train.epochs} epochs",
            [plotting.RocCurve(f"Epoch {epoch:g}", result) for epoch, result in epochs.items()],
        ),
    ]
    low, last = attacks.lowest_resolved_fpr(half), max(epochs)
    return Drawing(
        data=plotting.panels_frame(panels),
        figure=plotting.roc_panels(panels),
        claims=(
            claim_greater(
                FIG03_STATEMENTS[0],
                "AUC, epoch 2 of 2 minus epoch 1 of 1",
                attacks.paired_or_independent(half, whole, on_second.auc, on_whole.auc),
            ),
            claim_all(
                FIG03_STATEMENTS[1],
                [
                    claim_greater("", f"AUC, epoch {b} minus epoch 1", gain.estimate())
                    for b, gain in (
                        ("2 of 2", on_second.auc - on_first.auc),
                        (f"{last:g} of {last:g}", on_long[last].auc - on_long[1].auc),
                    )
                ],
            ),
            claim_greater(
                FIG03_STATEMENTS[2],
                f"TPR at an FPR of {low:g}, epoch 1 minus epoch 2 of 2",
                (on_first.tpr(low) - on_second.tpr(low)).estimate(),
            ),
        ),
        ours={
            "1_of_1": plotting.auc_mean_std(first_whole),
            "1_of_2": plotting.auc_mean_std(first),
            "2_of_2": plotting.auc_mean_std(second),
            "140M_first": plotting.auc_mean_std(epochs[1]),
            "140M_last": plotting.auc_mean_std(epochs[last]),
        },
        notes=(
            f"Attacks use {count} references in (a) and {epochs[1].references} in (b).",
            plotting.curves_note([curve for _, curves in panels for curve in curves]),
        ),
    )


# Figure 17: LiRA after each epoch of over-training, with more and with less data.
FIG17_STATEMENTS = (
    "More epochs raise the AUC.",
    "With less data the second epoch raises it more.",
    "With less data and many epochs the attack is near perfect.",
)
MARGIN = 0.01


def draw_fig17(recipes: SweepResults) -> Drawing:
    """Draws a panel per number of samples, with a curve per epoch."""
    both = attacks.with_equal_models([recipes["epochs-140M"], recipes["epochs-140M-small"]])
    count = attacks.common_references(both)
    on_more, on_less = both_attacks = [
        attacks.lira_by_epoch(both[0], count, required=(1, 2)),
        attacks.lira_by_epoch(both[1], count, required=(1, 2, 3)),
    ]
    more, less = results = [
        {epoch: attack.result for epoch, attack in by_epoch.items()} for by_epoch in both_attacks
    ]
    panels = [
        (
            f"({letter}) {recipe.samples:,} samples",
            [plotting.RocCurve(f"Epoch {epoch:g}", result) for epoch, result in epochs.items()],
        )
        for letter, recipe, epochs in zip("ab", both, results, strict=True)
    ]
    grows = [
        claim_greater(
            "",
            f"AUC on {recipe.samples:,} samples, epoch {max(epochs):g} minus epoch 1",
            (epochs[max(epochs)].auc - epochs[1].auc).estimate(),
        )
        for recipe, epochs in zip(both, both_attacks, strict=True)
    ]
    gains = [epochs[2].auc - epochs[1].auc for epochs in (on_less, on_more)]
    faster = attacks.paired_or_independent(both[1], both[0], *gains)
    last = max(less)
    perfect = on_less[last].auc.scaled(1, -1).estimate()
    return Drawing(
        data=plotting.panels_frame(panels),
        figure=plotting.roc_panels(panels),
        claims=(
            claim_all(FIG17_STATEMENTS[0], grows),
            claim_greater(
                FIG17_STATEMENTS[1],
                f"AUC gained in epoch 2 on {both[1].samples:,} samples minus on {both[0].samples:,}",
                faster,
            ),
            claim_equivalent(
                FIG17_STATEMENTS[2],
                f"AUC after epoch {last:g} on {both[1].samples:,} samples minus 1",
                perfect,
                MARGIN,
            ),
        ),
        ours={
            "more_first": plotting.auc_mean_std(more[1]),
            "more_last": plotting.auc_mean_std(more[max(more)]),
            **{f"less_{e}": plotting.auc_mean_std(less[e]) for e in (1, 2, 3)},
            "less_last": plotting.auc_mean_std(less[last]),
        },
        notes=(
            f"Attacks use {count} references.",
            plotting.curves_note([curve for _, curves in panels for curve in curves]),
        ),
    )


EXPERIMENTS = {
    "strongmia_fig03_epochs": Experiment(
        statements=FIG03_STATEMENTS,
        draw=draw_fig03,
        reads=(
            Need(("chinchilla-44M", "epochs-44M"), jackknife=True),
            Need(("chinchilla-44M", "epochs-44M"), epochs=(1,), jackknife=True),
            Need(("epochs-140M",), epochs="all", jackknife=True),
        ),
    ),
    "strongmia_fig17_overtraining": Experiment(
        statements=FIG17_STATEMENTS,
        draw=draw_fig17,
        reads=(Need(("epochs-140M", "epochs-140M-small"), epochs="all", jackknife=True),),
    ),
}
