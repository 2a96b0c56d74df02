"""Figure 17: LiRA after each epoch of over-training, with more and with less data."""

import sys

import figures
import series
from claims import above, difference, every, near
from comparisons import gained
from drawn import Drawn
from measured import Recipes

TITLE = "Figure 17: LiRA after each epoch of over-training"
PAPER = (
    "A 140M model of 7M samples goes from an AUC of 0.573 after one epoch to 0.797 after ten; of 2^19 samples from "
    "0.604 after one, 0.864 after two and 0.944 after three to about 1 after thirteen."
)
STATEMENTS = (
    "More epochs raise the AUC.",
    "With less data the second epoch raises it more.",
    "With less data and many epochs the attack is near perfect.",
)
MARGIN = 0.01


def draw(recipes: Recipes) -> Drawn:
    """A panel a number of samples, a curve an epoch."""
    both = [recipes["epochs-140M"], recipes["epochs-140M-small"]]
    more, less = found = [
        series.by_epoch(both[0], needed=(1, 2)),
        series.by_epoch(both[1], needed=(1, 2, 3)),
    ]
    titled = [
        (
            f"({letter}) {recipe.samples:,} samples",
            [series.Line(f"Epoch {epoch:g}", one) for epoch, one in epochs.items()],
        )
        for letter, recipe, epochs in zip("ab", both, found, strict=True)
    ]
    grows = [
        above(
            "",
            f"AUC on {recipe.samples:,} samples after epoch {max(epochs):g} less after epoch 1",
            difference(epochs[max(epochs)].auc_T, epochs[1].auc_T, paired=True),
        )
        for recipe, epochs in zip(both, found, strict=True)
    ]
    count = min(more[1].references, less[1].references)
    steps = tuple((recipe.step(1), recipe.step(2)) for recipe in reversed(both))
    faster = gained(both[1], both[0], count, steps)
    last = max(less)
    perfect = difference(less[last].auc_T, 1 + 0 * less[last].auc_T, paired=True)
    return Drawn(
        data=series.data(titled),
        figure=series.panels(titled),
        claims=(
            every(STATEMENTS[0], grows),
            above(
                STATEMENTS[1],
                f"AUC gained in epoch 2 on {both[1].samples:,} less on {both[0].samples:,} samples",
                faster,
            ),
            near(
                STATEMENTS[2],
                f"AUC after epoch {last:g} on {both[1].samples:,} samples less 1",
                perfect,
                MARGIN,
            ),
        ),
        ours={
            "more_first": series.auc_of(more[1]),
            "more_last": series.auc_of(more[max(more)]),
            **{f"less_{e}": series.auc_of(less[e]) for e in (1, 2, 3)},
            "less_last": series.auc_of(less[last]),
        },
        notes=(
            f"Attacks use {more[1].references} references in (a) and {less[1].references} in (b).",
            series.left_out([line for _, lines in titled for line in lines]),
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
