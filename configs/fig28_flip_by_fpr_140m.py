"""Figure 28: shares of samples in five ranges of flip rates by false positive rate, 140M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig28_flip_by_fpr_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

As the FPR grows to about 20%, decisions on members pass from very stable to coin flips; members flip far more than non-
members. At an FPR of 20%, 24.3% of members and 8.95% of non-members are like coin flips.

Expect the same at cpu, with 34% and 19% at an FPR of 20%. With 32 replicas the very unstable range, 0.4 to 0.444, is
narrow.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
