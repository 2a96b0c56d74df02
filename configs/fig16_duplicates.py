"""Figure 16: LiRA with and without samples that begin alike (StrongMIA Appendix D).

    lm-mia run --config=configs/fig16_duplicates.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    674 rows  2,341 hours
    gpu      106 rows  0.03 hours
    cpu      114 rows  about 6 minutes of 2 cores

A 140M model of 7M samples is attacked with an AUC of 0.683 on C4 and of 0.680 where samples that share a prefix are
left out, which are 4% of C4.

Expect a small difference at cpu, whose interval over few targets of two populations is about as wide as the margin of
the claim.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main", "distinct"]


get_config, sweep = recipes.of(__file__, names)
