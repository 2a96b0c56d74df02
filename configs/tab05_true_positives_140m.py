"""Table 5: how much of the TPR rests on members whose decisions flip, 140M (StrongMIA E.2.6).

    lm-mia run --config=configs/tab05_true_positives_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

Over 125 replicas 6.8% ± 0.3% of the true positives at an FPR of 0.001 are on coin flips, 22.8% ± 1.0% at 0.01 and 31.4%
± 0.9% at 0.1.

Expect larger shares that vary more at reduced scale: at cpu about 43% ± 7% at 0.01 and 46% ± 7% at 0.1. At 0.001 there
are 6 true positives, too few for a share.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
