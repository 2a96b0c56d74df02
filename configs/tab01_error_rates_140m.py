"""Table 1: accuracy and error rates at fixed false positive rates, 140M (StrongMIA E.2.5).

    lm-mia run --config=configs/tab01_error_rates_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

Over 125 replicas the TPR is 0.104 ± 0.005 at an FPR of 0.01 and 0.336 ± 0.006 at 0.1; the accuracy is highest, 0.640,
at 0.2.

Expect lower TPRs that vary more at reduced scale: at cpu 0.04 ± 0.01 and 0.24 ± 0.03, and no FPR below 0.001.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
