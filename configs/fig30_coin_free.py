"""Figure 30: mean ROC curves with and without true positives that are like coin flips (StrongMIA E.2.6).

    lm-mia run --config=configs/fig30_coin_free.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    508 rows  197 hours
    gpu      128 rows  0.032 hours
    cpu      128 rows  about 5 minutes of 2 cores

Of the AUC of 302M about 0.059 rests on coin flips. Between FPRs of 1e-4 and 0.1 the curve without them keeps 53% of the
lift over chance and the mean TPR falls by 39.4%. The effect is greater for 302M than for 140M.

Expect a greater loss at reduced scale, since 32 replicas count more decisions as coin flips: at cpu, 0.11 of the area
at 140M and 0.14 at 302M, with 25% and 28% of the lift kept between 0.001 and 0.1.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M", "flip-302M"]


get_config, sweep = recipes.of(__file__, names)
