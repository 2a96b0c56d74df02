"""Table 4: shares of members and of non-members in five ranges of flip rates, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/tab04_flip_shares_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    255 rows  132 hours
    gpu       64 rows  0.021 hours
    cpu       64 rows  about 3 minutes of 2 cores

Of 127 replicas a flip rate of 0.487 or more counts as a coin flip: 12.55% of members and 0.00% of non-members at an FPR
of 0.01, 33.39% and 1.56% at 0.1.

Expect, at cpu, 5% and 0.5% at 0.01, 39% and 9% at 0.1.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
