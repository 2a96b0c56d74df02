"""Figure 3: LiRA after one and more epochs."""

import sys

import figures
import series
import style
from claims import above, difference, every
from comparisons import compared
from drawn import Drawn
from measured import Recipes, attacked, fewest_references

TITLE = "Figure 3: LiRA after more epochs"
PAPER = (
    "A 44M model has an AUC of 0.620 after one epoch of its compute-optimal data, and on half of it 0.628 after one "
    "epoch and 0.744 after two, though not at low FPRs. A 140M model goes from 0.573 after one epoch to 0.797 after "
    "ten."
)
STATEMENTS = (
    "Two epochs on half of the data give a higher AUC than one epoch on all of it.",
    "More epochs raise the AUC.",
    "At low false positive rates the second epoch is attacked less well than the first.",
)


def draw(recipes: Recipes) -> Drawn:
    """(a) As many samples seen, of two data sizes. (b) After each epoch of many."""
    whole, half = series.alike([recipes["chinchilla-44M"], recipes["epochs-44M"]])
    long = recipes["epochs-140M"]
    count = min(series.MOST_REFERENCES, fewest_references([whole, half]))
    one = attacked(whole, references=count)
    first = attacked(half, references=count, step=half.step(1))
    second = attacked(half, references=count)
    epochs = series.by_epoch(long)
    titled = [
        (
            "(a) All or half of the data",
            [
                series.Line(f"{whole.samples:,} samples, epoch 1 of 1", one, style.VERMILLION),
                series.Line(f"{half.samples:,} samples, epoch 1 of 2", first, style.SKY, "--"),
                series.Line(f"{half.samples:,} samples, epoch 2 of 2", second, style.BLUE),
            ],
        ),
        (
            f"(b) {long.samples:,} samples, {long.config.train.epochs} epochs",
            [series.Line(f"Epoch {epoch:g}", found) for epoch, found in epochs.items()],
        ),
    ]
    low, last = series.lowest_rate(half), max(epochs)
    return Drawn(
        data=series.data(titled),
        figure=series.panels(titled),
        claims=(
            above(
                STATEMENTS[0],
                "AUC after epoch 2 of 2 less after epoch 1 of 1",
                compared(half, whole, count),
            ),
            every(
                STATEMENTS[1],
                [
                    above("", f"AUC after epoch {b} less after epoch 1", gain)
                    for b, gain in (
                        ("2 of 2", difference(second.auc_T, first.auc_T, paired=True)),
                        (
                            f"{last:g} of {last:g}",
                            difference(epochs[last].auc_T, epochs[1].auc_T, paired=True),
                        ),
                    )
                ],
            ),
            above(
                STATEMENTS[2],
                f"TPR at an FPR of {low:g} after epoch 1 less after epoch 2 of 2",
                difference(first.tpr_T(low), second.tpr_T(low), paired=True),
            ),
        ),
        ours={
            "1_of_1": series.auc_of(one),
            "1_of_2": series.auc_of(first),
            "2_of_2": series.auc_of(second),
            "140M_first": series.auc_of(epochs[1]),
            "140M_last": series.auc_of(epochs[last]),
        },
        notes=(
            f"Attacks use {count} references in (a) and {epochs[1].references} in (b).",
            series.left_out([line for _, lines in titled for line in lines]),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
