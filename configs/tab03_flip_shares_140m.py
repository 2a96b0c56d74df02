"""Table 3: shares of members and of non-members in five ranges of flip rates, 140M (StrongMIA E.2.5).

    lm-mia run --config=configs/tab03_flip_shares_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

Of 125 replicas a flip rate of 0.490 or more counts as a coin flip: 5.00% of members and 0.00% of non-members at an FPR
of 0.01, 19.00% and 0.00% at 0.1.

Expect, at cpu, 3% and 0.7% at 0.01, 23% and 10% at 0.1: with 32 replicas 0.444 counts as a coin flip, so that the range
before it is narrow.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
