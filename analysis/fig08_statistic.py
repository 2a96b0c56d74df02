"""Figure 8: LiRA on the loss and on the logit of every sample."""

import sys

import figures
import series
import style
from claims import above, difference
from drawn import Drawn
from measured import Recipes, attacked

TITLE = "Figure 8: What LiRA observes: loss or logit"
PAPER = (
    "On a 140M model of 7M samples with 128 references, LiRA on the loss (AUC 0.678) beats LiRA on the logit of the "
    "next token, averaged over the sample (AUC 0.576)."
)
STATEMENTS = ("The loss tells members better than the logit.",)


def draw(recipes: Recipes) -> Drawn:
    """Curves of both, of the same rows."""
    main = recipes["main"]
    count = series.references([main])
    loss = attacked(main, references=count)
    logit = attacked(main, references=count, observed="target_logit")
    lines = [
        series.Line("Loss", loss, style.BLUE),
        series.Line("Logit", logit, style.VERMILLION, "--"),
    ]
    gain = difference(loss.auc_T, logit.auc_T, paired=True)
    return Drawn(
        data=series.data([("", lines)]),
        figure=series.roc(lines),
        claims=(above(STATEMENTS[0], "AUC on the loss less on the logit", gain),),
        ours={"loss": series.auc_of(loss), "logit": series.auc_of(logit)},
        notes=(f"Attacks use {count} references.", series.left_out(lines)),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
