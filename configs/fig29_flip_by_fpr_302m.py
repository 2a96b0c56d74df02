"""Figure 29: shares of samples in five ranges of flip rates by false positive rate, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig29_flip_by_fpr_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    508 rows  197 hours
    gpu      128 rows  0.032 hours
    cpu      128 rows  about 5 minutes of 2 cores

As Figure 28, with wider gaps between members and non-members, and more coin flips: 32.49% of members and 8.66% of non-
members at an FPR of 20%.

Expect more coin flips than for 140M at cpu too: about 54% and 23% at an FPR of 20%.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M", "flip-140M"]


get_config, sweep = recipes.of(__file__, names)
