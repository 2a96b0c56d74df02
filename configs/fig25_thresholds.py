"""Figure 25: TPR and decision thresholds of replicas at fixed false positive rates (StrongMIA E.2.5).

    lm-mia run --config=configs/fig25_thresholds.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    508 rows  197 hours
    gpu      128 rows  0.032 hours
    cpu      128 rows  about 5 minutes of 2 cores

The TPR at a fixed FPR varies little between replicas. Thresholds, as posteriors, are high and alike at very low FPRs,
and differ considerably at higher ones.

Expect, at cpu, TPRs that vary by 0.02 to 0.03, and thresholds whose range is 0.2 or more at all FPRs but the lowest:
with 1,000 non-members there is no very low FPR, and the spread need not grow.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M", "flip-302M"]


get_config, sweep = recipes.of(__file__, names)
