"""Figure 27: distribution of flip rates, and flip rates by distance and by posterior, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig27_flip_detail_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    508 rows  197 hours
    gpu      128 rows  0.032 hours
    cpu      128 rows  about 5 minutes of 2 cores

As Figure 26, of 127 replicas: at an FPR of 0.1, 70% of members and 7% of non-members have a flip rate of 0.4 or more.
The gap between the classes is wider than for 140M.

Expect the wider gap at cpu too: about 46% of members and 11% of non-members at 0.1. The recipe of 140M is there for the
comparison.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M", "flip-140M"]


get_config, sweep = recipes.of(__file__, names)
