"""Figure 24: mean ROC curves over replicas of a target, for two sizes (StrongMIA E.2.5).

    lm-mia run --config=configs/fig24_mean_roc.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    508 rows  197 hours
    gpu      128 rows  0.032 hours
    cpu      128 rows  about 5 minutes of 2 cores

On the same 2^19 samples the mean AUC is 0.706 ± 0.004 over 125 replicas of 140M and 0.752 ± 0.007 over 127 of 302M.

Expect the larger model ahead at reduced scale too: at cpu about 0.65 ± 0.02 and 0.70 ± 0.01.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M", "flip-302M"]


get_config, sweep = recipes.of(__file__, names)
