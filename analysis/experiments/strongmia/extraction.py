"""Figure 7: whether the samples with the highest membership scores can be extracted from the first replica.

N: samples.
"""

import dataclasses
import math

import pandas as pd

from analysis import extraction
from analysis.claims.compare import (
    claim_equivalent,
    claim_untested,
)
from analysis.experiment import Drawing, Experiment
from analysis.io import SweepResults

# Figure 7: log probabilities of the suffixes of the samples with the highest membership scores.
FIG07_STATEMENTS = (
    "The vulnerability of a sample says little about how easily it can be extracted.",
)
_MARGIN, _SUFFIX_TOKENS = 0.2, 50
_COLUMNS = ["id", "member", "score", "log_p_sampled"]


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the negative log probability of each suffix against the membership score."""
    main = recipes["main"]
    result = extraction.read_chosen(main, "scores")
    score_N, nats_N = result.column("score"), -result.column("log_p_sampled")
    correlation = result.rank_correlation()
    what = "Rank correlation of the score and -log p of the suffix"
    claim = claim_untested(
        FIG07_STATEMENTS[0], f"{what}: all scores or all probabilities are equal"
    )
    if correlation:
        estimate = correlation.estimate(("the model", "its references"))
        claim = claim_equivalent(FIG07_STATEMENTS[0], what, estimate, _MARGIN)
    ours = {"members_of_1000": (1000 * float(result.member_N.mean()), math.nan)}
    if main.config.extract.suffix_tokens == _SUFFIX_TOKENS:
        ours["largest_probability"] = (math.exp(-nats_N.min()), math.nan)
        ours["smallest_nats"] = (float(nats_N.min()), math.nan)
    return Drawing(
        data=pd.DataFrame(result.samples)[_COLUMNS],
        figure=extraction.draw(dataclasses.replace(result, curves=[])),
        claims=(claim,),
        ours=ours,
        notes=(
            result.request_text(),
            f"These are a fraction {len(score_N) / len(main.attacked):.2g} of all samples.",
        ),
        paper_notes=(
            "In the paper, the samples are a fraction 0.00007 of all.",
            f"“Little” means a rank correlation within ±{_MARGIN:g}; this margin is our choice.",
        ),
    )


EXPERIMENTS = {
    "strongmia_fig07_extraction": Experiment(
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
