"""Figure 26: distribution of flip rates, and flip rates by distance and by posterior, 140M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig26_flip_detail_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

Of 125 replicas, FPRs from 1e-5 to 0.1: at 0.1, 49% of members and 8% of non-members have a flip rate of 0.4 or more. It
falls with the distance to the threshold, and is highest where the mean posterior is near it.

Expect, at cpu, rows for 0.001, 0.01 and 0.1 and the same shapes, with noise: a point is of 20 samples. At 0.1 about 27%
of members and 11% of non-members have 0.4 or more.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
