"""Figure 7: the log probability of the suffixes of the samples with the highest scores."""

import dataclasses
import math
import sys

import extraction
import figures
import pandas as pd
from claims import Estimate, near, untested
from drawn import Drawn
from measured import Absent, Recipes
from trend import Trend

TITLE = "Figure 7: Extraction of the samples with the highest scores"
PAPER = (
    "Of the 1,000 samples with the highest LiRA scores under a 140M model, 713 are members. Given 50 tokens, the next "
    "50 have a probability of 0.0067 at most (a member), and of the order of 1e-44 or less for most, members or not."
)
STATEMENTS = ("How vulnerable a sample is says little about how well it can be extracted.",)
_MARGIN, _SUFFIX_TOKENS = 0.2, 50
_COLUMNS = ["id", "member", "score", "log_p_sampled"]


def draw(recipes: Recipes) -> Drawn:
    """The negative log probability of every suffix against the score."""
    main = recipes["main"]
    found = extraction.read(main.folder)
    if found is None:
        raise Absent(f"{main.config.name}: no tables of extraction for its attack")
    score_N, nats_N = found.column("score"), -found.column("log_p_sampled")
    trend = Trend.of(score_N, nats_N)
    said = "rank correlation of the score and -log p of the suffix"
    claim = untested(STATEMENTS[0], f"{said}: all scores or all probabilities are equal")
    if trend:
        over = f"{len(score_N):,} samples"
        estimate = Estimate(trend.r, trend.low, trend.high, over)
        claim = near(STATEMENTS[0], said, estimate, _MARGIN)
    ours = {"members_of_1000": (1000 * float(found.member_N.mean()), math.nan)}
    if main.config.extract.suffix_tokens == _SUFFIX_TOKENS:
        ours["largest_probability"] = (math.exp(-nats_N.min()), math.nan)
        ours["smallest_nats"] = (float(nats_N.min()), math.nan)
    return Drawn(
        data=pd.DataFrame(found.samples)[_COLUMNS],
        figure=extraction.draw(dataclasses.replace(found, curves=[])),
        claims=(claim,),
        ours=ours,
        notes=(
            *found.sentences(),
            f"These are {len(score_N) / len(main.population):.2g} of all samples (the paper's: 0.00007).",
            f"Little is a rank correlation within {_MARGIN:g} of 0, which is our choice.",
        ),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
