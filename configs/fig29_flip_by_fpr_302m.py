"""Figure 29: shares of samples in five ranges of flip rates by false positive rate, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig29_flip_by_fpr_302m.py:cpu --workdir=runs/paper

Cost:

As Figure 28, with wider gaps between members and non-members, and more coin flips: 32.49% of members and 8.66% of non-
members at an FPR of 20%.

Expect more coin flips than for 140M at cpu too: about 54% and 23% at an FPR of 20%.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M", "flip-140M"]


get_config, sweep = recipes.of(__file__, names)
