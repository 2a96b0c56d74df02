"""Table 6: how much of the TPR rests on members whose decisions flip, 302M (StrongMIA E.2.6).

    lm-mia run --config=configs/tab06_true_positives_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    255 rows  132 hours
    gpu       64 rows  0.021 hours
    cpu       64 rows  about 3 minutes of 2 cores

Over 127 replicas 15.4% ± 0.6% of the true positives at an FPR of 0.001 are on coin flips, 33.5% ± 1.5% at 0.01 and
38.6% ± 1.4% at 0.1.

Expect larger shares at reduced scale: at cpu about 36% ± 7% at 0.01 and 57% ± 3% at 0.1.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
